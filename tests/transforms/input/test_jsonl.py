from __future__ import annotations

import gzip
import json
import tracemalloc

import pyarrow as pa
import pytest
from corpora import read_file, texts_of
from hypothesis import given
from hypothesis import strategies as st

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.settings import BlockLimits


def reasons(block) -> dict[int, str]:
    return {reject.line: reject.reason for reject in block.rejected}


def reason_of(corpus, line: str | bytes, **how) -> str:
    """Why a line between two good ones is rejected."""
    good = b'{"text": "good"}\n'
    raw = line if isinstance(line, bytes) else line.encode()
    (block,) = read_file(corpus(good + raw + b"\r\n" + good), format="jsonl", **how)
    assert texts_of([block]) == [(0, "good"), (2, "good")]
    (reject,) = block.rejected
    assert (reject.line, reject.byte_offset, reject.raw) == (1, len(good), raw)
    assert metrics.unbalanced(block.counts) is None
    return reject.reason


def test_objects_line_by_line(corpus):
    path = corpus(
        '\ufeff{"text": "one", "x": [1]}\r\n\n{"text": "zw\\u00f6\\n\\ud83d\\ude00"}\n  \n{"text": " "}\n{"text": ""}'
    )
    (block,) = read_file(path, format="jsonl")
    assert texts_of([block]) == [(0, "one"), (2, "zwö\n😀")]
    assert (block.counts[metrics.RECORDS], block.counts[metrics.BLANK]) == (6, 4)
    assert metrics.unbalanced(block.counts) is None
    (block,) = read_file(path, format="jsonl", blank="keep")
    assert texts_of([block]) == [(0, "one"), (2, "zwö\n😀"), (4, " "), (5, "")]
    assert (block.counts[metrics.EMBEDDED], block.counts[metrics.BLANK]) == (4, 2)


def test_what_goes_through(corpus):
    lines = [
        {"body": "a", "id": "x-1", "label": "pos", "year": 1999, "score": 0.5, "gold": True},
        {"body": "b", "id": 17, "label": None, "year": -(2**63), "score": 3, "gold": False},
        {"body": "c"},
    ]
    (block,) = read_file(
        corpus("\n".join(map(json.dumps, lines))),
        format="jsonl",
        text_field="body",
        id_field="id",
        keep_fields={"label": "string", "year": "int64", "score": "float64", "gold": "bool"},
    )
    assert {name: column.to_pylist() for name, column in block.fields.items()} == {
        "id": ["x-1", "17", None],
        "label": ["pos", None, None],
        "year": [1999, -9223372036854775808, None],
        "score": [0.5, 3.0, None],
        "gold": [True, False, None],
    }
    assert next(iter(block.fields)) == "id"
    types = [pa.string(), pa.string(), pa.int64(), pa.float64(), pa.bool_()]
    assert [column.type for column in block.fields.values()] == types


def test_types_stand_in_a_block_without_values(corpus):
    path = corpus('{"text": 1}\n')
    (block,) = read_file(path, format="jsonl", id_field="id", keep_fields={"n": "int64"})
    assert (block.fields["id"].type, block.fields["n"].type) == (pa.string(), pa.int64())
    assert block.texts.type == pa.string()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("plain text", "is not valid JSON: Expecting value at character 0"),
        ('{"text": "a"', "is not valid JSON: Expecting ',' delimiter at character 12"),
        ('{"text": "a"} {"text": "b"}', "is not valid JSON: Extra data at character 14"),
        ("[1, 2]", "is not a JSON object but an array"),
        ("null", "is not a JSON object but null"),
        ('"text"', "is not a JSON object but a string"),
        ("{}", "field `text` is missing"),
        ('{"text": 12}', "field `text` is a number, not a string"),
        ('{"text": true}', "field `text` is a boolean, not a string"),
        ('{"text": ["a"]}', "field `text` is an array, not a string"),
        ('{"text": {"a": 1}}', "field `text` is an object, not a string"),
        ('{"text": "a\\ud800b"}', "field `text`: lone surrogate U+D800 at character 1"),
        ('{"text": "a", "text": "b"}', "field `text` occurs twice"),
        ('{"text": NaN}', "field `text` is a number, not a string"),
        ('{"text": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested more than 500 deep"),
        ("[" * 100_000, "is nested more than 500 deep"),
        ('{"text": "tab\there"}', "is not valid JSON: Invalid control character at character 13"),
        (b'{"text": "\xff"}', "invalid UTF-8: invalid start byte at byte 10 (0xff)"),
    ],
)
def test_lines_that_are_rejected(corpus, line, reason):
    assert reason_of(corpus, line) == reason


