"""All input formats through the whole pipeline: rows, positions, kept fields, and messages about bad input."""

from __future__ import annotations

import functools
import gzip
import json
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from float_bounds import OF_TWO
from repository import DATA
from weights import in_float64

import layerbeam
from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.reference import ReferenceWordPiece, forward

TEXTS = {"t": {"level": "text", "layers": [2], "pooling": "mean"}}
SMALL = {"slice_bytes": 700}


@functools.cache
def small_encoder() -> tuple[Architecture, dict[str, np.ndarray], ReferenceWordPiece]:
    source = open_encoder(str(DATA / "hf_uncased"))
    wordpiece = ReferenceWordPiece(source.vocabulary, source.do_lower_case)
    return source.architecture, in_float64(load_weights(source)), wordpiece


def encode(first: str, second: str = "") -> np.ndarray:
    """The mean of layer 2 over a text or pair, in NumPy."""
    architecture, weights, wordpiece = small_encoder()
    special = wordpiece.ids
    ids = [special["[CLS]"], *wordpiece.tokenize(first), special["[SEP]"]]
    segments = [0] * len(ids)
    if second:
        more = [*wordpiece.tokenize(second), special["[SEP]"]]
        ids, segments = ids + more, segments + [1] * len(more)
    return forward(architecture, weights, ids, segments)[0][2].mean(0)


def paragraphs(count: int) -> list[str]:
    """Paragraphs of one to five lines, in words known to the small encoder."""
    lines = [line for line in random_lines(3 * count, longest=12) if line]
    sizes = np.random.default_rng(1).integers(1, 6, count)
    ends = np.cumsum(sizes)
    return [
        "\n".join(f"{line}." if number % 2 else line for number, line in enumerate(lines[end - size : end]))
        for end, size in zip(ends, sizes, strict=True)
        if end <= len(lines)
    ]


def blocks(workplace, output: str = "out") -> list[dict]:
    """What the blocks hold of files."""
    lines = (workplace.folder / output / "parts.jsonl").read_text().splitlines()
    return [own for line in lines for own in json.loads(line)["files"]]


def sorted_rows(workplace, view: str = "t", output: str = "out") -> list[dict]:
    """All rows in the order of file, line and position."""
    rows = workplace.rows(view, output)
    keys = [name for name in ("file", "line", "sentence", "token_index") if name in rows.column_names]
    return rows.sort_by([(name, "ascending") for name in keys]).to_pylist()


