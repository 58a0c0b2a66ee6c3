"""Tests of FP16's range: what the simulation rounds, and the state of each fused layer.

``python -m tests.fuzz.fp16_range`` does the same for longer.
"""

from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests import lowered, networks, range_oracles
from tests.driven import DrivenWorker
from tests.networks import Builder, floats
from tests.texts import lacking
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.fp16_range import Fp16RangeState, find_worst_overflows, list_fp16_overflows
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, OutputErrors
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs import store as store_module
from trt_tui.options import Options

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
ALL_FP16 = PrecisionConfig.from_precision(FP16)
RANDOM = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.fixture
def analysed(opened, backend, tmp_path):
    """Opens an analysis of a network on given data."""

    def analyse(model: onnx.ModelProto, **data: np.ndarray) -> Analysis:
        network = opened(model)
        np.savez(tmp_path / "data.npz", **data)
        samples = load_samples(tmp_path / "data.npz", network.inputs, batch=len(next(iter(data.values()))))
        return Analysis(network, backend, samples, select_judged_outputs(network))

    return analyse


def accuracy_of(analysis: Analysis, config: PrecisionConfig, ranges=None):
    return [*analysis.measure_accuracy(config, ranges or {})][-1].value


def states_of(analysis: Analysis, config: PrecisionConfig) -> dict[str, Fp16RangeState]:
    for _ in analysis.measure_magnitudes():
        pass
    found = find_worst_overflows(list_fp16_overflows(analysis.network, config, analysis.get_magnitudes()))
    return {name: value.state for name, value in found.items()}


def product(
    *behind: tuple[str, float],
    operator: str = "MatMul",
    bias: bool = False,
    scale: float = 2000.0,
    shared: bool = False,
) -> onnx.ModelProto:
    """A product of positive values up to 1e5, with constant arithmetic behind it."""
    b = Builder(5)
    weight = np.abs(b.rng.standard_normal((64, 16))).astype(np.float32) * np.float32(scale)
    inputs = ["x", b.weight("w", weight)]
    if bias:
        inputs.append(b.weight("bias", np.full(16, -60000, np.float32)))
    y = b.node(operator, inputs, "/product")
    outputs = [floats("y", "batch", 16)]
    if shared:
        b.node("Neg", [y], "/negative", output="z")
        outputs.append(floats("z", "batch", 16))
    for number, (name, constant) in enumerate(behind):
        y = b.node(name, [y, b.weight(f"c{number}", np.array(constant, np.float32))], f"/{name}{number}")
    b.node("Identity", [y], "/out", output="y")
    return b.model([floats("x", "batch", 64)], outputs)


def positive(rows: int = 8, columns: int = 64) -> np.ndarray:
    return np.abs(np.random.default_rng(0).standard_normal((rows, columns))).astype(np.float32)


@pytest.mark.parametrize("behind", [("Mul", 1e-3), ("Div", 1e3), ("Sub", 5e4), ("Add", -5e4)])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_a_product_beyond_fp16_that_is_scaled_back_is_not_hidden(analysed, backend, operator, behind):
    """The simulation, its form for devices and the exported network agree that the product is infinite."""
    model, x = product(behind, operator=operator), positive()
    with analysed(model, x=x) as analysis:
        accuracy = accuracy_of(analysis, ALL_FP16)
        assert accuracy.nonfinite_count and judge_accuracy([parse_target("sqnr>=20")], accuracy).outcome is Outcome.FAIL
        network = analysis.network
        typed = lowered.typed_values(backend, network, ALL_FP16, {}, {"x": x})["y"]
        for data in (False, True):
            gated = lowered.gated_values(backend, network, ALL_FP16, {}, {"x": x}, data=data, fp16_sums=True)
            np.testing.assert_array_equal(np.isfinite(gated[network.groups[-1].final_tensor]), np.isfinite(typed))
        assert not np.isfinite(typed).all()


