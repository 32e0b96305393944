"""The files of a finished run compared with what `parts.jsonl` and the manifest record of them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import found_parts, listed_commits, load_damaged, note_damaged
from layerbeam.pipeline.output.manifest import Manifest, ManifestError, read_manifest, table_parts
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.layout import DAMAGED, EMPTY, MANIFEST, PARTS, SUCCESS

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
        """`pass` or `fail`."""
        return "fail" if self.problems else "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"result": self.result} | dataclasses.asdict(self)


def verify_files(output_path: str) -> FilesVerdict:
    """Compare every byte of a finished run with the recorded hashes, and note what differs for the next run.

    UsageError if there is no finished run.
    """
    manifest = read_finished(output_path)
    commits = read_commits(output_path)
    parts = [part for commit in commits for part in commit.parts.values()]
    files = [*parts, *table_parts(manifest).values()]
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        checked = list(zip(files, threads.map(lambda part: check_part(output_path, part), files), strict=True))
    problems = [f"{part.path} {problem}" for part, problem in checked if problem]
    problems += check_listing(output_path, manifest, commits)
    counts = metrics.total([commit.counts for commit in commits])
    for name, count in manifest["counts"].items():
        if name != metrics.DUPLICATE_IDS and counts.get(name, 0) != count:  # ids are compared over the run
            problems.append(f"{name}: {counts.get(name, 0):,} in {PARTS}, {count:,} in {MANIFEST}")
    damaged = sorted(part.path for part, problem in checked if problem)
    total = sum(part.bytes for part in files)
    verdict = FilesVerdict(output_path, len(files), total, problems, damaged)
    if damaged:
        try:
            note_damaged(output_path, damaged)
            verdict.noted = True
        except OSError:
            pass  # a read-only folder: the printed verdict says so
    elif load_damaged(output_path):  # repaired by other means, for example from a backup
        storage.delete_files([storage.join(output_path, DAMAGED)])
    return verdict


def missing_tables(output_path: str, manifest: Manifest) -> list[str]:
    """The files made of all blocks at the end of a run that are missing or not of full size."""
    missing = []
    for name, view in manifest["views"].items():
        sizes = storage.list_folder(storage.join(output_path, name))
        if view["level"] == "word_type":
            file = view["path"].rpartition("/")[2]
            missing += [] if sizes.get(file) == view["bytes"] else [view["path"]]
        elif not view["parts"] and not any(_is_empty_part(file) for file in sizes):
            missing.append(f"{name}/{EMPTY}")
    return missing


def _is_empty_part(file: str) -> bool:
    return file.startswith(f"{EMPTY}.")


def check_part(output_path: str, part: Part) -> str | None:
    """What is wrong with a file; None if its bytes are those that were written."""
    sha256, size = hashlib.sha256(), 0
    try:
        with storage.open_binary(storage.join(output_path, part.path)) as file:
            while chunk := file.read(_CHUNK_BYTES):
                sha256.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {storage.reason_of(error)}"
    if size != part.bytes:
        return f"has {size:,} bytes, not {part.bytes:,}"
    return None if sha256.hexdigest() == part.sha256 else "has changed since it was written: its SHA-256 differs"


def check_listing(output_path: str, manifest: Manifest, commits: Sequence[Commit]) -> list[str]:
    """Wrong row counts, and files in the folders of views that are not listed: reading a folder would repeat rows."""
    problems = []
    for name, entry in manifest["views"].items():
        parts = [commit.parts[name] for commit in commits if name in commit.parts]
        if entry["level"] == "word_type":
            known = {entry["path"]}
        else:
            known = {part.path for part in parts}
            rows = sum(part.rows for part in parts)
            if rows != entry["rows"]:
                problems.append(f"{name}: {PARTS} lists {rows} rows, {MANIFEST} {entry['rows']}")
        for file in sorted(storage.list_folder(storage.join(output_path, name))):
            is_listed = f"{name}/{file}" in known or (not parts and _is_empty_part(file))
            if not is_listed and not file.startswith(("_", ".")):
                problems.append(f"{name}/{file} is there and not listed in {PARTS}")
    return problems


def check_sizes(output_path: str, commits: Sequence[Commit]) -> list[str]:
    """Parts that are missing or have another size."""
    return [
        f"{part.path} is missing" if size is None else f"{part.path} has {size:,} bytes, not {part.bytes:,}"
        for _, part, size in found_parts(output_path, commits)
        if size != part.bytes
    ]


def read_finished(output_path: str) -> Manifest:
    """The manifest of a finished run. UsageError if there is none, or a later run has begun and not ended."""
    try:
        manifest = read_manifest(output_path)
    except ManifestError as error:
        raise UsageError(str(error)) from error
    if manifest["complete"] and not storage.exists(storage.join(output_path, SUCCESS)):
        raise UsageError(f"{output_path}: a later run has begun here and not ended; run its configuration to the end")
    return manifest


def read_commits(output_path: str) -> list[Commit]:
    """The commits in `parts.jsonl`. UsageError if it is damaged."""
    try:
        return listed_commits(output_path)
    except ValueError as error:
        raise UsageError(str(error)) from error
