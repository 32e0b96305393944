"""The tables of `word_type` views, made of all blocks once the index lists them: the Beam transform `WordTypes`.

No sums cross a shuffle: only paths, a sample of the keys and the ends of ranges. Whoever gets a range reads what the
parts have of it, in the order of the index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.output.index import Index, Shard
from layerbeam.transforms import storage
from layerbeam.transforms.commits import Part
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_word_types
from layerbeam.transforms.write.word_types import (
    KeyRange,
    Sample,
    key_ranges,
    make_word_types,
    merge_samples,
    sample_keys,
)

_PATHS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class TablePart:
    """Part `number` of the table of a `word_type` view."""

    view: str
    number: int
    part: Part


@dataclasses.dataclass
class WordTypes(beam.PTransform):
    """All shards of the index in one element -> `TablePart`, after it is written; at least one for each view.

    `views`: those of level `word_type`.
    """

    output: Output
    views: tuple[View, ...]

    def expand(self, shards: Any) -> Any:
        parts = shards | "list sums" >> beam.FlatMap(self._list) | "spread parts" >> beam.Reshuffle()
        ranges = (
            parts
            | "sample keys" >> beam.MapTuple(self._sample)
            | "join samples" >> beam.CombinePerKey(merge_samples)
            | "cut ranges" >> beam.FlatMapTuple(self._cut)
            | "spread ranges" >> beam.Reshuffle()
        )
        return ranges | "add sums" >> beam.Map(self._make, beam.pvalue.AsSingleton(shards))

    def _list(self, shards: Sequence[Shard]) -> Iterator[tuple[int, Sequence[str]]]:
        """Some paths of the sums of a view, or none, so that each view has a table."""
        for index in range(len(self.views)):
            yield index, []
            for some in storage.in_batches(self._paths(index, shards), _PATHS_AT_ONCE):
                yield index, some

    def _paths(self, index: int, shards: Sequence[Shard]) -> Iterator[str]:
        name = self.views[index].name
        for commit in Index(self.output.path, shards, strict=True):
            if name in commit.parts:
                yield storage.join(self.output.path, commit.parts[name].path)

    def _sample(self, index: int, paths: Sequence[str]) -> tuple[int, Sample]:
        return index, sample_keys(self.views[index], paths)

    def _cut(self, index: int, sample: Sample) -> Iterator[tuple[int, int, int, KeyRange]]:
        ranges = key_ranges(self.views[index], sample)
        for number, range_ in enumerate(ranges):
            yield index, number, len(ranges), range_

    def _make(self, cut: tuple[int, int, int, KeyRange], shards: Sequence[Shard]) -> TablePart:
        index, number, of, range_ = cut
        view = self.views[index]
        table = make_word_types(view, self._paths(index, shards), range_)
        return TablePart(view.name, number, write_word_types(self.output, view, number, of, table))
