"""What is left to do: whether this run may continue in the output folder, and the input files against its commits."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import apache_beam as beam

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import load_commits, load_damaged, recorded_commits, sound_commits
from layerbeam.pipeline.output.manifest import (
    InputEntry,
    Manifest,
    RunIdentity,
    differences,
    load_manifest,
    only_adds_views,
)
from layerbeam.pipeline.output.run_log import ACTIVE, load_runs, run_numbers
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile
from layerbeam.transforms.input.content import format_by_name
from layerbeam.transforms.parts import is_part_file, part_folder
from layerbeam.transforms.settings import LINES, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, count_records
from layerbeam.transforms.views import View, is_aggregated

LOST_WITH_ITS_FILE = "is missing, and so are rows of it, whose part is damaged: restore it, or give --prune-missing"


def check_output(path: str, views: Sequence[View], head: RunIdentity, number: int | None = None) -> None:
    """UsageError if the folder holds anything else, or rows of a run with other settings.

    `number`: of the attempt that asks, if it has one.
    """
    runs = load_runs(path)
    before = runs[-1] if runs else load_manifest(path)
    if before is None:
        # A first run may have died, on a full disk for example, before or while it wrote its record.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        own = {layout.LOCK, layout.TEMPORARY, layout.RUNS}
        if run_numbers(path) not in ([], [number]) and all(
            commit.fingerprint == head["fingerprint"] for commit in load_commits(path)
        ):
            # Its record is lost, but all commits have these settings.
            own |= {layout.COMMITS, layout.REJECTS, layout.PARTS, layout.MANIFEST, layout.REPORT}
            own |= {name for view in views for name in (view.name, part_folder(view).split("/")[0])}
        foreign = sorted(names - own)
        if foreign:
            raise UsageError(
                f"output.path: {path} is not empty and holds no layerbeam run ({', '.join(foreign[:3])}); "
                "give a new folder"
            )
    elif (
        before["fingerprint"] != head["fingerprint"]
        and not only_adds_views(before["identity"], head["identity"])
        and not has_no_rows(path)
    ):
        changed = differences(before["identity"], head["identity"])
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or restore the settings (views can be added, and nothing else can change):\n"
            + "\n".join(f"  {line}" for line in changed)
        )


def has_no_rows(path: str) -> bool:
    """Whether the last run in the folder has ended, and neither its commits nor its manifest count a text."""
    runs, manifest, commits = load_runs(path), load_manifest(path), recorded_commits(path)
    num_files = len(storage.list_folder(storage.join(path, layout.COMMITS)))
    if not runs or runs[-1]["state"] in (*ACTIVE, "lost") or num_files > len(commits):
        return False
    if manifest is None and any(storage.exists(storage.join(path, name)) for name in (layout.MANIFEST, layout.PARTS)):
        return False  # damaged: nobody knows
    counts = [commit.counts for commit in commits] + ([manifest["counts"]] if manifest else [])
    return not any(map(metrics.embedded_texts, counts))


def starts_over(path: str, head: RunIdentity) -> bool:
    """Whether the last run in the folder had other settings and no rows, so that nothing of it is kept."""
    runs = load_runs(path)
    return bool(runs) and runs[-1]["fingerprint"] != head["fingerprint"] and has_no_rows(path)


def discard_other_settings(path: str, head: RunIdentity) -> None:
    """Delete what a run with other settings and without rows has left; `check_output` must have allowed it."""
    if not starts_over(path, head):
        return
    for view in load_runs(path)[-1]["views"]:
        folder = storage.join(path, view)
        if "/" not in view and view not in ("", ".", ".."):
            own = (f"{layout.EMPTY}.", f"{layout.WORD_TYPES}.")
            names = [name for name in storage.list_folder(folder) if name.startswith(own)]
            storage.delete_files(storage.join(folder, name) for name in names)
            storage.delete_empty_folder(folder)
    for folder in (layout.COMMITS, layout.REJECTS):
        storage.delete_folder(storage.join(path, folder))
    storage.delete_files(storage.join(path, name) for name in (layout.PARTS, layout.MANIFEST, layout.SUCCESS))


def is_finished(path: str, max_reject_rate: float, fingerprint: str) -> bool:
    """Whether an equal run is complete, under this limit for rejects too, and all that it wrote is there."""
    manifest = load_manifest(path)
    return (
        manifest is not None
        and manifest["complete"]
        and manifest["fingerprint"] == fingerprint
        and storage.exists(storage.join(path, layout.SUCCESS))
        and not load_damaged(path)
        # An attempt that was given up may have committed a block, with parts that are not listed.
        and not storage.list_folder(storage.join(path, layout.COMMITS))
        and manifest["settings"].get("input", {}).get("max_reject_rate") == max_reject_rate
        and _has_its_files(path, manifest)
    )


def _has_its_files(output_path: str, manifest: Manifest) -> bool:
    """Whether the files made of all blocks at the end of a run are there in full size, and no part that is not listed.

    An attempt that was given up may have written one after the end of another.
    """
    for name, view in manifest["views"].items():
        sizes = storage.list_folder(storage.join(output_path, name))
        if is_aggregated(view["level"]):
            if sizes.get(view["path"].rpartition("/")[2]) != view["bytes"]:
                return False
        else:
            has_empty = any(file.startswith(f"{layout.EMPTY}.") for file in sizes)
            if sum(map(is_part_file, sizes)) != max(view["parts"], 1) or (not view["parts"] and not has_empty):
                return False
    return True


@dataclasses.dataclass(frozen=True)
class MissingInput:
    """An input file of an earlier run that no glob matches any more; its parts stay until --prune-missing."""

    path: str


# What is known of an input file, or of a block of it.
Report = InputFile | SkippedFile | MissingInput | Commit


@dataclasses.dataclass
class PendingWork:
    """The input files, and what is left to do in them.

    `to_read`: files with blocks to do, and the commits of their other blocks. `files`: all input files that can be
    read. `skipped`: those that cannot, and why. `missing`: files of an earlier run that no glob matches any more and
    whose rows stay; `pruned`: those whose rows are deleted. `commits`: of blocks that need no reading.
    `limited`: how many records are read of a file that has more. `unsound`: blocks of `to_read` whose
    commit cannot be trusted.
    """

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    files: list[InputFile] = dataclasses.field(default_factory=list)
    skipped: list[SkippedFile] = dataclasses.field(default_factory=list)
    missing: list[MissingInput] = dataclasses.field(default_factory=list)
    pruned: list[str] = dataclasses.field(default_factory=list)
    commits: list[Commit] = dataclasses.field(default_factory=list)
    limited: dict[str, int] = dataclasses.field(default_factory=dict)
    unsound: list[str] = dataclasses.field(default_factory=list)

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
    def kept_views(self) -> set[str]:
        """Views that all files to read have parts of, in commits that lack other views."""
        kept = []
        for work in self.to_read:
            commits = (commit for commit in work.done if commit.block.file == work.file)
            kept.append({view for c in commits if c.fingerprint != work.fingerprint for view in c.parts})
        return set.intersection(*kept) if kept else set()

    @property
    def is_empty(self) -> bool:
        """Whether every file is read to its end and none is missing."""
        return not (self.to_read or self.skipped or self.missing or self.pruned)


def find_inputs(patterns: list[str], output_path: str) -> list[InputFile | SkippedFile]:
    """What the globs match, without the output folder. UsageError if a pattern cannot be matched.

    A folder stands for the files in it whose names end as an input format's do.
    """
    try:
        expanded = [path for pattern in patterns for path in _files_of_folder(pattern) or [pattern]]
        return [file for file in storage.find_files(expanded) if not storage.is_inside(file.path, output_path)]
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error


def _files_of_folder(path: str) -> list[str]:
    is_folder = os.path.isdir(path) if storage.is_local(path) else path.endswith("/")
    names = storage.list_folder(path) if is_folder else {}
    return [storage.join(path, name) for name in names if format_by_name(name) is not None]


def find_work(
    patterns: list[str],
    output_path: str,
    *,
    prune_missing: bool = False,
    found: Sequence[InputFile | SkippedFile] | None = None,
    limit: int | None = None,
    record_format: RecordFormat = LINES,
    fingerprint: str | None = None,
) -> PendingWork:
    """Match the globs and sort the files: to be read (with the commits of the blocks that are done), or up to date.

    A file keeps the path under which an earlier run read it, however it is spelled now.
    Commits of missing files stay, unless `prune_missing`. Files in the output folder are not input. UsageError if no
    file matches, a pattern cannot be matched, or the parts of two files would have the same name. `found`: what
    `find_inputs` gave. `limit`: files after the first so many records are not input. `fingerprint`: of the run; a file
    with commits of another one is not up to date; None: all commits count.
    """
    found = find_inputs(patterns, output_path) if found is None else found
    recorded = recorded_commits(output_path)
    manifest = load_manifest(output_path)
    entries = {entry["path"]: entry for entry in manifest["inputs"]} if manifest is not None else {}
    found = _as_recorded(found, entries.keys() | {commit.block.file.path for commit in recorded})
    _check_names(found)
    done: dict[str, list[Commit]] = collections.defaultdict(list)
    for commit in sound_commits(output_path, recorded):
        done[commit.block.file.path].append(commit)
    work = PendingWork()
    records: dict[str, int] = {}
    if limit is not None:
        found, records, work.limited = _first_records(found, limit, record_format)
    for file in found:
        if isinstance(file, SkippedFile):
            work.skipped.append(file)
            work.commits += done[file.path]
            continue
        work.files.append(file)
        entry = entries.get(file.path)
        is_current = all(fingerprint in (None, commit.fingerprint) for commit in done[file.path])
        has_records = limit is None or (entry is not None and entry["records"] == records[file.path])
        if is_current and has_records and is_up_to_date(file, done[file.path], entry):
            work.commits += [commit for commit in done[file.path] if commit.block.file == file]
        else:
            max_records = work.limited.get(file.path)
            work.to_read.append(
                FileToRead(file, tuple(done[file.path]), max_records=max_records, fingerprint=fingerprint)
            )
    read_again = {left.file.path for left in work.to_read}
    sound = {commit.block.name for commits in done.values() for commit in commits}
    work.unsound = sorted({commit.block.name for commit in recorded if commit.block.file.path in read_again} - sound)
    blocks = collections.Counter(commit.block.file.path for commit in recorded)  # ever written
    for path, entry in entries.items():
        blocks[path] = max(blocks[path], entry["blocks"]) + (entry["left_out"] == LOST_WITH_ITS_FILE)
    for path in sorted(blocks.keys() - {file.path for file in found}):
        if not blocks[path]:
            continue  # the file was empty
        if prune_missing:
            work.pruned.append(path)
            continue
        work.missing.append(MissingInput(path))
        work.commits += done[path]
        if len(done[path]) < blocks[path]:
            work.skipped.append(SkippedFile(path, LOST_WITH_ITS_FILE))
    if not work.reports:
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}")
    return work


def _as_recorded(found: Iterable[InputFile | SkippedFile], recorded: Collection[str]) -> list[InputFile | SkippedFile]:
    """The files under the paths that an earlier run recorded, sorted by path."""
    paths = {storage.place_of(path): path for path in recorded}
    renamed = (
        file
        if file.path in recorded
        else dataclasses.replace(file, path=paths.get(storage.place_of(file.path), file.path))
        for file in found
    )
    return sorted(renamed, key=lambda file: file.path)


def _first_records(
    found: Sequence[InputFile | SkippedFile], limit: int, record_format: RecordFormat
) -> tuple[list[InputFile | SkippedFile], dict[str, int], dict[str, int]]:
    """(the files that hold the first records, how many of them each file has, the same of the file with more)."""
    kept: list[InputFile | SkippedFile] = []
    records: dict[str, int] = {}
    limited: dict[str, int] = {}
    for file in found:
        if limit == 0:
            break
        kept.append(file)
        if isinstance(file, InputFile):
            count = count_records(file, record_format, limit + 1)
            if count > limit:
                limited[file.path] = limit
            records[file.path] = min(count, limit)
            limit -= records[file.path]
    return kept, records, limited


def is_up_to_date(file: InputFile, done: Iterable[Commit], entry: InputEntry | None) -> bool:
    """Whether an earlier run read the file to its end, in its present state (size and time), and all its blocks exist.

    `entry`: that of the file in the manifest.
    """
    if entry is None:
        return False
    blocks = sum(commit.block.file == file for commit in done)
    recorded = (entry.get("size"), entry.get("modified"), entry["blocks"], entry["left_out"])
    return recorded == (file.size, file.modified, blocks, None)


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
    limit: int | None = None
    record_format: RecordFormat = LINES
    fingerprint: str | None = None

    def process(self, _: Any) -> Iterator[Any]:
        work = find_work(
            self.patterns,
            self.output_path,
            prune_missing=self.prune_missing,
            limit=self.limit,
            record_format=self.record_format,
            fingerprint=self.fingerprint,
        )
        storage.delete_files([storage.join(self.output_path, layout.SUCCESS)])
        # A worker knows the sizes of a block's parts, not what `verify --checksums` found.
        storage.delete_files(storage.join(self.output_path, layout.commit_path(block)) for block in work.unsound)
        yield from work.to_read
        for report in work.reports:
            yield beam.pvalue.TaggedOutput(self.KNOWN, report)
