"""What is left to do: the input files against the folder's commits, and the work list of an attempt."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.catalog import Catalog
from layerbeam.pipeline.output.commits import load_damaged
from layerbeam.pipeline.output.inputs import as_recorded, find_inputs, first_records, in_shard, unlisted_files
from layerbeam.pipeline.output.manifest import load_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.flow.content_index import keys_of, write_content_index
from layerbeam.transforms.parts import folders_of, part_folder
from layerbeam.transforms.read.block import cut_blocks
from layerbeam.transforms.slice.slices import (
    Done,
    FileToRead,
    cut_file,
    join_small_files,
    number_slices,
    scan_range,
)
from layerbeam.transforms.views.view import ViewSpec

LOST_WITH_ITS_FILE = "is missing, and so are rows of it, whose part is damaged: restore it, or give --prune-missing"


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


def find_work(
    job: Job, *, prune_missing: bool = False, reread: bool = False, found: Sequence[InputFile] | None = None
) -> PendingWork:
    """The input files against the commits of the output folder. UsageError as from `find_inputs`.

    A file keeps the path under which an earlier run read it, however it is spelled now. Files in the output folder are
    not input. `prune_missing`: rows of files that are gone do not stay. `reread`: no file is complete. `found`: what
    `find_inputs` gave.
    """
    given, output_path = job.config.input, job.output.path
    found = in_shard(find_inputs(given.files, output_path) if found is None else found, given.shard)
    catalog = Catalog(output_path)
    catalog.load(folders_of(job.views))
    recorded_files = catalog.versions()
    found = as_recorded([*found, *unlisted_files(found, recorded_files)], recorded_files)
    limited: dict[str, int] = {}
    if given.limit is not None:
        found, limited = first_records(found, given.limit, job.records)
    catalog.add_files(found, limited)
    lost_before = _lost_before(output_path) - {file.path for file in found}
    gone = sorted({*catalog.missing(), *lost_before})
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
    gone, renamed = catalog.contents_of_missing(), set[str]()
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


def begin_work(job: Job, number: int, work: PendingWork) -> None:
    """Write the work list of an attempt; the folder does not say any more that it is complete.

    It has the input files, and what is to be read. What earlier runs have is in a file next to it.
    """
    output_path, catalog = job.output.path, work.catalog
    storage.delete_files(output_path, [layout.SUCCESS])
    # A worker that finds a commit in `_commits` knows the sizes of its parts, not what `verify --checksums` found.
    blocks = (layout.block_of(path) for path in load_damaged(output_path))
    storage.delete_files(output_path, map(layout.commit_path, blocks))
    index = ""
    if catalog.fingerprints():
        with job.output.write_atomically(functools.partial(layout.content_index_path, number)) as file:
            write_content_index(file, *catalog.content_index())
        index = layout.content_index_path(number, file.sha256)
    items = list(join_small_files(work.to_read, job.limits, job.records))
    with storage.write_atomically(storage.join(output_path, layout.work_path(number))) as file:
        _write_line(file, {"pruned": work.pruned, "content_index": index})
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
        name = next(lines)["content_index"]
        index = name and storage.join(self.output_path, name)
        for line in lines:
            if "file" in line:
                others = tuple(InputFile(**other) for other in line["others"])
                yield FileToRead(InputFile(**line["file"]), line["max_records"], others=others, content_index=index)
