from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from apache_beam.coders import registry

from layerbeam.transforms.encode.block import encode_block, pad_batch
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import EncoderFailedError, UnencodableTextsError
from layerbeam.transforms.encode.windows import cut_sequences, cut_windows
from layerbeam.transforms.flow import stage
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.views.view import DenseModule, ViewSpec

TEXTS = [[7, 8, 9], [5], [7, 8, 9], [1, 2, 3, 4], [6, 6]]


@dataclasses.dataclass
class CountingEncoder:
    """Layer k of token i is i + k in both dimensions; notes what it was asked."""

    pad_id: int = 99
    batches: list = dataclasses.field(default_factory=list)

    def __call__(self, token_ids, lengths, segment_ids):
        self.batches.append(token_ids.copy())
        real = np.arange(token_ids.shape[1]) < lengths[:, None]
        assert (token_ids[~real] == self.pad_id).all()
        values = np.repeat(token_ids[real][:, None], 2, axis=1).astype(np.float32)
        return {layer: values + layer for layer in (0, 3)}, np.repeat(token_ids[:, :1], 2, axis=1).astype(np.float32)


@pytest.fixture
def tokens() -> TokenBlock:
    none = np.zeros(len(TEXTS), np.int32)
    ids = np.concatenate(TEXTS).astype(np.int32)
    splits = np.cumsum([0, *map(len, TEXTS)])
    zeros = np.zeros(len(ids), np.int32)
    return TokenBlock(TextBlock.of(["x"] * 5), splits, ids, zeros.astype(np.int8), zeros, zeros, zeros, zeros, none)


def test_dense_modules_come_after_pooling_and_hide_no_infinite_value(tokens):
    double, ones = DenseModule("double", 2, 3, False, "identity"), DenseModule("ones", 3, 2, False, "tanh")
    encoder = CountingEncoder()
    encoder.dense_modules = {
        double: lambda values: np.repeat(values[:, :1] * 2, 3, axis=1),
        ones: lambda values: np.where(values[:, :2] > 16, np.float32(1), values[:, :2]),
    }
    names = {"dense": ["double", "ones"], "dense_modules": (double, ones), "truncate_dim": 1}
    view = ViewSpec(name="means", level="text", layers=(0,), hidden_size=2, **names)
    tokens = dataclasses.replace(tokens, rows={"means": rows_of(view, tokens)})
    settings = EncodeSettings(1000, max_seq_length=128)
    vectors = encode_block(tokens, Forward(encoder), [view], settings).vectors["means"][0]
    assert vectors.tolist() == [[16], [10], [16], [5], [12]]
    tokens.token_ids[-1] = 9
    encoder.dense_modules[double] = lambda values: np.where(values == 7.5, np.inf, values)[:, [0, 0, 0]]
    with pytest.raises(UnencodableTextsError) as error:
        encode_block(tokens, Forward(encoder), [view], settings)
    assert error.value.reasons == {4: "the encoder gives NaN or infinite values"}


@pytest.mark.parametrize("batch_tokens", [1, 4, 8, 1000])
def test_results_come_in_the_order_of_the_input(tokens, batch_tokens):
    encoder = CountingEncoder()
    views = [
        ViewSpec(name="tokens", level="token", layers=(3, 0), hidden_size=2),
        ViewSpec(name="means", level="text", layers=(0,), hidden_size=2),
        ViewSpec(name="pooled", level="text", layers=(), hidden_size=2, pooling="pooler"),
    ]
    tokens = dataclasses.replace(tokens, rows={view.name: rows_of(view, tokens) for view in views})
    vectors = encode_block(tokens, Forward(encoder), views, EncodeSettings(batch_tokens, max_seq_length=128)).vectors
    flat = np.concatenate(TEXTS)
    assert vectors["tokens"][0][:, 0].tolist() == (flat + 3).tolist()
    assert vectors["tokens"][1][:, 1].tolist() == flat.tolist()
    assert vectors["means"][0][:, 0].tolist() == [8, 5, 8, 2.5, 6]
    assert vectors["pooled"][0][:, 0].tolist() == [7, 5, 7, 1, 6]
    assert sum(len(batch) for batch in encoder.batches) == 4  # the text that comes twice is encoded once
    assert len(encoder.batches) == {1: 4, 4: 3, 8: 2, 1000: 1}[batch_tokens]


def test_threads_and_buckets_change_no_result(tokens):
    views = [
        ViewSpec(name="tokens", level="token", layers=(3, 0), hidden_size=2),
        ViewSpec(name="p", level="text", layers=(), hidden_size=2, pooling="pooler"),
    ]
    tokens = dataclasses.replace(tokens, rows={view.name: rows_of(view, tokens) for view in views})
    plain, many, padded = CountingEncoder(), CountingEncoder(), CountingEncoder()
    expected = encode_block(tokens, Forward(plain), views, EncodeSettings(4, max_seq_length=128)).vectors
    cost = EncodeCost()
    for encoder, settings in (
        (many, EncodeSettings(4, max_seq_length=128)),
        (padded, EncodeSettings(16, max_seq_length=128, length_buckets=(2, 4))),
    ):
        vectors = encode_block(tokens, Forward(encoder, 3), views, settings, cost).vectors
        for view in views:
            for got, wanted in zip(vectors[view.name], expected[view.name], strict=True):
                assert got.tolist() == wanted.tolist()
    assert sorted(batch.shape for batch in padded.batches) == [(1, 4), (1, 4), (2, 2)]
    assert cost.encoded_tokens == 2 * (3 + 1 + 4 + 2)
    assert cost.padded_tokens == sum(batch.size for batch in many.batches + padded.batches)


