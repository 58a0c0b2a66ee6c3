"""The scale of attention scores in front of the product: its forms, the places that take it, and equal arithmetic."""

from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests import lowered, networks, rtx
from tests.networks import Builder, floats
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.network_rewrite import rewrite_network_for_config
from trt_tui.core.lowering.rulebook import GatedFeatures, compute_activation_ranges
from trt_tui.core.lowering.typed_network import lower_from_source_model, lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.zero_cost_kinds import (
    ZERO_COST_MOVE_CLASSES,
    ProposalContext,
    TrialBudget,
)
from trt_tui.core.moves.config import PrecisionConfig, replace_file_precision_of_groups
from trt_tui.core.moves.constant_moves import (
    AttentionScaleMove,
    ScalePlacement,
    attention_scale_refusal_reason,
    make_attention_scale_move,
    placement_refusal_reason,
)
from trt_tui.core.network.channels.channel_scaling import find_attention_scales
from trt_tui.core.network.channels.channel_tracer import ChannelTracer
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
WIDTH, HEADS, DIM, ROWS = 32, 4, 8, 6
QUERY, KEY, BOTH, SCALING = ScalePlacement


def attention(
    behind=("Div",),
    front=(),
    *,
    number=None,
    qkv=False,
    kv_heads=HEADS,
    norm=False,
    rotary=False,
    shared=False,
    mask=False,
    static=False,
    large=1.0,
    other_reader=False,
    activation=False,
):
    """An attention over x (2, rows, width), with the scale of its scores in one of many spellings.

    Args:
        behind: Operators that scale the scores, each by the root of the head size.
        front: The operators that scale the queries and the keys, each by its fourth root.
        number: Another number for the operators behind.
        qkv: One MatMul and a Split give queries, keys and values.
        norm: RMSNorm of the queries per head.
        static: The number is computed from the shape of the queries.
        large: Factor of queries and keys; below 1 without biases.
    """
    b = Builder(opset=17)
    if qkv:
        joined = b.node("MatMul", ["x", b.kernel("qkv.weight", (WIDTH, 3 * WIDTH), WIDTH)], "/qkv")
        joined = b.node("Add", [joined, b.vector("qkv.bias", 3 * WIDTH)], "/qkv")
        b.nodes.append(
            __import__("onnx").helper.make_node(
                "Split", [joined, b.weight("parts", np.full(3, WIDTH))], ["q", "k", "v"], name="/split", axis=-1
            )
        )
        q, k, v = "q", "k", "v"
    else:

        def project(name, heads, gain=2.0):
            y = b.node("MatMul", ["x", b.kernel(f"{name}.weight", (WIDTH, heads * DIM), WIDTH, gain)], f"/{name}")
            bias = b.vector(f"{name}.bias", heads * DIM, spread=0.05 if large >= 1 else 0)
            return b.node("Add", [y, bias], f"/{name}")

        q, k, v = project("q", HEADS, 2 * large**2), project("k", kv_heads, 2 * large**2), project("v", kv_heads)
        k = q if shared else k
    if activation:
        q, k = (b.node("Tanh", [one], f"/tanh{index}") for index, one in enumerate((q, k)))
    if other_reader:
        b.node("Relu", [q], "/other", output="other")

    def split_heads(name, source, heads):
        y = b.node("Reshape", [source, b.weight(f"{name}.heads", np.array([0, 0, heads, DIM]))], f"/{name}/heads")
        y = b.node("Transpose", [y], f"/{name}/heads", perm=[0, 2, 1, 3])
        if heads < HEADS:
            y = b.node("Unsqueeze", [y, b.weight(f"{name}.at", np.array([2]))], f"/{name}")
            y = b.node(
                "Expand", [y, b.weight(f"{name}.to", np.array([2, heads, HEADS // heads, ROWS, DIM]))], f"/{name}"
            )
            y = b.node("Reshape", [y, b.weight(f"{name}.flat", np.array([2, HEADS, ROWS, DIM]))], f"/{name}/flat")
        return y

    q, k, v = split_heads("q", q, HEADS), split_heads("k", k, kv_heads), split_heads("v", v, kv_heads)
    if norm:
        squares = b.node("ReduceMean", [b.node("Mul", [q, q], "/norm/square")], "/norm", axes=[-1])
        root = b.node("Sqrt", [b.node("Add", [squares, b.weight("eps", np.float32(1e-6))], "/norm/eps")], "/norm")
        q = b.node("Mul", [b.node("Div", [q, root], "/norm/divided"), b.vector("norm.scale", DIM, 1.0)], "/norm/scaled")
    if rotary:
        angles = np.linspace(0, 3, ROWS * DIM // 2).reshape(ROWS, DIM // 2)
        tables = [
            b.weight(name, np.concatenate((f(angles), f(angles)), -1).astype(np.float32))
            for name, f in (("cos", np.cos), ("sin", np.sin))
        ]

        def rotate(name, y):
            halves = [
                b.node(
                    "Slice",
                    [
                        y,
                        b.weight(f"{name}.s{i}", np.array([i * DIM // 2])),
                        b.weight(f"{name}.e{i}", np.array([(i + 1) * DIM // 2])),
                        b.weight(f"{name}.a{i}", np.array([3])),
                    ],
                    f"/{name}/half{i}",
                )
                for i in (0, 1)
            ]
            turned = b.node("Concat", [b.node("Neg", [halves[1]], f"/{name}"), halves[0]], f"/{name}", axis=-1)
            return b.node(
                "Add",
                [b.node("Mul", [y, tables[0]], f"/{name}/cos"), b.node("Mul", [turned, tables[1]], f"/{name}/sin")],
                f"/{name}/r",
            )

        q, k = rotate("q", q), rotate("k", k)
    k = b.node("Transpose", [k], "/k/turned", perm=[0, 1, 3, 2])
    root = number if number is not None else np.sqrt(np.float32(DIM))
    if front:
        fourth = {"Mul": 1 / np.sqrt(root), "Div": np.sqrt(root)}
        q, k = (
            (
                b.node(front[i], [one, b.weight(f"front{i}", np.float32(fourth[front[i]]))], f"/front{i}")
                for i, one in enumerate((q, k))
                if i < len(front)
            )
            if len(front) == 2
            else (b.node(front[0], [q, b.weight("front0", np.float32(fourth[front[0]]))], "/front0"), k)
        )
    y = b.node("MatMul", [q, k], "/qk")
    for index, operator in enumerate(behind):
        if static:
            size = b.node("Gather", [b.node("Shape", [q], "/shape"), b.weight("last", np.array(3))], "/size")
            scale = b.node("Sqrt", [b.node("Cast", [size], "/size", to=1)], "/size")
        else:
            scale = b.weight(f"scale{index}", np.float32(root if operator == "Div" else 1 / root))
        y = b.node(operator, [y, scale], f"/scale{index}")
    if mask:
        y = b.node("Add", [y, b.weight("mask", np.triu(np.full((ROWS, ROWS), -1e4, np.float32), 1))], "/mask")
    y = b.node("MatMul", [b.node("Softmax", [y], "/softmax", axis=-1), v], "/pv")
    y = b.node(
        "Reshape",
        [b.node("Transpose", [y], "/merge", perm=[0, 2, 1, 3]), b.weight("merged", np.array([0, 0, WIDTH]))],
        "/merge",
    )
    b.node("MatMul", [y, b.kernel("o.weight", (WIDTH, WIDTH), WIDTH)], "/o", output="y")
    outputs = [floats("y", None, None, None), *([floats("other", None, None, None)] if other_reader else [])]
    return b.model([floats("x", 2, ROWS, WIDTH)], outputs)


def only_scale(network):
    (item,) = network.zero_cost_support.attention_scales.items()
    return item


def moved(network, placement, quantized=FP16, other=FP16):
    """A config with the scale of every attention at a place."""
    moves = {
        name: make_attention_scale_move(network, name, placement)
        for name, scale in network.zero_cost_support.attention_scales.items()
        if not placement_refusal_reason(scale, placement)
    }
    assert moves
    return PrecisionConfig(quantized, other).with_moves(moves)


FORMS = [
    ({}, 1),
    ({"behind": ("Mul",)}, 1),
    ({"behind": ("Mul", "Div")}, 2),
    ({"static": True}, 1),
    ({"mask": True}, 1),
    ({"qkv": True}, 1),
    ({"kv_heads": 2}, 1),
    ({"rotary": True, "kv_heads": 2}, 1),
    ({"norm": True}, 1),
    ({"behind": (), "front": ("Mul", "Mul")}, 2),
    ({"front": ("Mul",)}, 2),
    ({"behind": (), "front": ("Div", "Div")}, 2),
]


@pytest.mark.parametrize(("form", "scalings"), FORMS, ids=str)
def test_the_scale_is_found_in_each_spelling(form, scalings, opened):
    network = opened(attention(**form))
    tracer = ChannelTracer(network.graph, {layer for group in network.groups for layer in group.layers})
    tracer.trace_layers()
    (scale,) = find_attention_scales(tracer, network.groups).values()
    assert not scale.refusal_reason and len(scale.scalings) == scalings
    exponent = len(form.get("behind", ("Div",))) / 2 + len(form.get("front", ())) / 4
    assert scale.factor == pytest.approx(DIM**-exponent, rel=1e-6)
    assert not scale.query.refusal_reason
    assert bool(scale.key.refusal_reason) is False


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"behind": ()}, "not scaled by one number"),
        ({"number": -2.0}, "not a number above 0"),
        ({"shared": True}, "no constant in front can take the scale: /qk/MatMul multiplies it too"),
        ({"activation": True}, "no constant in front can take the scale: /tanh0/Tanh (Tanh) computes"),
    ],
)
def test_a_scale_that_cannot_move_says_why(form, reason, opened):
    network = opened(attention(**form))
    name, scale = only_scale(network)
    assert reason in scale.refusal_reason and attention_scale_refusal_reason(network, name) == scale.refusal_reason


def test_queries_that_something_else_reads_leave_the_scale_to_the_keys(opened, backend):
    network = opened(attention(other_reader=True))
    _, scale = only_scale(network)
    assert "other is an" in scale.query.refusal_reason and not scale.key.refusal_reason
    assert placement_refusal_reason(scale, QUERY) and placement_refusal_reason(scale, BOTH)
    assert not placement_refusal_reason(scale, KEY)


@pytest.mark.parametrize(
    ("form", "placement"),
    [({}, QUERY), ({}, KEY), ({"front": ("Mul",)}, SCALING), *((form, BOTH) for form, _ in FORMS)],
    ids=str,
)
def test_every_lowering_does_the_same_arithmetic(form, placement, opened, backend):
    network = opened(attention(**form))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, ROWS, WIDTH)).astype(np.float32)}
    plain = lowered.inner_values(backend, network, feeds)
    ranges = {tensor: float(np.abs(plain[tensor]).max()) for tensor in network.calibrated_tensors}
    configs = [
        moved(network, placement, *precisions)
        for precisions in ((FP32, FP32), (FP16, FP16), (INT8, FP16), (INT8, FP32))
    ]
    offer = reduce(or_, (GatedFeatures.from_config(network, config) for config in configs))
    for config in configs:
        case = lowered.Case(network, config, feeds, plain, ranges)
        assert lowered.compare(case, backend, offer, as_data=True) is None
    typed = lowered.typed_values(backend, network, configs[0], ranges, feeds)
    np.testing.assert_allclose(typed["y"], plain["y"], rtol=1e-4, atol=1e-5)


def test_a_power_of_two_is_exact(opened, backend):
    network = opened(attention(number=4.0))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, ROWS, WIDTH)).astype(np.float32)}
    plain = lowered.inner_values(backend, network, feeds)["y"]
    changed = lowered.typed_values(backend, network, moved(network, QUERY, FP32, FP32), {}, feeds)["y"]
    np.testing.assert_array_equal(changed, plain)


@pytest.mark.parametrize("placement", [QUERY, BOTH])
def test_the_exported_network_has_no_scale_left(placement, opened):
    network = opened(attention(mask=True, static=True))
    rewritten = rewrite_network_for_config(network, moved(network, placement))
    operators = [node.op_type for node in rewritten.network.model.graph]
    assert "Div" not in operators and "Sqrt" not in operators and "Shape" not in operators
    assert "in front" in rewritten.layer_changes["/scale0/Div"]
    weight = next(node for node in rewritten.network.model.graph if node.name == "/q/MatMul").inputs[1]
    assert weight.const_value.numpy().shape == (WIDTH, WIDTH)


def test_only_the_slice_of_the_queries_changes(opened):
    network = opened(attention(qkv=True))
    edits = (
        moved(network, QUERY)
        .get_moves(AttentionScaleMove)["/qk/MatMul"]
        .find_constant_edits(network, "/qk/MatMul", PrecisionConfig())
    )
    for port in (("/qkv/MatMul", 1), ("/qkv/Add", 1)):
        before = network.constant_value(network.get_layer(port[0]).inputs[port[1]])
        after = edits[port].edit_constant(before)
        np.testing.assert_allclose(after[..., :WIDTH], before[..., :WIDTH] * DIM**-0.5, rtol=1e-6)
        np.testing.assert_array_equal(after[..., WIDTH:], before[..., WIDTH:])


def test_ranges_follow_the_scaled_tensors(opened):
    network = opened(attention())
    config = moved(network, BOTH, INT8)
    ranges = dict.fromkeys(network.calibrated_tensors, 2.0)
    plain, changed = (compute_activation_ranges(network, ranges, one) for one in (PrecisionConfig(INT8, FP16), config))
    operands = network.get_layer("/qk/MatMul").inputs
    factors = {tensor: changed[tensor] / plain[tensor] for tensor in plain}
    assert {tensor for tensor, factor in factors.items() if factor != 1} == set(operands)
    assert all(factors[tensor] == pytest.approx(DIM**-0.25) for tensor in operands)
    assert not config.without_fixed_ranges().get_moves(AttentionScaleMove)


def test_weak_and_explicit_builds_get_the_scale_in_front(opened):
    network = opened(attention())
    config = moved(network, QUERY, INT8)
    ranges = {layer.outputs[0]: 8.0 for layer in network.layers} | {"x": 8.0}
    typed, told = lower_to_explicit_quantization(network, config, ranges)
    weak = lower_to_implicit_quantization(network, config, ranges)
    for model in (typed.model, weak.model):
        assert "Div" not in [node.op_type for node in model.graph]
    assert weak.ranges[network.get_layer("/qk/MatMul").inputs[0]] == pytest.approx(8 * DIM**-0.5)
    assert set(told.precisions) <= {node.name for node in typed.model.graph}


def test_the_overflow_of_the_product_is_mended_and_its_headroom_said(opened, backend, tmp_path):
    network = opened(attention(large=75.0))
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(3).standard_normal((4, ROWS, WIDTH)).astype(np.float32))
    data = load_samples(tmp_path / "x.npz", network.inputs)
    errors, caveats = {}, {}
    for name, config in (("behind", PrecisionConfig.from_precision(FP16)), ("front", moved(network, QUERY))):
        with Analysis(network, backend, data, select_judged_outputs(network)) as analysis:
            *_, last = measure_group_errors(analysis, {"config": config}, {})
            caveats[name] = analysis.find_config_caveats(config, range(len(data)))
        errors[name] = last.value["config"]["/qk/MatMul"]
    largest = errors["behind"].fp16_largest
    assert largest > 65504 and errors["front"].fp16_largest == pytest.approx(largest * DIM**-0.5, rel=1e-3)
    assert "remedy: its scale" in errors["behind"].warning_text
    assert "zero-cost remedy" not in errors["front"].warning_text
    reached = {name: any("MatMul /qk/MatMul reaches" in caveat.text for caveat in caveats[name]) for name in caveats}
    assert reached == {"behind": True, "front": False}, "of the product itself; its partial sums have a bound only"


