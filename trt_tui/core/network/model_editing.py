"""Edits of a model's graph: unique names, reachability, subgraphs, outputs, and the inlining of local functions.

Nodes follow the naming rule of TensorRT's parser. New tensors get a counter behind the name.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import TypeVar

import onnx_ir as ir

from trt_tui.errors import InputError


def assign_node_names(graph: ir.Graph) -> None:
    """Gives every node a unique name, which is that of its layer in TensorRT's parser.

    The rule: the node's own name, else ``node_of_<first output>``; a repeated name gets ``_<n>`` appended.
    """
    taken_names: set[str] = set()
    suffix = 0
    for node in graph:
        base_name = node.name or "node_of_" + next(
            (output.name for output in node.outputs if output.name), node.op_type
        )
        name = base_name
        while name in taken_names:
            name = f"{base_name}_{suffix}"
            suffix += 1
        taken_names.add(name)
        node.name = name


def value_name(value: ir.Value) -> str:
    """Returns the name of an ONNX value. Every value that is read in an opened or lowered network has a name."""
    assert value.name is not None
    return value.name


class FreshNames:
    """A generator of tensor names that are unused in a graph and its subgraphs.

    Args:
        taken_names: Further names that must not be returned.
    """

    def __init__(self, graph: ir.Graph, taken_names: Iterable[str] = ()) -> None:
        self._taken_names: set[str | None] = {value.name for value in (*graph.inputs, *graph.initializers.values())}
        self._taken_names.update(taken_names)
        self._taken_names.update(value.name for node in graph.all_nodes() for value in node.outputs)
        for subgraph in graph.subgraphs():
            self._taken_names.update(value.name for value in (*subgraph.inputs, *subgraph.initializers.values()))
        self._counts: dict[str, int] = {}

    def make_unique_name(self, base_name: str) -> str:
        """Returns the base name if it is free, else the first free ``<base name>_<n>``, counted from 2."""
        name, count = base_name, self._counts.get(base_name, 1)
        while name in self._taken_names:
            count += 1
            name = f"{base_name}_{count}"
        self._counts[base_name] = count
        self._taken_names.add(name)
        return name


T = TypeVar("T", bound=Hashable)
V = TypeVar("V")


def collect_by_key(pairs: Iterable[tuple[T, V]]) -> dict[T, list[V]]:
    """Returns the values of pairs (key, value) by key. Keys and values are in the order of the pairs."""
    values_by_key: dict[T, list[V]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def iterate_reachable(starts: Iterable[T], find_next: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yields the start items and all items that can be reached from them, each once, in depth-first order.

    Args:
        find_next: Returns the items that follow an item.
    """
    pending = list(dict.fromkeys(starts))
    found = set(pending)
    while pending:
        item = pending.pop()
        yield item
        following = [following_item for following_item in dict.fromkeys(find_next(item)) if following_item not in found]
        found.update(following)
        pending += following


def list_subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Returns the direct subgraphs of a node, such as the branches of an If. Graphs nested inside these are left out."""
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
    """Removes the nodes that no output depends on. Returns the ids of all values that are still read.

    A kept node keeps all its outputs, because an operator may require an output without a reader. An example is the
    present of an Attention with a past.
    """
    used = {id(value) for value in graph.outputs}
    for node in reversed(graph):
        if any(id(value) in used for value in node.outputs):
            used.update(map(id, list_values_read_by_node(node)))
            continue
        remove_node(graph, node)
    return used


def remove_node(graph: ir.Graph, node: ir.Node) -> None:
    """Removes a node. Neither the node nor its subgraphs are readers of values any longer."""
    for reader in (node, *(inner for subgraph in list_subgraphs(node) for inner in subgraph.all_nodes())):
        reader.resize_inputs(0)
    graph.remove(node)


def prune_model(model: ir.Model) -> None:
    """Removes the nodes and initializers that no output depends on. Initializers that are graph inputs stay."""
    used = remove_unused_nodes(model.graph)
    for name, value in list(model.graph.initializers.items()):
        if id(value) not in used and not value.is_graph_input():
            del model.graph.initializers[name]


def add_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns a copy of the model with the named tensors as additional outputs; the model itself if no tensor is named."""
    if not tensor_names:
        return model
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.extend(values[name] for name in tensor_names)
    return model