def test_a_few_batches_are_computed_ahead_and_no_more():
    begun = []

    def batches():
        for number in range(20):
            begun.append(number)
            yield np.full((1, 1), number), np.ones(1, np.int32), np.zeros((1, 1))

    forward = Forward(lambda ids, lengths, segments: ({0: ids}, None), 2)
    for number, (layers, _) in enumerate(forward(batches(), EncodeCost())):
        assert layers[0] == number
        assert len(begun) <= number + 3


@pytest.mark.parametrize(("left", "at_once"), [(1 << 30, 2), (None, 2), (150 << 20, 1), (0, 1)])
def test_large_batches_are_in_work_together_if_memory_is_left_for_both(left, at_once):
    class Large:
        pad_id = 0
        in_work = most = 0
        lock, pair = threading.Lock(), threading.Barrier(2)

        def batch_bytes(self, rows: int, longest: int) -> int:
            return 100 << 20

        def __call__(self, ids, lengths, segments):
            with self.lock:
                self.in_work += 1
                self.most = max(self.most, self.in_work)
            if at_once == 2:
                self.pair.wait(timeout=60)  # both are here
            with self.lock:
                self.in_work -= 1
            return {0: ids}, None

    encoder = Large()
    batches = [(np.full((1, 1), number), np.ones(1, np.int32), np.zeros((1, 1))) for number in range(8)]
    outputs = list(Forward(encoder, 2, lambda: left)(batches, EncodeCost()))
    assert [int(layers[0][0, 0]) for layers, _ in outputs] == list(range(8))
    assert encoder.most == at_once


def test_an_error_in_a_thread_is_raised():
    def fail(*_):
        raise ValueError("no such id")

    with pytest.raises(EncoderFailedError, match="ValueError: no such id"):
        list(Forward(fail, 2)([(np.zeros((1, 1)), np.ones(1), np.zeros((1, 1)))], EncodeCost()))


def test_padded_batch(tokens):
    token_ids, lengths, segment_ids = pad_batch(
        cut_sequences(tokens.contexts, np.arange(5), EncodeSettings(max_seq_length=128)),
        np.array([1, 3]),
        99,
    )
    assert token_ids.tolist() == [[5, 99, 99, 99], [1, 2, 3, 4]]
    assert lengths.tolist() == [1, 4]
    assert segment_ids.tolist() == [[0] * 4] * 2


def test_windows_overlap_and_maximize_context():
    word_index = np.array([-1, *range(20), -1])
    windows, vector_index = cut_windows(word_index, max_seq_length=10, overlap=4)
    assert [window.tolist() for window in windows] == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 21],
        [0, 5, 6, 7, 8, 9, 10, 11, 12, 21],
        [0, 9, 10, 11, 12, 13, 14, 15, 16, 21],
        [0, 13, 14, 15, 16, 17, 18, 19, 20, 21],
    ]
    together = np.concatenate(windows)
    assert together[vector_index].tolist() == list(range(22))
    assert (vector_index // 10).tolist() == [0] * 7 + [1] * 4 + [2] * 4 + [3] * 7


def test_all_pieces_of_a_word_are_from_one_window():
    for seed in range(50):
        random = np.random.default_rng(seed)
        lengths = random.integers(1, 5, 30)
        word_index = np.concatenate([[-1], np.repeat(np.arange(30), lengths), [-1]])
        windows, vector_index = cut_windows(word_index, max_seq_length=16, overlap=6)
        assert (np.concatenate(windows)[vector_index] == np.arange(len(word_index))).all()
        for word in range(30):
            assert len(set(vector_index[word_index == word] // 16)) == 1


def test_a_word_longer_than_a_window():
    windows, vector_index = cut_windows(np.array([-1, *[0] * 30, -1]), max_seq_length=8, overlap=2)
    assert (np.concatenate(windows)[vector_index] == np.arange(32)).all()


@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_a_text_in_windows(tokens, batch_tokens):
    """Layer k of token i is i + k whatever the window: so the windows put together are the text."""
    views = [
        ViewSpec(name="tokens", level="token", layers=(3,), hidden_size=2),
        ViewSpec(name="means", level="text", layers=(0,), hidden_size=2),
        ViewSpec(name="firsts", level="text", layers=(0,), hidden_size=2, pooling="cls"),
        ViewSpec(name="pooled", level="text", layers=(), hidden_size=2, pooling="pooler"),
    ]
    tokens.start[:] = 0
    tokens.word_index = np.concatenate([np.arange(len(text)) for text in TEXTS]).astype(np.int32)
    tokens = dataclasses.replace(tokens, rows={view.name: rows_of(view, tokens) for view in views})
    settings = EncodeSettings(batch_tokens, max_seq_length=3, window_overlap=0)
    vectors = encode_block(tokens, Forward(CountingEncoder()), views, settings).vectors
    assert vectors["tokens"][0][:, 0].tolist() == (np.concatenate(TEXTS) + 3).tolist()
    assert vectors["means"][0][:, 0].tolist() == [8, 5, 8, 2.5, 6]
    assert vectors["firsts"][0][:, 0].tolist() == [7, 5, 7, 1, 6]
    assert vectors["pooled"][0][:, 0].tolist() == [7, 5, 7, 1, 6]


def test_size_of_a_block_is_known_without_pickling(tokens):
    stage.register_coders()
    block = VectorBlock(tokens, {"v": [np.zeros((13, 2), np.float32)]})
    coder = registry.get_coder(VectorBlock)
    assert isinstance(coder, stage.BlockCoder)
    assert coder.get_impl().estimate_size(block) == stage.block_bytes(block) >= 13 * 2 * 4
    copy = coder.decode(coder.encode(block))
    np.testing.assert_array_equal(copy.tokens.token_ids, tokens.token_ids)
