"""Tests that all lowerings do the same arithmetic: trt_tui.core.lowering.

``python -m tests.fuzz.lowering`` does the same for longer, and asks TensorRT-RTX.
"""

from random import Random

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import lowered, networks, rtx
from tests.measuring import measure_impacts, measure_shares
from tests.networks import Builder, floats
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.network_rewrite import reduces_precision
from trt_tui.core.lowering.rulebook import GatedFeatures
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig, PrecisionMove
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
FP8, INT4, TF32 = Precision.FP8, Precision.INT4, Precision.TF32
EVERYTHING = GatedFeatures.from_precisions((FP16, BF16), (FP32, FP16, BF16), (INT8, FP8, INT4, TF32))


def case_of(opened, backend, model: onnx.ModelProto, config: PrecisionConfig, scale: float = 1.0) -> lowered.Case:
    network = opened(model)
    feeds = {name: (array * scale).astype(array.dtype) for name, array in networks.feeds(model, 1, n=32).items()}
    plain = lowered.inner_values(backend, network, feeds)
    ranges = {tensor: float(np.abs(plain[tensor]).max()) for tensor in network.calibrated_tensors}
    return lowered.Case(network, config, feeds, plain, ranges)


def one_layer(operator: str, activation: str = "", row: float = 1.0, weight: float = 1.0) -> onnx.ModelProto:
    """A Conv, Gemm or MatMul, one channel of its weight scaled, with an activation and a Softmax behind it."""
    b = Builder(3)
    if operator == "Conv":
        values, given, result = b.rng.standard_normal((32, 32, 3, 3)), ("batch", 32, 8, 8), ("batch", 32, 8, 8)
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
    else:
        values, given, result = b.rng.standard_normal((32, 64)), ("batch", 64), ("batch", 32)
        attributes = {"transB": 1} if operator == "Gemm" else {}
    values[0] *= row
    values = values * weight
    kernel = b.weight("w", (values.T if operator == "MatMul" else values).astype(np.float32))
    y = b.node(operator, ["x", kernel], "/layer", **attributes)
    y = b.node(activation, [y], "/act") if activation else y
    b.node("Softmax", [y], "/end", output="y")
    return b.model([floats("x", *given)], [floats("y", *result)])


# The same networks at each run: `tests.fuzz.lowering` draws others.


@settings(deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False))
def test_typed_and_gated_networks_do_the_same_arithmetic(random: Random, opened, backend) -> None:
    case = lowered.draw(random, backend, opened)
    assert lowered.compare(case, backend) is None
    model = lower_to_typed_network(case.network, case.config, case.ranges).model
    assert all(len(types) == 1 for types in lowered.scale_types(model).values())


@settings(deadline=None, max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False))
def test_a_graph_that_offers_more_gives_the_same(random: Random, opened, backend) -> None:
    case = lowered.draw(random, backend, opened)
    arguments = backend, case.network, case.config, case.ranges, case.feeds
    for one, two in zip(
        lowered.gated_values(*arguments).values(), lowered.gated_values(*arguments, EVERYTHING).values(), strict=True
    ):
        largest = np.abs(one, where=np.isfinite(one), out=np.zeros_like(one)).max(initial=0)
        apart = ~np.isclose(one, two, rtol=0, atol=1e-5 * largest, equal_nan=True)  # kernels of the two may differ
        assert apart.mean() <= lowered.FLIPPED


@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "Conv"])
def test_a_group_that_fp16_cannot_have_is_in_fp32_among_fp16(operator, opened, backend) -> None:
    config = PrecisionConfig(INT8, FP16)
    case = case_of(opened, backend, one_layer(operator, "Celu", weight=3000), config)
    group = case.network.get_group("/layer/" + operator)
    assert FP16 not in group.allowed_precisions
    ruling = rulebook.plan_lowering(case.network, config, case.ranges)[group.name]
    assert ruling.boundary_type is FP32 and {scale.stored_type for scale in ruling.scales.values()} == {FP32}
    assert case.plain[group.final_tensor].max() > 65504
    gated = lowered.gated_values(backend, case.network, config, case.ranges, case.feeds)
    assert np.isfinite(gated[group.final_tensor]).all() and lowered.compare(case, backend) is None
    told = (
        lower_to_explicit_quantization(case.network, config, case.ranges)[1],
        lower_to_implicit_quantization(case.network, config, case.ranges),
    )
    assert told[1].output_types["/act/Celu"] is FP32 and FP16 in told[0].precision_flags


