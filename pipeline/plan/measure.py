"""The second half of a plan: texts of the sample go through a run's encoding and writing, into a temporary folder.

Some texts are encoded, in rounds, each several times as large as the one before, until the time is up; the last round
counts, because TensorFlow compiles in the others. Then blocks of the sample are written with vectors that look like
those of the encoder, because the size of a file depends on the other columns, and these on the block.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.forecast.estimate import (
    ENCODED,
    PADDED,
    PART_ROWS,
    SEQUENCE_TOKENS,
    VECTORS,
    CountedBlock,
    Estimate,
)
from layerbeam.pipeline.forecast.sampling import GOLDEN_RATIO
from layerbeam.transforms import storage
from layerbeam.transforms.encode.block import encode_block, pad_batch
from layerbeam.transforms.encode.forward import EncodeCost, Encoder, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.flow.blocks import Float32Array, Int32Array, TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.flow.commits import Commit, Part
from layerbeam.transforms.input.records import tokens_by_length
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.write import write_word_types
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views.columns import Layer
from layerbeam.transforms.write.block import write_parts
from layerbeam.transforms.write.word_types import make_word_types

_FIRST_TOKENS = 1024  # of the first round
_GROWTH = 4.0
_PIECES = 8  # a round has at least as many, and several for each worker
_MOST_PIECES = 512
_LEAST_SECONDS, _ENOUGH_SECONDS = 0.4, 2.0  # of the last round
_ROUNDS_SHARE = 0.6  # of the time that is left
_VALUES = 3_000_000  # of a view, in a part that is written for its size
_CHARACTERS = 4  # per token, where a text is cut off that is longer than a piece


@dataclasses.dataclass(frozen=True)
class Size:
    """A view's bytes per row of its parts; of word types also the table's per row, and its seconds per row of sums."""

    row_bytes: float = 0.0
    table_bytes: float = 0.0
    table_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured; all 0 if there is no text.

    `tokens` were encoded in `seconds`. `per_token`: of them, per padded token, with all workers busy. `load_seconds`:
    for loading the encoder, and for compiling. `write_seconds`: of one core, per token.
    """

    tokens: int = 0
    seconds: float = 0.0
    per_token: float = 0.0
    load_seconds: float = 0.0
    write_seconds: float = 0.0
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=lambda: collections.defaultdict(Size))


def measure(job: Job, sample: Estimate, workers: int, time_left: Callable[[float], float]) -> Measurement:
    """Encode and write texts of the sample. `time_left`: seconds, if the run encodes for so many seconds."""
    blocks = [block for block in sample.blocks if block[ENCODED]]
    if not blocks:
        return Measurement()
    started = time.monotonic()
    forward = Forward(job.load_encoder(), workers)
    load_seconds = time.monotonic() - started
    num_tokens, size, num_rounds = sum(block[ENCODED] for block in blocks), float(_FIRST_TOKENS), 0
    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        stages = _Stages(job, folder)
        while True:
            pieces = [stages.tokenize(text) for text in _draw_pieces(job, blocks, size, max(_PIECES, 4 * workers))]
            tokens, padded, seconds = _encode(stages, forward, pieces, workers)
            per_token, num_rounds = seconds / padded, num_rounds + 1
            if num_rounds == 1:
                first_seconds, first_padded = seconds, padded
            left = time_left(per_token * sample.sum(PADDED))
            growth = min(_GROWTH, _ROUNDS_SHARE * left / seconds)
            is_enough = seconds > _ENOUGH_SECONDS or tokens >= num_tokens
            if num_rounds > 1 and (is_enough or (growth < 2 and seconds > _LEAST_SECONDS)):
                break
            size *= _GROWTH if seconds < _LEAST_SECONDS else max(growth, 1.0)
        load_seconds += max(first_seconds - per_token * first_padded, 0.0)  # the first round compiled
        similar = Forward(_SimilarVectors(job, forward.encoder, pieces[0]))
        until = time.monotonic() + time_left(per_token * sample.sum(PADDED))
        sizes, write_seconds = _write_blocks(stages, similar, blocks, until)
    return Measurement(tokens, seconds, per_token, load_seconds, write_seconds, sizes)


class _Stages:
    """A run's stages after reading, with their output in a temporary folder."""

    def __init__(self, job: Job, folder: str) -> None:
        self.job = job
        self.output = dataclasses.replace(job.output, path=folder)
        self.tokenize = Tokenizer(job.encoder, job.views, job.sequences)
        self._vocabulary = pa.array(job.encoder.vocabulary, pa.string())

    def encode(self, tokens: TokenBlock, forward: Forward, cost: EncodeCost) -> VectorBlock:
        job = self.job
        return encode_or_reject(
            tokens, lambda texts: encode_block(texts, forward, job.views, job.encoding, cost), forward.check
        )

    def write(self, vectors: VectorBlock) -> Mapping[str, Part]:
        """The part of each view in a block; of word types that of the sums."""
        written = next(write_parts(BlockStore(self.output, self.job.views), self._vocabulary, vectors))
        parts = written.parts if isinstance(written, Commit) else {}
        folders = {view.name: part_folder(view) for view in self.job.views}
        return {name: parts[folder] for name, folder in folders.items() if folder in parts}


def _draw_pieces(job: Job, blocks: Sequence[CountedBlock], size: float, least: int) -> Iterator[TextBlock]:
    """At least so many pieces, which have about `size` tokens; all distinct records if these have no more.

    Each token that is left to encode is equally likely to be in a piece.
    """
    if sum(block[ENCODED] for block in blocks) <= size:
        yield from (block.records.take(block.distinct) for block in blocks)
        return
    ends = list(itertools.accumulate(block.weight * block[ENCODED] for block in blocks))
    drawn = 0.0
    for number in range(1, _MOST_PIECES):
        point = number * GOLDEN_RATIO % 1 * ends[-1]
        index = bisect.bisect_right(ends, point)
        block = blocks[index]
        inside = 1 - (ends[index] - point) / (block.weight * block[ENCODED])
        yield _piece_of(job, block.records.take(block.distinct), block[ENCODED], inside, size / least)
        drawn += min(block[ENCODED], size / least)
        if drawn >= size and number >= least:
            return


