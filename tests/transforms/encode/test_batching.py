from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layerbeam.transforms.encode.batching import equal_texts, padded_shape, plan_batches
from layerbeam.transforms.flow.blocks import token_positions

LENGTHS = st.lists(st.integers(2, 128), max_size=200).map(lambda lengths: np.array(lengths, np.int64))


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 2048))
def test_every_text_once_within_the_budget(lengths, batch_tokens):
    batches = plan_batches(lengths, batch_tokens)
    assert sorted(np.concatenate([*batches, np.zeros(0, np.int64)]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * lengths[batch].max()
        assert padded <= batch_tokens or len(batch) == 1


def cost(lengths, batches) -> int:
    """Padded tokens, and 32 for each batch."""
    return sum(len(batch) * max(lengths[text] for text in batch) + 32 for batch in batches)


def every_way(texts, batch_tokens, lengths):
    """All ways to cut texts, in falling order of length, in batches that are full, half or a quarter full."""
    if not texts:
        yield []
        return
    full = max(batch_tokens // lengths[texts[0]], 1)
    for size in {min(max(full // part, 1), len(texts)) for part in (1, 2, 4)}:
        yield from ([texts[:size], *rest] for rest in every_way(texts[size:], batch_tokens, lengths))


@given(lengths=st.lists(st.integers(2, 60), min_size=1, max_size=9), batch_tokens=st.integers(1, 400))
def test_no_way_to_cut_is_cheaper(lengths, batch_tokens):
    texts = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    least = min(cost(lengths, batches) for batches in every_way(texts, batch_tokens, lengths))
    assert cost(lengths, plan_batches(np.array(lengths), batch_tokens)) == least


def test_shapes_come_again():
    random = np.random.default_rng(1)
    shapes = set()
    for _ in range(20):  # blocks
        lengths = np.clip(random.lognormal(3.3, 0.6, 650).astype(np.int64), 3, 128)
        shapes |= {(len(batch), int(lengths[batch].max())) for batch in plan_batches(lengths, 1024)}
    assert len(shapes) < 3 * 125


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 2048), is_full=st.booleans())
def test_buckets_make_few_shapes(lengths, batch_tokens, is_full):
    """Batches that are filled up have one shape for each bucket."""
    buckets = [16, 32, 128]
    batches = plan_batches(lengths, batch_tokens, buckets, only_full=is_full)
    assert sorted(np.concatenate([*batches, np.zeros(0, np.int64)]).tolist()) == list(range(len(lengths)))
    full = [batch_tokens] if is_full else []
    shapes = [padded_shape(len(batch), int(lengths[batch].max()), buckets, *full) for batch in batches]
    assert all(rows * longest <= batch_tokens or rows == 1 for rows, longest in shapes)
    assert all(rows >= len(batch) for batch, (rows, _) in zip(batches, shapes, strict=True))
    assert len(set(shapes)) <= sum(max(batch_tokens // bucket, 1).bit_length() for bucket in buckets)
    assert not is_full or len(set(shapes)) == len({longest for _, longest in shapes}) <= len(buckets)


def test_a_text_over_all_buckets_keeps_its_length():
    assert padded_shape(1, 200, [16, 128]) == (1, 200)


def test_padding_is_a_few_per_cent():
    lengths = np.clip(np.random.default_rng(0).lognormal(3.3, 0.6, 650).astype(np.int64), 3, 128)
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in plan_batches(lengths, 1024))
    assert padded / lengths.sum() < 1.05
    assert len(lengths) * 128 / lengths.sum() > 3  # what padding to 128 costs


def test_padding_to_fine_buckets_is_small():
    """The last batch of a bucket is filled with shorter texts, so it is not padded much either."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3.3, 0.5, 8000).astype(np.int64), 3, 256)
    buckets = [*range(4, 64, 4), *range(64, 129, 8), *range(144, 257, 16)]
    for is_full in (False, True):
        batches = plan_batches(lengths, 16384, buckets, only_full=is_full)
        full = [16384] if is_full else []
        shapes = [padded_shape(len(batch), int(lengths[batch].max()), buckets, *full) for batch in batches]
        padded = sum(rows * longest for rows, longest in shapes)
        assert padded / lengths.sum() < (1.15 if is_full else 1.12)
        assert len(batches) < 2 * lengths.sum() / 16384


def test_no_texts_no_batches():
    assert plan_batches(np.zeros(0, np.int64), 1024) == []


def test_equal_texts_agree_in_every_column():
    row_splits = np.array([0, 2, 4, 6, 7])
    ids = np.array([1, 2, 1, 2, 1, 2, 1], np.int32)
    segments = np.array([0, 0, 0, 1, 0, 0, 0], np.int8)
    first, inverse = equal_texts(row_splits, ids, segments)
    assert first.tolist() == [0, 1, 3]
    assert inverse.tolist() == [0, 1, 0, 2]


def test_token_positions_of_no_texts():
    assert token_positions(np.array([0, 2]), np.zeros(0, np.int64)).tolist() == []
