"""Contexts cut into sequences that fit the encoder: a long one in windows, each token's vector from one of them."""

from __future__ import annotations

import dataclasses

import numpy as np

from layerbeam.transforms.flow.blocks import Contexts, Int8Array, Int32Array, Int64Array, row_splits_of, token_positions
from layerbeam.transforms.settings import EncodeSettings


@dataclasses.dataclass
class Sequences:
    """Q sequences for U distinct contexts; a context in windows has several.

    `context`: int64 [Q], from 0 to U - 1; sequence q has the tokens `splits[q]:splits[q + 1]` of `token_ids` and
    `segment_ids`. `vector_index`: for each context in windows, the place of each token's vector in the concatenated
    windows.
    """

    context: Int64Array
    token_ids: Int32Array
    segment_ids: Int8Array
    splits: Int64Array
    vector_index: dict[int, Int64Array]


def cut_sequences(contexts: Contexts, chosen: Int64Array, settings: EncodeSettings) -> Sequences:
    """The sequences of the chosen contexts. One longer than `max_seq_length` gets windows that overlap.

    Each window has the context's own special tokens. A token's vector comes from the window that gives it the most
    context on its shorter side. All pieces of a word come from one window, the special tokens before the text from the
    first, those behind it from the last.
    """
    lengths = np.diff(contexts.row_splits)[chosen]
    if not (lengths > settings.max_seq_length).any():
        positions = token_positions(contexts.row_splits, chosen)
        return _sequences(contexts, np.arange(len(chosen)), positions, row_splits_of(lengths), {})
    context: list[int] = []
    pieces: list[Int64Array] = []
    vector_indices: dict[int, Int64Array] = {}
    for index, (begin, length) in enumerate(zip(contexts.row_splits[chosen], lengths, strict=True)):
        windows, vector_index = cut_windows(
            contexts.word_index[begin : begin + length],
            settings.max_seq_length,
            settings.window_overlap,
            settings.around,
        )
        context += [index] * len(windows)
        pieces += [begin + window for window in windows]
        if len(windows) > 1:
            vector_indices[index] = vector_index
    splits = row_splits_of(np.array([len(piece) for piece in pieces]))
    return _sequences(contexts, np.array(context), np.concatenate(pieces), splits, vector_indices)


def _sequences(
    contexts: Contexts,
    context: Int64Array,
    positions: Int64Array,
    splits: Int64Array,
    vector_index: dict[int, Int64Array],
) -> Sequences:
    token_ids, segment_ids = contexts.token_ids.take(positions), contexts.segment_ids.take(positions)
    return Sequences(context, token_ids, segment_ids, splits, vector_index)


def cut_windows(
    word_index: Int32Array, max_seq_length: int, overlap: int, around: tuple[int, int] = (1, 1)
) -> tuple[list[Int64Array], Int64Array]:
    """(tokens of each window, for each token the place of its vector in the concatenated windows) of one text.

    `word_index`: int32 [N] of the text's tokens, -1 for special tokens; `around`: how many of these it begins and ends
    with.

    >>> windows, vector_index = cut_windows(np.array([-1, 0, 1, 2, 3, 4, -1]), 5, 1)
    >>> [window.tolist() for window in windows], vector_index.tolist()
    ([[0, 1, 2, 3, 6], [0, 3, 4, 5, 6]], [0, 1, 2, 3, 7, 8, 9])
    """
    length = len(word_index)
    if length <= max_seq_length:
        return [np.arange(length)], np.arange(length)
    before, behind = around
    room, end = max_seq_length - before - behind, length - behind
    starts = [*range(before, end - room, room - overlap), end - room]
    first, last = np.arange(before), np.arange(end, length)
    windows = [np.concatenate([first, np.arange(start, start + room), last]) for start in starts]
    # Three windows of 5 tokens between [CLS] and [SEP], overlap 2; the digits are each token's context in a window (the
    # fewer of the tokens on its two sides); the vector is from the window with the highest, the first of equals:
    #
    #   token      1 2 3 4 5 6 7 8 9 10 11
    #   window 0   0 1 2 1 0
    #   window 1         0 1 2 1 0
    #   window 2               0 1 2  1  0
    #   from       0 0 0 0 1 1 1 2 2  2  2
    place, begins = np.arange(before, end), np.array(starts)
    # A word is judged by its worst piece, so that one window owns all of its pieces if one window holds them all.
    words = np.flatnonzero(np.diff(word_index[before:end], prepend=-2) != 0)
    pieces = np.diff(np.append(words, len(place)))
    of_word, context = _best_windows(begins, room, place[words], place[words] + pieces - 1)
    # No window holds a word that is longer than a window: each of its pieces is judged by itself.
    alone, _ = _best_windows(begins, room, place, place)
    best_window = np.where(np.repeat(context < 0, pieces), alone, np.repeat(of_word, pieces))
    inner = best_window * max_seq_length + before + place - begins[best_window]
    return windows, np.concatenate([first, inner, last - length + len(windows) * max_seq_length])


def _best_windows(begins: Int64Array, room: int, first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(the window that gives each run of tokens most context, the first of equals; that context, negative outside).

    `begins`: of windows of `room` tokens; a run has the tokens `first` to `last`.
    """
    # The context falls by one for each token that a window is further from the middle: the best one is next to it.
    after = np.searchsorted(begins, (first + last - room + 1) / 2)
    nearest = np.clip(np.stack([after - 1, after]), 0, len(begins) - 1)
    context = np.minimum(first - begins[nearest], begins[nearest] + room - 1 - last)
    best = context.argmax(axis=0)[None]
    return np.take_along_axis(nearest, best, 0)[0], np.take_along_axis(context, best, 0)[0]
