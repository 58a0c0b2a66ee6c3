"""The gated graph: one network in which precision is a runtime input.

Every group stands in an ``If`` whose branches compute it in FP32, in a lower float precision (inputs, weights and
results rounded by Cast pairs) and in INT8 (Q and DQ in FP32 arithmetic, with the scales the target holds). Gates and
scales are fed, so that any config is one run of one loaded session. Weights are the network's own FP32 tensors in every
branch.

Beside the gated network ("test") the graph can hold a reference branch in FP32 and, for each group, a copy whose inputs
come from the reference ("isolated"), with reductions on each pair of tensors so that only sums leave the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core import scales
from trt_tui.core.lowering.typed import TYPES
from trt_tui.core.network import FP16_MAX, Group, Kind, Layer, Network, Site
from trt_tui.core.precision import Precision, PrecisionConfig

EXACT = frozenset(
    "Relu MaxPool GlobalMaxPool Max Min Abs Neg Clip Sign ReduceMax ReduceMin Where ThresholdedRelu Floor Ceil "
    "Round".split())
"""Operators whose result on values of a precision is a value of that precision."""

ROUNDS_LATER = frozenset(("Relu",))
"""Operators that rounding commutes with: the rounding before them can stand behind them."""

SUMS = ("diff2", "ref2", "test2", "diff1", "diff_max", "ref_max", "nan", "inf")
"""What the reductions yield for each pair of tensors, in this order: sums of squares of difference, reference and
test, sum and maximum of the absolute difference, maximum of the absolute reference, counts of NaN and Inf in test."""


@dataclass(frozen=True)
class Gated:
    """A gated graph and the names of what it is fed and what it yields.

    Attributes:
        gates: Input names (bool scalars) by group: first "in FP32?", then "in INT8?" where the group can be.
        scale_inputs: Input names (float32 scalars) of activation scales, by tensor.
        outputs: Output names of the test branch by tensor of the network.
        reference: The same of the reference branch, where there is one.
        accumulated: Output name of the sums of the test branch, shaped ``(len(measured), len(SUMS))``.
        isolated: The same of the isolated branch.
        measured: Groups in the order of the rows of the sums.
        lower: The float precision below FP32 that the graph holds.
    """

    model: ir.Model
    network: Network
    lower: Precision
    gates: Mapping[str, tuple[str, ...]]
    scale_inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    reference: Mapping[str, str]
    accumulated: str | None
    isolated: str | None
    measured: tuple[str, ...]

    def feeds(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Gates and scales that make the test branch run in a config.

        Raises:
            InputError: an INT8 layer's input has no range.
            ValueError: the config asks for a float precision this graph does not hold.
        """
        fed: dict[str, np.ndarray] = {}
        needed: set[str] = set()
        for name, gates in self.gates.items():
            group = self.network.group(name)
            precision = config.precision_of(group)
            if precision in (Precision.FP16, Precision.BF16) and precision is not self.lower:
                raise ValueError(f"the graph holds {self.lower.label}, the config asks for {precision.label}")
            fed[gates[0]] = np.array(precision is Precision.FP32)
            if len(gates) > 1:
                fed[gates[1]] = np.array(precision is Precision.INT8)
            if precision is Precision.INT8:
                needed.update(site.tensor for site in group.activations())
        amax = scales.activation_ranges(self.network, ranges, config)
        for tensor, name in self.scale_inputs.items():
            if tensor in needed:
                fed[name] = scales.held(scales.require(self.network, amax, tensor), config.other)
            else:
                fed[name] = np.float32(1)
        return {name: np.asarray(array) for name, array in fed.items()}


def lower_gated(
    network: Network,
    *,
    lower: Precision = Precision.FP16,
    other: Precision = Precision.FP16,
    outputs: Sequence[str] = (),
    reference: bool = False,
    isolated: bool = False,
    measured: Sequence[str] | None = None,
) -> Gated:
    """Builds a gated graph.

    Args:
        lower: The float precision below FP32 that every group offers (FP16 or BF16).
        other: What surrounds INT8 layers: FP32, or ``lower``.
        outputs: Tensors to yield from each branch; the network's outputs by default.
        reference: Add the FP32 branch and the sums of the accumulated error at each measured group.
        isolated: Add each measured group with its inputs taken from the reference, and its sums.
        measured: Groups to take sums at; all by default.
    """
    return _GatedLowering(network, lower, other).build(tuple(outputs), reference, isolated, measured)


