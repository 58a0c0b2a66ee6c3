"""MXFP8 and NVFP4, whose scales belong to blocks: the arithmetic, its simulation, what is written, what takes it"""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import TESTS, lowered, rtx
from tests.networks.build import Builder, floats
from tests.texts import lacking
from trt_tui.core.engines.group_implementations import build_preview, find_added_kernels, has_unrequested_precision
from trt_tui.core.engines.inspector import read_layer_listing
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.lowering.typed_network import lower_from_source_model, lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.tui.screens.forms import list_raised_precision_choices

FP32, FP16, FILE = Precision.FP32, Precision.FP16, Precision.FILE
LISTINGS = TESTS / "listings"
TYPES = [Precision.MXFP8, Precision.NVFP4]
ELEMENTS = {Precision.MXFP8: ml_dtypes.float8_e4m3fn, Precision.NVFP4: ml_dtypes.float4_e2m1fn}


def reference(blocks, precision, amax):
    """Values of shape (..., block) after quantization, by the bits of ml_dtypes' types alone."""
    quantized_type = QUANTIZED_TYPES[precision]
    with np.errstate(all="ignore"):
        largest = np.abs(np.where(np.isfinite(blocks), blocks, 0)).max(-1, keepdims=True)
        if precision is Precision.MXFP8:
            bits = np.maximum(largest / np.float32(448), np.float32(2.0**-126)).view(np.uint32)
            scale = ((bits + 0x7FFFFF) >> 23).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        else:
            tensor_scale = np.float32(amax) / np.float32(2688)
            ratio = largest / (np.float32(6) * tensor_scale)
            scale = np.minimum(ratio, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * tensor_scale
        limit = quantized_type.max_value
        ratio = np.where(scale > 0, blocks / np.where(scale > 0, scale, 1), 0)
        values = np.clip(ratio, -limit, limit).astype(ELEMENTS[precision]).astype(np.float32) * scale
        return np.where(np.isfinite(blocks).all(-1, keepdims=True), values, np.nan)


def identity(opened, precision, *, blocks=2, operator="MatMul", rank=2, **attributes):
    """A product with an identity, which passes on its quantized operand; the weight itself is exact in both types."""
    size = blocks * QUANTIZED_TYPES[precision].block_sizes[0]
    b = Builder()
    b.node(operator, ["x", b.weight("one", np.eye(size, dtype=np.float32))], "/one", output="y", **attributes)
    shape = (size, "rows") if "transA" in attributes else ("rows", size) if rank == 2 else ("rows", 1, size)
    result = ("rows", size) if rank == 2 else shape
    return opened(b.model([floats("x", *shape)], [floats("y", *result)])), size


def simulate(backend, network, config, feeds, ranges, data=False):
    quantized_types = [precision for precision in TYPES if precision in config.precision_by_group(network).values()]
    gated = build_gated_graph(
        network, float_types=(), quantized_types=quantized_types, boundary_types=(config.other,), gates_as_data=data
    )
    with backend.load(gated.model, low_memory=True) as runner:
        fed = gated.make_feed(config, ranges)
        return next(iter(runner.run({**feeds, **fed}, list(gated.test_outputs.values())).values()))


ANY_FLOAT = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True),
    st.floats(-8, 8, width=32),
    st.sampled_from(
        [0.0, -0.0, 1e-45, 2.0**-126, 448.0, 449.0, 464.0, 480.0, 6.0, 5.0, 2.5, 0.25, 0.75, 65504.0, 3e38]
    ),
)


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("data", [False, True])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(numbers=st.lists(ANY_FLOAT, min_size=8, max_size=64), exponent=st.integers(-100, 100), seed=st.integers(0, 999))
def test_every_block_is_quantized_to_the_bit(precision, data, opened, backend, numbers, exponent, seed):
    """Zeros, subnormals, ties, values beyond the range of calibration, all magnitudes."""
    network, size = identity(opened, precision)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(np.array(numbers, np.float32), (8, size))
    scaled = rng.standard_normal((8, size)).astype(np.float32) * np.float32(2.0) ** exponent
    x = np.concatenate([drawn, scaled, scaled * rng.choice([0, 1], scaled.shape).astype(np.float32)])
    amax = float(np.float32(2.0) ** exponent)
    found = simulate(backend, network, PrecisionConfig(precision, FP32), {"x": x}, {"x": amax}, data)
    expected = reference(x.reshape(len(x), -1, QUANTIZED_TYPES[precision].block_sizes[0]), precision, amax)
    finite = np.isfinite(expected.reshape(x.shape)).all(1)  # a sum with an infinity is none with an identity
    np.testing.assert_array_equal(found[finite], expected.reshape(x.shape)[finite])


