"""The inlining of local functions: the nodes of a function replace each call, and the call's name becomes their scope.
"""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.subgraphs import list_subgraphs
from trt_tui.errors import InputError

SCOPE_KEY = "trt_tui.scope"
"""The key in ``Node.meta`` of the call path of an inlined node: the names of the calls, outermost first."""

MAX_INLINED_NODES = 200_000
"""The maximum number of nodes after inlining. A few lines of nested calls can expand to more nodes than fit in memory.
"""
_MAX_CALL_DEPTH = 100

_GRAPH_ATTRIBUTES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_functions(model: ir.Model, file_name: str) -> None:
    """Inlines all local functions of a model, in place and in time linear in the number of resulting nodes.

    Args:
        model: A model whose structure has been checked.
        file_name: The name of the file, for messages.

    Raises:
        InputError: the calls form a cycle, are nested too deep, expand to too many nodes, or need another opset.
    """
    if not model.functions:
        return
    _check_functions(model, file_name)
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
        key: [node.op_identifier()
              for node in function.all_nodes()
              if node.op_identifier() in functions]
        for key, function in functions.items()
    }
    sizes = {key: sum(1 for _ in function.all_nodes()) for key, function in functions.items()}
    depths: dict[ir.OperatorIdentifier, int] = {}
    for key in _sort_callees_first(callees_by_function, file_name):
        depths[key] = 1 + max((depths[callee] for callee in callees_by_function[key]), default=0)
        sizes[key] += sum(sizes[callee] for callee in callees_by_function[key])
        opsets = functions[key].opset_imports
        for domain, version in opsets.items():
            if model.opset_imports.setdefault(domain, version) != version:
                raise InputError(
                    f"{file_name} mixes opsets", f"local function {key[1]} is written for opset {version} of "
                    f"{domain or 'ONNX'}, the network for {model.opset_imports[domain]}",
                    "Inline its functions (onnx.inliner.inline_local_functions) and open the result.")
    calls = [node.op_identifier() for node in model.graph.all_nodes() if node.op_identifier() in functions]
    total = sum(sizes[key] for key in calls)
    if total > MAX_INLINED_NODES or any(depths[key] > _MAX_CALL_DEPTH for key in calls):
        raise InputError(
            f"{file_name} is too large once its local functions are inlined",
            f"they expand to {total:,} nodes, {max(depths[key] for key in calls)} calls deep; at most "
            f"{MAX_INLINED_NODES:,} and {_MAX_CALL_DEPTH} are read", "Export the network without local functions.")


def _sort_callees_first(callees_by_function: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]],
                        file_name: str) -> list[ir.OperatorIdentifier]:
    order: list[ir.OperatorIdentifier] = []
    is_sorted: dict[ir.OperatorIdentifier, bool] = {}  # False until all functions that it calls are sorted
    stack = list(callees_by_function)
    while stack:
        key = stack[-1]
        if is_sorted.get(key):
            stack.pop()
        elif key in is_sorted:
            is_sorted[stack.pop()] = True
            order.append(key)
        else:
            is_sorted[key] = False
            for callee in callees_by_function[key]:
                if is_sorted.get(callee) is False:
                    raise InputError(f"{file_name} has a cycle", f"local function {callee[1]} calls itself",
                                     "Check the export.")
                if callee not in is_sorted:
                    stack.append(callee)
    return order


# -- expansion --------------------------------------------------------------------------------------------------------


def _inline_call(graph: ir.Graph, call: ir.Node, function: ir.Function, fresh_names: FreshNames,
                 functions: dict[ir.OperatorIdentifier, ir.Function]) -> list[ir.Node]:
    """Replaces a call by the nodes of its function; returns the calls among these nodes."""
    attributes = {**{name: attr for name, attr in function.attributes.items() if attr.value is not None},
                  **call.attributes}
    copier = _FunctionCopier(attributes, fresh_names, dict(_pair_inputs(function.inputs, call.inputs)))
    nodes = copier.copy_nodes(function)
    own_name = call.meta.get(_OWN_NAME_KEY) or call.name or call.op_type
    scope = (*call.meta.get(SCOPE_KEY, ()), own_name)
    for node in nodes:
        node.meta[SCOPE_KEY], node.meta[_OWN_NAME_KEY] = scope, node.name or node.op_type
        node.name = f"{call.name or call.op_type}/{node.name or node.op_type}"
        for key, value in call.metadata_props.items():
            node.metadata_props.setdefault(key, value)
    results = [copier.replacements[output] for output in function.outputs]
    graph.insert_before(call, nodes)
    for old_value, new_value in zip(call.outputs, results, strict=False):
        _replace_call_output(graph, old_value, new_value, fresh_names)
    graph.remove(call, safe=True)
    return [node for node in nodes if node.op_identifier() in functions]