def _piece_of(job: Job, records: TextBlock, num_tokens: float, inside: float, size: float) -> TextBlock:
    """The records with up to `size` tokens, or one of them, from the place `inside` of a block, from 0 to 1."""
    if num_tokens <= size:
        return records
    num_bytes = pc.binary_length(records.texts).to_numpy().astype(np.int64)
    lengths = tokens_by_length(num_bytes, job.limits)
    ends = np.cumsum(lengths)
    begin = inside * max(ends[-1] - size, 0)
    first, after = (int(np.searchsorted(ends, place, side="right")) for place in (begin, begin + size))
    piece = records.take(np.arange(first, max(after, first + 1)))
    if lengths[first] > size and piece.words is None:
        most = int(size * _CHARACTERS)
        texts = pc.utf8_slice_codeunits(piece.texts, 0, most)
        pairs = None if piece.pairs is None else pc.utf8_slice_codeunits(piece.pairs, 0, most)
        piece = dataclasses.replace(piece, texts=texts, pairs=pairs)
    return piece


def _encode(stages: _Stages, forward: Forward, pieces: Sequence[TokenBlock], workers: int) -> tuple[int, int, float]:
    """Encode the pieces, `workers` at a time: (tokens, tokens with padding, seconds)."""
    costs = [EncodeCost() for _ in pieces]
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        for _ in threads.map(stages.encode, pieces, itertools.repeat(forward), costs):
            pass
    seconds = time.perf_counter() - began
    return sum(cost.encoded_tokens for cost in costs), max(sum(cost.padded_tokens for cost in costs), 1), seconds


class _SimilarVectors:
    """An encoder that takes no time: its vectors are those that another one gives for some texts, with noise."""

    def __init__(self, job: Job, encoder: Encoder, tokens: TokenBlock) -> None:
        self.pad_id, self.dense_modules = encoder.pad_id, encoder.dense_modules
        encoding = job.encoding
        contexts = tokens.contexts
        sequences = cut_sequences(contexts, np.arange(1), encoding)
        layers, pooled = encoder(*pad_batch(sequences, np.arange(1), self.pad_id, encoding.length_buckets))
        self._layers = {layer: np.asarray(values) for layer, values in layers.items()}
        self._pooled = None if pooled is None else np.asarray(pooled)
        self._rng = np.random.default_rng(0)

    def __call__(self, token_ids: Any, lengths: Int32Array, segment_ids: Any) -> tuple[Mapping[int, Layer], Any]:
        layers = {layer: self._draw(values, int(lengths.sum())) for layer, values in self._layers.items()}
        return layers, None if self._pooled is None else self._draw(self._pooled, len(lengths))

    def _draw(self, values: Float32Array, count: int) -> Float32Array:
        drawn: Float32Array = values[self._rng.integers(0, len(values), count)]
        drawn *= self._rng.random(drawn.shape, np.float32) * np.float32(0.2) + np.float32(0.9)
        return drawn


def _write_blocks(
    stages: _Stages, forward: Forward, blocks: Sequence[CountedBlock], until: float
) -> tuple[dict[str, Size], float]:
    """(sizes of the views' parts, seconds per token), of blocks that are written until the time is up, at least one."""
    views, paths = stages.job.views, collections.defaultdict[str, list[str]](list)
    rows, size = collections.Counter[str](), collections.Counter[str]()
    seconds = encoded = 0.0
    for number, index in enumerate(np.random.default_rng(0).permutation(len(blocks)).tolist()):
        block = blocks[index]
        part_rows = {view.name: block[PART_ROWS.format(view.name)] for view in views}
        # Of a part of the block there would be other sums: those of rare words are smaller when compressed.
        vectors = {view.name: block[VECTORS.format(view.name)] for view in views}
        values = max([1, *(vectors[v.name] * len(v.vector_columns) * v.width for v in views if not v.aggregates)])
        num_tokens = block[SEQUENCE_TOKENS]
        piece = _piece_of(stages.job, block.records, num_tokens, 0.5, num_tokens * _VALUES / values)
        encoded_piece = stages.encode(stages.tokenize(piece), forward, EncodeCost())
        started = time.perf_counter()
        parts = stages.write(encoded_piece)
        times = num_tokens / max(min(len(encoded_piece.tokens.token_ids), num_tokens), 1)
        seconds += block.weight * times * (time.perf_counter() - started)
        encoded += block.weight * block[ENCODED]
        for name, part in parts.items():
            if part.rows:
                weight = block.weight * part_rows[name] / part.rows
                rows[name] += weight * part.rows
                size[name] += weight * part.bytes
                paths[name].append(storage.join(stages.output.path, part.path))
        if time.monotonic() > until and number:
            break
    sizes = {view.name: Size(size[view.name] / max(rows[view.name], 1)) for view in views}
    for view in views:
        if view.aggregates and paths[view.name]:
            began = time.perf_counter()
            table = write_word_types(stages.output, view, 0, 1, make_word_types(view, paths[view.name], ((), None)))
            row_seconds = (time.perf_counter() - began) / sum(pq.read_metadata(p).num_rows for p in paths[view.name])
            sizes[view.name] = Size(sizes[view.name].row_bytes, table.bytes / max(table.rows, 1), row_seconds)
    return sizes, seconds / encoded
