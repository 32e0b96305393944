"""The first and the last stage of a run as Beam transforms; `pipeline/output` does the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.finish import RunEnd
from layerbeam.pipeline.output.word_types import WordTypeTables
from layerbeam.pipeline.output.work import WorkList, begin_work, find_work
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.slice.slices import FileToRead
from layerbeam.transforms.write.word_types import merge_samples


@dataclasses.dataclass
class FindWork(beam.PTransform):
    """Any one element -> `FileToRead`, from the work list of the attempt, which is made if there is none yet.

    `prune_missing`, `reread`: of `find_work`.
    """

    job: Job
    number: int
    prune_missing: bool = False
    reread: bool = False

    def expand(self, start: Any) -> Any:
        return start | beam.FlatMap(lambda _: self.start()()).with_output_types(FileToRead)

    def start(self) -> Callable[[], Iterator[FileToRead]]:
        """The stage as a function."""
        return self._find

    def _find(self) -> Iterator[FileToRead]:
        job = self.job
        work_list = WorkList(job.output.path, self.number)
        if not work_list.exists:
            begin_work(job, self.number, find_work(job, prune_missing=self.prune_missing, reread=self.reread))
        yield from work_list.items()


@dataclasses.dataclass
class Finish(beam.PTransform):
    """`InputFile` with its problem, each that could not be read -> the manifest as JSON, once all blocks are done.

    `spread`: whether many workers compact the log, as they do where there are tables; for a small run it costs more
    than it saves.
    """

    end: RunEnd
    spread: bool = True

    def expand(self, problems: Any) -> Any:
        end = self.end
        start = problems.pipeline | beam.Impulse() | "no problem" >> beam.Map(lambda _: None)
        ended = (start, problems) | beam.Flatten() | "under one key" >> beam.WithKeys(0) | beam.GroupByKey()
        if not (self.spread or end.has_tables):
            return ended | "finish" >> beam.FlatMapTuple(lambda _, problems: end.do_all(problems))
        compacted = (
            ended
            | "list commits" >> beam.FlatMapTuple(end.list_commits)
            | "spread commits" >> beam.Reshuffle()
            | "compact the log" >> beam.MapTuple(end.compact)
            | "all commits" >> beam.GroupByKey()
        )
        tables: tuple[Any, ...] = ()
        if end.has_tables:
            unfinished = compacted | "unfinished" >> beam.Filter(lambda _: end.has_work_list)
            tables = (beam.pvalue.AsList(_make_tables(unfinished, end.tables)),)
        return compacted | "finish" >> beam.FlatMap(end.finish_compacted, *tables)

    def start(self) -> Callable[[Iterable[InputFile]], Iterator[str]]:
        """The stage as a function of all problems."""
        return self.end.do_all


def _make_tables(ended: Any, tables: WordTypeTables) -> Any:
    """One element, once all blocks are done -> the name of each part of a table, after it is committed."""
    return (
        ended
        | "list sums" >> beam.FlatMap(tables.list_sums)
        | "spread parts" >> beam.Reshuffle()
        | "sample keys" >> beam.MapTuple(tables.sample)
        | "join samples" >> beam.CombinePerKey(merge_samples)
        | "cut ranges" >> beam.FlatMapTuple(tables.cut)
        | "spread ranges" >> beam.Reshuffle()
        | "add sums" >> beam.MapTuple(tables.make)
    )
