"""transforms/wordpiece.py against Google's ids, against a plain reference, and on literal cases."""

from __future__ import annotations

import collections
import itertools
import json
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import DATA

from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.tokenize.wordpiece import WordPiece

CASES = {"uncased": True, "cased": False}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]

Token = tuple[str, int, int, int]
Pair = tuple[WordPiece, ReferenceWordPiece]


def pairs_of(vocab: list[str]) -> dict[str, Pair]:
    return {name: (WordPiece(vocab, lower), ReferenceWordPiece(vocab, lower)) for name, lower in CASES.items()}


@pytest.fixture(scope="module")
def pairs(vocab: list[str]) -> dict[str, Pair]:
    return pairs_of(vocab)


@pytest.fixture(scope="module")
def wordpieces(pairs: dict[str, Pair]) -> dict[str, WordPiece]:
    return {name: wordpiece for name, (wordpiece, _) in pairs.items()}


def reference_rows(name: str) -> list[tuple[str, list[int]]]:
    with open(DATA / f"wordpiece_{name}.jsonl", encoding="utf-8") as lines:
        rows = [(row["text"], row["ids"]) for row in map(json.loads, lines)]
    assert len(rows) == 3044
    return rows


def tokens_of(wordpiece: WordPiece, texts: list[str]) -> list[list[Token]]:
    """(token, start, end, word_index) of each piece of each text."""
    pieces = wordpiece.tokenize(pa.array(texts, pa.string()))
    tokens = [wordpiece.vocab[index] for index in pieces.ids.tolist()]
    rows = list(zip(tokens, pieces.start.tolist(), pieces.end.tolist(), pieces.word_index.tolist(), strict=True))
    splits = pieces.row_splits.tolist()
    return [rows[begin:end] for begin, end in itertools.pairwise(splits)]


def ids_of(wordpiece: WordPiece, texts: list[str]) -> list[list[int]]:
    pieces = wordpiece.tokenize(pa.array(texts, pa.string()))
    return [ids.tolist() for ids in np.split(pieces.ids, pieces.row_splits[1:-1])] if texts else []


def classify(text: str, do_lower_case: bool, row: list[Token]) -> collections.Counter[str]:
    """Each token of one text in the class that its span belongs to; asserts that it keeps that class's promise."""
    reference = ReferenceWordPiece([], do_lower_case)
    words = reference.words(text)
    classes: collections.Counter[str] = collections.Counter()
    for token, start, end, word_index in row:
        assert 0 <= start < end <= len(text)
        normalized = "".join(reference.words(text[start:end]))
        shares = [other for other in row if other[1:3] == (start, end)]
        if token == "[UNK]":
            kind = "[UNK]"
            assert as_sigma(normalized) == as_sigma(words[word_index])
        elif normalized == token.removeprefix("##"):
            kind = "equal"
        elif len(shares) > 1:
            kind = "one character, several tokens"
            assert normalized == "".join(other[0].removeprefix("##") for other in shares)
            assert all(unicodedata.category(character) == "Mn" for character in text[start + 1 : end])
        else:
            kind = "final sigma"
            assert "\u03a3" in text[start:end]
            assert as_sigma(normalized) == as_sigma(token.removeprefix("##"))
        classes[kind] += 1
    for word_index, word in enumerate(words):
        spans = [(start, end) for _, start, end, index in row if index == word_index]
        whole = "".join(reference.words(text[min(spans)[0] : max(end for _, end in spans)]))
        assert as_sigma(whole) == as_sigma(word)
    assert [index for *_, index in row] == sorted(index for *_, index in row)
    return classes


def as_sigma(word: str) -> str:
    return word.replace("\u03c2", "\u03c3")


@pytest.mark.parametrize("name", CASES)
def test_ids_are_the_reference_s(wordpieces: dict[str, WordPiece], name: str) -> None:
    texts, ids = zip(*reference_rows(name), strict=True)
    different = [text for text, a, b in zip(texts, ids_of(wordpieces[name], list(texts)), ids, strict=True) if a != b]
    assert different == []


