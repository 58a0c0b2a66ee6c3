"""trt_tui.core.engines.engine_cells: where an engine can be cut, and when a piece has the kernels of the whole."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import rtx
from trt_tui.core.engines.engine_cells import (
    find_different_cell,
    find_first_different_kernel,
    find_piece_boundary,
    find_suspect_kernels,
    list_engine_cells,
)
from trt_tui.core.engines.inspector import EngineReport, read_engine_report
from trt_tui.core.engines.layer_listing import read_layer_listing
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_outputs import add_outputs, set_boundary_types
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs.network_part import cut_network, select_moves_of_network


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


@pytest.mark.rtx("1.7")
def test_pieces_of_a_network_are_built_by_tensorrt_rtx_with_the_kernels_of_the_whole(named_network) -> None:
    """Each step of a location up to the build, for another GPU: the pieces are not executed here."""
    network, config = named_network("small_resnet"), PrecisionConfig.from_precision(Precision.FP16)
    whole = read_layer_listing(rtx.layers(lower_from_source_model(network, config, {}).model), network)
    cells = list_engine_cells(whole, network)
    types = {name: precision for layer in whole.layers
             for name, precision in zip(layer.output_tensors, layer.output_types, strict=True)}
    assert len(cells) > 5 and {name for cell in cells for name in cell.layers} >= {"/conv1/Conv", "/fc/Gemm"}
    comparable = 0
    for cell in cells:
        inputs, outputs = find_piece_boundary(network, cell.layers)
        session = onnxruntime.InferenceSession(ir.to_proto(add_outputs(network.model, [
            name for name in inputs if name in network.producer])).SerializeToString())
        feed = {"image": np.zeros((2, 3, 32, 32), np.float32)}
        values = {**feed, **dict(zip([item.name for item in session.get_outputs()], session.run(None, feed),
                                     strict=True))}
        part = cut_network(network, cell.layers, inputs, outputs, values)
        model = set_boundary_types(lower_from_source_model(part, select_moves_of_network(config, part), {}).model,
                                   {name: ir.DataType.FLOAT16 for name in (*inputs, *outputs)
                                    if types.get(name) is Precision.FP16}, True)
        built = list_engine_cells(read_layer_listing(rtx.layers(model), part), part)
        assert {name for item in built for name in item.layers} == set(cell.layers)
        different = find_different_cell(cells, built)
        comparable += not different
        assert not different or any(name in different for name in cell.layers)
    assert 0 < comparable < len(cells), "kernels at the ends of some pieces differ"


@pytest.mark.rtx("1.7")
def test_a_location_with_tensorrt_rtx_for_another_gpu_says_that_nothing_is_executed(run, mlp) -> None:
    code, _, text = run("compare", mlp.model, "--data", mlp.data, "--locate", "--backend", "tensorrt-rtx",
                        "--compute-capability", "8.9")
    assert code == 3 and "pieces of the network must be built and executed" in text
