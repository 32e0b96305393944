"""Texts and pairs of texts as the sequences that BERT reads: cut to length, `[CLS] first [SEP] second [SEP]`.

Shapes as in `layerbeam.transforms.blocks`; P pieces (tokens without [CLS] and [SEP]).
Source: `extract_features.py` of google-research/bert.
"""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from layerbeam.transforms import counters, metrics
from layerbeam.transforms.blocks import (
    TextBlock,
    TokenBlock,
)
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.row_index import keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View


@beam.typehints.with_input_types(TextBlock)
@beam.typehints.with_output_types(TokenBlock)
class TokenizeBlocks(beam.DoFn):
    """`TextBlock` -> `TokenBlock`, with the rows of each view. `hardware`: what a worker process may use."""

    def __init__(
        self,
        vocabulary: tuple[str, ...],
        settings: SequenceSettings,
        views: tuple[View, ...],
        *,
        do_lower_case: bool,
        hardware: Hardware,
    ) -> None:
        self._vocabulary = vocabulary
        self._settings = settings
        self._views = views
        self._do_lower_case = do_lower_case
        self._hardware = hardware

    def setup(self) -> None:
        load_tensorflow(self._hardware)
        self._wordpiece = WordPiece(self._vocabulary, self._do_lower_case)
        self._keep = keep_words_of(self._views, self._wordpiece)

    def process(self, block: TextBlock) -> Iterator[TokenBlock]:
        with counters.timed(metrics.TOKENIZE_TIME):
            tokens = find_rows(tokenize_block(block, self._wordpiece, self._settings), self._views, self._keep)
        before, after = block.counts, tokens.text.counts
        for name in after:
            counters.count(name, after[name] - before.get(name, 0))
        yield tokens
