"""Several output folders as one run, such as those of the shards of a corpus. Parts are read where they are.

The rows of all folders come one folder after the other. A column `folder` says where a row is from, so that keys such
as `file` and `line` stay unique where two folders have files of the same path.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from layerbeam.pipeline.config.identity import differences, identify_run
from layerbeam.pipeline.dataset.changes import ViewChanges
from layerbeam.pipeline.dataset.index import Index, Lazy
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.dataset.summary import RunSummary, count_words, join_summaries, join_views
from layerbeam.pipeline.dataset.view import FOLDER, View, plain_folder
from layerbeam.pipeline.errors import NoRunError, OutputError
from layerbeam.pipeline.output.changes import Changes
from layerbeam.pipeline.output.manifest import InputEntry
from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import Commit, Part
from layerbeam.transforms.flow.layout import MANIFEST, RUNS, output_folder_of

_NAMED = 10  # shards that are missing


def is_glob(path: str) -> bool:
    """Whether a path stands for the folders that match it: it has wildcards, and is no folder itself."""
    return glob.has_magic(path) and not (storage.is_local(path) and os.path.isdir(path))


def find_folders(paths: Iterable[str]) -> list[str]:
    """The folders, of a glob those with a run, in the order given. NoRunError if a glob matches none."""
    folders: dict[str, str] = {}
    for path in paths:
        found = {path}
        if is_glob(path):
            records = storage.find_files([storage.join(path, RUNS, "*.json")])
            manifests = storage.find_files([storage.join(path, MANIFEST)])  # a copy may have no records
            for file in (*records, *manifests):
                if file.problem:
                    raise OutputError(f"{file.path}: {file.problem}")
            found = {file.path.rsplit("/", 2)[0] for file in records} | {os.path.dirname(f.path) for f in manifests}
            if not found:
                raise NoRunError(f"{path}: matches no folder with a layerbeam run")
        for folder in sorted(map(plain_folder, found), key=_by_numbers):
            if storage.place_of(folder) in folders:
                raise OutputError(f"{folder}: is given twice, and its rows would be")
            folders[storage.place_of(folder)] = folder
    return list(folders.values())


def _by_numbers(path: str) -> list[Any]:
    """Puts shard-2 before shard-10."""
    return [int(piece) if piece.isdecimal() else piece for piece in re.split(r"([0-9]+)", path)]


def open_folders(paths: Iterable[str], *, allow_incomplete: bool, allow_unfinished: bool) -> Runs:
    """The runs of these folders and globs, as one. See `open_run`."""
    folders = find_folders(paths)
    if not folders:
        raise NoRunError("no output folder is given; name one or several")

    def open_one(path: str) -> Run:
        return open_run(path, allow_incomplete=allow_incomplete, allow_unfinished=allow_unfinished)

    with concurrent.futures.ThreadPoolExecutor(storage.FILES_AT_ONCE) as threads:
        runs = list(threads.map(open_one, folders))
    for run in runs:
        _check_same(runs[0], run)
    missing = _missing_shards(runs)
    if missing and not (allow_incomplete or allow_unfinished):
        raise OutputError(f"{missing}; name their folders too, or read the others in Python with allow_incomplete=True")
    return _join(runs, [missing] if missing else [])


def _check_same(first: Run, run: Run) -> None:
    """OutputError if two runs have other encoders, settings or views."""
    old, new = (_identity(one) for one in (first, run))
    views = [old["views"], new["views"]]
    lines = [
        f"views.{name}: only {(first if name in views[0] else run).path} has it"
        for name in sorted(views[0].keys() ^ views[1].keys())
    ]
    changed = lines or differences(old, new)
    if changed:
        handles = [one.manifest["encoder"]["handle"] for one in (first, run)]
        changed += [f"encoder.handle: {' -> '.join(handles)}"] if handles[0] != handles[1] else []
        raise OutputError(
            f"{run.path}: its settings are not those of {first.path}, so that rows of both do not belong together:\n"
            + "\n".join(f"  {line}" for line in changed)
        )
    for name, view in run.manifest["views"].items():
        if FOLDER in view["columns"]:
            raise OutputError(
                f"{run.path}: view {name} has a column {FOLDER} of its own, which several folders have together; open "
                "them one by one"
            )


def _identity(run: Run) -> dict[str, Any]:
    """What is the same for all shards."""
    identity = dict(run.manifest["identity"])
    return identity | {"input": {name: value for name, value in identity["input"].items() if name != "shard"}}


def _missing_shards(runs: Sequence[Run]) -> str:
    """Which shards no folder has, in words. OutputError if a file may be in two of the folders."""
    shards: dict[str | None, str] = {}
    for run in runs:
        shard = run.manifest["identity"]["input"].get("shard")
        if shard is not None and shard in shards:
            raise OutputError(f"{run.path}: is shard {shard}, and so is {shards[shard]}: rows would be there twice")
        shards[shard] = run.path
    counts = {shard and shard.partition("/")[2]: path for shard, path in shards.items()}
    if len(counts) > 1:
        what = ", ".join(f"{path} of {count or 'no'} shards" for count, path in counts.items())
        raise OutputError(f"the folders are of different divisions, and rows would be there twice: {what}")
    (count,) = counts
    left = [number for number in range(1, int(count or 0) + 1) if f"{number}/{count}" not in shards]
    more = ", ..." if len(left) > _NAMED else ""
    return f"{len(left):,} of {count} shards are missing: {', '.join(map(str, left[:_NAMED]))}{more}" if left else ""


def _join(runs: Sequence[Run], own: Sequence[str] = ()) -> Runs:
    """The runs as one; `own`: problems in addition to those of each."""
    first, manifests = runs[0].manifest, [run.manifest for run in runs]
    files = dict.fromkeys(path for manifest in manifests for path in manifest["settings"]["input"]["files"])
    settings = first["settings"] | {"input": first["settings"]["input"] | {"files": list(files), "shard": None}}
    problems = [*own, *(f"{run.path}: {problem}" for run in runs for problem in run.manifest["problems"])]
    manifest = {
        **first,
        **identify_run(_identity(runs[0]), first["encoder"], settings, first.get("versions", {})),
        "complete": not problems and all(manifest["complete"] for manifest in manifests),
        "problems": problems,
        "counts": metrics.total(manifest["counts"] for manifest in manifests),
        "made_with": metrics.total(manifest.get("made_with", {}) for manifest in manifests),
        "views": join_views([manifest["views"] for manifest in manifests]),
        "left_out": {path: why for manifest in manifests for path, why in manifest["left_out"].items()},
    }
    base = _common_folder([run.path for run in runs])
    prefixes = [run.path if base in ("", ".") else run.path.removeprefix(base).lstrip("/") for run in runs]
    indexes = dict(zip(prefixes, (run._index for run in runs), strict=True))
    return Runs(base, manifest, _JoinedIndex(indexes), runs=tuple(runs), own_problems=tuple(own))


def _common_folder(paths: Sequence[str]) -> str:
    """The folder of all these folders; "" if they are in different stores."""
    pieces = [path.split("/")[:-1] for path in paths]
    common = "/".join(os.path.commonprefix(pieces))  # noqa: RUF071 - of lists
    if all(path.startswith("/") for path in paths):
        return common or "/"
    if any("://" in path or path.startswith("/") for path in paths):
        return common if common.count("/") > 1 else ""
    return common or "."


@dataclasses.dataclass(repr=False, eq=False)
class Runs(Run):
    """Several runs of equal settings as one; `members` has each. `path`: the folder that all are in.

    `own_problems`: those of no single run, such as missing shards.
    """

    runs: tuple[Run, ...] = ()
    own_problems: tuple[str, ...] = ()

    @property
    def members(self) -> dict[str, Run]:
        return {run.path: run for run in self.runs}

    def view(self, name: str) -> View:
        return dataclasses.replace(super().view(name), in_folders=True)

    def summary(self) -> RunSummary:
        parts = {name: self._index.parts(name) for name in self}
        words = count_words(self.manifest["counts"], self.manifest["identity"]["views"])
        joined = join_summaries([run.summary() for run in self.runs], self.own_problems)
        return dataclasses.replace(
            joined, path=self.path, fingerprint=self.manifest["fingerprint"], parts=parts, words=words
        )

    def inputs(self) -> Iterator[InputEntry]:
        return itertools.chain.from_iterable(run.inputs() for run in self.runs)

    def check_files(self) -> list[str]:
        return [f"{run.path}: {problem}" for run in self.runs for problem in run.check_files()]

    def changes(self, view: str | None = None, *, since: Any) -> RunsChanges:  # type: ignore[override]
        """As of one run, with a column `folder`. `since`: `until` of the changes before; 0 for all rows."""
        if since != 0 and not isinstance(since, Mapping):
            raise ValueError(
                f"since: {since!r} is no mapping of folders to positions; give `until` of earlier changes, or 0"
            )
        changed = self._changing_view(view)
        known = since or {}
        gone = sorted(known.keys() - self.members.keys())
        if gone:
            raise OutputError(f"since: names {', '.join(gone)}, which is not among the folders now; read all rows")
        found = {}
        for run in self.runs:
            own = _join([run])
            changes = Changes(run.path, known.get(run.path, 0))
            found[run.path] = ViewChanges(own.view(changed.name), own._index, changes)
        return RunsChanges(found)


class RunsChanges:
    """The changes of a view in each folder: see `ViewChanges`. `since`, `until`: positions by folder."""

    def __init__(self, changes: Mapping[str, ViewChanges]) -> None:
        self._changes = changes
        self.since = {folder: own.since for folder, own in changes.items()}
        self.until = {folder: own.until for folder, own in changes.items()}

    def came(self, columns: Sequence[str] | None = None, *, with_moved: bool = False) -> Iterator[pa.RecordBatch]:
        batches = [own.came(columns, with_moved=with_moved) for own in self._changes.values()]
        return itertools.chain.from_iterable(batches)

    def went(self, *, with_moved: bool = False) -> Iterator[pa.RecordBatch]:
        return self._in_folders({folder: own.went(with_moved=with_moved) for folder, own in self._changes.items()})

    def moved(self) -> Iterator[pa.RecordBatch]:
        return self._in_folders({folder: own.moved() for folder, own in self._changes.items()})

    def _in_folders(self, found: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for folder, batches in found.items():
            for batch in batches:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield pa.RecordBatch.from_pydict({FOLDER: pa.repeat(folder, batch.num_rows), **columns})


class _JoinedIndex(Index):
    """The commits of several runs, one run after the other, with paths of parts from a folder that all are in.

    `indexes`: by the path of each folder from there.
    """

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self._indexes = indexes

    def __len__(self) -> int:
        return sum(map(len, self._indexes.values()))

    def __iter__(self) -> Iterator[Commit]:
        for prefix, index in self._indexes.items():
            for commit in index:
                yield _moved_commit(prefix, commit)

    def parts(self, view: str) -> Sequence[Part]:  # type: ignore[override]
        return _JoinedParts([(prefix, index.parts(view)) for prefix, index in self._indexes.items()])

    def block_of(self, part: Part) -> Commit | None:
        prefix = output_folder_of(part.path)
        found = self._indexes[prefix].block_of(part)
        return None if found is None else _moved_commit(prefix, found)


class _JoinedParts(Lazy[Part]):
    """The parts of a view in all folders, read from their indexes as they are used."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[Part]]]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(len(own) for _, own in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def _read(self, place: int) -> Part:
        number = bisect.bisect_right(self._ends, place)
        prefix, own = self._parts[number]
        return _moved_part(prefix, own[place - self._ends[number]])  # counts from the end


def _moved_commit(prefix: str, commit: Commit) -> Commit:
    return dataclasses.replace(commit, parts={name: _moved_part(prefix, part) for name, part in commit.parts.items()})


def _moved_part(prefix: str, part: Part) -> Part:
    return dataclasses.replace(part, path=storage.join(prefix, part.path))
