"""What is left to do: whether this run may continue in the output folder, and the input files against its commits."""

from __future__ import annotations

import collections
import dataclasses
import glob
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import apache_beam as beam

from layerbeam.pipeline.config.identity import RunIdentity, differences, only_adds_views
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import committed, load_begun, load_damaged, sound_commits
from layerbeam.pipeline.output.groups import Boundaries, Group, GroupWork, make_groups
from layerbeam.pipeline.output.index import input_entries, load_index
from layerbeam.pipeline.output.manifest import InputEntry, Manifest, load_manifest, table_parts
from layerbeam.pipeline.output.run_log import ACTIVE, last_run, load_runs, run_numbers
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.commits import Commit, InputFile, hash_paths, printable
from layerbeam.transforms.input import FORMATS
from layerbeam.transforms.input.content import format_by_name
from layerbeam.transforms.parts import is_part_file, is_table_file, part_folder
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import DoneCounter, FileToRead, count_records, join_small_files
from layerbeam.transforms.views import View

LOST_WITH_ITS_FILE = "is missing, and so are rows of it, whose part is damaged: restore it, or give --prune-missing"


def check_output(path: str, views: Sequence[View], run_identity: RunIdentity, number: int | None = None) -> None:
    """UsageError if the folder holds anything else, or rows of a run with other settings.

    `number`: of the attempt that asks, if it has one.
    """
    before = last_run(path)
    if before is None:
        # A first run may have died, on a full disk for example, before or while it wrote its record.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        own = {layout.LOCK, layout.RUNS}
        fingerprints = {commit.fingerprint for commit, is_sound in _all_commits(path) if is_sound}
        has_run = bool(fingerprints) or run_numbers(path) not in ([], [number])
        if has_run and fingerprints <= {run_identity["fingerprint"]}:
            # Its record and its manifest are lost, but all commits have these settings.
            own |= {layout.COMMITS, layout.REJECTS, layout.PARTS, layout.INDEX, layout.MANIFEST, layout.REPORT}
            own |= {layout.SUCCESS, layout.DAMAGED}
            own |= {name for view in views for name in (view.name, part_folder(view).split("/")[0])}
        foreign = sorted(name for name in names - own if not name.startswith(storage.UNFINISHED))
        if foreign:
            what, give = "is not empty and holds no layerbeam run", ""
            if has_run:
                what = (
                    "holds a run whose record and manifest cannot be read, and files that may not be of these settings"
                )
                give = "the configuration that wrote it, or "
            raise UsageError(f"output.path: {path} {what} ({', '.join(foreign[:3])}); give {give}a new folder")
    elif (
        before["fingerprint"] != run_identity["fingerprint"]
        and not only_adds_views(before["identity"], run_identity["identity"])
        and not has_no_rows(path)
    ):
        changed = differences(before["identity"], run_identity["identity"])
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or restore the settings (views can be added, and nothing else can change):\n"
            + "\n".join(f"  {line}" for line in changed)
        )


def has_no_rows(path: str) -> bool:
    """Whether the last run in the folder has ended, and neither its commits nor its manifest count a text."""
    runs, manifest = load_runs(path), load_manifest(path)
    if not runs or runs[-1]["state"] in (*ACTIVE, "lost"):
        return False
    if manifest is None and any(storage.exists(storage.join(path, name)) for name in (layout.MANIFEST, layout.PARTS)):
        return False  # damaged: unknown
    if manifest is not None and metrics.embedded_texts(manifest["counts"]):
        return False
    begun = committed(path, storage.file_names(storage.join(path, layout.COMMITS)))
    if any(commit is None or metrics.embedded_texts(commit.counts) for _, commit in begun):
        return False  # a damaged one may have texts
    return not any(metrics.embedded_texts(commit.counts) for commit in load_index(path))


def _all_commits(path: str) -> Iterator[tuple[Commit, bool]]:
    """The commits in the index and in `_commits`, and whether their parts are intact, one after the other."""
    begun = committed(path, storage.file_names(storage.join(path, layout.COMMITS)))
    newer = (of_file for _, commit in begun if commit is not None for of_file in commit.of_files())
    return sound_commits(path, itertools.chain(newer, load_index(path)))


def starts_over(path: str, run_identity: RunIdentity) -> bool:
    """Whether the last run in the folder had other settings and no rows, so it can be discarded."""
    runs = load_runs(path)
    return bool(runs) and runs[-1]["fingerprint"] != run_identity["fingerprint"] and has_no_rows(path)


