"""Tests of networks with precisions of their own, as their files have them: quantized and 16-bit-typed ones.

As given means: what ONNX Runtime computes from the file with every operator as written. Files of ONNX Runtime's
quantizer are made here by it; those of ModelOpt lie in ``tests/files`` with the way they were made.
"""

import functools
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

from tests import TESTS, lowered, networks, rtx
from tests.lowered import sqnr
from tests.networks.build import Builder, floats
from tests.networks.halves import mixed_half
from tests.networks.qdq import QdqBuilder, product
from tests.refusals import refused
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.fp16_range import Fp16RangeState, Magnitudes
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.network import open_network
from trt_tui.core.network.qdq.rewrites import ASYMMETRIC as ASYM
from trt_tui.core.network.qdq.rewrites import NARROW, add_fp32_casts_to_operators
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.precision import Precision

FP32, FP16, INT8, FILE = Precision.FP32, Precision.FP16, Precision.INT8, Precision.FILE
AS_GIVEN = PrecisionConfig.from_precision(FILE)
ASYMMETRIC = {"symmetric": False, "activation_type": QuantType.QUInt8, "per_channel": False}

FORMS = {
    "INT8 initializers, per channel": networks.quantized,
    "per tensor, asymmetric": lambda: networks.quantized(**ASYMMETRIC),
    "unsigned weights": lambda: networks.quantized(weight_type=QuantType.QUInt8, **ASYMMETRIC),
    "FP32 weights with Q and DQ": lambda: networks.quantized(extra={"AddQDQPairToWeight": True}),
    "typed FP16": networks.half,
    **{
        f"ModelOpt {path.stem}": functools.partial(onnx.load, path)
        for path in sorted((TESTS / "files" / "modelopt").glob("*.onnx"))
    },
}


def run(backend, model, feeds):
    with backend.load(model, optimize=False) as runner:
        return next(iter(runner.run(feeds).values()))


def simulated(backend, network, config, feeds, ranges=None):
    return simulated_all(backend, network, [config], feeds, ranges)[0]


def simulated_all(backend, network, configs, feeds, ranges=None, data=False):
    gated = build_gated_graph(network, float_types=(FP16, FILE), boundary_types=(FILE,), gates_as_data=data)
    with backend.load(gated.model, low_memory=True) as runner:
        return [
            next(
                iter(
                    runner.run(
                        {**feeds, **gated.make_feed(config, ranges or {})}, list(gated.test_outputs.values())
                    ).values()
                )
            )
            for config in configs
        ]


def content(model):
    """Nodes and initializers of a model by name, values as bytes."""

    def attribute(one):
        return (
            (one.name, one.t.data_type, tuple(one.t.dims), numpy_helper.to_array(one.t).tobytes())
            if one.HasField("t")
            else one.SerializeToString(deterministic=True)
        )

    return {
        **{
            node.name: (
                node.op_type,
                node.domain,
                tuple(node.input),
                tuple(node.output),
                sorted(map(attribute, node.attribute), key=repr),
            )
            for node in model.graph.node
        },
        **{
            f"initializer {one.name}": (one.data_type, tuple(one.dims), numpy_helper.to_array(one).tobytes())
            for one in model.graph.initializer
        },
    }


@pytest.fixture(params=FORMS)
def given(request, tmp_path):
    """A file, what it holds, and data for it."""
    path = tmp_path / "given.onnx"
    model = FORMS[request.param]()
    onnx.save(model, path)
    feeds = networks.feeds(model, 9, n=4)
    return open_network(path), model, feeds


def test_a_file_runs_as_given_and_is_written_as_it_was(given, backend):
    network, model, feeds = given
    expected = run(backend, ir.from_proto(model), feeds)
    ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
    configs = (
        AS_GIVEN,
        AS_GIVEN.with_group_precision(network.groups[::2], FP16),
        AS_GIVEN.with_group_precision(network.groups[::3], INT8),
    )
    flow, data = (simulated_all(backend, network, configs, feeds, ranges, data) for data in (False, True))
    found = flow[0]
    types = set(network.source_model.type_names)
    half = types & {"FP16", "BF16"}  # ONNX Runtime's CPU provider computes FP16 in FP32
    assert sqnr(expected, found) > ((35 if types > half else 55) if half else 100)
    assert min(map(sqnr, flow, data)) > 60
    lowered = lower_from_source_model(network, AS_GIVEN, {})
    if not network.source_model.node_refusals:
        assert content(ir.to_proto(lowered.model)) == content(model)
    rtx.build(lowered.model)


