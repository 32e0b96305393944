"""The vectors and columns of a view's rows: layers combined, texts pooled, as an Arrow table with fixed columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow.blocks import (
    FIELD_TYPES,
    Float32Array,
    Int8Array,
    Int32Array,
    Int64Array,
    TextBlock,
    TokenBlock,
    row_splits_of,
)
from layerbeam.transforms.flow.commits import printable
from layerbeam.transforms.views.number_types import NUMBER_TYPES, in_lists, list_type
from layerbeam.transforms.views.view import COLUMNS, Combine, ViewSpec

if TYPE_CHECKING:  # it imports this module
    from layerbeam.transforms.encoders.device import DeviceLayer

# What an encoder gives of one layer: [n, H].
Layer: TypeAlias = "Float32Array | DeviceLayer"

# Poolings that are a sum, weighted or not, divided by a function of the number of tokens. The last two are
# sentence-transformers' mean_sqrt_len_tokens and weightedmean (its modules/pooling.py).
SUMS: Mapping[str, Callable[[Int64Array], npt.NDArray[Any]]] = {
    "sum": np.ones_like,
    "mean": np.asarray,
    "mean_sqrt_len": np.sqrt,
    "weighted_mean": lambda counts: counts * (counts + 1) // 2,
}


# Names of the unknown token.
UNKNOWN = ("[UNK]", "<unk>")


def schema(view: ViewSpec) -> pa.Schema:
    """The view's columns. Only columns copied from the input are nullable: readers fail on null vectors."""
    with_text = {"text"} if view.include_text else set()
    declared = [c for c in COLUMNS if view.level in c.levels.split() or c.name in with_text]
    columns = [pa.field(column.name, column.type, nullable=False) for column in declared]
    kept = view.key_fields if view.aggregates else view.fields
    copied = [pa.field(name, FIELD_TYPES[type_], nullable=name != "file") for name, type_ in kept]
    after = 0 if view.aggregates else 1
    vectors = [name + end for name in view.vector_columns for end in (("", "_std") if view.aggregates else ("",))]
    stored = [field for name in vectors for field in NUMBER_TYPES[view.dtype].fields(name, view.width)]
    if view.has_vector_lists:
        stored = [field.with_type(list_type(field.type)) for field in stored]
    return pa.schema([*columns[:after], *copied, *columns[after:], *stored])


def row_bytes(view: ViewSpec) -> int:
    """Bytes of the vectors of one row, or of one token of a view with lists, before compression."""
    return len(view.vector_columns) * NUMBER_TYPES[view.dtype].row_bytes(view.width)


def batch_vectors(
    view: ViewSpec,
    layers: Mapping[int, Layer],
    pooled_output: Float32Array | None,
    positions: Int64Array,
    splits: Int64Array,
) -> list[Float32Array]:
    """The vectors of r rows, an array [r, W] per vector column, before the dense modules and `finish_vectors`.

    `layers[k]`: [n, H], `pooled_output`: [B, H] for B texts from the encoder. Row i is made of the tokens
    `positions[splits[i]:splits[i + 1]]`; for the pooler `positions` are indices of texts.
    """
    width = None if view.dense_modules else view.width
    if view.uses_pooler:
        if pooled_output is None:
            raise ValueError(f"view {view.name} reads the pooled output, which the encoder did not compute")
        return [pooled_output[positions][:, :width]]
    given = [layers[layer] for layer in view.layers]
    is_pooled = not view.has_token_vectors and not (view.level == "text" and view.pooling == "cls")
    pooling = "mean" if view.level in ("record", "word_type") else view.pooling
    on_device = [layer for layer in given if not isinstance(layer, np.ndarray)]
    if on_device and is_pooled and _is_poolable(view.combine, pooling):
        pooled = [layer.pool(positions, splits, pooling) for layer in on_device]
        return [values[:, :width] for values in combine_layers(pooled, view.combine)]
    columns = combine_layers([_at(layer, positions) for layer in given], view.combine)
    if view.pooling != "mean_max":
        columns = [values[:, :width] for values in columns]
    if not is_pooled:
        return columns
    return [pool(values, splits, pooling)[:, :width] for values in columns]


def _is_poolable(combine: Combine, pooling: str) -> bool:
    """Whether layers can be pooled before they are combined: the maximum of a sum is not the sum of the maxima."""
    return pooling != "mean_max" and (pooling != "max" or combine in ("separate", "concat"))


def _at(layer: Layer, positions: Int64Array) -> Float32Array:
    """The layer's rows at `positions`, without a copy if these are the first rows in order, as in most views.

    Rows are gathered before layers are combined, so a view that keeps few words computes few rows.
    """
    if not isinstance(layer, np.ndarray):
        return layer.take(positions)
    if np.array_equal(positions, np.arange(len(positions))):
        return layer[: len(positions)]
    return layer[positions]