def discard_other_settings(path: str, run_identity: RunIdentity) -> None:
    """Delete what a run with other settings and without rows has left; `check_output` must have allowed it."""
    if not starts_over(path, run_identity):
        return
    for view in load_runs(path)[-1]["views"]:
        folder = storage.join(path, view)
        if "/" not in view and view not in ("", ".", ".."):
            names = [
                name
                for name in storage.list_folder(folder)
                if name.startswith(f"{layout.EMPTY}.") or is_table_file(name)
            ]
            storage.delete_files(folder, names)
            storage.delete_empty_folder(folder)
    for folder in (layout.COMMITS, layout.REJECTS, layout.INDEX):
        storage.delete_folder(path, folder)
    storage.delete_files(path, [layout.PARTS, layout.MANIFEST])


def is_finished(path: str, max_reject_rate: float | None, fingerprint: str) -> bool:
    """Whether an equal run is complete, under this limit for rejects too, and all that it wrote is there."""
    manifest = load_manifest(path)
    return (
        manifest is not None
        and manifest["complete"]
        and manifest["fingerprint"] == fingerprint
        and storage.exists(storage.join(path, layout.SUCCESS))
        and not load_damaged(path)
        # An attempt that was given up may have committed a block, with parts that are not listed.
        and next(storage.file_names(storage.join(path, layout.COMMITS)), None) is None
        and manifest["settings"].get("input", {}).get("max_reject_rate") == max_reject_rate
        and _has_its_files(path, manifest)
    )


def _has_its_files(output_path: str, manifest: Manifest) -> bool:
    """Whether the final tables are complete, and no unlisted part exists.

    An attempt that was given up may have written one after the end of another.
    """
    tables = table_parts(manifest)
    for name, view in manifest["views"].items():
        folder = storage.join(output_path, name)
        if name in tables:
            listed = {part.path: part.bytes for part in tables[name]}
            sizes = storage.list_folder(folder).items()
            if {f"{name}/{file}": size for file, size in sizes if is_table_file(file)} != listed:
                return False
            continue
        has_empty = any(storage.file_names(folder, f"{layout.EMPTY}."))
        num_parts = sum(map(is_part_file, storage.file_names(folder)))
        if num_parts != max(view["parts"], 1) or (not view["parts"] and not has_empty):
            return False
    return True


