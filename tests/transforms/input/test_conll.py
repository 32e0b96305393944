from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import UNLIMITED, read_file

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.content import contradiction, format_by_content, format_by_name
from layerbeam.transforms.settings import BlockLimits, RecordFormat

# Characters of words that other readers take for the end of a word or a line.
HOSTILE = [
    "a",
    "river",
    "\u00a0",
    "\u2028",
    "\x85",
    "\x0b",
    "\x1f",
    "\u200b",
    "\ufeff",
    "\u0301",
    "#",
    "-",
    "_",
    "[SEP]",
]
NO_COLUMNS = "\t_" * 7
TREEBANK = """\
# newdoc id = d1
# sent_id = s1
# a remark
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3\t1\u00a0000\t1\u00a0000\tNUM\t_\t_\t1\tobl\t_\t_
3.1\tx\tx\t_\t_\t_\t_\t_\t_\t_
4\tof it\t_\tX\t_\t_\t_\t_\t_\t_
5\t_\t_\tX\t_\t_\t_\t_\t_\t_

# sent_id = s2

1\tone\t_\t_\t_\t_\t_\t_\t_\t_

"""


def words_of(blocks):
    return [words for block in blocks for words in block.words.lists.to_pylist()]


def reasons_of(blocks):
    return [(reject.line, reject.reason) for block in blocks for reject in block.rejected]


def test_a_treebank(corpus):
    (block,) = read_file(
        corpus("\ufeff" + TREEBANK.replace("\n", "\r\n")),
        format="conllu",
        id_field="sent_id",
        keep_fields={"lemma": "string", "upos": "string", "head": "int64", "newdoc id": "string"},
    )
    assert words_of([block]) == [["Vamos", "nos", "1\u00a0000", "of it", "_"], ["one"]]
    assert block.texts.to_pylist() == ["Vamos nos 1\u00a0000 of it _", "one"]
    assert block.line.tolist() == [0, 13]
    assert {name: column.to_pylist() for name, column in block.fields.items()} == {
        "id": ["s1", None],
        "lemma": [["ir", "nosotros", "1\u00a0000", None, "_"], [None]],
        "upos": [["VERB", "PRON", "NUM", "X", "X"], [None]],
        "head": [[0, 1, 1, None, None], [None]],
        "newdoc id": ["d1", None],
    }
    counted = (metrics.RECORDS, metrics.EMBEDDED, metrics.BLANK, metrics.REJECTED)
    assert [block.total(name) for name in counted] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (f"1\ta{NO_COLUMNS}", "has 9 columns, not 10 at line 1 of the sentence"),
        (
            f"1\ta{NO_COLUMNS}\t_\n# c = d\n3\tb{NO_COLUMNS}\t_",
            "has an id that is not the next number at line 3 of the sentence",
        ),
        (f"a\tb{NO_COLUMNS}\t_", "has no id at line 1 of the sentence"),
        (f"01\tb{NO_COLUMNS}\t_", "has no id at line 1 of the sentence"),
        ("# text = a plain\nsentence", "has no id at line 2 of the sentence"),
        ("1\ta\t_\t_\t_\t_\tnone\t_\t_\t_", "field `head` is not int64 at word 0"),
        (b"1\t\xff\t_\t_\t_\t_\t_\t_\t_\t_", "invalid UTF-8: invalid start byte at byte 2 (0xff)"),
    ],
)
def test_what_is_rejected(corpus, lines, reason):
    bad = lines if isinstance(lines, bytes) else lines.encode()
    good = f"1\tgood{NO_COLUMNS}\t_\n\n".encode()
    blocks = read_file(corpus(good + bad + b"\n\n" + good), format="conllu", keep_fields={"head": "int64"})
    assert words_of(blocks) == [["good"], ["good"]]
    assert reasons_of(blocks) == [(2, reason)]
    assert blocks[0].rejected[0].raw == bad
    assert metrics.unbalanced(blocks[0].counts) is None