def _depth_by_characters(line: str) -> int:
    """The deepest bracket outside of closed strings, character by character."""
    depth = deepest = place = 0
    while place < len(line):
        end = place
        if line[place] == '"':
            end += 1
            while end < len(line) and line[end] != '"':
                end += 2 if line[end] == "\\" else 1
        elif line[place : place + 2] in ("\\\\", '\\"'):
            end += 1
        elif line[place] in "[]{}":
            depth += 1 if line[place] in "[{" else -1
            deepest = max(deepest, depth)
        place = end + 1 if end < len(line) else place + 1  # nothing closes the string
    return deepest


_PIECES = st.sampled_from(["[" * 260, "[", "{", "]" * 130, "}", '"', "\\", '\\"', "\\[", ":", "ä"])


@given(st.lists(_PIECES, max_size=12).map("".join).map(lambda tail: '{"text": ' + "[" * 250 + tail))
def test_depth_is_that_of_a_loop_over_characters(tmp_path_factory, line):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"  # one for all examples
    path.write_text(line, encoding="utf-8")
    (block,) = read_file(str(path), format="jsonl")
    assert ("is nested more than 500 deep" in reasons(block).values()) == (_depth_by_characters(line) > 500)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text":' + "[" * 501 + '"' + '\\"' * 500_000, "is nested more than 500 deep"),
        ('{"text": "' + "[12] " * 600 + '\\"' * 500_000, "is not valid JSON: Unterminated string"),
        ('{"text": "' + '[\\\\"' * 240_000, "is nested more than 500 deep"),
        ('{"text": "a", "x": ' + "1" * 5000 + "}", "is not valid JSON: Exceeds the limit"),
    ],
)
def test_hostile_quotes_and_numbers_take_linear_time(corpus, line, reason):
    assert reason_of(corpus, line).startswith(reason)


def test_many_brackets_in_a_text_take_little_memory(corpus):
    text = "[12] " * 600 + 'long "text" ' * 200_000
    path = corpus(json.dumps({"text": text}))
    tracemalloc.start()
    (block,) = read_file(path, format="jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert texts_of([block]) == [(0, text)]
    assert peak < 40 * len(text)


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        ("1", "string", "field `x` is a number, not a string"),
        ('"\\udfff"', "string", "field `x`: lone surrogate U+DFFF at character 0"),
        ('"1"', "int64", "field `x` is a string, not int64"),
        ("1.5", "int64", "field `x` is a number with a fraction, not int64"),
        (
            "9007199254740994.0",
            "int64",
            "field `x` is a number above 9,007,199,254,740,992 in float notation, not int64",
        ),
        ("true", "int64", "field `x` is a boolean, not int64"),
        ("9223372036854775808", "int64", "field `x` does not fit in int64"),
        ("1e999", "float64", "field `x` does not fit in float64"),
        ("1" + "0" * 400, "float64", "field `x` does not fit in float64"),
        ('"1"', "float64", "field `x` is a string, not float64"),
        ("NaN", "float64", "field `x` is NaN, not float64"),
        ("Infinity", "float64", "field `x` does not fit in float64"),
        ("NaN", "int64", "field `x` is NaN, not int64"),
        ("0", "bool", "field `x` is a number, not bool"),
        ("{}", "bool", "field `x` is an object, not bool"),
        ('1, "x": 2', "int64", "field `x` occurs twice"),
    ],
)
def test_kept_fields_of_another_type(corpus, value, type_, reason):
    assert reason_of(corpus, f'{{"text": "a", "x": {value}}}', keep_fields={"x": type_}) == reason


