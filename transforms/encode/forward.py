"""Forward passes on threads; a batch that does not fit in memory is halved."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.encode.isolate import EncoderFailedError, is_out_of_memory
from layerbeam.transforms.flow.blocks import Float32Array, Int32Array, Int64Array
from layerbeam.transforms.hardware import memory_left
from layerbeam.transforms.views.columns import Layer
from layerbeam.transforms.views.view import DenseModule

_LARGE_BATCH = 64 << 20  # bytes; the memory that is left is read before a larger one


class Encoder(Protocol):
    """A loaded encoder. It must be thread-safe.

    `dense_modules`: what computes those of the views, [r, in_features] -> [r, out_features]; for views without any
    it is not asked for. An encoder may have `batch_bytes(rows, longest)`: the most memory that a batch takes.
    """

    pad_id: int

    @property
    def dense_modules(self) -> Mapping[DenseModule, Callable[[Float32Array], Float32Array]]: ...

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[Mapping[int, Layer], Float32Array | None]:
        """Layers and pooled output of one batch.

        `token_ids`, `segment_ids`: [B, S], padded; `lengths`: [B], the real tokens of each row. Returns {layer: [n, H]}
        with the n real tokens row after row, without padding, and the pooled output [B, H] or None.
        """


@dataclasses.dataclass
class EncodeCost:
    """The cost of encoding: tokens with and without padding, seconds of forward passes (all threads) and of pooling.

    `halved_batches`: how often a batch was halved because it did not, or would not, fit in memory.
    """

    padded_tokens: int = 0
    encoded_tokens: int = 0
    halved_batches: int = 0
    forward_seconds: float = 0.0
    pooling_seconds: float = 0.0


class Tally:
    """A number that many threads add to."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self.value += amount


# Tokens that this process has encoded, in all runs. Beam reports its metrics only when a run has ended, and the
# progress bar cannot reach the `Forward` inside a DoFn, so every `Forward` counts here.
TOKENS_ENCODED = Tally()


class Forward:
    """An encoder and the threads that run its forward passes, shared by all blocks of a process.

    A batch goes to whichever thread is free. So all cores work to the end of the last block, and one block is encoded
    while another is written. The bits of a batch do not depend on the thread.

    A large batch begins when memory is left for it and for all of those in work, or none is in work. A batch that does
    not fit in memory is tried once more while no other is in work. If it does not fit then, it is halved, and so is
    every later batch of at least its size.
    """

    def __init__(self, encoder: Encoder, num_threads: int = 1, left: Callable[[], int | None] = memory_left) -> None:
        self.encoder = encoder
        self._left = left
        self._ahead = num_threads
        self._too_large: int | None = None  # padded tokens of the smallest batch that did not fit
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="forward") if num_threads > 1 else None
        self._lock = threading.Lock()  # of the costs
        self._turn = threading.Condition()
        self._in_work = 0
        self._bytes_in_work = 0
        self._one_is_next = False

    def __call__(
        self, batches: Iterable[tuple[Int32Array, Int32Array, Int32Array]], cost: EncodeCost
    ) -> Iterator[tuple[Mapping[int, Layer], Float32Array | None]]:
        """Yields the output of each batch, in order. A few batches are computed ahead."""
        begun: deque[Future[Any]] = deque()
        remaining = iter(batches)
        first = list(itertools.islice(remaining, 2))
        threads = self._threads if len(first) > 1 else None  # a single batch is not worth another thread
        for batch in itertools.chain(first, remaining):
            cost.padded_tokens += batch[0].size
            cost.encoded_tokens += int(batch[1].sum())
            if threads is None:
                yield self._run(batch, cost)
                continue
            begun.append(threads.submit(self._run, batch, cost))
            if len(begun) > self._ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

    def check(self) -> None:
        """Raises if the encoder fails on a sequence of one token."""
        token_ids = np.full((1, 1), self.encoder.pad_id, np.int32)
        layers, pooled = self._encode(token_ids, np.ones(1, np.int32), np.zeros((1, 1), np.int32), EncodeCost())
        outputs = [*map(np.asarray, layers.values())] if pooled is None else [*map(np.asarray, layers.values()), pooled]
        if any(len(not_finite_rows(values)) for values in outputs):
            raise ValueError("the encoder gives NaN or infinite values whatever the text: its weights are damaged")

    def _run(self, batch: tuple[Int32Array, Int32Array, Int32Array], cost: EncodeCost) -> Any:
        started = time.perf_counter()
        output = self._encode(*batch, cost)
        TOKENS_ENCODED.add(int(batch[1].sum()))
        with self._lock:
            cost.forward_seconds += time.perf_counter() - started
        return output

    def _encode(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array, cost: EncodeCost
    ) -> tuple[Mapping[int, Layer], Float32Array | None]:
        rows, size = token_ids.shape[0], token_ids.size
        if rows == 1 or self._too_large is None or size < self._too_large:
            for alone in (False, True) if self._threads else (True,):
                try:
                    with self._work(rows, token_ids.shape[1], alone=alone):
                        return self.encoder(token_ids, lengths, segment_ids)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise EncoderFailedError(error) from error
                    if alone and rows == 1:
                        raise
            self._too_large = min(size, self._too_large or size)
        with self._lock:
            cost.halved_batches += 1
        (first, first_pooled), (second, second_pooled) = (
            self._encode(token_ids[part], lengths[part], segment_ids[part], cost)
            for part in (slice(rows // 2), slice(rows // 2, None))
        )
        layers: dict[int, Layer] = {
            layer: np.concatenate([np.asarray(first[layer]), np.asarray(second[layer])]) for layer in first
        }
        if first_pooled is None or second_pooled is None:
            return layers, None
        return layers, np.concatenate([first_pooled, second_pooled])

    @contextlib.contextmanager
    def _work(self, rows: int, longest: int, *, alone: bool) -> Iterator[None]:
        """While a batch is in work; `alone`: after the others have ended, and before the next ones begin."""
        bytes_of = getattr(self.encoder, "batch_bytes", None)
        needed = (bytes_of and bytes_of(rows, longest)) or 0

        def fits() -> bool:
            if not self._in_work:
                return True
            # What those in work will still take is not known: all of it may be ahead.
            left = None if needed < _LARGE_BATCH else self._left()
            return not alone and (left is None or needed + self._bytes_in_work <= left)

        with self._turn:
            self._turn.wait_for(lambda: not self._one_is_next)
            self._one_is_next = True
            self._turn.wait_for(fits)
            self._one_is_next = alone
            self._in_work += 1
            self._bytes_in_work += needed
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._in_work -= 1
                self._bytes_in_work -= needed
                self._one_is_next &= not alone
                self._turn.notify_all()


def not_finite_rows(vectors: npt.NDArray[Any]) -> Int64Array:
    """The rows of [n, W] with a NaN or an infinite value.

    A finite sum proves, at memory speed, that there is none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(vectors.sum(dtype=np.float32)):
            return np.empty(0, np.int64)
    return np.flatnonzero(~np.isfinite(vectors).all(axis=1))