class _GatedLowering:
    def __init__(self, network: Network, lower: Precision, other: Precision) -> None:
        if other not in (Precision.FP32, lower):
            raise ValueError(f"{other.label} around INT8 layers needs a graph that holds it")
        self.network = network
        self.lower = lower
        self.other = other
        self.counter = 0
        self.nodes: list[ir.Node] = []
        self.inputs: list[ir.Value] = []
        self.values: dict[str, ir.Value] = {}  # reference branch and what all branches share, by tensor name
        self.initializers: dict[str, ir.Value] = {}
        self.gates: dict[str, tuple[str, ...]] = {}
        self.gate_values: dict[str, tuple[ir.Value, ...]] = {}
        self.scale_values: dict[str, ir.Value] = {}
        self.reference_sums: dict[str, tuple[ir.Value, ir.Value]] = {}
        self.inner_shapes: dict[str, frozenset[str]] = {}

    # -- the whole ----------------------------------------------------------------------------------------------

    def build(self, outputs, reference: bool, isolated: bool, measured) -> Gated:
        network = self.network
        for value in network.model.graph.inputs:
            copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
            self.values[value.name] = copy
            self.inputs.append(copy)
        for value in network.model.graph.initializers.values():
            self._weight(value.name, value.const_value)
        outputs = outputs or tuple(info.name for info in network.outputs)
        self._declare_gates()
        if reference:
            self._emit_reference()
        else:
            self._emit_shared()
        test = self._emit_test()
        names = tuple(measured) if measured is not None else tuple(g.name for g in network.groups)
        graph_outputs: list[ir.Value] = []
        output_names, reference_names = {}, {}
        for tensor in outputs:
            value = self._as_output(test[tensor], f"test/{tensor}")
            output_names[tensor] = value.name
            graph_outputs.append(value)
            if reference:
                value = self._as_output(self.values[tensor], f"reference/{tensor}")
                reference_names[tensor] = value.name
                graph_outputs.append(value)
        accumulated_name = isolated_name = None
        if reference:
            rows = [self._sums(network.group(name).tail, test[network.group(name).tail]) for name in names]
            graph_outputs.append(self._stack(rows, "sums/accumulated"))
            accumulated_name = "sums/accumulated"
        if isolated:
            rows = []
            for name in names:
                group = network.group(name)
                alone = self._emit_group(group, self.values, (group.tail,))[group.tail]
                rows.append(self._sums(group.tail, alone))
            graph_outputs.append(self._stack(rows, "sums/isolated"))
            isolated_name = "sums/isolated"
        graph = ir.Graph(self.inputs, graph_outputs, nodes=self.nodes, initializers=list(self.initializers.values()),
                         opset_imports=dict(network.model.graph.opset_imports), name="gated")
        graph.sort()
        model = ir.Model(graph, ir_version=max(network.model.ir_version, 8))
        return Gated(model, network, self.lower, self.gates, {t: v.name for t, v in self.scale_values.items()},
                     output_names, reference_names, accumulated_name, isolated_name, names)

    def _declare_gates(self) -> None:
        for index, group in enumerate(self.network.groups):
            if self.lower not in group.allowed and not group.quantizable:
                continue
            values = [self._input(f"gate/{index}/fp32", ir.DataType.BOOL)]
            if group.quantizable:
                values.append(self._input(f"gate/{index}/int8", ir.DataType.BOOL))
                for site in group.activations():
                    if site.tensor not in self.scale_values:
                        name = f"scale/{len(self.scale_values)}"
                        self.scale_values[site.tensor] = self._input(name, ir.DataType.FLOAT)
            self.gate_values[group.name] = tuple(values)
            self.gates[group.name] = tuple(value.name for value in values)

    def _emit_reference(self) -> None:
        for layer in self.network.layers:
            self._copy_layer(layer, self.values, self.nodes, f"ref/{layer.name}")

    def _emit_shared(self) -> None:
        """Constants and what is computed from them; shape arithmetic follows the test branch's tensors."""
        for layer in self.network.layers:
            if layer.kind is Kind.CONSTANT:
                self._copy_layer(layer, self.values, self.nodes, f"shared/{layer.name}")

    def _emit_test(self) -> dict[str, ir.Value]:
        """The gated branch; returns its tensors by the network's names."""
        network = self.network
        shared = {info.name for info in network.inputs} | network.static
        test = {name: value for name, value in self.values.items() if name in shared}
        for unit in self._order():
            if isinstance(unit, Group):
                test.update(self._emit_group(unit, test, tuple(dict.fromkeys((*unit.outputs, unit.tail)))))
            elif not all(not tensor or tensor in test for tensor in unit.outputs):
                self._copy_layer(unit, test, self.nodes, f"test/{unit.name}")
        return test

    def _order(self) -> list[Group | Layer]:
        """Groups and loose layers, each after everything it reads."""
        network = self.network
        units = {layer.name: network.group_of(layer.name) or layer for layer in network.layers}
        order: list[Group | Layer] = []
        placed: set[int] = set()
        for layer in network.layers:
            stack = [(units[layer.name], False)]
            while stack:
                unit, complete = stack.pop()
                if id(unit) in placed:
                    continue
                if complete:
                    placed.add(id(unit))
                    order.append(unit)
                    continue
                stack.append((unit, True))
                inner = self._inner_shapes(unit) if isinstance(unit, Group) else frozenset()
                members = (*unit.layers, *inner) if isinstance(unit, Group) else (unit.name,)
                for name in members:
                    for tensor in network.reads(name):
                        producer = network.producer.get(tensor)
                        if producer is not None and producer not in inner and units[producer] is not unit:
                            stack.append((units[producer], False))
        return order

    def _inner_shapes(self, group: Group) -> frozenset[str]:
        """Shape arithmetic between layers of the group (Reshape to a shape taken from a tensor of the group)."""
        if group.name not in self.inner_shapes:
            network = self.network
            inside = set(group.layers)
            first = network.layer(group.layers[0]).index
            depends: dict[str, bool] = {name: True for name in inside}
            for name in group.layers:
                stack = [network.producer.get(t) for t in network.reads(name) if t in network.static]
                while stack:
                    current = stack[-1]
                    if current is None or current in depends:
                        stack.pop()
                        continue
                    producers = [network.producer.get(t) for t in network.reads(current)]
                    if network.layer(current).index < first:
                        depends[current] = False
                    elif missing := [p for p in producers if p is not None and p not in depends]:
                        stack.extend(missing)
                        continue
                    else:
                        depends[current] = any(depends[p] for p in producers if p is not None)
                    stack.pop()
            self.inner_shapes[group.name] = frozenset(n for n, yes in depends.items() if yes and n not in inside)
        return self.inner_shapes[group.name]

    # -- one group ----------------------------------------------------------------------------------------------

    def _emit_group(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> dict[str, ir.Value]:
        gates = self.gate_values.get(group.name)
        if gates is None:
            local = _Scope(scope)
            for name in group.layers:
                self._copy_layer(self.network.layer(name), local, self.nodes, self._name(name))
            return {tensor: local[tensor] for tensor in wanted}
        lower = None
        if self.lower in group.allowed:
            lower = self._branch(group, scope, wanted, self.lower)
        if len(gates) > 1:
            int8 = self._branch(group, scope, wanted, Precision.INT8)
            if lower is None:
                coarse = int8
            else:
                node = self._if(gates[1], int8, lower, wanted, group.name)
                coarse = ir.Graph([], list(node.outputs), nodes=[node], name=self._name("coarse"))
        else:
            coarse = lower
        node = self._if(gates[0], self._branch(group, scope, wanted, Precision.FP32), coarse, wanted, group.name)
        self.nodes.append(node)
        return dict(zip(wanted, node.outputs, strict=True))

    def _if(self, gate: ir.Value, then: ir.Graph, otherwise: ir.Graph, wanted: Sequence[str], name: str) -> ir.Node:
        node = ir.node("If", [gate], {"then_branch": then, "else_branch": otherwise}, num_outputs=len(wanted),
                       name=self._name(f"if/{name}"))
        for tensor, output in zip(wanted, node.outputs, strict=True):
            self._describe(output, tensor)
        return node

    def _branch(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str], precision: Precision) -> ir.Graph:
        """The group in one precision, as the body of an If that reads outer tensors."""
        network = self.network
        nodes: list[ir.Node] = []
        around = self.other if precision is Precision.INT8 else precision
        sites = {(s.layer, s.index): s for s in group.sites} if precision is Precision.INT8 else {}
        local = _Scope(scope)
        produced: set[str] = set()
        rounded: dict[str, ir.Value] = {}
        coarse: set[str] = set()  # results that already have the precision's values
        inside = set(group.layers)
        for name in group.layers:
            layer = network.layer(name)
            ports = _typed_inputs(network, layer)
            inputs: list[ir.Value | None] = []
            for index, tensor in enumerate(layer.inputs):
                if not tensor:
                    inputs.append(None)
                    continue
                value = self._local(group, local, tensor, nodes)
                site = sites.get((name, index))
                outside = tensor not in produced
                if site is not None:
                    value = self._quantized(site, value, around if outside else Precision.FP32, nodes)
                elif (outside and around is not Precision.FP32 and ports[index] and network.is_float(tensor)
                      and not self._rounds_after(layer, tensor)):
                    if tensor not in rounded:
                        rounded[tensor] = self._rounded(value, tensor, around, nodes)
                    value = rounded[tensor]
                inputs.append(value)
            node = self._clone(layer, inputs, self._name(name))
            nodes.append(node)
            for tensor, output in zip(layer.outputs, node.outputs, strict=True):
                if tensor:
                    local[tensor] = output
                    produced.add(tensor)
            if around is not Precision.FP32:
                self._round_results(layer, node, around, local, coarse, inside, wanted, nodes)
        results = []
        for tensor in wanted:
            value = local[tensor]
            if value.producer() is None or value.producer() not in nodes or value in results:
                value = self._add(nodes, "Identity", [value], {}, f"{tensor}/result")
            self._describe(value, tensor)
            results.append(value)
        return ir.Graph([], results, nodes=nodes, name=self._name(f"{group.name}/{precision.value}"))

    def _local(self, group: Group, local: _Scope, tensor: str, nodes: list[ir.Node]) -> ir.Value:
        """A tensor as a branch sees it; shape arithmetic on the group's own tensors is copied into the branch."""
        producer = self.network.producer.get(tensor)
        if tensor in local or producer not in self._inner_shapes(group) or tensor in self.values:
            return local[tensor]
        stack = [producer]
        while stack:
            layer = self.network.layer(stack[-1])
            missing = [self.network.producer[t] for t in layer.inputs
                       if t and t not in local and self.network.producer.get(t) in self._inner_shapes(group)]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if layer.outputs[0] not in local:
                self._copy_layer(layer, local, nodes, self._name(layer.name))
        return local[tensor]

    def _rounds_after(self, layer: Layer, tensor: str) -> bool:
        """Whether rounding what a layer copies is cheaper than rounding what it copies from (an embedding table)."""
        if layer.kind is not Kind.COPY:
            return False
        return tensor not in self.network.constants or float(self.network.constant_amax(tensor)) <= FP16_MAX

    def _round_results(self, layer: Layer, node: ir.Node, precision: Precision, local: _Scope, coarse: set[str],
                       inside: set[str], wanted: Sequence[str], nodes: list[ir.Node]) -> None:
        """Rounds a layer's results where its operator can yield values that the precision does not have."""
        network = self.network
        if layer.kind is Kind.COPY or layer.op_type in EXACT:
            floats = [t for t in layer.inputs if t and network.is_float(t)]
            clean = layer.op_type in EXACT and layer.kind is not Kind.COPY
            if all(t in coarse or clean and t not in local for t in floats):
                coarse.update(layer.outputs)
                return
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if not tensor or not network.is_float(tensor):
                continue
            users = network.consumers.get(tensor, [])
            if (len(users) == 1 and users[0] in inside and tensor not in wanted
                    and network.layer(users[0]).op_type in ROUNDS_LATER):
                continue
            local[tensor] = self._round(output, precision, nodes)
            coarse.add(tensor)

    def _rounded(self, value: ir.Value, tensor: str, precision: Precision, nodes: list[ir.Node]) -> ir.Value:
        """A tensor from outside rounded to a precision; a constant beyond FP16 is clamped first."""
        if precision is Precision.FP16 and tensor in self.network.constants:
            if float(self.network.constant_amax(tensor)) > FP16_MAX:
                low, high = self._scalar(-FP16_MAX), self._scalar(FP16_MAX)
                value = self._add(nodes, "Clip", [value, low, high], {}, "clamped")
        return self._round(value, precision, nodes)

    def _round(self, value: ir.Value, precision: Precision, nodes: list[ir.Node]) -> ir.Value:
        low = self._add(nodes, "Cast", [value], {"to": int(TYPES[precision])}, "low")
        return self._add(nodes, "Cast", [low], {"to": int(ir.DataType.FLOAT)}, "rounded")

    def _quantized(self, site: Site, value: ir.Value, around: Precision, nodes: list[ir.Node]) -> ir.Value:
        if site.role == "weight":
            scale = scales.weight_scale(self.network, site)
            kept = scales.held_type(scale, self.other)
            if around is Precision.FP16 and kept is Precision.FP16:
                value = self._rounded(value, site.tensor, around, nodes)
            step = self._array(scales.held(scale, self.other), f"scale/{site.tensor}/{site.axis}")
        else:
            if around is not Precision.FP32:
                value = self._round(value, around, nodes)
            step = self.scale_values[site.tensor]
        zero = self._array(np.zeros(step.shape.numpy() if site.role == "weight" else (), np.int8),
                           f"zero/{site.tensor}/{site.axis}" if site.role == "weight" else "zero")
        attributes = {} if site.axis is None else {"axis": site.axis}
        codes = self._add(nodes, "QuantizeLinear", [value, step, zero], attributes, "codes")
        return self._add(nodes, "DequantizeLinear", [codes, step, zero], attributes, "dequantized")

    # -- sums ---------------------------------------------------------------------------------------------------

    def _sums(self, tensor: str, test: ir.Value) -> ir.Value:
        """The row of `SUMS` for a tensor of the reference and its counterpart, shaped ``(1, len(SUMS))``."""
        reference = self.values[tensor]
        nodes = self.nodes
        if tensor not in self.reference_sums:
            squares = self._reduce("ReduceSumSquare", reference)
            largest = self._largest(reference)
            self.reference_sums[tensor] = (squares, largest)
        squares, largest = self.reference_sums[tensor]
        difference = self._add(nodes, "Sub", [test, reference], {}, "difference")
        absolute = self._add(nodes, "Abs", [difference], {}, "absolute")
        diff2 = self._reduce("ReduceSumSquare", difference)
        test2 = self._reduce("ReduceSumSquare", test)
        diff1 = self._reduce("ReduceSum", absolute)
        diff_max = self._reduce("ReduceMax", absolute)
        bad = self._add(nodes, "IsNaN", [self._add(nodes, "Sub", [test2, test2], {}, "probe")], {}, "bad")
        counted = self._counted(test)
        none = self._array(np.zeros(1, np.float32), "zero/count")
        zeros = [ir.node("Identity", [none], name=self._name("clean")) for _ in range(2)]
        for node in zeros:
            node.outputs[0].name = self._name("none")
            node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([1])
        clean = ir.Graph([], [node.outputs[0] for node in zeros], nodes=zeros, name=self._name("clean"))
        scalar = self._add(nodes, "Squeeze", [bad], {}, "bad_scalar")
        counts = ir.node("If", [scalar], {"then_branch": counted, "else_branch": clean}, num_outputs=2,
                         name=self._name("count"))
        for output in counts.outputs:
            output.name = self._name("count")
        nodes.append(counts)
        return self._add(nodes, "Concat", [diff2, squares, test2, diff1, diff_max, largest, *counts.outputs],
                         {"axis": 0}, "sums")

    def _counted(self, test: ir.Value) -> ir.Graph:
        """Counts of NaN and of Inf; runs only where the sum of squares is not finite."""
        nodes: list[ir.Node] = []
        results = []
        for operator in ("IsNaN", "IsInf"):
            flags = self._add(nodes, operator, [test], {}, "flags")
            numbers = self._add(nodes, "Cast", [flags], {"to": int(ir.DataType.FLOAT)}, "numbers")
            result = self._reduce("ReduceSum", numbers, nodes)
            result.dtype, result.shape = ir.DataType.FLOAT, ir.Shape([1])
            results.append(result)
        return ir.Graph([], results, nodes=nodes, name=self._name("counted"))

    def _reduce(self, operator: str, value: ir.Value, nodes: list[ir.Node] | None = None) -> ir.Value:
        nodes = self.nodes if nodes is None else nodes
        flat = self._add(nodes, "Reshape", [value, self._array(np.array([-1], np.int64), "flat")], {}, "flat")
        return self._add(nodes, operator, [flat], {"keepdims": 1}, operator.lower())

    def _largest(self, value: ir.Value) -> ir.Value:
        return self._reduce("ReduceMax", self._add(self.nodes, "Abs", [value], {}, "magnitude"))

    def _stack(self, rows: list[ir.Value], name: str) -> ir.Value:
        joined = self._add(self.nodes, "Concat", rows, {"axis": 0}, "rows")
        shape = self._array(np.array([-1, len(SUMS)], np.int64), "shape/sums")
        node = ir.node("Reshape", [joined, shape], name=name)
        node.outputs[0].name = name
        node.outputs[0].dtype = ir.DataType.FLOAT
        self.nodes.append(node)
        return node.outputs[0]

    # -- pieces -------------------------------------------------------------------------------------------------

    def _name(self, base: str) -> str:
        self.counter += 1
        return f"{base}#{self.counter}"

    def _add(self, nodes: list[ir.Node], operator: str, inputs: list[ir.Value], attributes: dict, base: str) -> ir.Value:
        node = ir.node(operator, inputs, attributes, name=self._name(base))
        node.outputs[0].name = node.name
        nodes.append(node)
        return node.outputs[0]

    def _describe(self, value: ir.Value, tensor: str) -> None:
        original = self.network.value(tensor)
        if value.name is None:
            value.name = self._name(tensor)
        value.type = original.type
        value.shape = original.shape

    def _clone(self, layer: Layer, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
        original = self.network.node(layer.name)
        node = ir.Node(original.domain, original.op_type, inputs, list(original.attributes.values()),
                       num_outputs=len(original.outputs), overload=original.overload, name=name)
        for source, output in zip(original.outputs, node.outputs, strict=True):
            output.name = self._name(source.name) if source.name else ""
            output.type, output.shape = source.type, source.shape
        return node

    def _copy_layer(self, layer: Layer, scope, nodes: list[ir.Node], name: str) -> None:
        """A layer as it is, reading from and writing to ``scope``; subgraphs are cloned onto the scope's tensors."""
        node = self._clone(layer, [scope[t] if t else None for t in layer.inputs], name)
        original = self.network.node(layer.name)
        for attr in original.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                node.attributes[attr.name] = ir.AttrGraph(attr.name, _rescoped(attr.value, scope))
            elif attr.type == ir.AttributeType.GRAPHS:
                node.attributes[attr.name] = ir.AttrGraphs(attr.name, [_rescoped(g, scope) for g in attr.value])
        nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                scope[tensor] = output

    def _as_output(self, value: ir.Value, name: str) -> ir.Value:
        result = self._add(self.nodes, "Identity", [value], {}, name)
        result.name = name
        result.type, result.shape = value.type, value.shape
        return result

    def _input(self, name: str, dtype: ir.DataType) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))
        self.inputs.append(value)
        return value

    def _weight(self, name: str, tensor: ir.TensorProtocol) -> None:
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        self.initializers[name] = value
        self.values[name] = value

    def _array(self, array: np.ndarray, name: str) -> ir.Value:
        name = f"gated/{name}/{'x'.join(map(str, array.shape))}"
        if name not in self.initializers:
            value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                             shape=ir.Shape(array.shape), const_value=ir.tensor(array, name=name))
            self.initializers[name] = value
        return self.initializers[name]

    def _scalar(self, number: float) -> ir.Value:
        return self._array(np.array(number, np.float32), f"scalar/{number:g}")