def test_isolated_errors_take_the_scales_of_each_group_in_both_forms(tmp_path, backend):
    onnx.save(networks.quantized(), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx", lambda: backend)
    tables = []
    for data in (False, True):
        gated = build_gated_graph(
            network,
            float_types=(FILE,),
            boundary_types=(FILE,),
            gates_as_data=data,
            with_reference=True,
            with_isolated=True,
        )
        with backend.load(gated.model, low_memory=True) as runner:
            feeds = {**networks.feeds(onnx.load(network.path)), **gated.make_feed(AS_GIVEN, {})}
            tables.append(runner.run(feeds, [gated.sums_outputs["isolated"]])[gated.sums_outputs["isolated"]])
    np.testing.assert_allclose(*tables, rtol=1e-3)


def test_what_is_touched_loses_its_own_and_the_rest_stays(given, backend):
    network, model, feeds = given
    reference = run(backend, lower_from_source_model(network, PrecisionConfig.from_precision(FP32), {}).model, feeds)
    before, ranges = content(model), dict.fromkeys(network.calibrated_tensors, 4.0)
    drawn = random.Random(4)
    samples = [drawn.sample(network.groups, 2) for _ in range(3)]
    configs = [
        AS_GIVEN.with_group_precision(touched, precision)
        for touched, precision in zip(samples, (FP32, FP16, INT8), strict=True)
    ]
    gated = simulated_all(backend, network, configs, feeds, ranges)
    for touched, config, values in zip(samples, configs, gated, strict=True):
        lowered = ir.to_proto(lower_from_source_model(network, config, ranges).model)
        onnx.checker.check_model(lowered, full_check=True)
        read = {name for node in lowered.graph.node for name in node.input} | {one.name for one in lowered.graph.output}
        assert [node.name for node in lowered.graph.node if read.isdisjoint(node.output)] == []
        if (
            network.opset == model.opset_import[0].version == lowered.opset_import[0].version
            and not network.source_model.node_refusals
        ):
            gone = {name for name, what in content(lowered).items() if before.get(name, what) != what}
            assert gone <= {name for group in touched for name in (*group.layers, *_readers(network, group))}
        exact = lower_from_source_model(network, config, ranges).model
        losses = [sqnr(reference, one) for one in (run(backend, exact, feeds), values)]
        if network.source_model.node_refusals:  # the export has gone the way out, the simulation is as given
            assert losses[0] > 10
        else:
            assert abs(losses[0] - losses[1]) < 1 or min(losses) > 55
    back = config.without_group_precision(network.groups)
    assert back == AS_GIVEN


def _readers(network, group):
    """What may have been given a Cast: all that reads a group's results."""
    return {name for tensor in group.outputs for name in network.consumers.get(tensor, ())} | {
        f"{name}_QuantizeLinear" for name in (*group.outputs, *group.inputs)
    }


def test_rows_say_what_the_file_has(tmp_path):
    def labels(model):
        onnx.save(model, tmp_path / "x.onnx")
        return [group.precision_label(FILE) for group in open_network(tmp_path / "x.onnx").groups]

    assert set(labels(networks.quantized())) == {"INT8 f"}
    assert set(labels(networks.half())) == {"FP16 f"}
    assert set(labels(networks.small_resnet())) == {"FILE"}  # an FP32 file has none


def test_what_tensorrt_refuses_is_named_and_gone_from_the_export(tmp_path, backend):
    onnx.save(networks.quantized(**ASYMMETRIC), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    words = set(network.source_model.node_refusals.values())
    assert words == {"a zero point other than 0", "a DequantizeLinear on an int32 bias"}
    assert all(network.source_model.find_node(name) is not None for name in network.source_model.node_refusals)
    assert sum("TensorRT refuses" in note for note in network.notes) == 2
    typed = lower_from_source_model(network, AS_GIVEN, {})
    assert len(typed.notes) == 2
    zeros = [node.inputs[2].const_value for node in typed.model.graph if node.op_type == "QuantizeLinear"]
    assert zeros and all(zero.dtype == ir.DataType.INT8 and not zero.numpy().any() for zero in zeros)
    feeds = networks.feeds(networks.quantized(), 9, n=4)
    reference = run(backend, lower_from_source_model(network, PrecisionConfig.from_precision(FP32), {}).model, feeds)
    assert sqnr(reference, run(backend, typed.model, feeds)) > 15


@pytest.mark.parametrize("precision", [FP16, Precision.BF16, INT8])
def test_a_typed_network_between_casts_rounds_as_it_is_simulated(precision, opened, backend):
    network = opened(networks.small_resnet() if precision is FP16 else networks.mlp(0))
    feeds = networks.feeds(ir.to_proto(network.model), 3)
    ranges = dict.fromkeys(network.calibrated_tensors, 6.0)
    config = PrecisionConfig.from_precision(precision, FP16 if precision is INT8 else precision)
    model = lower_from_source_model(network, config, ranges).model
    infer_shapes(model)
    add_fp32_casts_to_operators(
        model.graph,
        {
            value.name: value.dtype
            for node in model.graph
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.dtype in PRECISION_BY_HALF_TYPE
        },
    )
    assert not [
        node for node in model.graph if node.op_type != "Cast" and node.outputs[0].dtype in PRECISION_BY_HALF_TYPE
    ]
    reference, tail = run(backend, network.model, feeds), network.outputs[0].name
    expected = lowered.gated_values(backend, network, config, ranges, feeds)[tail]
    found = run(backend, model, feeds)
    assert sqnr(expected, found) > sqnr(reference, expected) + 20


def test_16_bit_codes_leave_the_tensor_in_floats_behind_its_relu(tmp_path, backend):
    onnx.save(networks.quantized(**ASYMMETRIC | {"activation_type": QuantType.QInt16}), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert "16-bit quantized types" in network.source_model.node_refusals.values()
    feeds = networks.feeds(networks.quantized(), 9, n=4)
    typed, reference = (
        run(backend, lower_from_source_model(network, config, {}).model, feeds)
        for config in (AS_GIVEN, PrecisionConfig.from_precision(FP32))
    )
    assert sqnr(reference, typed) > 60  # weights are the same, and no activation is in codes


@pytest.mark.parametrize("operator", ["HardSwish", "ConvTranspose"])
def test_an_operator_that_tensorrt_lacks_in_bf16_is_named_and_written_in_fp32(operator, tmp_path):
    b = Builder(opset=22)
    bf16 = {"to": TensorProto.BFLOAT16}
    inputs = [b.node("Cast", ["x"], "/in", **bf16)]
    if operator == "ConvTranspose":
        inputs.append(b.node("Cast", [b.kernel("w", (4, 4, 2, 2), 16)], "/w", **bf16))
    x = b.node("Relu", [b.node(operator, inputs, "/it")], "/relu")
    b.node("Cast", [x], "/out", output="y", to=TensorProto.FLOAT)
    onnx.save(b.model([floats("x", 1, 4, 8, 8)], [floats("y", 1, 4, None, None)]), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert f"TensorRT refuses {operator} in BF16 (/it/{operator})" in network.notes[0]
    assert network.find_group(f"/it/{operator}").file_precision.refused_nodes == (
        (f"/it/{operator}", f"{operator} in BF16"),
    )
    assert network.find_group(f"/it/{operator}").file_precision.nearest_precision is FP32, (
        "what other releases are told"
    )
    nodes = {node.name: node for node in lower_from_source_model(network, AS_GIVEN, {}).model.graph}
    around = [*nodes[f"/it/{operator}"].inputs, *nodes[f"/it/{operator}"].outputs]
    assert {value.dtype for value in around} == {ir.DataType.FLOAT}
    assert nodes["/relu/Relu"].inputs[0].dtype == ir.DataType.BFLOAT16


def test_a_pair_that_only_a_shape_reads_is_removed_where_a_layer_is_changed(tmp_path):
    b = QdqBuilder()
    pair = b.pair("x", "/in")
    inner = b.node("MatMul", [pair, b.stored("/fc/weight", b.values(16, 8), axis=1)], "/fc")
    b.node("MatMul", [b.pair(inner, "/mid"), b.stored("/last/weight", b.values(8, 8), axis=1)], "/last", output="y")
    b.node("Shape", [pair], "/sizes", output="sizes")
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2])
    onnx.save(b.model([floats("x", 4, 16)], [floats("y", 4, 8), sizes]), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    for config, tensor in ((AS_GIVEN, pair), (AS_GIVEN.with_group_precision(network.groups[:1], FP32), "x")):
        nodes = {node.name: node for node in lower_from_source_model(network, config, {}).model.graph}
        assert nodes["/sizes/Shape"].inputs[0].name == tensor and ("/in/q" in nodes) is (tensor == pair)
        assert "/mid/q" in nodes


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_a_pair_that_is_an_output_and_has_a_reader_is_written(kind, tmp_path, backend):
    b = QdqBuilder(opset=21)
    x = b.pair("x", "/in", 0.02, kind=kind)
    b.node("Sigmoid", [x], "/last", output="y")
    onnx.save(
        model := b.model([floats("x", 2, 8)], [floats(x, 2, 8), floats("y", 2, 8)], ir_version=10), tmp_path / "x.onnx"
    )
    network, feeds = open_network(tmp_path / "x.onnx"), networks.feeds(model, 9, n=2)
    for config in (AS_GIVEN, PrecisionConfig.from_precision(FP32)):
        typed = lower_from_source_model(network, config, {}).model
        onnx.checker.check_model(ir.to_proto(typed), full_check=True)
        assert sqnr(run(backend, ir.from_proto(model), feeds), run(backend, typed, feeds)) > 30
    assert set(network.consumers["x"]) == {"/last/Sigmoid", f"{x}__output"}


@pytest.mark.parametrize(
    ("operator", "attributes", "output"),
    [
        ("ArgMax", {"axis": 1}, TensorProto.INT64),
        ("Cast", {"to": TensorProto.INT32}, TensorProto.INT32),
        ("Cast", {"to": TensorProto.FLOAT16}, TensorProto.FLOAT16),
        ("Floor", {}, TensorProto.FLOAT),
        ("IsNaN", {}, TensorProto.BOOL),
        ("Sign", {}, TensorProto.FLOAT),
    ],
)
def test_what_has_no_precision_reads_the_pair_of_the_file(operator, attributes, output, tmp_path, backend):
    """Such as the labels of a segmentation. Where the row before it is raised, they are taken from unrounded values."""
    b = QdqBuilder()
    product = b.node("MatMul", [b.pair("x", "/in", 0.03), b.stored("/fc/weight", b.values(16, 8), axis=None)], "/fc")
    b.node(operator, [b.pair(product, "/out", 0.5)], "/last", output="y", **attributes)
    result = helper.make_tensor_value_info("y", output, None)
    onnx.save(model := b.model([floats("x", 32, 16)], [result]), tmp_path / "x.onnx")
    network, feeds = open_network(tmp_path / "x.onnx"), networks.feeds(model, 9, n=32)
    raised = AS_GIVEN.with_group_precision(network.groups, FP32)
    in_file, unrounded = run(backend, ir.from_proto(model), feeds), run(backend, network.model, feeds)
    assert operator in ("IsNaN", "Sign") or not np.array_equal(in_file, unrounded), "rounding counts"
    for data in (False, True):
        for config, expected in zip((AS_GIVEN, raised), (in_file, unrounded), strict=True):
            (got,) = simulated_all(backend, network, [config], feeds, data=data)
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    for config, expected in ((AS_GIVEN, in_file), (raised, unrounded)):
        np.testing.assert_allclose(
            run(backend, lower_from_source_model(network, config, {}).model, feeds), expected, rtol=1e-3, atol=1e-4
        )


SINGLE, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def test_a_long_chain_of_casts_behind_a_pair_is_opened(tmp_path):
    b = QdqBuilder()
    value = b.pair("x", "/in", 0.03)
    for index in range(3000):
        value = b.node("Cast", [value], f"/cast/{index}", to=TensorProto.FLOAT if index % 2 else HALF)
    b.node("ArgMax", [value], "/last", output="y", axis=1)
    result = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    onnx.save(b.model([floats("x", 2, 4)], [result]), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert network.find_group("/in/dq_output_0__output") is not None, [group.name for group in network.groups]


def test_what_is_written_between_16_bit_floats_has_their_type(tmp_path, backend):
    """Bounds of a restored ReLU6, and copies of quantized values."""
    b = QdqBuilder(opset=21)
    first, second, third = (b.weight(f"weight.{index}", b.values(8, 8).astype(np.float16)) for index in range(3))
    wide = b.pair(b.node("MatMul", ["x", first], "/first"), "/wide", 6 / 65535, kind=np.uint16, float_type=np.float16)
    inputs = [b.weight("scale", np.float16(0.03)), b.weight("zero", np.int8(0))]
    codes = b.node("QuantizeLinear", [b.node("MatMul", [wide, second], "/second"), *inputs], "/q")
    copied = b.node("DequantizeLinear", [b.node("Transpose", [codes], "/copy", perm=[1, 0]), *inputs], "/dq")
    b.node("MatMul", [copied, third], "/third", output="y")
    ends = [helper.make_tensor_value_info(name, HALF, (8, 8)) for name in "xy"]
    onnx.save(b.model(ends[:1], ends[1:], ir_version=10), tmp_path / "x.onnx")
    network, feeds = open_network(tmp_path / "x.onnx"), {"x": np.eye(8, dtype=np.float16)}
    for group in network.groups:
        typed = lower_from_source_model(network, AS_GIVEN.with_group_precision([group], FP32), {}).model
        onnx.checker.check_model(ir.to_proto(typed), full_check=True)
        assert sqnr(run(backend, network.model, feeds), run(backend, typed, feeds)) > 20


@pytest.mark.parametrize(("norm", "product"), [(SINGLE, HALF), (HALF, SINGLE), (SINGLE, SINGLE), (HALF, HALF)])
def test_a_row_has_the_type_of_its_products_or_of_most_of_its_layers(tmp_path, backend, norm, product):
    """Neither the Cast behind a product nor that behind a norm decides. Squares beyond FP16 overflow in FP16 alone."""
    onnx.save(mixed_half(norm, product), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    labels = {SINGLE: "FP32", HALF: "FP16"}
    assert {
        group.name: (group.file_precision.label, group.file_precision.nearest_precision.label)
        for group in network.groups
    } == {"/norm/Pow": (labels[norm],) * 2, "/fc/MatMul": (labels[product],) * 2}
    np.savez(tmp_path / "x.npz", x=(np.random.default_rng(0).standard_normal((16, 32)) * 200).astype(np.float16))
    samples = load_samples(tmp_path / "x.npz", network.inputs, batch=16)
    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        accuracy = [*analysis.measure_accuracy(AS_GIVEN, {})][-1].value
        found = analysis.find_fp16_overflows(AS_GIVEN, analysis.get_magnitudes() or Magnitudes(), [0])
    assert found.keys() == ({"/norm/Pow"} if norm == HALF else set())
    assert bool(accuracy.caveats) == (HALF in (norm, product))


@pytest.mark.parametrize(("norm", "product", "overflows"), [(SINGLE, HALF, True), (SINGLE, SINGLE, False)])
def test_a_product_in_fp16_overflows_in_front_of_its_cast(tmp_path, backend, norm, product, overflows):
    onnx.save(mixed_half(norm, product, gain=1.5e4), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((16, 32)).astype(np.float16))
    samples = load_samples(tmp_path / "x.npz", network.inputs, batch=16)
    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        accuracy = [*analysis.measure_accuracy(AS_GIVEN, {})][-1].value
        states = {
            name: value.state
            for name, value in analysis.find_fp16_overflows(
                AS_GIVEN, analysis.get_magnitudes() or Magnitudes(), [0]
            ).items()
        }
    assert (
        bool(accuracy.nonfinite_count)
        == overflows
        == ({caveat.kind for caveat in accuracy.caveats} >= {"may overflow"})
    )
    assert states == ({"/fc/MatMul": Fp16RangeState.MAY_OVERFLOW} if overflows else {})


def _int4(scale_shape=(2, 3), axis=0, block=4, scale=0.1):
    """MatMul of FP32 with an INT4 weight (8, 3) in blocks of 4 along its first axis."""
    b = Builder(opset=21)
    codes = np.arange(24).reshape(8, 3) % 15 - 7
    b.weights.append(helper.make_tensor("codes", TensorProto.INT4, [8, 3], codes.reshape(-1)))
    b.weight(
        "scale",
        np.full(scale_shape, scale, np.float32) * np.linspace(1, 2, 2)[:, None].astype(np.float32)
        if scale_shape == (2, 3)
        else np.full(scale_shape, scale, np.float32),
    )
    weight = b.node("DequantizeLinear", ["codes", "scale"], name="dq", axis=axis, block_size=block)
    b.node("MatMul", ["x", weight], name="matmul", output="y")
    return b.model([floats("x", 2, 8)], [floats("y", 2, 3)])


def test_int4_blocks_are_read_shown_and_written_back(tmp_path, backend):
    onnx.save(model := _int4(), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert [group.precision_label(FILE) for group in network.groups] == ["INT4 w f"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    expected = run(backend, ir.from_proto(model), feeds)
    assert sqnr(expected, simulated(backend, network, AS_GIVEN, feeds)) > 100
    assert content(ir.to_proto(lower_from_source_model(network, AS_GIVEN, {}).model)) == content(model)


@pytest.mark.parametrize(
    ("codes", "zero", "block"),
    [(TensorProto.INT4, 0, 0), (TensorProto.UINT4, 7, 0), (TensorProto.UINT4, 0, 0), (TensorProto.UINT4, 5, 4)],
)
def test_weights_of_4_bits_that_tensorrt_refuses_are_the_same_in_8(codes, zero, block, tmp_path, backend):
    """Beside INT8 activations; their zero points go."""
    b = Builder(opset=21)
    shape = (2, 4) if block else ()
    b.weights.append(
        helper.make_tensor(
            "codes", codes, [8, 4], [(7 * one) % 15 - 7 * (codes == TensorProto.INT4) for one in range(32)]
        )
    )
    b.weights.append(helper.make_tensor("zero", codes, shape, [zero] * (8 if block else 1)))
    pair = [b.weight("step", np.float32(0.02)), b.weight("none", np.int8(0))]
    x = b.node("DequantizeLinear", [b.node("QuantizeLinear", ["x", *pair], "q"), *pair], "dq")
    more = {"axis": 0, "block_size": block} if block else {}
    weight = b.node(
        "DequantizeLinear", ["codes", b.weight("scale", np.full(shape, 0.1, np.float32)), "zero"], "w", **more
    )
    b.node("MatMul", [x, weight], "matmul", output="y")
    onnx.save(model := b.model([floats("x", 2, 8)], [floats("y", 2, 4)]), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert list(network.source_model.node_refusals.values()) == [NARROW if codes == TensorProto.INT4 else ASYM]
    typed = lower_from_source_model(network, AS_GIVEN, {}).model
    assert all(
        value.dtype is not ir.DataType.UINT4 and value.dtype is not ir.DataType.INT4
        for value in typed.graph.initializers.values()
    )
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    assert sqnr(run(backend, ir.from_proto(model), feeds), run(backend, typed, feeds)) > 100
    rtx.build(typed)


def test_a_weight_that_the_file_computes_from_quantized_ones_is_the_files(tmp_path, backend):
    """As of LoRA: a product of two matrices, and a sum, each behind Q and DQ."""
    b = Builder()
    pair = [b.weight("step", np.float32(0.05)), b.weight("none", np.int8(0))]

    def quantized(tensor, name):
        return b.node("DequantizeLinear", [b.node("QuantizeLinear", [tensor, *pair], f"{name}/q"), *pair], f"{name}/dq")

    low = [quantized(b.kernel(name, shape, 4), name) for name, shape in (("a", (8, 4)), ("b", (4, 6)))]
    product = quantized(b.node("MatMul", low, "/low"), "/low")
    weight = b.node(
        "Add",
        [quantized(b.kernel("w", (8, 6), 8), "w"), b.node("Mul", [product, b.weight("two", np.float32(2))], "/twice")],
        "/sum",
    )
    first = b.node("MatMul", [quantized("x", "x"), quantized(weight, "/sum")], "/first")
    b.node("MatMul", [first, b.kernel("last", (6, 6), 6)], "/last", output="y")
    onnx.save(model := b.model([floats("x", 2, 8)], [floats("y", 2, 6)]), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx", lambda: backend)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    assert sqnr(run(backend, ir.from_proto(model), feeds), simulated(backend, network, AS_GIVEN, feeds)) > 100
    raised = AS_GIVEN.with_group_precision([network.get_group("/first/MatMul")], FP32)
    typed = lower_from_source_model(network, raised, {}).model
    assert sqnr(simulated(backend, network, raised, feeds), run(backend, typed, feeds)) > 100


def test_codes_of_16_bits_of_onnx_runtimes_own_operators_run_as_onnx_has_them(tmp_path, backend):
    b, contrib = Builder(), {"domain": "com.microsoft"}
    pair = [b.weight("step", np.float32(0.001)), b.weight("none", np.uint16(30000))]
    x = b.node("DequantizeLinear", [b.node("QuantizeLinear", ["x", *pair], "q", **contrib), *pair], "dq", **contrib)
    b.node("MatMul", [x, b.kernel("w", (8, 4), 8)], "matmul", output="y")
    model = b.model([floats("x", 2, 8)], [floats("y", 2, 4)], domains=["com.microsoft"])
    onnx.save(model, tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    assert sqnr(run(backend, ir.from_proto(model), feeds), simulated(backend, network, AS_GIVEN, feeds)) > 100


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scale": 0.0}, "its scale .* is 0"),
        ({"scale": np.nan}, "is nan"),
        ({"block": 3}, "blocks of 3 do not divide the 8 values"),
        ({"scale_shape": (8, 1)}, "along axis 0 into 8"),
    ],
)
def test_a_node_that_cannot_be_computed_is_named(change, why, tmp_path):
    onnx.save(_int4(**change), tmp_path / "x.onnx")
    with refused(why, title="dq", next_step="without matmul,"):
        open_network(tmp_path / "x.onnx")


@pytest.mark.parametrize(("between", "factor"), [("", 1.0), ("Transpose", 1.0), ("Mul", 0.5)])
def test_the_model_of_a_file_has_the_conversions_and_constants_that_a_layer_reads(between, factor, opened):
    proto = product(between=between)
    network, source = opened(proto), SourceModel(ir.from_proto(proto), {}, ())
    layer = network.get_layer("/fc/MatMul")
    assert [step.node_name for step in source.find_conversion_steps(layer, 0)] == ["/in/q", "/in/dq"]
    arrays = {one.name: numpy_helper.to_array(one).astype(np.float32) for one in proto.graph.initializer}
    weight = arrays["/fc/weight.values"] * arrays["/fc/weight.scale"].reshape((-1, 1) if between == "Transpose" else -1)
    expected = factor * (weight.T if between == "Transpose" else weight)
    np.testing.assert_allclose(source.constant_value(layer, 1), expected, rtol=1e-6)
    assert source.constant_value(network.get_layer("/fc/Add"), 1) is None, "it equals that of the FP32 network"
    step = source.find_dequantize_step(layer.inputs[1], through_copies=True)
    assert (step and step.node_name) == (None if between == "Mul" else "/fc/weight/dq")
    assert (source.quantized_weight_count, source.type_names) == (1, ["INT8"])
    assert (source.find_dtype("/in/q_output_0"), source.find_dtype("x")) == (ir.DataType.INT8, ir.DataType.FLOAT)
    file = source.find_file_precision(network.get_group("/fc/MatMul"), network.graph.by_name)
    assert (file.label, file.float_type) == ("INT8 w" if between == "Mul" else "INT8", Precision.FP32)


def test_infinite_scales_are_said(tmp_path):
    model = networks.quantized()
    quantize = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    scale = next(one for one in model.graph.initializer if one.name == quantize.input[1])
    scale.CopyFrom(numpy_helper.from_array(np.float32(np.inf), scale.name))
    onnx.save(model, tmp_path / "x.onnx")
    (note,) = (note for note in open_network(tmp_path / "x.onnx").notes if "infinite" in note)
    assert note.startswith(f"The scale of {quantize.name} is infinite")


def _in_tensorrts_domain():
    """FP8 by TensorRT's own operators: both operands of a MatMul; (4, 64) to (4, 32)."""
    b = Builder(opset=17)
    b.weight("w", b.rng.standard_normal((64, 32)).astype(np.float32))
    b.weight("scale", np.float32(4 / 448))
    operands = []
    for name in ("x", "w"):
        codes = b.node("TRT_FP8QuantizeLinear", [name, "scale"], f"{name}_q", domain="trt")
        operands.append(b.node("TRT_FP8DequantizeLinear", [codes, "scale"], f"{name}_dq", domain="trt"))
    b.node("MatMul", operands, name="matmul", output="y")
    return b.model([floats("x", 4, 64)], [floats("y", 4, 32)], domains=["trt"])


def _fp4_quantization(tensor, name):
    """TensorRT's quantization of a tensor to FP4 while it runs, to values and scales of blocks of 16."""
    outputs, attributes = [f"{tensor}q", f"{tensor}s"], {"axis": -1, "block_size": 16, "scale_type": 17}
    return helper.make_node("TRT_FP4DynamicQuantize", [tensor, "global"], outputs, name, domain="trt", **attributes)


def _nvfp4():
    """A weight in FP4 with FP8 scales for blocks of 16, themselves scaled, and activations that a run quantizes."""
    b = Builder(opset=23)
    b.weights.append(helper.make_tensor("codes", TensorProto.FLOAT4E2M1, [64, 32], [1.0, -2.0, 0.5, 6.0] * 512))
    b.weights.append(helper.make_tensor("scales", TensorProto.FLOAT8E4M3FN, [4, 32], [1.0, 0.5] * 64))
    b.weight("global", np.float32(0.1))
    scale = b.node("DequantizeLinear", ["scales", "global"], name="scale_dq")
    weight = b.node("DequantizeLinear", ["codes", scale], name="weight_dq", axis=0, block_size=16)
    b.nodes.append(_fp4_quantization("x", "dynamic"))
    x = b.node(
        "DequantizeLinear",
        ["xq", b.node("DequantizeLinear", ["xs", "global"], name="xs_dq")],
        name="x_dq",
        axis=-1,
        block_size=16,
    )
    b.node("MatMul", [x, weight], name="matmul", output="y")
    return b.model([floats("x", 4, 64)], [floats("y", 4, 32)], domains=["trt"])


@pytest.mark.parametrize(
    ("make", "label", "loss"), [(_in_tensorrts_domain, "FP8 f", (20, 40)), (_nvfp4, "NVFP4 f", (10, 20))]
)
def test_what_onnx_runtime_cannot_run_is_simulated_as_far_as_it_is_known_and_written_back(
    make, label, loss, tmp_path, backend
):
    onnx.save(model := make(), tmp_path / "x.onnx")
    network = open_network(tmp_path / "x.onnx")
    assert [group.precision_label(FILE) for group in network.groups] == [label]
    assert content(ir.to_proto(lower_from_source_model(network, AS_GIVEN, {}).model)) == content(model)
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    reference = simulated(backend, network, PrecisionConfig.from_precision(FP32), feeds)
    assert loss[0] <= sqnr(reference, simulated(backend, network, AS_GIVEN, feeds)) <= loss[1]
    assert not any("is not simulated" in note for note in network.notes)


def test_scales_of_blocks_in_another_form_are_said_not_to_be_simulated(tmp_path):
    """Its scales are of another tensor than its values."""
    model = _nvfp4()
    dynamic, position = next((node, index) for index, node in enumerate(model.graph.node) if node.name == "dynamic")
    model.graph.node.insert(position, _fp4_quantization("z", "other"))
    model.graph.input.append(floats("z", 4, 64))
    next(node for node in model.graph.node if node.name == "xs_dq").input[0] = "zs"
    onnx.save(model, tmp_path / "x.onnx")
    assert any("is not simulated" in note for note in open_network(tmp_path / "x.onnx").notes)


@pytest.mark.parametrize("computed", ["scale", "zero point", ""])
def test_quantization_by_computed_values_is_named_as_not_simulated(computed, tmp_path):
    b = Builder(opset=17)
    largest = b.node("ReduceMax", ["x"], "/max", keepdims=0)
    scale = largest if computed == "scale" else b.weight("scale", np.float32(0.1))
    zero = b.weight("zero", np.int8(3))
    if computed == "zero point":
        zero = b.node("Cast", [largest], "/zero", to=TensorProto.INT8)
    quantized = b.node("QuantizeLinear", ["x", scale, zero], "/pair")
    b.node("DequantizeLinear", [quantized, scale, zero], "/pair", output="y")
    onnx.save(b.model([floats("x", 2, 16)], [floats("y", 2, 16)]), path := tmp_path / "given.onnx")
    notes = open_network(path).notes
    assert any("not simulated" in note and "/pair/QuantizeLinear" in note for note in notes) is bool(computed)


def test_quantization_in_front_of_a_plugin_is_simulated(tmp_path, backend):
    """What the plugin reads is judged, since the simulation ends there."""
    b = QdqBuilder(0)
    b.pair(b.node("MatMul", ["x", b.kernel("w", (16, 4), 16)], "/fc"), "/pair", 0.5)
    read = b.nodes[-1].output[0]
    model = b.model([floats("x", 2, 16)], [floats(read, 2, 4)])
    feeds = networks.feeds(model, 9, n=2)
    expected = run(backend, ir.from_proto(model), feeds)
    b.nodes.append(helper.make_node("Odd", [read], ["y"], "/odd", domain="plugins"))
    model = b.model([floats("x", 2, 16)], [floats("y", 2, 4)])
    model.opset_import.append(helper.make_opsetid("plugins", 1))
    onnx.save(model, path := tmp_path / "given.onnx")
    network = open_network(path)
    samples = tmp_path / "data.npz"
    np.savez(samples, **feeds)
    judged = select_judged_outputs(network)
    analysis = Analysis(network, backend, load_samples(str(samples), network.inputs, batch=2), judged)
    (outputs,) = analysis.execute_config(AS_GIVEN, {}, [0])
    np.testing.assert_allclose(outputs[judged[0].tensor], expected, rtol=1e-6)
