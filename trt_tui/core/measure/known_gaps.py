"""Patterns of networks whose engines lose more than the simulation says, with the gap that was measured.

Each gap is in dB of SQNR at the output, measured with TensorRT 8.6 on an H200: the simulated value minus the value of
the engine, or the distance of two builds. A simulated result that meets its target by less than the gap may
miss it in the engine.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trt_tui.core.lowering.accumulation import is_depthwise, roundings
from trt_tui.core.measure.comparison import Caveat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Layer
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import plural

_RECURRENT = ("GRU", "LSTM", "RNN")
_PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", *_RECURRENT)


@dataclass(frozen=True)
class GapPattern:
    """A pattern of layers in one precision, with the gap that engines showed.

    Attributes:
        precision: The precision in which the pattern has the gap.
        matches: Returns True if a layer of a group has the pattern.
        text: The pattern as a plural noun phrase, for people.
        gap_db: Simulated minus built SQNR at the output, in dB.
        source: The network in which the gap was measured, with both values.
    """

    precision: Precision
    matches: Callable[[Network, Group, Layer], bool]
    text: str
    gap_db: float
    source: str


def _is_convolution_of_1_axis(network: Network, group: Group, layer: Layer) -> bool:
    return layer.op_type in ("Conv", "ConvTranspose") and len(network.shape(layer.inputs[1]) or ()) == 3


def _is_large_depthwise(network: Network, group: Group, layer: Layer) -> bool:
    shape = network.shape(layer.inputs[1]) or () if len(layer.inputs) > 1 else ()
    return is_depthwise(network, layer) and shape[2:] != (3, 3)


def _is_sum_of_unknown_roundings(network: Network, group: Group, layer: Layer) -> bool:
    """Returns True for products whose FP16 accumulator is not simulated."""
    if layer.op_type in ("Einsum", *_RECURRENT):
        return True
    if layer.op_type not in _PRODUCTS or len(layer.inputs) < 2:
        return False
    first, second = (network.shape(tensor) for tensor in layer.inputs[:2])
    depth = ((first or ())[-1:] if layer.op_type == "MatMul" else (second or ())[1:])
    return roundings(network, layer) == 1 and not all(isinstance(size, int) for size in depth or (None,))


def _is_gemm_behind_norm(network: Network, group: Group, layer: Layer) -> bool:
    maker = network.producer.get(layer.inputs[0], "")
    return (layer.op_type == "Gemm" and (before := network.group_of(maker)) is not None
            and before.operator in ("LayerNormalization", "LayerNorm"))


def _is_fp16_sum_of_the_file(network: Network, group: Group, layer: Layer) -> bool:
    """Returns True for products that a file has in FP16: their FP16 accumulator is not simulated."""
    return (group.given is not None and group.given.stands_for is Precision.FP16
            and (roundings(network, layer) > 1 or _is_sum_of_unknown_roundings(network, group, layer)))


GAP_PATTERNS: Sequence[GapPattern] = (
    GapPattern(Precision.FP16, _is_convolution_of_1_axis, "1-D convolutions in FP16", 4.9,
               "HiFi-GAN: 52.3 dB simulated, 47.4 built"),
    GapPattern(Precision.FP16, _is_large_depthwise, "depthwise convolutions larger than 3x3 in FP16", 2.7,
               "ConvNeXt: two builds gave 59.4 and 56.7 dB"),
    GapPattern(Precision.FP16, _is_sum_of_unknown_roundings,
               "products in FP16 whose accumulator is not simulated", 4.8, "ViT-S: 4.8 dB in the median of 11 configs"),
    GapPattern(Precision.INT8, _is_gemm_behind_norm, "INT8 Gemms behind a LayerNormalization", 4.0,
               "ConvNeXt: 33.9 dB simulated, 29.9 and 32.5 built"),
    GapPattern(Precision.FILE, _is_fp16_sum_of_the_file, "products that are FP16 in the file, which are added in FP32",
               4.8, "ViT-S: 4.8 dB in the median of 11 configs"),
)
"""The patterns. The gaps of HiFi-GAN and ConvNeXt are the worst ones among 15 networks that the simulation was not
developed on. That of ViT-S is of its simulation with FP32 accumulators, as unmodelled accumulators are simulated."""


def gap_caveats(network: Network, config: PrecisionConfig) -> tuple[Caveat, ...]:
    """Returns a caveat for each pattern that a config has in a network."""
    caveats = []
    for pattern, layers in zip(GAP_PATTERNS, _find_patterns(network), strict=True):
        names = [name for group, name in layers
                 if pattern.precision in (config.precision_of(group), group.stands_for(config.precision_of(group)))]
        if names:
            such = f"{plural(len(names), 'layer')} such as {names[0]}" if len(names) > 1 else names[0]
            caveats.append(Caveat(
                "known gap", f"engines lost up to {pattern.gap_db:g} dB more than simulated with {pattern.text} "
                f"({such}; TensorRT 8.6, {pattern.source})", gap_db=pattern.gap_db))
    return tuple(caveats)


@functools.lru_cache(maxsize=1)
def _find_patterns(network: Network) -> list[list[tuple[Group, str]]]:
    """Returns the layers of each pattern with their groups, whatever their precision."""
    return [[(group, name) for group in network.groups for name in group.layers
             if pattern.matches(network, group, network.layer(name))] for pattern in GAP_PATTERNS]
