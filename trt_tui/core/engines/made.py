"""What an engine made of each group: the type it computes in, the kernel that it shares, what is around it.

A product (a Conv, Gemm or MatMul) is decided by the kernel that multiplies: in INT8 an ONNX layer often stands in two
rows, a generated kernel that quantizes beside it and the product itself. Between the operators of one generated kernel
TensorRT tells no types: there only what goes in, what comes out and the Casts that it names show.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.codes import CODES
from trt_tui.core.engines.inspector import COMPUTE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.engines.sources import one_of
from trt_tui.core.lowering.rules import EXACT
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.fusion.attention import VALUES
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.network.operators import COPIES
from trt_tui.core.precision import FLOATS, Precision

_CAST = re.compile(r"__(fp32|fp16|bf16)(?:_\d+)?$")

_GENERATED = ("kgen", "runtime_function")
"""Types of the kernels that TensorRT generates for elementwise work; one behind a product that adds its bias names the
product too."""


@dataclass(frozen=True)
class Made:
    """What an engine made of one group.

    Attributes:
        precision: What it computes in; None if its engine layers differ or do not show it.
        region: It lies inside a fused region.
        layers: Names of its engine layers.
        ms: Their time in milliseconds; None if they compute another group too, or were not timed.
        reformats: Engine layers in front of or behind its own that change a layout or a type.
        among: Every float type that goes into its kernels, comes out of them or that a Cast in them makes; empty where
            a kernel shows what it computes in.
        shares: Names of the other groups that the kernel which decides computes too, in network order.
        mha: That kernel is one of fused attention.
        casts: Those of them that change a float type.
        qdq: Unfused Q or DQ whose codes or values it reads.
        sums: What its product is summed in, where the kernel's source tells; see `trt_tui.core.engines.sources`.
    """

    precision: Precision | None
    region: bool
    layers: tuple[str, ...]
    ms: float | None = None
    reformats: int = 0
    among: tuple[Precision, ...] = ()
    shares: tuple[str, ...] = ()
    mha: bool = False
    casts: int = 0
    qdq: int = 0
    sums: Precision | None = None

    def seen(self, asked: Precision) -> Precision | None:
        """What it computes in, as far as that shows, where a precision was asked for."""
        return asked if asked in self.among else self.precision


def made_of(report: EngineReport, network: Outline) -> dict[str, Made]:
    """What became of each group, by group name; a group that no engine layer names is absent."""
    reading = _Reading(report, network)
    return {group.name: made for group in network.groups if (made := reading.made(group)) is not None}


class _Reading:
    def __init__(self, report: EngineReport, network: Outline) -> None:
        self.network = network
        self.fed = {info.name for info in network.inputs}
        self.beside = [layer for layer in report.layers if layer.kind in (REFORMAT, QDQ) and not layer.prepares]
        self.named = any(layer.name.startswith("Reformatting ") for layer in self.beside)
        self.by_node: dict[str, list[EngineLayer]] = {}
        for layer in report.layers:
            if layer.kind == COMPUTE:
                for node in layer.nodes:
                    self.by_node.setdefault(node, []).append(layer)
        self.owners = {node: group.name for group in network.groups for node in group.anchors}
        self.layers = {group.name: self._layers(group) for group in network.groups}
        self.users: dict[int, list[str]] = {}
        for group in network.groups:
            for layer in _deciding(self.layers[group.name]):
                self.users.setdefault(id(layer), []).append(group.name)

    def _layers(self, group: Group) -> list[EngineLayer]:
        found = _unique(layer for name in group.layers if name in group.anchors for layer in self.by_node.get(name, ()))
        found = found or _unique(layer for name in group.layers for layer in self.by_node.get(name, ()))
        return [layer for layer in found if not layer.prepares] or found

    def made(self, group: Group) -> Made | None:
        layers = self.layers[group.name]
        if not layers:
            return None
        deciding = _deciding(layers)
        sharing = {name for layer in deciding for name in self.users[id(layer)]} - {group.name}
        region = any(layer.region for layer in layers)
        times = [layer.ms for layer in layers if layer.ms is not None]
        alone = all(self.owners.get(node, group.name) == group.name for layer in layers for node in layer.nodes)
        names = {layer.name for layer in layers}
        reads = {tensor for layer in deciding for tensor in layer.reads}
        writes = {tensor for layer in deciding for tensor in layer.writes}
        around = [layer for layer in self.beside if (any(_beside(layer.name, name) for name in names) if self.named else
                  not reads.isdisjoint(layer.writes) or not writes.isdisjoint(layer.reads))]
        casts = [layer for layer in around if layer.kind == REFORMAT and _floats(layer.takes) != _floats(layer.gives)]
        qdq = [layer for layer in around if layer.kind == QDQ and not reads.isdisjoint(layer.writes)
               and self.fed.isdisjoint(layer.reads)]
        precisions = {_computes_in(group, layer, bool(sharing)) for layer in deciding}
        among = {one for layer in deciding if not _shows(group, layer)
                 for one in (*_floats(layer.takes), *_floats(layer.gives), *_cast_to(layer))}
        if not group.multiplied():  # in a fused attention: what goes in, and what QK's sums are handed on in
            among |= {one for layer in deciding if layer.is_mha
                      for one in (*_floats(layer.takes), *_floats([one_of(layer.sums)[0]]))}
        return Made(
            precisions.pop() if len(precisions) == 1 else None, region, tuple(layer.name for layer in layers),
            sum(times) if alone and len(times) == len(layers) else None,
            sum(layer.kind == REFORMAT for layer in around), tuple(sorted(among)),
            tuple(one.name for one in self.network.groups if one.name in sharing),
            any(layer.is_mha for layer in deciding), len(casts), len(qdq), _sums(group, deciding))


def _deciding(layers: Sequence[EngineLayer]) -> Sequence[EngineLayer]:
    """Those of a group's engine layers that say what it computes in: the products, where there are any."""
    return [layer for layer in layers if layer.type not in _GENERATED or layer.is_mha] or layers


