"""Tests of trt_tui.core.lowering.gated: the same arithmetic as the typed network, whatever is asked of a group."""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from tests import lowered, networks
from tests.networks import build
from tests.networks.qdq import product
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.assembly import build_gated_graph, freeze_inputs
from trt_tui.core.lowering.gated.error_sums import ERROR_SUM_COLUMNS
from trt_tui.core.lowering.gated.gated_graph import BranchTensors, GatedGraph, GatedGraphInputs, NodeEmitter
from trt_tui.core.lowering.gated.gates import ControlFlowEmitter, DataFlowEmitter, FilePrecisionBody, emit_ungated_group
from trt_tui.core.lowering.rulebook import GatedFeatures
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.measure import piecewise_runner
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_editing import list_values_read_by_node
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
FP16_SUMS = Precision.FP16_ACC_FP32
NAMES = ("small_resnet", "unet_small", "mlp", "bert_block", "vit_block", "decoder")
DIMS = {"bert_block": {"sequence": 16}}
ALL_INT8 = PrecisionConfig.from_precision(INT8, other_precision=FP32)


@dataclass
class Case:
    """A network, data for it, ranges taken on them, and its FP32 outputs."""

    network: Network
    feeds: dict[str, np.ndarray]
    ranges: dict[str, float]
    plain: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def case(named_network, backend, tmp_path_factory):
    made: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in made:
            network = named_network(name)
            feeds = networks.feeds(onnx.load(network.path), seed=3, n=6, **DIMS.get(name, {}))
            path = tmp_path_factory.mktemp("data") / "data.npz"
            np.savez(path, **feeds)
            samples = load_samples(path, network.inputs, batch=6)
            ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
            with backend.load(network.model) as runner:
                made[name] = Case(network, feeds, ranges, runner.run(feeds))
        return made[name]

    return make


def run_gated(
    backend, case: Case, gated: GatedGraph, config: PrecisionConfig, lean: bool = True
) -> dict[str, np.ndarray]:
    with backend.load(gated.model, low_memory=lean) as runner:
        result = runner.run({**case.feeds, **gated.make_feed(config, case.ranges)})
    return {tensor: result[name] for tensor, name in gated.test_outputs.items()}


