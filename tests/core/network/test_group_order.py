"""Groups never wait for each other, whatever the network looks like, and are found in time linear in its size."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.core.network.test_groups import NAMES
from tests.networks import Builder, floats
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.fusion.groups import build_fusion_groups
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

SQUARE = floats("x", "n", 4)
X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def waits(network: Network) -> dict[str, set[str]]:
    """What each group and loose layer waits for; a group computes the shape arithmetic on its own tensors itself."""
    found: dict[str, set[str]] = {}
    for layer in network.layers:
        group = network.find_group(layer.name)
        unit = group.name if group else layer.name
        if unit in found:
            continue
        members = (*group.layers, *group.shape_layers) if group else (layer.name,)
        producers = {network.producer.get(t) for name in members for t in network.input_tensors(name)} - {
            None,
            *members,
        }
        owners = {name: network.find_group(name) for name in producers}
        found[unit] = {owner.name if owner else name for name, owner in owners.items()}
    return found


def assert_acyclic(network: Network) -> None:
    waiting = waits(network)
    while waiting:
        ready = [unit for unit, before in waiting.items() if not before & waiting.keys()]
        assert ready, f"a cycle among {sorted(waiting)}"
        for unit in ready:
            del waiting[unit]


def assert_gated_computes_the_network(network: Network, backend, feeds: dict[str, np.ndarray]) -> None:
    """In FP32 and, but for its rounding, in FP16; with a reference branch and without."""
    with backend.load(network.model) as runner:
        plain = runner.run(feeds)
    for reference in (False, True):
        gated = build_gated_graph(network, with_reference=reference)
        with backend.load(gated.model, low_memory=True) as runner:
            for precision, tolerance in ((Precision.FP32, 1e-5), (Precision.FP16, 1e-2)):
                config = PrecisionConfig.from_precision(precision)
                got = runner.run({**feeds, **gated.make_feed(config, {})}, list(gated.test_outputs.values()))
                for name, output in gated.test_outputs.items():
                    np.testing.assert_allclose(got[output], plain[name], rtol=tolerance, atol=tolerance)


OPERATORS = (
    "MatMul",
    "Relu",
    "Add",
    "Mul",
    "ReduceMean",
    "Sub",
    "Div",
    "Sqrt",
    "Transpose",
    "Reshape",
    "Reshape both",
    "Gather",
    "Gather shape",
    "If",
    "nested If",
    "Celu",
)


def _branch(name: str, nodes: list, tensor: str):
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None)])


def _if(b: Builder, a: str, c: str, nested: bool) -> str:
    """Reads both tensors only inside its branches; ``nested``: the second as the bare result of an If in a branch."""
    n = len(b.nodes)
    then = _branch(f"then{n}", [helper.make_node("Relu", [a], [f"then{n}"])], f"then{n}")
    otherwise = _branch(f"else{n}", [helper.make_node("Neg", [c], [f"else{n}"])], f"else{n}")
    if nested:
        deep = [
            _branch(f"{side}{n}", [helper.make_node("Abs", [tensor], [f"{side}{n}"])], f"{side}{n}")
            for side, tensor in (("deep", a), ("deeper", c))
        ]
        node = helper.make_node("If", ["flag"], [f"else{n}"], then_branch=deep[0], else_branch=deep[1])
        otherwise = _branch(f"outer{n}", [node], f"else{n}")
    return b.node("If", ["flag"], f"/{n}", then_branch=then, else_branch=otherwise)


def _add(b: Builder, operator: str, a: str, c: str) -> str:
    n = len(b.nodes)
    if operator == "MatMul":
        return b.node("MatMul", [a, b.kernel(f"w{n}", (4, 4), 4)], f"/{n}")
    if operator in ("Add", "Mul", "Sub", "Div"):
        return b.node(operator, [a, c], f"/{n}")
    if operator == "ReduceMean":
        return b.node(operator, [a], f"/{n}", axes=[-1], keepdims=1)
    if operator == "Transpose":
        return b.node(operator, [a], f"/{n}", perm=[0, 1])
    if operator == "Reshape":
        return b.node("Reshape", [a, b.node("Shape", [c], f"/{n}/shape")], f"/{n}", allowzero=0)
    if operator == "Reshape both":
        shapes = [b.node("Shape", [tensor], f"/{n}/{side}") for side, tensor in enumerate((a, c))]
        both = b.node("Max", shapes, f"/{n}")
        return b.node("Reshape", [a, both], f"/{n}")
    if operator == "Gather":
        return b.node("Gather", [a, b.node("ArgMax", [c], f"/{n}/pick", axis=-1, keepdims=0)], f"/{n}", axis=0)
    if operator == "Gather shape":
        rows = b.node("Cast", [c], f"/{n}/cast", to=TensorProto.INT64)
        return b.node("Reshape", [a, b.node("Shape", [rows], f"/{n}/shape")], f"/{n}")
    if operator in ("If", "nested If"):
        return _if(b, a, c, operator == "nested If")
    return b.node(operator, [a], f"/{n}")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0, 12), st.integers(0, 12)), min_size=2, max_size=24))
def test_random_networks_have_an_order(opened, steps):
    b = Builder()
    tensors = ["x"]
    for operator, one, other in steps:
        full = [tensors[-1 - min(index, len(tensors) - 1)] for index in (one, other)]
        result = _add(b, operator, *full)
        if operator != "ReduceMean":  # its result is one column, which only pointwise operators take
            tensors.append(result)
        else:
            tensors.append(b.node("Sub", [full[0], result], f"/{len(b.nodes)}"))
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    ends = {name for node in b.nodes for name in node.output} - {name for node in b.nodes for name in node.input}
    network = opened(b.model([SQUARE, flag], [floats(name, "n", 4) for name in sorted({tensors[-1], *ends})]))
    assert_acyclic(network)
    build_gated_graph(network)


def crossed() -> Builder:
    """Two layers, each one's result shaped like the other's."""
    b = Builder()
    a, c = (b.node("MatMul", ["x", b.kernel(f"w{name}", (4, 4), 4)], f"/{name}") for name in "ac")
    b.node("Reshape", [a, b.node("Shape", [c], "/shape_c")], "/a", output="y")
    b.node("Reshape", [c, b.node("Shape", [a], "/shape_a")], "/c", output="z")
    return b


def captured() -> Builder:
    """A copy behind a layer picks what an If chooses that captures that layer's result."""
    b = Builder()
    a = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], "/a")
    n = [helper.make_node("ArgMax", [a], [name], axis=-1, keepdims=0) for name in ("t", "e")]
    graphs = [
        helper.make_graph(
            [node], node.output[0], [], [helper.make_tensor_value_info(node.output[0], TensorProto.INT64, None)]
        )
        for node in n
    ]
    which = b.node("If", ["flag"], "/if", then_branch=graphs[0], else_branch=graphs[1])
    b.node("Gather", [a, which], "/pick", output="y")
    return b


