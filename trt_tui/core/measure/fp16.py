"""How near the values inside a group come to FP16's largest number, and which layer's do.

A group's error is taken at its last tensor; what overflows may lie before that: the square in a decomposed LayerNorm,
the sum in front of a division.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.sweep import Probe, scalar
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.folds import rewritten
from trt_tui.core.lowering.gated.gated import with_axes
from trt_tui.core.lowering.rules import typed_results
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.masks import axes_of_mask, common_mask, kept_rows
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_MAX
from trt_tui.core.runner import Backend
from trt_tui.words import number

LEAST_HEADROOM = 4.0
"""Below this a sample that was not measured may well overflow: said even where none does."""


@dataclass(frozen=True)
class Largest:
    """The largest magnitude inside a group, in FP32.

    Attributes:
        layer: What computes it.
    """

    layer: str
    amax: float

    @property
    def headroom(self) -> float:
        """How many times as large it could be in FP16."""
        return FP16_MAX / self.amax


class Simulated(Protocol):
    """What is asked of a simulation here."""

    network: Network
    samples: Samples
    backend: Backend
    judged: tuple[Judged, ...]


class Measures(Protocol):
    """What `LargestOfFeed` asks of a subject."""

    @property
    def analysis(self) -> Simulated:
        """The simulation."""


class LargestOfFeed:
    """An errand: the largest magnitude of every float tensor that a group computes, masked ones left out, in a feed, by
    tensor name; not finite where the tensor is not. Only scalars leave the session.

    Padding (what the judged outputs' one mask leaves out) counts where the tensor has not its axes, and where it lies
    beyond FP16: what overflows there reaches other positions, since 0 times an infinity is NaN."""

    def __init__(self) -> None:
        self._loaded: _Reduced | None = None

    def __getstate__(self) -> dict[str, None]:
        return {"_loaded": None}

    def words(self, item: int) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the largest values of feed {item}"

    def do(self, subject: Measures, item: int) -> Generator[None, None, dict[str, float]]:
        """See `trt_tui.core.hands.Errand`."""
        analysis = subject.analysis
        if self._loaded is None:
            self._loaded = _Reduced(analysis)
        found = self._loaded.largest(analysis.samples, item)
        yield
        return found

    def close(self) -> None:
        """Frees the session."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None


class _Reduced:
    """The network with the largest and the least value of each tensor as outputs, and both without padding."""

    def __init__(self, analysis: Simulated) -> None:
        network = analysis.network
        tensors = list(dict.fromkeys(tensor for group in network.groups for name in group.layers
                                     for tensor in typed_results(network, network.layer(name))
                                     if tensor not in network.masked and tensor not in network.behind))
        self._mask = common_mask(analysis.judged)
        axes = axes_of_mask(network, analysis.backend, analysis.samples, self._mask, tensors) if self._mask else {}
        probe = Probe(network.model)
        self._fed = {one: probe.input(f"trt_tui_kept_{number}", ir.DataType.BOOL, len(one))
                     for number, one in enumerate(dict.fromkeys(axes.values()))}
        zero = probe.constant(np.float32(0))
        self._outputs: dict[str, list[str]] = {}
        self._kept: dict[str, list[str]] = {}
        for tensor in tensors:
            value = probe.float_value(tensor)
            self._outputs[tensor] = _extremes(probe, value)
            if tensor in axes:
                self._kept[tensor] = _extremes(probe, probe.apply("Where", self._fed[axes[tensor]], value, zero))
        self._runner = (probe.load(analysis.backend, analysis.samples) if tensors
                        else None)  # no runtime takes a graph without outputs

    def close(self) -> None:
        """Frees the session."""
        if self._runner is not None:
            self._runner.close()

    def largest(self, samples: Samples, index: int) -> dict[str, float]:
        """The largest magnitude of each tensor in a feed."""
        if self._runner is None:
            return {}
        feed = samples.feed(index)
        if self._fed:
            mask = kept_rows(self._mask, samples, index)
            feed = {**feed, **{name_of(value): with_axes(mask, axes) for axes, value in self._fed.items()}}
        scalars = self._runner.run(feed)
        found = {tensor: _magnitude(scalars, outputs) for tensor, outputs in self._outputs.items()}
        found.update((tensor, _magnitude(scalars, outputs)) for tensor, outputs in self._kept.items()
                     if found[tensor] <= FP16_MAX)
        return found


def _extremes(probe: Probe, value: ir.Value) -> list[str]:
    return [probe.emit(scalar(probe.apply(operator, value, keepdims=0))) for operator in ("ReduceMax", "ReduceMin")]


def _magnitude(scalars: Mapping[str, np.ndarray], outputs: Sequence[str]) -> float:
    most, least = outputs
    return max(float(scalars[most]), -float(scalars[least]))


def largest_inside(network: Network, config: PrecisionConfig, group: Group, magnitudes: Mapping[str, float]
                   ) -> Largest | None:
    """The largest magnitude that a group rounds to its float type; None where nothing is known or all is zero.

    A normalisation that is written as its operator rounds its result alone.
    """
    norm = network.free.norms.get(group.name)
    inside = set(norm.layers[:-1]) if norm is not None and group.name in rewritten(config) else set()
    found = [(magnitudes.get(tensor, 0.0), name) for name in group.layers if name not in inside
             for tensor in network.layer(name).outputs if tensor]
    amax, layer = max(((amax, name) for amax, name in found if math.isfinite(amax)), default=(0.0, ""))
    return Largest(layer, amax) if amax > 0 else None


def sentence(network: Network, config: PrecisionConfig, group: Group, largest: Largest | None, lossy: bool) -> str:
    """What there is to say of it where the group runs in FP16, with what can be done at no cost; "" for nothing.

    Args:
        lossy: Whether the group loses much by itself.
    """
    norm = network.free.norms.get(group.name)
    apart = norm is not None and len(norm.layers) > 1 and group.name not in rewritten(config)
    near = largest is not None and largest.headroom < LEAST_HEADROOM
    if norm is not None and apart and not near and lossy and 0 < norm.epsilon <= FP16_LEAST / 2:
        way = f"cannot be written as {norm.operator}: {norm.no_rewrite}" if norm.no_rewrite else _way_out(norm)
        return (f"its epsilon {norm.epsilon:.0e} is 0 in FP16 (raised to {FP16_LEAST:.0e}), and so are variances as "
                f"small; {way}")
    if largest is None or not near:
        return ""
    operator = network.layer(largest.layer).op_type
    if largest.headroom >= 1:
        return f"FP16 headroom ×{largest.headroom:.1f}: {operator} {largest.layer} reaches {number(largest.amax, 2)}"
    said = f"{operator} {largest.layer} reaches {number(largest.amax, 2)}, beyond FP16's {FP16_MAX:.0f}"
    if norm is None or largest.layer not in norm.layers or not apart:
        return said
    if norm.no_rewrite:
        return f"{said}; it cannot be written as {norm.operator}: {norm.no_rewrite}"
    return f"{said}; {_way_out(norm)}"


def _way_out(norm: Norm) -> str:
    return f"free way out: {norm.operator} (9), whose mean and variance TensorRT computes in FP32"
