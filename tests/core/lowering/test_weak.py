"""What TensorRT is told: constraints of weak typing, and what 8.6 is told beside Q/DQ."""

import functools
import sys

import numpy as np
import onnx_ir as ir
import pytest

from tests import standins
from tests.networks import Builder, floats
from trt_tui.core.lowering.weak_typing import (
    apply_constraints,
    find_source_layer,
    lower_to_explicit_quantization,
    lower_to_implicit_quantization,
)
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig, RangeMove
from trt_tui.core.network.layers import LayerKind
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

WORDS = {Precision.FP32: "FLOAT", Precision.FP16: "HALF", Precision.INT8: "INT8"}


@functools.cache
def stand_in(release):
    """The stand-in of a release, which is not left where others would import it."""
    trt = standins.install(release)
    del sys.modules[trt.__name__]
    return trt


class Parsed:
    """A network as a release's parser makes it, with what its layers and tensors were told."""

    def __init__(self, network, release, metadata=True):
        self.trt = trt = stand_in(release)
        log, batch = trt.Logger(trt.Logger.ERROR), getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
        self.definition = trt.Builder(log).create_network(0 if batch is None else 1 << int(batch))
        assert trt.OnnxParser(self.definition, log).parse(ir.to_proto(network.model).SerializeToString())
        self.layers = [self.definition.get_layer(index) for index in range(self.definition.num_layers)]
        self.tensors = [tensor for layer in self.layers for tensor in (*layer._inputs, *layer._outputs)]
        for layer in self.layers if not metadata else ():
            layer.metadata = ""

    def tell(self, weak):
        return apply_constraints(self.trt, self.definition, **weak.constraint_arguments())

    def told(self):
        """By layer name its precision and, by index, the types of its results."""
        return {
            layer.name: {
                **({"precision": layer.precision.name} if layer.precision_is_set else {}),
                **{index: kind.name for index, kind in layer.__dict__.get("_types", {}).items()},
            }
            for layer in self.layers
        }

    def ranges(self):
        return {tensor.name: tensor._range[1] for tensor in self.tensors if "_range" in tensor.__dict__}


def ranges_of(network):
    return {name: 1.0 + index for index, name in enumerate(network.calibrated_tensors)}


def test_int8_is_allowed_and_demanded_of_nothing(named_network):
    network = named_network("small_resnet")
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges_of(network))
    inside = {name for group in network.groups if group.is_quantizable for name in group.layers}
    assert inside and not inside & weak.precisions.keys()
    assert Precision.INT8 not in weak.precisions.values()
    assert weak.precision_flags == {Precision.FP16, Precision.INT8} and weak.needs_obey_constraints_flag
    assert weak.model is network.model


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert"])
def test_tensors_of_int8_groups_have_ranges_and_no_others(named_network, name):
    network = named_network(name)
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges_of(network))
    groups = [group for group in network.groups if group.is_quantizable]
    wanted = {site.tensor for group in groups for site in group.activation_qdq_sites()}
    wanted |= {
        tensor
        for group in groups
        for layer in group.layers
        for tensor in network.get_layer(layer).outputs
        if network.is_fp32(tensor)
    }
    assert weak.ranges.keys() == wanted and min(weak.ranges.values()) > 0
    for tensor in network.calibrated_tensors:
        joined = network.tensors_with_shared_range.get(tensor, (tensor,))
        assert weak.ranges[tensor] == max(ranges_of(network)[t] for t in joined if t in ranges_of(network))


def test_a_result_is_float_where_a_float_layer_reads_it(named_network):
    network = named_network("small_resnet")
    config = PrecisionConfig().with_group_precision([network.get_group("/layer1/conv1/Conv")], Precision.FP32)
    for one, further in ((PrecisionConfig(), {}), (config, {"/relu/Relu": Precision.FP16})):
        weak = lower_to_implicit_quantization(network, one, ranges_of(network))
        inside = {
            name for group in network.groups if one.precision_of(group) is Precision.INT8 for name in group.layers
        }
        assert {name: dtype for name, dtype in weak.output_types.items() if name in inside} == {
            "/layer2/relu2/Relu": Precision.FP16,
            "/fc/Gemm": Precision.FP16,
            **further,
        }
    island = {"/layer1/conv1/Conv", "/layer1/bn1/BatchNormalization", "/layer1/relu1/Relu"}
    assert {name for name, precision in weak.precisions.items() if precision is Precision.FP32} == island
    assert all(weak.output_types[name] is Precision.FP32 for name in island)


