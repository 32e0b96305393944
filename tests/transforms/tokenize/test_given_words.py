"""Given words: ids and words against judges that cut each word alone, places, chunks, contexts, what is cut off."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from architectures import byte_level
from library_tokenizers import ROBERTA, TOKENIZERS
from test_sequences import block_of
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from layerbeam.transforms.encoders import load_library_tokenizer
from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.flow.blocks import GivenWords, TextBlock, take_texts
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.settings import ChunkSettings, RecordFormat, SequenceSettings
from layerbeam.transforms.tokenize.chunks import cut_chunks
from layerbeam.transforms.tokenize.contexts import tokenize_in_context
from layerbeam.transforms.tokenize.given_words import tokenize_words
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views.columns import row_columns
from layerbeam.transforms.views.view import ViewSpec

HOSTILE = [
    "", " ", "\u00a0", "\u200b", "\u00ad", "\u0301", "1\u00a0000", "New York", " river", "bank ", "[SEP]", "[MASK]s",
    "<s>", "a</s>b", "\u4f60\u597d", "\U0001f468\u200d\U0001f469", "\u0391\u03a3", "caf\u00e9", "cafe\u0301", "don't",
    "...", "\ufb01ne", "\u2581bank", "\u0120bank", "\x00", "\n", "a\tb", "river" * 50, "The", "banks", "is",
    "\u0e01\u0e33", "\ufeff",
]  # fmt: skip


def given_block(sentences: list[list[str]], **fields: pa.Array) -> TextBlock:
    block = block_of([" ".join(words) for words in sentences])
    return dataclasses.replace(block, words=GivenWords.of(pa.array(sentences, pa.list_(pa.string()))), fields=fields)


def sentences_of(seed: int, count: int, most: int = 12) -> list[list[str]]:
    pick = random.Random(seed)
    letters = "".join(HOSTILE)
    made = ["".join(pick.choices(letters, k=pick.randint(1, 5))) for _ in range(40)]
    return [pick.choices(HOSTILE + made, k=pick.randint(0, most)) for _ in range(count)]


def cut(sentences, tokenizer):
    """(ids, word of each piece) of each sentence."""
    pieces = tokenize_words(given_block(sentences).words, tokenizer)
    ids, words = (np.split(values, pieces.row_splits[1:-1]) for values in (pieces.ids, pieces.word_index))
    return [(a.tolist(), b.tolist()) for a, b in zip(ids, words, strict=True)]


def of_library(name: str) -> tuple[LibraryTokenizer, Tokenizer]:
    """With a blank before each word, as a user of the library sets it."""
    made = TOKENIZERS[name]()
    if name != "unigram":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return LibraryTokenizer(made, ROBERTA), made


def test_words_by_the_reference(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
    sentences = sentences_of(0, 300)
    for in_text in ((), ("[SEP]", "[MASK]")):
        reference = ReferenceWordPiece(vocab, True, 200, in_text=in_text)
        expected = [
            [(piece, index) for index, word in enumerate(words) for piece in reference.tokenize(word)]
            for words in sentences
        ]
        found = cut(sentences, WordPiece(vocab, True, 200, special, finds_special=bool(in_text)))
        assert [list(zip(*pieces, strict=True)) for pieces in found] == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("as_text", [False, True])
def test_words_by_the_library(name, as_text):
    tokenizer, made = of_library(name)
    made.encode_special_tokens = as_text
    sentences = sentences_of(1, 300)
    encodings = made.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False)
    assert cut(sentences, tokenizer) == [(encoding.ids, encoding.word_ids) for encoding in encodings]


def test_literal_words(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
    sentence = ["1\u00a0000", "", "\u200b", "[SEP]", "Banks"]
    tokens = tokenize_block(given_block([sentence]), WordPiece(vocab, True, 200, special), SequenceSettings())
    assert [vocab[token] for token in tokens.token_ids] == ["[CLS]", "1", "000", "[", "sep", "]", "banks", "[SEP]"]
    assert tokens.word_index.tolist() == [-1, 0, 0, 3, 3, 3, 4, -1]
    assert list(zip(tokens.start.tolist(), tokens.end.tolist(), strict=True)) == [
        (-1, -1), (0, 1), (2, 5), (9, 10), (10, 13), (13, 14), (15, 20), (-1, -1),
    ]  # fmt: skip
    view = ViewSpec(name="v", level="word", layers=(0,), hidden_size=1)
    rows = rows_of(view, tokens)
    assert {name: values.tolist() for name, values in rows.counts.items()} == {"words_empty:v": [2]}
    tokens.rows = {"v": rows}
    table = row_columns(view, tokens, pa.array(vocab))
    assert [table[name].to_pylist() for name in ("word_index", "start", "end", "word", "num_tokens")] == [
        [0, 3, 4], [0, 9, 15], [5, 14, 20], ["1\u00a0000", "[SEP]", "Banks"], [2, 3, 1],
    ]  # fmt: skip
    taken = tokenize_block(
        given_block([sentence]), WordPiece(vocab, True, 200, special, finds_special=True), SequenceSettings()
    )
    assert [vocab[token] for token in taken.token_ids] == ["[CLS]", "1", "000", "[SEP]", "banks", "[SEP]"]


def test_what_is_cut_off_is_counted_in_words(tokenizer):
    sentences = [["river"] * 9, ["\u200b", "bank"], ["the", "bank", "the bank the bank the bank"], []]
    tokens = tokenize_block(given_block(sentences), tokenizer, SequenceSettings(max_seq_length=6))
    view = ViewSpec(name="v", level="word", layers=(0,), hidden_size=1)
    rows = rows_of(view, tokens)
    whole = tokenize_words(given_block(sentences).words, tokenizer)
    lost = empty = 0
    for text in range(len(sentences)):
        pieces = whole.word_index[whole.row_splits[text] : whole.row_splits[text + 1]].tolist()
        lost += len(set(pieces[4:]))
        empty += len(set(range(len(sentences[text]))) - set(pieces))
        assert tokens.num_dropped[text] == max(len(pieces) - 4, 0)
        kept = rows.words.word_index[rows.text == text].tolist()
        assert kept == sorted(set(pieces[:4]) - set(pieces[4:]))
    assert rows.counts["words_lost:v"].tolist() == [lost]
    assert rows.counts.get("words_empty:v", np.zeros(1)).tolist() == [empty]
    assert lost


def test_fields_follow_their_words(tokenizer):
    sentences = [["the", "\u200b", "river bank"], ["bank"]]
    tags = pa.array([["DET", "X", None], ["NOUN"]], pa.list_(pa.string()))
    block = given_block(sentences, tag=tags, id=pa.array(["s1", None]))
    tokens = tokenize_block(block, tokenizer, SequenceSettings())
    for level in ("word", "token"):
        fields = (("tag", "string"), ("id", "string"))
        view = ViewSpec(name="v", level=level, layers=(0,), hidden_size=1, fields=fields)
        tokens.rows = {"v": rows_of(view, tokens)}
        vocabulary = pa.array(map(str, range(1 << 16)))
        rows = pa.table(row_columns(view, tokens, vocabulary)).to_pylist()
        tag_of = [["DET", "X", None], ["NOUN"]]
        for row in rows:
            of_word = tag_of[row["line"]][row["word_index"]] if row["word_index"] >= 0 else None
            assert (row["tag"], row["id"]) == (of_word, ["s1", None][row["line"]])
        assert {(row["line"], row["word_index"]) for row in rows} >= {(0, 0), (0, 2), (1, 0)}


def test_a_prompt_is_before_the_first_word(tokenizer):
    sentences = [["\u200b", "river"], [], ["bank"]]
    block = given_block(sentences)
    tokens = tokenize_block(block, tokenizer, SequenceSettings(prompt="the "))
    plain = tokenize_block(block, tokenizer, SequenceSettings())
    prompt = tokenizer.tokenize(pa.array(["the "])).ids.tolist()
    assert prompt
    before = len(tokenizer.special.before)
    for text in range(3):
        own, bare = (slice(*t.row_splits[text : text + 2]) for t in (tokens, plain))
        ids = plain.token_ids[bare].tolist()
        assert tokens.token_ids[own].tolist() == ids[:before] + prompt + ids[before:]
        assert [w for w in tokens.word_index[own].tolist() if w >= 0] == [w for w in plain.word_index[bare] if w >= 0]


@pytest.mark.parametrize("seed", range(12))
def test_chunks_end_with_words(tokenizer, seed):
    pick = random.Random(seed)
    sentences = sentences_of(seed, 6, most=60)
    numbers = pa.array([list(range(len(words))) for words in sentences], pa.list_(pa.int64()))
    block = given_block(sentences, number=numbers)
    tokens_of = [
        np.bincount(words, minlength=len(given))
        for (_, words), given in zip(cut(sentences, tokenizer), sentences, strict=True)
    ]
    most = pick.randint(8, 40)
    chunk = ChunkSettings(tokens=most, overlap=pick.randint(0, most // 2), boundaries=pick.choice(["word", "sentence"]))
    settings = SequenceSettings(records=RecordFormat(unit="chunk", chunk=chunk))
    chunks = cut_chunks(block, tokenizer, settings)
    assert chunks.fields["number"].flatten().to_pylist() == [
        place for first, words in zip(chunks.words.first, chunks.words.lists.to_pylist(), strict=True)
        for place in range(first, first + len(words))
    ]  # fmt: skip
    for record, words in enumerate(sentences):
        own = np.flatnonzero(chunks.line == record)
        spans = [(int(chunks.words.first[i]), len(chunks.words.lists[i].as_py())) for i in own]
        ends = 0
        for index, (first, count) in zip(own, spans, strict=True):
            assert first <= ends
            assert chunks.words.lists[index].as_py() == words[first : first + count]
            assert chunks.texts[index].as_py() == " ".join(words[first : first + count])
            assert chunks.offset[index] == len("".join(f"{word} " for word in words[:first]))
            pieces, room = tokens_of[record][first : first + count], most - tokenizer.special.around_text
            assert pieces.sum() <= room or pieces[pieces > 0][:-1].sum() < room < pieces.max() + room
            ends = first + count
        assert ends == len(words)


@pytest.mark.parametrize("seed", range(6))
def test_chunks_in_their_record(tokenizer, seed):
    """Each word has the tokens that it has in the whole record, and its place there."""
    sentences = [words for words in sentences_of(seed, 6, most=40) if words]
    block = given_block(sentences)
    chunk = ChunkSettings(tokens=16, overlap=6, boundaries="word")
    settings = SequenceSettings(records=RecordFormat(unit="chunk", chunk=chunk), context="record", long_text="window")
    chunks = cut_chunks(block, tokenizer, settings)
    tokens = tokenize_in_context(block, chunks, tokenizer, settings)
    whole = [list(zip(*pieces, strict=True)) for pieces in cut(sentences, tokenizer)]
    for text, line in enumerate(chunks.line.tolist()):
        own = slice(*tokens.row_splits[text : text + 2])
        found = [
            (i, w)
            for i, w in zip(tokens.token_ids[own].tolist(), tokens.word_index[own].tolist(), strict=True)
            if w >= 0
        ]
        first, count = int(chunks.words.first[text]), len(chunks.words.lists[text].as_py())
        assert found == [pair for pair in whole[line] if first <= pair[1] < first + count]
    assert tokens.contexts.words.lists.to_pylist() == sentences
    some = np.flatnonzero(chunks.line == chunks.line[-1])
    taken = take_texts(tokens, chunks.take(some), some)
    assert taken.contexts.words.lists.to_pylist() == sentences[-1:]
    assert taken.text.words.lists.to_pylist() == chunks.words.lists.take(pa.array(some)).to_pylist()


def test_the_sentence_with_a_word_that_panics_is_rejected(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})

    class Panics(WordPiece):
        def tokenize(self, texts):
            if "boom" in texts.to_pylist():
                raise PanicError("boom")
            return super().tokenize(texts)

    block = given_block([["a", "river"], ["a", "boom"], ["bank"]])
    tokens = tokenize_block(block, Panics(vocab, True, 200, special), SequenceSettings())
    assert tokens.text.words.lists.to_pylist() == [["a", "river"], ["bank"]]
    assert [(reject.line, reject.raw) for reject in tokens.text.rejected] == [(1, b"a boom")]


@pytest.mark.parametrize("first", [None, pre_tokenizers.Split(Regex(r" ?\w+|[^\w]"), "isolated")])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
def test_byte_level_tokenizers_get_a_blank_before_each_word(tmp_path, first, normalizer):
    made = byte_level()
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=first is None)
    made.pre_tokenizer = cutter if first is None else pre_tokenizers.Sequence([first, cutter])
    if normalizer is not None:
        made.normalizer = normalizer
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    tokenizer = LibraryTokenizer(load_library_tokenizer("x", path, of_words=True), ROBERTA)
    words = ["river", "a-river", "\u00e9t\u00e9", ""]
    pieces = tokenize_words(given_block([words]).words, tokenizer)
    expected = [made.encode(f" {word}", add_special_tokens=False).ids if word else [] for word in words]
    assert pieces.ids.tolist() == [token for of_word in expected for token in of_word]
    assert pieces.word_index.tolist() == [index for index, of_word in enumerate(expected) for _ in of_word]
    texts = " ".join(words)
    assert "".join(texts[a:b] for a, b in zip(pieces.start[:1], pieces.end[:1], strict=True)).strip()
    # The same file still cuts texts as it says.
    as_text = load_library_tokenizer("x", path).encode("river", add_special_tokens=False).ids
    assert as_text == made.encode("river", add_special_tokens=False).ids
    assert json.loads(path.read_text())["pre_tokenizer"] == json.loads(made.to_str())["pre_tokenizer"]