def test_the_rows_that_overflow_and_may_overflow_are_told_apart(analysed):
    with analysed(product(("Mul", 1e-3)), x=positive()) as analysis:
        assert states_of(analysis, ALL_FP16) == {"/product/MatMul": Fp16RangeState.MAY_OVERFLOW}
        assert states_of(analysis, PrecisionConfig.from_precision(FP32)) == {}
        errors = [*measure_group_errors(analysis, {"fp16": ALL_FP16}, {})][-1].value["fp16"]["/product/MatMul"]
        assert errors.fp16_state == "may overflow" and "may overflow" not in accuracy_kinds(analysis, FP32)
    with analysed(product(), x=positive()) as analysis:
        assert states_of(analysis, ALL_FP16) == {"/product/MatMul": Fp16RangeState.OVERFLOWS}
    with analysed(product(scale=20), x=positive()) as analysis:
        assert states_of(analysis, ALL_FP16) == {} and accuracy_kinds(analysis, FP16) == set()


def accuracy_kinds(analysis: Analysis, precision: Precision) -> set[str]:
    """The caveats of a uniform config that speak of FP16's range."""
    caveats = accuracy_of(analysis, PrecisionConfig.from_precision(precision)).caveats
    return {caveat.kind for caveat in caveats if "overflow" in caveat.kind}


def operator_with_inner_values(operator: str, gain: float) -> onnx.ModelProto:
    """One operator whose result hides larger values: its inputs are about ``gain`` or have weights of that size."""
    b = Builder(0, opset=23 if operator == "RotaryEmbedding" else 20)
    b.node("Mul", ["x", b.weight("gain", np.array(gain, np.float32))], "/gain", output="g")
    weights = {"LSTM": [(1, 32, 16), (1, 32, 8)], "GRU": [(1, 24, 16), (1, 24, 8)], "RNN": [(1, 8, 16), (1, 8, 8)]}
    inputs, attributes = ["g"], {}
    if operator in weights:
        inputs += [b.kernel(f"w{number}", shape, 16) for number, shape in enumerate(weights[operator])]
        attributes = {"hidden_size": 8}
    elif operator.startswith("DeformConv"):
        b.node("Reshape", ["g", b.weight("image", np.array([0, 1, 2, 64]))], "/image", output="i")
        inputs = ["i", b.kernel("w", (1, 1, 1, 64), 64), b.weight("offset", np.zeros((8, 128, 2, 1), np.float32))]
        if operator.endswith("mask"):
            inputs += ["", b.weight("mask", np.full((8, 64, 2, 1), 8, np.float32))]
    elif operator in ("Mean", "Sum"):
        b.node("Neg", ["g"], "/negative", output="n")
        inputs = ["g", "g", "n"]
    elif operator == "Gemm":
        b.node("Reshape", ["g", b.weight("rows", np.array([-1, 16]))], "/rows", output="r")
        inputs, attributes = ["r", b.kernel("w", (16, 8), 16, 50.0)], {"alpha": 1e-3}
    elif operator in ("LRN", "LpPool", "GlobalLpPool"):
        b.node("Reshape", ["g", b.weight("image", np.array([0, 4, 8, 4]))], "/image", output="i")
        inputs = ["i"]
        attributes = {"LRN": {"size": 3, "alpha": 1.0}, "LpPool": {"kernel_shape": [2, 2]}}.get(operator, {})
    elif operator == "STFT":
        b.node("Reshape", ["g", b.weight("signal", np.array([0, 128, 1]))], "/signal", output="s")
        inputs = ["s", b.weight("step", np.array(8)), b.weight("window", np.ones(16, np.float32))]
    elif operator == "RotaryEmbedding":
        inputs += [b.weight(name, np.full((8, 8, 8), 0.7, np.float32)) for name in ("cos", "sin")]
        attributes = {"num_heads": 1}
    b.node(operator.split()[0], inputs, "/inner", output="y", **attributes)
    if operator == "LSTM":
        b.nodes[-1].output[:] = ["", "y"]
    return b.model(
        [floats("x", 8, 8, 16)], [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)], ir_version=11
    )


