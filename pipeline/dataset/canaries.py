"""Canary texts encoded as the texts of a run: by the worker that keeps their vectors, and by `layerbeam check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from layerbeam.pipeline.config.job import EmbedJob
from layerbeam.pipeline.output.canaries import CanaryVectors
from layerbeam.transforms.embedder import Embedder, TextError
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.settings import LINES
from layerbeam.transforms.views.view import ViewSpec


def canary_views(views: Iterable[ViewSpec]) -> tuple[ViewSpec, ...]:
    """The views with one vector for each text, in float32, which files may round, and without fields of the input."""
    of_texts = (view for view in views if view.level == "text" and not view.has_vector_lists)
    return tuple(dataclasses.replace(view, dtype="float32", fields=()) for view in of_texts)


def encode_canaries(job: EmbedJob, forward: Forward, texts: Sequence[str]) -> tuple[list[str], CanaryVectors]:
    """(the texts that have vectors, these vectors) in the views of the job, each text alone in its record."""
    sequences = dataclasses.replace(job.sequences, records=LINES, context="text")
    found = Embedder(forward, job.encoder, job.views, sequences, job.encoding).embed(texts)
    encoded = [(text, rows) for text, rows in zip(texts, found, strict=True) if not isinstance(rows, TextError)]
    vectors = {
        view.name: {
            column: np.concatenate([rows[view.name][column] for _, rows in encoded]) for column in view.vector_columns
        }
        for view in job.views
        if encoded
    }
    return [text for text, _ in encoded], vectors
