"""What a job should give for its texts: tokens and vectors by the plain computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms.blocks import TextBlock, TokenBlock
from layerbeam.transforms.columns import row_columns
from layerbeam.transforms.commits import printable
from layerbeam.transforms.encode.windows import cut_windows
from layerbeam.transforms.encoders import EncoderSource, load_encoder, load_weights, open_encoder
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.reference import Array, ReferenceWordPiece, forward
from layerbeam.transforms.tokenize.row_index import keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View


class ExpectedRows:
    """What a job should give for its texts: rows by the pipeline's own rules, tokens and vectors by the plain ones."""

    def __init__(self, job: Job, plain: ReferenceEncoder) -> None:
        load_tensorflow(Hardware(1))
        encoder = job.encoder
        self._job = job
        self._plain = plain
        self._vocabulary = pa.array(encoder.vocabulary, pa.string())
        self._wordpiece = WordPiece(encoder.vocabulary, encoder.do_lower_case)
        self._reference = ReferenceWordPiece(encoder.vocabulary, encoder.do_lower_case)
        self._keep = keep_words_of(job.views, self._wordpiece)
        self._last: tuple[TokenBlock, int, Encoded] | None = None

    def tokens(self, block: TextBlock) -> TokenBlock:
        tokens = tokenize_block(block, self._wordpiece, self._job.sequences)
        return find_rows(tokens, self._job.views, self._keep)

    def rows(self, view: View, tokens: TokenBlock) -> dict[str, pa.Array]:
        return row_columns(view, tokens, self._vocabulary)

    def check_tokens(self, tokens: TokenBlock, texts: Sequence[int]) -> list[str]:
        """The tokens of the texts drawn, against the plain WordPiece."""
        problems = []
        room = self._job.sequences.max_seq_length if self._job.sequences.long_text != "window" else 1 << 40
        pairs = tokens.text.pairs
        for text in texts:
            first = self._reference.tokenize(tokens.text.texts[text].as_py())
            second = [] if pairs is None else self._reference.tokenize(pairs[text].as_py() or "")
            expected, segments = self._reference.sequence(first, second, room)
            begin, end = tokens.row_splits[text : text + 2]
            given = (tokens.token_ids[begin:end].tolist(), tokens.segment_ids[begin:end].tolist())
            if given != (expected, segments):
                path = printable(tokens.text.block.file.path)
                problems.append(f"{path} line {tokens.text.line[text]}: other tokens than the plain WordPiece gives")
        return problems

    def vectors(self, view: View, tokens: TokenBlock, text: int) -> tuple[npt.NDArray[np.int64], list[Array]]:
        """(which rows of the part are the text's, their vectors: an array for each vector column)."""
        rows = tokens.rows[view.name]
        if view.level == "record":
            return self._record(view, tokens, text)
        of_text = np.flatnonzero(rows.text == text)
        return of_text, [
            _finish(view, np.stack(values)) if len(values) else np.empty((0, view.width))
            for values in zip(*(self._row(view, tokens, row) for row in of_text.tolist()), strict=True)
        ]

    def _record(self, view: View, tokens: TokenBlock, text: int) -> tuple[npt.NDArray[np.int64], list[Array]]:
        lines = tokens.text.line
        texts = np.flatnonzero(lines == lines[text])
        place = len(np.unique(lines[: texts[0]]))
        means = [self._row(view, tokens, row) for row in texts.tolist()]
        columns = (np.mean(values, axis=0, keepdims=True) for values in zip(*means, strict=True))
        return np.array([place]), [_finish(view, values) for values in columns]

    def _row(self, view: View, tokens: TokenBlock, row: int) -> list[Array]:
        """The vectors of one row, [W] for each vector column, before they are finished."""
        rows = tokens.rows[view.name]
        text = int(rows.text[row])
        encoded = self._encode(tokens, text)
        if view.uses_pooler:
            assert encoded.pooled_output is not None  # noqa: S101 - for mypy
            return [encoded.pooled_output]
        positions = rows.positions[rows.splits[row] : rows.splits[row + 1]] - tokens.row_splits[text]
        source = encoded.cls if view.level == "text" and view.pooling == "cls" else encoded.layers
        columns = [source[layer].astype(np.float64) for layer in view.layers]
        if view.combine == "concat":
            columns = [np.concatenate(columns, axis=1)]
        elif view.combine != "separate":
            columns = [np.sum(columns, axis=0) / (len(columns) if view.combine == "mean" else 1)]
        if source is encoded.cls:
            return [values[0] for values in columns]
        pooling = "mean" if view.level in ("token", "record") else view.pooling
        return [_pool(values[positions], pooling) for values in columns]

    def _encode(self, tokens: TokenBlock, text: int) -> Encoded:
        if self._last is None or self._last[0] is not tokens or self._last[1] != text:
            begin, end = tokens.row_splits[text : text + 2]
            settings = self._job.config.encoder
            windows, owner = cut_windows(tokens.word_index[begin:end], settings.max_seq_length, settings.window_overlap)
            encoded = self._plain.encode(tokens.token_ids[begin:end], tokens.segment_ids[begin:end], windows, owner)
            self._last = (tokens, text, encoded)
        return self._last[2]


