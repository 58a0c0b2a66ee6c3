"""`dumps A.json B.json`: two dumps of tensors, and what is written to mend the second"""

import argparse
import ast
import json
import shlex

import numpy as np
import onnx
import onnxruntime
import pytest
from polygraphy.json import save_json
from polygraphy.tools._main import main as polygraphy
from polygraphy.tools.convert import convert

from tests.core.data.test_references import results
from tests.core.exporters.test_production_exporters import postprocess
from tests.core.lowering.test_weak import Parsed
from tests.driven import save_mlp, save_resnet
from tests.measuring import errors_between
from tests.networks import Builder, floats
from tests.schemas import mismatches
from tests.texts import first_over, lacking
from trt_tui.core.calibration.cache import write_calibration_cache
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.tensor_files import open_dump
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.measure import dump_comparison
from trt_tui.core.measure.dump_comparison import (
    find_common_tensors,
    find_min_mask_magnitude,
    measure_tensor_difference,
    sort_in_network_order,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.constant_moves import SmoothQuantMove, encode_vector
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError


def difference(one, other, name, threshold=0.1, *mask):
    return list(measure_tensor_difference(one, other, name, threshold, *mask))[-1]


def compared(first, second, threshold=0.1):
    one, other = open_dump(str(first)), open_dump(str(second))
    both, *alone = find_common_tensors(one, other)
    return [difference(one, other, name, threshold) for name in both], alone


@pytest.mark.parametrize("block", [1 << 18, 1000])
def test_figures_are_those_of_whole_arrays(block, tmp_path, monkeypatch):
    monkeypatch.setattr(dump_comparison, "BLOCK_ELEMENTS", block)
    rng = np.random.default_rng(0)
    a = [
        {
            "x": rng.standard_normal((3, 1500)).astype(np.float32),
            "f": np.asfortranarray(rng.random((50, 40))),
            "i": np.arange(9, dtype=np.int8),
            "only": np.zeros(1),
        }
        for _ in range(2)
    ]
    b = [{"i": one["i"] + 1, "f": one["f"] * 1.5, "x": one["x"] + np.float32(0.01), "other": np.zeros(1)} for one in a]
    found, alone = compared(results(tmp_path / "a.json", a=a), results(tmp_path / "b.json", b=b))
    assert [one.tensor for one in found] == ["x", "f", "i"] and alone == [("only",), ("other",)]
    for one in found:
        expected = np.concatenate([each[one.tensor].astype(float).ravel() for each in a])
        test = np.concatenate([each[one.tensor].astype(float).ravel() for each in b])
        errors = errors_between(expected, test)
        assert one.errors.sqnr_db == pytest.approx(errors.sqnr_db) and one.errors.max_abs == errors.max_abs
        assert one.errors.mean_abs == pytest.approx(errors.mean_abs)
        nonzero = expected != 0
        each = np.abs(test - expected)[nonzero] / np.abs(expected)[nonzero]
        assert one.mean_relative_error == pytest.approx(each.mean()) and one.max_relative_error == pytest.approx(
            each.max()
        )
        assert one.relative_error == pytest.approx(np.linalg.norm(test - expected) / np.linalg.norm(expected))
        assert one.exceeds_threshold == (one.relative_error > 0.1)


@pytest.mark.parametrize(
    ("first", "second", "relative", "bad"),
    [
        ([1, 2, np.nan, np.inf], [1, 2, np.nan, np.inf], 0.0, 0),
        ([1, 2, 3, 4], [1, 2, np.nan, np.inf], np.inf, 2),
        ([0.0, 0, 0, 0], [0.0, 0, 0, 1], np.inf, 0),
        ([0.0, 0, 0, 0], [0.0, 0, 0, 0], 0.0, 0),
        ([True, False, True, True], [True, False, True, False], 0.25, 0),
        ([900, 7, 0, 3], [901, 7, 0, 3], 0.25, 0),
        ([900, 7, 0, 3], [900, 7, 0, 3], 0.0, 0),
        (np.int8([90, 7, 0, 3]), np.int8([91, 7, 0, 3]), 0.011, 0),
        ([1, np.nan, 3, np.inf], [1, 2, 3, 4], np.inf, 2),
        ([1, np.nan, 3, np.inf], [1, np.inf, 3, np.nan], np.inf, 4),
        ([np.nan] * 4, [np.nan] * 4, np.inf, 0),
    ],
)
def test_what_is_not_finite_and_what_is_zero(first, second, relative, bad, tmp_path):
    np.savez(tmp_path / "a.npz", y=np.array(first))
    np.savez(tmp_path / "b.npz", y=np.array(second))
    (one,), _ = compared(tmp_path / "a.npz", tmp_path / "b.npz")
    assert (
        one.relative_error == pytest.approx(relative, abs=1e-3)
        and one.nonfinite_count == bad
        and one.exceeds_threshold == (relative > 0.1)
        and bool(one.mismatch_text) is (relative == 0.25)
    )


@pytest.mark.parametrize(
    ("first", "second", "masked", "over"),
    [
        ([-3.4e38, 1], [-32752, 1], 1, False),
        ([-32752, 1], [-3.4e38, 1], 1, False),
        ([-1e9, 1], [-32752, 1], 1, False),
        ([-3.4e38, 1], [32752, 1], 0, True),
        ([-3.4e38, 1], [-10, 1], 0, True),
        ([-3.4e38, 1], [-np.inf, 1], 0, True),
        ([-3.4e38, 1], [-32752, 9], 1, True),
        ([-99000, 1], [-32752, 1], 0, True),
        ([-3.4e38, 1], [-1.7e38, 1], 1, False),
        ([-1e9, 1], [-1.001e9, 1], 1, False),
        ([1e9, 1], [5e8, 1], 0, True),
        ([-1e9, 1], [-1e5, 1], 0, True),
    ],
)
def test_a_mask_that_fp16_clamps_is_no_error(first, second, masked, over, tmp_path):
    for name, values in (("a", first), ("b", second)):
        np.savez(tmp_path / f"{name}.npz", y=np.array(values, np.float64))
    dumps = [open_dump(str(tmp_path / name)) for name in ("a.npz", "b.npz")]
    one = difference(*dumps, "y", 0.1, 5e8)
    assert (one.masked_count, one.exceeds_threshold) == (masked, over)


def test_the_masks_of_a_network_are_known(opened):
    b = Builder()
    b.weights.append(onnx.numpy_helper.from_array(np.float32(-1e9), "hidden"))
    kept = b.node("Where", ["m", "x", "hidden"], name="w")
    b.node("Softmax", [kept], name="s", output="y")
    mask = onnx.helper.make_tensor_value_info("m", onnx.TensorProto.BOOL, [2, 4])
    assert (
        find_min_mask_magnitude(opened(b.model([floats("x", 2, 4), mask], [floats("y", 2, 4)], name="masked"))) == 5e8
    )
    assert find_min_mask_magnitude(None) == 2.0**127


def test_channels_that_the_config_scales_are_no_difference(tmp_path, run):
    """SmoothQuant divides what a norm yields and multiplies the weights behind it."""
    b = Builder()
    scale, shift = b.vector("scale", 8, 1.0), b.vector("shift", 8)
    norm = b.node("LayerNormalization", ["x", scale, shift], name="n", output="t", axis=-1)
    b.node("MatMul", [norm, b.kernel("w", (8, 4), 8)], name="m", output="y")
    model = tmp_path / "net.onnx"
    onnx.save(b.model([floats("x", 2, 8)], [floats("y", 2, 4)], name="net"), model)
    network = open_network(model)
    (group,) = network.zero_cost_support.norms
    config = tmp_path / "precision.json"
    config.write_text(
        config_text(
            network,
            PrecisionConfig.from_precision(Precision.FP16).with_moves(
                {group: SmoothQuantMove(0.5, encode_vector(np.full(8, 4.0)))}
            ),
        )
    )
    x, t, y = np.ones((2, 8)), np.ones((2, 8)), np.ones((2, 4))
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(first, x=x, t=t, y=y)
    for values, beside, code in ((t / 4, y, 0), (t / 4, y * 2, 1), (np.where(t, np.nan, t), y, 1)):
        np.savez(second, x=x, t=values, y=beside)
        done, text, err = run("dumps", first, second, "--model", model, "--config", config)
        is_finite = np.isfinite(values).all()
        assert done == code and ("channels of t" in text) == is_finite, (text, err)
        assert first_over(text) == ([] if not code else ["y" if is_finite else "t"])
    np.savez(second, x=x, t=t / 4, y=y)
    assert run("dumps", first, second, "--model", model)[0] == 1


def test_a_value_that_overflows_is_kept_in_fp32_where_it_is_read_too(tmp_path, run):
    """Raising what makes it alone lets it overflow at the Cast in front of what reads it."""
    b = Builder()
    large = b.node("MatMul", ["x", b.kernel("w", (8, 8), 8)], name="m", output="large")
    copied = b.node(
        "Reshape", [large, b.weights.append(onnx.numpy_helper.from_array(np.int64([2, 8]), "to")) or "to"], name="r"
    )
    b.node("Softmax", [copied], name="s", output="y")
    model, config, data = tmp_path / "net.onnx", tmp_path / "fix.json", tmp_path / "d.npz"
    onnx.save(b.model([floats("x", 2, 8)], [floats("y", 2, 8)], name="net"), model)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32) * 1e6
    np.savez(data, x=x)
    for name, value in (("a", 2e6), ("b", np.inf)):
        np.savez(tmp_path / f"{name}.npz", large=np.full((2, 8), value), y=np.full((2, 8), 0.125))
    assert run("dumps", tmp_path / "a.npz", tmp_path / "b.npz", "--model", model, "-o", config)[0] == 1
    network = open_network(model)
    assert {"m", "s"} <= {
        layer
        for group in read_config(config, network).config.find_raised_groups(network)
        for layer in network.get_group(group).layers
    }
    code, out, _ = run("compare", model, "--data", data, "--config", config, "--layers", "none", "--json", "-")
    runs = json.loads(out)["runs"]
    assert runs["fp16"]["outputs"]["y"]["nan"] and not runs["config"]["outputs"]["y"]["nan"]


