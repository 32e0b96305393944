"""Sentence splitters compared on the sentences of tests/data/sentences: the tables in docs/configuration.md.

python tests/benchmarks/sentences.py FOLDER_WITH_THE_OTHER_LIBRARIES
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from layerbeam.transforms.read.sentences import find_by_tensorflow_text
from layerbeam.transforms.splitters import open_splitter

GOLD = Path(__file__).parents[1] / "data" / "sentences"
MARK = "‖"
SHOWN = ("en", "de", "fr", "es", "it", "ru", "zh", "ja")
REPEATS = 5
SECONDS = 2.0

# (language, texts) -> the sentences of each text.
SplitAll = Callable[[str, list[str]], Sequence[Iterable[str]]]


class Entry(NamedTuple):
    """A text of the gold set; `starts`: the first code point of each sentence but the first."""

    language: str
    category: str
    text: str
    starts: frozenset[int]


class Score(NamedTuple):
    """How many boundaries are right, were found, and are in the gold set."""

    right: int
    found: int
    gold: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.gold

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.gold)


def read_gold() -> list[Entry]:
    """The gold set, in the order of its files."""
    entries = []
    for path in sorted(GOLD.glob("*.txt")):
        category = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                category = line[2:]
            else:
                entries.append(parse_entry(path.stem, category, line))
    return entries


def parse_entry(language: str, category: str, line: str) -> Entry:
    """An entry from its line.

    >>> parse_entry("en", "", r"One.\\n‖Two.")
    Entry(language='en', category='', text='One.\\nTwo.', starts=frozenset({5}))
    """
    escapes = {"\\n": "\n", "\\r": "\r", "\\\\": "\\"}
    for escape, character in escapes.items():
        line = line.replace(escape, character)
    sentences = line.split(MARK)
    starts = [sum(map(len, sentences[:number])) for number in range(1, len(sentences))]
    return Entry(language, category, "".join(sentences), frozenset(starts))


def starts_of(text: str, sentences: Iterable[str]) -> set[int]:
    """The first code point of each sentence but the first. A sentence that is not in the text is left out."""
    starts, end = [], 0
    for sentence in sentences:
        stripped = sentence.strip()
        start = text.find(stripped, end)
        if stripped and start >= 0:
            starts.append(start)
            end = start + len(stripped)
    return set(starts[1:])


def score(entries: Sequence[Entry], split_all: SplitAll) -> Score:
    """What a splitter finds in these entries."""
    right = found = gold = 0
    for language in {entry.language for entry in entries}:
        of_language = [entry for entry in entries if entry.language == language]
        split = split_all(language, [entry.text for entry in of_language])
        for entry, sentences in zip(of_language, split, strict=True):
            starts = starts_of(entry.text, sentences)
            right += len(starts & entry.starts)
            found += len(starts)
            gold += len(entry.starts)
    return Score(right, found, gold)


def megabytes_per_second(entries: Sequence[Entry], split_all: SplitAll) -> float:
    """Text per second of processor time, the best of several rounds. The texts are short, as lines of a corpus are."""
    calls = [
        (language, [entry.text for entry in entries if entry.language == language] * REPEATS)
        for language in sorted({entry.language for entry in entries})
    ]
    size = sum(len(text.encode()) for _, texts in calls for text in texts)
    best, end = float("inf"), time.process_time() + SECONDS
    while time.process_time() < end:
        begin = time.process_time()
        for language, texts in calls:
            split_all(language, texts)
        best = min(best, time.process_time() - begin)
    return size / best / 1e6


def each(make: Callable[[str], Callable[[str], Iterable[str]]]) -> SplitAll:
    """A splitter of many texts from a maker of a splitter of one text, by language."""
    make = functools.cache(make)
    return lambda language, texts: [list(make(language)(text)) for text in texts]


def split_by_tensorflow_text(language: str, texts: list[str]) -> list[list[str]]:
    sentences: list[list[str]] = [[] for _ in texts]
    data = [text.encode() for text in texts]
    for text, first, last in zip(*find_by_tensorflow_text(pa.array(texts)), strict=True):
        sentences[text].append(data[text][first:last].decode())
    return sentences


def make_sentencex(language: str) -> Callable[[str], Iterable[str]]:
    split = open_splitter("sentencex", language)
    return lambda text: (text[start:end] for start, end in split(text))


def make_syntok(language: str) -> Callable[[str], Iterable[str]]:
    from syntok import segmenter

    return lambda text: (
        text[sentence[0].offset : sentence[-1].offset + len(sentence[-1].value)]
        for paragraph in segmenter.analyze(text)
        for sentence in paragraph
    )


def make_blingfire(language: str) -> Callable[[str], Iterable[str]]:
    import blingfire

    return lambda text: blingfire.text_to_sentences(text).split("\n")


def make_pysbd(language: str) -> Callable[[str], Iterable[str]]:
    import pysbd

    known = language in pysbd.languages.LANGUAGE_CODES
    return pysbd.Segmenter(language if known else "en").segment


def make_yasbd(language: str) -> Callable[[str], Iterable[str]]:
    import yasbd

    known = language in yasbd.get_supported_langs()
    return yasbd.BoundaryDetector(language if known else "en").segment


def make_spacy(language: str) -> Callable[[str], Iterable[str]]:
    import spacy

    try:
        model = spacy.blank(language)
    except ImportError:  # Chinese and Japanese need a segmenter of words
        model = spacy.blank("xx")
    model.add_pipe("sentencizer", config={"punct_chars": None})
    return lambda text: (sentence.text for sentence in model(text).sents)


def make_sentence_splitter(language: str) -> Callable[[str], Iterable[str]]:
    import sentence_splitter

    try:
        return sentence_splitter.SentenceSplitter(language).split
    except sentence_splitter.SentenceSplitterException:
        return sentence_splitter.SentenceSplitter("en").split


CANDIDATES: dict[str, SplitAll] = {
    "sentencex": each(make_sentencex),
    "sentencex, told `en` for all": each(lambda language: make_sentencex("en")),
    "tensorflow_text": split_by_tensorflow_text,
    "blingfire": each(make_blingfire),
    "yasbd": each(make_yasbd),
    "pysbd": each(make_pysbd),
    "syntok": each(make_syntok),
    "sentence-splitter": each(make_sentence_splitter),
    "spaCy's sentencizer": each(make_spacy),
}


def main() -> None:
    sys.path += sys.argv[1:]
    entries = read_gold()
    sentences = sum(len(entry.starts) + 1 for entry in entries)
    print(f"{sentences} sentences in {len(entries)} texts and {len({e.language for e in entries})} languages\n")
    print(f"| splitter | precision | recall | F1 | MB/s | {' | '.join(SHOWN)} | others |")
    print("|---" * (6 + len(SHOWN)) + "|")
    for name, split_all in CANDIDATES.items():
        total = score(entries, split_all)
        groups = [[entry for entry in entries if entry.language == language] for language in SHOWN]
        groups.append([entry for entry in entries if entry.language not in SHOWN])
        speed = megabytes_per_second(entries, split_all)
        cells = [f"{value:.2f}" for value in (total.precision, total.recall, total.f1, speed)]
        cells += [f"{score(group, split_all).f1:.2f}" for group in groups]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\n| category (sentencex) | precision | recall |\n|---|---|---|")
    for category in dict.fromkeys(entry.category for entry in entries):
        found = score([entry for entry in entries if entry.category == category], CANDIDATES["sentencex"])
        print(f"| {category} | {found.precision:.2f} | {found.recall:.2f} |")


if __name__ == "__main__":
    main()
