"""Words that the input gives, through the whole pipeline."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from weights import vectors

SENTENCES = [
    (["the", "bank", "of the", "river", "\u200b", "."], ["DET", "NOUN", "X", "NOUN", "X", "PUNCT"]),
    (["a\u00a0bank", "[SEP]", "is", "in", "the", "river " * 40 + "bank"], ["NOUN", "X", "AUX", "ADP", "DET", "NOUN"]),
    (["the"] * 40, ["DET"] * 40),
]
VIEWS = {
    "words": {"level": "word", "layers": [0, -1]},
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [-1]},
    "forms": {"level": "word_type", "layers": [-1], "group_by": ["upos"]},
}
OF_WORDS = ["line", "word_index", "start", "end", "word", "upos"]


def conllu(sentences):
    lines = (
        [f"{n}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_" for n, (word, tag) in enumerate(zip(*pair, strict=True), 1)]
        for pair in sentences
    )
    return "".join(f"# sent_id = s{number}\n" + "\n".join(own) + "\n\n" for number, own in enumerate(lines))


def run(workplace, name, data, output, **more):
    workplace.write(f"corpus/{name}", data)
    keep = {"upos": "string" if name.endswith("u") else "list<string>"}
    sections = {"views": VIEWS, "encoder": {"max_seq_length": 32}} | more
    given = {} if name.endswith("u") else {"words": "given", "text_field": "tokens"}
    workplace.configure(**sections, input={"files": [f"corpus/{name}"], "keep_fields": keep, **given})
    return workplace.drive("--output", output)


def test_rows_of_a_treebank(workplace):
    done = run(workplace, "a.conllu", conllu(SENTENCES), "out")
    assert "words: 11 words lost to max_seq_length" in done.out
    assert "words: 1 word that normalizes to nothing" in done.out
    rows = workplace.rows("words", "out")
    expected = [
        (line, index, word, tag)
        for line, (words, tags) in zip((0, 8, 16), SENTENCES, strict=True)
        for index, (word, tag) in enumerate(zip(words, tags, strict=True))
        if word != "\u200b" and index < 30 and len(word) < 200
    ]
    assert (
        list(zip(*(rows[name].to_pylist() for name in ("line", "word_index", "word", "upos")), strict=True)) == expected
    )
    assert "upos" not in workplace.rows("texts", "out").column_names
    assert workplace.rows("texts", "out")["text"].to_pylist()[0] == "the bank of the river \u200b ."
    forms = {(row["upos"], row["word"]): row["count"] for row in workplace.rows("forms", "out").to_pylist()}
    assert forms["X", "".join(["of", "the"])] == forms["NOUN", "abank"] == 1
    assert forms["DET", "the"] == 32
    tokens = workplace.rows("tokens", "out")
    of_tokens = {(row["line"], row["word_index"]): row["upos"] for row in tokens.to_pylist()}
    assert of_tokens[0, -1] is None
    assert of_tokens[0, 2] == "X"
    assert workplace.verify().out.endswith("\npass\n")


def test_formats_give_the_same(workplace):
    run(workplace, "a.conllu", conllu(SENTENCES), "out")
    lines = [{"tokens": words, "upos": tags} for words, tags in SENTENCES]
    run(workplace, "a.jsonl", "\n".join(map(json.dumps, lines)), "json_lines")
    pq.write_table(pa.Table.from_pylist(lines), workplace.folder / "a.parquet")
    run(workplace, "a.parquet", (workplace.folder / "a.parquet").read_bytes(), "parquet")
    expected = workplace.rows("words", "out").select(OF_WORDS[1:])
    for output in ("json_lines", "parquet"):
        rows = workplace.rows("words", output)
        assert rows.select(OF_WORDS[1:]).equals(expected)
        assert rows["line"].unique().to_pylist() == [0, 1, 2]
        of_both = (vectors(workplace.rows("words", name), "layer_3") for name in (output, "out"))
        np.testing.assert_array_equal(*of_both)


def test_chunks_windows_and_kept_words(workplace):
    words, tags = SENTENCES[0][0] * 12, SENTENCES[0][1] * 12
    data = json.dumps({"tokens": words, "upos": tags})
    views = {"words": VIEWS["words"], "kept": {"level": "word", "layers": [-1], "keep_words": ["of the", "river"]}}
    run(
        workplace,
        "a.jsonl",
        data,
        "windows",
        views=views,
        encoder={"max_seq_length": 24, "long_text": "window", "window_overlap": 8},
    )
    whole = workplace.rows("words", "windows").select(OF_WORDS)
    assert whole["word_index"].to_pylist() == [index for index, word in enumerate(words) if word != "\u200b"]
    assert whole["word"].to_pylist() == [word for word in words if word != "\u200b"]
    kept = workplace.rows("kept", "windows")
    assert list(zip(kept["word_index"].to_pylist(), kept["upos"].to_pylist(), strict=True)) == [
        (index, tags[index]) for index, word in enumerate(words) if word in ("of the", "river")
    ]
    chunk = {"unit": "chunk", "chunk": {"tokens": 12, "overlap": 0, "boundaries": "word"}}
    keep = {
        "files": ["corpus/a.jsonl"],
        "words": "given",
        "text_field": "tokens",
        "keep_fields": {"upos": "list<string>"},
    }
    of_whole = vectors(workplace.rows("words", "windows"), "layer_3")
    for context, output in (("text", "text"), ("record", "out")):
        encoder = {"max_seq_length": 24, "context": context, "window_overlap": 8}
        workplace.configure(input=keep | chunk, views={"words": VIEWS["words"]}, encoder=encoder)
        workplace.drive("--output", output)
        rows = workplace.rows("words", output)
        assert rows["sentence"].to_pylist()[-1] > 3
        assert rows.select(OF_WORDS).equals(whole)
    np.testing.assert_allclose(vectors(workplace.rows("words", "out"), "layer_3"), of_whole, atol=1e-5)
    assert workplace.verify().out.endswith("\npass\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep_fields": {"sentid": "string"}}, "input.keep_fields: no record has a field `sentid`"),
        ({"format": "tfrecord"}, "views.words.format: an example of tfrecord is a text, and upos of"),
    ],
)
def test_what_is_refused(workplace, change, message):
    workplace.write("corpus/a.conllu", conllu(SENTENCES))
    keep = change.get("keep_fields", {"upos": "string"})
    view = {"level": "word", "layers": [-1], "format": change.get("format", "parquet")}
    workplace.configure(input={"files": ["corpus/a.conllu"], "keep_fields": keep}, views={"words": view})
    assert message in workplace.drive(status=2).err


def test_lists_need_the_setting(workplace):
    workplace.write("corpus/a.jsonl", json.dumps({"text": ["a", "river"]}))
    workplace.configure(views={"words": VIEWS["words"]})
    assert "1 rejected record: set input.words: given" in workplace.drive(status=3).out
