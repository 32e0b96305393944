"""What the longest text of a run takes of this machine's memory: for `plan`, and before `run` starts."""

from __future__ import annotations

import dataclasses

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import count_noun, size_text
from layerbeam.pipeline.forecast.estimate import Estimate
from layerbeam.transforms.encoders import batch_bytes, weight_bytes
from layerbeam.transforms.hardware import tf
from layerbeam.transforms.views.view import needed_layers, needs_pooler

_LIBRARY_BYTES = 700 << 20  # TensorFlow and Beam, in each process
_SMALL_TEXT = 256 << 20


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the longest text that was seen, in a thread, and of the weights, in a process.

    `tokens`: of that text, as it is encoded. `left`: what this machine and its cgroups have for a process after its
    weights and libraries; None if not known. `threads`: of a process; `at_once`: those that such texts leave busy.
    """

    tokens: int
    activations: int
    attention: int
    weights: int
    left: int | None
    threads: int
    at_once: int

    @property
    def of_text(self) -> int:
        """Bytes of the text."""
        return self.activations + self.attention

    @property
    def is_notable(self) -> bool:
        """Whether the text is large, or few fit."""
        return self.of_text >= _SMALL_TEXT or self.at_once < self.threads

    @property
    def text(self) -> str:
        """In a line."""
        sizes = f"activations {size_text(self.activations)}, attention {size_text(self.attention)}"
        line = (
            f"the longest text, {count_noun(self.tokens, 'token')}, takes up to {size_text(self.of_text)} in a thread "
            f"({sizes}); weights {size_text(self.weights)}"
        )
        if self.left is not None:
            line += f"; {size_text(self.left)} left next to them"
        if 0 < self.at_once < self.threads:
            line += f": {self.at_once} of {self.threads} threads encode such texts at once"
        return line

    @property
    def problem(self) -> str | None:
        """Why the run cannot encode the text, and what to change; None if it can."""
        if self.at_once:
            return None
        return (
            f"encoder.max_seq_length: {self.text}, which is too little: lower max_seq_length (with long_text: window "
            "all tokens keep their vectors), give this machine or container more memory, or lower --processes"
        )


def memory_need(
    job: Job, sample: Estimate, left: int | None, threads: int, processes: int | None = None
) -> MemoryNeed | None:
    """The need of a run on this machine; None where the encoder is a SavedModel, computes on a GPU, or has no text.

    `left`: what is left before the libraries and the encoder are loaded.
    """
    architecture, lengths = job.encoder.architecture, sample.lengths()[0]
    is_here = job.config.encoder.device in ("auto", "cpu") and not tf.config.list_physical_devices("GPU")
    if architecture is None or job.encoder.engine != "native" or not is_here or not len(lengths):
        return None
    layers, longest = needed_layers(job.views), min(int(lengths.max()), job.max_seq_length)
    of_text = batch_bytes(architecture, layers, 1, longest)
    weights = weight_bytes(
        architecture, layers, pooler=needs_pooler(job.views), compute_dtype=job.config.encoder.compute_dtype
    )
    at_once = threads
    if left is not None:
        left = max(left // (processes or 1) - _LIBRARY_BYTES - weights, 0)
        at_once = min(left // of_text.total, threads)
    return MemoryNeed(longest, of_text.activations, of_text.attention, weights, left, threads, at_once)
