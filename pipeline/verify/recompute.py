"""What a job should have written for its texts: tokens and vectors by the reference implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
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
from layerbeam.transforms.subset import raw_text, take_texts
from layerbeam.transforms.tokenize.row_index import keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View


class RecomputedJob:
    """A job recomputed block by block: rows by the pipeline's own rules, tokens and vectors by the reference."""

    def __init__(self, job: Job, encoder: ReferenceEncoder) -> None:
        load_tensorflow(Hardware(1))
        self.job = job
        self.encoder = encoder
        self.vocabulary = pa.array(job.encoder.vocabulary, pa.string())
        self.reference_wordpiece = ReferenceWordPiece(job.encoder.vocabulary, job.encoder.do_lower_case)
        self._wordpiece = WordPiece(job.encoder.vocabulary, job.encoder.do_lower_case)
        self._keep_words = keep_words_of(job.views, self._wordpiece)

    def block(self, block: TextBlock, rejected: Container[tuple[int, bytes]]) -> RecomputedBlock:
        """The block without the `rejected` texts, given as (line, bytes)."""
        tokens = tokenize_block(block, self._wordpiece, self.job.sequences)
        return RecomputedBlock(self, without_rejects(find_rows(tokens, self.job.views, self._keep_words), rejected))


def without_rejects(tokens: TokenBlock, rejected: Container[tuple[int, bytes]]) -> TokenBlock:
    """The block without the texts that the run rejected because the encoder has no vectors for them."""
    if not rejected:
        return tokens
    keys = ((int(line), raw_text(tokens.text, text)) for text, line in enumerate(tokens.text.line))
    texts = np.array([text for text, key in enumerate(keys) if key not in rejected], np.int64)
    return take_texts(tokens, tokens.text.take(texts), texts)


class RecomputedBlock:
    """A block's expected rows in every view, and the expected vectors of single texts."""

    def __init__(self, of: RecomputedJob, tokens: TokenBlock) -> None:
        self._of = of
        self._tokens = tokens
        self._encoded: tuple[int, EncodedText] | None = None

    @property
    def num_texts(self) -> int:
        return len(self._tokens.num_dropped)

    def place(self, text: int) -> str:
        """`corpus/a.txt line 3`."""
        return f"{printable(self._tokens.text.block.file.path)} line {self._tokens.text.line[text]}"

    def rows(self, view: View) -> pa.Table:
        """All rows of the block in a view, without the vectors."""
        return pa.table(row_columns(view, self._tokens, self._of.vocabulary))

    def has_reference_tokens(self, text: int) -> bool:
        """Whether the text's tokens are those of the reference WordPiece."""
        tokens, sequences, wordpiece = self._tokens, self._of.job.sequences, self._of.reference_wordpiece
        room = sequences.max_seq_length if sequences.long_text != "window" else 1 << 40
        pairs = tokens.text.pairs
        first = wordpiece.tokenize(tokens.text.texts[text].as_py())
        second = [] if pairs is None else wordpiece.tokenize(pairs[text].as_py() or "")
        begin, end = tokens.row_splits[text : text + 2]
        found = (tokens.token_ids[begin:end].tolist(), tokens.segment_ids[begin:end].tolist())
        return found == wordpiece.sequence(first, second, room)

    def vectors(self, view: View, text: int) -> tuple[npt.NDArray[np.int64], list[Array]]:
        """(the numbers of the text's rows in the part, an array [n, W] of their vectors per vector column)."""
        if view.level == "record":
            return self._record(view, text)
        rows = np.flatnonzero(self._tokens.rows[view.name].text == text)
        columns = zip(*(self._row(view, row) for row in rows.tolist()), strict=True)
        return rows, [_finish(view, np.stack(values)) for values in columns]

    def _record(self, view: View, text: int) -> tuple[npt.NDArray[np.int64], list[Array]]:
        """The row of the text's record: the mean over its texts."""
        lines = self._tokens.text.line
        texts = np.flatnonzero(lines == lines[text])
        row = len(np.unique(lines[: texts[0]]))
        columns = zip(*(self._row(view, text) for text in texts.tolist()), strict=True)
        return np.array([row]), [_finish(view, np.mean(values, axis=0, keepdims=True)) for values in columns]

    def _row(self, view: View, row: int) -> list[Array]:
        """The vectors of one row, [W] per vector column, before they are finished."""
        rows = self._tokens.rows[view.name]
        text = int(rows.text[row])
        encoded = self._encode(text)
        if view.uses_pooler:
            assert encoded.pooled_output is not None  # noqa: S101 - for mypy
            return [encoded.pooled_output]
        positions = rows.positions[rows.splits[row] : rows.splits[row + 1]] - self._tokens.row_splits[text]
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

    def _encode(self, text: int) -> EncodedText:
        """The text through the reference encoder; the last text is kept, because each of its rows asks for it."""
        if self._encoded is None or self._encoded[0] != text:
            tokens, settings = self._tokens, self._of.job.config.encoder
            begin, end = tokens.row_splits[text : text + 2]
            windows, owner = cut_windows(tokens.word_index[begin:end], settings.max_seq_length, settings.window_overlap)
            ids, segments = tokens.token_ids[begin:end], tokens.segment_ids[begin:end]
            self._encoded = (text, self._of.encoder.encode(ids, segments, windows, owner))
        return self._encoded[1]


