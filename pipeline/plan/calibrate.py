"""The calibration of a plan: a few seconds of the run's own code on blocks of the sample.

It measures the encoder's speed and the sizes of the written parts, in a temporary folder, with as many threads as the
run will have. Loading the encoder and the first batches, for which TensorFlow compiles, do not count as encoding.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.plan.estimate import ENCODED, Estimate, Tokenizer
from layerbeam.pipeline.plan.sampling import text_bytes
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import Commit
from layerbeam.transforms.encode.batching import equal_texts
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, scan_range
from layerbeam.transforms.write.block import Output, write_block

SECONDS = 4.0
_WHOLE_BLOCKS = 8
_ROUNDS = 3
# The warm-up takes a second or two on two cores, whatever the encoder's size.
_WARM_UP_FLOP = 1e11
_MIN_WARM_UP_TOKENS, _MAX_WARM_UP_TOKENS = 512, 16_384


@dataclasses.dataclass
class Blocks:
    """Whole blocks as the run will cut them, and statistics that only whole blocks show.

    `blocks`: each token of the corpus is equally likely to be in them. `duplicate_texts`, `duplicate_tokens`: fractions
    that are equal to an earlier text of their block and not encoded again. `read_seconds`: of one core, per byte.
    """

    blocks: list[TextBlock]
    duplicate_texts: float = 0.0
    duplicate_tokens: float = 0.0
    read_seconds: float = 0.0


@dataclasses.dataclass
class Calibration:
    """The measured speed, in seconds with all workers busy, and the sizes of each view's parts, in bytes.

    `tokens`: encoded and written in `seconds`. `per_block`: what a block takes in addition to its tokens. `padding`:
    fraction of what goes through the encoder.
    """

    tokens: int
    seconds: float
    load_seconds: float
    per_token: float
    per_block: float
    padding: float
    row_bytes: dict[str, float]
    part_bytes: dict[str, float]


def find_blocks(tokenize: Tokenizer, estimate: Estimate, seed: int) -> Blocks:
    """Whole blocks around chunks of the sample."""
    chunks = [chunk for chunk in estimate.chunks if chunk[ENCODED]]
    if not chunks:
        return Blocks([])
    tokens = np.cumsum([chunk.weight * chunk[ENCODED] for chunk in chunks])
    picks = (np.arange(_WHOLE_BLOCKS) + np.random.default_rng(seed).random()) / _WHOLE_BLOCKS * tokens[-1]
    indices = np.searchsorted(tokens, picks, side="right").tolist()
    started = time.process_time()
    whole = {index: _whole_block(tokenize.job, cast(TextBlock, chunks[index].chunk.block)) for index in set(indices)}
    seconds = time.process_time() - started
    num_bytes = sum(text_bytes(block, parquet=tokenize.job.records.format == "parquet") for block in whole.values())
    blocks = [whole[index] for index in indices]
    return Blocks(blocks, *_duplicates(tokenize, blocks), seconds / max(num_bytes, 1))


def _whole_block(job: Job, block: TextBlock) -> TextBlock:
    """The first block of the slice that holds a chunk's block, as a run cuts it; the chunk's if that has no text."""
    file, first = block.block.file, block.block.first_byte
    pieces = byte_ranges(file, job.limits.text_bytes, job.records)
    if job.records.format == "parquet":
        scanned = scan_range(FileToRead(file), 0, None, job.limits, job.records)
        pieces = [(start, end) for start, end, _ in scanned.pieces]
    start, end = next((piece for piece in pieces if piece[1] is None or first < piece[1]), (0, None))
    whole = next(read_blocks(Slice(file, start, end, 0), job.limits, job.records), None)
    return whole if isinstance(whole, TextBlock) and len(whole.texts) else block


def _duplicates(tokenize: Tokenizer, blocks: list[TextBlock]) -> tuple[float, float]:
    """(fraction of texts, fraction of their tokens) that are equal to an earlier text of their block."""
    texts = tokens = duplicate_texts = duplicate_tokens = 0
    for found in map(tokenize, blocks):
        first, _ = equal_texts(found.row_splits, found.token_ids, found.segment_ids)
        lengths = np.diff(found.row_splits)
        texts, tokens = texts + len(lengths), tokens + int(lengths.sum())
        duplicate_texts += len(lengths) - len(first)
        duplicate_tokens += int(lengths.sum() - lengths[first].sum())
    return duplicate_texts / texts, duplicate_tokens / tokens


def measure(tokenize: Tokenizer, blocks: list[TextBlock], *, workers: int, seed: int) -> Calibration:
    """Encode and write subsamples of the blocks for about `SECONDS`."""
    started = time.perf_counter()
    encoder = tokenize.job.load_encoder()
    load_seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        stages = _Stages(tokenize, Forward(encoder, workers), workers, folder)
        return stages.measure(blocks, load_seconds, np.random.default_rng(seed))


@dataclasses.dataclass
class _Round:
    """One pass of some blocks through the stages: commits, wall seconds, tokens with padding and without."""

    commits: list[Commit]
    seconds: float
    padded: int
    encoded: int


class _Stages:
    """The run's stages from texts to parts, in as many threads as it has workers."""

    def __init__(self, tokenize: Tokenizer, forward: Forward, workers: int, folder: str) -> None:
        self._job = tokenize.job
        self._tokenize = tokenize
        self._forward = forward
        self._workers = workers
        self._folder = folder
        self._folder_numbers = itertools.count()
        self._vocabulary = pa.array(self._job.encoder.vocabulary, pa.string())

    def measure(self, blocks: list[TextBlock], load_seconds: float, random: np.random.Generator) -> Calibration:
        # Warm-up: TensorFlow compiles; the parts tell the sizes.
        encoder = self._job.encoder
        flop_per_token = 24 * max(encoder.num_hidden_layers, 1) * encoder.hidden_size**2
        tokens = int(np.clip(_WARM_UP_FLOP / flop_per_token, _MIN_WARM_UP_TOKENS, _MAX_WARM_UP_TOKENS))
        small = [_subsample(block, tokens // len(blocks), self._job, random) for block in blocks]
        single = [block.take(random.integers(0, len(block.texts), 1)) for block in blocks * 2]
        small_commits, single_commits = (self._run(some).commits for some in (small, single))

        # Sizes
        sizes = {view.name: _sizes(small_commits, single_commits, view.name) for view in self._job.views}

        # Timing: of blocks of one text, then of larger ones that take `SECONDS`.
        single_round, small_round = self._run(single), self._run(small)
        rate = small_round.encoded / max(small_round.seconds, 1e-6)
        tokens = max(int(SECONDS / _ROUNDS * rate / self._workers), 2 * self._job.encoding.batch_tokens)
        num_blocks = _ROUNDS * self._workers
        chosen = [blocks[number % len(blocks)] for number in range(num_blocks)]
        large = self._run([_subsample(block, tokens, self._job, random) for block in chosen])
        encoded = max(large.encoded, 1)  # 0 if `long_text: reject` rejects them all
        per_block = max(single_round.seconds - large.seconds / encoded * single_round.encoded, 0) / len(single)
        return Calibration(
            tokens=large.encoded,
            seconds=large.seconds,
            load_seconds=load_seconds,
            per_token=max(large.seconds - per_block * num_blocks, large.seconds / 2) / encoded,
            per_block=per_block,
            padding=1 - encoded / max(large.padded, encoded),
            row_bytes={name: row_bytes for name, (row_bytes, _) in sizes.items()},
            part_bytes={name: part_bytes for name, (_, part_bytes) in sizes.items()},
        )

    def _run(self, blocks: Sequence[TextBlock]) -> _Round:
        """Encode and write these blocks, `workers` of them at a time."""
        costs = [EncodeCost() for _ in blocks]
        started = time.perf_counter()
        with ThreadPoolExecutor(self._workers) as threads:
            commits = [commit for commit in threads.map(self._process, blocks, costs) if commit is not None]
        seconds = time.perf_counter() - started
        return _Round(commits, seconds, sum(c.padded_tokens for c in costs), sum(c.encoded_tokens for c in costs))

    def _process(self, block: TextBlock, cost: EncodeCost) -> Commit | None:
        job = self._job
        vectors = encode_or_reject(
            self._tokenize(block),
            lambda some: encode_block(some, self._forward, job.views, job.encoding, cost),
            self._forward.check,
        )
        # Subsamples of one block share its name, so each gets a folder.
        folder = storage.join(self._folder, str(next(self._folder_numbers)))
        output = Output(folder, job.output.fingerprint, job.output.byte_stream_split)
        written = write_block(output, job.views, self._vocabulary, vectors)
        return written if isinstance(written, Commit) else None  # the input file has changed


def _subsample(block: TextBlock, tokens: int, job: Job, random: np.random.Generator) -> TextBlock:
    """Random texts of a block, of about so many tokens in total."""
    order = random.permutation(len(block.texts))
    lengths = pc.binary_length(block.texts).to_numpy().astype(np.int64)[order]
    count = int(np.searchsorted(np.cumsum(np.minimum(2 + lengths // 4, job.limits.max_seq_length)), tokens)) + 1
    return block.take(np.sort(order[:count]))


def _sizes(large: list[Commit], single: list[Commit], view: str) -> tuple[float, float]:
    """(bytes per row, bytes per part) of a view: the line through the mean parts of many texts and of one text."""
    (rows, size), (few_rows, few_bytes) = (
        np.mean([(part.rows, part.bytes) for c in commits if (part := c.parts.get(view))] or [(0, 0)], axis=0)
        for commits in (large, single)
    )
    if rows <= few_rows:
        return float(size / max(rows, 1)), 0.0
    row_bytes = max(float((size - few_bytes) / (rows - few_rows)), 0.0)
    return row_bytes, max(float(few_bytes - few_rows * row_bytes), 0.0)