@pytest.mark.parametrize(("side", "other"), [(0, 2), (1, 2), (0, -np.inf)])
def test_nan_in_either_dump_is_the_first_difference(side, other, tmp_path, run):
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    worse = np.nan if other == 2 else np.inf
    for place, path in enumerate(paths):
        np.savez(path, h=np.ones(4), t=np.array([1, worse if place == side else other]), y=np.full(3, place + 1.0))
    code, text, _ = run("dumps", *paths)
    assert code == 1 and first_over(text) == ["t"]
    (line,) = (line for line in text.splitlines() if line.startswith(f"{paths[side].name} has 1 NaN or Inf"))
    assert paths[1 - side].name in line
    for path in paths:
        np.savez(path, h=np.ones(4), t=np.array([1, np.nan]), y=np.full(3, float(side + 1)))
    code, text, _ = run("dumps", *paths)
    assert code == 0 and not first_over(text) and not lacking(text, "places of t", "NaN in both")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([{"y": np.zeros(3)}], [{"Y2": np.zeros(3)}], "no tensor in common"),
        ([{"y": np.zeros(3)}], [{"y": np.zeros(3)}] * 2, "iterations"),
        ([{"y": np.zeros(3)}], [{"y": np.zeros((3, 1))}], "different shapes"),
        ([{"y": np.array(["a"])}], [{"y": np.array(["a"])}], "no real numbers"),
    ],
)
def test_dumps_that_do_not_fit_each_other_are_refused(first, second, said, tmp_path):
    with pytest.raises(InputError, match=said) as caught:
        compared(results(tmp_path / "a.json", a=first), results(tmp_path / "b.json", b=second))
    assert "a.json" in str(caught.value) and caught.value.next_step


