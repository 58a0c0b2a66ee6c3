"""Tests of trt_tui.backends.onnxruntime and of its blocked layout, trt_tui.backends.blocked."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import networks
from trt_tui.backends import blocked
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.lowering.gated import lower_gated
from trt_tui.core.precision import Precision, PrecisionConfig
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError


def kernels_of(model: ir.Model, block: int) -> tuple[ir.Model, dict[str, blocked.Kernel], list[str]]:
    """A blocked copy, the kernels it is fed, and its operators of the blocked domain, those in bodies too."""
    copy = model.clone()
    kernels = blocked.apply(copy, block)
    return copy, kernels, [node.op_type for node in copy.graph.all_nodes() if node.domain == blocked.DOMAIN]


def same_outputs(backend, model: ir.Model, feeds: dict[str, np.ndarray]) -> None:
    with backend.load(model, optimize=False) as exact, backend.load(model, lean=True) as lean:
        assert [info.name for info in lean.inputs] == [info.name for info in exact.inputs]
        expected, result = exact.run(feeds), lean.run(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, rtol=1e-4, atol=1e-5 * float(np.abs(array).max()))


@pytest.fixture(scope="module")
def block(backend) -> int:
    size = backend._block()
    if size == 1:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    return size


# ----------------------------------------------------------------------------------------------------- loading, running


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert", "vit"])
@pytest.mark.parametrize("options", [{}, {"lean": True}])
def test_networks_run_alike_however_they_are_loaded(name, options, named_network, backend):
    network = named_network(name)
    feeds = networks.feeds(onnx.load(network.path), n=2, **({"sequence": 8} if name == "bert" else {}))
    with backend.load(network.model, optimize=False) as exact, backend.load(network.model, **options) as runner:
        for tensor, array in exact.run(feeds).items():
            np.testing.assert_allclose(
                runner.run(feeds)[tensor], array, rtol=1e-4, atol=1e-5 * float(np.abs(array).max()))


def test_loading_leaves_the_model_as_it_is(named_network, backend):
    model = named_network("small_resnet").model
    before = ir.to_proto(model).SerializeToString()
    for options in ({}, {"lean": True}, {"optimize": False}):
        backend.load(model, **options).close()
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("lean", [False, True])
def test_weights_are_not_serialized(lean, opened, monkeypatch):
    network = opened(networks.many_layers(100))
    weights = sum(value.const_value.nbytes for value in network.model.graph.initializers.values())
    backend, sizes = OnnxRuntimeBackend("cpu", threads=2), []
    backend._block()
    make = backend._ort.InferenceSession
    monkeypatch.setattr(
        backend._ort, "InferenceSession",
        lambda proto, *rest, **named: sizes.append(len(proto)) or make(proto, *rest, **named))
    with backend.load(network.model, lean=lean) as runner:
        runner.run(networks.feeds(onnx.load(network.path)))
    assert len(sizes) == 1
    assert sizes[0] < weights / 20


def test_fetch_names_what_is_returned(named_network, backend):
    network = named_network("unet_small")
    with backend.load(network.model) as runner:
        assert list(runner.run(networks.feeds(onnx.load(network.path)), ["scores"])) == ["scores"]


def test_what_the_library_refuses_is_said_in_its_words(named_network, backend):
    network = named_network("mlp")
    with backend.load(network.model) as runner, pytest.raises(TrtTuiError, match="could not run") as caught:
        runner.run({"x": np.zeros((2, 3), np.float32)})
    assert "x" in str(caught.value)
    with pytest.raises(InputError, match="does not take this network"):
        backend.load(ir.from_proto(networks.with_custom_operator()))


def test_a_missing_provider_is_said(monkeypatch):
    backend = OnnxRuntimeBackend("cpu")
    monkeypatch.setattr(backend._ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendUnavailableError, match="no CUDA provider"):
        OnnxRuntimeBackend("cuda")


# ------------------------------------------------------------------------------------------------------ blocked layout


def test_every_conv_of_a_gated_network_is_blocked(named_network, backend, block):
    network = named_network("small_resnet")
    gated = lower_gated(network)
    convs = sum(node.op_type == "Conv" for node in gated.model.graph.all_nodes())
    copy, kernels, operators = kernels_of(gated.model, 16)
    assert convs == operators.count("Conv") - sum(
        "@factor" in (node.inputs[1].name or "") for node in copy.graph.all_nodes() if node.domain == blocked.DOMAIN
        and node.op_type == "Conv")
    assert set(kernels) == {f"{name}@blocked" for name, weight in gated.weight_inputs.items()
                            if len(network.shape(weight.site.tensor)) == 4}
    # Tensors change their layout at the network's input and before its head, and nowhere between.
    assert operators.count("ReorderOutput") <= 4 and operators.count("ReorderInput") <= 4


def test_kernels_follow_what_is_fed(named_network, backend, block):
    network = named_network("small_resnet")
    feeds = networks.feeds(onnx.load(network.path), n=2)
    gated = lower_gated(network, other=Precision.FP32)
    ranges = dict.fromkeys(network.activations, 4.0)
    fp32, int8 = PrecisionConfig.uniform(Precision.FP32), PrecisionConfig.uniform(Precision.INT8, other=Precision.FP32)
    output = gated.outputs["logits"]
    with backend.load(gated.model, lean=True) as runner:
        first, low, again = (
            runner.run({**feeds, **gated.feeds(config, ranges)})[output] for config in (fp32, int8, fp32))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - low).max() > 1e-3


def residual_branches(channels: int, depthwise: bool) -> onnx.ModelProto:
    """Convs, a depthwise one, batch norms, pools, a Split, a Concat, a broadcast Mul and a Reshape in one network."""
    b = networks.Builder(5)
    x = b.conv("image", (3, channels), "/stem", bias=True)
    y = b.batch_norm(x, channels, "/norm")
    y = b.node("Relu", [y], "/act")
    y = b.conv(y, (channels, channels), "/mid", groups=channels if depthwise else 1)
    y = b.node("Relu", [b.node("Add", [y, x], "/skip")], "/skip")
    pooled = b.node("MaxPool", [y], "/pool", kernel_shape=[2, 2], strides=[2, 2])
    gate = b.node("Sigmoid", [b.node("GlobalAveragePool", [pooled], "/gate")], "/gate")
    scaled = b.node("Mul", [pooled, gate], "/gate")
    joined = b.node("Concat", [scaled, pooled], "/join", axis=1)
    z = b.conv(joined, (2 * channels, channels), "/head", size=1)
    average = b.node("AveragePool", [z], "/average", kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1)
    shape = b.weight("shape", np.array([0, -1], np.int64))
    b.node("Reshape", [average, shape], "/flat", output="flat")
    b.node("ReduceMean", [z], "/mean", output="mean", axes=[2, 3])
    return b.model(
        [networks.floats("image", "batch", 3, 16, 16)],
        [networks.floats("flat", "batch", channels * 16), networks.floats("mean", "batch", channels, 1, 1)])


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("channels", [8, 16, 24, 32])
def test_mixed_operators_give_the_same_in_the_blocked_layout(channels, depthwise, opened, backend, block):
    network = opened(residual_branches(channels, depthwise))
    same_outputs(backend, network.model, networks.feeds(onnx.load(network.path), n=3))
    _, kernels, operators = kernels_of(network.model, block)
    assert bool(kernels) is bool(operators) is (channels % block == 0)


def test_a_split_between_convs_is_given_plain_tensors(opened, backend, block):
    b = networks.Builder(2)
    x = b.conv("image", (16, 32), "/first")
    b.nodes.append(onnx.helper.make_node("Split", [x], ["left", "right"], name="/split", axis=1))
    y = b.node("Add", [b.conv("left", (16, 16), "/second"), "right"], "/add")
    y = b.node("Add", [y, "image"], "/input")
    b.node("Relu", [y], "/act", output="y")
    network = opened(b.model([networks.floats("image", "batch", 16, 8, 8)], [networks.floats("y", "batch", 16, 8, 8)]))
    same_outputs(backend, network.model, networks.feeds(onnx.load(network.path), n=2))


def test_a_flattened_tensor_that_is_read_in_order_keeps_its_order(opened, backend, block):
    b = networks.Builder(2)
    x = b.node("Relu", [b.conv("image", (3, 16), "/first")], "/act")
    flat = b.node("Reshape", [x, b.weight("flat", np.array([-1], np.int64))], "/flat")
    b.node("Gather", [flat, b.weight("index", np.arange(0, 100, 7))], "/pick", output="y")
    network = opened(b.model([networks.floats("image", 1, 3, 8, 8)], [networks.floats("y", 15)]))
    same_outputs(backend, network.model, networks.feeds(onnx.load(network.path)))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.lists(st.sampled_from(
    ["conv", "pointwise", "depthwise", "norm", "relu", "add", "pool", "mul", "transpose", "sigmoid"]),
    min_size=1, max_size=9), seed=st.integers(0, 99))
def test_any_chain_gives_the_same_in_the_blocked_layout(choices, seed, opened, backend, block):
    b = networks.Builder(seed)
    channels = 16
    x = before = b.conv("image", (3, channels), "/stem")
    for index, choice in enumerate(choices):
        scope = f"/{index}"
        previous = x
        if choice in ("conv", "pointwise", "depthwise"):
            x = b.conv(x, (channels, channels), scope, size=1 if choice == "pointwise" else 3,
                       groups=channels if choice == "depthwise" else 1)
        elif choice == "norm":
            x = b.batch_norm(x, channels, scope)
        elif choice in ("relu", "sigmoid"):
            x = b.node(choice.capitalize(), [x], scope)
        elif choice in ("add", "mul"):
            x = b.node(choice.capitalize(), [x, before], scope)
        elif choice == "pool":
            x = b.node("MaxPool", [x], scope, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        else:
            x = b.node("Transpose", [x], scope, perm=[0, 1, 3, 2])
        before = previous
    b.node("Identity", [x], "/out", output="y")
    model = b.model(
        [networks.floats("image", "batch", 3, 8, 8)], [networks.floats("y", "batch", channels, 8, 8)])
    network = opened(model)
    same_outputs(backend, network.model, networks.feeds(model, n=2))