@dataclasses.dataclass
class EncodedText:
    """A text's layers, [n, H] each, its [CLS] vector in each layer, [1, H], and its pooled output [H], if any."""

    layers: dict[int, Array]
    cls: dict[int, Array]
    pooled_output: Array | None


class ReferenceEncoder:
    """The encoder computed another way, text by text, unpadded, in float32; `description` says which way."""

    def __init__(self, encoder: EncoderSource) -> None:
        self._config = encoder.config
        self._weights: dict[str, Any] = dict(load_weights(encoder)) if encoder.config else {}
        self._saved_model: Any = None
        self.description = "the reference implementation in NumPy"
        if encoder.kind == "savedmodel":
            load_tensorflow(Hardware(1))
            called = open_encoder(encoder.handle, do_lower_case=encoder.do_lower_case, engine="savedmodel")
            self._saved_model = load_encoder(called, layers=called.layers, pooler=called.has_pooler)
            self.description = "the SavedModel, one text at a time"

    def encode(
        self, ids: npt.ArrayLike, segments: npt.ArrayLike, windows: Sequence[npt.NDArray[np.int64]], owner: Any
    ) -> EncodedText:
        """One text with [CLS] and [SEP]; a long text is encoded window by window and put together."""
        passes = [self._forward(np.asarray(ids)[window], np.asarray(segments)[window]) for window in windows]
        layers = {layer: np.concatenate([window[layer] for window, _ in passes]) for layer in passes[0][0]}
        pooled = [output for _, output in passes if output is not None]
        return EncodedText(
            {layer: values[owner] for layer, values in layers.items()},
            {layer: np.mean([window[layer][:1] for window, _ in passes], axis=0) for layer in layers},
            np.mean(pooled, axis=0) if pooled else None,
        )

    def _forward(self, ids: Any, segments: Any) -> tuple[dict[int, Array], Array | None]:
        """All layers that exist, [S, H] each, and the pooled output [H]."""
        if self._saved_model is None:
            assert self._config is not None  # noqa: S101 - for mypy
            layers, pooled = forward(self._config, self._weights, ids, segments)
            return dict(enumerate(layers)), pooled
        batch = (np.asarray(values, np.int32) for values in (ids[None], [len(ids)], segments[None]))
        outputs, pooled = self._saved_model(*batch)
        if self._config is not None:
            # TF Hub's SavedModels do not give the embedding layer's output.
            embeddings_only = dataclasses.replace(self._config, num_hidden_layers=0)
            outputs[0] = forward(embeddings_only, self._weights, ids, segments)[0][0]
        return outputs, None if pooled is None else pooled[0]


def _pool(values: Array, pooling: str) -> Array:
    """[W]: the vectors [n, W] of one row pooled; zeros if there are none."""
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
    """[n, W]: the first dimensions of each vector, at unit length if the view normalizes."""
    values = values[:, : view.width]
    if view.normalize:
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)
    return values
