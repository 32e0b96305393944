"""The files of a finished run compared with what `parts.jsonl` and the manifest record of them."""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.console import underlying
from layerbeam.pipeline.dataset.index import Index, read_index
from layerbeam.pipeline.errors import OutputError
from layerbeam.pipeline.output.commits import load_damaged, note_damaged, size_problem
from layerbeam.pipeline.output.manifest import Manifest, read_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import Part

_FILES_AT_ONCE = 8
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass
class FilesVerdict:
    """The result of `verify --checksums`. `damaged`: files to rewrite; `noted`: whether the next run knows them."""

    path: str
    files: int
    bytes: int
    problems: list[str]
    damaged: list[str]
    noted: bool = False

    @property
    def result(self) -> str:
        return "fail" if self.problems else "pass"

    def to_json(self) -> dict[str, Any]:
        return {"result": self.result} | dataclasses.asdict(self)


def verify_files(output_path: str) -> FilesVerdict:
    """Compare every byte of a finished run with the recorded hashes, and note what differs for the next run.

    OutputError if there is no finished run.
    """
    manifest = read_finished(output_path)
    index = read_index(output_path)
    num_files, counts = 0, Counter[str]()
    for commit in index:
        counts.update(commit.counts)
        num_files += len(commit.parts)
    from layerbeam.pipeline.progress import (
        Steps,
        show_progress,
    )  # it imports Beam, and `open_run` imports this file

    progress, damaged, num_bytes = Steps("file", num_files), {}, 0
    with (
        show_progress(progress, stream=underlying(sys.stderr)),
        concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads,
    ):
        for batch in storage.in_batches(index.files()):
            for part, problem in zip(
                batch, threads.map(lambda part: check_part(output_path, part), batch), strict=True
            ):
                progress.done += 1
                num_bytes += part.bytes
                if problem:
                    damaged[part.path] = problem
    problems = [f"{path} {problem}" for path, problem in damaged.items()]
    problems += check_listing(output_path, manifest["views"], index)
    for name, count in manifest["counts"].items():
        if name != metrics.DUPLICATE_IDS and counts.get(name, 0) != count:  # ids are compared over the run
            problems.append(f"{name}: {counts.get(name, 0):,} in {layout.PARTS}, {count:,} in {layout.MANIFEST}")
    verdict = FilesVerdict(output_path, num_files, num_bytes, problems, sorted(damaged))
    if damaged:
        with contextlib.suppress(OSError):  # a read-only folder: the printed verdict says so
            note_damaged(output_path, damaged)
            verdict.noted = True
    elif load_damaged(output_path):  # repaired by other means, for example from a backup
        storage.delete_files(output_path, [layout.DAMAGED])
    return verdict


def check_part(output_path: str, part: Part) -> str | None:
    """What is wrong with a file; None if its bytes are those that were written."""
    sha256, size = hashlib.sha256(), 0
    try:
        with storage.open_binary(storage.join(output_path, part.path)) as file:
            while chunk := file.read(_CHUNK_BYTES):
                sha256.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return size_problem(part, None)
    except OSError as error:
        return f"cannot be read: {storage.reason_of(error)}"
    is_same = sha256.hexdigest() == part.sha256
    return size_problem(part, size) or (None if is_same else "has changed since it was written: its SHA-256 differs")


def check_files(output_path: str, index: Index) -> list[str]:
    """Files that are missing or have another size than listed."""
    problems = []
    for batch in storage.in_batches(index.files()):
        names = collections.defaultdict(set)
        for part in batch:
            folder, _, name = part.path.rpartition("/")
            names[folder].add(name)
        sizes = {folder: _sizes(storage.join(output_path, folder), of_folder) for folder, of_folder in names.items()}
        for part in batch:
            folder, _, name = part.path.rpartition("/")
            problem = size_problem(part, sizes[folder].get(name))
            problems += [f"{part.path} {problem}"] if problem else []
    return problems


def _sizes(folder: str, names: Collection[str]) -> dict[str, int]:
    """{name: size} of those of these names that are files in the folder. In a store that is one listing."""
    if storage.is_local(folder):
        found = ((name, storage.stat_if_exists(storage.join(folder, name))) for name in names)
        return {name: file.size for name, file in found if file is not None}
    return dict(storage.file_sizes(folder, os.path.commonprefix(list(names))))  # noqa: RUF071 - of characters


def check_listing(output_path: str, views: Mapping[str, Mapping[str, Any]], index: Index) -> list[str]:
    """Wrong row counts, and files in the folders of views that are not listed: reading a folder would repeat rows."""
    problems = []
    for name, entry in views.items():
        rows, listed = 0, array.array("Q")
        for part in index.parts(name):
            rows += part.rows
            listed.append(_path_hash(part.path))
        if rows != entry["rows"]:
            problems.append(f"{name}: {layout.PARTS} lists {rows} rows, {layout.MANIFEST} {entry['rows']}")
        empty = (f"{layout.EMPTY}.",) if not listed else ()
        known = np.unique(np.frombuffer(listed, np.uint64))
        files = storage.file_names(storage.join(output_path, name))
        shown = (f"{name}/{file}" for file in files if not file.startswith(("_", ".", *empty)))
        unlisted = [path for path in shown if not _is_in(known, _path_hash(path))]
        problems += [f"{path} is there and not listed in {layout.PARTS}" for path in sorted(unlisted)]
    return problems


def _is_in(hashes: npt.NDArray[np.uint64], value: int) -> bool:
    """Whether sorted hashes have this one."""
    place = int(np.searchsorted(hashes, np.uint64(value)))
    return place < len(hashes) and int(hashes[place]) == value


def _path_hash(path: str) -> int:
    """64 bits for the path of a part. Of two with the same, one is not recognized as unlisted."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def read_finished(output_path: str) -> Manifest:
    """The manifest of a finished run. OutputError if there is none, or a later run has begun and not ended."""
    manifest = read_manifest(output_path)
    if manifest["complete"] and not storage.exists(storage.join(output_path, layout.SUCCESS)):
        raise OutputError(f"{output_path}: a later run has begun here and not ended; run its configuration to the end")
    return manifest
