"""transforms/wordpiece.py against transforms/reference.py: hostile texts at random, and every code point there is.

No code point is excepted: both follow the tables of the running Python, and TF Text only cuts words into pieces.
"""

from __future__ import annotations

import collections
import itertools
import random
import unicodedata
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from test_wordpiece import CASES, Pair, pairs_of, reference_rows

from layerbeam.transforms.reference import CHINESE, ReferenceWordPiece

NUM_TEXTS = 12_000
BATCH = 4_000

EVERY = [chr(code) for code in itertools.chain(range(0xD800), range(0xE000, 0x110000))]
BY_CATEGORY: dict[str, list[str]] = collections.defaultdict(list)
for _character in EVERY:
    BY_CATEGORY[unicodedata.category(_character)].append(_character)
ASSIGNED = [c for category, characters in BY_CATEGORY.items() if category not in ("Cn", "Co") for c in characters]
MARKS = BY_CATEGORY["Mn"] + BY_CATEGORY["Mc"] + BY_CATEGORY["Me"]
JAMO = [*map(chr, range(0x1100, 0x1200)), *map(chr, range(0xA960, 0xA980)), *map(chr, range(0xD7B0, 0xD800))]

# What a text may hold, and how many of it in a run at most.
RUNS: list[tuple[Sequence[str], int]] = [
    (EVERY, 3),
    (EVERY[:0x3000], 4),
    (ASSIGNED, 4),
    (BY_CATEGORY["Cn"], 2),
    (BY_CATEGORY["Co"], 2),
    (MARKS, 8),
    # Combining, yet no Mn: they stay, and NFD sorts them among those that go.
    ([c for c in MARKS if unicodedata.combining(c) and unicodedata.category(c) != "Mn"] + ["\u0301", "\u0323"], 5),
    ([c for c in ASSIGNED if unicodedata.decomposition(c)], 3),
    ([c for c in ASSIGNED if c.lower() != c], 4),
    ([c for category in BY_CATEGORY if category[0] == "P" for c in BY_CATEGORY[category]], 3),
    ("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 4),
    ([*BY_CATEGORY["Cc"], "\0", "\ufffd"], 2),
    (BY_CATEGORY["Cf"], 2),
    ([c for c in EVERY if c.isspace()] + ["\u180e", "\u200b", "\u2060", "\ufeff"], 3),
    ([chr(code + step) for bounds in CHINESE for code in bounds for step in (-1, 0, 1)], 3),
    ([chr(code) for first, last in CHINESE for code in range(first, last + 1)], 3),
    (JAMO, 4),
    ([chr(code) for code in range(0xAC00, 0xD7A4)], 2),
    # Final sigma: cased, ignorable and other neighbours, characters that go, a space.
    ("\u03a3\u03a3\u03c3\u03c2\u0391aA1'\u00b7.\u2019\u00ad\u200b\u0301\u0345\u02b0\u00aa\u2160\u4e2d \u0130\1", 7),
    ("\u0130\u0130I\u0131i\u0307\u0301\u0327\u03a3", 5),
    ("\ufb00\ufb01\ufb03\ufb06\u00df\u1e9e\u0149\u01f0\u0390\u01c4\u01c5\u1f82\u1fb7\u212a\u212b\u2126\u2026\u037e", 3),
    (["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1f9\U0001f1f7", "\U0001f44d\U0001f3fd", "\u2764\ufe0f"], 3),
    (["1\ufe0f\u20e3", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f3f4\U000e0067\U000e007f", "\U0001f600"], 3),
    (["[CLS]", "[UNK]", "[SEP]", "[PAD]", "[MASK]", "[unused1]", "##", "[no entry 4]"], 2),
]
# One character, or several at random, of which a long word is made; some go, some are cut off, some become more.
LONG = ["a", "a", "aA", "ab\u0301", "a\u200b", "\u0130", "\uac00", "\uac01", "\U0001f600", "a\u4e2d", "A\u03a3"]
LONG_SIZES = [66, 67, 100, 101, 199, 200, 200, 201]


def random_text(rng: random.Random, vocab: Sequence[str]) -> str:
    if rng.random() < 0.02:
        word = "".join(rng.choices(rng.choice(LONG), k=rng.choice(LONG_SIZES)))
        return rng.choice(["", "", "the ", ".", "x"]) + word + rng.choice(["", "", " end", "!", "\u0301", "y"])
    parts = (random_words if rng.random() < 0.4 else random_run for _ in range(rng.randrange(7)))
    return rng.choice(["", "", " "]).join([part(rng, vocab) for part in parts])


def random_run(rng: random.Random, vocab: Sequence[str]) -> str:
    choices, most = rng.choice(RUNS)
    return "".join(rng.choices(choices, k=rng.randint(1, most)))


def random_words(rng: random.Random, vocab: Sequence[str]) -> str:
    """Entries of `vocab`: as they are, in capitals, glued with ##, or cut and with accents of their own."""
    words = rng.choices(vocab, k=rng.randint(1, 3))
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(["##", " ", ""]).join(words)
    if kind == 1:
        return rng.choice([str.upper, str.title, str.swapcase])(words[0])
    cut = "".join(word.removeprefix("##")[rng.randrange(3) :][: rng.randint(1, 9)] for word in words)
    if kind == 2:
        return cut
    accented = "".join(c + rng.choice(["", "", "\u0301", "\u0323\u0308", rng.choice(MARKS)]) for c in cut)
    return unicodedata.normalize(rng.choice(["NFC", "NFD"]), accented)


@pytest.fixture(scope="module")
def minilm(vocab: list[str]) -> dict[str, Pair]:
    return pairs_of(vocab)


@pytest.fixture(scope="module")
def texts(vocab: list[str]) -> list[str]:
    rng = random.Random("hostile")
    return [random_text(rng, vocab) for _ in range(NUM_TEXTS)]


@pytest.fixture(scope="module")
def every_character(vocab: list[str]) -> dict[str, Pair]:
    """With every assigned character in both forms besides: different basic tokens then have different ids."""
    # Control characters never come through, and TF Text takes no entry with a NUL.
    characters = [c for c in ASSIGNED if unicodedata.category(c) != "Cc"]
    more = list(dict.fromkeys([*vocab, *characters, *map("##".__add__, characters)]))
    return pairs_of(more)


def differences(pair: Pair, texts: Sequence[str]) -> Iterator[str]:
    """The texts of which the ids differ; a batch at a time through the fast one."""
    wordpiece, reference = pair
    for begin in range(0, len(texts), BATCH):
        batch = texts[begin : begin + BATCH]
        pieces = wordpiece.tokenize(pa.array(batch, pa.string()))
        ids, splits = pieces.ids.tolist(), pieces.row_splits.tolist()
        assert len(splits) == len(batch) + 1
        for text, first, end in zip(batch, splits, splits[1:], strict=False):
            if ids[first:end] != reference.tokenize(text):
                yield text


def assert_equal_ids(pair: Pair, texts: Sequence[str]) -> None:
    wordpiece, reference = pair
    different = sorted(differences(pair, texts), key=len)
    if different:
        text = different[0]
        code_points = " ".join(f"U+{ord(c):04X}" for c in text)
        expected, alone = reference.tokenize(text), wordpiece.tokenize(pa.array([text], pa.string())).ids.tolist()
        pytest.fail(
            f"{len(different):,} of {len(texts):,} texts differ; the smallest is {text!a} ({code_points}): "
            f"{expected} in the reference, {alone} from WordPiece when alone"
        )


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_google_s_ids(minilm: dict[str, Pair], name: str) -> None:
    reference = minilm[name][1]
    assert [text for text, ids in reference_rows(name) if reference.tokenize(text) != ids] == []


def test_the_reference_takes_the_last_of_equal_entries() -> None:
    vocab = ["[UNK]", "a", "##b", "a"]
    assert ReferenceWordPiece(vocab, True).tokenize("A ab abc") == [3, 3, 2, 0]


@pytest.mark.parametrize("name", CASES)
def test_the_random_texts_are_hostile(texts: list[str], minilm: dict[str, Pair], name: str) -> None:
    reference = minilm[name][1]
    texts = texts[: NUM_TEXTS // 2]
    words = [word for text in texts for word in reference.words(text)]
    assert {199, 200, 201} <= set(map(len, words))
    known = [word for word in words if reference.pieces(word) != ["[UNK]"]]
    assert 0.3 < len(known) / len(words) < 0.7
    assert max(len(word) for word in known) == 200
    assert sum(len(reference.pieces(word)) > 1 for word in known) > 1_000
    assert {unicodedata.category(c) for text in texts for c in text} == set(BY_CATEGORY)


@pytest.mark.parametrize("name", CASES)
def test_random_texts(texts: list[str], minilm: dict[str, Pair], name: str) -> None:
    assert_equal_ids(minilm[name], texts)


@pytest.mark.slow  # as all tests that need its vocabulary
@pytest.mark.parametrize("name", CASES)
def test_random_texts_without_unknown_characters(texts: list[str], every_character: dict[str, Pair], name: str) -> None:
    assert_equal_ids(every_character[name], texts[NUM_TEXTS // 2 :])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_code_point(every_character: dict[str, Pair], name: str) -> None:
    assert len(EVERY) == 0x110000 - 0x800
    assert_equal_ids(every_character[name], [f"a{c}b" for c in EVERY])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_assigned_character_beside_sigma_and_marks(every_character: dict[str, Pair], name: str) -> None:
    """At the ends of a text and of a word, on either side of a capital sigma, and among marks that NFD sorts."""
    texts = [f"{c} {c}\u03a3 a{c}\u03a3 a\u03a3{c} a\u03a3{c}a \u302e\u0323{c}\u302e\u0301 A{c}" for c in ASSIGNED]
    assert len(texts) > 140_000
    assert_equal_ids(every_character[name], texts)
