"""The pipeline: one chain from a work list to a finished run. Building it starts nothing and reads nothing."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.finish import RunEnd
from layerbeam.pipeline.run.canaries import load_encoder
from layerbeam.pipeline.run.stages import FindWork, Finish
from layerbeam.transforms.encode import EncodeBlocks
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.hardware import Hardware
from layerbeam.transforms.read import ReadBlocks
from layerbeam.transforms.slice import SliceFiles
from layerbeam.transforms.tokenize import TokenizeBlocks
from layerbeam.transforms.write import WriteBlocks


@dataclasses.dataclass(frozen=True)
class Stages:
    """The stages of a run, in their order: each is a function by its `start`, and a Beam transform."""

    find: FindWork
    slice: SliceFiles
    read: ReadBlocks
    tokenize: TokenizeBlocks
    encode: EncodeBlocks
    write: WriteBlocks
    finish: Finish


def make_stages(
    job: Job,
    *,
    run_number: int,
    num_threads: int | None = None,
    num_readers: int = 1,
    encoder_process: bytes | None = None,
    encoder_threads: int | None = None,
    spread: bool = True,
    prune_missing: bool = False,
    reread: bool = False,
) -> Stages:
    """The stages of a job.

    `run_number`: the attempt's; the pipeline records its own end in `_runs`, because the submitter may exit.
    `num_threads`: blocks processed concurrently in each worker process; None: one for each core.
    `num_readers`: workers that share even a small compressed file, if they are known.
    `encoder_process`: the address of the process that encodes for the others, with `encoder_threads`.
    `spread`: whether many workers scan the input and compact the log.
    `prune_missing`, `reread`: of `find_work`, unless the attempt has a work list already.
    """
    config, encoder = job.config, job.encoder
    output = dataclasses.replace(job.output, attempt=run_number)
    # Only the encoder needs the device.
    hardware, device = Hardware(num_threads), Hardware(num_threads, config.encoder.device)
    if encoder_process is not None:
        device = Hardware(encoder_threads, config.encoder.device, encoder_process)
    rate, text_field = config.input.max_reject_rate, job.records.text_field
    return Stages(
        FindWork(job, run_number, prune_missing=prune_missing, reread=reread),
        SliceFiles(job.limits, job.records, num_readers=num_readers, spread=spread),
        ReadBlocks(job.limits, job.records, output, job.views),
        TokenizeBlocks(encoder, views=job.views, settings=job.sequences, hardware=hardware),
        EncodeBlocks(functools.partial(load_encoder, job), views=job.views, settings=job.encoding, hardware=device),
        WriteBlocks(output, encoder, views=job.views),
        Finish(RunEnd(output, job.views, job.run_identity, rate, text_field, run_number), spread),
    )


def build(root: beam.Pipeline, job: Job, **settings: Any) -> Any:
    """The transforms of a job on a pipeline or its root; they give one element, the manifest as JSON.

    `settings`: of `make_stages`.
    """
    stages = make_stages(job, **settings)

    # Paths, byte ranges and line numbers cross a shuffle: the local runner keeps what is shuffled in memory.
    slices, unreadable = root | beam.Impulse() | "find" >> stages.find | "slice" >> stages.slice
    slices = slices | "spread slices" >> beam.Reshuffle()

    # From here to the commit everything fuses: one worker takes a block from its bytes to its parts. So the machines
    # with an accelerator do all of it, and nothing that they get from the others is a vector.
    hints = job.config.encoder.resource_hints
    blocks, unread = slices | "read" >> stages.read.with_resource_hints(**hints)
    written = (
        blocks
        | "tokenize" >> stages.tokenize.with_resource_hints(**hints)
        | "encode" >> stages.encode.with_resource_hints(**hints)
        | "write" >> stages.write.with_resource_hints(**hints)
    )
    problems = written | "changed" >> beam.Filter(lambda done: isinstance(done, InputFile))

    # All is on the disk but why files could not be read. With one way out, Spark encodes once.
    return (unreadable, unread, problems) | "problems" >> beam.Flatten() | "finish" >> stages.finish
