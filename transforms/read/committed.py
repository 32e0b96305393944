"""What is committed already: looked up before a block is decoded, and copied if its bytes were somewhere else."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from layerbeam.transforms.flow import counters, metrics
from layerbeam.transforms.flow.block_commit import find_commit, put_commit
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.flow.commits import Commit, FileRange
from layerbeam.transforms.flow.content_index import ContentIndex, IndexedFile
from layerbeam.transforms.input.path_fields import path_values
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import NOT_COPIED, Move, can_copy, copy_files
from layerbeam.transforms.settings import LINES, RecordFormat
from layerbeam.transforms.views.view import ViewSpec, has_sums_by_field


class CommittedBlocks:
    """The commits of this run, and those of earlier runs by the content index, whose path slices have as `known`."""

    def __init__(self, output: Output, views: Sequence[ViewSpec], record_format: RecordFormat = LINES) -> None:
        self._output, self._views, self._record_format = output, views, record_format
        self._known = ContentIndex("")

    def find(self, known: str, files: Sequence[FileRange]) -> Commit | None:
        """The commit of a block with the same bytes, if there is one; it counts for the files as they are now.

        If it is of other settings, it lacks views that the run has. Rows of the same bytes at other lines or in another
        file are copied.
        """
        found = list(self._find(known, files[0]))
        here = [commit for _, commit, _ in found if commit.has_content(files)]
        whole = next(filter(self.has_all_views, here), None) or find_commit(self._output, files)
        if whole is not None:
            return self._commit(whole, files)
        return self._copy_moved(found, files) or next(iter(here), None)

    def find_texts(self, known: str, texts: TextBlock) -> Commit | None:
        """The commit of a block of one file whose rows are copied, because an earlier run had the same texts."""
        for _, commit, own in self.sources_of_texts(known, texts):
            with contextlib.suppress(*NOT_COPIED):
                return self.copy(commit, [Move(own, texts.files[0], texts)])
        return None

    def has_all_views(self, commit: Commit) -> bool:
        """Whether the commit has every view of the run."""
        return commit.fingerprint == self._output.fingerprint

    def source_of(self, known: str, own: FileRange) -> IndexedFile | None:
        """A commit with this whole small file, at any path, whose rows can be copied alone."""
        return next(self._sources(self._find(known, own), own), None)

    def sources_of_texts(self, known: str, texts: TextBlock) -> Iterator[IndexedFile]:
        """The commits with equal texts; copied fields may differ."""
        (own,) = texts.files
        is_possible = known and not has_sums_by_field(self._views)
        return self._sources(self._open(known).find_texts(own) if is_possible else (), own)

    def copy(self, commit: Commit, moves: Sequence[Move]) -> Commit:
        """Commit files whose rows are copied from the parts of this commit.

        NOT_COPIED if its parts cannot be read, or have changed.
        """
        files = [move.target for move in moves]
        if commit.has_content(files):
            return self._commit(commit, files)
        copied = put_commit(self._output, copy_files(self._output, self._views, commit, moves))
        counters.count(metrics.BLOCKS_COPIED, 1)
        counters.count(metrics.COPIED_TEXTS, metrics.embedded_texts(copied.counts))
        counters.count(metrics.COPIED_TOKENS, copied.counts.get(metrics.TOKENS, 0))
        return dataclasses.replace(copied, attempt=commit.attempt)

    def _copy_moved(self, found: Iterable[IndexedFile], files: Sequence[FileRange]) -> Commit | None:
        if len(files) > 1:
            return None
        for _, commit, own in self._sources(found, files[0]):
            with contextlib.suppress(*NOT_COPIED):  # its parts are damaged
                return self.copy(commit, [Move(own, files[0])])
        return None

    def _sources(self, found: Iterable[IndexedFile], own: FileRange) -> Iterator[IndexedFile]:
        """The commits whose rows can be copied. The first record of a file may begin with a mark, or be a header."""
        values = path_values(self._record_format, self._views, own.file.path)
        for one in found:
            is_same = path_values(self._record_format, self._views, one.own.file.path) == values
            is_same &= one.own.num_lines == own.num_lines and (one.own.first_byte == 0) == (own.first_byte == 0)
            if is_same and self.has_all_views(one.commit) and can_copy(one.commit):
                yield one

    def _commit(self, commit: Commit, files: Sequence[FileRange]) -> Commit:
        now = commit.now(files)
        if now != commit:
            put_commit(self._output, dataclasses.replace(now, attempt=self._output.attempt))
        return now

    def _find(self, known: str, own: FileRange) -> Iterator[IndexedFile]:
        return self._open(known).find(own) if known else iter(())

    def _open(self, known: str) -> ContentIndex:
        if self._known.path != known:
            self._known = ContentIndex(known)
        return self._known
