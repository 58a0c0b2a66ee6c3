"""trt_tui.core.measure.causes: the causes of a loss that are named, on networks that show them and on close ones."""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests import local, networks
from tests.measuring import measure_shares
from tests.networks import qdq
from tests.networks.decoder import gelu
from tests.networks.halves import divided_half, masked_half
from tests.schemas import mismatches
from tests.texts import lacking, numbers
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import TensorStats, collect_tensor_stats
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.rulebook import find_boundary_type
from trt_tui.core.measure.cause_facts import collect_value_ranges, measure_group_facts
from trt_tui.core.measure.causes import (
    GROUP_DETAILS,
    NO_CAUSE_TEXT,
    CauseFacts,
    GroupDetails,
    are_shares_conclusive,
    find_causes,
    find_worst_underflow,
    list_groups_to_explain,
)
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import ConfigResults, GroupErrors
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.session.loss_causes import collect_cause_facts
from trt_tui.tui.state import detail
from trt_tui.tui.state.rows import RowValues, TreeModel

FP16, INT8, FILE = (PrecisionConfig.from_precision(one) for one in (Precision.FP16, Precision.INT8, Precision.FILE))
Builder, floats = networks.Builder, networks.floats


@pytest.fixture
def facts_of(tmp_path):
    """Measures the facts of all groups of a network in a config, by group name, the groups with losses first."""

    def measure(
        model: onnx.ModelProto,
        data: Mapping[str, np.ndarray],
        config: PrecisionConfig = FP16,
        original: onnx.ModelProto | None = None,
        ranges: Mapping[str, float] | None = None,
        with_shares: bool = True,
    ) -> dict[str, CauseFacts]:
        onnx.save(model, tmp_path / "network.onnx")
        np.savez(tmp_path / "data.npz", **data)
        reference = None
        if original is not None:
            reference = tmp_path / "original.onnx"
            onnx.save(original, reference)
        backend = OnnxRuntimeBackend(threads=2)
        network = open_network(tmp_path / "network.onnx", lambda: backend, reference=reference)
        samples = load_samples(str(tmp_path / "data.npz"), network.inputs, batch=4)
        analysis = Analysis(network, backend, samples, select_judged_outputs(network))
        groups = [group for group in network.groups if group.final_tensor not in network.blocking_plugins]
        tensors = dict.fromkeys(
            tensor
            for group in groups
            for tensor in (*(site.tensor for site in group.activation_qdq_sites()), *group.inputs, group.final_tensor)
        )
        finite = [tensor for tensor in tensors if network.is_fp32(tensor) and tensor not in network.static_tensors]
        stats = collect_tensor_stats(network.model, finite, samples, backend) if original is None else {}
        ranges = (
            ranges
            if ranges is not None
            else {tensor: stats[tensor].amax for tensor in network.calibrated_tensors if tensor in stats}
        )
        try:
            *_, errors = measure_group_errors(analysis, {"run": config}, ranges)
            *_, accuracy = analysis.measure_accuracy(config, ranges)
            shares = measure_shares(analysis, config, ranges) if with_shares else {}
        finally:
            analysis.close()
        results = ConfigResults(group_errors=errors.value["run"], shares=shares)
        results.store_accuracy(accuracy.value)
        value_ranges = collect_value_ranges(network, groups, samples, backend)
        found = {}
        for name in [*list_groups_to_explain(results), *(group.name for group in groups)]:
            group = network.get_group(name)
            precision = config.precision_of(group)
            resolved = group.resolve_file_precision(precision)
            norm = network.zero_cost_support.norms.get(name)
            found.setdefault(
                name,
                CauseFacts(
                    group,
                    resolved,
                    find_boundary_type(group, precision, config.other),
                    precision is Precision.FILE,
                    results.group_errors.get(name),
                    shares.get(name),
                    accuracy.value.nonfinite_count > 0,
                    are_shares_conclusive(shares),
                    {tensor: stats[tensor] for tensor in (*group.inputs, group.final_tensor) if tensor in stats},
                    {
                        tensor: ranges[tensor]
                        for tensor in group.inputs
                        if tensor in ranges and resolved in QUANTIZED_TYPES
                    },
                    {},
                    measure_group_facts(network, group, value_ranges[name], samples, backend),
                    norm if norm is not None and len(norm.layers) > 1 else None,
                ),
            )
        return found

    return measure


