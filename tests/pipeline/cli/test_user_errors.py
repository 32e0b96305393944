"""Common mistakes of new users: each gives one message that says what to do, and exit status 2."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess

import pytest
from repository import DATA, ROOT
from tables import cases

from layerbeam.transforms import storage

HANDLES = "an encoder is minilm, hf://org/name, an https:// address, or a folder or an archive (.zip, .tar.gz)"


MISTAKES = """
rnu c.yaml
    rnu: no such command; did you mean `run`?
embed c.yaml
    embed: no such command; there are run, plan, show, verify, check, compare, report, sear
run
    the following arguments are required: CONFIG (see `layerbeam run --help`)
run d.yaml
    d.yaml: No such file or directory; `layerbeam init` writes one to begin with
run corpus/a.txt
    corpus/a.txt: a configuration has sections (input, encoder, views, output); this is 'hello'
run c.yaml --set encoder.max_seq_lenght=64
    --set encoder.max_seq_lenght: unknown setting; did you mean `max_seq_length`?
run c.yaml --set max_seq_length=64
    --set max_seq_length: unknown setting; did you mean `encoder.max_seq_length`?
run c.yaml --set output.format=jsonl
    --set output.format: unknown setting; did you mean `input.format` or `views.NAME.format`?
run c.yaml --set colour=red
    --set colour: unknown setting; known here: views, input, output, encoder, beam
run corpus
    corpus: is a folder; give a configuration, a YAML
run c.yaml --output ''
    c.yaml: output.path: is empty
run c.yaml --set views.tokens.level=sentence
    --set views.tokens.level: should be 'token', 'word', 'text', 'record' or 'word_type'; given: 'sentence'; for one row
    per sentence, level: text with input.unit: sentence
run c.yaml --set views.tokens.layers=[12]
    views.tokens.layers: there is no layer 12: the encoder has 3 Transformer blocks, so layers 0 to 3
run c.yaml --set encoder.max_seq_length=600
    encoder.max_seq_length: is 600; {encoder} has 128 positions, so at most 128
run c.yaml --set encoder.length_buckets=[32,64]
    encoder.length_buckets: ends with 64, but max_seq_length is 128: longer texts would have no bucket; add 128
plan c.yaml --set input.unit=sentence --set input.sentences=no_such_module:split
    input.sentences: no_such_module:split: ModuleNotFoundError: No module named 'no_such_module'; the function must be
    importable here and on the workers: install its module, or set PYTHONPATH
