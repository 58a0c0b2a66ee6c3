"""Equalization: channels are scaled between layers, so that quantized layers lose less and FP32 stays as it is."""

from dataclasses import replace
from random import Random

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import lowered, networks
from tests.core.measure.test_free import transformer
from tests.networks import Builder, floats
from tests.networks.chained import chained, inverted_residuals, skewed
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.network_rewrite import (
    refuse_edits_under_file_precision,
    rewrite_network_for_config,
    toggle_fp32,
)
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.measure import zero_cost_kinds
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.measure.zero_cost_kinds import (
    ZERO_COST_MOVE_CLASSES,
    ProposalContext,
    TrialBudget,
    add_zero_cost_moves,
    list_zero_cost_moves,
)
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.constant_moves import (
    CLIP_HEADROOM,
    EQUALIZATION_FORMULAS,
    BiasCorrectionMove,
    EqualizationMove,
    compute_equalization_factors,
    decode_vector,
    encode_vector,
    equalization_refusal_reason,
    limit_factors,
)
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
KIND = ZERO_COST_MOVE_CLASSES[EqualizationMove]


def samples_of(network, feeds, folder):
    """The feeds as samples, each a batch of the network."""
    path = folder / "samples.npz"
    np.savez(path, **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
    return load_samples(path, network.inputs)


def opened_pair(model, opened, tmp_path, *, decades=0.0, batch=4, count=8, scale=1.0):
    """A network, skewed or not, with samples."""
    network = opened(model)
    if decades:
        network = opened(skewed(model, network, decades=decades))
    rng = np.random.default_rng(3)
    feeds = [
        {
            info.name: scale
            * rng.standard_normal([size if isinstance(size, int) else batch for size in info.shape]).astype(np.float32)
            for info in network.inputs
        }
        for _ in range(count)
    ]
    return network, samples_of(network, feeds, tmp_path)


def context_of(network, samples, backend, config, *, method="minmax", groups=None, judged=None):
    """The context of proposals, with the simulation as the judge; the samples calibrate and are judged."""
    calibration = calibrate(network.model, network.calibrated_tensors, samples, backend, method=method)
    analysis = Analysis(network, backend, samples, select_judged_outputs(network))

    def measure(changed, feeds, progress):
        *_, last = analysis.measure_noise_by_sample(changed, calibration.range_table, feeds)
        return last.value

    return ProposalContext(
        network,
        config,
        groups or network.groups,
        samples,
        backend,
        calibration.range_table,
        method,
        "user",
        False,
        True,
        {},
        samples,
        tuple(range(len(samples))),
        judged or measure,
        TrialBudget(),
        lambda title, changed, kind, find, **_: find(),
        lambda: None,
        lambda title: lambda done, total: None,
    )


def moves_of(network, samples, backend, formula="0.5", *, method="minmax", config=None):
    """The moves of one formula for all channels that can be equalized, and the calibrated ranges."""
    config = config or PrecisionConfig(INT8, FP32)
    scalings = {
        group: scaling
        for group, scaling in network.zero_cost_support.channel_scalings.items()
        if not equalization_refusal_reason(network, group)
    }
    extrema = {}
    tensors = [
        tensor for scaling in scalings.values() for tensor in zero_cost_kinds.list_limiting_tensors(network, scaling)
    ]
    zero_cost_kinds.measure_channel_extrema(network, tensors, samples, backend, extrema)
    limits = {
        group: zero_cost_kinds.compute_factor_limits(scaling, extrema, [extrema]) for group, scaling in scalings.items()
    }
    factors = zero_cost_kinds.compute_channel_factors(network, scalings, formula, extrema, limits)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, backend, method=method).ranges
    (range_set,) = zero_cost_kinds.measure_divided_ranges(
        network, config, scalings, [factors], extrema, ranges, method, samples, backend
    )
    return {
        group: EqualizationMove(formula, encode_vector(factors[group]), range_set[group]) for group in scalings
    }, ranges


