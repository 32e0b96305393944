"""A few seconds of the run's own code on blocks of the sample: how fast it is here, and what becomes of the vectors.

From what is read to what is written, with as many blocks in hand at once as the run will have, into a folder that is
deleted. Loading and the first batches, for which TensorFlow compiles, are not counted.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.plan.estimate import ENCODED, TEXTS, Estimate, Tokenizer
from layerbeam.pipeline.plan.sampling import Kind, text_bytes
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
# Of the first, uncounted pieces, in tokens: a second or two on two cores, whatever the encoder's size.
_FIRST_FLOP = 1e11
_FEWEST_TOKENS, _MOST_TOKENS = 512, 16_384


@dataclasses.dataclass
class Blocks:
    """Blocks as the run will cut them, and what only whole ones show. Shares are from 0 to 1.

    `blocks`: drawn so that each token of the corpus is as likely to be in them, as time goes by tokens; `of_texts`: the
    same of texts, for what is kept of each text. `duplicate_texts`: texts equal to an earlier one of their block, which
    are not encoded again; `duplicate_tokens`: theirs of all. `padding`: padded tokens per token. `read_seconds`: of one
    core, per byte.
    """

    blocks: list[TextBlock]
    of_texts: list[TextBlock]
    duplicate_texts: float
    duplicate_tokens: float
    padding: float
    read_seconds: float


@dataclasses.dataclass
class Calibration:
    """What was measured. `per_token`: seconds per padded token; `per_block`: what a block costs beside its tokens.

    Both with all workers at work. `row_bytes`, `part_bytes`: of each view, for a row and for a part by itself.
    """

    tokens: int
    seconds: float
    load_seconds: float
    per_token: float
    per_block: float
    row_bytes: dict[str, float]
    part_bytes: dict[str, float]


def find_blocks(tokenize: Tokenizer, estimate: Estimate, seed: int) -> Blocks:
    """Whole blocks from places of the sample."""
    job = tokenize.job
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    places = [
        (stratum.kind, counted.place.block, stratum.weight * counted.place.scale, counted.figures)
        for stratum, places in estimate.strata
        for counted in places
        if counted.place.block is not None and counted.figures[ENCODED]
    ]
    found: dict[str, TextBlock] = {}
    seconds, read_bytes = 0.0, 0

    def read(kind: Kind, block: TextBlock) -> TextBlock:
        nonlocal seconds, read_bytes
        if block.block.sha256 not in found:
            started = time.process_time()
            whole = found[block.block.sha256] = _whole_block(job, kind, block)
            seconds += time.process_time() - started
            read_bytes += text_bytes(whole, job.records)
        return found[block.block.sha256]

    def draw(figure: str) -> list[TextBlock]:
        before = np.cumsum([weight * figures[figure] for *_, weight, figures in places])
        ends = (np.arange(_WHOLE_BLOCKS) + rng.random()) / _WHOLE_BLOCKS * before[-1] if places else np.zeros(0)
        return [read(*places[index][:2]) for index in np.searchsorted(before, ends, side="right").tolist()]

    of_tokens, of_texts = draw(ENCODED), draw(TEXTS)
    return _look_at(tokenize, of_tokens, of_texts, seconds / max(read_bytes, 1))


def _whole_block(job: Job, kind: Kind, block: TextBlock) -> TextBlock:
    """The first block of the slice in which a place of the sample lies; the place itself where that has no text."""
    file, first = block.block.file, block.block.first_byte
    start, end = 0, None
    if kind == "ranges":
        start, end = next(r for r in byte_ranges(file, job.limits.text_bytes) if r[1] is None or first < r[1])
    elif kind == "row groups":
        pieces = scan_range(FileToRead(file), 0, None, job.limits, job.records).pieces
        start, end = next(((s, e) for s, e, _ in pieces if e is None or first < e), (0, None))
    whole = next(read_blocks(Slice(file, start, end, 0), job.limits, job.records), None)
    return whole if isinstance(whole, TextBlock) and len(whole.texts) else block


def _look_at(tokenize: Tokenizer, blocks: list[TextBlock], of_texts: list[TextBlock], read_seconds: float) -> Blocks:
    texts = kinds = tokens = different = padded = 0
    settings = tokenize.job.encoding
    for block in blocks:
        found = tokenize(block)
        if not len(found.num_dropped):
            continue
        first, _ = equal_texts(found.row_splits, found.token_ids, found.segment_ids)
        texts, kinds = texts + len(found.num_dropped), kinds + len(first)
        every = np.arange(len(found.num_dropped))
        tokens += len(cut_sequences(found, every, settings.max_seq_length, settings.window_overlap).positions)
        sequences = cut_sequences(found, first, settings.max_seq_length, settings.window_overlap)
        lengths = np.diff(sequences.splits)
        different += int(lengths.sum())
        for batch in plan_batches(lengths, settings.batch_tokens, settings.length_buckets):
            rows, longest = padded_shape(len(batch), int(lengths[batch].max()), settings.length_buckets)
            padded += rows * longest
    if not texts:
        return Blocks([], [], 0.0, 0.0, 1.0, read_seconds)
    return Blocks(blocks, of_texts, 1 - kinds / texts, 1 - different / tokens, padded / different, read_seconds)


def measure(tokenize: Tokenizer, blocks: Blocks, *, workers: int, seed: int, seconds: float = SECONDS) -> Calibration:
    """Encode and write pieces of the blocks for some seconds."""
    started = time.perf_counter()
    encoder = tokenize.job.load_encoder()
    load_seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="layerbeam-plan-") as folder:
        chain = _Chain(tokenize, Forward(encoder, workers), workers, folder)
        return chain.measure(blocks, load_seconds, seed, seconds)


class _Chain:
    """A run's stages from tokens to parts, in as many threads as it has workers."""

    def __init__(self, tokenize: Tokenizer, forward: Forward, workers: int, folder: str) -> None:
        self._job = job = tokenize.job
        self._tokenize = tokenize
        self._forward = forward
        self._workers = workers
        self._folder = folder
        self._rounds = 0
        self._vocabulary = pa.array(job.encoder.vocabulary, pa.string())

    def measure(self, found: Blocks, load_seconds: float, seed: int, seconds: float) -> Calibration:
        random = np.random.default_rng(seed)
        encoder = self._job.encoder
        flop = 24 * max(encoder.num_hidden_layers, 1) * encoder.hidden_size**2  # of one token
        first_tokens = int(np.clip(_FIRST_FLOP / flop, _FEWEST_TOKENS, _MOST_TOKENS))
        blocks = found.blocks
        pieces, of_texts = (
            [self._piece(block, first_tokens // len(some), random) for block in some]
            for some in (found.blocks, found.of_texts)
        )
        tiny = [block.take(random.integers(0, len(block.texts), 1)) for block in found.of_texts * 2]
        commits, text_commits, tiny_commits = (self._run(some)[0] for some in (pieces, of_texts, tiny))
        row_bytes, part_bytes = self._sizes(commits, text_commits, tiny_commits)
        _, tiny_seconds, tiny_padded, _ = self._run(tiny)
        _, spent, padded, _ = self._run(pieces)
        of_round = int(seconds / _ROUNDS * padded / max(spent, 1e-6) / self._workers)
        all_spent, all_padded, all_encoded, count = 0.0, 0, 0, 0
        for number in range(_ROUNDS):
            chosen = [blocks[(number * self._workers + worker) % len(blocks)] for worker in range(self._workers)]
            batch = self._job.encoding.batch_tokens
            pieces = [self._piece(block, max(of_round, 2 * batch), random) for block in chosen]
            _, spent, padded, encoded = self._run(pieces)
            all_spent, all_padded, all_encoded = all_spent + spent, all_padded + padded, all_encoded + encoded
            count += len(pieces)
        per_token = all_spent / max(all_padded, 1)
        per_block = max(tiny_seconds - per_token * tiny_padded, 0) / len(tiny)
        per_token = max(all_spent - per_block * count, all_spent / 2) / max(all_padded, 1)
        return Calibration(all_encoded, all_spent, load_seconds, per_token, per_block, row_bytes, part_bytes)

    def _piece(self, block: TextBlock, tokens: int, random: np.random.Generator) -> TextBlock:
        """Texts of a block, drawn at random, of about so many tokens in all."""
        order = random.permutation(len(block.texts))
        lengths = pc.binary_length(block.texts).to_numpy().astype(np.int64)[order]
        reckoned = np.minimum(2 + lengths // 4, self._job.limits.max_seq_length)
        count = int(np.searchsorted(np.cumsum(reckoned), tokens)) + 1
        return block.take(np.sort(order[:count]))

    def _run(self, pieces: Sequence[TextBlock]) -> tuple[list[Commit], float, int, int]:
        """(commits, seconds, padded tokens, tokens) of encoding and writing these, `workers` of them at a time."""
        self._rounds += 1
        cost = [EncodeCost() for _ in pieces]
        started = time.perf_counter()
        with ThreadPoolExecutor(self._workers) as threads:
            done = list(threads.map(self._process, range(len(pieces)), pieces, cost))
        spent = time.perf_counter() - started
        commits = [commit for commit in done if commit is not None]
        return commits, spent, sum(c.padded_tokens for c in cost), sum(c.encoded_tokens for c in cost)

    def _process(self, number: int, block: TextBlock, cost: EncodeCost) -> Commit | None:
        job = self._job
        vectors = encode_or_reject(
            self._tokenize(block),
            lambda some: encode_block(some, self._forward, job.views, job.encoding, cost),
            self._forward.check,
        )
        # Two pieces of one block have one name.
        folder = storage.join(self._folder, f"{self._rounds}-{number}")
        output = Output(folder, job.output.fingerprint, job.output.byte_stream_split)
        done = write_block(output, job.views, self._vocabulary, vectors)
        return done if isinstance(done, Commit) else None  # the file has changed since

    def _sizes(
        self, commits: list[Commit], of_texts: list[Commit], tiny: list[Commit]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """(bytes per row, bytes per part) of each view, by parts of many rows and of the rows of one text."""
        row_bytes, part_bytes = {}, {}
        for view in self._job.views:
            large, small = (
                np.array([(1, p.rows, p.bytes) for c in some if (p := c.parts.get(view.name))], float).reshape(-1, 3)
                for some in (of_texts if view.level in ("text", "record") else commits, tiny)
            )
            (parts, rows, size), (few_parts, few_rows, few_size) = large.sum(axis=0), small.sum(axis=0)
            # size = parts x part_bytes + rows x row_bytes, of both.
            determinant = rows * few_parts - few_rows * parts
            if determinant > 0:
                row = (size * few_parts - few_size * parts) / determinant
                row_bytes[view.name] = max(float(row), 0.0)
                part_bytes[view.name] = max(float((few_size - few_rows * row) / few_parts), 0.0)
            else:
                row_bytes[view.name], part_bytes[view.name] = float(size / max(rows, 1)), 0.0
        return row_bytes, part_bytes
