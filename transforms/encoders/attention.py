"""Attention, computed whole for short texts and in blocks of queries for long ones.

Whole, it takes memory for [heads, S, S] scores; in blocks for [queries, S] of a few heads, which fit a processor's
cache: of 390 tokens, attention is 1.2 times as fast. Each query's softmax is over all of its keys at once, so the
result is the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch

Tensor = Any  # TensorFlow's

# Added to the scores of what a query does not see: exp(x - 1e9) is exactly 0 in float32, and the sum stays finite,
# whereas the largest negative number would overflow. A row without any real token gives numbers, not NaN.
_MASKED = -1e9
# Keys of causal attention are cut to one of so many lengths: each new shape costs oneDNN memory.
_CAUSAL_LENGTHS = 8


class BlockSizes(NamedTuple):
    """Longer texts than `queries` are computed in blocks of at most so many queries, and of heads for `scores`.

    One head is the least, whatever its number of scores.
    """

    queries: int
    scores: int


# Measured on a core with 1 MB of L2 cache, 12 heads of 32 and 64, texts of 390 to 4,096 tokens.
ON_CPU = BlockSizes(256, 1 << 19)
# A GPU needs large products: these take 256 MB in float32.
ON_DEVICE = BlockSizes(1024, 1 << 26)


def scores_at_once(heads: int, rows: int, longest: int) -> int:
    """The most scores of attention that a processor has at once of a batch, if each head of keys has one of queries."""
    if longest <= ON_CPU.queries:
        return rows * heads * longest**2
    return max(ON_CPU.scores, ON_CPU.queries * longest)


class Block(NamedTuple):
    """Some queries of some heads of attention, and the keys that they may see: the first, and how many of each."""

    heads: tuple[Tensor, Tensor]
    queries: tuple[Tensor, Tensor]
    keys: tuple[Tensor, Tensor]

    @property
    def ahead(self) -> Tensor:
        """int32 [queries, keys]: how many tokens the key is ahead of the query."""
        return _places(self.keys)[None, :] - _places(self.queries)[:, None]


class Scope(NamedTuple):
    """Which keys the queries of a batch see, and what is added to their scores.

    `lengths`: int32 [B], the keys that are no padding. `reach`: how far a query sees to each side; None for all keys.
    `is_causal`: whether it sees no later key. `by_distance`: gives what is added in a block, float32 [1, heads,
    queries, keys]. `whole`: the bias of all scores, [B or 1, heads or 1, S or 1, S]; None for long texts.
    """

    lengths: Tensor
    reach: int | None
    is_causal: bool
    by_distance: Callable[[Block], Tensor] | None
    whole: Tensor | None

    @property
    def has_rows(self) -> bool:
        """Whether the bias of one query differs from that of the next."""
        return self.reach is not None or self.is_causal or self.by_distance is not None

    def bias(self, lengths: Tensor, block: Block, dtype: Any) -> Tensor:
        """What is added to the scores of a block of texts of these lengths; -1e9 where a key is not seen."""
        is_masked = (_places(block.keys) >= lengths[:, None])[:, None, None, :]
        if self.is_causal:
            is_masked |= (block.ahead > 0)[None, None]
        if self.reach is not None:
            is_masked |= (tf.abs(block.ahead) > self.reach)[None, None]
        added = 0.0 if self.by_distance is None else self.by_distance(block)
        return tf.cast(tf.where(is_masked, _MASKED, added), dtype)


Scores = Callable[[Tensor, Tensor, Tensor], Tensor]  # of queries, keys and a bias
# What depends on the contents of a block, too: queries, keys and the block give what is added to the bias.
Added = Callable[[Tensor, Tensor, Block], Tensor]


class Attention:
    """Attention of so many heads. `scores`: computes query key' + bias, in the number type `dtype`.

    `varies`: whether the shapes of blocks may differ, which XLA does not compile.
    """

    def __init__(self, heads: int, sizes: BlockSizes, dtype: Any, scores: Scores, *, varies: bool) -> None:
        self._heads = heads
        self._sizes = sizes
        self._dtype = dtype
        self._scores = scores
        self._varies = varies

    def is_long(self, longest: int) -> bool:
        """Whether texts of so many tokens are computed in blocks."""
        return longest > self._sizes.queries

    def scope(
        self,
        batch: Batch,
        *,
        reach: int | None = None,
        is_causal: bool = False,
        by_distance: Callable[[Block], Tensor] | None = None,
    ) -> Scope:
        """The scope of a batch; see `Scope`."""
        scope = Scope(batch.lengths, reach, is_causal, by_distance, None)
        if batch.is_long:
            return scope
        everything = Block((0, self._heads), (0, batch.longest), (0, batch.longest))
        return scope._replace(whole=scope.bias(batch.lengths, everything, self._dtype))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope, added: Added | None = None) -> Tensor:
        """softmax(query key' + bias) value: three of [B, heads, S, d] -> [B S, heads d].

        Keys and values may have fewer heads, each for as many of the query's.
        """
        attend = self._in_blocks if scope.whole is None else self._whole
        return attend(query, key, value, scope, added)

    def _whole(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope, added: Added | None) -> Tensor:
        heads, size = query.shape[1], query.shape[3]
        rows, longest = tf.shape(query)[0], tf.shape(query)[2]
        if key.shape[1] != heads:
            key, value = (tf.repeat(values, heads // values.shape[1], axis=1) for values in (key, value))
        bias = scope.whole
        if added is not None:
            bias += added(query, key, Block((0, heads), (0, longest), (0, longest)))
        context = tf.matmul(tf.nn.softmax(self._scores(query, key, bias)), value)
        return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [rows * longest, heads * size])

    def _in_blocks(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope, added: Added | None) -> Tensor:
        """One block after the other: of a text, some of its heads, and its queries in equal parts."""
        rows, longest = tf.shape(query)[0], tf.shape(query)[2]
        key_heads, size = key.shape[1:4:2]
        group = query.shape[1] // key_heads  # queries of one head of keys
        most = self._sizes.queries if scope.reach is None else min(self._sizes.queries, max(2 * scope.reach, 64))
        parts = -(-longest // most)
        queries = -(-longest // parts)
        keys = longest
        if scope.reach is not None:
            keys = tf.minimum(longest, queries + (1 if scope.is_causal else 2) * scope.reach)
        heads = _heads_at_once(key_heads, group * queries * keys, self._sizes.scores)
        sets = key_heads // heads
        query = tf.pad(query, [[0, 0], [0, 0], [0, parts * queries - longest], [0, 0]])
        query = tf.reshape(query, [rows * sets, heads, group, parts * queries, size])
        key, value = (tf.reshape(values, [rows * sets, heads, longest, size]) for values in (key, value))

        def attend(step: Tensor, results: Any) -> tuple[Tensor, Any]:
            index, part = step // parts, step % parts
            first = part * queries
            num_keys = keys
            if scope.is_causal and scope.reach is None and self._varies:
                unit = -(-longest // _CAUSAL_LENGTHS)
                num_keys = tf.minimum(longest, -(-(first + queries) // unit) * unit)
            first_key = 0 if scope.reach is None else tf.clip_by_value(first - scope.reach, 0, longest - keys)
            block = Block((index % sets * heads, heads), (first, queries), (first_key, num_keys))
            some = tf.slice(query, [index, 0, 0, first, 0], [1, heads, group, queries, size])
            some = tf.reshape(some, [1, heads, group * queries, size])
            some_keys, some_values = (
                tf.slice(values, [index, 0, first_key, 0], [1, heads, num_keys, size]) for values in (key, value)
            )
            bias = scope.bias(scope.lengths[index // sets][None], block, self._dtype)
            if added is not None:
                bias += added(some, some_keys, block)
            if group > 1 and scope.has_rows:
                bias = tf.tile(bias, [1, 1, group, 1])
            context = tf.matmul(tf.nn.softmax(self._scores(some, some_keys, bias)), some_values)
            return step + 1, results.write(step, tf.reshape(context, [heads * group, queries, size]))

        total = rows * sets * parts
        results = tf.TensorArray(query.dtype, size=total, element_shape=[None, None, size])
        _, results = tf.while_loop(lambda step, _: step < total, attend, [0, results], parallel_iterations=1)
        context = tf.reshape(results.stack(), [rows, sets, parts, heads * group, queries, size])
        context = tf.transpose(context, [0, 2, 4, 1, 3, 5])
        context = tf.reshape(context, [rows, parts * queries, key_heads * group * size])[:, :longest]
        return tf.reshape(context, [rows * longest, key_heads * group * size])


def _heads_at_once(heads: int, scores_of_one: Any, most: int) -> Any:
    """The largest divisor of the number of heads whose scores are at most so many; at least 1."""
    divisors = [number for number in range(1, heads + 1) if heads % number == 0]
    fitting = tf.where(tf.constant(divisors) <= most // scores_of_one, divisors, 1)
    return tf.reduce_max(fitting)


def _places(span: tuple[Tensor, Tensor]) -> Tensor:
    first, count = span
    return first + tf.range(count)
