"""The strongly typed ONNX network: precision lives in Cast and Q/DQ nodes and nowhere else.

It is what TensorRT 10 and 11 build with strong typing and what production builds. Weights stay the FP32 initializers of
the network, shared and never copied; Cast and Q/DQ behind them are folded by TensorRT's builder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from trt_tui.core.codes import CODES
from trt_tui.core.lowering import rules
from trt_tui.core.lowering.added import Added
from trt_tui.core.lowering.applied import Applied, applied
from trt_tui.core.lowering.rules import NUMPY, TYPES, Ruling, Scale
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.conversion import ir_version_for
from trt_tui.core.network.graph import reads_shape
from trt_tui.core.network.layers import Kind, Layer, Site
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import STORED
from trt_tui.core.precision import UNSAFE_OPSET, Precision
from trt_tui.words import first_few

PRECISIONS = {dtype: precision for precision, dtype in TYPES.items()}
"""The precision that a float type of ONNX stands for."""


QUANTIZED_WEIGHT, DEQUANTIZED = "_quantized", "_DequantizeLinear_Output"
"""Endings of the tensors behind Q of a weight and DQ of an activation, by which ONNX Runtime's ``qdq_loss_debug`` finds
the tensor of the FP32 network."""

_GEMM_RANK, _ZERO, _BIAS = 2, 2, 2
_FIRST = "first_axes_"


@dataclass(frozen=True)
class Typed:
    """A typed network.

    Attributes:
        model: The network; its weights are the base network's own tensors.
        became: What each layer became, in words, by layer name; "as it was" for what computes no float.
        left_alone: Why a layer did not get the precision it was asked for, by layer name.
        notes: What holds for the network as a whole.
    """

    model: ir.Model
    became: Mapping[str, str]
    left_alone: Mapping[str, str]
    notes: tuple[str, ...] = ()


def lower_typed(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> Typed:
    """Lowers to a strongly typed network.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an input of a layer that reads codes has no range, or the opset cannot be raised.
    """
    return lower_applied(applied(network, config), config, ranges)


def lower_applied(base: Applied, config: PrecisionConfig, ranges: Mapping[str, float], *, casts: bool = True) -> Typed:
    """`lower_typed` from a network that has what the config changes of it.

    Args:
        casts: False leaves every tensor in FP32, for a release that is told float precisions layer by layer; masks
            that FP16 layers read are clamped all the same, and scales are in FP32.
    """
    network = base.network
    rulings = rules.rule(network, config, ranges, casts=casts)
    opset = opset_of(rulings, network.opset, casts=casts)
    model = network.model_at(opset).clone()
    typed = TypedLowering(network, config, rulings, opset, model, casts=casts).lower()
    return replace(typed, became={**typed.became, **base.became}, notes=(*typed.notes, *base.notes))


def opset_of(rulings: Mapping[str, Ruling], least: int, *, casts: bool = True) -> int:
    """The opset that holds what rulings ask for."""
    floats = {ruling.around for ruling in rulings.values()} if casts else ()
    codes = {scale.code.precision for ruling in rulings.values() for scale in ruling.scales.values()}
    return max(rules.opset_for(floats, codes), least)


class TypedLowering(Added):
    """One lowering.

    Args:
        rulings: From `rules.rule`.
        model: What is changed, at ``opset``.
        casts: As `lower_applied` has it.
    """

    def __init__(self, network: Network, config: PrecisionConfig, rulings: Mapping[str, Ruling], opset: int,
                 model: ir.Model, *, casts: bool) -> None:
        super().__init__(model.graph)
        self.network = network
        self.config = config
        self.casts = casts
        self.rulings = rulings
        self.opset = opset
        self.model = model
        self.cast_cache: dict[tuple[str, ir.DataType], ir.Value] = {}
        self.qdq_cache: dict[tuple[object, ...], ir.Value] = {}
        self.became: dict[str, str] = {}
        self.notes: list[str] = []
        self._let_go: list[str] = []  # constants that stand there in another form

    def lower(self) -> Typed:
        """The typed network."""
        by_name = {node.name: node for node in self.graph}
        outputs = list(self.graph.outputs)
        for layer in self.network.layers:
            node = by_name.get(layer.name)
            if node is not None:
                self._lower_layer(layer, node)
            else:
                self.became[layer.name] = f"part of what opset {self.opset} writes as other operators"
        for node in list(self.graph):
            if node.name is not None and not self.network.has_layer(node.name) and node.name in by_name:
                self._restore_types(node)
        for index, value in enumerate(outputs):
            self._restore_output(index, value)
        self.graph.sort()
        self.model.ir_version = max(self.network.model.ir_version, ir_version_for(self.opset))
        return self.result()

    def result(self) -> Typed:
        """What the model has become."""
        self._drop_replaced()
        whole = [layer.name for layer in self.network.layers if layer.op_type == "Attention" and not layer.domain
                 and (group := self.network.group_of(layer.name)) is not None
                 and self.rulings[group.name].around is Precision.FP32]
        if whole:
            self.notes.append(f"Attention in FP32 ({first_few(whole, most=2)}): TensorRT has kernels for it in 16 bits "
                              "alone. Engines built here compute it in several layers; another builder does so where "
                              "the node has TRT_decomposable=1, an attribute that ONNX Runtime does not take.")
        self.notes += [one.text for one in rules.raised_scales(self.network, self.rulings)]
        left = {name: reason for group in self.network.groups if (reason := rules.why_not(group, self.config))
                for name in group.layers}
        return Typed(self.model, self.became, left, tuple(self.notes))

    # -- one layer ----------------------------------------------------------------------------------------------

    def _lower_layer(self, layer: Layer, node: ir.Node) -> None:
        group = self.network.group_of(layer.name)
        if group is None or layer.kind is Kind.OPAQUE:
            if not reads_shape(layer):
                self._restore_types(node)
            self.became[layer.name] = "as it was" if group is None else Precision.FP32.label
            return
        ruling = self.rulings[group.name]
        around = TYPES[ruling.around]
        sites = {site.index: (site, scale) for site, scale in ruling.scales.items() if site.layer == layer.name}
        follows, own = rules.typed_ports(node, self.opset)
        if self.opset >= UNSAFE_OPSET and layer.op_type == "Add":
            self._spread_bias(node, layer, around)
        for index, value in enumerate(node.inputs):
            if value is None or not self._is_float(value):
                continue
            if index in sites:
                node.replace_input_with(index, self._quantized(*sites[index], value, around))
            else:
                node.replace_input_with(index, self._read(layer, index, value,
                                                          around if follows[index] else ir.DataType.FLOAT))
        if around is not ir.DataType.FLOAT and self.casts:
            for output, typed in zip(node.outputs, own, strict=True):
                if typed and output.name and self.network.is_float(output.name):
                    output.type = ir.TensorType(around)  # a clone shares its types with the base network
                    self.types[output.name] = around
        if self.casts and ruling.precision is Precision.FP16_SUMS_FP32 and layer.name in group.anchors:
            self._sum_in_fp32(node, around)
        self.became[layer.name] = self._describe(ruling.precision, around, sites)

    def _sum_in_fp32(self, node: ir.Node, around: ir.DataType) -> ir.Node:
        """Makes a product of FP16 values one of FP32 between Casts, which TensorRT builds as one kernel that reads and
        writes FP16 and sums in FP32; returns the product.

        The bias of a Gemm is added behind, in FP16: within the product, or before the Cast, it has TensorRT-RTX 1.7
        compute in FP32. So the product is rounded, and the result again; the simulation rounds the result alone, and is
        up to 3 dB better at such a layer, or more where the bias cancels much of the product.
        """
        name, result = node.name or "", node.outputs[0]
        operands = [value for value in node.inputs]
        bias = operands.pop() if node.op_type == "Gemm" and len(operands) > _BIAS else None
        factor = node.attributes.get_float("beta", 1.0)
        attributes = [attr for key, attr in node.attributes.items() if bias is None or key != "beta"]
        product = ir.Node(node.domain, node.op_type, [
            self._emit("Cast", [value], {"to": int(ir.DataType.FLOAT)}, f"{name_of(value)}__fp32", ir.DataType.FLOAT,
                       value.shape) if value is not None else None for value in operands], attributes,
            name=name, metadata_props=dict(node.metadata_props))
        summed = product.outputs[0]
        summed.name, summed.type, summed.shape = self.names.new(f"{result.name}__sum"), ir.TensorType(
            ir.DataType.FLOAT), result.shape
        node.name = self.names.new(f"{result.name}__{_short(around)}")
        self._keep(product)
        source = summed
        if bias is not None:
            source = self._emit("Cast", [summed], {"to": int(around)}, f"{result.name}__product", around, result.shape)
            if factor != 1.0:
                by = self._cast(self._initializer(np.asarray(factor, np.float32), "beta"), around)
                bias = self._emit("Mul", [bias, by], {}, f"{result.name}__bias", around, bias.shape)
        node.resize_inputs(1 if bias is None else 2)
        for index, value in enumerate([source] if bias is None else [source, bias]):
            node.replace_input_with(index, value)
        node.op_type = "Cast" if bias is None else "Add"
        node.attributes.clear()
        if bias is None:
            node.attributes["to"] = ir.AttrInt64("to", int(around))
        return product

    def _spread_bias(self, node: ir.Node, layer: Layer, around: ir.DataType) -> None:
        """Gives the bias of a MatMul of codes the rank of its result: of a bias of one dimension ONNX Runtime makes a
        Reshape and a Gemm, for which it adds a Q that it refuses itself (`UNSAFE_OPSET`)."""
        ranks = [len(self.network.shape(tensor) or ()) for tensor in (*layer.inputs, layer.outputs[0])]
        for index, value in enumerate(node.inputs):
            other = node.inputs[1 - index]
            maker = other.producer() if other is not None else None
            if value is None or ranks[index] != 1 or ranks[-1] <= _GEMM_RANK or not multiplies_codes(maker):
                continue
            stored = constant_tensor(value)
            if stored is None:
                axes = self._initializer(np.arange(ranks[-1] - 1, dtype=np.int64), f"{_FIRST}{ranks[-1] - 1}")
                shape = ir.Shape([*[1] * (ranks[-1] - 1), *(value.shape or (None,))])
                new = self._emit("Unsqueeze", [self._cast(value, around), axes], {}, f"{value.name}__spread", around,
                                 shape)
            else:
                shape = ir.Shape([*[1] * (ranks[-1] - 1), stored.shape.numpy()[0]])
                new = ir.Value(name=self.names.new(f"{value.name}__spread"), type=ir.TensorType(stored.dtype),
                               shape=shape)
                new.const_value = ir.LazyTensor(partial(_reshaped, stored, shape), dtype=stored.dtype, shape=shape,
                                                cache=True, name=new.name)
                self.graph.register_initializer(new)
                self._let_go.append(name_of(value))
            node.replace_input_with(index, new)

    def _is_float(self, value: ir.Value) -> bool:
        """Whether a tensor is FP32 in the network, or in what became of it at a higher opset."""
        name = name_of(value)
        return self.network.is_float(name) if self.network.has_tensor(name) else value.dtype is ir.DataType.FLOAT

    def _describe(self, precision: Precision, around: ir.DataType,
                  sites: Mapping[int, tuple[Site, Scale]]) -> str:
        if precision in CODES:
            if sites:
                return f"{precision.label}: Q/DQ on " + ", ".join(
                    f"input {i} ({sites[i][0].role})" for i in sorted(sites))
            return f"{_short(around).upper()}, fused behind an {precision.label} layer"
        return precision.label

    def _restore_types(self, node: ir.Node) -> None:
        """Gives a layer that stays as it is its FP32 inputs back (subgraphs that capture tensors too)."""
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in self.types:
                node.replace_input_with(index, self._cast(value, ir.DataType.FLOAT))
        for attr in node.attributes.values():
            if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                graphs = (attr.value,) if attr.type == ir.AttributeType.GRAPH else attr.value
                for graph in (nested for one in graphs for nested in (one, *one.subgraphs())):
                    for inner in graph:
                        for index, value in enumerate(inner.inputs):
                            if value is not None and value.name in self.types:
                                inner.replace_input_with(index, self._cast(value, ir.DataType.FLOAT))
                    for index, value in enumerate(graph.outputs):
                        if value.name in self.types:
                            graph.outputs[index] = self._cast(value, ir.DataType.FLOAT)

    def _restore_output(self, index: int, value: ir.Value) -> None:
        """Gives an output of the network its FP32 back; a hidden one stays in FP16, so that no Cast is computed for it.
        """
        dtype = self.types.get(name_of(value), ir.DataType.FLOAT)
        hidden = name_of(value) in self.config.of(Barrier)
        if dtype is not ir.DataType.FLOAT and not (hidden and dtype is ir.DataType.FLOAT16):
            self._output(index, value, ir.DataType.FLOAT)

    def _output(self, index: int, value: ir.Value, dtype: ir.DataType) -> None:
        """Gives a network output the type that it has to have, by a Cast that takes its name."""
        name = name_of(value)
        now = self.types.get(name, ir.DataType.FLOAT)
        value.name = self.names.new(f"{name}__{_short(now)}")
        cast = self._node("Cast", [value], {"to": int(dtype)}, f"{name}__output")
        cast.outputs[0].name = name
        cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
        self.graph.outputs[index] = cast.outputs[0]

    # -- pieces -------------------------------------------------------------------------------------------------

    def _read(self, layer: Layer, index: int, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """What a layer reads for a value, in a type: by a Cast, or as an initializer where TensorRT takes no other."""
        held = constant_tensor(value) if index in STORED.get(layer.op_type, ()) and self.casts else None
        if held is None:
            return self._cast(value, dtype)
        return self._initializer(held.numpy().astype(dtype.numpy()), f"{value.name}__{_short(dtype)}")

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = name_of(value)
        if self.types.get(name, ir.DataType.FLOAT) is dtype:
            return value
        key = (name, dtype)
        if key not in self.cast_cache:
            source = self._clamped(value, dtype)
            self.cast_cache[key] = source if not self.casts else self._emit(
                "Cast", [source], {"to": int(dtype)}, f"{name}__{_short(dtype)}", dtype, value.shape)
        return self.cast_cache[key]

    def _clamped(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value, or where it is a mask or an epsilon that the type cannot hold, the nearest that it can."""
        label, least = PRECISIONS[dtype].label, rules.lifted_to(self.network, name_of(value), PRECISIONS[dtype])
        if least is not None:
            self.notes.append(f"Constant {value.name} is 0 in {label} and is raised to {least:.2g}: it keeps a divisor "
                              "from being 0.")
            floor = self._initializer(np.asarray(least, np.float32), f"{_short(dtype)}_least")
            return self._emit("Max", [value, floor], {}, f"{value.name}__raised", ir.DataType.FLOAT, value.shape)
        limit = rules.clamped_at(self.network, name_of(value), PRECISIONS[dtype])
        if limit is None:
            return value
        self.notes.append(f"Constant {value.name} exceeds {label} and is clamped to ±{limit:.6g}.")
        low = self._initializer(np.asarray(-limit, np.float32), f"{_short(dtype)}_lowest")
        high = self._initializer(np.asarray(limit, np.float32), f"{_short(dtype)}_highest")
        return self._emit("Clip", [value, low, high], {}, f"{value.name}__clamped", ir.DataType.FLOAT, value.shape)

    def _quantized(self, site: Site, scale: Scale, value: ir.Value, around: ir.DataType) -> ir.Value:
        """Q and DQ on one input, in the type of its scale, with Casts where that is not the surrounding one."""
        key = (name_of(value), around if self.casts else ir.DataType.FLOAT, *scale.key)
        if key in self.qdq_cache:
            return self.qdq_cache[key]
        held_in = TYPES[scale.held]
        base = name_of(value)
        suffix = f"{base}__{_short(around)}" if around is not ir.DataType.FLOAT and self.casts else base
        packed = self._packed(site, scale, f"{suffix}__codes")
        if packed is None:
            value = self._cast(self._cast(value, around) if site.role != "weight" else value, held_in)
        attributes = {} if scale.axis is None else {"axis": scale.axis}
        if scale.block is not None:
            attributes["block_size"] = scale.block
        step = self._initializer(scale.values.astype(NUMPY[scale.held]), f"{suffix}__scale")
        zero = self._initializer(np.zeros(scale.values.shape, scale.code.onnx.numpy()), f"{suffix}__zero_point")
        shape, held_as = value.shape, scale.code.onnx
        weight = site.role == "weight"
        codes = packed if packed is not None else self._emit(
            "QuantizeLinear", [value, step, zero], attributes, f"{suffix}__q", held_as, shape,
            f"{base}{QUANTIZED_WEIGHT}" if weight else "")
        result = self._emit("DequantizeLinear", [codes, step, zero], attributes, f"{suffix}__dq", held_in, shape,
                            f"{base}{DEQUANTIZED}" if not weight else "")
        if held_in is not ir.DataType.FLOAT:
            self.types[name_of(result)] = held_in
        result = self._cast(result, around)
        self.qdq_cache[key] = result
        return result

    def _packed(self, site: Site, scale: Scale, name: str) -> ir.Value | None:
        """A weight as codes of 4 bits, computed when somebody reads it; None where its codes stay a QuantizeLinear's.

        Eight bits stay with the weights in FP32: TensorRT 8.6 builds no other form.
        """
        tensor = constant_tensor(self.network.value(site.tensor)) if site.role == "weight" else None
        if tensor is None or not scale.code.blocks:
            return None
        dtype, shape = scale.code.onnx, ir.Shape(tensor.shape.numpy())

        def codes() -> ir.TensorProtocol:
            array = rules.round_to(tensor.numpy().astype(np.float32), scale.held)
            return ir.Tensor(scale.code.rounded(array / scale.spread(array.shape)).astype(dtype.numpy()), dtype=dtype)

        value = ir.Value(name=self.names.new(name), type=ir.TensorType(dtype), shape=shape)
        value.const_value = ir.LazyTensor(codes, dtype=dtype, shape=shape, cache=True, name=value.name)
        self.graph.register_initializer(value)
        self._let_go.append(site.tensor)
        return value

    def _drop_replaced(self) -> None:
        """Takes out constants that nothing reads since they stand there in another form."""
        for name in self._let_go:
            value = self.graph.initializers.get(name)
            if value is not None and not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]


def multiplies_codes(node: ir.Node | None) -> bool:
    """Whether a node is a MatMul of codes of 8 bits with a sign."""
    data = node.inputs[0] if node is not None and node.op_type == "MatMul" else None
    made_by = data.producer() if data is not None else None
    if made_by is not None and made_by.op_type == "Cast" and made_by.inputs[0] is not None:
        made_by = made_by.inputs[0].producer()
    zero = made_by.inputs[2] if made_by is not None and made_by.op_type == "DequantizeLinear" \
        and len(made_by.inputs) > _ZERO else None
    return zero is not None and zero.dtype is ir.DataType.INT8


def _reshaped(stored: ir.TensorProtocol, shape: ir.Shape) -> ir.TensorProtocol:
    return ir.tensor(stored.numpy().reshape(shape.numpy()))


def _short(dtype: ir.DataType) -> str:
    return PRECISIONS[dtype].value

