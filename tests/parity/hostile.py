"""Random texts that are hard to tokenize: every code point, combining marks, emoji, white space, long words, markup."""

from __future__ import annotations

import random
import unicodedata

from texts import read_sentences

_EVERY = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
_MARKS = [character for character in _EVERY if unicodedata.category(character)[0] == "M"]
_SPACES = [character for character in _EVERY if character.isspace()] + ["\u180e", "\u200b", "\u2060", "\ufeff"]
_COMPOSED = [character for character in _EVERY if unicodedata.decomposition(character)]
_PUNCTUATION = [character for character in _EVERY if unicodedata.category(character)[0] in "PS"]
_ASCII = [chr(code) for code in range(1, 128)]
_CJK = [chr(code) for code in (*range(0x4E00, 0x4E80), *range(0x3041, 0x30FF), *range(0xAC00, 0xAC80))]
_EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1f9\U0001f1f7"]
_EMOJI += ["\U0001f44d\U0001f3fd", "1\ufe0f\u20e3", "\u2764\ufe0f", "\U0001f600"]
_RUNS = [
    (_EVERY, 4),
    (_EVERY[:0x3000], 6),
    (_MARKS, 5),
    (_SPACES, 4),
    (_COMPOSED, 4),
    (_PUNCTUATION, 4),
    (_ASCII, 8),
    (_CJK, 8),
    (_EMOJI, 3),
    ([" "], 6),
    ([mark * count for mark in (*".-=*ae0", "1,000") for count in range(2, 30)], 3),  # many equally good cuts
    (["\n", "\r\n", "\t", " \n"], 3),
    (["'s", "'t", "'re", "n't", "...", "--", "1,000.5", "a_b", "\u2581", "\u0120", "##"], 3),
]


def hostile_texts(count: int, seed: int, specials: tuple[str, ...] = ()) -> list[str]:
    """This many texts; `specials`: special tokens that some of them hold."""
    rng = random.Random(seed)
    words = [word for sentence in read_sentences() for word in sentence.split()]
    runs = [*_RUNS, (specials, 2)] if specials else _RUNS
    texts = ["", " ", "\n", "  two  spaces  ", "a" * 300]
    while len(texts) < count:
        parts = []
        for _ in range(rng.randrange(8)):
            if rng.random() < 0.5:
                parts.append(rng.choice([" ", " ", ""]).join(rng.choices(words, k=rng.randint(1, 5))))
            else:
                choices, most = rng.choice(runs)
                parts.append("".join(rng.choices(choices, k=rng.randint(1, most))))
        texts.append(rng.choice(["", "", " "]).join(parts))
    return texts
