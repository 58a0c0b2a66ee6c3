"""Tests of trt_tui.core.lowering.gated: the same arithmetic as the typed network, whatever is asked of a group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from tests import lowered, networks
from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering import accumulation
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.lowering.gated.lower import lower_gated
from trt_tui.core.lowering.gated.sums import SUMS
from trt_tui.core.lowering.typed import lower_typed
from trt_tui.core.measure import piecewise
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.piecewise import Piecewise
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, Precision

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
FP16_SUMS = Precision.FP16_SUMS_FP32
NAMES = ("small_resnet", "unet_small", "mlp", "bert", "vit", "decoder")
DIMS = {"bert": {"sequence": 16}}
ALL_INT8 = PrecisionConfig.uniform(INT8, other=FP32)


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
            feeds = networks.feeds(onnx.load(network.path), seed=3, n=16, **DIMS.get(name, {}))
            path = tmp_path_factory.mktemp("data") / "data.npz"
            np.savez(path, **feeds)
            samples = load_samples(path, network.inputs, batch=16)
            ranges = calibrate(network.model, network.activations, samples, backend).ranges
            with backend.load(network.model) as runner:
                made[name] = Case(network, feeds, ranges, runner.run(feeds))
        return made[name]

    return make


def run_gated(backend, case: Case, gated: Gated, config: PrecisionConfig, lean: bool = True) -> dict[str, np.ndarray]:
    with backend.load(gated.model, lean=lean) as runner:
        result = runner.run({**case.feeds, **gated.feeds(config, case.ranges)})
    return {tensor: result[name] for tensor, name in gated.outputs.items()}


def run_typed(backend, case: Case, config: PrecisionConfig, tensors: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    model = lower_typed(case.network, config, case.ranges).model
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
        config = config.with_groups([group], precisions[index % len(precisions)])
    return config


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_all_gates_in_fp32_reproduce_the_network(name, lean, case, backend):
    one = case(name)
    result = run_gated(backend, one, lower_gated(one.network), PrecisionConfig.uniform(FP32), lean)
    for tensor in floats(one.plain):
        np.testing.assert_allclose(
            result[tensor], one.plain[tensor], rtol=1e-5, atol=1e-5 * float(np.abs(one.plain[tensor]).max()))


@pytest.mark.parametrize("name", NAMES)
def test_each_group_in_int8_is_the_typed_one_on_identical_inputs(name, case, backend):
    one = case(name)
    network = one.network
    tails = tuple(group.tail for group in network.groups if group.quantizable)
    gated = lower_gated(network, others=(FP32,), outputs=tails)
    base = PrecisionConfig.uniform(FP32)
    with backend.load(gated.model, lean=True) as runner:
        exact = runner.run({**one.feeds, **gated.feeds(base, one.ranges)})
        for group in [g for g in network.groups if g.quantizable][:8]:
            config = PrecisionConfig(FP32, FP32).with_groups([group], INT8)
            fed = gated.feeds(config, one.ranges)
            result = runner.run({**one.feeds, **fed}, [gated.outputs[group.tail]])[gated.outputs[group.tail]]
            made = lower_typed(network, config, one.ranges).model
            codes = {n.outputs[0].name: n for n in made.graph if n.op_type == "QuantizeLinear"}
            assert len(codes) == len(group.sites)
            typed = run_typed(backend, one, config, (group.tail, *codes, *(n.inputs[0].name for n in codes.values())))
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
            loss = lowered.sqnr(exact[gated.outputs[group.tail]], typed[group.tail])
            assert lowered.sqnr(typed[group.tail], result) >= loss + 15, group.name


@pytest.mark.parametrize(("name", "precisions", "other"), [
    *((name, (INT8,), FP32) for name in NAMES), ("small_resnet", (FP32, INT8), FP32),
    ("unet_small", (INT8, FP32), FP32),
    *(("unet_small", precisions, FP16) for precisions in ((FP16,), (BF16,), (INT8, FP16, FP32), (FP16, INT8, INT8))),
    ("unet_small", (FP16_SUMS, INT8), FP16)])
def test_whole_networks_lose_at_every_group_what_the_typed_ones_lose(name, precisions, other, case, backend):
    one = case(name)
    config = assignment(one.network, precisions, other)
    plain = lowered.inner_values(backend, one.network, one.feeds)
    assert lowered.compare(lowered.Case(one.network, config, one.feeds, plain, one.ranges), backend) is None


@pytest.mark.parametrize("name", ["small_resnet", "decoder"])
@pytest.mark.parametrize("config", [PrecisionConfig.uniform(FP16), PrecisionConfig.uniform(INT8)])
def test_inputs_that_are_rounded_already_need_no_rounding(name, config, case, backend):
    one = case(name)
    gated = lower_gated(one.network)
    fed = gated.feeds(config, one.ranges)
    careful = dict(fed)
    for gates in gated.gates.values():
        careful.update({gates[kind]: np.array(False) for kind in ("clean", "direct") if kind in gates})
    assert any(careful[name] != fed[name] for gates in gated.gates.values() for name in gates.values())
    with backend.load(gated.model, lean=True) as runner:
        direct, rounded = (runner.run({**one.feeds, **feeds}) for feeds in (fed, careful))
    for tensor in floats(one.plain):
        np.testing.assert_array_equal(direct[gated.outputs[tensor]], rounded[gated.outputs[tensor]])


def in_chunks(x: np.ndarray, weight: np.ndarray, chunk: int) -> np.ndarray:
    """Rows times a matrix, as tensor cores sum it: exact products of a chunk onto an FP16 accumulator."""
    total = np.zeros((len(x), weight.shape[1]))
    for start in range(0, x.shape[1], chunk):
        part = x[:, start:start + chunk].astype(np.float64) @ weight[start:start + chunk].astype(np.float64)
        total = (total + part).astype(np.float16).astype(np.float64)
    return total


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(("operator", "depth", "chunk", "relu", "bias"), [
    ("MatMul", 32, 16, False, 0), ("MatMul", 576, 16, True, 0), ("Gemm", 1152, 16, False, 0),
    ("Conv", 4608, 16, False, 0), ("Conv", 64, 16, True, 0), ("depthwise", 25, 1, False, 0),
    ("Conv", 16, 16, False, 1), ("Conv", 64, 16, True, -1), ("Gemm", 576, 16, False, 4)])
def test_sums_in_fp16_err_as_much_as_in_chunks(operator, depth, chunk, relu, bias, data, opened, backend):
    """A bias, in sizes of a sum, is added to the rounded sum, and the result rounded once more."""
    b = networks.Builder(depth)
    x, weight = (b.rng.standard_normal(shape).astype(np.float16).astype(np.float32)
                 for shape in ((96, depth), (depth, 1 if operator == "depthwise" else 24)))
    shape, kernel, attributes = x.shape, weight, {}
    if operator == "Conv":
        shape, kernel, attributes = (*x.shape, 1, 1), weight.T[..., None, None], {"kernel_shape": [1, 1]}
    if operator == "depthwise":
        shape, kernel = (1, 96, 5, 5), np.repeat(weight.reshape(1, 1, 5, 5), 96, 0)
        attributes = {"kernel_shape": [5, 5], "group": 96}
    added = (bias * np.sqrt(depth) * b.rng.uniform(0.5, 1.5, 24)).astype(np.float16).astype(np.float32)
    y = b.node("Conv" if operator == "depthwise" else operator,
               ["x", b.weight("w", np.ascontiguousarray(kernel)), *([b.weight("b", added)] if bias else [])], "/layer",
               **attributes)
    b.node("Relu" if relu else "Identity", [y], "/end", output="y")
    network = opened(b.model([networks.floats("x", *shape)], [networks.floats("y", *[None] * len(shape))]))
    exact, kernels = x.astype(np.float64) @ weight, in_chunks(x, weight, chunk)
    if bias:
        exact, kernels = exact + added, (kernels + added).astype(np.float16).astype(np.float64)
    if relu:
        exact, kernels = np.maximum(exact, 0), np.maximum(kernels, 0)
    gated = lower_gated(network, data=data)
    with backend.load(gated.model, lean=True) as runner:
        in_fp16, in_fp32 = (runner.run({"x": x.reshape(shape), **gated.feeds(PrecisionConfig.uniform(one), {})})[
            gated.outputs["y"]].reshape(exact.shape) for one in (FP16, FP16_SUMS))
    assert lowered.sqnr(exact, in_fp16) == pytest.approx(lowered.sqnr(exact, kernels), abs=0.7)
    assert lowered.sqnr(exact, in_fp32) == pytest.approx(
        lowered.sqnr(exact, exact.astype(np.float16).astype(np.float64)), abs=0.1)


@pytest.mark.parametrize(("operator", "shapes", "attributes", "count"), [
    ("Conv", [(1, 64, 8, 8), (32, 64, 3, 3)], {"kernel_shape": [3, 3]}, 36),
    ("Conv", [(1, 64, 8, 8), (64, 16, 3, 3)], {"kernel_shape": [3, 3], "group": 4}, 9),
    ("Conv", [(1, 8, 8, 8), (8, 1, 5, 5)], {"kernel_shape": [5, 5], "group": 8}, 25),
    ("Conv", [(1, 8, 8, 8), (8, 1, 3, 3)], {"kernel_shape": [3, 3], "group": 8}, 1),
    ("Conv", [(1, 3, 8, 8), (8, 3, 3, 3)], {"kernel_shape": [3, 3]}, 3),
    ("Conv", [(1, 3, 16, 16), (8, 3, 7, 7)], {"kernel_shape": [7, 7], "strides": [2, 2]}, 1),
    ("Conv", [(1, 3, 16, 16), (8, 3, 7, 7)], {"kernel_shape": [7, 7]}, 13),
    ("ConvTranspose", [(1, 64, 8, 8), (64, 32, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 4),
    ("Gemm", [(2, 100), (8, 100)], {"transB": 1}, 7), ("MatMul", [(2, 4, "n"), (2, "n", 4)], {}, 1),
    ("MatMul", [(2, 4, 64), (2, 64, "n")], {}, 4), ("Add", [(2, 64), (2, 64)], {}, 1)])
def test_how_often_a_sum_is_rounded(operator, shapes, attributes, count, opened):
    b = networks.Builder(0)
    second = b.weight("w", np.zeros(shapes[1], np.float32)) if all(isinstance(n, int) for n in shapes[1]) else "w"
    b.node(operator, ["x", second], "/layer", output="y", **attributes)
    inputs = [networks.floats(name, *shape) for name, shape in zip("xw", shapes, strict=True) if name in ("x", second)]
    network = opened(b.model(inputs, [networks.floats("y", *[None] * len(shapes[0]))]))
    assert accumulation.roundings(network, network.layers[-1]) == count


@pytest.mark.parametrize("data", [False, True])
def test_an_infinity_that_an_fp16_product_reads_is_one_behind_it_as_in_a_kernel(data, opened, backend):
    """And NaN stays NaN; an infinity of either sign in one sum is NaN."""
    b = networks.Builder()
    weights = np.ones((64, 4), np.float32)
    weights[1, 1], weights[0, 2] = -1, -1
    b.node("MatMul", [b.node("Mul", ["x", b.weight("k", np.float32(400))], "/mul"), b.weight("w", weights)], "/fc",
           output="y")
    network = opened(b.model([networks.floats("x", 3, 64)], [networks.floats("y", 3, 4)]))
    x = np.ones((3, 64), np.float32)
    x[0, :2], x[1, 0] = 300, np.nan
    config = PrecisionConfig.uniform(FP16)
    gated = lower_gated(network, outputs=["y"], data=data)
    with backend.load(gated.model, lean=True) as runner:
        y = runner.run({"x": x, **gated.feeds(config, {})})[gated.outputs["y"]]
    assert y[0].tolist() == pytest.approx([np.inf, np.nan, np.nan, np.inf], nan_ok=True)
    assert np.isnan(y[1]).all() and y[2] == pytest.approx([25600, 24800, 24800, 25600], rel=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_those_of_numpy(name, case, backend):
    one = case(name)
    tails = tuple(group.tail for group in one.network.groups)
    gated = lower_gated(one.network, others=(FP16, FP32), outputs=tails, reference=True)
    with backend.load(gated.model, lean=True) as runner:
        results = [runner.run({**one.feeds, **gated.feeds(config, one.ranges), gated.counting: np.array(True)})
                   for config in (PrecisionConfig.uniform(FP16), ALL_INT8, PrecisionConfig.uniform(FP32))]
    for result in results:
        table = result[gated.accumulated]
        assert table.shape == (len(gated.measured), len(SUMS)) and table.dtype == np.float64
        for row, tail in zip(table, tails, strict=True):
            expected = Sums()
            reference, test = result[gated.reference[tail]], result[gated.outputs[tail]]
            if tail in one.network.masked:  # what the mask hides is left out
                kept = np.abs(reference) < FP16_MAX
                assert not kept.all()
                reference, test = np.where(kept, reference, 0), np.where(kept, test, 0)
            expected.add(reference, test, fp16=True)
            for column, value in zip(SUMS, row, strict=True):
                # A difference of nearly equal numbers is rounded to float32 inside the graph.
                floor = 1e-12 * expected.ref2 if column == "diff2" else 0
                wanted = pytest.approx(getattr(expected, column), rel=1e-4, abs=floor, nan_ok=True)
                assert value == wanted, (tail, column)


def test_isolated_masks_do_not_overflow(case, backend):
    one = case("decoder")
    gated = lower_gated(one.network, reference=True, isolated=True)
    config = PrecisionConfig.uniform(FP16)
    with backend.load(gated.model, lean=True) as runner:
        table = runner.run({**one.feeds, **gated.feeds(config, one.ranges)}, [gated.isolated])[gated.isolated]
    masked = [row for row, name in zip(table, gated.measured, strict=True)
              if one.network.group(name).tail in one.network.masked]
    assert masked
    for row in masked:
        assert row[SUMS.index("nan")] == row[SUMS.index("inf")] == 0
        assert row[SUMS.index("diff2")] <= 1e-4 * row[SUMS.index("ref2")]


@pytest.mark.parametrize("name", ["small_resnet", "decoder"])
def test_isolated_sums_are_those_of_each_group_alone(name, case, backend):
    one = case(name)
    gated = lower_gated(one.network, others=(FP32,), reference=True, isolated=True)
    with backend.load(gated.model, lean=True) as runner:
        table = runner.run({**one.feeds, **gated.feeds(ALL_INT8, one.ranges)}, [gated.isolated])[gated.isolated]
    tails = tuple(group.tail for group in one.network.groups)
    alone = lower_gated(one.network, others=(FP32,), outputs=tails)
    with backend.load(alone.model, lean=True) as runner:
        exact = runner.run({**one.feeds, **alone.feeds(PrecisionConfig.uniform(FP32), {})})
        for group, row in list(zip(one.network.groups, table, strict=True))[:10]:
            config = PrecisionConfig(FP32, FP32).with_groups([group], INT8)
            output = alone.outputs[group.tail]
            result = runner.run({**one.feeds, **alone.feeds(config, one.ranges)}, [output])[output]
            expected = Sums()
            expected.add(exact[output], result)
            assert row[SUMS.index("diff2")] == pytest.approx(expected.diff2, rel=0.02, abs=1e-12 * expected.ref2)
            assert row[SUMS.index("count")] == expected.count


def test_squares_beyond_float32_are_finite_and_no_nan(case, backend):
    one = case("mlp")
    feeds = {name: (array * 1e25).astype(array.dtype) for name, array in one.feeds.items()}
    gated = lower_gated(one.network, floats=[BF16], others=[BF16], reference=True)
    config = PrecisionConfig.uniform(Precision.BF16)
    with backend.load(gated.model, lean=True) as runner:
        table = runner.run({**feeds, **gated.feeds(config, one.ranges)})[gated.accumulated]
    assert np.isfinite(table).all()
    assert table[:, SUMS.index("ref2")].max() > 1e40
    assert not table[:, SUMS.index("nan")].any() and not table[:, SUMS.index("inf")].any()


def test_overflow_is_counted_where_it_arises(opened, backend):
    b = networks.Builder(0)
    h = b.node("MatMul", ["x", b.weight("first", 1e3 * np.eye(4, dtype=np.float32))], "/first")
    b.node("MatMul", [h, b.weight("second", np.ones((4, 1), np.float32))], "/second", output="y")
    network = opened(b.model([networks.floats("x", "batch", 4)], [networks.floats("y", "batch", 1)]))
    gated = lower_gated(network, reference=True, isolated=True)
    feeds = {"x": np.array([[1, 100, -100, 2]], np.float32)}
    with backend.load(gated.model, lean=True) as runner:
        result = runner.run({**feeds, **gated.feeds(PrecisionConfig.uniform(FP16), {})})
    first, second = (dict(zip(SUMS, row, strict=True)) for row in result[gated.accumulated])
    assert (first["ref_max"], first["inf"], first["nan"], first["count"]) == (1e5, 2, 0, 4)
    assert (second["inf"], second["nan"], second["count"]) == (0, 1, 1)
    alone = dict(zip(SUMS, result[gated.isolated][0], strict=True))
    assert (alone["inf"], alone["nan"]) == (2, 0)


def test_what_fp16_cannot_hold_is_counted_on_request(opened, backend):
    b = networks.Builder(0)
    b.node("Relu", ["x"], "/relu", output="y")
    network = opened(b.model([networks.floats("x", "batch")], [networks.floats("y", "batch")]))
    gated = lower_gated(network, reference=True)
    x = np.array([0, -1, 1, 2.0**-24, 2.0**-25, 1e-30, 65504, 65505, 1e9, np.inf], np.float32)
    feeds = {"x": x, **gated.feeds(PrecisionConfig.uniform(FP32), {})}
    columns = [SUMS.index("fp16_over"), SUMS.index("fp16_under")]
    with backend.load(gated.model, lean=True) as runner:
        silent = runner.run(feeds)[gated.accumulated]
        counted, beside_nan = (runner.run({**feeds, "x": np.append(more, x), gated.counting: np.array(True)})[
            gated.accumulated] for more in (np.zeros(0, np.float32), np.full(1, np.nan, np.float32)))
    assert silent[0, columns].tolist() == [0, 0]
    assert counted[0, columns].tolist() == beside_nan[0, columns].tolist() == [2, 2]  # Inf is Inf in FP16 too


@pytest.mark.parametrize(("size", "tolerance"), [(800_000, 1e-4), (8_000_000, 2e-3)])
def test_sums_of_large_tensors_are_accurate(size, tolerance, opened, backend):
    b = networks.Builder(0)
    b.node("Relu", ["x"], "/relu", output="y")
    network = opened(b.model([networks.floats("x", "batch")], [networks.floats("y", "batch")]))
    x = (np.random.default_rng(0).standard_normal(size) ** 2).astype(np.float32)
    gated = lower_gated(network, reference=True)
    with backend.load(gated.model, lean=True) as runner:
        result = runner.run({"x": x, **gated.feeds(PrecisionConfig.uniform(FP16), {})})
    expected = Sums()
    expected.add(result["reference/y"], result["test/y"])
    for column, value in zip(SUMS, result[gated.accumulated][0], strict=True):
        assert value == pytest.approx(getattr(expected, column), rel=tolerance), column


def test_feeds_share_the_networks_weights_and_keep_rounded_ones(case):
    one = case("small_resnet")
    gated = lower_gated(one.network)
    exact = gated.feeds(PrecisionConfig.uniform(FP32), {})
    first = gated.feeds(PrecisionConfig.uniform(INT8), one.ranges)
    raised = one.network.group(next(iter(gated.weight_inputs.values())).group)
    second = gated.feeds(PrecisionConfig.uniform(INT8).with_groups([raised], FP32), one.ranges)
    again = gated.feeds(PrecisionConfig.uniform(FP32), {})
    for name, weight in gated.weight_inputs.items():
        np.testing.assert_array_equal(exact[name], one.network.constant(weight.site.tensor))
        assert again[name] is exact[name]
        assert (second[name] is first[name]) is (weight.group != raised.name)


def test_the_graph_holds_no_weights_that_are_fed(case):
    one = case("mlp")
    gated = lower_gated(one.network)
    fed = {weight.site.tensor for weight in gated.weight_inputs.values()}
    assert fed and not fed & set(gated.model.graph.initializers)


@pytest.mark.parametrize(("name", "lows"), [*((name, (FP16,)) for name in ("unet_small", "vit", "decoder")),
                                            ("small_resnet", (FP16, BF16))])
def test_gates_as_data_give_what_control_flow_gives(name, lows, case, backend):
    one = case(name)
    forms = [lower_gated(one.network, floats=lows, others=(FP32, *lows), data=data) for data in (False, True)]
    assert not [node for node in forms[1].model.graph.all_nodes() if node.op_type == "If"]
    with backend.load(forms[0].model, lean=True) as flow, backend.load(forms[1].model, lean=True) as data:
        for precisions, other in (((FP32,), FP32), ((INT8,), FP32), ((INT8,), lows[-1]), ((INT8, FP16, FP32), FP16),
                                  ((FP32, lows[-1], INT8, FP16), lows[-1])):
            config = assignment(one.network, precisions, other)
            results = [runner.run({**one.feeds, **form.feeds(config, one.ranges)})
                       for form, runner in zip(forms, (flow, data), strict=True)]
            for tensor in floats(one.plain):
                expected, found = (result[form.outputs[tensor]] for form, result in zip(forms, results, strict=True))
                assert lowered.sqnr(expected, found) > 60, (tensor, precisions, other)


@pytest.mark.parametrize("room", [0, 1 << 24])
def test_candidates_share_what_they_have_in_common(case, backend, room, monkeypatch):
    """Pieces yield what they yield when all of them are run, for several groups in turn, on two feeds, with room for
    what was computed or without."""
    monkeypatch.setattr(piecewise, "KEPT_BYTES", room)
    one = case("unet_small")
    gated = lower_gated(one.network)
    base, outputs = PrecisionConfig.uniform(INT8, FP16), list(gated.outputs.values())
    feeds = [{key: array[part] for key, array in one.feeds.items()} for part in (slice(0, 2), slice(2, 4))]
    wide = {tensor: 2 * amax for tensor, amax in one.ranges.items()}
    candidates = [base.with_groups([group], FP32) for group in one.network.groups[::3]]
    configs = [*((config, one.ranges) for config in (base, *candidates)), (PrecisionConfig.uniform(FP32), {}),
               (base, wide)]
    with Piecewise.load(backend, gated) as kept, Piecewise.load(backend, gated) as anew, \
            backend.load(gated.model, lean=True) as whole:
        assert isinstance(kept, Piecewise) and isinstance(anew, Piecewise)
        for config, ranges in configs:
            fed = gated.feeds(config, ranges)
            for feed in feeds:
                expected = anew.run({**feed, **{key: array.copy() for key, array in fed.items()}}, outputs)
                found, exact = kept.run({**feed, **fed}, outputs), whole.run({**feed, **fed}, outputs)
                for key in outputs:
                    assert np.array_equal(found[key], expected[key])
                    sums = Sums()
                    sums.add(exact[key], expected[key])
                    found_db = sums.errors().sqnr_db  # codes may flip for a rounding of FP32
                    assert found_db is None or found_db > 30
        assert anew.computed > len(configs) * len(feeds)  # several pieces
        parts = [kept.anew(gates.values()) for gates in gated.gates.values()]
        assert parts[0] == 1 and parts == sorted(parts, reverse=True) and parts[-1] < 0.5
        assert kept.computed < 0.9 * anew.computed if room else kept.computed == anew.computed
