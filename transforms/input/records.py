"""What the input formats share: when a block is full, and the records of a block as texts or rejects."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import FIELD_TYPES, BoolArray, GivenWords, Int64Array, TextBlock, counts_of_file
from layerbeam.transforms.flow.commits import FileRange, Rejected
from layerbeam.transforms.settings import BYTES_PER_TOKEN, BlockLimits, RecordFormat

# What a reject has of a record that is too long. No more of it is held in memory, unless it is in Parquet.
REJECTED_BYTES = 1 << 10
_NAMED_COLUMNS = 8
EXACT = 1 << 53  # a float above may have lost digits
INT64 = range(-(1 << 63), 1 << 63)


class UnreadableFileError(OSError):
    """A file that cannot be read as records. The message says what to do. `lacks`: (a column, what it may be)."""

    lacks: tuple[str, Sequence[str]] | None = None


def too_long(record_format: RecordFormat) -> str:
    """The reason of a record with too many bytes."""
    return f"is longer than {record_format.max_record_bytes:,} bytes (input.max_record_bytes)"


def wrong_column_error(name: str, names: Sequence[str]) -> UnreadableFileError:
    """The error for a column that the configuration names and a file does not have exactly once."""
    count = names.count(name)
    shown = ", ".join(names[:_NAMED_COLUMNS]) + (", ..." if len(names) > _NAMED_COLUMNS else "")
    error = UnreadableFileError(f"has {f'{count} columns' if count else 'no column'} `{name}`; it has: {shown}")
    error.lacks = name, () if count else names
    return error


def tokens_by_length(lengths: Int64Array, limits: BlockLimits) -> Int64Array:
    """The estimated tokens of records with these lengths in bytes, see `BlockLimits`."""
    tokens: Int64Array = amounts(lengths, 1, limits)[2][0]
    return tokens


def filled_share(num_bytes: int, records: int, limits: BlockLimits) -> float:
    """How much of a block so many records of so many bytes fill, as a share; over 1 if they do not fit.

    >>> filled_share(80, 2, BlockLimits(160, 1000, 1000, 128))
    0.5
    """
    return max(float(amount) / limit for amount, limit in amounts(np.int64(num_bytes), records, limits))


def amounts(lengths: Any, records: int, limits: BlockLimits) -> tuple[tuple[Any, int], ...]:
    """(estimate, limit) of texts, bytes and tokens. `lengths`: in bytes, of so many `records` each."""
    texts = np.full_like(lengths, records)
    if limits.sentence_bytes is None:
        tokens = np.minimum(2 * records + lengths // BYTES_PER_TOKEN, records * limits.max_seq_length)
    else:
        texts += lengths // limits.sentence_bytes
        tokens = 2 * texts + lengths // BYTES_PER_TOKEN
    return (texts, limits.text_rows), (lengths, limits.text_bytes), (tokens, limits.token_rows)


def is_blank(texts: pa.StringArray) -> BoolArray:
    """Which texts are null or only white space."""
    blank: Any = pc.equal(pc.utf8_trim_whitespace(texts), "").fill_null(True)
    return np.asarray(blank.to_numpy(zero_copy_only=False), bool)


def lone_surrogate(text: str) -> str | None:
    """Why a text cannot be written as UTF-8: it contains half of a surrogate pair. None if it can.

    >>> lone_surrogate("a\\ud800")
    'lone surrogate U+D800 at character 1'
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
    return None


def inexact(value: float) -> str:
    """What a float is that is not taken as an integer.

    >>> inexact(0.5), inexact(1e300)
    ('a number with a fraction', 'a number above 9,007,199,254,740,992 in float notation')
    """
    if math.isnan(value):
        return "NaN"
    return f"a number above {EXACT:,} in float notation" if abs(value) > EXACT else "a number with a fraction"


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair.

    >>> replace_surrogates("a\\ud800b")
    'a\ufffdb'
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if lone_surrogate(text) else text


def no_records(block: FileRange, record_format: RecordFormat) -> TextBlock:
    """The texts of a file that is readable and has nothing in it."""
    nothing = np.zeros(0, np.int64)
    columns = [pa.array([], FIELD_TYPES.get(type_, pa.string())) for _, type_ in record_format.fields_read]
    return Records(block, record_format, nothing, nothing, pa.array([], pa.binary())).to_block(columns)


