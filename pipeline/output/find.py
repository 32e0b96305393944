"""What is left to do: whether this run may continue in the output folder, and the input files against its commits."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import apache_beam as beam

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import load_commits, load_damaged, recorded_commits, sound_commits
from layerbeam.pipeline.output.integrity import missing_tables
from layerbeam.pipeline.output.manifest import (
    InputEntry,
    MissingInput,
    Report,
    RunIdentity,
    differences,
    is_up_to_date,
    load_manifest,
)
from layerbeam.pipeline.output.run_log import load_runs
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.slice.slices import FileToRead
from layerbeam.transforms.views import View

LOST_WITH_ITS_FILE = "is missing, and so are rows of it, whose part is damaged: restore it, or give --prune-missing"


def check_output(path: str, views: Sequence[View], head: RunIdentity) -> None:
    """UsageError if the folder holds anything else, or a run with other settings."""
    runs = load_runs(path)
    before = runs[-1] if runs else load_manifest(path)
    if before is None:
        # A first run may have died, on a full disk for example, before or while it wrote its record.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        own = {layout.LOCK, layout.WRITER, layout.TEMPORARY, layout.RUNS}
        if layout.RUNS in names and all(commit.fingerprint == head.fingerprint for commit in load_commits(path)):
            # Its record is lost, but all commits have these settings.
            own |= {layout.COMMITS, layout.REJECTS, layout.PARTS, layout.MANIFEST, layout.REPORT}
            own |= {name for view in views for name in (view.name, part_folder(view).split("/")[0])}
        foreign = sorted(names - own)
        if foreign:
            raise UsageError(
                f"output.path: {path} is not empty and holds no layerbeam run ({', '.join(foreign[:3])}); "
                "give a new folder"
            )
    elif before["fingerprint"] != head.fingerprint:
        changed = differences(before["identity"], head.identity)
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or restore the settings:\n" + "\n".join(f"  {line}" for line in changed)
        )


def is_finished(path: str, max_reject_rate: float) -> bool:
    """Whether an earlier run is complete, under this limit for rejects too, and all that it wrote is there."""
    manifest = load_manifest(path)
    return (
        manifest is not None
        and manifest["complete"]
        and storage.exists(storage.join(path, layout.SUCCESS))
        and not load_damaged(path)
        and manifest["settings"].get("input", {}).get("max_reject_rate") == max_reject_rate
        and not missing_tables(path, manifest)
    )


@dataclasses.dataclass
class PendingWork:
    """The input files, and what is left to do in them.

    `to_read`: files with blocks to do, and the commits of their other blocks. `files`: all input files that can be
    read. `skipped`: those that cannot, and why. `missing`: files of an earlier run that no glob matches any more and
    whose rows stay; `pruned`: those whose rows are deleted. `commits`: of blocks that need no reading.
    """

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    files: list[InputFile] = dataclasses.field(default_factory=list)
    skipped: list[SkippedFile] = dataclasses.field(default_factory=list)
    missing: list[MissingInput] = dataclasses.field(default_factory=list)
    pruned: list[MissingInput] = dataclasses.field(default_factory=list)
    commits: list[Commit] = dataclasses.field(default_factory=list)

    @property
    def reports(self) -> list[Report]:
        """All that the end of the run must know and no other stage reports."""
        return [*self.files, *self.skipped, *self.missing, *self.commits]

    @property
    def texts_done(self) -> int:
        """Texts of the input that earlier runs have embedded."""
        commits = [*self.commits, *(commit for file in self.to_read for commit in file.reusable_commits)]
        return sum(metrics.embedded_texts(commit.counts) for commit in commits)

    @property
    def is_empty(self) -> bool:
        """Whether every file is read to its end and none is missing."""
        return not (self.to_read or self.skipped or self.missing or self.pruned)


@dataclasses.dataclass
class _Recorded:
    """What the output folder holds of one input file: sound commits, number of blocks ever written, manifest entry."""

    commits: list[Commit] = dataclasses.field(default_factory=list)
    blocks: int = 0
    entry: InputEntry | None = None


def _take_inventory(output_path: str) -> dict[str, _Recorded]:
    inventory: dict[str, _Recorded] = collections.defaultdict(_Recorded)
    recorded = recorded_commits(output_path)
    for commit in recorded:
        inventory[commit.block.file.path].blocks += 1
    for commit in sound_commits(output_path, recorded):
        inventory[commit.block.file.path].commits.append(commit)
    manifest = load_manifest(output_path)
    for entry in manifest["inputs"] if manifest is not None else ():
        file = inventory[entry["path"]]
        file.entry = entry
        file.blocks = max(file.blocks, entry["blocks"]) + (entry["left_out"] == LOST_WITH_ITS_FILE)
    return inventory


def find_work(patterns: list[str], output_path: str, *, prune_missing: bool = False) -> PendingWork:
    """Match the globs and sort the files: to be read (with the commits of the blocks that are done), or up to date.

    Commits of missing files stay, unless `prune_missing`. Files in the output folder are not input. UsageError for two
    files whose parts would have the same name.
    """
    inventory = _take_inventory(output_path)
    found = [file for file in storage.find_files(patterns) if not storage.is_inside(file.path, output_path)]
    _check_names(found)
    work = PendingWork()
    for file in found:
        recorded = inventory.pop(file.path, _Recorded())
        if isinstance(file, SkippedFile):
            work.skipped.append(file)
            work.commits += recorded.commits
            continue
        work.files.append(file)
        if is_up_to_date(file, recorded.commits, recorded.entry):
            work.commits += [commit for commit in recorded.commits if commit.block.file == file]
        else:
            work.to_read.append(FileToRead(file, tuple(recorded.commits)))
    for path, recorded in sorted(inventory.items()):
        if not recorded.blocks:
            continue  # the file was empty
        if prune_missing:
            work.pruned.append(MissingInput(path))
            continue
        work.missing.append(MissingInput(path))
        work.commits += recorded.commits
        if len(recorded.commits) < recorded.blocks:
            work.skipped.append(SkippedFile(path, LOST_WITH_ITS_FILE))
    return work


def _check_names(files: Sequence[InputFile | SkippedFile]) -> None:
    names: dict[str, str] = {}
    for file in files:
        name = layout.file_name(file.path)
        other = names.setdefault(name, file.path)
        if other != file.path:
            raise UsageError(
                f"input.files: {other} and {file.path} would both be written as {name} (8 digits of a hash of the "
                "path agree, by chance); rename one of them, or a folder above it"
            )


def find_run_work(patterns: list[str], output_path: str, *, prune_missing: bool = False) -> PendingWork:
    """What is left to do. UsageError if no file matches, or a pattern cannot be matched."""
    try:
        work = find_work(patterns, output_path, prune_missing=prune_missing)
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error
    if not work.reports:
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}")
    return work


@dataclasses.dataclass(eq=False)
class FindWork(beam.DoFn):
    """Any one element -> `FileToRead`; tagged `KNOWN`, the reports of what needs no reading.

    Deletes `_SUCCESS` before anything changes.
    """

    TO_READ: ClassVar = "to_read"
    KNOWN: ClassVar = "known"

    patterns: list[str]
    output_path: str
    prune_missing: bool

    def process(self, _: Any) -> Iterator[Any]:
        work = find_work(self.patterns, self.output_path, prune_missing=self.prune_missing)
        if not work.reports:
            raise FileNotFoundError(f"input.files: no file matches {', '.join(self.patterns)}")
        storage.delete_files([storage.join(self.output_path, layout.SUCCESS)])
        yield from work.to_read
        for report in work.reports:
            yield beam.pvalue.TaggedOutput(self.KNOWN, report)
