"""Records split into sentences, or other pieces, with exact places in the record."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Int64Array, TextBlock, as_lists, reject, row_splits_of
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.splitters import Splitter, UnsplittableTextError, open_splitter
from layerbeam.transforms.tokenize.pieces import STAGE


def find_sentences(texts: pa.StringArray, record_format: RecordFormat) -> tuple[Int64Array, Int64Array, dict[int, str]]:
    """(text, span) of each sentence, in order: int64 [S] and [S, 2], code points without surrounding white space.

    And {text: why it cannot be split}. Blank sentences are left out.
    """
    reasons: dict[int, str] = {}
    split = open_splitter(record_format.sentences, record_format.language)
    record, spans = _find_by_splitter(texts, split, reasons)
    pieces = _pieces(texts, record, spans)
    sizes = pc.utf8_length(pieces).to_numpy()
    first = spans[:, 0] + sizes - pc.utf8_length(pc.utf8_ltrim_whitespace(pieces)).to_numpy()
    last = spans[:, 1] - sizes + pc.utf8_length(pc.utf8_rtrim_whitespace(pieces)).to_numpy()
    full = first < last
    return record[full], np.stack([first[full], last[full]], axis=1), reasons


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
    words, fields = None, {name: column.take(pa.array(record)) for name, column in block.fields.items()}
    if block.words is not None:
        words, splits, numbers = block.words.within(record, spans)
        for name, column in block.fields.items():
            if pa.types.is_list(column.type):
                fields[name] = as_lists(column.flatten().take(pa.array(numbers)), splits)
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
        fields=fields,
        words=words,
    )


def _pieces(texts: pa.StringArray, record: Int64Array, spans: Int64Array) -> pa.StringArray:
    """The characters of each span."""
    strings = texts.to_pylist()
    return pa.array([strings[index][a:b] for index, (a, b) in zip(record, spans.tolist(), strict=True)], pa.string())