@pytest.mark.parametrize("name", CASES)
def test_spans_give_the_tokens_back(wordpieces: dict[str, WordPiece], name: str) -> None:
    texts = [text for text, _ in reference_rows(name)]
    classes: collections.Counter[str] = collections.Counter()
    for text, row in zip(texts, tokens_of(wordpieces[name], texts), strict=True):
        classes += classify(text, CASES[name], row)
    expected = {
        "uncased": {"equal": 17979, "[UNK]": 21047, "one character, several tokens": 208, "final sigma": 1},
        "cased": {"equal": 11310, "[UNK]": 25376},
    }
    assert classes == expected[name]


def parsed(tokens: str) -> list[Token]:
    """`the:0:3:0 end:4:7:1` as tokens."""
    found = (token.rsplit(":", 3) for token in tokens.split())
    return [(text, int(start), int(end), int(word)) for text, start, end, word in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\r\n\u3000\u2028", []),
        ("unaffable", [("una", 0, 3, 0), ("##ffa", 3, 6, 0), ("##ble", 6, 9, 0)]),
        ("Caf\u00e9 Cafe\u0301s", [("cafe", 0, 4, 0), ("cafes", 5, 11, 1)]),
        ("nai\u0308ve", [("naive", 0, 6, 0)]),
        ("\u4e2d\u6587 x", [("\u4e2d", 0, 1, 0), ("\u6587", 1, 2, 1), ("x", 3, 4, 2)]),
        ("a\u6f22\u0301b", [("a", 0, 1, 0), ("\u6f22", 1, 3, 1), ("b", 3, 4, 2)]),
        ("I \u2764\ufe0f \U0001f600!", [("i", 0, 1, 0), ("[UNK]", 2, 4, 1), ("[UNK]", 5, 6, 2), ("!", 6, 7, 3)]),
        ("\U0001f468\u200d\U0001f469", [("[UNK]", 0, 3, 0)]),
        ("zero\u200bwidth", [("zero", 0, 4, 0), ("##wi", 5, 7, 0), ("##dt", 7, 9, 0), ("##h", 9, 10, 0)]),
        ("\ufeffthe end", [("the", 1, 4, 0), ("end", 5, 8, 1)]),
        ("one\ttwo\r\nthree", [("one", 0, 3, 0), ("two", 4, 7, 1), ("three", 9, 14, 2)]),
        ("a\u2028b\u00a0c\u3000d", [("a", 0, 1, 0), ("b", 2, 3, 1), ("c", 4, 5, 2), ("d", 6, 7, 3)]),
        ("a\0b\ufffdc", [("abc", 0, 5, 0)]),
        ("[CLS] is not special", parsed("[:0:1:0 cl:1:3:1 ##s:3:4:1 ]:4:5:2 is:6:8:3 not:9:12:4 special:13:20:5")),
        ("$9.99", [("$", 0, 1, 0), ("9", 1, 2, 1), (".", 2, 3, 2), ("99", 3, 5, 3)]),
        ("\u0301 a \u0301", [("a", 2, 3, 0)]),
        ("a\u0301\u0327 b", [("a", 0, 3, 0), ("b", 4, 5, 1)]),
        ("a\u200b\u0301", [("a", 0, 1, 0)]),
        ("\u0130STANBUL", [("istanbul", 0, 8, 0)]),
        # Alpha with three marks, in one character.
        ("\u1f82x", [("\u03b1", 0, 1, 0), ("##x", 1, 2, 0)]),
        # What TF Text's own lower casing folds: a ligature, sharp s, an ellipsis.
        ("\ufb01 \u00df \u2026", [("\ufb01", 0, 1, 0), ("\u00df", 2, 3, 1), ("\u2026", 4, 5, 2)]),
        # Final sigma in a word, before a soft hyphen, and alone.
        (
            "\u0391\u03a3 \u03a3\u0391\u03a3\u00ad \u03a3",
            parsed("\u03b1:0:1:0 ##\u03c2:1:2:0 \u03c3:3:4:1 ##\u03b1:4:5:1 ##\u03c2:5:6:1 \u03c3:8:9:2"),
        ),
        ("\u0130\u03a3", [("i", 0, 1, 0), ("##\u03c2", 1, 2, 0)]),
        (
            "\ud55c\uad6d",
            parsed("\u1112:0:1:0 ##\u1161:0:1:0 ##\u11ab:0:1:0 ##\u1100:1:2:0 ##\u116e:1:2:0 ##\u11a8:1:2:0"),
        ),
        ("x " + "a" * 201 + " y", [("x", 0, 1, 0), ("[UNK]", 2, 203, 1), ("y", 204, 205, 2)]),
    ],
)
def test_uncased(wordpieces: dict[str, WordPiece], text: str, expected: list[Token]) -> None:
    assert tokens_of(wordpieces["uncased"], [text]) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("caf\u00e9 cafe", [("[UNK]", 0, 4, 0), ("cafe", 5, 9, 1)]),
        ("The the", [("[UNK]", 0, 3, 0), ("the", 4, 7, 1)]),
        ("the\u200bend", [("thee", 0, 5, 0), ("##nd", 5, 7, 0)]),
        ("\u4e2d\u6587", [("\u4e2d", 0, 1, 0), ("\u6587", 1, 2, 1)]),
    ],
)
def test_cased(wordpieces: dict[str, WordPiece], text: str, expected: list[Token]) -> None:
    assert tokens_of(wordpieces["cased"], [text]) == [expected]