@dataclasses.dataclass
class PendingWork:
    """The input files, and what is left to do in them, as the program that starts a run knows it.

    `to_read`: files with blocks to do. `files`: all input files that can be read. `skipped`: those that cannot, and
    why. `missing`: paths of files of an earlier run that no glob matches any more and whose rows stay; `pruned`: those
    whose rows are deleted. `limited`: how many records are read of a file that has more. `texts_done`: texts that
    earlier runs have embedded.
    """

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    files: list[InputFile] = dataclasses.field(default_factory=list)
    skipped: list[InputFile] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    pruned: list[str] = dataclasses.field(default_factory=list)
    limited: dict[str, int] = dataclasses.field(default_factory=dict)
    texts_done: int = 0

    @property
    def kept_views(self) -> frozenset[str]:
        """Views that all files to read have parts of, in commits that lack other views."""
        kept = [file.done.kept_views for file in self.to_read]
        return frozenset.intersection(*kept) if kept else frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether every file is read to its end and none is missing."""
        return not (self.to_read or self.skipped or self.missing or self.pruned)


def find_inputs(patterns: list[str], output_path: str, *, at_most: int | None = None) -> list[InputFile]:
    """What the globs match, without the output folder. UsageError if that is no file that can be read.

    A folder stands for the files in it whose names end as an input format's do. `at_most`: so many files of each
    pattern are enough.
    """
    try:
        in_folders = {pattern: _files_of_folder(pattern) for pattern in patterns}
        # A local glob that is the name of a folder, too, stands for both.
        globs = [p for p in patterns if not in_folders[p] or (storage.is_local(p) and glob.has_magic(p))]
        matches = storage.find_files(globs, at_most, paths=itertools.chain(*in_folders.values()))
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error
    found = [_of_input(file) for file in matches if not storage.is_inside(file.path, output_path)]
    if all(file.problem for file in found):
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        unreadable = [f"; {printable(file.path)}: {file.problem}" for file in found]
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}{''.join(unreadable)}")
    return found


def _of_input(file: InputFile) -> InputFile:
    """The same, but a folder says why none of its files is read."""
    if not file.problem or not storage.is_local(file.path) or not os.path.isdir(file.path):
        return file
    endings = ", ".join(ending for format_ in FORMATS.values() for ending in format_.endings)
    return InputFile.unreadable(file.path, f"is a folder without a file that ends in {endings}; name the files in it")


def _files_of_folder(path: str) -> list[str]:
    is_folder = os.path.isdir(path) if storage.is_local(path) else path.endswith("/")
    names = storage.list_folder(path) if is_folder else {}
    return [storage.join(path, name) for name in names if format_by_name(name) is not None]


def list_groups(
    patterns: list[str],
    output_path: str,
    *,
    found: Sequence[InputFile] | None = None,
    limit: int | None = None,
    record_format: RecordFormat = LINES,
    slice_bytes: int = BlockLimits().text_bytes,
) -> list[Group]:
    """Match the globs and put the files in groups. No commit is read but to learn the path of a missing file.

    A file keeps the path under which an earlier run read it, however it is spelled now. Files in the output folder are
    not input. UsageError as from `find_inputs`. `found`: what that gave. `limit`: files after the first so many
    records are not input.
    """
    found = find_inputs(patterns, output_path) if found is None else found
    manifest = load_manifest(output_path)
    recorded = {entry["path"] for entry in input_entries(output_path, manifest)}
    if manifest is None:
        recorded |= {commit.block.file.path for commit in load_index(output_path)}
    begun, together = _begun_files(output_path, recorded | {file.path for file in found})
    found = _as_recorded(found, recorded | begun)
    if limit is None:
        return make_groups(found, slice_bytes, begun=begun, begun_together=together)
    found, records, limited = _first_records(found, limit, record_format)
    return make_groups(found, slice_bytes, begun=begun, records=records, limited=limited)


def _begun_files(output_path: str, known: Iterable[str]) -> tuple[set[str], dict[str, tuple[str, str]]]:
    """(the paths of the files that have commits in `_commits`, the blocks of several files that have).

    Of a block of several files: {its name: (its first path, its last path)}.
    """
    paths = {layout.file_name(path): path for path in known}
    begun: dict[str, str | None] = {}
    together: dict[str, tuple[str, str]] = {}
    folder = storage.join(output_path, layout.COMMITS)
    for name in storage.file_names(folder):
        key = name.rpartition("-")[0]
        if begun.get(key) is None:
            begun[key] = paths.get(key)
            commit = next(committed(output_path, [name]), (name, None))[1] if begun[key] is None else None
            if commit is not None and commit.members:
                first, last = commit.members[0].block, commit.members[-1].block
                together[commit.block.name] = first.file.path, last.file.path
            elif commit is not None:  # of a file that is missing now, or was spelled otherwise
                begun[key] = commit.block.file.path
    return {path for path in begun.values() if path is not None}, together


@dataclasses.dataclass
class _Tally:
    """The blocks of a file that the index has. `recorded`: of any state; `sound`: with parts that are intact.

    `up_to_date`: sound ones of its present state. `is_current`: all sound ones have the run's fingerprint, and none is
    being rewritten.
    """

    recorded: int = 0
    sound: int = 0
    up_to_date: int = 0
    is_current: bool = True


def compare_group(
    output_path: str,
    group: Group,
    *,
    prune_missing: bool = False,
    reread: bool = False,
    fingerprint: str | None = None,
) -> tuple[GroupWork, list[FileToRead], list[str]]:
    """What is left to do in a group: (for `finish`, the files to read, the paths of files whose rows are deleted).

    The index is read commit by commit. Commits of missing files stay, unless `prune_missing`. `reread`: no file is up
    to date. `fingerprint`: of the run; a file with commits of another is not up to date; None: all commits count.
    """
    files = {file.path: file for file in group.files}
    entries = {e["path"]: e for e in input_entries(output_path, load_manifest(output_path), group.first, group.end)}
    tallies: dict[str, _Tally] = collections.defaultdict(_Tally)
    of_blocks: dict[str, list[str]] = collections.defaultdict(list)  # of several files
    damaged, shares_parts = set[str](), False
    for commit, is_sound in sound_commits(output_path, load_index(output_path).between(group.first, group.end)):
        path = commit.block.file.path
        tally = tallies[path]
        tally.recorded += 1
        shares_parts |= commit.shares_parts
        if commit.together is not None:
            of_blocks[commit.together].append(path)
        if not is_sound:
            damaged |= set() if commit.together is None else {commit.together}
            continue
        tally.sound += 1
        tally.up_to_date += commit.block.file == files.get(path)
        tally.is_current &= fingerprint in (None, commit.fingerprint)
        if path in group.begun and path in files:
            for _, newer in committed(output_path, [f"{commit.block.name}.json"]):
                tally.is_current &= newer is not None and dataclasses.replace(newer, attempt=None) == commit
    # A file without rows is read again with the others of its block, which are the same block then.
    for path in itertools.chain.from_iterable(of_blocks[name] for name in damaged):
        tallies[path].up_to_date = 0
    together = list(load_begun(output_path, group.begun_together))
    begun = set[str]() if reread else _done_together(together, files, fingerprint)
    current, to_read, skipped = set[str](), list[FileToRead](), list[InputFile]()
    for file in group.files:
        if file.problem:
            skipped.append(file)
            continue
        entry, tally = entries.get(file.path), tallies[file.path]
        has_records = group.records is None or (entry is not None and entry["records"] == group.records[file.path])
        if not reread and tally.is_current and has_records and is_up_to_date(file, tally.up_to_date, entry):
            current.add(file.path)
            begun.discard(file.path)
        elif file.path in begun:
            current.add(file.path)
        else:
            to_read.append(FileToRead(file, max_records=group.limited.get(file.path)))
    for commit, is_sound in together:
        for member in commit.members:
            tallies[member.block.file.path].recorded += 1
            tallies[member.block.file.path].sound += is_sound
    missing, pruned = list[str](), list[str]()
    for path in sorted({*entries, *tallies, *group.begun} - files.keys()):
        recorded, sound = tallies[path].recorded, tallies[path].sound
        if path in group.begun:
            blocks = {c.block.name: c for c in load_index(output_path).between(path, f"{path}\0")}
            own = storage.file_names(storage.join(output_path, layout.COMMITS), f"{layout.file_name(path)}-")
            blocks |= {c.block.name: c for _, c in committed(output_path, own) if c is not None}
            recorded, sound = len(blocks), sum(sound for _, sound in sound_commits(output_path, blocks.values()))
        if path in entries:
            recorded = max(recorded, entries[path]["blocks"]) + (entries[path]["left_out"] == LOST_WITH_ITS_FILE)
        if not recorded:
            continue  # the file was empty
        if prune_missing:
            pruned.append(path)
            continue
        missing.append(path)
        if sound < recorded:
            skipped.append(InputFile.unreadable(path, LOST_WITH_ITS_FILE))
    work = GroupWork(group, frozenset(current), tuple(missing), tuple(skipped), frozenset(begun), shares_parts)
    return work, to_read, pruned


def _done_together(
    together: Iterable[tuple[Commit, bool]], files: Mapping[str, InputFile], fingerprint: str | None
) -> set[str]:
    """The paths of the files that are unchanged and done by a commit of several files in `_commits`.

    Only if all are done that were to be read together: what is left of them would make other blocks.
    """
    done: dict[str | None, dict[str, InputFile]] = collections.defaultdict(dict)
    for commit, is_sound in together:
        if is_sound and fingerprint in (None, commit.fingerprint):
            done[commit.files] |= {member.block.file.path: member.block.file for member in commit.members}
    whole = (members for key, members in done.items() if hash_paths(members) == key)
    return {path for members in whole for path, file in members.items() if files.get(path) == file}


def find_work(
    patterns: list[str],
    output_path: str,
    *,
    prune_missing: bool = False,
    reread: bool = False,
    fingerprint: str | None = None,
    **options: Any,
) -> PendingWork:
    """What all groups have left to do; in each file to read also what is done. For the options see `list_groups`."""
    work = PendingWork()
    for group in list_groups(patterns, output_path, **options):
        of_group, to_read, pruned = compare_group(
            output_path, group, prune_missing=prune_missing, reread=reread, fingerprint=fingerprint
        )
        work.to_read += to_read
        work.files += [file for file in group.files if not file.problem]
        work.skipped += of_group.skipped
        work.missing += of_group.missing
        work.pruned += pruned
        work.limited |= group.limited
    _count_done(output_path, work, fingerprint)
    return work


def _count_done(output_path: str, work: PendingWork, fingerprint: str | None) -> None:
    """Add to the work what is done of it: no more than some numbers of each block are kept."""
    files = {file.file.path: file for file in work.to_read}
    done: dict[str, DoneCounter] = collections.defaultdict(DoneCounter)
    pruned = set(work.pruned)
    for commit, is_sound in _all_commits(output_path):
        path = commit.block.file.path
        if not is_sound or path in pruned:
            continue
        if path not in files:
            work.texts_done += metrics.embedded_texts(commit.counts)
        elif commit.block.file == files[path].file:
            done[path].add(commit, is_current=fingerprint in (None, commit.fingerprint))
    for path, counter in done.items():
        files[path].done = counter.result()
        work.texts_done += files[path].done.texts


def _as_recorded(found: Iterable[InputFile], recorded: Collection[str]) -> list[InputFile]:
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
    found: Sequence[InputFile], limit: int, record_format: RecordFormat
) -> tuple[list[InputFile], dict[str, int], dict[str, int]]:
    """(the files that hold the first records, how many of them each file has, the same of the file with more)."""
    kept: list[InputFile] = []
    records: dict[str, int] = {}
    limited: dict[str, int] = {}
    for file in found:
        if limit == 0:
            break
        kept.append(file)
        if not file.problem:
            count = count_records(file, record_format, limit + 1)
            if count > limit:
                limited[file.path] = limit
            records[file.path] = min(count, limit)
            limit -= records[file.path]
    return kept, records, limited


def is_up_to_date(file: InputFile, blocks: int, entry: InputEntry | None) -> bool:
    """Whether an earlier run read the file to its end, in its present state, and all its blocks exist.

    `blocks`: how many of this state are intact; `entry`: that of the file in the manifest.
    """
    if entry is None:
        return False
    recorded = (entry.get("size"), entry.get("modified"), entry.get("version", ""), entry["blocks"], entry["left_out"])
    return recorded == (file.size, file.modified, file.version, blocks, None)


@dataclasses.dataclass
class FindWork(beam.PTransform):
    """Any one element -> `FileToRead`; tagged `KNOWN`, `GroupWork`; tagged `BOUNDARIES`, the one `Boundaries`.

    Deletes `_SUCCESS` before anything changes. `limits`: of blocks. `spread`: compare groups with the index in
    parallel, for a stage more. `reread`: no file is up to date.
    """

    TO_READ: ClassVar = "to_read"
    KNOWN: ClassVar = "known"
    BOUNDARIES: ClassVar = "boundaries"

    patterns: list[str]
    output_path: str
    prune_missing: bool
    limit: int | None
    record_format: RecordFormat
    fingerprint: str
    limits: BlockLimits
    spread: bool = True
    reread: bool = False

    def expand(self, start: Any) -> dict[str, Any]:
        listed = start | "list" >> beam.ParDo(self._list).with_outputs(self.BOUNDARIES, main="groups")
        groups = listed["groups"]
        if self.spread:
            groups |= "spread groups" >> beam.Reshuffle()
        compared = groups | "compare" >> beam.ParDo(self._compare).with_outputs(self.KNOWN, main=self.TO_READ)
        names = {self.TO_READ: compared, self.KNOWN: compared, self.BOUNDARIES: listed}
        return {name: outputs[name] for name, outputs in names.items()}

    def _list(self, _: Any) -> Iterator[Any]:
        groups = list_groups(
            self.patterns,
            self.output_path,
            limit=self.limit,
            record_format=self.record_format,
            slice_bytes=self.limits.text_bytes,
        )
        storage.delete_files(self.output_path, [layout.SUCCESS])
        # A worker that finds a commit in `_commits` knows the sizes of its parts, not what `verify --checksums` found.
        blocks = (layout.block_of(path) for path in load_damaged(self.output_path))
        storage.delete_files(self.output_path, map(layout.commit_path, blocks))
        yield beam.pvalue.TaggedOutput(self.BOUNDARIES, Boundaries(tuple(group.first for group in groups)))
        yield from groups

    def _compare(self, group: Group) -> Iterator[Any]:
        work, to_read, _ = compare_group(
            self.output_path,
            group,
            prune_missing=self.prune_missing,
            reread=self.reread,
            fingerprint=self.fingerprint,
        )
        yield from join_small_files(to_read, self.limits, self.record_format)
        yield beam.pvalue.TaggedOutput(self.KNOWN, work)
