"""What is left to do: whether this run may continue in the output folder, and the input files against its commits."""

from __future__ import annotations

import collections
import dataclasses
import functools
import glob
import itertools
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.config.identity import RunIdentity, differences, only_adds_views
from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import count_noun, echo_warning
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.catalog import Catalog, open_catalog
from layerbeam.pipeline.output.commits import load_damaged, recorded
from layerbeam.pipeline.output.manifest import load_manifest
from layerbeam.pipeline.output.run_log import ACTIVE, last_run, load_runs, run_numbers
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import FileRange, InputFile, printable
from layerbeam.transforms.flow.content_index import keys_of, write_content_index
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.content import format_by_name
from layerbeam.transforms.parts import folders_of, is_table_file, part_folder
from layerbeam.transforms.read.block import cut_blocks
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.slice.slices import (
    Done,
    FileToRead,
    count_records,
    cut_file,
    join_small_files,
    number_slices,
    scan_range,
)
from layerbeam.transforms.views.view import ViewSpec

_NAMED = 5  # files of a folder that are not read
_WALKED = 1000  # folders that are looked into for advice
LOST_WITH_ITS_FILE = "is missing, and so are rows of it, whose part is damaged: restore it, or give --prune-missing"


def check_output(path: str, views: Sequence[ViewSpec], run_identity: RunIdentity, number: int | None = None) -> None:
    """UsageError if the folder holds anything else, or rows of a run with other settings.

    `number`: of the attempt that asks, if it has one.
    """
    before = last_run(path)
    if before is None:
        # A first run may have died, on a full disk for example, before or while it wrote its record.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        own = {layout.LOCK, layout.RUNS}
        fingerprints = open_catalog(path).fingerprints()
        has_run = bool(fingerprints) or run_numbers(path) not in ([], [number])
        if has_run and fingerprints <= {run_identity["fingerprint"]}:
            # Its record and its manifest are lost, but all commits have these settings.
            own |= {
                layout.COMMITS,
                layout.REJECTS,
                layout.PARTS,
                layout.MANIFEST,
                layout.REPORT,
                layout.CARD,
                layout.NORMALIZER,
            }
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
        old, new = before["encoder"].get("commit"), run_identity["encoder"].get("commit")
        if old != new and old is not None:
            pinned = f"{before['encoder']['handle'].partition('@')[0]}@{old}"
            changed.append(f"encoder.handle: the folder was made with {pinned}; give that to continue it")
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
    return not any(metrics.embedded_texts(commit.counts) for commit, _ in recorded(path))


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
    for folder in (layout.COMMITS, layout.REJECTS):
        storage.delete_folder(path, folder)
    storage.delete_files(path, [layout.PARTS, layout.MANIFEST])


def is_finished(path: str, max_reject_rate: float | None, work: PendingWork) -> bool:
    """Whether an equal run is complete, under this limit for rejects too, and all that it wrote is there."""
    manifest = load_manifest(path)
    return (
        work.is_empty
        and manifest is not None
        and manifest["complete"]
        and manifest["fingerprint"] == work.catalog.fingerprint
        and storage.exists(storage.join(path, layout.SUCCESS))
        and not load_damaged(path)
        and manifest["settings"].get("input", {}).get("max_reject_rate") == max_reject_rate
        # An attempt that was given up may have committed a block, or written a part, after the end of another.
        and work.catalog.is_as_listed()
        and all(view["parts"] or _has_empty_part(path, name) for name, view in manifest["views"].items())
    )


def _has_empty_part(path: str, view: str) -> bool:
    return any(storage.file_names(storage.join(path, view), f"{layout.EMPTY}."))


@dataclasses.dataclass
class PendingWork:
    """The input files, and what is left to do in them.

    `to_read`: files with blocks to do. `files`: all input files that can be read. `skipped`: those that cannot, and
    why. `missing`: paths of files of an earlier run that no glob matches any more and whose rows stay; `pruned`: those
    whose rows are deleted. `limited`: how many records are read of a file that has more. `texts_done`, `tokens_done`:
    of earlier runs; they stay. `catalog`: what the input was compared with.
    """

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    files: list[InputFile] = dataclasses.field(default_factory=list)
    skipped: list[InputFile] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    pruned: list[str] = dataclasses.field(default_factory=list)
    limited: dict[str, int] = dataclasses.field(default_factory=dict)
    texts_done: int = 0
    tokens_done: int = 0
    catalog: Catalog = dataclasses.field(default_factory=lambda: Catalog(""), repr=False)

    def new_views(self, views: Sequence[ViewSpec]) -> list[ViewSpec]:
        """The views to write: all but those of which every file to read has parts, in commits that lack others."""
        kept = [file.done.kept_views for file in self.to_read]
        written = frozenset.intersection(*kept) if kept else frozenset()
        return [view for view in views if part_folder(view) not in written]

    @property
    def is_empty(self) -> bool:
        """Whether every file is read to its end and none is missing."""
        return not (self.to_read or self.skipped or self.missing or self.pruned)