def run_typed(backend, case: Case, config: PrecisionConfig, tensors: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    model = lower_to_typed_network(case.network, config, case.ranges).model
    values = {v.name: v for node in model.graph for v in node.outputs}
    present = {v.name for v in model.graph.outputs}
    model.graph.outputs.extend(values[t] for t in dict.fromkeys(tensors) if t in values and t not in present)
    with backend.load(model, optimize=False) as runner:
        return {**case.feeds, **runner.run(case.feeds)}


def floats(outputs: dict[str, np.ndarray]) -> list[str]:
    return [name for name, array in outputs.items() if array.dtype == np.float32]


def assignment(network: Network, precisions: Sequence[Precision], other: Precision) -> PrecisionConfig:
    """Gives the groups these precisions in turn; those that a group cannot take leave it as it is."""
    config = PrecisionConfig(FP32, other)
    for index, group in enumerate(network.groups):
        config = config.with_group_precision([group], precisions[index % len(precisions)])
    return config


@pytest.mark.parametrize(("name", "lean"), [*((name, True) for name in NAMES), ("unet_small", False)])
def test_all_gates_in_fp32_reproduce_the_network(name, lean, case, backend):
    one = case(name)
    result = run_gated(backend, one, build_gated_graph(one.network), PrecisionConfig.from_precision(FP32), lean)
    for tensor in floats(one.plain):
        np.testing.assert_allclose(
            result[tensor], one.plain[tensor], rtol=1e-5, atol=1e-5 * float(np.abs(one.plain[tensor]).max())
        )


@pytest.mark.parametrize("name", ["unet_small", "bert_block", "decoder"])
def test_each_group_in_int8_is_the_typed_one_on_identical_inputs(name, case, backend):
    one = case(name)
    network = one.network
    tails = tuple(group.final_tensor for group in network.groups if group.is_quantizable)
    gated = build_gated_graph(network, boundary_types=(FP32,), outputs=tails)
    base = PrecisionConfig.from_precision(FP32)
    with backend.load(gated.model, low_memory=True) as runner:
        exact = runner.run({**one.feeds, **gated.make_feed(base, one.ranges)})
        for group in [g for g in network.groups if g.is_quantizable][:8]:
            config = PrecisionConfig(FP32, FP32).with_group_precision([group], INT8)
            fed = gated.make_feed(config, one.ranges)
            result = runner.run({**one.feeds, **fed}, [gated.test_outputs[group.final_tensor]])[
                gated.test_outputs[group.final_tensor]
            ]
            made = lower_to_typed_network(network, config, one.ranges).model
            codes = {n.outputs[0].name: n for n in made.graph if n.op_type == "QuantizeLinear"}
            assert len(codes) == len(group.sites)
            typed = run_typed(
                backend, one, config, (group.final_tensor, *codes, *(n.inputs[0].name for n in codes.values()))
            )
            for site in group.sites:
                code_name = next(n for n, node in codes.items() if node.inputs[0].name == site.tensor)
                scale = codes[code_name].inputs[1].const_value.numpy()
                if site.role == "weight":
                    source = next(n for n, w in gated.weight_inputs.items() if w.site == site and w.group == group.name)
                    shape = [-1 if axis == site.axis else 1 for axis in range(fed[source].ndim)]
                    ours = np.rint(fed[source] / (scale.reshape(shape) if site.axis is not None else scale))
                else:
                    assert fed[gated.scale_inputs[group.name, site.tensor]] == scale
                    ours = np.clip(np.rint(typed[site.tensor] / scale), -128, 127)
                apart = np.abs(ours - typed[code_name].astype(np.float32))
                assert apart.max() <= 1
                assert np.mean(apart > 0) <= 1e-3
            loss = lowered.sqnr(exact[gated.test_outputs[group.final_tensor]], typed[group.final_tensor])
            assert lowered.sqnr(typed[group.final_tensor], result) >= loss + 15, group.name


@pytest.mark.parametrize(
    ("name", "precisions", "other"),
    [
        *((name, (INT8,), FP32) for name in NAMES),
        ("small_resnet", (FP32, INT8), FP32),
        ("unet_small", (INT8, FP32), FP32),
        *(
            ("unet_small", precisions, FP16)
            for precisions in ((FP16,), (BF16,), (INT8, FP16, FP32), (FP16, INT8, INT8))
        ),
        ("unet_small", (FP16_SUMS, INT8), FP16),
    ],
)
def test_whole_networks_lose_at_every_group_what_the_typed_ones_lose(name, precisions, other, case, backend):
    one = case(name)
    config = assignment(one.network, precisions, other)
    plain = lowered.inner_values(backend, one.network, one.feeds)
    assert lowered.compare(lowered.Case(one.network, config, one.feeds, plain, one.ranges), backend) is None


@pytest.mark.parametrize("name", ["small_resnet", "decoder"])
@pytest.mark.parametrize("config", [PrecisionConfig.from_precision(FP16), PrecisionConfig.from_precision(INT8)])
def test_inputs_that_are_rounded_already_need_no_rounding(name, config, case, backend):
    one = case(name)
    gated = build_gated_graph(one.network)
    fed = gated.make_feed(config, one.ranges)
    careful = dict(fed)
    for gates in gated.gates.values():
        careful.update({gates[kind]: np.array(False) for kind in ("clean", "direct") if kind in gates})
    assert any(careful[name] != fed[name] for gates in gated.gates.values() for name in gates.values())
    with backend.load(gated.model, low_memory=True) as runner:
        direct, rounded = (runner.run({**one.feeds, **feeds}) for feeds in (fed, careful))
    for tensor in floats(one.plain):
        np.testing.assert_array_equal(direct[gated.test_outputs[tensor]], rounded[gated.test_outputs[tensor]])


def in_chunks(x: np.ndarray, weight: np.ndarray, chunk: int) -> np.ndarray:
    """Rows times a matrix, as tensor cores sum it: exact products of a chunk onto an FP16 accumulator."""
    total = np.zeros((len(x), weight.shape[1]))
    for start in range(0, x.shape[1], chunk):
        part = x[:, start : start + chunk].astype(np.float64) @ weight[start : start + chunk].astype(np.float64)
        total = (total + part).astype(np.float16).astype(np.float64)
    return total


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(
    ("operator", "depth", "chunk", "relu", "bias"),
    [
        ("MatMul", 32, 16, False, 0),
        ("MatMul", 576, 16, True, 0),
        ("Gemm", 1152, 16, False, 0),
        ("Conv", 4608, 16, False, 0),
        ("Conv", 64, 16, True, 0),
        ("depthwise", 25, 1, False, 0),
        ("Conv", 16, 16, False, 1),
        ("Conv", 64, 16, True, -1),
        ("Gemm", 576, 16, False, 4),
    ],
)
def test_sums_in_fp16_err_as_much_as_in_chunks(operator, depth, chunk, relu, bias, data, opened, backend):
    """A bias, in sizes of a sum, is added to the rounded sum, and the result rounded once more."""
    b = networks.Builder(depth)
    x, weight = (
        b.rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        for shape in ((96, depth), (depth, 1 if operator == "depthwise" else 24))
    )
    shape, kernel, attributes = x.shape, weight, {}
    if operator == "Conv":
        shape, kernel, attributes = (*x.shape, 1, 1), weight.T[..., None, None], {"kernel_shape": [1, 1]}
    if operator == "depthwise":
        shape, kernel = (1, 96, 5, 5), np.repeat(weight.reshape(1, 1, 5, 5), 96, 0)
        attributes = {"kernel_shape": [5, 5], "group": 96}
    added = (bias * np.sqrt(depth) * b.rng.uniform(0.5, 1.5, 24)).astype(np.float16).astype(np.float32)
    y = b.node(
        "Conv" if operator == "depthwise" else operator,
        ["x", b.weight("w", np.ascontiguousarray(kernel)), *([b.weight("b", added)] if bias else [])],
        "/layer",
        **attributes,
    )
    b.node("Relu" if relu else "Identity", [y], "/end", output="y")
    network = opened(b.model([networks.floats("x", *shape)], [networks.floats("y", *[None] * len(shape))]))
    exact, kernels = x.astype(np.float64) @ weight, in_chunks(x, weight, chunk)
    if bias:
        exact, kernels = exact + added, (kernels + added).astype(np.float16).astype(np.float64)
    if relu:
        exact, kernels = np.maximum(exact, 0), np.maximum(kernels, 0)
    gated = build_gated_graph(network, gates_as_data=data)
    with backend.load(gated.model, low_memory=True) as runner:
        in_fp16, in_fp32 = (
            runner.run({"x": x.reshape(shape), **gated.make_feed(PrecisionConfig.from_precision(one), {})})[
                gated.test_outputs["y"]
            ].reshape(exact.shape)
            for one in (FP16, FP16_SUMS)
        )
    assert lowered.sqnr(exact, in_fp16) == pytest.approx(lowered.sqnr(exact, kernels), abs=0.7)
    assert lowered.sqnr(exact, in_fp32) == pytest.approx(
        lowered.sqnr(exact, exact.astype(np.float16).astype(np.float64)), abs=0.1
    )


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "count"),
    [
        ("Conv", [(1, 64, 8, 8), (32, 64, 3, 3)], {"kernel_shape": [3, 3]}, 36),
        ("Conv", [(1, 64, 8, 8), (64, 16, 3, 3)], {"kernel_shape": [3, 3], "group": 4}, 9),
        ("Conv", [(1, 8, 8, 8), (8, 1, 5, 5)], {"kernel_shape": [5, 5], "group": 8}, 25),
        ("Conv", [(1, 8, 8, 8), (8, 1, 3, 3)], {"kernel_shape": [3, 3], "group": 8}, 1),
        ("Conv", [(1, 3, 8, 8), (8, 3, 3, 3)], {"kernel_shape": [3, 3]}, 3),
        ("Conv", [(1, 3, 16, 16), (8, 3, 7, 7)], {"kernel_shape": [7, 7], "strides": [2, 2]}, 1),
        ("Conv", [(1, 3, 16, 16), (8, 3, 7, 7)], {"kernel_shape": [7, 7]}, 13),
        ("ConvTranspose", [(1, 64, 8, 8), (64, 32, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 4),
        ("Gemm", [(2, 100), (8, 100)], {"transB": 1}, 7),
        ("MatMul", [(2, 4, "n"), (2, "n", 4)], {}, 1),
        ("MatMul", [(2, 4, 64), (2, 64, "n")], {}, 4),
        ("Add", [(2, 64), (2, 64)], {}, 1),
    ],
)
def test_how_often_a_sum_is_rounded(operator, shapes, attributes, count, opened):
    b = networks.Builder(0)
    second = b.weight("w", np.zeros(shapes[1], np.float32)) if all(isinstance(n, int) for n in shapes[1]) else "w"
    b.node(operator, ["x", second], "/layer", output="y", **attributes)
    inputs = [networks.floats(name, *shape) for name, shape in zip("xw", shapes, strict=True) if name in ("x", second)]
    network = opened(b.model(inputs, [networks.floats("y", *[None] * len(shapes[0]))]))
    assert rulebook.count_accumulator_roundings(network, network.layers[-1]) == count


@pytest.mark.parametrize("data", [False, True])
def test_an_infinity_that_an_fp16_product_reads_is_one_behind_it_as_in_a_kernel(data, opened, backend):
    """And NaN stays NaN; an infinity of either sign in one sum is NaN."""
    b = networks.Builder()
    weights = np.ones((64, 4), np.float32)
    weights[1, 1], weights[0, 2] = -1, -1
    b.node(
        "MatMul",
        [b.node("Mul", ["x", b.weight("k", np.float32(400))], "/mul"), b.weight("w", weights)],
        "/fc",
        output="y",
    )
    network = opened(b.model([networks.floats("x", 3, 64)], [networks.floats("y", 3, 4)]))
    x = np.ones((3, 64), np.float32)
    x[0, :2], x[1, 0] = 300, np.nan
    config = PrecisionConfig.from_precision(FP16)
    gated = build_gated_graph(network, outputs=["y"], gates_as_data=data)
    with backend.load(gated.model, low_memory=True) as runner:
        y = runner.run({"x": x, **gated.make_feed(config, {})})[gated.test_outputs["y"]]
    assert y[0].tolist() == pytest.approx([np.inf, np.nan, np.nan, np.inf], nan_ok=True)
    assert np.isnan(y[1]).all() and y[2] == pytest.approx([25600, 24800, 24800, 25600], rel=1e-2)


@pytest.mark.parametrize("name", ["unet_small", "bert_block", "decoder"])
def test_sums_are_those_of_numpy(name, case, backend):
    one = case(name)
    tails = tuple(group.final_tensor for group in one.network.groups)
    gated = build_gated_graph(one.network, boundary_types=(FP16, FP32), outputs=tails, with_reference=True)
    with backend.load(gated.model, low_memory=True) as runner:
        results = [
            runner.run({**one.feeds, **gated.make_feed(config, one.ranges), gated.counting_gate: np.array(True)})
            for config in (PrecisionConfig.from_precision(FP16), ALL_INT8, PrecisionConfig.from_precision(FP32))
        ]
    for result in results:
        table = result[gated.sums_outputs["accumulated"]]
        assert table.shape == (len(gated.measured_groups), len(ERROR_SUM_COLUMNS)) and table.dtype == np.float64
        for row, tail in zip(table, tails, strict=True):
            expected = ErrorSums()
            reference, test = result[gated.reference_outputs[tail]], result[gated.test_outputs[tail]]
            if tail in one.network.masked_tensors:  # what the mask hides is left out
                kept = np.abs(reference) < FP16_MAX
                assert not kept.all()
                reference, test = np.where(kept, reference, 0), np.where(kept, test, 0)
            expected.add_tensor_pair(reference, test)
            size = np.abs(reference.astype(np.float64))
            expected["fp16_over"] = np.count_nonzero((size > FP16_MAX) & np.isfinite(size))
            expected["fp16_under"] = np.count_nonzero((size < FP16_MIN) & (size > 0))
            for column, value in zip(ERROR_SUM_COLUMNS, row, strict=True):
                # A difference of nearly equal numbers is rounded to float32 inside the graph.
                floor = 1e-12 * expected["ref2"] if column == "diff2" else 0
                wanted = pytest.approx(expected[column], rel=1e-4, abs=floor, nan_ok=True)
                assert value == wanted, (tail, column)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bert_block", PrecisionConfig.from_precision(FP16)),
        ("small_resnet", PrecisionConfig.from_precision(INT8)),
        ("bert_block", ALL_INT8),
    ],
    ids=["fp16", "int8 in fp16", "int8"],
)
def test_a_graph_with_fixed_inputs_computes_what_the_feed_would_select(name, config, case, backend):
    one = case(name)

    gated, fixed = (
        build_gated_graph(
            one.network,
            boundary_types=(FP16, FP32),
            with_reference=True,
            with_isolated=True,
            expects_finite_sums=expects,
        )
        for expects in (False, True)
    )
    feed = {**gated.make_feed(config, one.ranges), gated.counting_gate: np.array(True)}
    freeze_inputs(fixed.model, feed)
    names = {value.name for value in fixed.model.graph.inputs}
    assert names == set(one.feeds)
    assert not any(node.op_type == "If" and node.inputs[0].is_graph_input() for node in fixed.model.graph.all_nodes())
    assert len(list(fixed.model.graph.all_nodes())) < len(list(gated.model.graph.all_nodes()))
    read = {value for node in fixed.model.graph for value in list_values_read_by_node(node)}
    assert read.issuperset(fixed.model.graph.initializers.values())  # ONNX Runtime looks in vain for others
    with backend.load(gated.model, optimize=False) as runner, backend.load(fixed.model, optimize=False) as other:
        selected, result = runner.run({**one.feeds, **feed}), other.run(one.feeds)
    assert result.keys() == selected.keys()
    assert all(np.isfinite(result[name]).all() for name in fixed.sums_outputs.values())
    for output, array in selected.items():
        error = lowered.sqnr(array, result[output])
        assert error > (60 if config == PrecisionConfig.from_precision(FP16) else 35), output


