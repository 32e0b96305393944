"""What a job should have written for its texts: tokens and vectors by the reference implementation."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms.encode.windows import cut_windows
from layerbeam.transforms.encoders import (
    IN_TEXT,
    EncoderSource,
    load_encoder,
    load_library_tokenizer,
    load_vocabulary,
    load_weights,
    open_encoder,
    read_dense_weights,
)
from layerbeam.transforms.encoders.calibrate import calibrate
from layerbeam.transforms.encoders.int8 import InputCodes
from layerbeam.transforms.encoders.network import ComputeDtype
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, raw_text, take_texts
from layerbeam.transforms.flow.commits import printable
from layerbeam.transforms.hardware import Hardware, cores, load_tensorflow
from layerbeam.transforms.reference import (
    Array,
    ReferenceLibraryTokenizer,
    ReferenceWordPiece,
    dense,
    forward,
    round_kernels,
)
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views.columns import row_columns, vector_splits
from layerbeam.transforms.views.view import ViewSpec, needed_dense


class RecomputedJob:
    """A job recomputed block by block: rows by the pipeline's own rules, tokens and vectors by the reference."""

    def __init__(self, job: Job) -> None:
        load_tensorflow(Hardware(1))
        self.job = job
        settings = job.config.encoder
        self.encoder = ReferenceEncoder(job.encoder, settings.compute_dtype, settings.calibration)
        self.in_float32 = ReferenceEncoder(job.encoder) if settings.compute_dtype == "int8" else None
        self.dense_weights = {module: read_dense_weights(job.encoder, module) for module in needed_dense(job.views)}
        self.vocabulary = pa.array(job.encoder.vocabulary, pa.string())
        self.reference_tokenizer = _reference_tokenizer(job.encoder, of_words=job.records.has_words)
        self._tokenize = Tokenizer(job.encoder, job.views, job.sequences)

    def block(self, block: TextBlock, rejected: Container[tuple[str, int, bytes]]) -> RecomputedBlock:
        """The block without the texts, given as (file, line, bytes), for which the encoder has no vectors."""
        tokens = self._tokenize(block)
        if rejected:
            text = tokens.text
            keys = ((*_place(text, number), raw_text(text, number)) for number in range(len(text.texts)))
            texts = np.array([text for text, key in enumerate(keys) if key not in rejected], np.int64)
            tokens = take_texts(tokens, tokens.text.take(texts), texts)
        return RecomputedBlock(self, tokens)


