"""Stages on the way to production, engines and outputs from elsewhere, and what production was given"""

import importlib.util
import json
import math
import re
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import local
from tests.core.data.test_references import QUICK, results, rows
from tests.driven import save_mlp
from tests.networks import Builder, floats
from tests.schemas import mismatches
from tests.texts import lacking, numbers
from trt_tui.backends import cuda, registry
from trt_tui.backends.cuda import CudaDevice
from trt_tui.core.engines.group_implementations import GroupImplementation, Kernel, Preview, PreviewRefusal
from trt_tui.core.exporters.preview_report import unbuilt_engine_lines
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, OutputErrors, Run, RunKind
from trt_tui.core.measure.stages import (
    PRODUCTION_STAGE,
    InputDifference,
    StageResult,
    compare_input_over_feeds,
    compare_production_with_tested_run,
    explain_input_difference,
    first_divergence_text,
    list_requested_stages,
    worst_output_sqnr_db,
)
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.jobs import production
from trt_tui.session.session import Session

RNG = np.random.default_rng(0)
IMAGES = RNG.random((4, 3, 8, 8))


def verdict(db, metric=None, **errors):
    one = ErrorMetrics(db, 0.9, **errors) if db is not None else ErrorMetrics(exact=True, cosine=1.0)
    return Accuracy({"y": OutputErrors(one)}, {"f1": metric} if metric is not None else {}, samples=4, total=4)


def stage(name, cause, before=None, **more):
    return StageResult(Run(name, RunKind.NETWORK_FILE), cause, accuracy_to_previous=before, **more)


def test_the_fraction_of_different_integers_counts_as_noise():
    found = [
        worst_output_sqnr_db(Accuracy({"y": OutputErrors(ErrorMetrics(mismatch=mismatch, exact=not mismatch))}))
        for mismatch in (0.01, 0.5, 0.0)
    ]
    assert found == [pytest.approx(20), pytest.approx(3.01, abs=0.01), math.inf]


@pytest.mark.parametrize(("cast", "said"), [(True, "its 16-bit types"), (False, "changes of the network")])
def test_what_a_network_does_to_the_outputs_is_known_by_its_types(tmp_path, cast, said):
    b = Builder()
    half = b.node("Cast", ["x"], "/down", to=onnx.TensorProto.FLOAT16) if cast else b.node("Relu", ["x"], "/relu")
    b.node("Cast", [half], output="y", to=onnx.TensorProto.FLOAT)
    onnx.save(b.model([floats("x", 2)], [floats("y", 2)]), tmp_path / "one.onnx")
    assert production._network_difference_text(str(tmp_path / "one.onnx")) == said


@pytest.mark.parametrize(
    ("stages", "target", "said"),
    [
        ([("a", 60, 60, None), ("qdq", 18, 18, None)], "sqnr>=20", "first diverges: qdq: cause of qdq"),
        ([("a", 18, 18, None), ("b", 5, 5, None)], "sqnr>=20", "first diverges: a: cause of a"),
        (
            [("a", 60, None, 0.9), ("b", 55, 58, 0.5)],
            "metric>=0.8",
            "first diverges: b: its outputs agree, the metric does not: look at the postprocessing",
        ),
        ([("a", 60, None, 0.9), ("b", 10, 11, 0.5)], "metric>=0.8", "first diverges: b: cause of b"),
        (
            [("a", 10, None, 0.9), ("b", 10, 70, 0.5)],
            "metric>=0.8",
            "first diverges: b: its outputs agree, the metric does not: look at the postprocessing",
        ),
        (
            [("a", 60, None, None), ("b", 30, 31, None)],
            "sqnr>=20",
            "no stage misses the target; furthest from the stage before is b, 31.0 dB: cause of b",
        ),
        (
            [("a", None, None, None)],
            "sqnr>=20",
            "no stage misses the target; furthest from FP32 is a, exact: cause of a",
        ),
        ([], "sqnr>=20", ""),
    ],
)
def test_where_it_first_diverges(stages, target, said):
    found = [
        (stage(name, f"cause of {name}", verdict(before) if before is not None else None), verdict(db, metric))
        for name, db, before, metric in stages
    ]
    assert first_divergence_text(found, [parse_target(target)]) == said
    assert first_divergence_text(found, [parse_target(target)], has_unmeasured_stages=True) == (
        "" if said.startswith("no stage") else said
    )


