"""What is left to do of a corpus, counted in slices of it: for `plan`, and for what `run` prints before it starts."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import size_text
from layerbeam.pipeline.dataset.summary import count_words, token_notes
from layerbeam.pipeline.forecast.sampling import (
    PACKED,
    Budget,
    SampledSlice,
    Total,
    draw_slices,
    has_slices,
    read_slices,
)
from layerbeam.pipeline.output.work import PendingWork
from layerbeam.transforms import storage
from layerbeam.transforms.encode.batching import equal_texts, padded_shape, plan_batches
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.flow.blocks import Int64Array, TextBlock, TokenBlock
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views.columns import texts_of_rows
from layerbeam.transforms.views.number_types import NUMBER_TYPES
from layerbeam.transforms.views.view import ViewSpec
from layerbeam.transforms.write.block import counts_of_files

# For `run`: read in some tenths of a second.
RUN_BUDGET = Budget(2 << 20, 256, slice_bytes=1 << 16)

# Statistics of a block, in addition to the counters of `layerbeam.transforms.flow.metrics`.
TEXTS, TEXT_BYTES = "texts", "text_bytes"
SEQUENCE_TOKENS = "sequence_tokens"  # with special tokens, and overlapping windows counted twice
ENCODED_TEXTS, ENCODED = "encoded_texts", "encoded_tokens"  # the same of the texts that equal no earlier one
PADDED = "padded_tokens"
ROWS, PART_ROWS = "rows:{}", "part_rows:{}"  # of a view, and in the parts of its blocks
VECTORS = "vectors:{}"  # of a vector column in these parts

_STANDARD_ERRORS = 2.0


@dataclasses.dataclass(frozen=True)
class Statistic:
    """An estimated total. `margin`: two standard errors, as far as the blocks of the sample differ; 0 if counted."""

    value: float
    margin: float = 0.0

    def rounded(self) -> Statistic:
        return Statistic(round(self.value), round(self.margin))


@dataclasses.dataclass
class CountedBlock:
    """A block of the sample. `weight`: how many such blocks are left to do. `slice`: the number of its slice.

    `records`: without those that have no rows; with all rejects. `distinct`: the records of it with a text that equals
    no earlier one. `lengths`: the tokens of each text, or context, with special tokens, before truncation. `keys`:
    for each view of word types, how often the block has each key.
    """

    kind: str
    slice: int
    weight: float
    records: TextBlock
    distinct: Int64Array
    statistics: dict[str, float]
    lengths: Int64Array
    keys: dict[str, collections.Counter[tuple[object, ...]]]

    def __getitem__(self, statistic: str) -> float:
        return self.statistics.get(statistic, 0.0)


@dataclasses.dataclass
class Estimate:
    """What is left to do in the input files, by a sample of slices.

    `skipped`: files that cannot be read. `seconds`: of one core, for reading and tokenizing the sample.
    """

    blocks: list[CountedBlock]
    views: Sequence[ViewSpec]
    num_blocks: int
    num_slices: int
    files: frozenset[str]
    skipped: list[InputFile]
    is_whole: bool
    seconds: float

    def statistic(self, name: str) -> Statistic:
        """The total of a statistic."""
        variance = 0.0
        for kind in {block.kind for block in self.blocks}:
            blocks = [block for block in self.blocks if block.kind == kind]
            weights = np.array([block.weight for block in blocks])
            values, sizes = (np.array([block[key] for block in blocks]) for key in (name, TEXT_BYTES))
            ratio = float(weights @ values) / max(float(weights @ sizes), 1)
            # A block that is alone says nothing about others.
            differences = weights * (values - ratio * sizes) if len(blocks) > 1 else weights * values
            correction = len(blocks) / max(len(blocks) - 1, 1) * (1 - 1 / weights.clip(1))
            variance += float((correction * differences**2).sum())
        return Statistic(self.sum(name), _STANDARD_ERRORS * math.sqrt(variance))

    def sum(self, name: str) -> float:
        return float(sum(block.weight * block[name] for block in self.blocks))

    def sample_counts(self) -> dict[str, int]:
        """Every statistic of the sample."""
        totals = collections.Counter[str]()
        for block in self.blocks:
            totals.update(block.statistics)
        return {name: round(total) for name, total in totals.items()}

    def in_sample(self, name: str) -> float:
        return float(sum(block[name] for block in self.blocks))

    @property
    def read_seconds(self) -> float:
        """Of one core, for reading and tokenizing everything."""
        return self.seconds * self.sum(TEXT_BYTES) / (self.in_sample(TEXT_BYTES) or 1)

    def lengths(self) -> tuple[Int64Array, npt.NDArray[np.float64]]:
        """(tokens of each text in the sample, how many texts of the corpus it represents)."""
        lengths = [np.empty(0, np.int64), *(block.lengths for block in self.blocks)]
        weights = [np.empty(0), *(np.full(len(block.lengths), block.weight) for block in self.blocks)]
        return np.concatenate(lengths), np.concatenate(weights)

    def rows(self, view: ViewSpec) -> Statistic:
        """Rows of a view. A word type is a row if it occurs `min_count` times."""
        rows = self.statistic(ROWS.format(view.name))
        if not view.aggregates:
            return rows
        found = collections.Counter[tuple[object, ...]]()
        for block in self.blocks:
            found.update(block.keys[view.name])
        frequent = sum(count >= view.min_count for count in found.values())
        if self.is_whole or not found:
            return Statistic(frequent)
        # The share of the frequent ones hardly depends on the size of a corpus.
        in_slices = [set[tuple[object, ...]]() for _ in range(self.num_slices)]
        for block in self.blocks:
            in_slices[block.slice] |= block.keys[view.name].keys()
        times = rows.value / found.total()
        value = grown_types(collections.Counter(itertools.chain(*in_slices)).values(), self.num_slices, times)
        return Statistic(value * frequent / len(found), (value - len(found)) / 2)

    def vectors(self, view: ViewSpec) -> Statistic:
        """Vectors in a vector column of a view: one per row, or per token."""
        return self.statistic(VECTORS.format(view.name)) if view.has_vector_lists else self.rows(view)

    @functools.cached_property
    def view_bytes(self) -> dict[str, int]:
        """Bytes of each view's vectors, before compression. A word type has two: its mean and standard deviation."""
        vectors = {v.name: len(v.vector_columns) * (2 if v.level == "word_type" else 1) for v in self.views}
        return {
            v.name: round(self.vectors(v).value * vectors[v.name] * (v.width * value_bytes(v) + scale_bytes(v)))
            for v in self.views
        }

    @property
    def sums_bytes(self) -> dict[str, int]:
        """Bytes of the sums in the blocks' parts of each view of word types: float64, and as many of squares."""
        return {
            view.name: round(self.sum(PART_ROWS.format(view.name)) * len(view.vector_columns) * view.width * 16)
            for view in self.views
            if view.aggregates
        }