def texts(facts: Mapping[str, CauseFacts]) -> dict[str, list[str]]:
    """The causes at each group, as they are printed; groups without causes are left out."""
    found = {name: [cause.text for cause in find_causes(one)] for name, one in facts.items()}
    return {name: causes for name, causes in found.items() if causes}


def vectors(count=8, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *(shape or (16,))), dtype=np.float32)


def product(weight: np.ndarray, *behind: tuple[str, float]) -> onnx.ModelProto:
    """x (batch, 16) through a MatMul and operators with one constant each."""
    b = Builder()
    x = b.node("MatMul", ["x", b.weight("w", weight.astype(np.float32))], "/fc")
    for number, (operator, constant) in enumerate(behind):
        x = b.node(operator, [x, b.weight(f"c{number}", np.float32(constant))], f"/behind{number}")
    b.node("Relu", [x], "/last", output="y")
    return b.model([floats("x", "batch", weight.shape[0])], [floats("y", "batch", weight.shape[1])])


def as_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same in FP32."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
            )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def masked_scores(mask: float, kept: np.ndarray, gain: float = 1.0) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An attention in FP32 with a mask for a share of the keys; ``kept`` (samples, 6)."""
    b = Builder()
    q, k, v = (b.node("MatMul", ["x", b.kernel(name, (16, 16), 16)], f"/{name}") for name in "qkv")
    q = b.node("Mul", [q, b.weight("scale", np.float32(0.25 * gain))], "/scale")
    scores = b.node("MatMul", [q, b.node("Transpose", [k], "/keys", perm=[0, 2, 1])], "/scores")
    hidden = b.node(
        "Mul",
        [b.node("Sub", [b.weight("one", np.float32(1)), "kept"], "/mask"), b.weight("mask", np.float32(mask))],
        "/mask",
    )
    hidden = b.node("Unsqueeze", [hidden, b.weight("axis", np.array([1]))], "/mask")
    weights = b.node("Softmax", [b.node("Add", [scores, hidden], "/masked")], "/softmax", axis=-1)
    b.node("MatMul", [b.node("MatMul", [weights, v], "/values"), b.kernel("head", (16, 4), 16)], "/head", output="y")
    return (
        b.model([floats("x", "batch", 6, 16), floats("kept", "batch", 6)], [floats("y", "batch", 6, 4)]),
        {"x": vectors(len(kept), 6, 16), "kept": kept},
    )


def xy(b: Builder, width: int = 16) -> onnx.ModelProto:
    """The network of ``x`` (batch, 16) and ``y``."""
    return b.model([floats("x", "batch", 16)], [floats("y", "batch", width)])


def weights_beyond_fp16(largest):
    weight = np.eye(16)
    weight[0, 1] = largest
    x = vectors()
    x[:, 0] = 1e-4
    return product(weight), {"x": x}


def weights_below_fp16(scale):
    return product(scale * np.random.default_rng(1).standard_normal((16, 16))), {"x": vectors()}


def coordinates(width):
    b = Builder(opset=16)
    b.node("GridSample", ["x", b.node("Tanh", ["g"], "/grid")], "/sample", output="y")
    model = b.model([floats("x", "N", 1, 4, width), floats("g", "N", 8, 8, 2)], [floats("y", "N", 1, 8, 8)])
    return model, {"x": vectors(8, 1, 4, width), "g": vectors(8, 8, 8, 2, seed=1)}


def scales_of_a_conv_transpose(axis):
    weight = np.random.default_rng(1).standard_normal((16, 16, 3, 3)) * np.geomspace(1, 1e-3, 16).reshape(1, 16, 1, 1)
    return quantized_weight("ConvTranspose", weight, axis), images(), FILE, None, {}


def scales_of_a_depthwise_conv(axis):
    weight = np.random.default_rng(1).standard_normal((16, 1, 3, 3))
    weight[5] *= 100
    return quantized_weight("Conv", weight, axis, group=16), images(), FILE, None, {}


def mask_of_a_half_network(mask):
    """The mask of the FP32 original is finite."""
    rng, in_fp32 = np.random.default_rng(0), np.float32(-1e9 if np.isinf(mask) else mask)
    original = masked_half(mask=in_fp32)
    set_constant(original, "mask_value", in_fp32)
    data = {"x": rng.standard_normal((8, 6, 8)).astype(np.float16), "kept": kept_keys(rng).astype(np.float16)}
    return masked_half(mask=mask), data, FILE, as_float(original), {}, False


def scale_of_the_scores(before):
    b = Builder()
    q, k, v = (
        b.node("MatMul", ["x", b.weight(name, np.eye(8, dtype=np.float32) * scale)], f"/{name}")
        for name, scale in (("q", 200.0), ("k", 200.0), ("v", 1.0))
    )
    scale = b.weight("scale", np.float32(1e-4))
    if before:
        q = b.node("Mul", [q, scale], "/scale")
    x = b.node("MatMul", [q, b.node("Transpose", [k], "/k", perm=[0, 2, 1])], "/scores")
    if not before:
        x = b.node("Mul", [x, scale], "/scale")
    b.node("MatMul", [b.node("Softmax", [x], "", axis=-1), v], "/values", output="y")
    return b.model([floats("x", "batch", 6, 8)], [floats("y", "batch", 6, 8)]), {"x": 2 * vectors(8, 6, 8)}


def decomposed_normalisation(spread, epsilon):
    b = Builder()
    x = b.node("Sub", ["x", b.node("ReduceMean", ["x"], "/mean", axes=[-1])], "/shift")
    square = b.node("Pow", [x, b.weight("two", np.float32(2))], "/square")
    root = b.node(
        "Add",
        [b.node("ReduceMean", [square], "/variance", axes=[-1]), b.weight("epsilon", np.float32(epsilon))],
        "/root",
    )
    x = b.node("Div", [x, b.node("Sqrt", [root], "/root")], "/divide")
    b.node("MatMul", [x, b.kernel("w", (16, 16), 16)], "/fc", output="y")
    return xy(b), {"x": spread * vectors()}


def quotient(smallest):
    b = Builder()
    x = b.node("Div", ["x", b.node("Mul", ["x", b.weight("small", np.float32(1e-4))], "/small")], "/divide")
    b.node("MatMul", [x, b.kernel("w", (16, 16), 16)], "/fc", output="y")
    x = np.sign(vectors()) + vectors()
    x[:, 0] = smallest
    return xy(b), {"x": x}


def power_spectrum(floor, operator, reader):
    """The sum of two squares has no offset; its floor protects a Log or a divisor."""
    b = Builder(17)
    parts = [b.node("MatMul", ["x", b.kernel(name, (16, 16), 16)], f"/{name}") for name in ("re", "im")]
    power = b.node("Add", [b.node("Mul", [part, part], f"{part}/square") for part in parts], "/power")
    bounded = b.node(operator, [power, b.weight("floor", np.float32(floor))], "/floor")
    x = b.node(reader, [bounded] if reader == "Log" else [power, bounded], "/reader")
    b.node("MatMul", [x, b.kernel("w", (16, 4), 16)], "/fc", output="y")
    return xy(b, 4), {"x": vectors() * np.geomspace(1e-5, 10, 8, dtype=np.float32)[:, None]}


def spectrum_with_one_quiet_row(floor):
    network, data = power_spectrum(floor, "Add", "Log")
    return network, {"x": np.concatenate([data["x"][:1], vectors(1023)])}


def loud_channel(loud):
    x = vectors(64, 64)
    x[:, 3] *= loud
    weight = np.eye(64) + 0.1
    weight[3] /= loud
    return product(weight), {"x": x}, INT8


def loud_channel_with_the_rms(loud):
    """The bits of the whole tensor hide the loss: nearly all of its rms comes from the loud channel."""
    x = vectors(64, 16)
    x[:, 3] = loud * np.sign(x[:, 3])
    weight = np.eye(16) + 0.1
    weight[3] /= loud
    return product(weight), {"x": x}, INT8


def offset_of(operator, offset):
    b = Builder()
    norm = [b.weight("gamma", np.ones(16, np.float32)), b.weight("beta", np.zeros(16, np.float32))]
    if operator in ("Sub", "Add"):
        mean = b.node("ReduceMean", ["x"], "/mean", axes=[2])
        norm = [mean if operator == "Sub" else b.node("Neg", [mean], "/negative")]
    x = b.node(operator, ["x", *norm], "/norm")
    b.node("MatMul", [x, b.kernel("w", (16, 4), 16)], "/fc", output="y")
    return (
        b.model([floats("x", "batch", 16, 16)], [floats("y", "batch", 16, 4)]),
        {"x": vectors(8, 16, 16) + np.float32(offset)},
    )


def variance_of_means(smallest):
    """A LayerNorm whose variance is E[x²] - E[x]², as Flax writes it; every sixteenth row hardly varies."""
    b = Builder()
    mean = b.node("ReduceMean", ["x"], "/mean", axes=[2])
    mean_of_squares = b.node("ReduceMean", [b.node("Mul", ["x", "x"], "/square")], "/mean_of_squares", axes=[2])
    variance = b.node("Sub", [mean_of_squares, b.node("Mul", [mean, mean], "/square_of_mean")], "/variance")
    root = b.node("Sqrt", [b.node("Add", [variance, b.weight("epsilon", np.float32(1e-6))], "/add")], "/root")
    x = b.node("Div", [b.node("Sub", ["x", mean], "/centre"), root], "/norm")
    b.node("MatMul", [x, b.kernel("w", (16, 4), 16)], "/fc", output="y")
    x = vectors(64, 16, 16)
    x[:, 0] *= smallest
    return b.model([floats("x", "batch", 16, 16)], [floats("y", "batch", 16, 4)]), {"x": x + np.float32(0.5)}


def masked_rows(kept_keys):
    kept = np.ones((12, 6), np.float32)
    kept[::3, kept_keys:] = 0
    return *masked_scores(-1e4, kept), FP16, None, None, False


def large_scores(gain):
    model, data = masked_scores(-1e4, np.ones((12, 6), np.float32), gain)
    data["x"] = vectors(12, 1, 16, seed=1) + 0.01 * data["x"]
    return model, data, FP16, None, None, False


def clamped_factor(factor):
    b = Builder()
    x = b.node("Mul", ["x", b.weight("factor", np.float32(factor))], "/up")
    b.node(
        "MatMul",
        [b.node("Mul", [x, b.weight("small", np.float32(1e-4))], "/down"), b.kernel("w", (16, 4), 16)],
        "/fc",
        output="y",
    )
    return xy(b, 4), {"x": 0.2 * np.clip(vectors(), -2, 2)}


def divisor(value):
    b = Builder()
    x = b.node("Div", ["x", b.weight("divisor", np.float32(value))], "/scale")
    b.node("MatMul", [x, b.kernel("w", (16, 4), 16)], "/fc", output="y")
    return xy(b, 4), {"x": 200 * np.abs(vectors())}


def epsilon_of_a_half_network(epsilon):
    x = vectors(12, 8).astype(np.float16)
    x[::3] = 0
    original = as_float(divided_half(epsilon=1.0))
    set_constant(original, "epsilon", np.float32(epsilon))
    return divided_half(epsilon=epsilon), {"x": x}, FILE, original, {}, False


def joined_parts(size):
    b = qdq.QdqBuilder(0)
    parts = [
        b.node("Sigmoid", [b.node("MatMul", ["x", b.kernel(name, (16, 4), 16)], f"/{name}")], f"/{name}")
        for name in ("boxes", "scores")
    ]
    parts[0] = b.node("Mul", [parts[0], b.weight("size", np.float32(size))], "/boxes/size")
    b.pair(b.node("Concat", parts, "/head", axis=-1), "/head", size / 127)
    b.nodes[-1].output[0] = "y"
    model = b.model([floats("x", "batch", 8, 16)], [floats("y", "batch", 8, 8)])
    return model, {"x": vectors(12, 8, 16)}, FILE, None, {}


CASES = [
    (
        weights_beyond_fp16,
        (1e5,),
        (6e4,),
        "/fc/MatMul",
        ("weights of MatMul /fc/MatMul are beyond FP16's range: 1 of 256 values of w exceed 65504, up to 1e5; 8 Inf",),
    ),
    (
        weights_below_fp16,
        (1e-8,),
        (1e-2,),
        "/fc/MatMul",
        ("weights of MatMul /fc/MatMul are below FP16's smallest value: ", "of w become 0 (the largest is 2."),
    ),
    (
        coordinates,
        (2048,),
        (64,),
        "/sample/GridSample",
        (
            "the sampling points of GridSample /sample/GridSample: half a step at 0.99",
            " moves them by up to 0.250 pixels (more than 1/32)",
        ),
    ),
    (
        scales_of_a_conv_transpose,
        (0,),
        (1,),
        "/conv/ConvTranspose",
        ("along the wrong axis: along axis 0 they leave ", " dB in the median output channel, along axis 1 "),
    ),
    (
        scales_of_a_depthwise_conv,
        (None,),
        (0,),
        "/conv/Conv",
        (
            "one channel of Conv /conv/Conv has much larger weights than the others: channel 5 reaches ",
            "the median of 16 channels is ",
            "the single scale leaves ",
        ),
    ),
    (
        mask_of_a_half_network,
        (-np.inf,),
        (-1e4,),
        "",
        ("the mask mask_value is beyond FP16's range: its value is infinite, beyond FP16's 65504; ",),
    ),
    (
        scale_of_the_scores,
        (False,),
        (True,),
        "/scores/MatMul",
        (
            "behind the product of Q and K, by Mul /scale/Mul: MatMul /scores/MatMul reaches ",
            ", beyond FP16's 65504, and the scaled product ",
            "Inf arise here",
        ),
    ),
    (
        decomposed_normalisation,
        (400.0, 1e-5),
        (1.0, 1e-5),
        "",
        ("values exceed FP16's range: Pow /square/Pow reaches ", " dB are left here"),
    ),
    (
        decomposed_normalisation,
        (1e-5, 1e-12),
        (1.0, 1e-5),
        "",
        ("LayerNormalization is 0 in FP16: it is 1e-12, FP16's smallest value is 6e-8, ", " dB are left here"),
    ),
    (quotient, (1e-4,), (1.0,), "", ()),
    (loud_channel, (40.0,), (1.0,), "/fc/MatMul", ("1 of 64 input channels sets the range: amax ", " of 8 bits")),
    (
        loud_channel_with_the_rms,
        (300.0,),
        (1.0,),
        "/fc/MatMul",
        ("1 of 16 input channels sets the range: the range is 300, the median channel ", " of 8 bits"),
    ),
    *(
        (
            offset_of,
            (operator, 300.0),
            (operator, 1.0),
            "",
            (
                f"values of {operator} /norm/{operator} are small beside the offset that it subtracts: FP16's step at 30",
                " is 0.25, the values behind the offset have an rms of ",
            ),
        )
        for operator in ("InstanceNormalization", "LayerNormalization", "Sub", "Add")
    ),
    (
        variance_of_means,
        (0.05,),
        (1.0,),
        "",
        ("values of Sub /variance/Sub are small beside the offset", " dB are left here"),
    ),
    (
        masked_rows,
        (0,),
        (2,),
        "",
        ("rows of Softmax /softmax/Softmax are masked completely: 33% of the rows keep only masked scores",),
    ),
    (large_scores, (100.0,), (1.0,), "", ("the scores of Softmax /softmax/Softmax are too large for FP16's step: ",)),
    (
        clamped_factor,
        (-1e5,),
        (-6e4,),
        "/up/Mul",
        (
            "the constant factor of Mul /up/Mul is clamped for FP16: it reaches 1e5, beyond FP16's 65504, and is "
            "clamped to 32752 as a mask; ",
        ),
    ),
    (
        divisor,
        (65535.0,),
        (255.0,),
        "/scale/Div",
        ("weights of Div /scale/Div are beyond FP16's range: 1 of 1 value of divisor exceed 65504, ",),
    ),
    (
        epsilon_of_a_half_network,
        (1e-12,),
        (1e-4,),
        "/norm/ReduceL2",
        (
            "the epsilon epsilon of Add /norm/Add is 0 in the file: FP16's smallest value is 6e-8, and 33% of the results "
            "of Add /norm/Add are smaller; ",
            "NaN arise here",
        ),
    ),
    *(
        (
            power_spectrum,
            (1e-12, operator, reader),
            (1e-4, operator, reader),
            "",
            (
                f"the epsilon floor of {operator} /floor/{operator} is 0 in FP16: FP16's smallest value is 6e-8, and 23% ",
                loss,
            ),
        )
        for operator, reader, loss in (
            ("Max", "Log", "31 Inf arise"),
            ("Clip", "Log", "31 Inf arise"),
            ("Max", "Div", " dB"),
        )
    ),
    (
        spectrum_with_one_quiet_row,
        (1e-12,),
        (1e-4,),
        "",
        (
            "is 0 in FP16: FP16's smallest value is 6e-8, and some of the results of Add /floor/Add are smaller; ",
            " Inf",
        ),
    ),
    (
        joined_parts,
        (640.0,),
        (1.0,),
        "/head/Concat",
        (
            "the parts of Concat /head/Concat share a scale: /boxes/size/Mul_output_0 reaches ",
            " which loses 8.0 of 8 bits",
        ),
    ),
]
"""What makes a network, its arguments with a cause and without one, the group of the cause or none, and its parts."""


@pytest.mark.parametrize(("make", "with_cause", "without", "group", "parts"), CASES)
def test_a_cause_is_named_where_it_is_and_not_on_a_close_network(facts_of, make, with_cause, without, group, parts):
    facts = facts_of(*make(*with_cause))
    found = texts(facts)
    assert texts(facts_of(*make(*without))) == {}
    assert any(all(part in text for part in parts) for text in (found[group] if group else sum(found.values(), [])))
    if make is decomposed_normalisation:
        (name,) = found
        assert "as LayerNormalization" in find_causes(facts[name])[0].remedy
    if make is power_spectrum:
        assert [len(causes) for causes in found.values()] == [1], "neither an offset nor vanishing values"


def set_constant(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    """Replaces a constant of a model."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(value), name))


