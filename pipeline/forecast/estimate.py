"""What is left to do of a corpus, by draws of it: for `plan`, and for what `run` prints before it starts."""

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
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import count_noun, size_text
from layerbeam.pipeline.dataset.summary import count_words, token_notes
from layerbeam.pipeline.forecast.sampling import Budget, Draw, Sampling, has_records
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
RUN_BUDGET = Budget(2 << 20, 256, range_bytes=1 << 16)

# Statistics of a block, in addition to the counters of `layerbeam.transforms.flow.metrics`.
TEXTS, TEXT_BYTES = "texts", "text_bytes"
SEQUENCE_TOKENS = "sequence_tokens"  # with special tokens, and overlapping windows counted twice
ENCODED_TEXTS, ENCODED = "encoded_texts", "encoded_tokens"  # the same of the texts that equal no earlier one
PADDED = "padded_tokens"
ROWS, PART_ROWS = "rows:{}", "part_rows:{}"  # of a view, and in the parts of its blocks
VECTORS = "vectors:{}"  # of a vector column in these parts

_STANDARD_ERRORS = 2.0
# What the Hub takes in a folder, and the size of parts that is proposed where there would be more.
MANY_FILES = 10_000
_PART_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class Statistic:
    """An estimated total. `margin`: two standard errors, as far as the draws differ; 0 if counted."""

    value: float
    margin: float = 0.0

    @staticmethod
    def of(totals: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> Statistic:
        """The sum of what each draw stands for. `sizes`: bytes of text."""
        value, num_draws = float(totals.sum()), len(totals)
        # A draw that is alone says nothing about others.
        differences = totals - value * sizes / max(sizes.sum(), 1) if num_draws > 1 else totals
        correction = num_draws / max(num_draws - 1, 1)
        return Statistic(value, _STANDARD_ERRORS * math.sqrt(correction * float(differences @ differences)))

    def rounded(self) -> Statistic:
        return Statistic(round(self.value), round(self.margin))


@dataclasses.dataclass
class CountedBlock:
    """A block of the sample. `weight`: how many such blocks are left to do. `draw`: the number of its draw.

    `records`: without those that have no rows; with all rejects. `distinct`: the records of it with a text that equals
    no earlier one. `lengths`: the tokens of each text, or context, with special tokens, before truncation. `keys`:
    for each view of word types, how often the block has each key.
    """

    draw: int
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
    """What is left to do in the input files, by draws.

    `draw_bytes`: of text that each of the D draws stands for, float64 [D]. `skipped`: files that cannot be read.
    `seconds`: of one core, for reading and tokenizing the sample.
    """

    blocks: list[CountedBlock]
    views: Sequence[ViewSpec]
    draw_bytes: npt.NDArray[np.float64]
    num_blocks: int
    files: frozenset[str]
    skipped: list[InputFile]
    is_whole: bool
    seconds: float

    @property
    def num_draws(self) -> int:
        return len(self.draw_bytes)

    def statistic(self, name: str) -> Statistic:
        """The total of a statistic."""
        totals = np.zeros(self.num_draws)
        for block in self.blocks:
            totals[block.draw] += block.weight * block[name]
        return Statistic(float(totals.sum())) if self.is_whole else Statistic.of(totals, self.draw_bytes)

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
        blocks = [block.keys[view.name].keys() for block in self.blocks if block.keys[view.name]]
        blocks_of_types = collections.Counter(itertools.chain(*blocks)).values()
        value = grown_types(blocks_of_types, len(blocks), rows.value / found.total())
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


def grown_types(blocks_of_types: Collection[int], num_blocks: int, times: float) -> float:
    """The types in a corpus so many times as large as some blocks, from the number of blocks that have each type.

    The types in a quarter, a half and all of the blocks say by what power of the text they grow, and how much that
    falls with each doubling; it goes on like that.

    >>> round(grown_types([8] * 100, 8, 4.0)), round(grown_types([1] * 100, 8, 4.0))
    (100, 400)
    """
    counts = np.bincount(list(blocks_of_types), minlength=num_blocks + 1)

    def types_in(some: int) -> float:
        """The mean number of types in so many of the blocks."""
        missed = [math.comb(num_blocks - number, some) / math.comb(num_blocks, some) for number in range(len(counts))]
        return float(counts @ (1 - np.array(missed)))

    types, doublings = types_in(num_blocks), math.log2(max(times, 1.0))
    if num_blocks < 2:
        return types * 2 ** (doublings / 2)
    half, quarter = types_in(num_blocks // 2), types_in(num_blocks // 4)
    power = math.log2(types / half) / math.log2(num_blocks / (num_blocks // 2))
    before = math.log2(half / quarter) / math.log2((num_blocks // 2) / (num_blocks // 4)) if quarter else power
    fall = min(power / before, 1.0) if before else 1.0
    exponent = doublings if fall == 1 else fall * (1 - fall**doublings) / (1 - fall)
    return float(types * 2 ** (power * exponent))


class BlockCounter:
    """Counts what blocks hold, by the run's own tokenization."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tokenize = Tokenizer(job.encoder, job.views, job.sequences)
        self._vocabulary = pa.array(job.encoder.vocabulary, pa.string())

    def __call__(self, block: TextBlock, draw: int) -> CountedBlock:
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
            SEQUENCE_TOKENS: int(cut.splits[-1]),
            ENCODED_TEXTS: int(np.count_nonzero(is_distinct)),
            ENCODED: int(distinct_cut.splits[-1]),
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
        return CountedBlock(draw, 1.0, records, with_distinct, statistics, lengths, keys)

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
    batches = plan_batches(lengths, encoding.batch_tokens, buckets, only_full=encoding.only_full_batches)
    return sum(math.prod(padded_shape(len(batch), int(lengths[batch].max()), buckets, full)) for batch in batches)


def _count_keys(view: ViewSpec, tokens: TokenBlock) -> collections.Counter[tuple[object, ...]]:
    """How often each key of a view of word types occurs: the values of `group_by` and the form."""
    rows = tokens.rows[view.name]
    assert rows.words is not None  # noqa: S101 - for mypy
    columns = [tokens.text.column_of_rows(name, rows.text, rows.words.word_index) for name in view.group_by]
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
    """Draw from the files that are left to do, and count what the draws hold."""
    count, started = BlockCounter(job), time.process_time()
    deadline = time.monotonic() + budget.seconds
    if any(view.aggregates for view in job.views):  # the rows of their parts depend on the size of a block
        budget = dataclasses.replace(budget, range_bytes=None)
    sampling = Sampling(job, work.to_read, budget, seed)
    draws, blocks = list[Draw](), list[CountedBlock]()
    is_whole = sampling.is_whole
    with contextlib.closing(sampling.read()) as read:
        for draw in read:
            if time.monotonic() > deadline and sum(block[TEXT_BYTES] for block in blocks) > budget.least_bytes:
                is_whole = False
                break
            blocks += [count(block, len(draws)) for block in draw.blocks]
            draws.append(dataclasses.replace(draw, blocks=()))
    is_whole &= not any(draw.is_cut_off for draw in draws)
    weights = np.ones(len(draws)) if is_whole else _weights(draws, sampling)
    for block in blocks:
        block.weight = float(weights[block.draw])
    in_draws = np.bincount([block.draw for block in blocks], minlength=len(draws))
    if is_whole:
        num_blocks = _count_blocks(draws, in_draws)
    else:
        more = float(weights @ (in_draws - [draw.slices for draw in draws]))
        num_blocks = sampling.num_slices + max(round(more), 0)
    return Estimate(
        blocks,
        job.views,
        draw_bytes=weights * [draw.found for draw in draws],
        num_blocks=num_blocks + sum(not has_records(file, job.records) for file in work.to_read),
        files=frozenset(path for draw in draws for path in draw.files),
        skipped=[file for draw in draws for file in draw.skipped],
        is_whole=is_whole,
        seconds=time.process_time() - started,
    )


def _count_blocks(draws: Sequence[Draw], in_draws: Int64Array) -> int:
    """The blocks of files that are read whole; a file without records has one, too."""
    return sum(max(number, not draw.skipped) for number, draw in zip(in_draws.tolist(), draws, strict=True))


def _weights(draws: Sequence[Draw], sampling: Sampling) -> npt.NDArray[np.float64]:
    """How many times what each draw read is left to do: the same number of bytes for each."""
    hits, sizes, found = (
        np.array([getattr(draw, name) for draw in draws], float) for name in ("hits", "size", "found")
    )
    # Compressed files may hold more text than was expected, or less.
    compressed = hits * [draw.is_compressed for draw in draws]
    more = float(compressed @ (found / sizes)) / (compressed.sum() or 1)
    left = sampling.plain_bytes + sampling.compressed_bytes * (more or 1)
    return np.asarray(hits / sizes * left / (float(hits @ (found / sizes)) or left), np.float64)


def notes_of(sample: Estimate, job: Job) -> list[str]:
    """What the tokenizer does not know of the texts, and which words will have no row, by the texts of a sample."""
    counts = sample.sample_counts()
    lines = token_notes(counts, count_words(counts, job.run_identity["identity"]["views"]))
    return [f"in the texts that were read: {line}" for line in lines]


def files_note(expected: Estimate, job: Job, work: PendingWork) -> str | None:
    """What is said of views with more files than the Hub takes in a folder; None if there are none.

    Of a folder that has rows the size of blocks cannot change any more.
    """
    kept, new = work.catalog.num_live_blocks() if work.texts_done else 0, expected.num_blocks
    of_blocks = [view for view in expected.views if not view.aggregates]
    files = {view.name: kept + min(new, round(expected.rows(view).value)) for view in of_blocks}
    most = max(files.values(), default=0)
    if most <= MANY_FILES:
        return None
    names = ", ".join(name for name, number in files.items() if number > MANY_FILES)
    note = (
        f"{names}: about {count_text(most)} files, one for each block: good for edits, slow to open for Spark, DuckDB "
        f"and BigQuery, and Hugging Face's Hub takes {MANY_FILES:,} in a folder; `layerbeam export` makes few of them"
    )
    if work.texts_done:
        return note
    if job.config.output.target_part_bytes is not None:
        return f"{note}; a larger output.target_part_bytes or input.slice_bytes makes fewer from the start"
    fewer = max(
        expected.sum(TEXT_BYTES) / job.config.input.slice_bytes,
        *(size / _PART_BYTES for size in expected.view_bytes.values()),
    )
    return f"{note}; output.target_part_bytes: {_PART_BYTES} makes about {count_text(math.ceil(fewer))} from the start"


def num_changed(work: PendingWork) -> int:
    """The number of files to do that the folder has rows of, or may have: new ones, if others are gone."""
    catalog = work.catalog
    if not (work.to_read and catalog.has_rows):
        return 0
    not_begun = (file for file in work.to_read if not (len(file.done.ranges) or file.done.kept_views))
    paths = {one.path for file in not_begun for one in (file.file, *file.others)}
    recorded = {path for path, _ in catalog.versions()}
    return len(paths & recorded - catalog.invalid()) + min(len(paths - recorded), len(work.missing) + len(work.pruned))


def changed_text(number: int) -> str:
    """What is said of this many changed files.

    >>> changed_text(2)
    '2 files changed or moved, or packed with such; rows of bytes or texts that the folder has are copied'
    """
    files = count_noun(number, "file")
    return f"{files} changed or moved, or packed with such; rows of bytes or texts that the folder has are copied"


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
