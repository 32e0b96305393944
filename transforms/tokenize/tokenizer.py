"""What the tokenize stage does with a block: records to texts, to the tokens of these, to the rows of views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerbeam.transforms.encoders import EncoderSource, load_library_tokenizer, load_vocabulary
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, leave_out, take_texts
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.chunks import cut_chunks
from layerbeam.transforms.tokenize.contexts import tokenize_in_context
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.pieces import TextTokenizer
from layerbeam.transforms.tokenize.row_index import KeepWords, rows_of
from layerbeam.transforms.tokenize.sentences import split_sentences
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views.view import ViewSpec


def load_text_tokenizer(encoder: EncoderSource, *, of_words: bool = False) -> TextTokenizer:
    """The tokenizer of an encoder: TF Text's WordPiece, or that of the library tokenizers.

    `of_words`: for texts whose words are given.
    """
    vocabulary = load_vocabulary(encoder)
    if vocabulary.library == "tokenizers":
        tokenizer = load_library_tokenizer(encoder.handle, vocabulary.file, encoder.special_in_text, of_words=of_words)
        return LibraryTokenizer(tokenizer, encoder.special)
    return WordPiece(
        vocabulary.entries,
        encoder.do_lower_case,
        vocabulary.max_chars_per_word,
        encoder.special,
        finds_special=encoder.special_in_text == "token",
    )


class Tokenizer:
    """Records to texts, to tokens and to the rows of views.

    If all views keep some words only, texts without any are dropped.

    Not thread-safe. To build one takes 0.1 s and may run a TensorFlow operation: see `WordPiece`.
    """

    def __init__(self, encoder: EncoderSource, views: Sequence[ViewSpec], settings: SequenceSettings) -> None:
        self.text_tokenizer = load_text_tokenizer(encoder, of_words=settings.records.has_words)
        self._views = views
        self._settings = settings
        self._keep = {view.name: KeepWords(view, self.text_tokenizer) for view in views if view.keep_words is not None}

    def __call__(self, block: TextBlock) -> TokenBlock:
        tokens = self.tokenize(block)
        tokens.rows = {view.name: rows_of(view, tokens, self._keep.get(view.name)) for view in self._views}
        if self._keep and len(self._keep) == len(self._views):
            has_rows = np.zeros(len(tokens.num_dropped), bool)
            for rows in tokens.rows.values():
                has_rows[rows.text] = True
            if not has_rows.all():
                left = leave_out(tokens.text, ~has_rows, metrics.FILTERED)
                tokens = take_texts(tokens, left, np.flatnonzero(has_rows))
        return tokens

    def tokenize(self, records: TextBlock) -> TokenBlock:
        """The tokens of the records' texts, without the rows of views."""
        texts = self.split(records)
        if self._settings.context == "text":
            return tokenize_block(texts, self.text_tokenizer, self._settings)
        return tokenize_in_context(records, texts, self.text_tokenizer, self._settings)

    def split(self, records: TextBlock) -> TextBlock:
        """The block with the texts of its records: their sentences or chunks, or the records themselves."""
        record_format = self._settings.records
        if record_format.unit == "chunk":
            return cut_chunks(records, self.text_tokenizer, self._settings)
        return split_sentences(records, record_format) if record_format.unit == "sentence" else records
