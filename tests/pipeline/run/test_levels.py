"""Levels, poolings, keep_words and windows through the whole pipeline, checked by literal rows and by verify."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from architectures import write_encoder
from corpora import random_lines
from float_bounds import OF_TWO
from weights import vectors

TEXT = "The River's bank, near the bank; Banks\n\nbank\nno such word here\n"
ALL = ("--sample", "1000")


def verified(workplace) -> dict:
    return json.loads(workplace.verify("--json", *ALL).out)


def test_words(workplace):
    workplace.write("corpus/a.txt", "Héllo, wörld!  x\u200by \u200b\n")
    views = {
        "basic": {"level": "word", "layers": [-1], "include_text": True},
        "spaces": {"level": "word", "layers": [-1], "words": "whitespace", "pooling": "first"},
    }
    workplace.configure(views=views)
    workplace.drive()
    basic = workplace.rows("basic").drop(["layer_3"]).to_pylist()
    assert [(row["word"], row["start"], row["end"], row["word_index"]) for row in basic] == [
        ("Héllo", 0, 5, 0),
        (",", 5, 6, 1),
        ("wörld", 7, 12, 2),
        ("!", 12, 13, 3),
        ("x\u200by", 15, 18, 4),
    ]
    assert {row["text"] for row in basic} == {"Héllo, wörld!  x\u200by \u200b"}
    spaces = workplace.rows("spaces").drop(["layer_3"]).to_pylist()
    assert [(row["word"], row["start"], row["end"], row["word_index"]) for row in spaces] == [
        ("Héllo,", 0, 6, 0),
        ("wörld!", 7, 13, 1),
        ("x\u200by", 15, 18, 2),
    ]
    assert spaces[0]["num_tokens"] == basic[0]["num_tokens"] + basic[1]["num_tokens"]
    assert workplace.manifest()["counts"]["words_empty:spaces"] == 1
    assert "spaces: 1 word that normalizes to nothing" in workplace.show().out
    assert verified(workplace)["result"] == "pass"


def test_words_truncated_by_max_seq_length_are_counted(workplace):
    workplace.finished(
        "the river the river the unaffable river\nthe\n",
        encoder={"max_seq_length": 8},
        views={"w": {"level": "word", "layers": [1]}, "s": {"level": "word", "layers": [1], "words": "whitespace"}},
    )
    rows = workplace.rows("w")
    counts = workplace.manifest()["counts"]
    assert rows.num_rows + counts["words_lost:w"] == 8
    assert f"w: {counts['words_lost:w']} words lost to max_seq_length" in workplace.show().out
    assert counts["words_lost:s"] == counts["words_lost:w"] > 0
    # No word is partial: each row covers all its pieces.
    assert verified(workplace)["result"] == "pass"


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "mean_max", "mean_sqrt_len", "weighted_mean"])
def test_texts_without_tokens_are_counted(workplace, pooling):
    view = {"layers": [-1], "normalize": True}
    views = {
        "x": view | {"level": "text", "special_tokens": False, "pooling": pooling},
        "records": view | {"level": "record"},
        "whole": view | {"level": "text", "pooling": pooling},
        "lists": view | {"level": "text", "special_tokens": False, "pooling": "none"},
    }
    done = workplace.finished("\u200b\nbank\n\ufeff\u00ad\n", views=views)
    assert "x: 2 texts without tokens: zeros" in done.out
    assert not any(f"{name}: 2 texts" in done.out for name in ("whole", "lists", "records"))
    norms = np.linalg.norm(vectors(workplace.rows("x"), "layer_3"), axis=1)
    np.testing.assert_allclose(norms, [0, 1, 0], atol=1e-6)
    assert workplace.manifest()["counts"]["texts_empty:x"] == 2
    assert verified(workplace)["result"] == "pass"


def test_keep_words(workplace):
    workplace.write("corpus/a.txt", TEXT)
    keep = {"keep_words": ["bank", "BANKS", "money"]}
    workplace.configure(
        views={
            "words": {"level": "word", "layers": [-1], **keep},
            "tokens": {"level": "token", "layers": [-1], **keep},
            "exact": {"level": "word", "layers": [-1], "match_case": True, **keep},
        }
    )
    done = workplace.drive()
    assert "words: keep_words with no matches: money" in done.out
    assert "exact: keep_words with no matches: BANKS, money" in done.out
    assert workplace.rows("words")["word"].to_pylist() == ["bank", "bank", "Banks", "bank"]
    assert workplace.rows("exact")["word"].to_pylist() == ["bank", "bank", "bank"]
    counts = workplace.manifest()["counts"]
    assert (counts["records_read"], counts["embedded"], counts["blank_skipped"], counts["filtered"]) == (4, 2, 1, 1)
    assert counts["kept_word:words:bank"] == 3
    assert counts["kept_word:words:BANKS"] == 1
    assert "kept_word:words:money" not in counts
    starts = workplace.rows("words")["start"].to_pylist()
    assert [TEXT.split("\n")[line][start : start + 4] for line, start in zip([0, 0, 0, 2], starts, strict=True)] == [
        *("bank", "bank", "Bank", "bank")
    ]
    assert verified(workplace)["result"] == "pass"


def test_keep_words_does_not_change_vectors(workplace):
    workplace.write("corpus/a.txt", "\n".join(random_lines(80)))
    forms = ["the", "river", "of"]
    workplace.configure(views={"words": {"level": "word", "layers": "all", "keep_words": forms}})
    workplace.drive()
    workplace.configure(views={"words": {"level": "word", "layers": "all"}}, output={"path": "all"})
    workplace.drive()
    kept, everything = workplace.rows("words"), workplace.rows("words", "all")
    mask = np.isin([word.lower() for word in everything["word"].to_pylist()], forms)
    everything = everything.filter(mask)
    assert 0 < kept.num_rows == everything.num_rows < len(mask)
    for column in ("line", "start", "end", "word"):
        assert kept[column].equals(everything[column])
    for layer in range(4):
        column = f"layer_{layer}"
        np.testing.assert_allclose(vectors(kept, column), vectors(everything, column), rtol=0, atol=OF_TWO)


def test_words_of_pairs(workplace):
    line = "the river bank ||| a Bank, robber"
    workplace.write("corpus/a.txt", f"{line}\nonly one\n")
    shown = {"level": "word", "layers": [-1], "include_text": True}
    workplace.configure(
        input={"pair_separator": " ||| "},
        views={
            "basic": shown,
            "spaces": shown | {"words": "whitespace"},
            "kept": {"level": "token", "layers": [-1], "keep_words": ["bank"], "include_text": True},
        },
    )
    workplace.drive()
    rows = workplace.rows("spaces").to_pylist()
    assert [(row["word"], row["word_index"], row["text"]) for row in rows] == [
        *((word, index, "the river bank") for index, word in enumerate(["the", "river", "bank"])),
        *((word, index, "a Bank, robber") for index, word in enumerate(["a", "Bank,", "robber"], 3)),
        ("only", 0, "only one"),
        ("one", 1, "only one"),
    ]
    for row in workplace.rows("basic").to_pylist()[:7] + rows[:6]:
        assert line[row["start"] : row["end"]] == row["word"]
    texts = [(row["token"], row["segment_id"], row["text"]) for row in workplace.rows("kept").to_pylist()]
    assert texts == [("bank", 0, "the river bank"), ("bank", 1, "a Bank, robber")]
    assert verified(workplace)["result"] == "pass"


def test_keep_words_equal_after_normalization(workplace):
    workplace.write("corpus/a.txt", TEXT)
    forms = {"keep_words": ["Bank", "bánk", "bank"]}
    workplace.configure(
        views={
            "w": {"level": "word", "layers": [1], **forms},
            "exact": {"level": "word", "layers": [1], "match_case": True, **forms},
        }
    )
    done = workplace.drive()
    counts = workplace.manifest()["counts"]
    assert [counts[f"kept_word:w:{form}"] for form in forms["keep_words"]] == [3, 3, 3]
    assert "exact: keep_words with no matches: Bank, bánk" in done.out
    assert "w: 0 of" not in done.out


def test_keep_words_in_a_file(workplace):
    workplace.write("corpus/a.txt", TEXT)
    workplace.write("forms.txt", "\ufeffbank\n\nbank\n")
    workplace.configure(views={"w": {"level": "word", "layers": [1], "keep_words": "forms.txt"}})
    workplace.drive()
    assert workplace.rows("w").num_rows == 3
    workplace.configure(views={"w": {"level": "word", "layers": [1], "keep_words": "none.txt"}})
    assert "views.w.keep_words: none.txt: cannot be read" in workplace.drive(status=2).err


def test_keep_words_with_several_words(workplace):
    workplace.write("corpus/a.txt", TEXT)
    view = {"level": "word", "layers": [1]}
    workplace.configure(views={"w": view | {"keep_words": ["bank", "River's"]}})
    assert (
        "views.w.keep_words: \"River's\" is several words (river, ', s) and would never match; name one of them, "
        "or use level word and words: whitespace"
    ) in workplace.drive(status=2).err
    workplace.configure(views={"w": view | {"keep_words": ["River's"], "words": "whitespace"}})
    workplace.drive()
    assert workplace.rows("w")["word"].to_pylist() == ["River's"]


@pytest.mark.parametrize("overlap", [0, 4, 9])
def test_windows(workplace, overlap):
    workplace.finished(
        "\n".join(random_lines(15, longest=60)),
        encoder={"max_seq_length": 12, "long_text": "window", "window_overlap": overlap},
        views={
            "tokens": {"level": "token", "layers": [0, 3]},
            "words": {"level": "word", "layers": [2]},
            "means": {"level": "text", "layers": [-1], "special_tokens": False},
            "firsts": {"level": "text", "layers": [-1], "pooling": "cls"},
            "pooled": {"level": "text", "pooling": "pooler"},
        },
    )
    longest = max(workplace.rows("tokens")["token_index"].to_pylist())
    assert longest > 40
    assert workplace.manifest()["counts"]["dropped_tokens"] == 0
    assert verified(workplace)["result"] == "pass"


def test_long_texts_rejected(workplace):
    workplace.write("corpus/a.txt", "the\nthe river of the river of the river\nthe river of the river\n")
    workplace.configure(
        input={"max_reject_rate": 1.0},
        encoder={"max_seq_length": 5, "long_text": "reject"},
        views={"t": {"level": "text", "layers": [-1]}},
    )
    assert json.loads(workplace.plan("--json").out)["rejects_seen"] == {"over max_seq_length 5": 2}
    workplace.drive()
    assert [(reject["line"], reject["stage"], reject["reason"]) for reject in workplace.rejects()] == [
        (1, "tokenize", "over max_seq_length 5 (10 tokens with special ones)"),
        (2, "tokenize", "over max_seq_length 5 (7 tokens with special ones)"),
    ]
    counts = workplace.manifest()["counts"]
    assert (counts["embedded"], counts["rejected"]) == (1, 2)
    assert json.loads(workplace.show("--json").out)["rejects"] == {"over max_seq_length 5": 2}
    assert verified(workplace)["result"] == "pass"


LEVELS = {
    "token": [None],
    "word": ["first", "last", "mean", "sum", "max"],
    "text": ["cls", "last", "mean", "max", "mean_max", "mean_sqrt_len", "weighted_mean"],
    "record": [None],
}


FINISHES = [
    {},
    {"truncate_dim": 7},
    {"normalize": True},
    {"special_tokens": False, "truncate_dim": 70, "normalize": True},
]
# (file format, bits of a number, options)
FORMATS = [
    ("parquet", 16, FINISHES),
    ("tfrecord", 32, FINISHES[:1]),
    ("jsonl", 32, FINISHES[:1]),
    ("jsonl", 16, FINISHES[:1]),
]


@pytest.mark.parametrize(("level", "words"), [(level, None) for level in LEVELS] + [("word", "whitespace")])
def test_every_combination_equals_reference(workplace, level, words):
    """All poolings, combinations and options of a level in one run, and each with each number type and format.

    `verify` checks each row.
    """
    workplace.write("corpus/a.txt", "\n".join(random_lines(10, longest=9)))
    views = {}
    for pooling, combine in itertools.product(LEVELS[level], ("separate", "sum", "mean", "concat")):
        is_first = combine == "separate" or pooling == LEVELS[level][0]
        for format_, dtype, wanted in [("parquet", 32, FINISHES), *(FORMATS if is_first else [])]:
            for number, finish in enumerate(wanted if words is None else wanted[:1]):
                view = {"level": level, "layers": [-1, 0, 2], "combine": combine, "dtype": f"float{dtype}", **finish}
                view["format"] = format_
                if "special_tokens" in view and level not in ("token", "text"):
                    del view["special_tokens"]
                if view.get("truncate_dim", 0) > 64 and combine != "concat" and pooling != "mean_max":
                    view["truncate_dim"] = 64
                view |= {} if pooling is None else {"pooling": pooling}
                view |= {} if words is None else {"words": words}
                views[f"{pooling}-{combine}-{format_}-{dtype}-{number}"] = view
    workplace.configure(views=views)
    workplace.drive()
    verdict = verified(workplace)
    assert verdict["result"] == "pass"
    assert all(column["rows"] > 8 for column in verdict["columns"])
    assert len({column["view"] for column in verdict["columns"]}) == len(views)


def test_five_views_of_one_run_equal_five_runs(workplace):
    workplace.write("corpus/a.txt", "\n".join(random_lines(60)))
    views = {
        "tokens": {"level": "token", "layers": [-1]},
        "words": {"level": "word", "layers": [1, 2], "combine": "sum"},
        "texts": {"level": "text", "layers": [0], "pooling": "mean_max"},
        "pooled": {"level": "text", "pooling": "pooler"},
        "records": {"level": "record", "layers": [2], "normalize": True},
    }
    together = {"input": {"slice_bytes": 1500}, "output": {"path": "together"}}
    workplace.configure(views=views, **together)
    workplace.drive()
    for name, view in views.items():
        workplace.configure(views={name: view}, input={"slice_bytes": 1500}, output={"path": name})
        workplace.drive()
        one, all_of_them = (sorted((workplace.folder / run / name).iterdir()) for run in (name, "together"))
        assert [path.name for path in one] == [path.name for path in all_of_them]
        assert len(one) > 2
        assert [data_bytes(path) for path in one] == [data_bytes(path) for path in all_of_them]


def data_bytes(path: Path) -> bytes:
    """A Parquet file without its footer, which contains the run's fingerprint."""
    content = path.read_bytes()
    return content[: -8 - int.from_bytes(content[-8:-4], "little")]


