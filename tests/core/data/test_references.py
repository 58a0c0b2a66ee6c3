"""Outputs from elsewhere: dumps as Polygraphy writes them, what errors are taken against, and what is refused"""

import base64
import io
import json

import numpy as np
import onnx
import pytest
from onnx import helper
from polygraphy.comparator import RunResults
from polygraphy.json import save_json

from tests import networks
from tests.networks.build import Builder, floats
from tests.networks.odd import conv_net
from tests.schemas import mismatches
from trt_tui.core.data.samples import load_samples
from trt_tui.core.data.tensor_files import open_dump
from trt_tui.core.measure.results import Run, RunKind
from trt_tui.core.measure.run_sources import open_dump_run, open_file_run
from trt_tui.core.network.network import open_network
from trt_tui.errors import InputError
from trt_tui.files import lazy_json

QUICK = ("--layers", "none", "--no-preview")
"""A comparison at the outputs alone."""


def results(path, **runners):
    """Writes RunResults with Polygraphy itself; each runner is a list of iterations."""
    made = RunResults()
    for name, iterations in runners.items():
        made.add(iterations, runner_name=name)
    made.save(str(path))
    return path


def rows(y, batch):
    return [{"y": y[start : start + batch]} for start in range(0, len(y), batch)]


@pytest.mark.parametrize("kept", [lazy_json.MAX_KEPT_STRING_BYTES, 16])
def test_what_polygraphy_wrote_is_read_bit_for_bit(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(lazy_json, "MAX_KEPT_STRING_BYTES", kept)
    rng = np.random.default_rng(0)
    first = {
        "a": rng.standard_normal((3, 70)).astype(np.float32),
        'b"é': np.asfortranarray(rng.random((5, 4))),
        "flag": np.array(True),
        "none": np.zeros((0, 3), np.int64),
        "half": np.float16([1, np.nan, np.inf]),
    }
    path = results(tmp_path / "r.json", trt=[first, first], onnxrt=[{"a": first["a"] + 1}])
    for spec, iterations in ((str(path), [first, first]), (f"{path}:onnxrt", [{"a": first["a"] + 1}])):
        dump = open_dump(spec)
        assert dump.source == ("r.json:onnxrt" if spec.endswith(":onnxrt") else "r.json:trt")
        assert [list(one) for one in dump.iterations] == [list(one) for one in iterations]
        for found, expected in zip(dump.iterations, iterations, strict=True):
            for name, member in found.items():
                array = member.load()
                assert (member.dtype, member.shape) == (expected[name].dtype, expected[name].shape)
                np.testing.assert_array_equal(array, expected[name])
    array = lazy_json.read_lazy_json(path, "r.json")["lst"][0][1][0]["outputs"]["a"]["values"]["array"]
    assert isinstance(array, memoryview if kept == 16 else str)


def test_folders_inputs_and_npz_are_dumps_too(tmp_path):
    arrays = [{"y": np.full((2, 3), number, np.float32)} for number in range(12)]
    for number, one in enumerate(arrays):
        (tmp_path / "runs").mkdir(exist_ok=True)
        results(tmp_path / "runs" / f"iteration_{number}.json", trt=[one])
    save_json(arrays, str(tmp_path / "inputs.json"))
    np.savez(tmp_path / "all.npz", y=np.concatenate([one["y"] for one in arrays]))
    for name, count in (("runs", 12), ("inputs.json", 12), ("all.npz", 1)):
        dump = open_dump(str(tmp_path / name))
        assert len(dump.iterations) == count
        np.testing.assert_array_equal(np.concatenate([one["y"].load() for one in dump.iterations])[::2, 0], range(12))


def trtexec_outputs(path, **arrays):
    """Writes arrays as `exportJSONOutput` of trtexec does: an ostream has six digits, and its own NaN and infinity."""
    text, separator = "[\n", "  "
    for name, array in arrays.items():
        values = ", ".join(f"{value:.6g}" for value in np.asarray(array).reshape(-1).tolist())
        text += (
            f'{separator}{{ "name" : "{name}"\n  , "dimensions" : "{"x".join(map(str, np.shape(array)))}"\n'
            f'  , "values" : [ {values} ]\n  }}\n'
        )
        separator = ", "
    path.write_text(text + "]\n")
    return path


def test_what_trtexec_exports_is_a_dump(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 70), dtype=np.float32) * np.float32(1e-3)
    written = {
        "y": values,
        "odd": np.float32([[np.nan, np.inf, -np.inf, -np.nan, 1e20]]),
        "none": np.zeros((0, 4)),
        "classes": np.int64([[7], [50_000]]),
        "one": np.float32(2.5),
        "flags": np.bool_([True, False]),
    }
    path = trtexec_outputs(tmp_path / "engine.json", **written)
    dump = open_dump(str(path))
    (iteration,) = dump.iterations
    assert list(iteration) == list(written) and dump.source == "engine.json"
    for name, member in iteration.items():
        np.testing.assert_allclose(member.load(), written[name], rtol=1e-5)
        assert member.shape == np.shape(written[name])
    assert iteration["y"].dtype == np.float32 and iteration["classes"].dtype.kind == "i"


