"""Common mistakes of new users: each gives one message that says what to do, and exit status 2."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from repository import DATA, ROOT

HANDLES = "an encoder is minilm, hf://org/name, an https:// address, or a folder or an archive (.zip, .tar.gz)"


@pytest.mark.parametrize(
    ("mistake", "arguments", "message"),
    [
        ("a command misspelt", "rnu c.yaml", "rnu: no such command; did you mean `run`?"),
        ("no such command", "embed c.yaml", "embed: no such command; there are run, plan, show, verify, report, enc"),
        ("no configuration named", "run", "the following arguments are required: CONFIG (see `layerbeam run --help`)"),
        (
            "no such configuration",
            "run d.yaml",
            "d.yaml: No such file or directory; `layerbeam init` writes one to begin with",
        ),
        (
            "text in place of a configuration",
            "run corpus/a.txt",
            "corpus/a.txt: a configuration has sections (input, encoder, views, output); this is 'hello'",
        ),
        (
            "a key misspelt",
            "run c.yaml --set encoder.max_seq_lenght=64",
            "c.yaml: encoder.max_seq_lenght: unknown setting; did you mean `max_seq_length`?",
        ),
        (
            "a value that is none",
            "run c.yaml --set views.tokens.level=sentence",
            "c.yaml: views.tokens.level: should be 'token', 'word', 'text', 'record' or 'word_type'; given: 'sentence'",
        ),
        (
            "a layer that the encoder has not",
            "run c.yaml --set views.tokens.layers=[12]",
            "views.tokens.layers: there is no layer 12: the encoder has 3 Transformer blocks, so layers 0 to 3",
        ),
        (
            "longer than the encoder's positions",
            "run c.yaml --set encoder.max_seq_length=600",
            "encoder.max_seq_length: is 600; {encoder} has 128 positions, so at most 128",
        ),
        (
            "a glob that matches nothing",
            "run c.yaml --input corpse/*.txt",
            "input.files: no file matches corpse/*.txt (from {here})",
        ),
        (
            "no such encoder",
            "run c.yaml --set encoder.handle=bert",
            f"encoder.handle: bert: there is no such folder (absolute: {{here}}/bert); {HANDLES}",
        ),
        (
            "a folder that holds something else",
            "run c.yaml --output full",
            "output.path: full is not empty and holds no layerbeam run (notes.txt); give a new folder",
        ),
        (
            "a folder that cannot be written",
            "run c.yaml --output /proc/out",
            "output.path: cannot write to /proc/out: No such file or directory",
        ),
        (
            "one of Beam's options misspelt",
            "run c.yaml --temp_locatoin x",
            "--temp_locatoin: neither layerbeam nor Beam has such an option; did you mean `--temp_location`?",
        ),
        (
            "an option of the command's own misspelt",
            "verify out --sampel 5",
            "--sampel: neither layerbeam nor Beam has such an option; did you mean `--sample`?",
        ),
        (
            "an option cut short",
            "report out --sam 5",
            "--sam: neither layerbeam nor Beam has such an option; did you mean `--sample`?",
        ),
        ("an option's old name", "run c.yaml --remove-gone", "--remove-gone: was renamed to --prune-missing"),
        ("another one's", "verify out --files", "--files: was renamed to --checksums"),
        ("and a third's", "report out --color kind", "--color: was renamed to --color-by"),
        (
            "the old name of an option that the command does not have",
            "show out --files",
            "--files: neither layerbeam nor Beam has such an option",
        ),
        (
            "a word in place of a number",
            "run c.yaml --workers two",
            "argument --workers: 'two' is not a positive integer (see `layerbeam run --help`)",
        ),
        ("a runner that loses rows", "run c.yaml --runner dask", "runner: dask cannot be used: Beam's runner for Dask"),
        ("nothing there to show", "show nothing", "nothing: holds no layerbeam run (no _runs folder in it)"),
        ("nothing there to report", "report nothing", "nothing: holds no layerbeam run (no _runs folder in it)"),
        (
            "nothing there to verify",
            "verify nothing",
            "nothing: holds no finished run (no manifest.json in it); run its configuration to the end",
        ),
        ("a plan of nothing", "plan c.yaml --input no/*", "input.files: no file matches no/* (from {here})"),
    ],
)
def test_mistake_gives_one_message(workplace, mistake, arguments, message):
    workplace.write("corpus/a.txt", "hello\n")
    workplace.write("full/notes.txt", "mine\n")
    workplace.configure()
    places = {"here": workplace.folder, "encoder": DATA / "hf_uncased"}
    err = workplace._call(*arguments.split(), status=2).err
    assert err.startswith(f"layerbeam: {message.format(**places)}"), mistake
    assert len(err.splitlines()) == 1
    assert not (workplace.folder / "out").exists()


def test_output_of_run_with_other_settings(workplace):
    workplace.write("corpus/a.txt", "hello\n")
    workplace.configure()
    workplace.run()
    err = workplace.run("--set", "encoder.max_seq_length=32", status=2).err
    assert err.splitlines() == [
        "layerbeam: output.path: out holds a run with other settings, and rows of both do not belong together; give a "
        "new folder, or restore the settings:",
        "layerbeam:   encoder.max_seq_length: 128 -> 32",
    ]


def test_output_of_newer_layerbeam(workplace):
    workplace.write("corpus/a.txt", "hello\n")
    workplace.configure()
    workplace.run()
    path = workplace.folder / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["encoder"]["new_setting"] = 1
    path.write_text(json.dumps(manifest))
    assert "its settings are of another version of layerbeam: " in workplace.verify(status=2).err


def test_missing_package(workplace, monkeypatch):
    workplace.write("corpus/a.txt", "hello\n")
    workplace.configure()
    workplace.run()
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    err = workplace._call("report", "out", status=2).err
    assert "pip install 'layerbeam[report]'" in err


def test_too_new_python(tmp_path):
    """`make` looks for a suitable Python before it builds anything."""
    for name in ("python3", "python3.13", "python3.12", "python3.11", "python3.10"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "minilm.txt"):
        (tmp_path / name).touch()
    made = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert made.returncode == 2
    assert "layerbeam needs Python 3.10 to 3.13; name it: make PYTHON=/path/to/python3.12 demo" in made.stdout
