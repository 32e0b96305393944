"""What a corpus holds and what a run makes of it, told from a sample before it starts: `plan`, and what `run` says."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from layerbeam.pipeline.cli.console import size_text
from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.find import PendingWork
from layerbeam.pipeline.plan.sampling import Budget, Place, Stratum, draw, text_bytes
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import TextBlock, TokenBlock
from layerbeam.transforms.columns import records_of
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.input.lines import tokens_by_length
from layerbeam.transforms.settings import BlockLimits, SequenceSettings
from layerbeam.transforms.slice.slices import byte_ranges
from layerbeam.transforms.tokenize.row_index import keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View

# Read in some tenths of a second.
OF_A_RUN = Budget(2 << 20, 256)

# Figures of a place beside the counters of `layerbeam.transforms.metrics`.
TEXTS = "texts"
ENCODED = "encoded_tokens"  # with [CLS] and [SEP], before equal texts are put together
TEXT_BYTES = "text_bytes"
BLOCK_ROWS = "block_rows"  # tokens as `BlockLimits` reckons them
ROWS = "rows:{}"

_NORMAL = 1.96  # 95 % of the normal distribution are as near


@dataclasses.dataclass(frozen=True)
class Figure:
    """An estimate, and how far off the truth may be in 95 samples of 100; 0 where all was counted."""

    value: float
    margin: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Total:
    value: float
    variance: float = 0.0
    freedom: float = 1.0


@dataclasses.dataclass
class Counted:
    """A place, with what is in it: `figures` by name; `lengths`: of each text all its tokens, [CLS] and [SEP] too."""

    place: Place
    figures: dict[str, float]
    lengths: npt.NDArray[np.int64]
    reasons: collections.Counter[str]
    forms: dict[str, set[str]]


@dataclasses.dataclass
class Estimate:
    """What is left to do. `strata`: the sample, with what was counted in each of its places."""

    strata: list[tuple[Stratum, list[Counted]]]
    views: Sequence[View]

    def figure(self, name: str) -> Figure:
        """The total of a figure over the corpus."""
        parts = [_total(s, [(c.place, c.figures.get(name, 0)) for c in counted]) for s, counted in self.strata]
        variance = sum(part.variance for part in parts)
        if not variance:
            return Figure(sum(part.value for part in parts))
        # Satterthwaite's degrees of freedom: few places in the strata that differ most are little to go by.
        freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts)
        return Figure(sum(part.value for part in parts), t_quantile(freedom) * math.sqrt(variance))

    def rows(self, view: View) -> Figure:
        """Rows of a view."""
        rows = self.figure(ROWS.format(view.name))
        return _forms(self, view, rows) if view.aggregates else rows

    @property
    def view_bytes(self) -> dict[str, int]:
        """Bytes of each view's vectors, before compression."""
        return {view.name: round(self.rows(view).value * _row_bytes(view)) for view in self.views}

    @property
    def total_bytes(self) -> int:
        return sum(self.view_bytes.values())

    @property
    def is_whole(self) -> bool:
        """Whether all of the corpus was read: the figures are counts then."""
        return all(stratum.share_read > 1 - 1e-9 for stratum, _ in self.strata)

    @property
    def left_out(self) -> dict[str, str]:
        """Files that cannot be read, of those that were looked into, and why."""
        return {c.place.path: c.place.left_out for _, counted in self.strata for c in counted if c.place.left_out}

    def weighted(self, of: Callable[[npt.NDArray[np.int64]], float]) -> float:
        """A sum over all texts of what `of` makes of their lengths."""
        return sum(stratum.weight * c.place.scale * of(c.lengths) for stratum, counted in self.strata for c in counted)