def test_a_quantized_file_is_scaled_once(opened, backend, tmp_path):
    plain_network = opened(attention(mask=True))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, ROWS, WIDTH)).astype(np.float32)}
    plain = lowered.inner_values(backend, plain_network, feeds)
    ranges = {tensor: float(np.abs(plain[tensor]).max()) for tensor in plain_network.calibrated_tensors}
    onnx.save(
        ir.to_proto(lower_to_typed_network(plain_network, PrecisionConfig(INT8, FP32), ranges).model),
        tmp_path / "quantized.onnx",
    )
    network = open_network(tmp_path / "quantized.onnx")
    groups = [network.find_group(layer) for layer in ("/q/MatMul", "/qk/MatMul")]
    config = replace_file_precision_of_groups(PrecisionConfig.from_precision(Precision.FILE), groups).with_moves(
        {"/qk/MatMul": make_attention_scale_move(network, "/qk/MatMul", QUERY)}
    )
    with backend.load(lower_from_source_model(network, config, ranges).model, optimize=False) as runner:
        typed = runner.run(feeds)["y"]
    gated = lowered.gated_values(backend, network, config, ranges, feeds)["y"]
    assert lowered.sqnr(plain["y"], typed) > 30 and lowered.sqnr(typed, gated) > 45
    with pytest.raises(InputError):
        lower_from_source_model(network, config.with_group_precision(groups[:1], Precision.FILE), ranges)


