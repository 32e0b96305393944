"""Which blocks of an output folder are done: commits read back, as far as the disk can be trusted."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from layerbeam.pipeline.output.index import Index, load_index, parse_commit
from layerbeam.transforms import layout, storage
from layerbeam.transforms.commits import BlockId, Commit, Part, adapter

Item = TypeVar("Item")
Result = TypeVar("Result")

# Shards whose lines a worker keeps to look blocks up: 8 MB each.
_SHARDS_KEPT = 4


def load_commits(output_path: str) -> list[Commit]:
    """The commits of an output folder whose parts are intact. Other blocks are done again."""
    return [commit for commit, is_sound in sound_commits(output_path, recorded_commits(output_path)) if is_sound]


def sound_commits(output_path: str, commits: Iterable[Commit]) -> Iterator[tuple[Commit, bool]]:
    """Each commit, and whether its parts have their full size and `verify --checksums` found none of them changed."""
    damaged = load_damaged(output_path)
    for batch in storage.in_batches(commits):
        unsound = damaged | broken_parts(output_path, batch).keys()
        yield from ((commit, unsound.isdisjoint(commit.part_paths)) for commit in batch)


def recorded_commits(output_path: str) -> list[Commit]:
    """The commits in the index and in `_commits` that can be read, whether or not their parts are intact.

    If a block is in both, the file in `_commits` is newer; an empty or damaged file means that a run began to rewrite
    the block.
    """
    commits = {commit.block.name: commit for commit in load_index(output_path)}
    names = sorted(storage.file_names(storage.join(output_path, layout.COMMITS)))
    for name, commit in committed(output_path, names):
        commits.pop(name.removesuffix(".json"), None)
        if commit is not None:
            commits |= {own.block.name: own for own in commit.of_files()}
    return list(commits.values())


def committed(output_path: str, names: Iterable[str]) -> Iterator[tuple[str, Commit | None]]:
    """(name, commit) of these files in `_commits`, without those that do not exist; None for a damaged one."""
    folder = storage.join(output_path, layout.COMMITS)
    own = (name for name in names if name.endswith(".json"))
    for batch in storage.in_batches(own):
        files = _map(folder, storage.read_if_exists, [storage.join(folder, name) for name in batch])
        for name, data in zip(batch, files, strict=True):
            if data is not None:
                yield name, parse_commit(data)


def load_begun(output_path: str, blocks: Iterable[str]) -> Iterator[tuple[Commit, bool]]:
    """The commits in `_commits` of these blocks that can be read, and whether their parts are intact."""
    found = committed(output_path, (f"{name}.json" for name in blocks))
    return sound_commits(output_path, (commit for _, commit in found if commit is not None))


@dataclasses.dataclass
class CommittedBlocks:
    """Looks up the valid commit of a block that has the same bytes: in `_commits`, else in the index."""

    output_path: str
    fingerprint: str

    def __post_init__(self) -> None:
        self._index: Index | None = None
        self._damaged: set[str] = set()
        self._shards: dict[int, dict[bytes, bytes]] = {}

    def __call__(self, block: BlockId) -> Commit | None:
        begun = [commit for _, commit in committed(self.output_path, [f"{block.name}.json"])]
        # `find` has deleted those of damaged parts: what is in `_commits` was written since.
        valid = [commit for commit in begun if commit is not None and self._is_valid(commit, block)]
        if begun != [None] and not self._of_this_run(valid):  # [None]: a run began to rewrite the block
            if self._index is None:
                self._index, self._damaged = load_index(self.output_path), load_damaged(self.output_path)
            whole = (c for c in self._in_index(block) if self._damaged.isdisjoint(c.part_paths))
            valid += [commit for commit in whole if self._is_valid(commit, block)]
        return self._of_this_run(valid) or next(iter(valid), None)

    def _of_this_run(self, commits: Iterable[Commit]) -> Commit | None:
        return next((commit for commit in commits if commit.fingerprint == self.fingerprint), None)

    def _is_valid(self, commit: Commit, block: BlockId) -> bool:
        is_same = (commit.block.file.path, commit.block.content) == (block.file.path, block.content)
        return is_same and not broken_parts(self.output_path, [commit])

    def _in_index(self, block: BlockId) -> Iterator[Commit]:
        assert self._index is not None  # noqa: S101 - for mypy
        name = block.name.encode("ascii")
        for number, shard in enumerate(self._index.shards):
            if not shard.first_file <= block.file.path <= shard.last_file:
                continue
            lines = self._shards.pop(number, None)
            if lines is None:
                commits = ((line, parse_commit(line)) for line in shard.read(self.output_path))
                lines = {c.block.name.encode("ascii"): line for line, c in commits if c is not None}
            self._shards[number] = lines
            if len(self._shards) > _SHARDS_KEPT:
                del self._shards[next(iter(self._shards))]
            commit = parse_commit(lines.get(name, b""))
            if commit is not None:
                yield commit


def parts_of(view: str, commits: Iterable[Commit]) -> list[Part]:
    """The parts of a view."""
    return [commit.parts[view] for commit in commits if view in commit.parts]


def broken_parts(output_path: str, commits: Iterable[Commit]) -> dict[str, str]:
    """{path: what is wrong} of the parts that are missing or have another size than listed."""
    broken = {}
    for batch in storage.in_batches(commits):
        names = defaultdict(set)  # of the parts of a file in one view, which a store lists together
        for one in batch:
            for part in one.parts.values():
                folder, _, name = part.path.rpartition("/")
                of_file = one.block.file.path if part.first_row is None else name
                names[storage.join(output_path, folder), of_file].add(name)
        found = _map(output_path, lambda item: (item[0][0], storage.sizes_of(item[0][0], item[1])), list(names.items()))
        sizes = {(folder, name): size for folder, of_names in found for name, size in of_names.items()}
        for part in (part for one in batch for part in one.parts.values()):
            folder, _, name = part.path.rpartition("/")
            problem = size_problem(part, sizes.get((storage.join(output_path, folder), name)))
            if problem is not None:
                broken[part.path] = problem
    return broken


def _map(folder: str, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What the function gives for each item, asked for at once in a store."""
    if len(items) < 2 or storage.is_local(folder):
        return list(map(function, items))
    with concurrent.futures.ThreadPoolExecutor(storage.FILES_AT_ONCE) as threads:
        return list(threads.map(function, items))


def size_problem(part: Part, size: int | None) -> str | None:
    """What is wrong with a part whose file has this size, or is missing."""
    if size is None:
        return "is missing"
    return None if size == part.bytes else f"has {size:,} bytes, not {part.bytes:,}"


def load_damaged(output_path: str) -> set[str]:
    """Paths of the files that `verify --checksums` found changed and no run has rewritten since."""
    try:
        data = storage.read_if_exists(storage.join(output_path, layout.DAMAGED)) or b""
        return set(filter(layout.is_part_path, adapter(list[str]).validate_python(storage.parse_json(data))))
    except ValueError:
        return set()


def note_damaged(output_path: str, paths: Iterable[str]) -> None:
    """Make the next run rewrite these files. OSError if the folder cannot be written."""
    with storage.write_atomically(storage.join(output_path, layout.DAMAGED)) as file:
        file.write(json.dumps(sorted(paths), indent=1).encode("ascii") + b"\n")
