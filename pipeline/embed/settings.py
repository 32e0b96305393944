"""The settings that all ways to embed in a Beam pipeline share: an encoder and views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.config.job import EmbedJob, resolve_embedding
from layerbeam.pipeline.config.load import check_embedding
from layerbeam.pipeline.errors import UsageError

# Estimated tokens that are batched by length together: several of a CPU's batches of 1,024.
TOKENS_AT_ONCE = 1 << 14
# Where Beam counts elements and knows no sizes.
TEXTS_AT_ONCE = 256


def embed_job(
    encoder: str | Mapping[str, Any], views: Mapping[str, Any], *, source: str, unsaid: Mapping[str, Any] | None = None
) -> EmbedJob:
    """The job of these settings. ValueError if one of them is wrong; `source` begins its message.

    `unsaid`: as for `resolve_embedding`.
    """
    try:
        config = check_embedding(encoder, views, source=source)
        for name, view in config.views.items():
            if view.dtype == "int8":
                raise ValueError(
                    f"{source}: views.{name}.dtype: is int8, a form of stored vectors; elements of a pipeline have "
                    "float32 or float16"
                )
        return resolve_embedding(config, unsaid=unsaid or {})
    except UsageError as error:
        raise ValueError(str(error)) from error


def tokens_at_once(job: EmbedJob) -> int:
    """Estimated tokens of the texts that are encoded together."""
    return max(TOKENS_AT_ONCE, job.encoding.batch_tokens)
