"""Texts that cannot be encoded: found and rejected with the reason, so that the rest of their block is kept."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping

import numpy as np

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import TokenBlock, VectorBlock, reject, take_texts

Encode = Callable[[TokenBlock], VectorBlock]

ENCODE_STAGE = "encode"


class UnencodableTextsError(ValueError):
    """Texts whose vectors cannot be written. `reasons`: {index in the block: reason}."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"text {text}: {reason}" for text, reason in sorted(self.reasons.items())))


class EncoderFailedError(Exception):
    """The encoder raised an error other than out of memory. The message is the first line of that error's."""

    def __init__(self, error: Exception) -> None:
        first_line = next(iter(str(error).splitlines()), "")
        super().__init__(f"{type(error).__name__}: {first_line}".removesuffix(": "))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: in Python, in NumPy, or in TensorFlow on any device."""
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, MemoryError) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )


def is_caused_by_text(error: Exception) -> bool:
    """Whether a text may have caused the error: the encoder failed or memory ran out. Other errors are bugs here."""
    return isinstance(error, EncoderFailedError) or is_out_of_memory(error)


def encode_or_reject(tokens: TokenBlock, encode: Encode, check_encoder: Callable[[], object]) -> VectorBlock:
    """The block's vectors by `encode`; texts that cannot be encoded become rejects.

    If the encoder or memory fails, the block is halved until the texts that fail alone are found. `check_encoder`
    raises if the encoder fails on the simplest sequence: then no text is the cause, and its error propagates. The
    original error propagates if every half succeeds and only the whole block fails.
    """
    while True:
        try:
            return encode(tokens)
        except UnencodableTextsError as error:
            check_encoder()
            reasons = error.reasons
        except Exception as error:
            if not is_caused_by_text(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they keep the vectors of the whole block alive
            check_encoder()
            reasons = find_faults(tokens, encode)
            if not reasons and isinstance(error, MemoryError):
                name = tokens.text.name
                raise MemoryError(f"the vectors of block {name} do not fit: lower output.target_part_bytes") from error
            if not reasons:
                raise
        rest = np.setdiff1d(np.arange(len(tokens.num_dropped)), list(reasons))
        text = reject(tokens.text, reasons, ENCODE_STAGE)
        here = text.counts[metrics.REJECTED] - tokens.text.counts.get(metrics.REJECTED, 0)
        if np.any(here):
            text.counts[metrics.REJECTED_BY_ENCODER] = text.counts.get(metrics.REJECTED_BY_ENCODER, 0) + here
        tokens = take_texts(tokens, text, rest)


def find_faults(tokens: TokenBlock, encode: Encode) -> dict[int, str]:
    """{text: reason} for the texts that fail even alone, found by halving the block."""
    reasons: dict[int, str] = {}
    everything = np.arange(len(tokens.num_dropped))
    waiting = np.array_split(everything, min(2, len(everything)) or 1)  # the whole has failed already
    while waiting:
        texts = waiting.pop()
        try:
            encode(take_texts(tokens, tokens.text.take(texts), texts))
        except UnencodableTextsError as error:
            reasons |= {int(texts[text]): reason for text, reason in error.reasons.items()}
        except Exception as error:
            if not is_caused_by_text(error):
                raise
            if len(texts) == 1:
                reasons[int(texts[0])] = reject_reason(error)
            else:
                waiting += np.array_split(texts, 2)
    return reasons


def reject_reason(error: Exception) -> str:
    """Why a text is rejected. Equal causes give equal words, because rejects are counted by reason.

    >>> reject_reason(MemoryError())
    'does not fit in memory, even alone'
    >>> reject_reason(EncoderFailedError(ValueError("bad id\\nat node x")))
    'the encoder failed: ValueError: bad id'
    """
    return "does not fit in memory, even alone" if is_out_of_memory(error) else f"the encoder failed: {error}"