def test_isolated_masks_do_not_overflow(case, backend):
    one = case("decoder")
    gated = build_gated_graph(one.network, with_reference=True, with_isolated=True)
    config = PrecisionConfig.from_precision(FP16)
    with backend.load(gated.model, low_memory=True) as runner:
        table = runner.run({**one.feeds, **gated.make_feed(config, one.ranges)}, [gated.sums_outputs["isolated"]])[
            gated.sums_outputs["isolated"]
        ]
    masked = [
        row
        for row, name in zip(table, gated.measured_groups, strict=True)
        if one.network.get_group(name).final_tensor in one.network.masked_tensors
    ]
    assert masked
    for row in masked:
        assert row[ERROR_SUM_COLUMNS.index("nan")] == row[ERROR_SUM_COLUMNS.index("inf")] == 0
        assert row[ERROR_SUM_COLUMNS.index("diff2")] <= 1e-4 * row[ERROR_SUM_COLUMNS.index("ref2")]


@pytest.mark.parametrize("name", ["small_resnet", "decoder"])
def test_isolated_sums_are_those_of_each_group_alone(name, case, backend):
    one = case(name)
    gated = build_gated_graph(one.network, boundary_types=(FP32,), with_reference=True, with_isolated=True)
    with backend.load(gated.model, low_memory=True) as runner:
        table = runner.run({**one.feeds, **gated.make_feed(ALL_INT8, one.ranges)}, [gated.sums_outputs["isolated"]])[
            gated.sums_outputs["isolated"]
        ]
    tails = tuple(group.final_tensor for group in one.network.groups)
    alone = build_gated_graph(one.network, boundary_types=(FP32,), outputs=tails)
    with backend.load(alone.model, low_memory=True) as runner:
        exact = runner.run({**one.feeds, **alone.make_feed(PrecisionConfig.from_precision(FP32), {})})
        for group, row in list(zip(one.network.groups, table, strict=True))[:10]:
            config = PrecisionConfig(FP32, FP32).with_group_precision([group], INT8)
            output = alone.test_outputs[group.final_tensor]
            result = runner.run({**one.feeds, **alone.make_feed(config, one.ranges)}, [output])[output]
            expected = ErrorSums()
            expected.add_tensor_pair(exact[output], result)
            assert row[ERROR_SUM_COLUMNS.index("diff2")] == pytest.approx(
                expected["diff2"], rel=0.02, abs=1e-12 * expected["ref2"]
            )
            assert row[ERROR_SUM_COLUMNS.index("count")] == expected["count"]