_OWN_NAME_KEY = "trt_tui.own_name"  # the name of a node in the body of its function


def _pair_inputs(function_inputs: Sequence[ir.Value],
                 call_inputs: Sequence[ir.Value | None]) -> list[tuple[ir.Value, ir.Value | None]]:
    return list(zip(function_inputs, (*call_inputs, *[None] * (len(function_inputs) - len(call_inputs))), strict=True))


def _replace_call_output(graph: ir.Graph, old_value: ir.Value, new_value: ir.Value | None,
                         fresh_names: FreshNames) -> None:
    """Connects all readers of a call's output to the function's result; graph outputs keep their names."""
    if new_value is None:
        raise _missing_input_error(old_value)
    if old_value.is_graph_output():
        name, old_value.name = old_value.name, fresh_names.make_unique_name(f"{old_value.name}__call")
        producer = new_value.producer()
        if producer is None or producer.graph is not graph or new_value.is_graph_output():
            identity = ir.Node("", "Identity", [new_value], name=f"{name}__output")
            graph.append(identity)
            new_value = identity.outputs[0]
        new_value.name = name
        new_value.shape, new_value.type = old_value.shape or new_value.shape, old_value.type or new_value.type
        for index, output in enumerate(graph.outputs):
            if output is old_value:
                graph.outputs[index] = new_value
    elif new_value.shape is None and old_value.shape is not None:
        new_value.shape, new_value.type = old_value.shape, new_value.type or old_value.type
    old_value.replace_all_uses_with(new_value)


def _missing_input_error(output: ir.Value) -> InputError:
    return InputError("a local function returns an input that is missing", f"output {output.name}",
                      "Check the export.")


class _FunctionCopier:
    """A copier of the nodes in a function's body; tensors in attributes are shared with the original.

    Attributes:
        replacements: The new value for each value of the body; None for an omitted input.
    """

    def __init__(self, attributes: dict[str, ir.Attr], fresh_names: FreshNames,
                 replacements: dict[ir.Value, ir.Value | None]) -> None:
        self._attributes = attributes
        self._fresh_names = fresh_names
        self.replacements = replacements

    def copy_nodes(self, body_nodes: Iterable[ir.Node]) -> list[ir.Node]:
        for node in body_nodes:  # all outputs are copied first, because the nodes may be unsorted
            for value in node.outputs:
                self._copy_value(value)
        return [self._copy_node(node) for node in body_nodes]

    def _copy_node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self.replacements.get(value, value) for value in node.inputs]
        attributes = [
            attribute for attribute in map(self._copy_attribute, node.attributes.values()) if attribute is not None
        ]
        return ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload, name=node.name,
                       outputs=[self._find_replacement(value) for value in node.outputs],
                       metadata_props=dict(node.metadata_props))

    def _copy_value(self, value: ir.Value) -> ir.Value:
        copy = self.replacements[value] = ir.Value(
            name=self._fresh_names.make_unique_name(value.name) if value.name else value.name, type=value.type,
            shape=value.shape, const_value=value.const_value)
        return copy

    def _find_replacement(self, value: ir.Value) -> ir.Value:
        """Returns the new value for a value of the function's body.

        Raises:
            InputError: the value is an input that the call omits.
        """
        replacement = self.replacements.get(value, value)
        if replacement is None:
            raise _missing_input_error(value)
        return replacement

    def _copy_attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        """Copies an attribute; a reference to an attribute of the function gets the value from the call.

        Returns None if the call does not set the referenced attribute.
        """
        if attribute.ref_attr_name is not None:
            call_attribute = self._attributes.get(attribute.ref_attr_name)
            if call_attribute is not None and call_attribute.type in _GRAPH_ATTRIBUTES:
                raise InputError("a local function has a graph as an attribute",
                                 f"attribute {attribute.ref_attr_name}",
                                 "Inline its functions (onnx.inliner.inline_local_functions) and open the result.")
            return None if call_attribute is None else ir.Attr(attribute.name, call_attribute.type,
                                                               call_attribute.value)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attribute.name, self._copy_graph(attribute.value))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attribute.name, [self._copy_graph(inner_graph) for inner_graph in attribute.value])
        return attribute

    def _copy_graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._copy_value(value) for value in graph.inputs]
        initializers = [self._find_replacement(value) if value in self.replacements else self._copy_value(value)
                        for value in graph.initializers.values()]
        nodes = self.copy_nodes(graph)
        outputs = [self._find_replacement(value) for value in graph.outputs]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name)
