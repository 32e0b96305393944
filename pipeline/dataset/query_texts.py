"""Texts encoded as a run encoded its corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.blocks import TextBlock, row_of_each
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.settings import LINES
from layerbeam.transforms.tokenize.tokenizer import Tokenizer


def encode_texts(run: Run, name: str, column: str, texts: Sequence[str], *, trust: bool) -> npt.NDArray[Any]:
    """[n, W]: the texts of `--text` in a vector column of a view of texts or records. `trust`: as for `Run.job`.

    UsageError if a text cannot be encoded, or the run's encoder is missing or has changed.
    """
    try:
        job = run.job(trust=trust)
        job = dataclasses.replace(job, views=tuple(each for each in job.views if each.name == name))
        job.load_tensorflow(1)
        encoder = job.load_encoder()
    except (UsageError, EncoderError) as error:
        raise UsageError(f"--text needs the encoder of the run: {error}") from error
    sequences = dataclasses.replace(job.sequences, records=LINES, context="text")  # a query is one text
    tokens = Tokenizer(job.encoder, job.views, sequences)(TextBlock.of(texts))
    for rejected in tokens.text.rejected:
        raise UsageError(f"--text {texts[rejected.line]!r}: {rejected.reason}")
    with_tokens = row_of_each(tokens.row_splits)[tokens.start >= 0]
    for number, text in enumerate(texts):
        if number not in with_tokens:
            raise UsageError(f"--text {text!r}: has no tokens; give a text with words")
    vectors = encode_block(tokens, Forward(encoder), job.views, job.encoding).vectors[name]
    return vectors[run[name].vectors.index(column)]
