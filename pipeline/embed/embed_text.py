"""`layerbeam.EmbedText`: the vectors of keyed texts inside another Beam pipeline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.typehints import Optional, Tuple
from apache_beam.typehints.typehints import coerce_to_kv_type

from layerbeam.pipeline.embed.embed import REJECTED, EmbedAcrossBundles, EmbedBundles, with_process_key
from layerbeam.pipeline.embed.settings import embed_job, tokens_at_once
from layerbeam.transforms.embedder import Vectors
from layerbeam.transforms.views.view import ViewSpec


@beam.typehints.with_input_types(tuple[Any, str | None])
class EmbedText(beam.PTransform):
    """(key, text) -> (key, {view: {column: values}}), in batch and streaming pipelines.

    Vector columns are NumPy arrays [n, W]; other columns are lists of n values. n is the number of the text's tokens
    or words, and 1 at level text; with `pooling: none` the vectors are [k, W] of the text's k tokens. Windows,
    timestamps and panes stay as they are. A text that cannot be encoded fails the bundle: see
    `with_exception_handling`.

    Args:
      encoder: a handle, or the section `encoder` of a configuration as a mapping.
      views: the section `views` of a configuration, with levels token, word and text.
      num_threads: batches that a worker process encodes at the same time.
      max_delay_seconds: for streaming pipelines, whose bundles are small: texts of several bundles wait for each other,
        at most so long. By default texts of one bundle are encoded together.

    Raises:
      ValueError: when it is made, if a setting is wrong.
    """

    _source = "EmbedText"

    def __init__(
        self,
        *,
        encoder: str | Mapping[str, Any] = "minilm",
        views: Mapping[str, Any],
        num_threads: int = 1,
        max_delay_seconds: float | None = None,
    ) -> None:
        super().__init__()
        if max_delay_seconds is not None and max_delay_seconds <= 0:
            raise ValueError(f"{self._source}: max_delay_seconds is {max_delay_seconds}; it must be positive, or None")
        self._job = embed_job(encoder, views, source=self._source)
        self._num_threads = num_threads
        self._max_delay_seconds = max_delay_seconds
        self._dead_letters = False

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return self._job.views

    def with_exception_handling(self) -> EmbedText:
        """The same with two outputs: (key, vectors), and (key, text, reason) for the texts that have no vectors."""
        self._dead_letters = True
        return self

    def expand(self, texts: Any) -> Any:
        key = coerce_to_kv_type(texts.element_type).tuple_types[0]
        load = functools.partial(self._job.load_embedder, self._num_threads)
        settings: dict[str, Any] = {"tokens": tokens_at_once(self._job), "dead_letters": self._dead_letters}
        if self._max_delay_seconds is None:
            embed: beam.DoFn = EmbedBundles(load, **settings)
        else:
            keyed = beam.Map(with_process_key).with_output_types(Tuple[str, Tuple[key, Optional[str]]])
            texts = texts | "name the process" >> keyed
            embed = EmbedAcrossBundles(load, max_delay_seconds=self._max_delay_seconds, **settings)
        step = beam.ParDo(embed).with_resource_hints(**self._job.config.encoder.resource_hints)
        outputs = texts | "embed" >> step.with_outputs(REJECTED, main="embedded")
        # Not by `with_output_types`, which takes types of further outputs since Beam 2.72 only.
        outputs.embedded.element_type = Tuple[key, Vectors]
        outputs.rejected.element_type = Tuple[key, Optional[str], str]
        return (outputs.embedded, outputs.rejected) if self._dead_letters else outputs.embedded

    def display_data(self) -> dict[str, Any]:
        encoder = self._job.config.encoder
        shown = {"encoder": encoder.handle, "device": encoder.device, "views": ", ".join(v.name for v in self.views)}
        return shown | ({} if self._max_delay_seconds is None else {"max_delay_seconds": self._max_delay_seconds})
