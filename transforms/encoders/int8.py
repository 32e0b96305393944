"""Products of 8-bit integers: the codes of a dense layer's inputs and weights.

An input x is read as `step * (code - zero)`, its code being 0 to 255, with a step and a zero for each channel. They are
fixed before the first text, from the ranges that a calibration text gave, so a text's codes depend on nothing else. A
channel's step is the geometric mean of those that its own range and the widest channel's need; the rows of the kernel
take it up (SmoothQuant, Xiao et al., https://arxiv.org/abs/2211.10438, with asymmetric ranges). Each column of the
kernel has codes -127 to 127 and a scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from layerbeam.transforms.flow.blocks import Float32Array, Int8Array

# What a range is widened by, because other texts go beyond the calibration's; and n, the steps being powers of 2^(1/n),
# so that another processor, which rounds otherwise, gives the same. One step for all channels costs more exactness than
# the others together, so it has less room.
_ROOM = 1.1, 8
_ROOM_OF_ONE = 1.05, 64
LARGEST = 127  # code of a weight


class InputCodes(NamedTuple):
    """How the inputs of a product become codes: x is `step * (code - zero)`; [in] each, or one for all channels."""

    step: Float32Array
    zero: Float32Array

    @classmethod
    def of_range(cls, low: Float32Array, high: Float32Array, *, one_step: bool) -> InputCodes:
        """The codes for inputs from `low` to `high`, [in] each. `one_step`: all channels have the same."""
        margin, per_octave = _ROOM_OF_ONE if one_step else _ROOM
        if one_step:
            low, high = low.min(), high.max()
        width = np.maximum(high - low, 1e-3 * np.max(high - low, initial=1e-6)).astype(np.float64)
        step = np.sqrt(width * width.max()) * margin / 255
        step = np.exp2(np.ceil(np.log2(step) * per_octave) / per_octave)
        zero = np.rint(127.5 - (low.astype(np.float64) + high) / 2 / step)
        return cls(step.astype(np.float32), zero.astype(np.float32))

    @property
    def limits(self) -> tuple[float, float]:
        """What the codes 0 and 255 stand for, if all channels have one step."""
        return float(-self.zero * self.step), float((255 - self.zero) * self.step)


def kernel_codes(kernel: Float32Array, inputs: InputCodes) -> tuple[Int8Array, Float32Array]:
    """(codes [in, out], scale [out]) of a kernel that takes codes: step * kernel is scale * codes."""
    scaled = kernel * inputs.step.reshape(-1, 1)
    scale = np.abs(scaled).max(axis=0) / np.float32(LARGEST)
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.rint(scaled / scale).astype(np.int8), scale


def quantize_weights(
    weights: Iterable[tuple[str, Float32Array]], inputs: Mapping[str, InputCodes]
) -> Iterator[tuple[str, Float32Array | Int8Array]]:
    """The (name, weight) pairs of a graph whose products named in `inputs` take codes.

    Such a product has `kernel`, codes; `bias`, which includes the zeros of its inputs; `largest`, what the code 127
    stands for in each column; `inverse` and `zero`, by which its inputs become codes. A kernel precedes its bias.
    """
    corrections: dict[str, Float32Array] = {}
    for name, values in weights:
        product, _, part = name.rpartition("/")
        if product not in inputs:
            yield name, values
        elif part == "kernel":
            codes, scale = kernel_codes(values, inputs[product])
            zero = np.broadcast_to(inputs[product].zero, len(codes))
            corrections[product] = (zero.astype(np.float64) @ codes * scale).astype(np.float32)
            yield name, codes
            yield f"{product}/largest", scale * np.float32(127)
            yield f"{product}/inverse", np.float32(1) / inputs[product].step
            yield f"{product}/zero", inputs[product].zero
        else:
            yield name, values - corrections[product]