# -- factors -----------------------------------------------------------------------------------------------------------


def test_equal_ranges_of_weights_and_dead_channels():
    activation, first, second = (np.float32(one) for one in ([1, 2, 3, 0], [4, 9, 0, 1], [1, 4, 2, 1]))
    factors = compute_equalization_factors("weights", activation, first, second)
    np.testing.assert_allclose((first / factors)[:2], (second * factors)[:2])  # Nagel et al., equation 10
    assert list(factors[2:]) == [1, 1]
    for formula, exponent in EQUALIZATION_FORMULAS.items():
        if exponent is not None:
            factors = compute_equalization_factors(formula, activation, first, second)
            np.testing.assert_allclose(factors[:3], (activation**exponent / second ** (1 - exponent))[:3], rtol=1e-6)
            assert factors[3] == 1


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8), st.data())
def test_no_range_grows_and_fixed_channels_stay(values, data):
    factors = np.float32(values)
    shares = np.array(data.draw(st.lists(st.floats(1e-6, 1), min_size=len(values), max_size=len(values))))
    shares[data.draw(st.integers(0, len(values) - 1))] = 1
    fixed = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    limited = limit_factors(factors, np.where(fixed, 1, shares), fixed)
    assert (limited >= shares * (1 - 1e-6)).all() and (limited[fixed] == 1).all() and (limited > 0).all()


# -- lowerings ---------------------------------------------------------------------------------------------------------


def assert_lowerings_agree(network, backend, config, ranges, feed):
    case = lowered.make_case(backend, network, config, feed, ranges)
    assert lowered.compare(case, backend, as_data=True) is None
    exact = config.with_group_precision(network.groups, FP32)
    for values in (lowered.typed_values, lowered.gated_values):
        found = values(backend, network, exact, ranges, feed)
        for info in network.outputs:
            assert lowered.sqnr(case.plain[info.name], found[info.name]) > 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chains")


@given(
    seed=st.integers(0, 1 << 30),
    formula=st.sampled_from(list(EQUALIZATION_FORMULAS)),
    other=st.sampled_from([FP32, FP32, FP16]),
)
@settings(max_examples=8, deadline=None)
def test_random_chains_stay_in_fp32_and_all_lowerings_agree(opened, backend, folder, seed, formula, other):
    network, samples = opened_pair(chained(Random(seed)), opened, folder, decades=1.0, count=2)
    moves, ranges = moves_of(network, samples, backend, formula)
    assert len(moves) >= 3 and any((decode_vector(move.factors) != 1).any() for move in moves.values())
    config = PrecisionConfig(INT8, other).with_moves(moves)
    assert_lowerings_agree(network, backend, config, ranges, samples.read_feed(0))


def test_no_tensor_grows_so_that_fp16_overflows_no_sooner(opened, backend, tmp_path):
    network, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.0, count=2)
    for formula in EQUALIZATION_FORMULAS:
        moves, _ = moves_of(network, samples, backend, formula)
        changed = rewrite_network_for_config(network, PrecisionConfig.from_precision(FP32).with_moves(moves)).network
        largest: dict[str, list[float]] = {}
        for one in (network, changed):
            runs = [lowered.inner_values(backend, one, samples.read_feed(index)) for index in range(len(samples))]
            for name in runs[0]:
                largest.setdefault(name, []).append(max(float(np.abs(run[name]).max()) for run in runs))
        assert all(after <= before * 1.001 for before, after in largest.values())


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_the_ranges_are_those_of_the_scaled_network(method, opened, backend, tmp_path):
    model = chained(Random(11))
    network, samples = opened_pair(model, opened, tmp_path, decades=1.0)
    moves, _ = moves_of(network, samples, backend, method=method)
    changed = rewrite_network_for_config(network, PrecisionConfig.from_precision(FP32).with_moves(moves)).network
    joined = network.tensors_with_shared_range
    expected = calibrate(changed.model, network.calibrated_tensors, samples, backend, method=method).ranges
    ranges = {tensor: amax for move in moves.values() for tensor, amax in move.ranges.items()}
    assert len(ranges) >= 4
    for tensor, amax in ranges.items():
        largest = max(expected[name] for name in joined.get(tensor, (tensor,)) if name in expected)
        assert amax == pytest.approx(largest, rel=1e-3 if method == "minmax" else 0.03), tensor


