"""The parts of a view: their paths, their formats, and their rows read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Rejected
from layerbeam.transforms.parts.jsonl import JsonLinesFormat
from layerbeam.transforms.parts.parquet import ParquetFormat
from layerbeam.transforms.parts.part_format import PartFormat
from layerbeam.transforms.parts.tfrecord import TFRecordFormat
from layerbeam.transforms.views.view import ViewSpec

# By the `format` of a view.
PART_FORMATS: dict[str, PartFormat] = {
    "parquet": ParquetFormat(),
    "tfrecord": TFRecordFormat(),
    "jsonl": JsonLinesFormat(),
}

_SUFFIXES = "|".join(
    re.escape(format_.suffix) + ("(?:[.]gz)?" if format_.gzips else "") for format_ in PART_FORMATS.values()
)
_PART_FILE = re.compile(f"{layout.PART_NAME}(?:{_SUFFIXES})")
_TABLE_FILE = re.compile(rf"{layout.WORD_TYPES}(?:-\d{{5,}})?(?:{_SUFFIXES})")


def part_folder(view: ViewSpec) -> str:
    """The folder of a view's parts. Those of `word_type` are sums of a block, not rows of the view."""
    return f"{layout.WORD_SUMS}/{view.name}" if view.aggregates else view.name


def folders_of(views: Iterable[ViewSpec]) -> list[str]:
    """The folders in which a run with these views has parts."""
    return sorted({layout.REJECTS, *(folder for view in views for folder in (view.name, part_folder(view)))})


def part_path(view: ViewSpec, name: str) -> str:
    """`<view>/<name>.<format>`, with `.gz` if it is compressed, relative to the output folder.

    >>> view = ViewSpec(name="t", level="token", layers=(1,), hidden_size=4, format="tfrecord")
    >>> part_path(view, "a-0986df41cbcb9eb9-000000000000")
    't/a-0986df41cbcb9eb9-000000000000.tfrecord.gz'
    """
    # The sums of a `word_type` view are always Parquet.
    return f"{part_folder(view)}/{name}{_suffix(view, 'parquet' if view.aggregates else view.format)}"


def table_path(view: ViewSpec, number: int, of: int) -> str:
    """A part of the table of a `word_type` view, numbered if it is not the only one.

    >>> view = ViewSpec(name="t", level="word_type", layers=(1,), hidden_size=4)
    >>> table_path(view, 0, 1), table_path(view, 7, 12)
    ('t/word_types.parquet', 't/word_types-00007.parquet')
    """
    return f"{view.name}/{layout.WORD_TYPES}{'' if of == 1 else f'-{number:05d}'}{_suffix(view, view.format)}"


def _suffix(view: ViewSpec, name: str) -> str:
    format_ = PART_FORMATS[name]
    return f"{format_.suffix}{'.gz' if view.compress and format_.gzips else ''}"


def format_of(path: str) -> PartFormat:
    """The format of a part, by the suffix of its name."""
    suffix = f".{path.removesuffix('.gz').rsplit('.', 1)[-1]}"
    (format_,) = (format_ for format_ in PART_FORMATS.values() if format_.suffix == suffix)
    return format_


def is_part_file(name: str) -> bool:
    """Whether a file in a view's folder is named like a part, of any format."""
    return bool(_PART_FILE.fullmatch(name))


def is_table_file(name: str) -> bool:
    """Whether a file in a view's folder is named like a part of the table of a `word_type` view, of any format."""
    return bool(_TABLE_FILE.fullmatch(name))


def read_tables(path: str, columns: pa.Schema, names: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a part, in order, as tables that each fit in memory: see `PartFormat.read`."""
    format_ = format_of(path)
    with format_.open(path) as file:
        yield from format_.read(file, path, columns, names)


def read_rejects(path: str) -> Iterator[Rejected | None]:
    """The rejects of a part, in order; None for a damaged one. OSError if the part cannot be read."""
    yield from parse_rejects(storage.read_bytes(path))


def parse_rejects(data: bytes) -> Iterator[Rejected | None]:
    """The rejects in the bytes of a part; see `read_rejects`."""
    for line in data.splitlines():
        try:
            yield Rejected.from_json(storage.parse_json(line))
        except ValueError:
            yield None