@dataclasses.dataclass
class Encoded:
    """A text's layers [n, H], the [CLS] vector of each [1, H] and the pooled output [H], where there is one."""

    layers: dict[int, Array]
    cls: dict[int, Array]
    pooled_output: Array | None


class ReferenceEncoder:
    """The encoder computed by another path, text by text, unpadded, in float32. `path` says by which."""

    def __init__(self, encoder: EncoderSource) -> None:
        self._config = encoder.config
        self._weights: dict[str, Any] = dict(load_weights(encoder)) if encoder.config else {}
        self._saved_model: Any = None
        self.path = "the plain NumPy computation"
        if encoder.kind == "savedmodel":
            load_tensorflow(Hardware(1))
            called = open_encoder(encoder.handle, do_lower_case=encoder.do_lower_case, engine="savedmodel")
            self._saved_model = load_encoder(called, layers=called.layers, pooler=called.has_pooler)
            self.path = "the SavedModel, one text at a time"

    def encode(
        self, ids: npt.ArrayLike, segments: npt.ArrayLike, windows: Sequence[npt.NDArray[np.int64]], owner: Any
    ) -> Encoded:
        """What comes out of one text with [CLS] and [SEP]; of a long one the windows together."""
        passes = [self._forward(np.asarray(ids)[window], np.asarray(segments)[window]) for window in windows]
        layers = {layer: np.concatenate([given[layer] for given, _ in passes]) for layer in passes[0][0]}
        pooled = [output for _, output in passes if output is not None]
        return Encoded(
            {layer: values[owner] for layer, values in layers.items()},
            {layer: np.mean([given[layer][:1] for given, _ in passes], axis=0) for layer in layers},
            np.mean(pooled, axis=0) if pooled else None,
        )

    def _forward(self, ids: Any, segments: Any) -> tuple[dict[int, Array], Array | None]:
        """All layers [S, H] that there are, and the pooled output [H]."""
        if self._saved_model is None:
            assert self._config is not None  # noqa: S101 - for mypy
            layers, pooled = forward(self._config, self._weights, ids, segments)
            return dict(enumerate(layers)), pooled
        batch = (np.asarray(values, np.int32) for values in (ids[None], [len(ids)], segments[None]))
        given, pooled = self._saved_model(*batch)
        if self._config is not None:
            # TF Hub's SavedModels do not give the embedding layer's output.
            embeddings_only = dataclasses.replace(self._config, num_hidden_layers=0)
            given[0] = forward(embeddings_only, self._weights, ids, segments)[0][0]
        return given, None if pooled is None else pooled[0]


def _pool(values: Array, pooling: str) -> Array:
    """[W] of a row's vectors [n, W]; zeros of none."""
    if not len(values):
        return np.zeros(values.shape[1] * (2 if pooling == "mean_max" else 1))
    mean, largest = values.mean(axis=0), values.max(axis=0)
    pooled: Array = {
        "first": values[0],
        "last": values[-1],
        "cls": values[0],
        "mean": mean,
        "sum": values.sum(axis=0),
        "max": largest,
        "mean_max": np.concatenate([mean, largest]),
    }[pooling]
    return pooled


def _finish(view: View, values: Array) -> Array:
    """The first dimensions, and unit length."""
    values = values[:, : view.width]
    if view.normalize:
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)
    return values