@dataclasses.dataclass
class RecomputedBlock:
    """A block's expected rows in every view, and the expected vectors of single texts."""

    _of: RecomputedJob
    _tokens: TokenBlock
    _encoded: tuple[int, EncodedText] | None = None
    _agrees: dict[int, bool] = dataclasses.field(default_factory=dict)  # whether a context has the reference's tokens

    @property
    def num_texts(self) -> int:
        return len(self._tokens.num_dropped)

    def place(self, text: int) -> str:
        """`corpus/a.txt line 3`."""
        path, line = _place(self._tokens.text, text)
        return f"{path} line {line}"

    def one_text_of_each_record(self, texts: Sequence[int]) -> set[int]:
        """The first of these texts in each of their records."""
        _, first = np.unique(self._tokens.text.line[list(texts)], return_index=True)
        return {texts[index] for index in first}

    @functools.cached_property
    def in_float32(self) -> RecomputedBlock | None:
        """The block as products in float32 give it, if those of the job are in int8."""
        if self._of.in_float32 is None:
            return None
        job = copy.copy(self._of)
        job.encoder = self._of.in_float32
        return RecomputedBlock(job, self._tokens)

    def rows(self, view: ViewSpec) -> pa.Table:
        """All rows of the block in a view, without the vectors."""
        return pa.table(row_columns(view, self._tokens, self._of.vocabulary))

    def num_vectors(self, view: ViewSpec) -> npt.NDArray[np.int64]:
        """How many vectors the list of each text has."""
        return np.diff(vector_splits(view, self._tokens))

    def has_reference_tokens(self, text: int) -> bool:
        """Whether the tokens of the text, or of its context, are those of the reference tokenizer."""
        tokens, sequences, reference = self._tokens, self._of.job.sequences, self._of.reference_tokenizer
        contexts = tokens.contexts
        context = int(contexts.of_text[text])
        if context in self._agrees:
            return self._agrees[context]
        room = sequences.max_seq_length if sequences.long_text != "window" else 1 << 40
        own = slice(*contexts.row_splits[context : context + 2])
        pairs = tokens.text.pairs
        first: str | list[str] = sequences.prompt + contexts.texts[context].as_py()
        if contexts.words is not None:
            first = [sequences.prompt, *contexts.words.lists[context].as_py()]
        second = "" if pairs is None else pairs[text].as_py() or ""
        found = (contexts.token_ids[own].tolist(), contexts.segment_ids[own].tolist())
        self._agrees[context] = found == reference.sequence(first, second, room)
        return self._agrees[context]

    def vectors(self, view: ViewSpec, text: int) -> tuple[npt.NDArray[np.int64], list[Array]]:
        """(the numbers of the text's rows in the part, an array [n, W] of their vectors per vector column).

        For the level record: the row of the text's record, which is the mean over its texts. For lists of vectors: the
        text's row, unless its list is empty.
        """
        lines = self._tokens.text.line
        of_texts = np.flatnonzero(lines == lines[text]) if view.level == "record" else np.array([text])
        rows = np.flatnonzero(np.isin(self._tokens.rows[view.name].text, of_texts))
        pooled = [row for one in of_texts.tolist() for row in self._rows_of(view, one)]
        columns = [np.stack(values) for values in zip(*pooled, strict=True)]
        if view.has_vector_lists:
            rows = of_texts[: len(rows)]
        if view.level == "record":
            rows = np.array([len(np.unique(lines[: of_texts[0]]))])
            columns = [values.mean(axis=0, keepdims=True) for values in columns]
        for module in view.dense_modules:
            weights, bias = self._of.dense_weights[module]
            columns = [dense(values, weights, bias, module.activation) for values in columns]
        return rows, [_finish(view, values) for values in columns]

    def _rows_of(self, view: ViewSpec, text: int) -> Iterator[list[Array]]:
        """The vectors of each row of a text, [W] per vector column, before they are finished."""
        rows = self._tokens.rows[view.name]
        numbers = np.flatnonzero(rows.text == text).tolist()
        if not numbers:
            return
        encoded = self._encode(text)
        if view.uses_pooler:
            assert encoded.pooled_output is not None  # noqa: S101 - for mypy
            yield from ([encoded.pooled_output[0]] for _ in numbers)
            return
        source = encoded.cls if view.level == "text" and view.pooling == "cls" else encoded.layers
        columns = [source[layer].astype(np.float64) for layer in view.layers]
        if view.combine == "concat":
            columns = [np.concatenate(columns, axis=1)]
        elif view.combine != "separate":
            columns = [np.sum(columns, axis=0) / (len(columns) if view.combine == "mean" else 1)]
        pooling = "mean" if view.has_token_vectors or view.level == "record" else view.pooling
        contexts = self._tokens.contexts
        begin = contexts.row_splits[contexts.of_text[text]]
        for row in numbers:
            positions = contexts.place[rows.positions[rows.splits[row] : rows.splits[row + 1]]] - begin
            yield [values[0] if source is encoded.cls else _pool(values[positions], pooling) for values in columns]

    def _encode(self, text: int) -> EncodedText:
        """The text's context through the reference encoder; the last one is kept, because each of its rows asks."""
        contexts, job = self._tokens.contexts, self._of.job
        number = int(contexts.of_text[text])
        if self._encoded is None or self._encoded[0] != number:
            own = slice(*contexts.row_splits[number : number + 2])
            overlap, around = job.encoding.window_overlap, job.encoding.around
            windows, owner = cut_windows(contexts.word_index[own], job.max_seq_length, overlap, around)
            encoded = self._of.encoder.encode(contexts.token_ids[own], contexts.segment_ids[own], windows, owner)
            self._encoded = (number, encoded)
        return self._encoded[1]


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """A text's layers, [n, H] each, its pooled output [1, H], if any, and its [CLS] vector in each layer, [1, H]."""

    layers: dict[int, Array]
    pooled_output: Array | None
    cls: dict[int, Array]