def kept_keys(rng: np.random.Generator) -> np.ndarray:
    """A mask for 8 samples of 6 keys, of which the first 2 to 5 are kept."""
    return np.arange(6) < rng.integers(2, 6, (8, 1))


def test_a_clamped_mask_is_no_cause(facts_of):
    rng = np.random.default_rng(0)
    model = as_float(masked_half(mask=-1.0))
    set_constant(model, "mask_value", np.float32(-3.4e38))
    facts = facts_of(model, {"x": vectors(8, 6, 8), "kept": kept_keys(rng).astype(np.float32)})
    assert any(constant.is_mask for one in facts.values() for constant in one.group_facts.constants)
    assert texts(facts) == {}


@pytest.mark.parametrize("factor", [1e-9, 1e-1])
def test_values_that_vanish_inside_a_fused_layer(facts_of, factor):
    b = Builder()
    x = b.node("Mul", ["x", b.weight("a", np.float32(np.sqrt(factor)))], "/first")
    x = b.node("Mul", [x, b.weight("b", np.float32(np.sqrt(factor)))], "/second")
    x = b.node("Mul", [x, b.weight("c", np.float32(1e-1 / np.sqrt(factor)))], "/third")
    x = b.node("Mul", [x, b.weight("d", np.float32(1 / np.sqrt(factor)))], "/fourth")
    b.node("MatMul", [x, b.kernel("w", (16, 16), 16)], "/fc", output="y")
    facts = facts_of(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), {"x": vectors()})
    found, vanishing = texts(facts), [find_worst_underflow(one) for one in facts.values()]
    if factor == 1e-1:
        assert found == {} and vanishing == [None] * len(vanishing)
        return
    ((name, causes),) = found.items()
    assert len(facts[name].group.layers) == 4, "one fused layer"
    (cause,) = causes
    assert not lacking(cause, "vanish in FP16", "Mul /second/Mul: 100%", "6e-8", "2.3e-9", "0.0 dB")
    assert facts[name].errors.fp16_largest < 1, "its largest value has ample headroom"


