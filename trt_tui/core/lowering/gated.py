"""The gated graph: one network in which precision is a runtime input.

Every group stands in an ``If`` whose branches compute it in FP32 and in what is coarser: lower float precisions
(inputs, weights and results rounded by Cast pairs) and INT8 (Q and DQ in FP32 arithmetic, with the scales the target
holds). Gates, scales and weights are fed, so that any config is one run of one loaded session. A weight is rounded once
for a config, outside the graph, by the same arithmetic.

Beside the gated network ("test") the graph can hold a reference branch in FP32 and, for each group, a copy whose inputs
come from the reference ("isolated"), with reductions on each pair of tensors so that only sums leave the session.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rules
from trt_tui.core.lowering.rules import MASKS, TYPES, Offer, Ruling
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Kind, Layer, Site
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_MAX, Precision
from trt_tui.errors import TrtTuiError

ROUNDS_LATER = frozenset(("Relu",))
"""Operators that rounding commutes with: the rounding before them can stand behind them."""

SUMS = ("diff2", "ref2", "test2", "diff1", "diff_max", "ref_max", "nan", "inf", "count", "fp16_over", "fp16_under")
"""What the reductions yield for each pair of tensors, in this order: sums of squares of difference, reference and
test, sum and maximum of the absolute difference, maximum of the absolute reference, counts of NaN and of Inf that only
test has, number of elements, and, where a run asks for them, how many values of the reference FP16 cannot hold: those
beyond its largest and those below its least magnitude (both 0 where it does not ask). Sums are accurate to 1e-4 of
their value up to a million elements, to 2e-3 at ten."""

_MEASURED = SUMS.index("count")
"""How many columns of a row depend on the test."""

_STATIC_BYTES = 1 << 20
"""Constants up to this size are held a second time, rounded to each lower precision."""


@dataclass(frozen=True)
class WeightInput:
    """A weight that is fed: the layer input it stands for."""

    group: str
    site: Site


@dataclass(frozen=True)
class Gated:
    """A gated graph and the names of what it is fed and what it yields.

    Attributes:
        offer: What it can be asked for.
        gates: Input names (bool scalars) by kind, by group: "fp32" (run in FP32), "fp16", "bf16" (results have that
            type), "int8" (run in INT8), "clean" (every float input already has values of the results' type), "direct"
            (that, and not in INT8); those that the group needs.
        scale_inputs: Input names (float32 scalars) of activation scales, by group and tensor.
        results: Tensors that have the type of a group's results, by group.
        weight_inputs: What weight each further input is, by its name.
        outputs: Output names of the test branch by tensor of the network.
        reference: The same of the reference branch, where there is one.
        accumulated: Output name of the sums of the test branch, float64 shaped ``(len(measured), len(SUMS))``.
        isolated: The same of the isolated branch.
        measured: Groups in the order of the rows of the sums.
        counting: Input name (bool scalar) of the gate for counting what FP16 cannot hold, where there are sums.
    """

    model: ir.Model
    network: Network
    offer: Offer
    gates: Mapping[str, Mapping[str, str]]
    scale_inputs: Mapping[tuple[str, str], str]
    weight_inputs: Mapping[str, WeightInput]
    results: Mapping[str, frozenset[str]]
    outputs: Mapping[str, str]
    reference: Mapping[str, str]
    accumulated: str | None
    isolated: str | None
    measured: tuple[str, ...]
    counting: str | None = None
    _alive: weakref.WeakValueDictionary = field(default_factory=weakref.WeakValueDictionary, repr=False, compare=False)
    _last: list[np.ndarray] = field(default_factory=list, repr=False, compare=False)

    def feeds(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Gates, scales and weights that make the test branch run in a config.

        Weights are the same arrays as in earlier feeds that are still in use, or in the last ones.

        The graph must offer what the config needs (`Offer.needed`).

        Raises:
            InputError: an INT8 layer's input has no range.
        """
        network = self.network
        fed: dict[str, np.ndarray] = {}
        has: dict[str, Precision] = {}  # of tensors that have a lower precision's values
        rulings = rules.rule(network, config, ranges)
        fed.update((name, np.asarray(np.float32(1))) for name in self.scale_inputs.values())
        for group in network.groups:
            gates = self.gates.get(group.name)
            if gates is None:
                continue
            ruling = rulings[group.name]
            fp32, int8 = ruling.precision is Precision.FP32, ruling.precision is Precision.INT8
            clean = all(has.get(tensor) is ruling.around for tensor in group.inputs)
            values = {"fp32": fp32, "int8": int8, "clean": clean, "direct": clean and not int8}
            fed.update((name, np.array(values[kind] if kind in values else kind == ruling.around.value))
                       for kind, name in gates.items())
            fed.update((self.scale_inputs[group.name, site.tensor], np.asarray(scale.values))
                       for site, scale in ruling.scales.items() if site.role != "weight")
            if ruling.around is not Precision.FP32:
                has.update(dict.fromkeys(self.results[group.name], ruling.around))
        weights = {name: self._weight(weight.site, rulings[weight.group]) for name, weight in
                   self.weight_inputs.items()}
        self._last[:] = weights.values()
        if self.counting is not None:
            fed[self.counting] = np.array(False)
        return fed | weights

    def _weight(self, site: Site, ruling: Ruling) -> np.ndarray:
        scale = ruling.scales.get(site)
        key = (site.tensor, ruling.precision, *((site.axis, scale.held) if scale is not None else ()))
        array = self._alive.get(key)
        if array is None:
            if scale is not None:
                array = rules.quantized_weight(self.network, site, scale)
            elif ruling.precision is Precision.FP32:
                array = self.network.constant(site.tensor)
            else:
                array = rules.rounded_constant(self.network, site.tensor, ruling.precision)
            self._alive[key] = array
        return array


def lower_gated(
    network: Network,
    *,
    floats: Collection[Precision] = (Precision.FP16,),
    others: Collection[Precision] = (Precision.FP16,),
    outputs: Sequence[str] = (),
    reference: bool = False,
    isolated: bool = False,
    measured: Sequence[str] | None = None,
) -> Gated:
    """Builds a gated graph.

    Args:
        floats: The float precisions below FP32 that groups can be given.
        others: What may surround INT8 layers.
        outputs: Tensors to yield from each branch; the network's outputs by default.
        reference: Add the FP32 branch and the sums of the accumulated error at each measured group.
        isolated: Add each measured group with its inputs taken from the reference, and its sums; needs ``reference``.
        measured: Groups to take sums at; all by default.
    """
    if isolated and not reference:
        raise ValueError("the isolated branch reads the reference")
    return _GatedLowering(network, Offer.of(floats, others)).build(tuple(outputs), reference, isolated, measured)


class _GatedLowering:
    def __init__(self, network: Network, offer: Offer) -> None:
        self.network = network
        self.offer = offer
        self.forms = {group.name: forms for group in network.groups if (forms := offer.forms(group))}
        self.counter = 0
        self.nodes: list[ir.Node] = []
        self.inputs: list[ir.Value] = []
        self.values: dict[str, ir.Value] = {}  # reference branch and what all branches share, by tensor name
        self.initializers: dict[str, ir.Value] = {}
        self.gate_values: dict[str, dict[str, ir.Value]] = {}
        self.scale_values: dict[tuple[str, str], ir.Value] = {}
        self.weight_values: dict[tuple[str, str, int], ir.Value] = {}
        self.weight_inputs: dict[str, WeightInput] = {}
        self.reference_sums: dict[str, tuple[ir.Value, ir.Value, ir.Value, ir.Value]] = {}
        self.requested: frozenset[str] = frozenset()
        self.kept: dict[str, ir.Value] = {}
        self.counting: ir.Value | None = None

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
        self.requested = frozenset(outputs)
        self._declare_inputs()
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
            self.counting = self._input("counting", ir.DataType.BOOL)
            kinds = ["accumulated", "isolated"] if isolated else ["accumulated"]
            tables = self._tables([network.group(name) for name in names], test, kinds)
            accumulated_name, isolated_name = (*(value.name for value in tables), None)[:2]
            graph_outputs.extend(tables)
        nodes, initializers = self._used(graph_outputs)
        graph = ir.Graph(self.inputs, graph_outputs, nodes=nodes, initializers=initializers,
                         opset_imports=dict(network.model.graph.opset_imports), name="gated")
        graph.sort()
        model = ir.Model(graph, ir_version=max(network.model.ir_version, 8))
        gates = {group: {kind: v.name for kind, v in values.items()} for group, values in self.gate_values.items()}
        return Gated(model, network, self.offer, gates, {key: v.name for key, v in self.scale_values.items()},
                     self.weight_inputs, {name: self._results(network.group(name)) for name in self.forms},
                     output_names, reference_names, accumulated_name, isolated_name, names,
                     self.counting.name if self.counting is not None else None)

    def _used(self, outputs: Sequence[ir.Value]) -> tuple[list[ir.Node], list[ir.Value]]:
        """Nodes and initializers that the outputs depend on."""
        used = {id(value) for value in outputs}
        producers = {id(value): node for node in self.nodes for value in node.outputs}
        stack = [producers[id(value)] for value in outputs]
        kept: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in kept:
                continue
            kept.add(id(node))
            for value in _reads(node):
                used.add(id(value))
                if id(value) in producers:
                    stack.append(producers[id(value)])
        return ([node for node in self.nodes if id(node) in kept],
                [value for value in self.initializers.values() if id(value) in used])

    def _declare_inputs(self) -> None:
        for index, group in enumerate(self.network.groups):
            forms = self.forms.get(group.name)
            if forms is None:
                continue
            quantizes = any(Precision.INT8 in precisions for precisions in forms.values())
            if quantizes:
                for site in group.activations():
                    if (group.name, site.tensor) not in self.scale_values:
                        name = f"scale/{len(self.scale_values)}"
                        self.scale_values[group.name, site.tensor] = self._input(name, ir.DataType.FLOAT)
            for number, site in enumerate(group.weights()):
                name = f"weight/{index}/{number}"
                value = self._input(name, ir.DataType.FLOAT, self.network.value(site.tensor).shape)
                self.weight_values[group.name, site.layer, site.index] = value
                self.weight_inputs[name] = WeightInput(group.name, site)
            kinds = ["fp32", *(around.value for around in list(forms)[:-1])]
            if any(len(precisions) > 1 for precisions in forms.values()):
                kinds += ["int8", "clean"]
            if any(around in precisions for around, precisions in forms.items()):
                kinds.append("direct")
            self.gate_values[group.name] = {
                kind: self._input(f"gate/{index}/{kind}", ir.DataType.BOOL) for kind in kinds}

    def _results(self, group: Group) -> frozenset[str]:
        return frozenset(tensor for name in group.layers for tensor in self._own(self.network.layer(name)))

    def _own(self, layer: Layer) -> list[str]:
        """The float results of a layer that have the type it computes in."""
        if layer.kind is Kind.OPAQUE:
            return []
        own = rules.typed_ports(self.network.node(layer.name), self.network.opset)[1]
        return [tensor for tensor, typed in zip(layer.outputs, own, strict=True)
                if typed and tensor and self.network.is_float(tensor)]

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
                inner = [t for name in unit.layers for t in network.layer(name).outputs if t in self.requested]
                test.update(self._emit_group(unit, test, tuple(dict.fromkeys((*unit.outputs, unit.tail, *inner)))))
            elif not all(not tensor or tensor in test for tensor in unit.outputs):
                self._copy_layer(unit, test, self.nodes, f"test/{unit.name}")
        return test

    def _order(self) -> list[Group | Layer]:
        """Groups and loose layers, each after everything it reads.

        Raises:
            TrtTuiError: groups wait for each other.
        """
        network = self.network
        units = {layer.name: network.group_of(layer.name) or layer for layer in network.layers}
        order: list[Group | Layer] = []
        begun: dict[str, Group | Layer] = {}
        placed: set[str] = set()
        for layer in network.layers:
            stack = [(units[layer.name], False)]
            while stack:
                unit, complete = stack.pop()
                if unit.name in placed:
                    continue
                if complete:
                    placed.add(unit.name)
                    order.append(begun.pop(unit.name))
                    continue
                if unit.name in begun:
                    raise _cycle(network, list(begun)[list(begun).index(unit.name):])
                begun[unit.name] = unit
                stack.append((unit, True))
                stack.extend((units[name], False) for name in self._waits_for(unit))
        return order

    def _waits_for(self, unit: Group | Layer) -> Iterable[str]:
        """Layers outside a unit that compute what it reads."""
        members = (*unit.layers, *unit.inner) if isinstance(unit, Group) else (unit.name,)
        own = set(members)
        for name in members:
            for tensor in self.network.reads(name):
                producer = self.network.producer.get(tensor)
                if producer is not None and producer not in own:
                    yield producer

    # -- one group ----------------------------------------------------------------------------------------------

    def _emit_group(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> dict[str, ir.Value]:
        gates = self.gate_values.get(group.name)
        if gates is None:
            local = _Scope(scope)
            for name in group.layers:
                layer = self.network.layer(name)
                for tensor in layer.inputs:
                    if tensor:
                        self._local(group, local, tensor, self.nodes)
                self._copy_layer(layer, local, self.nodes, self._name(name))
            return {tensor: local[tensor] for tensor in wanted}
        coarse = self._coarse(group, dict.fromkeys(self.forms[group.name], scope), wanted)
        node = self._if(gates["fp32"], self._branch(group, scope, wanted, Precision.FP32), coarse, wanted, group.name)
        self.nodes.append(node)
        return dict(zip(wanted, node.outputs, strict=True))

    def _coarse(self, group: Group, scopes: Mapping[Precision, Mapping[str, ir.Value]], wanted: Sequence[str],
                rounded: bool = True) -> ir.Graph:
        """The group in whatever is asked below FP32.

        Args:
            scopes: The tensors it reads, by the float type of its results.
            rounded: What it reads may have values of that type already, as the gates say.
        """
        gates = self.gate_values[group.name]
        result = None
        for around, precisions in reversed(self.forms[group.name].items()):
            scope = scopes[around]
            if len(precisions) > 1:
                branch = self._branch(group, scope, wanted, around, gate=gates["int8"],
                                      clean_gate=gates["clean"] if rounded else None)
            else:
                branch = self._branch(group, scope, wanted, around, quantized=Precision.INT8 in precisions)
            if rounded and around in precisions:
                as_is = self._branch(group, scope, wanted, around, clean=True)
                branch = self._either(gates["direct"], as_is, branch, wanted, group.name)
            result = branch if result is None else self._either(gates[around.value], branch, result, wanted, group.name)
        return result

    def _either(self, gate: ir.Value, then: ir.Graph, otherwise: ir.Graph, wanted: Sequence[str],
                name: str) -> ir.Graph:
        node = self._if(gate, then, otherwise, wanted, name)
        return ir.Graph([], list(node.outputs), nodes=[node], name=self._name("coarse"))

    def _if(self, gate: ir.Value, then: ir.Graph, otherwise: ir.Graph, wanted: Sequence[str], name: str) -> ir.Node:
        node = ir.node("If", [gate], {"then_branch": then, "else_branch": otherwise}, num_outputs=len(wanted),
                       name=self._name(f"if/{name}"))
        for tensor, output in zip(wanted, node.outputs, strict=True):
            self._describe(output, tensor)
        return node

    def _branch(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str], around: Precision, *,
                quantized: bool = False, gate: ir.Value | None = None, clean_gate: ir.Value | None = None,
                clean: bool = False) -> ir.Graph:
        """The group with results in one float precision, as the body of an If that reads outer tensors.

        Args:
            quantized: The sites' activations pass through Q and DQ.
            gate: They do so where this is true.
            clean_gate: Where this is true they have the precision's values already.
            clean: What comes from outside has the precision's values already.
        """
        network = self.network
        nodes: list[ir.Node] = []
        lowers = around is not Precision.FP32
        sites = {(s.layer, s.index): s for s in group.activations()} if quantized or gate is not None else {}
        local = _Scope(scope)
        produced: set[str] = set()
        prepared: dict[tuple[str, bool], ir.Value] = {}
        coarse: set[str] = set(group.inputs) if clean else set()  # tensors that have the precision's values
        for name in group.layers:
            layer = network.layer(name)
            ports = rules.typed_ports(network.node(name), network.opset)[0]
            inputs: list[ir.Value | None] = []
            typed: list[str] = []
            for index, tensor in enumerate(layer.inputs):
                if not tensor:
                    inputs.append(None)
                    continue
                fed = self.weight_values.get((group.name, name, index))
                if fed is not None:
                    inputs.append(fed)
                    continue
                value = self._local(group, local, tensor, nodes)
                site = sites.get((name, index))
                outside = tensor not in produced
                if ports[index] and network.is_float(tensor):
                    typed.append(tensor)
                if site is not None:
                    key = (tensor, True)
                    if key not in prepared:
                        prepared[key] = self._quantized(group, value, tensor, around if outside else Precision.FP32,
                                                        gate, clean_gate, nodes)
                    value = prepared[key]
                elif (outside and lowers and ports[index] and network.is_float(tensor)
                      and not (clean and tensor in group.inputs) and not self._rounds_after(layer, tensor)):
                    key = (tensor, False)
                    if key not in prepared:
                        prepared[key] = self._rounded(value, tensor, around, nodes)
                    value = prepared[key]
                    coarse.add(tensor)
                inputs.append(value)
            node = self._clone(layer, inputs, self._name(name))
            nodes.append(node)
            for tensor, output in zip(layer.outputs, node.outputs, strict=True):
                if tensor:
                    local[tensor] = output
                    produced.add(tensor)
            if lowers:
                self._round_results(group, layer, node, typed, around, local, coarse, wanted, nodes)
        results = []
        for tensor in wanted:
            value = local[tensor]
            if value.producer() is None or value.producer() not in nodes or value in results:
                value = self._add(nodes, "Identity", [value], {}, f"{tensor}/result")
            self._describe(value, tensor)
            results.append(value)
        return ir.Graph([], results, nodes=nodes, name=self._name(f"{group.name}/{around.value}"))

    def _local(self, group: Group, local: _Scope, tensor: str, nodes: list[ir.Node]) -> ir.Value:
        """A tensor as a branch sees it; shape arithmetic on the group's own tensors is copied into the branch."""
        network = self.network
        wanted = network.producer.get(tensor)
        if tensor in local or wanted not in group.inner or tensor in self.values:
            return local[tensor]
        needed, stack = {wanted}, [wanted]
        while stack:
            producers = {network.producer.get(t) for t in network.reads(stack.pop()) if t not in local}
            found = producers.intersection(group.inner) - needed
            needed |= found
            stack.extend(found)
        for name in group.inner:
            if name in needed:
                self._copy_layer(network.layer(name), local, nodes, self._name(name))
        return local[tensor]

    def _rounds_after(self, layer: Layer, tensor: str) -> bool:
        """Whether rounding what a layer copies is cheaper than rounding what it copies from (an embedding table)."""
        if layer.kind is not Kind.COPY:
            return False
        return tensor not in self.network.constants or not self.network.is_mask(tensor)

    def _round_results(self, group: Group, layer: Layer, node: ir.Node, typed: Sequence[str], precision: Precision,
                       local: _Scope, coarse: set[str], wanted: Sequence[str], nodes: list[ir.Node]) -> None:
        """Rounds a layer's results where its operator can yield values that the precision does not have."""
        network = self.network
        own = self._own(layer)
        if rules.keeps_precision(layer) and coarse.issuperset(typed):
            coarse.update(own)
            return
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor not in own:
                continue
            users = network.consumers.get(tensor, [])
            if (len(users) == 1 and users[0] in group.layers and tensor not in wanted
                    and network.layer(users[0]).op_type in ROUNDS_LATER):
                continue
            local[tensor] = self._round(output, precision, nodes)
            coarse.add(tensor)

    def _rounded(self, value: ir.Value, tensor: str, precision: Precision, nodes: list[ir.Node]) -> ir.Value:
        """A tensor from outside rounded to a precision; a mask beyond FP16 is clamped first."""
        network = self.network
        if tensor in network.constants:
            sizes = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
            if sizes is not None and 4 * int(np.prod(sizes)) <= _STATIC_BYTES:
                name = f"{precision.value}/{tensor}"
                if name not in self.initializers:
                    self._held(rules.rounded_constant(network, tensor, precision), name)
                return self.initializers[name]
            limit = rules.clamped_at(network, tensor, precision)
            if limit is not None:
                low, high = self._scalar(-limit), self._scalar(limit)
                value = self._add(nodes, "Clip", [value, low, high], {}, "clamped")
        return self._round(value, precision, nodes)

    def _round(self, value: ir.Value, precision: Precision, nodes: list[ir.Node]) -> ir.Value:
        low = self._add(nodes, "Cast", [value], {"to": int(TYPES[precision])}, "low")
        return self._add(nodes, "Cast", [low], {"to": int(ir.DataType.FLOAT)}, "rounded")

    def _quantized(self, group: Group, value: ir.Value, tensor: str, around: Precision, gate: ir.Value | None,
                   clean: ir.Value | None, nodes: list[ir.Node]) -> ir.Value:
        """An activation rounded to the surrounding type and to INT8, where the gate says so or there is none."""

        def codes(rounds: bool, nodes: list[ir.Node]) -> ir.Value:
            source = self._round(value, around, nodes) if rounds else value
            pair = [self.scale_values[group.name, tensor], self._array(np.zeros((), np.int8), "zero")]
            integers = self._add(nodes, "QuantizeLinear", [source, *pair], {}, "codes")
            return self._add(nodes, "DequantizeLinear", [integers, *pair], {}, "dequantized")

        def rounded(nodes: list[ir.Node]) -> ir.Value:
            if around is Precision.FP32:
                return self._add(nodes, "Identity", [value], {}, "as_is")
            return self._round(value, around, nodes)

        def choice(gate: ir.Value, then, otherwise, nodes: list[ir.Node]) -> ir.Value:
            graphs = []
            for emit in (then, otherwise):
                inner: list[ir.Node] = []
                result = emit(inner)
                self._describe(result, tensor)
                graphs.append(ir.Graph([], [result], nodes=inner, name=self._name("prepared")))
            node = self._if(gate, *graphs, (tensor,), tensor)
            nodes.append(node)
            return node.outputs[0]

        rounds = around is not Precision.FP32
        if gate is None:
            return codes(rounds, nodes)

        def int8(nodes: list[ir.Node]) -> ir.Value:
            if not rounds or clean is None:
                return codes(rounds, nodes)
            return choice(clean, lambda inner: codes(False, inner), lambda inner: codes(True, inner), nodes)

        return choice(gate, int8, rounded, nodes)

    # -- sums ---------------------------------------------------------------------------------------------------

    def _isolated(self, group: Group) -> ir.Value:
        """The row of `SUMS` for a group whose inputs come from the reference; no error where it runs in FP32."""
        tail = group.tail
        exact: list[ir.Node] = []
        squares, largest, _, _ = self._reference_sums(tail)
        none = self._array(np.zeros(1, np.float32), "none")
        row = self._row([none, squares, squares, none, none, largest, none, none], exact)
        gates = self.gate_values.get(group.name)
        if gates is None:
            self.nodes.extend(exact)
            return row
        scopes = {around: self._with_masks_clamped(group, around) for around in self.forms[group.name]}
        coarse = self._coarse(group, scopes, (tail,), rounded=False)
        alone = coarse.outputs[0]
        nodes = list(coarse)
        coarse.outputs.clear()
        coarse.remove(nodes)
        measured = self._sums(tail, alone, nodes)
        return self._choose_row(gates["fp32"], ir.Graph([], [row], nodes=exact, name=self._name("exact")),
                                ir.Graph([], [measured], nodes=nodes, name=self._name("alone")), self.nodes)

    def _with_masks_clamped(self, group: Group, around: Precision) -> Mapping[str, ir.Value]:
        """The reference's tensors, those of the group's inputs that hold a mask clamped as the target holds it."""
        masked = [tensor for tensor in group.inputs if tensor in self.network.masked]
        limit = MASKS.get(around)
        if not masked or limit is None:
            return self.values
        scope = _Scope(self.values)
        for tensor in masked:
            low, high = self._scalar(-limit), self._scalar(limit)
            scope[tensor] = self._add(self.nodes, "Clip", [self.values[tensor], low, high], {}, "clamped")
        return scope

    def _unmasked(self, tensor: str, flat: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        """The flat tensor without what a mask hides: those elements say nothing about precision."""
        if tensor not in self.network.masked:
            return flat
        if tensor not in self.kept:
            reference = self._flat(self.values[tensor], self.nodes)
            size = self._add(self.nodes, "Abs", [reference], {}, "size")
            self.kept[tensor] = self._add(self.nodes, "Less", [size, self._scalar(FP16_MAX)], {}, "kept")
        return self._add(nodes, "Where", [self.kept[tensor], flat, self._scalar(0.0)], {}, "unmasked")

    def _sums(self, tensor: str, test: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        """The row of `SUMS`, without the count, of a tensor of the reference and its counterpart: float64 ``(8,)``.

        Sums are taken in float32. Where squares of large numbers (masks) are beyond it, those are taken in float64;
        where the difference is not finite either, everything is, and NaN and Inf are counted.
        """
        squares, largest, reference, _ = self._reference_sums(tensor)
        flat = self._unmasked(tensor, self._flat(test, nodes), nodes)
        difference = self._add(nodes, "Sub", [flat, reference], {}, "difference")
        diff2 = self._reduce("ReduceSumSquare", difference, nodes)
        test2 = self._reduce("ReduceSumSquare", flat, nodes)
        diff1 = self._reduce("ReduceL1", difference, nodes)
        diff_max = self._largest(difference, nodes)
        probe = self._add(nodes, "Add", [self._add(nodes, "Add", [diff2, test2], {}, "probe"), squares], {}, "probe")
        finite = self._add(nodes, "Less", [probe, self._scalar(float(np.finfo(np.float32).max))], {}, "finite")
        none = self._array(np.zeros(1, np.float32), "none")
        fast: list[ir.Node] = []
        row = self._row([diff2, squares, test2, diff1, diff_max, largest, none, none], fast)
        wide: list[ir.Node] = []
        two = [self._reduce("ReduceSumSquare", self._double(value, wide), wide) for value in (reference, flat)]
        wide_row = self._add(wide, "Concat", [
            self._double(diff2, wide), *two,
            self._double(self._add(wide, "Concat", [diff1, diff_max, largest, none, none], {"axis": 0}, "rest"), wide),
        ], {"axis": 0}, "row")
        self._declare_row(wide_row)
        slow: list[ir.Node] = []
        agrees = self._add(slow, "Less", [diff2, self._scalar(float(np.finfo(np.float32).max))], {}, "agrees")
        slow_row = self._choose_row(agrees, ir.Graph([], [wide_row], nodes=wide, name=self._name("wide")),
                                    self._careful_sums(flat, reference), slow)
        return self._choose_row(finite, ir.Graph([], [row], nodes=fast, name=self._name("fast")),
                                ir.Graph([], [slow_row], nodes=slow, name=self._name("slow")), nodes)

    def _choose_row(self, condition: ir.Value, then: ir.Graph, otherwise: ir.Graph, nodes: list[ir.Node]) -> ir.Value:
        node = ir.node("If", [condition], {"then_branch": then, "else_branch": otherwise}, name=self._name("if/row"))
        self._declare_row(node.outputs[0])
        nodes.append(node)
        return node.outputs[0]

    def _double(self, value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        return self._add(nodes, "Cast", [value], {"to": int(ir.DataType.DOUBLE)}, "double")

    def _careful_sums(self, test: ir.Value, reference: ir.Value) -> ir.Graph:
        nodes: list[ir.Node] = []

        def add(operator: str, *inputs: ir.Value, **attributes) -> ir.Value:
            return self._add(nodes, operator, list(inputs), attributes, operator.lower())

        def only_in_test(operator: str) -> ir.Value:
            flags = add("And", add(operator, test), add("Not", add(operator, reference)))
            return self._reduce("ReduceSum", self._double(flags, nodes), nodes)

        wide, expected = self._double(test, nodes), self._double(reference, nodes)
        zero = self._array(np.zeros((), np.float64), "zero64")
        difference = add("Where", add("Equal", wide, expected), zero, add("Sub", wide, expected))
        absolute = add("Abs", difference)
        row = self._add(nodes, "Concat", [
            self._reduce("ReduceSumSquare", difference, nodes), self._reduce("ReduceSumSquare", expected, nodes),
            self._reduce("ReduceSumSquare", wide, nodes), self._reduce("ReduceSum", absolute, nodes),
            self._reduce("ReduceMax", absolute, nodes), self._reduce("ReduceMax", add("Abs", expected), nodes),
            only_in_test("IsNaN"), only_in_test("IsInf")], {"axis": 0}, "row")
        self._declare_row(row)
        return ir.Graph([], [row], nodes=nodes, name=self._name("careful"))

    def _reference_sums(self, tensor: str) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        """What the rows of a tensor share: its sum of squares, its largest magnitude, the tensor as one row, and the
        last columns of `SUMS`: its length and what FP16 cannot hold, float64 ``(3,)``."""
        if tensor not in self.reference_sums:
            flat = self._unmasked(tensor, self._flat(self.values[tensor], self.nodes), self.nodes)
            squares = self._reduce("ReduceSumSquare", flat, self.nodes)
            length = self._double(self._add(self.nodes, "Shape", [flat], {}, "shape"), self.nodes)
            counts = self._add(self.nodes, "Concat", [length, self._fp16_counts(flat)], {"axis": 0}, "counts")
            self.reference_sums[tensor] = (squares, self._largest(flat, self.nodes), flat, counts)
        return self.reference_sums[tensor]

    def _fp16_counts(self, flat: ir.Value) -> ir.Value:
        """How many values FP16 cannot hold, too large and too small ones: float64 ``(2,)``; zeros unless asked for."""
        nodes: list[ir.Node] = []
        size = self._add(nodes, "Abs", [flat], {}, "size")
        over = self._add(nodes, "Greater", [size, self._scalar(FP16_MAX)], {}, "over")
        under = self._add(nodes, "And", [
            self._add(nodes, "Less", [size, self._scalar(FP16_LEAST)], {}, "small"),
            self._add(nodes, "Greater", [size, self._scalar(0.0)], {}, "nonzero")], {}, "under")
        counts = self._double(self._add(nodes, "Concat", [
            self._reduce("ReduceSum", self._add(nodes, "Cast", [flags], {"to": int(ir.DataType.INT64)}, "flags"), nodes)
            for flags in (over, under)], {"axis": 0}, "counts"), nodes)
        none = ir.node("Identity", [self._array(np.zeros(2, np.float64), "none64")], name=self._name("none"))
        for value in (counts, none.outputs[0]):
            value.name = value.name or self._name("counts")
            value.type, value.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([2])
        branches = {"then_branch": ir.Graph([], [counts], nodes=nodes, name=self._name("counted")),
                    "else_branch": ir.Graph([], [none.outputs[0]], nodes=[none], name=self._name("uncounted"))}
        node = ir.node("If", [self.counting], branches, name=self._name("if/counts"))
        node.outputs[0].name = node.name
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([2])
        self.nodes.append(node)
        return node.outputs[0]

    def _flat(self, value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        return self._add(nodes, "Reshape", [value, self._array(np.array([-1], np.int64), "flat")], {}, "flat")

    def _reduce(self, operator: str, flat: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        return self._add(nodes, operator, [flat], {"keepdims": 1}, operator.lower())

    def _largest(self, flat: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        least = self._add(nodes, "Neg", [self._reduce("ReduceMin", flat, nodes)], {}, "negated")
        return self._add(nodes, "Max", [self._reduce("ReduceMax", flat, nodes), least], {}, "largest")

    def _row(self, columns: list[ir.Value], nodes: list[ir.Node]) -> ir.Value:
        joined = self._add(nodes, "Concat", columns, {"axis": 0}, "columns")
        row = self._add(nodes, "Cast", [joined], {"to": int(ir.DataType.DOUBLE)}, "row")
        self._declare_row(row)
        return row

    def _declare_row(self, row: ir.Value) -> None:
        if row.name is None:
            row.name = self._name("row")
        row.type, row.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([_MEASURED])

    def _tables(self, groups: Sequence[Group], test: Mapping[str, ir.Value], kinds: Sequence[str]) -> list[ir.Value]:
        """The sums of all groups, one table ``(len(groups), len(SUMS))`` for each kind.

        ONNX Runtime computes the inputs of an operator one after the other, the one whose node stands last first. So
        rows stand last to first: a group's tensors then live until its row is there, and no longer.
        """
        rows: list[ir.Node] = []
        for group in groups:
            counts = self._reference_sums(group.tail)[3]
            for kind in kinds:
                if kind == "isolated":
                    row = self._isolated(group)
                else:
                    row = self._sums(group.tail, test[group.tail], self.nodes)
                self._add(rows, "Concat", [row, counts], {"axis": 0}, f"row/{kind}")
        columns = [node.outputs[0] for node in rows]
        self.nodes.extend(reversed(rows))
        joined = self._add(self.nodes, "Concat", columns, {"axis": 0}, "rows")
        shape = self._array(np.array([-1, len(kinds), len(SUMS)], np.int64), f"shape/{len(kinds)}")
        table = self._add(self.nodes, "Reshape", [joined, shape], {}, "table")
        results = []
        for index, kind in enumerate(kinds):
            which = self._array(np.array(index, np.int64), f"index/{index}")
            result = self._add(self.nodes, "Gather", [table, which], {"axis": 1}, f"sums/{kind}")
            result.name = f"sums/{kind}"
            result.dtype, result.shape = ir.DataType.DOUBLE, ir.Shape([len(groups), len(SUMS)])
            results.append(result)
        return results

    # -- pieces -------------------------------------------------------------------------------------------------

    def _name(self, base: str) -> str:
        self.counter += 1
        return f"{base}#{self.counter}"

    def _add(
        self, nodes: list[ir.Node], operator: str, inputs: list[ir.Value], attributes: dict, base: str
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes, name=self._name(base))
        node.outputs[0].name = node.name
        nodes.append(node)
        return node.outputs[0]

    def _describe(self, value: ir.Value, tensor: str) -> None:
        original = self.network.value(tensor)
        if value.name is None:
            value.name = self._name(tensor)
        value.type = original.type
        value.shape = _without_names(original.shape)

    def _clone(self, layer: Layer, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
        original = self.network.node(layer.name)
        node = ir.Node(original.domain, original.op_type, inputs, list(original.attributes.values()),
                       num_outputs=len(original.outputs), overload=original.overload, name=name)
        for source, output in zip(original.outputs, node.outputs, strict=True):
            output.name = self._name(source.name) if source.name else ""
            output.type, output.shape = source.type, _without_names(source.shape)
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

    def _input(self, name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]) if shape is None else shape)
        self.inputs.append(value)
        return value

    def _weight(self, name: str, tensor: ir.TensorProtocol) -> None:
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        self.initializers[name] = value
        self.values[name] = value

    def _array(self, array: np.ndarray, name: str) -> ir.Value:
        name = f"gated/{name}"
        if name not in self.initializers:
            self._held(array, name)
        return self.initializers[name]

    def _held(self, array: np.ndarray, name: str) -> None:
        self.initializers[name] = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name))

    def _scalar(self, number: float) -> ir.Value:
        return self._array(np.array(number, np.float32), f"scalar/{number!r}")


def _cycle(network: Network, names: Sequence[str]) -> TrtTuiError:
    return TrtTuiError(f"groups of {network.name} wait for each other",
                       " → ".join((*names, names[0])),
                       "This is a defect of trt-tui; please report it with the network's structure.")


def _reads(node: ir.Node) -> list[ir.Value]:
    """Values that a node and its subgraphs read."""
    found = [value for value in node.inputs if value is not None]
    for attr in node.attributes.values():
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            for graph in (attr.value,) if attr.type == ir.AttributeType.GRAPH else attr.value:
                found.extend(value for inner in graph for value in _reads(inner))
                found.extend(graph.outputs)
    return found


class _Scope(dict):
    """Tensors of a branch on top of those outside it."""

    def __init__(self, outer: Mapping[str, ir.Value]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, tensor: str) -> ir.Value:
        return self.outer[tensor]


def _without_names(shape: ir.Shape | None) -> ir.Shape | None:
    """A shape whose open sizes have no names: a selection may keep another number of values in another branch, and a
    runtime takes what has one name for one size."""
    return None if shape is None else ir.Shape([size if isinstance(size, int) else None for size in shape])


def _rescoped(graph: ir.Graph, scope: Mapping[str, ir.Value]) -> ir.Graph:
    """A copy of a subgraph whose captured tensors, those of graphs nested in it too, are those of ``scope``."""
    copy = graph.clone(allow_outer_scope_values=True)
    graphs = [copy, *copy.subgraphs()]
    inner = {id(v) for one in graphs for v in (*one.inputs, *one.initializers.values())}
    inner.update(id(v) for node in copy.all_nodes() for v in node.outputs)
    for node in copy.all_nodes():
        for index, value in enumerate(node.inputs):
            if value is not None and id(value) not in inner and value.graph is not None:
                mapped = _find(scope, value.name)
                if mapped is not None:
                    node.replace_input_with(index, mapped)
    for one in graphs:
        for value in (*one.outputs, *(v for node in one for v in node.outputs)):
            if id(value) in inner:
                value.shape = _without_names(value.shape)
        for index, value in enumerate(one.outputs):
            mapped = _find(scope, value.name) if id(value) not in inner else None
            if mapped is not None:
                one.outputs[index] = mapped
    return copy


def _find(scope: Mapping[str, ir.Value], name: str) -> ir.Value | None:
    try:
        return scope[name]
    except KeyError:
        return None
