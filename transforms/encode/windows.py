"""Texts cut to what the encoder takes: a long one in windows, with the place from which each token's vector comes."""

from __future__ import annotations

import dataclasses

import numpy as np

from layerbeam.transforms.blocks import Int32Array, Int64Array, TokenBlock, row_splits_of, token_positions


@dataclasses.dataclass
class Sequences:
    """What goes through the encoder for U different texts: Q sequences, more than one for a text in windows.

    `text`: int64 [Q], of the U; sequence q has the block's tokens `positions[splits[q]:splits[q + 1]]`. `owner`: int64,
    of each token of the U texts the place in `positions` from which its vector is taken.
    """

    text: Int64Array
    positions: Int64Array
    splits: Int64Array
    owner: Int64Array


def cut_sequences(tokens: TokenBlock, texts: Int64Array, max_seq_length: int, overlap: int) -> Sequences:
    """The sequences of these texts; one longer than `max_seq_length` in windows that share `overlap` tokens.

    Each window has the text's own [CLS] and [SEP]. A token's vector is from the window where it has most context on its
    poorer side, all pieces of a word from the same; [CLS] from the first, [SEP] from the last.
    """
    lengths = np.diff(tokens.row_splits)[texts]
    if not (lengths > max_seq_length).any():
        positions = token_positions(tokens.row_splits, texts)
        return Sequences(np.arange(len(texts)), positions, row_splits_of(lengths), np.arange(len(positions)))
    text: list[int] = []
    pieces: list[Int64Array] = []
    owners: list[Int64Array] = []
    before = 0
    for index, (begin, length) in enumerate(zip(tokens.row_splits[texts], lengths, strict=True)):
        windows, owner = cut_windows(tokens.word_index[begin : begin + length], max_seq_length, overlap)
        text += [index] * len(windows)
        pieces += [begin + window for window in windows]
        owners.append(owner + before)
        before += sum(map(len, windows))
    splits = row_splits_of(np.array([len(piece) for piece in pieces], np.int64))
    return Sequences(np.array(text, np.int64), np.concatenate(pieces), splits, np.concatenate(owners))


def cut_windows(word_index: Int32Array, max_seq_length: int, overlap: int) -> tuple[list[Int64Array], Int64Array]:
    """(tokens of each window, where in the windows put together each token's vector is) of a text with [CLS] and [SEP].

    >>> windows, owner = cut_windows(np.array([-1, 0, 1, 2, 3, 4, -1]), 5, 1)
    >>> [window.tolist() for window in windows], owner.tolist()
    ([[0, 1, 2, 3, 6], [0, 3, 4, 5, 6]], [0, 1, 2, 3, 7, 8, 9])
    """
    length = len(word_index)
    if length <= max_seq_length:
        return [np.arange(length)], np.arange(length)
    room = max_seq_length - 2
    starts = [*range(1, length - 1 - room, room - overlap), length - 1 - room]
    windows = [np.concatenate([[0], np.arange(start, start + room), [length - 1]]) for start in starts]
    place = np.arange(1, length - 1)
    # Of each token the windows that hold it, and its context there: the fewer of the tokens on its two sides.
    begins = np.array(starts)[:, None]
    context = np.minimum(place - begins, begins + room - 1 - place)
    # A word is judged by its worst piece, so that all of it comes from one window where one holds all of it.
    words = np.flatnonzero(np.diff(word_index[1:-1], prepend=-2) != 0)
    of_words = np.minimum.reduceat(context, words, axis=1)
    best = np.argmax(of_words, axis=0)
    best_window = np.repeat(best, np.diff(np.append(words, len(place))))
    # A word longer than a window has no such: its pieces come from where each has most context.
    nowhere = np.repeat(of_words.max(axis=0) < 0, np.diff(np.append(words, len(place))))
    best_window = np.where(nowhere, np.argmax(context, axis=0), best_window)
    inner = best_window * max_seq_length + 1 + (place - np.array(starts)[best_window])
    return windows, np.concatenate([[0], inner, [len(windows) * max_seq_length - 1]])