def test_a_word_has_at_most_200_characters_whatever_their_bytes() -> None:
    wordpiece = WordPiece([*SPECIAL, "\U0001f600", "##\U0001f600"], True)
    fits, too_long = ids_of(wordpiece, ["\U0001f600" * 200, "\U0001f600" * 201])
    assert fits == [4] + [5] * 199
    assert too_long == [1]


def test_combining_characters_that_nfd_swaps_keep_their_places() -> None:
    wordpiece = WordPiece([*SPECIAL, "\U0001d165", "##\U0001d16d", "a"], True)
    assert tokens_of(wordpiece, ["a \U0001d16d\U0001d165"]) == [
        [("a", 0, 1, 0), ("\U0001d165", 3, 4, 1), ("##\U0001d16d", 2, 3, 1)]
    ]


def test_texts_do_not_touch(wordpieces: dict[str, WordPiece]) -> None:
    expected = [[("\u03b1", 0, 1, 0), ("##\u03c2", 1, 2, 0)], [], [("a", 0, 1, 0)], [], [("a", 1, 2, 0)]]
    assert tokens_of(wordpieces["uncased"], ["\u0391\u03a3", "", "a", "\u0301", "\u0301a"]) == expected


def test_a_slice_of_an_array(wordpieces: dict[str, WordPiece]) -> None:
    texts = pa.array(["no", "the \u00e9", "end", "no"])[1:3]
    pieces = wordpieces["uncased"].tokenize(texts)
    assert [wordpieces["uncased"].vocab[index] for index in pieces.ids] == ["the", "e", "end"]
    assert pieces.row_splits.tolist() == [0, 2, 3]


NASTY = (
    "aZ9 .,#[]\t\r\n\0\ufffd\u00ad\u200b\u200d\ufeff\u2028\u0085\u00a0\u3000\u0301\u0327\u0345\ufe0f\u0130\u0131\u00df"
    "\u03a3\u03c2\u03c3\u0391\u1f82\u1fed\u037e\u212a\u4e2d\uf900\U0002f800\uac01\u1112\u09cb\ufb01\u2026"
    "\U0001f600'\u00b7\ue000\uffff"
)
# Combining, yet no Mn: they stay, and NFD swaps them. The span of a piece may then hold a neighbour's character.
SWAPPED = "\u302e\u1baa\U0001d163\U0001d165\U0001d16d"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from(NASTY + SWAPPED))