def nested() -> Builder:
    """An If in an If captures what two layers compute."""
    b = Builder()
    a = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], "/a")
    c = b.node("Relu", [b.node("MatMul", ["x", b.kernel("v", (4, 4), 4)], "/c")], "/c")
    deep = [
        _branch(name, [helper.make_node("Identity", [tensor], [name])], name)
        for name, tensor in (("deep", a), ("deeper", c))
    ]
    node = helper.make_node("If", ["flag"], ["chosen"], then_branch=deep[0], else_branch=deep[1])
    then = _branch("then", [node], "chosen")
    otherwise = _branch("else", [helper.make_node("Neg", ["x"], ["negated"])], "negated")
    b.node("If", ["flag"], "/if", then_branch=then, else_branch=otherwise, output="y")
    return b


@pytest.mark.parametrize(
    ("build", "outputs", "groups"),
    [
        (crossed, ("y", "z"), [["MatMul"], ["MatMul", "Reshape"], ["Reshape"]]),
        (captured, ("y",), [["MatMul"], ["Gather"]]),
        (nested, ("y",), [["MatMul"], ["MatMul", "Relu"], ["If"]]),
    ],
)
def test_what_would_wait_for_itself_stays_apart(build, outputs, groups, opened, backend):
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    inputs = [SQUARE, flag] if build is not crossed else [SQUARE]
    network = opened(build().model(inputs, [floats(name, "n", 4) for name in outputs]))
    assert [[network.get_layer(name).op_type for name in group.layers] for group in network.groups] == groups
    assert_acyclic(network)
    feeds = {"x": X, "flag": np.array(True)}
    assert_gated_computes_the_network(network, backend, {info.name: feeds[info.name] for info in network.inputs})


