"""Chunks: where they end, against a judge in plain Python; places, sizes and words on hostile texts."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library_tokenizers import ROBERTA, TOKENIZERS
from test_sequences import block_of
from test_wordpiece_property import random_text

from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.settings import ChunkSettings, RecordFormat, SequenceSettings
from layerbeam.transforms.tokenize.chunks import cut_chunks, cut_pieces, find_places
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece


def settings_of(chunk: ChunkSettings, **more) -> SequenceSettings:
    return SequenceSettings(records=RecordFormat(unit="chunk", chunk=chunk), **more)


def chunks_of(
    text: str, tokenizer, tokens: int, overlap: int, boundaries: str = "word", **more
) -> list[tuple[str, int]]:
    how = ChunkSettings(tokens=tokens, overlap=overlap, boundaries=boundaries)
    block = cut_chunks(block_of([text]), tokenizer, settings_of(how, **more))
    assert block.sentence.tolist() == list(range(len(block.texts)))
    return list(zip(block.texts.to_pylist(), block.offset.tolist(), strict=True))


def cut_by_rule(places, count, room, overlap):
    """The rule of the documentation, piece by piece."""
    sentences, spaces, words, pieces = (set(where.tolist()) for where in places)
    chunks, begin, end = [], 0, 0
    while count - begin > room:
        full = begin + room
        whole = range(full, end, -1)
        third = [place for place in whole if place >= full - room // 3]
        order = [(sentences, third), (spaces, third), (words, third), (words, whole)]
        found = [place for where, steps in order for place in steps if place in where]
        if not found and begin < end:
            begin = end
            continue
        end = next(iter([*found, *(place for place in whole if place in pieces), full]))
        chunks.append((begin, end))
        earlier = range(max(end - overlap, begin + 1), end)
        for where in (sentences, spaces, words):
            begin = next((place for place in earlier if place in where), end)
            if begin != end:
                break
    return [*chunks, (begin, count)]


@given(st.integers(0, 1 << 32))
@settings(max_examples=100)
def test_ends_and_overlaps(seed):
    pick = random.Random(seed)
    for _ in range(20):
        count, room = pick.randint(1, 60), pick.randint(1, 20)
        overlap = pick.randint(0, room)
        places, allowed = [], list(range(1, count))
        for _ in range(4):  # each kind of place is also one of the next kind
            allowed = sorted(pick.sample(allowed, pick.randint(0, len(allowed))))
            places.insert(0, np.array(allowed, np.int64))
        found = cut_pieces(places, count, room, overlap)
        assert found == cut_by_rule(places, count, room, overlap)
        assert found[0][0] == 0
        assert found[-1][1] == count
        for (begin, end), (following, after) in itertools.pairwise(found):
            assert 0 < end - begin <= room
            assert begin < following <= end < after
            assert end - following <= overlap


def test_ends_at_sentences_and_words(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
    tokenizer = WordPiece(vocab, True, 200, special)
    text = "The bank is wide. A river is  a river. It isn't the bank, the bank or\u00a0the river of the bank at all."
    assert chunks_of(text, tokenizer, 14, 0, "sentence") == [
        ("The bank is wide. A river is  a river.", 0),
        ("It isn't the bank, the bank or\u00a0the river", 39),
        ("of the bank at all.", 80),
    ]


@pytest.mark.parametrize(
    "text", ["by e.g. was " * 4, "  \n  " * 9 + "a river bank " * 9 + " \t " * 9, "a" * 40 + " " * 40]
)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_chunk_is_white_space_alone(name, text):
    """A piece of byte-level BPE may be."""
    tokenizer = LibraryTokenizer(TOKENIZERS[name](), ROBERTA)
    found = chunks_of(text, tokenizer, 8, 2)
    assert all(chunk.strip() for chunk, _ in found)
    covered = {place for chunk, start in found for place in range(start, start + len(chunk))}
    assert {place for place, character in enumerate(text) if not character.isspace()} <= covered


def test_no_cut_within_a_piece_that_ends_after_the_next_one():
    start, end, word_index = (np.array(values, np.int32) for values in ([0, 1, 3, 6], [5, 2, 6, 8], [0, 1, 2, 3]))
    found = find_places("abcdefgh", start, end, word_index, np.zeros(0, np.int64))
    assert [places.tolist() for places in found] == [[], [], [3], [3]]


def test_a_record_that_fits_stays_as_it_is(tokenizer):
    for text in ("  the river \n", "\u200b", ""):
        assert chunks_of(text, tokenizer, 40, 5) == [(text, 0)]


@pytest.mark.parametrize("seed", range(24))
def test_random_texts(tokenizer, vocab, seed):
    pick = random.Random(seed)
    text = " ".join(random_text(pick, vocab) for _ in range(pick.randint(1, 30)))
    tokens = pick.randint(14, 40)  # a character may have four pieces, and so has the prompt
    overlap = pick.randint(0, tokens // 2)
    prompt = pick.choice(("", "the "))
    boundaries = pick.choice(("word", "sentence"))
    found = chunks_of(text, tokenizer, tokens, overlap, boundaries, prompt=prompt)
    record = tokenizer.tokenize(pa.array([text]))
    alone = tokenizer.tokenize(pa.array([prompt + chunk for chunk, _ in found]))
    assert np.diff(alone.row_splits).max() <= tokens - 2
    spans = [(start, start + len(chunk)) for chunk, start in found]
    for (chunk, start), (begin, end) in zip(found, spans, strict=True):
        assert text[begin:end] == chunk
        assert start == begin
    if len(found) == 1:
        assert text.strip() in found[0][0]
        return
    for (begin, end), (following, after) in itertools.pairwise(spans):
        assert begin < following
        assert end <= after
    # Each piece of the record, unless it is white space, is in a chunk, and without an overlap in one.
    pieces = [(start, end) for start, end in pieces_of(record) if text[start:end].strip()]
    covered = [sum(begin <= start and end <= stop for begin, stop in spans) for start, end in pieces]
    assert min(covered) >= 1
    if overlap == 0:
        assert max(covered) == 1
    # A word that is cut is longer than a chunk.
    for word, pieces in itertools.groupby(
        zip(record.word_index.tolist(), pieces_of(record), strict=True), lambda p: p[0]
    ):
        own = [span for _, span in pieces]
        if word >= 0 and len(own) < (tokens - 8) // 2:
            first, last = min(start for start, _ in own), max(end for _, end in own)
            assert any(begin <= first and last <= stop for begin, stop in spans)


def pieces_of(pieces):
    return list(zip(pieces.start.tolist(), pieces.end.tolist(), strict=True))


def test_counts_of_several_files(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
    tokenizer = WordPiece(vocab, True, 200, special)
    whole = block_of(["the river " * 10, "the bank", "the bank " * 9])
    files = [FileRange(InputFile(name, 1, 0.0), 0, lines, 0, 1, "") for name, lines in (("a.txt", 2), ("b.txt", 1))]
    counts = {metrics.RECORDS: np.array([3, 1]), metrics.EMBEDDED: np.array([2, 1]), metrics.BLANK: np.array([1, 0])}
    block = dataclasses.replace(whole, files=tuple(files), counts=counts)
    cut = cut_chunks(block, tokenizer, settings_of(ChunkSettings(tokens=10, overlap=0)))
    assert cut.line.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert {name: values.tolist() for name, values in cut.counts.items()} == {
        metrics.RECORDS: [3, 1],
        metrics.EMBEDDED: [2, 1],
        metrics.BLANK: [1, 0],
        metrics.SENTENCES: [4, 3],
        metrics.SENTENCES_EMBEDDED: [4, 3],
        "sentences_blank_skipped": [0, 0],
        "sentences_filtered": [0, 0],
        "sentences_rejected": [0, 0],
    }


CHUNK = "bank the river the bank of the river"


class Panicking:
    """A tokenizer that panics at texts which begin with `begins`."""

    def __init__(self, tokenizer, begins: str) -> None:
        self.special, self._tokenizer, self._begins = tokenizer.special, tokenizer, begins

    def tokenize(self, texts):
        if any(text.startswith(self._begins) for text in texts.to_pylist()):
            raise PanicError("index out of bounds")
        return self._tokenizer.tokenize(texts)


def test_a_panic_rejects_a_record_or_a_chunk(vocab):
    special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
    how = settings_of(ChunkSettings(tokens=10, overlap=0))
    for begins, rejected, kept in (
        ("the bank", b"the bank of the river", ["the river the river the river the river", CHUNK]),
        ("bank", CHUNK.encode(), ["the river the river the river the river", "the bank of the river"]),
    ):
        tokenizer = Panicking(WordPiece(vocab, True, 200, special), begins)
        block = block_of([f"the river the river the river the river {CHUNK}", "the bank of the river"])
        text = tokenize_block(cut_chunks(block, tokenizer, how), tokenizer, how).text
        assert text.texts.to_pylist() == kept
        assert [(reject.raw, reject.reason) for reject in text.rejected] == [
            (rejected, "the tokenizer cannot cut the text: index out of bounds")
        ]
