"""The calibration of a plan: a few seconds of the run's own code on blocks of the sample.

It measures the encoder's speed and the sizes of the written parts, in a temporary folder, with as many threads as the
run will have. Loading the encoder and the first batches, for which TensorFlow compiles, do not count as encoding.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.run.estimate import TEXTS, Estimate, Tokenizer
from layerbeam.pipeline.run.sampling import text_bytes
from layerbeam.transforms.blocks import Slice, TextBlock, TokenBlock
from layerbeam.transforms.commits import Commit, InputFile
from layerbeam.transforms.encode.batching import equal_texts
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.slice.slices import byte_ranges
from layerbeam.transforms.write.block import write_parts

SECONDS = 0.8  # of the warm-up's last round and, as many texts, of the measured one
_BLOCKS = 8
_MIN_TEXTS = 16  # of a block, to tell what a text costs from what a block costs


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured; all 0 if there is no text.

    `tokens` were encoded and written in `seconds`. With all workers busy: `per_token`, seconds per encoded token, and
    `per_block`, seconds in addition to its tokens. `read_seconds`: of one core, per byte. `padding`: padded tokens per
    token. `sizes`: bytes per row and per part of each view. `duplicates`: the fractions of texts and tokens that equal
    an earlier text of their block and are not encoded again, and the number of different blocks measured.
    """

    tokens: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    per_token: float = 0.0
    per_block: float = 0.0
    padding: float = 1.0
    read_seconds: float = 0.0
    sizes: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    duplicates: dict[str, float] = dataclasses.field(default_factory=lambda: {"texts": 0.0, "tokens": 0.0, "blocks": 0})


@dataclasses.dataclass(frozen=True)
class _Round:
    """One pass of some blocks through the stages. Of a block on average: (tokens, seconds), {view: (rows, bytes)}."""

    tokens: int
    padded_tokens: int
    seconds: float
    block_time: tuple[float, float]
    part_sizes: dict[str, tuple[float, float]]


def calibrate(tokenize: Tokenizer, sample: Estimate, *, workers: int, seed: int) -> Calibration:
    """Encode and write some texts of whole blocks; so many that it takes about `SECONDS`, and one of each block."""
    job, rng = tokenize.job, np.random.default_rng(seed)
    chunks = [chunk for chunk in sample.chunks if chunk.weight * chunk[TEXTS]]
    if not chunks:
        return Calibration()
    # Each text of the corpus is equally likely to be in the blocks.
    sums = np.cumsum([chunk.weight * chunk[TEXTS] for chunk in chunks])
    points = (np.arange(_BLOCKS) + rng.random()) / _BLOCKS * sums[-1]
    chosen = [chunks[index].block for index in np.searchsorted(sums, points, side="right")]
    started = time.process_time()
    blocks = [_whole_block(job, block) for block in chosen if block is not None]
    read_seconds = time.process_time() - started
    num_bytes = sum(text_bytes(block, parquet=job.records.format == "parquet") for block in blocks)
    texts, first_texts, tokens, first_tokens = np.sum([_distinct(tokenize(block)) for block in blocks], axis=0).tolist()
    started = time.perf_counter()
    encoder = job.load_encoder()
    load_seconds = time.perf_counter() - started
    forward = Forward(encoder, workers)
    vocabulary = pa.array(job.encoder.vocabulary, pa.string())
    copies = list(itertools.islice(itertools.cycle(blocks), max(_BLOCKS, 2 * workers)))

    def run(num_texts: int) -> _Round:
        """Encode and write so many random texts of each block, `workers` blocks at a time."""
        some = [block.take(np.sort(rng.permutation(len(block.texts))[:num_texts])) for block in copies]
        costs = [EncodeCost() for _ in some]

        def process(block: TextBlock, cost: EncodeCost) -> Commit | InputFile:
            vectors = encode_or_reject(
                tokenize(block),
                lambda texts: encode_block(texts, forward, job.views, job.encoding, cost),
                forward.check,
            )
            # Subsamples of one block share its name, so each gets a folder.
            output = dataclasses.replace(job.output, path=tempfile.mkdtemp(dir=folder))
            return next(write_parts(output, job.views, vocabulary, vectors))

        started = time.perf_counter()
        with ThreadPoolExecutor(workers) as threads:
            written = list(threads.map(process, some, costs))
        seconds, encoded = time.perf_counter() - started, sum(cost.encoded_tokens for cost in costs)
        sizes = {}
        for view in job.views:
            parts = [done.parts.get(view.name) for done in written if isinstance(done, Commit)]
            rows, size = np.mean([(part.rows, part.bytes) for part in parts if part] or [(0, 0)], axis=0).tolist()
            sizes[view.name] = (rows, size)
        block_time = (encoded / len(costs), seconds / len(costs))
        return _Round(encoded, sum(cost.padded_tokens for cost in costs), seconds, block_time, sizes)

    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        # A larger part compresses better, and few texts of a large encoder are enough to show that.
        num_texts, most_texts = max(_MIN_TEXTS, 2**20 // job.encoder.hidden_size**2), max(len(b.texts) for b in blocks)
        # In these rounds, TensorFlow compiles. The sizes are theirs, so that equal plans do not depend on the time.
        single, many = run(1), run(num_texts)
        sizes = {view: _line(single.part_sizes[view], many.part_sizes[view]) for view in many.part_sizes}
        while run(num_texts).seconds < SECONDS and num_texts < most_texts:
            num_texts *= 2
        single, many = run(1), run(num_texts)
    per_token, per_block = _line(single.block_time, many.block_time)
    return Calibration(
        tokens=many.tokens,
        seconds=many.seconds,
        load_seconds=load_seconds,
        per_token=per_token,
        per_block=per_block,
        padding=many.padded_tokens / max(many.tokens, 1),
        read_seconds=read_seconds / max(num_bytes, 1),
        sizes=sizes,
        duplicates={
            "texts": 1 - first_texts / max(texts, 1),
            "tokens": 1 - first_tokens / max(tokens, 1),
            "blocks": len({block.block.sha256 for block in blocks}),
        },
    )


def _whole_block(job: Job, block: TextBlock) -> TextBlock:
    """A block as a run cuts it: the first of the range that holds a chunk's block, or the next row groups."""
    file, first = block.block.file, block.block.first_byte
    start, end = [one for one in byte_ranges(file, job.limits.text_bytes, job.records) if one[0] <= first][-1]
    if job.records.format == "parquet":
        start = first
    whole = next(read_blocks(Slice(file, start, end, 0), job.limits, job.records), None)
    return whole if isinstance(whole, TextBlock) and len(whole.texts) else block


def _distinct(tokens: TokenBlock) -> tuple[int, int, int, int]:
    """(texts of a block, those that equal no earlier one, tokens of the texts, tokens of those)."""
    first, _ = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
    lengths = np.diff(tokens.row_splits)
    return len(lengths), len(first), int(lengths.sum()), int(lengths[first].sum())


def _line(few: tuple[float, float], many: tuple[float, float]) -> tuple[float, float]:
    """(slope, value at 0) of the line through two points, or through 0 if these are close; neither is negative."""
    (x, y), (more_x, more_y) = few, many
    if more_x <= 2 * x:
        return more_y / max(more_x, 1), 0.0
    slope = max((more_y - y) / (more_x - x), 0.0)
    return slope, max(y - slope * x, 0.0)
