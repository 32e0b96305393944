"""Texts cut from the tokens of their contexts, against a judge in plain Python."""

from __future__ import annotations

import collections
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from test_sequences import block_of
from test_wordpiece_property import random_text

from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, row_of_each, take_texts
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.contexts import tokenize_in_context
from layerbeam.transforms.tokenize.sentences import split_records

Spans = list[list[tuple[int, int]]]


def settings_of(context: str | int, prompt: str = "") -> SequenceSettings:
    return SequenceSettings(12, "window", prompt, context=context)


def cut(texts: list[str], spans: Spans, tokenizer, settings: SequenceSettings) -> TokenBlock:
    return tokenize_in_context(*blocks_of(texts, spans), tokenizer, settings)


def blocks_of(texts: list[str], spans: Spans) -> tuple[TextBlock, TextBlock]:
    records = block_of(texts)
    numbers = np.repeat(np.arange(len(texts)), [len(own) for own in spans])
    return records, split_records(records, numbers, np.array([*itertools.chain(*spans)], np.int64).reshape(-1, 2))


def random_records(pick: random.Random, vocab, *, partition: bool) -> tuple[list[str], Spans]:
    texts = [" ".join(random_text(pick, vocab) for _ in range(pick.randint(1, 5))) for _ in range(3)]
    spans = []
    for text in texts:
        places = sorted({0, len(text), *(pick.randint(0, len(text)) for _ in range(pick.randint(0, 4)))})
        if partition:
            spans.append([*itertools.pairwise(places)])
        else:
            starts = sorted(pick.choices(places, k=pick.randint(1, 5)))
            spans.append([(start, pick.randint(start, len(text))) for start in starts])
    return texts, spans


def tokens_by_rule(
    texts: list[str], spans: Spans, tokenizer, context: str | int, prompt: str
) -> list[list[tuple[int, int, int]]]:
    """(id, start, end) of the tokens of each text, context by context and token by token."""
    found = []
    for text, own in zip(texts, spans, strict=True):
        for number, (start, end) in enumerate(own):
            around = own if context == "record" else own[max(number - context, 0) : number + context + 1]
            begin, stop = around[0][0], max(last for _, last in around)
            pieces = tokenizer.tokenize(pa.array([prompt + text[begin:stop]]))
            special = tokenizer.special
            is_first, is_last = start == begin, end == stop
            tokens = [(token, -1, -1) for token in special.before if is_first]
            columns = (pieces.ids, pieces.start, pieces.end, pieces.word_char)
            reached = 0
            for token, first, last, char in zip(*(column.tolist() for column in columns), strict=True):
                shift = begin - len(prompt)
                if last <= len(prompt):  # of the prompt
                    tokens += [(token, -1, -1)] if is_first else []
                    continue
                reached = max(reached, max(first if char < 0 else char, len(prompt)) + shift)
                if (is_first or reached >= start) and (is_last or reached < end):
                    tokens.append((token, min(max(first + shift, start), end), min(max(last + shift, start), end)))
            found.append(tokens + [(token, -1, -1) for token in special.behind if is_last])
    return found


def tokens_of(block: TokenBlock) -> list[list[tuple[int, int, int]]]:
    tokens = [*zip(block.token_ids.tolist(), block.start.tolist(), block.end.tolist(), strict=True)]
    return [tokens[begin:end] for begin, end in itertools.pairwise(block.row_splits.tolist())]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("context", ["record", 1, 2])
def test_random_texts(tokenizer, vocab, context, seed):
    pick = random.Random(seed)
    texts, spans = random_records(pick, vocab, partition=seed % 2 == 0)
    prompt = pick.choice(("", "the: "))
    block = cut(texts, spans, tokenizer, settings_of(context, prompt))
    assert tokens_of(block) == tokens_by_rule(texts, spans, tokenizer, context, prompt)
    contexts = block.contexts
    assert contexts.token_ids[contexts.place].tolist() == block.token_ids.tolist()
    of_token = contexts.of_text[row_of_each(block.row_splits)]
    assert row_of_each(contexts.row_splits)[contexts.place].tolist() == of_token.tolist()
    for begin, end in itertools.pairwise(block.row_splits.tolist()):
        words = [word for word in block.word_index[begin:end].tolist() if word >= 0]
        assert words == sorted(words)
        assert words[:1] in ([], [0])
    if context == "record" and seed % 2 == 0:  # the texts are all of the record
        assert collections.Counter(contexts.place.tolist()) == dict.fromkeys(range(len(contexts.token_ids)), 1)


@pytest.mark.parametrize("seed", range(5))
def test_some_of_the_texts(tokenizer, vocab, seed):
    pick = random.Random(seed)
    texts, spans = random_records(pick, vocab, partition=True)
    block = cut(texts, spans, tokenizer, settings_of(pick.choice(("record", 1))))
    chosen = np.array(sorted(pick.sample(range(len(block.num_dropped)), min(2, len(block.num_dropped)))))
    some = take_texts(block, block.text.take(chosen), chosen)
    assert tokens_of(some) == [tokens_of(block)[text] for text in chosen.tolist()]
    assert some.contexts.token_ids[some.contexts.place].tolist() == some.token_ids.tolist()
    around = [block.contexts.texts[number].as_py() for number in block.contexts.of_text[chosen].tolist()]
    assert some.contexts.texts.take(pa.array(some.contexts.of_text)).to_pylist() == around
    assert len(some.contexts.texts) == len(set(block.contexts.of_text[chosen].tolist()))


def test_a_record_of_one_text_is_encoded_as_the_text_alone(tokenizer):
    texts = ["  the bank of the river. ", "", "a well"]
    spans: Spans = [[(2, 24)], [(0, 0)], [(0, 6)]]
    block = cut(texts, spans, tokenizer, settings_of("record"))
    alone = cut(
        [text.strip() for text in texts], [[(0, len(text.strip()))] for text in texts], tokenizer, settings_of(1)
    )
    assert block.token_ids.tolist() == alone.token_ids.tolist()
    assert block.contexts.texts.to_pylist() == ["the bank of the river.", "", "a well"]


def test_a_record_at_which_the_tokenizer_panics(tokenizer, monkeypatch):
    real = type(tokenizer).tokenize

    def tokenize(self, texts):
        if any("!" in text for text in texts.to_pylist()):
            raise PanicError("cannot")
        return real(self, texts)

    monkeypatch.setattr(type(tokenizer), "tokenize", tokenize)
    texts, spans = ["the bank", "a well ! a river", "the river"], [[(0, 3), (4, 8)], [(0, 6), (9, 16)], [(0, 9)]]
    block = cut(texts, spans, tokenizer, settings_of("record"))
    assert block.text.texts.to_pylist() == ["the", "bank", "the river"]
    assert [(rejected.line, rejected.raw) for rejected in block.text.rejected] == [(1, b"a well"), (1, b"a river")]
    assert {rejected.reason for rejected in block.text.rejected} == {"the tokenizer cannot cut the text: cannot"}


def test_a_block_without_texts(tokenizer):
    assert tokens_of(cut([], [], tokenizer, settings_of("record"))) == []
    assert tokens_of(cut(["  "], [[]], tokenizer, settings_of(1))) == []
