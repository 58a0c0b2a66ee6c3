"""Ranges as a user gives them: typed, on the command line, in the app, and calibration methods beside each other."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from textual.widgets import Input

from tests import networks
from tests.local import model_bytes
from tests.screen import answered, opened, press
from tests.texts import numbers
from trt_tui.core.calibration.cache import read_calibration_cache
from trt_tui.core.calibration.calibration import StatsReducer
from trt_tui.core.calibration.user_ranges import find_named_tensors, is_data_dependent, parse_amax, resolve_amax_text
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, OutputErrors
from trt_tui.core.measure.target import judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.network import open_network
from trt_tui.core.quantized_types import FP8, INT8
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.session.comparison_report import find_best_range_method, method_comparison_record, method_comparison_table


@pytest.mark.parametrize(
    ("text", "amax"),
    [
        ("2.5", 2.5),
        ("0", 0.0),
        ("1e3", 1e3),
        ("p99.9", None),
        ("P50", None),
        ("top5-mean", None),
        ("entropy", None),
        ("MSE", None),
    ],
)
def test_what_is_a_range(text, amax):
    assert parse_amax(text) == amax and is_data_dependent(text) is (amax is None)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "p0", "p101", "top0-mean", "top99-mean", "max", "p", "x=2"])
def test_what_is_none(text):
    with pytest.raises(InputError):
        parse_amax(text)


def test_ranges_are_chosen_from_what_was_seen():
    values = np.concatenate([np.linspace(-1, 1, 9990), [-10, 9, 8, -7, 6, 5, 4, 3, 2, 1.5]]).astype(np.float32)
    seen = StatsReducer(None)
    for part in np.array_split(values, 7):
        seen.add_values(part)
    stats = seen.compute_stats()
    assert stats.largest[:6] == (10, 9, 8, 7, 6, 5) and resolve_amax_text("top5-mean", stats, INT8) == 8
    assert resolve_amax_text("p99.9", stats, INT8) == pytest.approx(1.5, abs=0.01)  # the 9,990th of 10,000
    assert resolve_amax_text("minmax", stats, FP8) == 10
    with pytest.raises(InputError, match="cannot choose a range for FP8"):
        resolve_amax_text("entropy", stats, FP8)


def test_on_the_command_line(run, mlp, tmp_path):
    network, out = open_network(mlp.model), tmp_path / "p.json"
    first, second = network.calibrated_tensors[:2]
    code, _, told = run(
        *f"search {mlp.model} --data {mlp.data} --range {first}=2.5 --range {second}=p90".split(),
        *f"--tolerance sqnr>=1 -o {out}".split(),
    )
    config = read_config(out, network).config
    assert code == 0, told
    assert (config.range_moves[first].amax, config.range_moves[first].method) == (2.5, "user")
    assert config.range_moves[second].method == "p90" and config.range_moves[second].has_measured_values
    for given, said in ((f"{first}=-1", "not a valid range"), (f"{second}x=2", "Did you mean"), ("2", "has no range")):
        code, _, told = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--range", given)
        assert code == 2 and said in told, told


@pytest.mark.parametrize("runs", [(), ("--runs", "int8")])
def test_ranges_on_the_command_line_decide_the_exit_code(run, mlp, runs):
    code, out, told = run(
        *f"compare {mlp.model} --data {mlp.data} --layers none --no-preview".split(),
        *runs,
        *"--range x=0.01 --target sqnr>=10".split(),
    )
    config_row = next(line.split() for line in out.splitlines() if line.startswith("config"))
    assert code == 1 and config_row[-1].startswith("FAIL") and "Target not met" in told, out + told


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A vision transformer with scopes three levels deep, of which not all tensors have their names."""
    path = tmp_path_factory.mktemp("vit") / "vit.onnx"
    path.write_bytes(model_bytes("vit"))
    return open_network(path)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("blocks/0", "blocks/0/"),
        ("blocks/0/attn", "blocks/0/attn/"),
        ("blocks", "blocks/"),
        ("blocks/0/attn/attention core", "blocks/0/attn/attention core/"),
        ("blocks/0/mlp/2", "blocks/0/mlp/2"),
    ],
)
def test_a_scope_names_the_tensors_that_its_quantized_layers_read(vit, name, groups):
    titles = group_titles(vit)
    read = {
        site.tensor
        for group in vit.groups
        if titles[group.name].startswith(groups)
        for site in group.activation_qdq_sites()
    }
    named = find_named_tensors(vit, name)
    assert read and set(named) == read and list(named) == [one for one in vit.calibrated_tensors if one in read]


