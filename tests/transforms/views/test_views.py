from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest

from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, take_texts
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.views.columns import (
    batch_vectors,
    combine_layers,
    finish_vectors,
    make_table,
    pool,
    row_bytes,
    schema,
)
from layerbeam.transforms.views.view import ViewSpec, needed_layers

HIDDEN = 4
VOCABULARY = pa.array(["[PAD]", "[CLS]", "[SEP]", "a", "##b"])


@dataclasses.dataclass
class Case:
    """A block that went through the encoder as one batch."""

    tokens: TokenBlock
    layers: dict[int, np.ndarray]
    pooled_output: np.ndarray

    def table(self, view: ViewSpec) -> pa.Table:
        rows = rows_of(view, self.tokens)
        tokens = dataclasses.replace(self.tokens, rows={view.name: rows})
        positions = rows.text if view.uses_pooler else rows.positions
        vectors = batch_vectors(view, self.layers, self.pooled_output, positions, rows.splits)
        return make_table(view, tokens, [finish_vectors(view, tokens, values) for values in vectors], VOCABULARY)


@pytest.fixture
def block() -> Case:
    """Two texts, "a ab" and one that cleans to nothing: 5 + 2 tokens, layers 0 to 2."""
    text = dataclasses.replace(TextBlock.of(["a ab", "\u200b"], name="corpus/a.txt"), line=np.array([7, 9]))
    tokens = TokenBlock(
        text=text,
        row_splits=np.array([0, 5, 7]),
        token_ids=np.array([1, 3, 3, 4, 2, 1, 2], np.int32),
        segment_ids=np.zeros(7, np.int8),
        start=np.array([-1, 0, 2, 3, -1, -1, -1], np.int32),
        end=np.array([-1, 1, 3, 4, -1, -1, -1], np.int32),
        word_char=np.array([-1, 0, 2, 3, -1, -1, -1], np.int32),
        word_index=np.array([-1, 0, 1, 1, -1, -1, -1], np.int32),
        num_dropped=np.array([6, 0], np.int32),
        form=np.array([-1, 0, 1, 1, -1, -1, -1], np.int32),
        forms=pa.array(["a", "ab"]),
    )
    random = np.random.default_rng(0)
    layers = {layer: random.standard_normal((7, HIDDEN), np.float32) for layer in range(3)}
    return Case(tokens, layers, random.standard_normal((2, HIDDEN), np.float32))


def view(**settings) -> ViewSpec:
    return ViewSpec(**{"name": "v", "level": "token", "layers": (2, 0), "hidden_size": HIDDEN} | settings)


def vectors(table: pa.Table, column: str) -> np.ndarray:
    return np.array(table[column].to_pylist())


def test_token_rows(block):
    table = block.table(view())
    assert table.column_names == [
        *("file", "line", "sentence", "start", "end", "token_index", "word_index", "token", "token_id", "segment_id"),
        *("layer_2", "layer_0"),
    ]
    third = ("corpus/a.txt", 7, 0, 2, 3, 2, 1, "a", 3, 0)
    assert tuple(table.drop(["layer_2", "layer_0"]).to_pylist()[2].values()) == third
    assert table["token"].to_pylist() == ["[CLS]", "a", "a", "##b", "[SEP]", "[CLS]", "[SEP]"]
    assert table["token_index"].to_pylist() == [0, 1, 2, 3, 4, 0, 1]
    assert table["line"].to_pylist() == [7] * 5 + [9] * 2
    np.testing.assert_array_equal(vectors(table, "layer_2"), block.layers[2])
    np.testing.assert_array_equal(vectors(table, "layer_0"), block.layers[0])


def test_token_rows_without_special_tokens(block):
    table = block.table(view(special_tokens=False))
    assert table["token"].to_pylist() == ["a", "a", "##b"]
    np.testing.assert_array_equal(vectors(table, "layer_0"), block.layers[0][1:4])