@dataclasses.dataclass
class Records:
    """The R records of a block as they are stored.

    `line`: int64 [R]; `place`: int64 [R], byte offsets as in `Rejected`; `raw`: binary [R]. `reasons`: {record: why it
    is rejected}, only the first reason of each. `more_lines`: int64 [R], the lines of each after its first one; None
    if only the format knows where a record ends.
    """

    block: FileRange
    record_format: RecordFormat
    line: Int64Array
    place: Int64Array
    raw: pa.Array
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)
    more_lines: Int64Array | None = None

    def decode(self, values: pa.Array, field: str | None = None) -> pa.StringArray:
        """A value of each record as strings. Invalid bytes are replaced, or their record gets a reason and null."""
        encoding = self.record_format.encoding
        if encoding == "utf-8":
            try:
                return values.cast(pa.string())
            except pa.ArrowInvalid:
                pass
        # One by one, for other encodings and the rare block that is not all UTF-8.
        errors = "strict" if self.record_format.invalid_bytes == "reject" else "replace"
        texts: list[str | None] = []
        for record, value in enumerate(values.to_pylist()):
            text, reason = None, None
            try:
                text = None if value is None else value.decode(encoding, errors)
                text = text if text is None or errors == "strict" else replace_surrogates(text)
                reason = None if text is None else lone_surrogate(text)
            except UnicodeDecodeError as error:
                name = "UTF-8" if encoding == "utf-8" else encoding
                reason = f"invalid {name}: {error.reason} at byte {error.start}"
                reason += f" (0x{value[error.start]:02x})" if field is None else ""
            if reason is not None:
                self.reasons.setdefault(record, reason if field is None else f"field `{field}`: {reason}")
            texts.append(text if reason is None else None)
        return pa.array(texts, pa.string())

    def to_block(self, columns: Sequence[pa.Array]) -> TextBlock:
        """The records without a reason. What has neither a text nor a reason counts as blank.

        `columns`: a value of each record, in the order of `RecordFormat.fields_read`.
        """
        texts, others = columns[0], list(columns[len(self.record_format.text_fields) :])
        if len(self.record_format.text_fields) > 1:
            texts = _join(columns[: -len(others) or None])
        pairs = None if self.record_format.pair_field is None else others.pop(0)
        names = [] if self.record_format.id_field is None else ["id"]
        names += [name for name in self.record_format.keep_fields if name not in self.record_format.path_fields]
        fields = dict(zip(names, others, strict=True))
        words = None
        if self.record_format.has_words:
            fields = {name: self._for_words(name, column, texts) for name, column in fields.items()}
            words, texts = GivenWords.of(pc.fill_null(texts, [])), pc.binary_join(texts, " ")
        is_kept = pc.is_valid(texts).to_numpy(zero_copy_only=False)
        is_kept[list(self.reasons)] = False
        kept = np.flatnonzero(is_kept)
        counts = counts_of_file(
            {
                metrics.RECORDS: len(texts),
                metrics.EMBEDDED: len(kept),
                metrics.BLANK: len(texts) - len(kept) - len(self.reasons),
                metrics.FILTERED: 0,
                metrics.REJECTED: len(self.reasons),
            }
        )
        if self.more_lines is not None and self.more_lines.any():
            rejected_lines = self.more_lines[list(self.reasons)]
            counts |= counts_of_file(
                {metrics.MORE_LINES: int(self.more_lines.sum()), metrics.REJECTED_LINES: int(rejected_lines.sum())}
            )
        file_range, path = self.block, self.block.file.path
        if self.record_format.has_fields and words is None and not self.reasons:
            texts_hash = _hash_of_texts(self.line - file_range.first_line, [texts, pairs])
            file_range = dataclasses.replace(file_range, texts=texts_hash)
        rejected = [
            Rejected(path, int(self.line[i]), int(self.place[i]), "read", reason, self.raw[i].as_py() or b"")
            for i, reason in sorted(self.reasons.items())
        ]
        zeros = np.zeros(len(texts), np.int32)
        offset = None if pairs is None else zeros
        block = TextBlock((file_range,), texts, self.line, zeros, zeros, counts, rejected, pairs, offset, fields, words)
        return block if len(kept) == len(texts) else block.take(kept)

    def _for_words(self, name: str, column: pa.Array, words: pa.ListArray) -> pa.Array:
        """A field, of which a list has a value for each word. A record with another number of values gets a reason."""
        if not pa.types.is_list(column.type):
            return column
        count = pc.list_value_length(words).fill_null(0)
        found = pc.list_value_length(column)
        differs = pc.not_equal(found, count).fill_null(False).to_numpy(zero_copy_only=False)
        for record in np.flatnonzero(differs & pc.is_valid(words).to_numpy(zero_copy_only=False)).tolist():
            ends = found[record].as_py(), count[record].as_py()
            reason = (
                f"field `{name}` has {'fewer' if ends[0] < ends[1] else 'more'} values than words at word {min(ends)}"
            )
            self.reasons.setdefault(record, reason)
        is_usable = pa.array(~differs & pc.is_valid(column).to_numpy(zero_copy_only=False))
        values = pc.if_else(is_usable, column, pa.scalar(None, column.type)).to_pylist()
        of_words = (
            [None] * length if of_record is None else of_record
            for of_record, length in zip(values, count.to_pylist(), strict=True)
        )
        return pa.array(of_words, column.type)


def _join(columns: Sequence[pa.Array]) -> pa.StringArray:
    """The texts of several fields as one, with a blank line between them. Blank ones are left out."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    texts = ([text for text in row if text is not None] for row in rows)
    return pa.array(["\n\n".join(filter(str.strip, row)) if row else None for row in texts], pa.string())


def _hash_of_texts(lines: Int64Array, columns: Iterable[pa.Array | None]) -> str:
    """32 hex digits that stand for the texts, the second texts of pairs, and the lines at which the records begin."""
    digest = hashlib.sha256(lines.tobytes())
    for column in columns:
        if column is not None:
            digest.update(pc.binary_length(column).fill_null(-1).to_numpy().tobytes())
            digest.update("".join(column.drop_null().to_pylist()).encode())
    return digest.hexdigest()[:32]
