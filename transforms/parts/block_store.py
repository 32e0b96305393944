"""The blocks that are done in an output folder: found before they are decoded, copied, and put when they are written.

A block is done if it is committed: its commit is in `_commits`, or, from an earlier run, in the content index, and its
parts are there. Several attempts may process the same block: an engine gives a lost worker's work to another while the
first still lives, or a job that was given up continues. What keeps them from damaging each other:

* A part's name has the hash of its bytes. No attempt replaces or deletes what another one has written under a name;
  only the end of a run deletes parts, and only those that its index does not list.
* A commit is created if it is absent. Who comes second takes the first one's commit.
* A commit that cannot be trusted (other settings, changed input, missing parts) is replaced. Two attempts may do this
  at once, and the later file stays; the parts of both are there, and the end of the run lists those of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from layerbeam.transforms import storage
from layerbeam.transforms.flow import counters, layout, metrics
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.flow.commits import Commit, FileRange, name_of, parse_commit
from layerbeam.transforms.flow.content_index import ContentIndex, IndexedFile
from layerbeam.transforms.input.path_fields import path_values
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import NOT_COPIED, Move, copy_files
from layerbeam.transforms.settings import LINES, RecordFormat
from layerbeam.transforms.views.view import ViewSpec, has_sums_by_field


class BlockStore:
    """The done blocks of a run: found, copied or put by a stage. `record_format`: only to find rows to copy.

    `content_index`, of the methods: the path of that of earlier runs; empty if there is none.
    """

    def __init__(self, output: Output, views: Sequence[ViewSpec] = (), record_format: RecordFormat = LINES) -> None:
        self.output, self.views, self._record_format = output, views, record_format
        self._index = ContentIndex("")

    def find(self, content_index: str, files: Sequence[FileRange]) -> Commit | None:
        """The commit of this block if it is done; it counts for the files as they are now.

        The rows of a block of one file are copied if the same bytes were at other lines or in another file.
        """
        found = list(self._open(content_index).find(files[0]))
        here = (commit for _, commit, _ in found if self._has_all_views(commit) and commit.has_content(files))
        done = next(here, None) or self._find_commit(files)
        if done is not None:
            return self._commit(done, files)
        return self._copy_any(self._sources(found, files[0]), files[0]) if len(files) == 1 else None

    def find_texts(self, content_index: str, texts: TextBlock) -> Commit | None:
        """The commit of a block of one file whose rows are copied, because an earlier run had the same texts."""
        if self.find_earlier(content_index, texts.files) is not None:
            return None
        (target,) = texts.files
        return self._copy_any(self.sources(content_index, target, by_texts=True), target, texts)

    def find_earlier(self, content_index: str, files: Sequence[FileRange]) -> Commit | None:
        """The commit of an earlier run for a block that is not done: it lacks views of this run."""
        found = self._open(content_index).find(files[0])
        return next((commit for _, commit, _ in found if commit.has_content(files)), None)

    def sources(self, content_index: str, target: FileRange, *, by_texts: bool = False) -> Iterator[IndexedFile]:
        """The commits with the same bytes at any place, or the same texts, whose rows can be copied alone."""
        index = self._open(content_index)
        if not by_texts:
            return self._sources(index.find(target), target)
        return iter(()) if has_sums_by_field(self.views) else self._sources(index.find_texts(target), target)

    def copy(self, commit: Commit, moves: Sequence[Move]) -> Commit:
        """Commit files whose rows are copied from the parts of this commit.

        NOT_COPIED if its parts cannot be read, or have changed, or if the rows of its files cannot be told apart.
        """
        files = [move.target for move in moves]
        if commit.has_content(files):
            return self._commit(commit, files)
        copied = self.put(copy_files(self.output, self.views, commit, moves))
        counters.count(metrics.BLOCKS_COPIED, 1)
        counters.count(metrics.COPIED_TEXTS, metrics.embedded_texts(copied.counts))
        counters.count(metrics.COPIED_TOKENS, copied.counts.get(metrics.TOKENS, 0))
        return dataclasses.replace(copied, attempt=commit.attempt)

    def put(self, commit: Commit) -> Commit:
        """Commit a block whose parts are written. Returns the commit that counts: another attempt's if it was first."""
        path = self._path(commit.name)
        if storage.create_if_absent(path, commit.to_line()):
            return commit
        first = self._find_commit(commit.files)
        counted = commit if first is None else first.now(commit.files)
        if first is not None and (counted == first or any(map(storage.find_change, commit.inputs))):
            return first
        with storage.write_atomically(path) as file:
            file.write(counted.to_line())
        return counted

    def _open(self, content_index: str) -> ContentIndex:
        if self._index.path != content_index:
            self._index = ContentIndex(content_index)
        return self._index

    def _has_all_views(self, commit: Commit) -> bool:
        return commit.fingerprint == self.output.fingerprint

    def _find_commit(self, files: Sequence[FileRange]) -> Commit | None:
        """The block's commit in `_commits`, if it has the run's settings, this content, and parts of full size."""
        data = storage.read_if_exists(self._path(name_of(files)))
        commit = None if data is None else parse_commit(data)
        if commit is None or not self._has_all_views(commit) or not commit.has_content(files):
            return None
        return commit if all(self._has_part(part.path, part.bytes) for part in commit.parts.values()) else None

    def _has_part(self, path: str, size: int) -> bool:
        found = storage.stat_if_exists(storage.join(self.output.path, path))
        return found is not None and found.size == size

    def _commit(self, commit: Commit, files: Sequence[FileRange]) -> Commit:
        """The same commit for the files as they are now, which is recorded if it differs."""
        now = commit.now(files)
        if now != commit:
            self.put(dataclasses.replace(now, attempt=self.output.attempt))
        return now

    def _sources(self, found: Iterable[IndexedFile], target: FileRange) -> Iterator[IndexedFile]:
        """Those that have the rows of the target. The first record of a file may begin with a mark, or be a header."""
        values = path_values(self._record_format, self.views, target.file.path)
        for indexed in found:
            held = indexed.file_range
            is_same = path_values(self._record_format, self.views, held.file.path) == values
            is_same &= held.num_lines == target.num_lines and (held.first_byte == 0) == (target.first_byte == 0)
            if is_same and self._has_all_views(indexed.commit):
                yield indexed

    def _copy_any(
        self, sources: Iterable[IndexedFile], target: FileRange, texts: TextBlock | None = None
    ) -> Commit | None:
        for _, commit, source in sources:
            with contextlib.suppress(*NOT_COPIED):  # its parts are damaged
                return self.copy(commit, [Move(source, target, texts)])
        return None

    def _path(self, name: str) -> str:
        return storage.join(self.output.path, layout.commit_path(name))
