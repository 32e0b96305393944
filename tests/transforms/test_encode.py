from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders import registry

from transforms import coders
from transforms.encode import encode_block, pad_batch
from transforms.records import BlockId, InputFile, TextBlock, TokenBlock, VectorBlock
from transforms.views import View

TEXTS = [[7, 8, 9], [5], [7, 8, 9], [1, 2, 3, 4], [6, 6]]


@dataclasses.dataclass
class CountingEncoder:
    """Layer k of token i is i + k in both dimensions; notes what it was asked."""

    hidden_size: int = 2
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
    text = TextBlock(
        BlockId(InputFile("a", 1, 0.0), 0, 5, 0, 1, ""), pa.array(["x"] * 5), np.arange(5), none, none, {}, []
    )
    splits = np.cumsum([0, *map(len, TEXTS)])
    zeros = np.zeros(len(ids), np.int32)
    return TokenBlock(text, splits, ids, zeros.astype(np.int8), zeros, zeros, zeros, none)


@pytest.mark.parametrize("batch_tokens", [1, 4, 8, 1000])
def test_results_come_in_the_order_of_the_input(tokens, batch_tokens):
    encoder = CountingEncoder()
    views = [
        View("tokens", "token", (3, 0), hidden_size=2),
        View("means", "text", (0,), hidden_size=2),
        View("pooled", "text", (), hidden_size=2, pooling="pooler"),
    ]
    vectors = encode_block(tokens, encoder, views, batch_tokens=batch_tokens).vectors
    flat = np.concatenate(TEXTS)
    assert vectors["tokens"][0][:, 0].tolist() == (flat + 3).tolist()
    assert vectors["tokens"][1][:, 1].tolist() == flat.tolist()
    assert vectors["means"][0][:, 0].tolist() == [8, 5, 8, 2.5, 6]
    assert vectors["pooled"][0][:, 0].tolist() == [7, 5, 7, 1, 6]
    assert sum(len(batch) for batch in encoder.batches) == 4  # the text that comes twice is encoded once
    assert len(encoder.batches) == {1: 4, 4: 3, 8: 2, 1000: 1}[batch_tokens]


def test_padded_batch(tokens):
    token_ids, lengths, segment_ids = pad_batch(tokens, np.array([1, 3]), pad_id=99)
    assert token_ids.tolist() == [[5, 99, 99, 99], [1, 2, 3, 4]]
    assert lengths.tolist() == [1, 4]
    assert segment_ids.tolist() == [[0] * 4] * 2


def test_size_of_a_block_is_known_without_pickling(tokens):
    coders.register()
    block = VectorBlock(tokens, {"v": [np.zeros((13, 2), np.float32)]})
    coder = registry.get_coder(VectorBlock)
    assert isinstance(coder, coders.BlockCoder)
    assert coder.get_impl().estimate_size(block) == coders.block_bytes(block) >= 13 * 2 * 4
    copy = coder.decode(coder.encode(block))
    np.testing.assert_array_equal(copy.tokens.token_ids, tokens.token_ids)
