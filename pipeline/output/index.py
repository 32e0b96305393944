"""The index of an output folder: the commits of all blocks in the order of the rows, in one file or in shards.

A run of up to `SHARD_COMMITS` blocks has one file, `parts.jsonl`. A larger one has shards in `index/`, which the
manifest lists. A shard is named by its content, so a run never changes a shard that an earlier manifest lists.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.errors import OutputError
from layerbeam.pipeline.output.manifest import InputEntry, Manifest, ManifestShard, load_manifest, table_parts
from layerbeam.transforms import layout, storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.parts.part_format import Output

SHARD_COMMITS = 10_000


@dataclasses.dataclass(frozen=True)
class Shard:
    """Lines of a file in the output folder: commits, or the entries of input files, of `first_file` to `last_file`.

    `views`: rows, bytes and files (`parts`) of each, and how many `pieces` of files follow each other where these are
    more; None if the lines were not counted. `offset`, `size`: the bytes
    of the file; an older run may have all its commits in one file, which is read as several shards. `is_new`: some of
    its commits are files in `_commits`, too.
    """

    path: str
    first_file: str
    last_file: str
    lines: int
    views: Mapping[str, Mapping[str, int]] | None = None
    offset: int = 0
    size: int | None = None
    is_new: bool = False

    def to_json(self) -> ManifestShard:
        """The entry in the manifest."""
        views = {name: dict(counts) for name, counts in (self.views or {}).items()}
        return ManifestShard(
            path=self.path, first_file=self.first_file, last_file=self.last_file, lines=self.lines, views=views
        )

    def overlaps(self, first: str, end: str | None) -> bool:
        """Whether it may have lines of the paths from `first` to before `end`."""
        return self.last_file >= first and (end is None or self.first_file < end)

    def read(self, output_path: str) -> Iterator[bytes]:
        """The lines, without line ends. OSError if they cannot be read."""
        with storage.open_binary(storage.join(output_path, self.path)) as file:
            file.seek(self.offset)
            read = 0
            for line in file:
                if self.size is not None and read >= self.size:
                    return
                read += len(line)
                yield line.rstrip(b"\n")


def parse_commit(data: bytes) -> Commit | None:
    """The commit in a line or a file; None if it is damaged."""
    try:
        return Commit.from_json(storage.parse_json(data))
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Index:
    """The commits of a folder's last run that ended, shard by shard. No more than the shards in use are in memory.

    `strict`: OutputError for a line that is damaged; otherwise it is skipped.
    """

    output_path: str
    shards: Sequence[Shard]
    strict: bool = False
    _last: list[tuple[Shard, list[Commit]]] = dataclasses.field(default_factory=list, repr=False, compare=False)

    def __iter__(self) -> Iterator[Commit]:
        return itertools.chain.from_iterable(map(self.read, self.shards))

    def read(self, shard: Shard) -> Iterator[Commit]:
        """The commits of one shard."""
        if any(kept is shard for kept, _ in self._last):
            yield from self._last[0][1]
            return
        path = storage.join(self.output_path, shard.path)
        try:
            for line in shard.read(self.output_path):
                commit = Commit.from_json(storage.parse_json(line)) if self.strict else parse_commit(line)
                if commit is not None:
                    yield commit
        except (OSError, ValueError) as error:
            if self.strict:
                raise OutputError(
                    f"{path}: cannot be read ({error}); run the configuration again to rewrite it"
                ) from error
            if isinstance(error, OSError) and not storage.is_absent(path, error):
                raise

    def commits_of(self, shard: Shard) -> list[Commit]:
        """The commits of one shard, in memory until another one is asked for."""
        if not any(kept is shard for kept, _ in self._last):
            self._last[:] = [(shard, list(self.read(shard)))]
        return self._last[0][1]

    def sibling_of(self, part: Part, view: str, other: str) -> Part | None:
        """The part of another view with the same texts; in the shard that was used last it is found at once."""
        last = [kept for kept, _ in self._last]
        for shard in itertools.chain(last, self.shards):
            commits = [commit for commit in self.commits_of(shard) if view in commit.parts]
            for own, same in _joined([commit.parts[view] for commit in commits]):
                if own == part:
                    siblings = [commits[number].parts[other] for number in same if other in commits[number].parts]
                    joined = [sibling for sibling, _ in _joined(siblings)]
                    return joined[0] if len(joined) == 1 else None
        return None

    def between(self, first: str, end: str | None) -> Iterator[Commit]:
        """The commits of the files from `first` to before `end`, in the order of their paths and lines."""
        shards = [self.read(shard) for shard in self.shards if shard.overlaps(first, end)]
        for commit in heapq.merge(*shards, key=order_of) if len(shards) > 1 else itertools.chain(*shards):
            path = commit.block.file.path
            if end is not None and path >= end:
                return
            if path >= first:
                yield commit

    def parts(self, view: str) -> Parts:
        """The parts of a view."""
        return Parts(self, view)

    def files(self) -> Iterator[Part]:
        """The files of all views and of the rejects, each once."""
        for commit in self:
            yield from (part.whole for part in commit.parts.values() if part.begins_file)


def _joined(parts: Sequence[Part]) -> list[tuple[Part, range]]:
    """(adjacent parts of one file as one part, which they are): input files in a block of several have a part each."""
    joined: list[tuple[Part, range]] = []
    for number, part in enumerate(parts):
        before, numbers = joined[-1] if joined else (None, range(0))
        if before is not None and part.continues(before):
            part = dataclasses.replace(before, rows=before.rows + part.rows)
            joined.pop()
            numbers = range(numbers.start, number + 1)
        else:
            numbers = range(number, number + 1)
        joined.append((part, numbers))
    return [(part.whole if part.rows == part.file_rows else part, numbers) for part, numbers in joined]


def count_part(sizes: dict[str, Counter[str]], name: str, part: Part) -> None:
    """Add a part to the rows, bytes and files of its view, `parts`."""
    sizes.setdefault(name, Counter()).update(rows=part.rows)
    if part.begins_file:
        sizes[name].update(bytes=part.bytes, parts=1)


def index_of(output_path: str, commits: list[Commit]) -> Index:
    """The index of commits that are in memory."""
    shard = Shard(layout.PARTS, "", "", len(commits))
    return Index(output_path, [shard], _last=[(shard, commits)])


def order_of(commit: Commit) -> tuple[str, int]:
    """What commits are sorted by: the order of the rows."""
    return commit.block.file.path, commit.block.first_line


class Parts(Sequence[Part]):
    """The parts of a view in the order of its rows, read when they are used; the last shard that was used is kept.

    Rows of several input files that follow each other in one file are one part.
    """

    def __init__(self, index: Index, view: str) -> None:
        self._index, self._view = index, view
        self._kept: tuple[int, list[Part]] = (-1, [])
        # Of shards that were not counted, which are those of an older run, all parts are read now.
        self._splits = [0]
        for number, shard in enumerate(index.shards):
            counts = {} if shard.views is None else shard.views.get(view, {})
            counted = len(self._read(number)) if shard.views is None else counts.get("pieces", counts.get("parts", 0))
            self._splits.append(self._splits[-1] + counted)

    def _read(self, number: int) -> list[Part]:
        kept, parts = self._kept
        if kept != number:
            commits = self._index.commits_of(self._index.shards[number])
            joined = _joined([commit.parts[self._view] for commit in commits if self._view in commit.parts])
            parts = [part for part, _ in joined]
            self._kept = (number, parts)
        return parts

    def __len__(self) -> int:
        return self._splits[-1]

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        index = range(len(self))[index]
        number = bisect.bisect_right(self._splits, index) - 1
        return self._read(number)[index - self._splits[number]]

    def __iter__(self) -> Iterator[Part]:
        for number in range(len(self._index.shards)):
            if self._splits[number] < self._splits[number + 1]:
                yield from self._read(number)


def parts_by_view(manifest: Manifest, index: Index) -> dict[str, Sequence[Part]]:
    """The parts of each view that the manifest describes."""
    return {name: index.parts(name) for name in manifest["views"]} | dict(table_parts(manifest))


def load_index(output_path: str) -> Index:
    """The index as far as it is there: a run does again what is missing in it. OSError if it cannot be read now."""
    manifest = load_manifest(output_path)
    if manifest is not None and "index" in manifest:
        return Index(output_path, [Shard(**shard) for shard in manifest["index"]["parts"]])
    # Without a manifest nobody knows which files are current: the parts that a commit lists decide.
    names = [] if manifest is not None else sorted(storage.list_folder(storage.join(output_path, layout.INDEX)))
    shards = (f"{layout.INDEX}/{name}" for name in names if not name.endswith(layout.INPUTS_SUFFIX))
    paths = [layout.PARTS, *filter(layout.is_index_path, shards)]
    return Index(output_path, [shard for path in paths for shard in _scan(output_path, path)])


def read_index(output_path: str, manifest: Manifest) -> Index:
    """The index of a run that has ended. OutputError if it is one file and that is damaged; else when it is read."""
    if "index" in manifest:
        return Index(output_path, [Shard(**shard) for shard in manifest["index"]["parts"]], strict=True)
    index = Index(output_path, _scan(output_path, layout.PARTS), strict=True)
    if not index.shards and not storage.exists(storage.join(output_path, layout.PARTS)):
        path = storage.join(output_path, layout.PARTS)
        raise OutputError(f"{path}: cannot be read (No such file); run the configuration again to rewrite it")
    if len(index.shards) == 1:
        index.commits_of(index.shards[0])
    return index


def _scan(output_path: str, path: str) -> list[Shard]:
    """The shards in a file that no manifest describes."""
    shards: list[Shard] = []
    offset = size = lines = 0
    first = last = b""

    def add() -> None:
        files = [commit.block.file.path if commit is not None else None for commit in map(parse_commit, (first, last))]
        shards.append(Shard(path, files[0] or "", files[1] or "\U0010ffff", lines, None, offset, size))

    try:
        for line in Shard(path, "", "", 0).read(output_path):
            first, last = (line if not lines else first), line
            size, lines = size + len(line) + 1, lines + 1
            if lines == SHARD_COMMITS:
                add()
                offset, size, lines = offset + size, 0, 0
    except OSError as error:
        if not storage.is_absent(storage.join(output_path, path), error):
            raise
    if lines:
        add()
    return shards


def input_entries(
    output_path: str, manifest: Manifest | None, first: str = "", end: str | None = None
) -> Iterator[InputEntry]:
    """What a manifest says of the input files from `first` to before `end`; OutputError if it cannot be read."""
    if manifest is None:
        return
    inside = (e for e in manifest["inputs"] if e["path"] >= first and (end is None or e["path"] < end))
    yield from inside
    for entry in manifest["index"]["inputs"] if "index" in manifest else ():
        shard = Shard(**entry)
        if shard.overlaps(first, end):
            try:
                for line in shard.read(output_path):
                    one: InputEntry = storage.parse_json(line)
                    if one["path"] >= first and (end is None or one["path"] < end):
                        yield one
            except (OSError, ValueError, LookupError, TypeError) as error:
                path = storage.join(output_path, shard.path)
                raise OutputError(f"{path}: cannot be read ({error}); run the configuration again") from error


def write_shard(output: Output, lines: Iterable[bytes], files: Sequence[str], *, suffix: str, **facts: Any) -> Shard:
    """Write lines as a shard of `index/`; equal lines meet in one name. `files`: the path of the input of each line."""
    data = b"".join(line + b"\n" for line in lines)
    path = f"{layout.INDEX}/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    if getattr(storage.stat_file(storage.join(output.path, path)), "size", None) != len(data):
        with storage.write_atomically(storage.join(output.path, path), sync=True) as file:
            file.write(data)
    return Shard(path, files[0], files[-1], len(files), **facts)


def path_hash(path: str) -> int:
    """64 bits for the path of a part. Of two with the same, one is not recognized as a stray."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def unlisted_paths(paths: Iterable[str], listed: npt.NDArray[np.uint64]) -> Iterator[str]:
    """Those of the paths whose hash is not listed. `listed` is sorted."""
    for path in paths:
        hash_ = np.uint64(path_hash(path))
        place = int(np.searchsorted(listed, hash_))
        if place == len(listed) or listed[place] != hash_:
            yield path