def test_squares_beyond_float32_are_finite_and_no_nan(case, backend):
    one = case("mlp")
    feeds = {name: (array * 1e25).astype(array.dtype) for name, array in one.feeds.items()}
    gated = build_gated_graph(one.network, float_types=[BF16], boundary_types=[BF16], with_reference=True)
    with backend.load(gated.model, low_memory=True) as runner:
        for precision in (Precision.BF16, Precision.FP32):
            feed = gated.make_feed(PrecisionConfig.from_precision(precision), one.ranges)
            table = runner.run({**feeds, **feed})[gated.sums_outputs["accumulated"]]
            assert np.isfinite(table).all()
            sums = dict(zip(ERROR_SUM_COLUMNS, table.T, strict=True))
            assert sums["ref2"].max() > 1e40 and sums["ref_max"].max() > 1e20
            assert not sums["nan"].any() and not sums["inf"].any()
    assert not any(sums[name].any() for name in ("diff2", "diff1", "diff_max"))
    assert sums["test2"] == pytest.approx(sums["ref2"])


def test_overflow_is_counted_where_it_arises(opened, backend):
    b = networks.Builder(0)
    h = b.node("MatMul", ["x", b.weight("first", 1e3 * np.eye(4, dtype=np.float32))], "/first")
    b.node("MatMul", [h, b.weight("second", np.ones((4, 1), np.float32))], "/second", output="y")
    network = opened(b.model([networks.floats("x", "batch", 4)], [networks.floats("y", "batch", 1)]))
    gated = build_gated_graph(network, with_reference=True, with_isolated=True)
    feeds = {"x": np.array([[1, 100, -100, 2]], np.float32)}
    with backend.load(gated.model, low_memory=True) as runner:
        result = runner.run({**feeds, **gated.make_feed(PrecisionConfig.from_precision(FP16), {})})
    first, second = (
        dict(zip(ERROR_SUM_COLUMNS, row, strict=True)) for row in result[gated.sums_outputs["accumulated"]]
    )
    assert (first["ref_max"], first["inf"], first["nan"], first["count"]) == (1e5, 2, 0, 4)
    assert (second["inf"], second["nan"], second["count"]) == (0, 1, 1)
    alone = dict(zip(ERROR_SUM_COLUMNS, result[gated.sums_outputs["isolated"]][0], strict=True))
    assert (alone["inf"], alone["nan"]) == (2, 0)


