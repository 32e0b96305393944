"""`layerbeam.encode`: the vectors of texts in this process, without files and without a pipeline."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.config.job import UNIT_LENGTH, EmbedJob, resolve_embedding
from layerbeam.pipeline.config.load import check_embedding
from layerbeam.pipeline.config.schema import EmbedConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.progress import Steps, show_progress
from layerbeam.transforms.embedder import Embedder
from layerbeam.transforms.flow.blocks import Float32Array, TextBlock, VectorBlock
from layerbeam.transforms.hardware import cores
from layerbeam.transforms.input.records import lone_surrogate
from layerbeam.transforms.views.columns import make_table
from layerbeam.transforms.views.number_types import as_arrays

_VECTORS = "vectors"
_ONE_VECTOR_PER_TEXT = {_VECTORS: {"level": "text", "layers": [-1]}}
# A block ends with the text that reaches one of these limits.
_BLOCK_TEXTS = 1 << 12
_BLOCK_CHARACTERS = 1 << 26
_LOADED = 4
_END: Any = object()
_LOCK = threading.Lock()


@overload
def encode(
    texts: Iterable[str],
    *,
    encoder: str | Mapping[str, Any] = "minilm",
    pairs: Iterable[str | None] | None = None,
    as_query: bool = False,
    progress: bool | None = None,
) -> Float32Array: ...
@overload
def encode(
    texts: Iterable[str],
    *,
    encoder: str | Mapping[str, Any] = "minilm",
    views: Mapping[str, Any],
    pairs: Iterable[str | None] | None = None,
    as_query: bool = False,
    output: Literal["numpy"] = "numpy",
    progress: bool | None = None,
) -> dict[str, dict[str, npt.NDArray[Any]]]: ...
@overload
def encode(
    texts: Iterable[str],
    *,
    encoder: str | Mapping[str, Any] = "minilm",
    views: Mapping[str, Any],
    pairs: Iterable[str | None] | None = None,
    as_query: bool = False,
    output: Literal["arrow"],
    progress: bool | None = None,
) -> dict[str, pa.Table]: ...
def encode(
    texts: Iterable[str],
    *,
    encoder: str | Mapping[str, Any] = "minilm",
    views: Mapping[str, Any] | None = None,
    pairs: Iterable[str | None] | None = None,
    as_query: bool = False,
    output: Literal["numpy", "arrow"] = "numpy",
    progress: bool | None = None,
) -> Any:
    """The vectors of texts, on all cores. The encoder stays loaded for the next call.

    Args:
        texts: Strings: a list, a pandas Series, a NumPy or Arrow array, a generator.
        encoder: A handle, or the section `encoder` of a configuration as a mapping.
        views: The section `views` of a configuration, with levels token, word and text.
        pairs: The second text of each pair, as many as texts; None for a single text.
        as_query: Whether the texts are queries: they get `query_prompt`, by default the model's, in place of `prompt`.
        output: What a view becomes: NumPy arrays by column, or a pyarrow.Table.
        progress: Show on standard error how many texts are done: a bar at a terminal, a line every half minute
            elsewhere. None: at a terminal, for a list of more than 4,096 texts.

    Returns:
        Without `views` float32 [n, W], one row per text, as the model's own files say (`modules.json` of
        sentence-transformers: pooling, dense modules, scaling, default prompt); without such files the mean of the last
        layer's tokens, scaled to unit length.
        With `views` {view: {column: values}} or {view: table}, with the rows and columns of a run; `line` is the index
        of the text. Vector columns are [r, W], other columns [r]; with `pooling: none` the vectors are an object array
        [r] of arrays [k, W].

    Raises:
        TypeError: A text is not a string, or `texts` is not a list of them.
        ValueError: A setting is wrong, or a text cannot be encoded; the message has its index.

    Warns:
        UserWarning: Texts were cut off at `max_seq_length`.
    """
    if output not in ("numpy", "arrow"):
        raise ValueError(f"encode: output is {output!r}; allowed: numpy, arrow")
    if views is None and output == "arrow":
        raise ValueError("encode: output arrow is for `views`; without them the result is one array")
    given = _ONE_VECTOR_PER_TEXT if views is None else views
    key = json.dumps([encoder, given, as_query, views is None], default=_plain)
    try:
        with _LOCK:
            embedder, job = _load(key, tuple(map(_state, _paths(key))))
        if pairs is not None:
            job.check_pairs("encode: pairs")
    except UsageError as error:
        raise ValueError(str(error)) from error
    tables: dict[str, list[pa.Table]] = {view.name: [] for view in embedder.views}
    matrices: list[Float32Array] = []
    cut = 0
    with _count_texts(texts, progress) as steps:
        for block in _blocks(texts, pairs):
            vectors = _encode_block(embedder, block)
            cut += int(np.count_nonzero(vectors.tokens.num_dropped))
            steps.done += len(block.texts)
            if views is None:
                matrices += vectors.vectors[_VECTORS]
                continue
            for view in embedder.views:
                table = make_table(view, vectors.tokens, vectors.vectors[view.name], embedder.vocabulary)
                tables[view.name].append(table)
    if cut:
        message = (
            f"encode: cut {cut:,} of the texts off after {job.max_seq_length} tokens; raise "
            "max_seq_length, or keep them whole with long_text: window, in `encoder`"
        )
        warnings.warn(message, stacklevel=2)
    if views is None:
        return matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    whole = {name: pa.concat_tables(found) for name, found in tables.items()}
    return whole if output == "arrow" else {name: _arrays(table) for name, table in whole.items()}


@contextlib.contextmanager
def _count_texts(texts: Any, progress: bool | None) -> Iterator[Steps]:
    """The count of texts that are done, shown while this is entered if `progress` says so."""
    steps = Steps("text", len(texts) if hasattr(texts, "__len__") else None)
    if progress is None:
        progress = sys.stderr.isatty() and steps.total is not None and steps.total > _BLOCK_TEXTS
    with show_progress(steps, stream=sys.stderr) if progress else contextlib.nullcontext():
        yield steps


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, Iterable) else repr(value)


def _state(path: str) -> tuple[Any, ...]:
    """What changes if a local file, or one in a folder or its folders, does: then what was loaded is loaded again."""
    try:
        files = [path, *(os.path.join(folder, name) for folder in _folders(path) for name in os.listdir(folder))]
        states = [(file, os.stat(file)) for file in sorted(files)]
    except OSError:
        return ()
    return tuple((file, state.st_ino, state.st_size, state.st_mtime_ns) for file, state in states)


def _folders(path: str) -> list[str]:
    """The folder and those in it, such as `1_Pooling`; none if it is a file."""
    if not os.path.isdir(path):
        return []
    return [path, *(entry.path for entry in os.scandir(path) if entry.is_dir())]


@functools.lru_cache
def _config(key: str) -> EmbedConfig:
    encoder, views, *_ = json.loads(key)
    return check_embedding(encoder, views, source="encode")


def _paths(key: str) -> list[str]:
    """The paths that these settings name."""
    config = _config(key)
    forms = (view.keep_words for view in config.views.values())
    handle, adapter = config.encoder.handle, config.encoder.adapter
    dense = (os.path.join(handle, folder) for view in config.views.values() for folder in view.dense or ())
    return [handle, *([adapter] if adapter else []), *(name for name in forms if isinstance(name, str)), *dense]


@functools.lru_cache(maxsize=_LOADED)
def _load(key: str, states: tuple[tuple[Any, ...], ...]) -> tuple[Embedder, EmbedJob]:
    """The embedder for these settings, and the job that it does."""
    *_, as_query, is_default = json.loads(key)
    job = resolve_embedding(_config(key), unsaid=UNIT_LENGTH if is_default else {})
    job = job.with_prompt(job.config.encoder.query_prompt) if as_query else job
    return job.load_embedder(cores()), job


def _blocks(texts: Iterable[str], pairs: Iterable[str | None] | None) -> Iterator[TextBlock]:
    """The texts as blocks, at least one. TypeError and ValueError as `encode`."""
    seconds: Iterator[Any] = iter(() if pairs is None else _elements("pairs", pairs))
    first, size = 0, 0
    some: list[str] = []
    some_pairs: list[str | None] = []
    for index, text in enumerate(_elements("texts", texts)):
        some.append(_checked("texts", index, text))
        size += len(text)
        if pairs is not None:
            second = next(seconds, _END)
            if second is _END:
                raise ValueError(f"encode: there are {index:,} pairs and more texts; give one for each text, or None")
            some_pairs.append(None if second is None else _checked("pairs", index, second))
            size += 0 if second is None else len(second)
        if len(some) >= _BLOCK_TEXTS or size >= _BLOCK_CHARACTERS:
            yield _block(some, some_pairs, first)
            first, size, some, some_pairs = index + 1, 0, [], []
    if next(seconds, _END) is not _END:
        raise ValueError(f"encode: there are more pairs than texts ({first + len(some):,})")
    if some or not first:
        yield _block(some, some_pairs, first)


def _block(texts: list[str], pairs: list[str | None], first: int) -> TextBlock:
    block = TextBlock.of(texts, first_line=first)
    if pairs:
        block.pairs, block.pair_offset = pa.array(pairs, pa.string()), np.zeros(len(texts), np.int32)
    return block


def _elements(name: str, given: Any) -> Iterable[Any]:
    """What is iterated: TypeError for what looks like a list of strings and is not."""
    if isinstance(given, str | bytes):
        raise TypeError(f"encode: {name} is one string; give a list: [{given!r:.40}]")
    if (
        isinstance(given, Mapping | set | frozenset)
        or getattr(given, "ndim", 1) != 1
        or not isinstance(given, Iterable)
    ):
        raise TypeError(f"encode: {name} is a {type(given).__name__}; give a list of strings, or one column of a table")
    return given.to_pylist() if isinstance(given, pa.Array | pa.ChunkedArray) else given


def _checked(name: str, index: int, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"encode: {name}[{index}] is {text!r:.40}, a {type(text).__name__}; all must be strings")
    reason = None if text.isascii() else lone_surrogate(text)
    if reason is not None:
        raise ValueError(f"encode: {name}[{index}]: {reason}")
    return text


def _encode_block(embedder: Embedder, block: TextBlock) -> VectorBlock:
    """The vectors of all texts of a block. ValueError for the first that has none."""
    vectors = embedder.embed_or_reject(block)
    for rejected in sorted(vectors.tokens.text.rejected, key=lambda rejected: rejected.line):
        raise ValueError(f"encode: texts[{rejected.line}]: {rejected.reason}")
    return vectors


def _arrays(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    return {name: as_arrays(table[name]) for name in table.column_names}