def test_stand_ins_are_spared_by_calibrating_more(named_network):
    network = named_network("small_resnet")
    ranges = ranges_of(network)
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges)
    inner = [
        tensor
        for group in network.groups
        if group.is_quantizable
        for name in group.layers
        for tensor in network.get_layer(name).outputs
        if tensor not in network.calibrated_tensors
    ]
    assert weak.estimated_ranges == tuple(inner)
    # The range of the group's result stands in.
    assert weak.ranges["/conv1/Conv_output_0"] == ranges["/relu/Relu_output_0"]
    measured = {**ranges, **dict.fromkeys(inner, 50.0)}
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), measured)
    assert not weak.estimated_ranges and weak.ranges["/conv1/Conv_output_0"] == 50
    assert not any("calibrated" in note for note in weak.notes)


def test_overrides_and_ranges_of_zero(named_network):
    network = named_network("small_resnet")
    ranges = {**ranges_of(network), "image": 0.0}
    config = PrecisionConfig().with_range("/relu/Relu_output_0", RangeMove(0.25))
    weak = lower_to_implicit_quantization(network, config, ranges)
    assert weak.ranges["image"] == 127 and weak.ranges["/relu/Relu_output_0"] == 0.25
    del ranges["image"]
    with pytest.raises(InputError, match="image"):
        lower_to_implicit_quantization(network, config, ranges)


def test_constants_of_int8_groups_have_ranges_and_their_names_in_a_cache(named_network):
    network = named_network("mlp")
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges_of(network))
    assert weak.constant_ranges["fc2.weight"] == pytest.approx(np.abs(network.constant_value("fc2.weight")).max())
    cached = weak.calibration_cache_ranges()
    assert cached["fc2.weight_output"] == weak.constant_ranges["fc2.weight"]
    assert {name: cached[name] for name in weak.ranges} == weak.ranges


def test_fp32_is_told_nothing(named_network):
    network = named_network("small_resnet")
    weak = lower_to_implicit_quantization(network, PrecisionConfig.from_precision(Precision.FP32), {})
    assert not (
        weak.precision_flags or weak.precisions or weak.output_types or weak.ranges or weak.needs_obey_constraints_flag
    )


@pytest.mark.parametrize("name", ["unet_small", "bert", "vit"])
def test_only_layers_that_compute_floats_take_a_precision(named_network, name):
    network = named_network(name)
    chosen = network.groups[::2]
    config = PrecisionConfig().with_group_precision(chosen, Precision.FP32)
    weak = lower_to_implicit_quantization(network, config, ranges_of(network))
    for layer, precision in weak.precisions.items():
        assert network.get_layer(layer).kind in (LayerKind.COMPUTE, LayerKind.OPAQUE)
        assert any(network.is_fp32(tensor) for tensor in network.get_layer(layer).outputs)
        group = network.find_group(layer)
        assert precision in (config.precision_of(group), Precision.FP32)
        assert precision is not Precision.INT8 or network.layer(layer).op_type == "Conv"
    for group in chosen:
        for layer in map(network.get_layer, group.layers):
            # What moves values in FP32 has no precision and still writes FP32.
            assert weak.output_types[layer.name] is Precision.FP32
            assert (layer.name in weak.precisions) is (layer.kind is not LayerKind.COPY)


def test_results_of_int8_layers_are_fp32_among_bf16(named_network):
    network = named_network("small_resnet")
    config = PrecisionConfig.from_precision(Precision.BF16)
    weak = lower_to_implicit_quantization(network, config, {})
    assert weak.precision_flags == {Precision.BF16} and set(weak.precisions.values()) == {Precision.BF16}
    mixed = PrecisionConfig(other=Precision.BF16)
    weak = lower_to_implicit_quantization(network, mixed, ranges_of(network))
    assert weak.output_types["/layer2/relu2/Relu"] is Precision.FP32 and any("INT8" in note for note in weak.notes)


@pytest.mark.parametrize(
    ("name", "metadata", "layer"),
    [
        ("conv", "", "conv"),
        ("conv", "[ONNX Layer: conv]", "conv"),
        ("conv_12", "", "conv"),
        ("conv_1", "", "conv_1"),
        ("conv_1", "[ONNX Layer: conv]", "conv"),
        ("conv_x", "", None),
        ("_3", "", None),
        ("conv_1_2", "", "conv_1"),
        ("(Unnamed Layer* 7) [Shuffle]", "", None),
        ("(Unnamed Layer* 7) [Shuffle]", "[ONNX Layer: conv]", "conv"),
        ("inside", "[ONNX Layer: inside | then (then_branch) | conv (If)]", "conv"),
        ("fused", "[ONNX Layer: other]\x1e[ONNX Layer: a[0]]", "a[0]"),
        ("conv", None, "conv"),
        ("", "", None),
    ],
)
def test_layer_of(name, metadata, layer):
    assert find_source_layer(name, metadata, {"conv", "conv_1", "a[0]"}) == layer