@pytest.mark.parametrize("batch", [16, 4])
def test_the_outputs_of_trtexec_are_those_of_production(batch, answered, tmp_path, run):
    options, x, y = answered
    for number, one in enumerate(rows(y, batch)):
        (tmp_path / "engine").mkdir(exist_ok=True)
        path = trtexec_outputs(tmp_path / "engine" / f"{number}.json", **one)
    outputs = tmp_path / "engine" if batch < 16 else path
    record = tmp_path / "record.json"
    code, text, err = run(
        "compare", options.model, "--data", options.data, "--batch", 4, *QUICK, "--outputs", outputs, "--json", record
    )
    assert code == 1 and "production differs from the tested config" in text, err  # these are FP32 and it is INT8
    (stage,) = json.loads(record.read_text())["stages"]
    noise = np.sum((np.float32([[f"{value:.6g}" for value in row] for row in y]) - y.astype(np.float64)) ** 2)
    expected = 10 * np.log10(np.sum(y.astype(np.float64) ** 2) / noise)
    assert stage["outputs"]["y"]["sqnr_db"] == pytest.approx(expected, abs=0.1) and expected > 100


@pytest.mark.parametrize(("runs", "saved"), [(("--runs", "int8,fp16"), "fp16"), ((), "int8")])
def test_production_is_compared_with_the_last_named_run(runs, saved, answered, tmp_path, run):
    options, outputs = answered[0], tmp_path / "production.json"
    command = ("compare", options.model, "--data", options.data, "--batch", 4, *QUICK, *runs)
    assert run(*command, "--save-outputs", f"{outputs}:{saved}")[0] == 0
    code, text, err = run(*command, "--outputs", outputs)
    assert code == 0 and "production agrees with the tested config" in text, err


def _text(data, kind="ndarray", key="array"):
    one = {key: base64.b64encode(data).decode() if isinstance(data, bytes) else data, "polygraphy_class": kind}
    return json.dumps(
        {
            "lst": [
                [
                    "trt",
                    [
                        {
                            "outputs": {"y": {"values": one, "polygraphy_class": "LazyArray"}},
                            "polygraphy_class": "IterationResult",
                        }
                    ],
                ]
            ],
            "polygraphy_class": "RunResults",
        }
    )


def _npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