def test_complex_numbers_are_refused_and_large_integers_are_compared_exactly(tmp_path, run):
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(first, y=np.full(4, 2**60))
    np.savez(second, y=np.full(4, 2**60 + 1))
    code, text, _ = run("dumps", first, second)
    assert code == 1 and "100%" in text
    np.savez(second, y=np.full(4, 2**60 + 1j))
    code, _, error = run("dumps", first, second)
    assert code == 2 and "complex128 in b.npz" in error


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


def test_the_layer_at_fault_is_named_and_mended(runs, tmp_path, run, monkeypatch):
    options, at_fault, a, b = runs
    out, script, config = tmp_path / "d.json", tmp_path / "fix.py", tmp_path / "precision.json"
    code, text, err = run("dumps", a, b, "--model", options.model, "--json", out, "-o", config)
    assert code == 1, err
    assert run("export", options.model, "--config", config, "--format", "polygraphy", "-o", script)[0] == 0
    record = json.loads(out.read_text())
    assert mismatches(record, "dumps-v1") == []
    network = open_network(options.model)
    made = [name for layer in network.layers for name in layer.outputs if name in record["tensors"]]
    assert list(record["tensors"]) == made, "in network order"
    group = network.find_group(at_fault.name)
    begins = {one["group"] for one in record["tensors"].values() if one["begins"]}
    assert begins == {group.name} and record["first_over"] == at_fault.output[0]
    assert first_over(text) == [at_fault.output[0]] and f"Try FP32 for {group.name}" in text
    loaded = read_config(config, network)
    assert list(loaded.config.find_raised_groups(network)) == [group.name] and loaded.config.quantized is Precision.FP16
    parsed = Parsed(network, "8.6.1")
    postprocess(script, parsed, monkeypatch)
    assert {name for name, one in parsed.told().items() if one.get("precision") == "FLOAT"} <= set(group.layers)
    assert parsed.told()[group.layers[0]]["precision"] == "FLOAT" and taken(script)["fp16"]
    with pytest.raises(SystemExit, match="not in the network"):
        postprocess(script, Parsed(open_network(save_resnet(tmp_path).model), "8.6.1"), monkeypatch)


