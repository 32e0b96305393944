"""Texts that cannot be encoded, batches that do not fit: the others of their block go on as if nothing had been."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from layerbeam.transforms.encode.block import NOT_FINITE, encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import EncoderFailedError, encode_or_reject, find_faults
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, VectorBlock, take_texts
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.tokenize.row_index import rows_of
from layerbeam.transforms.views.view import ViewSpec

# Of text t the tokens; the records are lines 0, 0, 1, 2, 2, 2.
TEXTS = [[7, 8, 9], [5], [7, 8, 9], [1, 2, 3, 4], [6, 6], [30]]
VIEWS = (
    ViewSpec(name="tokens", level="token", layers=(3, 0), hidden_size=2),
    ViewSpec(name="means", level="text", layers=(0,), hidden_size=2),
    ViewSpec(name="pooled", level="text", layers=(), hidden_size=2, pooling="pooler"),
    ViewSpec(name="records", level="record", layers=(3,), hidden_size=2),
)


@dataclasses.dataclass
class FakeEncoder:
    """Layer k of token i is i + k in both dimensions. `spoil` may raise or change what comes out."""

    spoil: Callable[[np.ndarray, dict], None] = lambda ids, layers: None
    pad_id: int = 99
    sizes: list[int] = dataclasses.field(default_factory=list)

    def __call__(self, token_ids, lengths, segment_ids):
        self.sizes.append(token_ids.size)
        real = np.arange(token_ids.shape[1]) < lengths[:, None]
        values = np.repeat(token_ids[real][:, None], 2, axis=1).astype(np.float32)
        layers = {layer: values + layer for layer in (0, 3)}
        self.spoil(token_ids, layers)
        return layers, np.repeat(token_ids[:, :1], 2, axis=1).astype(np.float32)


def block_of(texts: list[list[int]], lines: list[int]) -> TokenBlock:
    none = np.zeros(len(texts), np.int32)
    ids = np.concatenate([np.zeros(0, int), *texts]).astype(np.int32)
    counts = {"records_read": 3, "embedded": 3, "sentences_read": len(texts), "sentences_embedded": len(texts)}
    names = pa.array([" ".join(map(str, text)) for text in texts], pa.string())
    block = FileRange(InputFile("a", 1, 0.0), 0, 3, 0, 1, "")
    text = TextBlock((block,), names, np.array(lines, np.int64), none, none, counts, [])
    zeros = np.zeros(len(ids), np.int32)
    splits = np.cumsum([0, *map(len, texts)])
    tokens = TokenBlock(text, splits, ids, zeros.astype(np.int8), zeros, zeros, zeros, zeros, none, form=zeros)
    return dataclasses.replace(tokens, rows={view.name: rows_of(view, tokens) for view in VIEWS})


def block_without(*texts: int) -> TokenBlock:
    rest = [i for i in range(len(TEXTS)) if i not in texts]
    lines = [0, 0, 1, 2, 2, 2]
    return block_of([TEXTS[i] for i in rest], [lines[i] for i in rest])


def encode(tokens: TokenBlock, encoder: FakeEncoder, batch_tokens: int = 8) -> VectorBlock:
    forward = Forward(encoder)
    settings = EncodeSettings(batch_tokens, max_seq_length=128)
    return encode_or_reject(tokens, lambda block: encode_block(block, forward, VIEWS, settings), forward.check)


def assert_equal(got: VectorBlock, expected: VectorBlock) -> None:
    for view in VIEWS:
        for values, wanted in zip(got.vectors[view.name], expected.vectors[view.name], strict=True):
            assert values.tolist() == wanted.tolist()


def test_taken_texts_equal_block_without_the_others():
    tokens = block_without()
    some = np.array([1, 3, 5])
    taken, expected = take_texts(tokens, tokens.text.take(some), some), block_without(0, 2, 4)
    assert taken.token_ids.tolist() == [5, 1, 2, 3, 4, 30]
    for view in VIEWS:
        for field in ("text", "positions", "splits"):
            got, wanted = (getattr(block.rows[view.name], field).tolist() for block in (taken, expected))
            assert got == wanted, (view.name, field)


def test_text_with_nan_is_rejected_alone():
    def spoil(ids, layers):
        for values in layers.values():
            values[values[:, 0] == 2] = np.nan  # token 2 is in text 3
            values[values[:, 0] == 30] = np.inf  # and 30 is text 5

    got = encode(block_without(), FakeEncoder(spoil))
    text = got.tokens.text
    assert [(reject.line, reject.raw, reject.stage, reject.reason) for reject in text.rejected] == [
        (2, b"1 2 3 4", "encode", NOT_FINITE),
        (2, b"30", "encode", NOT_FINITE),
    ]
    of_sentences = {"sentences_read": 6, "sentences_embedded": 4, "sentences_rejected": 2}
    assert text.counts == {"records_read": 3, "embedded": 3, "rejected": 0} | of_sentences
    assert_equal(got, encode(block_without(3, 5), FakeEncoder()))


def test_what_float16_cannot_hold_is_rejected():
    view = ViewSpec(name="tokens", level="token", layers=(0,), hidden_size=2, dtype="float16")
    record = ViewSpec(name="records", level="record", layers=(0,), hidden_size=2, dtype="float16")
    tokens = block_of([[5], [70_000], [65_504], [6]], [0, 1, 2, 2])
    tokens = dataclasses.replace(tokens, rows={v.name: rows_of(v, tokens) for v in (view, record)})
    forward = Forward(FakeEncoder())

    def encode_halves(block: TokenBlock) -> VectorBlock:
        return encode_block(block, forward, (view, record), EncodeSettings(8, max_seq_length=128))

    got = encode_or_reject(tokens, encode_halves, forward.check)
    assert [reject.raw for reject in got.tokens.text.rejected] == [b"70000"]
    assert got.tokens.text.rejected[0].reason == "a value is too large for float16, see views.tokens.dtype"
    assert got.vectors["tokens"][0][:, 0].tolist() == [5, 65_504, 6]


def test_what_float16_cannot_hold_is_rejected_of_word_types():
    """Their sums are float32, of which half a value may look like an infinite float16."""
    view = ViewSpec(name="types", level="word_type", layers=(0,), hidden_size=2, dtype="float16")
    odd = np.uint32(0x3C007C00).view(np.float32).item()
    tokens = block_of([[5], [6], [7]], [0, 1, 2])
    tokens = dataclasses.replace(tokens, rows={view.name: rows_of(view, tokens)})

    def spoil(ids, layers):
        layers[0][layers[0] == 6] = 70_000
        layers[0][layers[0] == 7] = odd

    forward = Forward(FakeEncoder(spoil))
    got = encode_or_reject(
        tokens,
        lambda block: encode_block(block, forward, (view,), EncodeSettings(8, max_seq_length=128)),
        forward.check,
    )
    assert [reject.raw for reject in got.tokens.text.rejected] == [b"6"]
    assert got.vectors["types"][0].tolist() == [[5, 5], [odd, odd]]


def test_a_text_on_which_the_encoder_fails_is_found_by_halving():
    def spoil(ids, layers):
        if (ids == 9).any():
            raise ValueError("token 9\nat some node")

    encoder = FakeEncoder(spoil)
    got = encode(block_without(), encoder, batch_tokens=100)
    assert [(reject.line, reject.raw) for reject in got.tokens.text.rejected] == [(0, b"7 8 9"), (1, b"7 8 9")]
    assert {reject.reason for reject in got.tokens.text.rejected} == {"the encoder failed: ValueError: token 9"}
    assert_equal(got, encode(block_without(0, 2), FakeEncoder(), batch_tokens=100))


def test_an_encoder_that_fails_on_everything_blames_no_text():
    def fail(ids, layers):
        raise RuntimeError("the device is gone")

    with pytest.raises(EncoderFailedError, match="RuntimeError: the device is gone"):
        encode(block_without(), FakeEncoder(fail))

    def spoil(ids, layers):
        for values in layers.values():
            values[:] = np.nan

    with pytest.raises(ValueError, match="whatever the text: its weights are damaged"):
        encode(block_without(), FakeEncoder(spoil))


def test_an_error_of_our_own_blames_no_text():
    with pytest.raises(KeyError, match="a mistake"):
        encode_or_reject(block_without(), lambda block: {}["a mistake"], lambda: None)


def test_a_pooler_that_gives_nan_blames_no_text():
    class Damaged(FakeEncoder):
        def __call__(self, *batch):
            layers, pooled = super().__call__(*batch)
            return layers, pooled * np.nan

    with pytest.raises(ValueError, match="whatever the text: its weights are damaged"):
        encode(block_without(), Damaged())


OUT_OF_MEMORY = [MemoryError("no"), tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["NumPy", "TensorFlow"])
def test_too_large_batch_is_halved_and_size_remembered(error):
    def spoil(ids, layers):
        if ids.size > 4:
            raise error

    encoder, cost = FakeEncoder(spoil), EncodeCost()
    forward = Forward(encoder)
    settings = EncodeSettings(16, max_seq_length=128)
    expected = encode_block(block_without(), Forward(FakeEncoder()), VIEWS, settings)
    assert_equal(encode_block(block_without(), forward, VIEWS, settings, cost), expected)
    failed = [size for size in encoder.sizes if size > 4]
    assert len(failed) == cost.halved_batches > 0
    encoder.sizes.clear()
    assert_equal(encode_block(block_without(), forward, VIEWS, settings, cost), expected)
    assert max(encoder.sizes) <= 4


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["NumPy", "TensorFlow"])
def test_a_text_that_does_not_fit_alone_is_rejected(error):
    def spoil(ids, layers):
        if ids.shape[1] > 3:
            raise error

    got = encode(block_without(), FakeEncoder(spoil), batch_tokens=16)
    assert [(r.line, r.raw, r.reason) for r in got.tokens.text.rejected] == [
        (2, b"1 2 3 4", "does not fit in memory, even alone")
    ]
    assert_equal(got, encode(block_without(3), FakeEncoder(), batch_tokens=16))


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["NumPy", "TensorFlow"])
def test_memory_that_other_batches_use_is_no_fault_of_a_text(error):
    in_flight, failed, lock, chance = [], [], threading.Lock(), random.Random(0)

    def spoil(ids, layers):
        with lock:
            in_flight.append(ids)
        time.sleep(0.002)
        with lock:
            others = len(in_flight) - 1
            in_flight.pop()
            if others and chance.random() < 0.5:
                failed.append(ids.shape[0])
                raise error

    forward, cost = Forward(FakeEncoder(spoil), 4), EncodeCost()

    def run(_: int) -> VectorBlock:
        settings = EncodeSettings(4, max_seq_length=128)
        return encode_or_reject(
            block_without(), lambda b: encode_block(b, forward, VIEWS, settings, cost), forward.check
        )

    results: list[VectorBlock] = []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(100):  # until batches of one row and of several have failed next to others
            results += threads.map(run, range(16))
            if {rows > 1 for rows in failed} == {False, True}:
                break
    assert 1 in failed
    assert max(failed) > 1
    assert cost.halved_batches == 0
    for got in results:
        assert_equal(got, encode(block_without(), FakeEncoder(), batch_tokens=4))


def test_a_block_that_does_not_fit_as_a_whole_says_what_to_turn():
    def too_large(block: TokenBlock) -> VectorBlock:
        if len(block.num_dropped) > 4:
            raise MemoryError
        return VectorBlock(block, {})

    assert find_faults(block_without(), too_large) == {}
    with pytest.raises(
        MemoryError, match=r"block a-ca978112ca1bbdca-0{12} do not fit: lower output\.target_part_bytes"
    ):
        encode_or_reject(block_without(), too_large, lambda: None)


def test_a_block_of_which_nothing_is_left():
    def spoil(ids, layers):
        for values in layers.values() if (ids != 99).any() else ():
            values[:] = np.nan

    got = encode(block_without(), FakeEncoder(spoil))
    assert got.tokens.text.counts["sentences_rejected"] == 6
    assert got.tokens.text.counts["rejected"] == 3
    assert got.vectors["tokens"][0].shape == (0, 2)
