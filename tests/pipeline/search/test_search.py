"""`layerbeam search`: what it finds, prints and refuses."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from float_bounds import OF_TWO
from object_store import upload
from repository import DATA
from tables import cases

import layerbeam
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.search.where import parse_where

CORPUS = {
    "a.txt": "the bank of the river\nmoney in the bank\n\nthe end. the river bank is steep.\nbank by bank\n",
    "b.txt": "she took money to the bank\nan unbelievable river\n",
}
VIEWS = {
    "texts": {"level": "text", "layers": [-1, 0]},
    "words": {"level": "word", "layers": [2]},
    "tokens": {"level": "token", "layers": [1], "include_text": True},
    "records": {"level": "record", "layers": [-1]},
    "small": {"level": "text", "layers": [-1], "dtype": "int8", "format": "jsonl"},
    "lists": {"level": "text", "layers": [-1], "pooling": "none"},
    "types": {"level": "word_type", "layers": [1]},
}


def finished(workplace, *names: str, **sections: Any) -> None:
    workplace.finished(CORPUS, views={name: VIEWS[name] for name in names or VIEWS}, **sections)


@pytest.fixture
def search(workplace):
    """The output of `layerbeam search out --json`."""

    def run(*arguments: str) -> dict[str, Any]:
        return json.loads(workplace._call("search", "out", "--json", *arguments, status=0).out)

    return run


def places(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["file"].removeprefix("corpus/"), row["line"], row.get("word", row.get("token"))) for row in rows]


# --- texts ---


@pytest.mark.parametrize("view", ["texts", "records", "small"])
def test_a_text_is_encoded_as_the_corpus(workplace, search, view):
    finished(workplace)
    found = search(
        "--text", "money in the bank", "--text", "she took money to the bank", "--view", view, "--layer", "3"
    )
    assert (found["view"], found["column"], found["metric"], found["where"]) == (view, "layer_3", "cosine", None)
    first, second = found["queries"]
    assert (first["text"], second["text"]) == ("money in the bank", "she took money to the bank")
    assert (first["nearest"][0]["text"], second["nearest"][0]["text"]) == (first["text"], second["text"])
    for query in found["queries"]:
        scores = [row["score"] for row in query["nearest"]]
        assert scores[0] == pytest.approx(1, abs=2e-4 if view == "small" else 1e-6)
        assert (len(scores), scores) == (6, sorted(scores, reverse=True))
    rows = layerbeam.open_run("out")["texts"]
    vectors = rows.to_numpy("layer_3")
    (query,) = np.flatnonzero([text == "money in the bank" for text in rows.to_numpy("text")])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = sorted((unit @ unit[query]).tolist(), reverse=True)
    assert [row["score"] for row in first["nearest"]] == pytest.approx(
        expected, abs=1e-3 if view == "small" else OF_TWO
    )


def test_what_is_printed(workplace):
    finished(workplace, "texts")
    done = workplace._call("search", "out", "--text", "money in the bank", "--layer", "layer_0", "-k", "2", status=0)
    heading, empty, query, first, second = done.out.splitlines()
    assert (heading, empty, query) == ("texts, layer_0, cosine: all of 6 rows", "", "money in the bank")
    assert first == "   1.0000  corpus/a.txt line 1  money in the bank"
    assert second.split()[1].startswith("corpus/")


def test_a_prompt_and_sentences(workplace, search):
    """The text gets the run's prompt, and is one text, whatever the records were."""
    views = {"texts": {"level": "text", "layers": [-1]}}
    finished_with = {"encoder": {"prompt": "search: "}, "input": {"unit": "sentence"}}
    workplace.finished(CORPUS, views=views, **finished_with)
    (query,) = search("--text", "the river bank is steep.", "-k", "1")["queries"]
    (row,) = query["nearest"]
    assert (row["text"], row["line"], row["sentence"]) == ("the river bank is steep.", 3, 1)
    assert row["score"] == pytest.approx(1, abs=1e-6)


# --- rows of the run ---