def test_an_id_that_is_none(corpus):
    assert reason_of(corpus, '{"text": "a", "id": 1.2e18}', id_field="id") == (
        "field `id` is a number above 9,007,199,254,740,992 in float notation, which has lost digits; write it as text"
    )
    assert reason_of(corpus, '{"text": "a", "id": 1.5}', id_field="id") == "field `id` is a number, not a string"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"x": 1, "x": 2, "text": "a", "y": {"text": 1, "text": 2}}', "a"),
        ('{"text": "a\\u0000b"}', "a\0b"),
        (json.dumps({"text": '["{' * 1000}), '["{' * 1000),
        ('{"text": "a", "x": NaN, "y": [-Infinity, {"z": Infinity}]}', "a"),
        ('{"x": "\\ud83d", "text": "a"}', "a"),
    ],
    ids=["duplicate unused keys", "NUL", "brackets in a string", "constants", "surrogate in an unused field"],
)
def test_lines_that_are_accepted(corpus, line, text):
    (block,) = read_file(corpus(line), format="jsonl")
    assert texts_of([block]) == [(0, text)]


def test_null_texts_are_blank(corpus):
    (block,) = read_file(corpus('{"text": null, "n": 1}\n{"text": "a", "n": null}\n'), format="jsonl")
    assert texts_of([block]) == [(1, "a")]
    assert (block.counts[metrics.BLANK], block.counts[metrics.REJECTED]) == (1, 0)


def test_half_a_surrogate_pair_is_replaced_where_invalid_bytes_are(corpus):
    line = '{"text": "so good \\ud83d", "id": "\\udc00\\ud800", "b": "\\ud83d\\ude00", "l": "x\\udfff"}'
    how = {"pair_field": "b", "id_field": "id", "keep_fields": {"l": "string"}, "invalid_bytes": "replace"}
    (block,) = read_file(corpus(line), format="jsonl", **how)
    assert block.texts.to_pylist() == ["so good \ufffd"]
    assert block.pairs.to_pylist() == ["\U0001f600"]
    assert block.fields["id"].to_pylist() == ["\ufffd\ufffd"]
    assert block.fields["l"].to_pylist() == ["x\ufffd"]


def test_byte_order_marks_of_files_that_were_joined(corpus):
    path = corpus('\ufeff\ufeff{"text": "a"}\n\ufeff{"text": "\ufeffb"}\n')
    (block,) = read_file(path, format="jsonl")
    assert texts_of([block]) == [(0, "a"), (1, "\ufeffb")]


def test_pairs_of_two_fields(corpus):
    lines = ['{"text": "a", "b": "c"}', '{"text": "d"}', '{"text": "e", "b": " "}', '{"text": " ", "b": "f"}']
    lines.append('{"text": "", "b": null}')
    (block,) = read_file(corpus("\n".join(lines)), format="jsonl", pair_field="b")
    assert block.texts.to_pylist() == ["a", "d", "e", " "]
    assert block.pairs.to_pylist() == ["c", None, None, "f"]
    assert block.pair_offset.tolist() == [0, 0, 0, 0]
    assert reason_of(corpus, '{"text": "a", "b": 1}', pair_field="b") == "field `b` is a number, not a string"


def test_ids_that_come_twice_in_a_block(corpus):
    lines = [{"text": "a", "id": id_} for id_ in (1, "1", 2, None, None, 1)] + [{"text": " ", "id": 2}]
    (block,) = read_file(corpus("\n".join(map(json.dumps, lines))), format="jsonl", id_field="id")
    assert block.counts[metrics.DUPLICATE_IDS] == 2


