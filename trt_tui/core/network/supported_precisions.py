"""The precisions that a fusion group supports: its Q/DQ sites, the reasons against a precision, and shared ranges."""

import functools
from collections.abc import Sequence

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer, LayerKind, QdqSite, Shape
from trt_tui.core.network.model_file import get_onnx_schema
from trt_tui.core.network.operators import (
    ORDER_SELECTING_OPERATORS,
    PRODUCTS,
    RANGE_PRESERVING_COPIES,
    SCATTER_OPERATORS,
    UNSUPPORTED_FLOAT_TYPES,
)
from trt_tui.core.precision import ASSIGNABLE, MIN_OPSETS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, QuantizedType

_DYNAMIC_QUANTIZE_RANKS = (2, 3)
"""The numbers of dimensions of tensors that TensorRT's DynamicQuantize accepts (TensorRT 11.4, TensorRT-RTX 1.7)."""

_FOLDED_OPERATORS = frozenset("BatchNormalization Add Sub Mul Div".split())
"""Operators with constants whose values TensorRT folds into the weights and the bias of the Conv before them."""

_HALF_TYPES = ((Precision.FP16, "tensor(float16)"), (Precision.BF16, "tensor(bfloat16)"))


def find_qdq_sites(
    graph: LayerGraph, main_layer: Layer, residual_add_input: tuple[Layer, int] | None, operator: str
) -> tuple[tuple[QdqSite, ...], str]:
    """Returns the Q/DQ sites of a fusion group in INT8. If it cannot run in INT8, returns no sites and the reason.

    Args:
        main_layer: The main layer of the group.
        residual_add_input: The residual Add of the group, and the index of the input from outside the group.
        operator: The operator that the group represents.
    """
    if main_layer.op_type not in PRODUCTS:
        return (), f"TensorRT quantizes only Conv, ConvTranspose, Gemm and MatMul, not {operator}"
    qdq_sites = []
    for index, tensor in enumerate(main_layer.inputs[:2]):
        if not graph.is_fp32(tensor):
            return (), f"the type of its input {tensor} is not FP32, or unknown"
        if tensor in graph.constant_tensors:
            qdq_sites.append(
                QdqSite(main_layer.name, index, tensor, "weight", _find_channel_axis(graph, main_layer, index, tensor))
            )
        elif tensor in graph.static_tensors:
            return (), "its operand is shape arithmetic"
        else:
            qdq_sites.append(
                QdqSite(
                    main_layer.name,
                    index,
                    tensor,
                    "input",
                    reduced_axis=_find_reduced_axis(graph, main_layer, index, tensor),
                )
            )
    if all(site.role == "weight" for site in qdq_sites):
        return (), "both operands are constant"
    if residual_add_input is not None and main_layer.op_type in ("Conv", "ConvTranspose"):
        add, index = residual_add_input
        tensor = add.inputs[index]
        if (
            graph.is_fp32(tensor)
            and tensor not in graph.static_tensors
            and _can_have_equal_shapes(graph.shape(tensor), graph.shape(add.outputs[0]))
            and _is_fused_with_conv(graph, add.inputs[1 - index], main_layer)
        ):
            qdq_sites.append(QdqSite(add.name, index, tensor, "skip"))
    return tuple(qdq_sites), ""


def _is_fused_with_conv(graph: LayerGraph, tensor: str, conv: Layer) -> bool:
    """Returns True if TensorRT fuses the residual Add that reads a tensor with a Conv.

    An activation, a copy or another product between them prevents this. Q/DQ at the skip then only add kernels: with
    TensorRT 8.6, six blocks of Conv, Relu and Add took 0.39 ms with them and 0.31 ms without. If the Add reads the
    result of the Conv, they took 0.20 and 0.27 ms.
    """
    layer = graph.find_producer(tensor)
    while layer is not None and layer is not conv and layer.op_type in _FOLDED_OPERATORS:
        dynamic_inputs = [name for name in layer.inputs if name not in graph.constant_tensors]
        layer = graph.find_producer(dynamic_inputs[0]) if len(dynamic_inputs) == 1 else None
    return layer is conv