def test_concats_keep_one_range(opened, backend, tmp_path):
    b = Builder()
    first, second = (b.node("Relu", [b.conv("x", (4, 4), f"/{name}", bias=True)], f"/{name}") for name in "ab")
    x = b.node("Concat", [first, second], "/cat", axis=1)
    b.node("Conv", [x, b.kernel("w", (3, 8, 1, 1), 8)], "/out", output="y")
    second_reader = b.conv(second, (4, 4), "/other")
    network, samples = opened_pair(
        b.model([floats("x", 2, 4, 6, 6)], [floats("y", 2, 3, 6, 6), floats(second_reader, 2, 4, 6, 6)]),
        opened,
        tmp_path,
        decades=1.0,
        batch=2,
    )
    moves, _ = moves_of(network, samples, backend)
    (move,) = moves.values()
    assert len(decode_vector(move.factors)) == 8
    assert set(move.ranges) == {second, x} and len(set(move.ranges.values())) == 1


# -- what it gains -----------------------------------------------------------------------------------------------------


def proposal(context):
    proposals = list(KIND.make_proposals(context))
    assert len(proposals) <= 1
    return proposals[0].config if proposals else None


def sqnr_db(context, config):
    noise, signal = context.measure_sample_errors(config, context.judged_feeds, None)
    return float(-10 * np.log10((noise.sum(0) / signal.sum(0)).sum()))


@pytest.mark.parametrize("clip", [None, 6.0])
def test_uneven_channels_are_recovered(clip, opened, backend, tmp_path):
    config = PrecisionConfig(INT8, FP16)
    even, samples = opened_pair(inverted_residuals(clip), opened, tmp_path, scale=0.5)
    uneven = opened(skewed(inverted_residuals(clip), even))
    best = sqnr_db(context_of(even, samples, backend, config), config)
    context = context_of(uneven, samples, backend, config)
    before = sqnr_db(context, config)
    equalized = proposal(context)
    after = sqnr_db(context, equalized)
    assert before < best - 3 and after > before + 3 and after > best - 2, (best, before, after)
    assert equalized.without_moves(EqualizationMove) == config


def test_even_channels_are_left_alone_if_nothing_is_gained(opened, backend, tmp_path):
    """Held-out samples decide: here every change loses on them."""
    network, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.0)
    config = PrecisionConfig(INT8, FP16)
    for gain_of_held_out, offered in ((0.5, True), (2.0, False)):

        def measure(changed, feeds, progress, gain=gain_of_held_out):
            noise = np.ones((8, 1))
            if changed.get_moves(EqualizationMove):
                noise[:] = 0.5
                noise[3::4] = gain  # every fourth sample is held out
            return noise, np.full((8, 1), 100.0)

        assert (proposal(context_of(network, samples, backend, config, judged=measure)) is not None) is offered


def test_a_layer_that_loses_by_it_is_left_out(opened, backend, tmp_path):
    network, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.0)

    def measure(changed, feeds, progress):
        moves = changed.get_moves(EqualizationMove)
        noise = 10.0 - len(moves) + 5 * ("/b1/depthwise/Conv" in moves)
        return np.full((8, 1), noise), np.full((8, 1), 100.0)

    moves = proposal(context_of(network, samples, backend, PrecisionConfig(INT8, FP16), judged=measure)).get_moves(
        EqualizationMove
    )
    assert "/b1/depthwise/Conv" not in moves and "/b0/depthwise/Conv" in moves


# -- Clips -------------------------------------------------------------------------------------------------------------


