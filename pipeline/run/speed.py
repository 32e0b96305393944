"""How fast an attempt was, and where its time went, from Beam's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.transforms import metrics

# The keys that `measure` returns.
PERFORMANCE = ("seconds", "seconds_to_first_block", "tokens_per_second", "padding_share", "stage_shares", "counts")


def measure(found: Mapping[str, Any], *, seconds: float, began: float) -> dict[str, Any]:
    """The entries of `_runs/<n>.json` for wall time, tokens per second, padding and shares of the stages.

    `found`: Beam's metrics; `began`: seconds since the epoch. `seconds_to_first_block`: until the encoder was loaded
    and had its first block. `stage_shares`: of the busy time of all threads; waiting does not count.
    """
    own = [metric for kind in ("counters", "distributions") for metric in found[kind]]
    # `result` is the attempted value if the engine, such as Spark, does not report the committed one.
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
