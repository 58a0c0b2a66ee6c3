"""trt_tui.core.engines.engine_cells: where an engine can be cut, and when a piece has the kernels of the whole."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trt_tui.core.engines.engine_cells import (
    find_different_cell,
    find_first_different_kernel,
    find_piece_boundary,
    find_suspect_kernels,
    list_engine_cells,
)
from trt_tui.core.engines.inspector import EngineReport, read_engine_report
from trt_tui.core.network.network import Network, open_network


@pytest.fixture
def network(tmp_path) -> Network:
    """Two branches of MatMul, Relu and Add with a computed constant, joined by an Add."""
    nodes = []
    for branch in "ab":
        nodes += [helper.make_node("MatMul", ["x", "w"], [f"{branch}1"], f"/{branch}/MatMul"),
                  helper.make_node("Relu", [f"{branch}1"], [f"{branch}2"], f"/{branch}/Relu"),
                  helper.make_node("Neg", ["bias"], [f"{branch}c"], f"/{branch}/Neg"),
                  helper.make_node("Add", [f"{branch}2", f"{branch}c"], [f"{branch}3"], f"/{branch}/Add")]
    nodes.append(helper.make_node("Add", ["a3", "b3"], ["y"], "/join"))
    graph = helper.make_graph(nodes, "branches", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
                              [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
                               numpy_helper.from_array(np.ones(4, np.float32), "bias")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "branches.onnx")
    return open_network(tmp_path / "branches.onnx")


def report(network: Network, *layers: tuple[str, str, str, str]) -> EngineReport:
    """An engine of layers: name, inputs, outputs, kernel."""
    return read_engine_report(json.dumps({"Layers": [
        {"Name": name, "LayerType": "gemm", "TacticName": kernel, "Metadata": "",
         **{side: [{"Name": tensor, "Dimensions": [2, 4], "Format/Datatype": "Half"} for tensor in tensors.split()]
            for side, tensors in (("Inputs", inputs), ("Outputs", outputs))}}
        for name, inputs, outputs, kernel in layers]}), network)


REGIONS = (("{ForeignNode[/a/MatMul.../a/Add]}", "x", "a3", "k1"),
           ("{ForeignNode[/b/MatMul.../b/Add]}", "x", "b3", "k2"),
           ("/join", "a3 b3", "y", "k3"))


def test_a_fused_region_has_the_layers_between_its_tensors_and_no_constants(network) -> None:
    """By its name alone, from the first to the last layer, it would have those of other branches too."""
    cells = list_engine_cells(report(network, ("{ForeignNode[/a/MatMul.../b/Relu]}", "x", "a3", "k1"), *REGIONS[1:]),
                              network)
    assert [cell.layers for cell in cells] == [("/a/MatMul", "/a/Relu", "/a/Add"), ("/b/MatMul", "/b/Relu", "/b/Add"),
                                               ("/join",)]
    assert find_piece_boundary(network, cells[0].layers) == (("x",), ("a3",))
    assert find_piece_boundary(network, (*cells[0].layers, *cells[2].layers)) == (("x", "b3"), ("y",))


def test_a_layer_in_no_kernel_belongs_to_the_one_before_it(network) -> None:
    cells = list_engine_cells(report(network, ("/a/MatMul + /a/Relu", "x", "a2", "k"), *REGIONS[1:]), network)
    assert cells[0].layers == ("/a/MatMul", "/a/Relu", "/a/Add")


def test_kernels_that_share_a_layer_are_one_cell(network) -> None:
    cells = list_engine_cells(report(network, ("/a/MatMul", "x", "t", "k"), ("/a/MatMul + /a/Relu", "t", "a2", "k"),
                                     *REGIONS[1:]), network)
    assert len(cells) == 3 and len(cells[0].signatures) == 2


def test_a_piece_differs_by_tactic_type_or_fusion(network) -> None:
    whole = list_engine_cells(report(network, *REGIONS), network)
    assert find_different_cell(whole, whole[:1]) == ""
    other = list_engine_cells(report(network, (*REGIONS[0][:3], "k9"), *REGIONS[1:]), network)
    assert find_different_cell(whole, other) == "k9 of /a/Add, /a/MatMul, /a/Relu"
    assert find_different_cell(whole, list_engine_cells(report(network, ("/a/MatMul", "x", "a1", "k1")), network))


def test_the_first_kernel_that_differs_names_both_tactics(network) -> None:
    first, second = report(network, *REGIONS), report(network, *REGIONS[:2], (*REGIONS[2][:3], "k9"))
    assert find_first_different_kernel(first, first) == ""
    assert find_first_different_kernel(first, second) == "/join: k3 and k9"


def test_suspects_are_in_all_faulty_builds_and_in_no_sound_one(network) -> None:
    first = list_engine_cells(report(network, *REGIONS), network)
    second = list_engine_cells(report(network, *REGIONS[:2], (*REGIONS[2][:3], "k9")), network)
    (suspect,) = find_suspect_kernels([first, first], [second])
    assert suspect[1] == "k3" and find_suspect_kernels([first], []) == [] == find_suspect_kernels([first], [first])
