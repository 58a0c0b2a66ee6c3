"""Tests that typed networks are strongly typed ones as TensorRT takes them: trt_tui.core.lowering.typed_network.

Every network in every config passes onnx's checker, runs in ONNX Runtime and builds with TensorRT-RTX.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests import lowered, networks, rtx
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
NETWORKS = ("demo", "light_resnet50:r66", "light_densenet121:r135", "light_squeezenet", "light_shufflenet:r88",
            "light_inception_v1", "bert_block", "vit_block")
"""Of those whose blocks repeat, the first of each kind, up to a tensor."""


def _third_in_fp32(network):
    groups = random.Random(1).sample(network.groups, len(network.groups) // 3)
    return PrecisionConfig(INT8, FP16).with_group_precision(groups, FP32)


def _anything(network):
    drawn = random.Random(2)
    config = PrecisionConfig(INT8, FP16)
    for group in network.groups:
        config = config.with_group_precision([group], drawn.choice(sorted(group.allowed_precisions - {BF16})))
    return config


CONFIGS = {
    "all FP32": lambda network: PrecisionConfig.from_precision(FP32),
    "all FP16": lambda network: PrecisionConfig.from_precision(FP16),
    "all INT8": lambda network: PrecisionConfig.from_precision(INT8, FP16),
    "all BF16": lambda network: PrecisionConfig.from_precision(BF16),
    "INT8, others FP32": lambda network: PrecisionConfig.from_precision(INT8, FP32),
    "INT8, a third FP32": _third_in_fp32,
    "INT8, FP16 and FP32": _anything,
}


@dataclass
class Case:
    """A network with two feeds, the ranges of its activations over them, and what it was lowered to."""

    name: str
    network: object
    feeds: list[dict[str, np.ndarray]]
    ranges: dict[str, float]
    lowered: dict[str, ir.Model] = field(default_factory=dict)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, named_network, backend) -> Case:
    network = named_network(request.param)
    feeds = [networks.feeds(ir.to_proto(network.model), seed, sequence=16) for seed in range(2)]
    runs = [lowered.inner_values(backend, network, feed) for feed in feeds]
    ranges = {name: max(float(np.abs(values[name]).max()) for values in runs) for name in network.calibrated_tensors}
    return Case(request.param, network, feeds, ranges)


@pytest.fixture(params=CONFIGS)
def typed(request, case) -> ir.Model:
    if case.name.startswith("light_") and request.param not in ("all INT8", "INT8, FP16 and FP32", "all FP16"):
        pytest.skip("of the large networks few configs are lowered: the others have no layer that these do not have")
    if request.param not in case.lowered:
        config = CONFIGS[request.param](case.network)
        assert "all " in request.param or FP32 in config.precision_by_group(case.network).values()
        case.lowered[request.param] = lower_to_typed_network(case.network, config, case.ranges).model
    return case.lowered[request.param]


def test_passes_the_checker_and_its_output_depends_on_its_input(typed, case, backend):
    onnx.checker.check_model(ir.to_proto(typed), full_check=True)
    if any(value.dtype == ir.DataType.BFLOAT16 or node.domain == "trt" for node in typed.graph
           for value in node.outputs):
        return  # ONNX Runtime's CPU provider has no BF16 Conv or MatMul, and no operators of TensorRT
    with backend.load(typed, optimize=False) as runner:
        first, second = (runner.run(feed) for feed in case.feeds)
    for name in first:
        assert np.isfinite(first[name]).all() and np.isfinite(second[name]).all()
        assert np.abs(first[name] - second[name]).max() > 1e-2 * np.abs(first[name]).max(), name


@pytest.mark.rtx
def test_builds_with_tensorrt_rtx(typed):
    has_fp4 = any(value.dtype == ir.DataType.FLOAT4E2M1 for value in typed.graph.initializers.values())
    rtx.hold_buildable(typed, "SM120" if has_fp4 else "SM89")


@pytest.mark.rtx
def test_tensorrt_rtx_refuses_what_is_not_strongly_typed(named_network):
    model = named_network("mlp").convert_model_to_opset(21).clone()
    matmul = next(node for node in model.graph if node.name == "/fc2/MatMul")
    cast = ir.node("Cast", [matmul.inputs[0]], {"to": int(ir.DataType.FLOAT16)}, name="cast")
    model.graph.insert_before(matmul, cast)
    matmul.replace_input_with(0, cast.outputs[0])
    with pytest.raises(AssertionError, match="fc2"):
        rtx.build(model)


@pytest.mark.rtx
@pytest.mark.parametrize("precision", [FP16, FP32])
def test_a_window_that_the_parser_wants_as_weights_is_stored_in_its_type(precision, opened):
    b = networks.Builder(opset=18)
    window = b.weight("window", np.hanning(16).astype(np.float32))
    b.node("STFT", ["x", b.weight("step", np.int64(4)), window], "/spectrum", output="y", onesided=1)
    network = opened(b.model([networks.floats("x", 1, 64, 1)], [networks.floats("y", 1, 13, 9, 2)]))
    typed = lower_to_typed_network(network, PrecisionConfig.from_precision(precision), {}).model
    assert len(rtx.build(typed)) > 10_000
