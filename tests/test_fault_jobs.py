"""trt_tui.jobs.fault_location: wrong kernels planted in stand-ins of TensorRT are located by a command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import rtx, standins
from tests.driven import save_mlp, save_resnet
from trt_tui.core.engines.engine_cells import find_different_cell, find_piece_boundary, list_engine_cells
from trt_tui.core.engines.layer_listing import read_layer_listing
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs.network_part import cut_network, select_moves_of_network
from trt_tui.options import Options

RESNET = "8.6.1"


@pytest.fixture
def locate(command, tmp_path):
    """Runs ``compare --locate`` on a network; returns exit code, record and what was printed."""

    def run(release: str, options, *arguments: object, fault: str = "", **variables: str):
        record = tmp_path / "located.json"
        record.unlink(missing_ok=True)
        backend = ["--backend", "tensorrt-rtx"] if release.startswith("rtx") else []
        done = command(release, "compare", options.model, "--data", options.data, "--batch", 4, "--locate", "--json",
                       record, *backend, *arguments, STANDIN_FAULT=fault, STANDIN_COUNTER=str(tmp_path / "counter"),
                       **variables)
        return done.returncode, json.loads(record.read_text()) if record.exists() else {}, done.stdout + done.stderr

    return run


@pytest.fixture
def build(command, tmp_path):
    """Builds an engine in one precision; returns its file."""

    def run(release: str, options, precision: str, fault: str = "") -> Path:
        engine = tmp_path / "prod.plan"
        done = command(release, "build", options.model, "--data", options.data, "--precision", precision, "-o", engine,
                       STANDIN_FAULT=fault, STANDIN_COUNTER=str(tmp_path / "counter"))
        assert done.returncode == 0, done.stderr
        return engine

    return run


@pytest.mark.parametrize("node", ["/conv1/Conv", "/fc/Gemm", "/layer1/conv2/Conv"])
def test_a_wrong_kernel_is_found_wherever_it_is(locate, tmp_path, node) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault=f"wrong: {node}")
    assert code == 1 and record["outcome"] == "found", text
    assert node in [entry["name"] for entry in record["nodes"]] and len(record["piece"]) == 1
    assert record["errors"][0]["times"] > 4 and record["factor"] == 4 and record["builds"] > 5
    assert all(entry["result"] == "shows the fault" for entry in record["tried"][:4])


def test_an_engine_file_in_fp32_is_judged_by_what_onnx_runtime_errs(locate, build, tmp_path) -> None:
    options, fault = save_resnet(tmp_path), "wrong: /layer1/conv2/Conv"
    engine = build("8.6.1", options, "fp32", fault)
    code, record, text = locate("8.6.1", options, "--engine", engine, fault=fault)
    assert code == 1 and record["outcome"] == "found" and record["engine"] == "prod.plan", text
    assert record["errors"][0]["times"] > 1e4, "FP32 explains no more than 1e-7"
    assert "/layer1/conv2/Conv (Conv)" in text


@pytest.mark.parametrize("release", ["10.16.1", "rtx-1.7.1"])
def test_where_values_inside_an_engine_can_be_read_no_piece_is_built(locate, tmp_path, release) -> None:
    code, record, text = locate(release, save_resnet(tmp_path), "--runs", "fp16", fault="wrong: /layer2/conv1/Conv")
    assert code == 1 and record["outcome"] == "found", text
    assert "/layer2/conv1/Conv" in [entry["name"] for entry in record["nodes"]]
    assert all(entry["read"] for entry in record["tried"][4:])


@pytest.mark.parametrize(("release", "precision"), [("8.6.1", "fp32"), ("8.6.1", "fp16"), ("11.4.0", "fp16"),
                                                    ("11.4.0", "int8"), ("8.6.1", "int8")])
def test_a_sound_engine_has_no_fault(locate, build, tmp_path, release, precision) -> None:
    options = save_mlp(tmp_path)
    engine = build(release, options, precision)
    code, record, text = locate(release, options, "--engine", engine, "--max-builds", 0)
    assert code == 0 and record["outcome"] == "no fault" and len(record["tried"]) == 1 and not record["builds"], text
    assert "no FP32 values of CUDA" in record["witness"] and record["largest"] is None
    code, record, text = locate(release, options, "--engine", engine)
    assert code == 0 and record["outcome"] == "no fault" and len(record["tried"]) > 1, text
    assert record["largest"]["piece"] and "largest ratio of a part: " in text
    assert not record["largest"]["exceeds"] and record["largest"]["errors"][0]["times"] <= 4


@pytest.mark.parametrize("node", ["/layer1/conv1/Conv", "/layer1/conv2/Conv"])
def test_a_piece_that_ends_at_a_quantized_tensor_is_compared_after_dequantization(locate, tmp_path, node) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "int8", fault=f"wrong: {node}")
    assert code == 1 and node in [entry["name"] for entry in record["nodes"]], text
    assert record["errors"][0]["times"] > 4 and len(record["piece"]) <= 2
    sound = [entry["times"] for entry in record["tried"] if entry["result"] == "does not show the fault"]
    assert all(times < 2 for times in sound), "a sound piece has the error of its Q/DQ"


def test_the_marked_engine_shows_where_the_search_begins(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "--max-builds", 5,
                                fault="wrong: /layer2/conv1/Conv")
    assert code == 1 and record["outcome"] == "found" and len(record["tried"]) == 6, text
    assert [entry["marked"] for entry in record["tried"]] == [False] * 4 + [True, False]
    assert "marked engine: the first fused layer with too large an error is /layer2/conv1/Conv" in text


def test_a_timing_cache_that_tensorrt_refuses_is_not_used_again(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "--max-builds", 7,
                                fault="wrong: /layer2/conv1/Conv;other tactic: /layer2/conv1/Conv;no timing cache")
    assert code == 1 and record["outcome"] == "found" and record["timing_cache_refused"], text
    assert text.count("TensorRT does not use the timing cache") == 1
    assert record["tried"][-1]["other_kernel"] and "with other kernels: the whole engine has no " in text


def test_an_overflow_that_the_simulation_has_too_is_found_without_a_build(locate, tmp_path) -> None:
    options = save_resnet(tmp_path)
    model = onnx.load(options.model)
    node = next(node for node in model.graph.node if node.name == "/layer2/conv2/Conv")
    weight = next(item for item in model.graph.initializer if item.name == node.input[1])
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1e6), weight.name))
    onnx.save(model, options.model)
    code, record, text = locate("8.6.1", options, "--runs", "fp16", "-o", tmp_path / "report",
                                fault="nan: /layer2/conv2/Conv")
    assert code == 1 and record["outcome"] == "found" and len(record["piece"]) == 1, text
    assert "/layer2/conv2/Conv" in [entry["name"] for entry in record["nodes"]]
    assert [entry["simulated"] for entry in record["tried"]] == [False, True]
    assert "overflows the range of FP16 in the simulation as the first layer" in text
    assert record["builds"] == len(record["ways_round"]) == 1, "no barrier and no other level has a larger range"
    assert not record["ways_round"][0]["helps"], "the stand-in has NaN in each precision"
    assert record["ways_round"][0]["change"].startswith("FP32 for /layer2/conv2/Conv, ")
    assert "Wrote " in text and (tmp_path / "report" / "trtexec.sh").is_file()


def test_a_location_that_its_limits_end_tells_what_it_knows(locate, tmp_path) -> None:
    fault = "wrong: /layer1/conv2/Conv"
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "--max-seconds", 0, fault=fault)
    assert code == 1 and record["outcome"] == "unfinished" and record["limit_reached"], text
    assert len(record["tried"]) == 1 and "no smaller piece was found to show the fault" in text
    assert record["ways_round"] and all("limit of time" in way["failed"] for way in record["ways_round"])
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "--max-builds", 4, fault=fault)
    assert code == 1 and record["outcome"] == "unfinished" and "no smaller piece was found" in text, text
    assert len(record["tried"]) == 5 and "too large an error is /layer1/conv2/Conv" in text


def test_nan_that_fp64_does_not_have_is_a_fault(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault="nan: /layer1/conv1/Conv")
    assert code == 1 and record["outcome"] == "found", text
    assert record["errors"][0]["not_finite"] > 0 and record["errors"][0]["times"] is None and "NaN or Inf" in text
    assert "/layer1/conv1/Conv" in [entry["name"] for entry in record["nodes"]]


def test_a_fault_of_two_kernels_together_is_spread_over_both(locate, tmp_path) -> None:
    fault = "wrong with /conv1/Conv: /layer2/conv2/Conv"
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault=fault)
    assert code == 1 and record["outcome"] == "spread" and len(record["piece"]) == 2, text
    assert {"/conv1/Conv", "/layer2/conv2/Conv"} <= {entry["name"] for entry in record["nodes"]}
    assert "spread over 2 fused layers" in text


def test_a_fault_that_disappears_when_the_network_is_cut_is_said_to(locate, tmp_path) -> None:
    names = ("/conv1/Conv", "/layer1/conv1/Conv", "/layer1/conv2/Conv", "/layer2/conv1/Conv", "/layer2/conv2/Conv",
             "/layer2/downsample.0/Conv", "/avgpool/GlobalAveragePool", "/Flatten")
    fault = ";".join((f"wrong with {'+'.join(names)}: /fc/Gemm", *(f"other tactic: {name}" for name in names[:2])))
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault=fault)
    assert code == 1 and record["outcome"] == "vanishes", text
    assert len(record["piece"]) == record["fused_layers"] and "disappears when the network is cut" in text
    notes = [entry["note"] for entry in record["tried"] if entry["result"] == "not comparable"]
    assert notes and all("the whole engine has no kernel_" in note for note in notes)


def test_builds_that_disagree_are_not_cut(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault="flaky: /layer1/conv1/Conv")
    assert code == 1 and record["outcome"] == "unstable" and len(record["tried"]) == 4, text
    assert "unstable: the engine shows the fault; of its rebuilds 1 of 3 agree" in text and not record["ways_round"]
    (suspect,) = record["suspect_kernels"]
    assert "/layer1/conv1/Conv" in suspect and "another_kernel" in suspect and suspect in text


def test_a_spoilt_engine_whose_rebuilds_are_sound_is_the_fault_of_that_build(locate, build, tmp_path) -> None:
    options = save_resnet(tmp_path)
    engine = build("8.6.1", options, "fp16", "wrong: /layer1/conv1/Conv")
    code, record, text = locate("8.6.1", options, "--engine", engine)
    assert code == 1 and record["outcome"] == "unstable" and "0 of 3 agree" in text


def test_a_kernel_that_depends_on_the_position_in_the_batch_is_found(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault="wrong row: /layer2/conv1/Conv")
    assert code == 1 and record["outcome"] == "found", text
    assert "/layer2/conv1/Conv" in [entry["name"] for entry in record["nodes"]]
    assert "worst samples of 4: 3 (" in text


def test_a_network_with_an_operator_without_a_reference_is_not_judged(locate, tmp_path) -> None:
    options = save_mlp(tmp_path)
    model = onnx.load(options.model)
    model.graph.node[-1].output[0] = "grouped"
    model.graph.node.append(onnx.helper.make_node("Unsqueeze", ["grouped", "axis"], ["rows"], "/rows"))
    model.graph.node.append(onnx.helper.make_node("GroupNormalization", ["rows", "one", "zero"], ["normal"], "/norm",
                                                  num_groups=2))
    model.graph.node.append(onnx.helper.make_node("Squeeze", ["normal", "axis"], ["y"], "/flat"))
    for name, array in (("axis", np.array([2])), ("one", np.ones(4, np.float32)), ("zero", np.zeros(4, np.float32))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.opset_import[0].version, model.ir_version = 21, 10
    onnx.save(model, options.model)
    code, record, text = locate("11.4.0", options, "--runs", "fp16")
    assert code == 1 and record["outcome"] == "not judged" and "GroupNormalization of /norm" in text


def test_the_folder_is_a_bug_report_that_polygraphy_and_trtexec_read(locate, tmp_path) -> None:
    folder = tmp_path / "report"
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "-o", folder,
                                fault="wrong: /layer1/conv2/Conv")
    assert code == 1 and f"Wrote {folder}" in text, text
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"fp32.onnx", "typed.onnx", "inputs.json", "reference.json", "run.sh", "trtexec.sh", "report.md",
            "result.json"} <= names and "inputs/0.bin" in names
    model = onnx.load(folder / "fp32.onnx")
    assert len(model.graph.node) < 6 and [value.name for value in model.graph.input] == record["inputs"]
    written = json.loads((folder / "result.json").read_text())
    assert written["nodes"] == record["nodes"] and written["versions"]["builder"] == "TensorRT 8.6.1"
    report = (folder / "report.md").read_text()
    assert "/layer1/conv2/Conv (Conv)" in report and "4 times the error" in report and "TensorRT 8.6.1" in report
    assert "--trt --fp16" in (folder / "run.sh").read_text() and "typed.onnx --trt" not in (folder /
                                                                                         "run.sh").read_text()
    trtexec = (folder / "trtexec.sh").read_text()
    assert "--onnx=fp32.onnx" in trtexec and "--fp16" in trtexec and "inputs/0.bin" in trtexec
    assert "--noTF32" in trtexec and "--precisionConstraints=obey" in trtexec
    network = open_network(folder / "fp32.onnx")
    loaded = read_any_config(folder / "trtexec.sh", network)
    assert set(loaded.config.precision_by_group(network).values()) == {Precision.FP16}
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "polygraphy").write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'import sys; from polygraphy.tools "
                                      "import main; sys.exit(main())' \"$@\"\n")
    (tools / "polygraphy").chmod(0o755)
    for fault, exit_code in (("", 0), ("wrong: /layer1/conv2/Conv", 1)):
        environment = {**os.environ, **standins.environment("8.6.1"), "STANDIN_FAULT": fault,
                       "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", str(folder / "run.sh")], cwd="/", env=environment, capture_output=True, text=True,
                              check=False)
        assert done.returncode == exit_code, done.stdout[-3000:] + done.stderr
    again = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", "-o", folder)
    assert again[0] == 2, "a folder with files is not written over"


def test_ways_round_are_tried_in_order_and_each_has_its_error_and_latency(locate, tmp_path) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16",
                                fault="wrong with /conv1/Conv: /layer1/conv2/Conv")
    changes = [way["change"] for way in record["ways_round"]]
    assert changes[0].startswith("fusion barriers at") and changes[1].startswith("FP32 for"), text
    assert any(change.startswith("no tactics of") for change in changes) and "optimization level 0" in changes
    assert not any(way["helps"] for way in record["ways_round"]), "the stand-in is wrong in any build"
    assert all(way["latency_ms"] > 0 and way["times"] > 4 for way in record["ways_round"])


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("release", ["8.6.1", "10.16.1"])
def test_a_faulty_operator_is_avoided_by_its_onnx_function(locate, tmp_path, release, precision) -> None:
    model, rng = tmp_path / "hard_swish.onnx", np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(8, 8, 3, 3)).astype(np.float32) / 8, f"w{index}")
               for index in range(2)]
    nodes = [helper.make_node("Conv", ["image", "w0"], ["a"], "conv0", pads=[1, 1, 1, 1]),
             helper.make_node("HardSwish", ["a"], ["b"], "act"),
             helper.make_node("Conv", ["b", "w1"], ["y"], "conv1", pads=[1, 1, 1, 1])]
    image, output = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8, 16, 16])
                     for name in ("image", "y"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "acts", [image], [output], weights), ir_version=8,
                                opset_imports=[helper.make_opsetid("", 17)]), model)
    np.savez(tmp_path / "images.npz", image=rng.normal(size=(8, 8, 16, 16)).astype(np.float32))
    options = Options(str(model), str(tmp_path / "images.npz"), batch=4, whatif_samples=0)
    code, record, text = locate(release, options, "--runs", precision, fault="wrong: act")
    assert code == 1 and {"name": "act", "operator": "HardSwish"} in record["nodes"], text
    way = next(way for way in record["ways_round"] if way["change"].startswith("HardSwish written as its ONNX "))
    assert way["helps"] and way["times"] < 4 and way["latency_ms"] > 0, text
    assert way["change"].endswith("(HardSigmoid, Mul)")


def save_network(folder: Path, nodes: list, inputs: list, outputs: list, weights: dict, samples: dict,
                 opset: int = 17) -> Options:
    """Writes a network and its samples; returns the options that open them."""
    model, data = folder / "network.onnx", folder / "samples.npz"
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "network", inputs, outputs, initializers), ir_version=8,
                                opset_imports=[helper.make_opsetid("", opset)]), model)
    np.savez(data, **samples)
    return Options(str(model), str(data), batch=4, whatif_samples=0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).normal(size=shape) * scale).astype(np.float32)


@pytest.mark.parametrize("attributes, has_lengths", [({"clip": 0.5}, False), ({}, True),
                                                     ({"activations": ["HardSigmoid", "Softsign"]}, False)])
def test_a_reference_that_leaves_out_an_attribute_judges_nothing(locate, tmp_path, attributes, has_lengths) -> None:
    """The reference of GRU in some releases of onnx ignores these. The difference is no error that types explain."""
    lengths = ["lengths"] if has_lengths else []
    nodes = [helper.make_node("Transpose", ["x"], ["t"], "order", perm=[1, 0, 2]),
             helper.make_node("GRU", ["t", "w", "r", "b", *lengths], ["g"], "gru", hidden_size=8, **attributes),
             helper.make_node("Squeeze", ["g", "one"], ["y"], "flat")]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 6, 8]),
              *(helper.make_tensor_value_info(name, onnx.TensorProto.INT32, ["n"]) for name in lengths)]
    options = save_network(
        tmp_path, nodes, inputs, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [6, "n", 8])],
        {"w": normal(1, 24, 8), "r": normal(1, 24, 8), "b": normal(1, 48), "one": np.array([1])},
        {"x": normal(8, 6, 8), **{name: np.array([1, 2, 3, 4, 5, 2, 3, 4], np.int32) for name in lengths}})
    code, record, text = locate("8.6.1", options, "--runs", "fp16", fault="wrong: gru")
    assert code == 1 and record["outcome"] in ("not judged", "found"), "no fault would be false"
    assert record["outcome"] == "found" or "GRU of gru differs by" in text


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1", "11.4.0"])
def test_outputs_in_fp16_are_judged_too(locate, tmp_path, release) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["h"], "half", to=onnx.TensorProto.FLOAT16),
             helper.make_node("MatMul", ["h", "w0"], ["first"], "first"),
             helper.make_node("MatMul", ["first", "w1"], ["y16"], "narrow"),
             helper.make_node("MatMul", ["first", "w2"], ["z"], "second"),
             helper.make_node("Cast", ["z"], ["y"], "single", to=onnx.TensorProto.FLOAT)]
    float32, float16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    options = save_network(
        tmp_path, nodes, [helper.make_tensor_value_info("x", float32, ["n", 8, 6])],
        [helper.make_tensor_value_info("y", float32, ["n", 8, 4]),
         helper.make_tensor_value_info("y16", float16, ["n", 8, 4])],
        {"w0": normal(6, 16, scale=0.3).astype(np.float16), "w1": normal(16, 4, scale=0.3).astype(np.float16),
         "w2": normal(16, 4, scale=0.2).astype(np.float16)}, {"x": normal(8, 8, 6)})
    code, record, text = locate(release, options, "--runs", "fp16", fault="wrong: narrow")
    assert code == 1 and record["outcome"] == "found" and {"narrow"} == {node["name"] for node in record["nodes"]}, text
    code, record, text = locate(release, options, "--runs", "fp16", XDG_CACHE_HOME=str(tmp_path / "another"))
    assert code == 0 and record["outcome"] == "no fault", text


def save_clipping_network(folder: Path, has_clip: bool, output: str = "y") -> Options:
    """Writes a network, of which the other form clips large values, and 200 samples of which the last are large."""
    values = normal(200, 8)
    values[188:] *= 50
    middle = [helper.make_node("Clip", ["a", "low", "high"], ["b"], "clip")] if has_clip else [
        helper.make_node("Identity", ["a"], ["b"], "same")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"), *middle,
             helper.make_node("MatMul", ["b", "w"], [output], "second")]
    folder.mkdir(exist_ok=True)
    return save_network(folder, nodes, [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])],
                        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["n", 8])],
                        {"w": normal(8, 8, scale=0.3), "low": np.float32(-20), "high": np.float32(20)}, {"x": values})


def test_the_fault_of_the_last_batch_is_found(locate, build, tmp_path) -> None:
    engine = build("8.6.1", save_clipping_network(tmp_path / "clipped", True), "fp32")
    options = save_clipping_network(tmp_path / "whole", False)
    code, record, text = locate("8.6.1", options, "--engine", engine, "--batch", 8)
    assert code == 1 and record["outcome"] == "unstable" and record["errors"][0]["times"] > 1000, text
    assert record["notes"] == []
    code, record, text = locate("8.6.1", options, "--engine", engine, "--batch", 8, "--max-seconds", "0.001")
    note, = record["notes"]
    assert code == 1 and note.startswith("judged on the worst of the first 1 of ") and note in text, text


def test_the_engine_of_another_network_is_refused(locate, build, tmp_path) -> None:
    engine = build("8.6.1", save_clipping_network(tmp_path / "other", False, "z"), "fp32")
    code, record, text = locate("8.6.1", save_clipping_network(tmp_path / "this", False), "--engine", engine)
    assert code == 2 and not record and "prod.plan and network.onnx have no tensor in common" in text
    code, record, text = locate("8.6.1", save_mlp(tmp_path), "--engine", engine)
    assert code == 2 and "have no tensor in common" in text and "Traceback" not in text


def test_a_piece_that_cannot_be_executed_ends_no_location(locate, tmp_path, monkeypatch) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], "conv0", pads=[1, 1, 1, 1]),
             helper.make_node("Slice", ["a", "start", "start", "axis"], ["none"], "nothing"),
             helper.make_node("Concat", ["a", "none"], ["b"], "both", axis=1),
             helper.make_node("Conv", ["b", "w"], ["y"], "conv1", pads=[1, 1, 1, 1])]
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4, 8, 8]) for name in "xy"]
    options = save_network(tmp_path, nodes, info[:1], info[1:], {
        "w": normal(4, 4, 3, 3, scale=0.3), "start": np.array([0]), "axis": np.array([1])}, {"x": normal(8, 4, 8, 8)})
    code, record, text = locate("8.6.1", options, "--runs", "fp16", fault="wrong: conv0")
    assert code == 1 and record["outcome"] == "found" and {"conv0"} <= {node["name"] for node in record["nodes"]}, text


def test_without_tensorrt_nothing_is_located(run, mlp) -> None:
    code, _, text = run("compare", mlp.model, "--data", mlp.data, "--locate", "--backend", "tensorrt")
    assert code == 3 and "tensorrt" in text


def test_options_of_a_comparison_have_no_effect_on_a_location(run, mlp) -> None:
    code, _, text = run("compare", mlp.model, "--data", mlp.data, "--locate", "--markdown", "x.md")
    assert code == 2 and "--markdown has no effect here" in text
    code, _, text = run("compare", mlp.model, "--data", mlp.data, "--max-builds", 3)
    assert code == 2 and "--max-builds has no effect here" in text


@pytest.mark.rtx
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
def test_the_real_tensorrt_rtx_runs_each_step_up_to_the_build_of_a_piece(named_network, precision) -> None:
    """The cells come from the builder's list of layers. Each cell and each half of the network is cut out and built."""
    network = named_network("small_resnet")
    config = PrecisionConfig.from_precision(precision)
    ranges = dict.fromkeys(network.calibrated_tensors, 4.0)

    def build_and_list_cells(part: Network, part_config: PrecisionConfig):
        text = rtx.layers(lower_to_typed_network(part, part_config, ranges).model)
        return list_engine_cells(read_layer_listing(text, part), part)

    cells = build_and_list_cells(network, config)
    assert len(cells) >= 5
    middle = len(cells) // 2
    comparable = []
    for piece in (cells[:middle], cells[middle:], *((cell,) for cell in cells)):
        names = {name for cell in piece for name in cell.layers}
        layers = [layer.name for layer in network.layers if layer.name in names]
        inputs, outputs = find_piece_boundary(network, layers)
        feed = {name: np.zeros([size if isinstance(size, int) else 2 for size in network.shape(name)], np.float32)
                for name in inputs}
        part = cut_network(network, layers, inputs, outputs, feed)
        built_cells = build_and_list_cells(part, select_moves_of_network(config, part))
        assert {layer.name for layer in part.layers} <= names
        comparable.append(not find_different_cell(cells, built_cells))
    assert any(comparable), "no piece has the kernels of the whole network"