@pytest.mark.parametrize(
    ("operator", "large"),
    [
        ("LSTM", 1e4),
        ("GRU", 1e4),
        ("RNN", 1e4),
        ("DeformConv", 1e4),
        ("DeformConv with a mask", 2e3),
        ("Mean", 1e4),
        ("Sum", 1e4),
        ("Gemm", 1e4),
        ("LRN", 100),
        ("LpPool", 100),
        ("GlobalLpPool", 50),
        ("LpNormalization", 100),
        ("RotaryEmbedding", 1.3e4),
        ("STFT", 2000),
    ],
)
def test_values_inside_operators_make_a_pass_uncertain(analysed, operator, large):
    """Every result stays within FP16. The operator in FP32, or on small values, is safe."""
    x = np.random.default_rng(0).standard_normal((8, 8, 16)).astype(np.float32)
    for gain in (1.0, large):
        with analysed(operator_with_inner_values(operator, gain), x=x) as analysis:
            group = analysis.network.find_group(f"/inner/{operator.split()[0]}")
            states = {group.name: Fp16RangeState.MAY_OVERFLOW} if gain > 1 else {}
            assert states_of(analysis, ALL_FP16) == states
            raised = ALL_FP16.with_group_precision([group], FP32)
            assert states_of(analysis, raised) == {}


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"has_past": True},
        {"is_causal": 1},
        {"softcap": 30.0},
        {"mask": np.triu(np.full((6, 6), -1e4, np.float32), 1)},
    ],
)
def test_the_scores_of_an_attention_operator_make_a_pass_uncertain(analysed, form):
    for gain, states in ((1.0, {}), (200.0, {"/Attention": Fp16RangeState.MAY_OVERFLOW})):
        model = networks.attention_operator(gain=gain, **form)
        with analysed(model, **networks.feeds(model, n=32, batch=32)) as analysis:
            assert states_of(analysis, ALL_FP16) == states
            accuracy = accuracy_of(analysis, ALL_FP16)
            outcome = judge_accuracy([parse_target("sqnr>=20")], accuracy).outcome
            assert outcome is (Outcome.UNCERTAIN_PASS if states else Outcome.PASS), accuracy.caveats
            raised = ALL_FP16.with_group_precision([analysis.network.get_group("/Attention")], FP32)
            assert states_of(analysis, raised) == {}


def test_partial_sums_that_cancel_make_a_pass_uncertain(analysed):
    """The simulation adds in FP32; a kernel whose FP16 accumulator passes 65504 on the way yields infinities."""
    b = Builder(0)
    half = np.abs(b.rng.standard_normal((64, 16))).astype(np.float32) * 2000
    b.node("MatMul", ["x", b.weight("w", np.concatenate([half, -half * np.float32(0.9)]))], "/product", output="y")
    x = np.repeat(positive(32, 1), 128, 1) + 0.1
    with analysed(b.model([floats("x", "batch", 128)], [floats("y", "batch", 16)]), x=x) as analysis:
        accuracy = accuracy_of(analysis, ALL_FP16)
        [caveat] = [caveat for caveat in accuracy.caveats if caveat.kind == "may overflow"]
        assert not accuracy.nonfinite_count
        assert not lacking(caveat.text, "partial sums", "MatMul /product/MatMul", "65504")
        assert judge_accuracy([parse_target("sqnr>=20")], accuracy).outcome is Outcome.UNCERTAIN_PASS
        kept = ALL_FP16.with_group_precision([analysis.network.groups[0]], Precision.FP16_ACC_FP32)
        assert states_of(analysis, kept) == {}


def test_an_input_or_constant_beyond_fp16_overflows(analysed):
    b = Builder(0)
    y = b.node("MatMul", ["x", b.weight("w", np.full((16, 16), 1e5, np.float32))], "/product")
    b.node("Sigmoid", [y], "/sigmoid", output="y")
    model = b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)])
    with analysed(model, x=positive(8, 16)) as analysis:
        first = analysis.network.groups[0]
        assert states_of(analysis, ALL_FP16)[first.name] is Fp16RangeState.OVERFLOWS
        assert judge_accuracy([parse_target("sqnr>=20")], accuracy_of(analysis, ALL_FP16)).outcome is Outcome.FAIL
    b = Builder(0)
    up = b.node("MatMul", ["x", b.weight("v", np.eye(16, dtype=np.float32) * 1e5)], "/up")
    b.node("MatMul", [up, b.weight("w", np.eye(16, dtype=np.float32) * 1e-5)], "/down", output="y")
    with analysed(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), x=positive(8, 16)) as analysis:
        raised = ALL_FP16.with_group_precision([analysis.network.get_group("/up/MatMul")], FP32)
        assert states_of(analysis, raised) == {"/down/MatMul": Fp16RangeState.OVERFLOWS}  # its input is rounded
        assert accuracy_of(analysis, raised).nonfinite_count
        both = raised.with_group_precision([analysis.network.get_group("/down/MatMul")], FP32)
        assert states_of(analysis, both) == {}


