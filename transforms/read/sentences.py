"""Records split into sentences by TF Text's StateBasedSentenceBreaker, with exact places in the record."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import Int64Array, TextBlock, row_splits_of
from layerbeam.transforms.input.lines import binary_array


@functools.cache
def _sentence_breaker() -> Any:
    import tensorflow_text

    return tensorflow_text.StateBasedSentenceBreaker()


def find_sentences(texts: pa.StringArray) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(text, first byte in it, byte after the last) of each sentence, in order, without surrounding white space.

    The breaker ends a sentence after terminal punctuation (`.`, `!`, `?`, an ellipsis, their CJK forms) or an emoticon,
    including closing brackets; it keeps acronyms of capital letters (`U.S.`) together. It does not know abbreviations
    (`Mr. Smith`, `e.g. this` are cut after each period), decimal points (`3.5` is cut in two), quotes after a period
    (they begin the next sentence), line breaks and blank lines (a heading continues into the next sentence) or capital
    letters. It is not trained on any language. Text without punctuation is one sentence.
    """
    if not len(texts):
        return (np.zeros(0, np.int64),) * 3
    _, start, end = _sentence_breaker().break_sentences_with_offsets(texts.to_numpy(zero_copy_only=False))
    record, first, last = start.value_rowids().numpy(), start.values.numpy(), end.values.numpy()
    # It counts white space before a sentence as one byte per character: too few for U+00A0 or U+2003, never too many.
    begin, data = _bytes_of(texts)
    inside = np.append((data & 0xC0) == 0x80, False)
    for _ in range(3):
        first = first + (inside[begin[record] + first] & (first < last))
    pieces = binary_array(data, begin[record] + first, begin[record] + last).cast(pa.string())
    sizes = pc.binary_length(pieces).to_numpy()
    first = first + sizes - pc.binary_length(pc.utf8_ltrim_whitespace(pieces)).to_numpy()
    last = last - sizes + pc.binary_length(pc.utf8_rtrim_whitespace(pieces)).to_numpy()
    full = first < last
    return record[full], first[full], last[full]


def split_sentences(block: TextBlock, *, keep_blank: bool = False) -> TextBlock:
    """The block with a text per sentence. A record without sentences is blank, or a text itself with `keep_blank`.

    `offset` is the sentence's first code point in its record. Records and sentences are counted separately.
    """
    record, first, last = find_sentences(block.texts)
    found = np.bincount(record, minlength=len(block.texts))
    if keep_blank and not found.all():
        without = np.flatnonzero(found == 0)
        record = np.concatenate([record, without])
        order = np.argsort(record, kind="stable")
        first = np.concatenate([first, np.zeros(len(without), np.int64)])[order]
        last = np.concatenate([last, pc.binary_length(block.texts).to_numpy()[without]])[order]
        record, found = record[order], np.maximum(found, 1)
    begin, data = _bytes_of(block.texts)
    begin = begin[record]
    code_points = row_splits_of((data & 0xC0) != 0x80)
    blank_records = int(np.count_nonzero(found == 0))
    counts = block.counts | {
        metrics.BLANK: block.counts[metrics.BLANK] + blank_records,
        metrics.EMBEDDED: block.counts[metrics.EMBEDDED] - blank_records,
        metrics.SENTENCES: len(record),
        metrics.SENTENCES_EMBEDDED: len(record),
        metrics.SENTENCES_BLANK: 0,
        metrics.SENTENCES_FILTERED: 0,
        metrics.SENTENCES_REJECTED: 0,
    }
    return dataclasses.replace(
        block,
        texts=binary_array(data, begin + first, begin + last).cast(pa.string()),
        line=block.line[record],
        sentence=(np.arange(len(record)) - np.repeat(row_splits_of(found)[:-1], found)).astype(np.int32),
        offset=(code_points[begin + first] - code_points[begin]).astype(np.int32),
        counts=counts,
        fields={name: column.take(pa.array(record)) for name, column in block.fields.items()},
    )


def _bytes_of(texts: pa.StringArray) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """(first byte of each text, bytes of all texts)."""
    _, offsets, values = texts.buffers()
    begin = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts)].astype(np.int64)
    return begin, np.frombuffer(values or b"", np.uint8)