@pytest.mark.parametrize("operator", ["Relu", "Celu"])
def test_a_shape_of_the_group_itself_is_its_own(operator, opened, backend):
    b = Builder()
    a = b.node(operator, ["x"], "/a")
    shape = b.node("Concat", [b.node("Shape", [a], "/shape", end=1), b.weight("four", np.array([4]))], "/shape", axis=0)
    b.node("Reshape", [a, shape], "/a", output="y")
    network = opened(b.model([SQUARE], [floats("y", "n", 4)]))
    (group,) = network.groups
    assert [network.get_layer(name).op_type for name in (*group.layers, *group.shape_layers)] == [
        operator,
        "Reshape",
        "Shape",
        "Concat",
    ]
    assert_gated_computes_the_network(network, backend, {"x": X})


@pytest.mark.parametrize(
    ("late", "groups"),
    [(True, [["MatMul", "Add", "Relu"], ["Reshape"]]), (False, [["MatMul"], ["Reshape"], ["Add", "Relu"]])],
)
def test_a_shape_read_inside_ends_no_group_that_nothing_waits_for(late, groups, opened, backend):
    """Where what is shaped by it is added to the group, the group would wait for that."""
    b = Builder()
    a = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], "/a")
    shaped = b.node("Reshape", ["x", b.node("Shape", [a], "/shape")], "/other", output="z")
    other = b.weight("bias", X[0]) if late else shaped
    result = b.node("Relu", [b.node("Add", [a, other], "/a")], "/a", output="y")
    if late:
        b.nodes.append(b.nodes.pop(1))  # Shape, then Reshape, stand behind the group
        b.nodes.append(b.nodes.pop(1))
    network = opened(b.model([SQUARE], [floats(name, "n", 4) for name in (result, shaped)]))
    assert [[network.get_layer(name).op_type for name in group.layers] for group in network.groups] == groups
    assert_acyclic(network)
    assert_gated_computes_the_network(network, backend, {"x": X})


def test_groups_that_wait_for_each_other_are_an_error_that_names_them(opened, monkeypatch):
    b = Builder()
    a = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], "/first", name="first")
    c = b.node("Softmax", [a], "/b", name="between")
    d = b.node("MatMul", [c, b.kernel("v", (4, 4), 4)], "/l", name="last")
    b.node("Softmax", [d], "/e", name="end", output="y")
    network = opened(b.model([SQUARE], [floats("y", "n", 4)]))
    first, between, last, end = network.groups
    joined = fusion_of(first, last)
    monkeypatch.setitem(vars(network), "groups", (joined, between, end))
    vars(network).pop("group_by_layer", None)
    with pytest.raises(TrtTuiError, match="depend on each other") as raised:
        build_gated_graph(network)
    assert "first" in raised.value.cause and "between" in raised.value.cause


def fusion_of(one, other):
    return replace(
        one,
        layers=(*one.layers, *other.layers),
        inputs=(*one.inputs, *other.inputs),
        outputs=(*one.outputs, *other.outputs),
    )