def test_paragraphs_equal_loop_for_any_workers(workplace):
    records = paragraphs(50)
    workplace.prepare("\n \n\n".join(records).replace("\n", "\r\n"), input={"record": "paragraph"} | SMALL, views=TEXTS)
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files() == workplace.files("two")
    found = blocks(workplace)
    assert len({block["first_byte"] // 700 for block in found}) > 5
    rows = sorted_rows(workplace)
    assert [row["text"] for row in rows] == records
    lines = (workplace.folder / "corpus/a.txt").read_bytes().decode().split("\r\n")
    assert [lines[row["line"]] for row in rows] == [record.split("\n")[0] for record in records]
    for row, record in list(zip(rows, records, strict=True))[::9]:
        np.testing.assert_allclose(row["layer_2"], encode(record), atol=OF_TWO, rtol=0)
    assert workplace.verify().out.endswith("pass\n")


def test_sentence_spans_refer_to_paragraph(workplace):
    records = paragraphs(40)
    workplace.write("corpus/a.txt", "\n\n".join(records) + "\n\n")
    views = TEXTS | {"tokens": {"level": "token", "layers": [1], "special_tokens": False}}
    workplace.configure(input={"record": "paragraph", "unit": "sentence"} | SMALL, views=views)
    done = workplace.drive()
    rows = sorted_rows(workplace)
    lines = sorted({row["line"] for row in rows})
    assert len(lines) == len(records)
    assert len(blocks(workplace)) > 5
    by_line = dict(zip(lines, records, strict=True))
    for row in rows:
        assert by_line[row["line"]][row["start"] : row["end"]] == row["text"]
    for line in lines:
        of_record = [row for row in rows if row["line"] == line]
        assert [row["sentence"] for row in of_record] == list(range(len(of_record)))
        assert " ".join(" ".join(row["text"] for row in of_record).split()) == " ".join(by_line[line].split())
    for row in rows[::9]:
        np.testing.assert_allclose(row["layer_2"], encode(row["text"]), atol=OF_TWO, rtol=0)
    for row in sorted_rows(workplace, "tokens"):
        piece = by_line[row["line"]][row["start"] : row["end"]]
        plain = "".join(c for c in unicodedata.normalize("NFD", piece.lower()) if unicodedata.category(c) != "Mn")
        assert row["token"] in (plain, f"##{plain}", "[UNK]")
    counts = workplace.manifest()["counts"]
    assert (counts["records_read"], counts["embedded"]) == (len(records), len(records))
    assert (counts["sentences_read"], counts["sentences_embedded"]) == (len(rows), len(rows))
    assert len(rows) > len(records)
    assert f"sentences {len(rows):,} found = {len(rows):,} embedded + 0 blank" in done.out
    assert workplace.verify().out.endswith("pass\n")


@pytest.mark.parametrize(
    ("splitter", "expected"),
    [
        ({}, ["Dr. Lee paid 3.5.", "He left."]),
        ({"language": "ru"}, ["Dr.", "Lee paid 3.5.", "He left."]),
        ({"sentences": "my_words:at_spaces"}, ["Dr.", "Lee", "paid", "3.5.", "He", "left."]),
    ],
)
def test_sentence_splitters(workplace, monkeypatch, splitter, expected):
    code = "import re\ndef at_spaces(text): return [match.span() for match in re.finditer(r'\\S+', text)]\n"
    workplace.write("my_words.py", code)
    monkeypatch.syspath_prepend(str(workplace.folder))
    text = "Dr. Lee paid 3.5. He left."
    workplace.prepare(f"{text}\n", input={"unit": "sentence"} | splitter, views=TEXTS)
    workplace.drive()
    rows = sorted_rows(workplace)
    assert [row["text"] for row in rows] == expected
    assert [text[row["start"] : row["end"]] for row in rows] == expected
    assert workplace.verify("--trust").out.endswith("pass\n")


def test_splitter_that_breaks_its_contract_stops_the_run(workplace, monkeypatch):
    workplace.write("my_wrong_sentences.py", "def split(text): return [(1, 2), (0, 3)]\n")
    monkeypatch.syspath_prepend(str(workplace.folder))
    workplace.prepare("one two\n", input={"unit": "sentence", "sentences": "my_wrong_sentences:split"}, views=TEXTS)
    done = workplace.drive(status=1)
    assert "input.sentences: my_wrong_sentences:split returned (0, 3) after a sentence that begins at 1" in done.err


def test_files_as_records(workplace):
    workplace.write("corpus/a.txt", "one\n\ntwo. three\n")
    workplace.write("corpus/b.txt.gz", gzip.compress(b"\xef\xbb\xbffour\n"))
    workplace.write("corpus/empty.txt", "")
    workplace.configure(input={"record": "file"}, views=TEXTS)
    workplace.drive()
    assert [(row["line"], row["text"]) for row in sorted_rows(workplace)] == [(0, "one\n\ntwo. three\n"), (0, "four\n")]
    assert "nothing to do" in workplace.drive().err


@pytest.mark.parametrize("together", [False, True])
def test_files_without_texts_are_a_block_each(workplace, together):
    workplace.write("corpus/a.txt", "\n \none\ntwo\n\nthree\n")
    workplace.write("corpus/blank.txt", "\n \n")
    workplace.write("corpus/empty.txt", "")
    workplace.write("corpus/nothing.txt.gz", gzip.compress(b""))
    for number in range(20 if together else 0):
        workplace.write(f"corpus/{number}.txt", f"text {number}\n")
    workplace.configure(input={"record": "paragraph", "slice_bytes": 1000}, views=TEXTS)
    workplace.drive()
    entries = {entry["path"].removeprefix("corpus/"): entry for entry in layerbeam.open_run("out").inputs()}
    names = ["a.txt", "blank.txt", "empty.txt", "nothing.txt.gz"]
    assert [(entries[name]["blocks"], entries[name]["records"]) for name in names] == [(1, 2), (1, 0), (1, 0), (1, 0)]
    assert sum(row["file"] == "corpus/a.txt" for row in sorted_rows(workplace)) == 2
    assert all(block["is_last"] for block in blocks(workplace))
    assert "nothing to do" in workplace.drive().err
    assert workplace.verify("--trust").out.endswith("pass\n")
    workplace.assert_equals_fresh()


def test_parquet_files_without_rows(workplace):
    write_table(workplace, "corpus/a.parquet", [{"text": "one"}])
    workplace.write("corpus/b.parquet", b"")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), workplace.folder / "corpus/b.parquet")
    workplace.configure(views=TEXTS)
    assert "2 blocks" in workplace.plan().out
    workplace.drive()
    assert [(entry["blocks"], entry["records"]) for entry in layerbeam.open_run("out").inputs()] == [(1, 1), (1, 0)]
    assert "nothing to do" in workplace.drive().err
    assert workplace.verify("--trust").out.endswith("pass\n")


