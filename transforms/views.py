"""What a view keeps of the forward pass: layers combined, texts pooled, as an Arrow table with fixed columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from transforms import filesystem
from transforms.batching import token_positions
from transforms.records import FIELD_TYPES, Float32Array, Int64Array, TokenBlock

Level = Literal["token", "text"]
Combine = Literal["separate", "sum", "mean", "concat"]
Pooling = Literal["cls", "pooler", "mean", "max"]


@dataclasses.dataclass(frozen=True)
class View:
    """One thing to keep, with everything that a configuration may leave open resolved.

    `layers`: from 0 to L, in the order asked for, each once; empty for the pooler. `given_layers`: the same as they
    were written, -1 for the last. `hidden_size`: H of the encoder. `fields`: name and type of the columns that go
    through.
    """

    name: str
    level: Level
    layers: tuple[int, ...]
    hidden_size: int
    combine: Combine = "separate"
    pooling: Pooling = "mean"
    special_tokens: bool = True
    dims: int | None = None
    normalize: bool = False
    dtype: Literal["float32", "float16"] = "float32"
    given_layers: tuple[int, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    format: Literal["parquet", "tfrecord", "jsonl"] = "parquet"
    compress: bool = True

    @property
    def uses_pooler(self) -> bool:
        return self.level == "text" and self.pooling == "pooler"

    @property
    def vector_columns(self) -> tuple[str, ...]:
        """Names of the vector columns, in order."""
        if self.uses_pooler:
            return ("pooled_output",)
        if self.combine == "separate":
            return tuple(f"layer_{layer}" for layer in self.layers)
        return ("embedding",)

    @property
    def width(self) -> int:
        """Values in one vector."""
        full = self.hidden_size * (len(self.layers) if self.combine == "concat" else 1)
        return full if self.dims is None else min(self.dims, full)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's vectors, before compression."""
        return len(self.vector_columns) * self.width * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Column:
    """A column beside the vectors: its name, Arrow type, the levels that have it, and what it says."""

    name: str
    type: pa.DataType
    levels: frozenset[str]
    meaning: str


def _column(name: str, type_: pa.DataType, levels: str, meaning: str) -> Column:
    return Column(name, type_, frozenset(levels.split()), meaning)


COLUMNS = (
    _column("file", pa.string(), "token text", "the input file, as the glob matched it"),
    _column("line", pa.int64(), "token text", "the record's first line in its file, from 0"),
    _column("sentence", pa.int32(), "token text", "the text in its record, from 0; 0 where the record is the text"),
    _column("start", pa.int32(), "token text", "first code point in the record; -1 for special tokens"),
    _column("end", pa.int32(), "token text", "code point after the last; -1 for special tokens"),
    _column("token_index", pa.int32(), "token", "place in the text, from 0, which is [CLS]"),
    _column("word_index", pa.int32(), "token", "word of the text, from 0; -1 for special tokens"),
    _column("token", pa.string(), "token", "the WordPiece"),
    _column("token_id", pa.int32(), "token", "its id in the vocabulary"),
    _column("segment_id", pa.int8(), "token", "0, and 1 in the second text of a pair"),
    _column("text", pa.string(), "text", "the text itself"),
    _column("num_tokens", pa.int32(), "text", "tokens kept, without [CLS] and [SEP]"),
    _column("num_dropped", pa.int32(), "text", "tokens lost to max_seq_length"),
)


def schema(view: View) -> pa.Schema:
    """The view's columns. Only those that go through may be null: a reader of fixed-size lists fails on a null row."""
    columns = [pa.field(c.name, c.type, nullable=False) for c in COLUMNS if view.level in c.levels]
    through = [pa.field(name, FIELD_TYPES[type_]) for name, type_ in view.fields]
    fields = [*columns[:1], *through, *columns[1:]]
    type_ = vector_type(view.dtype, view.width)
    fields += [pa.field(name, type_, nullable=False) for name in view.vector_columns]
    return pa.schema(fields)


def needed_layers(views: Iterable[View]) -> tuple[int, ...]:
    """The layers that any of the views reads, ascending."""
    return tuple(sorted({layer for view in views for layer in view.layers}))


@dataclasses.dataclass
class BatchOutput:
    """One forward pass, n real tokens of B texts, row after row.

    `layers[k]`: [n, H]; `pooled_output`: [B, H] or None; `row_splits`: int64 [B + 1]; `is_special`: bool [n].
    """

    layers: Mapping[int, Float32Array]
    pooled_output: Float32Array | None
    row_splits: Int64Array
    is_special: npt.NDArray[np.bool_]


def empty_vectors(view: View, tokens: TokenBlock) -> list[npt.NDArray[Any]]:
    """Room for the view's vectors of a whole block, an array per vector column."""
    rows = len(tokens.token_ids) if view.level == "token" else len(tokens.num_dropped)
    return [np.empty((rows, view.width), view.dtype) for _ in view.vector_columns]


def rows_of_texts(view: View, tokens: TokenBlock, texts: Int64Array) -> Int64Array:
    """Where in `empty_vectors` these texts' rows stand, one text after the other."""
    return token_positions(tokens.row_splits, texts) if view.level == "token" else texts