def hidden_overflow(form: str, aside: bool = False) -> onnx.ModelProto:
    """A product up to 200, large values computed from it, and a form that hides them or does not.

    Args:
        aside: The large values are in a branch with an output ``aside``.
    """
    b = Builder(3)
    x = b.node("MatMul", ["x", b.weight("w0", np.eye(16, dtype=np.float32) * 50)], "/first")
    number = lambda name, value: b.weight(name, np.float32(value))  # noqa: E731
    outputs = [floats("y", "batch", 16)]
    if form in ("pow", "mul"):
        cube = (
            b.node("Pow", [x, number("three", 3)], "/cube")
            if form == "pow"
            else b.node("Mul", [b.node("Mul", [x, x], "/square"), x], "/cube")
        )
        x = gelu_of_cube(b, x, cube)
    else:
        large = b.node("Mul", [x, number("thousand", 1e4)], "/large")
        if aside:
            b.node("Neg", [large], "/aside", output="aside")
            outputs.append(floats("aside", "batch", 16))
            large = x
        if form == "clip":
            x = b.node("Clip", [large, number("low", -50), number("high", 50)], "/hide")
        elif form == "min":
            x = b.node("Max", [b.node("Min", [large, number("high", 50)], "/hide"), number("low", -50)], "/max")
        elif form == "sigmoid":
            x = b.node("Sigmoid", [large], "/hide")
        elif form == "where":
            beyond = b.node("Greater", [b.node("Abs", [x], "/size"), number("limit", 3)], "/beyond")
            x = b.node("Where", [beyond, number("zero", 0), large], "/hide")
        elif form == "branch":  # the Clip is in the branches of an If
            bounds = [number("low", -50), number("high", 50)]
            branches = [
                helper.make_graph(
                    [helper.make_node("Clip", [large, *bounds], [name])], name, [], [floats(name, "batch", 16)]
                )
                for name in ("then", "else")
            ]
            b.nodes.append(
                helper.make_node(
                    "If",
                    [b.weight("yes", np.array(True))],
                    ["chosen"],
                    name="/if",
                    then_branch=branches[0],
                    else_branch=branches[1],
                )
            )
            x = "chosen"
        elif form == "integers":
            x = b.node(
                "Cast",
                [b.node("Cast", [large], "/whole", to=int(onnx.TensorProto.INT64))],
                "/float",
                to=int(onnx.TensorProto.FLOAT),
            )
            x = b.node("Sign", [x], "/sign")
        elif form == "reciprocal":
            x = b.node("Reciprocal", [large], "/inverse")
        elif form == "norm":
            root = b.node(
                "Sqrt", [b.node("ReduceMean", [b.node("Mul", [large, large], "/square")], "/mean", axes=[-1])], "/root"
            )
            x = b.node("Div", [large, root], "/divide")
    b.node("MatMul", [x, b.weight("w1", b.rng.standard_normal((16, 16)).astype(np.float32))], "/last", output="y")
    return b.model([floats("x", "batch", 16)], outputs)


def gelu_of_cube(b: Builder, x: str, cube: str) -> str:
    """The tanh form of GELU, decomposed, behind a cube."""
    number = lambda name, value: b.weight(name, np.float32(value))  # noqa: E731
    inner = b.node("Add", [x, b.node("Mul", [cube, number("c", 0.044715)], "/c")], "/inner")
    tanh = b.node("Tanh", [b.node("Mul", [inner, number("root", 0.7978845608)], "/scaled")], "/hide")
    return b.node(
        "Mul",
        [b.node("Mul", [x, b.node("Add", [tanh, number("one", 1)], "/one")], "/product"), number("half", 0.5)],
        "/half",
    )


def spread(count: int = 32) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 16)).astype(np.float32)