def test_nothing_but_files_without_texts(workplace):
    workplace.write("corpus/nothing.txt.gz", gzip.compress(b""))
    workplace.configure(views=TEXTS)
    assert "nothing was embedded: the files are empty" in workplace.plan(status=3).out
    assert "nothing was embedded: the files are empty" in workplace.drive(status=3).out


def test_file_that_grew_where_a_block_ended(workplace):
    """The block that was the last one is not encoded again."""
    lines = "a line of words\n" * 20
    workplace.finished(lines, input={"slice_bytes": 160}, views=TEXTS)
    workplace.write("corpus/a.txt", lines * 2)
    workplace.drive()
    assert [block["is_last"] for block in blocks(workplace)] == [False] * 3 + [True]
    workplace.assert_equals_fresh()


def write_table(workplace, name: str, records: list[dict], **options) -> None:
    workplace.write(name, b"")
    pq.write_table(pa.Table.from_pylist(records), workplace.folder / name, **options)


RECORDS = [
    {"key": f"r{number}", "body": text, "reply": f"reply {number}" if number % 3 else None, "year": 1900 + number}
    for number, text in enumerate(random_lines(150, longest=10))
]
FIELDS = {
    "text_field": "body",
    "pair_field": "reply",
    "id_field": "key",
    "keep_fields": {"year": "int64"},
    "blank": "keep",
}


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_fields_and_pairs_equal_loop_for_any_workers(workplace, format_):
    for name, records in (("a", RECORDS[:100]), ("b", RECORDS[100:])):
        if format_ == "jsonl":
            workplace.write(f"corpus/{name}", "".join(json.dumps(record) + "\n" for record in records))
        else:
            write_table(workplace, f"corpus/{name}", records, row_group_size=15)
    views = TEXTS | {"tokens": {"level": "token", "layers": [1]}}
    workplace.configure(input=FIELDS | {"format": format_} | SMALL, views=views)
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files() == workplace.files("two")
    assert len(blocks(workplace)) > 8
    rows = sorted_rows(workplace)
    assert [(row["id"], row["text"], row["year"]) for row in rows] == [
        (record["key"], record["body"], record["year"]) for record in RECORDS
    ]
    assert [row["line"] for row in rows] == [*range(100), *range(50)]
    assert workplace.rows("t").column_names[:4] == ["file", "id", "year", "line"]
    for row, record in list(zip(rows, RECORDS, strict=True))[::7]:
        np.testing.assert_allclose(row["layer_2"], encode(record["body"], record["reply"] or ""), atol=OF_TWO, rtol=0)
    tokens = [row for row in sorted_rows(workplace, "tokens") if row["id"] == "r1"]
    second = [row for row in tokens if row["segment_id"] == 1 and row["start"] >= 0]
    assert "".join("reply 1"[row["start"] : row["end"]] for row in second) == "reply1"
    assert workplace.verify().out.endswith("pass\n")


