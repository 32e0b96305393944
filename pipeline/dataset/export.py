"""A view in few large files: columns as arrays that programs map into memory (.npy, safetensors), or Parquet.

The files are written in a folder of their own within the target, and get their place when all are whole; the index
comes last.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.parts.parquet import ROW_GROUP_BYTES, open_writer
from layerbeam.transforms.views.number_types import as_arrays

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.view import View
    from layerbeam.transforms.flow.commits import Part

ExportFormat = Literal["npy", "safetensors", "parquet"]
INDEX = "index.json"
PARQUET_INDEX = "_index.json"  # readers of a folder pass over it
_UNFINISHED = ".unfinished-export-"
# What an export writes, and another one may replace.
_OWN = re.compile(rf"(?:.+-)?\d{{5,}}-of-\d{{5,}}\.(?:npy|safetensors|parquet)|{INDEX}|{PARQUET_INDEX}|{_UNFINISHED}.*")

# {column: (number type, shape)} of the arrays of a shard, and the arrays.
_Types = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
_Arrays = dict[str, npt.NDArray[Any]]
# {NumPy's name of a number type: safetensors' name}. Source: https://github.com/huggingface/safetensors
_SAFETENSORS = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}


def export(
    view: View, folder: str, columns: Sequence[str], format: ExportFormat, shards: int, *, overwrite: bool = False
) -> Path:
    """Write the columns; path of the index. Memory is for one part and one row group. See `View.export`."""
    if format not in get_args(ExportFormat):
        raise ValueError(f"export: format is {format!r}; allowed: {', '.join(get_args(ExportFormat))}")
    if not isinstance(shards, int) or not 1 <= shards <= max(view.num_rows, 1):
        raise ValueError(f"export: shards is {shards}; allowed: 1 to the number of rows, {view.num_rows:,}")
    if not storage.is_local(folder):
        raise ValueError(f"export: {folder} is in a store; name a local folder, and copy it")
    write = _write_parquet if format == "parquet" else _write_arrays
    described = _describe_columns(view, columns, format)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    there = sorted(target.iterdir())
    foreign = [path.name for path in there if not overwrite or not _OWN.fullmatch(path.name)]
    if foreign:
        fix = "no export wrote that: name a new folder" if overwrite else "name a new folder, or overwrite an export"
        raise FileExistsError(f"export: {folder} is not empty ({', '.join(foreign[:3])}); {fix}")
    bounds = [view.num_rows * number // shards for number in range(shards + 1)]
    work = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target))
    try:
        files = write(view, work, columns, format, bounds)
        for path in there:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in work.iterdir():
            path.rename(target / path.name)
    finally:
        shutil.rmtree(work)
    index = {
        "view": view.name,
        "format": format,
        "rows": view.num_rows,
        "columns": described,
        "shards": [
            {"first_row": first, "rows": end - first, "files": of_shard}
            for (first, end), of_shard in zip(itertools.pairwise(bounds), files, strict=True)
        ],
    }
    index_file = target / (PARQUET_INDEX if format == "parquet" else INDEX)
    with storage.write_atomically(str(index_file)) as file:
        file.write(json.dumps(index, indent=1).encode() + b"\n")
    return index_file


def _describe_columns(view: View, columns: Sequence[str], format: ExportFormat) -> dict[str, Any]:
    """The types of the columns, for the index. ValueError if the format cannot hold one."""
    if format == "parquet":
        return {name: {"type": str(view.schema.field(name).type)} for name in columns}
    rows = {name: as_arrays(view.empty([name])[name]) for name in columns}
    for name, values in rows.items():
        if values.dtype.name not in _SAFETENSORS:
            kind = view.schema.field(name).type
            raise ValueError(f"export: {name} is {kind}; arrays are of vectors and numbers: name such `columns`")
    return {
        name: {"dtype": values.dtype.name, "width": view.width if values.ndim == 2 else None}
        for name, values in rows.items()
    }


def _write_parquet(
    view: View, folder: Path, columns: Sequence[str], _: ExportFormat, bounds: Sequence[int]
) -> list[dict[str, str]]:
    """Write row groups of about ROW_GROUP_BYTES, whatever parts the rows come from; {column: file} of each shard."""
    schema = view.empty(columns).schema.with_metadata({b"layerbeam.view": view.name.encode()})
    parts, held, names = _read_parts(view, columns), schema.empty_table(), list[str]()
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        names.append(f"{number:05d}-of-{len(bounds) - 1:05d}.parquet")
        left = end - first
        with open_writer(folder / names[-1], schema) as writer:
            while left:
                while held.num_rows < left and held.nbytes < ROW_GROUP_BYTES:
                    part = next(parts, None)
                    if part is None:
                        raise ValueError(f"view {view.name} of {view.path} has fewer rows than {view.num_rows:,}")
                    held = pa.concat_tables([held, part[1]])
                size = min(left, max(ROW_GROUP_BYTES * held.num_rows // max(held.nbytes, 1), 1))
                writer.write_table(held.slice(0, size), row_group_size=size)
                held, left = held.slice(size), left - size
    return [dict.fromkeys(columns, name) for name in names]


def _read_parts(view: View, columns: Sequence[str]) -> Iterator[tuple[Part, pa.Table]]:
    """Each part with its rows. ValueError for a part with other rows than listed."""
    for part in view.parts:
        table = view.read(part, columns)
        view.check_rows(part, table.num_rows)
        yield part, table.replace_schema_metadata({b"layerbeam.view": view.name.encode()})


def _write_arrays(
    view: View, folder: Path, columns: Sequence[str], format: ExportFormat, bounds: Sequence[int]
) -> list[dict[str, str]]:
    """Write the arrays of each shard; {column: file} of each."""
    rows = {name: as_arrays(view.empty([name])[name]) for name in columns}
    files, made = list[dict[str, str]](), list[tuple[int, int, _Arrays]]()
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        types = {name: (values.dtype, (end - first, *values.shape[1:])) for name, values in rows.items()}
        label = f"{number:05d}-of-{len(bounds) - 1:05d}"
        names, arrays = (_npy if format == "npy" else _safetensors)(folder, label, types)
        files.append(names)
        made.append((first, end, arrays))
    _write_rows(view, columns, made)
    return files


def _write_rows(view: View, columns: Sequence[str], shards: Sequence[tuple[int, int, _Arrays]]) -> None:
    """Fill the shards: (first row, row after the last, arrays). ValueError for null, or a part with other rows."""
    row = 0
    for part, table in _read_parts(view, columns):
        after = row + table.num_rows
        for name in columns:
            if table[name].null_count:
                raise ValueError(f"export: {name} has null in {part.path}, which an array cannot hold; leave it out")
            values = as_arrays(table[name])
            for first, end, arrays in shards:
                begin, stop = max(first, row), min(end, after)
                if begin < stop:
                    arrays[name][begin - first : stop - first] = values[begin - row : stop - row]
        row = after


def _npy(folder: Path, label: str, types: _Types) -> tuple[dict[str, str], _Arrays]:
    """{column: name of its file} of a shard, and the arrays in the files."""
    files = {name: f"{name}-{label}.npy" for name in types}
    arrays: _Arrays = {
        name: np.lib.format.open_memmap(folder / files[name], "w+", dtype, shape)
        for name, (dtype, shape) in types.items()
    }
    return files, arrays


def _safetensors(folder: Path, label: str, types: _Types) -> tuple[dict[str, str], _Arrays]:
    """The same, with all columns in one file: the length of a JSON object, the object, the arrays."""
    ends = list(
        itertools.accumulate((dtype.itemsize * int(np.prod(shape)) for dtype, shape in types.values()), initial=0)
    )
    header: dict[str, Any] = {
        name: {"dtype": _SAFETENSORS[dtype.name], "shape": shape, "data_offsets": offsets}
        for (name, (dtype, shape)), offsets in zip(types.items(), itertools.pairwise(ends), strict=True)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / f"{label}.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + ends[-1])
    arrays: _Arrays = {
        name: np.memmap(path, dtype, "r+", 8 + len(text) + begin, shape)
        for (name, (dtype, shape)), begin in zip(types.items(), ends, strict=False)
    }
    return dict.fromkeys(types, path.name), arrays
