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

from layerbeam.pipeline.cli.console import size_text
from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.find import PendingWork
from layerbeam.pipeline.plan.sampling import Budget, Chunk, Stratum, draw, text_bytes
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Int64Array, TextBlock, TokenBlock
from layerbeam.transforms.columns import records_of
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.input.lines import tokens_by_length
from layerbeam.transforms.settings import BlockLimits, SequenceSettings
from layerbeam.transforms.slice.slices import byte_ranges
from layerbeam.transforms.tokenize.row_index import keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View

# For `run`: read in some tenths of a second.
RUN_BUDGET = Budget(2 << 20, 256)

# Statistics of a chunk, in addition to the counters of `layerbeam.transforms.metrics`.
TEXTS = "texts"
ENCODED = "encoded_tokens"  # with [CLS] and [SEP], before equal texts are merged
TEXT_BYTES = "text_bytes"
BLOCK_ROWS = "block_rows"  # tokens as `BlockLimits` counts them
ROWS = "rows:{}"

# Student's t for 95 % and ten degrees of freedom: a stratum may have few chunks.
_STANDARD_ERRORS = 2.2


@dataclasses.dataclass(frozen=True)
class Statistic:
    """An estimated total. In 95 of 100 samples the truth is at most `error_bound` away; 0 if all was counted."""

    value: float
    error_bound: float = 0.0


@dataclasses.dataclass
class Estimate:
    """What is left to do, by a sample."""

    strata: list[Stratum]
    views: Sequence[View]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for stratum in self.strata for chunk in stratum.chunks]

    def statistic(self, name: str) -> Statistic:
        """The total of a statistic over the corpus."""
        totals = [_total(stratum, name) for stratum in self.strata]
        variance = sum(variance for _, variance in totals)
        return Statistic(sum(value for value, _ in totals), _STANDARD_ERRORS * math.sqrt(variance))

    def rows(self, view: View) -> Statistic:
        """Rows of a view."""
        rows = self.statistic(ROWS.format(view.name))
        return self._word_types(view, rows.value) if view.aggregates else rows

    def _word_types(self, view: View, words: float) -> Statistic:
        """Word types among so many words: they grow as a power of the words (Heaps' law), as in the sample."""
        chunks = [chunk for chunk in self.chunks if view.name in chunk.forms]
        (half_words, half_types), (all_words, all_types) = (
            (sum(c[ROWS.format(view.name)] for c in some), len(set().union(*(c.forms[view.name] for c in some))))
            for some in (chunks[::2], chunks)
        )
        if self.is_whole or not all_types:
            return Statistic(all_types)
        exponent = 1.0
        if half_types and all_words > half_words:
            exponent = min(math.log(all_types / half_types) / math.log(all_words / half_words), 1.0)
        value = all_types * max(words / all_words, 1.0) ** exponent
        return Statistic(value, value / 2)

    @property
    def view_bytes(self) -> dict[str, int]:
        """Bytes of each view's vectors, before compression. A word type has two: its mean and standard deviation."""
        values = {v.name: len(v.vector_columns) * v.width * (2 if v.level == "word_type" else 1) for v in self.views}
        return {v.name: round(self.rows(v).value * values[v.name] * value_bytes(v)) for v in self.views}

    @property
    def total_bytes(self) -> int:
        return sum(self.view_bytes.values())

    @property
    def is_whole(self) -> bool:
        """Whether the sample is the whole corpus: all statistics are counts then."""
        return all(stratum.fraction_read > 1 - 1e-9 for stratum in self.strata)

    def lengths(self) -> tuple[Int64Array, npt.NDArray[np.float64]]:
        """(tokens of each text in the sample, how many texts of the corpus it represents)."""
        lengths = np.concatenate([np.empty(0, np.int64), *(chunk.lengths for chunk in self.chunks)])
        weights = [np.full(len(chunk.lengths), chunk.weight) for chunk in self.chunks]
        return lengths, np.concatenate([np.empty(0), *weights])


