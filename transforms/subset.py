"""Blocks without some of their texts, which are counted so that the balance holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import (
    BoolArray,
    DroppedTokens,
    Int64Array,
    Rows,
    TextBlock,
    TokenBlock,
    row_splits_of,
    token_positions,
)
from layerbeam.transforms.commits import Rejected


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
    numbers, lines = (values.tolist() for values in block.places(block.line))
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
    kept = new_number[tokens.dropped.text] >= 0
    dropped = DroppedTokens(*(values[kept] for values in vars(tokens.dropped).values()))
    columns = ("token_ids", "segment_ids", "start", "end", "word_char", "word_index", "form")
    return dataclasses.replace(
        tokens,
        text=text,
        row_splits=row_splits,
        num_dropped=tokens.num_dropped[texts],
        dropped=dataclasses.replace(dropped, text=new_number[dropped.text].astype(np.int32)),
        rows={name: _take_rows(rows, new_number, shift) for name, rows in tokens.rows.items()},
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
