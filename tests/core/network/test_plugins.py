"""trt_tui.core.network.operators: networks with plugins open, are simulated up to them, and leave with them."""

import contextlib
import ctypes
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import standins
from tests.driven import DrivenWorker, values
from tests.refusals import refused
from trt_tui.backends.tensorrt import load_plugins, translate_parser_errors
from trt_tui.core.engines.group_implementations import PreviewNetwork, PreviewRequest
from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.measure.judged_outputs import (
    find_judged_inner_tensors,
    list_tensor_outputs,
    select_judged_outputs,
    unjudged_output_notes,
)
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_editing import add_outputs
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BackendCapabilities
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.engine_build import lower_for_builder
from trt_tui.jobs.preview_server import PreviewServer
from trt_tui.options import Options

FP32, FP16, INT8 = (PrecisionConfig.from_precision(one) for one in (Precision.FP32, Precision.FP16, Precision.INT8))


def weight(name, *sizes):
    values = np.random.default_rng(len(name)).standard_normal(sizes) * np.sqrt(2 / np.prod(sizes[1:]))
    return numpy_helper.from_array(values.astype(np.float32), name)


def saved(path, nodes, outputs, domain, opset=17, weights=(), samples=8):
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    graph = helper.make_graph(
        nodes,
        "net",
        [image],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [weight("k1", 8, 3, 3, 3), *weights],
    )
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    np.savez(path.with_suffix(".npz"), x=np.random.default_rng(0).standard_normal((samples, 3, 8, 8), np.float32))
    return Options(str(path), str(path.with_suffix(".npz")), batch=4, whatif_samples=0)


FRONT = [
    helper.make_node("Conv", ["x", "k1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
]
NMS = {"plugin_version": "1", "background_class": -1, "max_output_boxes": 20, "score_threshold": 0.25, "box_coding": 1}


def detector(path, domain="TRT", opset=17, samples=8):
    """Boxes and scores, and what EfficientNMS_TRT makes of them."""
    nodes = [*FRONT]
    for name in ("boxes", "scores"):
        nodes += [
            helper.make_node("Conv", ["r1", f"k_{name}"], [f"c_{name}"], f"conv_{name}"),
            helper.make_node("Reshape", [f"c_{name}", f"s_{name}"], [f"f_{name}"], f"flat_{name}"),
            helper.make_node("Transpose", [f"f_{name}"], [name], f"turn_{name}", perm=[0, 2, 1]),
        ]
    nodes.append(
        helper.make_node("EfficientNMS_TRT", ["boxes", "scores"], ["num", "kept"], "nms", domain=domain, **NMS)
    )
    weights = [weight("k_boxes", 4, 8, 1, 1), weight("k_scores", 5, 8, 1, 1)]
    weights += [
        numpy_helper.from_array(np.array([0, size, 64]), f"s_{name}") for name, size in (("boxes", 4), ("scores", 5))
    ]
    outputs = [("num", TensorProto.INT32, ["N", 1]), ("kept", TensorProto.FLOAT, ["N", 20, 4])]
    return saved(path, nodes, outputs, domain, opset, weights, samples)


def middle(path, operator="Twice", domain="mine", outputs=("t",)):
    """A Conv, a custom operator whose types the file does not say, and another Conv."""
    nodes = [
        *FRONT,
        helper.make_node(operator, ["r1"], list(outputs), "custom", domain=domain),
        helper.make_node("Conv", [outputs[-1], "k2"], ["y"], "conv2"),
    ]
    return saved(path, nodes, [("y", TensorProto.FLOAT, ["N", 4, 8, 8])], domain, weights=[weight("k2", 4, 8, 1, 1)])


@pytest.mark.parametrize(("domain", "opset"), [("TRT", 17), ("", 13)])
def test_what_plugins_make_is_judged_before_them_by_everything_that_runs(tmp_path, domain, opset):
    options = detector(tmp_path / "det.onnx", domain, opset)
    network = open_network(options.model)
    judged = select_judged_outputs(network)
    assert [one.name for one in judged] == ["boxes", "scores"] == list(find_judged_inner_tensors(network, judged))
    assert all("computed by the plugin nms (EfficientNMS_TRT)" in one.note for one in judged)
    assert not list_tensor_outputs(network) and len(unjudged_output_notes(network)) == 2
    assert any(
        "nms (EfficientNMS_TRT)" in note and "--plugins" in note and "--ort-ops" in note for note in network.notes
    )
    assert "--ort-ops" in network.get_layer("nms").refusal_reason and not network.get_group(
        "nms"
    ).allowed_precisions - {Precision.FP32}

    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(options))
    events = worker.answer(rq.CompareRuns({"int8": INT8}, True, "int8"))
    assert not [one for one in events if isinstance(one, ev.JobFailed)], events[-1]
    (verdict,) = [one.accuracy for one in events if isinstance(one, ev.AccuracyMeasured) and one.final]
    assert verdict.outputs.keys() == {"boxes", "scores"} and 10 < verdict.worst_output[1].errors.sqnr_db < 60
    (layers,) = [one.groups for one in events if isinstance(one, ev.GroupErrorsMeasured) and one.final]
    assert layers.keys() == {"conv1", "conv_boxes", "conv_scores"}
    (details,) = values(worker.answer(rq.MeasureTensorStats("nms")), GROUP_DETAILS)
    assert details.tensors.keys() == {"boxes", "scores"}
    (run,) = [one.result for one in worker.answer(rq.BuildEngine(INT8)) if isinstance(one, ev.ExportedFileExecuted)]
    assert run.accuracy is None and "plugins" in run.missing_reason

    out = tmp_path / "typed.onnx"
    worker.answer(rq.ExportConfig(str(out), INT8, "onnx"))
    (nms,) = [node for node in onnx.load(out).graph.node if node.op_type == "EfficientNMS_TRT"]
    given = {one.name: helper.get_attribute_value(one) for one in nms.attribute}
    assert (nms.name, nms.domain, list(nms.output)) == ("nms", domain, ["num", "kept"])
    assert given == {**NMS, "plugin_version": b"1", "score_threshold": pytest.approx(0.25)}


@pytest.mark.parametrize("judge", [(), ("c_boxes",)])
@pytest.mark.parametrize("further", [(), ("boxes", "scores")])
def test_each_output_behind_a_plugin_makes_a_pass_uncertain_by_name(tmp_path, further, judge):
    """Also if other outputs of the network are judged, and if the user names what is judged."""
    options = detector(tmp_path / "det.onnx", samples=16)
    model = onnx.load(options.model)
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in further)
    onnx.save(model, options.model)
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(replace(options, judge=judge)))
    events = worker.answer(rq.CompareRuns({"fp16": FP16, "fp32": FP32}, False, "fp16"))
    accuracies = {one.run: one.accuracy for one in events if isinstance(one, ev.AccuracyMeasured) and one.final}
    for accuracy in accuracies.values():
        outcome = judge_accuracy([parse_target("sqnr>=20")], accuracy)
        assert outcome.outcome is Outcome.UNCERTAIN_PASS and accuracies.keys() == {"fp16", "fp32"}
        assert [reason.split()[2] for reason in outcome.reasons if "not judged" in reason] == ["num", "kept"]


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1"])
def test_an_engine_yields_what_it_is_judged_by_and_one_for_production_does_not(tmp_path, release):
    network = open_network(detector(tmp_path / "det.onnx").model)
    strong = BackendCapabilities(True, True, False, True, strongly_typed=release != "8.6.1", weakly_typed=True)
    lowered = lower_for_builder(network, FP16, {}, strong, release)
    kept = find_judged_inner_tensors(network, select_judged_outputs(network))
    assert [one.name for one in add_outputs(lowered.model, kept).graph.outputs] == ["num", "kept", "boxes", "scores"]
    assert [one.name for one in lowered.model.graph.outputs] == ["num", "kept"]
    assert [one.name for one in network.model.graph.outputs] == ["num", "kept"]


