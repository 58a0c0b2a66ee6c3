"""Floats that become integers or indices: the rule that keeps them in FP32, and runs that rounding makes fail."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests import networks
from tests.driven import LocalSession
from tests.refusals import refused
from tests.texts import lacking, numbers
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import KeepRuleMove, PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.keep_rules import (
    apply_default_keep_rules,
    apply_keep_rules,
    count_groups_by_keep_rule,
    default_keep_rules_note,
)
from trt_tui.core.network.graph import find_groups_computing_indices
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.options import Options

FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8)
ROWS = 4000


def look_up(b, index, result="y"):
    """A row of a table of `MAX_GROUP_ROWS` for each sample, and a product of the other input beside it."""
    row = b.node("Gather", [b.kernel("table", (ROWS, 8), 8), index], "/look")
    return b.node("Add", [row, b.gemm(b.gemm("v", (16, 32), "/fc1"), (32, 8), "/fc2")], "/join", output=result)


def floored(b, source="p", scope="/position"):
    """An integer up to `MAX_GROUP_ROWS` from a position of 0 to 1."""
    scaled = b.node("Mul", [source, b.weight("rows", np.float32(ROWS))], scope)
    return b.node("Cast", [b.node("Floor", [scaled], scope)], scope, to=TensorProto.INT64)


def network_of(b, *inputs):
    return b.model([networks.floats("v", "N", 16), networks.floats("p", "N"), *inputs], [networks.floats("y", "N", 8)])


def by_position():
    b = networks.Builder()
    look_up(b, floored(b))
    return network_of(b)


def saved(folder, model, samples=32, last=0.99999):
    """Writes a network and samples; every eighth position rounds up to the end of the table in FP16."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 0.99, samples).astype(np.float32)
    p[5::8] = last
    onnx.save(model, folder / "indexed.onnx")
    np.savez(folder / "indexed.npz", v=rng.standard_normal((samples, 16), dtype=np.float32), p=p)
    return Options(str(folder / "indexed.onnx"), str(folder / "indexed.npz"), batch=4, whatif_samples=0)


# -- which groups the rule names --------------------------------------------------------------------------------------


def _integers_between(b):
    """Integer arithmetic and a look-up of GatherND between the floats and the last index."""
    cell = b.node("Add", [floored(b), b.weight("one", np.int64(0))], "/cell")
    cell = b.node("Unsqueeze", [cell, b.weight("last", np.int64([-1]))], "/cell")
    row = b.node("GatherND", [b.kernel("table", (ROWS, 8), 8), cell], "/look")
    b.node("Add", [row, b.gemm("v", (16, 8), "/fc")], "/join", output="y")


def _reshaped(b):
    moved = b.node("Reshape", ["p", b.weight("flat", np.int64([-1]))], "/flat")
    where = b.node(
        "Where",
        [b.node("Greater", [moved, b.weight("half", np.float32(0.5))], "/high"), moved, b.node("Abs", [moved], "/abs")],
        "/choice",
    )
    look_up(b, floored(b, where))


def _by_argmax(b):
    scores = b.node("MatMul", ["v", b.kernel("scores", (16, ROWS), 16)], "/scores")
    look_up(b, b.node("ArgMax", [b.node("Sigmoid", [scores], "/weigh")], "/best", axis=1, keepdims=0))


def _by_product(b):
    moved = b.node("MatMul", ["v", b.kernel("move", (16, 1), 16)], "/move")
    flat = b.node("Sigmoid", [b.node("Reshape", [moved, b.weight("flat", np.int64([-1]))], "/flat")], "/flat")
    look_up(b, floored(b, flat))


def _bare_product(b):
    moved = b.node("MatMul", ["v", b.kernel("move", (16, 1), 16)], "/move")
    look_up(
        b,
        b.node(
            "Cast",
            [b.node("Reshape", [moved, b.weight("flat", np.int64([-1]))], "/flat")],
            "/flat",
            to=TensorProto.INT64,
        ),
    )


def _test_of_zero(b):
    positive = b.node(
        "Cast", [b.node("Mul", ["p", b.weight("two", np.float32(2))], "/twice")], "/test", to=TensorProto.BOOL
    )
    look_up(b, b.node("Cast", [positive], "/one", to=TensorProto.INT64))


def _of_shape(b):
    size = b.node("Cast", [b.node("Shape", ["v"], "/size")], "/size", name="/size/float", to=TensorProto.FLOAT)
    half = b.node("Floor", [b.node("Mul", [size, b.weight("half", np.float32(0.5))], "/size")], "/size")
    rows = b.node("Cast", [half], "/size", name="/size/integer", to=TensorProto.INT64)
    index = b.node("Slice", [rows, b.weight("a", np.int64([0])), b.weight("b", np.int64([1]))], "/size")
    look_up(b, b.node("Expand", [index, b.node("Shape", ["p"], "/count")], "/index"))


