"""What flows between the stages, declared once.

Shapes, here and everywhere below: T texts in a block, N tokens of those texts with [CLS] and [SEP],
B texts in a batch, S padded tokens in a batch, H hidden size, L Transformer blocks.

From reading to writing, one object per block is handed on by reference. It holds NumPy and Arrow arrays, never a
Python object per row.
"""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class BlockLimits:
    """Where a block ends: with the record that brings it to one of these. At least one record goes in.

    `text_bytes`: bytes of the file. `token_rows`, `text_rows`: rows of a view with one row per token or per text, as
    estimated from the bytes (the tokens are not known when a block is cut): a record of n bytes counts as
    2 + n / 4 tokens, `max_seq_length` at most. `sentence_bytes`: where the unit is a sentence, the bytes that one is
    taken to have.
    """

    text_bytes: int = 1 << 20
    token_rows: int = 1 << 16
    text_rows: int = 1 << 16
    max_seq_length: int = 128
    sentence_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """What a record is and what becomes of it; names and meanings as in the configuration's `input`.

    `keep_blank`: records of nothing but white space are texts too. `replace_invalid`: bytes that are no text become
    U+FFFD; without it their record is rejected. `keep_fields`: name and type (string, int64, float64, bool) of each.
    """

    format: Literal["text", "jsonl", "parquet"] = "text"
    record: Literal["line", "paragraph", "file"] = "line"
    unit: Literal["record", "sentence"] = "record"
    encoding: str = "utf-8"
    keep_blank: bool = False
    replace_invalid: bool = False
    text_field: str = "text"
    pair_field: str | None = None
    pair_separator: str | None = None
    id_field: str | None = None
    keep_fields: tuple[tuple[str, str], ...] = ()

    @property
    def is_whole_file(self) -> bool:
        return self.format == "text" and self.record == "file"


@dataclasses.dataclass(frozen=True)
class EncodeSettings:
    """`batch_tokens`: the budget of padded tokens in a batch. Longer texts than `max_seq_length` go in windows.

    `length_buckets`: ascending; batches are padded to these lengths and to powers of two of texts, so shapes are few.
    """

    batch_tokens: int = 1024
    max_seq_length: int = 128
    window_overlap: int = 0
    length_buckets: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class SequenceSettings:
    """How texts become sequences. `max_seq_length`: tokens of one, [CLS] and [SEP] included.

    `long_text`: what is longer is cut off, rejected, or kept whole to be encoded in windows.
    """

    max_seq_length: int = 128
    long_text: Literal["truncate", "window", "reject"] = "truncate"

    def __post_init__(self) -> None:
        if self.max_seq_length < 3:
            raise ValueError(f"max_seq_length: {self.max_seq_length}; at least 3, since [CLS] and [SEP] count")
