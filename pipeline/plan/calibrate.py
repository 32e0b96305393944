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
from layerbeam.pipeline.plan.estimate import ENCODED, TEXTS, Estimate, Tokenizer
from layerbeam.pipeline.plan.sampling import Chunk, text_bytes
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import Commit
from layerbeam.transforms.encode.batching import equal_texts, padded_shape, plan_batches
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, scan_range
from layerbeam.transforms.write.block import write_block

SECONDS = 4.0
_WHOLE_BLOCKS = 8
_ROUNDS = 3
# The warm-up takes a second or two on two cores, whatever the encoder's size.
_WARM_UP_FLOP = 1e11
_MIN_WARM_UP_TOKENS, _MAX_WARM_UP_TOKENS = 512, 16_384


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured; all 0 if there is no text.

    `tokens` were encoded and written in `seconds`. With all workers busy: `per_token`, seconds per padded token, and
    `per_block`, seconds in addition to its tokens. `read_seconds`: of one core, per byte. `sizes`: bytes per row
    and per part of each view. The rest is of `blocks` whole blocks: `padding`, padded tokens per token;
    `duplicate_texts` and `duplicate_tokens`, fractions equal to an earlier text of their block, not encoded again.
    """

    tokens: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    per_token: float = 0.0
    per_block: float = 0.0
    read_seconds: float = 0.0
    sizes: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    blocks: int = 0
    duplicate_texts: float = 0.0
    duplicate_tokens: float = 0.0
    padding: float = 1.0


@dataclasses.dataclass
class _Blocks:
    """Draws whole blocks as the run will cut them, around chunks of the sample. `seconds`: CPU time to read them."""

    job: Job
    chunks: list[Chunk]
    random: np.random.Generator
    found: dict[int, TextBlock] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def draw(self, statistic: str) -> list[TextBlock]:
        """`_WHOLE_BLOCKS` blocks. Each token, or text, of the corpus is equally likely to be in them."""
        sums = np.cumsum([chunk.weight * chunk[statistic] for chunk in self.chunks])
        picks = (np.arange(_WHOLE_BLOCKS) + self.random.random()) / _WHOLE_BLOCKS * sums[-1]
        indices = np.searchsorted(sums, picks, side="right").tolist()
        started = time.process_time()
        for index in set(indices) - set(self.found):
            self.found[index] = _whole_block(self.job, cast(TextBlock, self.chunks[index].block))
        self.seconds += time.process_time() - started
        return [self.found[index] for index in indices]


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


def _measure_blocks(tokenize: Tokenizer, blocks: list[TextBlock]) -> tuple[float, float, float]:
    """(fraction of duplicate texts, fraction of their tokens, padded tokens per token)."""
    settings = tokenize.job.encoding
    all_texts = all_tokens = texts = tokens = padded = 0
    for found in map(tokenize, blocks):
        first, _ = equal_texts(found.row_splits, found.token_ids, found.segment_ids)
        every = np.arange(len(found.num_dropped))
        all_lengths, lengths = (
            np.diff(cut_sequences(found, some, settings.max_seq_length, settings.window_overlap).splits)
            for some in (every, first)
        )
        all_texts, all_tokens = all_texts + len(every), all_tokens + int(all_lengths.sum())
        texts, tokens = texts + len(first), tokens + int(lengths.sum())
        for batch in plan_batches(lengths, settings.batch_tokens, settings.length_buckets):
            rows, longest = padded_shape(len(batch), int(lengths[batch].max()), settings.length_buckets)
            padded += rows * longest
    if not tokens:  # `long_text: reject` rejected all texts
        return 0.0, 0.0, 1.0
    return 1 - texts / all_texts, 1 - tokens / all_tokens, padded / tokens


def calibrate(tokenize: Tokenizer, sample: Estimate, *, workers: int, seed: int) -> Calibration:
    """Encode and write subsamples of whole blocks for about `SECONDS`."""
    job, random = tokenize.job, np.random.default_rng(seed)
    blocks = _Blocks(job, [chunk for chunk in sample.chunks if chunk[ENCODED]], random)
    if not blocks.chunks:
        return Calibration()
    # The time depends on the tokens, the size of what is kept per text on the texts.
    by_tokens, by_texts = blocks.draw(ENCODED), blocks.draw(TEXTS)
    num_bytes = sum(text_bytes(b, parquet=job.records.format == "parquet") for b in blocks.found.values())
    duplicate_texts, duplicate_tokens, padding = _measure_blocks(tokenize, by_tokens)
    started = time.perf_counter()
    encoder = job.load_encoder()
    load_seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        stages = _Stages(tokenize, Forward(encoder, workers), workers, folder)

        # Warm-up: TensorFlow compiles.
        flop_per_token = 24 * max(job.encoder.num_hidden_layers, 1) * job.encoder.hidden_size**2
        tokens = int(np.clip(_WARM_UP_FLOP / flop_per_token, _MIN_WARM_UP_TOKENS, _MAX_WARM_UP_TOKENS))
        small, of_texts = (
            [_subsample(block, tokens // _WHOLE_BLOCKS, job, random) for block in some]
            for some in (by_tokens, by_texts)
        )
        single = [block.take(random.integers(0, len(block.texts), 1)) for block in by_texts * 2]
        commits, text_commits, single_commits = (stages.run(some).commits for some in (small, of_texts, single))

        # Sizes: of the parts of the warm-up.
        sizes = {}
        for view in job.views:
            large_parts = text_commits if view.level in ("text", "record") else commits
            sizes[view.name] = _sizes(large_parts, single_commits, view.name)

        # Timing: of blocks of one text, then of larger ones that take `SECONDS`.
        single_round, small_round = stages.run(single), stages.run(small)
        rate = small_round.padded / max(small_round.seconds, 1e-6)
        tokens = max(int(SECONDS / _ROUNDS * rate / workers), 2 * job.encoding.batch_tokens)
        chosen = [by_tokens[number % _WHOLE_BLOCKS] for number in range(_ROUNDS * workers)]
        large = stages.run([_subsample(block, tokens, job, random) for block in chosen])

    padded = max(large.padded, 1)  # 0 if `long_text: reject` rejects all texts
    per_block = max(single_round.seconds - large.seconds / padded * single_round.padded, 0) / len(single)
    return Calibration(
        tokens=large.encoded,
        seconds=large.seconds,
        load_seconds=load_seconds,
        per_token=max(large.seconds - per_block * len(chosen), large.seconds / 2) / padded,
        per_block=per_block,
        read_seconds=blocks.seconds / max(num_bytes, 1),
        sizes=sizes,
        blocks=len({block.block.sha256 for block in by_tokens}),
        duplicate_texts=duplicate_texts,
        duplicate_tokens=duplicate_tokens,
        padding=padding,
    )


@dataclasses.dataclass(frozen=True)
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

    def run(self, blocks: Sequence[TextBlock]) -> _Round:
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
