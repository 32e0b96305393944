"""What is left to do of a corpus, estimated from a sample: for `plan`, and for what `run` prints before it starts."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import size_text
from layerbeam.pipeline.output.find import PendingWork
from layerbeam.pipeline.run.sampling import Budget, Chunk, draw, text_bytes
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Int64Array, TextBlock, TokenBlock
from layerbeam.transforms.columns import records_of
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.input.records import tokens_by_length
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, join_small_files
from layerbeam.transforms.tokenize import sequences
from layerbeam.transforms.views import View

# For `run`: read in some tenths of a second.
RUN_BUDGET = Budget(2 << 20, 256)

# Statistics of a chunk, in addition to the counters of `layerbeam.transforms.metrics`.
TEXTS = "texts"
ENCODED = "encoded_tokens"  # with [CLS] and [SEP], before equal texts are merged
TEXT_BYTES = "text_bytes"
BLOCK_ROWS = "block_rows"  # tokens as `BlockLimits` counts them
ROWS = "rows:{}"

_STANDARD_ERRORS = 2.2  # Student's t for 95 % and ten degrees of freedom: a sample may have few chunks
_HEAPS_EXPONENT = 0.6  # the number of word types grows with this power of the words


@dataclasses.dataclass(frozen=True)
class Statistic:
    """An estimated total. In 95 of 100 samples the truth is at most `margin` away; 0 if all was counted."""

    value: float
    margin: float = 0.0

    def rounded(self) -> Statistic:
        return Statistic(round(self.value), round(self.margin))


@dataclasses.dataclass
class Estimate:
    """What is left to do in these files, by a sample."""

    files: Sequence[FileToRead]
    chunks: list[Chunk]
    sizes: npt.NDArray[np.float64]
    views: Sequence[View]

    def statistic(self, name: str) -> Statistic:
        """The total of a statistic over the corpus.

        The regression estimator of Cochran, Sampling Techniques, chapter 7: the chunks' sizes have known totals.
        """
        weights = np.array([chunk.weight for chunk in self.chunks])
        values = weights * np.array([chunk[name] for chunk in self.chunks])
        if self.is_whole:
            return Statistic(float(values.sum()))
        sizes = np.array([chunk.sizes for chunk in self.chunks]) / self.sizes.clip(1)
        slopes, _, rank, _ = np.linalg.lstsq(sizes, values, rcond=None)
        total = float(values.sum() + (np.sign(self.sizes) - sizes.sum(axis=0)) @ slopes)
        # What was read completely has no error.
        residuals = np.sqrt(1 - 1 / weights.clip(1)) * (values - sizes @ slopes)
        variance = len(values) / max(len(values) - rank, 1) * float(residuals @ residuals)
        return Statistic(max(total, 0.0), _STANDARD_ERRORS * math.sqrt(variance))

    def rows(self, view: View) -> Statistic:
        """Rows of a view. Of word types, as many more than in the sample as Heaps' law says."""
        rows = self.statistic(ROWS.format(view.name))
        if not view.aggregates:
            return rows
        types = len(set().union(*(chunk.forms.get(view.name, ()) for chunk in self.chunks)))
        if self.is_whole or not types:
            return Statistic(types)
        words = sum(chunk[ROWS.format(view.name)] for chunk in self.chunks)
        value = types * max(rows.value / words, 1.0) ** _HEAPS_EXPONENT
        return Statistic(value, value / 2)

    @property
    def view_bytes(self) -> dict[str, int]:
        """Bytes of each view's vectors, before compression. A word type has two: its mean and standard deviation."""
        values = {v.name: len(v.vector_columns) * v.width * (2 if v.level == "word_type" else 1) for v in self.views}
        return {v.name: round(self.rows(v).value * values[v.name] * value_bytes(v)) for v in self.views}

    @property
    def is_whole(self) -> bool:
        """Whether the sample is the whole corpus: all statistics are counts then."""
        return all(chunk.weight < 1 + 1e-9 for chunk in self.chunks)

    def lengths(self) -> tuple[Int64Array, npt.NDArray[np.float64]]:
        """(tokens of each text in the sample, how many texts of the corpus it represents)."""
        lengths = np.concatenate([np.empty(0, np.int64), *(chunk.lengths for chunk in self.chunks)])
        weights = [np.full(len(chunk.lengths), chunk.weight) for chunk in self.chunks]
        return lengths, np.concatenate([np.empty(0), *weights])


