"""Encoders that put other special tokens around texts than one before and one behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from architectures import byte_level
from test_contexts import cut, settings_of, tokens_by_rule, tokens_of
from test_sequences import block_of
from tokenizers import Tokenizer, processors

from layerbeam.transforms.encode.windows import cut_windows
from layerbeam.transforms.encoders.formats.tokenizer_json import read_tokenizer_json
from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.reference import ReferenceLibraryTokenizer
from layerbeam.transforms.settings import ChunkSettings, RecordFormat, SequenceSettings
from layerbeam.transforms.tokenize.chunks import cut_chunks
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.sequences import tokenize_block

BYTE_LEVEL = processors.ByteLevel(trim_offsets=False)


def template(single: str, pair: str) -> Any:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)])


# The forms of Qwen3-Embedding, Gemma, EuroBERT, Llama 3 (whose pairs are of another form), GPT-2, and none.
PROCESSORS: dict[str, tuple[Any, SpecialTokens]] = {
    "behind": (
        processors.Sequence([BYTE_LEVEL, template("$A </s>", "$A </s> $B </s>")]),
        SpecialTokens((), (2,), (2,), 1, has_second_segment=False),
    ),
    "both": (
        template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
        SpecialTokens((0,), (2,), (2,), 1, has_second_segment=True),
    ),
    "two": (
        template("<s> <s> $A </s> </s>", "<s> <s> $A $B:1 </s>:1 </s>:1"),
        SpecialTokens((0, 0), (), (2, 2), 1, has_second_segment=True),
    ),
    "before": (template("<s> $A", "<s> $A <s>:1 $B:1"), SpecialTokens((0,), None, (), 1, has_second_segment=False)),
    "offsets": (BYTE_LEVEL, SpecialTokens((), (), (), 1, has_second_segment=True)),
    "none": (None, SpecialTokens((), (), (), 1, has_second_segment=True)),
}


def opened(name: str, folder: Path) -> tuple[Tokenizer, SpecialTokens]:
    tokenizer = byte_level(trim_offsets=False)
    text = tokenizer.to_str()
    processor = PROCESSORS[name][0]
    if processor is None:
        start = text.index('"post_processor":')
        text = text[:start] + '"post_processor":null,' + text[text.index('"decoder":', start) :]
        tokenizer = Tokenizer.from_str(text)
    else:
        tokenizer.post_processor = processor
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return tokenizer, read_tokenizer_json("encoder", file, 300).vocabulary.special


@pytest.mark.parametrize("name", PROCESSORS)
def test_sequences_are_those_of_the_library(tmp_path, name):
    tokenizer, special = opened(name, tmp_path)
    assert special == PROCESSORS[name][1]
    firsts = ["a river bank", "b", "river " * 9, "bank"]
    seconds = ["river banks.", "", "bank " * 8, "b"] if special.between is not None else [""] * 4
    for length in (max(special.around_pair + 1, 3), 9, 100):
        block = block_of(firsts)
        block.pairs, block.pair_offset = pa.array(seconds), np.full(4, 1000, np.int32)
        tokens = tokenize_block(block, LibraryTokenizer(tokenizer, special), SequenceSettings(length))
        for text, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            own = slice(*tokens.row_splits[text : text + 2])
            expected = ReferenceLibraryTokenizer(tokenizer).sequence(first, second, length)
            assert (tokens.token_ids[own].tolist(), tokens.segment_ids[own].tolist()) == expected
            if not second and length == 100:
                assert expected[0] == tokenizer.encode(first).ids


def test_a_text_without_any_token_is_rejected(tmp_path):
    tokenizer, special = opened("none", tmp_path)
    tokens = tokenize_block(block_of(["a", "", "b"]), LibraryTokenizer(tokenizer, special), SequenceSettings(9))
    assert tokens.text.texts.to_pylist() == ["a", "b"]
    (rejected,) = tokens.text.rejected
    assert (rejected.line, rejected.reason) == (1, "the encoder's tokenizer gives no tokens for it")


@pytest.mark.parametrize("name", ["behind", "two", "before", "none"])
def test_contexts_give_each_end_its_tokens(tmp_path, name):
    tokenizer = LibraryTokenizer(*opened(name, tmp_path))
    texts, spans = ["The bank. A river.  ", "b b"], [[(0, 9), (9, 18), (18, 20)], [(0, 1), (1, 3)]]
    for context, prompt in (("record", ""), (1, "a bank: ")):
        block = cut(texts, spans, tokenizer, settings_of(context, prompt))
        assert tokens_of(block) == tokens_by_rule(texts, spans, tokenizer, context, prompt)


def test_chunks_have_room_for_the_special_tokens(tmp_path):
    text = " river" * 40
    for name, most in (("two", 12), ("none", 16)):
        tokenizer = LibraryTokenizer(*opened(name, tmp_path))
        settings = SequenceSettings(100, records=RecordFormat(unit="chunk", chunk=ChunkSettings(tokens=16, overlap=0)))
        counts = np.diff(tokenizer.tokenize(cut_chunks(block_of([text]), tokenizer, settings).texts).row_splits)
        assert max(counts) == most


def test_each_window_has_the_special_tokens():
    word_index = np.array([-1, -1, *range(6), -1])
    windows, vector_index = cut_windows(word_index, 6, 1, (2, 1))
    assert [window.tolist() for window in windows] == [[0, 1, 2, 3, 4, 8], [0, 1, 4, 5, 6, 8], [0, 1, 5, 6, 7, 8]]
    assert vector_index.tolist() == [0, 1, 2, 3, 4, 9, 15, 16, 17]
    windows, vector_index = cut_windows(np.arange(5), 3, 1, (0, 0))
    assert [window.tolist() for window in windows] == [[0, 1, 2], [2, 3, 4]]
    assert vector_index.tolist() == [0, 1, 2, 4, 5]