@pytest.mark.parametrize("form", ["pow", "mul", "clip", "min", "sigmoid", "where"])
def test_an_overflow_that_a_later_layer_hides_is_no_doubt(analysed, backend, form):
    """The exported network, both forms of gates and the state agree that the overflow has no effect."""
    model, x = hidden_overflow(form), spread()
    if form == "where":  # the values that are kept fit
        x[np.abs(x) < 0.06] *= 0.01
    with analysed(model, x=x) as analysis:
        accuracy = accuracy_of(analysis, ALL_FP16)
        assert not [caveat for caveat in accuracy.caveats if "overflow" in caveat.kind]
        assert judge_accuracy([parse_target("sqnr>=40")], accuracy).outcome is Outcome.PASS
        errors = [*measure_group_errors(analysis, {"fp16": ALL_FP16}, {})][-1].value["fp16"]
        [found] = [item for item in errors.values() if item.has_overflow]
        assert found.fp16_state == "overflows without effect" and found.warning_text == ""
        assert not lacking(found.fp16_finding, "65504; ", "no judged output")
        network = analysis.network
        plain = lowered.typed_values(backend, network, PrecisionConfig.from_precision(FP32), {}, {"x": x})["y"]
        typed = lowered.typed_values(backend, network, ALL_FP16, {}, {"x": x})["y"]
        assert np.isfinite(typed).all() and np.abs(typed - plain).max() < 0.01 * np.abs(plain).max()
        for data in (False, True):
            gated = lowered.gated_values(backend, network, ALL_FP16, {}, {"x": x}, data=data, fp16_sums=True)["y"]
            np.testing.assert_allclose(gated, typed, rtol=0, atol=0.01 * np.abs(plain).max())


@pytest.mark.parametrize(
    ("form", "kinds", "outcome"),
    [
        ("reciprocal", {"may overflow"}, Outcome.UNCERTAIN_PASS),
        ("branch", {"overflow"}, Outcome.FAIL),
        ("integers", {"overflow"}, Outcome.FAIL),
        ("norm", {"overflow", "may overflow"}, Outcome.FAIL),
    ],
)
def test_an_overflow_that_changes_the_outputs_stays_a_doubt(analysed, form, kinds, outcome):
    with analysed(hidden_overflow(form), x=spread()) as analysis:
        accuracy = accuracy_of(analysis, ALL_FP16)
        assert accuracy_kinds_of(analysis, ALL_FP16) == kinds
        assert judge_accuracy([parse_target("sqnr>=-100")], accuracy).outcome is outcome
        states = states_of(analysis, ALL_FP16)
        errors = [*measure_group_errors(analysis, {"fp16": ALL_FP16}, {})][-1].value["fp16"]
        assert {name: errors[name].fp16_state for name in states} == {
            name: state.value for name, state in states.items()
        }


def test_a_harmless_overflow_in_one_config_is_harmful_in_another(analysed):
    """One graph with a gate for each value serves all configs."""
    b = Builder(0)
    number = lambda name, value: b.weight(name, np.float32(value))  # noqa: E731
    x = b.node("MatMul", ["x", b.weight("w", np.eye(16, dtype=np.float32))], "/first")
    large = b.node("Mul", [x, number("large", 1e6)], "/large")
    hidden = b.node(
        "Sigmoid", [b.node("MatMul", [large, b.weight("v", np.eye(16, dtype=np.float32))], "/plain")], "/hide"
    )
    b.node("Mul", [hidden, x], "/last", output="y")
    with analysed(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), x=spread()) as analysis:
        network = analysis.network
        assert "overflow" in accuracy_kinds_of(analysis, ALL_FP16), "a product reads infinities"
        groups = [group for group in network.groups if not {"/first/MatMul", "/large/Mul"}.isdisjoint(group.layers)]
        raised = ALL_FP16.with_group_precision([*groups, network.get_group("/plain/MatMul")], FP32)
        assert accuracy_kinds_of(analysis, raised) == set(), "only the Sigmoid reads them"
        assert "overflow" in accuracy_kinds_of(analysis, ALL_FP16)


def accuracy_kinds_of(analysis: Analysis, config: PrecisionConfig) -> set[str]:
    return {caveat.kind for caveat in accuracy_of(analysis, config).caveats if "overflow" in caveat.kind}


def test_an_overflow_counts_only_at_judged_outputs(opened, backend, tmp_path):
    model = hidden_overflow("", aside=True)
    network = opened(model)
    np.savez(tmp_path / "data.npz", x=spread())
    samples = load_samples(tmp_path / "data.npz", network.inputs, batch=32)
    for judged, outcome in ((["y"], Outcome.PASS), ([], Outcome.FAIL)):
        with Analysis(network, backend, samples, select_judged_outputs(network, judged)) as analysis:
            accuracy = accuracy_of(analysis, ALL_FP16)
            assert judge_accuracy([parse_target("sqnr>=40")], accuracy).outcome is outcome
            errors = [*measure_group_errors(analysis, {"fp16": ALL_FP16}, {})][-1].value["fp16"]
            texts = {item.fp16_finding for item in errors.values()}
            assert any("no judged output" in text for text in texts) is bool(judged)


