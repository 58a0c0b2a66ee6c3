"""Local functions: each call is replaced by the nodes of its function, and its name becomes their scope."""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames
from trt_tui.errors import InputError

SCOPE_KEY = "trt_tui.scope"
"""Key in ``Node.meta`` of the call path of an inlined node: the names of the calls, outermost first."""

MOST_NODES = 200_000
"""What local functions may expand to: a few lines of nested calls can stand for more nodes than memory holds."""
_DEEPEST = 100

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_functions(model: ir.Model, file: str) -> None:
    """Inlines all local functions, in place and in time linear in what comes of them.

    Args:
        model: Structure checked.
        file: The file's name, for messages.

    Raises:
        InputError: functions call each other in a circle, nest too deep, expand to too much, or want another opset.
    """
    if not model.functions:
        return
    _check_functions(model, file)
    names = FreshNames(model.graph)
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        waiting = [node for node in graph if node.op_identifier() in model.functions]
        while waiting:
            calls = []
            for call in waiting:
                calls += _expand(graph, call, model.functions[call.op_identifier()], names, model.functions)
            waiting = calls
        graphs.extend(inner for node in graph for inner in _inner_graphs(node))
    model.functions.clear()


def _inner_graphs(node: ir.Node) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attr in node.attributes.values():
        if attr.type in _GRAPHS and not attr.is_ref():
            found.extend((attr.value,) if attr.type == ir.AttributeType.GRAPH else attr.value)
    return found


# -- before anything is expanded --------------------------------------------------------------------------------------


def _check_functions(model: ir.Model, file: str) -> None:
    functions = model.functions
    called = {key: [node.op_identifier() for node in function.all_nodes() if node.op_identifier() in functions]
              for key, function in functions.items()}
    sizes = {key: sum(1 for _ in function.all_nodes()) for key, function in functions.items()}
    depths: dict[ir.OperatorIdentifier, int] = {}
    for key in _callees_first(called, file):
        depths[key] = 1 + max((depths[one] for one in called[key]), default=0)
        sizes[key] += sum(sizes[one] for one in called[key])
        opsets = functions[key].opset_imports
        for domain, version in opsets.items():
            if model.opset_imports.setdefault(domain, version) != version:
                raise InputError(f"{file} mixes opsets", f"local function {key[1]} is written for opset {version} of "
                                 f"{domain or 'ONNX'}, the network for {model.opset_imports[domain]}",
                                 "Inline its functions (onnx.inliner.inline_local_functions) and open the result.")
    calls = [node.op_identifier() for node in model.graph.all_nodes() if node.op_identifier() in functions]
    total = sum(sizes[key] for key in calls)
    if total > MOST_NODES or any(depths[key] > _DEEPEST for key in calls):
        raise InputError(f"{file} is too large once its local functions are inlined",
                         f"they expand to {total:,} nodes, {max(depths[key] for key in calls)} calls deep; at most "
                         f"{MOST_NODES:,} and {_DEEPEST} are read", "Export the network without local functions.")


def _callees_first(called: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]],
                   file: str) -> list[ir.OperatorIdentifier]:
    order: list[ir.OperatorIdentifier] = []
    done: dict[ir.OperatorIdentifier, bool] = {}  # False while those that it calls are on the way
    stack = list(called)
    while stack:
        key = stack[-1]
        if done.get(key):
            stack.pop()
        elif key in done:
            done[stack.pop()] = True
            order.append(key)
        else:
            done[key] = False
            for one in called[key]:
                if done.get(one) is False:
                    raise InputError(f"{file} has a cycle", f"local function {one[1]} calls itself",
                                     "Check the export.")
                if one not in done:
                    stack.append(one)
    return order


# -- expanding --------------------------------------------------------------------------------------------------------


