"""Blocks of tokens to blocks of vectors, with the encoder loaded once per worker process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import apache_beam as beam
import numpy as np
from apache_beam.utils.shared import Shared

from transforms import metrics
from transforms.batching import equal_texts, plan_batches, token_positions
from transforms.records import Float32Array, Int32Array, Int64Array, TokenBlock, VectorBlock, row_splits_of
from transforms.threads import load_tensorflow
from transforms.views import BatchOutput, View, batch_vectors, empty_vectors, finish_vectors, reads_cls


class Encoder(Protocol):
    """A loaded encoder; several threads may call it at once."""

    hidden_size: int
    pad_id: int

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Float32Array], Float32Array | None]:
        """Layers and pooled output of one batch.

        `token_ids`, `segment_ids`: [B, S], padded; `lengths`: [B], the real tokens of each row. Gives {layer: [n, H]},
        the n real tokens row after row without padding, and the pooled output [B, H] where it was asked for.
        """


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


def pad_batch(
    tokens: TokenBlock, sequences: Sequences, batch: Int64Array, pad_id: int
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """(token ids [B, S], lengths [B], segment ids [B, S]) of these sequences, S the longest."""
    lengths = np.diff(sequences.splits)[batch]
    real = np.arange(int(lengths.max())) < lengths[:, None]
    positions = sequences.positions[token_positions(sequences.splits, batch)]
    token_ids = np.full(real.shape, pad_id, np.int32)
    token_ids[real] = tokens.token_ids[positions]
    segment_ids = np.zeros(real.shape, np.int32)
    segment_ids[real] = tokens.segment_ids[positions]
    return token_ids, lengths.astype(np.int32), segment_ids


@dataclasses.dataclass(frozen=True)
class EncodeSettings:
    """`batch_tokens`: the budget of padded tokens in a batch. Longer texts than `max_seq_length` go in windows."""

    batch_tokens: int
    max_seq_length: int
    window_overlap: int = 0


def encode_block(tokens: TokenBlock, encoder: Encoder, views: Sequence[View], settings: EncodeSettings) -> VectorBlock:
    """What the views keep of a block, its texts in their order; equal texts are encoded once."""
    targets = {view.name: empty_vectors(view, len(tokens.rows[view.name].text)) for view in views}
    of_texts = {
        view.name: row_splits_of(np.bincount(tokens.rows[view.name].text, minlength=len(tokens.num_dropped)))
        for view in views
    }
    first, inverse = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
    # The texts of each kind, kind after kind.
    alike = np.argsort(inverse, kind="stable")
    alike_splits = row_splits_of(np.bincount(inverse, minlength=len(first)))
    for kinds, output, begin in encode_texts(tokens, encoder, first, settings):
        members = token_positions(alike_splits, kinds)
        texts = alike[members]
        place = np.repeat(np.arange(len(kinds)), np.diff(alike_splits)[kinds])
        for view in views:
            rows = tokens.rows[view.name]
            chosen = token_positions(of_texts[view.name], texts)
            if not len(chosen):
                continue
            row_place = np.repeat(place, np.diff(of_texts[view.name])[texts])
            lengths = np.diff(rows.splits)[chosen]
            splits = row_splits_of(lengths)
            if view.uses_pooler or reads_cls(view, output):
                positions = row_place
            else:
                shift = (begin[row_place] - tokens.row_splits[rows.text[chosen]]).repeat(lengths)
                positions = rows.positions[token_positions(rows.splits, chosen)] + shift
            for target, values in zip(targets[view.name], batch_vectors(view, output, positions, splits), strict=True):
                target[chosen] = values
    vectors = {view.name: [finish_vectors(view, tokens, values) for values in targets.pop(view.name)] for view in views}
    return VectorBlock(tokens, vectors)


def encode_texts(
    tokens: TokenBlock, encoder: Encoder, first: Int64Array, settings: EncodeSettings
) -> Iterator[tuple[Int64Array, BatchOutput, Int64Array]]:
    """(which of the U texts, what came out, where each one's tokens begin in it) of one forward pass after the other.

    A text in windows comes alone, after the others, its windows put together.
    """
    sequences = cut_sequences(tokens, first, settings.max_seq_length, settings.window_overlap)
    windows = np.bincount(sequences.text, minlength=len(first))
    lengths = np.diff(sequences.splits)
    single = np.flatnonzero(windows[sequences.text] == 1)
    for planned in plan_batches(lengths[single], settings.batch_tokens):
        batch = single[planned]
        output = BatchOutput(*_forward(tokens, encoder, sequences, batch))
        yield sequences.text[batch], output, row_splits_of(lengths[batch])[:-1]
    owned = row_splits_of(np.diff(tokens.row_splits)[first])
    for text in np.flatnonzero(windows > 1):
        of_text = np.flatnonzero(sequences.text == text)
        parts = [
            _forward(tokens, encoder, sequences, of_text[planned])
            # In their order: all windows of a text are equally long.
            for planned in plan_batches(lengths[of_text], settings.batch_tokens)
        ]
        owner = sequences.owner[owned[text] : owned[text + 1]] - sequences.splits[of_text[0]]
        together = {layer: np.concatenate([layers[layer] for layers, _ in parts]) for layer in parts[0][0]}
        firsts = sequences.splits[of_text] - sequences.splits[of_text[0]]
        pooled = [output for _, output in parts if output is not None]
        yield (
            np.array([text]),
            BatchOutput(
                {layer: values[owner] for layer, values in together.items()},
                np.concatenate(pooled).mean(axis=0, keepdims=True) if pooled else None,
                {layer: values[firsts].mean(axis=0, keepdims=True) for layer, values in together.items()},
            ),
            np.zeros(1, np.int64),
        )


def _forward(
    tokens: TokenBlock, encoder: Encoder, sequences: Sequences, batch: Int64Array
) -> tuple[dict[int, Float32Array], Float32Array | None]:
    padded = pad_batch(tokens, sequences, batch, encoder.pad_id)
    metrics.count(metrics.PADDED_TOKENS, padded[0].size)
    return encoder(*padded)


@beam.typehints.with_input_types(TokenBlock)
@beam.typehints.with_output_types(VectorBlock)
class EncodeBlocks(beam.DoFn):
    """`TokenBlock` -> `VectorBlock`.

    `load` makes the encoder, once per worker process; it must give the layers that the views need. `num_threads`:
    blocks that the process has in hand at once, each with one thread of TensorFlow's.
    """

    def __init__(
        self, load: Callable[[], Encoder], views: tuple[View, ...], settings: EncodeSettings, *, num_threads: int
    ) -> None:
        self._load = load
        self._views = views
        self._settings = settings
        self._num_threads = num_threads
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self._num_threads)
        self._encoder = self._shared.acquire(self._load)

    def process(self, tokens: TokenBlock) -> Iterator[VectorBlock]:
        yield encode_block(tokens, self._encoder, self._views, self._settings)
