"""Which blocks of an output folder are done: commits read back, with distrust of what the disk holds."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Container, Iterable, Iterator

from layerbeam.transforms import storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.parts import SUFFIXES
from layerbeam.transforms.write.block import COMMITS, TEMPORARY

PARTS = "parts.jsonl"
# Parts that `verify --checksums` found changed: the next run makes them anew.
DAMAGED = "_damaged.json"

_PART_NAME = re.compile(r"(.+-[0-9a-f]{8}-\d{12}|empty)" + SUFFIXES)
# Object stores answer slowly, and many at once.
_FILES_AT_ONCE = 32


def load_commits(output_path: str) -> list[Commit]:
    """The commits of an output folder whose parts are there in their full size, and not found changed since.

    The blocks of the others are done again.
    """
    return sound_commits(output_path, recorded_commits(output_path))


def sound_commits(output_path: str, commits: Iterable[Commit]) -> list[Commit]:
    """Those of the commits whose parts are there in full size, and not changed as far as `verify --checksums` found."""
    damaged = load_damaged(output_path)
    return [
        commit
        for commit in whole_commits(output_path, commits)
        if not any(part.path in damaged for part in commit.parts.values())
    ]


def recorded_commits(output_path: str) -> list[Commit]:
    """The commits in `parts.jsonl` and `_commits` that can be read, whatever became of their parts.

    Where a block is in both, the file in `_commits` is newer; an empty or damaged one says that the block was begun
    anew.
    """
    commits: dict[str, Commit] = {}
    for line in _read(storage.join(output_path, PARTS)).splitlines():
        commit = _parse(line)
        if commit is not None:
            commits[commit.block.name] = commit
    folder = storage.join(output_path, COMMITS)
    names = sorted(name for name in storage.list_folder(folder) if name.endswith(".json"))
    paths = [storage.join(folder, name) for name in names]
    with concurrent.futures.ThreadPoolExecutor(1 if storage.is_local(folder) else _FILES_AT_ONCE) as threads:
        for name, data in zip(names, threads.map(_read, paths), strict=True):
            commits.pop(name.removesuffix(".json"), None)
            commit = _parse(data)
            if commit is not None:
                commits[commit.block.name] = commit
    return list(commits.values())


def listed_commits(output_path: str) -> list[Commit]:
    """What `parts.jsonl` of a finished run lists, its parts there or not. ValueError where it is damaged."""
    path = storage.join(output_path, PARTS)
    try:
        return [Commit.from_json(json.loads(line)) for line in storage.read_bytes(path).splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); run the configuration again: it is made anew") from error


def whole_commits(output_path: str, commits: Iterable[Commit]) -> list[Commit]:
    """Those of the commits whose parts are there in their full size."""
    commits = list(commits)
    broken = {commit.block.name for commit, part, size in found_parts(output_path, commits) if size != part.bytes}
    return [commit for commit in commits if commit.block.name not in broken]


def found_parts(output_path: str, commits: Iterable[Commit]) -> Iterator[tuple[Commit, Part, int | None]]:
    """Each part of the commits, with the size of the file that is there, None where there is none."""
    sizes: dict[str, dict[str, int]] = {}
    for commit in commits:
        for part in commit.parts.values():
            folder, _, name = part.path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.list_folder(storage.join(output_path, folder))
            yield commit, part, sizes[folder].get(name)


def stray_parts(output_path: str, folder: str, listed: Container[str]) -> list[str]:
    """Paths of the parts in a view's folder that are not among those listed: what an earlier run left."""
    names = storage.list_folder(storage.join(output_path, folder))
    paths = (f"{folder}/{name}" for name in sorted(names) if _PART_NAME.fullmatch(name))
    return [path for path in paths if path not in listed]


def load_damaged(output_path: str) -> set[str]:
    """Paths of the files that `verify --checksums` found changed and no run has made anew."""
    try:
        paths = json.loads(_read(storage.join(output_path, DAMAGED)) or b"[]")
    except ValueError:
        return set()
    return {path for path in paths if isinstance(path, str)} if isinstance(paths, list) else set()


def note_damaged(output_path: str, paths: Iterable[str]) -> None:
    """Let the next run make these files anew. OSError where the folder cannot be written."""
    temporary = storage.join(output_path, TEMPORARY)
    with storage.write_whole(storage.join(output_path, DAMAGED), temporary=temporary) as file:
        file.write(json.dumps(sorted(paths), indent=1).encode("ascii") + b"\n")
    storage.delete_empty_folder(temporary)


def _read(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except OSError:
        return b""


def _parse(data: bytes) -> Commit | None:
    try:
        return Commit.from_json(json.loads(data))
    except ValueError:
        return None