GOOD = _text(_npy(np.arange(2000, dtype=np.float32)))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cut.json", GOOD[:5000], "cut off"),
        ("cut.json", GOOD[:-3], "cut off"),
        ("cut.json", GOOD[:40], "cut off"),
        ("more.json", GOOD + "x", "not valid JSON"),
        ("object.json", _text(_npy(np.array([{}], object))), "pickled Python objects"),
        ("object.json", _text(_npy(np.array([{}] * 2000, object))), "pickled Python objects"),
        ("short.json", _text(_npy(np.arange(2000)) + b"123"), "damaged"),
        ("torch.json", _text(b"any", "Tensor", "tensor"), "pickled torch tensor"),
        ("torch.json", _text(b"any" * 4000, "Tensor", "tensor"), "pickled torch tensor"),
        ("garbage.json", _text("%" * 9000), "not an array"),
        ("garbage.json", _text("abc"), "not an array"),
        ("list.json", "[1, 2]", "a list of numbers"),
        ("list.json", '{"y": [1, 2]}', "y is not an array"),
        ("list.json", '{"y": [1, 2]}', "a list of numbers"),
        ("cut.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2.5, ', "cut off"),
        ("cut.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2.5', "cut off"),
        ("mixed.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2.5, "3"]}]', "a list of numbers"),
        ("mixed.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2.5, null]}]', "a list of numbers"),
        ("mixed.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 1_0, 2]}]', "not valid JSON"),
        ("mixed.json", '[{"name": "y", "dimensions": "1", "values": [1, e-, 2]}]', "not valid JSON"),
        ("mixed.json", '[{"name": "y", "dimensions": "2", "values": [1, 2-3]}]', "not valid JSON"),
        ("mixed.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2,]}]', "not valid JSON"),
        ("mixed.json", '[{"name": "y", "dimensions": "1", "values": [' + "9" * 70 + "]}]", "a list of numbers"),
        ("mixed.json", '[{"name": "y", "dimensions": "1", "values": [' + "9" * (3 << 20), "not valid JSON"),
        ("short.json", '[{"name": "y", "dimensions": "1x3", "values": [1, 2]}]', "3 values, 2 are present"),
        ("short.json", '[{"name": "y", "dimensions": "1x3", "values": []}]', "3 values, 0 are present"),
        ("twice.json", json.dumps([{"name": "y", "dimensions": "2", "values": [1, 2]}] * 2), "the name occurs twice"),
        ("text.json", '[{"name": "y", "dimensions": "1x-3", "values": [1]}]', "dimensions such as 1x10"),
        ("text.json", '[{"name": "y", "dimensions": "1", "values": "1"}]', "dimensions such as 1x10"),
        ("deep.json", "[" * 200 + "]" * 200, "not a dump of tensors"),
        ("word.json", "hello", "not valid JSON"),
        ("other.json", json.dumps({"lst": [], "polygraphy_class": "AccuracyResult"}), "AccuracyResult"),
        ("empty.json", "", "is empty"),
        ("outputs.txt", "x", "not a dump of tensors"),
        ("none.json", json.dumps({"lst": [["trt", []]], "polygraphy_class": "RunResults"}), "holds no tensors"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_damaged_and_hostile_dumps_are_refused_by_name(name, text, said, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        open_dump(str(path))
    assert name in caught.value.title and said in str(caught.value) and caught.value.next_step


@pytest.mark.parametrize("batch", [16, 4, 3])
def test_a_dump_is_cut_as_the_samples_are(batch, answered, tmp_path, backend):
    options, x, y = answered
    network = open_network(options.model)
    some = load_samples(options.data, network.inputs, batch=4).select_feeds([3, 1])
    path = str(results(tmp_path / "o.json", trt=rows(y, batch)))
    run = Run("", RunKind.DUMP, file_path=path)
    outputs = open_file_run(run, network, some, backend, ())
    for number, feed in enumerate((3, 1)):
        np.testing.assert_array_equal(outputs.get_outputs(number)["y"], y[4 * feed : 4 * feed + 4])
    assert outputs.run.name == "o.json" and outputs.run.files == (tmp_path / "o.json",)
    assert outputs.extra_tensors == () and outputs.available_tensors == {"y"}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": np.zeros((15, 4), np.float32)}, "15 rows"),
        ({"y": np.zeros((32, 4), np.float32)}, "32 rows"),
        ({"y": np.zeros((16, 5), np.float32)}, "another shape"),
        ({"y": np.zeros((16, 4, 1), np.float32)}, "another shape"),
        ({"y": np.zeros((16, 4), np.complex64)}, "complex64"),
        ({"Y1": np.zeros((16, 4), np.float32)}, "no tensor in common"),
    ],
)
def test_a_dump_that_does_not_fit_is_refused_with_both_sides(arrays, said, mlp, tmp_path):
    network = open_network(mlp.model)
    np.savez(
        tmp_path / "o.npz",
        **{
            name: array[:, : network.shape("y")[1]] if array.shape[1:] == (4,) else array
            for name, array in arrays.items()
        },
    )
    samples = load_samples(mlp.data, network.inputs, batch=4)
    path = str(tmp_path / "o.npz")
    with pytest.raises(InputError) as caught:
        open_dump_run(Run("", RunKind.DUMP, file_path=path), open_dump(path), network, samples)
    text = str(caught.value)
    assert said in text and "o.npz" in text and ("mlp.onnx" in text or "mlp.npz" in text)


def test_a_scalar_of_each_feed_is_read(tmp_path):
    b = Builder()
    b.node("ReduceMax", ["x"], "/max", keepdims=0, output="y")
    onnx.save(b.model([floats("x", "n", 8)], [floats("y")]), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 8), np.float32))
    network = open_network(tmp_path / "net.onnx")
    path = str(results(tmp_path / "o.json", trt=[{"y": np.array(value, np.float32)} for value in (1, 2)]))
    samples = load_samples(str(tmp_path / "data.npz"), network.inputs, batch=2)
    outputs = open_dump_run(Run("", RunKind.DUMP, file_path=path), open_dump(path), network, samples)
    assert [outputs.get_outputs(index)["y"] for index in range(2)] == [1, 2]


def test_a_comparison_stands_against_what_was_named(answered, tmp_path, run):
    options, _, y = answered
    reference = results(tmp_path / "torch.json", torch=rows(y * np.float32(1.01), 16))
    out = tmp_path / "out.json"
    code, text, err = run(
        *f"compare {options.model} --data {options.data} --batch 4".split(),
        *QUICK,
        *f"--reference {reference} --json {out} --save-outputs {tmp_path}/saved.json".split(),
    )
    assert code == 0, err
    assert "against torch.json; layers and the FP32 engine against FP32 on ONNX Runtime" in text
    record = json.loads(out.read_text())
    assert mismatches(record, "comparison-v1") == [] and record["reference"]["source"] == "torch.json"
    assert list(record["runs"]) == ["fp32", "fp16", "int8", "config"]
    fp32 = record["runs"]["fp32"]["outputs"]["y"]
    assert fp32["sqnr_db"] == pytest.approx(20 * np.log10(1.01 / 0.01), abs=0.01)
    assert any(line.startswith("FP32 ") and f"{fp32['sqnr_db']:.1f}" in line for line in text.splitlines())

    saved = RunResults.load(str(tmp_path / "saved.json"))
    assert list(saved.keys()) == ["fp32", "fp16", "int8"]
    np.testing.assert_array_equal(np.concatenate([one["y"] for one in saved["fp32"]]), y)
    as_simulated = {run: record["runs"][run]["outputs"]["y"]["sqnr_db"] for run in ("fp32", "int8")}
    assert max(as_simulated.values()) < 45, "against neither FP32 nor torch.json is it met"
    code, text, err = run(
        *f"search {options.model} --data {options.data} --batch 4".split(),
        *f"--reference {tmp_path / 'saved.json'}:int8 --tolerance sqnr>=45 -o {tmp_path}/p.json".split(),
    )
    assert code == 0 and "INT8 meets it already: nothing to do (exact)" in text, err


@pytest.mark.parametrize("judge", [(), ("--judge", "y")])
def test_an_output_that_a_reference_lacks_makes_a_pass_uncertain_unless_the_user_leaves_it_out(
    answered, tmp_path, run, judge
):
    options, _, y = answered
    model = onnx.load(options.model)
    inner = model.graph.node[0].output[0]
    model.graph.output.append(helper.make_tensor_value_info(inner, onnx.TensorProto.FLOAT, None))
    onnx.save(model, options.model)
    reference = results(tmp_path / "torch.json", torch=rows(y, 16))
    code, text, err = run(
        *f"compare {options.model} --data {options.data} --batch 4".split(),
        *QUICK,
        *f"--reference {reference} --runs fp16 --target sqnr>=30".split(),
        *judge,
    )
    assert code == 0 and f"the output {inner} is not judged" * (not judge) in text, err
    assert ("not judged" in text) == ("PASS?" in text) == (not judge), text


def test_a_network_is_held_against_another(tmp_path, run):
    exact, given = tmp_path / "fp32.onnx", tmp_path / "given.onnx"
    onnx.save(conv_net(0), exact)
    onnx.save(networks.quantized(), given)
    other = tmp_path / "other.onnx"
    onnx.save(conv_net(5), other)
    found = {}
    for model, reference in ((given, exact), (exact, other), (exact, given)):
        code, text, err = run(
            "compare", model, "--samples", 16, *QUICK, "--reference", reference, "--json", tmp_path / "out.json"
        )
        assert code == 0 and f"against {reference.name};" in text, err
        assert text.startswith("FP32 itself misses the target against other.onnx") == (reference is other)
        record = json.loads((tmp_path / "out.json").read_text())
        found[reference.name] = {
            name: next(iter(one["outputs"].values()))["sqnr_db"] for name, one in record["runs"].items()
        }
    assert found["fp32.onnx"]["fp32"] is None or found["fp32.onnx"]["fp32"] > 100, "with the weights of fp32.onnx"
    assert found["other.onnx"]["fp32"] < 10, "other weights"
    assert 10 < found["given.onnx"]["fp32"] < 60, "quantization error"


@pytest.mark.parametrize(
    "command",
    [
        ("search", "--tolerance", "sqnr>=20", "-o", "found.json"),
        ("methods", "--calib-methods", "minmax,mse", "--target", "sqnr>=20"),
        ("compare", "--target", "sqnr>=20", "--no-preview"),
    ],
)
def test_fp32_that_misses_the_target_comes_first(command, tmp_path, run, monkeypatch):
    """No layer, precision or calibration method is advised: none of them can correct another network."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("model.onnx", 0), ("other.onnx", 5)):
        onnx.save(conv_net(seed), name)
    code, text, err = run(*command, "model.onnx", "--samples", 16, "--reference", "other.onnx")
    assert code == 1 and text.startswith("FP32 itself misses the target against other.onnx: "), text + err
    assert not any(advice in text + err for advice in ("alone causes", "The best is", "--calib-method mse"))