class Tokenizer:
    """A run's tokenization: texts to tokens and to the rows of its views."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._tokenize = sequences.Tokenizer(job.encoder, job.views, job.sequences)

    def __call__(self, block: TextBlock) -> TokenBlock:
        return self._tokenize(block)

    def lengths(self, block: TextBlock, tokens: TokenBlock) -> Int64Array:
        """int64 [T]: all tokens of each text, also of one that is truncated, or rejected because it is too long."""
        settings = self.job.sequences
        if settings.long_text == "reject":
            whole = dataclasses.replace(settings, long_text="window")
            tokens = sequences.tokenize_block(block, self._tokenize.text_tokenizer, whole)
        return (np.diff(tokens.row_splits) + tokens.num_dropped).astype(np.int64)


def estimate(tokenize: Tokenizer, work: PendingWork, budget: Budget = RUN_BUDGET, seed: int = 0) -> Estimate:
    """Sample and count the files that are left to do."""
    chunks, sizes = draw(tokenize.job, work.to_read, budget, seed)
    for chunk in chunks:
        if chunk.block is not None:
            _count(tokenize, chunk, chunk.block)
    return Estimate(work.to_read, chunks, sizes, tokenize.job.views)


def _count(tokenize: Tokenizer, chunk: Chunk, block: TextBlock) -> None:
    """Count what a chunk holds, by the run's own code."""
    job = tokenize.job
    lengths = pc.binary_length(block.texts).to_numpy().astype(np.int64)
    tokens = tokenize(block)
    num_texts = len(tokens.num_dropped)
    sequences = cut_sequences(tokens, np.arange(num_texts), job.encoding.max_seq_length, job.encoding.window_overlap)
    names = (metrics.RECORDS, *metrics.OF_SENTENCES)
    chunk.statistics = {name: float(tokens.text.total(name)) for name in names} | {
        TEXTS: num_texts,
        ENCODED: len(sequences.positions),
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
        TEXT_BYTES: text_bytes(block, parquet=job.records.format == "parquet"),
        BLOCK_ROWS: int(tokens_by_length(lengths + 1, dataclasses.replace(job.limits, sentence_bytes=None)).sum()),
    }
    for view in job.views:
        rows = tokens.rows[view.name]
        num_rows = len(records_of(tokens.text)) - 1 if view.level == "record" else len(rows.text)
        chunk.statistics[ROWS.format(view.name)] = num_rows
        if view.aggregates and rows.words is not None:
            chunk.forms[view.name] = set(rows.words.forms.take(np.unique(rows.words.form)).to_pylist())
    chunk.lengths = tokenize.lengths(block, tokens)
    chunk.reject_reasons.update(reject.kind for reject in tokens.text.rejected)


def expected_blocks(estimate: Estimate, job: Job) -> int:
    """How many blocks a run cuts: a block ends at each limit and at the end of each byte range of a file."""
    limits = job.limits
    records, size, rows, texts = (estimate.statistic(n).value for n in (metrics.RECORDS, TEXT_BYTES, BLOCK_ROWS, TEXTS))
    if not texts or not size:
        return 0
    record_bytes = size / texts
    per_byte = max(1 / limits.text_bytes, rows / size / limits.token_rows, texts / size / limits.text_rows)
    block_bytes = max(1 / per_byte, record_bytes)
    is_parquet = job.records.format == "parquet"
    packed = {f.file.path: f.file.size for f in estimate.files if is_parquet or storage.is_compressed(f.file.path)}
    packed_text = sum(chunk.weight * chunk[TEXT_BYTES] for chunk in estimate.chunks if chunk.path in packed)
    empty = {chunk.path for chunk in estimate.chunks if chunk.weight <= 1}
    empty -= {chunk.path for chunk in estimate.chunks if chunk[TEXTS] or chunk.weight > 1}
    blocks = 0.0
    files = (work for work in estimate.files if work.file.path not in empty)
    for work in join_small_files(files, limits, job.records):
        if work.others:
            blocks += 1
            continue
        lengths = [
            work.file.size * packed_text / sum(packed.values()) if end is None else end - start
            for start, end in byte_ranges(work.file, limits.text_bytes, job.records)
        ]
        if work.max_records is not None:
            lengths = [sum(c.weight * c[TEXT_BYTES] for c in estimate.chunks if c.path == work.file.path)]
        # A range in which no record begins has no block.
        in_file = [math.ceil(n / block_bytes) if n > block_bytes else min(n / record_bytes, 1) for n in lengths]
        blocks += max(sum(in_file), 1)
    # A block has at least one record.
    return min(round(blocks), max(round(records), len(estimate.files)))


def value_bytes(view: View) -> float:
    """Bytes of one value in the view's files; in JSON about ten characters, half of that compressed."""
    if view.format == "jsonl":
        return 5 if view.compress else 10.5
    return np.dtype(view.dtype).itemsize


def describe(estimate: Estimate, view: View) -> str:
    """`about 6.6 GB in `tokens`: 1.07 M tokens x 4 layers x 384 x 4 bytes`."""
    num_rows = round(estimate.rows(view).value)
    if not num_rows:
        return f"no rows in `{view.name}`"
    layers = len(view.layers) if view.combine == "separate" and not view.uses_pooler else 1
    factors = [
        f"{count_text(num_rows)} {view.level.replace('_', ' ')}{'' if num_rows == 1 else 's'}",
        *([f"{layers} layers"] if layers > 1 else []),
        f"{view.width} x {value_bytes(view):g} bytes",
    ]
    return f"about {size_text(estimate.view_bytes[view.name])} in `{view.name}`: {' x '.join(factors)}"


def free_bytes(output_path: str) -> int | None:
    """Free space on the output's disk; None for object stores, where it is unknown."""
    if not storage.is_local(output_path):
        return None
    folder = os.path.abspath(output_path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def count_text(count: float) -> str:
    """
    >>> count_text(1_070_000), count_text(12_345)
    ('1.07 M', '12,345')
    """
    return f"{count / 1e6:.3g} M" if count >= 1_000_000 else f"{count:,}"
