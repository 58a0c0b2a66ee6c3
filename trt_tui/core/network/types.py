"""Types that onnx's inference leaves open behind operators of other domains, from the operators around them."""

import functools
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from trt_tui.core.network.plugins import RUNTIME_ONLY_OPERATORS
from trt_tui.core.network.structure_check import get_onnx_schema

_INPUT_TYPED_OPERATORS = {"": RUNTIME_ONLY_OPERATORS, "com.microsoft": frozenset(
    "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DecoderMaskedMultiHeadAttention FastGelu FusedConv FusedGemm "
    "FusedMatMul FusedMatMulActivation Gelu GroupNorm GroupQueryAttention MultiHeadAttention NhwcFusedConv NhwcMaxPool "
    "PackedAttention PackedMultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization TransposeMatMul".split())}
"""Operators of ONNX Runtime, which its own optimizer writes, whose first result has the type of their first input."""


def propagate_types(model: ir.Model) -> bool:
    """Gives tensors without a type the one that the schema of an operator around them requires.

    Where a schema ties two tensors to one type, the known type of one is given to the other. Returns whether there
    was anything to give.
    """
    opset = model.graph.opset_imports.get("", 0)
    pending = {
        node: type_groups
        for node in model.graph
        if (type_groups := list(_iterate_values_of_same_type(node, opset))) and any(value.dtype is None
                                                                                    for _, values in type_groups
                                                                                    for value in values)
    }
    has_changed = False
    queue = list(pending)
    while queue:
        node = queue.pop()
        for dtype, values in pending[node]:
            known_type = dtype or next((value.dtype for value in values if value.dtype is not None), None)
            for value in values:
                if value.dtype is None and known_type is not None:
                    value.type, has_changed = ir.TensorType(known_type), True
                    neighbours = (value.producer(), *(use.node for use in value.uses()))
                    queue.extend(neighbour for neighbour in neighbours if neighbour in pending)
    return has_changed


def _iterate_values_of_same_type(node: ir.Node, opset: int) -> Iterator[tuple[ir.DataType | None, list[ir.Value]]]:
    """Tensors of a node that have one type, with that type where the operator has but one."""
    if node.op_type in _INPUT_TYPED_OPERATORS.get(node.domain, ()):
        if node.inputs and node.inputs[0] is not None:
            yield None, [node.inputs[0], node.outputs[0]]
        return
    if node.domain or not onnx.defs.has(node.op_type):
        return
    inputs, outputs, type_by_parameter = _find_type_parameters(node.op_type, opset, len(node.inputs), len(node.outputs))
    values_by_parameter: dict[str, list[ir.Value]] = {}
    for name, value in (*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True)):
        if name and value is not None:
            values_by_parameter.setdefault(name, []).append(value)
    for name, values in values_by_parameter.items():
        yield type_by_parameter.get(name), values


@functools.cache
def _find_type_parameters(operator: str, opset: int, input_count: int, output_count: int) -> tuple[
        tuple[str, ...], tuple[str, ...], dict[str, ir.DataType]]:
    """The type parameter of each input and output ("" for one that may be anything), and those that are one type."""
    schema = get_onnx_schema(operator, opset)
    allowed_types = {
        constraint.type_param_str: list(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }

    def list_type_parameters(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        type_parameters = []
        for index in range(count):
            parameter = parameters[min(index, len(parameters) - 1)]
            fits = index < len(parameters) or parameter.is_homogeneous
            kinds = allowed_types.get(parameter.type_str, [parameter.type_str])
            type_parameters.append(parameter.type_str if fits and all(kind.startswith("tensor(")
                                                                      for kind in kinds) else "")
        return tuple(type_parameters)

    type_by_parameter = {
        name: types[0]
        for name in (*list_type_parameters(schema.inputs, input_count),
                     *list_type_parameters(schema.outputs, output_count))
        if name and len(types := allowed_types.get(name, [name])) == 1
    }
    return (list_type_parameters(schema.inputs, input_count), list_type_parameters(schema.outputs, output_count),
            {name: ir.DataType[type_text.removeprefix("tensor(").removesuffix(")").upper()]
             for name, type_text in type_by_parameter.items()})
