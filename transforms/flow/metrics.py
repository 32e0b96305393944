"""Names of counters (in commits, in the manifest, in Beam's metrics) and the balances that they must keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

NAMESPACE = "layerbeam"

RECORDS = "records_read"
EMBEDDED = "embedded"
BLANK = "blank_skipped"
FILTERED = "filtered"
REJECTED = "rejected"
REJECTED_BY_ENCODER = "rejected_by_encoder"  # some of the rejected ones
# Of CSV and TSV: lines of records after the first line of each; those of records that were rejected as they were read.
MORE_LINES, REJECTED_LINES = "more_lines", "more_lines_rejected"
SENTENCES = "sentences_read"
# {outcome of a record: the same of a sentence, if the unit is a sentence}
OF_SENTENCES = {outcome: f"sentences_{outcome}" for outcome in (EMBEDDED, BLANK, FILTERED, REJECTED)}
SENTENCES_EMBEDDED = OF_SENTENCES[EMBEDDED]
DUPLICATE_IDS = "doubled_ids"  # ids seen before: in the block (commit), in the run (manifest)
WITHOUT_PAIR = "records_without_pair"  # embedded as single texts although there is a pair_field
TOKENS = "tokens"  # without special tokens
UNKNOWN_TOKENS = "unknown_tokens"
TRUNCATED_TEXTS = "truncated_texts"
DROPPED_TOKENS = "dropped_tokens"
# Of one view, whose name follows after a colon.
LOST_WORDS = "words_lost"  # words with tokens cut off at max_seq_length
EMPTY_WORDS = "words_empty"  # words that normalize to nothing
EMPTY_TEXTS = "texts_empty"  # texts without tokens to pool: their vectors are zeros
ZERO_VECTORS = "vectors_zero"  # rows with a vector of zeros, those of such texts and any other
# Blocks whose vectors were sampled, and those for which int8 is too coarse; another colon and the column follow.
INT8_SAMPLED, INT8_COARSE = "int8_sampled", "int8_coarse"
# Of one form of keep_words, which follows after another colon: its rows; those of them that the text spells in another
# way, but for case; and its places in the texts that are no word, as in a word with an emoji or among Chinese words.
KEPT_WORDS, OTHER_SPELLINGS, INSIDE_WORDS = "kept_word", "kept_other_spelling", "kept_inside_words"
# Beam metrics only: blocks encoded and written, and their texts; blocks copied, with their texts and tokens (without
# [CLS] and [SEP]); and blocks that were found committed when they were to be read or committed, by this attempt (an
# engine had retried them) or by another one.
BLOCKS_WRITTEN, WRITTEN_TEXTS = "blocks_written", "written_texts"
BLOCKS_COPIED, COPIED_TEXTS, COPIED_TOKENS = "blocks_copied", "copied_texts", "copied_tokens"
BLOCKS_FOUND_OWN = "blocks_found_own_attempt"
BLOCKS_FOUND_OTHER = "blocks_found_other_attempt"

ENCODING_BEGAN = "encoding_began"  # a distribution, milliseconds since the epoch; its minimum is the first block's
# Work and time of one attempt. These differ from run to run, so they are in Beam's metrics and in `_runs` only. Times
# are summed over all threads.
PADDED_TOKENS = "padded_tokens"  # padding included
ENCODED_TOKENS = "encoded_tokens"  # without padding; with special tokens, and overlapping windows counted twice
HALVED_BATCHES = "halved_batches"  # did not fit in memory
BATCH_TEXTS = "batch_texts"  # a distribution: texts that `EmbedText` encoded together
STAGES = {stage: f"{stage}_microseconds" for stage in ("read", "tokenize", "forward", "pooling", "write")}

# {number read: the outcomes that must add up to it}
BALANCES = {RECORDS: tuple(OF_SENTENCES), SENTENCES: tuple(OF_SENTENCES.values())}


def unbalanced(counts: Mapping[str, int]) -> str | None:
    """The first of the balances that does not hold, as text; None if all do.

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


def blocks_found(by: int | None, attempt: int | None) -> str:
    """The counter of a block that attempt `by` had committed before this one did."""
    return BLOCKS_FOUND_OWN if by == attempt else BLOCKS_FOUND_OTHER


def embedded_texts(counts: Mapping[str, int]) -> int:
    """The number of embedded texts: sentences if they are the unit, else records.

    >>> embedded_texts({"embedded": 2}), embedded_texts({"embedded": 2, "sentences_embedded": 5})
    (2, 5)
    """
    return counts.get(SENTENCES_EMBEDDED, counts.get(EMBEDDED, 0))


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums by name, sorted by name.

    >>> total([{"tokens": 1}, {"tokens": 2, "embedded": 1}])
    {'embedded': 1, 'tokens': 3}
    """
    sums: Counter[str] = Counter()
    for one in counts:
        sums.update(one)
    return dict(sorted(sums.items()))