def test_what_fp16_cannot_hold_is_counted_on_request(opened, backend):
    b = networks.Builder(0)
    b.node("Relu", ["x"], "/relu", output="y")
    network = opened(b.model([networks.floats("x", "batch")], [networks.floats("y", "batch")]))
    gated = build_gated_graph(network, with_reference=True)
    x = np.array([0, -1, 1, 2.0**-24, 2.0**-25, 1e-30, 65504, 65505, 1e9, np.inf], np.float32)
    feeds = {"x": x, **gated.make_feed(PrecisionConfig.from_precision(FP32), {})}
    columns = [ERROR_SUM_COLUMNS.index("fp16_over"), ERROR_SUM_COLUMNS.index("fp16_under")]
    with backend.load(gated.model, low_memory=True) as runner:
        silent = runner.run(feeds)[gated.sums_outputs["accumulated"]]
        counted, beside_nan = (
            runner.run({**feeds, "x": np.append(more, x), gated.counting_gate: np.array(True)})[
                gated.sums_outputs["accumulated"]
            ]
            for more in (np.zeros(0, np.float32), np.full(1, np.nan, np.float32))
        )
    assert silent[0, columns].tolist() == [0, 0]
    assert counted[0, columns].tolist() == beside_nan[0, columns].tolist() == [2, 2]  # Inf is Inf in FP16 too


@pytest.mark.parametrize(("size", "tolerance"), [(800_000, 1e-4), (8_000_000, 2e-3)])
def test_sums_of_large_tensors_are_accurate(size, tolerance, opened, backend):
    b = networks.Builder(0)
    b.node("Relu", ["x"], "/relu", output="y")
    network = opened(b.model([networks.floats("x", "batch")], [networks.floats("y", "batch")]))
    x = (np.random.default_rng(0).standard_normal(size) ** 2).astype(np.float32)
    gated = build_gated_graph(network, with_reference=True)
    with backend.load(gated.model, low_memory=True) as runner:
        result = runner.run({"x": x, **gated.make_feed(PrecisionConfig.from_precision(FP16), {})})
    expected = ErrorSums()
    expected.add_tensor_pair(result["reference/y"], result["test/y"])
    for column, value in zip(ERROR_SUM_COLUMNS, result[gated.sums_outputs["accumulated"]][0], strict=True):
        assert value == pytest.approx(expected[column], rel=tolerance), column