def test_a_mask_is_no_overflow(analysed):
    b = Builder(0)
    scores = b.node("MatMul", ["x", b.weight("w", b.rng.standard_normal((16, 16)).astype(np.float32))], "/scores")
    mask = np.triu(np.full((16, 16), np.finfo(np.float32).min, np.float32), 1)
    masked = b.node("Add", [scores, b.weight("mask", mask)], "/mask")
    b.node("Softmax", [masked], "/softmax", output="y")
    with analysed(b.model([floats("x", 16, 16)], [floats("y", 16, 16)]), x=positive(16, 16)) as analysis:
        assert states_of(analysis, ALL_FP16) == {} and not accuracy_of(analysis, ALL_FP16).nonfinite_count


def test_the_normaliser_of_a_long_softmax_may_overflow(analysed):
    b = Builder(0)
    b.node("Softmax", ["x"], "/softmax", output="y")
    model = b.model([floats("x", "batch", 70000)], [floats("y", "batch", 70000)])
    with analysed(model, x=np.ones((2, 70000), np.float32)) as analysis:
        assert states_of(analysis, ALL_FP16) == {"/softmax/Softmax": Fp16RangeState.MAY_OVERFLOW}


@pytest.mark.parametrize(
    ("operator", "shift", "state"),
    [
        ("LogSoftmax", 0.0, Fp16RangeState.MAY_OVERFLOW),
        ("ReduceLogSumExp", 8.0, Fp16RangeState.MAY_OVERFLOW),
        ("ReduceLogSumExp", 0.0, None),
        ("ReduceLogSumExp", -30.0, Fp16RangeState.MAY_OVERFLOW),
    ],
)
def test_a_logarithm_behind_what_fp16_cannot_hold_makes_a_pass_uncertain(analysed, operator, shift, state):
    """TensorRT makes a Log behind a Softmax, or a sum of exponentials, of one operator."""
    b = Builder(0)
    b.node(operator, ["x"], "/log", output="y", **({"axis": -1} if operator == "LogSoftmax" else {"axes": [-1]}))
    x = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    spread = 10 if operator == "LogSoftmax" else 1
    with analysed(b.model([floats("x", "batch", 16)], [floats("y", "batch", None)]), x=spread * x + shift) as analysis:
        assert list(states_of(analysis, ALL_FP16).values()) == ([state] if state else [])
        outcome = judge_accuracy([parse_target("sqnr>=40")], accuracy_of(analysis, ALL_FP16)).outcome
        assert outcome is (Outcome.UNCERTAIN_PASS if state else Outcome.PASS)
        if operator == "LogSoftmax":
            narrow = b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)])
    if operator == "LogSoftmax":
        with analysed(narrow, x=x) as analysis:
            assert states_of(analysis, ALL_FP16) == {}


@pytest.mark.parametrize("equation", ["bi,io->bo", "...i,io->...o", "bi,bi->b", "io,bi->bo"])
def test_partial_sums_of_an_einsum_that_cancel_make_a_pass_uncertain(analysed, equation):
    b, x = Builder(0), positive(32)
    weight = np.abs(b.rng.standard_normal((64, 8))).astype(np.float32)
    weight[32:] = -weight[:32]
    first = "z" if equation == "bi,bi->b" else b.weight("w", weight)
    inputs = [first, "x"] if equation.startswith("io") else ["x", first]
    b.node("Einsum", inputs, "/product", output="y", equation=equation)
    given = [floats("x", "batch", 64)] + ([floats("z", "batch", 64)] if first == "z" else [])
    model = b.model(given, [floats("y", *(["batch"] if first == "z" else ["batch", 8]))])
    for size, safe in ((4000.0, False), (40.0, True)):
        data = {"x": x * size}
        if first == "z":
            data["z"] = np.tile(weight[:, 0], (32, 1))
        with analysed(model, **data) as analysis:
            assert states_of(analysis, ALL_FP16) == ({} if safe else {"/product/Einsum": Fp16RangeState.MAY_OVERFLOW})