def rows_of(listing: str, layer: str) -> list[str]:
    return [row for row in listing.splitlines() if f"[ONNX Layer: {layer}]" in row]


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("operator", "activation", "row", "code", "other"),
    [
        ("Gemm", "", 1e-4, INT8, FP16),
        ("MatMul", "", 1e-4, INT8, FP16),
        ("Conv", "", 1e-4, INT8, FP16),
        ("Conv", "Celu", 1, INT8, FP16),
        ("MatMul", "Celu", 1, INT8, FP16),
        ("Gemm", "", 1, INT8, BF16),
        ("Conv", "Relu", 1, INT8, FP16),
        ("Gemm", "", 1, FP8, FP16),
        ("MatMul", "Celu", 1, FP8, FP32),
        ("Conv", "Relu", 1, FP8, FP16),
        ("Conv", "", 1e-4, FP8, BF16),
        ("MatMul", "", 1, INT4, FP16),
        ("Gemm", "", 1e-4, INT4, BF16),
        ("Gemm", "Celu", 1, INT4, FP32),
    ],
)
def test_tensorrt_multiplies_in_codes(operator, activation, row, code, other, opened, backend) -> None:
    config = PrecisionConfig(code, other)
    case = case_of(opened, backend, one_layer(operator, activation, row), config)
    assert lowered.compare(case, backend) is None
    model = lower_to_typed_network(case.network, config, case.ranges).model
    listing = rtx.layers(model, {"x": case.feeds["x"].shape})
    if code is INT4:  # one block of weights, which a kernel of its own dequantizes
        assert "Datatype: Int4" in listing
        return
    found = rows_of(listing, f"/layer/{operator}")
    assert any(row.count(f"Datatype: {'FP8' if code is FP8 else 'Int8'}") >= 2 for row in found), found


@pytest.mark.parametrize(("scale", "data"), [(1.0, False), (3e-5, False), (0.02, True), (7e4, False)])
def test_fp8_is_simulated_to_the_bit(scale, data, opened, backend) -> None:
    """All FP16 values and what lies around the ends of E4M3's steps, through an identity."""
    b = Builder()
    b.node("MatMul", ["x", b.weight("one", np.eye(1, dtype=np.float32))], "/one", output="y")
    network = opened(b.model([floats("x", "batch", 1)], [floats("y", "batch", 1)]))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    steps = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.concatenate([halves[np.isfinite(halves)], steps[np.isfinite(steps)]])
    middle = (np.unique(values)[1:] + np.unique(values)[:-1]) / 2
    x = np.float32(scale) * np.concatenate([values, middle, np.nextafter(middle, 9e9), np.nextafter(middle, -9e9)])
    gated = build_gated_graph(network, quantized_types=(FP8,), boundary_types=(FP32,), gates_as_data=data)
    with backend.load(gated.model, low_memory=True) as runner:
        fed = gated.make_feed(PrecisionConfig(FP8, FP32), {"x": 448 * scale})
        found = runner.run({"x": x[:, None], **fed})[gated.test_outputs["y"]][:, 0]
    step = np.float32(448 * scale) / np.float32(448)
    codes = np.clip(x / step, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found, codes * step)


@pytest.mark.parametrize("data", [False, True])
def test_tf32_rounds_the_operands_of_products_alone(data, opened, backend) -> None:
    b = Builder()
    weight = b.rng.standard_normal((8, 8)).astype(np.float32)
    b.node("Add", [b.node("MatMul", ["x", b.weight("w", weight)], "/product"), b.vector("more", 8)], "/add", output="y")
    network = opened(b.model([floats("x", "batch", 8)], [floats("y", "batch", 8)]))
    config = PrecisionConfig(FP32, FP32, tf32=True)
    x = b.rng.standard_normal((512, 8)).astype(np.float32)
    wide = x * np.float32(10.0) ** b.rng.uniform(-30, 37, (512, 1)).astype(np.float32)
    rounded = [rulebook.round_to_precision(one, TF32) for one in (x, weight, wide)]
    for one, whole in zip(rounded, (x, weight, wide), strict=True):
        whole = np.where(np.abs(whole) < rulebook.TF32_BOUND, whole, 0)
        one = np.where(np.abs(one) < rulebook.TF32_BOUND, one, 0)
        bits = whole.view(np.uint32)
        nearest = ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
        ties = bits & 0x1FFF == 0x1000
        np.testing.assert_array_equal(one[~ties], nearest[~ties])
    gated = build_gated_graph(network, quantized_types=(TF32, FP8), boundary_types=(FP32,), gates_as_data=data)
    offered = GatedFeatures.from_config(network, config)
    assert (
        offered.quantized_types == {TF32}
        and gated.features.includes_features(offered)
        and reduces_precision(network, config)
    )
    with backend.load(gated.model, low_memory=True) as runner:
        found, plain = (
            runner.run({"x": x, **gated.make_feed(one, {})})[gated.test_outputs["y"]]
            for one in (config, PrecisionConfig(FP32, FP32))
        )
    more = network.constant_value("more")
    np.testing.assert_allclose(plain, x @ weight + more, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found, rounded[0] @ rounded[1] + more, rtol=0, atol=1e-5)
    assert 50 < lowered.sqnr(plain, found) < 80
    typed = lower_to_typed_network(network, config, {})
    assert typed.layer_changes["/product/MatMul"] == "TF32" and all(
        node.op_type != "Cast" for node in typed.model.graph
    )