def test_other_encodings_and_compression(corpus):
    path = corpus(gzip.compress('{"text": "caf\u00e9"}\n'.encode("latin-1")), "a.jsonl.gz")
    assert texts_of(read_file(path, format="jsonl", encoding="iso8859-1")) == [(0, "café")]
    (left_out,) = read_file(corpus('{"text": "a"}\n'.encode("utf-16")), format="jsonl")
    assert isinstance(left_out, InputFile)


def test_objects_over_slices_and_blocks(corpus):
    path = corpus("".join(json.dumps({"text": f"text {number}", "n": number}) + "\n" for number in range(100)))
    limits = BlockLimits(40, 1 << 30, 1 << 30, 128)
    blocks = read_file(path, limits, slice_bytes=333, format="jsonl", keep_fields={"n": "int64"})
    assert len(blocks) > 20
    assert texts_of(blocks) == [(number, f"text {number}") for number in range(100)]
    assert [n for block in blocks for n in block.fields["n"].to_pylist()] == list(range(100))


def test_integers_in_float_notation_are_integers(corpus):
    """pandas writes 30284.0 for the integers of a column with a gap."""
    path = corpus("".join(f'{{"text": "a", "n": {n}, "id": {n}}}\n' for n in ("30284.0", "-0.0", "1e3", "7", "null")))
    (block,) = read_file(path, format="jsonl", id_field="id", keep_fields={"n": "int64"})
    assert block.fields["n"].to_pylist() == [30284, 0, 1000, 7, None]
    assert block.fields["id"].to_pylist() == ["30284", "0", "1000", "7", None]


def test_long_fields_end_a_block(corpus):
    """Fields that are not the text count a sixteenth, so that a block's bytes are bounded."""
    record = json.dumps({"text": "the bank", "notes": "x" * 1_580}) + "\n"
    blocks = read_file(corpus(record * 100), BlockLimits(1_000, 1 << 30, 1 << 30, 128), format="jsonl")
    assert max(block.num_bytes for block in blocks) <= 16_000 + len(record)
    assert len(blocks) > 8


def test_fields_of_inner_objects(corpus):
    lines = ['{"meta": {"text": "a", "id": 1, "more": {"n": 7}}}', '{"meta": null}', '{"meta": {"text": null}}']
    lines += [
        '{"meta.text": "b", "meta": {"text": "c"}}',
        '{"meta": {"more.x": 1}}',
        '{"meta": "text"}',
        '{"meta": {}}',
    ]
    how = {"text_field": "meta.text", "id_field": "meta.id", "keep_fields": {"meta.more.n": "int64"}}
    (block,) = read_file(corpus("\n".join(lines)), format="jsonl", **how)
    assert (block.texts.to_pylist(), block.fields["id"].to_pylist()) == (["a", "b"], ["1", None])
    assert block.fields["meta.more.n"].to_pylist() == [7, None]
    assert block.counts[metrics.BLANK] == 2
    assert reasons(block) == dict.fromkeys((4, 5, 6), "field `meta.text` is missing")
    twice = '{"meta": {"text": "a"}, "meta": {"text": "b"}}'
    assert reason_of(corpus, '{"text": {"a": "b"}, "meta": 1}') == "field `text` is an object, not a string"
    (block,) = read_file(corpus(twice), format="jsonl", text_field="meta.text")
    assert reasons(block) == {0: "field `meta.text` occurs twice"}


def test_texts_of_several_fields(corpus):
    rows = [{"title": "A", "body": "b", "b2": "c"}, {"title": None, "body": "d"}, {"title": " ", "body": "e"}, {"x": 1}]
    rows += [{"title": "f"}, {"title": "", "body": None}, {"title": "g", "body": 1}]
    path = corpus("\n".join(map(json.dumps, rows)))
    (block,) = read_file(path, format="jsonl", text_field=["title", "body"], pair_field="b2", id_field="x")
    assert texts_of([block]) == [(0, "A\n\nb"), (1, "d"), (2, "e"), (4, "f")]
    assert block.pairs.to_pylist() == ["c", None, None, None]
    assert reasons(block) == {3: "field `title` is missing", 6: "field `body` is a number, not a string"}
    assert block.counts[metrics.BLANK] == 1
