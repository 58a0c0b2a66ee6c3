"""Fusion groups: which layers TensorRT runs as one kernel and that therefore take one precision.

The rules follow TensorRT's published fusions: a Conv, ConvTranspose, Gemm or MatMul takes the bias, normalisation,
activation and residual Add behind it; chains of pointwise operators fuse; a LayerNorm or Softmax that an exporter
decomposed is one; operators that only move values stay with what computed them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx

from trt_tui.core.network.layers import Group, Kind, Layer, Site
from trt_tui.core.precision import Precision

if TYPE_CHECKING:
    from trt_tui.core.network.network import Network

ANCHORS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators that can run in INT8."""

POINTWISE = frozenset(
    "Add Sub Mul Div Pow Sqrt Exp Log Erf Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid "
    "HardSwish Softplus Softsign Clip Abs Neg Reciprocal Gelu Mish ThresholdedRelu Floor Ceil Round Sin Cos Min Max "
    "Sum Where Sign Swish".split())

_REDUCTIONS = frozenset("ReduceMean ReduceMax ReduceSum ReduceL2 ReduceSumSquare".split())
_RESIDUAL = frozenset(("Add", "Sum"))
_FREE_COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout Slice Split Gather Expand DepthToSpace "
    "SpaceToDepth".split())
_SAME_RANGE = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout".split())
_GROWS = ANCHORS | POINTWISE | {"BatchNormalization"}
_REGION_LIMIT = 16
_LOW_FLOATS = ((Precision.FP16, "tensor(float16)", 21), (Precision.BF16, "tensor(bfloat16)", 22))

_TENSORRT_LACKS = {
    Precision.FP16: frozenset("Celu MeanVarianceNormalization TensorScatter".split()),
    Precision.BF16: frozenset("Celu ConvTranspose GRU HardSwish LpNormalization LpPool MeanVarianceNormalization Mish "
                              "TensorScatter".split())}
"""Operators that TensorRT-RTX 1.7 builds in FP32 and refuses in a 16-bit type."""

_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
"""Operators that TensorRT-RTX 1.7 does not build with a reduction, nor ONNX Runtime runs with one in FP16."""

SELECTS_BY_ORDER = frozenset(("TopK",))
"""Operators that pick values by comparing them."""


class _Members:
    """The layers of one group while it grows.

    Attributes:
        position: Where the group stands in the order of execution: the index of its last layer before it takes copies.
        takes_copies: Operators behind it that only move its values may join.
    """

    def __init__(self, first: Layer, tail: str, takes_copies: bool) -> None:
        self.layers = [first]
        self.tail = tail
        self.computed = tail
        self.residual: tuple[Layer, int] | None = None
        self.leader = first
        self.position = first.index
        self.takes_copies = takes_copies


def find_groups(network: Network) -> tuple[Group, ...]:
    """Partitions the float layers of a network into groups, in network order; takes time linear in the network.

    No group waits for itself, through others neither. While a group grows, only its last tensor is read from outside,
    and every member leads to it: so groups run in the order of those last layers (their positions). A copy behind it
    joins only where whatever else it reads is there at that position, shape arithmetic on the group itself apart: that
    is the group's own (`Group.inner`).
    """
    return _Finder(network).find()