def test_like_a_word(workplace, search):
    finished(workplace, "words", "texts")
    found = search("--like", "corpus/a.txt:0:BANK", "--view", "words", "--where", "word == 'bank'", "-k", "9")
    (query,) = found["queries"]
    assert (query["like"], places(query["rows"])) == ("corpus/a.txt:0:BANK", [("a.txt", 0, "bank")])
    assert sorted(places(query["nearest"])) == [
        *(("a.txt", line, "bank") for line in (1, 3, 4, 4)),
        ("b.txt", 0, "bank"),
    ], "the word itself is left out"
    assert query["rows"][0]["span"] == [4, 8]
    assert all(row["text"][slice(*row["span"])] == "bank" for row in query["nearest"])
    words = layerbeam.open_run("out")["words"]
    table = words.to_arrow().to_pylist()
    vectors = np.array([row["layer_2"] for row in table if row["word"] == "bank"])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = sorted((unit[1:] @ unit[0]).tolist(), reverse=True)
    assert [row["score"] for row in query["nearest"]] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["log_10:30:15.txt", "10:30.txt", "a:7", "a"])
def test_like_a_file_whose_name_has_colons(workplace, search, name):
    workplace.finished({name: "the river bank\n"}, views={"words": VIEWS["words"], "texts": VIEWS["texts"]})
    (query,) = search("--like", f"corpus/{name}:0:bank", "--view", "words", "-k", "1")["queries"]
    assert [(row["file"], row["word"]) for row in query["rows"]] == [(f"corpus/{name}", "bank")]
    (query,) = search("--like", f"corpus/{name}:0", "--view", "texts", "--layer", "0", "-k", "1")["queries"]
    assert [(row["file"], row["line"]) for row in query["rows"]] == [(f"corpus/{name}", 0)]
    done = workplace._call("search", "out", "--view", "words", "--like", f"corpus/{name}:0:10:30", status=2)
    assert "view words has no '10:30' in this line, only: the, river, bank" in done.err


def test_like_a_word_of_several_pieces(workplace, search):
    """The query is the mean of its tokens, and none of them is among the nearest."""
    finished(workplace, "tokens")
    (query,) = search("--like", "corpus/b.txt:1:unbelievable", "--metric", "l2", "-k", "99")["queries"]
    table = layerbeam.open_run("out")["tokens"].to_arrow().to_pylist()
    own = [row for row in table if row["file"] == "corpus/b.txt" and row["line"] == 1 and 3 <= row["start"] < 15]
    assert len(own) > 1
    assert places(query["rows"]) == [("b.txt", 1, row["token"]) for row in own]
    assert len(query["nearest"]) == len(table) - len(own)
    mean = np.mean([row["layer_1"] for row in own], axis=0)
    distances = sorted(np.linalg.norm(row["layer_1"] - mean) for row in table if row not in own)
    assert [row["score"] for row in query["nearest"]] == pytest.approx(distances, rel=1e-5)


def test_the_first_of_several(workplace):
    finished(workplace, "tokens")
    done = workplace._call("search", "out", "--like", "corpus/a.txt:4:bank", "-k", "1", status=0)
    heading, _, query, own, _ = done.out.splitlines()
    assert heading == "tokens, layer_1, cosine: all of " + heading.split("all of ")[1]
    assert query == "corpus/a.txt:4:bank, the first of 2"
    assert own == "    query  corpus/a.txt line 4  [bank] by bank"


@pytest.mark.parametrize("command", ["search", "report"])
def test_a_text_that_is_not_utf8(workplace, command):
    done = workplace._call(command, "out", "--text", "\udcff", status=2)
    assert done.err.startswith("layerbeam: argument --text: '\\udcff' is not UTF-8 (see")


