"""The files of a finished run against what `parts.jsonl` and the manifest say of them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import DAMAGED, found_parts, listed_commits, load_damaged, note_damaged
from layerbeam.pipeline.output.manifest import MANIFEST, SUCCESS, ManifestError, read_manifest, table_parts
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, Part

_FILES_AT_ONCE = 8
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass
class FilesVerdict:
    """What `verify --checksums` found. `damaged`: files that the next run makes anew; `noted`: whether it will know."""

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
    """Compare every byte of a finished run with the recorded hashes; what differs is noted for the next run.

    UsageError where there is no finished run.
    """
    manifest = read_finished(output_path)
    commits = read_commits(output_path)
    parts = [part for commit in commits for part in commit.parts.values()]
    files = [*parts, *table_parts(manifest).values()]
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        amiss = dict(zip(files, threads.map(lambda part: check_part(output_path, part), files), strict=True))
    problems = [f"{part.path} {problem}" for part, problem in amiss.items() if problem]
    problems += check_listing(output_path, manifest, commits)
    counts = metrics.total([commit.counts for commit in commits])
    for name, count in manifest["counts"].items():
        if name != metrics.DUPLICATE_IDS and counts.get(name, 0) != count:  # ids are compared over the run
            problems.append(f"{name}: {counts.get(name, 0):,} in parts.jsonl, {count:,} in {MANIFEST}")
    damaged = sorted(part.path for part, problem in amiss.items() if problem)
    total = sum(part.bytes for part in files)
    verdict = FilesVerdict(output_path, len(files), total, problems, damaged)
    if damaged:
        try:
            note_damaged(output_path, damaged)
            verdict.noted = True
        except OSError:
            pass  # a folder that may only be read: it is said below
    elif load_damaged(output_path):  # mended by other means, from a backup, say
        storage.delete_files([storage.join(output_path, DAMAGED)])
    return verdict


def missing_tables(output_path: str, manifest: Mapping[str, Any]) -> list[str]:
    """What the end of a run makes of all blocks, and is not there in full size."""
    missing = []
    for name, view in manifest["views"].items():
        sizes = storage.list_folder(storage.join(output_path, name))
        if view["level"] == "word_type":
            file = view["path"].rpartition("/")[2]
            missing += [] if sizes.get(file) == view["bytes"] else [view["path"]]
        elif not view["parts"] and not any(file.startswith("empty.") for file in sizes):
            missing.append(f"{name}/empty")
    return missing


def check_part(output_path: str, part: Part) -> str | None:
    """What is wrong with the bytes of a file; None where they are those that were written."""
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
    return None if sha256.hexdigest() == part.sha256 else "has changed since it was written: its SHA-256 is another one"


def check_listing(output_path: str, manifest: Mapping[str, Any], commits: Sequence[Commit]) -> list[str]:
    """Files in the folders of views that are not listed (who reads the folder doubles rows), and wrong row counts."""
    problems = []
    for name, entry in manifest["views"].items():
        parts = [commit.parts[name] for commit in commits if name in commit.parts]
        names = set(storage.list_folder(storage.join(output_path, name)))
        if entry["level"] == "word_type":
            known = {str(entry["path"]).rpartition("/")[2]}
        else:
            known = {part.path.rpartition("/")[2] for part in parts}
            rows = sum(part.rows for part in parts)
            if rows != entry["rows"]:
                problems.append(f"{name}: parts.jsonl lists {rows} rows, {MANIFEST} {entry['rows']}")
        if not parts:
            known |= {file for file in names if file.startswith("empty.")}
        stray = (file for file in sorted(names - known) if not file.startswith(("_", ".")))
        problems += [f"{name}/{file} is there and not listed in parts.jsonl" for file in stray]
    return problems


def check_sizes(output_path: str, commits: Sequence[Commit]) -> list[str]:
    """Parts that are missing or of another size."""
    return [
        f"{part.path} is missing" if size is None else f"{part.path} has {size:,} bytes, not {part.bytes:,}"
        for _, part, size in found_parts(output_path, commits)
        if size != part.bytes
    ]


def read_finished(output_path: str) -> dict[str, Any]:
    """The manifest of a finished run. UsageError where there is none, or a later run has begun and not ended."""
    try:
        manifest = read_manifest(output_path)
    except ManifestError as error:
        raise UsageError(str(error)) from error
    if manifest["complete"] and not storage.exists(storage.join(output_path, SUCCESS)):
        raise UsageError(f"{output_path}: a later run has begun here and not ended; run its configuration to the end")
    return manifest


def read_commits(output_path: str) -> list[Commit]:
    """What `parts.jsonl` lists. UsageError where it is damaged."""
    try:
        return listed_commits(output_path)
    except ValueError as error:
        raise UsageError(str(error)) from error
