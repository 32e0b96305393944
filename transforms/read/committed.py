"""What is committed already: looked up before a block is decoded, and committed again if its files were touched."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence

from layerbeam.transforms import storage
from layerbeam.transforms.block_commit import find_commit, put_commit
from layerbeam.transforms.blocks import Page
from layerbeam.transforms.commits import Commit, FileRange, InputFile, parse_commit
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import can_copy, copy_files
from layerbeam.transforms.views import View

_PAGES_KEPT = 4


class CommittedBlocks:
    """The commits of this run, and those of earlier runs in the pages to which slices refer."""

    def __init__(self, output: Output, views: Sequence[View]) -> None:
        self._output, self._views = output, views
        self._pages: dict[Page, list[Commit]] = {}

    def find(self, pages: Sequence[Page], files: Sequence[FileRange]) -> Commit | None:
        """The commit of a block with the same bytes in the same files, if there is one.

        It counts for the files as they are now. If it is of other settings, it lacks views that the run has.
        """
        found = [commit for commit in self._known(pages, files[0].first_byte) if commit.has_content(files)]
        known = next((commit for commit in reversed(found) if self.is_whole(commit)), None)
        known = known or find_commit(self._output, files)
        return next(reversed(found), None) if known is None else self._commit(known, files)

    def is_whole(self, commit: Commit) -> bool:
        """Whether it has all views of the run."""
        return commit.fingerprint == self._output.fingerprint

    def source_of(
        self, pages: Sequence[Page], file: InputFile | FileRange, *, any_settings: bool = False
    ) -> tuple[Commit, FileRange] | None:
        """(a commit with all views, its range) that holds a whole small file as it is now, or with these bytes.

        `any_settings`: it may lack views.
        """
        for commit in self._known(pages, None):
            if any_settings or self.is_whole(commit):
                for own in commit.files:
                    is_same = own.file == file if isinstance(file, InputFile) else own.content == file.content
                    if is_same and own.first_line == 0 and own.is_last and can_copy(commit):
                        return commit, own
        return None

    def copy(self, commit: Commit, files: Sequence[FileRange]) -> Commit:
        """Commit these files of a pack, of which other files have changed or were pruned, or of one that was touched.

        OSError, ValueError or pa.ArrowException if its parts cannot be read.
        """
        if commit.has_content(files):
            return self._commit(commit, files)
        copied = put_commit(self._output, copy_files(self._output, self._views, commit, files))
        return dataclasses.replace(copied, attempt=commit.attempt)

    def _commit(self, commit: Commit, files: Sequence[FileRange]) -> Commit:
        now = commit.now(files)
        if now != commit:
            put_commit(self._output, dataclasses.replace(now, attempt=self._output.attempt))
        return now

    def _known(self, pages: Sequence[Page], first_byte: int | None) -> Iterator[Commit]:
        """The commits of all pages, or of the one that has those of blocks that begin at this byte."""
        if first_byte is not None and len(pages) > 1:
            pages = pages[max(bisect.bisect_right(pages, first_byte, key=lambda page: page.first_byte) - 1, 0) :][:1]
        for page in pages:
            yield from self._load(page)

    def _load(self, page: Page) -> list[Commit]:
        commits = self._pages.pop(page, None)
        if commits is None:
            with storage.open_binary(page.path, page.offset + page.size) as file:
                file.seek(page.offset)
                lines = file.read(page.size).splitlines()
            commits = [commit for line in lines if (commit := parse_commit(line)) is not None]
        self._pages[page] = commits
        if len(self._pages) > _PAGES_KEPT:
            del self._pages[next(iter(self._pages))]
        return commits
