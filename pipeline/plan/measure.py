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
from layerbeam.pipeline.run.estimate import ENCODED, PADDED, PART_ROWS, CountedBlock, Estimate
from layerbeam.pipeline.run.sampling import GOLDEN_RATIO
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Float32Array, Int32Array, Layer, TextBlock, TokenBlock
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.encode.block import encode_block, pad_batch
from layerbeam.transforms.encode.forward import EncodeCost, Encoder, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.input.records import tokens_by_length
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.tokenize.sequences import Tokenizer
from layerbeam.transforms.write.block import write_parts, write_word_types
from layerbeam.transforms.write.word_types import make_word_types

_FIRST_TOKENS = 1024  # of the first round
_GROWTH = 4.0
_PIECES = 8  # a round has at least as many, and several for each worker
_MOST_PIECES = 512
_ENOUGH_SECONDS = 2.0  # of a round
_ROUNDS_SHARE = 0.6  # of the time that is left
_VALUES = 3_000_000  # of a view, in a part that is written for its size
_CHARACTERS = 4  # per token, where a text is cut off that is longer than a piece


@dataclasses.dataclass(frozen=True)
class Round:
    """`tokens` (`padded_tokens` with padding) were encoded and written in `seconds`; of a run, `per_token` seconds."""

    tokens: int = 0
    padded_tokens: int = 0
    seconds: float = 0.0
    per_token: float = 0.0