def test_what_lies_behind_a_plugin_keeps_fp32_with_the_reason(tmp_path):
    network = open_network(middle(tmp_path / "mid.onnx").model)
    assert "after the plugin custom: kept in FP32" in network.get_layer("conv2").refusal_reason
    assert [one.name for one in select_judged_outputs(network)] == ["r1"]
    with pytest.raises(InputError, match="after the plugin custom"):
        select_judged_outputs(network, ["y"])


def test_a_plugin_with_nothing_before_it_leaves_nothing_to_judge(tmp_path):
    options = saved(
        tmp_path / "all.onnx",
        [helper.make_node("Twice", ["x"], ["y"], "custom", domain="mine")],
        [("y", TensorProto.FLOAT, ["N", 3, 8, 8])],
        "mine",
    )
    with refused("no output that can be judged", cause="after the plugin custom"):
        select_judged_outputs(open_network(options.model))


def test_a_library_of_operators_brings_them_to_the_simulation(tmp_path):
    library = pytest.importorskip("onnxruntime_extensions", reason="no library of custom operators is installed")
    path = library.get_library_path()
    options = replace(middle(tmp_path / "mid.onnx", "NegPos", "ai.onnx.contrib", ("n", "t")), ort_ops=(path,))
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(options))
    assert worker.network.get_group("conv2").is_quantizable and not worker.network.blocking_plugins
    (measured,) = [
        one.accuracy
        for one in worker.answer(rq.MeasureWhatIf(INT8))
        if isinstance(one, ev.AccuracyMeasured)
        if one.final
    ]
    assert measured.outputs.keys() == {"y"} and 10 < measured.worst_output[1].errors.sqnr_db < 60
    failed = worker.answer(rq.OpenNetwork(replace(middle(tmp_path / "other.onnx"), ort_ops=(path,))))[-1]
    assert (
        isinstance(failed, ev.JobFailed)
        and "custom (Twice)" in failed.error.title
        and "--ort-ops" in failed.error.next_step
    )