def _find_channel_axis(graph: LayerGraph, layer: Layer, index: int, tensor: str) -> int | None:
    """Returns the channel axis of a weight: Conv 0, ConvTranspose 1, MatMul 1, Gemm 0 or 1 by transB; None for other
    inputs.
    """
    axis_by_operator = {
        "Conv": 0,
        "ConvTranspose": 1,
        "Gemm": 0 if graph.node(layer.name).attributes.get_int("transB", 0) else 1,
        "MatMul": 1 if len(graph.shape(tensor) or ()) == 2 else None,
    }
    return axis_by_operator[layer.op_type] if index == 1 else None


def _find_reduced_axis(graph: LayerGraph, layer: Layer, index: int, tensor: str) -> int | None:
    """Returns the axis along which a Gemm or MatMul sums the products of an operand; None if it is unknown."""
    shape = graph.shape(tensor)
    if shape is None or layer.op_type not in ("Gemm", "MatMul"):
        return None
    transposes = (
        graph.node(layer.name).attributes.get_int(("transA", "transB")[index], 0) if layer.op_type == "Gemm" else 0
    )
    return max(len(shape) - 1 - (index != transposes), 0)


def find_precision_refusal_reasons(
    graph: LayerGraph, layers: Sequence[Layer], main_layer: Layer, qdq_sites: Sequence[QdqSite], no_int8_reason: str
) -> dict[Precision, str]:
    """Returns the precisions in which a fusion group cannot run, each with the reason.

    Args:
        main_layer: The main layer of the group.
        qdq_sites: The Q/DQ sites of the group.
        no_int8_reason: The reason why the group cannot run in INT8; "" if it can.
    """
    opaque_layer = next((layer for layer in layers if layer.kind is LayerKind.OPAQUE), None)
    if opaque_layer is not None:
        return {precision: opaque_layer.refusal_reason for precision in ASSIGNABLE if precision is not Precision.FP32}
    reasons = {}
    for precision, type_name in _HALF_TYPES:
        reason = next(
            filter(
                None,
                (
                    _float_type_reason(graph, layer, precision, type_name, max(MIN_OPSETS[precision], graph.opset))
                    for layer in layers
                    if layer.kind is not LayerKind.INTEGER
                ),
            ),
            "",
        )
        if reason:
            reasons[precision] = reason
    if not any(site.role == "input" for site in qdq_sites) or Precision.FP16 in reasons:
        label = Precision.FP16_ACC_FP32.label
        reasons[Precision.FP16_ACC_FP32] = reasons.get(
            Precision.FP16,
            f"{label} has an FP32 accumulator, and {main_layer.op_type} has no product of two float operands",
        )
    for precision, quantized_type in QUANTIZED_TYPES.items():
        if reason := no_int8_reason or _quantized_type_reason(graph, main_layer, qdq_sites, quantized_type):
            reasons[precision] = reason
    return reasons


def _quantized_type_reason(
    graph: LayerGraph, main_layer: Layer, qdq_sites: Sequence[QdqSite], quantized_type: QuantizedType
) -> str:
    """Returns the reason why a layer that supports INT8 does not support another quantized type; "" if it does."""
    label = quantized_type.precision.label
    if main_layer.op_type not in quantized_type.operators:
        return f"TensorRT has no {label} {main_layer.op_type}"
    if not quantized_type.block_sizes:
        return ""
    weight = next((site for site in qdq_sites if site.role == "weight"), None)
    if weight is None:
        return f"{label} needs a constant weight, and both operands are computed"
    shape = graph.shape(weight.tensor) or ()
    if weight.axis is None or len(shape) != 2:
        return f"{label} is for a two-dimensional weight as second operand"
    reduced_size = shape[1 - weight.axis]
    if not isinstance(reduced_size, int) or quantized_type.find_block_size(reduced_size) is None:
        sizes = " or ".join(map(str, quantized_type.block_sizes))
        return f"its {reduced_size} inputs do not divide into blocks of {sizes}, which share a scale in {label}"
    data = next((site for site in qdq_sites if site.role == "input"), None)
    rank = len(graph.shape(data.tensor) or ()) if data is not None else 0
    if quantized_type.block_scale_type and rank not in _DYNAMIC_QUANTIZE_RANKS:
        return f"TensorRT quantizes inputs of 2 or 3 dimensions to {label}, and it reads one of {rank or 'unknown'}"
    return ""