@pytest.mark.parametrize(
    ("here", "there", "between", "tested"),
    [
        (10.6, 10.5, 18, True),
        (14.2, 14.4, 38, True),
        (62, 65.7, 61, True),
        (16.5, 12.6, 11.1, False),
        (9.0, 20.0, 9.5, False),
        (20, 20.5, 17.2, False),
        (None, None, None, True),
        # measured in INT8: the same config, whose quantized values one ulp changes; FP32; FP16; ranges of another method
        (31.5, 31.5, 33.0, True),
        (31.5, 31.5, 32.3, True),
        (27.0, 27.5, 29.4, True),
        (None, 31.5, 31.5, False),
        (130.2, 33.8, 33.9, False),
        (33.1, 31.5, 29.6, False),
        (26.7, 27.5, 25.7, False),
    ],
)
def test_whether_production_is_what_was_tested(here, there, between, tested):
    one = stage(PRODUCTION_STAGE, "", other_accuracies=(("the engine", verdict(between)),))
    assert compare_production_with_tested_run(one, verdict(here), verdict(there), "the engine")[0] is tested
    given = InputDifference("x", ErrorMetrics(3.0), "x differs (3.0 dB): there it is 255 times this")
    told = compare_production_with_tested_run(
        stage(PRODUCTION_STAGE, "", input_differences=(given,)), verdict(here), verdict(there), "the engine"
    )
    assert told[0] is False and "255 times" in told[1]


@pytest.mark.parametrize(("here_breaks", "there_breaks"), [(False, True), (True, False), (True, True)])
def test_production_without_the_nan_of_the_tested_run_is_another(here_breaks, there_breaks):
    broken = Accuracy({"y": OutputErrors(ErrorMetrics(None, None, nan=4))}, samples=8, total=8)
    here, there = (broken if breaks else verdict(80.0) for breaks in (here_breaks, there_breaks))
    one = stage(PRODUCTION_STAGE, "", other_accuracies=(("the config", broken),))
    assert compare_production_with_tested_run(one, here, there, "the config")[0] is (here_breaks is there_breaks)


@pytest.mark.parametrize(("variation", "tested"), [(None, True), (-3.0, True), (-43.0, False), (-math.inf, False)])
def test_production_does_not_agree_by_the_part_of_an_output_that_is_the_same_for_all_samples(variation, tested):
    """The outputs of other samples are as near as that; here they are those of FP32 and 48 dB from the config."""
    one = stage(PRODUCTION_STAGE, "", other_accuracies=(("the engine", verdict(48)),))
    here = Accuracy({name: replace(output, variation_db=variation) for name, output in verdict(None).outputs.items()})
    assert compare_production_with_tested_run(one, here, verdict(48), "the engine")[0] is tested


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (IMAGES * 255, "there it is 255 times this"),
        (IMAGES * 2 - 1, "there it is 2.00 times this - 1.00"),
        (IMAGES[:, ::-1], "its channels (axis 1) are in reverse order, as RGB and BGR are"),
        (
            (IMAGES - np.array([0.4, 0.5, 0.6])[:, None, None]) / np.array([0.2, 0.3, 0.4])[:, None, None],
            "different normalisation: there channel 0 is 5.00 times this - 2.00; channel 1 is 3.33 times this - 1.67; "
            "channel 2 is 2.50 times this - 1.50",
        ),
        (IMAGES.swapaxes(2, 3), "height and width are swapped"),
        (IMAGES[..., ::-1], "it is mirrored along axis 3"),
        (IMAGES[[1, 0, 3, 2]], "the samples are in another order: there 1, 0, 3, 2, … of those here"),
        (np.where(IMAGES > 0.5, np.nan, IMAGES), "production has NaN or Inf"),
        (RNG.random(IMAGES.shape), ""),
    ],
)
def test_what_turns_inputs_into_those_of_production(there, said):
    assert explain_input_difference(IMAGES, there) == said
    found = compare_input_over_feeds("x", iter([(IMAGES[:2], there[:2]), (IMAGES[2:], there[2:])]))
    assert not found.is_equal_except_rounding and (not said or said in found.description)
    assert compare_input_over_feeds("x", iter([(IMAGES, IMAGES.astype(np.float32))])).is_equal_except_rounding


