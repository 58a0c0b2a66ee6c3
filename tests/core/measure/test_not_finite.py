"""Networks that are not finite in FP32: which value they come from, and what judges them all the same."""

import json
import re

import numpy as np
import onnx
import pytest

from tests.networks import halves, quiet_session
from tests.networks.build import Builder, floats
from tests.refusals import refused
from tests.texts import lacking
from trt_tui.core.calibration.calibration import calibrate, collect_tensor_stats
from trt_tui.core.calibration.tensor_collection import find_first_non_finite_value
from trt_tui.core.data.samples import load_samples
from trt_tui.core.network.network import open_network

MASK = "constant mask_value is -Inf, and /mask/Mul (Mul) reads it"
EPSILON = "constant epsilon, which /norm/Add (Add) adds, is 0"
WEIGHT = "constant head.weight is Inf, and /head/MatMul (MatMul) reads it"
NETWORKS = {
    "mask": (halves.masked_half, MASK),
    "epsilon": (halves.divided_half, EPSILON),
    "weight": (halves.infinite_weight_half, WEIGHT),
}
FP32 = {"mask": {"mask": -3.4e38}, "epsilon": {}, "weight": {"weight": 1e5}}


@pytest.fixture(params=NETWORKS)
def broken(request, tmp_path, monkeypatch):
    """A half-precision file that lost a value, the FP32 network that it was made from, its data, and what is lost."""
    build, said = NETWORKS[request.param]
    onnx.save(build(), path := tmp_path / "half.onnx")
    with monkeypatch.context() as patched:
        patched.setattr(halves, "as_half", lambda model: model)
        onnx.save(build(**FP32[request.param]), exact := tmp_path / "exact.onnx")
    rng = np.random.default_rng(0)
    if request.param == "mask":
        kept = np.ones((16, 6), np.float16)
        kept[:, 4:] = 0
        data = {"x": rng.standard_normal((16, 6, 8)).astype(np.float16), "kept": kept}
    else:
        data = {"x": rng.standard_normal((16, 8)).astype(np.float16)}
        data["x"][::4] = 0
    np.savez(tmp_path / "data.npz", **data)
    outputs = quiet_session(onnx.load(exact)).run(None, {name: one.astype(np.float32) for name, one in data.items()})
    np.savez(tmp_path / "outputs.npz", y=outputs[0])
    return path, exact, tmp_path / "data.npz", tmp_path / "outputs.npz", said


def test_the_value_that_nan_comes_from_is_named(broken, backend):
    path, _, data, _, said = broken
    network = open_network(path, lambda: backend)
    samples = load_samples(str(data), network.inputs)
    found = find_first_non_finite_value(network.model, samples, 0, backend, {"y"})
    assert said in found.origin_text
    assert re.search(r"first tensor with NaN is \S+ the result of /(mask/Mul|norm/Div|head/MatMul) ", found.effect_text)


def test_the_origin_may_be_a_tensor_that_a_branch_captures(tmp_path, backend):
    b = Builder()
    b.node("Log", ["x"], "/log", output="origin")
    condition = b.node(
        "Greater", [b.node("ReduceMax", ["x"], "/max", keepdims=0), b.weight("two", np.float32(2))], "/c"
    )
    branches = {
        name: onnx.helper.make_graph([onnx.helper.make_node(op, ["origin"], [name])], name, [], [floats(name, 4, 8)])
        for name, op in (("then_branch", "Sqrt"), ("else_branch", "Identity"))
    }
    b.node("Abs", [b.node("If", [condition], "/if", **branches)], "/abs", output="y")
    onnx.save(b.model([floats("x", 4, 8)], [floats("y", 4, 8)]), path := tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=-np.ones((4, 8), np.float32))
    network = open_network(path, lambda: backend)
    samples = load_samples(str(tmp_path / "data.npz"), network.inputs)
    assert "/log/Log (Log)" in find_first_non_finite_value(network.model, samples, 0, backend, {"y"}).effect_text


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_ranges_are_refused_with_it(method, tmp_path, backend):
    onnx.save(halves.divided_half(), path := tmp_path / "half.onnx")
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 8), np.float16))
    network = open_network(path, lambda: backend)
    samples = load_samples(str(tmp_path / "data.npz"), network.inputs)
    with refused(title="/norm/Div_output_0' holds NaN", cause=EPSILON, next_step="--reference"):
        calibrate(network.model, network.calibrated_tensors, samples, backend, method=method)
    with refused(title="/norm/Div_output_0' holds NaN", cause=EPSILON):
        collect_tensor_stats(network.model, network.calibrated_tensors, samples, backend)


