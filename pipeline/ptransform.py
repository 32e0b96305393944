"""`layerbeam.EmbedText`: the vectors of texts inside somebody else's Beam pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.config import schema as configuration
from layerbeam.pipeline.config.job import resolve
from layerbeam.pipeline.config.layers import open_for
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.embed import EmbedTexts
from layerbeam.transforms.hardware import Hardware

_NOT_HERE = ("record", "word_type")


class EmbedText(beam.PTransform):
    """A PCollection of (key, text) becomes one of (key, {view: {column: values}}); batch and streaming.

    `encoder`: a handle, or the section `encoder` of a configuration as a mapping; `views`: the section `views`. Levels
    token, word and text; vector columns are NumPy arrays [n, W] (n rows: its tokens or words, 1 at text level), the
    others lists of n. `num_threads`: bundles that a worker process has in hand at once. ValueError, when it is made,
    for settings that do not hold.
    """

    def __init__(
        self, *, encoder: str | Mapping[str, Any] = "minilm", views: Mapping[str, Any], num_threads: int = 1
    ) -> None:
        super().__init__()
        settings = {
            "input": {"files": ["none"]},
            "encoder": {"handle": encoder} if isinstance(encoder, str) else dict(encoder),
            "views": {name: dict(view) for name, view in views.items()},
            "output": {"path": "none"},
        }
        try:
            config = configuration.check(settings, source="EmbedText")
            for name, view in config.views.items():
                if view.level in _NOT_HERE:
                    raise UsageError(f"EmbedText: views.{name}.level: {view.level} is for runs over files only")
            if config.encoder.long_text == "reject":
                raise UsageError("EmbedText: encoder.long_text: reject is for runs over files; filter texts before")
            self._job = resolve(config, open_for(config))
        except UsageError as error:
            raise ValueError(str(error)) from error
        self._num_threads = num_threads

    def expand(self, texts: Any) -> Any:
        job = self._job
        embed = EmbedTexts(
            job.load_encoder,
            job.encoder.vocabulary,
            job.views,
            job.sequences,
            job.encoding,
            do_lower_case=job.encoder.do_lower_case,
            hardware=Hardware(self._num_threads),
        )
        return texts | beam.ParDo(embed)