@pytest.mark.parametrize("db", [50.4, 57.0])
def test_inputs_that_differ_by_noise_alone_are_said_to_be_so_far_apart(db):
    noise = RNG.standard_normal(IMAGES.shape)
    there = IMAGES + noise * np.sqrt(np.mean(IMAGES**2) / np.mean(noise**2) / 10 ** (db / 10))
    found = compare_input_over_feeds("x", iter([(IMAGES, there)]))
    assert not found.is_equal_except_rounding and explain_input_difference(IMAGES, there) == ""
    assert found.description.startswith(f"x differs by {db:.1f} dB") and "this" not in found.description


def test_stages_have_names_of_their_own():
    with pytest.raises(InputError, match="two stages are called a"):
        list_requested_stages(["a=q.onnx", "a=o.npz"], (), None)
    with pytest.raises(InputError, match="not a dump of tensors"):
        list_requested_stages([], (), "prod.plan")


def test_a_stage_needs_no_run_of_its_precision(answered, run):
    """The ranges of INT8 are measured, although no run needs them."""
    options = answered[0]
    code, out, err = run(
        "compare", options.model, "--data", options.data, "--batch", 4, *QUICK, "--runs", "fp16", "--stage", "int8"
    )
    assert code == 0 and any(line.startswith("int8 ") for line in out.splitlines()), err


def test_a_comparison_has_a_row_for_each_stage(answered, tmp_path, run):
    options, _, y = answered
    model = onnx.load(options.model)
    for one in model.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        one.CopyFrom(onnx.numpy_helper.from_array(np.round(array * 8) / 8, one.name))
    onnx.save(model, tmp_path / "rounded.onnx")
    np.savez(tmp_path / "framework.npz", y=y + np.float32(1e-4))
    code, out, err = run(
        *f"compare {options.model} --data {options.data} --batch 4".split(),
        *QUICK,
        *f"--stage framework={tmp_path / 'framework.npz'} --stage rounded={tmp_path / 'rounded.onnx'}".split(),
        *f"--stage int8 --target cosine>=0.1 --json {tmp_path}/out.json --markdown {tmp_path}/out.md".split(),
    )
    assert code == 0, err
    record = json.loads((tmp_path / "out.json").read_text())
    assert mismatches(record, "comparison-v1") == []
    framework, rounded, int8 = record["stages"]
    assert [one["name"] for one in record["stages"]] == ["framework", "rounded", "int8"]
    assert framework["outputs"]["y"]["max_abs"] == pytest.approx(1e-4, rel=0.01) and "before" not in framework
    assert int8["outputs"] == record["runs"]["int8"]["outputs"]
    got = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": answered[1]})[0]
    expected = np.mean((got - y - 1e-4) ** 2)
    assert rounded["before"]["outputs"]["y"]["mse"] == pytest.approx(expected, rel=1e-3)
    (said,) = record["stages_say"]
    furthest = min(record["stages"][1:], key=lambda stage: stage["before"]["outputs"]["y"]["sqnr_db"])
    assert said.startswith("no stage misses") and f" {furthest['name']}" in said
    lines = out.splitlines()
    assert lines[-1] == said and [
        one.split()[0] for one in lines if one.startswith(("framework ", "rounded ", "int8 "))
    ] == ["framework", "rounded", "int8"]
    assert "## Stages" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize(
    ("scale", "quantized", "code", "said"),
    [
        (1, "int8", 0, "production agrees with the tested config"),
        (1, "fp32", 1, "production differs from the tested config"),
        (255, "int8", 1, "production gets other inputs: x differs"),
    ],
)
def test_production_is_held_against_what_was_tested(scale, quantized, code, said, answered, tmp_path, run):
    options, x, y = answered
    saved = tmp_path / "saved.json"
    found, _, err = run("compare", options.model, "--data", options.data, "--batch", 4, *QUICK, "--save-outputs", saved)
    assert found == 0, err
    production = f"{saved}:{quantized}"
    if quantized == "fp32":
        production = results(tmp_path / "prod.json", trt=rows(-y, 16))
    given = results(tmp_path / "inputs.json", trt=[{"x": x * np.float32(scale)}])
    found, out, err = run(
        *f"compare {options.model} --data {options.data} --batch 4".split(),
        *QUICK,
        *f"--outputs {production} --inputs {given}".split(),
    )
    assert (found, said in out) == (code, True), err
    (inputs,) = (line for line in out.splitlines() if line.startswith("inputs of production: x "))
    assert ("(exact)" in inputs) is (scale == 1) and "simulated config" in out