def test_a_quantized_weight_beyond_fp16_makes_a_pass_uncertain(analysed):
    """The exported network dequantizes it to FP16, which only a kernel that multiplies codes leaves out."""
    b = Builder(0)
    weight = b.rng.standard_normal((16, 16)).astype(np.float32)
    weight[0, 0] = 1e5
    y = b.node("MatMul", ["x", b.weight("w", weight)], "/product")
    b.node("Relu", [y], "/relu", output="y")
    x = positive(32, 16)
    x[:, 0] *= 1e-3
    int8 = PrecisionConfig.from_precision(INT8)
    with analysed(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), x=x) as analysis:
        first = analysis.network.groups[0]
        assert states_of(analysis, int8)[first.name] is Fp16RangeState.MAY_OVERFLOW
        assert states_of(analysis, PrecisionConfig.from_precision(INT8, FP32)) == {}


def test_a_range_that_was_not_checked_makes_a_pass_uncertain(analysed, monkeypatch):
    with analysed(product(scale=20), x=positive(32)) as analysis:
        monkeypatch.setattr(Analysis, "measure_magnitudes", lambda *args: iter(()))
        accuracy = accuracy_of(analysis, ALL_FP16)
        result = judge_accuracy([parse_target("sqnr>=20")], accuracy)
        assert result.outcome is Outcome.UNCERTAIN_PASS and "not checked" in result.reasons[0]


EARLIER_ARITHMETIC = 13
"""The version in the cache keys of the last release that hid an overflow."""


def test_values_that_an_earlier_version_stored_are_measured_again(tmp_path, monkeypatch):
    onnx.save(product(("Mul", 1e-3)), tmp_path / "scaled.onnx")
    np.savez(tmp_path / "x.npz", x=positive(16))
    options = Options(str(tmp_path / "scaled.onnx"), str(tmp_path / "x.npz"), batch=8, whatif_samples=0)
    stale = Accuracy({"y": OutputErrors(ErrorMetrics(sqnr_db=99.0))}, samples=16, total=16)

    def measure(version: int | None) -> Accuracy:
        """Asks a worker that stores and reads under a version for a config whose stale verdict an earlier one left."""
        worker = DrivenWorker(tmp_path)
        worker.answer(rq.OpenNetwork(options))
        with monkeypatch.context() as patched:
            patched.setattr(store_module, "ARITHMETIC_VERSION", EARLIER_ARITHMETIC)
            worker.store.save_result(worker.workspace, "verdict", ALL_FP16, stale)
            if version is None:
                patched.undo()
            events = worker.answer(rq.MeasureWhatIf(ALL_FP16))
        return [event for event in events if isinstance(event, ev.AccuracyMeasured)][-1].accuracy

    assert measure(EARLIER_ARITHMETIC) == stale  # so the test plants what that version would serve
    assert measure(None).nonfinite_count


# -- random networks against oracles ---------------------------------------------------------------------------------


@settings(max_examples=15, **RANDOM)
@given(random=st.randoms(use_true_random=False))
def test_both_forms_of_gates_agree_across_the_limits_of_fp16(random: Random, opened, backend) -> None:
    case = lowered.draw(random, backend, opened, scales=range_oracles.SCALES)
    assert range_oracles.compare_forms(case, backend) == []


@settings(max_examples=15, **RANDOM)
@given(random=st.randoms(use_true_random=False))
def test_typed_and_gated_agree_across_the_limits_of_fp16(random: Random, opened, backend) -> None:
    case = lowered.draw(random, backend, opened, scales=range_oracles.SCALES)
    assert range_oracles.compare_typed(case, backend) == []


@settings(max_examples=15, **RANDOM)
@given(random=st.randoms(use_true_random=False))
def test_what_the_exported_network_overflows_is_never_called_safe(random: Random, opened, backend, tmp_path) -> None:
    case = lowered.draw(random, backend, opened, scales=range_oracles.SCALES)
    assert range_oracles.check_states(case, backend, tmp_path) == []


@settings(max_examples=15, **RANDOM)
@given(random=st.randoms(use_true_random=False))
def test_an_overflow_that_is_called_harmless_leaves_the_outputs_finite(
    random: Random, opened, backend, tmp_path
) -> None:
    case = lowered.draw(random, backend, opened, scales=range_oracles.SCALES)
    assert range_oracles.check_effect(case, backend, tmp_path) == []


@settings(max_examples=25, **RANDOM)
@given(random=st.randoms(use_true_random=False))
def test_partial_sums_are_held_against_a_chunked_sum_in_fp16(random: Random, opened, backend, tmp_path) -> None:
    assert range_oracles.check_partial_sums(random, backend, opened, tmp_path) == []