def clipped_pair(opened, tmp_path, bound):
    b = Builder()
    kernel = b.rng.standard_normal((8, 4, 3, 3)) * np.geomspace(0.02, 0.4, 8).reshape(8, 1, 1, 1)
    x = b.node("Conv", ["x", b.weight("a.weight", kernel.astype(np.float32)), b.vector("a.bias", 8)], "/a")
    bounds = [b.weight("low", np.float32(0)), b.weight("high", np.float32(bound))]
    x = b.node("Clip", [x, *bounds], "/clip")
    b.node("Conv", [x, b.kernel("w", (4, 8, 3, 3), 72)], "/b", output="y")
    return opened_pair(b.model([floats("x", 2, 4, 8, 8)], [floats("y", 2, 4, 4, 4)]), opened, tmp_path, batch=2)


def test_channels_at_a_bound_keep_their_values(opened, backend, tmp_path):
    network, samples = clipped_pair(opened, tmp_path, 3.0)
    moves, ranges = moves_of(network, samples, backend)
    (factors,) = (decode_vector(move.factors) for move in moves.values())
    extrema = {}
    (scaling,) = (one for one in network.zero_cost_support.channel_scalings.values() if one.channels)
    zero_cost_kinds.measure_channel_extrema(network, [scaling.tensors[0].tensor], samples, backend, extrema)
    largest = extrema[scaling.tensors[0].tensor].high.ravel()
    reaches = largest * CLIP_HEADROOM > 3
    assert 0 < reaches.sum() < 8 and (factors[reaches] == 1).all() and (factors[~reaches] != 1).all()
    assert (largest / factors <= 3 / CLIP_HEADROOM * 1.00001)[~reaches].all()
    config = PrecisionConfig(INT8, FP32).with_moves(moves)
    assert_lowerings_agree(network, backend, config, ranges, samples.read_feed(0))


@pytest.mark.parametrize(("bound", "limited"), [(3.0, True), (np.inf, False)])
def test_what_depends_on_the_samples_is_said(bound, limited, opened, backend, tmp_path):
    network, samples = clipped_pair(opened, tmp_path, bound)
    moves, ranges = moves_of(network, samples, backend)
    config = PrecisionConfig(INT8, FP32).with_moves(moves)
    notes = [note for note in lower_to_typed_network(network, config, ranges).notes if "Clip" in note]
    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        *_, last = analysis.measure_accuracy(config, ranges)
    kinds = [caveat.kind for caveat in last.value.caveats]
    outcome = judge_accuracy([parse_target("sqnr>=5")], last.value).outcome
    assert (bool(notes), "data dependent" in kinds, outcome is Outcome.UNCERTAIN_PASS) == (limited,) * 3
    if limited:
        assert "1.25 times" in notes[0] and "/a/Conv" in notes[0]


def test_a_clip_that_cuts_every_channel_leaves_nothing_to_scale(opened, backend, tmp_path):
    network, samples = clipped_pair(opened, tmp_path, 0.1)
    moves, _ = moves_of(network, samples, backend)
    assert all((decode_vector(move.factors) == 1).all() for move in moves.values())
    assert proposal(context_of(network, samples, backend, PrecisionConfig(INT8, FP16))) is None


# -- conditions --------------------------------------------------------------------------------------------------------


def test_the_channels_of_attention_and_of_smoothquant_are_left_to_their_moves(opened):
    network = opened(transformer())
    reasons = {
        name: KIND.refusal_reason(network, network.get_group(name), PrecisionConfig())
        for name in ("/in/MatMul", "/matmul/MatMul", "/gemm/Gemm")
    }
    assert reasons["/matmul/MatMul"] == reasons["/gemm/Gemm"] and "SmoothQuant" in reasons["/gemm/Gemm"]
    assert "reads" in reasons["/in/MatMul"]
    heads = opened(networks.vit())
    scalings = heads.zero_cost_support.channel_scalings
    products = [name for name, scaling in scalings.items() if scaling.channels and scaling.products]
    assert products and all("by weights alone" in equalization_refusal_reason(heads, name) for name in products)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (PrecisionConfig(INT8, FP16), ""),
        (PrecisionConfig(Precision.FP8, FP16), ""),
        (PrecisionConfig.from_precision(FP16), "no layer in INT8, FP8, INT4, MXFP8, NVFP4 reads its channels"),
    ],
)
def test_only_quantized_readers_gain(config, reason, opened):
    network = opened(inverted_residuals())
    group = network.get_group("/b0/depthwise/Conv")
    assert KIND.refusal_reason(network, group, config) == reason
    assert KIND.find_subject(network, group) == "/b0/expand/Conv"
    assert KIND.find_subject(network, network.get_group("/stem/Conv")) == "/stem/Conv"