def test_field_may_be_named_rejects(workplace):
    workplace.write("corpus/a", '{"text": "one", "rejects": 1}\n{"text": "two", "rejects": 2}\nnot json\n')
    views = TEXTS | {f"{name}_view": TEXTS["t"] | {"format": name} for name in ("tfrecord", "jsonl")}
    views["types"] = {"level": "word_type", "layers": [2], "group_by": ["rejects"]}
    fields = {"format": "jsonl", "keep_fields": {"rejects": "int64"}, "max_reject_rate": 0.5}
    workplace.configure(input=fields, views=views)
    workplace.drive()
    assert workplace.rows("t")["rejects"].to_pylist() == [1, 2]
    assert workplace.rows("types")["rejects"].to_pylist() == [1, 2]
    assert len(workplace.rejects()) == 1
    assert workplace.verify().out.endswith("pass\n")


def test_pair_separator_equals_extract_features(workplace):
    workplace.write("corpus/a.txt", "one thing ||| and another\nno pair\nhalf ||| \n")
    views = TEXTS | {"tokens": {"level": "token", "layers": [1], "special_tokens": False}}
    workplace.configure(input={"pair_separator": " ||| "}, views=views)
    workplace.drive()
    first, second, third = sorted_rows(workplace)
    np.testing.assert_allclose(first["layer_2"], encode("one thing", "and another"), atol=OF_TWO, rtol=0)
    np.testing.assert_allclose(second["layer_2"], encode("no pair"), atol=OF_TWO, rtol=0)
    np.testing.assert_allclose(third["layer_2"], encode("half ||| "), atol=OF_TWO, rtol=0)
    record = "one thing ||| and another"
    tokens = [row for row in sorted_rows(workplace, "tokens") if row["line"] == 0]
    assert "".join(record[row["start"] : row["end"]] for row in tokens) == "onethingandanother"
    assert [row["segment_id"] for row in tokens] == sorted(row["segment_id"] for row in tokens)
    assert tokens[-1]["end"] == len(record)
    assert workplace.verify().out.endswith("pass\n")


def test_verify_accepts_truncated_pairs(workplace):
    lines = [line or "x" for line in random_lines(40)]
    workplace.finished(
        "".join(f"{a} ||| {b}\n" for a, b in zip(lines, reversed(lines), strict=True)),
        input={"pair_separator": " ||| "},
        encoder={"max_seq_length": 16},
        views={"tokens": {"level": "token", "layers": [1]}},
    )
    assert workplace.manifest()["counts"]["truncated_texts"] > 10
    assert workplace.verify().out.endswith("pass\n")


def test_verify_detects_changed_field(workplace):
    workplace.write("corpus/a", '{"text": "one", "year": 1}\n{"text": "two", "year": 2}\n')
    workplace.configure(input={"format": "jsonl", "keep_fields": {"year": "int64"}}, views=TEXTS)
    workplace.drive()
    (path,) = (workplace.folder / "out/t").iterdir()
    table = pq.read_table(path)
    changed = table.set_column(table.column_names.index("year"), table.schema.field("year"), pa.array([1, 3]))
    pq.write_table(changed, path)
    assert "rows of 1 record have other values in year (the first at line 1)" in workplace.verify(status=1).out


def test_bad_objects_are_rejected_and_others_embedded(workplace):
    workplace.write("corpus/a", '{"text": "fine", "id": 1}\nnot json\n{"text": 3}\n\n{"text": "fine too", "id": 1}\n')
    workplace.configure(input={"format": "jsonl", "id_field": "id", "max_reject_rate": 0.5}, views=TEXTS)
    done = workplace.drive()
    assert [reject["reason"] for reject in workplace.rejects()] == [
        "is not valid JSON: Expecting value at character 0",
        "field `text` is a number, not a string",
    ]
    assert "records   5 read = 2 embedded + 1 blank + 0 filtered + 2 rejected" in done.out
    assert "1 record with the id of an earlier one\n" in done.out
    assert "1 rejected: is not valid JSON: Expecting value\n" in done.out


