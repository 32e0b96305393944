"""Texts whose words the input gives: each word is cut alone, as transformers' `is_split_into_words` does.

Shapes as in `layerbeam.transforms.flow.blocks`; W words.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from layerbeam.transforms.flow.blocks import GivenWords, Int64Array, row_of_each, row_splits_of, token_positions
from layerbeam.transforms.tokenize.pieces import Pieces, TextTokenizer


def text_cutter(
    texts: pa.StringArray, words: GivenWords | None, tokenizer: TextTokenizer, prompt: str = ""
) -> Callable[[Int64Array], Pieces]:
    """What cuts the texts with these indices; `prompt`: see `tokenize_words`, for given words only."""

    def cut(chosen: Int64Array) -> Pieces:
        index = pa.array(chosen)
        if words is None:
            return tokenizer.tokenize(texts.take(index))
        return tokenize_words(words.take(index), tokenizer, prompt)

    return cut


def tokenize_words(words: GivenWords, tokenizer: TextTokenizer, prompt: str = "") -> Pieces:
    """The pieces of texts, which are those of their words; those of the prompt come first, and have no places: -1.

    `word_index`: the word's place in the record; `form`: what the word's basic tokens are, joined. A piece of white
    space belongs to its word, too.
    """
    encoded = words.lists.flatten().dictionary_encode()
    cut = tokenizer.tokenize(pa.concat_arrays([encoded.dictionary, pa.array([prompt])]))
    splits, text = words.splits, row_of_each(words.splits)
    # The items of a text: the prompt, which is the last that was cut, then its words.
    before = splits[:-1]
    item = np.insert(encoded.indices.to_numpy().astype(np.int64), before, len(encoded.dictionary))
    start = np.insert(words.places[0], before, -1)
    index = np.insert(np.arange(len(text)) - splits[text] + words.first[text], before, -1)
    lengths = np.diff(cut.row_splits)[item]
    piece, of_piece = token_positions(cut.row_splits, item), np.repeat(np.arange(len(item)), lengths)
    is_word = index[of_piece] >= 0
    forms = pa.array(["".join(parts) for parts in cut.words()], pa.string()).dictionary_encode()
    form = forms.indices.to_numpy()[item][of_piece]

    def of_words(values: np.ndarray) -> np.ndarray:
        return np.where(is_word, values, -1).astype(np.int32)

    return Pieces(
        row_splits=row_splits_of(lengths)[splits + np.arange(len(splits))],
        ids=cut.ids[piece],
        start=of_words(cut.start[piece] + start[of_piece]),
        end=of_words(cut.end[piece] + start[of_piece]),
        word_char=of_words(start[of_piece]),
        word_index=of_words(index[of_piece]),
        form=of_words(form),
        forms=forms.dictionary,
    )
