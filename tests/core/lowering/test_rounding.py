"""Weights rounded by the error of the layer's output: weight scales and GPTQ."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import lowered
from tests.networks import Builder, floats
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants, without_stale_roundings
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization
from trt_tui.core.measure import weight_rounding
from trt_tui.core.measure.group_errors import measure_weight_errors
from trt_tui.core.measure.weight_rounding import (
    find_matrix_form,
    measure_output_errors,
    measure_roundings,
    split_held_out_samples,
)
from trt_tui.core.measure.zero_cost_kinds import (
    add_zero_cost_moves,
    list_zero_cost_moves,
)
from trt_tui.core.moves.config import PrecisionConfig, rounding_refusal_reason
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.constant_moves import (
    BiasCorrectionMove,
    RoundingMove,
    SmoothQuantMove,
    decode_integers,
    decode_vector,
    encode_integers,
    encode_vector,
    find_sole_weight_site,
    quantize_weight,
)
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT4, INT8, QUANTIZED_TYPES, broadcast_scales
from trt_tui.errors import InputError

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
WIDTH = 64


# -- the solver --------------------------------------------------------------------------------------------------------


def textbook_gptq(weight, steps, products, quantized_type):
    """Algorithm 1 of the paper without blocks, one matrix, float64: the inverse is computed as it is written there."""
    damped = products.astype(np.float64)
    damped[np.diag_indices(len(damped))] += weight_rounding.DAMPING * np.mean(np.diag(damped))
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    remaining, result = weight.astype(np.float64), np.zeros(weight.shape)
    for column in range(weight.shape[1]):
        result[:, column] = quantized_type.quantize(remaining[:, column] / steps[:, column])
        error = (remaining[:, column] - result[:, column] * steps[:, column]) / upper[column, column]
        remaining[:, column:] -= np.outer(error, upper[column, column:])
    return result


def correlated(random, rows, columns):
    rank = max(columns // 3, 1)
    mixed = random.standard_normal((rows, rank)) @ random.standard_normal((rank, columns))
    return (mixed + 0.2 * random.standard_normal((rows, columns))).astype(np.float32)


@settings(deadline=None, max_examples=30, derandomize=True)  # a tie that float32 breaks otherwise changes a whole row
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 9), st.integers(1, 150), st.sampled_from([INT8, INT4]))
def test_gptq_equals_the_textbook_and_never_loses_a_channel_it_keeps(seed, groups, rows, columns, quantized_type):
    random = np.random.default_rng(seed)
    weight = random.standard_normal((groups, rows, columns)).astype(np.float32)
    inputs = np.stack([correlated(random, 4 * columns, columns) for _ in range(groups)])
    products = inputs.swapaxes(1, 2) @ inputs
    steps = np.broadcast_to(
        np.abs(weight).max(axis=2, keepdims=True) / np.float32(quantized_type.max_value), weight.shape
    )
    kept = weight.copy()
    found = weight_rounding.round_by_output_error(weight, steps, products, quantized_type)
    np.testing.assert_array_equal(weight, kept)  # the weights of the network are not touched
    assert found.min() >= quantized_type.min_value and found.max() <= quantized_type.max_value
    np.testing.assert_array_equal(found, np.rint(found))
    expected = np.stack(
        [textbook_gptq(weight[index], steps[index], products[index], quantized_type) for index in range(groups)]
    )
    nearest = quantized_type.quantize(weight / steps)
    errors = [
        weight_rounding.measure_row_errors(weight - values.astype(np.float32) * steps, products).sum()
        for values in (found, expected, nearest)
    ]
    assert np.mean(found != expected) < 0.05 and errors[0] == pytest.approx(errors[1], rel=0.1, abs=1e-3)
    if columns >= 30 and rows >= 3:
        assert errors[0] < errors[2]


def test_the_factor_of_the_inverse_is_that_of_the_paper():
    inputs = correlated(np.random.default_rng(0), 900, 300)
    products = (inputs.T @ inputs)[None]
    upper = weight_rounding.invert_to_upper_factor(products)[0]
    damped = products[0].astype(np.float64)
    damped[np.diag_indices(300)] += weight_rounding.DAMPING * np.mean(np.diag(damped))
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_allclose(upper.T @ upper @ damped, np.eye(300), atol=1e-6)
    nothing = np.zeros((1, 4, 4), np.float32)  # an input that is all 0
    assert np.isfinite(weight_rounding.invert_to_upper_factor(nothing)).all()


@pytest.mark.parametrize("blocks", [1, 2])
def test_chosen_scales_never_lose_on_the_samples_that_choose_them(blocks):
    random = np.random.default_rng(1)
    weight, inputs = random.standard_t(3, (1, 20, 64)).astype(np.float32), correlated(random, 400, 64)
    products, size = (inputs.T @ inputs)[None], 64 // blocks
    segments = [slice(start, start + size) for start in range(0, 64, size)]
    steps = np.repeat(np.abs(weight.reshape(1, 20, blocks, size)).max(axis=3) / np.float32(7), size, axis=2)
    factors = weight_rounding.choose_scale_factors(weight, steps, products, INT4, segments, lambda array: array)
    used = steps * weight_rounding.expand_factors_to_columns(factors, segments)
    before, after = (
        weight_rounding.measure_row_errors(weight - INT4.quantize(weight / scale) * scale, products)
        for scale in (steps, used)
    )
    assert (after <= before).all() and after.sum() < before.sum() and factors.min() < 1


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 10000),
    st.sampled_from([(INT8, FP32), (INT8, FP16), (INT4, FP32), (INT4, FP16), (INT4, BF16)]),
    st.floats(2.0**-17, 100.0),
)
def test_a_rounded_weight_quantizes_to_exactly_its_values(seed, types, largest):
    """FP32 weights behind which a release writes Q itself: also where weight and scale are rounded to 16 bits."""
    quantized_type, stored_type = types
    random = np.random.default_rng(seed)
    scales = (largest * random.uniform(0.5, 1, (8, 1))).astype(np.float32)
    scales = rulebook.round_to_precision(scales, BF16 if stored_type is BF16 else FP16)
    values = np.tile(np.arange(quantized_type.min_value, quantized_type.max_value + 1, dtype=np.float32), (8, 1))
    stored = rulebook.QdqScale(rulebook.round_to_precision(scales[:, 0], stored_type), stored_type, quantized_type, 0)
    weight = rulebook.round_to_precision(values * scales, stored_type)
    np.testing.assert_array_equal(quantized_type.quantize(weight / stored.broadcast_to_shape(weight.shape)), values)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-128, 127), max_size=300))
def test_integers_pass_through_their_text(numbers):
    np.testing.assert_array_equal(decode_integers(encode_integers(np.array(numbers, np.int8))), numbers)


# -- layers ------------------------------------------------------------------------------------------------------------


def convs():
    """Convs with groups, strides, dilations and unequal pads, a depthwise one, and a Gemm of each form."""
    b = Builder(opset=17)
    x = b.node("Relu", [b.conv("x", (4, 16), "/plain", bias=True)], "/plain")
    x = b.node("Relu", [b.conv(x, (16, 16), "/depthwise", groups=16)], "/depthwise")
    x = b.node(
        "Conv",
        [x, b.kernel("odd.weight", (24, 8, 3, 2), 48)],
        "/odd",
        kernel_shape=[3, 2],
        strides=[2, 1],
        dilations=[1, 2],
        pads=[1, 0, 2, 1],
        group=2,
    )
    x = b.node("Relu", [x], "/odd")
    x = b.node(
        "Conv",
        [x, b.kernel("same.weight", (16, 24, 2, 2), 96)],
        "/same",
        kernel_shape=[2, 2],
        strides=[2, 2],
        auto_pad="SAME_LOWER",
    )
    x = b.node("Reshape", [b.node("GlobalAveragePool", [x], "/pool"), b.weight("flat", np.array([-1, 16]))], "/flat")
    x = b.node("Relu", [b.gemm(x, (16, 12), "/wide")], "/wide")
    x = b.node("Gemm", [x, b.kernel("narrow.weight", (12, 6), 12), b.vector("narrow.bias", 6)], "/narrow", output="y")
    return b.model([floats("x", "n", 4, 12, 12)], [floats("y", "n", 6)])


def encoder(gain=1.0):
    """A LayerNorm, two MatMuls that read it, and a MatMul behind them: weights in blocks of 64.

    Args:
        gain: The factor of the last weights.
    """
    b = Builder(opset=17)
    parameters = [b.weight("norm.scale", np.ones(WIDTH, np.float32)), b.vector("norm.bias", WIDTH)]
    y = b.node("LayerNormalization", ["x", *parameters], "/norm")
    up = b.node("MatMul", [y, b.kernel("up.weight", (WIDTH, 2 * WIDTH), WIDTH)], "/up")
    gate = b.node("MatMul", [y, b.kernel("gate.weight", (WIDTH, 2 * WIDTH), WIDTH)], "/gate")
    z = b.node("Mul", [up, b.node("Sigmoid", [gate], "/sigmoid")], "/mul")
    b.node("MatMul", [z, b.kernel("down.weight", (2 * WIDTH, WIDTH), 2 * WIDTH, gain)], "/down", output="y")
    return b.model([floats("x", "n", 5, WIDTH)], [floats("y", "n", 5, WIDTH)])


def encoder_with_scales_below_fp16():
    return encoder(1e-6)


def prepared(model, opened, backend, count=32, batch=4):
    """A network with correlated samples, and ranges taken on half of them; the other half is for judging."""
    network = opened(model)
    shape = [size for size in network.inputs[0].shape[1:]]
    random = np.random.default_rng(5)
    basis = random.standard_normal((6, int(np.prod(shape)))) * np.geomspace(3, 0.3, 6)[:, None]
    values = (random.standard_normal((count, 6)) @ basis).reshape(count, *shape) + 0.1 * random.standard_normal(
        (count, *shape)
    )
    np.savez(network.path.with_name("x.npz"), x=values.astype(np.float32))
    data = load_samples(network.path.with_name("x.npz"), network.inputs, batch=batch)
    half = data.select_feeds(range(0, len(data), 2)), data.select_feeds(range(1, len(data), 2))
    return network, half, calibrate(network.model, network.calibrated_tensors, half[0], backend).ranges


def exported_integers(model, backend, feed):
    """The quantized weights of a typed network by the layer that reads them: of the file, or as computed by its Q."""
    found, values = {}, {value.name: value for node in model.graph for value in node.outputs}
    wanted = {}
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            source = node.inputs[1].producer()
            while source is not None and source.op_type in ("Cast", "DequantizeLinear"):
                if source.op_type == "DequantizeLinear":
                    wanted[node.name] = source.inputs[0]
                source = source.inputs[0].producer()
    for layer, value in wanted.items():
        if value.const_value is not None:
            found[layer] = value.const_value.numpy().astype(np.int64)
    computed = {layer: value.name for layer, value in wanted.items() if layer not in found}
    model.graph.outputs.extend(values[name] for name in computed.values())
    if computed:
        with backend.load(model, optimize=False) as runner:
            results = runner.run(feed)
        found |= {layer: results[name].astype(np.int64) for layer, name in computed.items()}
    return found


def integers_of_moves(network, config, unrounded):
    """The integers that the moves of a config stand for, by the layer that reads the weight."""
    result = {}
    folds = EditedConstants(network, unrounded)
    for name, move in config.get_moves(RoundingMove).items():
        site = find_sole_weight_site(network.get_group(name))
        weight = folds.compute_constant((site.layer, site.index))
        quantized_type = QUANTIZED_TYPES[move.precision]
        axis, block = quantized_type.find_weight_scale_layout(weight.shape, site.axis)
        steps = broadcast_scales(decode_vector(move.scales), weight.shape, axis, block)
        differences = decode_integers(move.differences).reshape(weight.shape) if move.differences else None
        result[site.layer] = quantize_weight(weight, steps, quantized_type, differences).astype(np.int64)
    return result


CASES = [
    (convs, Precision.INT8, FP16),
    (convs, Precision.INT8, FP32),
    (encoder, Precision.INT8, FP16),
    (encoder_with_scales_below_fp16, Precision.INT8, FP16),
    (encoder, Precision.INT4, FP16),
    (encoder, Precision.INT4, BF16),
    (encoder, Precision.INT4, FP32),
]


@pytest.mark.parametrize(("model", "precision", "other"), CASES)
def test_all_lowerings_agree_and_the_file_has_the_integers_of_the_moves(model, precision, other, opened, backend):
    network, (data, judged), ranges = prepared(model(), opened, backend)
    config = PrecisionConfig(precision, other)
    found = measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    rounded = config.with_moves(found[0].moves)
    feeds = judged.read_feed(0)
    case = lowered.make_case(backend, network, rounded, feeds, ranges)
    assert lowered.compare(case, backend, as_data=True) is None
    integers = integers_of_moves(network, rounded, config)
    assert integers
    models = [lower_to_typed_network(network, rounded, ranges).model]
    if precision is Precision.INT8:
        models.append(lower_to_explicit_quantization(network, replace(rounded, other=FP16), ranges)[0].model)
    for exported in models:
        written = exported_integers(exported, backend, feeds)
        assert integers.keys() <= written.keys()
        for layer, values in integers.items():
            np.testing.assert_array_equal(written[layer], values, err_msg=layer)
    nearest = exported_integers(lower_to_typed_network(network, config, ranges).model, backend, feeds)
    assert any((nearest[layer] != values).any() for layer, values in integers.items())


@pytest.mark.parametrize("precision", [Precision.MXFP8, Precision.NVFP4])
def test_rounding_beside_a_type_that_only_tensorrt_executes(precision, opened, backend):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    block = next(group for group in network.groups if precision in group.allowed_precisions)
    config = PrecisionConfig(Precision.INT8, FP16).with_group_precision([block], precision)
    found = measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    assert found and block.name not in found[0].moves


@pytest.mark.parametrize(
    ("model", "precision"), [(convs, Precision.INT8), (encoder, Precision.INT8), (encoder, Precision.INT4)]
)
def test_what_is_offered_gains_on_the_samples_that_chose_and_on_those_held_out(model, precision, opened, backend):
    network, (data, judged), ranges = prepared(model(), opened, backend)
    config = PrecisionConfig(precision, FP32)
    found = measure_roundings(network, config, ranges, network.groups, data, backend)
    assert found
    _, held_out = split_held_out_samples(network, data)
    for proposal in found:
        before, after = measure_output_errors(
            network, (config, config.with_moves(proposal.moves)), ranges, held_out, backend
        )
        assert after < before
    again = measure_roundings(network, config, ranges, network.groups, data, backend)
    assert again == found  # the same values each time
    fit, _ = split_held_out_samples(network, data)
    (best,) = (proposal for proposal in found if proposal.method == "GPTQ")
    for name, move in best.moves.items():  # each layer alone, its inputs from FP32
        alone = config.with_group_precision(network.groups, FP32).with_group_precision(
            [network.get_group(name)], precision
        )
        tail = network.get_group(name).final_tensor
        losses = []
        for one in (alone, alone.with_moves({name: move})):
            runs = [
                (
                    lowered.inner_values(backend, network, fit.read_feed(index))[tail],
                    lowered.gated_values(backend, network, one, ranges, fit.read_feed(index))[tail],
                )
                for index in range(len(fit))
            ]
            losses.append(sum(float(np.square(exact - values).sum()) for exact, values in runs))
        assert losses[1] < 1.05 * losses[0]
    before, after = measure_output_errors(network, (config, config.with_moves(best.moves)), ranges, judged, backend)
    if precision is Precision.INT4:  # there the weights cause the error
        assert after < 0.8 * before


def test_a_rounding_that_loses_on_the_held_out_samples_is_not_offered(opened, backend):
    """One batch of noise is learnt by heart: 20 rows for 64 columns."""
    network, (data, _), ranges = prepared(encoder(), opened, backend, count=4, batch=2)
    random = np.random.default_rng(1)
    np.savez(network.path.with_name("noise.npz"), x=random.standard_normal((4, 5, WIDTH)).astype(np.float32))
    noise = load_samples(network.path.with_name("noise.npz"), network.inputs, batch=1)
    config = PrecisionConfig(Precision.INT4, FP32)
    found = measure_roundings(
        network, config, ranges, [network.get_group("/up/MatMul")], noise, backend, methods=("GPTQ",)
    )
    assert not found


@pytest.mark.parametrize("method", weight_rounding.METHODS)
def test_either_method_is_dropped_if_the_outputs_lose_on_held_out_samples(method, opened, backend, monkeypatch):
    """Layers that gain by themselves can lose together."""
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    config = PrecisionConfig(Precision.INT4, FP32)
    for errors, offered in (([1.0, 0.9], True), ([1.0, 1.0], False), ([1.0, 1.1], False)):
        monkeypatch.setattr(weight_rounding, "measure_output_errors", lambda *_, errors=errors, **__: errors)
        found = measure_roundings(network, config, ranges, network.groups, data, backend, methods=(method,))
        assert bool(found) is offered


def test_the_rows_of_a_conv_are_the_patches_that_it_multiplies(opened, backend):
    network, (data, _), _ = prepared(convs(), opened, backend, count=4, batch=2)
    values = lowered.inner_values(backend, network, data.read_feed(0))
    for group in network.groups:
        site = find_sole_weight_site(group)
        if site is None:
            continue
        layer = network.get_layer(site.layer)
        form = find_matrix_form(network, layer, site)
        rows = form.select_input_rows(values[layer.inputs[0]], 10**6)
        products = rows @ form.convert_to_matrices(network.constant_value(site.tensor)).swapaxes(1, 2)
        expected = values[layer.outputs[0]]
        if layer.op_type == "Conv":
            expected = (
                expected.reshape(len(expected), form.groups, -1, int(np.prod(expected.shape[2:])))
                .transpose(1, 0, 3, 2)
                .reshape(form.groups, rows.shape[1], -1)
            )
        if len(layer.inputs) > 2:
            products = products + network.constant_value(layer.inputs[2])
        np.testing.assert_allclose(products, expected.reshape(products.shape), rtol=1e-3, atol=1e-4, err_msg=layer.name)
        np.testing.assert_array_equal(
            form.convert_from_matrices(form.convert_to_matrices(network.constant_value(site.tensor))),
            network.constant_value(site.tensor),
        )


def test_the_rows_of_all_feeds_are_as_many_as_a_layer_needs(opened, backend, monkeypatch):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    collected = []
    collect = weight_rounding.collect_tensors

    def collect_and_note(model, readings, samples, *more):
        collected.extend((reading.collector, len(samples)) for reading in readings)
        return collect(model, readings, samples, *more)

    monkeypatch.setattr(weight_rounding, "collect_tensors", collect_and_note)
    config = PrecisionConfig(Precision.INT4, FP32)
    measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    rows = [
        (one.rows_per_feed * feeds, max(weight_rounding.MIN_ROWS, weight_rounding.ROWS_PER_COLUMN * one.form.columns))
        for one, feeds in collected
        if isinstance(one, weight_rounding.InputProductCollector)
    ]
    assert rows and all(needed <= read < needed * 1.1 for read, needed in rows), rows


def test_all_layers_of_a_memory_limited_wave_are_rounded(opened, backend, monkeypatch):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    config = PrecisionConfig(Precision.INT4, FP32)
    monkeypatch.setattr(weight_rounding, "MAX_WAVE_BYTES", 1)
    found = measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    assert found and set(found[0].moves) <= {"/up/MatMul", "/gate/MatMul", "/down/MatMul"}
    monkeypatch.setattr(weight_rounding, "MAX_COLUMNS", WIDTH)
    found = measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    assert "/down/MatMul" not in found[0].moves  # it has 128 columns


def test_it_is_stopped_by_its_progress_and_tells_all_of_it(opened, backend):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    told = []
    measure_roundings(
        network,
        PrecisionConfig(Precision.INT4, FP32),
        ranges,
        network.groups,
        data,
        backend,
        progress=lambda done, total: told.append((done, total)),
    )
    assert len({total for _, total in told}) == 1 and [done for done, _ in told] == sorted(done for done, _ in told)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_roundings(
            network, PrecisionConfig(Precision.INT4, FP32), ranges, network.groups, data, backend, progress=stop
        )


# -- what a group cannot have ------------------------------------------------------------------------------------------


def transposed():
    """A ConvTranspose, a MatMul whose weight comes first, and a MatMul of two results."""
    b = Builder(opset=17)
    x = b.node("ConvTranspose", ["x", b.kernel("up.weight", (4, 4, 2, 2), 16)], "/up", strides=[2, 2])
    y = b.node("MatMul", [b.kernel("first.weight", (8, 24), 24), x], "/first")
    b.node("MatMul", [y, b.node("Transpose", [y], "/turned", perm=[0, 1, 3, 2])], "/product", output="y")
    return b.model([floats("x", "n", 4, 12, 12)], [floats("y", "n", 4, 8, 8)])


def test_groups_without_a_possible_rounding_say_why(opened, backend):
    network, (data, _), ranges = prepared(transposed(), opened, backend)
    config = PrecisionConfig(Precision.INT8, FP32)
    found = measure_roundings(network, config, ranges, network.groups, data, backend)
    said = {
        layer: rounding_refusal_reason(network, group, config)
        for group in network.groups
        for layer in group.main_layers
    }
    assert not found
    assert "rounding of a ConvTranspose by the error is not supported" in said["/up/ConvTranspose"]
    assert "exactly one weight" in said["/product/MatMul"]
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    group = network.get_group("/up/MatMul")
    assert "neither INT8 nor INT4" in rounding_refusal_reason(network, group, PrecisionConfig(FP16, FP16))
    one = data.select_feeds([0])
    np.savez(network.path.with_name("one.npz"), x=data.read_feed(0)["x"][:1])
    one = load_samples(network.path.with_name("one.npz"), network.inputs)
    found = measure_roundings(network, config, ranges, [group], one, backend)
    assert not found


@pytest.mark.parametrize(
    "move",
    [
        RoundingMove("scales", Precision.INT8, encode_vector(np.ones(3))),
        RoundingMove("GPTQ", Precision.INT8, encode_vector(np.ones(128)), encode_integers(np.ones(5))),
    ],
)
def test_values_for_another_shape_are_refused_by_every_lowering(move, opened, backend):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    config = PrecisionConfig(Precision.INT8, FP32).with_moves({"/up/MatMul": move})
    for run in (
        lambda: lower_to_typed_network(network, config, ranges),
        lambda: lowered.gated_values(backend, network, config, ranges, data.read_feed(0)),
    ):
        with pytest.raises(InputError, match="/up/MatMul"):
            run()


# -- with other moves --------------------------------------------------------------------------------------------------


def test_a_rounding_belongs_to_its_weight_and_its_precision(opened, backend):
    network, (data, judged), ranges = prepared(encoder(), opened, backend)
    config = PrecisionConfig(Precision.INT4, FP32)
    moves = measure_roundings(network, config, ranges, network.groups, data, backend)[-1].moves
    rounded, feeds = add_zero_cost_moves(config, network, moves), judged.read_feed(0)
    smooth = SmoothQuantMove(0.5, encode_vector(np.linspace(0.5, 2, WIDTH)))
    later = add_zero_cost_moves(rounded, network, {"/norm/LayerNormalization": smooth})
    assert set(later.get_moves(RoundingMove)) == set(moves) - {"/up/MatMul", "/gate/MatMul"}  # measured without it
    forced = rounded.with_moves({"/norm/LayerNormalization": smooth})
    for run in (
        lambda: lower_to_typed_network(network, forced, ranges),
        lambda: lowered.gated_values(backend, network, forced, ranges, feeds),
        lambda: measure_weight_errors(network, forced, ranges),
    ):
        with pytest.raises(InputError, match="belongs to another weight"):
            run()
    assert without_stale_roundings(network, forced) == later and without_stale_roundings(network, rounded) is rounded
    again = measure_roundings(network, later, ranges, network.groups, data, backend)[-1].moves
    both = later.with_moves(again)
    lower_to_typed_network(network, both, ranges)
    undone = both.without_moves(SmoothQuantMove)
    assert without_stale_roundings(network, undone).get_moves(RoundingMove).keys() <= {"/down/MatMul"}
    raised = rounded.with_group_precision(network.groups, FP16)  # another precision has its own values
    plain = config.with_group_precision(network.groups, FP16)
    for first, second in zip(
        (lowered.gated_values(backend, network, one, ranges, feeds) for one in (raised,)),
        (lowered.gated_values(backend, network, one, ranges, feeds) for one in (plain,)),
        strict=True,
    ):
        np.testing.assert_array_equal(first["y"], second["y"])


def test_later_corrections_go_and_weight_errors_are_those_of_the_exact_weight(opened, backend):
    network, (data, _), ranges = prepared(encoder(), opened, backend)
    config = PrecisionConfig(Precision.INT8, FP32)
    (proposal,) = measure_roundings(network, config, ranges, network.groups, data, backend, methods=("GPTQ",))
    moves = proposal.moves
    name = next(iter(moves))
    corrected = config.with_moves({name: BiasCorrectionMove(encode_vector(np.zeros(2 * WIDTH)))})
    rounded = add_zero_cost_moves(corrected, network, {name: moves[name]})
    assert not rounded.get_moves(BiasCorrectionMove)
    assert (RoundingMove, name) in list_zero_cost_moves(network, rounded, network.get_group(name))
    errors = [measure_weight_errors(network, one, ranges)[name] for one in (config, rounded)]
    layer = next(iter(errors[0]))
    assert 20 < errors[1][layer] < errors[0][layer]  # further from the weight, nearer at the output


def test_old_files_have_the_factors_of_smoothquant(opened, tmp_path):
    network = opened(encoder())
    move = SmoothQuantMove(0.5, encode_vector(np.ones(WIDTH)))
    record = json.loads(config_text(network, PrecisionConfig().with_moves({"/norm/LayerNormalization": move})))
    for method in (None, "AWQ"):
        record["moves"][0] |= {"method": method} if method else {}
        (tmp_path / "precision.json").write_text(json.dumps(record))
        (read,) = read_config(tmp_path / "precision.json", network).config.get_moves(SmoothQuantMove).values()
        assert read == replace(move, method=method or "SmoothQuant") and read.label == f"{read.method} 0.5"


def test_samples_are_held_out_by_a_fixed_choice(opened, backend):
    network, (data, _), _ = prepared(encoder(), opened, backend, count=32, batch=4)
    fit, held_out = split_held_out_samples(network, data)
    assert (len(fit), len(held_out)) == (3, 1)
    rows = [
        tuple(row.ravel()[:3])
        for part in (fit, held_out)
        for index in range(len(part))
        for row in part.read_feed(index)["x"]
    ]
    assert len(set(rows)) == len(rows) == 16
    again, _ = split_held_out_samples(network, data)
    np.testing.assert_array_equal(again.read_feed(0)["x"], fit.read_feed(0)["x"])
    single, alone = split_held_out_samples(network, data.select_feeds([0]))  # one batch: its rows are separated
    assert single.read_feed(0)["x"].shape[0] == 3 and alone.read_feed(0)["x"].shape[0] == 1


def test_a_fixed_batch_is_not_divided(opened, backend):
    model = encoder()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    network = opened(model)
    np.savez(network.path.with_name("x.npz"), x=np.random.default_rng(0).standard_normal((12, 5, WIDTH)).astype("f4"))
    data = load_samples(network.path.with_name("x.npz"), network.inputs)
    fit, held_out = split_held_out_samples(network, data)
    assert [part.read_feed(0)["x"].shape[0] for part in (fit, held_out)] == [4, 4] and len(fit) == 2
    assert split_held_out_samples(network, data.select_feeds([1])) is None
