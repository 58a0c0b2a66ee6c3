"""Gates as control flow: each group stands in an ``If`` whose branches compute it in one float precision each.

On CPUs a branch that is not taken costs nothing, which makes this the faster form there. Whether an activation passes
through Q and DQ, and whether it is rounded before, are further ``If`` nodes inside of a branch.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from trt_tui.core.lowering import accumulation, rules
from trt_tui.core.lowering.gated.bodies import Sums, emit_layers, rounded_later, rounds_after
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.gated.given import GivenBranch, Steps
from trt_tui.core.lowering.gated.inputs import GatedInputs
from trt_tui.core.lowering.gated.rounding import Rounding
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group, Layer
from trt_tui.core.precision import Precision

Emit = Callable[[Nodes], ir.Value]
"""Emits nodes into a graph and returns what it computed."""


class ControlFlow:
    """Emits groups with their gates."""

    def __init__(self, emitter: Emitter, inputs: GatedInputs, rounding: Rounding) -> None:
        self.emitter = emitter
        self.inputs = inputs
        self.rounding = rounding
        self._steps = Steps(emitter, rounding)

    def group(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> dict[str, ir.Value]:
        """Emits a group that has gates into the main graph; returns the tensors wanted of it."""
        coarse = self._coarse(group, dict.fromkeys(self.inputs.forms[group.name], scope), wanted)
        exact = self._branch(group, scope, wanted, Precision.FP32)
        gate = self.inputs.gates[group.name]["fp32"]
        outputs = self._if(gate, exact, coarse, wanted, group.name, self.emitter.nodes)
        return dict(zip(wanted, outputs, strict=True))

    def below_fp32(self, group: Group, scopes: Mapping[Precision, Mapping[str, ir.Value]]) -> tuple[ir.Value, Nodes]:
        """The tail of a group that has gates, in whatever is asked below FP32, and the nodes that compute it.

        Args:
            scopes: The tensors it reads, none of them rounded, by the float type of its results.
        """
        coarse = self._coarse(group, scopes, (group.tail,), rounded=False)
        tail, nodes = coarse.outputs[0], list(coarse)
        coarse.outputs.clear()
        coarse.remove(nodes)
        return tail, nodes

    def _coarse(self, group: Group, scopes: Mapping[Precision, Mapping[str, ir.Value]], wanted: Sequence[str],
                rounded: bool = True) -> ir.Graph:
        """The group in whatever is asked below FP32.

        Args:
            scopes: The tensors it reads, by the float type of its results.
            rounded: What it reads may have values of that type already, as the gates say.
        """
        gates = self.inputs.gates[group.name]
        result: ir.Graph | None = None
        for around, precisions in reversed(self.inputs.forms[group.name].items()):
            scope = scopes[around]
            if around is Precision.FILE:
                branch = self._given(group, scope, wanted)
                result = branch if result is None else self._either(gates[around.value], branch, result, wanted,
                                                                    group.name)
                continue
            codes = {code: gates[code.value] if len(precisions) > 1 else None
                     for code in rules.READ_AS if code in precisions}
            branch = self._branch(group, scope, wanted, around, codes=codes, floats=around in precisions,
                                  clean_gate=gates["clean"] if rounded and len(precisions) > 1 else None)
            if rounded and around in precisions:
                as_is = self._branch(group, scope, wanted, around, clean=True)
                branch = self._either(gates["direct"], as_is, branch, wanted, group.name)
            norm = self.inputs.norm(group.name)
            if norm is not None and around is not Precision.FP32:
                whole = self._branch(group, scope, wanted, around, norm=norm)
                branch = self._either(gates["operator"], whole, branch, wanted, group.name)
            result = branch if result is None else self._either(gates[around.value], branch, result, wanted, group.name)
        assert result is not None  # a group that has gates has a form
        return result

    def _either(self, gate: ir.Value, then: ir.Graph, otherwise: ir.Graph, wanted: Sequence[str],
                name: str) -> ir.Graph:
        nodes: Nodes = []
        outputs = self._if(gate, then, otherwise, wanted, name, nodes)
        return self.emitter.graph(outputs, nodes, "coarse")

    def _if(self, gate: ir.Value, then: ir.Graph, otherwise: ir.Graph, wanted: Sequence[str], name: str,
            nodes: Nodes) -> Sequence[ir.Value]:
        outputs = self.emitter.choose(nodes, gate, then, otherwise, f"if/{name}", len(wanted))
        for tensor, output in zip(wanted, outputs, strict=True):
            self.emitter.describe(output, tensor)
        return outputs

    def choice(self, gate: ir.Value, then: Emit, otherwise: Emit, tensor: str, nodes: Nodes) -> ir.Value:
        """One of two values that stand for a tensor."""
        graphs = []
        for emit in (then, otherwise):
            inner: Nodes = []
            result = emit(inner)
            self.emitter.describe(result, tensor)
            graphs.append(self.emitter.graph([result], inner, "prepared"))
        return self._if(gate, graphs[0], graphs[1], (tensor,), tensor, nodes)[0]

    def _given(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> ir.Graph:
        """The group as the file has it."""
        given = self.emitter.network.given
        assert given is not None, "a group has this form where the file has precisions"
        branch = GivenBranch(self._steps, given, group, scope)
        emit_layers(self.emitter, self.inputs, branch)
        return self.emitter.branch(branch.local, branch.nodes, wanted, f"{group.name}/file")

    def _branch(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str], around: Precision, *,
                codes: Mapping[Precision, ir.Value | None] | None = None, floats: bool = True,
                clean_gate: ir.Value | None = None, clean: bool = False, norm: Norm | None = None) -> ir.Graph:
        """The group with results in one float precision; arguments as `_Branch` has them."""
        branch = _Branch(self, group, scope, wanted, around, codes=codes or {}, floats=floats, clean_gate=clean_gate,
                         clean=clean, norm=norm)
        emit_layers(self.emitter, self.inputs, branch)
        return self.emitter.branch(branch.local, branch.nodes, wanted, f"{group.name}/{around.value}")


class _Branch:
    """The group with results in one float precision, as the body of an ``If`` that reads outer tensors.

    Args:
        codes: What the sites' activations are read as, each where its gate is true, or always.
        floats: They are read as floats where no gate is true; else as the last of these codes.
        clean_gate: Where this is true they have the precision's values already.
        clean: What comes from outside has the precision's values already.
        norm: The normalisation that is computed by its operator.
    """

    def __init__(self, flow: ControlFlow, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str],
                 around: Precision, *, codes: Mapping[Precision, ir.Value | None], floats: bool,
                 clean_gate: ir.Value | None, clean: bool, norm: Norm | None) -> None:
        self._flow = flow
        self.norm = norm
        self._network = flow.emitter.network
        self._wanted = wanted
        self._around = around
        self._lowers = around is not Precision.FP32
        self._gates, self._floats, self._clean_gate, self._clean = codes, floats, clean_gate, clean
        self._sites: dict[tuple[str, int], tuple[Precision, ...]] = {}  # what each is read as
        for code in codes:
            for site in rules.sites_read_as(group, code):
                place = site.layer, site.index
                self._sites[place] = (*self._sites.get(place, ()), code)
        self._prepared: dict[tuple[str, tuple[Precision, ...]], ir.Value] = {}
        self._sums = Sums(self._network)
        self._sums_gate = flow.inputs.gates[group.name].get("sums") if around is Precision.FP16 else None
        self._produced: set[str] = set()
        self._coarse: set[str] = set(group.inputs) if clean else set()  # tensors that have the precision's values
        self.group = group
        self.local = BranchTensors(scope)
        self.nodes: Nodes = []

    def read(self, layer: Layer, index: int, tensor: str, value: ir.Value, follows: bool) -> ir.Value:
        """The tensor quantized at a site, rounded where it comes from outside, or as it is."""
        outside = tensor not in self._produced
        codes = self._sites.get((layer.name, index), ())
        if codes:
            key = (tensor, codes)
            if key not in self._prepared:
                self._prepared[key] = self._quantized(value, tensor, self._around if outside else Precision.FP32, codes)
            return self._prepared[key]
        if (outside and self._lowers and follows and not (self._clean and tensor in self.group.inputs)
                and not rounds_after(self._network, layer, tensor)):
            key = (tensor, ())
            if key not in self._prepared:
                self._prepared[key] = self._flow.rounding.read(value, tensor, self._around, self.nodes)
            self._coarse.add(tensor)
            return self._prepared[key]
        return value

    def computed(self, layer: Layer, node: ir.Node, typed: Sequence[str]) -> None:
        """Rounds a layer's results where its operator can yield values that the precision does not have."""
        self._produced.update(tensor for tensor in layer.outputs if tensor)
        if not self._lowers:
            return
        own = rules.typed_results(self._network, layer)
        if rules.keeps_precision(layer) and self._coarse.issuperset(typed):
            self._coarse.update(own)
            return
        count = self._sums.of(layer)
        outputs: Sequence[ir.Value] = node.outputs
        if (port := accumulation.bias_port(self._network, layer)) is not None and self._sums_gate is not None:
            outputs, count = [self._biased(layer, node, port, count, self._sums_gate)], 1
            self.local[layer.outputs[0]] = outputs[0]
        for tensor, output in zip(layer.outputs, outputs, strict=True):
            if tensor not in own:
                continue
            if rounded_later(self._network, self.group, self._wanted, tensor):
                self._sums.wait(tensor, count)
                continue
            self.local[tensor] = self._rounded(tensor, output, count)
            self._coarse.add(tensor)

    def _rounded(self, tensor: str, value: ir.Value, count: int) -> ir.Value:
        """A result rounded to the branch's type, as often as a sum in FP16 is if the group's gate asks for that."""
        flow, gate = self._flow, self._sums_gate
        if gate is None or count == 1:
            return flow.rounding.rounded(value, self._around, self.nodes)

        def summed(nodes: Nodes) -> ir.Value:
            sums = flow.rounding.summed(value, flow.emitter.scalar(accumulation.splitter(count)), nodes)
            return flow.rounding.rounded(sums, self._around, nodes)

        return flow.choice(gate, summed, lambda nodes: flow.rounding.rounded(value, self._around, nodes), tensor,
                           self.nodes)

    def _biased(self, layer: Layer, node: ir.Node, port: int, count: int, gate: ir.Value) -> ir.Value:
        """A sum with a bias: where the group's gate asks for sums in FP16, the bias is added behind their rounding."""
        flow, bias = self._flow, node.inputs[port]
        assert bias is not None, "a layer that has a port for a bias reads one"
        self.nodes.remove(node)

        def summed(nodes: Nodes) -> ir.Value:
            alone = flow.emitter.clone(layer, node.inputs[:port], flow.emitter.name(layer.name))
            nodes.append(alone)
            factor = flow.emitter.scalar(accumulation.splitter(count))
            return flow.rounding.biased(layer, flow.rounding.summed(alone.outputs[0], factor, nodes), bias, nodes)

        def as_it_is(nodes: Nodes) -> ir.Value:
            nodes.append(node)
            return node.outputs[0]

        return flow.choice(gate, summed, as_it_is, layer.outputs[0], self.nodes)

    def _quantized(self, value: ir.Value, tensor: str, around: Precision, codes: Sequence[Precision]) -> ir.Value:
        """An activation rounded to the surrounding type, and to what its gates say of some codes."""
        flow, scale = self._flow, self._flow.inputs.scales.get((self.group.name, tensor))
        rounds, clean = around is not Precision.FP32, self._clean_gate

        def rounded(nodes: Nodes) -> ir.Value:
            if not rounds:
                return flow.emitter.add(nodes, "Identity", [value], "as_is")
            return flow.rounding.rounded(value, around, nodes)

        def coded(code: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return flow.rounding.read_as(code, source, scale, nodes)

        def as_code(code: Precision, nodes: Nodes) -> ir.Value:
            if not rounds:
                return coded(code, value, nodes)
            if clean is None:
                return coded(code, flow.rounding.rounded(value, around, nodes), nodes)
            return flow.choice(
                clean, lambda inner: coded(code, value, inner),
                lambda inner: coded(code, flow.rounding.rounded(value, around, inner), inner), tensor, nodes)

        def first_of(choices: Sequence[Precision], nodes: Nodes) -> ir.Value:
            """Of some codes what its gate says, else floats."""
            if not choices:
                return rounded(nodes)
            gate = self._gates[choices[0]]
            if gate is None or len(choices) == 1 and not self._floats and len(codes) == len(self._gates):
                return as_code(choices[0], nodes)
            return flow.choice(gate, lambda inner: as_code(choices[0], inner),
                               lambda inner: first_of(choices[1:], inner), tensor, nodes)

        return first_of(codes, self.nodes)
