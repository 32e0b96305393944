"""Tokenizers of the library `tokenizers`, by name."""

from __future__ import annotations

from architectures import byte_level
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from layerbeam.transforms.encoders.source import SpecialTokens

ROBERTA = SpecialTokens(before=(0,), between=(2, 2), behind=(2,), pad=1, has_second_segment=False)


def unigram() -> Tokenizer:
    """As XLM-R's: a mark before each word, compatibility characters normalized."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁river", "▁bank", "s", "fi", "ne", ".", "'", "你"]
    model = models.Unigram([(piece, -float(number)) for number, piece in enumerate(pieces)], unk_id=3)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(pieces[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


TOKENIZERS = {"trimmed": byte_level, "whole": lambda: byte_level(trim_offsets=False), "unigram": unigram}
