"""Which blocks of an output folder are done: commits read back, as far as the disk can be trusted."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Container, Iterable, Iterator

from layerbeam.transforms import storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.layout import COMMITS, DAMAGED, PARTS, TEMPORARY
from layerbeam.transforms.parts import is_part_file

# Object stores answer slowly, and many at once.
_FILES_AT_ONCE = 32


def load_commits(output_path: str) -> list[Commit]:
    """The commits of an output folder whose parts are intact, see `sound_commits`. Other blocks are done again."""
    return sound_commits(output_path, recorded_commits(output_path))


def sound_commits(output_path: str, commits: Iterable[Commit]) -> list[Commit]:
    """The commits whose parts have their full size, and none of which `verify --checksums` found changed."""
    damaged = load_damaged(output_path)
    return [
        commit
        for commit in whole_commits(output_path, commits)
        if not any(part.path in damaged for part in commit.parts.values())
    ]


def recorded_commits(output_path: str) -> list[Commit]:
    """The commits in `parts.jsonl` and `_commits` that can be read, whether or not their parts are intact.

    If a block is in both, the file in `_commits` is newer; an empty or damaged file means that a run began to rewrite
    the block.
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
    """The commits in `parts.jsonl` of a finished run, whether or not their parts exist. ValueError if it is damaged."""
    path = storage.join(output_path, PARTS)
    try:
        return [Commit.from_json(json.loads(line)) for line in storage.read_bytes(path).splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); run the configuration again to rewrite it") from error


def whole_commits(output_path: str, commits: Iterable[Commit]) -> list[Commit]:
    """The commits whose parts all exist in their full size."""
    commits = list(commits)
    broken = {commit.block.name for commit, part, size in found_parts(output_path, commits) if size != part.bytes}
    return [commit for commit in commits if commit.block.name not in broken]


def found_parts(output_path: str, commits: Iterable[Commit]) -> Iterator[tuple[Commit, Part, int | None]]:
    """Each part of the commits with the size of its file, None if it is missing."""
    sizes: dict[str, dict[str, int]] = {}
    for commit in commits:
        for part in commit.parts.values():
            folder, _, name = part.path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.list_folder(storage.join(output_path, folder))
            yield commit, part, sizes[folder].get(name)


def stray_parts(output_path: str, folder: str, listed: Container[str]) -> list[str]:
    """Paths of the parts in a view's folder that are not listed: an earlier run left them."""
    names = storage.list_folder(storage.join(output_path, folder))
    paths = (f"{folder}/{name}" for name in sorted(names) if is_part_file(name))
    return [path for path in paths if path not in listed]


def load_damaged(output_path: str) -> set[str]:
    """Paths of the files that `verify --checksums` found changed and no run has rewritten since."""
    try:
        paths = json.loads(_read(storage.join(output_path, DAMAGED)) or b"[]")
    except ValueError:
        return set()
    return {path for path in paths if isinstance(path, str)} if isinstance(paths, list) else set()


def note_damaged(output_path: str, paths: Iterable[str]) -> None:
    """Make the next run rewrite these files. OSError if the folder cannot be written."""
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