class _Looks:
    """Counts what is looked up and gone through."""

    def __init__(self) -> None:
        self.count = 0

    def at(self, kind: type, held):
        looks = self

        class Counted(kind):
            def __contains__(self, key):
                looks.count += 1
                return super().__contains__(key)

            def get(self, key, default=None):
                looks.count += 1
                return super().get(key, default)

            def __iter__(self):
                looks.count += len(self)
                return super().__iter__()

        return Counted(held)


def effort(network: Network) -> float:
    """How many look-ups finding the groups takes, for each input and output of a layer."""
    graph, looks = network.graph, _Looks()
    size = sum(len(layer.inputs) + len(layer.outputs) for layer in graph.layers)
    plain = graph.consumers, graph.readers, graph.producer, graph.static_tensors
    graph.consumers, graph.readers = (
        looks.at(dict, {name: looks.at(list, users) for name, users in one.items()})
        for one in (graph.consumers, graph.readers)
    )
    graph.producer, graph.static_tensors = looks.at(dict, graph.producer), looks.at(frozenset, graph.static_tensors)
    try:
        build_fusion_groups(graph)
    finally:
        graph.consumers, graph.readers, graph.producer, graph.static_tensors = plain
    return looks.count / size


def _dense(n: int) -> Builder:
    b = Builder()
    tensors = ["x"]
    for i in range(n):
        tensors.append(b.node("Concat", list(tensors), f"/{i}", axis=-1))
    return b


def _fan(n: int) -> Builder:
    b = Builder()
    for i in range(n):
        b.node("Mul", ["x", "x"], f"/{i}")
    return b


def _read_by_all(n: int) -> Builder:
    b = Builder()
    first = b.node("Relu", ["x"], "/first")
    for i in range(n):
        b.node("Mul", [first, first], f"/{i}")
    return b


def _picks(n: int) -> Builder:
    """Every layer's result decides what a copy takes from the first one's."""
    b = Builder()
    first = last = b.node("Relu", ["x"], "/first")
    for i in range(n):
        last = b.node("Softmax", [last], f"/{i}")
        b.node("Gather", [first, b.node("ArgMax", [last], f"/{i}", axis=-1, keepdims=0)], f"/{i}")
    return b


def _shaped(n: int) -> Builder:
    """Every layer's shape is read, by copies of all that follow."""
    b = Builder()
    last = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], "/first")
    for i in range(n):
        shape = b.node("Shape", [last], f"/{i}/shape")
        last = b.node("Reshape", [b.node("Relu", [last], f"/{i}"), shape], f"/{i}")
    return b


@pytest.mark.parametrize("build", [_dense, _fan, _read_by_all, _picks, _shaped])
def test_finding_groups_takes_time_linear_in_the_network(build, opened):
    small, large = (build(n) for n in (30, 120))
    efforts = []
    for b in (small, large):
        last = b.nodes[-1].output[0]
        efforts.append(effort(opened(b.model([SQUARE], [floats(last, None, None)]))))
    assert efforts[1] < 1.5 * efforts[0] and efforts[1] < 60, efforts


@pytest.mark.parametrize("name", NAMES)
def test_networks_have_an_order(name, named_network):
    assert_acyclic(named_network(name))


def test_tensors_of_chained_concats_share_one_set(opened):
    b = Builder()
    last = "x"
    for n in range(50):
        last = b.node("Concat", [last, "x"], f"/{n}", axis=-1)
    sets = opened(b.model([SQUARE], [floats(last, None, None)])).tensors_with_shared_range
    assert len(sets) == 51 and len({id(members) for members in sets.values()}) == 1


def test_open_sizes_have_no_name_in_common_between_branches(opened):
    """What a selection keeps may differ between them, and ONNX Runtime takes sizes of one name for the same."""
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    network = opened(captured().model([SQUARE, flag], [floats("y", "n", 4)]))
    graph = build_gated_graph(network, with_reference=True).model.graph
    shapes = [value.shape for node in graph.all_nodes() for value in node.outputs if value.shape is not None]
    assert shapes and not [shape for shape in shapes for size in shape if isinstance(getattr(size, "value", None), str)]