@dataclasses.dataclass(frozen=True)
class Size:
    """A view's bytes per row of its parts; of word types also the table's per row, and its seconds per row of sums."""

    row_bytes: float = 0.0
    table_bytes: float = 0.0
    table_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured; all 0 if there is no text. `load_seconds`: for loading the encoder, and for compiling."""

    last: Round = dataclasses.field(default_factory=Round)
    load_seconds: float = 0.0
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=lambda: collections.defaultdict(Size))


def measure(job: Job, sample: Estimate, workers: int, time_left: Callable[[float], float]) -> Measurement:
    """Encode and write texts of the sample. `time_left`: seconds, if the run encodes for so many seconds."""
    if not sample.in_sample(ENCODED):
        return Measurement()
    started = time.monotonic()
    tokenize = Tokenizer(job.encoder, job.views, job.sequences)
    forward = Forward(job.load_encoder(), workers)
    load_seconds = time.monotonic() - started
    vocabulary = pa.array(job.encoder.vocabulary, pa.string())
    blocks = [block for block in sample.blocks if block[ENCODED]]
    rounds, num_tokens, size = list[Round](), sum(block[ENCODED] for block in blocks), float(_FIRST_TOKENS)
    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        output = dataclasses.replace(job.output, path=folder)
        while True:
            pieces = list(_draw_pieces(job, blocks, size, max(_PIECES, 4 * workers)))
            rounds.append(_run_round(job, output, forward, vocabulary, [tokenize(piece) for piece in pieces], workers))
            last = rounds[-1]
            left = time_left(last.per_token * sample.sum(PADDED))
            growth = min(_GROWTH, _ROUNDS_SHARE * left / max(last.seconds, 0.01))
            is_enough = last.seconds > _ENOUGH_SECONDS or last.tokens >= num_tokens
            if (len(rounds) > 1 and (is_enough or growth < 2)) or growth < 1:
                break
            size *= growth
        compiling = rounds[0].seconds - last.per_token * rounds[0].padded_tokens
        similar = Forward(_SimilarVectors(job, forward.encoder, tokenize(pieces[0])))
        until = time.monotonic() + time_left(last.per_token * sample.sum(PADDED))
        sizes = _measure_sizes(job, output, similar, vocabulary, tokenize, blocks, until)
    return Measurement(last, load_seconds + max(compiling, 0.0), sizes)


def _draw_pieces(job: Job, blocks: Sequence[CountedBlock], size: float, least: int) -> Iterator[TextBlock]:
    """At least so many pieces, which have about `size` tokens; all blocks if these have no more.

    Each token that is left to encode is equally likely to be in a piece.
    """
    if sum(block[ENCODED] for block in blocks) <= size:
        yield from (block.text for block in blocks)
        return
    ends = list(itertools.accumulate(block.weight * block[ENCODED] for block in blocks))
    drawn = 0.0
    for number in range(1, _MOST_PIECES):
        point = number * GOLDEN_RATIO % 1 * ends[-1]
        index = bisect.bisect_right(ends, point)
        block = blocks[index]
        inside = 1 - (ends[index] - point) / (block.weight * block[ENCODED])
        yield _piece_of(job, block, inside, size / least)
        drawn += min(block[ENCODED], size / least)
        if drawn >= size and number >= least:
            return


def _piece_of(job: Job, block: CountedBlock, inside: float, size: float) -> TextBlock:
    """The texts with up to `size` tokens, or one text, from the place `inside` of a block, from 0 to 1."""
    text = block.text
    if block[ENCODED] <= size:
        return text
    num_bytes = pc.binary_length(text.texts).to_numpy().astype(np.int64)
    lengths = tokens_by_length(num_bytes, dataclasses.replace(job.limits, sentence_bytes=None))
    ends = np.cumsum(lengths)
    first = int(np.searchsorted(ends, inside * ends[-1], side="right"))
    after = int(np.searchsorted(ends, inside * ends[-1] + size))
    piece = text.take(np.arange(first, max(after, first + 1)))
    if lengths[first] > size:
        most = int(size * _CHARACTERS)
        texts = pc.utf8_slice_codeunits(piece.texts, 0, most)
        pairs = None if piece.pairs is None else pc.utf8_slice_codeunits(piece.pairs, 0, most)
        piece = dataclasses.replace(piece, texts=texts, pairs=pairs)
    return piece


def _write(
    job: Job, output: Output, forward: Forward, vocabulary: pa.StringArray, tokens: TokenBlock, cost: EncodeCost
) -> Mapping[str, Part]:
    """The parts of a block that is encoded and written as in a run."""
    vectors = encode_or_reject(
        tokens, lambda texts: encode_block(texts, forward, job.views, job.encoding, cost), forward.check
    )
    written = next(write_parts(output, job.views, vocabulary, vectors))
    return written.parts if isinstance(written, Commit) else {}


def _run_round(
    job: Job,
    output: Output,
    forward: Forward,
    vocabulary: pa.StringArray,
    pieces: Sequence[TokenBlock],
    workers: int,
) -> Round:
    """Encode and write the pieces, `workers` at a time."""

    def process(tokens: TokenBlock) -> tuple[float, EncodeCost]:
        began, cost = time.perf_counter(), EncodeCost()
        _write(job, output, forward, vocabulary, tokens, cost)
        return time.perf_counter() - began, cost

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        times, costs = zip(*threads.map(process, pieces), strict=True)
    seconds = time.perf_counter() - began
    padded = np.array([max(cost.padded_tokens, 1) for cost in costs])
    # Each token was equally likely to be drawn, so that each piece counts as much.
    per_token = float(np.mean(np.array(times) / padded)) * seconds / sum(times)
    return Round(sum(cost.encoded_tokens for cost in costs), int(padded.sum()), seconds, per_token)


class _SimilarVectors:
    """An encoder that takes no time: its vectors are those that another one gives for some texts, mixed and scaled."""

    def __init__(self, job: Job, encoder: Encoder, tokens: TokenBlock) -> None:
        self.pad_id = encoder.pad_id
        encoding = job.encoding
        sequences = cut_sequences(tokens, np.arange(1), encoding.max_seq_length, encoding.window_overlap)
        layers, pooled = encoder(*pad_batch(tokens, sequences, np.arange(1), self.pad_id, encoding.length_buckets))
        self._layers = {layer: np.asarray(values) for layer, values in layers.items()}
        self._pooled = None if pooled is None else np.asarray(pooled)
        self._rng = np.random.default_rng(0)

    def __call__(self, token_ids: Any, lengths: Int32Array, segment_ids: Any) -> tuple[Mapping[int, Layer], Any]:
        layers = {layer: self._draw(values, int(lengths.sum())) for layer, values in self._layers.items()}
        return layers, None if self._pooled is None else self._draw(self._pooled, len(lengths))

    def _draw(self, values: Float32Array, count: int) -> Float32Array:
        scale = self._rng.uniform(0.9, 1.1, (count, 1)).astype(np.float32)
        drawn: Float32Array = values[self._rng.integers(0, len(values), count)] * scale
        return drawn


def _measure_sizes(
    job: Job,
    output: Output,
    forward: Forward,
    vocabulary: pa.StringArray,
    tokenize: Tokenizer,
    blocks: Sequence[CountedBlock],
    until: float,
) -> dict[str, Size]:
    """The sizes of the views' parts, of blocks that are written until the time is up, at least one."""
    totals, paths = np.zeros((len(job.views), 2)), [list[str]() for _ in job.views]
    for number, index in enumerate(np.random.default_rng(0).permutation(len(blocks)).tolist()):
        block = blocks[index]
        values = max(block[PART_ROWS.format(v.name)] * len(v.vector_columns) * v.width for v in job.views)
        piece = _piece_of(job, block, 0.5, block[ENCODED] * _VALUES / max(values, 1))
        parts = _write(job, output, forward, vocabulary, tokenize(piece), EncodeCost())
        for place, view in enumerate(job.views):
            part = parts.get(view.name)
            if part is not None:
                rows = block.weight * block[PART_ROWS.format(view.name)]
                totals[place] += rows, rows * part.bytes / part.rows
                paths[place].append(storage.join(output.path, part.path))
        if time.monotonic() > until and number:
            break
    sizes = {}
    for view, (rows, size), of_view in zip(job.views, totals.tolist(), paths, strict=True):
        sizes[view.name] = Size(size / max(rows, 1))
        if view.aggregates and of_view:
            began = time.perf_counter()
            table = make_word_types(view, of_view, ((), None))
            part = write_word_types(output, view, 0, 1, table)
            seconds = time.perf_counter() - began
            sums = sum(pq.read_metadata(path).num_rows for path in of_view)
            sizes[view.name] = Size(size / max(rows, 1), part.bytes / max(part.rows, 1), seconds / sums)
    return sizes