def quantized_weight(operator: str, weight: np.ndarray, axis: int | None, **attributes: int) -> onnx.ModelProto:
    """x (batch, 16, 6, 6) through a Conv or ConvTranspose whose weight has Q/DQ with a scale along an axis, or one."""
    b = Builder()
    axes = None if axis is None else tuple(other for other in range(4) if other != axis)
    scale = (np.abs(weight).max(axis=axes) / 127).astype(np.float32)

    def add_qdq(tensor: str, scales: np.ndarray, name: str, **where: int) -> str:
        ends = [b.weight(f"{name}.scale", scales), b.weight(f"{name}.zero", np.zeros(scales.shape, np.int8))]
        return b.node(
            "DequantizeLinear",
            [b.node("QuantizeLinear", [tensor, *ends], f"/{name}", **where), *ends],
            f"/{name}",
            **where,
        )

    x = add_qdq("x", np.float32(4 / 127), "x")
    w = add_qdq(
        b.weight("w", weight.astype(np.float32)), np.asarray(scale), "w", **({"axis": axis} if axis is not None else {})
    )
    b.node(operator, [x, w], "/conv", output="y", kernel_shape=[3, 3], **attributes)
    return b.model([floats("x", "batch", 16, 6, 6)], [floats("y", "batch", "c", "h", "w")])


