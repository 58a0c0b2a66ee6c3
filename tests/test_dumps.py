"""`compare A.json B.json`: two dumps of tensors, and what is written to mend the second"""

import json
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.driven import save_mlp
from tests.measuring import errors_between
from tests.schemas import mismatches
from tests.test_references import results
from trt_tui.core.data.dumps import open_dump
from trt_tui.core.measure import dumped
from trt_tui.core.measure.dumped import common_tensors, compare_tensor, placed
from trt_tui.core.moves.file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError


def compared(first, second, threshold=0.1):
    one, other = open_dump(str(first)), open_dump(str(second))
    both, *alone = common_tensors(one, other)
    return [list(compare_tensor(one, other, name, threshold))[-1] for name in both], alone


@pytest.mark.parametrize("block", [1 << 18, 1000])
def test_figures_are_those_of_whole_arrays(block, tmp_path, monkeypatch):
    monkeypatch.setattr(dumped, "BLOCK", block)
    rng = np.random.default_rng(0)
    a = [{"x": rng.standard_normal((3, 1500)).astype(np.float32), "f": np.asfortranarray(rng.random((50, 40))),
          "i": np.arange(9), "only": np.zeros(1)} for _ in range(2)]
    b = [{"i": one["i"] + 1, "f": one["f"] * 1.5, "x": one["x"] + np.float32(0.01), "other": np.zeros(1)} for one in a]
    found, alone = compared(results(tmp_path / "a.json", a=a), results(tmp_path / "b.json", b=b))
    assert [one.name for one in found] == ["x", "f", "i"] and alone == [("only",), ("other",)]
    for one in found:
        expected = np.concatenate([each[one.name].astype(float).ravel() for each in a])
        test = np.concatenate([each[one.name].astype(float).ravel() for each in b])
        errors = errors_between(expected, test)
        assert one.errors.sqnr_db == pytest.approx(errors.sqnr_db) and one.errors.max_abs == errors.max_abs
        assert one.errors.mean_abs == pytest.approx(errors.mean_abs)
        nonzero = expected != 0
        each = np.abs(test - expected)[nonzero] / np.abs(expected)[nonzero]
        assert one.mean_relative == pytest.approx(each.mean()) and one.max_relative == pytest.approx(each.max())
        assert one.relative == pytest.approx(np.linalg.norm(test - expected) / np.linalg.norm(expected))
        assert one.over == (one.relative > 0.1)


@pytest.mark.parametrize(("first", "second", "relative", "bad"), [
    ([1, 2, np.nan, np.inf], [1, 2, np.nan, np.inf], 0.0, 0),
    ([1, 2, 3, 4], [1, 2, np.nan, np.inf], np.inf, 2),
    ([0, 0, 0, 0], [0, 0, 0, 1], np.inf, 0),
    ([0, 0, 0, 0], [0, 0, 0, 0], 0.0, 0),
    ([True, False, True, True], [True, False, True, False], 0.577, 0),
])
def test_what_is_not_finite_and_what_is_zero(first, second, relative, bad, tmp_path):
    np.savez(tmp_path / "a.npz", y=np.array(first))
    np.savez(tmp_path / "b.npz", y=np.array(second))
    (one,), _ = compared(tmp_path / "a.npz", tmp_path / "b.npz")
    assert one.relative == pytest.approx(relative, abs=1e-3) and one.errors.bad == bad


@pytest.mark.parametrize(("first", "second", "said"), [
    ([{"y": np.zeros(3)}], [{"Y2": np.zeros(3)}], "no tensor in common"),
    ([{"y": np.zeros(3)}], [{"y": np.zeros(3)}] * 2, "iterations"),
    ([{"y": np.zeros(3)}], [{"y": np.zeros((3, 1))}], "different shapes"),
    ([{"y": np.array(["a"])}], [{"y": np.array(["a"])}], "no numbers"),
])
def test_dumps_that_do_not_fit_each_other_are_refused(first, second, said, tmp_path):
    with pytest.raises(InputError, match=said) as caught:
        compared(results(tmp_path / "a.json", a=first), results(tmp_path / "b.json", b=second))
    assert "a.json" in str(caught.value) and caught.value.next_step


