"""The reduction of a gated graph to one config, so that a runtime optimizes it like any network without gates."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.model_editing import list_subgraphs, remove_unused_nodes, value_name


def fix_inputs(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> None:
    """Turns inputs of a graph into constants, and replaces each ``If`` that reads one of them by the selected branch.

    The model changes in place. Nodes and constants without a reader are removed. Inputs of the network stay.

    Args:
        arrays: The values of inputs by name, such as `GatedGraph.make_feed` returns.
    """
    graph = model.graph
    fixed = {value_name(value): value for value in graph.inputs if value.name in arrays}
    _select_branches(graph, {id(value): bool(arrays[name]) for name, value in fixed.items()
                             if value.dtype == ir.DataType.BOOL and not arrays[name].ndim})
    used = remove_unused_nodes(graph)
    graph.inputs[:] = [value for value in graph.inputs if value.name not in fixed]
    for name, value in fixed.items():
        if id(value) in used:
            value.const_value = ir.tensor(np.ascontiguousarray(arrays[name]), name=name)
            value.shape = ir.Shape(arrays[name].shape)
            graph.initializers[name] = value
    for name, value in list(graph.initializers.items()):
        if id(value) not in used:
            del graph.initializers[name]


def _select_branches(graph: ir.Graph, conditions: Mapping[int, bool]) -> None:
    """Replaces each ``If`` with a known condition by the nodes of its branch, at any depth.

    Args:
        conditions: The known conditions by the id of their values.
    """
    for node in list(graph):
        condition = node.inputs[0] if node.op_type == "If" and not node.domain else None
        if condition is not None and id(condition) in conditions:
            branch = node.attributes["then_branch" if conditions[id(condition)] else "else_branch"].as_graph()
            _select_branches(branch, conditions)
            results, nodes = list(branch.outputs), list(branch)
            branch.outputs.clear()
            branch.remove(nodes)
            graph.insert_before(node, nodes)
            for output, result in zip(node.outputs, results, strict=True):
                ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
            graph.remove(node)
            continue
        for subgraph in list_subgraphs(node):
            _select_branches(subgraph, conditions)