def taken(script):
    """What Polygraphy's own parser makes of the command at the top of a script; the files that it names are there."""
    command = ast.get_docstring(ast.parse(script.read_text())).split("\n\n")[1].replace("\\\n", " ")
    parser = argparse.ArgumentParser()
    convert.Convert().setup_parser(parser.add_subparsers())
    parsed = vars(parser.parse_args(shlex.split(command)[1:]))
    files = [parsed["model_file"], *parsed["trt_network_postprocess_script"], parsed["calibration_cache"]]
    assert all((script.parent / file).is_file() for file in files if file)
    return parsed


@pytest.mark.parametrize("base", ["precision.json", "line.sh", "cache elsewhere"])
@pytest.mark.parametrize("kind", ["py", "sh"])
def test_the_config_stays_the_base_of_a_fix(runs, tmp_path, run, monkeypatch, base, kind):
    """INT8 with its ranges, and what it had raised before, however the config is told."""
    options, at_fault, a, b = runs
    network = open_network(options.model)
    ranges = {tensor: 2.0 + place for place, tensor in enumerate(network.calibrated_tensors)}
    first = next(group for group in network.groups if group.name != network.find_group(at_fault.name).name)
    started, given = PrecisionConfig().with_group_precision([first], Precision.FP32), tmp_path / "base.sh"
    write_calibration_cache(tmp_path / "calib.cache", ranges, "EntropyCalibration2")
    if base == "precision.json":
        given = tmp_path / base
        given.write_text(config_text(network, started, Calibration("entropy", 9, "", ranges)))
    else:
        cache = "calib.cache" if base == "line.sh" else "gone.cache"
        raised = ",".join(f"{name}:fp32" for name in first.layers)
        given.write_text(
            f"trtexec --int8 --fp16 --noTF32 --calib={cache} --precisionConstraints=obey --layerPrecisions={raised}"
        )
    script, config = tmp_path / f"fix.{kind}", tmp_path / "fix.json"
    more = ("--calib-cache", tmp_path / "calib.cache") if base.startswith("cache") else ()
    code, _, err = run("dumps", a, b, "--model", options.model, "--config", given, "-o", config, *more)
    assert code == 1, err
    code, _, err = run(
        *f"export {options.model} --config {config} --format".split(),
        "polygraphy" if kind == "py" else "trtexec",
        *f"-o {script} --shapes x:1x16:4x16:8x16".split(),
    )
    assert code == 0, err
    loaded = read_config(config, network)
    expected = started.with_group_precision([network.find_group(at_fault.name)], Precision.FP32)
    assert loaded.config == expected and set(loaded.calibration.ranges) == set(ranges)
    assert loaded.calibration.ranges == pytest.approx(ranges)
    assert json.loads(config.read_text())["model"]["sha256"] == network.sha256()
    if kind == "py":
        command = taken(script)
        assert command["int8"] and command["fp16"] and command["precision_constraints"] == "obey"
        assert command["calibration_cache"] == "fix.py.cache" and command["trt_max_shapes"] == [["x:[8,16]"]]
        parsed = Parsed(network, "10.16.1")
        postprocess(script, parsed, monkeypatch)
        assert parsed.ranges() and any(one.get("precision") == "FLOAT" for one in parsed.told().values())
    else:
        line = script.read_text().split("10-weak)")[1].split(";;")[0]
        assert {"--int8", "--calib=fix.sh.cache", "--maxShapes=x:8x16"} <= set(line.split())
        (tmp_path / "weak.sh").write_text(line.replace('"$trtexec"', "trtexec"))
        read = read_any_config(tmp_path / "weak.sh", network).config
        assert read.precision_by_group(network) == expected.precision_by_group(network)