class ReferenceEncoder:
    """The encoder computed another way, text by text, unpadded, in float32; `description` says which way.

    `compute_dtype` int8: with the same codes, of `calibration`.
    """

    def __init__(
        self,
        encoder: EncoderSource,
        compute_dtype: ComputeDtype = "float32",
        calibration: Sequence[str] | None = None,
    ) -> None:
        self._encoder = encoder
        self._weights: dict[str, Any] = dict(load_weights(encoder)) if encoder.architecture else {}
        self._codes: dict[str, InputCodes] = {}
        self._saved_model: Any = None
        self.description = "the reference implementation in NumPy"
        if compute_dtype == "int8":
            self._codes = calibrate(encoder, self._weights, encoder.layers, pooler=False, texts=calibration)
            self._weights = round_kernels(self._weights, self._codes)
            self.description += ", with the same int8 codes"
        if encoder.kind == "savedmodel":
            load_tensorflow(Hardware(1))
            called = open_encoder(encoder.handle, do_lower_case=encoder.do_lower_case, engine="savedmodel")
            self._saved_model = load_encoder(called, layers=called.layers, pooler=called.has_pooler)
            self.description = "the SavedModel, one text at a time"

    def encode(self, ids: Array, segments: Array, windows: Sequence[npt.NDArray[np.int64]], owner: Any) -> EncodedText:
        """One text with its special tokens; a long text is encoded window by window and put together."""
        with ThreadPoolExecutor(cores()) as threads:
            passes = list(threads.map(lambda window: self._forward(ids[window], segments[window]), windows))
        layers = {layer: np.concatenate([window[layer] for window, _ in passes]) for layer in passes[0][0]}
        pooled = [output for _, output in passes if output is not None]
        return EncodedText(
            {layer: values[owner] for layer, values in layers.items()},
            np.mean(pooled, axis=0)[None] if pooled else None,
            {layer: np.mean([window[layer][:1] for window, _ in passes], axis=0) for layer in layers},
        )

    def _forward(self, ids: Any, segments: Any) -> tuple[dict[int, Array], Array | None]:
        """All layers that exist, [S, H] each, and the pooled output [H]."""
        architecture = self._encoder.architecture
        segments = segments if self._encoder.has_segments else np.zeros_like(segments)
        if self._saved_model is None:
            assert architecture is not None  # noqa: S101 - for mypy
            layers, pooled = forward(architecture, self._weights, ids, segments, self._codes)
            return dict(enumerate(layers)), pooled
        batch = (np.asarray(values, np.int32) for values in (ids[None], [len(ids)], segments[None]))
        outputs, pooled = self._saved_model(*batch)
        if architecture is not None:
            # TF Hub's SavedModels do not give the embedding layer's output.
            embeddings_only = dataclasses.replace(architecture, num_hidden_layers=0)
            outputs[0] = forward(embeddings_only, self._weights, ids, segments)[0][0]
        return outputs, None if pooled is None else pooled[0]


def _place(block: TextBlock, text: int) -> tuple[str, int]:
    """(file, as the rejects name it, line) of a text."""
    numbers, lines = block.file_lines(block.line[text : text + 1])
    return printable(block.files[int(numbers[0])].file.path), int(lines[0])


def _reference_tokenizer(encoder: EncoderSource, *, of_words: bool) -> ReferenceWordPiece | ReferenceLibraryTokenizer:
    vocabulary = load_vocabulary(encoder)
    if vocabulary.library == "tokenizers":
        return ReferenceLibraryTokenizer(
            load_library_tokenizer(encoder.handle, vocabulary.file, encoder.special_in_text, of_words=of_words)
        )
    special = encoder.special
    return ReferenceWordPiece(
        vocabulary.entries,
        encoder.do_lower_case,
        vocabulary.max_chars_per_word,
        special=(list(special.before), list(special.between or ()), list(special.behind)),
        in_text=IN_TEXT if encoder.special_in_text == "token" else (),
    )


def _pool(values: Array, pooling: str) -> Array:
    """[W]: the vectors [n, W] of one row pooled; zeros if there are none."""
    if not len(values):
        return np.zeros(values.shape[1] * (2 if pooling == "mean_max" else 1))
    if pooling == "mean_max":
        return np.concatenate([values.mean(axis=0), values.max(axis=0)])
    if pooling in ("first", "last", "cls"):
        return np.asarray(values[-1 if pooling == "last" else 0])
    if pooling == "mean_sqrt_len":
        return np.asarray(values.sum(axis=0) / np.sqrt(len(values)))
    if pooling == "weighted_mean":
        return np.average(values, axis=0, weights=np.arange(1, len(values) + 1))
    return np.asarray(getattr(values, pooling)(axis=0))  # mean, sum or max


def _finish(view: ViewSpec, values: Array) -> Array:
    """[n, W]: the first dimensions of each vector, at unit length if the view normalizes."""
    values = values[:, : view.width]
    if view.normalize:
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)
    return values