def _float_type_reason(graph: LayerGraph, layer: Layer, precision: Precision, type_name: str, opset: int) -> str:
    """Returns the reason why a layer cannot compute in a 16-bit type at an opset; "" if it can."""
    operator, label = layer.op_type, precision.label
    has_peepholes = operator == "LSTM" and len(layer.inputs) > 7 and bool(layer.inputs[7])
    reduction = graph.node(layer.name).attributes.get_string("reduction", "none")
    are_typed_like_result = _find_inputs_typed_like_result(operator, opset, type_name)
    is_typed_input = are_typed_like_result or (False,)
    rules = (
        (
            operator in ORDER_SELECTING_OPERATORS,
            f"{operator} selects by order, which rounding changes; its input stays FP32",
        ),
        (
            operator in UNSUPPORTED_FLOAT_TYPES[precision] or has_peepholes,
            f"TensorRT has no {label} {operator}{' with peepholes' if has_peepholes else ''}",
        ),
        (
            operator in SCATTER_OPERATORS and reduction != "none",
            f"nothing runs a {label} {operator} with a reduction",
        ),
        (are_typed_like_result is None, f"ONNX has no {label} {operator}"),
        (
            not any(
                is_typed_input[min(index, len(is_typed_input) - 1)] and graph.is_fp32(name)
                for index, name in enumerate(layer.inputs)
            ),
            f"the values of {operator} cannot have the type of an input",
        ),
    )
    return next((reason for applies, reason in rules if applies), "")


@functools.cache
def _find_inputs_typed_like_result(operator: str, opset: int, type_name: str) -> tuple[bool, ...] | None:
    """Returns True or False for each input of an operator: True if the input has the type of the result.

    Returns None if the result cannot have the type ``type_name``.
    """
    schema = get_onnx_schema(operator, opset)
    produced = schema.outputs[0].type_str
    constraint = next((c for c in schema.type_constraints if c.type_param_str == produced), None)
    if constraint is None or type_name not in constraint.allowed_type_strs:
        return None
    return tuple(item.type_str == produced for item in schema.inputs)


def _can_have_equal_shapes(first_shape: Shape | None, second_shape: Shape | None) -> bool:
    """Returns True unless the known sizes of two shapes differ."""
    if first_shape is None or second_shape is None:
        return True
    return len(first_shape) == len(second_shape) and all(
        first_size == second_size
        or not (isinstance(first_size, int) and isinstance(second_size, int))
        and 1 not in (first_size, second_size)
        for first_size, second_size in zip(first_shape, second_shape, strict=True)
    )


def find_tensors_with_shared_range(graph: LayerGraph) -> dict[str, tuple[str, ...]]:
    """Returns the sets of tensors that must share a scale because Concats join them, by tensor name.

    Sharing is transitive and includes copies. TensorRT runs an INT8 Concat without requantizing only if every input has
    the scale of the output.
    """
    sets: dict[str, list[str]] = {}
    concats: list[str] = []
    for layer in graph.layers:
        result = layer.outputs[0]
        if result in graph.static_tensors or not graph.is_fp32(result):
            continue
        joined = layer.inputs[:1] if layer.op_type in RANGE_PRESERVING_COPIES else ()
        if layer.op_type == "Concat":
            concats.append(result)
            joined = tuple(name for name in layer.inputs if name not in graph.static_tensors)
        for name in joined:
            smaller, larger = sorted((sets.setdefault(name, [name]), sets.setdefault(result, [result])), key=len)
            if smaller is not larger:
                larger += smaller
                sets.update(dict.fromkeys(smaller, larger))
    distinct_sets = {id(sets[concat]): sets[concat] for concat in concats}
    return {
        name: shared_tensors
        for shared_tensors in map(tuple, distinct_sets.values())
        if len(shared_tensors) > 1
        for name in shared_tensors
    }