@pytest.mark.parametrize("precision", TYPES)
def test_all_values_of_fp16_are_quantized_to_the_bit(precision, opened, backend):
    network, size = identity(opened, precision)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.random.default_rng(0).permutation(halves[np.isfinite(halves)])
    x = np.sort(halves[: len(halves) // size * size]).reshape(-1, size)
    x = np.concatenate([x, np.random.default_rng(1).permutation(x.ravel()).reshape(x.shape)])
    found = simulate(backend, network, PrecisionConfig(precision, FP32), {"x": x}, {"x": 65504.0})
    expected = reference(x.reshape(len(x), -1, QUANTIZED_TYPES[precision].block_sizes[0]), precision, 65504.0)
    np.testing.assert_array_equal(found, expected.reshape(x.shape))


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_without_finite_values_is_nan_and_its_neighbour_is_not_judged_by_it(precision, bad, opened, backend):
    network, size = identity(opened, precision)
    x = np.ones((2, size), np.float32)
    x[0, 1] = bad
    found = simulate(backend, network, PrecisionConfig(precision, FP32), {"x": x}, {"x": 1.0})
    assert np.isnan(found[0, : size // 2]).all() and (found[1] == 1).all()


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("form", [{"operator": "Gemm"}, {"operator": "Gemm", "transA": 1}, {"rank": 3}])
def test_blocks_lie_along_the_summed_axis(precision, form, opened, backend):
    network, size = identity(opened, precision, **form)
    (group,) = network.groups
    assert precision in group.allowed_precisions
    x = np.random.default_rng(0).standard_normal((6, size)).astype(np.float32)
    x *= np.geomspace(1, 1e4, size, dtype=np.float32)
    fed = x.T.copy() if form.get("transA") else x[:, None] if form.get("rank") == 3 else x
    found = simulate(backend, network, PrecisionConfig(precision, FP32), {"x": fed}, {"x": float(np.abs(x).max())})
    expected = reference(x.reshape(6, -1, QUANTIZED_TYPES[precision].block_sizes[0]), precision, np.abs(x).max())
    np.testing.assert_array_equal(found.reshape(x.shape), expected.reshape(x.shape))


@pytest.mark.parametrize("precision", TYPES)
def test_a_weight_has_static_scales_of_the_same_arithmetic(precision, opened):
    b = Builder()
    weight = b.rng.standard_normal((96, 8)).astype(np.float32) * np.geomspace(1e-6, 1e3, 96, dtype=np.float32)[:, None]
    weight[:32, 0] = 0
    b.node("MatMul", ["x", b.weight("w", weight)], "/m", output="y")
    network = opened(b.model([floats("x", 4, 96)], [floats("y", 4, 8)]))
    scales = rulebook.plan_lowering(network, PrecisionConfig(precision, FP16), {"x": 1.0})["/m/MatMul"].scales
    scale = next(scale for site, scale in scales.items() if site.role == "weight")
    held = rulebook.quantize_dequantize_weight(weight, scale)
    block = QUANTIZED_TYPES[precision].block_sizes[0]
    expected = reference(weight.T.reshape(8, -1, block), precision, np.abs(weight).max()).reshape(8, 96).T
    small = np.repeat(np.abs(weight.reshape(-1, block, 8)).max(1) < np.abs(weight).max() / 2688 * 6 * 2.0**-9, block, 0)
    if precision is Precision.NVFP4:  # the least scale of a weight is not 0, because TensorRT refuses that
        expected[small] = held[small]
        assert (scale.values > 0).all()
    np.testing.assert_array_equal(held, expected)


def one_layer(operator, activation="", shape=(4, 96), **attributes):
    b = Builder()
    weight = b.weight("w", b.rng.standard_normal((24, 96) if attributes.get("transB") else (96, 24)).astype(np.float32))
    bias = [b.vector("bias", 24)] if operator == "Gemm" else []
    tensor = b.node(operator, ["x", weight, *bias], "/layer", output="" if activation else "y", **attributes)
    if activation:
        b.node(activation, [tensor], "/act", output="y")
    return b.model([floats("x", *shape)], [floats("y", *shape[:-1], 24)])


CASES = [("Gemm", "", (4, 96), {}), ("Gemm", "Relu", (4, 96), {"transB": 1}), ("MatMul", "Celu", (2, 4, 96), {})]


@pytest.mark.parametrize("other", [FP32, FP16, Precision.BF16])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize(("operator", "activation", "shape", "attributes"), CASES)
def test_typed_and_gated_networks_do_the_same(
    operator, activation, shape, attributes, precision, other, opened, backend
):
    network = opened(one_layer(operator, activation, shape, **attributes))
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    config, plain = PrecisionConfig(precision, other), lowered.inner_values(backend, network, feeds)
    ranges = {"x": float(np.abs(feeds["x"]).max())}
    case = lowered.Case(network, config, feeds, plain, ranges)
    assert lowered.compare(case, backend) is None
    typed, gated = (
        values(backend, network, config, ranges, feeds)["y"] for values in (lowered.typed_values, lowered.gated_values)
    )
    assert lowered.sqnr(typed, gated) > lowered.sqnr(plain["y"], gated) + 20, "the loss is that of the type"


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("other", [FP32, FP16, Precision.BF16])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize(("operator", "activation", "shape", "attributes"), CASES)
def test_tensorrt_rtx_builds_it(operator, activation, shape, attributes, precision, other, opened):
    """For Blackwell it multiplies in FP4 with the scales of the blocks; in MXFP8 it multiplies what it dequantizes."""
    network = opened(one_layer(operator, activation, shape, **attributes))
    typed = lower_to_typed_network(network, PrecisionConfig(precision, other), {"x": 3.0})
    rows = rtx.layers(typed.model, {"x": shape}, "SM120").splitlines()
    product = next(
        row
        for row in rows
        if f"[ONNX Layer: /layer/{operator}]" in row
        and "_Conc" not in row.split(",")[0]
        and "_Move" not in row.split(",")[0]
    )
    if precision is Precision.NVFP4:
        assert product.count("Datatype: FP4E2M1") == 2 and "LayerType: gemm" in product
    else:
        assert any("FP8UE8M0" in row for row in rows) and "FP8UE8M0" not in product
    assert any("TensorRT (domain trt)" in note for note in typed.notes)


def preview_of(text, network):
    return build_preview(read_layer_listing(text, network), network, "1.7.1.116", (12, 0), 0.5)


@pytest.mark.parametrize(("precision", "made"), [(Precision.NVFP4, Precision.NVFP4), (Precision.MXFP8, FP16)])
def test_a_listing_tells_whether_the_kernel_multiplies_in_the_type(precision, made, opened):
    """The listings in tests/listings are those of TensorRT-RTX 1.7.1 for SM120."""
    network = opened(one_layer("Gemm", "Relu"))
    config, (group,) = PrecisionConfig(precision, FP16), network.groups
    preview = preview_of((LISTINGS / f"blocks-{precision.value}.txt").read_text("utf-8"), network)
    implementation = preview.implementations[group.name]
    assert implementation.precision is made
    assert has_unrequested_precision(group, config, preview.implementations) is (made is FP16)


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("precision", TYPES)
def test_the_builder_lists_what_was_recorded(precision, opened):
    network = opened(one_layer("Gemm", "Relu"))
    model = lower_to_typed_network(network, PrecisionConfig(precision, FP16), {"x": 3.0}).model
    recorded = preview_of((LISTINGS / f"blocks-{precision.value}.txt").read_text("utf-8"), network)
    now = preview_of(rtx.layers(model, {"x": (4, 96)}, "SM120"), network)
    assert not find_added_kernels(now, recorded) and not find_added_kernels(recorded, now)


@pytest.mark.rtx("1.7")
def test_gpus_before_blackwell_are_refused_before_the_builder_is(run, tmp_path):
    onnx.save(one_layer("Gemm"), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((32, 96)).astype(np.float32))
    nvfp4 = ("preview", tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "--precision", "nvfp4")
    code, out, err = run(*nvfp4, "--compute-capability", "8.9")
    assert code == 2 and not lacking(err, "8.9 has no NVFP4", "10.0 or later")
    code, out, err = run(*nvfp4)
    assert code == 0 and not lacking(out, "SM120", "1 run as"), err
    code, out, err = run("preview", tmp_path / "m.onnx", "--precision", "mxfp8")
    assert code == 1 and not lacking(out, "MXFP8 in the", "runs in FP16"), err


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: one_layer("MatMul", shape=(2, 2, 4, 96)), "TensorRT quantizes inputs of 2 or 3 dimensions"),
        (lambda: one_layer("MatMul", shape=(96,)), "TensorRT quantizes inputs of 2 or 3 dimensions"),
        (lambda: products(), "needs a constant weight"),
        (lambda: convolution(), "TensorRT has no {} Conv"),
        (lambda: narrow(), "its 40 inputs do not divide into blocks of"),
    ],
)
def test_other_forms_are_refused(make, why, opened):
    group = opened(make()).groups[0]
    for precision in TYPES:
        assert why.format(precision.label) in group.refusal_reasons[precision]
    assert Precision.INT8 in group.allowed_precisions


def products():
    b = Builder()
    b.node("MatMul", ["x", "z"], "/qk", output="y")
    return b.model([floats("x", 4, 96), floats("z", 96, 32)], [floats("y", 4, 32)])


def convolution():
    b = Builder()
    b.node("Conv", ["x", b.kernel("w", (8, 32, 1, 1), 32)], "/conv", output="y")
    return b.model([floats("x", 1, 32, 4, 4)], [floats("y", 1, 8, 4, 4)])


def narrow():
    b = Builder()
    b.node("MatMul", ["x", b.kernel("w", (40, 8), 40)], "/m", output="y")
    return b.model([floats("x", 1, 40)], [floats("y", 1, 8)])


def test_mxfp8_needs_no_ranges_and_nvfp4_does(opened):
    network = opened(one_layer("Gemm"))
    rulebook.plan_lowering(network, PrecisionConfig(Precision.MXFP8, FP16), {})
    assert not quantizes_activations(network, PrecisionConfig(Precision.MXFP8, FP16))
    with pytest.raises(InputError, match="no range for tensor x"):
        rulebook.plan_lowering(network, PrecisionConfig(Precision.NVFP4, FP16), {})


def test_blocks_beyond_the_range_of_calibration_saturate(opened, backend):
    network, size = identity(opened, Precision.NVFP4)
    x = np.full((1, size), 5.0, np.float32)
    config = PrecisionConfig(Precision.NVFP4, FP32)
    assert simulate(backend, network, config, {"x": x}, {"x": 5.0}).max() == pytest.approx(5, rel=1e-6)
    assert simulate(backend, network, config, {"x": x}, {"x": 2.0}).max() == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize("other", [FP32, FP16])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize(("operator", "activation", "shape", "attributes"), CASES)
def test_a_file_in_the_type_is_simulated_as_the_config_that_wrote_it(
    operator, activation, shape, attributes, precision, other, opened, backend, tmp_path
):
    network = opened(one_layer(operator, activation, shape, **attributes))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    amax, config = float(np.abs(x).max()), PrecisionConfig(precision, other)
    ir.save(lower_to_typed_network(network, config, {"x": amax}).model, tmp_path / "typed.onnx")
    file_network = open_network(tmp_path / "typed.onnx")
    group = file_network.groups[0]
    assert group.precision_label(FILE) == f"{precision.label} f" and group.file_precision.nearest_precision is precision
    assert not any("not simulated" in note for note in file_network.notes)
    if precision is Precision.NVFP4:
        assert file_network.quantized_ranges == {"x": pytest.approx(amax)}
    expected, found = (
        next(iter(lowered.gated_values(backend, *of, {"x": amax}, {"x": x}).values()))
        for of in ((network, config), (file_network, PrecisionConfig(FILE, FILE)))
    )
    if other is FP32 or precision is Precision.MXFP8:
        np.testing.assert_array_equal(found, expected)
    else:  # the file rounds what it dequantizes to FP16, which a product of quantized values does not
        assert lowered.sqnr(expected, found) > 55
    written = lower_from_source_model(file_network, PrecisionConfig(FILE, FILE), {}).model
    assert [node.op_type for node in written.graph] == [node.op_type for node in ir.load(tmp_path / "typed.onnx").graph]
    raised = file_network.get_group(group.name)
    again = lower_from_source_model(
        file_network, PrecisionConfig(FILE, FILE).with_group_precision([raised], FP32), {}
    ).model
    assert not any(node.domain == "trt" for node in again.graph)


@pytest.mark.parametrize("change", ["axis", "block_size", "scale"])
def test_what_is_not_the_type_in_a_file_is_not_simulated_as_it(change, opened, tmp_path):
    network = opened(one_layer("Gemm"))
    model = ir.to_proto(lower_to_typed_network(network, PrecisionConfig(Precision.NVFP4, FP32), {"x": 1.0}).model)
    node = next(node for node in model.graph.node if node.op_type == "TRT_FP4DynamicQuantize")
    if change == "scale":
        model.graph.input.append(floats("computed", 1))
        node.input[1] = "computed"
    else:
        attribute = next(attribute for attribute in node.attribute if attribute.name == change)
        attribute.i = 0 if change == "axis" else 32
    onnx.save(model, tmp_path / "typed.onnx")
    assert any("is not simulated" in note for note in open_network(tmp_path / "typed.onnx").notes)


@pytest.mark.parametrize("precision", TYPES)
def test_a_weight_that_the_file_transposes_has_the_type_too(precision, opened, tmp_path):
    """As ModelOpt writes a layer of PyTorch: the weight has an output channel in each row."""
    network = opened(one_layer("Gemm", transB=1))
    model = ir.to_proto(lower_to_typed_network(network, PrecisionConfig(precision, FP16), {"x": 1.0}).model)
    node, position = next((node, index) for index, node in enumerate(model.graph.node) if node.op_type == "Gemm")
    del node.attribute[:]
    turn = onnx.helper.make_node("Transpose", [node.input[1]], ["turned"], "turn", perm=[1, 0])
    model.graph.node.insert(position, turn)
    model.graph.node[position + 1].input[1] = "turned"
    onnx.save(model, tmp_path / "typed.onnx")
    (group,) = open_network(tmp_path / "typed.onnx").groups
    assert group.precision_label(FILE) == f"{precision.label} f" and group.file_precision.nearest_precision is precision


def test_searches_offer_the_types_only_to_who_uses_one(opened):
    for precision, offered in ((Precision.INT8, False), (Precision.NVFP4, True)):
        choices = list_raised_precision_choices(PrecisionConfig.from_precision(precision))
        assert any(Precision.MXFP8 in intermediate for _, intermediate in choices) is offered