class Tokenizer:
    """A run's way from texts to the tokens and rows of its views; what it needs is made once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._wordpiece = WordPiece(job.encoder.vocabulary, job.encoder.do_lower_case)
        self._keep = keep_words_of(job.views, self._wordpiece)

    def __call__(self, block: TextBlock) -> TokenBlock:
        return find_rows(tokenize_block(block, self._wordpiece, self.job.sequences), self.job.views, self._keep)

    def lengths(self, block: TextBlock, tokens: TokenBlock) -> npt.NDArray[np.int64]:
        """Of each text all its tokens: of those too that are cut or rejected for being too long."""
        settings = self.job.sequences
        if settings.long_text == "reject":
            tokens = tokenize_block(block, self._wordpiece, SequenceSettings(settings.max_seq_length, "window"))
        return (np.diff(tokens.row_splits) + tokens.num_dropped).astype(np.int64)


def estimate(tokenize: Tokenizer, work: PendingWork, budget: Budget = OF_A_RUN, seed: int = 0) -> Estimate:
    """From places drawn from the files that are left to do."""
    job = tokenize.job
    strata = draw(job, work.to_read, budget, seed)
    return Estimate([(s, [count_place(tokenize, place) for place in s.places]) for s in strata], job.views)


def count_place(tokenize: Tokenizer, place: Place) -> Counted:
    """What is in a place, by the code of the run."""
    job, block = tokenize.job, place.block
    if block is None:
        return Counted(place, {}, np.zeros(0, np.int64), collections.Counter(), {})
    tokens = tokenize(block)
    lengths = tokenize.lengths(block, tokens)
    all_texts = np.arange(len(tokens.num_dropped))
    sequences = cut_sequences(tokens, all_texts, job.encoding.max_seq_length, job.encoding.window_overlap)
    counts = tokens.text.counts
    figures: dict[str, float] = {
        **{name: counts.get(name, 0) for name in (metrics.RECORDS, metrics.BLANK, metrics.FILTERED, metrics.REJECTED)},
        TEXTS: len(all_texts),
        ENCODED: len(sequences.positions),
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
        TEXT_BYTES: text_bytes(block, job.records),
        BLOCK_ROWS: _block_rows(block, job.limits),
    }
    forms = {}
    for view in job.views:
        rows = tokens.rows[view.name]
        count = len(records_of(tokens.text)) - 1 if view.level == "record" else len(rows.text)
        figures[ROWS.format(view.name)] = count
        if view.aggregates and rows.words is not None:
            words = rows.words
            forms[view.name] = set(words.forms.take(np.unique(words.form)).to_pylist())
    reasons = collections.Counter(reject.kind for reject in tokens.text.rejected)
    return Counted(place, {name: float(value) for name, value in figures.items()}, lengths, reasons, forms)


def _block_rows(block: TextBlock, limits: BlockLimits) -> int:
    """Tokens as they count where blocks are cut."""
    lengths = pc.binary_length(block.texts).to_numpy().astype(np.int64) + 1
    if limits.sentence_bytes is not None:  # there lengths are records', these are of sentences
        return int(2 * len(lengths) + lengths.sum() // 4)
    return int(tokens_by_length(lengths, limits).sum())


def _total(stratum: Stratum, places: Sequence[tuple[Place, float]]) -> _Total:
    """The stratum's total by the ratio to the places' sizes, and its variance by how much that ratio differs.

    Cochran, Sampling Techniques, 6.4 and 9A.3: places of one file count as one where not all of the files were seen.
    """
    cluster: dict[object, list[float]] = {}
    several = len({place.path for place, _ in places})
    by_file = stratum.kind in ("beginnings", "row groups") and 2 <= several < len(stratum.files)
    for number, (place, value) in enumerate(places):
        sums = cluster.setdefault(place.path if by_file else number, [0.0, 0.0])
        sums[0] += place.size
        sums[1] += value * place.scale
    drawn = np.array(list(cluster.values())).reshape(-1, 2)
    size, value = drawn.sum(axis=0) if len(drawn) else (0.0, 0.0)
    if not size:
        return _Total(0.0)
    ratio, count, share = value / size, len(drawn), stratum.share_read
    if share > 1 - 1e-9:
        return _Total(ratio * stratum.total)
    if count < 2:
        return _Total(ratio * stratum.total, (ratio * stratum.total / 2) ** 2)  # one place says nothing of another
    off = drawn[:, 1] - ratio * drawn[:, 0]
    variance = (1 - share) * count / (count - 1) * float((off**2).sum()) / size**2
    return _Total(ratio * stratum.total, stratum.total**2 * variance, count - 1)


def t_quantile(freedom: float) -> float:
    """How many standard errors hold the truth 95 times of 100; Abramowitz and Stegun, 26.7.5.

    >>> [round(t_quantile(freedom), 2) for freedom in (5, 30, 1000)]
    [2.55, 2.04, 1.96]
    """
    z = _NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _forms(estimate: Estimate, view: View, words: Figure) -> Figure:
    """Different forms among so many words: Heaps' law, by how many more the whole sample has than half of it."""
    counted = [c for _, places in estimate.strata for c in places if view.name in c.forms]
    seen = [set().union(*(c.forms[view.name] for c in some)) for some in (counted[::2], counted)]
    tokens = [sum(c.figures[ROWS.format(view.name)] for c in some) for some in (counted[::2], counted)]
    if not seen[1]:
        return Figure(0.0)
    if estimate.is_whole:
        return Figure(len(seen[1]))
    growth = 1.0
    if tokens[1] > tokens[0] > 0 and seen[0]:
        growth = math.log(len(seen[1]) / len(seen[0])) / math.log(tokens[1] / tokens[0])
    value = len(seen[1]) * max(words.value / tokens[1], 1.0) ** min(growth, 1.0)
    return Figure(value, value / 2)


