"""How fast a start of the program was, and where its time went: from Beam's metrics to the closing lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.cli.console import count_noun, size_text
from layerbeam.transforms import metrics

# What `measure` gives.
PERFORMANCE = (
    "seconds",
    "seconds_to_first_block",
    "tokens_per_second",
    "padding_share",
    "stage_shares",
    "counts",
)


def measure(found: Mapping[str, Any], *, seconds: float, began: float) -> dict[str, Any]:
    """What `_runs/<n>.json` says: wall time, tokens per second, padding, shares of the stages, from Beam's metrics.

    `began`: seconds since the epoch. `seconds_to_first_block`: until the encoder was loaded and had its first block.
    `stage_shares`: of the busy time of all threads; waiting is nobody's.
    """
    own = [metric for kind in ("counters", "distributions") for metric in found[kind]]
    # `result`: of what is attempted where the engine, Spark, does not tell what was committed.
    values = {m.key.metric.name: m.result for m in own if m.key.metric.namespace == metrics.NAMESPACE}
    first = values.pop(metrics.ENCODING_BEGAN, None)
    busy = {stage: values.get(name, 0) for stage, name in metrics.STAGES.items()}
    encoded, padded = values.get(metrics.ENCODED_TOKENS, 0), values.get(metrics.PADDED_TOKENS, 0)
    return {
        "seconds": round(seconds, 2),
        "seconds_to_first_block": None if first is None else round(max(first.min / 1000 - began, 0.0), 2),
        "tokens_per_second": round(encoded / seconds, 1) if seconds else 0.0,
        "padding_share": round(1 - encoded / padded, 4) if padded else 0.0,
        "stage_shares": {stage: round(time / (sum(busy.values()) or 1), 4) for stage, time in busy.items()},
        "counts": values,
    }


def performance_lines(record: Mapping[str, Any]) -> list[str]:
    """What the summary says of the last start, from its record in `_runs`; nothing where it encoded nothing."""
    tokens = record.get("counts", {}).get(metrics.ENCODED_TOKENS, 0)
    if not tokens:
        return []
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in record["stage_shares"].items() if share >= 0.005)
    if record["workers"] is None:  # elsewhere; this machine's memory says nothing
        where, memory = f"on {record['runner']}", ""
    else:
        where = f"with {count_noun(record['workers'], 'worker')}"
        memory = f"; peak memory {size_text(record['peak_memory_bytes'])}"
    lines = [
        f"{tokens:,} tokens in {record['seconds']:.1f} s, {record['tokens_per_second']:,.0f} a second, "
        f"{where}; padding {record['padding_share']:.1%}{memory}",
        f"first block after {record['seconds_to_first_block']:.1f} s; busy with: {shares}",
    ]
    halved = record["counts"].get(metrics.HALVED_BATCHES, 0)
    if halved:
        batches = count_noun(halved, "batch", "batches")
        lines.append(f"{batches} did not fit in memory, halved; fewer encoder.batch_tokens would spare that")
    return lines
