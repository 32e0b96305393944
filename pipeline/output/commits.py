"""Which blocks of an output folder are done: commits read back, as far as the disk can be trusted."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterable, Sequence

from layerbeam.pipeline.errors import OutputError
from layerbeam.transforms import layout, storage
from layerbeam.transforms.commits import Commit, Part, adapter

# Object stores answer slowly, and many at once.
_FILES_AT_ONCE = 32


def load_commits(output_path: str) -> list[Commit]:
    """The commits of an output folder whose parts are intact. Other blocks are done again."""
    return sound_commits(output_path, recorded_commits(output_path))


def sound_commits(output_path: str, commits: Sequence[Commit]) -> list[Commit]:
    """The commits whose parts have their full size, and none of which `verify --checksums` found changed."""
    unsound = load_damaged(output_path) | broken_parts(output_path, commits).keys()
    return [commit for commit in commits if unsound.isdisjoint(commit.part_paths)]


def recorded_commits(output_path: str) -> list[Commit]:
    """The commits in `parts.jsonl` and `_commits` that can be read, whether or not their parts are intact.

    If a block is in both, the file in `_commits` is newer; an empty or damaged file means that a run began to rewrite
    the block.
    """
    commits: dict[str, Commit] = {}
    for line in _read(storage.join(output_path, layout.PARTS)).splitlines():
        commit = _parse(line)
        if commit is not None:
            commits[commit.block.name] = commit
    folder = storage.join(output_path, layout.COMMITS)
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
    """The commits in `parts.jsonl` of a finished run, whether or not their parts exist. OutputError if damaged."""
    path = storage.join(output_path, layout.PARTS)
    try:
        return [Commit.from_json(json.loads(line)) for line in storage.read_bytes(path).splitlines()]
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read ({error}); run the configuration again to rewrite it") from error


def parts_of(view: str, commits: Iterable[Commit]) -> list[Part]:
    """The parts of a view."""
    return [commit.parts[view] for commit in commits if view in commit.parts]


def broken_parts(output_path: str, commits: Iterable[Commit]) -> dict[str, str]:
    """{path: what is wrong} of the parts that are missing or have another size than listed."""
    sizes: dict[str, dict[str, int]] = {}
    broken = {}
    for commit in commits:
        for part in commit.parts.values():
            folder, _, name = part.path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.list_folder(storage.join(output_path, folder))
            problem = size_problem(part, sizes[folder].get(name))
            if problem is not None:
                broken[part.path] = problem
    return broken


def size_problem(part: Part, size: int | None) -> str | None:
    """What is wrong with a part whose file has this size, or is missing."""
    if size is None:
        return "is missing"
    return None if size == part.bytes else f"has {size:,} bytes, not {part.bytes:,}"


def load_damaged(output_path: str) -> set[str]:
    """Paths of the files that `verify --checksums` found changed and no run has rewritten since."""
    try:
        return set(adapter(list[str]).validate_python(json.loads(_read(storage.join(output_path, layout.DAMAGED)))))
    except ValueError:
        return set()


def note_damaged(output_path: str, paths: Iterable[str]) -> None:
    """Make the next run rewrite these files. OSError if the folder cannot be written."""
    temporary = storage.join(output_path, layout.TEMPORARY)
    with storage.write_whole(storage.join(output_path, layout.DAMAGED), temporary=temporary) as file:
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
