import dataclasses
import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests import networks
from tests.networks.decoder import attention
from trt_tui.core.network.layer_tree import (
    GroupRow,
    Scope,
    UngroupedRow,
    build_scope_tree,
    find_repeated_blocks,
    iterate_rows_with_depth,
    read_scope_from_metadata,
    render_tree,
)
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.model_editing import SCOPE_KEY
from trt_tui.core.network.network import open_network


def light(name: str) -> onnx.ModelProto:
    """A light network of the ``onnx`` package as it is: its weights are nodes, and cost nothing."""
    return onnx.load(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx")


def scope_of(node: ir.Node) -> tuple[str, ...]:
    return read_scope_from_metadata(node.metadata_props, node.meta.get(SCOPE_KEY, ()))


@pytest.fixture
def opened(tmp_path):
    def open_it(model):
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        network = open_network(path)
        layers = [dataclasses.replace(layer, scope=scope_of(network.node(layer.name))) for layer in network.layers]
        return network, build_scope_tree(layers, network.groups)

    return open_it


def rows(tree: Scope) -> dict[str, object]:
    """All rows by the labels on the way to them."""
    result, above = {}, []
    for depth, row in iterate_rows_with_depth(tree):
        del above[depth:]
        above.append(row.label)
        result["|".join(above)] = row
    return result


def node(scopes: str, key: str = "pkg.torch.onnx.name_scopes") -> ir.Node:
    return ir.Node("", "Add", [], metadata_props={key: scopes})


@pytest.mark.parametrize(
    ("said", "scope"),
    [
        (node("['', 'blocks.0', 'blocks.0.attn', 'blocks.0.attn.qkv', 'linear']"), ("blocks", "0", "attn", "qkv")),
        (
            node("['', 'decoder', 'embedding.table', 'gather']"),
            ("decoder", "embedding", "table"),
        ),  # an unrelated module
        (
            node(": my.Vit/blocks.1: my.Block/blocks.1.mlp: torch.nn.Linear/linear: aten.linear.default", "namespace"),
            ("blocks", "1", "mlp"),
        ),
        (node("['_empty_nn_module_stack_from_metadata_hook', 'sym_size_int_1']"), ()),
        *((node(text), ()) for text in ("['', 'a'", "[1, 2]", "__import__('os')", "'a'", "")),
    ],
)
def test_metadata_are_read_as_paths_that_contain_each_other(said, scope):
    assert scope_of(said) == scope


def test_calls_of_inlined_functions_are_scopes_below_the_metadata():
    call = node("['', 'blocks.0', 'add']")
    call.meta[SCOPE_KEY] = ("/attention.1", "core")
    assert scope_of(call) == ("blocks", "0", "attention", "1", "core")


def test_every_group_has_one_row_and_scopes_list_what_is_below(opened):
    for model in (networks.vit(), networks.bert(), networks.small_resnet(), light("inception_v1")):
        network, tree = opened(model)
        named = [row.group.name for _, row in iterate_rows_with_depth(tree) if isinstance(row, GroupRow)]
        assert sorted(named) == sorted(group.name for group in network.groups)
        assert list(tree.groups) == named
        paths = [row.path for _, row in iterate_rows_with_depth(tree)]
        assert len(set(paths)) == len(paths)
        for _, row in iterate_rows_with_depth(tree):
            if isinstance(row, Scope):
                assert len(row.children) > 1
                assert len({child.label for child in row.children}) == len(row.children)
                assert list(row.groups) == [
                    r.group.name for _, r in iterate_rows_with_depth(row) if isinstance(r, GroupRow)
                ]


def layer(
    name: str, index: int = 0, kind: LayerKind = LayerKind.COMPUTE, scope: tuple[str, ...] = (), note: str = ""
) -> Layer:
    return Layer(name, "Op", "", index, (), (f"{name}:0",), kind, scope, refusal_reason=note)


def test_layers_in_no_group_have_rows_that_say_why():
    tree = build_scope_tree(
        [
            layer("a/loop/Loop", kind=LayerKind.OPAQUE, note="holds a subgraph"),
            layer("a/b/c", 1, LayerKind.OPAQUE),
            layer("a/b/d", 2, LayerKind.SHAPE),
        ],
        [],
    )
    found = rows(tree)
    assert isinstance(found["a|loop"], UngroupedRow) and found["a|loop"].refusal_reason == "holds a subgraph"
    assert found["1 shape and constant node folded"].layers == ("a/b/d",)


def test_dotted_names_and_numbers():
    tree = build_scope_tree(
        [
            layer("layer1.0.conv1", 0, LayerKind.OPAQUE),
            layer("layer1.0.conv2", 1, LayerKind.OPAQUE),
            layer("0.5", 2, LayerKind.OPAQUE),
            layer("//", 3, LayerKind.OPAQUE),
        ],
        [],
    )
    assert set(rows(tree)) == {"layer1/0", "layer1/0|conv1", "layer1/0|conv2", "0.5", "//"}


def test_labels_that_clash_are_told_apart():
    tree = build_scope_tree(
        [layer("a/b/x", 0, LayerKind.OPAQUE), layer("a/b", 1, LayerKind.OPAQUE), layer("a/c", 2, LayerKind.OPAQUE)], []
    )
    assert [child.label for child in rows(tree)["a"].children] == ["b", "b_1", "c"]


def test_names_deeper_than_the_recursion_limit():
    tree = build_scope_tree(
        [layer("a/" * 3000 + "x", 0, LayerKind.OPAQUE), layer("a/" * 3000 + "y", 1, LayerKind.OPAQUE)], []
    )
    assert len(rows(tree)) == 3
    deep = [layer("/".join("s" for _ in range(depth + 1)) + "/op", depth, LayerKind.OPAQUE) for depth in range(1500)]
    text = render_tree(build_scope_tree(deep, []), lambda tensor: None)
    assert len(text.splitlines()) == 1 + 2 * 1500 - 1


def test_blocks_of_vit(opened):
    _, tree = opened(networks.vit())
    matrix = find_repeated_blocks(tree)
    assert matrix.columns == ("0", "1", "2")
    assert matrix.roles == (
        "norm1",
        "attn/qkv",
        "attn/attention core/QK",
        "attn/attention core/Softmax",
        "attn/attention core/PV",
        "attn/proj",
        "norm2",
        "mlp/0",
        "mlp/2",
    )
    assert matrix.cells[1] == (("node_MatMul_12",), ("node_MatMul_36",), ("node_MatMul_56",))


def test_roles_that_a_block_lacks_are_empty_cells(opened):
    _, tree = opened(light("resnet50"))
    matrix = find_repeated_blocks(tree)
    assert matrix.roles == ("Conv", "Conv_1", "Conv_2", "Conv+Add")
    assert len(matrix.columns) == 16
    assert matrix.cells[2][:5] == (("n10",), (), (), ("n42",), ())
    assert matrix.cells[3][1] == ("n22",)


def test_networks_that_do_not_repeat_have_no_matrix(opened):
    for model in (networks.small_resnet(), networks.unet_small(), networks.mlp(), light("vgg19")):
        assert find_repeated_blocks(opened(model)[1]) is None


def test_nested_blocks(opened):
    _, tree = opened(networks.synthetic_tree(1500))
    matrix = find_repeated_blocks(tree)
    assert matrix is not None
    named = [name for row in matrix.cells for cell in row for name in cell]
    assert len(named) == len(set(named)) > 400
    assert len(set(matrix.columns)) == len(matrix.columns)


def test_text_has_operator_shape_and_reasons(opened):
    network, tree = opened(networks.with_if())
    lines = render_tree(tree, network.shape).splitlines()
    columns = "layer operator shape nodes FP16 INT8 FP8 INT4 MXFP8 NVFP4 why not".split()
    assert lines[0].split() == columns
    assert lines[1].split() == ["before", "Conv", "1×4×8×8", "1", "yes", "yes", "yes", "no", "no", "no"]
    branch = next(line for line in lines if line.strip().startswith("If"))
    assert branch.rstrip().endswith("If contains a subgraph, which stays in FP32")
    assert branch.split("If contains")[0].split()[-6:] == ["no"] * 6
    assert not any(line != line.rstrip() for line in lines)


def test_text_lists_nodes_on_request(opened):
    network, tree = opened(networks.mlp())
    assert "· /act1/Relu" not in render_tree(tree, network.shape)
    assert "  · /act1/Relu" in render_tree(tree, network.shape, show_nodes=True)


def test_any_names_give_a_tree_with_each_layer_once():
    random.seed(0)
    for _ in range(200):
        names = {"".join(random.choices("ab01./_: ", k=random.randint(1, 12))) for _ in range(20)}
        tree = build_scope_tree([layer(name, i, LayerKind.OPAQUE) for i, name in enumerate(sorted(names))], [])
        found = [row for _, row in iterate_rows_with_depth(tree)]
        assert sorted(row.layer.name for row in found if isinstance(row, UngroupedRow)) == sorted(names)
        assert len({row.path for row in found}) == len(found)


def test_attentions_of_one_scope_have_rows_of_their_own(opened):
    b = networks.Builder()
    seen = b.node("Greater", ["x", b.weight("zero", np.float32(0))], "/mask")
    x = attention(b, "x", "x", "x", seen, scope="/first")
    attention(b, x, x, x, seen, scope="/second")
    for index, one in enumerate(b.nodes):
        one.name = f"/attn/{index}"
    last = b.nodes[-1].output[0]
    _, tree = opened(b.model([networks.floats("x", 1, 4, 8, 8)], [networks.floats(last, 1, 4, 8, 8)]))
    cores = [row for row in tree.children[0].children if isinstance(row, Scope)]
    assert [core.label for core in cores] == ["attention core", "attention core_1"]
    assert all([row.label for row in core.children] == ["QK", "Softmax", "PV"] for core in cores)
