"""The blocks that flow from stage to stage.

Shapes, in all modules: T texts in a block, N tokens of those texts with special tokens, B texts in a batch, S padded
tokens in a batch, R rows of a view, W values of a vector, H hidden size, L Transformer blocks.

A block is one Python object, passed by reference from reading to writing. It holds NumPy and Arrow arrays, never a
Python object per row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import FileRange, InputFile, Rejected, name_of, printable

BoolArray = npt.NDArray[np.bool_]
Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


# The types of kept fields.
FIELD_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()
}  # fmt: skip
FIELD_TYPES |= {f"list<{name}>": pa.list_(type_) for name, type_ in FIELD_TYPES.items()}


def row_splits_of(counts: npt.NDArray[Any]) -> Int64Array:
    """Row splits of rows with these lengths: row i is `row_splits[i]:row_splits[i + 1]`.

    >>> row_splits_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


def row_of_each(row_splits: Int64Array) -> Int64Array:
    """The row of each value.

    >>> row_of_each(np.array([0, 2, 2, 5])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(row_splits) - 1), np.diff(row_splits))


@dataclasses.dataclass
class Slice:
    """A byte range of one file (that of one block; for Parquet, some row groups).

    A record belongs to the slice that holds its first byte. `first_line`: the number of line ends before `start`.
    A compressed file is one slice: `start` 0, `end` None. `max_records`: only so many of its records are read.
    `reader`: (i, n): of n readers of the same bytes, this one keeps every n-th block, from block i on. `others`: small
    files that are read together with this one, all of them whole. `content_index`: the path of that of earlier runs,
    empty if there is none.
    """

    file: InputFile
    start: int
    end: int | None
    first_line: int
    max_records: int | None = None
    reader: tuple[int, int] = (0, 1)
    others: tuple[InputFile, ...] = ()
    content_index: str = ""

    @property
    def size(self) -> int:
        """Bytes of its files, as they are stored."""
        stored = (self.file.size if self.end is None else self.end) - self.start
        return stored + sum(file.size for file in self.others)

    @property
    def is_whole_file(self) -> bool:
        """Whether it is all of one file, which one reader reads."""
        return self.start == 0 and self.end in (None, self.file.size) and self.reader == (0, 1) and not self.max_records


def counts_of_file(counts: Mapping[str, int]) -> dict[str, Int64Array]:
    """Counts of a block of one file."""
    return {name: np.array([count], np.int64) for name, count in counts.items()}


@dataclasses.dataclass
class GivenWords:
    """The words of T texts, which the input gives; a text is its words, joined by blanks.

    `lists`: list<string> [T] without nulls; `first`: int32 [T], the place of each text's first word in its record.
    """

    lists: pa.ListArray
    first: Int32Array

    @classmethod
    def of(cls, lists: pa.ListArray) -> GivenWords:
        """The words of records."""
        return cls(lists, np.zeros(len(lists), np.int32))

    @functools.cached_property
    def splits(self) -> Int64Array:
        """Text t has the words `splits[t]:splits[t + 1]`: int64 [T + 1]."""
        return row_splits_of(pc.list_value_length(self.lists).to_numpy())

    @functools.cached_property
    def places(self) -> tuple[Int32Array, Int32Array]:
        """(first code point, the one after the last) of each word in its text: int32 [W] each."""
        sizes = pc.utf8_length(self.lists.flatten()).to_numpy().astype(np.int64)
        begins = row_splits_of(sizes + 1)[:-1]
        start = begins - np.append(begins, 0)[self.splits[:-1]][row_of_each(self.splits)]
        return start.astype(np.int32), (start + sizes).astype(np.int32)

    def number(self, text: Int64Array, word_index: Int32Array) -> Int64Array:
        """The number, from 0 to W, of the words at these places in the records of these texts."""
        return np.asarray(self.splits[text] + word_index - self.first[text])

    def take(self, texts: pa.Array) -> GivenWords:
        return GivenWords(self.lists.take(texts), self.first[texts.to_numpy()])

    def within(self, text: Int64Array, spans: Int64Array) -> tuple[GivenWords, Int64Array, Int64Array]:
        """The words in S spans of texts, int64 [S, 2], which begin and end with words; their row splits and numbers."""
        start, end = self.places
        # So far apart, the places of one text are below those of the next.
        size = 2 + max(int(spans.max(initial=0)), int(end.max(initial=0)))
        before = row_of_each(self.splits) * size
        first = np.searchsorted(before + start, text * size + spans[:, 0])
        last = np.searchsorted(before + end, text * size + spans[:, 1], side="right")
        splits = row_splits_of(last - first)
        numbers = np.arange(splits[-1]) + (first - splits[:-1])[row_of_each(splits)]
        lists = as_lists(self.lists.flatten().take(pa.array(numbers)), splits)
        return GivenWords(lists, (self.first[text] + first - self.splits[text]).astype(np.int32)), splits, numbers


def as_lists(values: pa.Array, splits: Int64Array) -> pa.ListArray:
    """Lists of these values, with these row splits."""
    return pa.ListArray.from_arrays(pa.array(splits, pa.int32()), values)


@dataclasses.dataclass
class TextBlock:
    """Consecutive texts of one slice, or a pack: the texts of several small files.

    `files`: what it holds of each of the F files. `texts`: string [T]; `line`: int64 [T], the record's first line;
    `sentence`: int32 [T], from 0 in the record; `offset`: int32 [T], the first code point in the record. `counts`:
    int64 [F], one number for each file; records = embedded (T if the unit is the record) + blank + filtered +
    rejected.

    In a pack `line` counts over all files, so that no two records have the same; `file_lines` gives the lines in the
    files. `together`: see `Commit`.

    `pairs`: string [T], the second text of each pair, null for a single text; `pair_offset`: its first code point in
    the record. Both are None if no text is a pair. `fields`: columns copied to the output (`id` and kept fields), [T]
    each, of the declared types, null if a record has none. `words`: if the input gives them; then a field of lists has
    a value for each of them. `content_index`: of its slice.
    """

    files: tuple[FileRange, ...]
    texts: pa.StringArray
    line: Int64Array
    sentence: Int32Array
    offset: Int32Array
    counts: dict[str, Int64Array]
    rejected: list[Rejected]
    pairs: pa.StringArray | None = None
    pair_offset: Int32Array | None = None
    fields: dict[str, pa.Array] = dataclasses.field(default_factory=dict)
    words: GivenWords | None = None
    content_index: str = ""
    together: str | None = None

    @property
    def name(self) -> str:
        """The name of the block."""
        return name_of(self.files)

    @property
    def num_bytes(self) -> int:
        """Decompressed bytes that it was read from."""
        return sum(file_range.num_bytes for file_range in self.files)

    def total(self, name: str) -> int:
        """A count over all files."""
        return int(np.sum(self.counts.get(name, 0)))

    def file_lines(self, line: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(the number of the file, the line in it) of each of these lines."""
        first, of_file = self._first_lines
        number = np.searchsorted(first, line, side="right") - 1
        return number, line - first[number] + of_file[number]

    @functools.cached_property
    def _first_lines(self) -> tuple[Int64Array, Int64Array]:
        """(the first line of each file, as `line` counts; the same in the file)."""
        of_file = np.array([file_range.first_line for file_range in self.files], np.int64)
        if len(self.files) == 1:
            return of_file, of_file
        return row_splits_of(np.array([file_range.num_lines for file_range in self.files]))[:-1], of_file

    def column(self, name: str) -> pa.Array:
        """[T] of a copied column, or of `file`."""
        if name in self.fields:
            return self.fields[name]
        paths = pa.array([printable(file_range.file.path) for file_range in self.files])
        return paths.take(pa.array(self.file_lines(self.line)[0]))

    def column_of_rows(self, name: str, text: Int64Array, word_index: Int32Array | None = None) -> pa.Array:
        """A copied column of the rows of these texts; of a field of lists the value of each row's word, if any."""
        column = self.column(name)
        if self.words is None or word_index is None or not pa.types.is_list(column.type):
            return column.take(pa.array(text))
        number = self.words.number(text, word_index)
        return column.flatten().take(pa.array(number, mask=word_index < 0))

    def count_lines(self, line: Int64Array, weights: Int32Array | Int64Array | None = None) -> Int64Array:
        """How many of these lines, or the sum of their weights, are in each file: int64 [F]."""
        if len(self.files) == 1:
            return np.array([len(line) if weights is None else weights.sum()], np.int64)
        counts = np.bincount(self.file_lines(line)[0], weights, minlength=len(self.files))
        return counts.astype(np.int64)

    def count_texts(self, texts: Int64Array) -> Int64Array:
        """How many of these texts are in each file: int64 [F]."""
        return self.count_lines(self.line[texts])

    @classmethod
    def of(cls, texts: Iterable[str], *, name: str = "texts", first_line: int = 0) -> TextBlock:
        """A block of texts that come from no file, each a record of its own.

        Args:
            texts: The texts.
            name: What the column `file` and the names of blocks and rejects say.
            first_line: The number of the first text; the others follow. Different blocks of one name need different
                numbers.

        >>> block = TextBlock.of(["A river bank.", "A bank holiday."], name="examples", first_line=10)
        >>> block.line.tolist(), block.name
        ([10, 11], 'examples-c590b3c924c35c2f-000000000010')
        """
        column = pa.array(texts, pa.string())
        count = len(column)
        file_range = FileRange(InputFile(name, 0, 0.0), first_line, count, 0, 0, "")
        counts = counts_of_file({metrics.RECORDS: count, metrics.EMBEDDED: count})
        zeros = np.zeros(count, np.int32)
        return cls((file_range,), column, first_line + np.arange(count), zeros, zeros, counts, [])

    def take(self, texts: Int64Array) -> TextBlock:
        """The block with these texts only; the counts stay as they are."""
        index = pa.array(texts)
        return dataclasses.replace(
            self,
            texts=self.texts.take(index),
            line=self.line[texts],
            sentence=self.sentence[texts],
            offset=self.offset[texts],
            pairs=None if self.pairs is None else self.pairs.take(index),
            pair_offset=None if self.pair_offset is None else self.pair_offset[texts],
            fields={name: values.take(index) for name, values in self.fields.items()},
            words=None if self.words is None else self.words.take(index),
        )


