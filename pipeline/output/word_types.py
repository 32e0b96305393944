"""The tables of `word_type` views, made of all blocks once these are done.

No sums cross a shuffle: only paths, a sample of the keys and the ends of ranges. Whoever gets a range reads what the
parts have of it, in the order of the rows. A part of a table is committed as a block without files.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.catalog import Catalog
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Commit
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import write_word_types
from layerbeam.transforms.views.view import ViewSpec
from layerbeam.transforms.write.word_types import (
    KeyRange,
    Sample,
    key_ranges,
    make_word_types,
    merge_samples,
    sample_keys,
)

_PATHS_AT_ONCE = 16


@dataclasses.dataclass
class WordTypeTables:
    """The steps that make the tables, and commit each part of them.

    `views`: of the run; each of level `word_type` has at least one part. `open_catalog`: what is known of the folder.
    """

    output: Output
    views: tuple[ViewSpec, ...]
    run_number: int
    open_catalog: Callable[[], Catalog]

    def make_all(self) -> None:
        """Do all steps in one place."""
        samples = collections.defaultdict[int, list[Sample]](list)
        for element in self.list_sums():
            index, sample = self.sample(*element)
            samples[index].append(sample)
        for index, of_view in samples.items():
            for range_ in self.cut(index, merge_samples(of_view)):
                self.make(*range_)

    def list_sums(self, _: Any = None) -> Iterator[tuple[int, Sequence[str]]]:
        """Write the list of all sums. Gives some paths of those of a view, or none, so that each view has a table."""
        catalog = self.open_catalog()
        with storage.write_atomically(self._sums) as file:
            for index, view in enumerate(self.views):
                for path in catalog.paths_of_parts(part_folder(view)) if view.aggregates else ():
                    file.write(json.dumps([index, path]).encode("ascii") + b"\n")
        for index, view in enumerate(self.views):
            if view.aggregates:
                yield index, []
                for some in storage.in_batches(self._paths(index), _PATHS_AT_ONCE):
                    yield index, some

    @property
    def _sums(self) -> str:
        return storage.join(self.output.path, layout.sums_path(self.run_number))

    def _paths(self, index: int) -> Iterator[str]:
        """The paths of the sums of a view, in the order of the rows."""
        with storage.open_binary(self._sums) as file:
            listed = map(storage.parse_json, file)
            yield from (storage.join(self.output.path, path) for number, path in listed if number == index)

    def sample(self, index: int, paths: Sequence[str]) -> tuple[int, Sample]:
        """(the number of the view, a sample of the keys in these files)."""
        return index, sample_keys(self.views[index], paths)

    def cut(self, index: int, sample: Sample) -> Iterator[tuple[int, int, int, KeyRange]]:
        """The ranges of keys of the parts of a table."""
        ranges = key_ranges(self.views[index], sample)
        for number, range_ in enumerate(ranges):
            yield index, number, len(ranges), range_

    def make(self, index: int, number: int, of: int, range_: KeyRange) -> str:
        """Write and commit a part of a table, unless a newer attempt has the folder; returns its name.

        The commit is in a file of this attempt: one that is thought lost, and makes its tables late, replaces none.
        """
        view, output = self.views[index], self.output
        name = f"{layout.WORD_TYPES}-{view.name}-{number:05d}"
        if newer_attempt(output.path, self.run_number) is not None:
            return name
        part = write_word_types(output, view, number, of, make_word_types(view, self._paths(index), range_))
        commit = Commit(name, output.fingerprint, (), {view.name: part}, self.run_number)
        path = layout.commit_path(f"{name}-{self.run_number}")
        with storage.write_atomically(storage.join(output.path, path)) as file:
            file.write(commit.to_line())
        return name
