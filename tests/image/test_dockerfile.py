"""The Dockerfile matches the repository. `make test-image` also runs it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from dockerfile import Build, Dockerfile, Step, copied, expand, is_sent
from repository import ROOT, tracked

from layerbeam import __version__

BUILT = ROOT / ".venv-image"
FILE = Dockerfile.read((ROOT / "Dockerfile").read_text())
LAST = FILE.stages[-1]
STEPS = [(stage, step) for stage in FILE.stages for step in stage.steps]
IGNORED = (ROOT / ".dockerignore").read_text()


def only(instruction: str, stage=LAST) -> list[str]:
    return [step.value for step in stage.steps if step.instruction == instruction]


def pins(constraints: str) -> dict[str, str]:
    """The versions that are the same for all Pythons."""
    return dict(line.split("==") for line in (ROOT / constraints).read_text().splitlines() if ";" not in line)


def declared(**given: str) -> dict[str, str]:
    """The arguments of the last stage, and the variables of the stage for CPUs below it."""
    arguments = dict(value.partition("=")[::2] for value in only("ARG"))
    inherited = dict(value.partition("=")[::2] for value in only("ENV", FILE.stage("cpu")))
    return inherited | {name: FILE.arguments.get(name, value) for name, value in arguments.items()} | given


def test_versions_match_repository():
    arguments = declared()
    assert arguments["BEAM"] == pins("constraints.txt")["apache-beam"]
    assert arguments["VERSION"] == __version__
    assert f'"Programming Language :: Python :: {arguments["PYTHON"]}"' in (ROOT / "pyproject.toml").read_text()
    launcher = f"/python{arguments['PYTHON'].replace('.', '')}-template-launcher-base:"
    assert launcher in FILE.arguments["LAUNCHER"]


def test_boot_has_same_python_and_beam():
    assert expand(FILE.stage("beam").base, FILE.arguments) == "apache/beam_python3.11_sdk:2.77.0"
    bases = {stage.base for stage in FILE.stages if stage.base.startswith("python:")}
    assert bases == {"python:${PYTHON}-slim"}
    assert only("ENTRYPOINT") == ['["/opt/apache/beam/boot"]']


@pytest.mark.parametrize(
    ("device", "constraints"),
    [("cpu", "constraints.txt"), ("gpu", "constraints.txt"), ("tpu", "constraints-tf220.txt")],
)
def test_each_device_has_the_pinned_tensorflow(device, constraints):
    stage = FILE.stage(device)
    assert f"TENSORFLOW_VERSION={pins(constraints)['tensorflow']}" in only("ENV", stage)
    assert any(value.startswith(f"{constraints} ") for value in only("COPY", stage))


def test_tensorflow_for_tpus_is_pinned():
    pinned = pins("constraints-tf220.txt")
    package = (ROOT / "configs/dataflow/tensorflow_for_tpu/pyproject.toml").read_text()
    assert f'dependencies = ["tensorflow-tpu=={pinned["tensorflow-tpu"]}"]' in package
    assert f'version = "{pinned["tensorflow"]}"' in package
    assert pinned["tensorflow-tpu"] == pinned["tensorflow"]
    assert pinned["libtpu"] == "0.0.14"  # 0.0.52 lacks functions that tensorflow-tpu 2.20.0 needs


def test_constraints_of_tensorflow_220_differ_only_in_what_it_needs():
    ours, oldest = ((ROOT / name).read_text().splitlines() for name in ("constraints.txt", "constraints-tf220.txt"))
    names = {line.split("==")[0] for line in set(ours) ^ set(oldest)}
    of_tensorflow = {"tensorflow", "tensorflow-text", "tf-keras"}
    assert names - {"libtpu", "tensorboard", "tensorboard-data-server", "tensorflow-tpu", "werkzeug"} == of_tensorflow


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_each_device_has_stage(device):
    stage = FILE.stage(expand(LAST.base, {"DEVICE": device}))
    (install,) = only("RUN", stage)
    assert ("'tensorflow[and-cuda]'" in install) == (device == "gpu")
    assert install.replace("'tensorflow[and-cuda]'", "tensorflow") == only("RUN", FILE.stage("cpu"))[0]
    assert any(value.startswith("NVIDIA_") for value in only("ENV", stage)) == (device == "gpu")


def test_nvidia_libraries_are_pinned():
    pinned = re.findall(r"^nvidia-(\w+)-cu12==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {"cublas", "cudnn", "nccl"} <= set(pinned)


def test_copied_files_exist_and_are_in_build_context():
    sources = []
    for stage, step in STEPS:
        if step.instruction == "COPY":
            origin, names, _ = copied(step, declared() if stage is LAST else {})
            sources += [] if origin else names
            assert origin is None or FILE.stage(origin)
    assert {"constraints.txt", "minilm.txt", "pipeline", "LICENSE"} <= set(sources)
    assert [name for name in sources if not (ROOT / name).exists() or not is_sent(name, IGNORED)] == []
    packages = ("layerbeam/", "pipeline/", "transforms/")
    assert [name for name in tracked() if name.startswith(packages) and not is_sent(name, IGNORED)] == []


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (".git/config", False),
        (".venv/bin/python", False),
        ("out/demo/tokens/a.parquet", False),
        ("key.json", False),
        ("pipeline/__pycache__/cli.cpython-311.pyc", False),
        ("transforms/encoders/__pycache__/source.cpython-311.pyc", False),
        ("transforms/encoders/source.py", True),
        ("models/bert/model.safetensors", True),
    ],
)
def test_build_context(path, sent):
    assert is_sent(path, IGNORED) == sent


@pytest.mark.parametrize(("model", "source", "to"), [("", "LICENSE", "./"), ("models/bert", "models/bert", "./model/")])
def test_given_model_is_baked_in(model, source, to):
    (step,) = [step for step in LAST.steps if "MODEL" in step.value and step.instruction == "COPY"]
    assert copied(step, declared(MODEL=model)) == (None, [source], to)
    (check,) = [value for value in only("RUN") if "MODEL" in value]
    assert f'--model="{to[2:-1]}"' in expand(check, declared(MODEL=model))


def test_steps_are_valid_shell():
    commands = [step.value for _, step in STEPS if step.instruction == "RUN"]
    assert len(commands) >= 6
    for command in commands:
        subprocess.run(["sh", "-n", "-c", command], check=True)


def test_labels_match_checks_of_last_step():
    (check,) = [value for value in only("RUN") if "layerbeam.pipeline.remote.image_check" in value]
    checked = dict(word.removeprefix("--").split("=") for word in shlex.split(check) if "=" in word)
    del checked["model"]
    labels = dict(value.replace('"', "").split("=") for value in only("LABEL"))
    assert labels == {f"org.layerbeam.{name}": value for name, value in checked.items()}
    assert set(checked) == {"version", "apache-beam", "python", "tensorflow", "device"}


def test_built_image_has_labels():
    variables = json.loads((BUILT / "variables.json").read_text())
    labels = [expand(value, variables) for value in only("LABEL")]
    assert labels[:2] == [f'org.layerbeam.version="{__version__}"', 'org.layerbeam.apache-beam="2.77.0"']
    assert labels[3:] == ['org.layerbeam.tensorflow="2.21.0"', 'org.layerbeam.device="cpu"']


def test_parser_reads_as_docker():
    text = (
        '# a comment\nARG A=1\nFROM x:${A} AS one\n\nRUN a && \\\n    # not a command\n    b\nFROM one\nLABEL c="d e"\n'
    )
    file = Dockerfile.read(text)
    assert file.arguments == {"A": "1"}
    assert [(stage.base, stage.name) for stage in file.stages] == [("x:${A}", "one"), ("one", None)]
    assert [step.value for step in file.stages[0].steps] == ["a &&     b"]
    assert file.stages[1].steps == (Step("LABEL", 'c="d e"'),)


def test_copy_works_as_in_docker(tmp_path):
    context = tmp_path / "context"
    (context / "models" / "m").mkdir(parents=True)
    (context / "models" / "m" / "vocab.txt").write_text("v")
    (context / "a.txt").write_text("a")
    (context / ".dockerignore").write_text("*\n!a.txt\n!models\n")
    version = ".".join(map(str, sys.version_info[:2]))
    lines = ["WORKDIR /w", "COPY a.txt ./", "COPY models/m ./model/", "COPY a.txt b", "RUN cat a.txt > c"]
    file = Dockerfile.read("\n".join([f"FROM python:{version}-slim", *lines]))
    folder, _, _ = Build(file, context, tmp_path / "built", {}).run_stage(file.stages[0], tmp_path / "built" / "image")
    found = {str(path.relative_to(folder / "root")): path.read_text() for path in folder.glob("root/w/**/*.*")}
    assert found == {"w/a.txt": "a", "w/model/vocab.txt": "v"}
    assert ((folder / "root/w/b").read_text(), (folder / "root/w/c").read_text()) == ("a", "a")
