"""Texts as parts of what is encoded around them: their whole record, or their neighbours.

Shapes as in `layerbeam.transforms.flow.blocks`; C contexts.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow.blocks import (
    Int32Array,
    Int64Array,
    TextBlock,
    TokenBlock,
    reject,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.pieces import STAGE, TextTokenizer
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.views.columns import records_of


def tokenize_in_context(
    records: TextBlock, texts: TextBlock, tokenizer: TextTokenizer, settings: SequenceSettings
) -> TokenBlock:
    """The tokens of texts, cut from those of their contexts, which the encoder gets.

    `texts`: the sentences or chunks of `records`. A context begins with its first text and ends with its last. A text
    has the tokens of its words and the white space between them, and the special tokens, with the prompt, of an end of
    the context that is its own. Words are numbered from 0 in each text, and places stay inside of it.
    """
    ends = texts.offset + pc.utf8_length(texts.texts).to_numpy()
    of_text, first, last = _neighbours(texts, settings.context)
    begin = texts.offset[first]
    end = np.maximum.reduceat(np.append(ends, 0), np.stack([first, last + 1], axis=1).ravel())[::2]
    record = np.searchsorted(records.line, texts.line[first])
    strings = records.texts.take(pa.array(record)).to_pylist()
    words = None if records.words is None else records.words.within(record, np.stack([begin, end], axis=1))[0]
    contexts = dataclasses.replace(
        texts.take(first),
        texts=pa.array([text[a:b] for text, a, b in zip(strings, begin, end, strict=True)], pa.string()),
        sentence=np.arange(len(first), dtype=np.int32),
        words=words,
    )
    whole = tokenize_block(contexts, tokenizer, settings)
    if len(whole.text.texts) < len(first):
        rejected = np.setdiff1d(contexts.sentence, whole.text.sentence)
        reason = dict(
            zip(rejected.tolist(), (r.reason for r in whole.text.rejected[len(texts.rejected) :]), strict=True)
        )
        reasons = {text: reason[context] for text, context in enumerate(of_text.tolist()) if context in reason}
        return tokenize_in_context(records, reject(texts, reasons, STAGE), tokenizer, settings)

    # Ascending places of the tokens: the context, and in it the code point that says to which text a token belongs.
    size = int(ends.max(initial=0)) + 2
    point = np.where(whole.word_char >= 0, whole.word_char, np.maximum(whole.start, 0)).astype(np.int64)
    for number in range(1, len(tokenizer.special.behind) + 1):
        point[whole.row_splits[1:] - number] = size - 1
    places = np.maximum.accumulate(row_of_each(whole.row_splits) * size + point)
    low = np.searchsorted(places, of_text * size + texts.offset)
    high = np.searchsorted(places, of_text * size + ends)
    low = np.where(texts.offset == begin[of_text], whole.row_splits[of_text], low)
    high = np.where(ends == end[of_text], whole.row_splits[of_text + 1], high)
    row_splits = row_splits_of(high - low)
    text = row_of_each(row_splits)
    place = np.arange(len(text)) + (low - row_splits[:-1])[text]

    def inside(values: Int32Array, before_end: int = 0) -> Int32Array:
        kept = values[place]
        return np.where(kept < 0, kept, np.clip(kept, texts.offset[text], ends[text] - before_end)).astype(np.int32)

    word_index = whole.word_index[place]
    is_word = word_index >= 0
    first_word = np.full(len(ends), np.iinfo(np.int32).max, np.int32)
    np.minimum.at(first_word, text[is_word], word_index[is_word])
    if words is not None:  # they count in the record
        first_word[:] = 0
    return TokenBlock(
        text=texts,
        row_splits=row_splits,
        token_ids=whole.token_ids[place],
        segment_ids=whole.segment_ids[place],
        start=inside(whole.start),
        end=inside(whole.end),
        word_char=inside(whole.word_char, 1),
        word_index=np.where(is_word, word_index - first_word[text], -1).astype(np.int32),
        num_dropped=np.zeros(len(ends), np.int32),
        form=whole.form[place],
        forms=whole.forms,
        within=dataclasses.replace(whole.contexts, of_text=of_text, place=place),
    )


def _neighbours(texts: TextBlock, context: str | int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(the context of each text: int64 [T]; the first and the last text of each context: int64 [C])."""
    records = records_of(texts)
    if context == "record":
        return row_of_each(records), records[:-1], records[1:] - 1
    number, record, size = np.arange(len(texts.texts)), row_of_each(records), int(context)
    return number, np.maximum(number - size, records[record]), np.minimum(number + size, records[record + 1] - 1)