class _Finder:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.owner: dict[str, _Members] = {}
        self.graph_outputs = {info.name for info in network.outputs}
        self.ready: dict[str, int] = {}
        """Position of the last group that a tensor waits for, by tensor; absent where it waits for none."""
        self.loose: dict[str, int] = {}
        """The same of layers in no group, by name."""

    def find(self) -> tuple[Group, ...]:
        anchors = [layer for layer in self.network.layers if layer.op_type in ANCHORS and self._is_compute(layer)]
        # Later anchors first, so that a residual Add goes to the Conv computed last.
        groups = [self._start(layer) for layer in reversed(anchors)]
        for layer in self.network.layers:
            position = self._waits_for(layer)
            if self._has_group(layer):
                if layer.name not in self.owner and not self._joins_as_copy(layer):
                    groups.append(self._start(layer, self._normalisation(layer)))
                position = self.owner[layer.name].position
            else:
                self.loose[layer.name] = position
            self.ready.update((name, position) for name in layer.outputs if name)
        groups.sort(key=lambda g: min(layer.index for layer in g.layers))
        return tuple(self._finish(members) for members in groups)

    def _has_group(self, layer: Layer) -> bool:
        return (layer.kind in (Kind.COMPUTE, Kind.COPY, Kind.OPAQUE)
                and any(self.network.is_float(name) for name in layer.outputs))

    def _waits_for(self, layer: Layer) -> int:
        return max((self.ready.get(name, -1) for name in self.network.reads(layer.name)), default=-1)

    def _start(self, layer: Layer, region: list[Layer] | None = None) -> _Members:
        whole = layer.kind is Kind.OPAQUE or len(layer.outputs) != 1 and layer.op_type not in _FREE_COPIES
        members = _Members(layer, next(name for name in layer.outputs if self.network.is_float(name)), not whole)
        self.owner[layer.name] = members
        for other in (region or [])[1:]:
            self._add(members, other)
        if region:
            members.tail = members.computed = self._end(region)
        if not whole and (region or layer.op_type in _GROWS):
            while self._grow(members):
                pass
        members.position = max(one.index for one in members.layers)
        return members

    def _joins_as_copy(self, layer: Layer) -> bool:
        """Puts an operator that only moves values into the group that computed them, where it can wait for it."""
        moved = [name for name in self._dynamic_inputs(layer) if self.network.is_float(name)]
        members = self.owner.get(self.network.producer.get(moved[0], "")) if len(moved) == 1 else None
        if members is None or not members.takes_copies or not self._moves_only(layer):
            return False
        for name in self.network.reads(layer.name):
            last = members.position if name in self.network.static else members.position - 1
            if name != moved[0] and self.ready.get(name, -1) > last:
                return False
        self._add(members, layer)
        return True

    def _add(self, members: _Members, layer: Layer) -> None:
        members.layers.append(layer)
        self.owner[layer.name] = members

    # -- growing ------------------------------------------------------------------------------------------------

    def _users(self, tensor: str) -> list[Layer]:
        return [self.network.layer(name) for name in self.network.consumers.get(tensor, ())]

    def _dynamic_inputs(self, layer: Layer) -> list[str]:
        return [name for name in layer.inputs if name and name not in self.network.static]

    def _grow(self, members: _Members) -> bool:
        tail = members.tail
        if tail in self.graph_outputs:
            return False
        users = self._users(tail)
        if len(users) == 1 and users[0].name not in self.owner:
            layer = users[0]
            if layer.op_type == "BatchNormalization" and len(layer.outputs) == 1 or self._constant_pointwise(layer):
                return self._commit(members, [layer], layer.outputs[0])
            if self._joins_as_residual(members, layer):
                others = [i for i, name in enumerate(layer.inputs) if name != tail]
                members.residual = (layer, others[0])
                return self._commit(members, [layer], layer.outputs[0])
            if self._moves_only(layer) and len(layer.outputs) == 1 and self._leads_to_pointwise(layer):
                self._add(members, layer)
                members.tail = layer.outputs[0]
                return True
        region = self._region(tail, POINTWISE)
        if region:
            return self._commit(members, region, self._end(region))
        return False

    def _commit(self, members: _Members, layers: Iterable[Layer], tail: str) -> bool:
        for layer in layers:
            self._add(members, layer)
        members.tail = members.computed = tail
        return True

    def _leads_to_pointwise(self, layer: Layer) -> bool:
        """A Reshape or Transpose between a MatMul and its bias does not end the fusion."""
        users = self._users(layer.outputs[0])
        return (layer.outputs[0] not in self.graph_outputs and len(users) == 1 and users[0].name not in self.owner
                and self._constant_pointwise(users[0]))

    def _constant_pointwise(self, layer: Layer) -> bool:
        return (layer.op_type in POINTWISE and self._is_compute(layer) and len(layer.outputs) == 1
                and len(self._dynamic_inputs(layer)) == 1)

    def _is_compute(self, layer: Layer) -> bool:
        return layer.kind is Kind.COMPUTE

    def _joins_as_residual(self, members: _Members, layer: Layer) -> bool:
        if layer.op_type not in _RESIDUAL or members.residual or not self._is_compute(layer):
            return False
        if members.leader.op_type not in ANCHORS or len(layer.inputs) != 2:
            return False
        others = [name for name in layer.inputs if name != members.tail]
        return len(others) == 1

    def _read_inside(self, tensor: str) -> list[Layer]:
        """The users of a tensor, where they are few enough to lie in one region; [] where they are not."""
        names = self.network.consumers.get(tensor, ())
        return [self.network.layer(name) for name in names] if len(names) <= _REGION_LIMIT else []

    def _region(self, start: str, operators: frozenset[str]) -> list[Layer]:
        """Layers computed from ``start`` and constants alone that end in one tensor; [] where there are none."""
        region: list[Layer] = []
        derived = {start}
        frontier = [start]
        while frontier and len(region) < _REGION_LIMIT:
            tensor = frontier.pop(0)
            for layer in self._read_inside(tensor):
                if (layer in region or layer.name in self.owner or layer.op_type not in operators
                        or not self._is_compute(layer) or len(layer.outputs) != 1
                        or any(name not in derived for name in self._dynamic_inputs(layer))):
                    continue
                region.append(layer)
                region.sort(key=lambda one: one.index)
                derived.add(layer.outputs[0])
                frontier.append(layer.outputs[0])
                # A layer that waited for this result can follow now.
                frontier.extend(t for t in derived if t not in frontier and t != tensor)
            if region and self._end(region) and not self._escapes((start,), region):
                return region
        return []

    def _escapes(self, tensors: Iterable[str], region: list[Layer]) -> list[str]:
        """Those of some tensors that something outside a region reads, or nothing at all."""
        inside = {layer.name for layer in region}
        escaped = []
        for tensor in tensors:
            users = self.network.consumers.get(tensor, ())
            within = 0 < len(users) <= len(inside) and inside.issuperset(users)
            if not within or tensor in self.graph_outputs:
                escaped.append(tensor)
        return escaped

    def _end(self, region: list[Layer]) -> str | None:
        """The one tensor of a region that is read outside; None where there are several."""
        escaped = self._escapes((layer.outputs[0] for layer in region), region)
        return escaped[0] if len(escaped) == 1 else None

    def _normalisation(self, layer: Layer) -> list[Layer] | None:
        """A decomposed LayerNorm, RMSNorm, GroupNorm or Softmax that starts at ``layer``, or None.

        It is a region of reductions and pointwise operators over one tensor, with a square root or an exponential in
        it, that ends in one tensor. The tensor it starts from may be used elsewhere too (a residual).
        """
        if layer.op_type not in _REDUCTIONS and layer.op_type not in ("Pow", "Mul", "Exp"):
            return None
        if not self._is_compute(layer):
            return None
        sources = dict.fromkeys(self._dynamic_inputs(layer))
        if len(sources) != 1:
            return None
        start = next(iter(sources))
        operators = POINTWISE | _REDUCTIONS
        region = [layer]
        derived = {start, layer.outputs[0]}
        while len(region) < _REGION_LIMIT:
            inside = {one.name for one in region}
            candidates = [
                user for tensor in derived for user in self._read_inside(tensor)
                if user.name not in inside and user.name not in self.owner and user.op_type in operators
                and self._is_compute(user) and len(user.outputs) == 1
                and all(name in derived for name in self._dynamic_inputs(user))
                and (tensor != start or any(n in derived and n != start for n in self._dynamic_inputs(user))
                     or user.op_type in _REDUCTIONS)]
            if not candidates:
                return None
            nearest = min(candidates, key=lambda one: one.index)
            region.append(nearest)
            region.sort(key=lambda one: one.index)
            derived.add(nearest.outputs[0])
            kinds = {one.op_type for one in region}
            if self._end(region) and kinds & _REDUCTIONS and kinds & {"Sqrt", "Exp", "Pow", "ReduceL2"} \
                    and kinds & {"Div", "Mul"} and nearest.op_type in ("Div", "Mul"):
                region.sort(key=lambda one: one.index)
                region.remove(layer)
                return [layer, *region]
        return None

    def _moves_only(self, layer: Layer) -> bool:
        return layer.kind is Kind.COPY and layer.op_type in _FREE_COPIES

    # -- describing ---------------------------------------------------------------------------------------------

    def _finish(self, members: _Members) -> Group:
        network = self.network
        layers = sorted(members.layers, key=lambda one: one.index)
        produced = {output for layer in layers for output in layer.outputs if output}
        names = {layer.name for layer in layers}
        inputs = dict.fromkeys(
            name for layer in layers for name in layer.inputs
            if name and name not in produced and name not in network.static and network.is_float(name))
        outputs = tuple(
            output for layer in layers for output in layer.outputs
            if output and (output in self.graph_outputs
                           or not names.issuperset(network.consumers.get(output, ()))))
        operator = self._operator(members, layers)
        sites, reason = self._sites(members, operator)
        refusals = self._refusals(layers, sites, reason)
        return Group(name=members.leader.name, operator=operator,
                     layers=tuple(layer.name for layer in layers), inputs=tuple(inputs),
                     outputs=outputs or (members.computed,), tail=members.computed,
                     sites=sites if Precision.INT8 not in refusals else (), refusals=refusals,
                     inner=self._inner(members))

    def _inner(self, members: _Members) -> tuple[str, ...]:
        """Layers in no group between what the group computes and the shapes that it reads, in network order."""
        network = self.network
        found: set[str] = set()
        stack = [name for layer in members.layers for name in network.reads(layer.name) if name in network.static]
        while stack:
            layer = network.producer.get(stack.pop(), "")
            if layer not in found and self.loose.get(layer) == members.position:
                found.add(layer)
                stack.extend(network.reads(layer))
        return tuple(sorted(found, key=lambda name: network.layer(name).index))

    def _operator(self, members: _Members, layers: list[Layer]) -> str:
        kinds = {layer.op_type for layer in layers}
        if members.leader.op_type not in ANCHORS and kinds & _REDUCTIONS and len(layers) > 3:
            if kinds & {"Sqrt", "Pow", "Reciprocal"}:
                means = sum(layer.op_type == "ReduceMean" for layer in layers)
                return "LayerNorm" if means > 1 else "RMSNorm"
            if "Exp" in kinds:
                return "Softmax"
        return members.leader.op_type

    def _sites(self, members: _Members, operator: str) -> tuple[tuple[Site, ...], str]:
        """Where Q/DQ goes in INT8, or why the group has no INT8 form."""
        network, leader = self.network, members.leader
        if leader.op_type not in ANCHORS:
            return (), f"TensorRT quantizes Conv, ConvTranspose, Gemm and MatMul only, no {operator}"
        sites = []
        for index, tensor in enumerate(leader.inputs[:2]):
            if not network.is_float(tensor):
                return (), f"the type of its input {tensor} is not FP32 or not known"
            if tensor in network.constants:
                sites.append(Site(leader.name, index, tensor, "weight", self._channel_axis(leader, index, tensor)))
            elif tensor in network.static:
                return (), "its operand is shape arithmetic"
            else:
                sites.append(Site(leader.name, index, tensor, "input"))
        if all(site.role == "weight" for site in sites):
            return (), "both operands are constant"
        if members.residual and leader.op_type in ("Conv", "ConvTranspose"):
            add, index = members.residual
            skip = add.inputs[index]
            if network.is_float(skip) and skip not in network.static \
                    and _may_equal(network.shape(skip), network.shape(add.outputs[0])):
                sites.append(Site(add.name, index, skip, "skip"))
        return tuple(sites), ""

    def _channel_axis(self, layer: Layer, index: int, tensor: str) -> int | None:
        """Channel axis of a weight: Conv 0, ConvTranspose 1, MatMul 1, Gemm 0 or 1 by transB."""
        if index != 1:
            return None
        rank = len(self.network.shape(tensor) or ())
        if layer.op_type == "Conv":
            return 0
        if layer.op_type == "ConvTranspose":
            return 1
        if layer.op_type == "Gemm":
            attr = self.network.node(layer.name).attributes.get("transB")
            return 0 if attr is not None and attr.as_int() else 1
        return 1 if rank == 2 else None

    def _refusals(self, layers: list[Layer], sites: tuple[Site, ...], reason: str) -> dict[Precision, str]:
        refusals: dict[Precision, str] = {}
        opaque = next((layer for layer in layers if layer.kind is Kind.OPAQUE), None)
        if opaque is not None:
            return {p: opaque.note for p in (Precision.FP16, Precision.BF16, Precision.INT8)}
        for precision, typename, opset in _LOW_FLOATS:
            for layer in layers:
                why = self._why_not(layer, precision, typename, max(opset, self.network.opset))
                if why:
                    refusals[precision] = why
                    break
        if not sites:
            refusals[Precision.INT8] = reason
        return refusals

    def _why_not(self, layer: Layer, precision: Precision, typename: str, opset: int) -> str:
        """Why a layer cannot compute in a 16-bit type at an opset; "" if it can."""
        if layer.op_type in SELECTS_BY_ORDER:
            return f"{layer.op_type} selects by order, which rounding changes; it reads FP32"
        peepholes = layer.op_type == "LSTM" and len(layer.inputs) > 7 and layer.inputs[7]
        if layer.op_type in _TENSORRT_LACKS[precision] or peepholes:
            return f"TensorRT has no {precision.label} {layer.op_type}{' with peepholes' if peepholes else ''}"
        if layer.op_type in _SCATTERS and self._reduction(layer) != "none":
            return f"nothing runs a {precision.label} {layer.op_type} with a reduction"
        schema = onnx.defs.get_schema(layer.op_type, opset)
        produced = schema.outputs[0].type_str
        constraint = next((c for c in schema.type_constraints if c.type_param_str == produced), None)
        if constraint is None or typename not in constraint.allowed_type_strs:
            return f"ONNX has no {precision.label} {layer.op_type}"
        if not any(schema.inputs[min(i, len(schema.inputs) - 1)].type_str == produced and self.network.is_float(name)
                   for i, name in enumerate(layer.inputs)):
            return f"the values of {layer.op_type} do not take the type of an input"
        return ""

    def _reduction(self, layer: Layer) -> str:
        attr = self.network.node(layer.name).attributes.get("reduction")
        return "none" if attr is None else attr.as_string()


