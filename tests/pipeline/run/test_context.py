"""`encoder.context` through the whole pipeline: vectors, rows, plans, equal bytes, settings that do not fit."""

from __future__ import annotations

import itertools
import json

import apache_beam as beam
import numpy as np
import pytest
from corpora import random_lines
from float_bounds import OF_TWO
from repository import DATA
from weights import vectors, write_large_word

import layerbeam

VIEWS = {
    "texts": {"level": "text", "layers": [2]},
    "own": {"level": "text", "layers": [2], "special_tokens": False, "pooling": "max"},
    "words": {"level": "word", "layers": [1, 2], "combine": "sum"},
    "tokens": {"level": "token", "layers": [2]},
    "records": {"level": "record", "layers": [2]},
}
SENTENCES = {"input": {"unit": "sentence"}, "views": VIEWS}
CHUNK = {"unit": "chunk", "chunk": {"tokens": 12, "overlap": 4, "boundaries": "word"}}
RECORD = {"encoder": {"context": "record"}}


def documents(count: int) -> list[str]:
    """Records of one to eleven sentences, some of them longer than the encoder's 128 positions."""
    lines = iter([f"{line}." for line in random_lines(8 * count, longest=24) if line])
    records = (" ".join(itertools.islice(lines, number % 11 + 1)) for number in range(count))
    return [record for record in records if record]


def tokens_of_records(records: list[str], overlap: int) -> dict[str, np.ndarray]:
    """Each token of the records, which are encoded as wholes."""
    how = {"handle": str(DATA / "hf_uncased"), "long_text": "window", "window_overlap": overlap}
    return layerbeam.encode(records, encoder=how, views={"tokens": {"level": "token", "layers": [1, 2]}})["tokens"]


@pytest.mark.parametrize(("unit", "overlap"), [("sentence", 64), ("sentence", 8), ("chunk", 64)])
def test_texts_are_pooled_from_the_tokens_of_their_record(workplace, unit, overlap):
    records = documents(24)
    encoder = {"context": "record", "window_overlap": overlap}
    workplace.prepare(
        "\n".join(records), input=CHUNK if unit == "chunk" else {"unit": unit}, encoder=encoder, views=VIEWS
    )
    done = workplace.drive()
    whole = tokens_of_records(records, overlap)
    assert np.bincount(whole["line"]).max() > 128
    texts, own, words = (workplace.rows(name) for name in ("texts", "own", "words"))
    expected, expected_own, expected_words, of_texts = [], [], [], {}
    places = texts.select(["line", "start", "end", "text"]).to_pylist()
    for row in places:
        line, start, end, text = row.values()
        of_record = whole["line"] == line
        assert records[line][start:end] == text
        inside = of_record & (whole["start"] >= start) & (whole["end"] <= end) & (whole["start"] >= 0)
        expected_own.append(whole["layer_2"][inside].max(axis=0))
        inside[np.flatnonzero(of_record)[0]] = start == 0
        inside[np.flatnonzero(of_record)[-1]] = end == len(records[line])
        expected.append(whole["layer_2"][inside].mean(axis=0))
        of_texts.setdefault(line, []).append(expected[-1])
    for row in words.select(["line", "start", "end"]).to_pylist():
        inside = (whole["line"] == row["line"]) & (whole["start"] >= row["start"]) & (whole["end"] <= row["end"])
        expected_words.append((whole["layer_1"] + whole["layer_2"])[inside].mean(axis=0))
    np.testing.assert_allclose(vectors(texts, "layer_2"), expected, atol=OF_TWO)
    np.testing.assert_allclose(vectors(own, "layer_2"), expected_own, atol=OF_TWO)
    np.testing.assert_allclose(vectors(words, "embedding"), expected_words, atol=OF_TWO)
    of_records = [np.mean(values, axis=0) for values in of_texts.values()]
    np.testing.assert_allclose(vectors(workplace.rows("records"), "layer_2"), of_records, atol=OF_TWO)
    assert "0 rejected" in done.out
    assert workplace.verify("--sample", "30").out.endswith("\npass\n")


@pytest.mark.parametrize("unit", ["sentence", "chunk"])
def test_equal_bytes_and_a_true_plan(workplace, unit):
    how = {"slice_bytes": 2000} | (CHUNK if unit == "chunk" else {"unit": unit})
    corpus = {"a.txt": "\n".join(documents(24)), "b.txt": "\n".join(documents(12))}
    workplace.prepare(corpus, input=how, views=VIEWS, **RECORD)
    planned = json.loads(workplace.plan("--json").out)
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files() == workplace.files("two")
    for name in VIEWS:
        assert planned["views"][name]["rows"] == workplace.rows(name).num_rows
    assert planned["lengths"]["of"] == "context"


def test_a_record_of_one_text_has_the_bytes_of_the_text_alone(workplace, monkeypatch):
    lines = [line.strip() for line in random_lines(40) if line.strip()]
    workplace.write("one_text.py", "def whole(text): return [(0, len(text))]\n")
    monkeypatch.syspath_prepend(str(workplace.folder))
    workplace.prepare("\n".join(lines), input={"unit": "sentence", "sentences": "one_text:whole"}, views=VIEWS)
    workplace.drive()
    assert workplace.rows("texts").num_rows == len(lines)
    for context in ("record", {"sentences": 2}):
        folder = str(context)[:7].strip("{'")
        workplace.drive("--set", f"encoder.context={json.dumps(context)}", "--output", folder)
        for name in VIEWS:
            assert workplace.rows(name, folder).equals(workplace.rows(name))


