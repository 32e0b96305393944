"""The format of the input: found, or contradicted by what the files hold, in `run` and `plan`."""

from __future__ import annotations

import gzip
import json
import random
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TEXTS = {"t": {"level": "text", "layers": [2], "pooling": "mean"}}
JSON_LINES = "".join(json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate(["one", "two", "three"]))


def write_parquet(workplace, name: str) -> None:
    path = workplace.write(name, "")
    pq.write_table(pa.table({"text": ["one", "two", "three"]}), path)


def write_zip(workplace, name: str) -> None:
    with zipfile.ZipFile(workplace.write(name, ""), "w") as archive:
        archive.writestr("a.txt", "one\n" * 100)


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.jsonl", "jsonl"), ("a.ndjson.gz", "jsonl"), ("a", "jsonl"), ("b.parquet", "parquet"), ("b", "parquet")],
)
def test_format_is_found(workplace, name, form):
    if form == "parquet":
        write_parquet(workplace, f"corpus/{name}")
    else:
        data = JSON_LINES.encode()
        workplace.write(f"corpus/{name}", gzip.compress(data) if name.endswith(".gz") else data)
    workplace.configure(views=TEXTS)
    workplace.drive()
    assert workplace.rows("t")["text"].to_pylist() == ["one", "two", "three"]
    assert workplace.manifest()["settings"]["input"]["format"] == form
    assert "nothing to do" in workplace.drive().err
    workplace.drive("--set", f"input.format={form}", "--output", "given")
    assert workplace.files() == workplace.files("given")
    assert workplace.verify().out.endswith("pass\n")


def test_files_of_several_formats(workplace):
    workplace.prepare({"a.txt": "one\n", "b.jsonl": JSON_LINES}, views=TEXTS)
    expected = (
        "layerbeam: input.files: a run reads files of one format, and corpus/b.jsonl is JSON Lines, corpus/a.txt is "
        "text; give globs of one format, or set input.format\n"
    )
    assert workplace.drive(status=2).err == expected
    assert workplace.plan(status=2).err == expected


def test_a_folder_without_rows_does_not_fix_the_format(workplace):
    workplace.prepare({"a.csv": "body\none\n"}, views=TEXTS)
    workplace.drive("--force", status=3)  # no column `text`
    (workplace.folder / "corpus/a.csv").rename(workplace.folder / "corpus/a.txt")
    workplace.write("corpus/b.txt", "text\ntwo\n")
    assert json.loads(workplace.plan("--json").out)["estimates"]["texts"]["value"] == 4
    workplace.drive()
    assert workplace.rows("t")["text"].to_pylist() == ["body", "one", "text", "two"]
    workplace.assert_equals_fresh()


@pytest.mark.parametrize(
    ("first", "name", "form", "other", "texts"),
    [
        ("a.csv", "b.txt", "CSV", "text", ["one", "two"]),
        ("a.txt", "b.csv", "text", "CSV", ["text", "one", "text", "two"]),
    ],
)
def test_a_name_that_says_another_format_than_the_rows(workplace, first, name, form, other, texts):
    workplace.finished({first: "text\none\n"}, views=TEXTS)
    before = workplace.files()
    workplace.write(f"corpus/{name}", "text\ntwo\n")
    expected = (
        f"layerbeam: input.files: corpus/{name} is {other} by its name, and the rows in out are of {form}; leave it "
        f"out, give a new folder, or set input.format: {form.lower()}\n"
    )
    assert workplace.drive(status=2).err == expected
    assert workplace.plan(status=2).err == expected
    assert workplace.files() == before
    workplace.drive("--set", f"input.format={form.lower()}")
    assert workplace.rows("t")["text"].to_pylist() == texts


def test_a_name_says_nothing_where_the_content_does(workplace):
    workplace.finished(JSON_LINES, views=TEXTS)
    workplace.write("corpus/b.csv", JSON_LINES)
    workplace.write("corpus/c.txt", "text\none\n")
    assert "corpus/c.txt: looks like text, not JSON Lines; set input.format: text" in workplace.drive(status=3).out
    assert workplace.rows("t")["text"].to_pylist() == ["one", "two", "three"] * 2


def test_settings_of_another_format_than_found(workplace):
    workplace.prepare("one\n", input={"text_field": "body"}, views=TEXTS)
    assert workplace.drive(status=2).err == (
        "layerbeam: input.text_field: format text has no such setting (it belongs to jsonl, parquet, csv and tsv); the "
        "files are text\n"
    )


PACKED = gzip.compress(b"one\n" * 9)
NOISE = random.Random(0).randbytes(5000)
TWO_BYTES = b"".join(number.to_bytes(2, "little") for number in range(256))
TEXT = "\u201cThe river,\u201d she said \u2013 na\u00efve.\n"  # U+2013 has a control character's byte
BINARY = "looks like binary data, not text; leave it out of input.files"
ZIP = "looks like a zip archive, not text; unpack it"
ARRAY = "looks like a JSON array, not text; write one object per line, for example with `jq -c '.[]'`"


def convert(found: str, name: str) -> str:
    return f"{found}: it is {name}, not UTF-8; convert it, for example with `iconv -f {name} -t UTF-8`"


