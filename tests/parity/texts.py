"""The texts of the comparison: the sentences, 1,000 texts that start with them, and documents made of them."""

from __future__ import annotations

import itertools
from pathlib import Path

SENTENCES = Path(__file__).with_name("sentences.txt")
# For late interaction; a query keeps its punctuation.
QUERIES = ["Who lives by the river?", "the price of bread", "An old song, sung at night."]


def read_sentences() -> list[str]:
    """The 200 sentences."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()


def make_texts() -> list[str]:
    """The sentences; their halves; each joined with the next (some exceed 128 tokens); each with its halves swapped."""
    sentences = read_sentences()
    texts = list(sentences)
    for sentence, following in zip(sentences, [*sentences[1:], sentences[0]], strict=True):
        words = sentence.split()
        middle = (len(words) + 1) // 2
        first, second = " ".join(words[:middle]), " ".join(words[middle:]) or "."
        texts += [first, second, f"{sentence} {following}", f"{second} {first}"]
    return texts


def make_documents() -> list[str]:
    """Documents of one to twelve of the sentences; some exceed 128 tokens, some 256."""
    sentences = iter(read_sentences())
    documents = (" ".join(itertools.islice(sentences, count)) for count in itertools.cycle(range(1, 13)))
    return list(itertools.takewhile(bool, documents))