def find_inputs(patterns: list[str], output_path: str, *, at_most: int | None = None) -> list[InputFile]:
    """What the globs match, without the output folder. UsageError if that is no file that can be read.

    A folder stands for the files in it whose names end as an input format's do; a warning names others but hidden ones.
    `at_most`: so many files of each pattern are enough.
    """
    failed = list[InputFile]()
    try:
        in_folders = {pattern: _files_of_folder(pattern, failed) for pattern in patterns}
        # A local glob that is the name of a folder, too, stands for both.
        globs = [p for p in patterns if not in_folders[p] or (storage.is_local(p) and glob.has_magic(p))]
        matches = storage.find_files(globs, at_most, paths=itertools.chain(*in_folders.values()))
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error
    found = [_of_input(file) for file in [*matches, *failed] if not storage.is_inside(file.path, output_path)]
    if all(file.problem for file in found):
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        unreadable = [f"; {printable(file.path)}: {file.problem}" for file in found]
        # In a glob [a] is the letter a; a folder may be called [a].
        as_names = [p.replace("[", "[[]") for p in patterns if "[" in p and storage.is_local(p)]
        hints = [f"; to read brackets as they are, write {p}" for p in as_names if storage.find_files([p], 1)]
        problems = "".join([*unreadable, *hints])
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}{problems}")
    return found


def _of_input(file: InputFile) -> InputFile:
    """The same, but a folder says why none of its files is read."""
    if storage.is_unlisted(file) or not file.problem or not storage.is_local(file.path) or not os.path.isdir(file.path):
        return file
    endings = [ending for format_ in INPUT_FORMATS.values() for ending in format_.endings]
    advice, names = "name the files in it", list(_names_below(file.path))
    for ending in endings:
        if any(name.endswith(ending) for name in names):
            advice = f"those in folders of it are {printable(glob.escape(file.path))}/**/*{ending}"
            break
    what = f"is a folder without a file that ends in {', '.join(endings)}; {advice}"
    return InputFile.unreadable(file.path, what)


def _names_below(folder: str) -> Iterator[str]:
    """The names of files in a local folder and the first folders below it, as a glob finds them."""
    for _, folders, names in itertools.islice(os.walk(folder), _WALKED):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (name for name in names if not name.startswith("."))


def _files_of_folder(path: str, failed: list[InputFile]) -> list[str]:
    is_folder = os.path.isdir(path) if storage.is_local(path) else path.endswith("/")
    try:
        names = storage.list_folder(path) if is_folder else {}
    except OSError as error:
        if not storage.is_local(path):
            raise storage.PatternError(f"{path}: {storage.reason_of(error)}") from error
        failed.append(storage.unlisted(path.rstrip("/") or "/", error))
        return []
    names = {name: size for name, size in names.items() if not name.startswith(".")}  # as a glob does
    read = [name for name in names if format_by_name(name) is not None]
    others = sorted(name for name in names.keys() - {*read} if not name.startswith("_"))  # such as _SUCCESS
    if read and others:
        shown = printable(", ".join(others[:_NAMED])) + (", ..." if len(others) > _NAMED else "")
        what = f"{printable(path)}: {count_noun(len(others), 'file')} with other endings not read ({shown})"
        echo_warning(f"input.files: {what}; to read such files, name them or a glob")
    return [storage.join(path, name) for name in read]