def tokens_of_lines(workplace) -> list[list[str]]:
    rows = workplace.rows("t").to_pylist()
    return [[row["token"] for row in rows if row["line"] == line] for line in sorted({row["line"] for row in rows})]


@pytest.mark.parametrize("setting", [None, "text", "token"])
def test_special_tokens_in_texts_of_wordpiece(workplace, setting):
    corpus = "the river [SEP] bank\nThe[MASK][UNK]. [sep]\n[CLS]\u0301 a\ufdd0[PAD\n" + "[SEP]" * 3 + "\n"
    views = {"t": {"level": "token", "layers": [-1]}, "w": {"level": "word", "layers": [-1]}}
    workplace.finished(corpus, views=views, encoder={"special_in_text": setting} if setting else {})
    first, second, third, last = tokens_of_lines(workplace)
    if setting == "token":
        assert first == ["[CLS]", "the", "river", "[SEP]", "bank", "[SEP]"]
        assert second[:5] == ["[CLS]", "the", "[MASK]", "[UNK]", "."]
        assert second.count("[SEP]") == 1
        assert third[:2] == ["[CLS]", "[CLS]"]
        assert third.count("[PAD]") == 0
        assert last == ["[CLS]", "[SEP]", "[SEP]", "[SEP]", "[SEP]"]
        rows = workplace.rows("w").to_pylist()
        assert [(row["word"], row["start"], row["end"]) for row in rows if row["line"] == 0] == [
            ("the", 0, 3),
            ("river", 4, 9),
            ("[SEP]", 10, 15),
            ("bank", 16, 20),
        ]
    else:
        assert first.count("[SEP]") == last.count("[SEP]") == 1
        assert "[MASK]" not in second
    assert verified(workplace)["result"] == "pass"
    recorded = workplace.manifest()["identity"]["encoder"]
    assert recorded.get("special_in_text", "not set") == (setting or "not set")


@pytest.mark.parametrize("setting", [None, "text", "token"])
@pytest.mark.parametrize(("name", "special"), [("roberta", "</s>"), ("albert", "[SEP]"), ("deberta", "[SEP]")])
def test_special_tokens_in_texts_of_the_library(workplace, name, special, setting):
    write_encoder(workplace.folder / "m", name)
    encoder = {"handle": "m"} | ({"special_in_text": setting} if setting else {})
    workplace.prepare(f"a {special} b\n", encoder=encoder, views={"t": {"level": "token", "layers": [-1]}})
    workplace.drive()
    (tokens,) = tokens_of_lines(workplace)
    assert tokens[1:-1].count(special) == (0 if setting == "text" else 1)
    assert verified(workplace)["result"] == "pass"
