"""Texts encoded as a run encoded its corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from layerbeam.pipeline.config.job import EmbedJob
from layerbeam.pipeline.console import echo_warning
from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.encoders.recipe import named_prompts
from layerbeam.transforms.flow.blocks import TextBlock, row_of_each
from layerbeam.transforms.settings import LINES
from layerbeam.transforms.tokenize.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class QueryEncoder:
    """The encoder of a run, loaded for a column of one of its views of texts or records."""

    job: EmbedJob
    _forward: Forward
    _column: int

    def encode(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        """[n, W]: the vectors of texts. UsageError for a text that has none."""
        (view,) = self.job.views
        sequences = dataclasses.replace(self.job.sequences, records=LINES, context="text")  # a query is one text
        tokens = Tokenizer(self.job.encoder, self.job.views, sequences)(TextBlock.of(texts))
        for rejected in tokens.text.rejected:
            raise UsageError(f"{texts[rejected.line]!r}: {rejected.reason}")
        with_tokens = row_of_each(tokens.row_splits)[tokens.start >= 0]
        for number, text in enumerate(texts):
            if number not in with_tokens:
                raise UsageError(f"{text!r}: has no tokens; give a text with words")
        return encode_block(tokens, self._forward, self.job.views, self.job.encoding).vectors[view.name][self._column]


def encode_given(
    run: Run, name: str, column: str, texts: Sequence[str], *, prompt: str | None = None, trust: bool
) -> npt.NDArray[Any]:
    """[n, W]: the texts of `--text` as queries. UsageError, which names the option, as `load_query_encoder`."""
    try:
        return load_query_encoder(run, name, column, as_query=True, prompt=prompt, trust=trust).encode(texts)
    except UsageError as error:
        raise UsageError(f"--text {error}") from error


def load_query_encoder(
    run: Run, name: str, column: str, *, as_query: bool, prompt: str | None = None, trust: bool = False
) -> QueryEncoder:
    """For texts in a vector column of a view, encoded as the run's texts or as queries. `trust`: as for `Run.job`.

    `prompt`: of queries, in place of `encoder.query_prompt`: the name of one of the model's prompts, or the text
    itself. UsageError if the run's encoder is missing or has changed.
    """
    try:
        job: EmbedJob = run.job(trust=trust)
        views = tuple(view for view in job.views if view.name == name)
        query = job.config.encoder.query_prompt
        if prompt is not None:
            named = named_prompts(Path(job.encoder.folder))
            query = named.get(prompt, prompt)
            near = did_you_mean(prompt, named)
            if near and prompt not in named:
                echo_warning(
                    f"prompt: {prompt} is not the name of a prompt of the model, and put before the text{near}"
                )
        job = dataclasses.replace(job, views=views).with_prompt(query if as_query else None)
        job.load_tensorflow(1)
        forward = Forward(job.load_encoder())
    except (UsageError, EncoderError) as error:
        raise UsageError(f"needs the encoder of the run: {error}") from error
    return QueryEncoder(job, forward, run[name].vectors.index(column))