def images():
    return {"x": np.random.default_rng(0).standard_normal((8, 16, 6, 6), dtype=np.float32)}


def test_outliers_in_each_channel_are_not_laid_to_the_single_scale(facts_of):
    """All other weights become 0, with either layout of scales."""
    weight = 0.98 * np.sign(np.random.default_rng(0).standard_normal((16, 16, 3, 3)))
    weight[:, 0, 0, 0] = 254
    facts = facts_of(quantized_weight("Conv", weight, None), images(), FILE, None, {})
    assert facts["/conv/Conv"].isolated.sqnr_db < 30 and texts(facts) == {}


@pytest.mark.parametrize("largest", [60.0, 2e5])
def test_an_overflow_without_effect_at_the_outputs_is_no_cause(facts_of, largest):
    b = Builder()
    b.node("MatMul", [gelu(b, "x", "/gelu"), b.weight("w", np.eye(16, dtype=np.float32))], "/fc", output="y")
    x = vectors()
    x[:, 0] = largest
    facts = facts_of(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), {"x": x})
    cubes = [
        values for one in facts.values() for values in one.group_facts.value_ranges if values.layer.startswith("Pow ")
    ]
    assert max(values.amax for values in cubes) > 65520, "the cube is infinite in FP16"
    assert (texts(facts) == {}) == (largest == 60.0)