@pytest.mark.parametrize(
    ("shape", "transposed", "scales"),
    [((256, 24), False, (2, 24)), ((192, 24), False, (3, 24)), ((24, 384), True, (24, 3))],
)
def test_weights_of_int4_have_a_scale_for_each_block(shape, transposed, scales, opened) -> None:
    b = Builder()
    b.node(
        "Gemm",
        ["x", b.weight("w", b.rng.standard_normal(shape).astype(np.float32))],
        "/g",
        output="y",
        transB=int(transposed),
    )
    k, n = shape[::-1] if transposed else shape
    network = opened(b.model([floats("x", 3, k)], [floats("y", 3, n)]))
    ((site, scale),) = rulebook.plan_lowering(network, PrecisionConfig(INT4, FP16), {})["/g/Gemm"].scales.items()
    block = k // scales[1 if transposed else 0]
    assert (scale.values.shape, scale.block_size, scale.stored_type, site.role) == (scales, block, FP16, "weight")
    weight, held = network.constant_value("w"), rulebook.quantize_dequantize_weight(network.constant_value("w"), scale)
    assert len(np.unique(held.reshape(n, -1, block)[0, 0] if transposed else held[:block, 0])) <= 16
    assert np.abs(held - weight).max() <= 0.51 * scale.values.max() and np.all(held == held.astype(np.float16))


@pytest.mark.parametrize("shared", [False, True])
def test_weights_of_int4_are_stored_as_codes_alone(shared, opened, backend) -> None:
    b = Builder()
    weight = b.kernel("w", (128, 48), 128)
    b.node("MatMul", ["x", weight], "/a", output="y")
    b.node("MatMul", [b.node("Tanh", ["x"], "/t"), weight], "/b", output="z")
    network = opened(b.model([floats("x", 4, 128)], [floats(name, 4, 48) for name in "yz"]))
    groups = network.groups if not shared else [network.get_group("/a/MatMul")]
    config = PrecisionConfig(FP32).with_group_precision(groups, INT4)
    typed = lower_to_typed_network(network, config, {}).model
    stored = {name: value.dtype for name, value in typed.graph.initializers.items() if value.shape.numpy() == (128, 48)}
    assert stored == {"w__fp16__codes": ir.DataType.INT4, **({"w": ir.DataType.FLOAT} if shared else {})}
    (scale,) = (one for one in rulebook.plan_lowering(network, config, {})["/a/MatMul"].scales.values())
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)}
    with backend.load(typed) as runner:
        got = runner.run(feeds)
    exact = network.constant_value("w")
    seen = rulebook.quantize_dequantize_weight(exact, scale)
    np.testing.assert_allclose(got["y"], feeds["x"] @ seen, atol=0.02)  # in FP16
    np.testing.assert_allclose(got["z"], np.tanh(feeds["x"]) @ (exact if shared else seen), atol=0.02)