def test_sentences_with_their_neighbours(workplace):
    record = "The bank is wide. A river is by it. The well. I sit by the river."
    sentences = ["The bank is wide.", "A river is by it.", "The well.", "I sit by the river."]
    workplace.prepare(f"{record}\nThe bank.\n", encoder={"context": {"sentences": 1}}, **SENTENCES)
    workplace.drive()
    rows = workplace.rows("texts")
    assert rows["text"].to_pylist() == [*sentences, "The bank."]
    around = [record[:35], record[:45], record[18:], record[36:], "The bank."]
    whole = tokens_of_records(around, 64)
    spans = [(0, 17), (18, 35), (18, 27), (10, 29), (0, 9)]
    for index, (text, (start, end)) in enumerate(zip(rows["text"].to_pylist(), spans, strict=True)):
        assert around[index][start:end] == text
        of_text = whole["line"] == index
        inside = of_text & (whole["start"] >= start) & (whole["end"] <= end) & (whole["start"] >= 0)
        inside[np.flatnonzero(of_text)[0]] = start == 0
        inside[np.flatnonzero(of_text)[-1]] = end == len(around[index])
        expected = whole["layer_2"][inside].mean(axis=0)
        np.testing.assert_allclose(vectors(rows, "layer_2")[index], expected, atol=OF_TWO)
    assert workplace.verify().out.endswith("\npass\n")


def test_words_of_a_record_know_it(workplace):
    """The word of a view with keep_words is encoded in its record, though the other sentences have no rows."""
    views = {"words": {"level": "word", "layers": [2], "keep_words": ["well"]}}
    workplace.prepare("The bank. A well.\nA river. A well.\n", input={"unit": "sentence"}, views=views, **RECORD)
    done = workplace.drive()
    rows = workplace.rows("words")
    assert rows.select(["line", "sentence", "start", "word", "word_index"]).to_pylist() == [
        {"line": line, "sentence": 1, "start": start, "word": "well", "word_index": 1}
        for line, start in ((0, 12), (1, 11))
    ]
    first, second = vectors(rows, "layer_2")
    assert np.abs(first - second).max() > 1e-3
    assert "sentences 4 found = 2 embedded + 0 blank + 2 filtered + 0 rejected" in done.out
    assert workplace.verify().out.endswith("\npass\n")


def test_a_text_that_is_rejected_while_its_record_is_encoded(workplace):
    """The others of the record are kept, and know its words."""
    encoder = {"handle": str(write_large_word(workplace.folder / "encoder", "bank")), "context": "record"}
    corpus = "The river. A bank. A well.\nThe well. A river.\n"
    views = {"texts": {"level": "text", "layers": [0]}, "words": {"level": "word", "layers": [3]}}
    how = {"unit": "sentence", "max_reject_rate": 1.0}
    workplace.prepare(corpus, input=how, encoder=encoder, views=views)
    workplace.drive("--output", "before")
    before = workplace.rows("words", "before")
    views["half"] = {"level": "token", "layers": [0], "dtype": "float16"}
    workplace.configure(input=how, encoder=encoder, views=views)
    workplace.drive()
    assert workplace.rows("texts")["text"].to_pylist() == ["The river.", "A well.", "The well.", "A river."]
    kept = [row != (0, 1) for row in zip(*(before[name].to_pylist() for name in ("line", "sentence")), strict=True)]
    after = workplace.rows("words")
    assert after.drop(["layer_3"]).equals(before.drop(["layer_3"]).filter(kept))
    np.testing.assert_allclose(vectors(after, "layer_3"), vectors(before, "layer_3")[kept], atol=OF_TWO)
    assert workplace.verify().out.endswith("\npass\n")


def test_settings_that_do_not_fit(workplace):
    workplace.prepare("The bank.\n", **SENTENCES)
    for wrong in ("document", "{sentences: 0}", "{sentence: 1}"):
        refused = workplace.drive("--set", f"encoder.context={wrong}", status=2).err
        assert "encoder.context: should be text, record or {sentences: n}, n sentences on each side; given: " in refused
    views = {"texts": {"level": "text", "layers": [2], "pooling": "cls"}}
    workplace.configure(encoder={"context": "record", "long_text": "reject"}, views=views)
    refused = workplace.drive(status=2).err
    assert "encoder.context: each record is one text; remove it, or set input.unit: sentence or chunk" in refused
    assert "encoder.long_text: what context puts together is encoded in windows if it is too long; remove" in refused
    assert "views.texts.pooling: cls is one vector of all that encoder.context puts together" in refused
    workplace.configure(encoder={"context": "record", "max_seq_length": 64}, **SENTENCES)
    message = "encoder.window_overlap: is 64; it must be below max_seq_length - 2 = 62, or a window makes no progress"
    assert message in workplace.drive(status=2).err
    workplace.configure(encoder={"context": {"sentences": 1}}, input=CHUNK, views=VIEWS)
    message = "encoder.context: is {'sentences': 1}, which is for input.unit: sentence; chunks allow text and record"
    assert message in workplace.drive(status=2).err


def test_in_memory_texts_are_records(hf_uncased):
    encoder, refused = (
        {"handle": hf_uncased, "context": "record"},
        r"encoder\.context: each record is one text; remove it",
    )
    with pytest.raises(ValueError, match=refused):
        layerbeam.encode(["the bank"], encoder=encoder)
    with pytest.raises(ValueError, match=refused):
        layerbeam.EmbedText(encoder=encoder, views={"v": {"level": "text", "layers": [-1]}}) | beam.Create([])
