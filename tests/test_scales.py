import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.calibration.calibration import RangeTable, override_ranges, ranges_comparison_key
from trt_tui.core.lowering import rulebook, scales
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.precision import Precision

AMAX = st.floats(0, float(np.float32(3e38)), width=32)


@given(AMAX)
def test_a_scale_maps_its_range_to_127_codes(amax):
    scale = scales.scale_from_amax(amax)
    assert scale.dtype == np.float32 and scale > 0 and np.isfinite(scale)
    codes = np.rint(np.float64(amax) / scale) if amax else 0
    assert abs(codes) <= 127 and (codes == 127 or amax < 127 * np.finfo(np.float32).tiny)


def test_a_range_of_zero_has_scale_one():
    np.testing.assert_array_equal(scales.scale_from_amax(np.array([0, 127.0])), np.float32([1, 1]))


@pytest.mark.parametrize(("scale", "other", "held"), [
    (0.02, Precision.FP16, Precision.FP16), (0.02, Precision.FP32, Precision.FP32),
    (0.02, Precision.BF16, Precision.FP32), (2.0**-17, Precision.FP16, Precision.FP16),
    (2.0**-17.1, Precision.FP16, Precision.FP32), (65504.0, Precision.FP16, Precision.FP16),
    (65600.0, Precision.FP16, Precision.FP32)])
def test_fp16_holds_a_scale_only_where_it_can(scale, other, held):
    array = np.array([scale], np.float32)
    assert scales.choose_scale_type([array], other) is held


def test_one_small_channel_keeps_all_operands_of_a_layer_in_fp32():
    fits, small = np.array(0.1, np.float32), np.array([0.1, 1e-7], np.float32)
    assert scales.choose_scale_type([fits], Precision.FP16) is Precision.FP16
    assert (scales.choose_scale_type([fits, small], Precision.FP16) is scales.choose_scale_type(
        [small, fits], Precision.FP16) is Precision.FP32)


def test_weight_scales_are_per_channel(named_network):
    network = named_network("mlp")
    site = network.get_group("/fc1/Gemm").weight_qdq_sites()[0]
    weight = network.constant_value(site.tensor)
    scale = scales.compute_weight_scale(FoldedConstants(network), site)
    np.testing.assert_allclose(scale, np.abs(weight).max(1) / 127, rtol=1e-6)


@pytest.fixture(scope="module")
def joining(opened):
    """``one`` is read by a Conv and by a Concat with ``two``, whose output ``both`` another Conv reads."""
    b = Builder()
    for name in ("one", "two"):
        b.conv("x", (4, 4), f"/{name}")
        b.nodes[-1].output[0] = name
    b.node("Concat", ["one", "two"], "/cat", output="both", axis=1)
    b.node("Add", [b.conv("one", (4, 4), "/c"), b.conv("both", (8, 4), "/d")], "/sum", output="y")
    return opened(b.model([floats("x", 1, 4, 8, 8)], [floats("y", 1, 4, 8, 8)]))


def test_ranges_of_a_concat_are_joined_by_the_largest(joining):
    assert set(joining.calibrated_tensors) == {"x", "one", "both", "/c/Conv_output_0"}
    ranges = {"x": 1.0, "one": 2.0, "both": 3.0, "/c/Conv_output_0": 9.0}
    assert scales.compute_activation_ranges(joining, ranges, PrecisionConfig()) == {**ranges, "one": 3.0}
    # the range of a tensor that no layer reads in INT8 counts too, once it is known
    with_two = scales.compute_activation_ranges(joining, {**ranges, "two": 5.0}, PrecisionConfig())
    assert with_two == {**ranges, "one": 5.0, "both": 5.0}


def test_a_range_of_the_config_holds_for_all_that_share_it(joining):
    config = PrecisionConfig().with_moves({"one": RangeMove(0.5)})
    joined = scales.compute_activation_ranges(joining, dict.fromkeys(joining.calibrated_tensors, 2.0), config)
    assert joined == {"x": 2.0, "one": 0.5, "both": 0.5, "/c/Conv_output_0": 2.0}


def test_codes_take_the_ranges_that_were_chosen_for_them(named_network):
    network = named_network("mlp")
    first, second = "/fc1/Gemm", "/fc2/MatMul"
    ranges = RangeTable(dict.fromkeys(network.calibrated_tensors, 1.0),
                        {"fp8": dict.fromkeys(network.calibrated_tensors, 3.0)})
    config = PrecisionConfig().with_group_precision([network.get_group(second)], Precision.FP8)

    def steps(given):
        ruled = rulebook.plan_lowering(network, config, given)
        return [float(scale.values) for name in (first, second) for site, scale in ruled[name].scales.items()
                if site.role == "input"]

    np.testing.assert_allclose(steps(ranges), [1 / 127, 3 / 448], rtol=1e-3)
    np.testing.assert_allclose(steps(dict(ranges)), [1 / 127, 1 / 448], rtol=1e-3)
    known = override_ranges(ranges, {network.get_group(second).activation_qdq_sites()[0].tensor: 2.0})
    np.testing.assert_allclose(steps(known), [1 / 127, 2 / 448], rtol=1e-3)
    assert ranges_comparison_key(ranges) != ranges_comparison_key(
        dict(ranges)) and ranges_comparison_key(ranges) != ranges_comparison_key(known)


def test_tensors_without_a_range_are_left_out_and_then_asked_for(joining):
    known = dict.fromkeys(joining.calibrated_tensors, 1.0)
    gone = "x"
    del known[gone]
    known["no tensor of this network"] = 3.0
    amax = scales.compute_activation_ranges(joining, known, PrecisionConfig())
    assert set(amax) == set(joining.calibrated_tensors) - {gone}
    with refused("no range", title=gone):
        scales.compute_activation_scale(amax, gone)
    assert scales.compute_activation_scale({gone: 12.7}, gone) == np.float32(12.7) / np.float32(127)
