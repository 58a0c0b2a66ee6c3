"""The subgraphs of nodes, and the removal of nodes that no output depends on."""

import onnx_ir as ir


def list_subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Returns the graphs in the attributes of a node, such as the branches of an If, without those inside them."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def list_values_read_by_node(node: ir.Node) -> list[ir.Value]:
    """Returns the values that a node and its subgraphs read."""
    values = [value for value in node.inputs if value is not None]
    for graph in list_subgraphs(node):
        values.extend(value for inner in graph for value in list_values_read_by_node(inner))
        values.extend(graph.outputs)
    return values


def remove_unused_nodes(graph: ir.Graph) -> set[int]:
    """Removes the nodes on which no output depends. Returns the ids of the values that outputs and other nodes read.

    A node that stays keeps all its outputs: an operator may need an output without a reader, as Attention with a past
    needs its present.
    """
    used = {id(value) for value in graph.outputs}
    for node in reversed(graph):
        if any(id(value) in used for value in node.outputs):
            used.update(map(id, list_values_read_by_node(node)))
            continue
        for reader in (node, *(inner for subgraph in list_subgraphs(node) for inner in subgraph.all_nodes())):
            reader.resize_inputs(0)
        graph.remove(node)
    return used
