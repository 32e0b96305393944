"""`open_run`: a finished run read back, view by view: the parts that `parts.jsonl` lists, in its order, and no others.

Shapes: n rows of a view or of one text, W values in a vector.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layerbeam.pipeline.errors import did_you_mean
from layerbeam.pipeline.output.commits import listed_commits
from layerbeam.pipeline.output.manifest import (
    NoManifestError,
    load_manifest,
    read_manifest,
    shape_text,
    table_parts,
    vectors_text,
)
from layerbeam.pipeline.output.run_log import load_runs
from layerbeam.transforms import storage
from layerbeam.transforms.commits import Part
from layerbeam.transforms.layout import EMPTY, MANIFEST, RUNS, SUCCESS
from layerbeam.transforms.parts import as_matrix
from layerbeam.transforms.views import splits_by_text

if TYPE_CHECKING:
    import tensorflow as tf

# Levels with several rows for one text; the others have one row for each element.
_LEVELS_OF_ROWS = ("token", "word")
# Equal in all rows of a text, beside `id` and the kept fields.
_TEXT_COLUMNS = ("file", "line", "sentence", "text")
_BATCH_ROWS = 4096
# Object stores answer slowly, and many at once.
_FILES_AT_ONCE = 8


class UnknownNameError(KeyError):
    """A view or a column that is not there; the message lists what is."""

    def __str__(self) -> str:
        # KeyError shows its message quoted and escaped.
        return str(self.args[0])


def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
    """What `layerbeam.open_run` gives, and its docstring says."""
    path = os.fspath(path)
    runs = load_runs(path)
    if not runs and not storage.exists(storage.join(path, MANIFEST)):
        parent = path.rstrip("/").rpartition("/")[0]
        inside = bool(parent) and load_manifest(parent) is not None
        raise FileNotFoundError(
            f"{path}: holds no layerbeam run (neither {MANIFEST} nor {RUNS} in it); give the folder that was the run's "
            f"output.path{f'; did you mean {parent}?' if inside else ''}"
        )
    if not storage.exists(storage.join(path, SUCCESS)):
        _check_ended(path, runs[-1] if runs else {}, allow_incomplete)
    try:
        manifest = read_manifest(path)
    except NoManifestError as error:
        raise ValueError(f"{path}: {MANIFEST} cannot be read; run the configuration again: it is made anew") from error
    parts: dict[str, list[Part]] = {name: [] for name in manifest["views"]}
    for commit in listed_commits(path):
        for view, part in commit.parts.items():
            parts.setdefault(view, []).append(part)
    parts |= {name: [table] for name, table in table_parts(manifest).items()}
    return Run(path, dict(manifest), parts)


def _check_ended(path: str, last: Mapping[str, Any], allow_incomplete: bool) -> None:
    """ValueError where a run without `_SUCCESS` may not be read."""
    state = last.get("state", "unknown")
    manifest = read_manifest(path) if state == "incomplete" else None
    if manifest is None or manifest["fingerprint"] != last["fingerprint"]:
        raise ValueError(
            f"{path}: the run is not finished (no {SUCCESS} in it, its last state is: {state}); run its configuration "
            f"again: it goes on where it stopped; `layerbeam show {path}` says what is left"
        )
    if not allow_incomplete:
        problems = "".join(f"\n  {problem}" for problem in manifest["problems"])
        raise ValueError(
            f"{path}: the run ended without {SUCCESS}:{problems}\nmend that and run the configuration again, or read "
            "what is there with open_run(..., allow_incomplete=True)"
        )


class Run:
    """A run that has ended: `path`, `manifest` (what `manifest.json` holds) and its views."""

    def __init__(self, path: str, manifest: dict[str, Any], parts: dict[str, list[Part]]) -> None:
        self.path = path
        self.manifest = manifest
        self._parts = parts

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self.manifest["views"])

    def view(self, name: str) -> RunView:
        """One view. UnknownNameError (a KeyError) where there is none of that name."""
        if name not in self.views:
            raise UnknownNameError(
                f"{name!r}: {self.path} has no such view; it has {', '.join(self.views)}"
                f"{did_you_mean(str(name), self.views)}"
            )
        return RunView(self.path, name, self.manifest["views"][name], tuple(self._parts[name]))

    def __repr__(self) -> str:
        encoder = self.manifest["encoder"]
        lines = [
            f"layerbeam run {self.path}{'' if self.manifest['complete'] else ', not complete'}: {encoder['handle']}, "
            f"{shape_text(encoder)}",
            *(repr(self.view(name)) for name in self.views),
        ]
        return "\n  ".join(lines)


class RunView:
    """One view of a run. Its rows are in the order file, line, sentence, index, whatever wrote them first.

    Everything that reads raises UnknownNameError for a column that is not there, FileNotFoundError for a part that is
    gone, ValueError or OSError for one that is damaged, ValueError for a format other than Parquet.
    """

    def __init__(self, path: str, name: str, entry: dict[str, Any], parts: tuple[Part, ...]) -> None:
        self.name = name
        self.parts = parts
        self._path = path
        self._entry = entry

    @property
    def level(self) -> str:
        """What a row is: `token`, `word`, `text`, `record` or `word_type`."""
        return str(self._entry["level"])

    @property
    def format(self) -> str:
        """The format of the files: `parquet`, ..."""
        return str(self._entry.get("format", "parquet"))

    @property
    def num_rows(self) -> int:
        """Rows in all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The names of the columns that hold vectors."""
        return tuple(self._entry["vectors"])

    @property
    def width(self) -> int:
        """W, the values in one vector."""
        return int(self._entry["width"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The number type of the vectors."""
        return np.dtype(str(self._entry["dtype"]))

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the parts, in the order of the rows, for a reader of your own."""
        return tuple(storage.join(self._path, part.path) for part in self.parts)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns and types, also of a view without rows; only those of `id` and kept fields may be null."""
        with self._open(self._files()[0]) as file:
            return file.schema_arrow

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        beside = ", ".join(name for name in self._entry["columns"] if name not in self.vectors)
        rows = f"{self.num_rows:,} row{'' if self.num_rows == 1 else 's'}, one per {self.level}"
        return f"{self.name}: {rows}; {vectors_text(self._entry)}; beside them {beside}"

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, of these columns or of all. A view without rows is a table without rows, with its schema."""
        names = self._known(columns)
        return pa.concat_tables([self._read(part, names) for part in self._files()])

    def iter_batches(
        self, columns: Sequence[str] | None = None, *, batch_rows: int = _BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows in pieces of at most `batch_rows`, in order; never more than one part in memory.

        A batch ends with its part.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}; allowed: 1 or more")
        names, files = self._known(columns), self._files()
        return self._iter_batches(files, names, batch_rows)

    def _iter_batches(self, files: Iterable[Part | str], names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for part in files:
            with self._open(part) as file:
                for batch in file.iter_batches(rows, columns=names):
                    yield batch.select(names)

    def to_numpy(self, column: str, *, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """A column of vectors as [n, W], any other as [n].

        Of a view in one part the vectors are Arrow's own memory, without a copy, and read-only. Of several parts they
        are copied once, part by part, into one array; or into `out`, of that shape and type: a memory map of a file
        takes a view that is larger than memory. Strings come as Python objects; of a kept field with nulls integers
        come as float64 with NaN.
        """
        (name,) = self._known([column])
        vectors = pa.types.is_fixed_size_list(self.schema.field(name).type)
        if out is None and (not vectors or len(self._files()) == 1):
            chunks = [_values(chunk) for part in self._files() for chunk in self._read(part, [name])[name].chunks]
            if chunks:
                return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
            return _values(self.schema.empty_table()[name].combine_chunks())
        shape, dtype = ((self.num_rows, self.width), self.dtype) if vectors else ((self.num_rows,), None)
        if out is None:
            out = np.empty(shape, dtype)
        elif out.shape != shape or (vectors and out.dtype != dtype):
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}; {name} of view {self.name} wants {dtype or 'any type'} "
                f"{list(shape)}"
            )
        row = 0
        for part in self._files():
            for chunk in self._read(part, [name])[name].chunks:
                out[row : row + len(chunk)] = _values(chunk)
                row += len(chunk)
        return out

    def to_tf_dataset(self, columns: Sequence[str] | None = None) -> tf.data.Dataset:
        """A `tf.data.Dataset` of dicts by column; one part in memory at a time.

        Of tokens and words one element per text: vectors [n, W], what differs from row to row [n], what is one for the
        text (`file`, `line`, `sentence`, `text`, `id`, kept fields) a scalar; so `padded_batch` makes [B, S, W]. Of
        texts and records one element per row: vectors [W], all else a scalar. A text without rows is no element. The
        dataset knows its length (of tokens and words two small columns are read for that).

        TensorFlow has no null: a string is empty, a float NaN; any other is a ValueError while reading.
        """
        import tensorflow as tf

        names, files = self._known(columns), self._files()
        by_text = self.level in _LEVELS_OF_ROWS
        fields = {name: self.schema.field(name) for name in names}
        scalars = {name for name, field in fields.items() if field.nullable or name in _TEXT_COLUMNS}

        def parts() -> Iterator[tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]]:
            for part in files:
                table = self._read(part, list(dict.fromkeys([*names, *(("line", "sentence") if by_text else ())])))
                values = {name: _tensor_values(name, table[name]) for name in names}
                splits = splits_by_text(table) if by_text else np.arange(table.num_rows + 1)
                yield splits, {n: v[splits[:-1]] if by_text and n in scalars else v for n, v in values.items()}

        def texts(splits: Any, values: dict[str, Any]) -> Any:
            def text(i: Any) -> dict[str, Any]:
                return {n: v[i] if n in scalars else v[splits[i] : splits[i + 1]] for n, v in values.items()}

            return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(text)

        signature = (tf.TensorSpec([None], tf.int64), {name: _tensor_spec(field) for name, field in fields.items()})
        dataset = tf.data.Dataset.from_generator(parts, output_signature=signature)
        if by_text:
            dataset = dataset.flat_map(texts)
        else:
            dataset = dataset.flat_map(lambda _, values: tf.data.Dataset.from_tensor_slices(values))
        # Keras warns at the end of each epoch of a dataset that does not know its length.
        return dataset.apply(tf.data.experimental.assert_cardinality(self._num_texts if by_text else self.num_rows))

    @cached_property
    def _num_texts(self) -> int:
        """Texts that have rows: two columns of integers are read, small beside the vectors."""
        with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            tables = pool.map(lambda part: self._read(part, ["line", "sentence"]), self._files())
            return sum(len(splits_by_text(table)) - 1 for table in tables)

    def _known(self, columns: Sequence[str] | None) -> list[str]:
        """The columns asked for, or all."""
        if isinstance(columns, str):
            raise TypeError(f"columns is {columns!r}; give a list: [{columns!r}]")
        if columns is None:
            return list(self.schema.names)
        for name in columns:
            if name not in self.schema.names:
                beside = [known for known in self.schema.names if known not in self.vectors]
                # The layer nearest in spelling is not the one that was meant.
                near = "" if re.fullmatch(r"layer_\d+", str(name)) else did_you_mean(str(name), self.schema.names)
                raise UnknownNameError(
                    f"{name!r}: view {self.name} of {self._path} has no such column; it has vectors in "
                    f"{', '.join(self.vectors)}; beside them {', '.join(beside)}{near}"
                )
        return list(dict.fromkeys(columns))

    def _files(self) -> tuple[Part | str, ...]:
        """What to read: the parts, or the one that a view without rows has, which no commit lists."""
        if self.format != "parquet":
            raise ValueError(
                f"view {self.name} of {self._path} is {self.format}; open_run reads the rows of Parquet only; the "
                "files are in `.paths`"
            )
        return self.parts or (f"{self.name}/{EMPTY}.parquet",)

    @contextlib.contextmanager
    def _open(self, part: Part | str) -> Iterator[pq.ParquetFile]:
        path = storage.join(self._path, part if isinstance(part, str) else part.path)
        again = "run the configuration again: what is not as listed is made anew"
        damaged = f"; if it is damaged, delete it and {again}"
        try:
            with storage.open_binary(path) as file:
                size = file.seek(0, os.SEEK_END)
                if isinstance(part, Part) and size != part.bytes:
                    raise ValueError(f"{path}: has {size:,} bytes, not {part.bytes:,}; {again}")
                file.seek(0)
                yield pq.ParquetFile(file)
        except pa.ArrowException as error:
            raise ValueError(f"{path}: cannot be read ({_first_line(error)}){damaged}") from error
        except OSError as error:
            if storage.exists(path):
                raise OSError(f"{path}: cannot be read ({_first_line(error)}){damaged}") from error
            raise FileNotFoundError(f"{path}: is missing; {again}") from error

    def _read(self, part: Part | str, names: list[str]) -> pa.Table:
        with self._open(part) as file:
            return file.read(columns=names).select(names)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _values(chunk: pa.Array) -> npt.NDArray[Any]:
    """[n, W] of fixed-size lists, without a copy; [n] of anything else."""
    if pa.types.is_fixed_size_list(chunk.type):
        return as_matrix(chunk)
    values: npt.NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
    return values


def _tensor_values(name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """What TensorFlow takes of a column: bytes for strings, no nulls."""
    type_ = column.type
    if pa.types.is_string(type_):
        column = pc.fill_null(column, "").cast(pa.binary())
    elif column.null_count and not pa.types.is_floating(type_):
        raise ValueError(
            f"column {name} has null in {column.null_count:,} rows of a part, and a tensor of {type_} has none; name "
            "the columns to read without it, or fill it in what `to_arrow` gives"
        )
    return _values(column.combine_chunks())


def _tensor_spec(field: pa.Field) -> tf.TensorSpec:
    import tensorflow as tf

    if pa.types.is_fixed_size_list(field.type):
        return tf.TensorSpec([None, field.type.list_size], tf.as_dtype(field.type.value_type.to_pandas_dtype()))
    if pa.types.is_string(field.type):
        return tf.TensorSpec([None], tf.string)
    return tf.TensorSpec([None], tf.as_dtype(field.type.to_pandas_dtype()))