def _shows(group: Group, layer: EngineLayer) -> bool:
    """Whether the types of what a kernel reads and writes tell what it computes a group in."""
    return layer.region or layer.is_mha or layer.type not in _GENERATED and bool(group.multiplied())


def _computes_in(group: Group, layer: EngineLayer, shared: bool) -> Precision | None:
    """What a kernel computes a group in, None where that does not show."""
    if layer.region or layer.is_mha and not group.multiplied():
        return None
    floats = _floats(layer.takes) or _floats(layer.gives)
    if layer.is_mha and group.role == VALUES:
        return next((one for one in reversed(layer.takes) if one is not None), layer.precision)
    if layer.type not in _GENERATED:
        return layer.precision
    if not shared:
        return floats[0] if floats else layer.precision
    types = {one for one in (*layer.takes, *layer.gives) if one is not None}
    return types.pop() if len(types) == 1 else None


def _sums(group: Group, deciding: Sequence[EngineLayer]) -> Precision | None:
    """What a product of an attention is summed in; None where that is not told, or its kernels differ in it."""
    place = 1 if group.role == VALUES else 0
    found = {one_of(layer.sums)[place] for layer in deciding} if group.multiplied() else {None}
    return found.pop() if len(found) == 1 else None


def _floats(types: Iterable[Precision | None]) -> list[Precision]:
    return [one for one in types if one in FLOATS]


def _cast_to(layer: EngineLayer) -> list[Precision]:
    return [Precision(match[1]) for name in layer.added if (match := _CAST.search(name)) is not None]


def _unique(layers: Iterable[EngineLayer]) -> list[EngineLayer]:
    return list({id(layer): layer for layer in layers}.values())


def _beside(reformat: str, name: str) -> bool:
    return reformat.endswith((f" to {name}", f" from {name}"))


def differs(group: Group, config: PrecisionConfig, made: Mapping[str, Made]) -> bool:
    """Whether the engine computes a group in a precision other than the one asked for.

    MaxPool and the like, and copies of codes, do not count: their result is the same on codes as on the values behind
    them.
    """
    found = made.get(group.name)
    return found is not None and other_than(group, config.precision_of(group), found)


def other_than(group: Group, asked: Precision, made: Made) -> bool:
    """The same of one group, and the precision that it is asked to run in."""
    if group.operator in EXACT:
        return False
    if asked is Precision.FP16_SUMS_FP32 and made.sums is Precision.FP16:
        return True
    asked = group.seen_as(asked)
    seen = made.seen(asked)
    if seen in CODES and asked not in CODES and group.operator in COPIES:
        return False
    return seen is not None and seen is not asked
