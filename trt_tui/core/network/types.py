"""Types that onnx's inference leaves open behind operators of other domains, from the operators around them."""

import functools
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from trt_tui.core.network.plugins import ORT_IN_ONNX
from trt_tui.core.network.structure import known_schema

_OF_THEIR_INPUT = {"": ORT_IN_ONNX, "com.microsoft": frozenset(
    "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DecoderMaskedMultiHeadAttention FastGelu FusedConv FusedGemm "
    "FusedMatMul FusedMatMulActivation Gelu GroupNorm GroupQueryAttention MultiHeadAttention NhwcFusedConv NhwcMaxPool "
    "PackedAttention PackedMultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization TransposeMatMul".split())}
"""Operators of ONNX Runtime, which its own optimizer writes, whose first result has the type of their first input."""


def spread_types(model: ir.Model) -> bool:
    """Gives tensors without a type the one that the schema of an operator around them requires.

    Where a schema ties two tensors to one type, the known type of one is given to the other. Returns whether there
    was anything to give.
    """
    opset = model.graph.opset_imports.get("", 0)
    pending = {node: groups for node in model.graph if (groups := list(_of_one_type(node, opset)))
               and any(value.dtype is None for _, values in groups for value in values)}
    given = False
    queue = list(pending)
    while queue:
        node = queue.pop()
        for dtype, values in pending[node]:
            known = dtype or next((value.dtype for value in values if value.dtype is not None), None)
            for value in values:
                if value.dtype is None and known is not None:
                    value.type, given = ir.TensorType(known), True
                    around = (value.producer(), *(use.node for use in value.uses()))
                    queue.extend(one for one in around if one in pending)
    return given


def _of_one_type(node: ir.Node, opset: int) -> Iterator[tuple[ir.DataType | None, list[ir.Value]]]:
    """Tensors of a node that have one type, with that type where the operator has but one."""
    if node.op_type in _OF_THEIR_INPUT.get(node.domain, ()):
        if node.inputs and node.inputs[0] is not None:
            yield None, [node.inputs[0], node.outputs[0]]
        return
    if node.domain or not onnx.defs.has(node.op_type):
        return
    inputs, outputs, single = _ports(node.op_type, opset, len(node.inputs), len(node.outputs))
    together: dict[str, list[ir.Value]] = {}
    for name, value in (*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True)):
        if name and value is not None:
            together.setdefault(name, []).append(value)
    for name, values in together.items():
        yield single.get(name), values


@functools.cache
def _ports(operator: str, opset: int, inputs: int, outputs: int) -> tuple[
        tuple[str, ...], tuple[str, ...], dict[str, ir.DataType]]:
    """The type parameter of each input and output ("" for one that may be anything), and those that are one type."""
    schema = known_schema(operator, opset)
    allowed = {one.type_param_str: list(one.allowed_type_strs) for one in schema.type_constraints}

    def names(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        found = []
        for index in range(count):
            parameter = parameters[min(index, len(parameters) - 1)]
            fits = index < len(parameters) or parameter.is_homogeneous
            kinds = allowed.get(parameter.type_str, [parameter.type_str])
            found.append(parameter.type_str if fits and all(kind.startswith("tensor(") for kind in kinds) else "")
        return tuple(found)

    single = {name: kinds[0] for name in (*names(schema.inputs, inputs), *names(schema.outputs, outputs))
              if name and len(kinds := allowed.get(name, [name])) == 1}
    return (names(schema.inputs, inputs), names(schema.outputs, outputs),
            {name: ir.DataType[kind.removeprefix("tensor(").removesuffix(")").upper()]
             for name, kind in single.items()})
