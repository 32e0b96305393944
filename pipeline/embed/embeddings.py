"""`layerbeam.Embeddings`: layerbeam's encoders for Beam's MLTransform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from apache_beam.ml.transforms.base import EmbeddingsManager, EmbeddingTypeAdapter, _TextEmbeddingHandler

from layerbeam.pipeline.config.job import UNIT_LENGTH
from layerbeam.pipeline.embed.model_handler import ModelHandler
from layerbeam.pipeline.embed.settings import TEXTS_AT_ONCE, embed_job
from layerbeam.transforms.embedder import Embedder, TextError

_VIEW = "vectors"


class Embeddings(EmbeddingsManager):
    """For MLTransform: the text of each column becomes the vector of one view, a list of floats.

    Args:
      columns: the columns with texts, of elements that are mappings or rows.
      encoder: a handle, or the section `encoder` of a configuration as a mapping.
      view: the settings of a view of level text with one vector; by default as the model's own files say, without such
        files the mean of the last layer's tokens, scaled to unit length.
      num_threads: batches that a worker process encodes at the same time.
      type_adapter: instead of `columns`, for other elements; Beam's `create_text_adapter()` is for its vector sinks.

    Raises:
      ValueError: when it is made, if a setting is wrong.
    """

    def __init__(
        self,
        columns: list[str] | None = None,
        *,
        encoder: str | Mapping[str, Any] = "minilm",
        view: Mapping[str, Any] | None = None,
        num_threads: int = 1,
        type_adapter: EmbeddingTypeAdapter[Any, Any] | None = None,
    ) -> None:
        super().__init__(columns=columns, type_adapter=type_adapter)
        self._encoder = encoder if isinstance(encoder, str) else dict(encoder)
        self._view: dict[str, Any] = {"level": "text", "layers": [-1]} if view is None else dict(view)
        self._num_threads = num_threads
        unsaid = UNIT_LENGTH if view is None else {}
        job = embed_job(self._encoder, {_VIEW: self._view}, source="Embeddings", unsaid=unsaid)
        self._view["normalize"] = job.views[0].normalize
        (found,) = job.views
        if found.level != "text" or found.has_vector_lists or len(found.vector_columns) != 1:
            lists = ", pooling none" if found.has_vector_lists else ""
            given = f"level {found.level}{lists}, {', '.join(found.vector_columns)}"
            raise ValueError(
                f"Embeddings: view gives {given}; it must have level text and one vector: choose a pooling and "
                "one layer, or `combine` them; for more there are EmbedText and ModelHandler"
            )
        self._hints = job.config.encoder.resource_hints

    def get_model_handler(self) -> ModelHandler:
        return _VectorHandler(encoder=self._encoder, views={_VIEW: self._view}, num_threads=self._num_threads)

    def get_ptransform_for_processing(self, **_: Any) -> beam.PTransform:
        return RunInference(_TextEmbeddingHandler(self)).with_resource_hints(**self._hints)


class _VectorHandler(ModelHandler):
    """Texts -> one vector each."""

    def run_inference(self, batch: Sequence[str], model: Embedder, inference_args: Any = None) -> Any:
        """TextError for the first text that has none: MLTransform can report whole batches only."""
        (column,) = model.views[0].vector_columns
        found = []
        for text, vectors in zip(batch, self._embed(batch, model), strict=True):
            if isinstance(vectors, TextError):
                raise TextError(f"Embeddings: {text!r:.60}: {vectors}")
            found += vectors[_VIEW][column].tolist()
        return found

    def batch_elements_kwargs(self) -> dict[str, Any]:
        # Beam batches the elements, which may have several texts.
        return {"min_batch_size": TEXTS_AT_ONCE, "max_batch_size": TEXTS_AT_ONCE}
