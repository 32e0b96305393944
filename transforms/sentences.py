"""Records cut into sentences by TF Text's StateBasedSentenceBreaker, with exact places in the record."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from transforms import metrics
from transforms.lines import binary_array
from transforms.records import Int64Array, TextBlock, row_splits_of


@functools.cache
def _sentence_breaker() -> Any:
    import tensorflow_text

    return tensorflow_text.StateBasedSentenceBreaker()


def find_sentences(texts: pa.StringArray) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(row splits [T + 1], first byte, byte after the last) of the sentences of each text, white space around them off.

    What the breaker knows: a sentence ends after terminal punctuation (`.`, `!`, `?`, an ellipsis, their CJK forms) or
    an emoticon, with the closing quotes and brackets that follow; acronyms of capital letters (`U.S.`) are one word.
    What it does not know: abbreviations (`Mr. Smith`, `e.g. this` end a sentence after each point), decimal points
    (`3.5` is cut in two), line breaks and blank lines (a heading runs on into the next sentence), whether the next
    word has a capital letter. No language is trained in, and text without punctuation is one sentence.
    """
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, start, end = _sentence_breaker().break_sentences_with_offsets(texts.to_numpy(zero_copy_only=False))
    return start.row_splits.numpy(), start.values.numpy(), end.values.numpy()


def split_sentences(block: TextBlock, *, keep_blank: bool = False) -> TextBlock:
    """The block with a sentence for each text; a record without any is blank, or with `keep_blank` a text itself.

    `offset` is the sentence's first code point in its record. Records and sentences are counted, each by itself.
    """
    row_splits, first, last = find_sentences(block.texts)
    found = np.diff(row_splits)
    record = np.repeat(np.arange(len(found)), found)
    is_blank = np.zeros(len(first), bool)
    if keep_blank and (found == 0).any():
        without = np.flatnonzero(found == 0)
        sizes = pc.binary_length(block.texts).to_numpy()[without]
        record = np.concatenate([record, without])
        order = np.argsort(record, kind="stable")
        first = np.concatenate([first, np.zeros(len(without), np.int64)])[order]
        last = np.concatenate([last, sizes])[order]
        record, is_blank = record[order], np.zeros(len(order), bool)
    texts, offset = _cut(block.texts, record, first, last)
    if not keep_blank:
        is_blank = pc.equal(pc.utf8_trim_whitespace(texts), "").to_numpy(zero_copy_only=False)
    num_found = len(texts)
    texts, record, offset = texts.filter(pa.array(~is_blank)), record[~is_blank], offset[~is_blank]
    kept = np.bincount(record, minlength=len(found))
    blank_records = int(np.count_nonzero(kept == 0))
    counts = block.counts | {
        metrics.BLANK: block.counts[metrics.BLANK] + blank_records,
        metrics.EMBEDDED: block.counts[metrics.EMBEDDED] - blank_records,
        metrics.SENTENCES: num_found,
        metrics.SENTENCES_EMBEDDED: len(texts),
        metrics.SENTENCES_BLANK: num_found - len(texts),
        metrics.SENTENCES_FILTERED: 0,
        metrics.SENTENCES_REJECTED: 0,
    }
    return dataclasses.replace(
        block,
        texts=texts,
        line=block.line[record],
        sentence=(np.arange(len(record)) - np.repeat(row_splits_of(kept)[:-1], kept)).astype(np.int32),
        offset=offset,
        counts=counts,
        fields={name: column.take(pa.array(record)) for name, column in block.fields.items()},
    )


def _cut(
    texts: pa.StringArray, record: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[pa.StringArray, npt.NDArray[np.int32]]:
    """The bytes [first, last) of the texts numbered `record`, and the code points before each in its text."""
    _, offsets, values = texts.buffers()
    begin = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(values or b"", np.uint8)
    code_points = np.concatenate([np.zeros(1, np.int64), np.cumsum((data & 0xC0) != 0x80)])
    begin = begin[record]
    offset = code_points[begin + first] - code_points[begin]
    return binary_array(data, begin + first, begin + last).cast(pa.string()), offset.astype(np.int32)
