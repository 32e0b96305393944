"""Columns of a view as arrays in files that programs map into memory: .npy, or safetensors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from layerbeam.transforms import storage
from layerbeam.transforms.views.number_types import as_arrays

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.view import View

ArrayFormat = Literal["npy", "safetensors"]
INDEX = "index.json"

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


def export(view: View, folder: str, columns: Sequence[str], format: ArrayFormat, shards: int) -> Path:
    """Write the columns; path of the index. Memory is for one part. See `View.export`."""
    if format not in get_args(ArrayFormat):
        raise ValueError(f"export: format is {format!r}; allowed: {', '.join(get_args(ArrayFormat))}")
    if not isinstance(shards, int) or not 1 <= shards <= max(view.num_rows, 1):
        raise ValueError(f"export: shards is {shards}; allowed: 1 to the number of rows, {view.num_rows:,}")
    if not storage.is_local(folder):
        raise ValueError(f"export: {folder} is in a store; name a local folder, and copy it")
    rows = {name: as_arrays(view.empty([name])[name]) for name in columns}
    for name, values in rows.items():
        if values.dtype.name not in _SAFETENSORS:
            kind = view.schema.field(name).type
            raise ValueError(f"export: {name} is {kind}; arrays are of vectors and numbers: name such `columns`")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"export: {folder} is not empty; name a new folder")
    bounds = [view.num_rows * number // shards for number in range(shards + 1)]
    listed, made = list[dict[str, Any]](), list[tuple[int, int, _Arrays]]()
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        types = {name: (values.dtype, (end - first, *values.shape[1:])) for name, values in rows.items()}
        label = f"{number:05d}-of-{shards:05d}"
        files, arrays = (_npy if format == "npy" else _safetensors)(target, label, types)
        listed.append({"first_row": first, "rows": end - first, "files": files})
        made.append((first, end, arrays))
    _write_rows(view, columns, made)
    index = {
        "view": view.name,
        "format": format,
        "rows": view.num_rows,
        "columns": {
            name: {"dtype": values.dtype.name, "width": view.width if values.ndim == 2 else None}
            for name, values in rows.items()
        },
        "shards": listed,
    }
    index_file = target / INDEX
    index_file.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return index_file


def _write_rows(view: View, columns: Sequence[str], shards: Sequence[tuple[int, int, _Arrays]]) -> None:
    """Fill the shards: (first row, row after the last, arrays). ValueError for null, or a part with other rows."""
    row = 0
    for part in view.parts:
        table = view.read(part, columns)
        after = row + table.num_rows
        view.check_rows(part, table.num_rows)
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
