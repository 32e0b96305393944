from __future__ import annotations

import pytest
from library_tokenizers import ROBERTA, TOKENIZERS

from layerbeam.transforms.encoders.source import SpecialTokens
from layerbeam.transforms.tokenize.library import LibraryTokenizer
from layerbeam.transforms.tokenize.wordpiece import WordPiece


@pytest.fixture(scope="module", params=["wordpiece", *TOKENIZERS])
def tokenizer(request, vocab):
    if request.param == "wordpiece":
        special = SpecialTokens.of_bert({entry: number for number, entry in enumerate(vocab)})
        return WordPiece(vocab, True, 200, special)
    return LibraryTokenizer(TOKENIZERS[request.param](), ROBERTA)
