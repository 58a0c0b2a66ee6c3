"""Which precisions a group can take: where Q/DQ goes, what an operator takes in which release, which ranges are one."""

import functools
from collections.abc import Sequence

from trt_tui.core.codes import CODES, CodeType
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Kind, Layer, Shape, Site
from trt_tui.core.network.operators import ANCHORS, CODED, SAME_RANGE, SCATTERS, SELECTS_BY_ORDER, TENSORRT_LACKS
from trt_tui.core.network.structure import known_schema
from trt_tui.core.network.unread import sums_codes
from trt_tui.core.precision import FIRST_OPSETS, OFFERED, Precision

_LOW_FLOATS = ((Precision.FP16, "tensor(float16)"), (Precision.BF16, "tensor(bfloat16)"))


def sites(graph: LayerGraph, leader: Layer, skip: tuple[Layer, int] | None,
          operator: str) -> tuple[tuple[Site, ...], str]:
    """Where Q/DQ goes when a group runs in INT8; none, and why, where it has no INT8 form.

    Args:
        leader: The layer that gives the group its character.
        skip: Its residual Add, and the index of the input that comes from elsewhere.
        operator: What the group is called.
    """
    if leader.op_type not in ANCHORS:
        return (), f"TensorRT quantizes Conv, ConvTranspose, Gemm and MatMul only, no {operator}"
    found = []
    for index, tensor in enumerate(leader.inputs[:2]):
        if not graph.is_float(tensor):
            return (), f"the type of its input {tensor} is not FP32 or not known"
        if tensor in graph.constants:
            found.append(Site(leader.name, index, tensor, "weight", _channel_axis(graph, leader, index, tensor)))
        elif tensor in graph.static:
            return (), "its operand is shape arithmetic"
        else:
            found.append(Site(leader.name, index, tensor, "input"))
    if all(site.role == "weight" for site in found):
        return (), "both operands are constant"
    if skip is not None and leader.op_type in ("Conv", "ConvTranspose"):
        add, index = skip
        tensor = add.inputs[index]
        if graph.is_float(tensor) and tensor not in graph.static \
                and _may_equal(graph.shape(tensor), graph.shape(add.outputs[0])):
            found.append(Site(add.name, index, tensor, "skip"))
    return tuple(found), ""


def _channel_axis(graph: LayerGraph, layer: Layer, index: int, tensor: str) -> int | None:
    """Channel axis of a weight: Conv 0, ConvTranspose 1, MatMul 1, Gemm 0 or 1 by transB."""
    if index != 1:
        return None
    if layer.op_type == "Conv":
        return 0
    if layer.op_type == "ConvTranspose":
        return 1
    if layer.op_type == "Gemm":
        return 0 if graph.node(layer.name).attributes.get_int("transB", 0) else 1
    return 1 if len(graph.shape(tensor) or ()) == 2 else None


def refusals(graph: LayerGraph, layers: Sequence[Layer], leader: Layer, sites: Sequence[Site],
             no_int8: str) -> dict[Precision, str]:
    """Why a group of layers cannot run in a precision, by precision; absent where it can.

    Args:
        leader: The layer that gives the group its character.
        sites: Where Q/DQ goes.
        no_int8: Why it has no INT8 form, "" where it has one.
    """
    opaque = next((layer for layer in layers if layer.kind is Kind.OPAQUE), None)
    if opaque is not None:
        return {precision: opaque.note for precision in OFFERED if precision is not Precision.FP32}
    if why := next(filter(None, (_why_sums(graph, layer) for layer in layers)), ""):
        return {precision: why for precision in OFFERED if precision is not Precision.FP32}
    found = {}
    for precision, typename in _LOW_FLOATS:
        why = next(filter(None, (_why_not(graph, layer, precision, typename,
                                          max(FIRST_OPSETS[precision], graph.opset))
                                 for layer in layers if layer.kind is not Kind.INTEGER)), "")
        if why:
            found[precision] = why
    if not any(site.role == "input" for site in sites) or Precision.FP16 in found:
        label = Precision.FP16_SUMS_FP32.label
        found[Precision.FP16_SUMS_FP32] = found.get(
            Precision.FP16, f"{label} sums products in FP32, and {leader.op_type} has none of two float operands")
    for precision, code in CODES.items():
        if why := no_int8 or _why_not_coded(graph, leader, sites, code):
            found[precision] = why
    return found


