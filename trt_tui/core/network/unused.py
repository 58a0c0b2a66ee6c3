"""What no output needs, taken out of models of our own; a file's network keeps every node that it shows."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def drop_unused_nodes(model: ir.Model) -> None:
    """Takes nodes and initializers out, in place."""
    RemoveUnusedNodesPass()(model)