def _one_hot(b):
    scaled = b.node("Floor", [b.node("Mul", ["p", b.weight("rows", np.float32(8))], "/scale")], "/floor")
    hot = b.node("OneHot", [scaled, b.weight("depth", np.int64([8])), b.weight("values", np.float32([0, 1]))], "/hot")
    b.node("Add", [hot, b.gemm("v", (16, 8), "/fc")], "/join", output="y")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda b: look_up(b, floored(b)), {"/position/Mul"}),
        (_integers_between, {"/position/Mul"}),
        (_reshaped, {"/abs/Abs", "/choice/Where", "/position/Mul"}),
        (_by_argmax, set()),
        (_bare_product, set()),
        (_test_of_zero, set()),
        (_of_shape, set()),
        (_one_hot, {"/scale/Mul", "/hot/OneHot"}),
    ],
)
def test_the_rule_walks_back_from_integers_to_what_is_inexact_anyway(build, expected, opened):
    b = networks.Builder()
    build(b)
    network = opened(network_of(b))
    found = find_groups_computing_indices(network.graph, network.groups)
    layers = {layer for name in found for layer in network.get_group(name).layers}
    assert expected <= layers and (layers == set()) is (expected == set()), layers
    assert network.build_outline().index_groups == found


def test_a_group_with_a_product_in_it_is_left_out_and_what_lies_behind_it_is_not(opened):
    b = networks.Builder()
    _by_product(b)
    network = opened(network_of(b))
    named = [network.get_group(name) for name in network.index_groups]
    assert all("/move/MatMul" not in group.layers for group in named)
    assert network.find_group("/position/Floor").name in network.index_groups or (
        network.find_group("/position/Floor") is network.find_group("/move/MatMul")
    )


# -- the rule as a default --------------------------------------------------------------------------------------------


def test_the_rule_is_on_by_default_and_named_with_its_rows(opened):
    network = opened(by_position())
    config = apply_default_keep_rules(network, INT8)
    assert (
        count_groups_by_keep_rule(config) == {"indices": 1}
        and config.precision_of(network.get_group("/position/Mul")) is Precision.FP32
    )
    note = default_keep_rules_note(network, config)
    assert numbers(note)[0] == 1 and not lacking(note, "in FP32", "rule indices", "position")
    unchanged = apply_default_keep_rules(opened(networks.mlp()), INT8)
    assert unchanged == INT8 and not default_keep_rules_note(network, unchanged)
    fp32 = PrecisionConfig.from_precision(Precision.FP32)
    file = PrecisionConfig.from_precision(Precision.FILE)
    assert not apply_default_keep_rules(network, fp32).moves and not apply_default_keep_rules(network, file).moves
    other = apply_keep_rules(network, FP16, ["indices=bf16"])
    assert apply_default_keep_rules(network, other).get_moves(KeepRuleMove) == other.get_moves(KeepRuleMove)
    by_hand = FP16.with_group_precision([network.get_group("/position/Mul")], Precision.BF16)
    assert apply_default_keep_rules(network, by_hand) == by_hand


def test_files_and_sessions_without_the_rule_keep_their_meaning(session, tmp_path):
    options = saved(tmp_path, by_position())
    network = open_network(options.model)
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(config_text(network, FP16))
    after.write_text(config_text(network, apply_default_keep_rules(network, FP16)))
    assert read_config(before, network).config == FP16
    assert count_groups_by_keep_rule(read_config(after, network).config) == {"indices": 1}
    first = session(options, kind=LocalSession, resume=True).settled()
    assert (
        count_groups_by_keep_rule(first.config) == {"indices": 1} and first.list_run_configs()["int8"] == first.config
    )
    assert "indices" in first.notice
    first.set_config(INT8)
    first.close()
    second = session(options, kind=LocalSession, resume=True).settled()
    assert second.config == INT8 and not count_groups_by_keep_rule(second.config)
    loaded = session(options, kind=LocalSession, config_path=str(before), resume=False).settled()
    assert loaded.config == FP16 and count_groups_by_keep_rule(loaded.list_run_configs()["fp16"]) == {"indices": 1}


