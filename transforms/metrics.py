"""Counter names, once: the keys of a commit's counts, of the manifest's, and of Beam's metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

NAMESPACE = "layerbeam"

RECORDS = "records_read"
EMBEDDED = "embedded"
BLANK = "blank_skipped"
FILTERED = "filtered"
REJECTED = "rejected"
# Where the unit is a sentence, the same again.
SENTENCES = "sentences_read"
SENTENCES_EMBEDDED = "sentences_embedded"
SENTENCES_BLANK = "sentences_blank_skipped"
SENTENCES_FILTERED = "sentences_filtered"
SENTENCES_REJECTED = "sentences_rejected"
DUPLICATE_IDS = "doubled_ids"  # records with the id of an earlier one: of the same block, in the manifest of the run
TOKENS = "tokens"  # without [CLS] and [SEP]
UNKNOWN_TOKENS = "unknown_tokens"
TRUNCATED_TEXTS = "truncated_texts"
DROPPED_TOKENS = "dropped_tokens"
BLOCKS_WRITTEN = "blocks_written"  # a Beam metric only

ENCODING_BEGAN = "encoding_began"  # a distribution, milliseconds since the epoch: its least is the first block's
# What one start of the program did and how long its stages took: Beam metrics and `_runs` only, for they differ from
# run to run. Times are of all threads together.
PADDED_TOKENS = "padded_tokens"  # what was computed, padding included
ENCODED_TOKENS = "encoded_tokens"  # the same without padding: with [CLS] and [SEP], texts in windows more than once
HALVED_BATCHES = "halved_batches"  # they did not fit in memory
READ_TIME = "read_microseconds"
TOKENIZE_TIME = "tokenize_microseconds"
FORWARD_TIME = "forward_microseconds"
POOLING_TIME = "pooling_microseconds"
WRITE_TIME = "write_microseconds"
STAGES = {
    "read": READ_TIME,
    "tokenize": TOKENIZE_TIME,
    "forward": FORWARD_TIME,
    "pooling": POOLING_TIME,
    "write": WRITE_TIME,
}

# What was read, and the ends that make it up.
BALANCES = {
    RECORDS: (EMBEDDED, BLANK, FILTERED, REJECTED),
    SENTENCES: (SENTENCES_EMBEDDED, SENTENCES_BLANK, SENTENCES_FILTERED, SENTENCES_REJECTED),
}
# A sentence's counter by a record's.
OF_SENTENCES = {FILTERED: SENTENCES_FILTERED, REJECTED: SENTENCES_REJECTED}


def unbalanced(counts: Mapping[str, int]) -> str | None:
    """What is wrong with the balance `read = embedded + blank + filtered + rejected`, of records or sentences, or None.

    >>> unbalanced({"records_read": 3, "embedded": 2, "rejected": 1})
    >>> unbalanced({"records_read": 3, "embedded": 2})
    'records_read 3 != embedded 2 + blank_skipped 0 + filtered 0 + rejected 0'
    """
    for read, ends in BALANCES.items():
        ended = {name: counts.get(name, 0) for name in ends}
        if counts.get(read, 0) != sum(ended.values()):
            parts = " + ".join(f"{name} {count}" for name, count in ended.items())
            return f"{read} {counts.get(read, 0)} != {parts}"
    return None


def embedded_texts(counts: Mapping[str, int]) -> int:
    """How many texts were embedded: sentences where they are the unit, else records.

    >>> embedded_texts({"embedded": 2}), embedded_texts({"embedded": 2, "sentences_embedded": 5})
    (2, 5)
    """
    return counts.get(SENTENCES_EMBEDDED, counts.get(EMBEDDED, 0))


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums, by name, names in order.

    >>> total([{"tokens": 1}, {"tokens": 2, "embedded": 1}])
    {'embedded': 1, 'tokens': 3}
    """
    sums: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            sums[name] = sums.get(name, 0) + count
    return dict(sorted(sums.items()))


class _Tally:
    """A number that many threads add to."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self.value += amount


# Beam tells its metrics when a run has ended. Whoever shows how far it is asks the process itself.
_encoded = _Tally()


def note_encoded(tokens: int) -> None:
    """A batch of so many tokens was encoded."""
    _encoded.add(tokens)


def encoded_here() -> int:
    """Tokens that this process has encoded, in all runs."""
    return _encoded.value
