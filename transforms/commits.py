"""What is known of files and blocks: input files, block identities, rejects, parts and commits."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_OF_THIS_RECORD = re.compile(r" at (?:byte|character) \d| \([\d,]+ tokens ")
_STEM_BYTES = 64

Record = TypeVar("Record", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One input file as it was found.

    `modified` is in seconds since the epoch; `size` in bytes, of the file as stored (compressed or not).
    """

    path: str
    size: int
    modified: float


@dataclasses.dataclass(frozen=True)
class SkippedFile:
    """A file that could not be read, or not to its end, and why: the run goes on and ends with status 3."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class BlockId:
    """Where a block comes from, and the hash that says whether it still holds the same bytes.

    `first_byte` and `end_byte` count decompressed bytes (of Parquet see `transforms/input/parquet.py`, also for the
    hash); the block's lines (Parquet: rows) are [first_line, first_line + num_lines).
    """

    file: InputFile
    first_line: int
    num_lines: int
    first_byte: int
    end_byte: int
    sha256: str

    @property
    def name(self) -> str:
        """The name that the block's parts, rejects and commit share, unique in a run.

        >>> BlockId(InputFile("corpus/part 1.txt.gz", 9, 0.0), 650, 10, 0, 9, "").name
        'part_1-0986df41-000000000650'
        """
        return f"{file_stem(self.file.path)}-{file_key(self.file.path)}-{self.first_line:012d}"


def printable(path: str) -> str:
    """The path as text: bytes of a local name that are no UTF-8 become `%XX`.

    >>> printable("corpus/caf\\udce9.txt")
    'corpus/caf%E9.txt'
    """
    return "".join(f"%{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in path)


def file_stem(path: str) -> str:
    """The file's name without its endings, in at most 64 letters, digits, `.`, `_`, `-`: safe on any file system."""
    name = re.split(r"[/\\]", path)[-1]
    name = re.sub(r"\.(gz|bz2|zst)$", "", name)
    name = re.sub(r"(?<=.)\.[^.]*$", "", name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")
    return name[:_STEM_BYTES] or "file"


def file_key(path: str) -> str:
    """8 hex digits of the SHA-256 of the path: two files with one stem do not meet."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A record that could not be embedded, with the reason and its raw bytes: nothing is lost.

    `byte_offset`: in the file, decompressed; -1 where only the line is known. `raw`: of what could not be read the
    bytes of the file; of a Parquet row, and of what was rejected later (stages wordpiece, encode), the text as UTF-8.
    """

    file: str
    line: int
    byte_offset: int
    stage: str
    reason: str
    raw: bytes

    @property
    def kind(self) -> str:
        """The reason without the place in the record and its length: the same words for the same reason."""
        return _OF_THIS_RECORD.split(self.reason)[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON line; of a file's name what can be printed of it."""
        raw = base64.b64encode(self.raw).decode("ascii")
        return dataclasses.asdict(self) | {"file": printable(self.file), "raw": raw}

    @staticmethod
    def from_json(record: Any) -> Rejected:
        """The reject that `to_json` wrote. ValueError where it did not."""
        try:
            return _checked(Rejected(**(record | {"raw": base64.b64decode(record["raw"], validate=True)})))
        except (TypeError, KeyError) as error:
            raise ValueError(f"is no reject: {error}") from error


@dataclasses.dataclass(frozen=True)
class Part:
    """One written file: `path` relative to the output folder, `rows`, size in `bytes`, `sha256` of the bytes."""

    path: str
    rows: int
    bytes: int
    sha256: str


_PLAIN_TYPES: dict[Any, type | tuple[type, ...]] = {"str": str, "int": int, "float": (float, int)}
_PART_PATH = re.compile(r"(_word_types/)?[^/]+/[^/]+")


def _checked(record: Record) -> Record:
    """A record whose fields have the types that are declared. TypeError where one has not."""
    for field in dataclasses.fields(record):
        value, type_ = getattr(record, field.name), _PLAIN_TYPES.get(field.type)
        if type_ is not None and (not isinstance(value, type_) or isinstance(value, bool)):
            raise TypeError(f"{field.name} is {value!r}, no {field.type}")
    return record


@dataclasses.dataclass(frozen=True)
class Commit:
    """A finished block: written after its last part. The block is done if, and only if, this exists.

    `parts` is keyed by view (`rejects` for the rejected records), `counts` by the names in `transforms/metrics.py`.
    """

    fingerprint: str
    block: BlockId
    counts: Mapping[str, int]
    parts: Mapping[str, Part]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON line."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(record: Any) -> Commit:
        """The commit that `to_json` wrote. ValueError where it did not: a disk or somebody else has changed it."""
        try:
            file = _checked(InputFile(**record["block"]["file"]))
            commit = Commit(
                record["fingerprint"],
                _checked(BlockId(**(record["block"] | {"file": file}))),
                dict(record["counts"].items()),
                {view: _checked(Part(**part)) for view, part in record["parts"].items()},
            )
            _checked(commit)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"is no commit: {error}") from error
        if not all(type(count) is int for count in commit.counts.values()):
            raise ValueError("is no commit: its counts are no numbers")
        for part in commit.parts.values():
            if not _PART_PATH.fullmatch(part.path) or ".." in part.path.split("/"):
                raise ValueError(f"is no commit: {part.path!r} is no part of this output")
        return commit
