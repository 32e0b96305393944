"""What flows between the stages, declared once.

Shapes, here and everywhere below: T texts in a block, N tokens of those texts with [CLS] and [SEP],
B texts in a batch, S padded tokens in a batch, H hidden size, L Transformer blocks.

From reading to writing, one object per block is handed on by reference. It holds NumPy and Arrow arrays, never a
Python object per row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.transforms.commits import BlockId, Commit, InputFile, Rejected

BoolArray = npt.NDArray[np.bool_]
Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

# The types that a kept field may be declared as.
FIELD_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}


def row_splits_of(counts: npt.NDArray[Any]) -> Int64Array:
    """Where each row begins and, at the end, where the last one ends: row i is `row_splits[i]:row_splits[i + 1]`.

    >>> row_splits_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


def row_of_each(row_splits: Int64Array) -> Int64Array:
    """Of each of the values that `row_splits` cuts into rows, its row.

    >>> row_of_each(np.array([0, 2, 2, 5])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(row_splits) - 1), np.diff(row_splits))


@dataclasses.dataclass
class Slice:
    """A byte range of one file (lines: that of one block; Parquet: some row groups), and what of it is already done.

    A record belongs to the slice in which its first byte lies. `first_line` counts the line ends before `start`.
    A compressed file is one slice: `start` 0, `end` None.
    """

    file: InputFile
    start: int
    end: int | None
    first_line: int
    done: tuple[Commit, ...] = ()


@dataclasses.dataclass
class TextBlock:
    """Consecutive texts of one slice.

    `texts`: string [T]; `line`: int64 [T], the record's first line; `sentence`: int32 [T], from 0 in the record;
    `offset`: int32 [T], where the text begins in its record, in code points. `counts` balances:
    records = embedded (T where the unit is the record) + blank + filtered + rejected.

    `pairs`: string [T], the second text of each pair, null where there is none; `pair_offset` as `offset`, of these.
    Both None where no text is a pair. `fields`: columns that go through to the output (`id` and kept fields), [T] each,
    of the declared types, null where a record has none.
    """

    block: BlockId
    texts: pa.StringArray
    line: Int64Array
    sentence: Int32Array
    offset: Int32Array
    counts: dict[str, int]
    rejected: list[Rejected]
    pairs: pa.StringArray | None = None
    pair_offset: Int32Array | None = None
    fields: dict[str, pa.Array] = dataclasses.field(default_factory=dict)

    def take(self, texts: Int64Array) -> TextBlock:
        """The block with these of its texts only; its counts are as they were."""
        index = pa.array(texts)
        return dataclasses.replace(
            self,
            texts=self.texts.take(index),
            line=self.line[texts],
            sentence=self.sentence[texts],
            offset=self.offset[texts],
            pairs=None if self.pairs is None else self.pairs.take(index),
            pair_offset=None if self.pair_offset is None else self.pair_offset[texts],
            fields={name: values.take(index) for name, values in self.fields.items()},
        )


def _no_int32() -> Int32Array:
    return np.empty(0, np.int32)


def _no_strings() -> pa.StringArray:
    return pa.array([], pa.string())


@dataclasses.dataclass
class DroppedTokens:
    """The tokens of a block that were cut off, int32 [D] each: their text, segment, place, word and its form."""

    text: Int32Array = dataclasses.field(default_factory=_no_int32)
    segment: Int32Array = dataclasses.field(default_factory=_no_int32)
    start: Int32Array = dataclasses.field(default_factory=_no_int32)
    word_index: Int32Array = dataclasses.field(default_factory=_no_int32)
    form: Int32Array = dataclasses.field(default_factory=_no_int32)


@dataclasses.dataclass
class Words:
    """Where the rows of a view stand in their records: int32 [R] each. `forms[form]`: the word as it is normalized.

    `segment`: int8 [R], 1 in the second text of a pair.
    """

    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    form: Int32Array
    segment: Int8Array
    forms: pa.StringArray


@dataclasses.dataclass
class Rows:
    """Which tokens the R rows of a view are made of, in the order of the texts.

    `text`: int64 [R]; row r has the block's tokens `positions[splits[r]:splits[r + 1]]`. `words`: of rows of words.
    `counts`: what is to be counted of them, by name.
    """

    text: Int64Array
    positions: Int64Array
    splits: Int64Array
    words: Words | None = None
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TokenBlock:
    """The tokens of a block's texts, [CLS] and [SEP] included, one text after the other.

    Text t has the tokens `row_splits[t]:row_splits[t + 1]`. `row_splits`: int64 [T + 1]; `token_ids`: int32 [N];
    `segment_ids`: int8 [N]; `start`, `end`: int32 [N], code points of the record, -1 for special tokens;
    `word_index`: int32 [N], from 0 in the text, -1 for special tokens; `num_dropped`: int32 [T], tokens lost to
    `max_seq_length`; `form`: int32 [N], the word that the token is of is `forms[form]`, -1 for special tokens.
    `rows`: of each view.
    """

    text: TextBlock
    row_splits: Int64Array
    token_ids: Int32Array
    segment_ids: Int8Array
    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    num_dropped: Int32Array
    form: Int32Array = dataclasses.field(default_factory=_no_int32)
    forms: pa.StringArray = dataclasses.field(default_factory=_no_strings)
    dropped: DroppedTokens = dataclasses.field(default_factory=DroppedTokens)
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class VectorBlock:
    """What the views keep of a block: `vectors[view]` holds an array for each of its vector columns.

    float32 or float16, [R, W]: a row for each of `tokens.rows[view]`; at record level for each record. The layers
    themselves are never held for a whole block: a view of texts needs a hundredth of their memory.
    """

    tokens: TokenBlock
    vectors: dict[str, list[npt.NDArray[Any]]]


def token_positions(row_splits: Int64Array, texts: Int64Array) -> Int64Array:
    """Where the tokens of these texts stand, one text after the other: int64, the sum of their lengths.

    >>> token_positions(np.array([0, 2, 3, 6]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    lengths = np.diff(row_splits)[texts]
    before = np.cumsum(lengths) - lengths
    return np.repeat(row_splits[texts] - before, lengths) + np.arange(int(lengths.sum()))