def batch_vectors(view: View, batch: BatchOutput) -> list[npt.NDArray[Any]]:
    """The view's vectors of a batch, an array per vector column: [n, W] at token level, [B, W] at text level."""
    if view.uses_pooler:
        if batch.pooled_output is None:
            raise ValueError(f"view {view.name} reads the pooled output, which the encoder was not asked for")
        vectors = [batch.pooled_output]
    else:
        vectors = combine_layers([batch.layers[layer] for layer in view.layers], view.combine)
        if view.level == "text":
            counted = np.ones(len(batch.is_special), bool) if view.special_tokens else ~batch.is_special
            vectors = [pool(combined, batch.row_splits, counted, view.pooling) for combined in vectors]
    return [_finish(view, column) for column in vectors]


def make_table(view: View, tokens: TokenBlock, vectors: list[npt.NDArray[Any]], vocabulary: pa.StringArray) -> pa.Table:
    """The view's rows for a block, in the order line, sentence, index."""
    rows = _token_rows(tokens, vocabulary) if view.level == "token" else _text_rows(tokens)
    times = np.diff(tokens.row_splits) if view.level == "token" else np.ones(len(tokens.text.texts), np.int64)
    text = np.repeat(np.arange(len(times)), times)
    rows |= {name: tokens.text.fields[name].take(pa.array(text)) for name, _ in view.fields}
    columns = rows | {name: _vector_array(values) for name, values in zip(view.vector_columns, vectors, strict=True)}
    expected = schema(view)
    table = pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in expected], schema=expected)
    if view.level == "token" and not view.special_tokens:
        table = table.filter(pa.array(tokens.start >= 0))
    return table


def text_splits(table: pa.Table) -> Int64Array:
    """Where in a table of a view's rows each text begins and the last ends.

    Only where rows are parts of a text, tokens or words, can it be longer than one row.
    """
    if not {"token", "word_index"}.intersection(table.column_names):
        return np.arange(table.num_rows + 1)
    line, sentence = table["line"].to_numpy(), table["sentence"].to_numpy()
    begins = np.flatnonzero((np.diff(line) != 0) | (np.diff(sentence) != 0)) + 1
    return np.concatenate((np.zeros(1, np.int64), begins, np.full(min(table.num_rows, 1), table.num_rows)))


def _token_rows(tokens: TokenBlock, vocabulary: pa.StringArray) -> dict[str, Any]:
    text = tokens.text
    lengths = np.diff(tokens.row_splits)
    return {
        "file": _repeated(filesystem.printable(text.block.file.path), len(tokens.token_ids)),
        "line": np.repeat(text.line, lengths),
        "sentence": np.repeat(text.sentence, lengths),
        "start": tokens.start,
        "end": tokens.end,
        "token_index": np.arange(len(tokens.token_ids)) - np.repeat(tokens.row_splits[:-1], lengths),
        "word_index": tokens.word_index,
        "token": vocabulary.take(pa.array(tokens.token_ids)),
        "token_id": tokens.token_ids,
        "segment_id": tokens.segment_ids,
    }


def _text_rows(tokens: TokenBlock) -> dict[str, Any]:
    text = tokens.text
    return {
        "file": _repeated(filesystem.printable(text.block.file.path), len(text.texts)),
        "line": text.line,
        "sentence": text.sentence,
        "start": text.offset,
        "end": text.offset + pc.utf8_length(text.texts).to_numpy(),
        "text": text.texts,
        "num_tokens": np.add.reduceat(tokens.start >= 0, tokens.row_splits[:-1]) if len(text.texts) else [],
        "num_dropped": tokens.num_dropped,
    }


def _repeated(value: str, times: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(times, np.int32), [value]).cast(pa.string())


def combine_layers(layers: list[Float32Array], combine: Combine) -> list[Float32Array]:
    """One array per layer (`separate`), or one in all: their sum, mean, or values side by side in the order given."""
    if combine == "separate":
        return layers
    if combine == "concat":
        return [np.concatenate(layers, axis=1)]
    total = layers[0].copy()
    for layer in layers[1:]:
        total += layer
    if combine == "mean":
        total /= np.float32(len(layers))
    return [total]


def pool(vectors: Float32Array, row_splits: Int64Array, counted: npt.NDArray[np.bool_], pooling: str) -> Float32Array:
    """[T, W] of [N, W]: the vector of [CLS], or the mean or the maximum over the counted tokens of each text.

    Every text has tokens ([CLS] at least). One of which none is counted gets zeros.
    """
    if len(row_splits) == 1:
        return np.empty((0, vectors.shape[1]), np.float32)
    starts = row_splits[:-1]
    if pooling == "cls":
        return vectors[starts]
    if pooling == "mean":
        sums = np.add.reduceat(vectors if counted.all() else vectors * counted[:, None], starts, axis=0)
        counts = np.add.reduceat(counted, starts, dtype=np.float32)
        return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32, copy=False)
    if pooling == "max":
        largest = np.maximum.reduceat(np.where(counted[:, None], vectors, -np.inf), starts, axis=0)
        return np.where(np.isneginf(largest), np.float32(0), largest).astype(np.float32)
    raise ValueError(f"pooling is {pooling!r}; allowed: cls, mean, max")


def _finish(view: View, vectors: Float32Array) -> npt.NDArray[Any]:
    """The first `dims` dimensions, then unit length (zeros stay zeros), then the number type."""
    vectors = vectors[:, : view.width]
    if view.normalize:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms == 0, np.float32(1), norms)
    return vectors.astype(view.dtype, copy=False)


def _vector_array(vectors: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """[n, W] as n fixed-size lists, without a copy."""
    type_ = vector_type(vectors.dtype, vectors.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=type_)


def vector_type(dtype: npt.DTypeLike, width: int) -> pa.FixedSizeListType:
    """The Arrow type of a vector column."""
    return pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False), width)
