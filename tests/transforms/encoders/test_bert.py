from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from float_bounds import OF_TWO, Bounded, bounded_layers
from repository import DATA
from weights import random_weights

from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encode.batching import padded_shape, plan_batches
from layerbeam.transforms.encoders import load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Bert
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.hardware import Hardware, load_tensorflow

TINY = Bert(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=20,
    type_vocab_size=2,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
)


@pytest.fixture(autouse=True, scope="module")
def tensorflow():
    return load_tensorflow(Hardware(2))


@pytest.fixture(scope="module")
def everything(tensorflow) -> Network:
    """All layers and the pooled output of TINY."""
    return Network(TINY, random_weights(TINY), layers=[0, 1, 2], pooler=True)


def batch(rows: Sequence[np.ndarray], *, longest: int = 0, pad_id: int = 0) -> tuple[np.ndarray, ...]:
    """Token ids [B, S], lengths [B], segment ids [B, S] (all 0) of these rows."""
    lengths = np.array([len(row) for row in rows], np.int32)
    token_ids = np.full((len(rows), max(longest, *lengths, 0)), pad_id, np.int32)
    for target, row in zip(token_ids, rows, strict=True):
        target[: len(row)] = row
    return token_ids, lengths, np.zeros_like(token_ids)


def transformers_rows() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Ids of the texts, all layers [4, n, 64] of their tokens, pooled outputs, as transformers gave them."""
    saved = np.load(DATA / "transformers_uncased.npz")
    numbers = sorted(int(name.removeprefix("ids_")) for name in saved.files if name.startswith("ids_"))
    assert len(numbers) > 3
    hidden = np.concatenate([saved[f"hidden_{number}"] for number in numbers], axis=1)
    return [saved[f"ids_{number}"] for number in numbers], hidden, np.stack([saved[f"pooler_{n}"] for n in numbers])


@functools.cache
def bounded_rows() -> tuple[list[Bounded], Bounded]:
    source = open_encoder(str(DATA / "hf_uncased"))
    return bounded_layers(source.architecture, load_weights(source), *batch(transformers_rows()[0]))


def assert_those_of_transformers(layers: dict[int, np.ndarray], pooled: np.ndarray) -> None:
    _, hidden, their_pooled = transformers_rows()
    bounded, bounded_pooled = bounded_rows()
    for layer, theirs in enumerate(hidden):
        bounded[layer]._replace(values=theirs).assert_allows(layers[layer], computations=2)
    bounded_pooled._replace(values=their_pooled).assert_allows(pooled, computations=2)


def test_agrees_with_transformers_one_text_at_a_time():
    rows, _, _ = transformers_rows()
    encoder = load_encoder(open_encoder(str(DATA / "hf_uncased")), layers=range(4), pooler=True)
    results = [encoder(*batch([row])) for row in rows]
    got = {layer: np.concatenate([layers[layer] for layers, _ in results]) for layer in range(4)}
    assert_those_of_transformers(got, np.concatenate([one for _, one in results]))


@pytest.mark.parametrize(("longest", "pad_id"), [(0, 0), (60, 0), (128, 7)])
def test_agrees_with_transformers_in_a_padded_batch(longest, pad_id):
    rows, _, _ = transformers_rows()
    padded = batch(rows, longest=longest, pad_id=pad_id)
    assert (padded[1] < padded[0].shape[1]).any()
    layers, got = load_encoder(open_encoder(str(DATA / "hf_uncased")), layers=range(4), pooler=True)(*padded)
    assert list(layers) == [0, 1, 2, 3]
    assert_those_of_transformers(layers, got)


@pytest.mark.parametrize(
    ("how", "hidden_act"),
    [*itertools.product(("kernels", "public operations"), ("gelu", "gelu_tanh")), ("xla", "gelu")],
    indirect=["how"],
)
def test_agrees_with_numpy(hidden_act, how):
    config = Bert(**{**vars(TINY), "hidden_act": hidden_act, "layer_norm_eps": 1e-3})
    weights = random_weights(config)
    random = np.random.default_rng(1)
    rows = [random.integers(0, 50, length) for length in (20, 3, 1, 9)]
    token_ids, lengths, segment_ids = batch(rows)
    segment_ids[:, 2:7] = 1
    layers, pooled = Network(config, weights, layers=[0, 1, 2], pooler=True, **how)(token_ids, lengths, segment_ids)
    expected, expected_pooled = bounded_layers(config, weights, token_ids, lengths, segment_ids)
    for layer in range(3):
        expected[layer].assert_allows(layers[layer])
    expected_pooled.assert_allows(pooled)


@pytest.mark.parametrize("how", ["kernels", "public operations"], indirect=True)
def test_bfloat16_changes_layers_slightly_but_not_embeddings(everything, how):
    weights = random_weights(TINY)
    random = np.random.default_rng(3)
    coarse = Network(TINY, weights, layers=[0, 1, 2], pooler=True, compute_dtype="bfloat16", **how)
    for rows in (3, 40, 3):  # the packed weights serve batches of every size
        ids = batch([random.integers(0, 50, n) for n in random.integers(1, 21, rows)])
        (expected, expected_pooled), (layers, pooled) = everything(*ids), coarse(*ids)
        np.testing.assert_allclose(layers[0], expected[0], rtol=0, atol=OF_TWO)
        for got, wanted in ((layers[1], expected[1]), (layers[2], expected[2]), (pooled, expected_pooled)):
            assert got.dtype == np.float32
            assert np.abs(got - wanted).max() > 1e-4
            assert cosines(got, wanted).min() > 0.997  # 0.9998 with sums in bfloat16


def test_compiled_for_all_shapes_from_one_trace():
    encoder = Network(TINY, random_weights(TINY), layers=[0], xla=True)
    lengths = np.random.default_rng(4).integers(1, 17, 60)
    shapes = set()
    for planned in plan_batches(lengths, 64, [8, 16]):
        rows, longest = padded_shape(len(planned), int(lengths[planned].max()), [8, 16])
        shapes.add((rows, longest))
        texts = [np.arange(length) for length in lengths[planned]] + [np.arange(0)] * (rows - len(planned))
        layers, _ = encoder(*batch(texts, longest=longest))
        assert layers[0].shape == (lengths[planned].sum(), 24)
    assert encoder._graph.experimental_get_tracing_count() == 1
    assert len(shapes) <= 4 + 3  # powers of two up to 64 / 8 and up to 64 / 16


def test_the_two_forms_of_gelu_differ(everything):
    ids = batch([np.arange(9)])
    approximate = Network(Bert(**{**vars(TINY), "hidden_act": "gelu_tanh"}), random_weights(TINY), layers=[2])
    assert 1e-5 < np.abs(everything(*ids)[0][2] - approximate(*ids)[0][2]).max() < 1e-2


def test_segments_count(everything):
    token_ids, lengths, segment_ids = batch([np.arange(5)])
    first, second = (everything(token_ids, lengths, segment_ids + number)[0][0] for number in (0, 1))
    assert np.abs(first - second).min() > 0


@pytest.mark.parametrize(
    ("layers", "pooler", "blocks"), [([0], False, 0), ([1], False, 1), ([1], True, 2), ([], True, 2)]
)
def test_only_the_blocks_that_the_layers_take(everything, layers, pooler, blocks):
    weights = random_weights(TINY)
    needed = TINY.weight_shapes(num_blocks=blocks, pooler=pooler)
    encoder = Network(TINY, {name: weights[name] for name in needed}, layers=layers, pooler=pooler)
    # Five variables of embeddings, twelve a block (query, key and value are one), two of the pooler.
    assert len(encoder._graph.variables) == 5 + 12 * blocks + 2 * pooler
    operations = [operation.type for operation in encoder._graph.graph.get_operations()]
    assert operations.count("Softmax") == blocks
    got, pooled = encoder(*batch([np.arange(9)]))
    expected, expected_pooled = everything(*batch([np.arange(9)]))
    assert list(got) == layers
    for layer in layers:
        assert got[layer].tobytes() == expected[layer].tobytes()
    assert (pooled is not None) == pooler
    if pooler:
        assert pooled.tobytes() == expected_pooled.tobytes()


def test_one_trace_for_all_shapes_and_results_of_their_own():
    encoder = Network(TINY, random_weights(TINY), layers=[2, 0])
    first, _ = encoder(*batch([np.arange(9), np.arange(3)]))
    kept = {layer: values.copy() for layer, values in first.items()}
    for length in range(1, 20):
        encoder(*batch([np.arange(length)] * length))
    assert list(first) == [2, 0]
    assert first[2].shape == (12, 24)
    assert first[2].dtype == np.float32
    for layer in first:
        np.testing.assert_array_equal(first[layer], kept[layer])


def test_two_threads_get_the_same_bytes(everything):
    random = np.random.default_rng(2)
    batches = [batch([random.integers(0, 50, n) for n in random.integers(1, 21, 8)]) for _ in range(40)]

    def run(results: list[bytes]) -> None:
        for one in batches:
            layers, pooled = everything(*one)
            results.append(layers[1].tobytes() + layers[2].tobytes() + pooled.tobytes())

    alone: list[bytes] = []
    run(alone)
    together: list[list[bytes]] = [[], []]
    threads = [threading.Thread(target=run, args=(results,)) for results in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [alone, alone]
    assert len(set(alone)) == len(batches)


def test_a_row_without_real_tokens_spoils_nothing(everything):
    layers, pooled = everything(*batch([np.arange(4), np.arange(0)]))
    assert layers[2].shape == (4, 24)
    assert np.isfinite(layers[2]).all()
    assert np.isfinite(pooled).all()


def test_longer_than_the_positions(everything):
    with pytest.raises(ValueError, match="rows of 21 tokens; the encoder has 20 positions: lower max_seq_length"):
        everything(*batch([np.arange(21)]))


def test_id_outside_the_vocabulary(tensorflow, everything):
    with pytest.raises(tensorflow.errors.InvalidArgumentError, match="50"):
        everything(*batch([np.array([50])]))


@pytest.mark.parametrize("layers", [[3], [-1], [], [0, 1, 2, 3]])
def test_layers_that_there_are_not(layers):
    with pytest.raises(ValueError, match="wanted is at least one of 0 to 2, or the pooler"):
        TINY.blocks_needed(layers, pooler=False)