run c.yaml --input corpse/*.txt
    input.files: no file matches corpse/*.txt (from {here})
run c.yaml --set encoder.handle=bert
    encoder.handle: bert: there is no such folder (absolute: {here}/bert); {handles}
run c.yaml --output full
    output.path: full is not empty and holds no layerbeam run (notes.txt); give a new folder
run c.yaml --output /proc/out
    output.path: cannot write to /proc/out: No such file or directory
run c.yaml --temp_locatoin x
    --temp_locatoin: neither layerbeam nor Beam has such an option; did you mean `--temp_location`?
verify out --sampel 5
    --sampel: neither layerbeam nor Beam has such an option; did you mean `--sample`?
report out --sam 5
    --sam: neither layerbeam nor Beam has such an option; did you mean `--sample`?
show out --files
    --files: neither layerbeam nor Beam has such an option
run c.yaml --workers two
    argument --workers: 'two' is not a positive integer (see `layerbeam run --help`)
run c.yaml --runner dask
    runner: dask cannot be used: Beam's runner for Dask
run c.yaml --input corpus/a.txt corpus/b.txt
    corpus/b.txt: unexpected argument; a shell replaces a glob by the files that match: quote it, as in --input
    'corpus/*.txt'
run c.yaml --set encoder.handle=google-bert/bert-base-uncased
    encoder.handle: google-bert/bert-base-uncased: there is no such folder (absolute:
    {here}/google-bert/bert-base-uncased); {handles}; did you mean `hf://google-bert/bert-base-uncased`?
run c.yaml --set encoder.handle=MiniLM
    encoder.handle: MiniLM: there is no such folder (absolute: {here}/MiniLM); {handles}; did you mean `minilm`?
run c.yaml --set views.tokens.keep_words=well
    views.tokens.keep_words: well: cannot be read (No such file or directory); for the word itself, give [well]
run c.yaml --set views.tokens.keep_words=[3,true]
    --set views.tokens.keep_words: should be a list of words or the name of a file; 3 is not a word: quote it, as in
    ['3', 'true']; given: [3, True]
run c.yaml --batch-size 32
    --batch-size: not an option but a setting: --set encoder.batch_tokens=N, the tokens in one batch, padding
show nothing
    nothing: holds no layerbeam run (no record in _runs and no manifest.json that can be read)
report nothing
    nothing: holds no layerbeam run (no record in _runs and no manifest.json that can be read)
verify nothing
    nothing: holds no layerbeam run (neither manifest.json nor _runs in it); give a run's output.path
plan c.yaml --input no/*
    input.files: no file matches no/* (from {here})
run c.yaml --num_workers=many
    Beam option: argument --num_workers: invalid int value: 'many'
run c.yaml --wrokers=2
    --wrokers: neither layerbeam nor Beam has such an option; did you mean `--workers`?
run c.yaml --workers=0
    argument --workers: '0' is not a positive integer
run c.yaml --workers=²
    argument --workers: '²' is not a positive integer
run c.yaml --workers=٣
    argument --workers: '٣' is not a positive integer
run c.yaml other.yaml
    other.yaml: unexpected argument
run c.yaml --runner=RayRunner
    runner: RayRunner cannot be used: Beam 2.77 has no runner for Ray
run c.yaml --runner=FlinkRuner
    runner: FlinkRuner: is not a known runner; did you mean `FlinkRunner`?; allowed: local
run c.yaml --set beam.runner=3
    runner: 3: is not a known runner; allowed: local, DataflowRunner,
run c.yaml --set=encoder
    --set encoder: is not of the form K=V
run c.yaml --set beam.temp_locatoin=x
    beam.temp_locatoin: Beam has no such option; did you mean `temp_location`?
run c.yaml --set beam.workers=3
    beam.workers: Beam has no such option
run c.yaml --input foo://b/x*
    foo://b/x*: Beam has no file system for foo:// here
run c.yaml --set input.files=2023-13-45
    --set input.files=2023-13-45: is not YAML: month must be in 1..12
run c.yaml --set views.tokens.truncate_dim=65
    views.tokens.truncate_dim: is 65; the vectors have 64 dimensions
run c.yaml --output c.yaml/below
    output.path: cannot write to c.yaml/below:
run c.yaml --output c.yaml
    output.path: cannot write to c.yaml:
"""


@pytest.mark.parametrize(("arguments", "message"), cases(MISTAKES))
def test_mistake_gives_one_message(workplace, arguments, message):
    workplace.write("corpus/a.txt", "hello\n")
    workplace.write("corpus/b.txt", "hello\n")
    workplace.write("full/notes.txt", "mine\n")
    workplace.configure()
    places = {"here": workplace.folder, "encoder": DATA / "hf_uncased", "handles": HANDLES}
    err = workplace._call(*shlex.split(arguments), status=2).err
    assert err.startswith(f"layerbeam: {message.format(**places)}")
    assert os.listdir(workplace.folder / "full") == ["notes.txt"]
    assert len(err.splitlines()) == 1
    assert not (workplace.folder / "out").exists()


def test_repeated_key_in_an_option(workplace):
    workplace.configure()
    err = workplace.run("--set", "views={a: 1, a: 2}", status=2).err
    assert err.startswith("layerbeam: --set views={a: 1, a: 2}: line 1 is not YAML: `a` occurs twice")


def test_no_command_prints_help(workplace):
    err = workplace._call(status=2).err
    assert err.startswith("usage: layerbeam [-h] [--version] COMMAND ...")
    assert "    verify          check a sample of rows against an independent" in err


def test_output_of_run_with_other_settings(workplace):
    workplace.finished("hello\n")
    files = workplace.files()
    err = workplace.run("--set", "encoder.max_seq_length=32", status=2).err
    assert err.splitlines() == [
        "layerbeam: output.path: out holds a run with other settings, and rows of both do not belong together; give a "
        "new folder, or restore the settings (views can be added, and nothing else can change):",
        "layerbeam:   encoder.max_seq_length: 128 -> 32",
    ]
    assert workplace.files() == files
    workplace.run("--set", "encoder.batch_tokens=64")  # changes values only by rounding


def test_output_of_newer_layerbeam(workplace):
    workplace.finished("hello\n")
    path = workplace.folder / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["encoder"]["new_setting"] = 1
    path.write_text(json.dumps(manifest))
    assert "its settings are of another version of layerbeam: " in workplace.verify(status=2).err


def test_missing_package_outside_of_a_clone(workplace, monkeypatch):
    monkeypatch.setattr("layerbeam.transforms.storage.stores.__file__", "/lib/site-packages/layerbeam/a/b/stores.py")
    assert storage.install_command("report") == "pip install 'layerbeam[report]'"
    assert storage.install_command("apache-beam[hadoop]") == "pip install 'apache-beam[hadoop]'"


def test_too_new_python(tmp_path):
    """`make` looks for a suitable Python before it builds anything."""
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "minilm.txt"):
        (tmp_path / name).touch()
    made = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert made.returncode == 2
    assert "layerbeam needs Python 3.11 to 3.13; name it: make PYTHON=/path/to/python3.12 demo" in made.stdout


def test_run_without_embeddings_is_incomplete_until_corrected(workplace):
    workplace.write("corpus/a.jsonl", '{"text": "hello", "body": null}\n' * 9)
    workplace.configure(input={"format": "jsonl", "text_field": "body", "max_reject_rate": 1.0})
    done = workplace.run(status=3)
    assert "out: incomplete\n" in done.out
    problem = "problem   nothing was embedded: 9 of 9 records are blank; check input.files and input.text_field\n"
    assert problem in done.out
    assert not (workplace.folder / "out/_SUCCESS").exists()
    assert problem in workplace.plan("--output", "new", status=3).out
    assert "texts     9, of 9 records" in workplace.plan("--set", "input.text_field=text").out
    workplace.run("--set", "input.text_field=text")
    workplace.assert_equals_fresh("--set", "input.text_field=text")
    assert "out holds a run with other settings" in workplace.run(status=2).err


def test_one_per_cent_of_rejects_is_accepted_by_default(workplace):
    workplace.finished(b"fine\n" * 99 + b"\xff\n", views={"t": {"level": "text", "layers": [1]}})
    workplace.write("corpus/b.txt", "caf\u00e9\n".encode("latin-1") * 5)
    done = workplace.run(status=3)
    assert "problem   6 of 105 records were rejected: more than max_reject_rate 0.01 allows\n" in done.out
    assert (
        "to fix 6 rejected records: set input.encoding: cp1252 or latin-1 if the files are not UTF-8, or "
        "invalid_bytes: replace\n"
    ) in done.out


@pytest.mark.parametrize("command", ["run", "plan"])
def test_fields_that_no_record_has(workplace, command):
    workplace.write("corpus/a.jsonl", '{"id": 1, "text": "one", "label": "x"}\n' * 50)
    workplace.configure(input={"format": "jsonl"}, views={"t": {"level": "text", "layers": [1]}})
    settings = {
        "input.text_field=txt": ("text_field: no record has a field `txt`", "; did you mean `text`?"),
        "input.id_field=idd": ("id_field: no record has a field `idd`", "; did you mean `id`?"),
        "input.keep_fields={labels: bool}": ("keep_fields: no record has a field `labels`", "; did you mean `label`?"),
        "input.pair_field=answer": ("pair_field: no record has a field `answer`", ""),
    }
    for setting, (message, hint) in settings.items():
        err = workplace._call(command, "c.yaml", "--set", setting, status=2).err
        assert err.splitlines() == [
            f"layerbeam: input.{message}; the first 50 records have: id, text, label{hint}",
            "layerbeam: `layerbeam run --force` starts anyway",
        ]
    assert not (workplace.folder / "out/_runs").exists()


def test_records_without_the_second_text_of_a_pair_are_counted(workplace):
    records = ['{"text": "one", "answer": "two"}', '{"text": "one"}', '{"text": "a", "answer": null}']
    workplace.write("corpus/a.jsonl", "\n".join(records) + "\n")
    workplace.configure(
        input={"format": "jsonl", "pair_field": "answer"}, views={"t": {"level": "text", "layers": [1]}}
    )
    assert "2 records without `answer`: embedded as single texts\n" in workplace.run().out
    assert workplace.manifest()["counts"]["records_without_pair"] == 2
    workplace.run("--set", "input.id_field=number", "--output", "forced", "--force")


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("texts [2020]/*.txt", "; to read brackets as they are, write texts [[]2020]/*.txt\n"),
        ("texts [2020]/a[1]*", "; to read brackets as they are, write texts [[]2020]/a[[]1]*\n"),
        ("texts [2021]/*.txt", ")\n"),
    ],
)
def test_brackets_in_the_name_of_a_folder(workplace, pattern, hint):
    workplace.write("texts [2020]/a[1].txt", "the bank\n")
    workplace.configure(input={"files": [pattern]})
    assert workplace.plan(status=2).err.endswith(hint)
    if len(hint) > 2:
        workplace.configure(input={"files": [hint.partition("write ")[2].strip()]})
        assert workplace.drive().status == 0