def _may_equal(one: tuple | None, other: tuple | None) -> bool:
    """Whether two shapes can be the same, as far as their sizes are known."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) and 1 not in (a, b)
        for a, b in zip(one, other, strict=True))


def shared_ranges(network: Network) -> dict[str, tuple[str, ...]]:
    """Tensors that share one scale because a Concat joins them, transitively and through copies, by tensor name.

    TensorRT runs an INT8 Concat without requantizing only if every input has the output's scale.
    """
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(a: str, b: str) -> None:
        parent[find(a)] = find(b)

    concats = False
    for layer in network.layers:
        if layer.outputs[0] in network.static or not network.is_float(layer.outputs[0]):
            continue
        if layer.op_type == "Concat":
            concats = True
            for name in layer.inputs:
                if name not in network.static:
                    join(name, layer.outputs[0])
        elif layer.op_type in _SAME_RANGE:
            join(layer.inputs[0], layer.outputs[0])
    if not concats:
        return {}
    joined = {name for layer in network.layers if layer.op_type == "Concat" for name in (*layer.inputs, *layer.outputs)}
    roots = {find(name) for name in joined if name in parent}
    sets: dict[str, list[str]] = {}
    for name in list(parent):
        if find(name) in roots:
            sets.setdefault(find(name), []).append(name)
    return {name: together for together in map(tuple, sets.values()) for name in together if len(together) > 1}