@pytest.mark.parametrize("level", ["token", "text"])
@pytest.mark.parametrize("unit", ["record", "sentence"])
def test_duplicate_ids_are_counted_across_files(workplace, level, unit, monkeypatch):
    for name, ids in (("a", ["x", "y", None, "x"]), ("b", ["y", "z", None]), ("c", ["x"])):
        lines = [json.dumps({"text": "One. Two.", "id": id_}) for id_ in ids]
        workplace.write(f"corpus/{name}", "\n".join(lines))
    workplace.configure(
        input={"format": "jsonl", "id_field": "id", "unit": unit}, views={"t": {"level": level, "layers": [1]}}
    )
    assert "3 records with the id of an earlier one\n" in workplace.drive().out
    counts = workplace.manifest()["counts"]
    assert (counts["embedded"], counts["doubled_ids"]) == (8, 3)
    assert counts.get("sentences_embedded") == (16 if unit == "sentence" else None)
    assert "3 records with the id of an earlier one\n" in workplace.show().out
    monkeypatch.setattr("layerbeam.pipeline.output.finish.MAX_COMPARED_IDS", 7)
    said = workplace.drive("--output", "many").out
    assert "1 record with the id of an earlier one (compared within blocks only)\n" in said


def test_parquet_without_text_field_is_skipped(workplace):
    write_table(workplace, "corpus/bad.parquet", [{"body": "a"}])
    write_table(workplace, "corpus/good.parquet", [{"text": "a"}])
    workplace.prepare({"text.txt": "text\n"}, input={"format": "parquet"}, views=TEXTS)
    done = workplace.drive(status=3)
    assert "problem   corpus/bad.parquet: has no column `text`; it has: body" in done.out
    assert "problem   corpus/text.txt: looks like text, not Parquet; set input.format: text" in done.out
    assert [row["file"] for row in sorted_rows(workplace)] == ["corpus/good.parquet"]
    alone = workplace.drive("--input", "corpus/bad.parquet", "--output", "alone", status=2).err
    assert "input.text_field: corpus/bad.parquet: has no column `text`; it has: body\n" in alone


WRAPPED = """\
It is a truth universally acknowledged, that a single man in possession
of a good fortune, must be in want of a wife. However little known the
feelings or views of such a man may be on his first entering a
neighbourhood, this truth is so well fixed in the minds of the
surrounding families, that he is considered as the rightful property
of some one or other of their daughters.
"""


def test_hard_wrapped_text_is_reported(workplace):
    printed = workplace.finished((WRAPPED + "\n") * 5, views=TEXTS).err
    assert (
        "input: the text looks hard-wrapped: 25 of the first 30 lines end without final punctuation, at nearly the "
        "same length; `record: paragraph` takes the lines up to a blank one as one text"
    ) in printed
    assert "hard-wrapped" not in workplace.drive("--set", "input.record=paragraph", "--output", "out2").err


@pytest.mark.parametrize(
    "lines",
    [
        ["a sentence of a corpus, one on each line, some longer than others and some not.", "Short."],
        ["word", "list", "and", "so", "on"],
        ["a line that goes on for ever without an end, " * 10, "and one that does not, not at all"],
    ],
)
def test_other_text_is_not_reported_as_hard_wrapped(workplace, lines):
    workplace.prepare("\n".join(lines * 20), views=TEXTS)
    assert "hard-wrapped" not in workplace.drive().err


def test_latin_1(workplace):
    workplace.finished("caf\u00e9\n".encode("latin-1"), input={"encoding": "latin-1"}, views=TEXTS)
    assert [row["text"] for row in sorted_rows(workplace)] == ["café"]
    assert workplace.drive("--set", "input.encoding=iso-8859-1").err.endswith("already\n")