@pytest.mark.parametrize("content", [b"no library", None])
def test_what_is_no_library_is_refused_by_its_option(tmp_path, content):
    path = tmp_path / "lib.so"
    if content is not None:
        path.write_bytes(content)
    failed = DrivenWorker(tmp_path).answer(
        rq.OpenNetwork(replace(middle(tmp_path / "mid.onnx"), ort_ops=(str(path),)))
    )[-1]
    assert isinstance(failed, ev.JobFailed) and failed.error.exit_code == 2 and "lib.so" in failed.error.title
    with pytest.raises(InputError, match="lib.so") as refused:
        load_plugins(SimpleNamespace(get_plugin_registry=lambda: None), "tensorrt 11.4", [str(path)])
    if content is not None:
        assert f"--ort-ops {path} does not load" in failed.error.title and f"--plugins {path}" in refused.value.title


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile a library with")
@pytest.mark.parametrize("release", standins.RELEASES)
def test_libraries_are_registered_where_they_export_creators(tmp_path, monkeypatch, release):
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    trt, paths = standins.install(release), []
    for name, code in (("older", "int registers_itself;"), ("newer", "void* getCreators(int* n) { return 0; }")):
        paths.append(str(tmp_path / f"{name}.so"))
        subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", paths[-1], "-"], input=code, text=True, check=True)
    standins.libraries.clear()
    for _ in range(2):
        load_plugins(trt, release, paths)
    assert standins.libraries == paths[1:]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile a library with")
@pytest.mark.parametrize("attribute", ["plugin_creator_list", "all_creators"])
@pytest.mark.parametrize("registers_itself", [False, True])
def test_a_library_that_registers_itself_is_not_registered_again(tmp_path, monkeypatch, attribute, registers_itself):
    """TensorRT returns None for a library whose creators are registered already."""
    path, creators = tmp_path / "both.so", []
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-o", path, "-"],
        input="void* getCreators(int* n) { return 0; }",
        text=True,
        check=True,
    )
    registry = SimpleNamespace(**{attribute: creators}, load_library=lambda path: None)
    load = ctypes.CDLL

    def load_and_register(*args, **options):
        creators.extend(["creator"] if registers_itself else [])
        return load(*args, **options)

    monkeypatch.setattr(ctypes, "CDLL", load_and_register)
    with contextlib.nullcontext() if registers_itself else pytest.raises(InputError, match="both.so"):
        load_plugins(SimpleNamespace(get_plugin_registry=lambda: registry), "tensorrt 8.6", [str(path)])


@pytest.mark.rtx
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile a library with")
def test_the_preview_is_given_the_libraries_and_says_which_does_not_load(tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    network, heard = middle(tmp_path / "mid.onnx").model, tmp_path / "loaded"
    good, bad = tmp_path / "a.so", tmp_path / "b.so"
    code = f'int creat(const char*, int); __attribute__((constructor)) void load() {{ creat("{heard}", 0600); }}'
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", good, "-"], input=code, text=True, check=True)
    bad.write_text("no library")
    profile = {"x": ((2, 3, 8, 8),) * 3}
    for plugins, said in (((), "custom (Twice)"), ((good,), "custom (Twice)"), ((good, bad), f"{bad} does not load")):
        previewer = PreviewServer()
        previewer.is_wanted = True
        subject = PreviewNetwork(network, "", plugins=tuple((str(path), "") for path in plugins))
        refused = previewer.make_preview(PreviewRequest(subject, FP16, {}, profile)).refusal
        assert said in refused.title and refused.layer == "custom" and heard.exists() == bool(plugins)
    assert "custom" in refused.cause


@pytest.mark.parametrize(
    ("operator", "says", "said"),
    [
        (
            "EfficientNMS_TRT",
            'creator && "Plugin not found, are the plugin name, version, and namespace correct?"',
            "Load its plugin with --plugins LIB.so.",
        ),
        ("NonZero", "Assertion failed: creator: plugin not found", "has no NonZero of ONNX"),
        ("SequenceAt", "false", "has no SequenceAt of ONNX"),
    ],
)
def test_a_node_without_its_plugin_is_named_with_the_option(tmp_path, operator, says, said):
    error = SimpleNamespace(node_name=lambda: "nms", node_operator=lambda: operator, desc=lambda: says)
    failed = translate_parser_errors("tensorrt", "10.16.1", [error], tmp_path / "net.onnx")
    assert f"nms ({operator})" in failed.title and said in failed.next_step and "--plugins" in failed.next_step
    assert failed.cause != "false"
