"""The encoder of a run for the workers that encode, the first of which keeps the vectors of the canary texts."""

from __future__ import annotations

import dataclasses

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.dataset.canaries import canary_views, encode_canaries
from layerbeam.pipeline.output.canaries import CANARY_TEXTS, has_canaries, keep_canaries
from layerbeam.transforms.encode.forward import Encoder, Forward


def load_encoder(job: Job) -> Encoder:
    """As `Job.load_encoder`; also writes the canaries unless the folder has them: some 1,000 tokens more."""
    encoder = job.load_encoder()
    path, fingerprint, views = job.output.path, job.output.fingerprint, canary_views(job.views)
    if views and not has_canaries(path, fingerprint):
        found = encode_canaries(dataclasses.replace(job, views=views), Forward(encoder, 1), CANARY_TEXTS)
        keep_canaries(path, fingerprint, *found)
    return encoder
