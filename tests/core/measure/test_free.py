"""Moves that cost nothing at run time: normalisations as operators, scaled channels, corrected biases."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests import lowered, rtx
from tests.networks import Builder, floats
from tests.texts import lacking
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.network_rewrite import rewrite_network_for_config
from trt_tui.core.lowering.rulebook import GatedFeatures
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure import zero_cost_kinds
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.core.measure.fp16_range import describe_fp16_values
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import ConfigResults
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.zero_cost_kinds import add_zero_cost_moves
from trt_tui.core.moves.config import (
    PrecisionConfig,
    bias_correction_refusal_reason,
    rewrite_refusal_reason,
)
from trt_tui.core.moves.constant_moves import (
    SmoothQuantMove,
    channel_scaling_refusal_reason,
    decode_vector,
)
from trt_tui.core.network.channels.norm_finder import find_zero_cost_support
from trt_tui.core.precision import Precision
from trt_tui.core.report.json_record import config_results_record

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
CHANNELS = 16
EVERY = ("rewrite", "smooth", "bias")


def norm(b, x, scope, *, mean=True, square="Pow", division="Div", axes=(-1,), gains=None, affine=True, epsilon=1e-6):
    """A decomposed LayerNorm, or RMSNorm without a mean."""

    def add(operator, inputs, name, **attributes):
        return b.node(operator, inputs, f"{scope}/{name}", **attributes)

    if mean:
        x = add("Sub", [x, add("ReduceMean", [x], "mean", axes=list(axes))], "centred")
    two = b.weight(f"{scope}.two", np.array(2, np.float32))
    squared = add("Pow", [x, two], "square") if square == "Pow" else add("Mul", [x, x], "square")
    variance = add("ReduceMean", [squared], "variance", axes=list(axes))
    shifted = add("Add", [variance, b.weight(f"{scope}.eps", np.array(epsilon, np.float32))], "eps")
    if division == "0.5 ** variance":
        root = add("Pow", [b.weight(f"{scope}.half", np.array(0.5, np.float32)), shifted], "root")
    elif division.endswith("variance ** -0.5"):
        root = add("Pow", [shifted, b.weight(f"{scope}.power", np.array(-0.5, np.float32))], "root")
    else:
        root = add("Sqrt", [shifted], "root")
    if division == "Reciprocal":
        x = add("Mul", [x, add("Reciprocal", [root], "reciprocal")], "divided")
    elif division.endswith(" / root"):
        numerator = b.weight(f"{scope}.numerator", np.array(division[0], np.float32))
        x = add("Mul", [x, add("Div", [numerator, root], "reciprocal")], "divided")
    elif division.startswith("* "):
        x = add("Mul", [x, root], "divided")
    else:
        x = add("Div", [x, root], "divided")
    if not affine:
        return x
    gains = np.linspace(0.5, 2, CHANNELS, dtype=np.float32) if gains is None else gains
    x = add("Mul", [x, b.weight(f"{scope}.scale", gains)], "scaled")
    return add("Add", [x, b.vector(f"{scope}.bias", CHANNELS)], "shifted") if mean else x


def transformer(*, operator=False, scale=1.0, residual=False, **form):
    """MatMul with bias, a normalisation (decomposed, or the operator), and two MatMuls that it feeds."""
    b = Builder(opset=17)
    x = b.node("MatMul", ["x", b.kernel("in.weight", (CHANNELS, CHANNELS), CHANNELS, gain=scale**2)], "/in")
    x = b.node("Add", [b.vector("in.bias", CHANNELS, spread=scale), x], "/in")
    if operator:
        gains = form.get("gains", np.ones(CHANNELS, np.float32))
        y = b.node("LayerNormalization", [x, b.weight("norm.scale", gains), b.vector("norm.bias", CHANNELS)], "/norm")
    else:
        y = norm(b, x, "/norm", **form)
    flat = b.node("Reshape", [y, b.weight("rows", np.array([-1, CHANNELS]))], "/rows")
    one = b.gemm(flat, (CHANNELS, 8), "/gemm")
    two = b.node("MatMul", [y, b.kernel("matmul.weight", (CHANNELS, 8), CHANNELS)], "/matmul")
    outputs = [one, two, *([b.node("Relu", [y], "/relu")] if residual else [])]
    ranks = [2 if name == one else 3 for name in outputs]
    return b.model(
        [floats("x", 2, 6, CHANNELS)], [floats(name, *[None] * rank) for name, rank in zip(outputs, ranks, strict=True)]
    )


def prepared(model, opened, backend):
    network = opened(model)
    values = np.random.default_rng(3).standard_normal((8, 6, CHANNELS)).astype(np.float32)
    np.savez(network.path.with_name("x.npz"), x=values)
    data = load_samples(network.path.with_name("x.npz"), network.inputs)
    return network, data, calibrate(network.model, network.calibrated_tensors, data, backend).ranges


def with_everything(network, config, ranges, data, backend, kinds):
    """A config with all moves of some kinds that the network takes."""
    groups = network.groups
    if "rewrite" in kinds:
        config = config.with_moves(zero_cost_kinds.propose_normalisation_rewrites(network, groups))
    if "smooth" in kinds:
        norms = [name for name in network.zero_cost_support.norms if not channel_scaling_refusal_reason(network, name)]
        config = add_zero_cost_moves(
            config, network, zero_cost_kinds.measure_smoothquant_moves(network, norms, data, backend)
        )
    if "bias" in kinds:
        able = [group for group in groups if not bias_correction_refusal_reason(network, group, config)]
        config = config.with_moves(
            zero_cost_kinds.measure_bias_corrections(network, config, ranges, able, data, backend)
        )
    return config


@pytest.mark.parametrize(
    ("form", "operator", "refused"),
    [
        ({}, "LayerNormalization", ""),
        ({"square": "Mul", "division": "Reciprocal"}, "LayerNormalization", ""),
        ({"mean": False}, "RMSNormalization", ""),
        ({"mean": False, "division": "Reciprocal"}, "RMSNormalization", ""),
        ({"division": "1 / root"}, "LayerNormalization", ""),
        ({"division": "* variance ** -0.5"}, "LayerNormalization", ""),
        ({"affine": False}, "LayerNormalization", ""),
        ({"axes": (-2,)}, "LayerNormalization", "need Transposes"),
        ({"operator": True}, "LayerNormalization", "it is the operator"),
    ],
)
def test_normalisations_are_found_in_each_spelling(form, operator, refused, opened):
    network = opened(transformer(**form))
    ((name, found),) = find_zero_cost_support(network.graph, network.groups).norms.items()
    assert (
        found.operator == operator
        and refused in found.no_rewrite_reason
        and bool(refused) == bool(found.no_rewrite_reason)
    )
    assert found.epsilon == pytest.approx(1e-5 if form.get("operator") else 1e-6)
    assert (found.source, found.axis) == ("/in/Add_output_0", form.get("axes", (-1,))[0])
    affine = form.get("affine", True) and "axes" not in form
    assert (found.scale is not None, found.bias is not None) == (affine, affine and form.get("mean", True))
    assert (rewrite_refusal_reason(network, name) == "") is (not refused)


@pytest.mark.parametrize("division", ["0.5 ** variance", "2 / root", "/ variance ** -0.5", "* root"])
def test_another_division_is_no_normalisation(division, opened):
    assert not opened(transformer(division=division)).zero_cost_support.norms


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"residual": True}, "/relu/Relu_output_0 is an output of the network"),
        ({"affine": False}, "it has no constant weight or scale"),
        ({"operator": True, "gains": np.ones(1, np.float32)}, "no constant weight or scale"),
    ],
)
def test_channels_that_something_else_reads_are_not_scaled(form, why, opened):
    network = opened(transformer(**form))
    (name,) = network.zero_cost_support.norms
    reason = channel_scaling_refusal_reason(network, name)
    assert reason and why in reason


@pytest.mark.parametrize(
    ("form", "quantized", "other", "kinds"),
    [
        ({}, INT8, FP16, ("rewrite",)),
        ({}, INT8, FP32, EVERY),
        ({}, FP16, FP16, EVERY),
        ({"mean": False, "division": "Reciprocal"}, INT8, FP32, EVERY),
        ({"mean": False}, INT8, FP16, EVERY),
        ({"affine": False}, INT8, FP16, ("rewrite",)),
        ({"affine": False, "mean": False}, FP16, FP16, ("rewrite",)),
        ({"operator": True}, INT8, FP32, EVERY),
        ({"operator": True}, INT8, FP16, EVERY),
    ],
    ids=str,
)
def test_typed_and_gated_networks_do_the_same_arithmetic(form, quantized, other, kinds, opened, backend):
    network, data, ranges = prepared(transformer(**form), opened, backend)
    config = with_everything(network, PrecisionConfig(quantized, other), ranges, data, backend, kinds)
    case = lowered.make_case(backend, network, config, data.read_feed(0), ranges)
    assert lowered.compare(case, backend, as_data=True) is None
    exact = config.with_group_precision(network.groups, FP32)
    for values in (lowered.typed_values, lowered.gated_values):
        found = values(backend, network, exact, ranges, case.feeds)
        for info in network.outputs:
            np.testing.assert_allclose(found[info.name], case.plain[info.name], rtol=2e-5, atol=2e-5)


def test_errors_at_scaled_channels_are_taken_in_the_networks_units(opened, backend):
    network, data, ranges = prepared(transformer(operator=True), opened, backend)
    config = with_everything(network, PrecisionConfig(INT8, FP16), ranges, data, backend, ["smooth"])
    config = config.with_group_precision([group for group in network.groups if not group.is_quantizable], FP16)
    analysis = Analysis(network, backend, data, select_judged_outputs(network))
    with analysis:
        *_, last = measure_group_errors(analysis, {"config": config}, ranges)
    for name, errors in last.value["config"].items():
        assert errors.isolated.sqnr_db > (50 if name == "/norm/LayerNormalization" else 25), name


def test_a_graph_that_offers_them_gives_a_plain_config_the_same(opened, backend):
    network, data, ranges = prepared(transformer(), opened, backend)
    for config in (PrecisionConfig(INT8, FP16), PrecisionConfig.from_precision(FP16)):
        plain = lowered.gated_values(backend, network, config, ranges, data.read_feed(0))
        more = replace(GatedFeatures.from_config(network, config), editable_constants=True, norm_operators=True)
        offered = lowered.gated_values(backend, network, config, ranges, data.read_feed(0), more)
        for name, array in plain.items():
            np.testing.assert_array_equal(offered[name], array)


@pytest.mark.parametrize("mean", [True, False])
def test_what_overflows_taken_apart_is_finite_as_the_operator(mean, opened, backend):
    """FP16 ends at 65504, which squares reach from 256 up."""
    network, data, ranges = prepared(transformer(scale=400.0, mean=mean), opened, backend)
    config = PrecisionConfig.from_precision(FP16)
    exact = lowered.gated_values(
        backend, network, config.with_group_precision(network.groups, FP32), ranges, data.read_feed(0)
    )
    apart = lowered.gated_values(backend, network, config, ranges, data.read_feed(0))
    config = config.with_moves(zero_cost_kinds.propose_normalisation_rewrites(network, network.groups))
    whole = lowered.gated_values(backend, network, config, ranges, data.read_feed(0))
    for info in network.outputs:
        lost, kept = (lowered.sqnr(exact[info.name], values[info.name]) for values in (apart, whole))
        assert not lost > 20 and kept > 50


def test_an_epsilon_that_fp16_rounds_to_zero_is_raised_and_said(opened, backend):
    network, data, ranges = prepared(transformer(epsilon=1e-12), opened, backend)
    config, feeds = PrecisionConfig.from_precision(FP16), {"x": np.zeros((2, 6, CHANNELS), np.float32)}
    assert network.epsilon_readers == {"/norm.eps": {"Div"}} and not opened(transformer()).epsilon_readers
    alone = config.with_group_precision(network.groups, FP32).with_group_precision(
        [network.get_group("/norm/mean/ReduceMean")], FP16
    )
    for one in (config, alone):
        assert lowered.compare(lowered.make_case(backend, network, one, feeds, ranges), backend) is None
        gated = lowered.gated_values(backend, network, one, ranges, feeds)
        assert all(np.isfinite(gated[info.name]).all() for info in network.outputs)
    assert "raised to 6e-08" in lower_to_typed_network(network, config, ranges).notes[0]
    said = [
        describe_fp16_values(
            network,
            config,
            network.get_group("/norm/mean/ReduceMean"),
            None,
            None,
            ErrorSums(),
            ErrorMetrics(sqnr_db=sqnr_db),
        )
        for sqnr_db in (10.0, 60.0)
    ]
    assert not lacking(said[0], "epsilon 1e-12", "in FP16", "as Layer") and said[1] == ""


@pytest.mark.parametrize(
    ("scale", "rewritten", "said"),
    [
        (400.0, False, "Pow /norm/square/Pow reaches .*beyond .*; write it as LayerN"),
        (400.0, True, ""),
        (1.0, False, ""),
        (40.0, False, r"distance to FP16's limit ×\d\.\d: Pow /norm/square/Pow reaches"),
    ],
)
def test_what_is_large_inside_a_group_is_named_with_the_free_way_out(scale, rewritten, said, opened, backend):
    network, data, ranges = prepared(transformer(scale=scale), opened, backend)
    config = PrecisionConfig.from_precision(FP16)
    config = (
        config.with_moves(zero_cost_kinds.propose_normalisation_rewrites(network, network.groups))
        if rewritten
        else config
    )
    with Analysis(network, backend, data, select_judged_outputs(network)) as analysis:
        *_, last = measure_group_errors(analysis, {"config": config}, ranges)
    errors = last.value["config"]["/norm/mean/ReduceMean"]
    assert re.match(said + ("$" if not said else ""), errors.warning_text), errors.warning_text
    record = config_results_record(network, ConfigResults(group_errors=last.value["config"]))["layers"][
        "/norm/shifted/Add"
    ]["fp16_range"]
    assert (
        record["headroom"] == pytest.approx(65504 / errors.fp16_largest) and record["at"] == errors.fp16_largest_layer
    )
    assert (errors.fp16_largest_layer == "/norm/square/Pow") is (not rewritten)


@pytest.mark.parametrize(("padding", "largest"), [(1.0, 40.0), (1e3, 40.0), (1e5, 1e5)])
def test_padding_counts_in_the_headroom_only_where_it_overflows(padding, largest, opened, backend, tmp_path):
    b = Builder()
    b.node("Mul", ["x", b.weight("two", np.float32(2))], "/twice", output="y")
    network = opened(b.model([floats("x", 2, 3, 4)], [floats("y", 2, 3, 4)]))
    mask = np.ones((2, 3), np.int64)
    mask[:, 2] = 0
    x = np.full((2, 3, 4), 20, np.float32)
    x[:, 2] = padding / 2
    np.savez(tmp_path / "x.npz", x=x, mask=mask)
    data = load_samples(tmp_path / "x.npz", network.inputs)
    with Analysis(network, backend, data, select_judged_outputs(network, ["y@mask"], ["mask"])) as analysis:
        list(analysis.measure_magnitudes())
        assert analysis.get_magnitudes().tensor_magnitudes == {"x": 20.0, "y": largest}


def test_scaled_channels_bring_back_what_outliers_take(opened, backend):
    gains = np.ones(CHANNELS, np.float32)
    gains[:2] = 100
    network, data, ranges = prepared(transformer(gains=gains), opened, backend)
    config, feeds = PrecisionConfig(INT8, FP32), data.read_feed(0)
    config = config.with_group_precision([network.get_group("/in/MatMul")], FP32)
    exact = lowered.inner_values(backend, network, feeds)
    smoothed = with_everything(network, config, ranges, data, backend, ["smooth"])
    before, after = (lowered.gated_values(backend, network, one, ranges, feeds) for one in (config, smoothed))
    (move,) = smoothed.get_moves(SmoothQuantMove).values()
    assert decode_vector(move.factors)[:2].min() > 5 * decode_vector(move.factors)[2:].max()
    assert set(move.ranges) == set(network.calibrated_tensors[1:])
    for info in network.outputs:
        assert lowered.sqnr(exact[info.name], after[info.name]) > lowered.sqnr(exact[info.name], before[info.name])


def test_a_corrected_layer_has_the_mean_of_fp32_on_the_calibrating_samples(opened, backend):
    network, data, ranges = prepared(transformer(operator=True), opened, backend)
    group = network.get_group("/in/MatMul")
    config = PrecisionConfig(INT8, FP32).with_group_precision(network.groups, FP32).with_group_precision([group], INT8)
    corrected = config.with_moves(
        zero_cost_kinds.measure_bias_corrections(network, config, ranges, [group], data, backend)
    )
    mean = {}
    for name, one in (
        ("exact", config.with_group_precision([group], FP32)),
        ("int8", config),
        ("corrected", corrected),
    ):
        runs = [
            lowered.gated_values(backend, network, one, ranges, data.read_feed(index))[group.final_tensor]
            for index in range(len(data))
        ]
        mean[name] = np.concatenate(runs).reshape(-1, CHANNELS).mean(axis=0, dtype=np.float64)
    assert np.abs(mean["int8"] - mean["exact"]).max() > 1e-3
    np.testing.assert_allclose(mean["corrected"], mean["exact"], atol=2e-6)


def test_releases_that_are_told_get_the_changed_network(opened, backend):
    network, data, ranges = prepared(transformer(), opened, backend)
    config = with_everything(network, PrecisionConfig(INT8, FP16), ranges, data, backend, EVERY)
    typed, told = lower_to_explicit_quantization(network, config, ranges)
    weak = lower_to_implicit_quantization(network, config, ranges)
    for model, said in ((typed.model, told), (weak.model, weak)):
        nodes = {node.name: node.op_type for node in model.graph}
        assert nodes["/norm/mean/ReduceMean"] == "LayerNormalization" and "Sqrt" not in nodes.values()
        assert set(said.precisions) <= set(nodes) and said.precisions["/norm/mean/ReduceMean"] is FP16
    assert typed.layer_changes["/norm/root/Sqrt"].endswith("LayerNormalization /norm/mean/ReduceMean")
    assert (
        weak.ranges["/norm/shifted/Add_output_0"]
        == config.get_moves(SmoothQuantMove)["/norm/mean/ReduceMean"].ranges["/norm/shifted/Add_output_0"]
    )


def test_weights_that_nothing_changes_stay_the_networks_own(opened, backend):
    network, data, ranges = prepared(transformer(), opened, backend)
    config = with_everything(network, PrecisionConfig(INT8, FP32), ranges, data, backend, ["smooth"])
    mine, base = (
        rewrite_network_for_config(network, config).network.model.graph.initializers,
        network.model.graph.initializers,
    )
    shared = {name for name in mine if name in base and mine[name].const_value is base[name].const_value}
    assert {"in.weight", "in.bias", "gemm.bias"} <= shared and set(mine) - shared == {
        f"{name}__folded" for name in ("/norm.scale", "/norm.bias", "gemm.weight", "matmul.weight")
    }
    assert rewrite_network_for_config(network, PrecisionConfig()).network is network


@pytest.mark.rtx
@pytest.mark.parametrize("mean", [True, False])
def test_tensorrt_rtx_builds_the_operator_among_fp16_and_int8(mean, opened, backend):
    network, data, ranges = prepared(transformer(mean=mean), opened, backend)
    config = with_everything(network, PrecisionConfig(INT8, FP16), ranges, data, backend, EVERY)
    assert "Normalization" in "".join(
        node.op_type for node in lower_to_typed_network(network, config, ranges).model.graph
    )
    assert len(rtx.build(lower_to_typed_network(network, config, ranges).model)) > 10_000