def _expand(graph: ir.Graph, call: ir.Node, function: ir.Function, names: FreshNames,
            functions: dict[ir.OperatorIdentifier, ir.Function]) -> list[ir.Node]:
    """Puts a function's nodes in place of a call; returns the calls among them."""
    attributes = {**{name: attr for name, attr in function.attributes.items() if attr.value is not None},
                  **call.attributes}
    copier = _Copier(attributes, names, dict(_paired(function.inputs, call.inputs)))
    nodes = copier.nodes(function)
    own = call.meta.get(_OWN_NAME) or call.name or call.op_type
    scope = (*call.meta.get(SCOPE_KEY, ()), own)
    for node in nodes:
        node.meta[SCOPE_KEY], node.meta[_OWN_NAME] = scope, node.name or node.op_type
        node.name = f"{call.name or call.op_type}/{node.name or node.op_type}"
        for key, value in call.metadata_props.items():
            node.metadata_props.setdefault(key, value)
    results = [copier.values[output] for output in function.outputs]
    graph.insert_before(call, nodes)
    for old, new in zip(call.outputs, results, strict=False):
        _take_place(graph, old, new, names)
    graph.remove(call, safe=True)
    return [node for node in nodes if node.op_identifier() in functions]


_OWN_NAME = "trt_tui.own_name"  # a node's name in its function's body


def _paired(inner: Sequence[ir.Value], given: Sequence[ir.Value | None]) -> list[tuple[ir.Value, ir.Value | None]]:
    return list(zip(inner, (*given, *[None] * (len(inner) - len(given))), strict=True))


def _take_place(graph: ir.Graph, old: ir.Value, new: ir.Value | None, names: FreshNames) -> None:
    """Lets everything that used a call's output use what the function makes of it; graph outputs keep their names."""
    if new is None:
        raise _not_given(old)
    if old.is_graph_output():
        name, old.name = old.name, names.new(f"{old.name}__call")
        producer = new.producer()
        if producer is None or producer.graph is not graph or new.is_graph_output():
            identity = ir.Node("", "Identity", [new], name=f"{name}__output")
            graph.append(identity)
            new = identity.outputs[0]
        new.name = name
        new.shape, new.type = old.shape or new.shape, old.type or new.type
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    elif new.shape is None and old.shape is not None:
        new.shape, new.type = old.shape, new.type or old.type
    old.replace_all_uses_with(new)


def _not_given(output: ir.Value) -> InputError:
    """The error where an output of a body would be an input that its call leaves out."""
    return InputError("a local function hands on an input that was not given", f"output {output.name}",
                      "Check the export.")


class _Copier:
    """Copies nodes of a function's body; tensors that attributes hold are shared.

    Attributes:
        values: What stands for each value of the body.
    """

    def __init__(self, attributes: dict[str, ir.Attr], names: FreshNames,
                 values: dict[ir.Value, ir.Value | None]) -> None:
        self._attributes = attributes
        self._names = names
        self.values = values

    def nodes(self, body: Iterable[ir.Node]) -> list[ir.Node]:
        for node in body:  # all first: the nodes may stand unsorted
            for value in node.outputs:
                self._value(value)
        return [self._node(node) for node in body]

    def _node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self.values.get(value, value) for value in node.inputs]
        attributes = [one for one in map(self._attribute, node.attributes.values()) if one is not None]
        return ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload, name=node.name,
                       outputs=[self._standing(value) for value in node.outputs],
                       metadata_props=dict(node.metadata_props))

    def _value(self, value: ir.Value) -> ir.Value:
        copy = self.values[value] = ir.Value(
            name=self._names.new(value.name) if value.name else value.name, type=value.type, shape=value.shape,
            const_value=value.const_value)
        return copy

    def _standing(self, value: ir.Value) -> ir.Value:
        """What stands for a value of the body that has to be there."""
        found = self.values.get(value, value)
        if found is None:
            raise _not_given(value)
        return found

    def _attribute(self, attr: ir.Attr) -> ir.Attr | None:
        """The attribute, with the call's value where it stands for one; None where the call gives none."""
        if attr.ref_attr_name is not None:
            given = self._attributes.get(attr.ref_attr_name)
            if given is not None and given.type in _GRAPHS:
                raise InputError("a local function takes a graph as an attribute", f"attribute {attr.ref_attr_name}",
                                 "Inline its functions (onnx.inliner.inline_local_functions) and open the result.")
            return None if given is None else ir.Attr(attr.name, given.type, given.value)
        if attr.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attr.name, self._graph(attr.value))
        if attr.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attr.name, [self._graph(one) for one in attr.value])
        return attr

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._value(value) for value in graph.inputs]
        initializers = [self._standing(value) if value in self.values else self._value(value)
                        for value in graph.initializers.values()]
        nodes = self.nodes(graph)
        outputs = [self._standing(value) for value in graph.outputs]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name)