def test_a_tensor_shared_by_layers_of_other_scale_types_is_quantized_twice(opened, backend) -> None:
    """Operands of one layer have scales of one type."""
    b = Builder()
    plain, tiny = (b.rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    tiny[:, 0] *= 1e-5
    one, two = (
        b.node("MatMul", ["x", b.weight(name, values)], f"/{name}")
        for name, values in (("plain", plain), ("tiny", tiny))
    )
    b.node("Concat", [one, two], "/cat", output="y", axis=1)
    case = case_of(
        opened, backend, b.model([floats("x", "batch", 16)], [floats("y", "batch", 32)]), PrecisionConfig(INT8, FP16)
    )
    model = lower_to_typed_network(case.network, case.config, case.ranges).model
    assert lowered.scale_types(model) == {"/plain/MatMul": {ir.DataType.FLOAT16}, "/tiny/MatMul": {ir.DataType.FLOAT}}
    assert lowered.compare(case, backend) is None


@pytest.mark.parametrize("precision", [FP16, BF16])
def test_a_tensor_that_a_layer_reads_twice_is_rounded_both_times(precision, opened, backend) -> None:
    b = Builder()
    b.node("Sub", [b.node("Mul", ["x", "x"], "/square"), "x"], "/less", output="y")
    model = b.model([floats("x", "batch", 64)], [floats("y", "batch", 64)])
    case = case_of(opened, backend, model, PrecisionConfig(precision, precision))
    typed = lowered.typed_values(backend, case.network, case.config, case.ranges, case.feeds)
    gated = lowered.gated_values(backend, case.network, case.config, case.ranges, case.feeds)
    np.testing.assert_array_equal(typed["y"], gated["y"])


def test_results_of_another_type_are_not_rounded(opened, backend) -> None:
    """The mean that LayerNormalization yields beside its result is FP32 whatever that is."""
    b = Builder()
    weights = [b.vector("scale", 32, 1.0), b.vector("bias", 32)]
    b.nodes.append(onnx.helper.make_node("LayerNormalization", ["x", *weights], ["n", "mean"], name="/norm", axis=-1))
    b.node("Sub", ["n", "mean"], "/sub", output="y")
    model = b.model([floats("x", "batch", 32)], [floats("y", "batch", 32), floats("mean", "batch", 1)])
    network = opened(model)
    feeds = networks.feeds(model, 1, n=16)
    gated = build_gated_graph(network, outputs=["mean"])
    with backend.load(gated.model, low_memory=True) as runner:
        for config in (PrecisionConfig.from_precision(FP32), PrecisionConfig(FP16, FP32)):
            chosen = PrecisionConfig(FP32, FP32).with_moves({"/norm": PrecisionMove(config.quantized)})
            mean = runner.run({**feeds, **gated.make_feed(chosen, {})})[gated.test_outputs["mean"]]
            x = feeds["x"] if config.quantized is FP32 else feeds["x"].astype(np.float16).astype(np.float32)
            np.testing.assert_allclose(mean, x.mean(-1, keepdims=True), rtol=1e-6, atol=1e-7)


def mixed(network: Network) -> PrecisionConfig:
    """INT8 among BF16, FP16 and FP32."""
    config = PrecisionConfig(INT8, BF16)
    others = [group for group in network.groups if not group.is_quantizable]
    for group, precision in zip(others, (FP16, FP32, BF16) * len(others), strict=False):
        config = config.with_group_precision([group], precision)
    for group in [group for group in network.groups if group.is_quantizable][::3]:
        config = config.with_group_precision([group], FP16)
    return config


def test_one_analysis_answers_any_mix_of_precisions(named_network, backend, tmp_path) -> None:
    network = named_network("mlp")
    np.savez(tmp_path / "data.npz", **networks.feeds(onnx.load(network.path), seed=3, n=8))
    samples = load_samples(tmp_path / "data.npz", network.inputs, batch=4)
    ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
    configs = {
        "mixed": mixed(network),
        "fp16": PrecisionConfig.from_precision(FP16),
        "int8": PrecisionConfig(INT8, FP32),
        "bf16": PrecisionConfig.from_precision(BF16),
    }

    def last(partials):
        return list(partials)[-1].value

    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        running = {run: analysis.measure_accuracy(config, ranges) for run, config in configs.items()}
        verdicts = {run: next(one).value for run, one in running.items()}  # each offers more, in the middle of others
        verdicts = {run: last(one) for run, one in running.items()}
        layers = last(measure_group_errors(analysis, configs, ranges))
        shares, impacts = (of(analysis, configs["mixed"], ranges) for of in (measure_shares, measure_impacts))
        alone = {
            group.name: configs["mixed"].with_group_precision([g for g in network.groups if g is not group], FP32)
            for group in network.groups
        }
        energies = {
            name: last(analysis.measure_accuracy(config, ranges)).judged_error for name, config in alone.items()
        }
    assert set(shares) == set(impacts) == {group.name for group in network.groups}
    assert impacts == pytest.approx(energies)
    for run, config in configs.items():
        with Analysis(network, backend, samples, select_judged_outputs(network)) as fresh:
            assert verdicts[run] == last(fresh.measure_accuracy(config, ranges))
            assert layers[run] == last(measure_group_errors(fresh, {run: config}, ranges))[run]
