"""What flows between the stages, declared once.

Shapes, here and everywhere below: T texts in a block, N tokens of those texts with [CLS] and [SEP],
B texts in a batch, S padded tokens in a batch, H hidden size, L Transformer blocks.

From reading to writing, one object per block is handed on by reference. It holds NumPy and Arrow arrays, never a
Python object per row.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_OF_THIS_RECORD = re.compile(r" at (?:byte|character) \d| \([\d,]+ tokens ")

BoolArray = npt.NDArray[np.bool_]
Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

# The types that a kept field may be declared as.
FIELD_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}

_STEM_BYTES = 64

Record = TypeVar("Record", bound="DataclassInstance")


def row_splits_of(counts: npt.NDArray[Any]) -> Int64Array:
    """Where each row begins and, at the end, where the last one ends: row i is `row_splits[i]:row_splits[i + 1]`.

    >>> row_splits_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


def row_of_each(row_splits: Int64Array) -> Int64Array:
    """Of each of the values that `row_splits` cuts into rows, its row.

    >>> row_of_each(np.array([0, 2, 2, 5])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(row_splits) - 1), np.diff(row_splits))


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One input file as it was found.

    `modified` is in seconds since the epoch; `size` in bytes, of the file as stored (compressed or not).
    """

    path: str
    size: int
    modified: float


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A file that could not be read, or not to its end, and why: the run goes on and ends with status 3."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class BlockId:
    """Where a block comes from, and the hash that says whether it still holds the same bytes.

    `first_byte` and `end_byte` count decompressed bytes (of Parquet see `transforms.parquet_records`, also for the
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

    `parts` is keyed by view (`rejects` for the rejected records), `counts` by the names in `transforms.metrics`.
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


@dataclasses.dataclass
class Slice:
    """A byte range of one file (lines: that of one block; Parquet: some row groups), and what of it is already done.

    A record belongs to the slice in which its first byte lies. `first_line` counts the line ends before `start`.
    A compressed file is one slice: `start` 0, `end` None.
    """

    file: InputFile
    start: int
    end: int | None
    first_line: int
    done: tuple[Commit, ...] = ()


@dataclasses.dataclass(frozen=True)
class BlockLimits:
    """Where a block ends: with the record that brings it to one of these. At least one record goes in.

    `text_bytes`: bytes of the file. `token_rows`, `text_rows`: rows of a view with one row per token or per text, as
    estimated from the bytes (the tokens are not known when a block is cut): a record of n bytes counts as
    2 + n / 4 tokens, `max_seq_length` at most. `sentence_bytes`: where the unit is a sentence, the bytes that one is
    taken to have.
    """

    text_bytes: int
    token_rows: int
    text_rows: int
    max_seq_length: int
    sentence_bytes: int | None = None


@dataclasses.dataclass
class TextBlock:
    """Consecutive texts of one slice.

    `texts`: string [T]; `line`: int64 [T], the record's first line; `sentence`: int32 [T], from 0 in the record;
    `offset`: int32 [T], where the text begins in its record, in code points. `counts` balances:
    records = embedded (T where the unit is the record) + blank + filtered + rejected.

    `pairs`: string [T], the second text of each pair, null where there is none; `pair_offset` as `offset`, of these.
    Both None where no text is a pair. `fields`: columns that go through to the output (`id` and kept fields), [T] each,
    of the declared types, null where a record has none.
    """

    block: BlockId
    texts: pa.StringArray
    line: Int64Array
    sentence: Int32Array
    offset: Int32Array
    counts: dict[str, int]
    rejected: list[Rejected]
    pairs: pa.StringArray | None = None
    pair_offset: Int32Array | None = None
    fields: dict[str, pa.Array] = dataclasses.field(default_factory=dict)

    def take(self, texts: Int64Array) -> TextBlock:
        """The block with these of its texts only; its counts are as they were."""
        index = pa.array(texts)
        return dataclasses.replace(
            self,
            texts=self.texts.take(index),
            line=self.line[texts],
            sentence=self.sentence[texts],
            offset=self.offset[texts],
            pairs=None if self.pairs is None else self.pairs.take(index),
            pair_offset=None if self.pair_offset is None else self.pair_offset[texts],
            fields={name: values.take(index) for name, values in self.fields.items()},
        )


def _no_int32() -> Int32Array:
    return np.empty(0, np.int32)


def _no_strings() -> pa.StringArray:
    return pa.array([], pa.string())


@dataclasses.dataclass
class Dropped:
    """The tokens of a block that were cut off, int32 [D] each: their text, segment, place, word and its form."""

    text: Int32Array = dataclasses.field(default_factory=_no_int32)
    segment: Int32Array = dataclasses.field(default_factory=_no_int32)
    start: Int32Array = dataclasses.field(default_factory=_no_int32)
    word_index: Int32Array = dataclasses.field(default_factory=_no_int32)
    form: Int32Array = dataclasses.field(default_factory=_no_int32)


@dataclasses.dataclass
class Words:
    """Where the rows of a view stand in their records: int32 [R] each. `forms[form]`: the word as it is normalized.

    `segment`: int8 [R], 1 in the second text of a pair.
    """

    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    form: Int32Array
    segment: Int8Array
    forms: pa.StringArray


@dataclasses.dataclass
class Rows:
    """Which tokens the R rows of a view are made of, in the order of the texts.

    `text`: int64 [R]; row r has the block's tokens `positions[splits[r]:splits[r + 1]]`. `words`: of rows of words.
    `counts`: what is to be counted of them, by name.
    """

    text: Int64Array
    positions: Int64Array
    splits: Int64Array
    words: Words | None = None
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TokenBlock:
    """The tokens of a block's texts, [CLS] and [SEP] included, one text after the other.

    Text t has the tokens `row_splits[t]:row_splits[t + 1]`. `row_splits`: int64 [T + 1]; `token_ids`: int32 [N];
    `segment_ids`: int8 [N]; `start`, `end`: int32 [N], code points of the record, -1 for special tokens;
    `word_index`: int32 [N], from 0 in the text, -1 for special tokens; `num_dropped`: int32 [T], tokens lost to
    `max_seq_length`; `form`: int32 [N], the word that the token is of is `forms[form]`, -1 for special tokens.
    `rows`: of each view.
    """

    text: TextBlock
    row_splits: Int64Array
    token_ids: Int32Array
    segment_ids: Int8Array
    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    num_dropped: Int32Array
    form: Int32Array = dataclasses.field(default_factory=_no_int32)
    forms: pa.StringArray = dataclasses.field(default_factory=_no_strings)
    dropped: Dropped = dataclasses.field(default_factory=Dropped)
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class VectorBlock:
    """What the views keep of a block: `vectors[view]` holds an array for each of its vector columns.

    float32 or float16, [R, W]: a row for each of `tokens.rows[view]`; at record level for each record. The layers
    themselves are never held for a whole block: a view of texts needs a hundredth of their memory.
    """

    tokens: TokenBlock
    vectors: dict[str, list[npt.NDArray[Any]]]
