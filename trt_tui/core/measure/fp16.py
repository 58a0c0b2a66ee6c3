"""How near the values inside a group come to FP16's largest number, and which layer's do.

A group's error is taken at its last tensor; what overflows may lie before that: the square in a decomposed LayerNorm,
the sum in front of a division.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

from trt_tui.core.calibration.sweep import Probe, scalar
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.folds import rewritten
from trt_tui.core.lowering.rules import typed_results
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_MAX
from trt_tui.core.runner import Backend, Runner
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


class Measures(Protocol):
    """What `LargestOfFeed` asks of a subject."""

    @property
    def analysis(self) -> Simulated:
        """The simulation."""


class LargestOfFeed:
    """An errand: the largest magnitude of every float tensor that a group computes, masked ones left out, in a feed, by
    tensor name; not finite where the tensor is not. Only scalars leave the session."""

    def __init__(self) -> None:
        self._loaded: tuple[Runner, dict[str, list[str]]] | None = None

    def __getstate__(self) -> dict[str, None]:
        return {"_loaded": None}

    def words(self, item: int) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the largest values of feed {item}"

    def do(self, subject: Measures, item: int) -> Generator[None, None, dict[str, float]]:
        """See `trt_tui.core.hands.Errand`."""
        analysis = subject.analysis
        if self._loaded is None:
            self._loaded = _reduced(analysis.network, analysis.backend)
        runner, outputs = self._loaded
        scalars = runner.run(analysis.samples.feed(item)) if outputs else {}
        yield
        return {tensor: max(float(scalars[most]), -float(scalars[least])) for tensor, (most, least) in outputs.items()}

    def close(self) -> None:
        """Frees the session."""
        if self._loaded is not None:
            self._loaded[0].close()
            self._loaded = None


def _reduced(network: Network, backend: Backend) -> tuple[Runner, dict[str, list[str]]]:
    """The network with the largest and the least value of each tensor as outputs."""
    tensors = [tensor for group in network.groups for name in group.layers
               for tensor in typed_results(network, network.layer(name))
               if tensor not in network.masked and tensor not in network.behind]
    probe = Probe(network.model)
    outputs: dict[str, list[str]] = {}
    for tensor in dict.fromkeys(tensors):
        value = probe.float_value(tensor)
        outputs[tensor] = [probe.emit(scalar(probe.apply(operator, value, keepdims=0)))
                           for operator in ("ReduceMax", "ReduceMin")]
    return probe.load(backend), outputs


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
