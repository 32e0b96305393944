"""What is left to do: the input files against what the output folder already holds."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import recorded_commits, sound_commits
from layerbeam.pipeline.output.manifest import (
    SUCCESS,
    MissingInput,
    Report,
    is_up_to_date,
    load_manifest,
    recorded_inputs,
)
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, SkippedFile, file_key, file_stem
from layerbeam.transforms.slice.slices import FileToRead

LOST_WITH_ITS_FILE = "is gone, and so are rows of it, whose part is damaged: bring it back, or give --prune-missing"


@dataclasses.dataclass
class PendingWork:
    """Files of which something is left to do, all that is known already, and the files that are gone."""

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    known: list[Report] = dataclasses.field(default_factory=list)
    gone: list[MissingInput] = dataclasses.field(default_factory=list)

    @property
    def texts_done(self) -> int:
        """Texts of the input that an earlier start has embedded."""
        commits = [report for report in self.known if isinstance(report, Commit)]
        commits += [commit for file in self.to_read for commit in file.reusable_commits]
        return sum(metrics.embedded_texts(commit.counts) for commit in commits)

    @property
    def is_empty(self) -> bool:
        """Whether every file is read to its end and none is missing."""
        return not self.to_read and not self.gone and not any(isinstance(report, SkippedFile) for report in self.known)


def find_work(patterns: list[str], output_path: str, *, prune_missing: bool = False) -> PendingWork:
    """Match the globs and sort the files: to be read (with the commits of what is done in them), or up to date.

    Commits of files that are gone stay, unless `prune_missing`. What lies in the output folder is no input. UsageError
    for two files whose parts would have one name.
    """
    recorded = recorded_commits(output_path)
    done: dict[str, list[Commit]] = collections.defaultdict(list)
    for commit in sound_commits(output_path, recorded):
        done[commit.block.file.path].append(commit)
    blocks = collections.Counter(commit.block.file.path for commit in recorded)
    entries = recorded_inputs(load_manifest(output_path))
    for path, entry in entries.items():
        lost_before = int(entry.get("left_out") == LOST_WITH_ITS_FILE)
        blocks[path] = max(blocks[path], entry.get("blocks") or 0) + lost_before
    work = PendingWork()
    names: dict[str, str] = {}
    for found in storage.find_files(patterns):
        if storage.is_inside(found.path, output_path):
            continue
        name = f"{file_stem(found.path)}-{file_key(found.path)}"
        other = names.setdefault(name, found.path)
        if other != found.path:
            raise UsageError(
                f"input.files: {other} and {found.path} would both be written as {name} (8 digits of a hash of the "
                "path agree, by chance); rename one of them, or a folder above it"
            )
        work.known.append(found)
        blocks.pop(found.path, None)
        commits = done.pop(found.path, [])
        if isinstance(found, SkippedFile):
            work.known.extend(commits)
        elif is_up_to_date(found, commits, entries.get(found.path)):
            work.known.extend(commit for commit in commits if commit.block.file == found)
        else:
            work.to_read.append(FileToRead(found, tuple(commits)))
    for path, recorded_blocks in sorted(blocks.items()):
        if not recorded_blocks:
            continue  # there was nothing in it
        work.gone.append(MissingInput(path))
        if not prune_missing:
            work.known += [MissingInput(path), *done[path]]
            if len(done[path]) < recorded_blocks:
                work.known.append(SkippedFile(path, LOST_WITH_ITS_FILE))
    return work


def find_run_work(patterns: list[str], output_path: str, *, prune_missing: bool = False) -> PendingWork:
    """What is left to do. UsageError where no file matches, or a pattern cannot be matched."""
    try:
        work = find_work(patterns, output_path, prune_missing=prune_missing)
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error
    if not work.known and not work.to_read:
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}")
    return work


class FindWork(beam.DoFn):
    """Any one element -> `FileToRead`; tagged `KNOWN`, what needs no reading.

    `_SUCCESS` is taken away before anything changes.
    """

    TO_READ = "to_read"
    KNOWN = "known"

    def __init__(self, patterns: list[str], output_path: str, *, prune_missing: bool) -> None:
        self._patterns = patterns
        self._output_path = output_path
        self._remove_gone = prune_missing

    def process(self, _: Any) -> Iterator[Any]:
        work = find_work(self._patterns, self._output_path, prune_missing=self._remove_gone)
        if not work.to_read and not work.known:
            raise FileNotFoundError(f"input.files: no file matches {', '.join(self._patterns)}")
        storage.delete_files([storage.join(self._output_path, SUCCESS)])
        yield from work.to_read
        for report in work.known:
            yield beam.pvalue.TaggedOutput(self.KNOWN, report)