@settings(max_examples=100)
@given(texts=st.lists(ANY_TEXT, max_size=6))
def test_any_text(pairs: dict[str, Pair], texts: list[str]) -> None:
    for wordpiece, reference in pairs.values():
        assert ids_of(wordpiece, texts) == [reference.tokenize(text) for text in texts]


@settings(max_examples=66)
@given(texts=st.lists(st.text(st.sampled_from(NASTY)), max_size=6))
def test_any_span(wordpieces: dict[str, WordPiece], texts: list[str]) -> None:
    for name, wordpiece in wordpieces.items():
        for text, row in zip(texts, tokens_of(wordpiece, texts), strict=True):
            classify(text, CASES[name], row)


@settings(max_examples=66)
@given(
    entries=st.lists(st.text("ab\u00e9#", max_size=3) | st.text("ab\u00e9", max_size=3).map("##".__add__), max_size=12),
    text=st.text("abABeE\u00e9# "),
    do_lower_case=st.booleans(),
)
def test_any_vocabulary(entries: list[str], text: str, do_lower_case: bool) -> None:
    vocab = [*SPECIAL, *entries]
    assert ids_of(WordPiece(vocab, do_lower_case), [text]) == [ReferenceWordPiece(vocab, do_lower_case).tokenize(text)]


def test_a_line_of_a_megabyte(wordpieces: dict[str, WordPiece]) -> None:
    pieces = wordpieces["uncased"].tokenize(pa.array(["the cat " * 125_000]))
    assert pieces.row_splits.tolist() == [0, 250_000]
    assert (pieces.start[-1], pieces.end[-1], pieces.word_index[-1]) == (999_996, 999_999, 249_999)
    assert np.array_equal(pieces.start[::2], np.arange(0, 1_000_000, 8))


@pytest.mark.parametrize("texts", [[], [""], ["a b"]])
def test_array_types(wordpieces: dict[str, WordPiece], texts: list[str]) -> None:
    pieces = wordpieces["uncased"].tokenize(pa.array(texts, pa.string()))
    assert (pieces.row_splits.dtype, pieces.row_splits.tolist()) == (np.int64, [0, *[len(pieces.ids)] * len(texts)])
    columns = (pieces.ids, pieces.start, pieces.end, pieces.word_index)
    assert {(column.dtype, len(column)) for column in columns} == {(np.dtype(np.int32), 2 * (texts == ["a b"]))}


@pytest.mark.parametrize("entry", SPECIAL)
def test_a_missing_special_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=rf"no entry \[{entry[1:-1]}\] among 4; use the vocab.txt"):
        WordPiece([other for other in [*SPECIAL, "a"] if other != entry], True)


def test_ids_of_special_entries_are_their_places() -> None:
    wordpiece = WordPiece(["a", "[SEP]", "[UNK]", "[CLS]", "[PAD]"], True)
    assert wordpiece.special == SpecialTokens((3,), (1,), (1,), pad=4, has_second_segment=True)


def test_empty_and_repeated_entries_keep_their_places() -> None:
    wordpiece = WordPiece([*SPECIAL, "", "a", "", "b", "##a", "a"], True)
    assert ids_of(wordpiece, ["aab a"]) == [[1, 9]]
    assert ids_of(wordpiece, ["aa b"]) == [[9, 8, 7]]


def test_a_vocabulary_that_tf_text_refuses() -> None:
    with pytest.raises(ValueError, match=r"vocab: TF Text refuses it: .* exceeds the max supported"):
        WordPiece([*SPECIAL, "x" * 1000], True)