def grown_types(slices_of_types: Collection[int], num_slices: int, times: float) -> float:
    """The types in a corpus so many times as large as a sample, from the number of slices that have each type.

    The curve of types over slices says by what power of the text they grow, and how much that falls with each doubling;
    it goes on like that.

    >>> round(grown_types([8] * 100, 8, 4.0)), round(grown_types([1] * 100, 8, 4.0))
    (100, 400)
    """
    counts = np.bincount(list(slices_of_types), minlength=num_slices + 1)

    def types_in(some: int) -> float:
        """The mean number of types in so many of the slices."""
        missed = [math.comb(num_slices - number, some) / math.comb(num_slices, some) for number in range(len(counts))]
        return float(counts @ (1 - np.array(missed)))

    types = types_in(num_slices)
    if num_slices < 2:
        return types * math.sqrt(times)
    half, quarter = types_in(num_slices // 2), types_in(num_slices // 4)
    power = math.log2(types / half) / math.log2(num_slices / (num_slices // 2))
    before = math.log2(half / quarter) / math.log2((num_slices // 2) / (num_slices // 4)) if quarter else power
    fall, doublings = min(power / before, 1.0) if before else 1.0, math.log2(max(times, 1.0))
    whole = int(doublings)
    exponent = sum(fall**number for number in range(1, whole + 1)) + (doublings - whole) * fall ** (whole + 1)
    return float(types * 2 ** (power * exponent))


class BlockCounter:
    """Counts what blocks hold, by the run's own tokenization."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tokenize = Tokenizer(job.encoder, job.views, job.sequences)
        self._vocabulary = pa.array(job.encoder.vocabulary, pa.string())

    def __call__(self, block: TextBlock, kind: str, number: int) -> CountedBlock:
        job = self._job
        tokens = self._tokenize(block)
        contexts = tokens.contexts
        everything = np.arange(len(contexts.texts))
        distinct, _ = equal_texts(contexts.row_splits, contexts.token_ids, contexts.segment_ids)
        is_distinct = np.isin(contexts.of_text, distinct)
        encoding = job.encoding
        cut = cut_sequences(contexts, everything, encoding)
        distinct_cut = cut_sequences(contexts, distinct, encoding)
        lengths = np.diff(distinct_cut.splits)
        is_short = ~np.isin(distinct_cut.context, list(distinct_cut.vector_index))
        counts = counts_of_files(tokens, self._vocabulary)
        statistics = {name: float(of_files.sum()) for name, of_files in counts.items()} | {
            TEXTS: len(is_distinct),
            TEXT_BYTES: _text_bytes(block, parquet=job.records.format == "parquet"),
            SEQUENCE_TOKENS: len(cut.positions),
            ENCODED_TEXTS: int(np.count_nonzero(is_distinct)),
            ENCODED: len(distinct_cut.positions),
            PADDED: _padded_tokens(lengths[is_short], encoding) + int(lengths[~is_short].sum()),
        }
        keys = {view.name: _count_keys(view, tokens) for view in job.views if view.aggregates}
        for view in job.views:
            rows = len(texts_of_rows(view, tokens))
            in_part = len(keys[view.name]) if view.aggregates else rows
            statistics[ROWS.format(view.name)] = rows
            statistics[PART_ROWS.format(view.name)] = in_part
            statistics[VECTORS.format(view.name)] = (
                len(tokens.rows[view.name].text) if view.has_vector_lists else in_part
            )
        records = block.take(np.flatnonzero(np.isin(block.line, tokens.text.line)))
        records.rejected = tokens.text.rejected
        with_distinct = np.flatnonzero(np.isin(records.line, tokens.text.line[is_distinct]))
        lengths = self._lengths(block, tokens)
        return CountedBlock(kind, number, 1.0, records, with_distinct, statistics, lengths, keys)

    def _lengths(self, block: TextBlock, tokens: TokenBlock) -> Int64Array:
        """int64 [C]: all tokens of what is encoded, also of a text that is truncated, or rejected as too long."""
        if tokens.within is not None:
            return np.diff(tokens.within.row_splits)
        settings = self._job.sequences
        if settings.long_text == "reject":
            whole = dataclasses.replace(settings, long_text="window")
            tokens = tokenize_block(self._tokenize.split(block), self._tokenize.text_tokenizer, whole)
        return (np.diff(tokens.row_splits) + tokens.num_dropped).astype(np.int64)


def _padded_tokens(lengths: Int64Array, encoding: EncodeSettings) -> int:
    """The tokens of the batches that the run makes of sequences of these lengths, padding included."""
    buckets = encoding.length_buckets
    full = encoding.batch_tokens if encoding.only_full_batches else None
    batches = plan_batches(lengths, encoding.batch_tokens, buckets)
    return sum(math.prod(padded_shape(len(batch), int(lengths[batch].max()), buckets, full)) for batch in batches)


def _count_keys(view: ViewSpec, tokens: TokenBlock) -> collections.Counter[tuple[object, ...]]:
    """How often each key of a view of word types occurs: the values of `group_by` and the form."""
    rows = tokens.rows[view.name]
    assert rows.words is not None  # noqa: S101 - for mypy
    columns = [tokens.text.column(name).take(pa.array(rows.text)) for name in view.group_by]
    columns.append(rows.words.forms.take(pa.array(rows.words.form)))
    names = [str(number) for number in range(len(columns))]
    counts = pa.table(columns, names).group_by(names).aggregate([([], "count_all")])
    keys = zip(*(counts[name].to_pylist() for name in names), strict=True)
    return collections.Counter(dict(zip(keys, counts["count_all"].to_pylist(), strict=True)))


def _text_bytes(block: TextBlock, *, parquet: bool) -> int:
    """Decompressed bytes that the block was read from; of Parquet the bytes of its texts."""
    if parquet:
        return int(pc.binary_length(block.texts).to_numpy().sum())
    return block.num_bytes


def estimate(job: Job, work: PendingWork, budget: Budget = RUN_BUDGET, seed: int = 0) -> Estimate:
    """Read slices of the files that are left to do, and count what they hold."""
    count, started = BlockCounter(job), time.process_time()
    deadline = time.monotonic() + budget.seconds
    if any(view.aggregates for view in job.views):  # the rows of their parts depend on the size of a block
        budget = dataclasses.replace(budget, slice_bytes=None)
    draws, totals = draw_slices(job, work.to_read, budget, seed)
    slices, blocks = list[SampledSlice](), list[CountedBlock]()
    is_whole = True
    with contextlib.closing(read_slices(job, draws, budget)) as sampled:
        for slice_ in sampled:
            if time.monotonic() > deadline and sum(block[TEXT_BYTES] for block in blocks) > budget.least_bytes:
                is_whole = False
                break
            blocks += [count(block, slice_.kind, len(slices)) for block in slice_.blocks]
            slices.append(dataclasses.replace(slice_, blocks=()))
    is_whole &= all(slice_.scale <= 1 for slice_ in slices)
    is_whole &= sum(slice_.size for slice_ in slices) >= 0.999 * sum(total.size for total in totals.values())
    num_blocks = _weigh(blocks, slices, totals)
    num_empty = sum(not has_slices(file, job.records) for file in work.to_read)
    return Estimate(
        blocks,
        job.views,
        num_blocks=(len(blocks) if is_whole else max(round(num_blocks), len(blocks))) + num_empty,
        num_slices=len(slices),
        files=frozenset(path for slice_ in slices for path in slice_.files),
        skipped=[file for slice_ in slices for file in slice_.skipped],
        is_whole=is_whole,
        seconds=time.process_time() - started,
    )


def notes_of(sample: Estimate, job: Job) -> list[str]:
    """What the tokenizer does not know of the texts, and which words will have no row, by the texts of a sample."""
    counts = sample.sample_counts()
    lines = token_notes(counts, count_words(counts, job.run_identity["identity"]["views"]))
    return [f"in the texts that were read: {line}" for line in lines]


def _weigh(blocks: Sequence[CountedBlock], slices: Sequence[SampledSlice], totals: Mapping[str, Total]) -> float:
    """Set how many blocks each one stands for, by the bytes of its slice; returns the number of all blocks.

    That is as many as the slices are, and as many more as in the sample.
    """
    points, sizes = collections.Counter[str](), collections.defaultdict[str, float](float)
    for slice_ in slices:
        points[slice_.kind] += slice_.points
        sizes[slice_.kind] += slice_.size
    in_slice = collections.Counter(block.slice for block in blocks)
    num_blocks, weights = float(sum(total.slices for total in totals.values())), list[float]()
    for number, slice_ in enumerate(slices):
        size = totals[slice_.kind].size
        if slice_.points:
            weight = size / slice_.size * slice_.points / points[slice_.kind]
        else:
            weight = 1.0 if sizes[slice_.kind] > 0.999999 * size else size / sizes[slice_.kind]
        in_whole = in_slice[number] * (1 if slice_.kind == PACKED else slice_.scale)
        num_blocks += weight * (in_whole - slice_.slices)
        weights.append(weight * slice_.scale)
    for block in blocks:
        block.weight = weights[block.slice]
    return num_blocks


def value_bytes(view: ViewSpec) -> float:
    """Bytes of one value in the view's files. In JSON it has about ten characters, a code four; fewer if compressed."""
    if view.format == "jsonl":
        return (1.6 if view.compress else 4.3) if view.dtype == "int8" else (5 if view.compress else 10.5)
    return NUMBER_TYPES[view.dtype].value_bytes


def scale_bytes(view: ViewSpec) -> int:
    """Bytes of the scale of one vector."""
    return NUMBER_TYPES[view.dtype].row_bytes(0)


def describe(estimate: Estimate, view: ViewSpec) -> str:
    """`about 6.6 GB in `tokens`: 1.07 M tokens x 4 layers x 384 x 4 bytes`."""
    num_vectors = round(estimate.vectors(view).value)
    if not num_vectors:
        return f"no rows in `{view.name}`"
    unit = "token" if view.has_vector_lists else view.level
    layers = len(view.layers) if view.combine == "separate" and not view.uses_pooler else 1
    factors = [
        f"{count_text(num_vectors)} {unit.replace('_', ' ')}{'' if num_vectors == 1 else 's'}",
        *([f"{layers} layers"] if layers > 1 else []),
        f"{view.width} x {value_bytes(view):g} bytes" + (f" (+ {scale_bytes(view)})" if scale_bytes(view) else ""),
    ]
    sums = estimate.sums_bytes.get(view.name)
    kept = f", and {size_text(sums)} of sums for later runs" if sums else ""
    return f"about {size_text(estimate.view_bytes[view.name])} in `{view.name}`: {' x '.join(factors)}{kept}"


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