def records_of(block: TextBlock) -> Int64Array:
    """Index of each record's first text, and T at the end: int64. All texts of a record are in one block."""
    begins = np.flatnonzero(np.diff(block.line, prepend=-1) != 0)
    return np.append(begins, len(block.line)).astype(np.int64)


def finish_vectors(view: ViewSpec, tokens: TokenBlock, vectors: Float32Array) -> npt.NDArray[Any]:
    """A block's vector column: records averaged over their texts, unit length, in what the number type stores."""
    if view.level == "record":
        splits = records_of(tokens.text)
        vectors = pool(vectors, splits, "mean")
    if view.normalize:
        norms: Float32Array = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[norms == 0] = 1
        vectors = vectors / norms
    return vectors if view.aggregates else NUMBER_TYPES[view.dtype].round(vectors)


def texts_of_rows(view: ViewSpec, tokens: TokenBlock) -> Int64Array:
    """The text of each row of the view's table; of a record, its first one."""
    if view.has_vector_lists:
        return np.arange(len(tokens.num_dropped))
    return records_of(tokens.text)[:-1] if view.level == "record" else tokens.rows[view.name].text


def vector_splits(view: ViewSpec, tokens: TokenBlock) -> Int64Array:
    """The vectors of each text in a view: text t has `splits[t]:splits[t + 1]`. int64 [T + 1]."""
    return row_splits_of(np.bincount(tokens.rows[view.name].text, minlength=len(tokens.num_dropped)))


def row_columns(view: ViewSpec, tokens: TokenBlock, vocabulary: pa.StringArray) -> dict[str, pa.Array]:
    """The other columns of the view's rows of a block, in the order line, sentence, index."""
    rows = tokens.rows[view.name]
    text = texts_of_rows(view, tokens)
    columns = _level_columns(view, tokens, vocabulary)
    block, place = tokens.text, pa.array(text)
    file, line = block.file_lines(block.line[text])
    paths = pa.array([printable(file_range.file.path) for file_range in block.files])
    columns |= {"file": paths.take(pa.array(file)), "line": line, "sentence": block.sentence[text]}
    if view.include_text:
        columns["text"] = block.texts.take(place)
        if block.pairs is not None:
            second = columns["segment_id"] if rows.words is None else rows.words.segment
            columns["text"] = pc.if_else(pa.array(second == 1), block.pairs.take(place), columns["text"])
    words = columns.get("word_index")
    columns |= {name: block.column_of_rows(name, text, words) for name, _ in view.fields}
    return {field.name: pa.array(columns[field.name], field.type) for field in schema(view) if field.name in columns}


def make_table(
    view: ViewSpec, tokens: TokenBlock, vectors: list[npt.NDArray[Any]], vocabulary: pa.StringArray
) -> pa.Table:
    """The view's rows of a block, in the order line, sentence, index."""
    columns = row_columns(view, tokens, vocabulary)
    stored: dict[str, pa.Array] = {}
    for name, values in zip(view.vector_columns, vectors, strict=True):
        stored |= NUMBER_TYPES[view.dtype].store(name, values)
    if view.has_vector_lists:
        splits = vector_splits(view, tokens)
        stored = {name: in_lists(elements, splits) for name, elements in stored.items()}
    columns |= stored
    return pa.Table.from_pydict(columns, schema(view))


def text_splits(table: pa.Table) -> Int64Array:
    """Row index where each text of a view's table begins, and the number of rows at the end.

    A text has several rows only if the rows are tokens or words.
    """
    if not {"token", "word_index"}.intersection(table.column_names):
        return np.arange(table.num_rows + 1)
    return splits_by_text(table)


def splits_by_text(table: pa.Table) -> Int64Array:
    """As `text_splits`, by the columns `line`, `sentence` and, if the table has it, `file`."""
    return splits_by(table, [name for name in ("file", "line", "sentence") if name in table.column_names])


def splits_by(table: pa.Table, names: Sequence[str]) -> Int64Array:
    """Row index where one of these columns changes, first and last row included: int64."""
    columns = (table[name].combine_chunks() for name in names)
    values = (c.dictionary_encode().indices if pa.types.is_string(c.type) else c for c in columns)
    begins = np.flatnonzero(np.any([np.diff(column.to_numpy()) != 0 for column in values], axis=0)) + 1
    return np.concatenate((np.zeros(1, np.int64), begins, np.full(min(table.num_rows, 1), table.num_rows)))


def unknown_id(vocabulary: pa.StringArray) -> int:
    """The id of the unknown token; -1 if there is none. A vocabulary with both names (MPNet) uses the first."""
    ids = (vocabulary.index(name).as_py() for name in UNKNOWN)
    return next((token_id for token_id in ids if token_id >= 0), -1)


