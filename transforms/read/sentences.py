"""Records split into sentences, with exact places in the record."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import Int64Array, TextBlock, counts_of_file, reject, row_splits_of
from layerbeam.transforms.hardware import import_tensorflow_text
from layerbeam.transforms.input.text import binary_array
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.splitters import Splitter, UnsplittableTextError, open_splitter


@functools.cache
def _sentence_breaker() -> Any:
    return import_tensorflow_text("state_based_sentence_breaker_op").StateBasedSentenceBreaker()


def find_by_tensorflow_text(texts: pa.StringArray) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(text, first byte in it, byte after the last) of the sentences that TF Text's StateBasedSentenceBreaker finds.

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
    return _trim(texts, record, first, last)


def find_by_splitter(
    texts: pa.StringArray, split: Splitter
) -> tuple[Int64Array, Int64Array, Int64Array, dict[int, str]]:
    """(text, first byte in it, byte after the last) of each sentence; and {text: why it cannot be split}."""
    record: list[int] = []
    spans: list[tuple[int, int]] = []
    reasons = {}
    for index, text in enumerate(texts.to_pylist()):
        try:
            found = split(text)
        except UnsplittableTextError as error:
            reasons[index] = str(error)
            continue
        spans += found
        record += [index] * len(found)
    begin, data = _bytes_of(texts)
    byte_of = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))  # of each code point
    of = np.array(record, np.int64)
    places = np.array(spans, np.int64).reshape(-1, 2) + np.searchsorted(byte_of, begin)[of, None]
    first, last = (byte_of[places] - begin[of, None]).T
    return *_trim(texts, of, first, last), reasons


def _trim(
    texts: pa.StringArray, record: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The sentences in order, without surrounding white space; blank ones are left out."""
    begin, data = _bytes_of(texts)
    pieces = binary_array(data, begin[record] + first, begin[record] + last).cast(pa.string())
    sizes = pc.binary_length(pieces).to_numpy()
    first = first + sizes - pc.binary_length(pc.utf8_ltrim_whitespace(pieces)).to_numpy()
    last = last - sizes + pc.binary_length(pc.utf8_rtrim_whitespace(pieces)).to_numpy()
    full = first < last
    return record[full], first[full], last[full]


def split_sentences(block: TextBlock, record_format: RecordFormat) -> TextBlock:
    """The block with a text per sentence. A record without sentences is blank, or with `blank: keep` a text itself.

    `offset` is the sentence's first code point in its record. Records and sentences are counted separately.
    """
    if record_format.sentences == "tensorflow_text":
        record, first, last = find_by_tensorflow_text(block.texts)
    else:
        split = open_splitter(record_format.sentences, record_format.language)
        record, first, last, reasons = find_by_splitter(block.texts, split)
        if reasons:
            return split_sentences(reject(block, reasons, "read"), record_format)
    keep_blank = record_format.blank == "keep"
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
    blank_records = np.count_nonzero(found == 0)
    sentences = counts_of_file(
        {
            metrics.SENTENCES: len(record),
            **dict.fromkeys(metrics.OF_SENTENCES.values(), 0),
            metrics.SENTENCES_EMBEDDED: len(record),
        }
    )
    counts = block.counts | {
        metrics.BLANK: block.counts[metrics.BLANK] + blank_records,
        metrics.EMBEDDED: block.counts[metrics.EMBEDDED] - blank_records,
        **sentences,
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