@dataclasses.dataclass
class DroppedTokens:
    """The D tokens of words that were cut off, int32 [D] each, until rows are found. `word_char`: see `TokenBlock`."""

    text: Int32Array
    segment: Int32Array
    word_char: Int32Array
    word_index: Int32Array
    form: Int32Array


_NONE_DROPPED = DroppedTokens(*[np.empty(0, np.int32)] * 5)


@dataclasses.dataclass
class Words:
    """The places of a view's rows in their records: int32 [R] each. `forms[form]` is the normalized word.

    `segment`: int8 [R], 1 in the second text of a pair.
    """

    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    form: Int32Array
    segment: Int8Array
    forms: pa.StringArray

    def take(self, chosen: Int64Array) -> Words:
        """The places of these rows only."""
        columns = ("start", "end", "word_index", "form", "segment")
        return dataclasses.replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclasses.dataclass
class Rows:
    """The tokens of the R rows of a view, in the order of the texts. A list of vectors has a row for each vector.

    `text`: int64 [R]; row r has the block's tokens `positions[splits[r]:splits[r + 1]]`. `words`: only if rows are
    words. `counts`: what the commit counts, by name, int64 [F].
    """

    text: Int64Array
    positions: Int64Array
    splits: Int64Array
    words: Words | None = None
    counts: dict[str, Int64Array] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Contexts:
    """The C sequences that the encoder gets, and where a block's T texts are in them.

    `texts`: string [C]. Context c has the tokens `row_splits[c]:row_splits[c + 1]`: int64 [C + 1]; `token_ids`,
    `segment_ids` and `word_index` are theirs, as in `TokenBlock`. `of_text`: int64 [T], ascending, the context of each
    text; `place`: int64 [N], which token of the contexts each of the block's tokens is. `words`: of `texts`, if given.
    """

    texts: pa.StringArray
    row_splits: Int64Array
    token_ids: Int32Array
    segment_ids: Int8Array
    word_index: Int32Array
    of_text: Int64Array
    place: Int64Array
    words: GivenWords | None = None

    def take(self, texts: Int64Array, positions: Int64Array) -> Contexts:
        """The contexts of these texts, which have the block's tokens `positions`."""
        kept, of_text = np.unique(self.of_text[texts], return_inverse=True)
        tokens = token_positions(self.row_splits, kept)
        row_splits = row_splits_of(np.diff(self.row_splits)[kept])
        moved = np.zeros(len(self.token_ids), np.int64)
        moved[tokens] = np.arange(len(tokens))
        columns = {name: getattr(self, name)[tokens] for name in ("token_ids", "segment_ids", "word_index")}
        kept_texts = self.texts.take(pa.array(kept))
        words = None if self.words is None else self.words.take(pa.array(kept))
        place = moved[self.place[positions]]
        return Contexts(kept_texts, row_splits, **columns, of_text=of_text, place=place, words=words)


