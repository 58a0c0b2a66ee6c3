"""Weight scales that ONNX Runtime's quantization of biases can work with, and what they cost.

The weight scale of a channel whose bias would overflow is raised to the least one that avoids it; see
`trt_tui.core.network.bias_quantization`. All lowerings and the simulation get the raised scale from
`trt_tui.core.lowering.rules`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_tui.core.lowering.folds import Folds
from trt_tui.core.network.bias_quantization import (
    BIAS_INPUTS,
    FLOAT_TYPES,
    MAX_BIAS_QUOTIENT,
    MIN_BIAS_SCALE,
    magnitude_by_channel,
    overflows,
)
from trt_tui.core.network.layers import Group, Site
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import first_few, number, plural

MIN_WARNED_BITS = 1.0
"""A channel that loses fewer bits is a note, not a warning."""


def bias_port(network: Network, group: Group, site: Site) -> tuple[str, int] | None:
    """Returns the layer input that holds the constant bias of a product, or that could hold one; None otherwise."""
    layer = network.layer(site.layer)
    if (index := BIAS_INPUTS.get(layer.op_type)) is not None:
        tensor = layer.inputs[index] if len(layer.inputs) > index else ""
        return (layer.name, index) if not tensor or tensor in network.constants else None
    users = network.consumers.get(layer.outputs[0], ())
    behind = network.layer(users[0]) if len(users) == 1 else None
    if layer.op_type != "MatMul" or behind is None or behind.op_type != "Add" or behind.name not in group.layers:
        return None
    return next(((behind.name, index) for index, name in enumerate(behind.inputs) if name in network.constants), None)


def bias_of(network: Network, port: tuple[str, int], constants: Folds | None) -> np.ndarray | None:
    """Returns a bias as a config has it, float32; None if there is none."""
    if constants is not None:
        return constants.constant(port)
    inputs = network.layer(port[0]).inputs
    tensor = inputs[port[1]] if port[1] < len(inputs) else ""
    return network.constant(tensor) if tensor in network.constants else None


def raised(scale: np.ndarray, input_scale: float, bias: np.ndarray, held: Precision) -> np.ndarray:
    """Returns weight scales with which ONNX Runtime can quantize a bias, float32; the same array if none is raised.

    Args:
        scale: One for each output channel, or one for all, rounded to `held`.
        input_scale: The scale of the input, rounded to `held`.
        bias: Of any shape, rounded to `held`.
        held: The type of the scales, FP16 or FP32.
    """
    magnitude = magnitude_by_channel(bias, scale.size).reshape(scale.shape)
    wrong = overflows(scale, input_scale, magnitude, held)
    if not wrong.any():
        return scale
    dtype = FLOAT_TYPES[held]
    with np.errstate(over="ignore"):
        product = magnitude / MAX_BIAS_QUOTIENT[held]
        rounded = _rounded_up(np.maximum(product, MIN_BIAS_SCALE[held]), dtype)
        tie = (rounded.astype(np.float64) + np.nextafter(rounded, np.zeros_like(rounded))) / 2
        found = _rounded_up(np.maximum(product, tie) / input_scale, dtype)  # the product is rounded too
        found = np.where(overflows(found, input_scale, magnitude, held), _next(found), found)  # at a tie
    wrong &= np.isfinite(found)  # no scale is large enough for an infinite bias
    result: np.ndarray = np.where(wrong, found, scale).astype(np.float32)
    return result if wrong.any() else scale


def _rounded_up(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns the least values of a type that are not below some."""
    found: np.ndarray = values.astype(dtype)
    return np.where(found.astype(np.float64) < values, _next(found), found)


def _next(values: np.ndarray) -> np.ndarray:
    """Returns the next larger values of the same type."""
    found: np.ndarray = np.nextafter(values, np.full_like(values, np.inf))
    return found


@dataclass(frozen=True)
class RaisedScale:
    """The weight scales of a layer that were raised.

    Attributes:
        layer: The layer that multiplies by the weight.
        channels: The output channels; empty if one scale holds for the whole weight.
        before: The scales before, of these channels.
        after: The scales that are used.
        weight_db: The SQNR of the quantized weight before and after, in dB; infinite if it is exact.
    """

    layer: str
    channels: tuple[int, ...]
    before: np.ndarray
    after: np.ndarray
    weight_db: tuple[float, float]

    @property
    def bits(self) -> float:
        """The largest number of bits that a channel loses."""
        return float(np.log2(self.after / self.before).max())

    @property
    def text(self) -> str:
        """The cost, as a sentence."""
        worst = int(np.argmax(self.after / self.before))
        channels = [str(channel) for channel in self.channels]
        where = (f"the weight scales of {plural(len(channels), 'channel')} ({first_few(channels)}) go" if channels[1:]
                 else f"the weight scale of channel {channels[0]} goes" if channels else "its one weight scale goes")
        at = "" if len(self.channels) < 2 else f" at channel {self.channels[worst]}"
        was, now = self.weight_db
        cost = f"the SQNR of the weight goes from {was:.1f} to {now:.1f} dB" if math.isfinite(now) else \
            "the weight stays exact"
        return (f"{self.layer}: ONNX Runtime cannot quantize its bias under default options, so {where} from "
                f"{number(float(self.before[worst]))} to {number(float(self.after[worst]))}{at}; it loses "
                f"{self.bits:.1f} bits, and {cost}.")


def weight_db(weight: np.ndarray, quantized: np.ndarray) -> float:
    """Returns the SQNR of a quantized weight in dB, infinite if it is exact."""
    noise = float(np.square(weight.astype(np.float64) - quantized).sum())
    return 10 * math.log10(float(np.square(weight.astype(np.float64)).sum()) / noise) if noise else math.inf