def test_commands_apply_the_rule(run, tmp_path):
    options = saved(tmp_path, by_position())
    common = [options.model, "--data", options.data, "--batch", "4"]
    code, out, err = run("compare", *common, "--layers", "none", "--target", "sqnr>=15")
    assert code in (0, None) and "rule indices" in out and "fails" not in err, err
    found = tmp_path / "found.json"
    network = open_network(options.model)
    code, _, err = run("search", *common, "--precision", "fp16", "--tolerance", "sqnr>=30", "-o", found)
    config = read_config(found, network).config
    assert code in (0, None) and count_groups_by_keep_rule(config) == {"indices": 1} and "rule indices" in err
    assert config.precision_of(network.get_group("/position/Mul")) is Precision.FP32
    typed = tmp_path / "typed.onnx"
    code, _, err = run("export", options.model, "--precision", "fp16", "--format", "onnx", "-o", typed)
    assert code in (0, None) and "rule indices" in err


# -- runs that rounding makes fail ------------------------------------------------------------------------------------


def test_a_run_that_rounding_makes_fail_is_shown_as_failed_beside_the_others(run, tmp_path):
    options = saved(tmp_path, by_position())
    path = tmp_path / "p.json"
    network = open_network(options.model)
    path.write_text(config_text(network, FP16))
    record = tmp_path / "record.json"
    code, out, err = run(
        *f"compare {options.model} --data {options.data} --batch 4 --config {path} --target sqnr>=30".split(),
        *f"--json {record}".split(),
    )
    assert code == 1 and not lacking(err, "Target not met", "rounding makes", "Gather /look/Gather")
    assert "--keep indices" in err and "data's shapes" not in err
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("FP16 ", "INT8 ", "config "))}
    assert "FAIL" in rows["config"] and "PASS" not in rows["config"] and "PASS" in rows["FP16"]
    runs = json.loads(record.read_text())["runs"]
    assert runs["config"]["outputs"]["y"].get("sqnr_db") is None and runs["fp16"]["outputs"]["y"]["sqnr_db"] > 30


def test_a_failed_run_misses_every_target_also_of_integers_and_of_a_metric(session, tmp_path):
    b = networks.Builder()
    cell = floored(b)
    b.node("Gather", [b.weight("classes", np.arange(ROWS)), cell], "/look", output="y")
    model = b.model([networks.floats("p", "N")], [onnx.helper.make_tensor_value_info("y", TensorProto.INT64, ["N"])])
    options = saved(tmp_path, model)
    np.savez(options.data, p=np.load(options.data)["p"], labels=np.zeros(32))
    metric = tmp_path / "metric.py"
    metric.write_text("def score(outputs, labels):\n    return 1.0\n")
    (tmp_path / "p.json").write_text(config_text(open_network(options.model), FP16))
    driven = session(
        replace(options, metric=f"{metric}:score"),
        kind=LocalSession,
        resume=False,
        config_path=str(tmp_path / "p.json"),
    ).settled()
    verdict = driven.get_run_results("config").accuracy
    assert verdict.fails_every_target and not verdict.metric and verdict.caveats[0].kind == "failed run"
    for text in ("mismatch<=1", "metric>=0.5"):
        target = parse_target(text)
        assert target.is_met_by(verdict) is False
        assert judge_accuracy([target], verdict).outcome is Outcome.FAIL


def test_data_that_fp32_fails_on_too_are_still_blamed(run, tmp_path):
    options = saved(tmp_path, by_position(), last=2.0)
    code, _, err = run("compare", options.model, "--data", options.data, "--batch", "4", "--layers", "none")
    assert code == 2 and "data bounds" in err and "rounding" not in err


def test_outputs_of_a_failed_run_are_not_written(run, tmp_path):
    options = saved(tmp_path, by_position())
    (tmp_path / "p.json").write_text(config_text(open_network(options.model), FP16))
    code, _, err = run(
        *f"compare {options.model} --data {options.data} --batch 4 --config {tmp_path}/p.json".split(),
        *f"--layers none --save-outputs {tmp_path}/outputs.json".split(),
    )
    assert code == 2 and "rounding makes Gather" in err and not (tmp_path / "outputs.json").exists()


def test_an_index_of_an_argmax_stays_within_its_table_in_any_precision(session, tmp_path):
    b = networks.Builder()
    _by_argmax(b)
    driven = session(saved(tmp_path, network_of(b)), kind=LocalSession, resume=False).settled()
    assert not driven.outline.index_groups and not driven.get_run_results("fp16").accuracy.fails_every_target


def test_the_rule_is_refused_where_it_names_nothing(opened):
    with refused("keeps nothing", cause="integers"):
        apply_keep_rules(opened(networks.mlp()), INT8, ["indices"])