def test_feeds_share_the_networks_weights_and_keep_rounded_ones(case):
    one = case("small_resnet")
    gated = build_gated_graph(one.network)
    exact = gated.make_feed(PrecisionConfig.from_precision(FP32), {})
    first = gated.make_feed(PrecisionConfig.from_precision(INT8), one.ranges)
    raised = one.network.get_group(next(iter(gated.weight_inputs.values())).group)
    second = gated.make_feed(PrecisionConfig.from_precision(INT8).with_group_precision([raised], FP32), one.ranges)
    again = gated.make_feed(PrecisionConfig.from_precision(FP32), {})
    for name, weight in gated.weight_inputs.items():
        np.testing.assert_array_equal(exact[name], one.network.constant_value(weight.site.tensor))
        assert again[name] is exact[name]
        assert (second[name] is first[name]) is (weight.group != raised.name)


def test_the_graph_holds_no_weights_that_are_fed(case):
    one = case("mlp")
    gated = build_gated_graph(one.network)
    fed = {weight.site.tensor for weight in gated.weight_inputs.values()}
    assert fed and not fed & set(gated.model.graph.initializers)


@pytest.mark.parametrize(
    ("name", "lows"),
    [*((name, (FP16,)) for name in ("unet_small", "vit_block", "decoder")), ("small_resnet", (FP16, BF16))],
)
def test_gates_as_data_give_what_control_flow_gives(name, lows, case, backend):
    one = case(name)
    forms = [
        build_gated_graph(one.network, float_types=lows, boundary_types=(FP32, *lows), gates_as_data=data)
        for data in (False, True)
    ]
    assert not [node for node in forms[1].model.graph.all_nodes() if node.op_type == "If"]
    with backend.load(forms[0].model, low_memory=True) as flow, backend.load(forms[1].model, low_memory=True) as data:
        for precisions, other in (
            ((FP32,), FP32),
            ((INT8,), FP32),
            ((INT8,), lows[-1]),
            ((INT8, FP16, FP32), FP16),
            ((FP32, lows[-1], INT8, FP16), lows[-1]),
        ):
            config = assignment(one.network, precisions, other)
            results = [
                runner.run({**one.feeds, **form.make_feed(config, one.ranges)})
                for form, runner in zip(forms, (flow, data), strict=True)
            ]
            for tensor in floats(one.plain):
                expected, found = (
                    result[form.test_outputs[tensor]] for form, result in zip(forms, results, strict=True)
                )
                assert lowered.sqnr(expected, found) > 60, (tensor, precisions, other)


@pytest.mark.parametrize("room", [0, 1 << 24])
def test_candidates_share_what_they_have_in_common(case, backend, room, monkeypatch):
    """Pieces yield what they yield when all of them are run, for several groups in turn, on two feeds, with room for
    what was computed or without."""
    monkeypatch.setattr(piecewise_runner, "MAX_CACHED_BYTES", room)
    one = case("unet_small")
    gated = build_gated_graph(one.network)
    base, outputs = PrecisionConfig.from_precision(INT8, FP16), list(gated.test_outputs.values())
    feeds = [{key: array[part] for key, array in one.feeds.items()} for part in (slice(0, 2), slice(2, 4))]
    wide = {tensor: 2 * amax for tensor, amax in one.ranges.items()}
    candidates = [base.with_group_precision([group], FP32) for group in one.network.groups[::3]]
    configs = [
        *((config, one.ranges) for config in (base, *candidates)),
        (PrecisionConfig.from_precision(FP32), {}),
        (base, wide),
    ]
    load = PiecewiseRunner.load_in_pieces
    with (
        load(backend, gated) as kept,
        load(backend, gated) as anew,
        backend.load(gated.model, low_memory=True) as whole,
    ):
        assert isinstance(kept, PiecewiseRunner) and isinstance(anew, PiecewiseRunner)
        for config, ranges in configs:
            fed = gated.make_feed(config, ranges)
            for feed in feeds:
                expected = anew.run({**feed, **{key: array.copy() for key, array in fed.items()}}, outputs)
                found, exact = kept.run({**feed, **fed}, outputs), whole.run({**feed, **fed}, outputs)
                for key in outputs:
                    assert np.array_equal(found[key], expected[key])
                    sums = ErrorSums()
                    sums.add_tensor_pair(exact[key], expected[key])
                    found_db = sums.compute_error_metrics().sqnr_db  # codes may flip for a rounding of FP32
                    assert found_db is None or found_db > 30
        assert anew.computed_pieces > len(configs) * len(feeds)  # several pieces
        assert (
            kept.computed_pieces < 0.9 * anew.computed_pieces if room else kept.computed_pieces == anew.computed_pieces
        )


