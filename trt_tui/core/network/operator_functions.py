"""Operators written as the function that the ONNX specification gives for them, such as Mish as Softplus, Tanh and Mul.

The result computes the same with other kernels, so an engine of it can avoid a faulty kernel or plugin.
"""

import inspect
from collections.abc import Collection, Iterable

import onnx
import onnx.inliner
import onnx_ir as ir

from trt_tui.core.network.opset_conversion import attach_big_weights, detach_big_weights

_HAS_FUNCTIONS_OF_OPERATORS = "inline_schema_functions" in inspect.signature(
    onnx.inliner.inline_selected_functions).parameters
"""False for onnx up to 1.18, which only inlines the functions of a file."""


def list_operators_with_function(operators: Iterable[str], opset: int) -> list[str]:
    """Returns those operators of an opset for which ONNX gives a function; none if onnx is older than 1.19."""

    def has_function(operator: str) -> bool:
        try:
            schema = onnx.defs.get_schema(operator, opset, "")
        except onnx.defs.SchemaError:
            return False
        return bool(getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False))

    return sorted({operator for operator in operators if has_function(operator)}) if _HAS_FUNCTIONS_OF_OPERATORS else []


def write_operators_as_functions(model: ir.Model, operators: Collection[str]) -> ir.Model:
    """Returns a copy of the model without these operators; the model itself if ``operators`` is empty.

    The nodes that replace a node are named ``<node>_1``, ``<node>_2`` and so on, as TensorRT's parser names the layers
    of a node.
    """
    if not operators:
        return model
    replaced_names = {node.outputs[0].name: node.name for node in model.graph
                      if node.op_type in operators and not node.domain}
    skeleton, weights = detach_big_weights(model)
    written = attach_big_weights(onnx.inliner.inline_selected_functions(
        skeleton, [("", operator) for operator in operators], False, True), weights)
    unnamed: list[ir.Node] = []
    for node in written.graph:
        if not node.name:
            unnamed.append(node)
        if node.outputs[0].name in replaced_names:
            for number, item in enumerate(unnamed, 1):
                item.name = f"{replaced_names[node.outputs[0].name]}_{number}"
            unnamed = []
    return written
