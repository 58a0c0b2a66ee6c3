"""Where a config overflows FP16, or may overflow it, by the FP32 magnitudes on the samples in use.

Each fusion group has one state. TensorRT 8.6 on an H200 decides what a kernel keeps in FP32: it folds a constant Mul or
a BatchNormalization into the weights of a Conv, multiplies a constant into a MatMul, and computes the sums inside
ReduceMean, pooling, ReduceL2 and InstanceNormalization in FP32. A Div behind a product, the scale behind QK, an Add
behind a Conv, a bias that cancels a sum, and squares in front of a mean overflow there (41 small networks).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from trt_tui.core.lowering.folds import rewritten
from trt_tui.core.lowering.rules import LOW_FLOATS, Ruling, sites_read_as, surrounding, typed_ports
from trt_tui.core.measure.comparison import Caveat
from trt_tui.core.measure.magnitudes import Magnitudes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group, Kind
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_MAX, FP16_OVERFLOW, Precision
from trt_tui.words import number

MIN_HEADROOM = 4.0
"""Below this headroom a sample that was not measured may well overflow, so a warning says so."""

_PARTS = {"Softmax": "the normaliser of", "LogSoftmax": "the Softmax inside",
          "ReduceLogSum": "the sum inside", "ReduceLogSumExp": "the sum inside"}
"""The values inside an operator that may exceed FP16, for people; partial sums for all others."""

_NAMED = 3
"""The number of fusion groups that a caveat names."""


class RangeState(str, Enum):
    """Whether the values of a fusion group fit FP16.

    - OVERFLOWS: an output of the group, or an output of an FP32 group that it reads, rounds to infinity however
      TensorRT fuses the layers.
    - MAY_OVERFLOW: only a value inside the group does, which a kernel may keep in FP32; or an input of the network,
      which may hold a mask.
    - SAFE: none does.
    """

    SAFE = "safe"
    MAY_OVERFLOW = "may overflow"
    OVERFLOWS = "overflows"


@dataclass(frozen=True)
class LargeValue:
    """A value of a fusion group that FP16 rounds to infinity.

    Attributes:
        group: Name of the fusion group.
        source: What the value is, for people: ``MatMul /qk``, ``partial sums of Conv /head``.
        amax: Its largest FP32 magnitude.
    """

    group: str
    state: RangeState
    source: str
    amax: float

    @property
    def text(self) -> str:
        """One clause without the name of the group."""
        if math.isinf(self.amax):
            return f"{self.source} vanishes in FP16, and a Log reads it"
        verb = "reach" if self.source.startswith("partial sums") else "reaches"
        return f"{self.source} {verb} {number(self.amax, 2)}, beyond FP16's {FP16_MAX:.0f}"


@dataclass(frozen=True)
class Largest:
    """The largest FP32 magnitude inside a group, and the layer that computes it."""

    layer: str
    amax: float

    @property
    def headroom(self) -> float:
        """The factor by which it could grow in FP16."""
        return FP16_MAX / self.amax


def uses_fp16(network: Network, config: PrecisionConfig) -> bool:
    """Returns True if any group of a config has FP16 results."""
    return any(surrounding(group, config.precision_of(group), config.other) is Precision.FP16
               for group in network.groups)


def find_large_values(network: Network, config: PrecisionConfig, magnitudes: Magnitudes) -> dict[str, LargeValue]:
    """Returns the worst value of each group that overflows or may overflow, by group name in network order."""
    found: dict[str, LargeValue] = {}
    if max((*magnitudes.tensors.values(), *magnitudes.inner.values()), default=0.0) < FP16_OVERFLOW:
        return found
    for group in network.groups:
        values = list(_large_values(network, config, group, magnitudes))
        if values:
            found[group.name] = max(values, key=lambda value: (value.state is RangeState.OVERFLOWS, value.amax))
    return found


def range_caveats(found: Mapping[str, LargeValue]) -> tuple[Caveat, ...]:
    """Returns a caveat for the groups that overflow, and one for those that may overflow."""
    caveats = []
    for state, kind in ((RangeState.OVERFLOWS, "overflow"), (RangeState.MAY_OVERFLOW, "may overflow")):
        values = sorted((value for value in found.values() if value.state is state), key=lambda value: -value.amax)
        if not values:
            continue
        named = "; ".join(f"{value.group}: {value.text}" for value in values[:_NAMED])
        more = f"; and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
        verb = "overflows" if state is RangeState.OVERFLOWS else "may overflow"
        caveats.append(Caveat(kind, f"FP16 {verb} ({named}{more})", fails=state is RangeState.OVERFLOWS))
    return tuple(caveats)


def _large_values(network: Network, config: PrecisionConfig, group: Group, magnitudes: Magnitudes
                  ) -> Iterator[LargeValue]:
    """Yields the values of a group that FP16 rounds to infinity."""
    precision = config.precision_of(group)
    if surrounding(group, precision, config.other) is not Precision.FP16:
        return

    def large(tensor: str) -> float:
        amax = magnitudes.tensors.get(tensor, 0.0)
        return amax if amax >= FP16_OVERFLOW else 0.0

    for tensor, amax in ((tensor, large(tensor)) for tensor in group.inputs):
        if amax and not _is_fp16_result(network, config, tensor):
            # An input of the network may hold a mask, whose infinity in FP16 is right.
            kept = tensor not in network.producer or _reads_quantized_only(network, config, group, tensor)
            yield LargeValue(group.name, RangeState.MAY_OVERFLOW if kept else RangeState.OVERFLOWS,
                             f"its input {tensor}", amax)
    for name, tensor, quantized in _constants(network, config, group):
        if amax := large(tensor):
            # A kernel that multiplies codes never has the weight in FP16; what runs the layer otherwise does.
            yield LargeValue(group.name, RangeState.MAY_OVERFLOW if quantized else RangeState.OVERFLOWS,
                             f"the constant {tensor} of {name}", amax)
    handed_on = {*group.outputs, group.tail}
    for name in _rounded_layers(network, config, group):
        layer = network.layer(name)
        for tensor in filter(None, layer.outputs):
            if amax := large(tensor):
                outside = tensor in handed_on and not _is_quantized_only(network, config, tensor)
                yield LargeValue(group.name, RangeState.OVERFLOWS if outside else RangeState.MAY_OVERFLOW,
                                 f"{layer.op_type} {name}", amax)
        amax = magnitudes.inner.get(name, 0.0)
        if amax >= FP16_OVERFLOW and _sums_in_fp16(group, precision):
            part = _PARTS.get(layer.op_type, "partial sums of")
            yield LargeValue(group.name, RangeState.MAY_OVERFLOW, f"{part} {layer.op_type} {name}", amax)


def _sums_in_fp16(group: Group, precision: Precision) -> bool:
    return Ruling(group.stands_for(precision), Precision.FP16).sums is Precision.FP16


def _rounded_layers(network: Network, config: PrecisionConfig, group: Group) -> list[str]:
    """Returns the layers whose results are rounded: a normalisation written as its operator rounds its last one."""
    norm = network.free.norms.get(group.name)
    inside = set(norm.layers[:-1]) if norm is not None and group.name in rewritten(config) else set()
    return [name for name in group.layers if name not in inside]


def _constants(network: Network, config: PrecisionConfig, group: Group) -> Iterator[tuple[str, str, bool]]:
    """Yields the layer and the name of each constant that a group reads in its float type, and whether it is quantized.

    The exported network dequantizes a quantized constant to that type.
    """
    quantized = {(site.layer, site.index) for site in group.coded(config.precision_of(group))}
    for name in group.layers:
        layer = network.layer(name)
        known = not layer.domain and layer.kind is not Kind.OPAQUE
        ports = typed_ports(network.node(name), network.opset)[0] if known else ()
        for index, (tensor, follows) in enumerate(zip(layer.inputs, ports, strict=False)):
            if follows and tensor in network.constants:
                yield name, tensor, (name, index) in quantized


def _is_fp16_result(network: Network, config: PrecisionConfig, tensor: str) -> bool:
    """Returns True if another group in FP16 computes a tensor, which then has the finding."""
    group = network.group_of(network.producer.get(tensor, ""))
    return group is not None and surrounding(group, config.precision_of(group), config.other) is Precision.FP16


def _reads_quantized_only(network: Network, config: PrecisionConfig, group: Group, tensor: str) -> bool:
    """Returns True if a group quantizes a tensor at every layer that reads it."""
    precision = config.precision_of(group)
    places = {(site.layer, site.index) for site in sites_read_as(group, precision) if site.tensor == tensor}
    read = {(name, index) for name in group.layers
            for index, source in enumerate(network.layer(name).inputs) if source == tensor}
    return bool(read) and read <= places and precision not in (*LOW_FLOATS, Precision.FILE)


def _is_quantized_only(network: Network, config: PrecisionConfig, tensor: str) -> bool:
    """Returns True if every reader of a tensor quantizes it, so that a kernel need not round it to FP16."""
    if any(info.name == tensor for info in network.outputs):
        return False
    groups = {reader: network.group_of(reader) for reader in network.consumers.get(tensor, ())}
    return bool(groups) and all(
        group is not None and _reads_quantized_only(network, config, group, tensor) for group in groups.values())


def largest_inside(network: Network, config: PrecisionConfig, group: Group, magnitudes: Magnitudes) -> Largest | None:
    """Returns the largest magnitude that a group rounds to its float type; None if nothing is known or all is zero."""
    found = [(magnitudes.tensors.get(tensor, 0.0), name) for name in _rounded_layers(network, config, group)
             for tensor in network.layer(name).outputs if tensor]
    amax, layer = max(((amax, name) for amax, name in found if math.isfinite(amax)), default=(0.0, ""))
    return Largest(layer, amax) if amax > 0 else None


def headroom_text(network: Network, config: PrecisionConfig, group: Group, largest: Largest | None, lossy: bool) -> str:
    """Returns a sentence on the FP16 headroom of a group, with a zero-cost remedy if there is one; "" if it is ample.

    Args:
        lossy: The group alone loses much.
    """
    norm = network.free.norms.get(group.name)
    decomposed = norm is not None and len(norm.layers) > 1 and group.name not in rewritten(config)
    near = largest is not None and largest.headroom < MIN_HEADROOM
    if norm is not None and decomposed and not near and lossy and 0 < norm.epsilon <= FP16_LEAST / 2:
        remedy = f"cannot be written as {norm.operator}: {norm.no_rewrite}" if norm.no_rewrite else _remedy(norm)
        return (f"its epsilon {norm.epsilon:.0e} is 0 in FP16 (raised to {FP16_LEAST:.0e}), and so are variances as "
                f"small; {remedy}")
    if largest is None or not near:
        return ""
    operator = network.layer(largest.layer).op_type
    if largest.headroom >= 1:
        return f"FP16 headroom ×{largest.headroom:.1f}: {operator} {largest.layer} reaches {number(largest.amax, 2)}"
    text = f"{operator} {largest.layer} reaches {number(largest.amax, 2)}, beyond FP16's {FP16_MAX:.0f}"
    if norm is None or largest.layer not in norm.layers or not decomposed:
        return text
    if norm.no_rewrite:
        return f"{text}; it cannot be written as {norm.operator}: {norm.no_rewrite}"
    return f"{text}; {_remedy(norm)}"


def _remedy(norm: Norm) -> str:
    return f"free way out: {norm.operator} (9), whose mean and variance TensorRT computes in FP32"