def test_a_computed_weight_whose_size_is_left_open_is_an_input(opened, backend):
    """Such as positions that a file computes with NonZero."""
    b = build.Builder()
    places = b.node("NonZero", [b.weight("mask", np.ones(8, np.float32))], "/places")
    weight = b.node("Transpose", [b.node("Cast", [places], "/cast", to=TensorProto.FLOAT)], "/column", perm=[1, 0])
    b.node("MatMul", ["x", weight], "/fc", output="y")
    network = opened(b.model([build.floats("x", 4, 8)], [build.floats("y", 4, 1)]))
    gated, feeds = build_gated_graph(network), {"x": np.ones((4, 8), np.float32)}
    with backend.load(gated.model, low_memory=True) as runner:
        (got,) = runner.run(
            {**feeds, **gated.make_feed(PrecisionConfig.from_precision(Precision.FP32), {})},
            list(gated.test_outputs.values()),
        ).values()
    np.testing.assert_array_equal(got, np.full((4, 1), 28))


@pytest.mark.parametrize(
    ("given", "wide", "operator"),
    [(TensorProto.FLOAT, TensorProto.DOUBLE, "MatMul"), (TensorProto.INT32, TensorProto.INT64, "Gather")],
)
def test_a_group_reads_a_value_that_casts_have_only_widened(given, wide, operator, opened, backend):
    b, dtype = build.Builder(), onnx.helper.tensor_dtype_to_np_dtype(given)
    casts = b.node("Cast", [b.node("Cast", ["x"], "/wide", to=wide)], "/back", to=given)
    weight = b.kernel("weight", (4, 4), 4)
    b.node(operator, [casts, weight] if operator == "MatMul" else [weight, casts], "/read", output="y")
    sizes = (4, 4) if operator == "MatMul" else (4,)
    value = onnx.helper.make_tensor_value_info("x", given, sizes)
    network = opened(b.model([value], [build.floats("y", 4, 4)]))
    case = Case(network, {"x": np.arange(np.prod(sizes)).reshape(sizes).astype(dtype)}, {}, {})
    got = run_gated(backend, case, build_gated_graph(network), PrecisionConfig.from_precision(FP16))["y"]
    np.testing.assert_allclose(
        got, run_typed(backend, case, PrecisionConfig.from_precision(FP16))["y"], rtol=2e-3, atol=0.02
    )


def test_a_loop_of_a_half_precision_file_reads_the_tensors_of_its_branch(named_network, opened, backend):
    half = PrecisionConfig.from_precision(FP16)
    model = lower_to_typed_network(named_network("with_loop"), half, {}).model
    network = opened(ir.to_proto(model))
    case = Case(network, {"x": np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)}, {}, {})
    gated = build_gated_graph(network, float_types=(FP16, Precision.FILE), boundary_types=(Precision.FILE,))
    got = run_gated(backend, case, gated, PrecisionConfig.from_precision(Precision.FILE))["y"]
    with backend.load(model, optimize=False) as runner:
        np.testing.assert_allclose(got, runner.run(case.feeds)["y"], rtol=1e-2, atol=1e-2)


# -- what single groups and values are emitted as ---------------------------------------------------------------------


def emitter_of(network):
    """An emitter with the inputs and constants of a network."""
    emitter = NodeEmitter(network)
    for value in network.model.graph.inputs:
        emitter.values[value.name] = emitter.add_input(value.name, value.dtype, value.shape)
    for name, value in network.model.graph.initializers.items():
        emitter.values[name] = emitter.add_shared_constant(name, value.const_value)
    return emitter


def run_emitted(backend, emitter, result, feeds):
    """What the emitted nodes compute."""
    result.type = ir.TensorType(ir.DataType.FLOAT)
    constants = list(emitter.initializers.values())
    graph = ir.Graph(
        emitter.inputs, [result], nodes=emitter.nodes, initializers=constants, opset_imports={"": 17}, name="emitted"
    )
    with backend.load(ir.Model(graph, ir_version=8)) as runner:
        return runner.run(feeds)[result.name]


def in_codes(array, scale):
    return (np.clip(np.rint(array / np.float32(scale)), -128, 127) * np.float32(scale)).astype(np.float32)


