"""Gates as data: every group is computed once, and a ``Where`` chooses between a tensor and its rounded self.

On GPUs an ``If`` waits for the host; this form has none, so that a run can be one CUDA graph. All roundings are
computed in every run, which costs more than control flow on a CPU.

Where only one float type lies below FP32, a tensor is rounded once for all groups that read it, and each reader chooses
by a gate of its own, which is true where the group that computed it or the one that reads it has that type.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trt_tui.core.lowering import accumulation, rules
from trt_tui.core.lowering.gated.bodies import Sums, emit_layers, emit_operator, rounded_later, rounds_after
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter
from trt_tui.core.lowering.gated.given import GivenBranch, Steps
from trt_tui.core.lowering.gated.inputs import GatedInputs
from trt_tui.core.lowering.gated.rounding import Rounding
from trt_tui.core.lowering.rules import LOW_FLOATS
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group, Layer
from trt_tui.core.network.naming import name_of
from trt_tui.core.precision import Precision


class DataFlow:
    """Emits groups with their gates into the main graph.

    Attributes:
        edges: For each gate of a reader, by its name, the group that computed what it reads and the group that reads.
    """

    def __init__(self, emitter: Emitter, inputs: GatedInputs, rounding: Rounding) -> None:
        self.emitter = emitter
        self.inputs = inputs
        self.rounding = rounding
        self.edges: dict[str, tuple[str, str]] = {}
        self._steps = Steps(emitter, rounding)
        self._lows = {around for forms in inputs.forms.values() for around in forms}.intersection(LOW_FLOATS)
        self._held: dict[tuple[Precision, ir.Value, ir.Value | None], ir.Value] = {}
        """By code, value and scale the value as it is read."""
        self._unrounded: dict[str, tuple[str, ir.Value, ir.Value]] = {}
        """By tensor the group that computed it, its value before it was rounded, and that rounded."""

    def group(self, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> dict[str, ir.Value]:
        """Emits a group that has gates; returns the tensors wanted of it."""
        body = _Body(self, group, scope, wanted)
        emit_layers(self.emitter, self.inputs, body)
        results = {tensor: body.local[tensor] for tensor in wanted}
        if Precision.FILE in self.inputs.forms[group.name]:
            self._or_as_given(group, scope, results)
        return results

    def _or_as_given(self, group: Group, scope: Mapping[str, ir.Value], results: dict[str, ir.Value]) -> None:
        """Lets results be those of the group as the file has it, where its gate says so."""
        given = self.emitter.network.given
        assert given is not None, "a group has this form where the file has precisions"
        branch = GivenBranch(self._steps, given, group, scope)
        emit_layers(self.emitter, self.inputs, branch)
        self.emitter.nodes.extend(branch.nodes)
        for tensor, value in results.items():
            self._unrounded.pop(tensor, None)
            if (other := branch.local[tensor]) is not value:
                results[tensor] = self.chosen(self._gate(group, Precision.FILE), other, value, tensor)

    def chosen(self, gate: ir.Value, then: ir.Value, otherwise: ir.Value, tensor: str) -> ir.Value:
        """One of two values that stand for a tensor."""
        result = self.emitter.add(self.emitter.nodes, "Where", [gate, then, otherwise], f"{tensor}/chosen")
        result.type, result.shape = otherwise.type, otherwise.shape
        return result

    def result(self, group: Group, tensor: str, value: ir.Value, count: int = 1) -> ir.Value:
        """What a group yields for a tensor: rounded to the float type of its results, a sum in FP16 ``count`` times."""
        for around in self._arounds(group):
            summed = self._summed(group, value, count) if around is Precision.FP16 and count > 1 else value
            low = self.rounding.rounded(summed, around, self.emitter.nodes)
            if len(self._lows) == 1:
                self._unrounded[tensor] = (group.name, value, low)
            value = self.chosen(self._gate(group, around), low, value, tensor)
        return value

    def biased(self, group: Group, layer: Layer, node: ir.Node, port: int, count: int) -> ir.Value:
        """A sum with a bias, which is added behind the rounding of sums in FP16."""
        value, bias = node.outputs[0], node.inputs[port]
        if bias is None or group.name not in self.inputs.sums:
            return value
        node.replace_input_with(port, None)
        result = self.rounding.biased(layer, self._summed(group, value, count), bias, self.emitter.nodes)
        result.type, result.shape = value.type, value.shape
        return result

    def _summed(self, group: Group, value: ir.Value, count: int) -> ir.Value:
        if group.name not in self.inputs.sums:
            return value
        if (group.name, count) not in self.inputs.splitters:
            factor = self.emitter.input(f"splitter/{len(self.inputs.splitters)}", ir.DataType.FLOAT)
            self.inputs.splitters[group.name, count] = factor
        return self.rounding.summed(value, self.inputs.splitters[group.name, count], self.emitter.nodes)

    def read(self, group: Group, tensor: str, value: ir.Value) -> ir.Value:
        """What a group reads of a tensor from outside: rounded to the float type of its results."""
        if tensor in self._unrounded and self._arounds(group):
            made_by, exact, low = self._unrounded[tensor]
            gate = self.emitter.input(f"edge/{len(self.edges)}", ir.DataType.BOOL)
            self.edges[name_of(gate)] = (made_by, group.name)
            return self.chosen(gate, low, exact, tensor)
        for around in self._arounds(group):
            low = self.rounding.read(value, tensor, around, self.emitter.nodes)
            value = self.chosen(self._gate(group, around), low, value, tensor)
        return value

    def quantized(self, group: Group, tensor: str, value: ir.Value, codes: Sequence[Precision]) -> ir.Value:
        """What a layer reads at a site: as codes where a gate says so."""
        exact = value
        for code in codes:
            scale = self.inputs.scales.get((group.name, tensor))
            if (known := (code, exact, scale)) not in self._held:
                self._held[known] = self.rounding.read_as(code, exact, scale, self.emitter.nodes)
            held = self._held[known]
            value = self.chosen(self.inputs.gates[group.name][code.value], held, value, tensor)
        return value

    def _gate(self, group: Group, around: Precision) -> ir.Value:
        return self.inputs.gates[group.name][around.value]

    def _arounds(self, group: Group) -> list[Precision]:
        return sorted(around for around in self.inputs.forms[group.name] if around in LOW_FLOATS)


class _Body:
    """A group's layers, each followed by what rounds its results."""

    norm: Norm | None = None

    def __init__(self, flow: DataFlow, group: Group, scope: Mapping[str, ir.Value], wanted: Sequence[str]) -> None:
        self._flow = flow
        self._network = flow.emitter.network
        self._wanted = wanted
        self._lowers = any(around in LOW_FLOATS for around in flow.inputs.forms[group.name])
        self._sites: dict[tuple[str, int], tuple[Precision, ...]] = {}
        offered = {code for codes in flow.inputs.forms[group.name].values() for code in codes}
        for code in sorted(offered.intersection(rules.READ_AS)):
            for site in rules.sites_read_as(group, code):
                place = site.layer, site.index
                self._sites[place] = (*self._sites.get(place, ()), code)
        self._prepared: dict[tuple[str, tuple[Precision, ...]], ir.Value] = {}
        self._sums = Sums(self._network)
        self._produced: set[str] = set()
        self._rounded: set[str] = set()  # tensors that have the results' precision
        self.group = group
        self.local = BranchTensors(scope)
        self.nodes = flow.emitter.nodes

    def read(self, layer: Layer, index: int, tensor: str, value: ir.Value, follows: bool) -> ir.Value:
        """The tensor rounded where it comes from outside, and quantized at a site."""
        codes = self._sites.get((layer.name, index), ())
        rounds = tensor not in self._produced and self._lowers and (
            bool(codes) or follows and not rounds_after(self._network, layer, tensor))
        if not rounds and not codes:
            return value
        if (tensor, codes) not in self._prepared:
            source = value
            if rounds:
                self._rounded.add(tensor)
                if (tensor, ()) not in self._prepared:
                    self._prepared[tensor, ()] = self._flow.read(self.group, tensor, value)
                source = self._prepared[tensor, ()]
            self._prepared[tensor, codes] = self._flow.quantized(self.group, tensor, source, codes)
        return self._prepared[tensor, codes]

    def computed(self, layer: Layer, node: ir.Node, typed: Sequence[str]) -> None:
        """Rounds a layer's results where its operator can yield values that the precision does not have."""
        self._produced.update(tensor for tensor in layer.outputs if tensor)
        if not self._lowers:
            return
        own = rules.typed_results(self._network, layer)
        if rules.keeps_precision(layer) and self._rounded.issuperset(typed):
            self._rounded.update(own)
            return
        count, outputs = self._sums.of(layer), self._outputs(layer, node)
        if (port := accumulation.bias_port(self._network, layer)) is not None:
            outputs, count = [self._flow.biased(self.group, layer, node, port, count)], 1
            self.local[layer.outputs[0]] = outputs[0]
        for tensor, output in zip(layer.outputs, outputs, strict=True):
            if tensor not in own:
                continue
            if rounded_later(self._network, self.group, self._wanted, tensor):
                self._sums.wait(tensor, count)
                continue
            self.local[tensor] = self._flow.result(self.group, tensor, output, count)
            self._rounded.add(tensor)

    def _outputs(self, layer: Layer, node: ir.Node) -> list[ir.Value]:
        """A layer's results; that of a normalisation is chosen between what its layers and what its operator yield."""
        norm = self._flow.inputs.norm(self.group.name)
        if norm is None or layer.name != norm.layers[-1]:
            return list(node.outputs)
        flow = self._flow
        whole = emit_operator(flow.emitter, flow.inputs, self, norm).outputs[0]
        gate = flow.inputs.gates[self.group.name]["operator"]
        chosen = self.local[norm.result] = flow.chosen(gate, whole, node.outputs[0], norm.result)
        return [chosen]