@dataclasses.dataclass
class TokenBlock:
    """The tokens of a block's texts, special tokens included, one text after the other.

    Text t has the tokens `row_splits[t]:row_splits[t + 1]`. `row_splits`: int64 [T + 1]; `token_ids`: int32 [N];
    `segment_ids`: int8 [N], 1 in the second text of a pair; `start`, `end`: int32 [N], code points of the record;
    `word_char`: int32 [N], a character of the token's word; `word_index`: int32 [N], from 0 in the text, of given words
    in the record; `form`: int32 [N], `forms[form]` is the word. These five are -1 for special tokens; the last three
    also for white space. `num_dropped`: int32 [T], tokens cut off at `max_seq_length`. `rows`: {view: its rows}.
    `within`: what the encoder gets; None: the texts themselves. Then a text may have no tokens, and its special tokens
    are those of its context.
    """

    text: TextBlock
    row_splits: Int64Array
    token_ids: Int32Array
    segment_ids: Int8Array
    start: Int32Array
    end: Int32Array
    word_char: Int32Array
    word_index: Int32Array
    num_dropped: Int32Array
    form: Int32Array = dataclasses.field(default_factory=lambda: np.empty(0, np.int32))
    forms: pa.StringArray = dataclasses.field(default_factory=lambda: pa.array([], pa.string()))
    dropped: DroppedTokens = dataclasses.field(default_factory=lambda: _NONE_DROPPED)
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)
    within: Contexts | None = None

    def in_each_text(self, which: BoolArray) -> Int64Array:
        """How many of these tokens, bool [N], each text has: int64 [T]."""
        return np.diff(row_splits_of(which).take(self.row_splits))

    @functools.cached_property
    def contexts(self) -> Contexts:
        """What the encoder gets."""
        if self.within is not None:
            return self.within
        of_text, place = np.arange(len(self.num_dropped)), np.arange(len(self.token_ids))
        columns = (self.row_splits, self.token_ids, self.segment_ids, self.word_index)
        return Contexts(self.text.texts, *columns, of_text, place, self.text.words)


