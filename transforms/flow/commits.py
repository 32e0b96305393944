"""Input files, what blocks hold of them, rejected records, parts and commits, as they are recorded in JSON."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, ValidationError

from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.settings import adapter

Record = TypeVar("Record")
_PLACE_IN_RECORD = re.compile(r" at (?:byte|character|line|word) \d| \([\d,]+ tokens ")


def _encodable(text: str) -> str:
    text.encode("utf-8")
    return text


def _encodable_path(path: str) -> str:
    path.encode("utf-8", "surrogateescape")
    return path


# What SQLite can hold.
Size = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Text = Annotated[str, AfterValidator(_encodable)]
LocalPath = Annotated[str, AfterValidator(_encodable_path)]


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
    gs:// the generation, on s3:// and az:// the ETag, which differ for two files of one second; on hf:// the hash of
    its content, and no time; elsewhere empty. `problem`: why the file could not be read, or not to its end: the run
    continues and exits with status 3.
    """

    path: LocalPath
    size: Size
    modified: StrictFloat
    version: Text = ""
    problem: LocalPath = ""

    @staticmethod
    def unreadable(path: str, problem: str) -> InputFile:
        """A file of which only the problem is known."""
        return InputFile(path, 0, 0.0, problem=problem)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: value for name, value in vars(self).items() if value != ""}


@dataclasses.dataclass(frozen=True)
class FileRange(_Exact):
    """What a block holds of one file, and the hash that says whether it still holds the same bytes.

    `first_byte` and `end_byte` count decompressed bytes (for Parquet see `transforms/input/parquet.py`, also for the
    hash); its lines (Parquet: rows) are [first_line, first_line + num_lines). `is_last`: no further block of the file
    follows. `counts`: of its records, once they are written, by the names in `transforms/flow/metrics.py`. `texts`: of
    records with fields, a hash of what is encoded of them, and of their lines; empty if a record is rejected.
    """

    file: InputFile
    first_line: Size
    num_lines: Size
    first_byte: Size
    end_byte: Size
    sha256: Text
    is_last: StrictBool = False
    counts: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    texts: Text = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON. (`dataclasses.asdict` copies, which takes longer than all the rest.)"""
        values = vars(self) | {"file": self.file.to_json(), "counts": dict(self.counts)}
        return values if self.texts else {name: value for name, value in values.items() if name != "texts"}

    @property
    def content(self) -> tuple[str, int, int, int, str]:
        """What two ranges have in common if they hold the same of one file, whenever that was touched."""
        return self.file.path, self.first_line, self.first_byte, self.end_byte, self.sha256

    @property
    def num_bytes(self) -> int:
        """Decompressed bytes."""
        return self.end_byte - self.first_byte


def name_of(files: Sequence[FileRange]) -> str:
    """The name of a block's commit, and the start of the names of its parts and rejects; unique in a run.

    That of a pack has a hash of all paths.
    """
    first = files[0]
    if len(files) == 1:
        return layout.block_name(first.file.path, first.first_line)
    others = f"{len(files) - 1} more ({hash_paths(file_range.file.path for file_range in files)})"
    return layout.block_name(f"{first.file.path} and {others}", 0)


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
    """One written file: `path` relative to the output folder, `rows`, size in `bytes`, `sha256` of the bytes."""

    path: Text
    rows: Size
    bytes: Size
    sha256: Text


@dataclasses.dataclass(frozen=True)
class Commit(_Exact):
    """A finished block: written after its last part. The block is done if this exists and its parts are intact.

    `files`: one for consecutive records of a file, several for a pack of small files, none for a part of the table of
    a `word_type` view. `parts` is keyed by view; `rejects` has the rejected records, `_word_types/<view>` the sums of
    words. `attempt`: the number of the run that wrote it; None in the index, because equal runs write equal bytes.
    `together`: of a pack that is not in the index yet, what `hash_paths` gives of all files that were to be read with
    it. `made_with`: what encoded it, as `hardware.made_with` says.
    """

    name: Text
    fingerprint: Text
    files: tuple[FileRange, ...]
    parts: Mapping[Text, Part]
    attempt: Size | None = None
    together: Text | None = None
    made_with: Text | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The counts of all files."""
        return metrics.total(file.counts for file in self.files)

    @property
    def inputs(self) -> tuple[InputFile, ...]:
        """The files, as they were when they were read."""
        return tuple(file.file for file in self.files)

    def has_content(self, files: Sequence[FileRange]) -> bool:
        """Whether the block holds the same of the same files, whenever these were touched."""
        return [held.content for held in self.files] == [given.content for given in files]

    def now(self, files: Sequence[FileRange]) -> Commit:
        """The commit of the same content in files that may have been touched.

        If anybody saw the end of a file as it is now, the block is the last one of it.
        """
        same = zip(self.files, files, strict=True)
        touched = (
            dataclasses.replace(then, file=now.file, is_last=now.is_last or (then.is_last and then.file == now.file))
            for then, now in same
        )
        return dataclasses.replace(self, files=tuple(touched))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON line."""
        files = [file_range.to_json() for file_range in self.files]
        parts = {name: vars(part) for name, part in self.parts.items()}
        values = vars(self) | {"files": files, "parts": parts}
        return {name: value for name, value in values.items() if value is not None}

    def to_line(self) -> bytes:
        """One line of JSON, without a line end; equal commits give equal bytes."""
        return json.dumps(self.to_json(), sort_keys=True).encode("ascii")

    @staticmethod
    def from_json(record: Any) -> Commit:
        """The commit that `to_json` wrote. ValueError for anything else: a damaged disk, or somebody's changes."""
        commit = _validate(Commit, record, "a commit")
        for part in commit.parts.values():
            if not layout.is_part_path(part.path):
                raise ValueError(f"is not a commit: {part.path!r} is not a part of this output")
        return commit


def in_index(line: bytes) -> bytes:
    """The line of a commit as the index has it: without what differs between equal runs."""
    values = {name: value for name, value in json.loads(line).items() if name not in ("attempt", "together")}
    return json.dumps(values, sort_keys=True).encode("ascii")


def parse_commit(data: bytes) -> Commit | None:
    """The commit in a line or a file; None if it is damaged."""
    try:
        return Commit.from_json(json.loads(data))
    except (ValueError, RecursionError):
        return None
