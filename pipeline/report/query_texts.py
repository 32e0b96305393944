"""Texts of the command line, encoded as the run encoded its corpus."""

from __future__ import annotations

import dataclasses

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.report.context import ReportContext, SampledView
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms.blocks import TextBlock, row_of_each
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.settings import LINES
from layerbeam.transforms.tokenize.tokenizer import Tokenizer


def encode_texts(context: ReportContext, view: SampledView, column: str) -> Array:
    """[n, W]: the command's texts in a vector column of a view of texts.

    UsageError if a text cannot be encoded, or the run's encoder is missing or has changed.
    """
    try:
        job = context.run.job(trust=context.trust)
        job = dataclasses.replace(job, views=tuple(each for each in job.views if each.name == view.name))
        job.load_tensorflow(1)
        encoder = job.load_encoder()
    except (UsageError, EncoderError) as error:
        raise UsageError(f"--text needs the encoder of the run: {error}") from error
    sequences = dataclasses.replace(job.sequences, records=LINES, context="text")  # a query is one text
    tokens = Tokenizer(job.encoder, job.views, sequences)(TextBlock.of(context.texts))
    for rejected in tokens.text.rejected:
        raise UsageError(f"--text {context.texts[rejected.line]!r}: {rejected.reason}")
    with_tokens = row_of_each(tokens.row_splits)[tokens.start >= 0]
    for number, text in enumerate(context.texts):
        if number not in with_tokens:
            raise UsageError(f"--text {text!r}: has no tokens; give a text with words")
    vectors = encode_block(tokens, Forward(encoder), job.views, job.encoding).vectors[view.name]
    return vectors[view.vectors.index(column)]
