"""Input files, block identities, rejected records, parts and commits: what is recorded as JSON and read back."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ConfigDict, StrictBool, StrictFloat, StrictInt, TypeAdapter, ValidationError

from layerbeam.transforms import layout

Record = TypeVar("Record")
_PLACE_IN_RECORD = re.compile(r" at (?:byte|character) \d| \([\d,]+ tokens ")

# What checks plain JSON values against a type. Use `validate_python` on what `json.loads` gives: pydantic's own JSON
# parser refuses lone surrogates, which stand for the bytes of local paths that are not UTF-8.
adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def _validate(type_: type[Record], record: Any, what: str) -> Record:
    """The JSON value as that type. ValueError, with the first problem in one line, if it is not."""
    try:
        valid: Record = adapter(type_).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"is not {what}: {place}{': ' if place else ''}{first['msg']}") from error
    return valid


class _Exact:
    """Base of the records that are refused if they have further fields."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclasses.dataclass(frozen=True)
class InputFile(_Exact):
    """One input file as it was found.

    `modified` is in seconds since the epoch; `size` in bytes, of the file as stored (compressed or not). `version`: on
    gs:// the generation, on s3:// the ETag, which differ for two files of one second; elsewhere empty. `problem`: why
    the file could not be read, or not to its end: the run continues and exits with status 3.
    """

    path: str
    size: StrictInt
    modified: StrictFloat
    version: str = ""
    problem: str = ""

    @staticmethod
    def unreadable(path: str, problem: str) -> InputFile:
        """A file of which only the problem is known."""
        return InputFile(path, 0, 0.0, problem=problem)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: value for name, value in vars(self).items() if value != ""}


@dataclasses.dataclass(frozen=True)
class BlockId(_Exact):
    """Where a block comes from, and the hash that says whether it still holds the same bytes.

    `first_byte` and `end_byte` count decompressed bytes (for Parquet see `transforms/input/parquet.py`, also for the
    hash); the block's lines (Parquet: rows) are [first_line, first_line + num_lines). `is_last`: no further block of
    the file follows. A block of several files counts the lines and bytes of all of them, and its file's path names the
    first and a hash of all paths.
    """

    file: InputFile
    first_line: StrictInt
    num_lines: StrictInt
    first_byte: StrictInt
    end_byte: StrictInt
    sha256: str
    is_last: StrictBool = False

    @staticmethod
    def of_files(blocks: Sequence[BlockId]) -> BlockId:
        """The block that holds these, each of them a whole file."""
        content = hashlib.sha256()
        for block in blocks:
            content.update(repr((block.file.path, block.content)).encode("utf-8", "surrogateescape"))
        others = f"{len(blocks) - 1} more ({hash_paths(block.file.path for block in blocks)})"
        file = InputFile(f"{blocks[0].file.path} and {others}", sum(block.file.size for block in blocks), 0.0)
        num_bytes = sum(block.end_byte - block.first_byte for block in blocks)
        return BlockId(file, 0, sum(block.num_lines for block in blocks), 0, num_bytes, content.hexdigest())

    @property
    def name(self) -> str:
        """The name of the block's commit, and the start of the names of its parts and rejects."""
        return layout.block_name(self.file.path, self.first_line)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON. (`dataclasses.asdict` copies, which takes longer than all the rest.)"""
        return vars(self) | {"file": self.file.to_json()}

    @property
    def content(self) -> tuple[int, int, int, str]:
        """What two blocks of one file have in common if they are the same block, whenever the file was touched."""
        return self.first_line, self.first_byte, self.end_byte, self.sha256


def hash_paths(paths: Iterable[str]) -> str:
    """16 hex digits that stand for these paths, in any order."""
    joined = "\n".join(sorted(paths)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(joined).hexdigest()[:16]


def printable(path: str) -> str:
    """The path as text: bytes of a local name that are not UTF-8 become `%XX`.

    >>> printable("corpus/caf\\udce9.txt")
    'corpus/caf%E9.txt'
    """
    return "".join(f"%{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in path)


@dataclasses.dataclass(frozen=True)
class Rejected(_Exact):
    """A record that could not be embedded, with the reason and its raw bytes: nothing is lost.

    `byte_offset`: in the file, decompressed; -1 if only the line is known. `raw`: the bytes of the file if the record
    could not be read; the text as UTF-8 for a Parquet row and for what a later stage rejected.
    """

    file: str
    line: StrictInt
    byte_offset: StrictInt
    stage: str
    reason: str
    raw: bytes

    @property
    def kind(self) -> str:
        """The reason without the place in the record and its length: the same words for the same reason."""
        return _PLACE_IN_RECORD.split(self.reason)[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON line; the file's name as printable text."""
        raw = base64.b64encode(self.raw).decode("ascii")
        return dataclasses.asdict(self) | {"file": printable(self.file), "raw": raw}

    @staticmethod
    def from_json(record: Any) -> Rejected:
        """The reject that `to_json` wrote. ValueError for anything else."""
        try:
            record = record | {"raw": base64.b64decode(record["raw"], validate=True)}
        except (TypeError, KeyError) as error:
            raise ValueError(f"is not a reject: {error}") from error
        return _validate(Rejected, record, "a reject")