def find_work(
    job: Job, *, prune_missing: bool = False, reread: bool = False, found: Sequence[InputFile] | None = None
) -> PendingWork:
    """The input files against the commits of the output folder. UsageError as from `find_inputs`.

    A file keeps the path under which an earlier run read it, however it is spelled now. Files in the output folder are
    not input. `prune_missing`: rows of files that are gone do not stay. `reread`: no file is complete. `found`: what
    `find_inputs` gave.
    """
    given, output_path = job.config.input, job.output.path
    found = find_inputs(given.files, output_path) if found is None else found
    catalog = Catalog(output_path)
    catalog.load(folders_of(job.views))
    recorded_files = catalog.versions()
    found = _as_recorded([*found, *_unlisted(found, recorded_files)], recorded_files)
    limited: dict[str, int] = {}
    if given.limit is not None:
        found, limited = _first_records(found, given.limit, job.records)
    catalog.add_files(found, limited)
    lost_before = _lost_before(output_path) - {file.path for file in found}
    gone = sorted({*catalog.gone(), *lost_before})
    pruned = gone if prune_missing else _prunable(job, catalog, found, gone)
    catalog.judge(job.output.fingerprint, pruned=pruned)
    readable = [file for file in found if not file.problem]
    texts, tokens = catalog.texts_and_tokens()
    work = PendingWork(
        files=readable,
        skipped=[file for file in found if file.problem],
        limited=limited,
        texts_done=texts,
        tokens_done=tokens,
        missing=sorted({*gone} - {*pruned}),
        pruned=pruned,
        catalog=catalog,
    )
    lost = {*catalog.lost(), *lost_before} - {*pruned}
    work.skipped += [InputFile.unreadable(path, LOST_WITH_ITS_FILE) for path in sorted(lost)]
    in_part = catalog.packed_in_part()
    left = {file.path for file in readable} if reread else {*catalog.incomplete(), *in_part}
    packed = set() if reread else _add_packs(job, work, left - in_part)
    work.to_read += [_to_read(work, file) for file in readable if file.path in left - packed]
    return work


def _unlisted(found: Iterable[InputFile], recorded_files: Iterable[tuple[str, str]]) -> list[InputFile]:
    """The files of earlier runs that are below a folder that cannot be listed now: nobody knows whether they exist."""
    folders = {storage.join(storage.place_of(file.path), ""): file for file in found if storage.is_unlisted(file)}
    return [
        InputFile.unreadable(path, f"is in {printable(file.path)}, which {file.problem}")
        for path in (sorted({path for path, _ in recorded_files}) if folders else ())
        for folder, file in folders.items()
        if storage.place_of(path).startswith(folder)
    ]


def _prunable(job: Job, catalog: Catalog, found: Sequence[InputFile], gone: list[str]) -> list[str]:
    """The missing files whose rows are deleted: all up to `input.max_missing`, else those that were renamed."""
    most = job.config.input.max_missing
    most = most if isinstance(most, int) else math.ceil(most * catalog.num_files())
    if len(gone) <= most:
        return gone
    renamed = _renamed(job, catalog, found)
    return gone if len(gone) - len(renamed) <= most else sorted(renamed)


def _renamed(job: Job, catalog: Catalog, found: Sequence[InputFile]) -> set[str]:
    """The files that are gone, and whose bytes are in a file that was found."""
    gone, renamed = catalog.contents_of_gone(), set[str]()
    by_size = collections.defaultdict[int, set[str]](set)
    for path, (size, _) in gone.items():
        by_size[size].add(path)
    for file in found:
        candidates = by_size.get(file.size, set()) - renamed
        if candidates and not file.problem:
            contents = {keys_of(block)[0] for block in _cut_blocks_of(job, file)}
            renamed |= {path for path in candidates if gone[path][1] <= contents}
    return renamed


def _cut_blocks_of(job: Job, file: InputFile) -> Iterator[FileRange]:
    """The blocks into which a run cuts a file, as far as it can be read."""
    scans = [scan_range(*cut, job.limits, job.records) for cut in cut_file(file, job.limits.text_bytes, job.records)]
    for slice_ in number_slices(scans, job.limits, job.records):
        for item in [slice_] if isinstance(slice_, InputFile) else cut_blocks(slice_, job.limits, job.records):
            if not isinstance(item, InputFile):
                yield item[0]


def _lost_before(output_path: str) -> set[str]:
    """Files that the last manifest reports as missing, with rows that are damaged."""
    manifest = load_manifest(output_path)
    before = {} if manifest is None else manifest["left_out"]
    return {path for path, reason in before.items() if reason == LOST_WITH_ITS_FILE}


def _add_packs(job: Job, work: PendingWork, left: Iterable[str]) -> set[str]:
    """Add to the work the files that packs hold as they are now; returns their paths.

    Other files of these packs have changed, or the packs lack views. The files of each stay together: the rows that
    are there are copied at once, and a view is added to the same block.
    """
    packed = set[str]()
    for _, found in itertools.groupby(work.catalog.packed(left), key=lambda one: one.pack):
        files = [one.file for one in found if one.is_of_run or job.limits.joins_files]
        if files:
            work.to_read.append(dataclasses.replace(_to_read(work, files[0]), others=tuple(files[1:])))
            packed.update(file.path for file in files)
    return packed


