"""JSON Lines parts: at token level what google-research's extract_features.py writes, else an object per row.

Values have six decimals, as in that program; codes are integers, next to their scale. Lines of that program have its
separators, escapes and numbers, which are those of Python's `json`; orjson, which writes the others, is faster.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.parts.part_format import Output, PartFormat, tables_of
from layerbeam.transforms.views.columns import text_splits
from layerbeam.transforms.views.number_types import as_matrix, scale_of, splits_of, vector_names
from layerbeam.transforms.views.view import ViewSpec

_DECIMALS = 6
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
# Values that are rounded at a time.
_VALUES = 1 << 20


class JsonLinesFormat(PartFormat):
    """A line per text as extract_features.py writes it (tokens, layers separate), else per row."""

    suffix = ".jsonl"
    rounding = 1e-6

    def write(self, view: ViewSpec, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        for table in tables:
            if view.is_extract_features:
                file.writelines(json.dumps(line).encode("ascii") + b"\n" for line in _texts(view, table))
            else:
                file.writelines(orjson.dumps(row, option=_OPTIONS) for row in _rows(view, table))

    def read(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None) -> Iterator[pa.Table]:
        yield from tables_of(_read_objects(file, path, vector_names(columns)), columns)

    def as_stored(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return finite(column)


def _texts(view: ViewSpec, table: pa.Table) -> Iterator[dict[str, Any]]:
    """`linex_index` is the text's line in its file; the rest as extract_features.py has it, and the scales of codes."""
    lines = table["line"].to_numpy()
    for start, stop in itertools.pairwise(text_splits(table).tolist()):
        rows = table.slice(start, stop - start)
        layers = [
            [{"index": index, **layer} for layer in _layer(rows, name)]
            for index, name in zip(view.given_layers, view.vector_columns, strict=True)
        ]
        features = [
            {"token": token, "layers": list(of_token)}
            for token, *of_token in zip(rows["token"].to_pylist(), *layers, strict=True)
        ]
        yield {"linex_index": int(lines[start]), "features": features}


def _layer(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    """What is written of a vector column: of each row its values, and their scale if they are codes."""
    values, scale = _numbers(rows[name]).tolist(), scale_of(name)
    if scale not in rows.column_names:
        return [{"values": of_row} for of_row in values]
    return [{"values": of_row, "scale": s} for of_row, s in zip(values, rows[scale].to_pylist(), strict=True)]


def _rows(view: ViewSpec, table: pa.Table) -> Iterator[dict[str, Any]]:
    vectors = vector_names(table.schema)
    num_values = sum(as_matrix(chunk).size for name in vectors for chunk in table[name].chunks)
    at_once = max(_VALUES * table.num_rows // max(num_values, 1), 1)
    for start in range(0, table.num_rows, at_once):
        rows = table.slice(start, at_once)
        columns = [
            _numbers_of_rows(rows[name]) if name in vectors else finite(rows[name]).to_pylist()
            for name in table.column_names
        ]
        for values in zip(*columns, strict=True):
            yield dict(zip(table.column_names, values, strict=True))


def finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as JSON can hold it: null for NaN and the infinities."""
    return pc.if_else(pc.is_finite(column), column, None) if pa.types.is_floating(column.type) else column


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """[n, W] with six decimals; codes as they are."""
    values = as_matrix(column)
    return values.astype(np.float64).round(_DECIMALS) if np.issubdtype(values.dtype, np.floating) else values


def _numbers_of_rows(column: pa.ChunkedArray) -> Sequence[npt.NDArray[Any]]:
    """The numbers of each row: [W] of a vector, [k, W] of a list of k vectors."""
    numbers = _numbers(column)
    return np.split(numbers, splits_of(column)[1:-1]) if pa.types.is_list(column.type) else list(numbers)


def _read_objects(file: BinaryIO, path: str, vectors: list[str]) -> Iterator[dict[str, Any]]:
    """{column: values} of each line, a list per column, a float32 array [n, W] for each of the `vectors`.

    A line of extract_features.py gives `line`, `sentence` (lines of one number counted from 0), `token` and the
    vectors. ValueError or OSError if the file is damaged.
    """
    before, sentence = -1, 0
    for text in _lines(file, path):
        line = storage.parse_json(text)
        if not isinstance(line, Mapping):
            raise ValueError(f"holds a line that is not an object: {text[:40]!r}")
        try:
            if "linex_index" not in line:
                yield {
                    name: np.array([value], np.float32) if name in vectors else [value] for name, value in line.items()
                }
                continue
            features = line["features"]
            sentence = sentence + 1 if line["linex_index"] == before else 0
            before = line["linex_index"]
            found: dict[str, Any] = {
                "line": [before] * len(features),
                "sentence": [sentence] * len(features),
                "token": [feature["token"] for feature in features],
            }
            layers = zip(*(feature["layers"] for feature in features), strict=True)
            for name, of_tokens in zip(vectors, layers, strict=True):
                found[name] = np.array([layer["values"] for layer in of_tokens], np.float32)
                if "scale" in of_tokens[0]:
                    found[scale_of(name)] = [layer["scale"] for layer in of_tokens]
            yield found
        except (KeyError, TypeError) as error:
            raise ValueError(f"holds a line of another form: {text[:40]!r} ({error})") from error


def _lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    for run in storage.whole_lines(storage.read_chunks(file, path)):
        if not run.endswith(b"\n"):
            raise storage.TruncatedFileError("ends in the middle of a line")
        yield from run[:-1].split(b"\n")
