"""trt_tui.core.lowering.explicit_quantization: what TensorRT 8.6 is told beside Q/DQ."""

import onnx_ir as ir
import pytest

from tests.networks import Builder, floats
from tests.test_weak import ranges_of
from trt_tui.core.lowering.explicit_quantization import lower_to_explicit_quantization
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.layers import LayerKind
from trt_tui.core.precision import Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


@pytest.fixture(scope="module", params=["small_resnet", "unet_small", "mlp", "demo"])
def network(request, named_network):
    return named_network(request.param)


def computing(network, group) -> set[str]:
    return {name for name in group.layers if network.get_layer(name).kind is LayerKind.COMPUTE}


CONFIGS = {
    "fp32": lambda network: PrecisionConfig.from_precision(FP32),
    "fp16": lambda network: PrecisionConfig.from_precision(FP16),
    "int8": lambda network: PrecisionConfig.from_precision(INT8, FP16),
    "int8 and fp32": lambda network: PrecisionConfig.from_precision(INT8, FP32),
    "mixed": lambda network: PrecisionConfig().with_group_precision(network.groups[::3], FP32),
}


@pytest.fixture(params=CONFIGS)
def config(request, network):
    return CONFIGS[request.param](network)


def test_the_graph_has_only_q_dq_and_fp32_and_groups_are_told_their_precision(network, config) -> None:
    typed, told = lower_to_explicit_quantization(network, config, ranges_of(network))
    operators = {node.op_type for node in typed.model.graph}
    assert operators - {layer.op_type for layer in network.layers} <= {"QuantizeLinear", "DequantizeLinear"}
    used = {config.precision_of(group) for group in network.groups}
    assert ("QuantizeLinear" in operators) == (INT8 in used)
    types = {value.dtype for node in typed.model.graph for value in node.outputs}
    assert not types & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    assert told.layer_names == tuple(layer.name for layer in network.layers)
    assert set(told.layer_names) <= {node.name for node in typed.model.graph}
    assert {*told.precisions, *told.output_types} <= set(told.layer_names)
    assert told.ranges == {}
    if not told.precision_flags:
        assert told.precisions == told.output_types == {}
        return
    for group in network.groups:
        if (precision := config.precision_of(group)) is not INT8:
            for name in computing(network, group):
                assert told.precisions[name] is told.output_types[name] is precision
        else:
            assert not set(group.main_layers) & set(told.precisions), "unfused Q/DQ make a product INT8"


def test_flags_are_what_layers_may_use(network) -> None:
    flags = {name: lower_to_explicit_quantization(network, make(network), ranges_of(network))[1].precision_flags
             for name, make in CONFIGS.items()}
    assert flags == {"fp32": set(), "fp16": {FP16}, "int8": {INT8, FP16}, "int8 and fp32": {INT8},
                     "mixed": {INT8, FP16}}


def residual(opened, channels: int, after: str):
    """A Conv, and a Conv with a residual Add and Relu whose sum is read by a Conv, by a Softmax, by both, or is the
    network's output."""
    b = Builder()
    first = b.conv("x", (channels, channels), "/first")
    second = b.conv(first, (channels, channels), "/second")
    shape = (2, channels, 8, 8)
    total = b.node("Add", [second, first], "/sum", output="y" if after == "output" else "")
    outputs = ["y"] if after == "output" else []
    if after in ("conv", "both", "barrier"):
        outputs.append(b.conv(total, (channels, channels), "/third"))
    if after in ("float", "both"):
        outputs.append(b.node("Softmax", [total], "/soft"))
    return opened(b.model([floats("x", *shape)], [floats(name, *shape) for name in outputs]))


@pytest.mark.parametrize(("channels", "after", "alone"), [
    (32, "conv", False), (64, "conv", False), (32, "float", True), (32, "both", True), (32, "output", True),
    (48, "conv", True), (16, "conv", True), (32, "barrier", True)])
def test_a_residual_add_that_8_6_cannot_fuse_is_told_a_float(opened, channels, after, alone) -> None:
    network = residual(opened, channels, after)
    barrier = {network.get_group("/second/Conv").final_tensor: BarrierMove()} if after == "barrier" else {}
    _, told = lower_to_explicit_quantization(network,
                                             PrecisionConfig.from_precision(INT8, FP16).with_moves(barrier),
                                             ranges_of(network))
    assert network.find_group("/sum/Add").name == "/second/Conv"
    assert ("/sum/Add" in told.precisions) == alone
    assert "/second/Conv" not in told.precisions and "/first/Conv" not in told.precisions
    if alone:
        assert told.precisions["/sum/Add"] is FP16
        assert told.output_types["/second/Conv"] is told.output_types["/sum/Add"] is FP16
    raised = PrecisionConfig.from_precision(INT8, FP16).with_group_precision([network.get_group("/second/Conv")], FP32)
    _, told = lower_to_explicit_quantization(network, raised, ranges_of(network))
    assert told.precisions["/sum/Add"] is told.precisions["/second/Conv"] is FP32