def noisy(random, array, error):
    noise = random.standard_normal(array.shape)
    return (array + noise * (error * np.linalg.norm(array) / np.linalg.norm(noise))).astype(np.float32)


def write_branches(folder):
    """A network of twelve branches behind one product, and a trunk of two products behind them; its tensors."""
    b = Builder()
    first = b.node("MatMul", ["x", b.kernel("first.weight", (8, 8), 8)], "/first", output="first")
    branches = [
        b.node("MatMul", [first, b.kernel(f"w{index}", (8, 8), 8)], f"/branch{index}", output=f"branch{index}")
        for index in range(12)
    ]
    b.node(
        "MatMul",
        [b.node("Concat", branches, "/join", output="joined", axis=-1), b.kernel("t", (96, 8), 96)],
        "/trunk",
        output="trunk",
    )
    b.node("MatMul", ["trunk", b.kernel("l", (8, 8), 8)], "/late", output="late")
    onnx.save(b.model([floats("x", 64, 8)], [floats("late", 64, 8)]), folder / "net.onnx")
    return {"x": 0.0, "first": 0.01, **dict.fromkeys(branches, 0.11), "joined": 0.11, "trunk": 0.11, "late": 0.11}


def raised_by_a_fix(folder, run, errors):
    """The groups that a fix of two dumps with these relative errors raises, and the advice."""
    random = np.random.default_rng(0)
    values = {name: random.standard_normal((64, 96 if name == "joined" else 8)).astype(np.float32) for name in errors}
    np.savez(folder / "a.npz", **values)
    np.savez(folder / "b.npz", **{name: noisy(random, values[name], error) for name, error in errors.items()})
    code, text, err = run(
        "dumps", folder / "a.npz", folder / "b.npz", "--model", folder / "net.onnx", "-o", folder / "fix.json"
    )
    assert code == 1, err
    network = open_network(folder / "net.onnx")
    return set(read_config(folder / "fix.json", network).config.find_raised_groups(network)), text


