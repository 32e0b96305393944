"""`layerbeam.EmbedText`: the vectors of texts inside another Beam pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.config.job import resolve_embedding
from layerbeam.pipeline.config.load import check_embedding
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.embed import EmbedTexts
from layerbeam.transforms.hardware import Hardware


class EmbedText(beam.PTransform):
    """(key, text) -> (key, {view: {column: values}}), in batch and streaming pipelines.

    Vector columns are NumPy arrays [n, W]; other columns are lists of n values. n is the number of the text's tokens
    or words, and 1 at level text.

    Args:
      encoder: a handle, or the section `encoder` of a configuration as a mapping.
      views: the section `views` of a configuration, with levels token, word and text.
      num_threads: bundles that a worker process encodes at the same time.

    Raises:
      ValueError: when it is made, if a setting is wrong.
    """

    def __init__(
        self, *, encoder: str | Mapping[str, Any] = "minilm", views: Mapping[str, Any], num_threads: int = 1
    ) -> None:
        super().__init__()
        try:
            config = check_embedding(encoder, views, source="EmbedText")
            if config.encoder.long_text == "reject":
                raise UsageError("EmbedText: encoder.long_text: reject is for runs over files; filter texts before")
            self._job = resolve_embedding(config)
        except UsageError as error:
            raise ValueError(str(error)) from error
        self._num_threads = num_threads

    def expand(self, texts: Any) -> Any:
        job = self._job
        hardware = Hardware(self._num_threads)
        embed = EmbedTexts(job.load_encoder, job.encoder, job.views, job.sequences, job.encoding, hardware)
        return texts | beam.ParDo(embed)
