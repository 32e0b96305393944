"""The rules for imports between modules, and of Beam and TensorFlow; and all doctests."""

from __future__ import annotations

import ast
import doctest
import graphlib
import importlib
import itertools
import pkgutil
import re
import tomllib

import pytest
from repository import DATA, ROOT, python

from layerbeam.pipeline.remote.image_check import broken_modules

# The folders and modules of pipeline/: each imports only those behind it. What all need lies below them.
AFTER = ("check", "compare", "export", "publish", "report", "search", "show", "verify")
READER = "layerbeam.pipeline.dataset"
LAYERS = (
    *("cli", "commands", "init", "plan", *AFTER, "encoder", "extract_features"),
    *("remote", "run", "forecast", "embed", "dataset", "output", "config"),
    *("progress", "markup", "console", "versions", "errors"),
)
STAGES = ("slice", "read", "tokenize", "encode", "write")
# Beam may be imported where a stage is wired, where a pipeline is built and run, and in their shared modules.
BEAM = {
    *(f"layerbeam.transforms.flow.{name}" for name in ("counters", "stage")),
    *(f"layerbeam.transforms.{stage}" for stage in STAGES),
    # Imported for the first path with a scheme.
    *(f"layerbeam.transforms.storage.{name}" for name in ("google_store", "s3_store", "store", "stores")),
    "layerbeam.pipeline.cli.flex_template",
    "layerbeam.pipeline.commands.beam_options",
    # The clients of those that run a job, inside of functions: who is active is asked there.
    "layerbeam.pipeline.output.jobs",
}
BEAM_FOLDERS = ("layerbeam.pipeline.embed.", "layerbeam.pipeline.run.", "layerbeam.pipeline.remote.")


def _modules() -> dict[str, ast.Module]:
    """Every module of the product with its syntax tree."""
    found = {}
    for folder in ("layerbeam", "pipeline", "transforms"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            module = module if folder == "layerbeam" else f"layerbeam.{module}"
            found[module] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = _modules()


def _imports(nodes: list[ast.stmt] | ast.Module) -> set[str]:
    """The modules that these statements import, also inside functions, except imports for the type checker."""
    found: set[str] = set()
    todo: list[ast.AST] = list(nodes.body if isinstance(nodes, ast.Module) else nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inner}
        todo += ast.iter_child_nodes(node)
    return found


def _imports_at_once(tree: ast.Module) -> set[str]:
    """The modules imported when the module is imported: functions are excluded."""
    return _imports([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)])


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


IMPORTS = [(module, imported) for module, tree in MODULES.items() for imported in _imports(tree)]


def test_stages_do_not_import_each_other():
    wrong = [
        (module, imported)
        for module, imported in IMPORTS
        for stage, other in itertools.permutations(STAGES, 2)
        if _is_in(module, f"layerbeam.transforms.{stage}") and _is_in(imported, f"layerbeam.transforms.{other}")
    ]
    assert wrong == []


