"""The pipeline: one chain from globs to a finished run. Building it starts nothing and reads nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.commits import CommittedBlocks
from layerbeam.pipeline.output.find import FindWork
from layerbeam.pipeline.output.finish import Finish
from layerbeam.transforms.encode import EncodeBlocks
from layerbeam.transforms.hardware import Hardware
from layerbeam.transforms.read import ReadBlocks
from layerbeam.transforms.slice import SliceFiles
from layerbeam.transforms.tokenize import TokenizeBlocks
from layerbeam.transforms.write import WriteBlocks


def build(
    root: beam.Pipeline,
    job: Job,
    *,
    num_threads: int | None = None,
    num_readers: int = 1,
    prune_missing: bool = False,
    reread: bool = False,
    run_number: int | None = None,
    is_remote: bool = False,
) -> Any:
    """The transforms of a job on a pipeline or its root; they give one element, the manifest as JSON.

    `num_threads`: blocks processed concurrently in each worker process; None: one for each core.
    `num_readers`: the workers, if that is known: a compressed file of a few blocks is work for all of them.
    `run_number`: the attempt's; the pipeline records its own end in `_runs`, because the submitter may exit.
    `is_remote`: its workers are in other processes, as on a cluster.
    """
    config, encoder = job.config, job.encoder
    output = dataclasses.replace(job.output, attempt=run_number)
    # Only the encoder needs the device.
    hardware, device = Hardware(num_threads), Hardware(num_threads, config.encoder.device)

    limit = config.input.limit
    # On the local runner each stage costs some tens of milliseconds, and what is grouped is in memory.
    find = FindWork(
        config.input.files,
        output.path,
        prune_missing,
        limit,
        job.records,
        output.fingerprint,
        job.limits,
        spread=is_remote,
        reread=reread,
    )
    known = CommittedBlocks(output.path, output.fingerprint)
    read = ReadBlocks(job.limits, job.records, hardware, output, known)
    tokenize = TokenizeBlocks(encoder, views=job.views, settings=job.sequences, hardware=hardware)
    encode = EncodeBlocks(job.load_encoder, views=job.views, settings=job.encoding, hardware=device)
    write = WriteBlocks(output, encoder, views=job.views)
    rate = config.input.max_reject_rate
    finish = Finish(output, job.views, job.run_identity, rate, job.records, run_number, limit, is_remote)

    # Which files there are, and what of them is done already.
    files = root | beam.Impulse() | "find" >> find

    # Paths, byte ranges and line numbers cross a shuffle: the local runner keeps what is shuffled in memory.
    slice_files = SliceFiles(job.limits, job.records, num_readers)
    slices, unreadable = files[FindWork.TO_READ] | "slice" >> slice_files

    # Flink ignores the second of two Reshuffles without a grouping between them.
    slices = slices | "spread slices" >> beam.Reshuffle()

    # From here to the commit everything fuses: one worker takes a block from its bytes to its parts. So the machines
    # with an accelerator do all of it, and nothing that they get from the others is a vector.
    hints = config.encoder.resource_hints
    blocks = slices | "read" >> read.with_resource_hints(**hints)
    commits = (
        blocks[ReadBlocks.BLOCKS]
        | "tokenize" >> tokenize.with_resource_hints(**hints)
        | "encode" >> encode.with_resource_hints(**hints)
        | "write" >> write.with_resource_hints(**hints)
    )

    # Only the hashes of blocks are grouped; the reports of the groups are combined in one place, which finalizes the
    # folder.
    of_blocks = [blocks[ReadBlocks.SKIPPED], commits]
    if is_remote:  # Spark would encode once for each output. The local runner would keep what meets here in memory.
        of_blocks = [of_blocks | "of blocks" >> beam.Flatten()]
    reports = (unreadable, *of_blocks)
    return (files[FindWork.KNOWN], reports, files[FindWork.BOUNDARIES]) | "finish" >> finish