def test_a_pattern_names_tensors_by_their_names(vit):
    tensors = vit.calibrated_tensors
    assert find_named_tensors(vit, "*") == tensors and find_named_tensors(vit, tensors[3]) == (tensors[3],)
    assert find_named_tensors(vit, "layer_norm*") == tuple(one for one in tensors if one.startswith("layer_norm"))
    assert find_named_tensors(vit, "imag?") == ("image",)
    assert find_named_tensors(vit, "*_3?") == tuple(one for one in tensors if len(one) > 3 and one[-3:-1] == "_3")
    scoped = find_named_tensors(vit, "blocks/0")
    assert 0 < len(scoped) < len(tensors) and set(find_named_tensors(vit, "blocks/1")).isdisjoint(scoped)


def test_brackets_of_a_tensor_name_are_no_pattern(tmp_path):
    model = networks.mlp()
    rename = {"/act1/Relu_output_0": "act[1]*", "/act2/Relu_output_0": "act1"}
    for node in model.graph.node:
        node.input[:] = [rename.get(one, one) for one in node.input]
        node.output[:] = [rename.get(one, one) for one in node.output]
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "odd.onnx")
    network = open_network(tmp_path / "odd.onnx")
    assert set(network.calibrated_tensors) == {"x", "act[1]*", "act1"}
    assert find_named_tensors(network, "act[1]*") == ("act[1]*",)  # a name comes before a pattern
    assert find_named_tensors(network, "act[*") == ("act[1]*",) and find_named_tensors(network, "act?") == ("act1",)


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        ("blocks/0/attn/*", "no tensor that a quantized layer reads matches blocks/0/attn/*", "blocks/0/attn"),
        ("layernorm*", "matches layernorm*", "layer_norm"),
        ("block", "no tensor and no scope block", "blocks"),
        ("?", "matches ?", ""),
        ("logits", "logits has no range", "no quantized layer reads it"),
        ("blocks/0/norm1", "blocks/0/norm1 has no ranges", "no layer in it can be quantized"),
        ("blocks/", "no tensor and no scope blocks/", "Did you mean blocks"),
    ],
)
def test_a_name_without_ranges_is_refused_with_similar_names(vit, name, title, said):
    with pytest.raises(InputError) as refused:
        find_named_tensors(vit, name)
    assert title in refused.value.title and said in refused.value.cause, refused.value
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("given", "expected", "idle"),
    [
        (["*=50"], [50, 50, 50], ()),
        (["*=50", "x=2"], [2, 50, 50], ()),
        (["*=50", "fc2=3"], [50, 3, 50], ()),
        (["x=2", "*=50"], [50, 50, 50], ["x=2"]),
        (["*/Relu*=4", "fc2=3"], [None, 3, 4], ()),
        (["fc2=3", "*/Relu*=4", "/act?/*=6"], [None, 6, 6], ["fc2=3", "*/Relu*=4"]),
        (["x=2", "x=3"], [3, None, None], ["x=2"]),
    ],
)
def test_the_last_range_that_names_a_tensor_counts(run, mlp, tmp_path, given, expected, idle):
    network, out = open_network(mlp.model), tmp_path / "p.json"
    code, _, told = run(
        *f"export {mlp.model} --precision int8".split(),
        *(part for one in given for part in ("--range", one)),
        *f"--format json -o {out}".split(),
    )
    moves = read_config(out, network).config.range_moves
    assert code == 0, told
    assert [moves[tensor].amax if tensor in moves else None for tensor in network.calibrated_tensors] == expected
    assert [one for one in given if f"Warning: --range {one} has no effect" in told] == list(idle)


def test_a_pattern_takes_a_method_for_each_of_its_tensors(run, mlp, tmp_path):
    network, out = open_network(mlp.model), tmp_path / "p.json"
    code, _, told = run(
        *f"search {mlp.model} --data {mlp.data} --range *=p90 --no-ranges --tolerance sqnr>=-100 -o {out}".split()
    )
    (note,) = (line for line in told.splitlines() if line.startswith("Note: * "))
    assert code == 0 and numbers(note) == [3] and "p90: x, " in note, told
    wildcard = read_config(out, network).config.range_moves
    assert {move.method for move in wildcard.values()} == {"p90"}
    assert len({move.amax for move in wildcard.values()}) == 3
    code, _, told = run(
        *f"search {mlp.model} --data {mlp.data} --no-ranges --tolerance sqnr>=-100 -o {out}".split(),
        *(part for tensor in network.calibrated_tensors for part in ("--range", f"{tensor}=p90")),
    )
    assert code == 0 and read_config(out, network).config.range_moves == wildcard and "Note: " not in told
    code, _, told = run(
        *f"export {mlp.model} --precision int8 --range *=2 --format calibration-cache".split(),
        *f"-o {tmp_path}/two.cache".split(),
    )
    assert code == 0, told  # no data is needed: all ranges are named
    assert read_calibration_cache(tmp_path / "two.cache") == pytest.approx(dict.fromkeys(network.calibrated_tensors, 2))