def test_a_network_that_is_finite_has_no_such_value(tmp_path, backend):
    onnx.save(halves.divided_half(epsilon=1e-3), path := tmp_path / "half.onnx")
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 8), np.float16))
    network = open_network(path, lambda: backend)
    assert (
        find_first_non_finite_value(
            network.model, load_samples(str(tmp_path / "data.npz"), network.inputs), 0, backend, {"y"}
        )
        is None
    )


def test_an_infinite_mask_that_softmax_ends_is_not_the_origin(tmp_path, backend):
    b = Builder()
    kept = b.node("Greater", ["x", b.weight("zero", np.float32(0))], "/kept")
    masked = b.node("Where", [kept, "x", b.weight("mask", np.float32(-np.inf))], "/mask")
    ratio = b.node("Div", [b.node("Softmax", [masked], "/softmax"), b.weight("one", np.float32(1))], "/ratio")
    b.node("Sqrt", [b.node("Sub", [ratio, b.weight("two", np.float32(2))], "/less")], "/root", output="y")
    onnx.save(b.model([floats("x", 4, 8)], [floats("y", 4, 8)]), path := tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 8), np.float32) - 2 * np.eye(4, 8, dtype=np.float32))
    network = open_network(path, lambda: backend)
    found = find_first_non_finite_value(
        network.model, load_samples(str(tmp_path / "data.npz"), network.inputs), 0, backend, {"y"}
    )
    assert found.origin_text == found.effect_text and "/root/Sqrt (Sqrt)" in found.effect_text


@pytest.mark.parametrize("command", [("compare", "--layers", "none"), ("search", "--tolerance", "sqnr>=30", "-o")])
def test_commands_name_it(command, broken, run, tmp_path):
    path, _, data, _, said = broken
    more = [tmp_path / "p.json"] if command[-1] == "-o" else []
    code, _, told = run(command[0], path, "--data", data, *command[1:], *more)
    assert code == 2 and not lacking(told, said, "the FP32 network")


def test_fp32_of_a_reference_network_becomes_the_reference(broken, run, tmp_path):
    path, exact, data, _, said = broken
    code, out, told = run("compare", path, "--data", data, "--reference", exact, "--json", tmp_path / "r.json")
    record = json.loads((tmp_path / "r.json").read_text())
    assert said not in told and "not measured" not in told and record["runs"]["config"]["outputs"]["y"]["nan"] > 0
    if "weight" in said:  # its FP32 result is beyond the FP16 output of the file
        return
    assert record["runs"]["fp16"]["outputs"]["y"]["sqnr_db"] > 40


def test_outputs_are_the_reference_and_shares_are_not_measured(broken, run):
    path, _, data, outputs, said = broken
    code, out, told = run("compare", path, "--data", data, "--reference", outputs)
    assert code in (0, 1) and not lacking(told, "Shares and errors", "not measured", said)
    assert "FP16" in out and "NaN" in out and "error shares" not in out and "complete ONNX file" not in out


def test_a_search_raises_what_lost_its_epsilon(tmp_path, run, monkeypatch):
    onnx.save(halves.divided_half(), path := tmp_path / "half.onnx")
    monkeypatch.setattr(halves, "as_half", lambda model: model)
    onnx.save(halves.divided_half(), exact := tmp_path / "exact.onnx")
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float16)
    x[::4] = 0
    np.savez(tmp_path / "data.npz", x=x)
    code, out, _ = run(
        *f"search {path} --data {tmp_path}/data.npz --reference {exact} --tolerance sqnr>=30".split(),
        *f"-o {tmp_path}/p.json".split(),
    )
    assert code == 0 and re.search("1 of 3 .* in FP32 meet", out)