@pytest.mark.parametrize("factor", [1e3, 1.0])
def test_nan_that_a_quantized_layer_makes_finite_is_explained(facts_of, factor):
    """INT8 values have no NaN: the judged output is finite and wrong."""
    b = Builder(0)
    x = b.node("MatMul", ["x", b.kernel("w", (16, 16), 16)], "/first")
    x = b.node("Softmax", [b.node("Mul", [x, b.weight("factor", np.float32(factor))], "/large")], "/softmax", axis=-1)
    b.node("MatMul", [x, b.kernel("v", (16, 16), 16)], "/last", output="y")
    data = {"x": 100 * vectors(32)}
    facts = facts_of(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), data, INT8, with_shares=False)
    found = texts(facts).get("/first/MatMul", [])
    assert not facts["/first/MatMul"].has_nonfinite_outputs
    assert any(text.startswith("values exceed") and "Mul /large/Mul" in text for text in found) is (factor > 1)


def test_infinities_that_reach_no_output_come_behind_the_quantized_tensor_that_decides(facts_of):
    """FP16 rounds the epsilon to 0, and the maximum over all logarithms takes none of the infinities."""
    b = Builder(0)
    product = b.node("MatMul", ["x", "z"], "/product")
    floor = b.node("Max", [product, b.weight("epsilon", np.float32(1e-9))], "/floor")
    log = b.node("Log", [floor], "/log")
    b.node("ReduceMax", [log], "/largest", output="y", axes=[-1], keepdims=0)
    x = b.rng.standard_normal((16, 8, 16)).astype(np.float32)
    x[0, 0, 0] = 30
    model = b.model([floats("x", "b", 8, 16), floats("z", "b", 16, 8)], [floats("y", "b", 8)])
    z = b.rng.standard_normal((16, 16, 8)).astype(np.float32)
    facts = facts_of(model, {"x": x, "z": z}, INT8)["/product/MatMul"]
    assert facts.isolated.nonfinite_count and not facts.has_nonfinite_outputs
    first, *others = find_causes(facts)
    assert first.kind == "range" and first.sentence.endswith(" of x") and others[0].kind == "epsilon"
    assert find_causes(replace(facts, has_nonfinite_outputs=True))[0].kind == others[0].kind