def expected_blocks(estimate: Estimate, job: Job) -> int:
    """How many blocks a run cuts: each range of a file ends one, and each limit in it."""
    return round(sum(_blocks(stratum, counted, job.limits) for stratum, counted in estimate.strata))


def _blocks(stratum: Stratum, counted: Sequence[Counted], limits: BlockLimits) -> float:
    """By the mean of the records' lengths in the stratum. A range in which no record begins gives none."""
    files = [file.file for file in stratum.files]
    if stratum.kind == "files":
        return len(files)
    read = sum(c.figures.get(TEXT_BYTES, 0) for c in counted)
    full = [(TEXT_BYTES, limits.text_bytes), (BLOCK_ROWS, limits.token_rows), (TEXTS, limits.text_rows)]
    texts = sum(c.figures.get(TEXTS, 0) for c in counted)
    if not read or not texts:
        return 0
    blocks = max(sum(c.figures.get(rows, 0) for c in counted) / most for rows, most in full)
    record_bytes = read / texts
    block_bytes = max(read / blocks, record_bytes)

    def of_range(length: float) -> float:
        return math.ceil(length / block_bytes) if length > block_bytes else min(length / record_bytes, 1)

    def of_file(file: InputFile) -> float:
        if stratum.kind != "ranges":
            return of_range(file.size / stratum.stored_share)
        ranges = byte_ranges(file, limits.text_bytes)
        return sum(of_range(end - start) for start, end in ranges if end is not None)

    return sum(max(of_file(file), 1) for file in files)


def _row_bytes(view: View) -> float:
    return len(view.vector_columns) * view.width * value_bytes(view) * (2 if view.aggregates else 1)


def value_bytes(view: View) -> float:
    """Bytes of one value in the view's files; as JSON it is some ten characters, half of that compressed."""
    if view.format == "jsonl":
        return 5 if view.compress else 10.5
    return np.dtype(view.dtype).itemsize


def describe(estimate: Estimate, view: View) -> str:
    """`about 6.6 GB in `tokens`: 1.07 M tokens x 4 layers x 384 x 4 bytes`."""
    rows = f"{count_text(round(estimate.rows(view).value))} {view.level}s"
    layers = len(view.layers) if view.combine == "separate" and not view.uses_pooler else 1
    factors = [rows, *([f"{layers} layers"] if layers > 1 else []), str(view.width)]
    size = size_text(estimate.view_bytes[view.name])
    return f"about {size} in `{view.name}`: {' x '.join(factors)} x {value_bytes(view):g} bytes"


def free_bytes(output_path: str) -> int | None:
    """Free space where the output goes; None where nobody can say (object stores)."""
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