class Tokenizer:
    """A run's tokenization: texts to tokens and to the rows of its views."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._wordpiece = WordPiece(job.encoder.vocabulary, job.encoder.do_lower_case)
        self._keep = keep_words_of(job.views, self._wordpiece)

    def __call__(self, block: TextBlock) -> TokenBlock:
        return find_rows(tokenize_block(block, self._wordpiece, self.job.sequences), self.job.views, self._keep)

    def lengths(self, block: TextBlock, tokens: TokenBlock) -> Int64Array:
        """int64 [T]: all tokens of each text, also of one that is truncated, or rejected because it is too long."""
        settings = self.job.sequences
        if settings.long_text == "reject":
            tokens = tokenize_block(block, self._wordpiece, SequenceSettings(settings.max_seq_length, "window"))
        return (np.diff(tokens.row_splits) + tokens.num_dropped).astype(np.int64)


def estimate(tokenize: Tokenizer, work: PendingWork, budget: Budget = RUN_BUDGET, seed: int = 0) -> Estimate:
    """Sample and count the files that are left to do."""
    strata = draw(tokenize.job, work.to_read, budget, seed)
    for stratum in strata:
        for chunk in stratum.chunks:
            chunk.weight = stratum.weight * chunk.scale
            if chunk.block is not None:
                _count(tokenize, chunk, chunk.block)
    return Estimate(strata, tokenize.job.views)


def _count(tokenize: Tokenizer, chunk: Chunk, block: TextBlock) -> None:
    """Count what a chunk holds, by the run's own code."""
    job = tokenize.job
    tokens = tokenize(block)
    num_texts = len(tokens.num_dropped)
    sequences = cut_sequences(tokens, np.arange(num_texts), job.encoding.max_seq_length, job.encoding.window_overlap)
    names = (metrics.RECORDS, metrics.BLANK, metrics.FILTERED, metrics.REJECTED)
    chunk.statistics = {name: float(tokens.text.counts.get(name, 0)) for name in names} | {
        TEXTS: num_texts,
        ENCODED: len(sequences.positions),
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
        TEXT_BYTES: text_bytes(block, parquet=job.records.format == "parquet"),
        BLOCK_ROWS: _block_rows(block, job.limits),
    }
    for view in job.views:
        rows = tokens.rows[view.name]
        num_rows = len(records_of(tokens.text)) - 1 if view.level == "record" else len(rows.text)
        chunk.statistics[ROWS.format(view.name)] = num_rows
        if view.aggregates and rows.words is not None:
            chunk.forms[view.name] = set(rows.words.forms.take(np.unique(rows.words.form)).to_pylist())
    chunk.lengths = tokenize.lengths(block, tokens)
    chunk.reject_reasons.update(reject.kind for reject in tokens.text.rejected)


def _block_rows(block: TextBlock, limits: BlockLimits) -> int:
    lengths = pc.binary_length(block.texts).to_numpy().astype(np.int64) + 1
    if limits.sentence_bytes is not None:  # the limit is for lengths of records, these are of sentences
        return int(2 * len(lengths) + lengths.sum() // 4)
    return int(tokens_by_length(lengths, limits).sum())


def _total(stratum: Stratum, name: str) -> tuple[float, float]:
    """(the stratum's total of a statistic, its variance): the ratio estimate of Cochran, Sampling Techniques, ch. 6."""
    sizes = np.array([chunk.size for chunk in stratum.chunks])
    values = np.array([chunk[name] * chunk.scale for chunk in stratum.chunks])
    if not sizes.sum():
        return 0.0, 0.0
    ratio, count, unread = values.sum() / sizes.sum(), len(sizes), 1 - stratum.fraction_read
    total = float(ratio * stratum.total)
    if unread < 1e-9:
        return total, 0.0
    if count < 2:
        return total, (total / 2) ** 2  # one chunk does not show how much chunks differ
    residuals = float(((values - ratio * sizes) ** 2).sum())
    return total, unread * count / (count - 1) * residuals * stratum.weight**2


def expected_blocks(estimate: Estimate, job: Job) -> int:
    """How many blocks a run cuts: a block ends at each limit and at the end of each byte range of a file."""
    return round(sum(_blocks(stratum, job.limits) for stratum in estimate.strata))


def _blocks(stratum: Stratum, limits: BlockLimits) -> float:
    """The blocks of a stratum, by the mean length of its records; at least one per file."""
    limit_of = {TEXT_BYTES: limits.text_bytes, BLOCK_ROWS: limits.token_rows, TEXTS: limits.text_rows}
    sums = {name: sum(chunk[name] for chunk in stratum.chunks) for name in limit_of}
    if stratum.kind == "files" or not sums[TEXT_BYTES] or not sums[TEXTS]:
        return len(stratum.files) if stratum.kind == "files" else 0
    record_bytes = sums[TEXT_BYTES] / sums[TEXTS]
    block_bytes = max(sums[TEXT_BYTES] / max(sums[name] / limit for name, limit in limit_of.items()), record_bytes)
    text_per_byte = sum(chunk[TEXT_BYTES] * chunk.weight for chunk in stratum.chunks) / stratum.total
    blocks = 0.0
    for file in stratum.files:
        lengths = [file.file.size * text_per_byte]
        if stratum.kind == "ranges":
            lengths = [(end or 0) - start for start, end in byte_ranges(file.file, limits.text_bytes)]
        # A range in which no record begins has no block.
        in_file = [math.ceil(n / block_bytes) if n > block_bytes else min(n / record_bytes, 1) for n in lengths]
        blocks += max(sum(in_file), 1)
    return blocks


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


def count_text(count: int) -> str:
    """
    >>> count_text(1_070_000), count_text(12_345)
    ('1.07 M', '12,345')
    """
    return f"{count / 1e6:.3g} M" if count >= 1_000_000 else f"{count:,}"
