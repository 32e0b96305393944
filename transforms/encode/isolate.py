"""Texts of which no vector can be made: found, and rejected with the reason, so that the others go on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping

import numpy as np

from layerbeam.transforms.blocks import Int64Array, TokenBlock, VectorBlock
from layerbeam.transforms.subset import reject, take_texts

Encode = Callable[[TokenBlock], VectorBlock]

ENCODE_STAGE = "encode"


class UnencodableTextsError(ValueError):
    """Texts of a block whose vectors cannot be written: `reasons`, by their place in the block."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"text {text}: {reason}" for text, reason in sorted(self.reasons.items())))


class EncoderFailedError(Exception):
    """The encoder raised something for a batch, for another reason than memory. The message is the first line of it."""

    def __init__(self, error: Exception) -> None:
        first_line = next(iter(str(error).splitlines()), "")
        super().__init__(f"{type(error).__name__}: {first_line}".removesuffix(": "))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, NumPy's, or TensorFlow's on any device."""
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, MemoryError) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )


def is_caused_by_text(error: Exception) -> bool:
    """Whether the text may be to blame: the encoder failed, or memory; not we."""
    return isinstance(error, EncoderFailedError) or is_out_of_memory(error)


def encode_or_reject(tokens: TokenBlock, encode: Encode, check_encoder: Callable[[], object]) -> VectorBlock:
    """What `encode` gives for a block; texts at fault are rejected with the reason, and the others encoded.

    Where the encoder or memory fails, the block is halved until the texts that fail alone are found. `check_encoder`
    raises where the encoder cannot do even the simplest sequence: then no text is to blame, and the error goes up; so
    it does where each half works and only the whole does not.
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
            traceback.clear_frames(error.__traceback__)  # they hold the vectors of the whole block
            check_encoder()
            reasons = find_faults(tokens, encode)
            if not reasons and isinstance(error, MemoryError):
                name = tokens.text.block.name
                raise MemoryError(f"the vectors of block {name} do not fit: lower output.target_part_bytes") from error
            if not reasons:
                raise
        tokens = _reject(tokens, reasons)


def find_faults(tokens: TokenBlock, encode: Encode) -> dict[int, str]:
    """{text: reason} of the texts that cannot be encoded by themselves, found by halving the block."""
    reasons: dict[int, str] = {}
    everything = np.arange(len(tokens.num_dropped))
    waiting = np.array_split(everything, min(2, len(everything)) or 1)  # who calls has tried all of them
    while waiting:
        texts = waiting.pop()
        try:
            encode(_take(tokens, texts))
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
    """Why a text is rejected, the same words for the same reason: rejects are counted by them.

    >>> reject_reason(MemoryError())
    'does not fit in memory, even alone'
    >>> reject_reason(EncoderFailedError(ValueError("bad id\\nat node x")))
    'the encoder failed: ValueError: bad id'
    """
    return "does not fit in memory, even alone" if is_out_of_memory(error) else f"the encoder failed: {error}"


def _take(tokens: TokenBlock, texts: Int64Array) -> TokenBlock:
    return take_texts(tokens, tokens.text.take(texts), texts)


def _reject(tokens: TokenBlock, reasons: Mapping[int, str]) -> TokenBlock:
    rest = np.setdiff1d(np.arange(len(tokens.num_dropped)), list(reasons))
    return take_texts(tokens, reject(tokens.text, reasons, ENCODE_STAGE), rest)