def test_layer_of_without_names_takes_what_is_said():
    assert find_source_layer("x_1", "[ONNX Layer: x]") == "x" and find_source_layer("x_1") == "x_1"
    assert find_source_layer("x_1", "[ONNX Layer: x | then (then_branch) | if (If)]") == "x"


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1"])
@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert"])
def test_a_parsed_network_is_told(named_network, release, metadata, name):
    network = named_network(name)
    parsed = Parsed(network, release, metadata)
    config = PrecisionConfig().with_group_precision([network.groups[0]], Precision.FP32)
    weak = lower_to_implicit_quantization(network, config, ranges_of(network))
    assert parsed.tell(weak) == []
    told, ranges = parsed.told(), parsed.ranges()
    for layer in parsed.layers:
        if layer.type.name in ("CONSTANT", "SHUFFLE", "CONCATENATION", "GATHER", "CAST"):
            assert "precision" not in told[layer.name]
        elif layer.name in weak.precisions:
            assert told[layer.name]["precision"] == WORDS[weak.precisions[layer.name]]
        for index in range(layer.num_outputs):
            result = layer.get_output(index)
            if result.dtype.name != "FLOAT":
                assert index not in told[layer.name] and result.name not in ranges
            elif layer.name in weak.output_types:
                assert told[layer.name][index] == WORDS[weak.output_types[layer.name]]
            if result.name in weak.ranges:
                assert result._range == (-weak.ranges[result.name], weak.ranges[result.name])
    assert ranges.get(network.inputs[0].name) == weak.ranges.get(network.inputs[0].name)


def test_tensors_that_the_parser_adds_have_ranges_too(named_network):
    network = named_network("mlp")
    parsed = Parsed(network, "8.6.1")
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges_of(network))
    parsed.tell(weak)
    ranges = parsed.ranges()
    assert ranges["fc1.weight_output"] == weak.constant_ranges["fc1.weight"]
    product = next(layer for layer in parsed.layers if layer.name == "/fc1/Gemm").get_output(0)
    assert ranges[product.name] == weak.inner_ranges["/fc1/Gemm"] == weak.ranges["/fc1/Gemm_output_0"]
    made = {tensor.name for layer in parsed.layers for tensor in layer._outputs if tensor.dtype.name == "FLOAT"}
    assert made <= ranges.keys()


def test_explicit_quantization_is_told_precisions_alone(named_network):
    parsed = Parsed(named_network("small_resnet"), "8.6.1")
    wanted = {"/conv1/Conv": Precision.FP16, "/fc/Gemm": Precision.FP32}
    assert apply_constraints(parsed.trt, parsed.definition, wanted, wanted, {}) == []
    told = parsed.told()
    assert told["/conv1/Conv"] == {"precision": "HALF", 0: "HALF"}
    assert [told[one.name] for one in parsed.layers if one.metadata.endswith("/fc/Gemm]")] == [
        {"precision": "FLOAT", 0: "FLOAT"}
    ] * 2
    assert not parsed.ranges()