@dataclasses.dataclass
class VectorBlock:
    """The vectors of a block: `vectors[view]` holds one array per vector column of the view.

    float32 or float16, [R, W]: a row for each of `tokens.rows[view]`; at record level for each record. The layers are
    never held for a whole block: a view of texts needs a hundredth of their memory.
    """

    tokens: TokenBlock
    vectors: dict[str, list[npt.NDArray[Any]]]


def token_positions(row_splits: Int64Array, texts: Int64Array) -> Int64Array:
    """The positions of these texts' tokens in the block, one text after the other: int64.

    >>> token_positions(np.array([0, 2, 3, 6]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    begins = row_splits.take(texts)
    lengths = row_splits.take(texts + 1) - begins
    shift: Int64Array = begins - lengths.cumsum() + lengths
    return np.repeat(shift, lengths) + np.arange(int(lengths.sum()))


def leave_out(block: TextBlock, which: BoolArray, counter: str, rejected: Sequence[Rejected] = ()) -> TextBlock:
    """The block without some of its texts, which are counted as `counter` and no longer as embedded.

    In sentence mode sentences are counted; a record left without sentences is counted as well.
    """
    counts = dict(block.counts)
    rest = block.take(np.flatnonzero(~which))
    records = block.count_lines(np.setdiff1d(block.line, rest.line))
    amounts = [(metrics.EMBEDDED, counter, records)]
    if metrics.SENTENCES in counts:
        sentences = block.count_texts(np.flatnonzero(which))
        amounts.append((metrics.SENTENCES_EMBEDDED, metrics.OF_SENTENCES[counter], sentences))
    for embedded, name, amount in amounts:
        counts[embedded] = counts.get(embedded, 0) - amount
        counts[name] = counts.get(name, 0) + amount
    return dataclasses.replace(rest, counts=counts, rejected=[*block.rejected, *rejected])


def reject(block: TextBlock, reasons: Mapping[int, str], stage: str) -> TextBlock:
    """The block without these texts, which become rejects of a stage. `reasons`: {text: reason}."""
    which = np.zeros(len(block.texts), bool)
    which[list(reasons)] = True
    numbers, lines = (values.tolist() for values in block.file_lines(block.line))
    rejected = [
        Rejected(block.files[numbers[text]].file.path, lines[text], -1, stage, reason, raw_text(block, text))
        for text, reason in sorted(reasons.items())
    ]
    return leave_out(block, which, metrics.REJECTED, rejected)


def raw_text(block: TextBlock, text: int) -> bytes:
    """A text as UTF-8; for a pair both texts, separated by a tab."""
    both = [block.texts[text].as_py(), None if block.pairs is None else block.pairs[text].as_py()]
    return "\t".join(one for one in both if one is not None).encode()


def take_texts(tokens: TokenBlock, text: TextBlock, texts: Int64Array) -> TokenBlock:
    """The tokens and rows of these texts, in ascending order. `text` is the block that holds only these.

    The counts of words stay as they are.
    """
    positions = token_positions(tokens.row_splits, texts)
    row_splits = row_splits_of(np.diff(tokens.row_splits)[texts])
    new_number = np.full(len(tokens.num_dropped), -1, np.int64)
    new_number[texts] = np.arange(len(texts))
    shift = np.zeros(len(tokens.num_dropped), np.int64)
    shift[texts] = row_splits[:-1] - tokens.row_splits[:-1][texts]
    columns = ("token_ids", "segment_ids", "start", "end", "word_char", "word_index", "form")
    return dataclasses.replace(
        tokens,
        text=text,
        row_splits=row_splits,
        num_dropped=tokens.num_dropped[texts],
        dropped=_NONE_DROPPED,
        rows={name: _take_rows(rows, new_number, shift) for name, rows in tokens.rows.items()},
        within=None if tokens.within is None else tokens.within.take(texts, positions),
        **{name: getattr(tokens, name)[positions] for name in columns},
    )


def _take_rows(rows: Rows, new_number: Int64Array, shift: Int64Array) -> Rows:
    """The rows of the texts that have a new number. `shift`: how far the tokens of each text moved."""
    chosen = np.flatnonzero(new_number[rows.text] >= 0)
    lengths = np.diff(rows.splits)[chosen]
    return Rows(
        text=new_number[rows.text[chosen]],
        positions=rows.positions[token_positions(rows.splits, chosen)] + np.repeat(shift[rows.text[chosen]], lengths),
        splits=row_splits_of(lengths),
        words=None if rows.words is None else rows.words.take(chosen),
        counts=rows.counts,
    )
