"""Tokenizers of the library `tokenizers`: its ids and places, our words, prompts, special tokens of pairs."""

from __future__ import annotations

import json
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from architectures import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from library_tokenizers import ROBERTA, TOKENIZERS, unigram
from test_sequences import block_of
from test_wordpiece_property import random_text
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from layerbeam.transforms.encoders import load_library_tokenizer
from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.formats.tokenizer_json import read_tokenizer_json
from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.reference import ReferenceLibraryTokenizer
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.pieces import Pieces
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.views.view import ViewSpec

# Letters with and without marks, Hangul and Thai in parts, ligatures, emoji and their joiners, punctuation.
HARD = "ab \u4f60\u0e09\u0e31\u1112\u1161\u11ab\u00e9e\u0301\u0323\u0130\ufb01\uff42\U0001f602\ufe0f\u200d\u20ac.,'"


def cut(tokenizer: Tokenizer, *texts: str) -> Pieces:
    return LibraryTokenizer(tokenizer, ROBERTA).tokenize(pa.array(texts, pa.string()))


def words_of(pieces: Pieces) -> list[tuple[int, str | None]]:
    """(index, form) of each piece's word."""
    forms = [None if form < 0 else pieces.forms[form].as_py() for form in pieces.form.tolist()]
    return list(zip(pieces.word_index.tolist(), forms, strict=True))


def test_places_are_code_points():
    text = "a bank \U0001f600\u4f60 b"
    pieces = cut(byte_level(), text)
    spans = [text[a:b] for a, b in zip(pieces.start, pieces.end, strict=True)]
    assert spans == ["a", "", "bank", "", *["\U0001f600"] * 4, *["\u4f60"] * 3, "", "b"]
    words = ["a", *["bank"] * 2, *["\U0001f600"] * 5, *["\u4f60"] * 3, *["b"] * 2]
    assert [form for _, form in words_of(pieces)] == words


def test_places_have_the_marks_of_their_letters():
    text = "\u1100\u1161\u11a8 \u110b\u1173\u11ab\u1112\u1162\u11bc"  # two words of Hangul, in parts
    pieces = cut(unigram(), text)
    assert [pieces.start.tolist(), pieces.end.tolist()] == [[0, 0, 3, 4], [3, 3, 4, 10]]
    assert words_of(pieces) == [(0, "\uac01"), (0, "\uac01"), (1, "\uc740\ud589"), (1, "\uc740\ud589")]


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from(HARD), max_size=30))
def test_words_partition_a_text(name, text):
    pieces = cut(TOKENIZERS[name](), text)
    words: dict[int, list[int]] = {}
    for index, start, end in zip(pieces.word_index, pieces.word_char, pieces.end, strict=True):
        if index >= 0:
            first, last = words.get(index, (start, end))
            words[index] = [min(first, start), max(last, end)]
    assert "".join(text[start:end] for start, end in words.values()) == "".join(text.split())


def test_punctuation_is_a_word_unless_a_piece_covers_more():
    assert words_of(cut(byte_level(), "b's (b)...")) == [
        (0, "b"),
        (1, "'s"),
        (2, "("),
        (2, "("),
        (3, "b"),
        (4, ")"),
        (5, "..."),
    ]


@pytest.mark.parametrize("name", ["trimmed", "whole"])
def test_white_space_belongs_to_no_word(name):
    pieces = cut(TOKENIZERS[name](), "  b\n\nb ", " ", "")
    assert [index for index, _ in words_of(pieces)] == [-1, 0, 0, -1, -1, 1, -1, -1]
    assert pieces.row_splits.tolist() == [0, 7, 8, 8]
    assert pieces.word_char.tolist() == [-1, 2, 2, -1, -1, 5, -1, -1]


def test_the_mark_before_a_word_belongs_to_it():
    pieces = cut(unigram(), "River \u4f60 Banks")
    assert pieces.start.tolist() == [0, 5, 6, 7, 12]
    assert words_of(pieces) == [(0, "river"), (1, "\u4f60"), (1, "\u4f60"), (2, "banks"), (2, "banks")]


def test_words_are_normalized_as_the_tokenizer_does():
    assert words_of(cut(unigram(), "\ufb01NE river")) == [(0, "fine")] * 3 + [(1, "river")]


def test_special_tokens_in_a_text_are_what_they_say():
    pieces = cut(byte_level(), "b</s> b")
    assert pieces.ids.tolist()[1] == 2
    assert (pieces.start.tolist()[1], pieces.end.tolist()[1]) == (1, 5)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_hostile_texts_are_cut_as_the_library_does_one_at_a_time(name):
    tokenizer = TOKENIZERS[name]()
    reference = ReferenceLibraryTokenizer(tokenizer)
    rng = random.Random(3)
    texts = [random_text(rng, ["river", "bank", "##s"]) for _ in range(1500)]
    pieces = cut(tokenizer, *texts)
    for number, text in enumerate(texts):
        own = slice(*pieces.row_splits[number : number + 2])
        assert [0, *pieces.ids[own], 2] == reference.sequence(text, "", 1 << 40)[0]
        start, end, word_char, word = (
            getattr(pieces, column)[own] for column in ("start", "end", "word_char", "word_index")
        )
        assert ((start >= 0) & (start <= end) & (end <= len(text))).all()
        placed = word_char[word >= 0]
        assert (np.diff(word[word >= 0]) >= 0).all()
        assert sorted(set(word.tolist()) - {-1}) == list(range(word.max(initial=-1) + 1))
        assert not any(text[place].isspace() for place in placed.tolist())


