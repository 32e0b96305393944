"""`layerbeam extract-features` and configs/extract_features.yaml, compared with google-research's own output."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from float_bounds import OF_TWO
from repository import DATA, ROOT
from workplace import CommandResult

from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.extract_features import documents as extract_features
from layerbeam.transforms import storage

MODEL = str(DATA / "google_uncased")


def assert_equal_lines(got: str, expected: str) -> None:
    """Equal except for the last digits of values: same keys, order, tokens, indexes and separators."""
    lines, wanted = got.splitlines(), expected.splitlines()
    assert len(lines) == len(wanted)
    for line, want in zip(lines, wanted, strict=True):
        (bones, values), (expected_bones, expected_values) = split_values(line), split_values(want)
        assert bones == expected_bones
        np.testing.assert_allclose(values, expected_values, rtol=0, atol=OF_TWO)  # theirs are TensorFlow 1.15's


def split_values(line: str) -> tuple[str, list[float]]:
    """(the line without its values but with their formatting, the values)."""
    values: list[float] = []
    parsed = json.loads(line)
    for feature in parsed["features"]:
        for layer in feature["layers"]:
            values += layer["values"]
            layer["values"] = len(layer["values"])
    assert json.dumps(json.loads(line)) == line  # separators, escapes, and the shortest form of each number
    return json.dumps(parsed), values


def reference(case: str) -> str:
    """The output of extract_features.py for input.txt: 15 lines, with pairs and an empty line."""
    lines = (DATA / f"extract_features_{case}.jsonl").read_text()
    assert lines.count("\n") == 15
    return lines


def extract(workplace, *arguments: str, status: int = 0) -> CommandResult:
    return workplace.driven("extract-features", *arguments, status=status)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_configuration(workplace, case):
    workplace.write("corpus/input.txt", (DATA / "input.txt").read_bytes())
    settings = [f"encoder.handle={DATA}/google_{case}", "encoder.max_seq_length=32", "views.features.layers=[-1,-2,-3]"]
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    workplace.driven("run", str(ROOT / "configs/extract_features.yaml"), *arguments)
    (part,) = (workplace.folder / "out/features/features").iterdir()
    assert_equal_lines(part.read_text(), reference(case))


@pytest.mark.parametrize(("case", "slash"), [("uncased", ""), ("cased", "/")])
def test_six_arguments(workplace, case, slash):
    """Called like the script."""
    workplace.write("texts/input.txt", (DATA / "input.txt").read_bytes())
    workplace.write("texts/more/other.md", "I love Paris")
    arguments = [f"texts{slash}", f"new/out{slash}", "-1,-2,-3", f"{DATA}/google_{case}{slash}", "32", "4"]
    done = extract(workplace, *arguments)
    assert done.out.splitlines()[-1].rstrip() == f"new/out{slash}: documents: 2 written"
    assert "open_run" not in done.out  # it reads the rows of Parquet only
    folder = workplace.folder / "new" / "out"
    assert listing(folder) == [".layerbeam", "input.jsonl", "other.jsonl"]
    assert_equal_lines((folder / "input.jsonl").read_text(), reference(case))
    assert_equal_lines((folder / "other.jsonl").read_text(), reference(case).splitlines()[0])


def test_command_has_settings_of_configuration():
    of_command = extract_features.settings(
        "corpus", "out", layers=[-1, -2, -3, -4], handle="uncased_L-12_H-768_A-12", max_seq_length=128, batch_size=8
    )
    of_file = yaml.safe_load((ROOT / "configs/extract_features.yaml").read_text())
    assert of_command["encoder"].pop("batch_tokens") == 1024
    assert of_command["views"]["features"].pop("compress") is not of_file["views"]["features"].pop("compress")
    of_command["input"]["files"], of_command["output"]["path"] = of_file["input"]["files"], of_file["output"]["path"]
    assert of_command == of_file


def test_layers_counted_from_first_block(workplace):
    workplace.write("texts/a.txt", "I love Paris\n")
    extract(workplace, "texts", "out", "0,-1,1", MODEL, "32", "4")
    (expected,) = [json.loads(line) for line in reference("uncased").splitlines()[:1]]
    (got,) = [json.loads(line) for line in (workplace.folder / "out/a.jsonl").read_text().splitlines()]
    for feature, wanted in zip(got["features"], expected["features"], strict=True):
        assert feature["token"] == wanted["token"]
        assert [layer["index"] for layer in feature["layers"]] == [0, -1, 1]
        of = {layer["index"]: layer["values"] for layer in wanted["layers"]}
        for layer, same in zip(feature["layers"], (-3, -1, -2), strict=True):
            np.testing.assert_allclose(layer["values"], of[same], rtol=0, atol=OF_TWO)


def test_every_input_line_has_an_output_line(workplace):
    workplace.write("texts/a.txt", b"one\n\n \t\n\xff two \xc3\r\nthree\n\n")
    workplace.write("texts/empty.txt", b"")
    workplace.write("texts/blank.txt", b"\n")
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4")
    lines = [json.loads(line) for line in (workplace.folder / "out/a.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert [len(line["features"]) for line in lines][1:3] == [2, 2]
    assert lines[1]["features"][0]["token"] == "[CLS]"
    assert lines[3]["features"][1:-1] != []
    assert (workplace.folder / "out/empty.jsonl").read_bytes() == b""
    assert len((workplace.folder / "out/blank.jsonl").read_text().splitlines()) == 1


def test_sentences(workplace):
    workplace.write("texts/a.txt", "I love Paris. She is an engineer!\n\nThe bank vault\n")
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4", "--sentences")
    lines = [json.loads(line) for line in (workplace.folder / "out/a.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 0, 1, 2]
    assert [token["token"] for token in lines[0]["features"]][:3] == ["[CLS]", "i", "love"]
    assert main(["verify", "out/.layerbeam"], version="test") == 0


def test_document_of_several_parts_is_in_line_order(workplace, monkeypatch):
    lines = [f"line {number} of many" for number in range(300)]
    workplace.write("texts/long.txt", "\n".join(lines) + "\n")
    given = extract_features.settings

    def small(*arguments, **more):
        settings = given(*arguments, **more)
        return settings | {"input": settings["input"] | {"slice_bytes": 1500}}

    monkeypatch.setattr(extract_features, "settings", small)
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4")
    assert len(listing(workplace.folder / "out/.layerbeam/features")) > 3
    got = [json.loads(line) for line in (workplace.folder / "out/long.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in got] == list(range(300))
    assert main(["verify", "out/.layerbeam"], version="test") == 0


def test_next_run_writes_only_new_documents(workplace):
    workplace.write("texts/a.txt", "one\n")
    workplace.write("texts/b.txt.gz", gzip.compress(b"two\n"))
    arguments = ("texts", "out", "-1,-2", MODEL, "32", "4")
    first = json.loads(extract(workplace, *arguments, "--json").out)
    assert first["documents"] == {"written": ["a.jsonl", "b.jsonl"], "unchanged": [], "removed": []}
    folder = workplace.folder / "out"
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}
    again = extract(workplace, str(workplace.folder / "texts") + "/", "out/", *arguments[2:])
    assert "nothing to do" in again.err
    assert "documents: 2 unchanged" in again.out
    workplace.write("texts/a.txt", "one and more\n")
    workplace.write("texts/c.txt", "three\n")
    done = json.loads(extract(workplace, *arguments, "--json").out)
    assert done["documents"] == {"written": ["a.jsonl", "c.jsonl"], "unchanged": ["b.jsonl"], "removed": []}
    assert {path for path in times if path.stat().st_mtime_ns == times[path]} == {folder / "b.jsonl"}
    (folder / "b.jsonl").unlink()
    assert "1 written, 2 unchanged" in extract(workplace, *arguments).out
    extract(workplace, "texts", "fresh", *arguments[2:])
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        assert (folder / name).read_bytes() == (workplace.folder / "fresh" / name).read_bytes()
    assert listing(folder) == [".layerbeam", "a.jsonl", "b.jsonl", "c.jsonl"]
    assert not list(folder.rglob("_unfinished*"))


def test_missing_documents_stay_until_they_are_pruned(workplace):
    workplace.write("texts/a.txt", "one\n")
    (b := workplace.write("texts/b.txt", "two\n"))
    arguments = ("texts", "out", "-1", MODEL, "32", "4")
    extract(workplace, *arguments)
    b.unlink()
    assert "b.txt: is missing" in extract(workplace, *arguments, status=3).out
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl", "b.jsonl"]
    assert "1 unchanged, 1 removed" in extract(workplace, *arguments, "--prune-missing").out
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl"]
    extract(workplace, *arguments)


def test_documents_of_equal_size_and_time_are_reread_on_demand(workplace):
    path = workplace.write("texts/a.txt", "one\n")
    times = path.stat()
    arguments = ("texts", "out", "-1", MODEL, "32", "4")
    extract(workplace, *arguments)
    path.write_text("two\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for options, token in (((), "one"), (("--reread",), "two")):
        extract(workplace, *arguments, *options)
        assert f'"token": "{token}"' in (workplace.folder / "out/a.jsonl").read_text()


def test_failure_between_documents(workplace, monkeypatch):
    for name in "abc":
        workplace.write(f"texts/{name}.txt", f"document {name}\n")
    arguments = ("texts", "out", "-1", MODEL, "32", "4")
    write_atomically = storage.write_atomically

    def breaks_at_b(path, **how):
        if str(path).endswith("/b.jsonl"):
            raise OSError("No space left on device")
        return write_atomically(path, **how)

    monkeypatch.setattr(storage, "write_atomically", breaks_at_b)
    assert "No space left" in extract(workplace, *arguments, status=1).err
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl"]
    monkeypatch.undo()
    monkeypatch.chdir(workplace.folder)
    extract(workplace, *arguments)
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl", "b.jsonl", "c.jsonl"]


def test_other_files_in_output_folder_are_kept(workplace):
    workplace.write("texts/a.txt", "one\n")
    workplace.write("out/notes.md", "mine")
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4")
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl", "notes.md"]
    workplace.write("texts/notes2.txt", "two\n")
    mine = workplace.write("out/notes2.jsonl", "mine")
    err = extract(workplace, "texts", "out", "-1", MODEL, "32", "4", status=2).err
    assert "OUTPUT_FOLDER: out has a notes2.jsonl that this command did not write" in err
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["n" * 250, "ä" * 125 + ".txt"])
def test_too_long_document_name_is_refused(workplace, name):
    workplace.write("texts/a.txt", "one\n")
    workplace.write(f"texts/{name}", "two\n")
    err = extract(workplace, "texts", "out", "-1", MODEL, "32", "4", status=2).err
    assert "would be written under a name of 256 bytes" in err
    assert not (workplace.folder / "out").exists()
    (workplace.folder / "texts" / name).rename(workplace.folder / "texts" / name[1:])
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4")
    assert len(listing(workplace.folder / "out")) == 3


def test_unreadable_file_gives_no_document(workplace):
    workplace.write("texts/a.txt", "one\n")
    workplace.write("texts/b.txt", "zwei\n".encode("utf-16"))
    done = extract(workplace, "texts", "out", "-1", MODEL, "32", "4", status=3)
    assert "b.txt: begins with the byte order mark" in done.out
    assert listing(workplace.folder / "out") == [".layerbeam", "a.jsonl"]


IN, OUT = "texts", "out"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none", OUT, "-1", MODEL, "32", "4"), "INPUT_FOLDER: none: No such folder"),
        (("texts/a.txt", OUT, "-1", MODEL, "32", "4"), "INPUT_FOLDER: texts/a.txt: is not a folder"),
        (("empty", OUT, "-1", MODEL, "32", "4"), "INPUT_FOLDER: empty: there is no file in it"),
        ((IN, "texts/out", "-1", MODEL, "32", "4"), "OUTPUT_FOLDER: texts/out lies in INPUT_FOLDER"),
        ((IN, IN, "-1", MODEL, "32", "4"), "OUTPUT_FOLDER: texts lies in INPUT_FOLDER"),
        (("twice", OUT, "-1", MODEL, "32", "4"), "would both be written as a.jsonl; rename one of them"),
        (
            (IN, OUT, "-1,3", MODEL, "32", "4"),
            "LAYERS: there is no layer 3: the encoder has 3 Transformer blocks, so layers 0 to 2 or -3 to -1",
        ),
        ((IN, OUT, "-4", MODEL, "32", "4"), "LAYERS: there is no layer -4"),
        ((IN, OUT, "-1,2", MODEL, "32", "4"), "LAYERS: layer 2 occurs twice (2 and -1 are the same)"),
        ((IN, OUT, "-1;-2", MODEL, "32", "4"), "argument LAYERS: '-1;-2' is not a list of layers such as -1,-2,-3,-4"),
        ((IN, OUT, "last", MODEL, "32", "4"), "argument LAYERS: 'last' is not a list of layers such as -1,-2,-3,-4"),
        ((IN, OUT, "-1,", MODEL, "32", "4"), "argument LAYERS: '-1,' is not a list of layers such as -1,-2,-3,-4"),
        ((IN, OUT, "-1", MODEL, "many", "4"), "argument MAX_SEQUENCE_LENGTH: 'many' is not a positive integer"),
        ((IN, OUT, "-1", MODEL, "32", "-4"), "argument BATCH_SIZE: '-4' is not a positive integer"),
        ((IN, OUT, "-1", MODEL, "32", "4.5"), "argument BATCH_SIZE: '4.5' is not a positive integer"),
        ((IN, OUT, "-1", MODEL, "2", "4"), "MAX_SEQUENCE_LENGTH: should be greater than or equal to 3; given: 2"),
        ((IN, OUT, "-1", MODEL, "500", "4"), "MAX_SEQUENCE_LENGTH: is 500; "),
        ((IN, OUT, "-1", "nowhere", "32", "4"), "BERT_MODEL_DIR: nowhere: "),
        ((IN, OUT, "-1", MODEL, "32"), "the following arguments are required: BATCH_SIZE"),
        ((IN, OUT, "-1", MODEL, "32", "4", "--sentence"), "--sentence"),
        ((IN, "texts/a.txt/x", "-1", MODEL, "32", "4"), "OUTPUT_FOLDER: "),
    ],
)
def test_errors_name_the_argument(workplace, arguments, message):
    workplace.write("texts/a.txt", "one\n")
    workplace.write("twice/a.txt", "one\n")
    workplace.write("twice/deeper/a.md", "two\n")
    (workplace.folder / "empty").mkdir()
    err = extract(workplace, *arguments, status=2).err
    assert message in err
    assert not (workplace.folder / "out").exists()
    assert (workplace.folder / "texts/a.txt").read_text() == "one\n"


def test_other_settings_are_refused(workplace):
    workplace.write("texts/a.txt", "one\n")
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4")
    before = (workplace.folder / "out/a.jsonl").read_bytes()
    for layers in ("-2", "2"):
        err = extract(workplace, "texts", "out", layers, MODEL, "32", "4", status=2).err
        assert "OUTPUT_FOLDER: out/.layerbeam holds a run with other settings" in err
    extract(workplace, "texts", "out", "-1", MODEL, "32", "16")  # another batch size gives the same vectors
    assert (workplace.folder / "out/a.jsonl").read_bytes() == before


def test_disk_check_counts_documents_and_parts(workplace, monkeypatch):
    from layerbeam.pipeline.run import run

    workplace.write("texts/a.txt", "the bank of the river\n" * 200)
    extract(workplace, "texts", "roomy", "-1", MODEL, "32", "4")
    document = (workplace.folder / "roomy/a.jsonl").stat().st_size
    monkeypatch.setattr(run, "free_bytes", lambda path: document)
    err = extract(workplace, "texts", "out", "-1", MODEL, "32", "4", status=2).err
    assert "OUTPUT_FOLDER: out/.layerbeam has" in err
    extract(workplace, "texts", "out", "-1", MODEL, "32", "4", "--force")