def test_methods_beside_each_other(run, mlp, tmp_path):
    out = tmp_path / "m.json"
    code, shown, told = run("methods", mlp.model, "--data", mlp.data, "--json", out, "--markdown", tmp_path / "m.md")
    rows = json.loads(out.read_text())["calibration_methods"]
    page = (tmp_path / "m.md").read_text()
    assert f"calibrated on {rows[0]['calibration_samples']}\n" in page and "Build flags" in page
    assert code == 0 and [row["method"] for row in rows] == ["minmax", "percentile", "entropy", "mse"]
    best = max(rows, key=lambda row: row["sqnr_db"])["method"]
    assert json.loads(out.read_text())["best"] == best and f"The best is {best}" in told
    assert all(row["method"] in shown for row in rows) and all(row["samples"] for row in rows)
    code, _, told = run("methods", mlp.model, "--data", mlp.data, "--calib-methods", "minmax,best")
    assert code == 2 and told.startswith("Error: --calib-methods: best ")


def test_methods_are_ranked_by_the_metric(run, mlp, tmp_path):
    """The metric is best where the output is largest, which is not where the error is smallest."""
    samples = np.load(mlp.data)["x"]
    np.savez(tmp_path / "labelled.npz", x=samples, label=np.zeros(len(samples)))
    (tmp_path / "metric.py").write_text("def size(outputs, labels):\n    return float((outputs['y'] ** 2).mean())")
    out = tmp_path / "m.json"
    arguments = (
        *f"methods {mlp.model} --data {tmp_path}/labelled.npz --metric".split(),
        tmp_path / "metric.py:size",
        "--json",
        out,
    )
    for target in ("metric>=base-50%", "size>=base-50%"):
        code, shown, told = run(*arguments, "--target", target)
        record = json.loads(out.read_text())
        rows = record["calibration_methods"]
        values = {row["method"]: row["metric"]["metric.py:size"] for row in rows}
        assert code == 0 and record["ranked_by"] == "size" and f"The best is {record['best']}, by size" in told
        assert values[record["best"]] == max(values.values()) > min(values.values())
        assert record["best"] != max(rows, key=lambda row: row["sqnr_db"])["method"]
        assert all(row["result"]["outcome"] in shown for row in rows)
    code, _, told = run(*arguments, "--target", "metric>=base+50%")
    assert code == 1 and "by any method" in told


@pytest.mark.usefixtures("quick")
async def test_in_the_app(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = next(one for one in main.session.outline.groups if one.activation_qdq_sites())
        tensor = group.activation_qdq_sites()[0].tensor
        main.go_to_group(group.name)
        await press(pilot, "6")
        app.screen.query_one(Input).value = "-2"
        await press(pilot, "enter")
        assert "number from 0" in str(app.screen.query_one("#note").render())
        app.screen.query_one(Input).value = "2.5"
        await answered(pilot, "enter")
        assert main.session.config.range_moves[tensor].amax == 2.5
        await press(pilot, "z")
        assert tensor not in main.session.config.range_moves and not main.session.history.can_undo


def _row(method, sqnr, agreement=None, metric=None, z=None):
    outputs = {
        "y": OutputErrors(ErrorMetrics(sqnr, 0.9, max_abs=1.0)),
        **({"z": OutputErrors(ErrorMetrics(z))} if z else {}),
    }
    return ev.RangeMethodResult(
        method, Accuracy(outputs, {"m.py:f1": metric} if metric is not None else {}, agreement, 4, 4), 1.0, 4
    )


@pytest.mark.parametrize(
    ("target", "rows", "best", "column"),
    [
        (None, [_row("minmax", 10.0), _row("mse", 12.0)], "mse", "SQNR"),
        (None, [_row("minmax", None), _row("mse", 12.0)], "mse", "SQNR"),
        ("agreement>=0.99", [_row("minmax", 10.0, 1.0), _row("mse", 12.0, 1.0)], "mse", "top-1"),
        ("agreement>=0.99", [_row("minmax", 10.0, 1.0), _row("mse", 12.0, 0.5)], "minmax", "top-1"),
        ("agreement>=0.99", [_row("minmax", 10.0), _row("mse", 12.0)], "mse", "SQNR"),
        ("metric>=0.5", [_row("minmax", 10.0, metric=0.9), _row("mse", 12.0, metric=0.8)], "minmax", "f1"),
        ("y:sqnr>=5", [_row("minmax", 20.0, z=4.0), _row("mse", 12.0, z=11.0)], "minmax", "SQNR of y"),
    ],
)
def test_calibration_methods_are_ranked_by_a_column_of_the_table(target, rows, best, column):
    targets = [parse_target(target)] if target else []
    session = SimpleNamespace(
        target=targets[0] if targets else None,
        target_outcome=partial(judge_accuracy, targets),
        method_comparison=ev.RangeMethodComparison(PrecisionConfig(), tuple(rows)),
    )
    header, *cells = method_comparison_table(session)
    found, title = find_best_range_method(session)
    assert (found.method, title) == (best, column) and column in header
    values = {row[0]: row[header.index(column)] for row in cells}
    assert all(values.values()) and method_comparison_record(session)["ranked_by"] == column
