"""Records of any format made into texts: blanks, pairs, ids and the balance of counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import Int64Array, TextBlock
from layerbeam.transforms.commits import BlockId, Rejected
from layerbeam.transforms.read.sentences import split_sentences
from layerbeam.transforms.settings import RecordFormat


@dataclasses.dataclass
class Records:
    """The R decoded records of a block, as columns.

    `texts`: string [R]; `line`: int64 [R]; `pairs`: string [R] or None; `fields`: {name: [R]}, `id` first.
    `num_blank`: records outside of these that are always blank (empty lines between JSON objects).
    """

    texts: pa.StringArray
    line: Int64Array
    rejected: list[Rejected]
    pairs: pa.StringArray | None = None
    fields: dict[str, pa.Array] = dataclasses.field(default_factory=dict)
    num_blank: int = 0


def make_texts(block: BlockId, records: Records, record_format: RecordFormat) -> TextBlock:
    """The block's texts: blank records dropped or kept, each record counted once, pairs and sentences split."""
    counts = dict.fromkeys((metrics.RECORDS, metrics.EMBEDDED, metrics.BLANK, metrics.FILTERED, metrics.REJECTED), 0)
    counts[metrics.RECORDS] = len(records.texts) + len(records.rejected) + records.num_blank
    counts[metrics.REJECTED] = len(records.rejected)
    counts[metrics.BLANK] = records.num_blank
    texts, line, pairs, fields = records.texts, records.line, records.pairs, records.fields
    keep_blank = record_format.blank == "keep"
    if not keep_blank:
        full = ~_is_blank(texts)
        if pairs is not None:
            full |= ~_is_blank(pairs)
        if not full.all():
            keep = pa.array(full)
            counts[metrics.BLANK] += int(np.count_nonzero(~full))
            texts, line = texts.filter(keep), line[full]
            pairs = None if pairs is None else pairs.filter(keep)
            fields = {name: column.filter(keep) for name, column in fields.items()}
    counts[metrics.EMBEDDED] = len(texts)
    if record_format.id_field is not None:
        ids = fields["id"].drop_null()
        counts[metrics.DUPLICATE_IDS] = len(ids) - len(ids.unique())
    pair_offset = None
    if pairs is not None:
        pairs = pc.if_else(_is_blank(pairs), pa.scalar(None, pa.string()), pairs)
        pair_offset = np.zeros(len(texts), np.int32)
    if record_format.pair_separator is not None:
        texts, pairs, pair_offset = split_pairs(texts, record_format.pair_separator)
    zeros = np.zeros(len(texts), np.int32)
    result = TextBlock(block, texts, line, zeros, zeros, counts, records.rejected, pairs, pair_offset, fields)
    return split_sentences(result, keep_blank=keep_blank) if record_format.unit == "sentence" else result


def _is_blank(texts: pa.StringArray) -> npt.NDArray[np.bool_]:
    """Which texts are null or only white space."""
    blank: Any = pc.equal(pc.utf8_trim_whitespace(texts), "").fill_null(True)
    return np.asarray(blank.to_numpy(zero_copy_only=False), bool)


def split_pairs(
    texts: pa.StringArray, separator: str
) -> tuple[pa.StringArray, pa.StringArray | None, npt.NDArray[np.int32] | None]:
    """(first texts, second texts, first code point of each second text); (texts, None, None) if no text is a pair.

    Like extract_features.py, which strips a line before it looks for the separator: `a ||| ` without a second text is
    the single text `a ||| `.
    """
    found = np.flatnonzero(pc.match_substring(texts, separator).to_numpy(zero_copy_only=False))
    if not len(found):
        return texts, None, None
    first: list[str] = texts.to_pylist()
    second: list[str | None] = [None] * len(first)
    offset = np.zeros(len(first), np.int32)
    for index in found.tolist():
        text = first[index]
        before = len(text) - len(text.lstrip())
        head, tail = split_pair(text.strip(), separator)
        if tail is not None and tail.strip():
            place = before + len(head)
            first[index], second[index] = text[:place], text[place + len(separator) :]
            offset[index] = place + len(separator)
    if not offset.any():
        return texts, None, None
    return pa.array(first, pa.string()), pa.array(second, pa.string()), offset


def split_pair(text: str, separator: str) -> tuple[str, str | None]:
    """The two texts of a line, split at the last separator; the second is None without a separator.

    extract_features.py, whose separator is ` ||| `, also matches greedily, so that the last one counts.

    >>> split_pair("a ||| b ||| c", " ||| "), split_pair("only |||one", " ||| ")
    (('a ||| b', 'c'), ('only |||one', None))
    """
    first, found, second = text.rpartition(separator)
    return (first, second) if found else (text, None)


def lone_surrogate(text: str) -> str | None:
    """Why a text cannot be written as UTF-8: it contains half of a surrogate pair. None if it can.

    >>> lone_surrogate("a\\ud800")
    'lone surrogate U+D800 at character 1'
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
    return None