@pytest.mark.parametrize(
    ("trunk", "late", "raised"),
    [
        (0.186, 0.186, ["/trunk/MatMul"]),  # the trunk adds 0.15 to the 0.11 of the branches, which is no doubling
        (0.186, 0.25, ["/late/MatMul", "/trunk/MatMul"]),
        (0.115, 0.115, []),
        (0.6, 0.7, ["/trunk/MatMul"]),
    ],
)  # behind a large error the next one says nothing
def test_a_fix_begins_with_the_layer_that_adds_most(tmp_path, run, trunk, late, raised):
    groups, text = raised_by_a_fix(tmp_path, run, write_branches(tmp_path) | {"trunk": trunk, "late": late})
    assert groups == {*raised, *(f"/branch{index}/MatMul" for index in range(12))}
    advice = text.split("Try FP32 for ")[1]
    assert all(advice.index(name) < advice.index("/branch") for name in raised) and (
        not raised or advice.startswith(raised[0])
    )


def test_the_worst_layer_is_raised_if_few_layers_precede_the_tensors_of_both(tmp_path, run):
    errors = {name: error for name, error in write_branches(tmp_path).items() if name not in ("x", "first")}
    groups, text = raised_by_a_fix(tmp_path, run, errors | {"branch7": 0.4})
    assert {"/branch7/MatMul", "/first/MatMul"} <= groups and text.split("Try FP32 for ")[1].startswith("/branch7/")


def test_one_dump_is_listed(tmp_path, run):
    y = np.array([[1, 2, np.nan], [np.inf, -5, 0]], np.float32)
    results(
        tmp_path / "d.json",
        first=[{"y": y, "i": np.arange(4)}, {"y": y + 2, "i": np.arange(4)}],
        other=[{"z": np.zeros((0, 3), np.float32)}],
    )
    code, text, err = run("dumps", f"{tmp_path / 'd.json'}")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert code == 0 and not lacking(text, "2 tensors", "2 iterations"), err
    assert rows["y"][1:] == ["float32", "2x3", "-5.00", "4.00", "0.500", "2", "2"]
    assert rows["i"][1:] == ["int64", "4", "0.000", "3.00", "1.50", "0", "0"]
    assert "z  " in run("dumps", f"{tmp_path / 'd.json'}:other")[1]
    code, _, err = run("dumps", tmp_path / "d.json", "--threshold", 1)
    assert code == 2 and err.startswith("Error: --threshold ")
    assert "from 0.3 on" in run("inspect", tmp_path / "d.json")[2]
    assert "does not exist" in run("dumps", tmp_path / "gone.npz")[2]


def test_a_config_that_mends_nothing_is_not_written(runs, tmp_path, run):
    options, at_fault, a, b = runs
    config, out = tmp_path / "base.sh", tmp_path / "none.json"
    config.write_text("trtexec --int8 --fp16")
    common = ("dumps", a, b, "--model", options.model, "--config", config)
    code, _, err = run(*common, "-o", tmp_path / "fix.json")
    assert code == 1 and "no ranges" in err and (tmp_path / "fix.json").exists()
    group = open_network(options.model).find_group(at_fault.name)
    config.write_text(
        "trtexec --fp16 --precisionConstraints=obey --layerPrecisions="
        + ",".join(f"{name}:fp32" for name in group.layers)
    )
    code, _, err = run(*common, "-o", out)
    assert code == 1 and f"keeps {group.name} in FP32 already" in err and not out.exists()


