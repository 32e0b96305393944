from __future__ import annotations

import shutil
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.internal import pickler
from repository import DATA

from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize import TokenizeBlocks
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.tokenize.sequences import kept_pieces, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views.view import ViewSpec

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def block_of(texts: list[str], offset: list[int] | None = None) -> TextBlock:
    rows = len(texts)
    return TextBlock(
        files=(FileRange(InputFile("corpus.txt", 1, 0.0), 0, rows, 0, 1, ""),),
        texts=pa.array(texts, pa.string()),
        line=np.arange(rows, dtype=np.int64),
        sentence=np.zeros(rows, np.int32),
        offset=np.array(offset or [0] * rows, np.int32),
        counts={"records": rows, "embedded": rows},
        rejected=[],
    )


@pytest.fixture(scope="module")
def wordpiece() -> WordPiece:
    return WordPiece(open_encoder("minilm").vocabulary, do_lower_case=True)


def truncate_as_google_does(first: int, second: int, room: int) -> tuple[int, int]:
    """`_truncate_seq_pair` of extract_features.py, on lengths."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_pairs_are_truncated_as_google_does():
    lengths = np.stack(np.meshgrid(np.arange(14), np.arange(1, 14)), axis=-1).reshape(-1, 2)
    for max_seq_length in range(3, 32):
        kept = np.stack(kept_pieces(lengths[:, 0], lengths[:, 1], max_seq_length), axis=-1)
        expected = [truncate_as_google_does(*pair, max_seq_length - 3) for pair in lengths.tolist()]
        assert kept.tolist() == [list(pair) for pair in expected]


def test_pairs_become_two_segments():
    wordpiece = WordPiece([*SPECIAL, "a", "b", "##c"], do_lower_case=True)
    block = block_of(["ab", "a b", "a", "a", "b a b a"], offset=[0, 1, 0, 0, 0])
    block.pairs = pa.array(["bc a", None, "", "\u200b", "a bc b"], pa.string())
    block.pair_offset = np.array([7, 0, 3, 3, 12], np.int32)
    tokens = tokenize_block(block, wordpiece, SequenceSettings(7))
    texts = [
        [wordpiece.vocab[i] for i in tokens.token_ids[start:end]]
        for start, end in zip(tokens.row_splits[:-1], tokens.row_splits[1:], strict=True)
    ]
    assert texts == [
        ["[CLS]", "[UNK]", "[SEP]", "b", "##c", "a", "[SEP]"],
        ["[CLS]", "a", "b", "[SEP]"],
        ["[CLS]", "a", "[SEP]"],
        ["[CLS]", "a", "[SEP]"],
        ["[CLS]", "b", "a", "[SEP]", "a", "b", "[SEP]"],
    ]
    assert tokens.segment_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, *[0] * 10, 0, 0, 0, 0, 1, 1, 1]
    assert tokens.start.tolist()[:7] == [-1, 0, -1, 7, 8, 10, -1]
    assert tokens.end.tolist()[:7] == [-1, 2, -1, 8, 9, 11, -1]
    assert tokens.word_index.tolist()[:7] == [-1, 0, -1, 1, 1, 2, -1]
    assert tokens.word_index.tolist()[-7:] == [-1, 0, 1, -1, 4, 5, -1]
    assert tokens.num_dropped.tolist() == [0, 0, 0, 0, 4]


def test_a_pair_without_room_for_its_second_text() -> None:
    """As in extract_features.py, it is a single text then."""
    block = block_of(["a"])
    block.pairs, block.pair_offset = pa.array(["b"], pa.string()), np.array([5], np.int32)
    tokens = tokenize_block(block, WordPiece([*SPECIAL, "a", "b"], do_lower_case=True), SequenceSettings(4))
    assert tokens.token_ids.tolist() == [2, 4, 3]
    assert tokens.segment_ids.tolist() == [0, 0, 0]
    assert tokens.num_dropped.tolist() == [1]


def test_what_is_cut_off_is_in_the_block() -> None:
    wordpiece = WordPiece([*SPECIAL, "a", "b", "##c"], do_lower_case=True)
    block = block_of(["acc b", "", "b", "a b"], offset=[0, 10, 20, 30])
    tokens = tokenize_block(block, wordpiece, SequenceSettings(3))
    assert tokens.row_splits.tolist() == [0, 3, 5, 8, 11]
    assert tokens.token_ids.tolist() == [2, 4, 3, 2, 3, 2, 5, 3, 2, 4, 3]
    assert tokens.segment_ids.tolist() == [0] * 11
    assert tokens.start.tolist() == [-1, 0, -1, -1, -1, -1, 20, -1, -1, 30, -1]
    assert tokens.end.tolist() == [-1, 1, -1, -1, -1, -1, 21, -1, -1, 31, -1]
    assert tokens.word_index.tolist() == [-1, 0, -1, -1, -1, -1, 0, -1, -1, 0, -1]
    dropped = tokens.dropped
    assert dropped.text.tolist() == [0, 0, 0, 3]
    assert dropped.segment.tolist() == [0] * 4
    assert dropped.word_char.tolist() == [1, 2, 4, 32]
    assert dropped.word_index.tolist() == [0, 0, 1, 1]
    assert tokens.forms.take(pa.array(dropped.form)).to_pylist() == ["acc", "acc", "b", "b"]
    assert tokens.num_dropped.tolist() == [3, 0, 0, 1]
    tokens = tokenize_block(block, wordpiece, SequenceSettings(6))
    assert len(tokens.dropped.text) == 0
    assert tokens.token_ids.tolist() == [2, 4, 6, 6, 5, 3, 2, 3, 2, 5, 3, 2, 4, 5, 3]


def test_tokenize_block_counts_truncated_tokens(wordpiece: WordPiece) -> None:
    block = block_of(["the cat sat.", "", "unaffable"], offset=[0, 12, 30])
    tokens = tokenize_block(block, wordpiece, SequenceSettings(4))
    assert tokens.text is block
    assert block.counts == {"records": 3, "embedded": 3}
    assert tokens.row_splits.tolist() == [0, 4, 6, 10]
    assert tokens.token_ids.tolist() == [101, 1996, 4937, 102, 101, 102, 101, 14477, 20961, 102]
    assert tokens.start.tolist() == [-1, 0, 4, -1, -1, -1, -1, 30, 33, -1]
    assert tokens.end.tolist() == [-1, 3, 7, -1, -1, -1, -1, 33, 36, -1]
    assert tokens.word_index.tolist() == [-1, 0, 1, -1, -1, -1, -1, 0, 0, -1]
    assert tokens.segment_ids.tolist() == [0] * 10
    assert tokens.num_dropped.tolist() == [2, 0, 1]
    others = ("text", "forms", "dropped", "rows", "within")
    types = {field: getattr(tokens, field).dtype.name for field in vars(tokens) if field not in others}
    assert types.pop("row_splits") == "int64"
    assert types.pop("segment_ids") == "int8"
    assert set(types.values()) == {"int32"}


def test_a_piece_of_prompt_and_text_begins_with_the_text() -> None:
    """And so does its word: `abb` of the prompt `b a` and the text `bb b`."""
    wordpiece = WordPiece([*SPECIAL, "abb", "a", "b", "##b"], do_lower_case=True)
    block = block_of(["bb b", "b", ""], offset=[10, 20, 30])
    block.pairs, block.pair_offset = pa.array([None, "abb", None], pa.string()), np.array([0, 25, 0], np.int32)
    tokens = tokenize_block(block, wordpiece, SequenceSettings(9, prompt="b a"))
    assert tokens.row_splits.tolist() == [0, 5, 12, 16]
    assert tokens.token_ids.tolist() == [2, 6, 4, 6, 3, 2, 6, 5, 7, 3, 4, 3, 2, 6, 5, 3]
    assert tokens.start.tolist() == [-1, -1, 10, 13, -1, -1, -1, -1, 20, -1, 25, -1, *[-1] * 4]
    assert tokens.end.tolist() == [-1, -1, 12, 14, -1, -1, -1, -1, 21, -1, 28, -1, *[-1] * 4]
    assert tokens.word_index.tolist() == [-1, -1, 0, 1, -1, -1, -1, -1, 0, -1, 1, -1, *[-1] * 4]
    words = rows_of(ViewSpec(name="w", level="word", layers=(1,), hidden_size=2), tokens).words
    assert (words.start.tolist(), words.end.tolist()) == ([10, 13, 20, 25], [12, 14, 21, 28])


def test_tokenize_block_without_texts(wordpiece: WordPiece) -> None:
    tokens = tokenize_block(block_of([]), wordpiece, SequenceSettings(128))
    assert tokens.row_splits.tolist() == [0]
    assert len(tokens.token_ids) == len(tokens.segment_ids) == len(tokens.num_dropped) == 0


def test_tokenize_blocks(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "hf_uncased", tmp_path / "encoder")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "##b"]))
    stage = TokenizeBlocks(open_encoder(str(folder)), views=(), settings=SequenceSettings(8))
    tokenize = pickler.loads(pickler.dumps(stage)).start()
    (tokens,) = tokenize(block_of(["AB", "c"]))
    assert tokens.token_ids.tolist() == [2, 4, 5, 3, 2, 1, 3]
    blocks = beam.Pipeline() | beam.Create([block_of(["AB"])])
    assert (blocks | stage).element_type is TokenBlock


def test_max_seq_length_leaves_room_for_the_text() -> None:
    with pytest.raises(ValueError, match="max_seq_length: 2; at least 3"):
        SequenceSettings(2)


def test_long_texts_are_rejected(wordpiece: WordPiece) -> None:
    block = block_of(["the cat sat.", "the", "the cat sat"])
    tokens = tokenize_block(block, wordpiece, SequenceSettings(5, "reject"))
    assert tokens.text.texts.to_pylist() == ["the", "the cat sat"]
    assert tokens.text.line.tolist() == [1, 2]
    assert tokens.text.counts == {"records": 3, "embedded": 2, "rejected": 1}
    (rejected,) = tokens.text.rejected
    assert (rejected.line, rejected.stage, rejected.raw) == (0, "tokenize", b"the cat sat.")
    assert rejected.reason == "over max_seq_length 5 (6 tokens with special ones)"


def test_long_texts_in_windows_keep_all_tokens(wordpiece: WordPiece) -> None:
    tokens = tokenize_block(block_of(["the cat sat."]), wordpiece, SequenceSettings(4, "window"))
    assert np.diff(tokens.row_splits).tolist() == [6]
    assert tokens.num_dropped.tolist() == [0]
