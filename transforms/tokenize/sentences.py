"""Records split into sentences, or other pieces, with exact places in the record."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Int64Array, TextBlock, reject, row_splits_of
from layerbeam.transforms.hardware import import_tensorflow_text
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.splitters import Splitter, UnsplittableTextError, open_splitter
from layerbeam.transforms.tokenize.pieces import STAGE


@functools.cache
def _sentence_breaker() -> Any:
    return import_tensorflow_text("state_based_sentence_breaker_op").StateBasedSentenceBreaker()


def find_sentences(texts: pa.StringArray, record_format: RecordFormat) -> tuple[Int64Array, Int64Array, dict[int, str]]:
    """(text, span) of each sentence, in order: int64 [S] and [S, 2], code points without surrounding white space.

    And {text: why it cannot be split}. Blank sentences are left out.
    """
    reasons: dict[int, str] = {}
    if record_format.sentences == "tensorflow_text":
        record, spans = _find_by_tensorflow_text(texts)
    else:
        split = open_splitter(record_format.sentences, record_format.language)
        record, spans = _find_by_splitter(texts, split, reasons)
    pieces = _pieces(texts, record, spans)
    sizes = pc.utf8_length(pieces).to_numpy()
    first = spans[:, 0] + sizes - pc.utf8_length(pc.utf8_ltrim_whitespace(pieces)).to_numpy()
    last = spans[:, 1] - sizes + pc.utf8_length(pc.utf8_rtrim_whitespace(pieces)).to_numpy()
    full = first < last
    return record[full], np.stack([first[full], last[full]], axis=1), reasons


def _find_by_tensorflow_text(texts: pa.StringArray) -> tuple[Int64Array, Int64Array]:
    """(text, span) of the sentences that TF Text's StateBasedSentenceBreaker finds.

    The breaker ends a sentence after terminal punctuation (`.`, `!`, `?`, an ellipsis, their CJK forms) or an emoticon,
    including closing brackets; it keeps acronyms of capital letters (`U.S.`) together. It does not know abbreviations
    (`Mr. Smith`, `e.g. this` are cut after each period), decimal points (`3.5` is cut in two), quotes after a period
    (they begin the next sentence), line breaks and blank lines (a heading continues into the next sentence) or capital
    letters. It is not trained on any language. Text without punctuation is one sentence.
    """
    if not len(texts):
        return np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    _, start, end = _sentence_breaker().break_sentences_with_offsets(texts.to_numpy(zero_copy_only=False))
    record, first, last = start.value_rowids().numpy(), start.values.numpy(), end.values.numpy()
    # It counts white space before a sentence as one byte per character: too few for U+00A0 or U+2003, never too many.
    begin, data = _bytes_of(texts)
    is_inside = (data & 0xC0) == 0x80
    inside = np.append(is_inside, False)
    for _ in range(3):
        first = first + (inside[begin[record] + first] & (first < last))
    code_points, begin = row_splits_of(~is_inside), begin[record]
    spans = np.stack([code_points[begin + first], code_points[begin + last]], axis=1)
    return record, spans - code_points[begin][:, None]


def _find_by_splitter(texts: pa.StringArray, split: Splitter, reasons: dict[int, str]) -> tuple[Int64Array, Int64Array]:
    """(text, span) of each sentence. A text that cannot be split gets a reason."""
    record: list[int] = []
    spans: list[tuple[int, int]] = []
    for index, text in enumerate(texts.to_pylist()):
        try:
            found = split(text)
        except UnsplittableTextError as error:
            reasons[index] = str(error)
            continue
        spans += found
        record += [index] * len(found)
    return np.array(record, np.int64), np.array(spans, np.int64).reshape(-1, 2)


def split_sentences(block: TextBlock, record_format: RecordFormat) -> TextBlock:
    """The block with a text per sentence. A record without sentences is blank, or with `blank: keep` a text itself."""
    record, spans, reasons = find_sentences(block.texts, record_format)
    if reasons:
        return split_sentences(reject(block, reasons, STAGE), record_format)
    if record_format.blank == "keep":
        without = np.setdiff1d(np.arange(len(block.texts)), record)
        lengths = pc.utf8_length(block.texts).to_numpy()[without]
        record = np.concatenate([record, without])
        spans = np.concatenate([spans, np.stack([np.zeros_like(lengths), lengths], axis=1)])
        order = np.argsort(record, kind="stable")
        record, spans = record[order], spans[order]
    return split_records(block, record, spans)


def split_records(block: TextBlock, record: Int64Array, spans: Int64Array) -> TextBlock:
    """The block with these pieces of its records as texts: `record` int64 [S], ascending, `spans` int64 [S, 2].

    A span counts code points, and becomes the text's `offset`. Records and pieces are counted separately; a record
    without pieces is blank.
    """
    found = np.bincount(record, minlength=len(block.texts))
    pieces, blank_records = block.count_texts(record), block.count_texts(np.flatnonzero(found == 0))
    counts = block.counts | {
        metrics.BLANK: block.counts.get(metrics.BLANK, 0) + blank_records,
        metrics.EMBEDDED: block.counts[metrics.EMBEDDED] - blank_records,
        metrics.SENTENCES: pieces,
        **dict.fromkeys(metrics.OF_SENTENCES.values(), np.zeros_like(pieces)),
        metrics.SENTENCES_EMBEDDED: pieces,
    }
    return dataclasses.replace(
        block,
        texts=_pieces(block.texts, record, spans),
        line=block.line[record],
        sentence=(np.arange(len(record)) - np.repeat(row_splits_of(found)[:-1], found)).astype(np.int32),
        offset=spans[:, 0].astype(np.int32),
        counts=counts,
        fields={name: column.take(pa.array(record)) for name, column in block.fields.items()},
    )


def _pieces(texts: pa.StringArray, record: Int64Array, spans: Int64Array) -> pa.StringArray:
    """The characters of each span."""
    strings = texts.to_pylist()
    return pa.array([strings[index][a:b] for index, (a, b) in zip(record, spans.tolist(), strict=True)], pa.string())


def _bytes_of(texts: pa.StringArray) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """(first byte of each text, bytes of all texts)."""
    _, offsets, values = texts.buffers()
    begin = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts)].astype(np.int64)
    return begin, np.frombuffer(values or b"", np.uint8)
