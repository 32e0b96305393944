"""Texts of another pipeline embedded: (key, text) -> (key, vectors), in batches of a bundle or across bundles."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from time import time as now
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.shared import Shared
from apache_beam.utils.windowed_value import WindowedValue

from layerbeam.transforms.embedder import Embedder, TextError
from layerbeam.transforms.encode.forward import EncodeCost
from layerbeam.transforms.flow import counters, metrics

REJECTED = "rejected"

# What waits: ((key, text), timestamp, window, pane).
Waiting = tuple[tuple[Any, str | None], Any, Any, Any]


def estimated_tokens(text: str | None) -> int:
    """As for the blocks of a run: two, and one for each four characters.

    >>> estimated_tokens("A river bank.")
    5
    """
    return 2 + len(text or "") // 4


class _Embedding(beam.DoFn):
    """What both ways of batching share.

    `load`: the embedder, once per process. `tokens`: so many estimated tokens are encoded together. `dead_letters`:
    (key, text, reason) goes to the output REJECTED if a text has no vectors; else it is an error.
    """

    def __init__(self, load: Callable[[], Embedder], tokens: int, *, dead_letters: bool) -> None:
        self._load = load
        self._tokens_at_once = tokens
        self._dead_letters = dead_letters
        self._shared = Shared()

    def setup(self) -> None:
        self._embedder = self._shared.acquire(self._load)

    def _embed(self, waiting: list[Waiting]) -> Iterator[Any]:
        """The outputs for these texts, each in its own window. TextError."""
        texts = [text for (_, text), *_ in waiting]
        cost = EncodeCost()
        found = self._embedder.embed(texts, cost)
        beam.metrics.Metrics.distribution(metrics.NAMESPACE, metrics.BATCH_TEXTS).update(len(texts))
        counters.count(metrics.PADDED_TOKENS, cost.padded_tokens)
        counters.count(metrics.ENCODED_TOKENS, cost.encoded_tokens)
        counters.count_time("forward", cost.forward_seconds)
        rejected = sum(isinstance(vectors, TextError) for vectors in found)
        counters.count(metrics.EMBEDDED, len(found) - rejected)
        counters.count(metrics.REJECTED, rejected)
        for ((key, text), timestamp, window, pane), vectors in zip(waiting, found, strict=True):
            if not isinstance(vectors, TextError):
                yield WindowedValue((key, vectors), timestamp, (window,), pane)
                continue
            if not self._dead_letters:
                raise TextError(f"EmbedText: the text of key {key!r:.60} has no vectors: {vectors}") from vectors
            value = WindowedValue((key, text, str(vectors)), timestamp, (window,), pane)
            yield beam.pvalue.TaggedOutput(REJECTED, value)


class EmbedBundles(_Embedding):
    """(key, text) -> (key, vectors), in the same windows and panes and with the same timestamps.

    Texts of a bundle are encoded together.
    """

    def start_bundle(self) -> None:
        self._waiting: list[Waiting] = []
        self._tokens = 0

    def process(
        self,
        element: tuple[Any, str | None],
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Any]:
        pair = checked(element)
        self._waiting.append((pair, timestamp, window, pane))
        self._tokens += estimated_tokens(pair[1])
        if self._tokens >= self._tokens_at_once:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        yield from self._flush()

    def _flush(self) -> Iterator[Any]:
        waiting, self._waiting, self._tokens = self._waiting, [], 0
        if waiting:
            yield from self._embed(waiting)


_PROCESS = uuid.uuid4().hex


def with_process_key(element: Any) -> tuple[str, tuple[Any, str | None]]:
    """(key, text) -> (a name of this process, (key, text)), so that each process gathers its own batches."""
    return _PROCESS, checked(element)


class EmbedAcrossBundles(_Embedding):
    """As `EmbedBundles`, of what `with_process_key` gives; texts of bundles wait, at most `max_delay_seconds`."""

    WAITING = userstate.BagStateSpec("waiting", coders.FastPrimitivesCoder())
    TOKENS = userstate.ReadModifyWriteStateSpec("tokens", coders.VarIntCoder())
    DELAY = userstate.TimerSpec("delay", TimeDomain.REAL_TIME)
    END = userstate.TimerSpec("end of window", TimeDomain.WATERMARK)

    def __init__(self, *arguments: Any, max_delay_seconds: float, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._max_delay_seconds = max_delay_seconds

    def process(
        self,
        element: tuple[str, tuple[Any, str | None]],
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        tokens: Any = beam.DoFn.StateParam(TOKENS),
        delay: Any = beam.DoFn.TimerParam(DELAY),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[Any]:
        key, text = element[1]
        before = tokens.read() or 0
        if not before:
            delay.set(now() + self._max_delay_seconds)
            end.set(window.end)
        total = before + estimated_tokens(text)
        waiting.add(((key, text), timestamp, pane))
        tokens.write(total)
        if total >= self._tokens_at_once:
            delay.clear()  # not in `flush`: Prism hangs if a timer is cleared while it fires
            yield from self.flush(window, waiting, tokens)

    @userstate.on_timer(DELAY)
    @userstate.on_timer(END)
    def flush(
        self,
        window: Any = beam.DoFn.WindowParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        tokens: Any = beam.DoFn.StateParam(TOKENS),
    ) -> Iterator[Any]:
        """Encode what waits in this window."""
        some = [(pair, timestamp, window, pane) for pair, timestamp, pane in waiting.read()]
        waiting.clear()
        tokens.clear()
        if some:
            yield from self._embed(some)


def checked(element: Any) -> tuple[Any, str | None]:
    """TypeError unless it is (key, text)."""
    if not isinstance(element, tuple) or len(element) != 2 or not isinstance(element[1], str | None):
        raise TypeError(f"EmbedText: elements are (key, text), text a string; this one is {str(element)!r:.60}")
    return element