@pytest.fixture
def runs(tmp_path):
    """All tensors of a network as they are, and with the weights of the second layer changed."""
    options = save_mlp(tmp_path)
    model = onnx.shape_inference.infer_shapes(onnx.load(options.model))
    model.graph.output.extend(one for one in model.graph.value_info)
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    second = [node for node in changed.graph.node if node.op_type in ("Gemm", "MatMul")][1]
    for one in changed.graph.initializer:
        if one.name in second.input:
            one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one) * 2, one.name))
    with np.load(options.data) as data:
        x = data["x"]
    for name, one in (("a.json", model), ("b.json", changed)):
        session = onnxruntime.InferenceSession(one.SerializeToString())
        names = [each.name for each in session.get_outputs()]
        arrays = dict(zip(names, session.run(None, {"x": x}), strict=True))
        results(tmp_path / name, run=[dict(reversed(arrays.items()))])
    return options, second, tmp_path / "a.json", tmp_path / "b.json"


def test_the_layer_at_fault_is_named_and_mended(runs, tmp_path, run):
    options, at_fault, a, b = runs
    out, script, config = tmp_path / "d.json", tmp_path / "fix.py", tmp_path / "precision.json"
    code, text, err = run("compare", a, b, "--model", options.model, "--json", out, "--script", script, "-o", config)
    assert code == 1, err
    record = json.loads(out.read_text())
    assert mismatches(record, "dumps-v1") == []
    network = open_network(options.model)
    made = [name for layer in network.layers for name in layer.outputs if name in record["tensors"]]
    assert list(record["tensors"]) == made, "in network order"
    group = network.group_of(at_fault.name)
    begins = {one["group"] for one in record["tensors"].values() if one["begins"]}
    assert begins == {group.name} and record["first_over"] == at_fault.output[0]
    assert f"First over the threshold: {at_fault.output[0]}" in text and f"Try FP32 for {group.name}" in text
    loaded = read_config(config, network).config
    assert list(loaded.raised(network)) == [group.name] and loaded.quantized is Precision.FP16

    told = {}
    outputs = {layer.name: layer.outputs for layer in network.layers}

    def layer(name):
        one = SimpleNamespace(num_outputs=len(outputs[name]), precision=None)
        one.get_output = lambda number: SimpleNamespace(name=outputs[name][number], dtype="float32")
        one.set_output_type = lambda number, dtype: told.setdefault(name, (one.precision, dtype))
        return one

    trt = SimpleNamespace(ILayer=SimpleNamespace(set_output_type=None), float32="float32", float16="float16",
                          __version__="8.6")
    layers = [layer(name) for name in outputs]
    module = {}
    sys.modules["tensorrt"], before = trt, sys.modules.get("tensorrt")
    try:
        exec(compile(script.read_text(), "fix.py", "exec"), module)
    finally:
        del sys.modules["tensorrt"]
        sys.modules.update({"tensorrt": before} if before is not None else {})
    module["postprocess"](SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__))
    assert told == dict.fromkeys(group.layers, ("float32", "float32"))
    with pytest.raises(SystemExit, match="not in the network"):
        module["postprocess"](SimpleNamespace(num_layers=1, get_layer=layers.__getitem__))


def test_the_threshold_decides_the_exit_code_and_nothing_is_written_without_a_fault(runs, tmp_path, run):
    _, _, a, b = runs
    code, text, err = run("compare", a, b, "--threshold", 1e6, "--script", tmp_path / "fix.py", "--top-k", 1)
    assert code == 0 and "No tensor is over the threshold" in text and "the worst 1 of them" in text
    assert not (tmp_path / "fix.py").exists() and "nothing was written" in err
    one, other = (open_dump(str(path)) for path in (b, a))
    found = placed([list(compare_tensor(one, other, name, 0.1))[-1] for name in one.names], None)
    assert sum(each.begins for each in found) >= 1


@pytest.mark.parametrize(("arguments", "said"), [
    (["{a}"], "compared with nothing"),
    (["{a}", "{a}"], "compared with itself"),
    (["{model}", "{b}"], "not two dumps"),
    (["{model}", "--threshold", "1"], "would do nothing"),
    (["{a}", "{b}", "--samples", "3"], "would do nothing"),
    (["{a}", "{b}", "-o", "p.json"], "needs a network"),
    (["{a}", "{b}", "--model", "{model}", "--force"], "would do nothing"),
    (["{a}", "gone.json"], "does not exist"),
    (["{a}", "{b}", "--script", "{a}"], "is read from"),
    (["{a}", "{b}:other"], "no runner other"),
])
def test_usage_of_two_dumps(arguments, said, runs, run):
    options, _, a, b = runs
    before = a.read_bytes()
    names = {"a": a, "b": b, "model": options.model}
    code, _, err = run("compare", *(argument.format(**names) for argument in arguments))
    assert code == 2 and said in err and "Next: " in err
    assert a.read_bytes() == before