def _why_sums(graph: LayerGraph, layer: Layer) -> str:
    """Why a layer that scales sums of codes keeps FP32; "" for any other."""
    for tensor in layer.inputs:
        cast = graph.producer.get(tensor, "")
        if cast and graph.by_name[cast].op_type == "Cast":
            maker = graph.producer.get(graph.by_name[cast].inputs[0], "")
            if maker and sums_codes(graph.node(maker)):
                return (f"it scales the INT32 sums of {graph.by_name[maker].op_type}, which lie beyond FP16; no "
                        "TensorRT runs that")
    return ""


def _why_not_coded(graph: LayerGraph, leader: Layer, sites: Sequence[Site], code: CodeType) -> str:
    """Why a layer that has an INT8 form has none in another code type; "" if it has."""
    label = code.precision.label
    if leader.op_type not in CODED[code.precision]:
        return f"TensorRT has no {label} {leader.op_type}"
    if not code.blocks:
        return ""
    weight = next((site for site in sites if site.role == "weight"), None)
    if weight is None:
        return f"{label} is for weights, and both its operands are computed"
    shape = graph.shape(weight.tensor) or ()
    if weight.axis is None or len(shape) != 2:
        return f"{label} is for a weight of two dimensions that stands on the right"
    reduced = shape[1 - weight.axis]
    if not isinstance(reduced, int) or code.block(reduced) is None:
        sizes = " or ".join(map(str, code.blocks))
        return f"its {reduced} inputs do not divide into blocks of {sizes}, which share a scale in {label}"
    return ""


def _why_not(graph: LayerGraph, layer: Layer, precision: Precision, typename: str, opset: int) -> str:
    """Why a layer cannot compute in a 16-bit type at an opset; "" if it can."""
    if layer.op_type in SELECTS_BY_ORDER:
        return f"{layer.op_type} selects by order, which rounding changes; it reads FP32"
    peepholes = layer.op_type == "LSTM" and len(layer.inputs) > 7 and layer.inputs[7]
    if layer.op_type in TENSORRT_LACKS[precision] or peepholes:
        return f"TensorRT has no {precision.label} {layer.op_type}{' with peepholes' if peepholes else ''}"
    if layer.op_type in SCATTERS and graph.node(layer.name).attributes.get_string("reduction", "none") != "none":
        return f"nothing runs a {precision.label} {layer.op_type} with a reduction"
    of_result = _inputs_like_result(layer.op_type, opset, typename)
    if of_result is None:
        return f"ONNX has no {precision.label} {layer.op_type}"
    if not any(of_result[min(i, len(of_result) - 1)] and graph.is_float(name) for i, name in enumerate(layer.inputs)):
        return f"the values of {layer.op_type} do not take the type of an input"
    return ""


@functools.cache
def _inputs_like_result(operator: str, opset: int, typename: str) -> tuple[bool, ...] | None:
    """Which inputs of an operator have the type of its result; None where the result cannot have a type."""
    schema = known_schema(operator, opset)
    produced = schema.outputs[0].type_str
    constraint = next((c for c in schema.type_constraints if c.type_param_str == produced), None)
    if constraint is None or typename not in constraint.allowed_type_strs:
        return None
    return tuple(one.type_str == produced for one in schema.inputs)


def _may_equal(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes can be the same, as far as their sizes are known."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) and 1 not in (a, b)
        for a, b in zip(one, other, strict=True))


def shared_ranges(graph: LayerGraph) -> dict[str, tuple[str, ...]]:
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

    concats: list[str] = []
    for layer in graph.layers:
        if layer.outputs[0] in graph.static or not graph.is_float(layer.outputs[0]):
            continue
        if layer.op_type == "Concat":
            concats.append(layer.outputs[0])
            for name in layer.inputs:
                if name not in graph.static:
                    join(name, layer.outputs[0])
        elif layer.op_type in SAME_RANGE:
            join(layer.inputs[0], layer.outputs[0])
    roots = {find(name) for name in concats}
    sets: dict[str, list[str]] = {}
    for name in list(parent):
        if find(name) in roots:
            sets.setdefault(find(name), []).append(name)
    return {name: together for together in map(tuple, sets.values()) for name in together if len(together) > 1}