def test_the_first_difference_in_dumps_of_exported_networks_is_a_tensor_of_the_network(tmp_path, run, monkeypatch):
    """Polygraphy runs two of our typed networks with all tensors as outputs; the casts and codes count for nothing."""
    options = save_mlp(tmp_path)
    network = open_network(options.model)
    feeds = tmp_path / "feeds.json"
    save_json([{"x": np.load(options.data)["x"][:4]}], str(feeds))
    for precision in ("fp16", "int8"):
        assert (
            run(
                *f"export {options.model} --data {options.data} --precision {precision} --format onnx -o".split(),
                tmp_path / f"{precision}.onnx",
            )[0]
            == 0
        )
        monkeypatch.setattr(
            "sys.argv",
            [
                "polygraphy",
                "run",
                str(tmp_path / f"{precision}.onnx"),
                *f"--onnxrt --onnx-outputs * --load-inputs {feeds} --save-outputs".split(),
                str(tmp_path / f"{precision}.json"),
            ],
        )
        assert not polygraphy()
    out, script, config = tmp_path / "out.json", tmp_path / "fix.py", tmp_path / "fix.json"
    code, text, err = run(
        *f"dumps {tmp_path}/fp16.json {tmp_path}/int8.json --model {options.model} --threshold".split(),
        1e-4,
        *f"--json {out} -o {config}".split(),
    )
    assert code == 1, err
    assert run("export", options.model, "--config", config, "--format", "polygraphy", "-o", script)[0] == 0
    record = json.loads(out.read_text())
    assert mismatches(record, "dumps-v1") == []
    own = [name for layer in network.layers for name in layer.outputs]
    assert [record["first_over"]] == first_over(text) == own[:1]
    strangers = [name for name, one in record["tensors"].items() if not one["in_network"]]
    assert list(record["tensors"]) == [*own, *strangers] and f"in the network: {strangers[0]}, " in text
    assert not any(record["tensors"][name]["begins"] for name in strangers)
    postprocess(script, Parsed(network, "8.6.1"), monkeypatch)  # names no tensor or layer that is not there
    assert read_config(config, network).config.find_raised_groups(network)


def test_the_threshold_decides_the_exit_code_and_nothing_is_written_without_a_fault(runs, tmp_path, run):
    options, _, a, b = runs
    code, text, err = run("dumps", a, b, "--threshold", 1e6, "--model", options.model, "-o", tmp_path / "fix.json")
    assert code == 0 and not first_over(text) and "threshold" in text
    assert not (tmp_path / "fix.json").exists() and "no fix" in err
    one, other = (open_dump(str(path)) for path in (b, a))
    found = sort_in_network_order([difference(one, other, name) for name in one.tensor_names], None)
    assert sum(each.begins_error for each in found) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{a}", "{a}"], "compared with itself"),
        (["{model}", "{b}"], "is not a dump"),
        (["{a}", "{b}", "-o", "p.json"], "has no effect"),
        (["{a}", "{b}", "--model", "{model}", "--calib-cache", "c"], "has no effect"),
        (["{a}", "{b}", "--model", "{model}", "--force"], "has no effect"),
        (["{a}", "{b}", "--model", "{model}", "-o", "-", "--json", "-"], "stdout"),
        (["{a}", "gone.json"], "does not exist"),
        (["{a}", "{b}", "--model", "{model}", "-o", "{a}"], "is an input file"),
        (["{a}", "{b}:other"], "no runner other"),
    ],
)
def test_usage_of_two_dumps(arguments, said, runs, run):
    options, _, a, b = runs
    before = a.read_bytes()
    names = {"a": a, "b": b, "model": options.model}
    code, _, err = run("dumps", *(argument.format(**names) for argument in arguments))
    assert code == 2 and said in err and "Next: " in err
    assert a.read_bytes() == before