def test_plain_columns(corpus):
    conll2003 = (
        "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\n1\u00a0000  CD I-NP O \n# # O O\n\n\n-DOCSTART- -X- O O\nyes UH O O\n"
    )
    how = {"format": "conll", "column_names": ["word", "pos", "chunk", "ner"], "keep_fields": {"ner": "string"}}
    (block,) = read_file(corpus(conll2003), **how)
    assert words_of([block]) == [["EU", "1\u00a0000", "#"], ["yes"]]
    assert block.fields["ner"].to_pylist() == [["B-ORG", "O", "O"], ["O"]]
    assert (block.line.tolist(), block.total(metrics.BLANK)) == ([2, 7], 1)
    tabs = "New York\tB-LOC\n\tO\nen:\u200b\tO\n\nlonely\n\nword\tX\n"
    (block,) = read_file(corpus(tabs), format="conll", keep_fields={"tag": "string"})
    assert words_of([block]) == [["New York", "", "en:\u200b"], ["word"]]
    assert block.fields["tag"].to_pylist() == [["B-LOC", "O", "O"], ["X"]]
    assert reasons_of([block]) == [(4, "has 1 columns, not 2 at line 1 of the sentence")]


@pytest.mark.parametrize("seed", range(4))
def test_every_format_gives_the_same_words(corpus, tmp_path, seed):
    """In blocks and slices of any size."""
    pick = random.Random(seed)
    sentences = [
        ["".join(pick.choices(HOSTILE, k=pick.randint(1, 4))) for _ in range(pick.randint(1, 9))] for _ in range(120)
    ]
    tags = [[str(pick.randrange(5)) for _ in words] for words in sentences]
    pairs = list(zip(sentences, tags, strict=True))
    lines = [
        [f"{n}\t{word}\t_\t{tag}" + "\t_" * 6 for n, (word, tag) in enumerate(zip(*pair, strict=True), 1)]
        for pair in pairs
    ]
    columns = [[f"{word}\t{tag}" for word, tag in zip(*pair, strict=True)] for pair in pairs]
    pq.write_table(pa.table({"text": sentences, "t": tags}), tmp_path / "a.parquet", row_group_size=50)
    given = {
        "a.conllu": "\n\n".join("\n".join(sentence) for sentence in lines),
        "a.conll": "\n\n".join("\n".join(sentence) for sentence in columns),
        "a.jsonl": "\n".join(json.dumps({"text": words, "t": of_words}) for words, of_words in pairs),
    }
    fields = {"conllu": {"upos": "string"}, "conll": {"tag": "string"}}
    limits = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128, edit_tokens=pick.choice([50, 1 << 30]))
    for name in (*given, "a.parquet"):
        format_ = name.partition(".")[2]
        how = {"words": "given"} if format_ in ("jsonl", "parquet") else {}
        path = corpus(given[name], name) if name in given else tmp_path / name
        how |= {"format": format_, "keep_fields": fields.get(format_, {"t": "list<string>"}), "blank": "keep"}
        blocks = read_file(path, limits, slice_bytes=pick.choice([300, 1 << 20]), **how)
        assert words_of(blocks) == sentences, name
        assert [tags for block in blocks for tags in next(iter(block.fields.values())).to_pylist()] == tags, name
        assert not reasons_of(blocks)


def test_lists_of_json_lines_and_parquet(corpus, tmp_path):
    lines = [
        ({"w": ["a", "1 000", ""], "t": [1, None, 3], "s": "x"}, None),
        ({"w": [], "t": []}, None),
        ({"w": None, "t": [1]}, None),
        ({"w": ["a", None]}, "field `w` is null, not a string at word 1"),
        ({"w": ["a"], "t": [1, 2]}, "field `t` has more values than words at word 1"),
        ({"w": ["a", "b"], "t": [1]}, "field `t` has fewer values than words at word 1"),
        ({"w": ["b"], "t": None}, None),
    ]
    how = {"words": "given", "text_field": "w", "keep_fields": {"t": "list<int64>", "s": "string"}}
    pq.write_table(pa.Table.from_pylist([{"t": None, "s": None} | line for line, _ in lines]), tmp_path / "a.parquet")
    json_lines = corpus("\n".join(json.dumps(line) for line, _ in lines), "a.jsonl")
    for path, format_ in ((json_lines, "jsonl"), (tmp_path / "a.parquet", "parquet")):
        (block,) = read_file(path, format=format_, **how)
        assert words_of([block]) == [["a", "1 000", ""], ["b"]]
        assert block.texts.to_pylist() == ["a 1 000 ", "b"]
        assert block.fields["t"].to_pylist() == [[1, None, 3], [None]]
        assert block.fields["s"].to_pylist() == ["x", None]
        assert reasons_of([block]) == [(line, reason) for line, (_, reason) in enumerate(lines) if reason]
        assert (block.total(metrics.BLANK), metrics.unbalanced(block.counts)) == (2, None)


