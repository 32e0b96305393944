"""One view of a run, finished or not: the rows of its parts, in any file format.

Shapes: n rows of a view or of one text, W values in a vector.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layerbeam.pipeline.dataset import tf_dataset
from layerbeam.pipeline.errors import did_you_mean
from layerbeam.pipeline.output.manifest import LIST, view_schema
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.parts import PART_FORMATS
from layerbeam.transforms.parts.part_format import PartFormat
from layerbeam.transforms.views.columns import splits_by_text
from layerbeam.transforms.views.number_types import NUMBER_TYPES, NumberType, Rows, as_arrays

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset as ds
    import tensorflow as tf

    from layerbeam.pipeline.dataset.batches import Batches
    from layerbeam.pipeline.dataset.export import ExportFormat
    from layerbeam.pipeline.dataset.nearest import Metric
    from layerbeam.pipeline.dataset.torch_dataset import TorchBatches

# Levels with several rows for one text; the others have one row for each element.
_LEVELS_OF_ROWS = ("token", "word")
_BATCH_ROWS = 4096
# Object stores answer slowly, and many requests at once.
FILES_AT_ONCE = 8
_NAMED_VECTORS = 4  # of a view, in a line
_REWRITE = "run the configuration again to rewrite it"
# The column of the rows of several output folders that says which one a row is from.
FOLDER = "folder"


def plain_folder(path: str) -> str:
    """The path of an output folder as the column `folder` has it: no `/` at its end, and of a local one no `./`."""
    return os.path.normpath(path) if storage.is_local(path) and ".." not in path.split("/") else path.rstrip("/")


class UnknownNameError(KeyError):
    """A view or column that does not exist; the message lists those that do."""

    def __str__(self) -> str:
        # KeyError shows its message quoted and escaped.
        return str(self.args[0])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class View:
    """One view of a run. Its rows are in the order of its files' names, and in each in the order of the texts.

    Every method that reads raises UnknownNameError for a column that does not exist, FileNotFoundError for a missing
    part, ValueError or OSError for a damaged part. The `to_...` methods and `iter_batches` raise ValueError for formats
    other than Parquet. `path`: the output folder; `entry`: the view's entry in the manifest or an attempt's record;
    `parts`: read from the index when they are used; `is_stored`: columns are read as they are stored; `in_folders`: the
    parts are in several output folders below `path`, and a column `folder` says in which.

    Vectors of `dtype: int8` are read as float32, codes times scale. With `codes=True` they are read as they are stored:
    int8, next to a float32 column `<vector>_scale`.
    """

    path: str
    name: str
    entry: Mapping[str, Any]
    parts: Sequence[Part]
    is_stored: bool = dataclasses.field(default=False, kw_only=True)
    in_folders: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def stored(self) -> View:
        """The same view with its columns as they are stored: codes and scales of `dtype: int8`."""
        return dataclasses.replace(self, is_stored=True)

    @property
    def level(self) -> str:
        """What a row is: `token`, `word`, `text`, `record` or `word_type`."""
        return str(self.entry["level"])

    @property
    def format(self) -> str:
        """The file format: `parquet`, `tfrecord` or `jsonl`."""
        return str(self.entry["format"])

    @property
    def file_format(self) -> PartFormat:
        """How its files are written and read: `is_columnar`, `rounding` and others."""
        return PART_FORMATS[self.format]

    @property
    def num_rows(self) -> int:
        """Rows in all parts."""
        return int(self.entry["rows"])

    @property
    def vectors(self) -> tuple[str, ...]:
        """The names of the vector columns."""
        return tuple(self.entry["vectors"])

    @property
    def has_vector_lists(self) -> bool:
        """Whether a row has a list of vectors: `pooling: none`."""
        return bool(pa.types.is_list(self.schema.field(self.vectors[0]).type))

    @property
    def has_places(self) -> bool:
        """Whether rows have offsets: the lines of extract_features.py hold only line, token and vectors."""
        return self.level != "token" or self.format != "jsonl"

    @property
    def width(self) -> int:
        """W, the values in one vector."""
        return int(self.entry["width"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The number type of the vectors as they are read: float32 if the files hold codes."""
        return np.dtype(self._number_type.input_type)

    @property
    def _number_type(self) -> NumberType:
        name = str(self.entry["dtype"])
        return NumberType(name) if self.is_stored else NUMBER_TYPES[name]

    @property
    def vectors_text(self) -> str:
        """`layer_0 ... layer_6, each 384 x float32`."""
        return vectors_text(self.entry)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the parts, in the order of the rows, for other readers."""
        return tuple(storage.join(self.path, part.path) for part in self.parts)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns and types, as they are read. Only `id` and kept fields may be null."""
        return self._with_folder(self._number_type.loaded_schema(self._stored_schema))

    def _with_folder(self, columns: pa.Schema) -> pa.Schema:
        return columns.insert(0, pa.field(FOLDER, pa.string(), nullable=False)) if self.in_folders else columns

    def folder_of(self, part: Part) -> str:
        """The output folder that a part is in."""
        return (
            plain_folder(layout.output_folder_of(storage.join(self.path, part.path))) if self.in_folders else self.path
        )

    def _load(self, rows: Rows, part: Part, names: Sequence[str] | None) -> Rows:
        """Rows of a part as they are read: with the numbers that codes stand for, and the folder. `names` None: all."""
        rows = self._number_type.load(rows)
        if not self.in_folders or FOLDER not in (names or [FOLDER]):
            return rows
        columns = {name: rows[name] for name in rows.schema.names}
        columns[FOLDER] = pa.repeat(pa.scalar(self.folder_of(part), pa.string()), rows.num_rows)
        fields = {field.name: field for field in self._with_folder(rows.schema)}
        return type(rows).from_pydict(
            {name: columns[name] for name in names or fields}, pa.schema([fields[name] for name in names or fields])
        )

    def _stored_names(self, names: Sequence[str]) -> list[str]:
        """The columns of the files that are needed for these. Without one, nobody would know the number of rows."""
        in_files = [name for name in names if name != FOLDER or not self.in_folders]
        return self._number_type.stored_names(in_files or self._stored_schema.names[:1], self._stored_schema)

    def fragment(self, part: Part, file: Any, system: Any = None) -> ds.Fragment:
        """The file of a part for `pyarrow.dataset`, which knows the folder."""
        import pyarrow.dataset as ds  # 0.2 s

        is_there = {"partition_expression": ds.field(FOLDER) == self.folder_of(part)} if self.in_folders else {}
        return ds.ParquetFileFormat().make_fragment(file, system, **is_there)

    @cached_property
    def _stored_schema(self) -> pa.Schema:
        return view_schema(self.entry)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        rows = f"{self.num_rows:,} row{'' if self.num_rows == 1 else 's'}, one per {self.level}"
        return f"{self.name}: {rows}; {self.vectors_text}; other columns: {', '.join(self.other_columns)}"

    def _repr_html_(self) -> str:
        from layerbeam.pipeline.dataset.notebook import view_html

        return view_html(self)

    @property
    def other_columns(self) -> list[str]:
        """The names of the columns but those in `vectors`."""
        return [name for name in self.schema.names if name not in self.vectors]

    def empty(self, columns: Sequence[str]) -> pa.Table:
        """A table of these columns without rows."""
        return pa.schema([self.schema.field(name) for name in columns]).empty_table()

    def read(
        self, part: Part, columns: Sequence[str] | None = None, rows: npt.NDArray[np.integer[Any]] | None = None
    ) -> pa.Table:
        """Rows of one part, in any file format: all of them, or only `rows` (row numbers).

        `columns` None: all that the file holds, which may not be the view's (extract_features.py's lines hold few).
        """
        names = None if columns is None else self._known(columns)
        stored = None if names is None else self._stored_names(names)
        with self.open(part) as file:
            if self.format == "parquet":
                return self._load(_read_parquet(pq.ParquetFile(file), stored, rows), part, names)
            pieces = self.file_format.read(file, storage.join(self.path, part.path), self._stored_schema, stored)
            if rows is not None:
                pieces = _until(pieces, int(rows.max(initial=-1)))
            # Selected piece by piece, so that not all vectors of the part are in memory together.
            chosen = (piece if stored is None else piece.select(stored) for piece in pieces)
            selected = [self._load(piece, part, names) for piece in chosen]
        table = pa.concat_tables(selected or [self.empty(self._known(columns))])
        return table if rows is None else table.take(pa.array(rows))

    def check_rows(self, part: Part, num_rows: int) -> None:
        """ValueError if a part has another number of rows than is listed."""
        if num_rows != part.rows:
            path = storage.join(self.path, part.path)
            raise ValueError(f"{path}: has {num_rows:,} rows, not {part.rows:,} as listed")

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[BinaryIO]:
        """The file of a part, of the size listed (if a hash is); errors while it is open say how to replace it."""
        path = storage.join(self.path, part.path)
        try:
            with self.file_format.open(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                if not part.sha256 or size == part.bytes:
                    yield file
                    return
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:  # KeyError: a column is missing
            kind = OSError if isinstance(error, OSError) else ValueError
            if kind is OSError and not storage.exists(path):
                raise FileNotFoundError(f"{path}: is missing; {_REWRITE}") from error
            why = str(error).partition("\n")[0]
            raise kind(f"{path}: cannot be read ({why}); if it is damaged, delete it and {_REWRITE}") from error
        raise ValueError(f"{path}: has {size:,} bytes, not {part.bytes:,}; {_REWRITE}")

    def first_rows(self, count: int) -> pa.Table:
        """At most `count` rows of the first part, in any file format."""
        if not self.parts:
            return self.schema.empty_table()
        return self.read(self.parts[0], None, np.arange(min(count, self.parts[0].rows)))

    def to_arrow(self, columns: Sequence[str] | None = None, *, codes: bool = False) -> pa.Table:
        """All rows, of these columns or of all. A view without rows gives an empty table with its schema."""
        if codes:
            return self.stored.to_arrow(columns)
        names = self.checked_columns(columns)
        return pa.concat_tables([self.read(part, names) for part in self.parts] or [self.empty(names)])

    def iter_batches(
        self, columns: Sequence[str] | None = None, *, batch_rows: int = _BATCH_ROWS, codes: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order, at most `batch_rows` at a time, with never more than one part in memory.

        No batch holds rows of two parts.
        """
        if codes:
            return self.stored.iter_batches(columns, batch_rows=batch_rows)
        if batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}; allowed: 1 or more")
        names = self.checked_columns(columns)
        stored = self._stored_names(names)

        def batches() -> Iterator[pa.RecordBatch]:
            for part in self.parts:
                with self.open(part) as file:
                    for batch in pq.ParquetFile(file).iter_batches(batch_rows, columns=stored):
                        yield self._load(batch.select(stored), part, names)

        return batches()

    def to_numpy(self, column: str, *, out: npt.NDArray[Any] | None = None, codes: bool = False) -> npt.NDArray[Any]:
        """A vector column as [n, W], any other column as [n].

        Lists of vectors (`pooling: none`) are an object array of n arrays, [k, W] for the k vectors of a row;
        `np.concatenate` puts them into one matrix.

        The vectors of a view with one part are Arrow's memory, not copied and read-only. Those of several parts are
        copied once, part by part, into one new array, or into `out`, which must have that shape and type: a memory
        map of a file holds a view that is larger than memory. Strings become Python objects. Integers of a kept field
        with nulls become float64 with NaN.
        """
        if codes:
            return self.stored.to_numpy(column, out=out)
        (name,) = self.checked_columns([column])
        is_vector = pa.types.is_fixed_size_list(self.schema.field(name).type)
        if out is None and (not is_vector or len(self.parts) < 2):
            chunks = [as_arrays(chunk) for chunk in self.to_arrow([name])[name].chunks]
            return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        shape, dtype = ((self.num_rows, self.width), self.dtype) if is_vector else ((self.num_rows,), None)
        if out is None:
            out = np.empty(shape, dtype)
        elif out.shape != shape or (is_vector and out.dtype != dtype):
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}; {name} of view {self.name} needs {dtype or 'any type'} "
                f"{list(shape)}"
            )
        row = 0
        for part in self.parts:
            for chunk in self.read(part, [name])[name].chunks:
                out[row : row + len(chunk)] = as_arrays(chunk)
                row += len(chunk)
        if row != self.num_rows:
            raise ValueError(f"view {self.name} of {self.path} has {row} rows, not {self.num_rows}; {_REWRITE}")
        return out

    def dataset(self) -> ds.Dataset:
        """The rows as a `pyarrow.dataset.Dataset` of the listed parts, for tools that push filters and columns down.

        The columns are as they are stored: codes and scales of `dtype: int8`. Arrow reads the files, and does not check
        their sizes. On a store each file is read through the store's client, and the dataset cannot be pickled.
        """
        import pyarrow.dataset as ds  # 0.2 s
        from pyarrow.fs import LocalFileSystem

        self.checked_columns(None)
        disk = LocalFileSystem()
        fragments = [
            self.fragment(part, os.path.abspath(path), disk)
            if storage.is_local(path)
            else self.fragment(part, storage.open_arrow(path))
            for part, path in zip(self.parts, self.paths, strict=True)
        ]
        columns = self._with_folder(self._stored_schema)
        return ds.FileSystemDataset(fragments, columns, ds.ParquetFileFormat(), disk)

    def to_pandas(self, columns: Sequence[str] | None = None, *, codes: bool = False) -> pd.DataFrame:
        """All rows as a pandas DataFrame, of these columns or of all; a vector is a NumPy array [W].

        A list of vectors is an object array of such arrays; `np.stack` makes [k, W] of it.
        """
        if importlib.util.find_spec("pandas") is None:
            raise ImportError(
                "to_pandas needs pandas, which is not installed here: pip install pandas; to_arrow and to_numpy work "
                "without it"
            )
        return self.to_arrow(columns, codes=codes).to_pandas()

    def to_tf_dataset(self, columns: Sequence[str] | None = None, *, codes: bool = False) -> tf.data.Dataset:
        """A `tf.data.Dataset` of dicts by column, with one part in memory at a time.

        Token and word views give one element per text: vectors [n, W], columns that differ from row to row [n],
        columns of the text (`file`, `line`, `sentence`, `text`, `id`, kept fields) a scalar; so `padded_batch` makes
        [B, S, W]. Text and record views give one element per row: vectors [W], or [n, W] of a list of vectors, other
        columns a scalar. Texts without rows are not elements. The dataset has a known length (two small columns of
        token and word views are read to count their texts).

        TensorFlow has no null: a null string becomes empty, a null float NaN; other nulls raise ValueError on reading.
        """
        if codes:
            return self.stored.to_tf_dataset(columns)
        import tensorflow as tf

        names, by_text = self.checked_columns(columns), self.level in _LEVELS_OF_ROWS
        dataset = tf_dataset.make_dataset(self, names, by_text=by_text)
        # Keras warns at the end of each epoch of a dataset with an unknown length.
        return dataset.apply(tf.data.experimental.assert_cardinality(self._num_texts if by_text else self.num_rows))

    def batches(
        self,
        batch_size: int = _BATCH_ROWS,
        *,
        layer: int | str | Sequence[int | str] | None = None,
        columns: Sequence[str] = (),
        codes: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        buffer_rows: int | None = None,
        buffer_bytes: int = 1 << 30,
        drop_last: bool = False,
        threads: int | None = None,
    ) -> Batches:
        """The rows of one epoch in batches to train on, in any file format: dicts of NumPy arrays by column.

        The order is the same for the same arguments, whatever `threads` is. The ranks together give each row once.
        `state()` of the result is its position, a dict for JSON; `resume(state)` of an equal one goes there.

        Args:
            batch_size: Rows in a batch; the last one of a rank may have fewer.
            layer: Which of the view's vectors: 6 or "layer_6", or several, as [1, 2, 4]: a batch has the same rows of
                each. It may be left out if there is one.
            columns: Other columns. Null is None in strings and NaN in floats; integers with null raise ValueError.
            codes: Vectors in the type of the files; of `dtype: int8` codes and scales. Otherwise they are float32.
            shuffle: Row groups (of other formats parts) in an order of `seed` and `epoch`, and their rows mixed.
            rank: The rows of this one of `world_size` readers, at most one row more or fewer than another's.
            buffer_rows: Rows that are mixed at a time, at least two batches; None: as many as fit in `buffer_bytes`.
            buffer_bytes: Bytes of the vectors that are mixed at a time. Memory is for two such buffers and a row group
                per thread.
            drop_last: Leave out a last batch with fewer rows.
            threads: Files read at a time; None: by the number of cores.

        Raises:
            ValueError: An argument is wrong, or the view has lists of vectors.
        """
        from layerbeam.pipeline.dataset.batches import Batches, Order

        layers = [layer] if layer is None or isinstance(layer, int | str) else layer
        if not layers or buffer_bytes < 1:
            raise ValueError(f"layer is {layer}, buffer_bytes {buffer_bytes:,}; allowed: at least one layer and 1 byte")
        view, vectors = self.stored if codes else self, list(dict.fromkeys(map(self.vector_column, layers)))
        row_bytes = len(vectors) * self.width * (view.dtype.itemsize if codes else 4)
        rows = max(buffer_bytes // row_bytes, 1) if buffer_rows is None else buffer_rows
        order = Order(batch_size, rows, shuffle, seed, epoch, rank, world_size, drop_last)
        stored = self._number_type.stored_names(vectors, self._stored_schema) if codes else vectors
        names = view._known([*stored, *view._known(columns)])
        return Batches(view, order, columns=names, threads=threads)

    def to_torch(self, batch_size: int = _BATCH_ROWS, **settings: Any) -> TorchBatches:
        """The batches as a `torch.utils.data.IterableDataset`, for `DataLoader(dataset, batch_size=None)`.

        `settings`: those of `batches`. The loader's worker processes share the rank's rows; each gives its own batches.
        `set_epoch(n)` of the result sets the epoch of the next iteration.
        """
        if importlib.util.find_spec("torch") is None:
            raise ImportError(
                "to_torch needs PyTorch, which is not installed here: pip install torch; batches works without it"
            )
        from layerbeam.pipeline.dataset.torch_dataset import TorchBatches

        return TorchBatches(self, {"batch_size": batch_size, **settings})

    def export(
        self,
        folder: str,
        *,
        columns: Sequence[str] | None = None,
        format: ExportFormat = "npy",
        shards: int = 1,
        codes: bool = False,
        overwrite: bool = False,
    ) -> Path:
        """Write columns into a new folder, in the order of the rows, of any file format; path of the index.

        `index.json`, of Parquet `_index.json`, names the files, and is written last. Memory is for one part, and of
        Parquet for a row group.

        Args:
            folder: A local folder, new or empty.
            columns: None: all of Parquet, else all vectors. Arrays hold vectors and numbers. With `codes=True` also
                `<vector>_scale`.
            format: `npy`: a file for each column and shard; `safetensors`, `parquet`: a file for each shard.
            shards: The rows are divided evenly into as many.
            codes: Vectors of `dtype: int8` as codes, not as float32.
            overwrite: Replace what an earlier export wrote there.

        Raises:
            ValueError: An argument is wrong, or a column of an array holds no numbers or has null.
            FileExistsError: The folder is not empty.
        """
        from layerbeam.pipeline.dataset.export import export

        view = self.stored if codes else self
        vectors = self._number_type.stored_names(self.vectors, self._stored_schema) if codes else self.vectors
        names = vectors if columns is None and format != "parquet" else columns
        return export(view, folder, view._known(names), format, shards, overwrite=overwrite)

    def nearest(
        self,
        vectors: npt.ArrayLike,
        k: int = 10,
        *,
        layer: int | str | None = None,
        metric: Metric = "cosine",
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The k rows nearest to each of the vectors, by comparison with all rows, in any file format.

        One part per thread is in memory; of Parquet only the columns that are needed are read.

        Args:
            vectors: [W] or [Q, W], numbers.
            k: Rows per vector; fewer if the view has fewer.
            layer: Which of the view's vectors: 6 or "layer_6". It may be left out if there is one.
            metric: `cosine` or `dot`, the highest first, or `l2`, the distance, the lowest first. The cosine with a
                vector of zeros is 0.
            where: Only rows for which this is true: `pyarrow.compute.field("word") == "bank"`.
            columns: The columns of the result; None for all but the vectors.

        Returns:
            Q times k rows: `query`, the number of the vector, the columns, and `score` in float64. Best rows first,
            of equal scores those that are first in the view. `dtype: int8` counts as codes times scale.

        Raises:
            ValueError: An argument is wrong, or the view has lists of vectors.
        """
        from layerbeam.pipeline.dataset.nearest import find_nearest

        names = None if columns is None else self._known(columns)
        column = self.vector_column(layer)
        return find_nearest(self, vectors, k, column=column, metric=metric, where=where, columns=names)

    def vector_column(self, layer: int | str | None = None) -> str:
        """The column of one vector per row: that of a layer, or the only one. ValueError if that is not clear."""
        if self.has_vector_lists:
            raise ValueError(f"view {self.name} has a list of vectors in each row (pooling: none), not one vector")
        if layer is None and len(self.vectors) > 1:
            raise ValueError(f"layer is missing; view {self.name} has {', '.join(self.vectors)}")
        name = self.vectors[0] if layer is None else f"layer_{layer}" if isinstance(layer, int) else layer
        if name not in self.vectors:
            raise UnknownNameError(f"{name}: view {self.name} has no such vectors; it has {', '.join(self.vectors)}")
        return name

    @cached_property
    def _num_texts(self) -> int:
        """Texts that have rows, from two columns that are small compared with the vectors."""
        with concurrent.futures.ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            count = 0
            for batch in storage.in_batches(self.parts):
                tables = pool.map(lambda part: self.read(part, ["file", "line", "sentence"]), batch)
                count += sum(len(splits_by_text(table)) - 1 for table in tables)
            return count

    def _known(self, columns: Sequence[str] | None) -> list[str]:
        """The columns asked for, each once, or all. UnknownNameError for others."""
        if isinstance(columns, str):
            raise TypeError(f"columns is {columns!r}; give a list: [{columns!r}]")
        if columns is None:
            return list(self.schema.names)
        for name in columns:
            if name not in self.schema.names:
                # The layer nearest in spelling is not the one that was meant.
                near = "" if re.fullmatch(r"layer_\d+", str(name)) else did_you_mean(str(name), self.schema.names)
                raise UnknownNameError(
                    f"{name!r}: view {self.name} of {self.path} has no such column; it has the vectors "
                    f"{', '.join(self.vectors)}; other columns: {', '.join(self.other_columns)}{near}"
                )
        return list(dict.fromkeys(columns))

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns asked for, each once, or all. ValueError for formats other than Parquet."""
        if self.format != "parquet":
            raise ValueError(
                f"view {self.name} of {self.path} is {self.format}; open_run reads the rows of Parquet only; the "
                "files are in `.paths`"
            )
        return self._known(columns)


def draw_evenly(sizes: Sequence[int], count: int, random: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """At most `count` elements, drawn evenly from groups of these sizes: the ascending indices in each group."""
    splits = np.cumsum([0, *sizes])
    drawn = np.sort(random.choice(splits[-1], min(count, splits[-1]), replace=False))
    ends = np.searchsorted(drawn, splits)
    return [drawn[i:j] - first for i, j, first in zip(ends, ends[1:], splits, strict=False)]


def _read_parquet(
    parquet: pq.ParquetFile, names: list[str] | None, rows: npt.NDArray[np.integer[Any]] | None
) -> pa.Table:
    """All rows of a file in one chunk, unlike its row groups; or `rows`, and only the row groups that have some."""
    if rows is None:
        table = parquet.read(columns=names)
        return table if names is None else table.select(names)
    sizes = np.array([parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)], np.int64)
    group = np.searchsorted(np.cumsum(sizes), rows, side="right")
    read = np.unique(group)
    skipped = np.cumsum(np.where(np.isin(np.arange(len(sizes)), read), 0, sizes))
    if not len(read):  # which pyarrow 18, the newest that Beam 2.70 takes, refuses
        table = parquet.schema_arrow.empty_table()
    else:
        table = parquet.read_row_groups(read.tolist(), columns=names).take(pa.array(rows - skipped[group]))
    return table if names is None else table.select(names)


def _until(pieces: Iterable[pa.Table], last_row: int) -> Iterator[pa.Table]:
    """The pieces up to the one that holds this row."""
    read = 0
    for piece in pieces:
        yield piece
        read += piece.num_rows
        if read > last_row:
            return


def shape_text(encoder: Mapping[str, Any]) -> str:
    """`12 layers of 768`."""
    return f"{encoder['num_hidden_layers']} layers of {encoder['hidden_size']}"


def vectors_text(view: Mapping[str, Any]) -> str:
    """`layer_0 ... layer_6, each 384 x float32`."""
    names = view["vectors"]
    shown = ", ".join(names) if len(names) <= _NAMED_VECTORS else f"{names[0]} ... {names[-1]}"
    lists = "lists of " if view["columns"][names[0]].startswith(LIST) else ""
    return f"{shown}{', each' if len(names) > 1 else ':'} {lists}{view['width']} x {view['dtype']}"