ZEROS = "has a zero in every other byte"
CONTRADICTIONS = {
    "JSON Lines as text": ("a.txt", JSON_LINES, "text", "looks like JSON Lines, not text; set input.format: jsonl"),
    "Parquet as text": ("a.txt", write_parquet, "text", "looks like Parquet, not text; set input.format: parquet"),
    "zip as text": ("a.txt", write_zip, "text", ZIP),
    "zip, format not given": ("a.zip", write_zip, "auto", ZIP),
    "gzip as text": ("a.txt", PACKED, "text", "looks like gzip, not text; let its name end in .gz"),
    "random bytes": ("a.bin", NOISE, "auto", BINARY),
    "UTF-16": ("a.txt", TEXT.encode("utf-16"), "auto", convert("begins with the byte order mark FF FE", "UTF-16")),
    "UTF-32": (
        "a.csv",
        TEXT.encode("utf-32"),
        "auto",
        convert("begins with the byte order mark FF FE 00 00", "UTF-32"),
    ),
    "UTF-16LE without a mark": ("a.txt", TEXT.encode("utf-16le"), "auto", convert(ZEROS, "UTF-16LE")),
    "UTF-16BE without a mark": ("a.txt", TEXT.encode("utf-16be"), "auto", convert(ZEROS, "UTF-16BE")),
    "numbers of two bytes": ("a.txt", TWO_BYTES, "text", BINARY),
    "JSON array as JSON Lines": ("a.json", json.dumps([{"text": "one"}, {"text": "two"}]), "auto", ARRAY),
    "text as JSON Lines": ("a.txt", "one\ntwo\n", "jsonl", "looks like text, not JSON Lines; set input.format: text"),
    "text as Parquet": ("a.txt", "one\ntwo\n", "parquet", "looks like text, not Parquet; set input.format: text"),
    "JSON Lines as Parquet": (
        "a.jsonl",
        JSON_LINES,
        "parquet",
        "looks like JSON Lines, not Parquet; set input.format: jsonl",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradicted_format_is_refused_before_encoding(workplace, case):
    name, content, form, problem = CONTRADICTIONS[case]
    if callable(content):
        content(workplace, f"corpus/{name}")
    else:
        workplace.write(f"corpus/{name}", content)
    workplace.configure(input={"format": form}, views=TEXTS)
    expected = f"layerbeam: input.files: corpus/{name} {problem}\n"
    assert workplace.drive(status=2).err == expected
    assert workplace.plan(status=2).err == expected
    assert not (workplace.folder / "out").exists()


def test_one_such_file_among_others_is_skipped(workplace):
    for number in range(20):
        workplace.write(f"corpus/{number}.txt", f"text {number}\n")
    workplace.write("corpus/7.txt", JSON_LINES)
    workplace.write("corpus/8.txt", PACKED)
    workplace.write("corpus/9.txt.gz", gzip.compress(NOISE))
    workplace.configure(views=TEXTS)
    planned = workplace.plan(status=3).out
    done = workplace.drive(status=3)
    for out in (planned, done.out):
        assert "corpus/7.txt: looks like JSON Lines, not text; set input.format: jsonl" in out
        assert "corpus/8.txt: looks like gzip, not text; let its name end in .gz" in out
        assert "corpus/9.txt.gz: looks like binary data, not text; leave it out of input.files" in out
    assert workplace.manifest()["counts"]["embedded"] == 18
    assert workplace.drive(status=3).out.count("looks like") == 3


def test_files_of_a_folder_that_are_not_read_are_named(workplace):
    names = ["a.txt", "._a.txt", ".b.txt", "d.txt.GZ", "e.json", "f.md", "_SUCCESS"]
    workplace.prepare(dict.fromkeys(names, "the bank\n"), input={"files": "corpus"}, views=TEXTS)
    expected = (
        "input.files: corpus: 3 files with other endings not read (d.txt.GZ, e.json, f.md); to read such files, name "
        "them or a glob\n"
    )
    assert expected in workplace.drive().err
    assert workplace.rows("t")["file"].to_pylist() == ["corpus/a.txt"]
    assert expected in workplace.plan().err


def test_files_may_be_one_folder(workplace):
    workplace.finished(
        {"a.TXT": "one\n", "b[1].txt.gz": gzip.compress(b"two\n"), "README": "not read\n", "more/c.txt": "not read\n"},
        input={"files": "corpus"},
        views=TEXTS,
    )
    assert workplace.rows("t")["file"].to_pylist() == ["corpus/a.TXT", "corpus/b[1].txt.gz"]
    workplace.drive("--set", "input.files=corpus/*.TXT", "--output", "one")
    assert workplace.rows("t", "one")["file"].to_pylist() == ["corpus/a.TXT"]
    assert "nothing to do" in workplace.drive("--input", "corpus/").err
    workplace.configure(input={"files": "corpus/more/.."}, output={"path": "two"}, views=TEXTS)
    (workplace.folder / "corpus/a.TXT").unlink()
    (workplace.folder / "corpus/b[1].txt.gz").unlink()
    refused = workplace.drive(status=2).err
    assert "no file matches corpus/more/.. (from " in refused
    what = (
        "corpus: is a folder without a file that ends in .txt, .jsonl, .ndjson, .parquet, .csv, .tsv, .conllu, .conll"
    )
    assert f"{what}; those in folders of it are corpus/**/*.txt" in refused