def test_another_network_is_noticed(named_network):
    weak = lower_to_implicit_quantization(
        named_network("small_resnet"), PrecisionConfig(), ranges_of(named_network("small_resnet"))
    )
    assert Parsed(named_network("unet_small"), "10.16.1").tell(weak) == list(weak.precisions)


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert", "vit", "with_if", "badly_named"])
def test_the_parser_names_layers_as_expected(named_network, name):
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    network = named_network(name)
    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    definition = builder.create_network(0)
    parser = trt.OnnxParser(definition, log)
    assert parser.parse(ir.to_proto(network.model).SerializeToString())
    names = {layer.name for layer in network.layers}
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), ranges_of(network))
    found = set()
    for layer in map(definition.get_layer, range(definition.num_layers)):
        of = find_source_layer(layer.name, layer.metadata, names)
        found.add(of)
        if layer.name in names:
            assert of == layer.name
        elif layer.type == trt.LayerType.CONSTANT and layer.name in weak.constant_ranges:
            assert layer.get_output(0).name in weak.calibration_cache_ranges()
    told = weak.precisions.keys() | weak.output_types.keys()
    assert told <= found and {layer.name for layer in network.layers if network.find_group(layer.name)} <= found


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert", "vit"])
@pytest.mark.parametrize("kind", ["fp16", "int8", "mixed"])
def test_tensorrt_builds_what_it_is_told(named_network, name, kind):
    trt = pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    if not hasattr(trt.BuilderFlag, "INT8"):
        pytest.skip(f"TensorRT {trt.__version__} is strongly typed only")

    class Log(trt.ILogger):
        def __init__(self):
            super().__init__()
            self.errors = []

        def log(self, severity, message):
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)

    network = named_network(name)
    config = PrecisionConfig.from_precision(Precision.FP16) if kind == "fp16" else PrecisionConfig()
    if kind == "mixed":
        config = config.with_group_precision(network.groups[::3], Precision.FP32)
    weak = lower_to_implicit_quantization(network, config, ranges_of(network))
    log = Log()
    try:
        builder = trt.Builder(log)
    except (RuntimeError, TypeError):
        pytest.skip("TensorRT finds no GPU here")
    explicit_batch = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    definition = builder.create_network(0 if explicit_batch is None else 1 << int(explicit_batch))
    parser = trt.OnnxParser(definition, log)
    parsed = parser.parse(ir.to_proto(network.model).SerializeToString())
    if not parsed and network.opset > 17 and not hasattr(trt.BuilderFlag, "BF16"):
        pytest.skip(f"TensorRT {trt.__version__} does not read opset {network.opset}: {parser.get_error(0).desc()}")
    assert parsed, parser.get_error(0).desc()
    assert apply_constraints(trt, definition, **weak.constraint_arguments()) == []
    settings = builder.create_builder_config()
    settings.builder_optimization_level = 1
    settings.clear_flag(trt.BuilderFlag.TF32)
    settings.set_tactic_sources(
        sum(1 << int(one) for one in (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS))
    )
    for precision in weak.precision_flags:
        settings.set_flag(getattr(trt.BuilderFlag, precision.label))
    settings.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    settings.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    profile = builder.create_optimization_profile()
    for one in map(definition.get_input, range(definition.num_inputs)):
        if -1 in tuple(one.shape):
            shape = tuple(2 if size < 0 else size for size in one.shape)
            profile.set_shape(one.name, shape, shape, shape)
    settings.add_optimization_profile(profile)
    data = builder.build_serialized_network(definition, settings)
    assert data is not None, "\n".join(log.errors)
    engine = trt.Runtime(log).deserialize_cuda_engine(data)
    told = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    asked = Precision.INT8 in weak.precisions.values()
    assert not asked or "Int8" in told or "INT8" in told, told[:2000]


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
    flags = {
        name: lower_to_explicit_quantization(network, make(network), ranges_of(network))[1].precision_flags
        for name, make in CONFIGS.items()
    }
    assert flags == {
        "fp32": set(),
        "fp16": {FP16},
        "int8": {INT8, FP16},
        "int8 and fp32": {INT8},
        "mixed": {INT8, FP16},
    }


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


@pytest.mark.parametrize(
    ("channels", "after", "alone"),
    [
        (32, "conv", False),
        (64, "conv", False),
        (32, "float", True),
        (32, "both", True),
        (32, "output", True),
        (48, "conv", True),
        (16, "conv", True),
        (32, "barrier", True),
    ],
)
def test_a_residual_add_that_8_6_cannot_fuse_is_told_a_float(opened, channels, after, alone) -> None:
    network = residual(opened, channels, after)
    barrier = {network.get_group("/second/Conv").final_tensor: BarrierMove()} if after == "barrier" else {}
    _, told = lower_to_explicit_quantization(
        network, PrecisionConfig.from_precision(INT8, FP16).with_moves(barrier), ranges_of(network)
    )
    assert network.find_group("/sum/Add").name == "/second/Conv"
    assert ("/sum/Add" in told.precisions) == alone
    assert "/second/Conv" not in told.precisions and "/first/Conv" not in told.precisions
    if alone:
        assert told.precisions["/sum/Add"] is FP16
        assert told.output_types["/second/Conv"] is told.output_types["/sum/Add"] is FP16
    raised = PrecisionConfig.from_precision(INT8, FP16).with_group_precision([network.get_group("/second/Conv")], FP32)
    _, told = lower_to_explicit_quantization(network, raised, ranges_of(network))
    assert told.precisions["/sum/Add"] is told.precisions["/second/Conv"] is FP32