def _level_columns(view: ViewSpec, tokens: TokenBlock, vocabulary: pa.StringArray) -> dict[str, Any]:
    """The columns that only rows of the view's level have."""
    text, rows = tokens.text, tokens.rows[view.name]
    if view.level == "record":
        return {"num_texts": np.diff(records_of(text))}
    if view.level == "text":
        return {
            "start": text.offset,
            "end": text.offset + pc.utf8_length(text.texts).to_numpy(),
            "text": text.texts,
            "num_tokens": tokens.in_each_text(tokens.start >= 0),
            "num_dropped": tokens.num_dropped,
            "num_unknown": tokens.in_each_text(tokens.token_ids == unknown_id(vocabulary)),
        }
    if rows.words is not None:
        words = rows.words
        characters = own_characters(text, rows.text, words.segment, words.start, words.end)
        return {
            "start": words.start,
            "end": words.end,
            "word_index": words.word_index,
            "word": pa.array(characters, pa.string()),
            "num_tokens": np.diff(rows.splits),
        }
    ids = tokens.token_ids[rows.positions]
    return {
        "start": tokens.start[rows.positions],
        "end": tokens.end[rows.positions],
        "token_index": rows.positions - tokens.row_splits[rows.text],
        "word_index": tokens.word_index[rows.positions],
        "token": vocabulary.take(pa.array(ids)),
        "token_id": ids,
        "segment_id": tokens.segment_ids[rows.positions],
    }


def own_characters(
    block: TextBlock, text: Int64Array, segment: Int8Array, start: Int32Array, end: Int32Array
) -> list[str]:
    """The record's own characters in each of these spans; segment 1 is the second text of a pair."""
    sides = [(block.texts.to_pylist(), block.offset.tolist())]
    if block.pairs is not None and block.pair_offset is not None:
        sides.append((block.pairs.to_pylist(), block.pair_offset.tolist()))
    spans = zip(text.tolist(), segment.tolist(), start.tolist(), end.tolist(), strict=True)
    return [
        sides[side][0][index][first - sides[side][1][index] : last - sides[side][1][index]]
        for index, side, first, last in spans
    ]


def combine_layers(layers: list[Float32Array], combine: Combine) -> list[Float32Array]:
    """One array per layer (`separate`), or a single array: their sum, mean or concatenation in the order given."""
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


def unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """[n, W] in float64, scaled to length 1; zero vectors stay zero."""
    values = vectors.astype(np.float64)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.where(norms == 0, 1, norms))


def pool(vectors: Float32Array, splits: Int64Array, pooling: str) -> Float32Array:
    """[R, W] from [P, W]: row r pools `vectors[splits[r]:splits[r + 1]]`; zeros if that is empty.

    `pooling`: first, last, max, mean_max (both concatenated), or one of SUMS.
    """
    if pooling == "mean_max":
        return np.concatenate([pool(vectors, splits, part) for part in ("mean", "max")], axis=1)
    counts = np.diff(splits)
    filled = np.flatnonzero(counts)
    starts = splits[:-1][filled]
    if pooling == "first":
        pooled = vectors[starts]
    elif pooling == "last":
        pooled = vectors[splits[1:][filled] - 1]
    elif pooling == "max":
        pooled = np.maximum.reduceat(vectors, starts, axis=0)
    elif pooling in SUMS:
        weighted = vectors * places(counts)[:, None] if pooling == "weighted_mean" else vectors
        pooled = np.add.reduceat(weighted, starts, axis=0)
        if pooling != "sum":
            pooled = (pooled / divisors(counts[filled], pooling)[:, None]).astype(np.float32, copy=False)
    else:
        raise ValueError(f"pooling is {pooling!r}; allowed: first, last, max, mean_max, {', '.join(SUMS)}")
    if len(filled) == len(counts):
        return pooled
    padded = np.zeros((len(counts), vectors.shape[1]), np.float32)
    padded[filled] = pooled
    return padded


def places(counts: Int64Array) -> Float32Array:
    """[P]: the place of each vector in its row, from 1: its weight in a weighted mean.

    >>> places(np.array([2, 0, 3])).tolist()
    [1.0, 2.0, 1.0, 2.0, 3.0]
    """
    before = np.cumsum(counts) - counts
    return (np.arange(1, counts.sum() + 1) - np.repeat(before, counts)).astype(np.float32)


def divisors(counts: Int64Array, pooling: str) -> Float32Array:
    """[R]: what the sum of n vectors is divided by: 1, n, the square root of n, or the sum of the weights 1 to n.

    >>> divisors(np.array([4]), "mean_sqrt_len").tolist(), divisors(np.array([4]), "weighted_mean").tolist()
    ([2.0], [10.0])
    """
    return np.asarray(SUMS[pooling](counts), np.float32)