def test_values_that_are_no_lists_of_words(corpus):
    lines = [{"w": "a b"}, {"w": ["a"], "t": "x"}, {"w": ["a"], "t": ["x", 2]}, {"w": ["a", 3]}, {"w": ["\ud800"]}]
    path = corpus("\n".join(map(json.dumps, lines)))
    how = {"format": "jsonl", "words": "given", "text_field": "w", "keep_fields": {"t": "list<string>"}}
    assert reasons_of(read_file(path, **how)) == [
        (0, "field `w` is a string, not an array"),
        (1, "field `t` is a string, not an array"),
        (2, "field `t` is a number, not a string at word 1"),
        (3, "field `w` is a number, not a string at word 1"),
        (4, "field `w`: lone surrogate U+D800 at character 0 at word 0"),
    ]
    replaced = read_file(path, invalid_bytes="replace", **how)
    assert words_of(replaced) == [["\ufffd"]]


@pytest.mark.parametrize("type_", [pa.list_(pa.large_string()), pa.large_list(pa.string()), pa.list_(pa.string(), 2)])
def test_kinds_of_lists_in_parquet(tmp_path, type_):
    sentences = [["a", "b"], ["\u4f60", ""]] * 300
    pq.write_table(
        pa.table({"m": pa.array([{"w": words} for words in sentences], pa.struct([("w", type_)]))}),
        tmp_path / "a.parquet",
    )
    limits = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128, edit_tokens=200)
    how = {"format": "parquet", "words": "given", "text_field": "m.w"}
    blocks = read_file(tmp_path / "a.parquet", limits, **how)
    assert len(blocks) > 2
    assert words_of(blocks) == sentences
    names = [block.name for block in blocks]
    again = read_file(tmp_path / "a.parquet", limits, done=blocks, **how)
    assert [commit.name for commit in again] == names


def test_invalid_utf8_in_a_list_of_parquet(tmp_path):
    words = pa.array([[b"a"], [b"b", b"\xff"]], pa.list_(pa.binary()))
    pq.write_table(pa.table({"w": words}), tmp_path / "a.parquet")
    (block,) = read_file(tmp_path / "a.parquet", format="parquet", words="given", text_field="w")
    assert words_of([block]) == [["a"]]
    assert reasons_of([block]) == [(1, "field `w`: invalid UTF-8: invalid start byte at byte 0 at word 1")]


def test_long_sentences_are_rejected(corpus):
    long = "\n".join(f"{number}\tword{NO_COLUMNS}\t_" for number in range(1, 50))
    blocks = read_file(corpus(f"{long}\n\n1\ta{NO_COLUMNS}\t_\n"), UNLIMITED, format="conllu", max_record_bytes=500)
    assert words_of(blocks) == [["a"]]
    assert reasons_of(blocks) == [(0, "is longer than 500 bytes (input.max_record_bytes)")]


def test_what_a_file_is():
    assert [format_by_name(name) for name in ("x/en-ud-dev.conllu.gz", "eng.conll")] == ["conllu", "conll"]
    head = TREEBANK.encode()
    assert format_by_content(head) == "conllu"
    assert contradiction(head, RecordFormat()) == "looks like CoNLL-U, not text; set input.format: conllu"
    assert contradiction(head, RecordFormat(format="conllu")) is None
    assert (
        contradiction(b"a b\nc d\n", RecordFormat(format="conllu"))
        == "looks like text, not CoNLL-U; set input.format: text"
    )
    # Numbered rows with ten columns, or a heading of Markdown, are no treebank.
    rows = b"1\ta\tb\tc\td\te\tf\tg\th\ti\n"
    assert format_by_content(rows) is None
    assert format_by_content(b"# heading\n\ntext\n") is None
    assert INPUT_FORMATS["conll"].recognizes(b"a b\n", [b"a b\n"]) is False