def extract_subgraph_of_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns the part of a model that computes the named tensors. These are its only outputs."""
    return ir.Model(ir.convenience.extract(model.graph, model.graph.inputs, tensor_names), ir_version=model.ir_version)


SCOPE_KEY = "trt_tui.scope"
"""The key in ``Node.meta`` of the call path of an inlined node: the names of the calls, outermost first."""

MAX_INLINED_NODES = 200_000
"""The maximum number of nodes after inlining. A few lines of nested calls can expand to more nodes than fit in memory.
"""
_MAX_CALL_DEPTH = 100

_GRAPH_ATTRIBUTES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_functions(model: ir.Model, file_name: str) -> None:
    """Replaces all calls of local functions in a model by their nodes, in place, in linear time.

    Args:
        model: A model whose structure has been checked.
        file_name: The name of the file, for messages.

    Raises:
        InputError: the calls form a cycle, are nested too deep, expand to too many nodes, or need another opset.
    """
    if not model.functions:
        return
    _check_functions(model, file_name)
    for function in model.functions.values():
        function.graph.sort()  # a graph is copied in the order of its nodes
    fresh_names = FreshNames(model.graph)
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        pending_calls = [node for node in graph if node.op_identifier() in model.functions]
        while pending_calls:
            calls = []
            for call in pending_calls:
                calls += _inline_call(graph, call, model.functions[call.op_identifier()], fresh_names, model.functions)
            pending_calls = calls
        graphs.extend(subgraph for node in graph for subgraph in list_subgraphs(node))
    model.functions.clear()


# -- checks before the expansion --------------------------------------------------------------------------------------


def _check_functions(model: ir.Model, file_name: str) -> None:
    functions = model.functions
    callees_by_function = {
        key: [node.op_identifier() for node in function.all_nodes() if node.op_identifier() in functions]
        for key, function in functions.items()
    }
    sizes = {key: sum(1 for _ in function.all_nodes()) for key, function in functions.items()}
    depths: dict[ir.OperatorIdentifier, int] = {}
    try:
        callees_first = list(TopologicalSorter(callees_by_function).static_order())
    except CycleError as error:
        raise InputError(
            f"{file_name} has a cycle", f"local function {error.args[1][0][1]} calls itself", "Check the export."
        ) from None
    for key in callees_first:
        depths[key] = 1 + max((depths[callee] for callee in callees_by_function[key]), default=0)
        sizes[key] += sum(sizes[callee] for callee in callees_by_function[key])
        opsets = functions[key].opset_imports
        for domain, version in opsets.items():
            if model.opset_imports.setdefault(domain, version) != version:
                raise InputError(
                    f"{file_name} mixes opsets",
                    f"local function {key[1]} is written for opset {version} of "
                    f"{domain or 'ONNX'}, the network for {model.opset_imports[domain]}",
                    "Inline its functions (onnx.inliner.inline_local_functions) and open the result.",
                )
    calls = [node.op_identifier() for node in model.graph.all_nodes() if node.op_identifier() in functions]
    total = sum(sizes[key] for key in calls)
    if total > MAX_INLINED_NODES or any(depths[key] > _MAX_CALL_DEPTH for key in calls):
        raise InputError(
            f"{file_name} is too large once its local functions are inlined",
            f"they expand to {total:,} nodes, {max(depths[key] for key in calls)} calls deep; at most "
            f"{MAX_INLINED_NODES:,} and {_MAX_CALL_DEPTH} are read",
            "Export the network without local functions.",
        )


# -- expansion --------------------------------------------------------------------------------------------------------


def _inline_call(
    graph: ir.Graph,
    call: ir.Node,
    function: ir.Function,
    fresh_names: FreshNames,
    functions: dict[ir.OperatorIdentifier, ir.Function],
) -> list[ir.Node]:
    """Replaces a call by the nodes of its function; returns the calls among these nodes."""
    body = function.graph.clone()
    _replace_attribute_references(
        body,
        {**{name: attr for name, attr in function.attributes.items() if attr.value is not None}, **call.attributes},
    )
    _make_names_unique(body, fresh_names)
    arguments = dict(zip_longest(body.inputs, call.inputs))
    for parameter, argument in arguments.items():
        for use in tuple(parameter.uses()):
            use.node.replace_input_with(use.idx, argument)
    results = [arguments.get(output, output) for output in body.outputs]
    body.outputs.clear()
    nodes = list(body)
    body.remove(nodes)
    own_name = call.meta.get(_OWN_NAME_KEY) or call.name or call.op_type
    scope = (*call.meta.get(SCOPE_KEY, ()), own_name)
    for node in nodes:
        node.meta[SCOPE_KEY], node.meta[_OWN_NAME_KEY] = scope, node.name or node.op_type
        node.name = f"{call.name or call.op_type}/{node.name or node.op_type}"
        for key, value in call.metadata_props.items():
            node.metadata_props.setdefault(key, value)
    graph.insert_before(call, nodes)
    for old_value, new_value in zip(call.outputs, results, strict=False):
        _replace_call_output(graph, old_value, new_value, fresh_names)
    graph.remove(call, safe=True)
    return [node for node in nodes if node.op_identifier() in functions]


_OWN_NAME_KEY = "trt_tui.own_name"  # the name of a node in the body of its function


def _replace_call_output(
    graph: ir.Graph, old_value: ir.Value, new_value: ir.Value | None, fresh_names: FreshNames
) -> None:
    """Connects all readers of a call's output to the result of the function. Graph outputs keep their names."""
    if new_value is None:
        raise InputError(
            "a local function returns an input that is missing", f"output {old_value.name}", "Check the export."
        )
    if old_value.is_graph_output():
        name, old_value.name = old_value.name, fresh_names.make_unique_name(f"{old_value.name}__call")
        producer = new_value.producer()
        if producer is None or producer.graph is not graph or new_value.is_graph_output():
            identity = ir.Node("", "Identity", [new_value], name=f"{name}__output")
            graph.append(identity)
            new_value = identity.outputs[0]
        new_value.name = name
        new_value.shape, new_value.type = old_value.shape or new_value.shape, old_value.type or new_value.type
    elif new_value.shape is None and old_value.shape is not None:
        new_value.shape, new_value.type = old_value.shape, new_value.type or old_value.type
    ir.convenience.replace_all_uses_with(old_value, new_value, replace_graph_outputs=True)


def _replace_attribute_references(body: ir.Graph, attributes: Mapping[str, ir.Attr]) -> None:
    """Replaces references to function attributes by the values of the call, in place. Unset attributes are removed."""
    for node in body.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.ref_attr_name is None:
                continue
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                del node.attributes[name]
            elif value.type in _GRAPH_ATTRIBUTES:
                raise InputError(
                    "a local function has a graph as an attribute",
                    f"attribute {value.name}",
                    "Inline its functions (onnx.inliner.inline_local_functions) and open the result.",
                )
            else:
                node.attributes[name] = ir.Attr(name, value.type, value.value)


def _make_names_unique(body: ir.Graph, fresh_names: FreshNames) -> None:
    """Renames the tensors in the body of a function, at any depth, to names that the network does not use."""
    for graph in (body, *body.subgraphs()):
        own_values = [value for node in graph for value in node.outputs]
        if graph is not body:
            own_values = [*graph.inputs, *graph.initializers.values(), *own_values]
        for value in own_values:
            if value.name:
                value.name = fresh_names.make_unique_name(value.name)
