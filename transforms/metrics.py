"""Counter names, once: the keys of a commit's counts, of the manifest's, and of Beam's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import apache_beam as beam

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
DOUBLED_IDS = "doubled_ids"  # records with the id of an earlier one: of the same block, in the manifest of the run
TOKENS = "tokens"  # without [CLS] and [SEP]
UNKNOWN_TOKENS = "unknown_tokens"
TRUNCATED_TEXTS = "truncated_texts"
DROPPED_TOKENS = "dropped_tokens"
BLOCKS_WRITTEN = "blocks_written"  # a Beam metric only: what one start of the program did
PADDED_TOKENS = "padded_tokens"  # what was computed, padding included: a Beam metric only, it differs from run to run


_BALANCES = {
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
    for read, ends in _BALANCES.items():
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


def count(name: str, amount: int) -> None:
    """Add to a Beam counter; only inside a bundle (Beam loses what `setup` counts)."""
    beam.metrics.Metrics.counter(NAMESPACE, name).inc(amount)
