"""`layerbeam.ModelHandler`: layerbeam's encoders for Beam's RunInference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from apache_beam.ml.inference import base
from apache_beam.ml.inference.base import PredictionResult

from layerbeam.pipeline.embed.embed import estimated_tokens
from layerbeam.pipeline.embed.settings import TEXTS_AT_ONCE, embed_job, tokens_at_once
from layerbeam.transforms.embedder import Embedder, TextError, Vectors


class ModelHandler(base.ModelHandler[str, PredictionResult, Embedder]):
    """Texts -> PredictionResult, whose inference is {view: {column: values}}, as `EmbedText` gives it.

    Batches are filled to a number of tokens, and sorted by length within. A process loads the encoder once. The path
    in a model update (`RunInference(model_metadata_pcoll=...)`) is the handle of another encoder.

    Args:
      encoder: a handle, or the section `encoder` of a configuration as a mapping.
      views: the section `views` of a configuration, with levels token, word and text.
      num_threads: batches that a process encodes at the same time.
      rejects: what happens to a text that cannot be encoded. `raise`: it is an error, and with
        `RunInference.with_exception_handling()` it alone is in `failed_postprocessing`. `return`: its inference is a
        `layerbeam.TextError`, the reason; Beam's KeyedModelHandler takes no other.
      max_batch_duration_secs: for streaming pipelines: texts of several bundles wait for each other, at most so long.
      large_model: load the encoder once per machine, in a process of its own.
      model_copies: load it so many times per machine.

    Raises:
      ValueError: when it is made, if a setting is wrong.
    """

    def __init__(
        self,
        *,
        encoder: str | Mapping[str, Any] = "minilm",
        views: Mapping[str, Any],
        num_threads: int = 1,
        rejects: Literal["raise", "return"] = "raise",
        max_batch_duration_secs: float | None = None,
        large_model: bool = False,
        model_copies: int | None = None,
    ) -> None:
        if rejects not in ("raise", "return"):
            raise ValueError(f"ModelHandler: rejects is {rejects!r}; allowed: raise, return")
        job = embed_job(encoder, views, source="ModelHandler")
        # Settings only: MLTransform saves handlers as JSON. The worker opens the encoder.
        self._encoder = {"handle": encoder} if isinstance(encoder, str) else dict(encoder)
        self._views = {name: dict(view) for name, view in views.items()}
        self._num_threads = num_threads
        self._rejects = rejects
        self._hints = job.config.encoder.resource_hints
        self._fingerprint: str | None = job.encoder.fingerprint
        at_once = tokens_at_once(job) if max_batch_duration_secs is None else TEXTS_AT_ONCE
        self._batches: dict[str, Any] = {
            "min_batch_size": at_once,
            "max_batch_size": at_once,
            "element_size_fn": _tokens_of,
        }
        if max_batch_duration_secs is not None:
            self._batches["max_batch_duration_secs"] = max_batch_duration_secs
        super().__init__()
        self._large_model, self._model_copies = large_model, model_copies

    def load_model(self) -> Embedder:
        """The encoder. ValueError if it has changed since the pipeline was built."""
        job = embed_job(self._encoder, self._views, source="ModelHandler")
        if self._fingerprint not in (None, job.encoder.fingerprint):
            raise ValueError(f"{job.encoder.handle}: has changed since the pipeline was built; start it again")
        return job.load_embedder(self._num_threads)

    def run_inference(
        self, batch: Sequence[str], model: Embedder, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        vectors = self._embed(batch, model)
        pairs = zip(batch, vectors, strict=True)
        return [PredictionResult(text, of_text, self._encoder["handle"]) for text, of_text in pairs]

    def _embed(self, batch: Sequence[str], model: Embedder) -> list[Vectors | TextError]:
        return model.embed([_checked(text) for text in batch])

    def get_postprocess_fns(self) -> list[Any]:
        """After a batch, so that one text does not fail the others."""
        return [_raise_error] if self._rejects == "raise" else []

    def update_model_path(self, model_path: str | None = None) -> None:
        """Another encoder, by its handle."""
        if model_path:
            self._encoder |= {"handle": model_path}
            self._fingerprint = None

    # Methods, not arguments of Beam's class, which takes these since 2.72 only.
    def batch_elements_kwargs(self) -> dict[str, Any]:
        return self._batches

    def share_model_across_processes(self) -> bool:
        return self._large_model or self._model_copies is not None

    def model_copies(self) -> int:
        return self._model_copies or 1

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        if inference_args:
            raise ValueError(f"ModelHandler: takes no inference_args ({inference_args}): set `encoder` and `views`")

    def get_num_bytes(self, batch: Sequence[str]) -> int:
        return sum(len(text.encode(errors="replace")) for text in batch)

    def get_metrics_namespace(self) -> str:
        return "layerbeam"

    def get_resource_hints(self) -> dict[str, str]:
        return self._hints


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"ModelHandler: elements are texts; this one is {str(text)!r:.60}, {type(text).__name__}")
    return text


def _tokens_of(element: Any) -> int:
    """Of a text, or of (key, text), which Beam's KeyedModelHandler batches."""
    text = element[1] if isinstance(element, tuple) else element
    return estimated_tokens(text if isinstance(text, str) else None)


def _raise_error(result: PredictionResult) -> PredictionResult:
    if isinstance(result.inference, TextError):
        raise result.inference
    return result