def _to_read(work: PendingWork, file: InputFile) -> FileToRead:
    """A file with work left, and what is done of it."""
    ranges, kept_views, records, texts = [], set[str](), 0, 0
    for is_of_run, block, first, end, of_records, of_texts in work.catalog.done(file.path):
        if is_of_run:
            ranges.append((first, end))
            records, texts = records + of_records, texts + of_texts
        else:
            kept_views |= work.catalog.views_of(block)
    done = Done(np.array(ranges, np.int64).reshape(-1, 2), records, texts, frozenset(kept_views))
    return FileToRead(file, work.limited.get(file.path), done)


def _as_recorded(found: Iterable[InputFile], recorded: Collection[tuple[str, str]]) -> list[InputFile]:
    """The files under the paths that an earlier run recorded, each with its version; sorted by path."""
    paths = {storage.place_of(path, version): path for path, version in recorded}
    known = set(paths.values())
    renamed = (
        file
        if file.path in known
        else dataclasses.replace(file, path=paths.get(storage.place_of(file.path, file.version), file.path))
        for file in found
    )
    return sorted(renamed, key=lambda file: file.path)


def _first_records(
    found: Sequence[InputFile], limit: int, record_format: RecordFormat
) -> tuple[list[InputFile], dict[str, int]]:
    """(the files that hold the first records, how many of them are in a file that has more)."""
    kept: list[InputFile] = []
    limited: dict[str, int] = {}
    for file in found:
        if limit == 0:
            break
        kept.append(file)
        if not file.problem:
            count = count_records(file, record_format, limit + 1)
            if count > limit:
                limited[file.path] = limit
            limit -= min(count, limit)
    return kept, limited


def begin_work(job: Job, number: int, work: PendingWork) -> None:
    """Write the work list of an attempt; the folder does not say any more that it is complete.

    It has the input files, and what is to be read. What earlier runs have is in a file next to it.
    """
    output_path, catalog = job.output.path, work.catalog
    storage.delete_files(output_path, [layout.SUCCESS])
    # A worker that finds a commit in `_commits` knows the sizes of its parts, not what `verify --checksums` found.
    blocks = (layout.block_of(path) for path in load_damaged(output_path))
    storage.delete_files(output_path, map(layout.commit_path, blocks))
    known = ""
    if catalog.fingerprints():
        with job.output.write_atomically(functools.partial(layout.content_index_path, number)) as file:
            write_content_index(file, *catalog.known())
        known = layout.content_index_path(number, file.sha256)
    items = list(join_small_files(work.to_read, job.limits, job.records))
    with storage.write_atomically(storage.join(output_path, layout.work_path(number))) as file:
        _write_line(file, {"pruned": work.pruned, "known": known})
        for one in [*work.files, *work.skipped]:
            _write_line(file, {"input": one.to_json(), "max_records": work.limited.get(one.path)})
        for item in items:
            others = [other.to_json() for other in item.others]
            _write_line(file, {"file": item.file.to_json(), "others": others, "max_records": item.max_records})


def _write_line(file: Any, value: Any) -> None:
    file.write(json.dumps(value).encode("ascii") + b"\n")


@dataclasses.dataclass(frozen=True)
class WorkList:
    """What an attempt does, as `begin_work` wrote it."""

    output_path: str
    number: int

    @property
    def exists(self) -> bool:
        return storage.exists(storage.join(self.output_path, layout.work_path(self.number)))

    def _lines(self) -> Iterator[dict[str, Any]]:
        with storage.open_binary(storage.join(self.output_path, layout.work_path(self.number))) as file:
            yield from map(storage.parse_json, file)

    def fill(self, catalog: Catalog) -> list[str]:
        """Add the input files to a catalog; returns the files that are gone, and whose rows go."""
        lines = self._lines()
        pruned: list[str] = next(lines)["pruned"]
        for batch in storage.in_batches(line for line in lines if "input" in line):
            files = [InputFile(**line["input"]) for line in batch]
            limited = zip(files, batch, strict=True)
            catalog.add_files(files, {file.path: line["max_records"] for file, line in limited})
        return pruned

    def items(self) -> Iterator[FileToRead]:
        """What is to be read."""
        lines = self._lines()
        name = next(lines)["known"]
        known = name and storage.join(self.output_path, name)
        for line in lines:
            if "file" in line:
                others = tuple(InputFile(**other) for other in line["others"])
                yield FileToRead(InputFile(**line["file"]), line["max_records"], others=others, known=known)
