"""The strongly typed network of a file that has precisions of its own: that file, less what was decided otherwise.

A group that is as in the file stays node by node what the file has: codes, scales, zero points, Casts, names. A touched
group loses its own Q/DQ and Casts and gets what the rulebook says for its new precision; what else reads a Q/DQ pair
keeps it. Where nothing is touched the file's own network comes out.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from trt_tui.core.lowering import rules
from trt_tui.core.lowering.applied import applied, hidden_note
from trt_tui.core.lowering.folds import refuse_on_given
from trt_tui.core.lowering.rules import TYPES
from trt_tui.core.lowering.typed import Typed, TypedLowering, lower_typed, opset_of
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.conversion import convert_opset, ir_version_for
from trt_tui.core.network.given import Given
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.network.refused import amend
from trt_tui.core.network.steps import LOW_FLOATS, casts, dequantizes, quantizes
from trt_tui.core.precision import UNSAFE_OPSET, Precision
from trt_tui.errors import InputError


def lower_strong(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> Typed:
    """Lowers to what a strongly typed TensorRT takes.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an INT8 layer's input has no range, or the opset cannot be raised.
    """
    given = network.given
    if given is None or not any(config.precision_of(group) is Precision.FILE for group in network.groups):
        return lower_typed(network, config, ranges)
    refuse_on_given(network, config)
    base = applied(network, config)
    typed = _Subtraction(base.network, given, config, ranges).lower()
    return replace(typed, became={**typed.became, **base.became})


class _Subtraction(TypedLowering):
    def __init__(self, network: Network, given: Given, config: PrecisionConfig, ranges: Mapping[str, float]) -> None:
        rulings = rules.rule(network, config, ranges)
        changed = [group for group in network.groups if rulings[group.name].precision is not Precision.FILE]
        opset = given.model.graph.opset_imports.get("", 0)
        needed = max(network.opset, opset_of({group.name: rulings[group.name] for group in changed}, opset)) \
            if changed else opset
        super().__init__(network, config, rulings, needed, _at(network, given, needed), casts=True)
        self.given = given
        self.touched = {name for group in changed for name in group.layers}
        self.types = {name: dtype for name, dtype in given.types.items() if dtype in LOW_FLOATS}
        self.before = dict(self.types)
        self.own: set[ir.Node] = set()
        self.nodes = {name_of_node(node): node for node in self.graph}
        self.base = {name_of_node(node): node for node in network.model_at(needed).graph}
        made = (value for node in self.graph for value in node.outputs)
        self.values = {value.name or "": value
                       for value in (*self.graph.inputs, *self.graph.initializers.values(), *made)}
        self.read = {value for value in self.values.values() if value.uses()}
        self.plain: dict[str, bool] = {}

    def lower(self) -> Typed:
        for layer in self.network.layers:
            if layer.name in self.touched:
                self._touch(layer)
            else:
                group = self.network.group_of(layer.name)
                self.became[layer.name] = "as it was" if group is None else group.label(Precision.FILE)
        if self.touched:
            self._restore_readers()
        self._mark_outputs()
        if self.touched:
            self._let_go_of_loose_readers()
            self._drop_unread()
            self.graph.sort()
        self.notes += amend(self.graph, lambda node: node not in self.own, self.types)
        if self.touched:
            self.model.ir_version = max(self.model.ir_version, ir_version_for(self.opset))
        return self.result()

    def _mark_outputs(self) -> None:
        """Makes outputs of the tensors that fusion barriers keep."""
        hidden = Barrier.subject.ordered(self.network, self.config.of(Barrier))
        for name in hidden:
            value = self._source(name)
            if not value.is_graph_output():
                self.graph.outputs.append(value)
                self._restore_output(len(self.graph.outputs) - 1, value)
        self.notes += hidden_note(hidden)

    # -- one layer ----------------------------------------------------------------------------------------------

    def _touch(self, layer: Layer) -> None:
        """Gives a layer what its group's ruling says, on tensors that no Q/DQ of the file has changed."""
        group = self.network.group_of(layer.name)
        base = self.base.get(layer.name)
        if group is None or base is None:
            self.became[layer.name] = f"part of what opset {self.opset} writes as other operators"
            return
        node = self._node_of(layer, base)
        ruling = self.rulings[group.name]
        opaque = layer.kind is Kind.OPAQUE
        around = ir.DataType.FLOAT if opaque else TYPES[ruling.around]
        sites = {site.index: (site, scale) for site, scale in ruling.scales.items() if site.layer == layer.name}
        follows, own = rules.typed_ports(base, self.opset) if not opaque else ((), ())
        if len(node.inputs) < len(layer.inputs):  # a correction gives a bias to a node that has none in the file
            node.resize_inputs(len(layer.inputs))
        for index, tensor in enumerate(layer.inputs):
            if not tensor:
                continue
            value = self._source(tensor)
            if index in sites:
                value = self._quantized(*sites[index], value, around)
            elif self.network.is_float(tensor):
                value = self._read(layer, index, value,
                                   around if not opaque and follows[index] else ir.DataType.FLOAT)
            node.replace_input_with(index, value)
        if self.opset >= UNSAFE_OPSET and layer.op_type == "Add":
            self._spread_bias(node, layer, around)
        for index, output in enumerate(node.outputs):
            if output.name and self.network.is_float(layer.outputs[index]):
                typed = not opaque and own[index]
                self._retype(output, around if typed else ir.DataType.FLOAT)
        if ruling.precision is Precision.FP16_SUMS_FP32 and layer.name in group.anchors:
            self.nodes[layer.name] = self._sum_in_fp32(node, around)
        self.became[layer.name] = self._describe(ruling.precision, around, sites)

    def _retype(self, value: ir.Value, dtype: ir.DataType) -> None:
        value.type = ir.TensorType(dtype)  # a clone shares its types with the file's network
        self.types.pop(name_of(value), None)
        if dtype is not ir.DataType.FLOAT:
            self.types[name_of(value)] = dtype

    def _node_of(self, layer: Layer, base: ir.Node) -> ir.Node:
        """The file's node of a layer, with the attributes that the FP32 network has; or that network's own, added."""
        node = self.nodes.get(layer.name)
        if layer.name not in self.given.made and node is not None and node.op_type == base.op_type:
            for name, attribute in base.attributes.items():
                if attribute.type in (ir.AttributeType.INT, ir.AttributeType.TENSOR):
                    node.attributes[name] = attribute
            return node
        return self._added(layer, base)

    def _added(self, layer: Layer, base: ir.Node) -> ir.Node:
        node = ir.Node(base.domain, base.op_type, [None] * len(layer.inputs), list(base.attributes.values()),
                       num_outputs=len(layer.outputs), name=self.names.new(layer.name),
                       metadata_props=dict(base.metadata_props))
        for name, output, original in zip(layer.outputs, node.outputs, base.outputs, strict=True):
            output.type, output.shape = original.type, original.shape
            old = self.values.get(name)
            output.name = name
            if old is not None and not dequantizes(old.producer()):  # what another operator computes now
                old.replace_all_uses_with(output)
            if old is not None:  # this, or a network output that came out of a pair
                old.name = self.names.new(f"{name}__as_in_file")
                for index, value in enumerate(self.graph.outputs):
                    if value is old:
                        self.graph.outputs[index] = output
                self.types.pop(name, None)
                if (dtype := self.before.get(name)) is not None:
                    self.types[name_of(old)] = dtype
            self.values[name] = output
        self.graph.append(node)
        self.own.add(node)
        return node

    # -- what a touched layer reads -----------------------------------------------------------------------------

    def _source(self, tensor: str) -> ir.Value:
        """The value that stands for a tensor of the FP32 network, in whatever float type it has now."""
        if tensor in self.network.constants:
            return self._constant(tensor)
        if tensor in self.values and tensor not in self.given.stands_for:
            return self.values[tensor]
        maker = self.network.producer.get(tensor)
        if maker in self.given.made and not casts(self.base[maker]):
            return self._made(self.network.layer(maker), tensor)
        return self.values[self.given.stands_for.get(tensor, tensor)]

    def _made(self, layer: Layer, tensor: str) -> ir.Value:
        """What a node makes that the FP32 network alone has, in the type of the file's tensor."""
        if tensor not in self.values:
            node = self._added(layer, self.base[layer.name])
            dtype = self.given.dtype(tensor)
            for index, name in enumerate(layer.inputs):
                node.replace_input_with(index, self._cast(self._source(name), dtype) if name else None)
            self._retype(node.outputs[0], dtype)
        return self.values[tensor]

    def _constant(self, tensor: str) -> ir.Value:
        """A constant without the file's Q/DQ: the file's own where there are none on it, else the FP32 network's.

        A constant that was taken from another network is the FP32 network's, too.
        """
        value = self.values.get(tensor)
        if value is not None and self._is_plain(value):
            return value
        key = f"constant/{tensor}"
        if key not in self.values:
            stored = self.network.value(tensor).const_value
            held = stored if stored is not None else ir.tensor(self.network.constant(tensor))
            new = ir.Value(name=self.names.new(f"{tensor}__float"), type=ir.TensorType(held.dtype),
                           shape=ir.Shape(held.shape.numpy()), const_value=held)
            self.graph.register_initializer(new)
            self.values[key] = new
        return self.values[key]

    def _is_plain(self, value: ir.Value) -> bool:
        """Whether no Q/DQ of the file stands before a constant, and nothing of it was taken from another network."""
        name = value.name or ""
        if name not in self.plain:
            node = value.producer()
            self.plain[name] = name not in self.given.replaced and (
                node is None or not (quantizes(node) or dequantizes(node)) and (
                    constant_tensor(value) is not None
                    or all(self._is_plain(one) for one in node.inputs if one is not None)))
        return self.plain[name]

    # -- what is left of the file -------------------------------------------------------------------------------

    def _restore_readers(self) -> None:
        """Gives layers that stay as in the file, and network outputs, the types that the file has."""
        outputs = list(self.graph.outputs)
        for name in self._touched_tensors():
            value, dtype = self.values[name], self.before.get(name, ir.DataType.FLOAT)
            if self.types.get(name, ir.DataType.FLOAT) is dtype:
                continue
            for use in list(value.uses()):
                if use.node not in self.own and name_of_node(use.node) not in self.touched:
                    use.node.replace_input_with(use.idx, self._cast(value, dtype))
            for index, output in enumerate(outputs):
                if output is value:
                    self._output(index, value, dtype)

    def _touched_tensors(self) -> list[str]:
        """Float results of touched layers that the file has too."""
        return [name for layer in self.network.layers if layer.name in self.touched for tensor in layer.outputs
                if tensor and self.network.is_float(tensor)
                and (name := self.given.stands_for.get(tensor, tensor)) in self.values]

    def _let_go_of_loose_readers(self) -> None:
        """Removes Q/DQ in front of layers in no group, such as Shape, where nothing else reads the pair."""
        for layer in self.network.layers:
            if self.network.group_of(layer.name) is not None or layer.name in self.given.made:
                continue
            node = self.nodes.get(layer.name)
            for index, tensor in enumerate(layer.inputs if node is not None else ()):
                value = node.inputs[index] if node is not None else None
                if node is None or value is None or not tensor or not dequantizes(value.producer()) \
                        or tensor in self.network.constants or not self.network.is_float(tensor):
                    continue
                grouped = any(self.network.group_of(name_of_node(use.node)) is not None for use in value.uses())
                if not grouped and not value.is_graph_output():
                    dtype = self.types.get(name_of(value), ir.DataType.FLOAT)
                    node.replace_input_with(index, self._cast(self._source(tensor), dtype))

    def _drop_unread(self) -> None:
        """Takes out what the file's readers have let go of."""
        waiting = [node for node in self.graph if node not in self.own]
        while waiting:
            node = waiting.pop()
            outputs = [value for value in node.outputs if value.name]
            if node.graph is None or not any(value in self.read for value in outputs) \
                    or any(value.uses() or value.is_graph_output() for value in outputs):
                continue
            makers = [value.producer() for value in node.inputs if value is not None]
            self.graph.remove(node, safe=True)
            waiting.extend(maker for maker in makers if maker is not None)
        for name, value in list(self.graph.initializers.items()):
            if value in self.read and not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]

    def _keep(self, node: ir.Node) -> None:
        super()._keep(node)
        self.own.add(node)


def _at(network: Network, given: Given, opset: int) -> ir.Model:
    """A copy of the file's network at an opset."""
    if opset <= given.model.graph.opset_imports.get("", 0):
        return given.model.clone()
    try:
        return convert_opset(given.model, opset)
    except Exception as error:
        raise InputError(f"{network.name} cannot be converted to opset {opset}", str(error),
                         getattr(error, "next_step", "") or "Give no layer a precision that needs it, or quantize the "
                         f"network at opset {opset}.") from None


def name_of_node(node: ir.Node) -> str:
    """The name of a node of an opened network."""
    return node.name or ""