class _Scope(dict):
    """Tensors of a branch on top of those outside it."""

    def __init__(self, outer: Mapping[str, ir.Value]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, tensor: str) -> ir.Value:
        return self.outer[tensor]


def _rescoped(graph: ir.Graph, scope: Mapping[str, ir.Value]) -> ir.Graph:
    """A copy of a subgraph whose captured tensors are those of ``scope``."""
    copy = graph.clone(allow_outer_scope_values=True)
    inner = {id(v) for v in copy.inputs} | {id(v) for v in copy.initializers.values()}
    inner.update(id(v) for node in copy.all_nodes() for v in node.outputs)
    for node in copy.all_nodes():
        for index, value in enumerate(node.inputs):
            if value is not None and id(value) not in inner and value.graph is not None:
                mapped = _find(scope, value.name)
                if mapped is not None:
                    node.replace_input_with(index, mapped)
    for index, value in enumerate(copy.outputs):
        if id(value) not in inner:
            mapped = _find(scope, value.name)
            if mapped is not None:
                copy.outputs[index] = mapped
    return copy


def _find(scope: Mapping[str, ir.Value], name: str) -> ir.Value | None:
    try:
        return scope[name]
    except KeyError:
        return None


def _typed_inputs(network: Network, layer: Layer) -> list[bool]:
    from trt_tui.core.lowering.typed import typed_ports

    return typed_ports(network.node(layer.name), max(network.opset, 17))[0]