def test_commands_print_the_causes_of_the_table(run, tmp_path):
    x = vectors(64, 64)
    x[:, 3] *= 40
    weight = np.eye(64) + 0.1
    weight[3] /= 40
    onnx.save(product(weight), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=x)
    given = tmp_path / "net.onnx", "--data", tmp_path / "data.npz"
    code, out, _ = run("compare", *given, "--json", tmp_path / "c.json", "--markdown", tmp_path / "c.md")
    record = json.loads((tmp_path / "c.json").read_text())
    assert code == 0 and not mismatches(record, "comparison-v1")
    (cause,) = record["runs"]["int8"]["causes"]["/fc/MatMul"]
    assert cause["kind"] == "range" and numbers(cause["cause"]) == [1, 64]
    assert f"fc: {cause['cause']}: {cause['evidence']}\n  next step: {cause['remedy']}\n" in out
    report = (tmp_path / "c.md").read_text()
    assert f"- fc: {cause['cause']}: {cause['evidence']}" in report and f"  - next step: {cause['remedy']}" in report
    code, out, _ = run(
        "search",
        *given,
        *"--tolerance sqnr>=40 --no-ranges --no-free --no-hold-out --max-builds 0".split(),
        *f"-o {tmp_path}/found.json --markdown {tmp_path}/s.md".split(),
    )
    sentence = f"fc: {cause['cause']}: "
    assert code == 0 and sentence in out and f"- {sentence}" in (tmp_path / "s.md").read_text()
    evidence = json.loads((tmp_path / "found.json").read_text())["evidence"]["search"]["causes"]
    assert evidence["/fc/MatMul"][0]["cause"] == cause["cause"]