def test_like_a_text(workplace, search):
    finished(workplace, "texts", "records", input={"unit": "sentence"})
    (query,) = search("--like", "corpus/a.txt:3:1", "--view", "texts", "--layer", "0", "-k", "99")["queries"]
    assert [row["text"] for row in query["rows"]] == ["the river bank is steep."]
    assert query["rows"][0]["text"] not in [row["text"] for row in query["nearest"]]
    assert len(query["nearest"]) == 6
    (query,) = search("--like", "corpus/a.txt:3", "--view", "records", "-k", "1")["queries"]
    assert (query["rows"][0]["line"], len(query["nearest"])) == (3, 1)


def test_texts_from_the_input(workplace, search):
    """A view of words, in which no text is kept: the record, read again, as long as it is what was embedded."""
    finished(workplace, "words")
    arguments = ("--like", "corpus/a.txt:1:money", "-k", "3")
    (query,) = search(*arguments)["queries"]
    assert query["rows"][0]["text"] == "money in the bank"
    assert query["nearest"][0]["text"][slice(*query["nearest"][0]["span"])] == query["nearest"][0]["word"]
    workplace.write("corpus/a.txt", "something else\n")
    (workplace.folder / "corpus/b.txt").unlink()
    (query,) = search(*arguments)["queries"]
    assert [row["text"] for row in query["nearest"]] == [None] * 3
    lines = workplace._call("search", "out", *arguments, status=0).out.splitlines()
    assert lines[3] == "    query  corpus/a.txt line 1  money"
    assert lines[-1] == "3 rows without a text: no view has it, and the input file is missing or has changed"


def test_many_small_files_share_blocks(workplace, search):
    """Rows of several files in one part, with equal lines."""
    corpus = {f"{n:02}.txt": f"the bank has {n} rooms\n" for n in range(40)}
    workplace.finished(corpus, views={"words": VIEWS["words"], "texts": VIEWS["texts"]})
    assert len(layerbeam.open_run("out")["words"].parts) < 40
    found = search("--like", "corpus/17.txt:0:bank", "--view", "words", "--where", "word == 'bank'", "-k", "50")
    (query,) = found["queries"]
    assert query["rows"][0]["text"] == "the bank has 17 rooms"
    assert {row["text"] for row in query["nearest"]} == {f"the bank has {n} rooms" for n in range(40) if n != 17}


def test_an_object_store(workplace, memory):
    finished(workplace, "words", "texts")
    upload(workplace.folder / "out", "memory://bucket/out")
    shutil.rmtree(workplace.folder / "out")
    arguments = ("--like", "corpus/a.txt:0:bank", "--view", "words", "-k", "1")
    assert "[bank]" in workplace._call("search", "memory://bucket/out", *arguments, status=0).out


# --- what is refused ---

REFUSED = """
--view words
    what to search for is missing: give --text, or --like
--text x
    --view is missing: out has several views of texts with one vector each: records, small, texts
--like corpus/a.txt:0:bank
    --view is missing: out has several views with a vector per row and its place: records, small, texts, tokens,
    words
--text x --view text
    --view 'text': out has no such view; it has lists, records, small, texts, tokens, types, words; did you mean
    `texts`?
--text x --view words
    --view words: has a row per word, not per text: give --like FILE:LINE:WORD
--text x --view lists
    --view lists: has a list of vectors in each row (pooling: none), not one vector: see docs/output.md
--like corpus/a.txt:0:bank --view types
    --view types: its rows have no place in a file; in Python: open_run(...)['types'].nearest(...)
--text x --view texts
    --layer: layer is missing; view texts has layer_3, layer_0
--text x --view texts --layer 2
    --layer: layer_2: view texts has no such vectors; it has layer_3, layer_0
--text x --view records --where lin==1
    --where: lin is no column; view records has file, line, num_texts
--text x --view records --where line=1
    --where 'line=1': invalid syntax; it should compare columns, as in: word == 'bank' and year >= 1990, party in
    ['left', 'right'], not id is None
--like a.txt:0 --view records
    --like a.txt:0: a.txt is none of the 2 input files of out; did you mean `corpus/a.txt`?
--like corpus/a.txt --view records
    --like corpus/a.txt: is not FILE:LINE or FILE:LINE:WORD, such as a.txt:17:bank; FILE and LINE are as in the columns
    `file` and `line`, which counts from 0
--like corpus/a.txt:2 --view records
    --like corpus/a.txt:2: view records has no row of line 2 of corpus/a.txt; lines count from 0, as in the column
    `line`
--like corpus/a.txt:1:bank --view records
    --like corpus/a.txt:1:bank: the line has 1 row in view records; leave the rest out
--like corpus/a.txt:1 --view words
    --like corpus/a.txt:1: which word? Give FILE:LINE:WORD; view words has of this line: money, in, the, bank
--like corpus/a.txt:1:bnk --view words
    --like corpus/a.txt:1:bnk: view words has no 'bnk' in this line, only: money, in, the, bank; did you mean `bank`?
"""