def test_what_flows_knows_no_stage_and_no_view():
    """Not even its types."""
    trees = (tree for module, tree in MODULES.items() if _is_in(module, "layerbeam.transforms.flow"))
    names = {node.module or "" for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    folders = {name.split(".")[2] for name in names if name.startswith("layerbeam.transforms.")}
    assert folders == {"flow", "settings"}


def _layer(module: str) -> int | None:
    """The layer of a module of pipeline/. Commands are in their rooms, and belong to the command line."""
    if not module.startswith("layerbeam.pipeline."):
        return None
    return LAYERS.index("cli" if module.endswith(".command") else module.split(".")[2])


def test_pipeline_imports_point_down():
    layers = [(pair, *map(_layer, pair)) for pair in IMPORTS]
    assert [pair for pair, own, lower in layers if own is not None and lower is not None and lower < own] == []


def test_what_comes_after_a_run_reads_it_through_the_public_reader():
    """These rooms import no other room but `dataset`, and nothing that is private; exceptions: which
    runs are active, the change feed, the job that `verify` does again, and the encoders that are known."""
    exceptions = {"output.attempts", "output.lock", "output.changes", "config.job", "encoder.known_encoders"}
    rooms = [f"layerbeam.pipeline.{name}" for name in AFTER]
    trees = {module: tree for module, tree in MODULES.items() if any(_is_in(module, room) for room in rooms)}
    others = {f"layerbeam.pipeline.{layer}" for layer in LAYERS[: LAYERS.index("progress")]} - {READER}
    wrong = [
        (module, imported)
        for module, tree in trees.items()
        if not module.endswith(".command")
        for imported in _imports(tree)
        if any(_is_in(imported, other) and not _is_in(module, other) for other in others)
        and imported.removeprefix("layerbeam.pipeline.") not in exceptions
    ]
    private = [
        (module, ast.unparse(node))
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_(?!_|replace$)", node.attr)
        and ast.unparse(node.value) != "self"
    ]
    assert (wrong, private) == ([], [])
    assert len(trees) > 20


def test_encoders_are_used_through_their_face():
    """`encoders` and `encoders.recipe`; the exceptions look inside on purpose."""
    encoders = "layerbeam.transforms.encoders"
    exceptions = {
        ("layerbeam.pipeline.encoder.known_encoders", "architectures"),
        ("layerbeam.pipeline.remote.image_check", "formats.minilm"),
        ("layerbeam.pipeline.verify.recompute", "calibrate"),
        ("layerbeam.pipeline.verify.recompute", "int8"),
        ("layerbeam.pipeline.verify.recompute", "network"),
        ("layerbeam.transforms.reference", "architectures"),
        ("layerbeam.transforms.reference", "int8"),
    }
    inside = {
        (module, imported.removeprefix(f"{encoders}."))
        for module, imported in IMPORTS
        if imported.startswith(f"{encoders}.") and not _is_in(module, encoders)
    }
    assert {pair for pair in inside if pair[1] != "recipe"} == exceptions


def test_transforms_do_not_import_pipeline():
    of_transforms = [pair for pair in IMPORTS if _is_in(pair[0], "layerbeam.transforms")]
    assert [pair for pair in of_transforms if _is_in(pair[1], "layerbeam.pipeline")] == []


def test_beam_is_imported_only_where_it_is_wired():
    importers = {module for module, imported in IMPORTS if _is_in(imported, "apache_beam")}
    assert {module for module in importers - BEAM if not module.startswith(BEAM_FOLDERS)} == set()
    assert importers >= {f"layerbeam.transforms.{stage}" for stage in STAGES}


def test_tensorflow_is_imported_only_inside_functions():
    heavy = ("tensorflow", "tensorflow_text", "tensorflow_hub")
    wrong = [
        module for module, tree in MODULES.items() if any(_is_in(i, h) for i in _imports_at_once(tree) for h in heavy)
    ]
    assert wrong == []


def test_imports_have_no_cycle():
    graph = {module: _imports_at_once(tree) & MODULES.keys() - {module} for module, tree in MODULES.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


STEPS = f"""
import layerbeam
import layerbeam.pipeline.config.job
from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.encoders import open_encoder
import pickle; pickle.loads(pickle.dumps(open_encoder({str(DATA / "hf_uncased")!r})))
import contextlib
with contextlib.suppress(ValueError): open_encoder("hf://-no/repository")
main(["encoder", {str(DATA / "hf_uncased")!r}], version="test")
main(["encoder", "nowhere"], version="test")
main(["run", "c.yaml"], version="test")
import layerbeam.transforms.tokenize.wordpiece
"""


def test_fast_commands_import_neither_beam_nor_tensorflow(workplace):
    workplace.configure(encoder={"max_seq_length": 999})  # which is refused
    steps = STEPS.strip().splitlines()
    program = "import sys\n"
    for step in steps:
        program += f"{step}\nprint({step!r}, sorted({{'apache_beam', 'tensorflow'}} & sys.modules.keys()))\n"
    printed = python(program, folder=workplace.folder).splitlines()
    expected = [f"{step} []" for step in steps[:-1]] + [f"{steps[-1]} ['apache_beam']"]
    assert [line for line in printed if line.startswith(tuple(steps))] == expected


@pytest.mark.parametrize("module", sorted(MODULES))
def test_doctests(module):
    if module.endswith("__main__"):
        return
    for name, package in (("torch_dataset", "torch"), ("azure_store", "obstore")):
        if module.endswith(name):
            pytest.importorskip(package, reason=f"{package} is not installed")
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_module_can_be_imported_in_the_image():
    assert list(broken_modules()) == []


def test_every_module_is_in_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {module for module in MODULES if any(m.startswith(f"{module}.") for m in MODULES)}
    assert packages <= set(settings["tool"]["setuptools"]["packages"])
    assert {info.name for info in pkgutil.iter_modules([str(ROOT / "layerbeam")])} == {"__main__"}
