"""Channels that are divided at their producers and multiplied back at their readers: the layers that take part."""

from dataclasses import replace
from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import lowered, networks
from tests.networks import Builder, floats
from tests.networks.drawn import drawn_network
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.rulebook import compute_activation_ranges
from trt_tui.core.lowering.weak_typing import lower_to_implicit_quantization
from trt_tui.core.measure.zero_cost_kinds import (
    add_zero_cost_moves,
    measure_smoothquant_moves,
    propose_normalisation_rewrites,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import (
    EqualizationMove,
    ScalePlacement,
    SmoothQuantMove,
    attention_scale_refusal_reason,
    channel_scaling_refusal_reason,
    decode_vector,
    encode_vector,
    equalization_refusal_reason,
    make_attention_scale_move,
    placement_refusal_reason,
)
from trt_tui.core.network.channels.channel_scaling import find_channel_scalings
from trt_tui.core.network.channels.channel_tracer import (
    UNSCALED,
    ChannelRoots,
    ChannelTracer,
    has_equal_sizes,
    label_connected_components,
    match_all_blocks,
    reshape_channel_ids,
)
from trt_tui.core.network.fusion.groups import build_fusion_groups
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import ScaledTensor
from trt_tui.core.precision import Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def random_moves(network, plain, seed=0):
    """Random factors at every set of channels that can be scaled, with the ranges that follow from FP32 values."""
    rng, moves = np.random.default_rng(seed), {}
    for name, scaling in network.zero_cost_support.channel_scalings.items():
        if scaling.refusal_reason:
            continue
        factors = np.exp(rng.uniform(-1.5, 1.5, scaling.channels)).astype(np.float32)
        ranges = {
            tensor.tensor: float(np.abs(plain[tensor.tensor] / tensor.compute_divisors(factors)).max(initial=0))
            for tensor in scaling.tensors
            if tensor.tensor in network.calibrated_tensors
        }
        moves[name] = SmoothQuantMove(0.5, encode_vector(factors), ranges)
    return moves


def assert_outputs_stay(network, plain, changed):
    """The outputs are equal up to the rounding of the sums that lead to them."""
    for info in network.outputs:
        array, other = plain[info.name], changed[info.name]
        finite = np.isfinite(array)
        bound = 1e-3 * max(float(np.abs(array[finite]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(other[finite], array[finite], rtol=2e-3, atol=bound)


def random_sequence(random, network, plain):
    """The exact moves that a network can have, each with its subject, in random order; channels are scaled once."""
    support, seed = network.zero_cost_support, random.randrange(1 << 16)
    sets = [random_moves(network, plain, seed), propose_normalisation_rewrites(network, network.groups)]
    for name, move in sets[0].items():
        if random.random() < 0.5 and not equalization_refusal_reason(network, name):
            sets[0][name] = EqualizationMove("0.5", move.factors, move.ranges)
    scales = {
        name: scale
        for name, scale in support.attention_scales.items()
        if not attention_scale_refusal_reason(network, name)
    }
    sets.append(
        {
            name: make_attention_scale_move(
                network,
                name,
                random.choice([place for place in ScalePlacement if not placement_refusal_reason(scale, place)]),
            )
            for name, scale in scales.items()
        }
    )
    moves = [(name, move) for moves in sets for name, move in moves.items()]
    return random.sample(moves, random.randint(min(1, len(moves)), len(moves)))


def assert_sequence_is_exact(network, plain, feeds, backend, random):
    """FP32 stays after the moves, and each undo gives the config that was there before."""
    history = [PrecisionConfig.from_precision(FP32)]
    moves = random_sequence(random, network, plain)
    for name, move in moves:
        assert not move.refusal_reason(network, name)
        history.append(add_zero_cost_moves(history[-1], network, {name: move}))
    assert_outputs_stay(network, plain, lowered.typed_values(backend, network, history[-1], {}, feeds))
    config = history.pop()
    for name, move in reversed(moves):
        config = config.without_moves(type(move), [name])
        assert config == history.pop()
    assert not history
    return moves


@pytest.mark.parametrize(("operator", "passes"), [("Relu", True), ("Neg", True), ("Sigmoid", False)])
def test_channels_are_followed_through_what_commutes_with_a_positive_factor(operator, passes):
    b = Builder()
    inner = b.node(operator, [b.conv("x", (2, 3), "/one", size=1, bias=True)], "/inner")
    outer = b.conv(inner, (3, 4), "/two", size=1)
    model = onnx.shape_inference.infer_shapes(b.model([floats("x", 1, 2, 5, 5)], [floats(outer, 1, 4, 5, 5)]))
    graph = LayerGraph(ir.from_proto(model))
    tracer = ChannelTracer(graph, graph.by_name)
    tracer.trace_layers()
    ids = tracer.channel_ids["/one/Conv_output_0"]
    assert ids.shape == (1, 3, 1, 1) and len(set(ids.ravel())) == 3 and ids.all()
    assert tracer.is_scaled(ids) is passes and not tracer.is_scaled(tracer.channel_ids[outer])
    divided = {(layer.name, index): array for layer, index, array in tracer.producers}
    np.testing.assert_array_equal(divided["/one/Conv", 1], ids.reshape(3, 1, 1, 1))
    np.testing.assert_array_equal(divided["/one/Conv", 2], ids.ravel())
    multiplied = [(layer.name, index, tensor, array.tolist()) for layer, index, tensor, array in tracer.readers]
    assert multiplied == ([("/two/Conv", 1, inner, ids.tolist())] if passes else [])
    tracer.unite_products()
    roots = ChannelRoots(tracer)
    np.testing.assert_array_equal(roots.find_roots(-ids), -ids if passes else 0 * ids)
    scaling = find_channel_scalings(tracer, build_fusion_groups(graph))["/one/Conv"]
    assert (
        scaling.refusal_reason == ("" if passes else roots.find_refusal_reason(ids)) and scaling.channels == 3 * passes
    )
    if passes:
        np.testing.assert_array_equal(scaling.find_tensor(inner).factor_ids.ravel(), [1, 2, 3])
        assert [one.port for one in scaling.producers] == [("/one/Conv", 1), ("/one/Conv", 2)]
        assert [(one.port, -one.factor_ids.ravel()[1]) for one in scaling.readers] == [(("/two/Conv", 1), 2)]


def test_components_have_the_label_of_their_smallest_node():
    labels = label_connected_components(7, np.array([5, 3, 6]), np.array([2, 5, 1]))
    assert labels.tolist() == [0, 1, 2, 2, 4, 2, 1]


def test_united_channels_share_a_factor_or_its_inverse_and_one_that_meets_its_inverse_has_none():
    tracer = ChannelTracer(LayerGraph(ir.from_proto(networks.mlp())), ())
    tracer.count, tracer.reason_by_id = 6, np.zeros(6, np.int32)
    tracer.links = [(np.array([2, 4]), np.array([-1, -4]))]
    assert ChannelRoots(tracer).find_roots(np.array([1, 2, -2, 3, 4, 5])).tolist() == [1, -1, 1, 3, UNSCALED, 5]
    tracer.mark_unscaled(np.array([2]), "why")
    roots = ChannelRoots(tracer)
    assert roots.find_roots(np.array([1, 2, 3])).tolist() == [UNSCALED, UNSCALED, 3]
    assert roots.find_refusal_reason(np.array([1])) == "why"


def test_factors_divide_the_channels_that_have_their_numbers():
    tensor = ScaledTensor("x", np.array([[2, 0, -1]]))
    array, factors = np.array([[6.0, 5, 4], [-9, 1, 2]], np.float32), np.array([10, 3], np.float32)
    np.testing.assert_array_equal(tensor.divide_channels(array, factors), [[2, 5, 40], [-3, 1, 20]])
    np.testing.assert_allclose(array / tensor.compute_divisors(factors), [[2, 5, 40], [-3, 1, 20]], rtol=1e-6)
    assert tensor.compute_channel_maxima(array, 2).tolist() == [0, 9]
    assert tensor.compute_channel_maxima(array, 2, -1).tolist() == [4, 0]


def test_sizes_are_read_through_shape_arithmetic():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> sizes (float[n, 6, 8] x) => (float[n, k] y)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] rest = {-1}> {
            all = Shape(x)
            batch = Gather(all, rest)
            six = Gather(all, one)
            half = Div(six, two)
            joined = Concat<axis = 0>(six, half, batch)
            front = Slice(all, one, two)
            y = Reshape(x, joined)
        }""")
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    tracer = ChannelTracer(LayerGraph(ir.from_proto(onnx.shape_inference.infer_shapes(model))), ())
    tracer.trace_layers()
    read = {name: tracer.values.find_value(name).tolist() for name in ("all", "batch", "half", "joined", "front")}
    assert read == {"all": ["n", 6, 8], "batch": [8], "half": [3], "joined": [6, 3, 8], "front": [6]}
    assert tracer.values.find_integers("all") is tracer.values.find_value("x") is None


@pytest.mark.parametrize(
    ("before", "after", "channels"),
    [
        ((2, 3, 4), (6, 4), 2),
        ((2, 3, 4), (2, 12), 1),
        ((2, 12), (2, 3, 4), 1),
        ((4, 2, 3), (8, 3), 0),
        (("n", 3, 4, 5), ("n", 12, 5), 1),
        (("n", "s", 8), ("k", 2, 4), 2),
        (("n", 6, "s"), ("n", 2, 3, "t"), 1),
    ],
)
def test_channel_ids_are_reshaped_like_the_values(before, after, channels):
    """An open size is 7 in numpy. The blocks pair all axes, in order."""
    blocks = match_all_blocks(before, after)
    for shape, ranges in ((before, [old for old, _ in blocks]), (after, [new for _, new in blocks])):
        assert [axis for start, stop in ranges for axis in range(start, stop)] == list(range(len(shape)))
    for old, new in blocks:
        fixed = all(isinstance(size, int) for size in (*before[slice(*old)], *after[slice(*new)]))
        assert has_equal_sizes(before[slice(*old)], after[slice(*new)]) is fixed
    ids = np.arange(1, before[channels] + 1).reshape([-1 if axis == channels else 1 for axis in range(len(before))])
    got = reshape_channel_ids(ids, before, after, blocks)
    sizes, result = ([7 if isinstance(size, str) else size for size in shape] for shape in (before, after))
    result = [49 if size == "k" else number for size, number in zip(after, result, strict=True)]
    np.testing.assert_array_equal(np.broadcast_to(got, result), np.broadcast_to(ids, sizes).reshape(result))


def test_blocks_of_other_sizes_have_no_equal_number_of_elements():
    assert not has_equal_sizes((2, 3), (5,)) and has_equal_sizes((2, 3), (6,))


@given(st.integers(0, 1 << 30))
@settings(max_examples=10, deadline=None)
def test_a_random_sequence_of_moves_is_exact_in_fp32_and_its_undo_gives_the_same_config(opened, backend, seed):
    random = Random(seed)
    model = drawn_network(random)
    network, feeds = opened(model), networks.feeds(model, seed % (1 << 16))
    assert_sequence_is_exact(network, lowered.inner_values(backend, network, feeds), feeds, backend, random)


@pytest.mark.parametrize(
    ("name", "least_channels"),
    [
        ("bert_block", 128),
        ("vit_block", 33),
        ("decoder", 80),
        ("small_resnet", 60),
        ("mlp", 64),
        ("chain", 16),
        ("unet_small", 90),
    ],
)
def test_a_random_sequence_of_moves_is_exact_in_each_architecture(name, least_channels, opened, backend):
    model = getattr(networks, name)()
    network, feeds = opened(model), networks.feeds(model, 1)
    plain = lowered.inner_values(backend, network, feeds)
    scalings = network.zero_cost_support.channel_scalings
    assert sum(scalings[name].channels for name in random_moves(network, plain)) >= least_channels
    assert any(assert_sequence_is_exact(network, plain, feeds, backend, Random(seed)) for seed in range(3))


@given(st.integers(0, 1 << 30))
@example(1754899)
@example(426914205)
@settings(max_examples=10, deadline=None)
def test_all_lowerings_agree_on_random_factors(opened, backend, seed):
    case = lowered.draw(Random(seed), backend, opened)
    config = case.config.with_moves(random_moves(case.network, case.plain, seed))  # two may divide one tensor
    assert lowered.compare(replace(case, config=config), backend, as_data=True) is None


def pair(between=(), *, images=True, conv_groups=1, channels=8, residual=False, output=False, bounds=(0.0, 6.0)):
    """A producer and a reader of 8 channels, with operators between them."""
    b = Builder(opset=17)

    def layer(source, scope, inputs, outputs, groups=1):
        if images:
            weight = b.kernel(f"{scope}.weight", (outputs, inputs // groups, 3, 3), 9 * inputs)
            return b.node(
                "Conv",
                [source, weight, b.vector(f"{scope}.bias", outputs)],
                scope,
                kernel_shape=[3, 3],
                pads=[1] * 4,
                group=groups,
            )
        y = b.node("MatMul", [source, b.kernel(f"{scope}.weight", (inputs, outputs), inputs)], scope)
        return b.node("Add", [y, b.vector(f"{scope}.bias", outputs)], scope)

    x = first = layer("x", "/first", 4, channels)
    for index, operator in enumerate(between):
        scope, inputs, attributes = f"/{index}", [x], {}
        if operator == "Clip":
            inputs += [b.weight(f"bound{index}.{i}", np.float32(bound)) for i, bound in enumerate(bounds)]
        elif operator in ("Mul", "Add", "Div"):
            inputs += [
                b.vector(f"c{index}", channels, 1.0)
                if not images
                else b.weight(f"c{index}", np.linspace(0.5, 2, channels, dtype=np.float32).reshape(-1, 1, 1))
            ]
        elif operator == "BatchNormalization":
            inputs += [b.vector(f"{name}{index}", channels, 1.0) for name in ("scale", "bias", "mean", "variance")]
        elif operator == "Gate":
            operator, inputs = "Mul", [x, b.node("Sigmoid", [layer("x", "/gate", 4, channels)], "/gate")]
        elif operator == "MaxPool":
            attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
        elif operator == "Transpose":
            attributes = {"perm": [0, 1, 3, 2]}
        elif operator == "LeakyRelu":
            attributes = {"alpha": 0.1}
        elif operator == "Depthwise":
            x = layer(x, scope, channels, channels, channels)
            continue
        x = b.node(operator, inputs, scope, **attributes)
    if residual:
        x = b.node("Add", [x, first if residual == "own" else "z"], "/residual")
    y = layer(x, "/second", channels, 8, conv_groups)
    b.node("Relu", [y], "/end", output="y")
    sizes = (2, 4, 6, 6) if images else (2, 5, 4)
    inputs = [floats("x", *sizes), *([floats("z", 2, channels, *sizes[2:])] if residual == "other" else [])]
    outputs = [floats("y", *[None] * len(sizes)), *([floats(first, *[None] * len(sizes))] if output else [])]
    return b.model(inputs, outputs)


def first_scaling(network):
    """The channels that the first layer produces."""
    return next(
        scaling
        for scaling in network.zero_cost_support.channel_scalings.values()
        if any(
            producer.port[0] == "/first/Conv" or producer.port[0] == "/first/MatMul" for producer in scaling.producers
        )
    )


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"between": ("Relu",)},
        {"between": ("LeakyRelu", "MaxPool")},
        {"between": ("Mul", "Relu")},
        {"between": ("Div", "Abs")},
        {"between": ("Add", "Relu")},
        {"between": ("Transpose", "Relu", "Transpose")},
        {"between": ("Relu", "Gate")},
        {"conv_groups": 2},
        {"between": ("Relu", "Depthwise", "Relu")},
        {"residual": "own", "between": ("Relu",)},
        {"between": ("Clip",), "bounds": (0.0, 3.4e38)},
        {"images": False, "between": ("Relu", "Mul")},
    ],
    ids=str,
)
def test_channels_are_scaled_through_operators_that_commute(form, opened, backend):
    model = pair(**form)
    network, feeds = opened(model), networks.feeds(model, 1)
    scaling = first_scaling(network)
    assert scaling.channels == 8 and scaling.readers and not scaling.refusal_reason
    plain = lowered.inner_values(backend, network, feeds)
    config = PrecisionConfig.from_precision(FP32).with_moves(random_moves(network, plain))
    assert_outputs_stay(network, plain, lowered.typed_values(backend, network, config, {}, feeds))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            {"between": ("Sigmoid",)},
            "/0/Sigmoid (Sigmoid) reads /first/Conv_output_0, and would see the scaled channels",
        ),
        ({"between": ("Tanh",), "images": False}, "(Tanh) reads /first/Add_output_0"),
        ({"between": ("Exp",)}, "(Exp) reads"),
        ({"between": ("BatchNormalization", "Sigmoid")}, "/1/Sigmoid (Sigmoid) reads /0/BatchNormalization_output_0"),
        ({"between": ("Softplus",)}, "(Softplus) reads"),
        ({"residual": "other"}, "/residual/Add joins it with a tensor that is not scaled"),
        ({"output": True}, "/first/Conv_output_0 is an output of the network"),
        ({"between": ("Clip",)}, "a Clip limits /first/Conv_output_0 to 0 and 6"),
    ],
)
def test_channels_stay_where_an_operator_does_not_commute(form, reason, opened):
    network = opened(pair(**form))
    name = network.find_group("/first/Conv" if form.get("images", True) else "/first/MatMul").name
    assert reason in channel_scaling_refusal_reason(network, name)


@pytest.mark.parametrize("operator", ["Einsum", "Attention", "MultiHeadAttention"])
def test_operators_that_are_not_followed_are_named(operator, opened):
    """The channels in front of them stay, with a reason that names them."""
    b = Builder(opset=23)
    queries, keys, values = (
        b.node("MatMul", ["x", b.kernel(f"{name}.weight", (8, 8), 8)], f"/{name}") for name in "qkv"
    )
    if operator == "Einsum":
        scores = b.node("Einsum", [queries, keys], "/attn", equation="bid,bjd->bij")
        y = b.node("MatMul", [b.node("Softmax", [scores], "/soft", axis=-1), values], "/pv")
    else:
        heads = {"q_num_heads": 2, "kv_num_heads": 2} if operator == "Attention" else {"num_heads": 2}
        y = b.node(
            operator,
            [queries, keys, values],
            "/attn",
            **heads,
            **({"domain": "com.microsoft"} if operator == "MultiHeadAttention" else {}),
        )
    b.node("MatMul", [y, b.kernel("out.weight", (8, 8), 8)], "/out", output="y")
    network = opened(b.model([floats("x", 2, 5, 8)], [floats("y", None, None, None)], domains=["com.microsoft"]))
    reason = channel_scaling_refusal_reason(network, "/q/MatMul")
    assert reason == f"/attn/{operator} ({operator}) reads /q/MatMul_output_0, and would see the scaled channels"
    assert attention_scale_refusal_reason(network, network.find_group(f"/attn/{operator}").name)


def test_a_clip_is_named_so_that_data_can_show_that_it_cuts_nothing(opened):
    network = opened(pair(between=("Clip",)))
    scaling = network.zero_cost_support.channel_scalings["/first/Conv"]
    (clip,) = scaling.clips
    assert (clip.tensor, clip.low, clip.high) == ("/first/Conv_output_0", 0.0, 6.0)
    assert scaling.channels == 8 and scaling.producers and scaling.readers


def test_a_depthwise_conv_reads_and_produces_one_channel_each(opened):
    network = opened(pair(between=("Relu", "Depthwise", "Relu")))
    depthwise = [
        constant
        for scaling in network.zero_cost_support.channel_scalings.values()
        for constant in (*scaling.producers, *scaling.readers)
        if constant.port == ("/1/Conv", 1)
    ]
    assert [constant.shape for constant in depthwise] == [(8, 1, 1, 1)] * 2


def test_a_grouped_conv_maps_the_channels_of_its_groups(opened, backend):
    network = opened(pair(conv_groups=2))
    scaling = first_scaling(network)
    (reader,) = scaling.readers
    factors = np.arange(1, 9, dtype=np.float32)
    assert reader.shape == (8, 4, 1, 1)
    expected = np.repeat(np.stack((factors[:4], factors[4:])), 4, axis=0)
    np.testing.assert_allclose(reader.divide_channels(np.ones((8, 4, 3, 3), np.float32), factors)[..., 0, 0], expected)
    np.savez(
        network.path.with_name("x.npz"), x=np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
    )
    samples = load_samples(network.path.with_name("x.npz"), network.inputs)
    moves = measure_smoothquant_moves(network, ["/first/Conv"], samples, backend, strength=0.0)
    weight = np.abs(network.constant_value(reader.tensor)).reshape(2, 4, 4, 9).max((1, 3)).ravel()
    np.testing.assert_allclose(decode_vector(moves["/first/Conv"].factors), 1 / weight, rtol=1e-6)


def test_heads_of_a_grouped_query_attention_share_factors(opened):
    network = opened(networks.decoder())
    scaling = network.zero_cost_support.channel_scalings["/attn/q/MatMul"]
    queries, keys = (
        producer.compute_divisors(np.arange(1, scaling.channels + 1, dtype=np.float32)).ravel()
        for producer in scaling.producers
    )
    assert scaling.products == ("/attn/scores/MatMul",) and not scaling.readers
    np.testing.assert_allclose(np.sort(queries), np.sort(1 / keys), rtol=1e-6)
    assert len(np.unique(queries)) == scaling.channels == queries.size // 2  # the rotation joins two halves


def test_ranges_of_a_concat_stay_common(opened):
    b = Builder(opset=17)
    first, second = (b.node("Relu", [b.conv("x", (4, 8), f"/{name}", bias=True)], f"/{name}") for name in "ab")
    joined = b.node("Concat", [first, b.node("Sigmoid", [second], "/s")], "/join", axis=1)
    b.node("Relu", [b.conv(joined, (16, 8), "/last", bias=True)], "/last", output="y")
    network = opened(b.model([floats("x", 1, 4, 6, 6)], [floats("y", None, None, None, None)]))
    scaling = network.zero_cost_support.channel_scalings["/a/Conv"]
    assert scaling.channels == 8
    tensors = network.tensors_with_shared_range[joined]
    move = SmoothQuantMove(0.5, encode_vector(np.full(8, 4.0)), {joined: 1.5})
    ranges = {**dict.fromkeys(network.calibrated_tensors, 6.0), **dict.fromkeys(tensors, 1.0)}
    result = compute_activation_ranges(network, ranges, PrecisionConfig(INT8, FP16).with_moves({"/a/Conv": move}))
    assert {result[tensor] for tensor in tensors if tensor in result} == {1.5}


def test_weak_builds_get_the_ranges_of_the_divided_tensors_inside_groups(opened):
    network = opened(pair(between=("Relu",)))
    ranges = {tensor: 8.0 for layer in network.layers for tensor in layer.outputs} | {"x": 8.0}
    move = SmoothQuantMove(0.5, encode_vector(np.full(8, 4.0)), {"/0/Relu_output_0": 2.0})
    weak = lower_to_implicit_quantization(
        network, PrecisionConfig(INT8, FP16).with_moves({"/first/Conv": move}), ranges
    )
    changed = {tensor: amax for tensor, amax in weak.ranges.items() if amax != 8}
    assert changed["/0/Relu_output_0"] == 2.0 and set(changed) <= {"/0/Relu_output_0", "/first/Conv_output_0"}