def test_proposals_name_the_place_and_none_is_made_in_fp32(opened, backend, tmp_path):
    network = opened(attention(large=3e-4))
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(3).standard_normal((4, ROWS, WIDTH)).astype(np.float32) * 1e-3)
    data = load_samples(tmp_path / "x.npz", network.inputs)
    context = ProposalContext(
        network,
        PrecisionConfig.from_precision(FP16),
        network.groups,
        data,
        backend,
        {},
        "",
        "user",
        False,
        False,
        {},
        None,
        (),
        None,
        TrialBudget(),
        None,
        lambda: None,
        lambda title: None,
    )
    assert [proposal.label for proposal in ZERO_COST_MOVE_CLASSES[AttentionScaleMove].make_proposals(context)] == [
        "QK scale in Q",
        "QK scale in Q and K",
    ]
    exact = replace(context, config=PrecisionConfig.from_precision(FP32))
    assert not list(
        ZERO_COST_MOVE_CLASSES[AttentionScaleMove].make_proposals(exact)
    )  # in FP32 the place makes no difference


@pytest.mark.rtx
@pytest.mark.parametrize("placement", [QUERY, BOTH])
def test_tensorrt_rtx_fuses_the_attention_as_before(placement, opened):
    network = opened(networks.attention_block())
    listings = [
        rtx.layers(lower_to_typed_network(network, config, {}).model)
        for config in (PrecisionConfig.from_precision(FP16), moved(network, placement))
    ]
    assert all("_gemm_mha" in listing for listing in listings)
    assert "scores/Div" in listings[0] and "scores/Div" not in listings[1]