def test_the_detail_pane_says_why_a_layer_is_raised_and_which_overflow_does_no_harm(tmp_path, measured_before):
    session = local.measured(tmp_path)
    group = next(group for group in session.outline.groups if group.operator == "MatMul" and group.inputs)
    lowered = FP16
    errors = GroupErrors(
        Precision.FP16,
        isolated=ErrorMetrics(inf=8),
        fp16_state="overflows",
        fp16_largest=1e5,
        fp16_largest_layer="MatMul /fc",
        ref_max=1e5,
        fp16_finding="MatMul /fc reaches 1e5, beyond FP16's 65504; every kernel makes it infinite",
    )
    session.results.store_value(GROUP_DETAILS, group.name, GroupDetails())

    def lines(config: PrecisionConfig, state: str) -> list[str]:
        session.results.get_or_create_results(lowered).group_errors[group.name] = replace(errors, fp16_state=state)
        session.history.push_config(config)
        return detail.loss_reason_texts(session, RowValues(TreeModel(session.outline), session.config), group)

    raised = lowered.with_group_precision([group], Precision.FP32)
    (cause,) = (line for line in lines(lowered, "overflows") if line.startswith("values exceed"))
    assert not lacking(cause, "MatMul /fc reaches 1e5", "65504", "8 Inf")
    (raise_reason,) = (line for line in lines(raised, "overflows") if line.startswith("raised because"))
    assert cause.startswith(raise_reason.partition("FP16 ")[2])
    assert errors.fp16_finding not in lines(lowered, "overflows"), "the cause has the same content"
    assert errors.fp16_finding in lines(lowered, "overflows without effect")
    assert not any("raised because" in line for line in lines(raised, "overflows without effect"))


def test_a_run_without_a_known_cause_says_so(run, tmp_path):
    onnx.save(networks.mlp(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=vectors(16))
    code, out, _ = run("compare", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", "--target", "sqnr>=10")
    assert code == 0 and f": {NO_CAUSE_TEXT}\n" in out


def test_a_small_difference_of_ordinary_values_is_no_cause(facts_of):
    """A bias that crosses zero, and values that FP16 loses without any offset."""
    assert texts(facts_of(product(np.eye(16), ("Add", 0.3), ("Sub", 0.1)), {"x": vectors(64)})) == {}
    found = texts(facts_of(product(np.eye(16), ("Mul", 1e-9), ("Add", 1e-9)), {"x": vectors()}))
    assert found and not any("offset" in text for causes in found.values() for text in causes)


def test_bounds_and_addends_are_no_lost_weights(facts_of):
    """An infinite bound is exact in FP16, and an addend below the values that it is added to changes nothing."""
    model = product(np.diag([1e5, *[1.0] * 15]), ("Min", np.inf), ("Add", 1e-9))
    x = vectors()
    x[:, 0] = 2.0
    found = texts(facts_of(model, {"x": x}))
    assert not any("Min" in text or "Add" in text for causes in found.values() for text in causes)


def test_judged_values_that_neither_the_range_nor_its_samples_contain_are_a_cause(tmp_path, measured_before):
    session = local.measured(tmp_path)
    by_tensor = {group.final_tensor: group.name for group in session.outline.groups}
    group = next(
        group
        for group in session.outline.groups
        if any(site.tensor in by_tensor for site in group.activation_qdq_sites())
    )
    tensor = next(site.tensor for site in group.activation_qdq_sites() if site.tensor in by_tensor)
    stats = TensorStats(2.0, 0.5, 1.0, 1.5, 1000, (0,) * 64, {}, None)
    session.results.store_value(GROUP_DETAILS, group.name, GroupDetails({tensor: stats}))
    errors = session.results.get_or_create_results(INT8).group_errors
    errors[group.name] = GroupErrors(Precision.INT8, isolated=ErrorMetrics(10.0))
    for largest, amax, is_named in ((9.0, 2.0, True), (3.0, 0.5, False), (9.0, 8.0, False)):
        errors[by_tensor[tensor]] = GroupErrors(Precision.INT8, ref_max=largest)
        config = INT8.with_range(tensor, RangeMove(amax))
        session.results.get_or_create_results(config).group_errors.update(errors)
        causes = find_causes(collect_cause_facts(session, config, group))
        assert any(cause.kind == "clipping" for cause in causes) is is_named, (largest, amax)