def test_unigram_scores_are_read_to_the_last_bit(tmp_path):
    # In exact sums a + ... + . is larger than a + . + ... by the last bit; the library alone reads the score of "a"
    # wrong by as much.
    scores = [("<unk>", 0.0), ("a", -3.8586625884490253), (".", -3.5091048877018007), ("...", -5.8507410740536345)]
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.Unigram(scores, unk_id=0)).save(str(path))
    assert load_library_tokenizer("xlm-r", path).encode("a....").tokens == ["a", "...", "."]


def test_texts_at_which_an_expression_backtracks_are_rejected():
    tokenizer = byte_level()
    slow = pre_tokenizers.Split(Regex("x(a*)*y"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([slow, tokenizer.pre_tokenizer])
    block = block_of(["river", "x" + "a" * 40, "bank", "pair"])
    block.counts = {metrics.RECORDS: 4, metrics.EMBEDDED: 4}
    block.pairs = pa.array(["", "", "", "x" + "a" * 50])
    block.pair_offset = np.zeros(4, np.int32)
    tokens = tokenize_block(block, LibraryTokenizer(tokenizer, ROBERTA), SequenceSettings(100))
    assert tokens.text.texts.to_pylist() == ["river", "bank"]
    assert len(tokens.row_splits) == 3
    assert [(reject.line, reject.stage, len(reject.raw)) for reject in tokens.text.rejected] == [
        (1, "tokenize", 42),
        (3, "tokenize", 56),
    ]
    assert all(reject.reason.startswith("the tokenizer cannot cut the text: Onig") for reject in tokens.text.rejected)
    assert metrics.unbalanced(tokens.text.counts) is None


def test_large_id_is_refused_before_it_takes_memory(tmp_path):
    path = tmp_path / "tokenizer.json"
    content = json.loads(byte_level().to_str())
    content["model"]["vocab"]["bank"] = 100_000_000
    path.write_text(json.dumps(content))
    tracemalloc.start()
    with pytest.raises(EncoderError, match="has ids up to 100,000,000"):
        read_tokenizer_json("roberta", path, 300)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


def test_backtracking_expression_is_an_encoder_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(Regex("(?:A||)" * 30 + "(?!)"), "")
    tokenizer.save(str(path))
    with pytest.raises(PanicError, match="Onig"):
        read_tokenizer_json("roberta", path, 300)


@pytest.mark.parametrize("max_seq_length", [4, 5, 9, 10, 11, 100])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pairs_are_put_together_as_the_library_does(name, max_seq_length):
    tokenizer = TOKENIZERS[name]()
    reference = ReferenceLibraryTokenizer(tokenizer)
    special = ROBERTA if name != "whole" else SpecialTokens((0,), (2,), (2,), 1, has_second_segment=True)
    firsts, seconds = ["a river bank", "b", "", "river " * 9], ["river banks.", "", "b", "bank " * 8]
    block = block_of(firsts)
    block.pairs, block.pair_offset = pa.array(seconds), np.full(4, 1000, np.int32)
    tokens = tokenize_block(block, LibraryTokenizer(tokenizer, special), SequenceSettings(max_seq_length))
    for text, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        own = slice(*tokens.row_splits[text : text + 2])
        expected = reference.sequence(first, second, max_seq_length)
        assert (tokens.token_ids[own].tolist(), tokens.segment_ids[own].tolist()) == expected


@pytest.mark.parametrize("tokenizer", [byte_level(), unigram()], ids=["byte level", "unigram"])
def test_a_prompt_is_read_and_has_no_place(tokenizer):
    text_tokenizer = LibraryTokenizer(tokenizer, ROBERTA)
    plain = tokenize_block(block_of(["river bank", ""], [0, 20]), text_tokenizer, SequenceSettings(100))
    settings = SequenceSettings(100, prompt="a bank: ")
    tokens = tokenize_block(block_of(["river bank", ""], [0, 20]), text_tokenizer, settings)
    first = tokens.row_splits[1]
    whole = tokenizer.encode("a bank: river bank").ids
    assert tokens.token_ids[:first].tolist() == whole
    assert set(tokens.word_index[:first].tolist()) == {-1, 0, 1}
    assert tokens.end[:first].max() == 10
    view = ViewSpec(name="w", level="word", layers=(1,), hidden_size=2)
    words = rows_of(view, tokens).words
    assert (words.start.tolist(), words.end.tolist()) == ([0, 6], [5, 10])
    assert (rows_of(view, plain).words.start.tolist()) == [0, 6]