def test_text_rows(block):
    table = block.table(view(level="text"))
    assert table.drop(["layer_2", "layer_0"]).to_pylist() == [
        {"file": "corpus/a.txt", "line": 7, "sentence": 0, "start": 0, "end": 4}
        | {"text": "a ab", "num_tokens": 3, "num_dropped": 6, "num_unknown": 0},
        {"file": "corpus/a.txt", "line": 9, "sentence": 0, "start": 0, "end": 1}
        | {"text": "\u200b", "num_tokens": 0, "num_dropped": 0, "num_unknown": 0},
    ]


def test_word_rows(block):
    table = block.table(view(level="word", include_text=True))
    assert table.drop(["layer_2", "layer_0"]).to_pylist() == [
        {
            "file": "corpus/a.txt",
            "line": 7,
            "sentence": 0,
            "start": start,
            "end": end,
            "word_index": index,
            "word": word,
            "text": "a ab",
            "num_tokens": tokens,
        }
        for index, (start, end, word, tokens) in enumerate([(0, 1, "a", 1), (2, 4, "ab", 2)])
    ]


def test_record_rows(block):
    block.tokens.text.line = np.array([7, 7])
    block.tokens.text.sentence = np.array([0, 1], np.int32)
    table = block.table(view(level="record", layers=(1,)))
    assert table.drop(["layer_1"]).to_pylist() == [{"file": "corpus/a.txt", "line": 7, "num_texts": 2}]
    means = [block.layers[1][:5].mean(axis=0), block.layers[1][5:].mean(axis=0)]
    np.testing.assert_allclose(vectors(table, "layer_1"), [np.mean(means, axis=0)], atol=1e-6)


def test_columns_copied_from_the_input(block):
    block.tokens.text.fields = {"id": pa.array(["x", None]), "year": pa.array([1611, None], pa.int64())}
    fields = (("id", "string"), ("year", "int64"))
    for level, expected in (("token", ["x"] * 5 + [None] * 2), ("word", ["x"] * 2), ("text", ["x", None])):
        table = block.table(view(level=level, fields=fields))
        assert table.column_names[:4] == ["file", "id", "year", "line"]
        assert table["id"].to_pylist() == expected
        assert table.schema.field("year").nullable


def plain(block: Case, view: ViewSpec) -> list[np.ndarray]:
    """The reference: the view's vectors text by text, in float64."""
    if view.uses_pooler:
        columns = [block.pooled_output.astype(np.float64)]
    else:
        layers = [block.layers[layer].astype(np.float64) for layer in view.layers]
        columns = {
            "separate": layers,
            "sum": [sum(layers)],
            "mean": [sum(layers) / len(layers)],
            "concat": [np.hstack(layers)],
        }[view.combine]
        if view.level in ("text", "record"):
            columns = [np.stack([plain_pool(block, column, text, view) for text in range(2)]) for column in columns]
        elif view.level == "word":
            columns = [np.stack([plain_word(column[1:2], view), plain_word(column[2:4], view)]) for column in columns]
        elif not view.special_tokens:
            columns = [column[1:4] for column in columns]
    finished = []
    for column in columns:
        column = column[:, : view.truncate_dim]
        if view.normalize:
            column = np.stack([row / (np.sqrt((row**2).sum()) or 1) for row in column])
        finished.append(column)
    return finished


def plain_pool(block: Case, column: np.ndarray, text: int, view: ViewSpec) -> np.ndarray:
    rows = {0: column[0:5], 1: column[5:7]}[text]
    if view.pooling == "cls":
        return rows[0]
    if not view.special_tokens:
        rows = rows[1:-1]
    if len(rows) == 0:
        return np.zeros(column.shape[1] * (2 if view.pooling == "mean_max" else 1))
    means, maxima = rows.mean(axis=0), rows.max(axis=0)
    return {
        "last": rows[-1],
        "mean": means,
        "max": maxima,
        "mean_max": np.concatenate([means, maxima]),
        "mean_sqrt_len": rows.sum(axis=0) / len(rows) ** 0.5,
        "weighted_mean": sum(place * row for place, row in enumerate(rows, 1)) / sum(range(1, len(rows) + 1)),
    }[view.pooling]


def plain_word(rows: np.ndarray, view: ViewSpec) -> np.ndarray:
    poolings = {"mean": rows.mean(axis=0), "sum": rows.sum(axis=0), "max": rows.max(axis=0)}
    return (poolings | {"first": rows[0], "last": rows[-1]})[view.pooling]


