"""Coordinates and angles that 16-bit floats hold too coarsely: when it is warned, and where."""

import json

import numpy as np
import onnx
import pytest

from tests import networks
from trt_tui.core.measure.group_errors import MAX_COORDINATE_SHIFT, find_coordinate_shifts, max_rounding_error
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

FP16, FP32, BF16 = (PrecisionConfig.from_precision(one) for one in (Precision.FP16, Precision.FP32, Precision.BF16))


def warned(network, magnitudes, config=FP16, shapes=None):
    shifts = find_coordinate_shifts(network, config, magnitudes, lambda: shapes or {})
    return {name: shift.warning_text for name, shift in shifts.items()}


def sampled(width, *, computed=True, **attributes):
    """A GridSample of an image of a width, at a grid that a Tanh computes or that is an input."""
    b = networks.Builder(opset=16)
    grid = b.node("Tanh", ["g"], "/grid") if computed else "g"
    b.node("GridSample", ["x", grid], "/sample", output="y", **attributes)
    return b.model(
        [networks.floats("x", "N", 3, 16, width), networks.floats("g", "N", 8, 8, 2)],
        [networks.floats("y", "N", 3, 8, 8)],
    )


def test_half_a_step_is_that_of_the_numbers_below():
    cases = ((1.0, 2**-12), (0.9, 2**-12), (1.1, 2**-11), (0.4, 2**-13), (2050.0, 1.0), (1e-7, 2**-25))
    for magnitude, expected in cases:
        assert max_rounding_error(magnitude, Precision.FP16) == expected
        below = np.nextafter(np.float16(magnitude), np.float16(0))
        assert expected == float(np.spacing(below)) / 2
    assert max_rounding_error(1.0, Precision.BF16) == 2**-9


@pytest.mark.parametrize(
    ("width", "attributes", "magnitude", "expected"),
    [
        (256, {}, 0.99, None),
        (257, {}, 0.99, 257 / 2**13),
        (257, {"align_corners": 1}, 0.99, None),
        (640, {"align_corners": 1}, 0.99, 639 / 2**13),
        (640, {}, 0.4, 640 / 2**14),
        (640, {}, 6.0, 640 / 2**13),
        (640, {"padding_mode": "reflection"}, 6.0, 640 / 2**10),
        (200, {}, 0.0, None),
    ],
)
def test_a_grid_is_warned_of_from_a_size_on(width, attributes, magnitude, expected, opened):
    network = opened(sampled(width, **attributes))
    found = warned(network, {"/grid/Tanh_output_0": magnitude})
    if expected is None or expected <= MAX_COORDINATE_SHIFT:
        assert not found
        return
    assert found.keys() == {"/grid/Tanh", "/sample/GridSample"} and "GridSample /sample" in found["/grid/Tanh"]
    shift = float(found["/grid/Tanh"].partition("up to ")[2].split()[0])
    assert shift == pytest.approx(expected, rel=0.02)
    assert not warned(network, {"/grid/Tanh_output_0": magnitude}, FP32)
    assert warned(network, {"/grid/Tanh_output_0": magnitude}, BF16)
    half = FP16.with_group_precision([network.get_group("/sample/GridSample")], Precision.FP32)
    assert warned(network, {"/grid/Tanh_output_0": magnitude}, half).keys() == {"/grid/Tanh"}


def test_a_grid_that_is_an_input_and_sizes_that_are_open_are_looked_at(opened):
    assert warned(opened(sampled(640, computed=False)), {}).keys() == {"/sample/GridSample"}
    network = opened(sampled("W"))
    assert not warned(network, {"/grid/Tanh_output_0": 1.0})
    assert warned(network, {"/grid/Tanh_output_0": 1.0}, shapes={"x": (1, 3, 16, 640)})


def test_positions_in_pixels_are_followed_back_through_what_scales_them(opened):
    b = networks.Builder(opset=16)
    moved = b.node("Add", ["g", b.vector("offset", 2)], "/flow")
    scaled = b.node("Mul", [moved, b.weight("factor", np.float32([2 / 639, 2 / 15]))], "/norm")
    grid = b.node("Sub", [scaled, b.weight("one", np.float32(1))], "/centre")
    b.node("GridSample", ["x", grid], "/sample", output="y", align_corners=1)
    network = opened(
        b.model(
            [networks.floats("x", "N", 3, 16, 640), networks.floats("g", "N", 8, 8, 2)],
            [networks.floats("y", "N", 3, 8, 8)],
        )
    )
    found = warned(network, {moved: 639.0, scaled: 0.01, grid: 0.01})
    group = network.find_group("/flow/Add").name
    assert found.keys() == {group} and "at 639" in found[group] and "by up to 0.250 pixels" in found[group]


def test_angles_factors_of_a_resize_and_boxes_are_coordinates(opened):
    b = networks.Builder()
    b.node("Sin", [b.node("Mul", ["p", b.weight("f", np.float32([1, 0.1]))], "/angle")], "/sin", output="y")
    network = opened(b.model([networks.floats("p", "N", 2)], [networks.floats("y", "N", 2)]))
    group = network.find_group("/angle/Mul").name
    assert "angles of Sin" in warned(network, {"/angle/Mul_output_0": 200.0})[group]
    assert "radians" in warned(network, {"/angle/Mul_output_0": 200.0})[group]
    assert not warned(network, {"/angle/Mul_output_0": 60.0})

    b = networks.Builder()
    scales = b.node("Concat", [b.weight("ones", np.float32([1, 1])), b.node("Exp", ["s"], "/scale")], "/scales", axis=0)
    b.node("Resize", ["x", "", scales], "/resize", output="y", mode="linear")
    network = opened(
        b.model([networks.floats("x", 1, 3, 16, 640), networks.floats("s", 2)], [networks.floats("y", 1, 3, "H", "W")])
    )
    maker = network.find_group("/scales/Concat").name
    assert "Resize /resize" in warned(network, {scales: 2.0})[maker]

    b = networks.Builder(opset=16)
    boxes = b.node("Relu", ["b"], "/boxes")
    b.node("RoiAlign", ["x", boxes, b.weight("batch", np.int64([0, 0]))], "/align", output="y", spatial_scale=0.25)
    network = opened(
        b.model([networks.floats("x", 1, 3, 64, 64), networks.floats("b", 2, 4)], [networks.floats("y", 2, 3, 1, 1)])
    )
    assert "RoiAlign" in warned(network, {boxes: 600.0})[network.find_group("/boxes/Relu").name]
    assert not warned(network, {boxes: 100.0})


def test_the_warning_stands_at_the_rows_of_a_comparison(run, tmp_path):
    model, data, out = tmp_path / "s.onnx", tmp_path / "s.npz", tmp_path / "out.json"
    onnx.save(sampled(640), model)
    rng = np.random.default_rng(0)
    np.savez(
        data,
        x=rng.standard_normal((8, 3, 16, 640), dtype=np.float32),
        g=rng.standard_normal((8, 8, 8, 2), dtype=np.float32),
    )
    code, _, err = run("compare", model, "--data", data, "--layers", "errors", "--json", out)
    assert code in (0, None), err
    layers = json.loads(out.read_text())["runs"]["fp16"]["layers"]
    assert "sampling points of GridSample" in layers["/sample/GridSample"]["warning"]