def test_errors(workplace):
    finished(workplace)
    for given, message in cases(REFUSED):
        assert workplace._call("search", "out", *given.split(), status=2).err == f"layerbeam: {message}\n"


def test_several_sentences(workplace):
    finished(workplace, "texts", input={"unit": "sentence"})
    for given in ("corpus/a.txt:3", "corpus/a.txt:3:7"):
        done = workplace._call("search", "out", "--like", given, "--layer", "0", status=2)
        assert done.err.endswith(
            "the line has 2 rows in view texts: give the number of the sentence, FILE:LINE:0 to FILE:LINE:1\n"
        )


def test_other_states_of_a_run(workplace):
    finished(workplace, "texts")
    call = ("--text", "x", "--layer", "0", "--view", "texts")
    assert "holds no layerbeam run" in workplace._call("search", "corpus", *call, status=2).err
    (workplace.folder / "out/_SUCCESS").unlink()
    (record,) = (workplace.folder / "out/_runs").glob("1.json")
    record.write_text(record.read_text().replace('"complete"', '"failed"'))
    assert "the run is not finished" in workplace._call("search", "out", *call, status=2).err


def test_an_encoder_that_is_gone(workplace):
    folder = workplace.folder / "encoder"
    shutil.copytree(DATA / "hf_uncased", folder)
    finished(workplace, "texts", encoder={"handle": str(folder)})
    shutil.rmtree(folder)
    done = workplace._call("search", "out", "--text", "x", "--layer", "0", status=2)
    assert "layerbeam: --text needs the encoder of the run: encoder.handle: " in done.err
    assert workplace._call("search", "out", "--like", "corpus/a.txt:1", "--layer", "0", status=0).out


# --- --where ---

ACCEPTED = """
word == 'bank'
    (word == "bank")
1990 <= year < 2000 and not word in ['a', 'b']
    (((1990 <= year) and (year < 2000)) and invert(((false or (word == "a")) or (word == "b"))))
x != -1.5 or is_open
    ((x != -1.5) or is_open)
party is None or party is not None
    (is_null(party, {nan_is_null=false}) or is_valid(party))
year not in (1, 2)
    invert(((false or (year == 1)) or (year == 2)))
"""
NOT_ACCEPTED = """
__import__('os').system('true')
    __import__('os').system('true') is no comparison
word.upper() == 'X'
    word.upper() is neither a column, a text nor a number
[y for y in x] == 1
    [y for y in x] is neither a column, a text nor a number
a == b'x'
    b'x' is neither a column, a text nor a number
word in words
    words is no list
word is 'x'
    `is` is for None
(
    '(' was never closed
'bank'
    'bank' is no comparison
a == 99999999999999999999
    Python int too large to convert to C long
"""


def test_where_is_read_as_data():
    for given, expression in cases(ACCEPTED):
        assert str(parse_where(given)) == expression
    for given, message in cases(NOT_ACCEPTED):
        with pytest.raises(UsageError) as error:
            parse_where(given)
        assert str(error.value).startswith(f"--where {given!r}: {message}; it should compare columns, as in: ")
    for hostile in ("not " * 5000 + "a", "a\0", "a == '\ud800'", ""):
        with pytest.raises(UsageError, match="--where"):
            parse_where(hostile)