def test_one_row_equalizes_the_channels_that_it_reads(opened, backend, tmp_path):
    network, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.5)
    group = network.get_group("/b1/project/Conv")
    context = context_of(network, samples, backend, PrecisionConfig(INT8, FP16), groups=[group])
    config = proposal(context)
    assert set(config.get_moves(EqualizationMove)) == {"/b1/depthwise/Conv"}
    assert list_zero_cost_moves(network, config, group) == [(EqualizationMove, "/b1/depthwise/Conv")]
    assert proposal(replace(context, config=config)) is None  # it has them already


def test_layers_in_file_precision_leave_it_or_are_left_alone(opened, backend, tmp_path):
    plain, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.0)
    ranges = calibrate(plain.model, plain.calibrated_tensors, samples, backend).ranges
    quantized = lower_to_typed_network(plain, PrecisionConfig(INT8, FP32), ranges).model
    network = opened(ir.to_proto(quantized))
    config = PrecisionConfig.from_precision(Precision.FILE)
    context = context_of(network, samples, backend, config)
    assert proposal(context) is None
    (offered,) = KIND.make_proposals(replace(context, may_replace_file_precision=True))
    assert "no longer in" in offered.label
    for subject in offered.config.get_moves(EqualizationMove):
        for name in KIND.find_changed_tensors_and_groups(network, subject)[1]:
            assert offered.config.precision_of(network.get_group(name)) is INT8
    assert sqnr_db(context, offered.config) > sqnr_db(context, config)
    changed = next(group for group in network.groups if offered.config.precision_of(group) is INT8)
    other = next(
        group
        for group in network.groups
        if offered.config.precision_of(group) is Precision.FILE and FP32 in group.allowed_precisions
    )
    for group, lowest in ((changed, INT8), (other, Precision.FILE)):
        raised = toggle_fp32(network, offered.config, [group])
        assert raised.precision_of(group) is FP32
        lowered_again = toggle_fp32(network, raised, [group])
        assert lowered_again.precision_of(group) is lowest
        refuse_edits_under_file_precision(network, lowered_again)
    with pytest.raises(InputError, match="has file precision"):
        refuse_edits_under_file_precision(network, raised.with_group_precision([changed], Precision.FILE))


def test_it_removes_what_was_measured_without_it(opened, backend, tmp_path):
    network, samples = opened_pair(inverted_residuals(), opened, tmp_path, decades=1.0)
    moves, _ = moves_of(network, samples, backend)
    name = "/b1/depthwise/Conv"
    reader = network.get_group("/b1/project/Conv")
    (tensor,) = (site.tensor for site in reader.calibrated_qdq_sites(INT8) if site.role == "input")
    shifts = {
        group: BiasCorrectionMove(encode_vector(np.zeros(network.zero_cost_support.biases[group].channels)))
        for group in (name, reader.name, "/head/Gemm")
    }
    config = PrecisionConfig(INT8, FP16).with_moves(shifts)
    config = config.with_moves({tensor: RangeMove(2.0), "image": RangeMove(3.0)})
    config = add_zero_cost_moves(config, network, {name: moves[name]})
    assert set(config.get_moves(BiasCorrectionMove)) == {"/head/Gemm"} and set(config.range_moves) == {"image"}
    assert tensor in config.fixed_range_tensors
