"""Operators written as the function that the ONNX specification gives for them, such as Mish as Softplus, Tanh and Mul.

The result computes the same with other kernels, so an engine of it can avoid a faulty kernel or plugin.
"""

import inspect
import itertools
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
    of a node. Names that exist are left out.
    """
    if not operators:
        return model
    replaced_names = {node.outputs[0].name: node.name or "" for node in model.graph
                      if node.op_type in operators and not node.domain}
    taken_names = {node.name for node in model.graph}
    skeleton, weights = detach_big_weights(model)
    _write_default_attributes(skeleton, operators)
    written = attach_big_weights(onnx.inliner.inline_selected_functions(
        skeleton, [("", operator) for operator in operators], False, True), weights)
    unnamed: list[ir.Node] = []
    for node in written.graph:
        if not node.name:
            unnamed.append(node)
        name = replaced_names.get(node.outputs[0].name)
        if name is not None:
            free_names = (f"{name}_{number}" for number in itertools.count(1) if f"{name}_{number}" not in taken_names)
            for item, item_name in zip(unnamed, free_names, strict=False):
                item.name = item_name
            unnamed = []
    return written


def _write_default_attributes(model: onnx.ModelProto, operators: Collection[str]) -> None:
    """Writes the default attributes into the nodes of some operators.

    The inliner of onnx leaves out what a function reads from an attribute that its node does not have.
    """
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        if node.op_type in operators and node.domain in ("", "ai.onnx"):
            present = {attribute.name for attribute in node.attribute}
            for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
                if name not in present and attribute.default_value.type:
                    node.attribute.append(attribute.default_value)


def list_function_operators(model: ir.Model, operator: str) -> list[str]:
    """Returns the operators by which ONNX defines an operator, in the order of the function of its first node."""
    first = next(node for node in model.graph if node.op_type == operator and not node.domain)
    written = write_operators_as_functions(model, [operator])
    taken_names = {node.name for node in model.graph}
    names = [node.op_type for node in written.graph if node.name not in taken_names
             and (node.name or "").startswith(f"{first.name}_")]
    return [name for name in dict.fromkeys(names) if name not in ("Constant", "Identity", "Cast")]