@dataclasses.dataclass(frozen=True)
class Part(_Exact):
    """One written file: `path` relative to the output folder, `rows`, size in `bytes`, `sha256` of the bytes.

    Or the rows of one input file, if others have rows in it, too: `rows` from `first_row`, of `file_rows` in all.
    """

    path: str
    rows: StrictInt
    bytes: StrictInt
    sha256: str
    first_row: StrictInt | None = None
    file_rows: StrictInt | None = None

    @property
    def begins_file(self) -> bool:
        """Whether it has the first row of the file: of the parts that share one it stands for the file."""
        return not self.first_row

    def continues(self, before: Part | None) -> bool:
        """Whether it has the next rows of the file that the part before has rows of."""
        if before is None or before.first_row is None:
            return False
        return (before.path, before.rows_of_file.stop) == (self.path, self.first_row)

    @property
    def rows_of_file(self) -> slice:
        """Its rows among those of the file."""
        first = self.first_row or 0
        return slice(first, first + self.rows)

    @property
    def whole(self) -> Part:
        """The file with all of its rows."""
        if self.file_rows is None:
            return self
        return dataclasses.replace(self, rows=self.file_rows, first_row=None, file_rows=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Member(_Exact):
    """One of the files in a block of several: its bytes as a block, its counts, and its rows in each part, by view."""

    block: BlockId
    counts: Mapping[str, StrictInt]
    rows: Mapping[str, StrictInt]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return vars(self) | {"block": self.block.to_json(), "counts": dict(self.counts), "rows": dict(self.rows)}


@dataclasses.dataclass(frozen=True)
class Commit:
    """A finished block: written after its last part. The block is done if this exists and its parts are intact.

    `parts` is keyed by view (`rejects` for the rejected records), `counts` by the names in `transforms/metrics.py`.
    `attempt`: the number of the run that wrote it; None in the index, because equal runs write equal bytes.

    A block of several files has `members`, and `files`, which `hash_paths` gives of all files that were to be read
    together. The index lists each of its files on its own, as `of_files` gives them: `together` is the block's name.
    """

    fingerprint: str
    block: BlockId
    counts: Mapping[str, StrictInt]
    parts: Mapping[str, Part]
    attempt: StrictInt | None = None
    members: tuple[Member, ...] = ()
    files: str | None = None
    together: str | None = None

    @property
    def part_paths(self) -> set[str]:
        """The paths of all parts."""
        return {part.path for part in self.parts.values()}

    @property
    def shares_parts(self) -> bool:
        """Whether other input files may have rows in its parts."""
        return any(part.first_row is not None for part in self.parts.values())

    def of_files(self) -> Iterator[Commit]:
        """The commit of each of its files, with its rows of the parts; of a block of one file, the commit itself."""
        if not self.members:
            yield self
        first_rows = Counter[str]()
        for member in self.members:
            parts = {
                name: dataclasses.replace(part, rows=member.rows[name], first_row=first_rows[name], file_rows=part.rows)
                for name, part in self.parts.items()
                if member.rows.get(name)
            }
            first_rows.update(member.rows)
            yield Commit(self.fingerprint, member.block, member.counts, parts, self.attempt, together=self.block.name)

    def now(self, block: BlockId, members: Sequence[BlockId] = ()) -> Commit:
        """The commit of the same content in files that may have been touched."""
        same = (dataclasses.replace(member, block=own) for member, own in zip(self.members, members, strict=True))
        return dataclasses.replace(self, block=block, members=tuple(same))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON line."""
        values = vars(self) | {"block": self.block.to_json(), "members": [one.to_json() for one in self.members]}
        values |= {"counts": dict(self.counts), "parts": {name: part.to_json() for name, part in self.parts.items()}}
        return {name: value for name, value in values.items() if value is not None and value != []}

    @staticmethod
    def from_json(record: Any) -> Commit:
        """The commit that `to_json` wrote. ValueError for anything else: a damaged disk, or somebody's changes."""
        commit = _validate(Commit, record, "a commit")
        for part in commit.parts.values():
            if not layout.is_part_path(part.path):
                raise ValueError(f"is not a commit: {part.path!r} is not a part of this output")
        return commit