COMBINATIONS = [
    {"level": level, "pooling": pooling, "combine": combine}
    for level, poolings in (
        ("token", ["mean"]),
        ("word", ["first", "last", "mean", "sum", "max"]),
        ("text", ["cls", "last", "mean", "max", "mean_max", "mean_sqrt_len", "weighted_mean"]),
        ("record", ["mean"]),
    )
    for pooling, combine in itertools.product(poolings, ["separate", "sum", "mean", "concat"])
] + [{"level": "text", "pooling": "pooler", "layers": ()}]


FINISHES = [{}, {"truncate_dim": 3}, {"normalize": True}, {"truncate_dim": 3, "normalize": True}]


@pytest.mark.parametrize("settings", COMBINATIONS, ids=lambda s: "-".join(map(str, s.values())))
def test_vectors_equal_the_reference_computation(block, settings):
    for special_tokens, finish, dtype in itertools.product([True, False], FINISHES, ["float32", "float16"]):
        asked = view(**settings, **finish, special_tokens=special_tokens, dtype=dtype)
        table = block.table(asked)
        assert table.schema.equals(schema(asked))
        expected = plain(block, asked)
        assert len(expected) == len(asked.vector_columns)
        for column, values in zip(asked.vector_columns, expected, strict=True):
            assert table.schema.field(column).type.value_type == pa.from_numpy_dtype(np.dtype(dtype))
            np.testing.assert_allclose(vectors(table, column), values, atol=2e-3 if dtype == "float16" else 1e-5)


def test_block_without_texts_gives_no_rows(block):
    nothing = np.zeros(0, np.int64)
    tokens = take_texts(block.tokens, block.tokens.text.take(nothing), nothing)
    none = {layer: np.zeros((0, HIDDEN), np.float32) for layer in range(3)}
    empty = Case(tokens, none, np.zeros((0, HIDDEN), np.float32))
    for level in ("token", "word", "text", "record"):
        assert empty.table(view(level=level)).num_rows == 0
    assert empty.table(view(level="text", pooling="pooler", layers=())).num_rows == 0


def test_one_text_does_not_leak_into_the_next():
    values = np.array([[1.0], [2.0], [30.0], [50.0]], np.float32)
    splits = np.array([0, 2, 2, 4])
    assert pool(values, splits, "mean").tolist() == [[1.5], [0.0], [40.0]]
    assert pool(values, splits, "max").tolist() == [[2.0], [0.0], [50.0]]
    assert pool(values, splits, "sum").tolist() == [[3.0], [0.0], [80.0]]
    assert pool(values, splits, "first").tolist() == [[1.0], [0.0], [30.0]]
    assert pool(values, splits, "last").tolist() == [[2.0], [0.0], [50.0]]
    assert pool(values, splits, "mean_max").tolist() == [[1.5, 2.0], [0.0, 0.0], [40.0, 50.0]]
    np.testing.assert_allclose(pool(values, splits, "mean_sqrt_len"), np.array([[3], [0], [80]]) / 2**0.5, rtol=1e-6)
    # (1 * 1 + 2 * 2) / 3 and (1 * 30 + 2 * 50) / 3
    np.testing.assert_allclose(pool(values, splits, "weighted_mean"), np.array([[5], [0], [130]]) / 3, rtol=1e-6)


def test_summing_does_not_change_the_layers():
    layers = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)]
    assert combine_layers(layers, "sum")[0].tolist() == [[2, 2], [2, 2]]
    assert layers[0].tolist() == [[1, 1], [1, 1]]


def test_layers_needed_by_all_views():
    assert needed_layers(
        [view(layers=(5, 1)), view(layers=(1, 2)), view(level="text", pooling="pooler", layers=())]
    ) == (1, 2, 5)


def test_row_bytes():
    assert row_bytes(view(hidden_size=384, layers=(6, 5, 4, 3))) == 4 * 384 * 4
    assert row_bytes(view(hidden_size=384, layers=(6, 5), combine="concat", dtype="float16")) == 2 * 384 * 2
    assert row_bytes(view(hidden_size=384, layers=(6, 5), dtype="int8")) == 2 * (384 + 4)