def test_an_engine_built_elsewhere_is_judged_and_its_layers_are_told(command, mlp, tmp_path):
    engine = tmp_path / "prod.plan"
    data = (mlp.model, "--data", mlp.data, "--batch", 4)
    done = command(
        "10.16.1", "build", *data, "--precision", "fp16", "--trtexec=--profile=1 --optShapes=x:8x16", "-o", engine
    )
    assert done.returncode == 0, done.stderr
    done = command(
        "10.16.1", "compare", *data, *QUICK, "--engine", engine, "--stage", "trt-fp16", "--json", tmp_path / "out.json"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert mismatches(record, "comparison-v1") == []
    built, judged = record["stages"]
    assert judged["name"] == "prod.plan" and judged["outputs"] == built["outputs"]
    assert judged["before"]["outputs"]["y"]["sqnr_db"] is None, "the same engine: exact"
    assert judged["engine"]["engine_layers"] and judged["engine"]["latency_ms"]["median"] > 0
    assert judged["engine"]["cuda_graph_ms"]["median"] > 0 and [
        one["samples"] for one in judged["engine"]["profiles"]
    ] == [4, 8]
    assert not lacking(done.stdout, "profile 1", "x 8x16: ", " samples/s")
    assert "fp16-engine" in record["runs"] and "layers of prod.plan:" in done.stdout
    assert "\nprod.plan " in done.stdout and "fc1" in done.stdout

    done = command("11.4.0", "compare", *data, *QUICK, "--engine", engine)
    assert done.returncode == 2 and "prod.plan" in done.stderr and "Next: " in done.stderr
    other = save_mlp(tmp_path, name="other")
    model = onnx.load(other.model)
    model.graph.output[0].name = "z"
    for node in model.graph.node:
        node.output[:] = ["z" if name == "y" else name for name in node.output]
    onnx.save(model, other.model)
    done = command("10.16.1", "compare", other.model, "--data", other.data, "--batch", 4, "--engine", engine)
    assert done.returncode == 2 and not lacking(done.stderr, "prod.plan", "other.onnx", "no tensor in")


def test_without_tensorrt_an_engine_is_refused_and_a_built_stage_is_a_row(mlp, tmp_path, run, standin):
    standin("10.16.1", STANDIN_FAULT="no gpu")
    (tmp_path / "prod.plan").write_bytes(b"engine")
    data = (mlp.model, "--data", mlp.data, "--batch", 4, *QUICK)
    code, _, err = run("compare", *data, "--engine", tmp_path / "prod.plan")
    assert code == 3 and "no TensorRT here" in err
    code, out, err = run("compare", *data, "--stage", "int8", "--stage", "trt-int8", "--json", tmp_path / "out.json")
    int8, built = json.loads((tmp_path / "out.json").read_text())["stages"]
    reason = built["failed"]
    assert code == 1 and f"trt-int8: not built: {reason}\n" in out and f"Stage trt-int8 not built: {reason}" in err
    assert not lacking(reason, "tensorrt 10.16.1", "no GPU", "driver") and "outputs" not in built
    assert int8["outputs"]["y"]["sqnr_db"] > 10
    assert re.search(r"^int8 +~\d", out, re.M) and re.search(r"^trt-int8 +–", out, re.M)


@pytest.mark.parametrize(
    ("release", "fault", "options", "values"),
    [
        ("8.6.1", "wrong driver", "", ("tensorrt 8.6.1", "Stand-in GPU", "driver")),
        ("10.16.1", "", "--backend onnxruntime", ("--backend onnxruntime",)),
        ("rtx-1.7.1", "no gpu", "--backend tensorrt-rtx --compute-capability 8.9", ("8.9", "no GPU")),
    ],
)
def test_a_stage_that_is_not_built_says_what_is_missing(command, mlp, release, fault, options, values):
    stages = f"--stage fp16 --stage trt-fp16 {options}".split()
    done = command(
        release, "compare", mlp.model, "--data", mlp.data, "--batch", 4, *QUICK, *stages, STANDIN_FAULT=fault
    )
    (reason,) = re.findall(r"trt-fp16: not built: (.+)", done.stdout)
    assert done.returncode == 1 and not lacking(reason, *values), done.stdout
    assert re.search(r"^fp16 +~\d", done.stdout, re.M), done.stdout


@pytest.mark.parametrize(
    ("gpu", "said"), [(None, "no NVIDIA driver was found"), ((9, 0), "Some GPU (compute capability 9.0)")]
)
def test_a_package_that_is_not_installed_is_named_with_its_releases_and_the_gpu(monkeypatch, gpu, said):
    def find_device():
        if gpu is None:
            raise BackendUnavailableError("no NVIDIA driver was found")
        return CudaDevice("Some GPU", gpu, (13, 0))

    monkeypatch.setattr(cuda, "find_first_device", find_device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = registry.missing_builder_reason()
    assert not lacking(reason, "tensorrt (release 8.6 to 11)", f"{said};", "pip install 'trt-tui[tensorrt]'")
    assert registry.missing_builder_reason("onnxruntime").startswith("--backend onnxruntime ")


def test_a_stage_that_is_not_built_shows_what_its_preview_knows(tmp_path):
    """INT8 was requested for three layers: one shares a kernel, one runs in FP16; a fourth cannot run in INT8."""
    outline = local.outline()
    quantizable = [group for group in outline.groups if group.is_quantizable][:3]
    other = next(group for group in outline.groups if not group.is_quantizable)
    first, second, third = (group.name for group in quantizable)
    kernels = tuple(Kernel("gemm", (), (), (str(number),)) for number in range(6))
    preview = Preview(
        "1.7.1",
        (8, 9),
        implementations={
            first: GroupImplementation(Precision.INT8, False, (), sharing_groups=(second,)),
            second: GroupImplementation(Precision.INT8, False, (), sharing_groups=(first,)),
            third: GroupImplementation(Precision.FP16, False, ()),
            other.name: GroupImplementation(Precision.FP16, False, ()),
        },
        kernels=kernels,
    )
    lines = unbuilt_engine_lines(outline, PrecisionConfig(), preview)
    assert lines[0].startswith("preview: RTX 1.7, SM89 (no such GPU")
    (counts,) = (line for line in lines if line.startswith("kernels: "))
    assert numbers(counts) == [2, 1, 3] and not lacking(counts, "2 in FP16", "1 in INT8")
    assert any(line.startswith("not INT8: ") and other.name in line for line in lines)
    assert lines[-1].startswith("requested in INT8") and lines[-1].endswith(f": {third}")
    refusal = PreviewRefusal("TensorRT-RTX is not installed", "", "pip install it", is_rtx_missing=True)
    (line,) = unbuilt_engine_lines(outline, PrecisionConfig(), Preview(refusal=refusal))
    assert not lacking(line, "no preview", refusal.title, refusal.next_step)


@pytest.mark.rtx("1.7")
def test_without_tensorrt_a_stage_has_the_preview_of_its_engine(mlp, run, monkeypatch):
    monkeypatch.setattr(Session, "requests_previews", True)
    code, out, _ = run(
        "compare", mlp.model, "--data", mlp.data, "--batch", 4, "--layers", "none", "--stage", "trt-int8"
    )
    assert code == 1 and not lacking(out, "preview: RTX 1.7, SM89", "kernels: 3 in"), out
    code, out, _ = run(
        "compare", mlp.model, "--data", mlp.data, "--batch", 4, *QUICK, "--stage", "trt-int8", "--no-preview"
    )
    assert code == 1 and "trt-int8: not built" in out and "preview: " not in out, out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--inputs", "x.npz"], "has no effect"),
        (["--stage", "q=gone.onnx"], "gone.onnx does not exist"),
        (["--outputs", "gone.npz"], "gone.npz does not exist"),
        (["--reference", "gone.npz:trt"], "gone.npz does not exist"),
        (["--stage", "fp7"], "unknown stage"),
    ],
)
def test_usage_of_stages(arguments, said, mlp, run):
    code, _, err = run("compare", mlp.model, "--data", mlp.data, *arguments)
    assert code == 2 and said in err and "Next: " in err
