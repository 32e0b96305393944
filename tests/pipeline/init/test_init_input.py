"""`layerbeam init --input`: what it finds in files, and that the configuration it writes loads and runs."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from repository import DATA

from layerbeam.pipeline.config import load

TEXTS = ["The bank, of the river", "A caf\u00e9"]
ROWS = [{"id": str(n), "label": "a rather long label", "body": text} for n, text in enumerate(TEXTS)]
JSON = "".join(json.dumps(row) + "\n" for row in ROWS)


def table(delimiter: str, name: str = "body", quote: str = "") -> str:
    rows = [f"{row['id']}{delimiter}short{delimiter}{quote}{row['body']}{quote}\n" for row in ROWS]
    return f"id{delimiter}label{delimiter}{name}\n" + "".join(rows)


# name: (content, the settings of `input`, part of what is printed)
FILES = {
    "a.txt": ("\n".join(TEXTS), {"format": "text"}, "a.txt: text, UTF-8\nreads each line as a text"),
    "t.conllu": (
        "# sent_id = 1\n" + "\t".join(["1", "bank", *"_" * 8]) + "\n\n",
        {"format": "conllu"},
        "t.conllu: CoNLL-U, UTF-8\nreads each sentence as a list of words, with the columns id, form, lemma",
    ),
    "a.gz": (gzip.compress(JSON.encode()), {"format": "jsonl", "text_field": "body"}, "JSON Lines, compressed (.gz)"),
    "b.json": (JSON, {"format": "jsonl", "text_field": "body"}, "3 columns: id, label, body\nreads column `body` of"),
    "c.csv": (table(",", quote='"'), {"format": "csv", "text_field": "body"}, "separated by commas"),
    "d.csv": (
        b"\xef\xbb\xbf" + table(";", "Wort").encode(),
        {"format": "csv", "text_field": "Wort", "delimiter": ";"},
        "UTF-8 with a byte order mark, separated by semicolons, 3 columns: id, label, Wort\nreads column `Wort` of "
        "d.csv (its texts are the longest, 14 characters on average)",
    ),
    "e.csv": (
        table("\t").encode("cp1252"),
        {"format": "csv", "text_field": "body", "delimiter": "\t", "encoding": "cp1252"},
        "not UTF-8, so probably cp1252 (a line in it: 1\tshort\tA caf\u00e9)",
    ),
    "f.tsv": (table("\t", "Text"), {"format": "tsv", "text_field": "Text"}, "separated by tabs"),
    "g.parquet": (None, {"format": "parquet", "text_field": "body"}, "g.parquet: Parquet, 3 columns: id, label, body"),
}


def init(workplace, name: str, *arguments: str, status: int = 0):
    return workplace._call("init", "new.yaml", "--input", name, *arguments, status=status)


@pytest.mark.parametrize("name", FILES)
def test_each_format(workplace, name):
    content, settings, printed = FILES[name]
    if content is None:
        pq.write_table(pa.Table.from_pylist(ROWS), workplace.folder / name)
    else:
        workplace.write(name, content)
    done = init(workplace, name)
    assert printed in done.err
    config = load.load("new.yaml")
    assert config.input.files == [name]
    assert {setting: getattr(config.input, setting) for setting in settings} == settings
    if name in ("a.gz", "d.csv", "e.csv", "g.parquet"):
        encoder = f"encoder.handle={DATA / 'hf_uncased'}"
        views = 'views={"texts": {"level": "text", "layers": [-1]}}'
        workplace._call("run", "new.yaml", "--set", encoder, "--set", views, "--output", "out", status=0)
        assert workplace.rows("texts")["text"].to_pylist() == TEXTS


def test_a_column_that_is_there_twice(workplace):
    """A run refuses it, whatever it holds."""
    workplace.write("a.csv", "note,short,note\n" + "a very long remark,text,another long remark\n" * 3)
    init(workplace, "a.csv")
    assert load.load("new.yaml").input.text_field == "short"


@pytest.mark.parametrize("size", [46, 47, 50, 57, 60])
def test_what_is_read_of_a_large_file_ends_with_a_line(workplace, monkeypatch, size):
    """Half a character says nothing about the encoding, and half a row nothing about the columns."""
    monkeypatch.setattr("layerbeam.pipeline.init.inspect_input._SAMPLE_BYTES", size)
    monkeypatch.setattr("layerbeam.transforms.storage.compression._CHUNK_BYTES", 1)
    workplace.write(
        "a.csv", "name,body\nAb,the bank of the river and so on\n" + "\u00e9\u00e9\u00e9,\u00e9\u00e9\u00e9\n" * 20
    )
    init(workplace, "a.csv")
    given = load.load("new.yaml").input
    assert (given.text_field, given.delimiter, given.encoding) == ("body", None, "utf-8")


def test_a_glob_and_a_model(workplace):
    workplace.write("corpus/a.jsonl", JSON)
    workplace.write("corpus/empty.jsonl", "")
    init(workplace, "corpus/*.jsonl", "--from", "minilm")
    config = load.load("new.yaml")
    assert (config.input.files, config.input.text_field) == (["corpus/*.jsonl"], "body")
    assert list(config.views) == ["sentences"]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "a.txt": (b" \n", "a.txt is empty; give a file with text"),
        "b.txt": (bytes(range(256)) * 8, "b.txt looks like binary data, not text; give a file with text"),
        "c.txt": (
            "\u00fcber".encode("utf-16"),
            "c.txt begins with the byte order mark FF FE: it is UTF-16, not UTF-8;",
        ),
        "d.txt": (b"\x81\x8d a\n\xff\x9d b\n", "d.txt is neither UTF-8 nor cp1252; convert it"),
        "e.csv": (b"id,year\n1,1990\n", "e.csv: CSV, UTF-8, separated by commas, 2 columns: id, year; none of them"),
        "f.jsonl": (b'[\n{"text": "a"}]\n', "f.jsonl looks like a JSON array"),
        "g.txt": (None, "no file matches g.txt (from "),
    }.items(),
)
def test_nothing_to_read(workplace, name, expected):
    content, message = expected
    if content is not None:
        workplace.write(name, content)
    assert init(workplace, name, status=2).err.startswith(f"layerbeam: --input: {message}")
    assert not (workplace.folder / "new.yaml").exists()


INJECTED = "text\nbeam: {runner: PrismRunner, prism_location: ./prism}\n#"


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029", "\0", "\x1b[2J", "{x}", "%s", " #"])
@pytest.mark.parametrize("format_", ["jsonl", "parquet", "csv"])
def test_a_name_of_others_is_no_yaml(workplace, format_, end):
    """The name of a column, and of a file, stand in comments, and on the terminal, as one line."""
    column = INJECTED.replace("\n", end)
    rows = [{column: text, "other": "x"} for text in TEXTS]
    name = f"a{end}beam: {{}}{end}b.{format_}".replace("\0", "")
    path = workplace.folder / name
    if format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif format_ == "csv":
        path.write_text(f'"{column}",other\n' + "".join(f'"{text}",x\n' for text in TEXTS), "utf-8", newline="")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    done = init(workplace, name)
    config = load.load("new.yaml")
    assert config.beam == {}
    assert config.input.files == [name]
    assert config.input.text_field == column
    assert all(line.split(":")[0] not in ("beam", "prism") for line in done.err.splitlines())
    assert "\x1b" not in done.err


def test_rows_with_more_fields_than_names(workplace):
    workplace.write("a.tsv", '"id"\t"text"\n"1"\t1\t"the bank"\n"2"\t2\t"a river"\n')
    why = "the first row has 2 names, and the next one 3 fields; give each column a name in the first row"
    assert f"--input: a.tsv: cannot be read ({why})" in init(workplace, "a.tsv", status=2).err


QUOTING = {
    "ordinary quotes": ("a.tsv", 'id\ttext\n1\t"Well," she said.\n2\t"all"\n3\t" open\n', "auto", None),
    "written by a program": ("a.tsv", 'id\ttext\n1\t"say ""hi"" to me"\n2\t"two\nlines"\n', '"', None),
    "names in quotes, backslashes": ("a.tsv", '"id"\t"text"\n"1"\t"the \\"bank\\" there"\n', '"', "\\"),
    "names in quotes": ("a.tsv", '"id"\t"text"\n1\t"the bank"\n', '"', None),
    "usual": ("a.csv", 'id,text\n1,"say ""hi"", ok"\n2,"two\nlines"\n', "auto", None),
    "backslashes": ("a.csv", 'id,text\n1,"say \\"hi\\", ok"\n2,b\n', "auto", "\\"),
    "quotes as characters": ("a.csv", 'id,text\n1,"Well" she said\n2," open\n3,c\n', None, None),
    "tabs and backslashes": ("a.tsv", 'id\ttext\n1\t"say \\"hi\\"\tok"\n2\t"two\nlines"\n', '"', "\\"),
}


@pytest.mark.parametrize("case", QUOTING)
def test_quoting_is_chosen_by_reading_the_file(workplace, case):
    name, content, quote, escape = QUOTING[case]
    workplace.write(name, content)
    printed = init(workplace, name).err
    config = load.load("new.yaml")
    assert (config.input.text_field, config.input.quote, config.input.escape) == ("text", quote, escape)
    assert ("quote: " in printed, "escape: " in printed) == (quote != "auto", escape is not None)
    encoder = f"encoder.handle={DATA / 'hf_uncased'}"
    views = 'views={"texts": {"level": "text", "layers": [-1]}}'
    workplace._call("run", "new.yaml", "--set", encoder, "--set", views, "--output", "out", status=0)
    assert workplace.rejects() == []