def with_11_bits(array):
    """FP16 and TF32 have as many bits of a mantissa."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.rint(mantissa * 2**11), exponent - 11)


def as_type(dtype):
    return lambda array: array.astype(dtype).astype(np.float32)


@pytest.mark.parametrize(
    ("emit", "expected"),
    [
        (lambda rounding, *given: rounding.round_to_precision(given[0], FP16, given[2]), as_type(np.float16)),
        (lambda rounding, *given: rounding.round_to_precision(given[0], BF16, given[2]), as_type(ml_dtypes.bfloat16)),
        (lambda rounding, *given: rounding.round_to_tf32(given[0], given[2]), with_11_bits),
        (lambda rounding, *given: rounding.round_fp16_sum(*given), with_11_bits),
        (lambda rounding, *given: rounding.clamp(given[0], 3, given[2]), lambda array: np.clip(array, -3, 3)),
        (lambda rounding, *given: _through_codes(rounding, INT8, *given), lambda array: in_codes(array, 0.5)),
        (
            lambda rounding, *given: _through_codes(rounding, Precision.FP8, *given),
            lambda array: as_type(ml_dtypes.float8_e4m3fn)(np.clip(array / 0.5, -448, 448)) * 0.5,
        ),
    ],
    ids=["fp16", "bf16", "tf32", "fp16 sum", "clamp", "int8", "fp8"],
)
def test_values_are_rounded_as_numpy_rounds_them(emit, expected, named_network, backend):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(500) * 10 ** rng.uniform(-3, 4, 500)).astype(np.float32)
    emitter = NodeEmitter(named_network("mlp"))
    value = emitter.add_input("value", ir.DataType.FLOAT, ir.Shape([500]))
    factor = emitter.add_input("factor", ir.DataType.FLOAT)
    result = emit(emitter, value, factor, emitter.nodes)
    got = run_emitted(backend, emitter, result, {"value": x, "factor": np.array(2**13 + 1, np.float32)})
    np.testing.assert_array_equal(got, expected(x))


def _through_codes(rounding, precision, value, factor, nodes):
    scale = rounding.clamp(factor, 0.5, nodes)  # the factor is larger
    return rounding.quantize_dequantize(value, scale, QUANTIZED_TYPES[precision], nodes)


@pytest.mark.parametrize("kind", [ControlFlowEmitter, DataFlowEmitter])
@pytest.mark.parametrize("precision", [None, FP32, FP16, INT8])
def test_the_gates_of_a_group_select_its_precision(kind, precision, opened, backend):
    """None stands for the group without its gates."""
    b = build.Builder()
    weight = b.rng.standard_normal((8, 4)).astype(np.float16).astype(np.float32)
    b.node("MatMul", ["x", b.weight("w", weight)], "/fc", output="y")
    network = opened(b.model([build.floats("x", 3, 8)], [build.floats("y", 3, 4)]))
    emitter = emitter_of(network)
    features = GatedFeatures.from_precisions([FP16], [FP16], [INT8])
    inputs = GatedGraphInputs(emitter, features, gates_as_data=kind is DataFlowEmitter)
    flow = kind(emitter, inputs)
    if precision is None:
        values = BranchTensors({}, emitter.values)
        emit_ungated_group(emitter, inputs, network.groups[0], values, emitter.nodes)
        result = values["y"]
    else:
        result = flow.emit_group(network.groups[0], dict(emitter.values), ("y",))["y"]
    x = b.rng.standard_normal((3, 8)).astype(np.float32)
    true = {FP32: {"fp32"}, FP16: {"fp16"}, INT8: {"fp16", "int8"}}.get(precision, ())
    feeds = {gate.name: np.array(name in true) for name, gate in inputs.gates["/fc/MatMul"].items()}
    feeds |= dict.fromkeys((value.name for value in inputs.scales.values()), np.array(0.05, np.float32))
    weight *= 2  # what is fed counts, not what is stored
    feeds |= dict.fromkeys(inputs.weight_inputs, weight)
    got = run_emitted(backend, emitter, result, {"x": x, **feeds})
    if precision in (None, FP32):
        np.testing.assert_allclose(got, x @ weight, rtol=1e-5, atol=1e-6)
        return
    rounded = as_type(np.float16)(x)
    read = in_codes(rounded, 0.05) if precision is INT8 else rounded
    np.testing.assert_array_equal(got, as_type(np.float16)(read.astype(np.float64) @ weight))


def _half_product():
    b = build.Builder()
    x = b.node("Cast", ["x"], "/in", to=TensorProto.FLOAT16)
    y = b.node("MatMul", [x, b.weight("w", b.rng.standard_normal((64, 1)).astype(np.float16))], "/fc")
    b.node("Cast", [y], "/out", to=TensorProto.FLOAT, output="y")
    return b.model([build.floats("x", 1, 16, 64)], [build.floats("y", 1, 16, 1)])


@pytest.mark.parametrize("build_model", [product, _half_product])
def test_a_group_in_file_precision_has_the_types_of_the_file(build_model, opened, backend):
    model = build_model()
    network = opened(model)
    emitter = emitter_of(network)
    inputs = GatedGraphInputs(emitter, GatedFeatures.from_precisions([], [], []))
    flow = ControlFlowEmitter(emitter, inputs)
    (group,) = network.groups
    body = FilePrecisionBody(flow, group, dict(emitter.values), (group.final_tensor,), emitter.nodes)
    body.emit_layers()
    # With this seed no sum or code is near a tie, whatever the order of the sum.
    x = np.random.default_rng(10).standard_normal((1, 16, 64)).astype(np.float32)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    if build_model is product:
        expected = in_codes(x, 0.05) @ (arrays["/fc/weight.values"] * arrays["/fc/weight.scale"]) + arrays["bias"]
    else:
        expected = as_type(np.float16)(as_type(np.float16)(x).astype(np.float64) @ arrays["w"])
    got = run_emitted(backend, emitter, body.branch_tensors[group.final_tensor], {"x": x})
    np.testing.assert_allclose(got, expected, atol=1e-5)
