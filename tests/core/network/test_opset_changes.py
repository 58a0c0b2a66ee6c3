"""A raised opset changes no meaning, and operators in opsets that do not have them are opened or refused plainly."""

import re
from collections import defaultdict
from collections.abc import Mapping
from enum import Enum

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from tests.lowered import run
from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.lowering.network_rewrite import RMS_OPSET, refuse_cubic_grid_samples
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network import opset_conversion
from trt_tui.core.network.model_file import OLDEST_OPSET, get_onnx_schema
from trt_tui.core.network.network import open_network
from trt_tui.core.network.operators import UNSUPPORTED
from trt_tui.core.network.opset_conversion import NEWEST_WRITTEN_OPSET, convert_opset
from trt_tui.core.precision import MIN_OPSETS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError

CNN = (1, 4, 8, 8)
WRITTEN = (17, 19, 21, 22, 23)


# -- the table ------------------------------------------------------------------------------------------------------


class OpsetChange(Enum):
    """The kind of change of an operator's schema, which tells how a conversion preserves the meaning of the operator."""

    DEFAULT = "a new attribute or input, whose default is the earlier meaning, for ONNX and for TensorRT's parser"
    MOVED = "an attribute became an input, or an input is optional now; onnx's version converter moves it"
    CONVERTER = "onnx's version converter writes operators of the earlier meaning around it or sets an attribute"
    ADAPTER = "an adapter in `trt_tui.core.network.opset_conversion` writes the earlier meaning or refuses the node"
    UNSUPPORTED = "no TensorRT parser reads the operator; onnx's version converter keeps the meaning for ONNX Runtime"
    WORDING = "the wording of the schema: more types, negative axes, formulas written out"


def by_operator(change: OpsetChange, operators_by_opset: Mapping[int, str]) -> dict[tuple[str, int], OpsetChange]:
    return {
        (operator, opset): change for opset, operators in operators_by_opset.items() for operator in operators.split()
    }


REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"

OPSET_CHANGES: Mapping[tuple[str, int], OpsetChange] = {
    **by_operator(
        OpsetChange.DEFAULT,
        {
            8: "MaxPool",
            10: "AveragePool MaxPool",
            11: "Constant DepthToSpace Gemm",
            12: "ArgMax ArgMin Constant GatherND",
            13: "DequantizeLinear QuantizeLinear",
            14: "GRU LSTM RNN Reshape",
            15: "Shape",
            16: "ScatterElements ScatterND",
            18: "LpPool Resize",
            19: "AveragePool Cast CastLike QuantizeLinear",
            21: "DequantizeLinear QuantizeLinear",
            23: "DequantizeLinear QuantizeLinear",
        },
    ),
    **by_operator(
        OpsetChange.MOVED,
        {
            9: "Upsample",
            10: "Slice TopK",
            11: "Clip TopK",
            12: "Dropout",
            13: "ReduceSum Resize Split Squeeze Unsqueeze",
            18: f"{REDUCTIONS} Pad Split",
        },
    ),
    **by_operator(
        OpsetChange.CONVERTER,
        {9: "BatchNormalization Scan", 10: "Upsample", 11: "Scatter", 13: "LogSoftmax Softmax", 16: "RoiAlign"},
    ),
    **by_operator(
        OpsetChange.ADAPTER,
        {11: "Pad Resize", 13: "Hardmax", 14: "BatchNormalization", 20: "GridSample", 21: "GroupNormalization"},
    ),
    **by_operator(OpsetChange.UNSUPPORTED, {18: "OptionalGetElement OptionalHasElement", 20: "DFT"}),
    **by_operator(
        OpsetChange.WORDING,
        {
            8: "Max Mean Min Sum",
            9: "Cast",
            10: "Dropout",
            11: f"{REDUCTIONS} ReduceSum ArgMax ArgMin AveragePool Compress Concat Conv ConvTranspose Flatten Gather "
            "Hardmax If LogSoftmax Loop LpPool MaxPool MaxUnpool NonMaxSuppression OneHot Scan Slice Softmax Split "
            "Squeeze Unsqueeze",
            12: "MaxPool ReduceMax ReduceMin",
            13: f"{REDUCTIONS} Abs ArgMax ArgMin Cast Ceil Clip Floor Gather Loop MeanVarianceNormalization Mod Pad "
            "Pow Slice",
            14: "Add Div Mul Sub",
            15: "BatchNormalization",
            18: "ScatterElements ScatterND",
            19: "DequantizeLinear Pad Resize",
            20: "ReduceMax ReduceMin",
            21: "Transpose",
            22: "AveragePool Dropout EyeLike LSTM MaxPool",
            23: "Squeeze Unsqueeze",
        },
    ),
}
"""The way to keep the meaning, by operator and the opset that changed it. A change that only adds types has no row."""


def schema_changes():
    """The changes of schemas beyond types, as (operator, opset)."""
    versions = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions[schema.name].append(schema)
    for name, schemas in versions.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for before, after in zip(schemas, schemas[1:], strict=False):
            if OLDEST_OPSET < after.since_version <= NEWEST_WRITTEN_OPSET and said(before) != said(after):
                yield name, after.since_version


def said(schema):
    """What a schema says beside types."""

    def words(text):
        return re.sub(r"\W+", " ", text or "")

    attributes = {
        name: (
            str(one.type),
            one.required,
            words(one.description),
            helper.get_attribute_value(one.default_value) if one.default_value.type else None,
        )
        for name, one in schema.attributes.items()
    }
    ports = [
        [(port.name, str(port.option), words(port.description)) for port in ports]
        for ports in (schema.inputs, schema.outputs)
    ]
    return schema.deprecated, words(schema.doc), attributes, ports


def test_every_change_up_to_the_newest_opset_that_is_written_is_classified():
    changes = set(schema_changes())
    assert changes - OPSET_CHANGES.keys() == set(), "classify these: what keeps their meaning?"
    assert OPSET_CHANGES.keys() - changes == set(), "no such change"
    assert NEWEST_WRITTEN_OPSET >= max(
        *MIN_OPSETS.values(), RMS_OPSET, *(code.min_opset for code in QUANTIZED_TYPES.values())
    )


def test_the_table_agrees_with_what_the_program_does():
    handled = {operator for (operator, _), handling in OPSET_CHANGES.items() if handling is OpsetChange.ADAPTER}
    assert handled == opset_conversion.ADAPTERS.keys()
    unread = {operator for (operator, _), handling in OPSET_CHANGES.items() if handling is OpsetChange.UNSUPPORTED}
    assert unread <= UNSUPPORTED


# -- what operators compute and what parsers read -------------------------------------------------------------------


def one(operator, more=lambda b: (), **attributes):
    return lambda b: b.node(operator, ["x", *more(b)], "/it", **attributes)


def of(name, values, dtype=np.float32):
    return lambda b: [b.weight(name, np.array(values, dtype))]


def grid(mode=None, padding="zeros", align=0):
    places = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 5, 5, 2))
    return one(
        "GridSample",
        of("grid", places),
        padding_mode=padding,
        align_corners=align,
        **({} if mode is None else {"mode": mode}),
    )


def recurrent(operator, gates):
    return lambda b: b.node(
        operator, ["x", b.kernel("w", (1, gates * 5, 8), 8), b.kernel("r", (1, gates * 5, 5), 5)], "/rnn", hidden_size=5
    )


def pooled(operator, **attributes):
    return one(operator, kernel_shape=[2, 2], strides=[3, 3], pads=[0, 0, 1, 1], **attributes)


def resized(before, mode, transformed):
    return one(
        "Resize",
        lambda b: [
            b.weight("roi", np.array([], np.float32)) if before < 13 else "",
            b.weight("scales", np.array([1, 1, 1.7, 0.6], np.float32)),
        ],
        mode=mode,
        coordinate_transformation_mode=transformed,
        nearest_mode="round_prefer_ceil",
    )


PADS = [0, 0, 1, 2, 0, 0, 2, 1]
CASES = [
    *(
        (16, grid(mode, padding, align), CNN)
        for mode in ("bilinear", "nearest", None)
        for padding, align in (("zeros", 0), ("border", 1), ("reflection", 0))
    ),
    *(
        (before, pooled(operator, **more), CNN)
        for before in (10, 11, 12)
        for operator, more in (
            ("AveragePool", {"ceil_mode": 1, "count_include_pad": 1}),
            ("AveragePool", {"ceil_mode": 0, "count_include_pad": 0}),
            ("MaxPool", {"ceil_mode": 1}),
        )
    ),
    (7, one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"), CNN),
    *((before, one("LpPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"), CNN) for before in (7, 11)),
    (7, one("Clip", min=-0.5, max=0.7), CNN),
    (7, one("Dropout", ratio=0.3), CNN),
    (10, one("Dropout", ratio=0.3), CNN),
    (11, one("ArgMax", axis=1, keepdims=0), CNN),
    (12, one("ArgMin", axis=-1, select_last_index=1), CNN),
    (17, one("DFT", axis=2, onesided=1), (1, 4, 8, 1)),
    (17, one("DFT"), (1, 4, 8, 1)),
    (9, one("DepthToSpace", blocksize=2), CNN),
    (11, one("DepthToSpace", blocksize=2, mode="CRD"), CNN),
    (11, one("GatherND", of("i", [[0, 1], [0, 2]], np.int64)), CNN),
    (7, lambda b: b.batch_norm("x", 4, "/bn"), CNN),
    (8, lambda b: b.batch_norm("x", 4, "/bn"), CNN),
    (9, one("Gemm", lambda b: [b.kernel("w", (8, 5), 8), b.vector("b", 5)], alpha=0.5, beta=0.7), (4, 8)),
    (18, one("GroupNormalization", lambda b: [b.vector("s", 2, 1.0), b.vector("b", 2)], num_groups=2), CNN),
    *(
        (11, one(operator, **({} if axis is None else {"axis": axis})), CNN)
        for operator in ("Softmax", "LogSoftmax")
        for axis in (None, 2, -1)
    ),
    (11, one("Hardmax", axis=-1), CNN),
    (11, one("Hardmax"), (4, 8)),
    *((8, one("Pad", pads=PADS, mode=mode, value=1.5), CNN) for mode in ("constant", "reflect", "edge")),
    *((13, one("Pad", of("p", PADS, np.int64), mode=mode), CNN) for mode in ("constant", "reflect", "edge")),
    *(
        (before, one("ReduceMean", **more), CNN)
        for before, more in (
            (7, {}),
            (7, {"axes": [1, 2], "keepdims": 0}),
            (11, {"axes": [-1]}),
            (13, {"axes": [2]}),
            (13, {}),
        )
    ),
    *(
        (before, one(operator, axes=[1, 2], keepdims=0), CNN)
        for before in (7, 13)
        for operator in (
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSumExp",
            "ReduceProd",
            "ReduceSumSquare",
        )
    ),
    *((11, one("ReduceSum", **more), CNN) for more in ({}, {"axes": [-1], "keepdims": 0})),
    (13, one("ReduceSum", of("a", [1], np.int64)), CNN),
    (13, one("ReduceSum", noop_with_empty_axes=1), CNN),
    (13, one("Reshape", of("s", [0, -1], np.int64)), CNN),
    *(
        (10, one("Resize", of("s", [1, 1, *scales]), mode=mode), CNN)
        for mode in ("nearest", "linear")
        for scales in ((2, 2), (0.5, 0.5), (1.3, 2.6), (0.3, 0.7))
    ),
    *((9, one("Upsample", of("s", [1, 1, 1.5, 2]), mode=mode), CNN) for mode in ("nearest", "linear")),
    *((7, one("Upsample", scales=[1.0, 1.0, 1.5, 2.0], mode=mode), CNN) for mode in ("nearest", "linear")),
    *(
        (before, resized(before, mode, transformed), CNN)
        for before in (11, 13, 18)
        for mode, transformed in (
            ("nearest", "half_pixel"),
            ("nearest", "asymmetric"),
            ("linear", "pytorch_half_pixel"),
            ("linear", "half_pixel"),
            ("cubic", "align_corners"),
            ("cubic", "half_pixel"),
        )
    ),
    (9, one("Scatter", lambda b: [*of("i", [[[[0]]]], np.int64)(b), *of("u", [[[[2.0]]]])(b)], axis=1), CNN),
    (13, one("ScatterND", lambda b: [*of("i", [[0]], np.int64)(b), *of("u", np.ones(CNN))(b)]), CNN),
    (13, one("Shape"), CNN),
    (9, one("Slice", starts=[1], ends=[3], axes=[1]), CNN),
    (11, one("Split", axis=1, split=[4]), CNN),
    (13, one("Split", axis=1), CNN),
    (11, one("Squeeze", axes=[0]), CNN),
    (11, one("Unsqueeze", axes=[0, 3]), CNN),
    (13, one("Squeeze"), CNN),
    *((before, recurrent(*which), (3, 2, 8)) for before in (7, 14) for which in (("LSTM", 4), ("GRU", 3), ("RNN", 1))),
    (
        10,
        one(
            "RoiAlign",
            lambda b: [*of("r", [[1, 1, 6, 6], [0, 2, 5, 7.5]])(b), *of("n", [0, 0], np.int64)(b)],
            mode="avg",
            output_height=3,
            output_width=3,
            sampling_ratio=2,
        ),
        CNN,
    ),
    (13, one("Cast", to=7), CNN),
    (15, one("CastLike", of("like", [1], np.int64)), CNN),
    (8, lambda b: b.node("Max", ["x", b.vector("v", 8)], "/max"), CNN),
    (13, one("Transpose", perm=[0, 2, 3, 1]), CNN),
]
"""Operators at an opset before a change: that opset, what adds them, the shape of the input."""


def written(before, build, shape):
    """A model at its own opset and at each that it may be written in, with one input where it reads any."""
    b = Builder(opset=before)
    last = build(b)
    model = b.model([floats("x", *shape)], [helper.make_empty_tensor_value_info(last)])
    ours = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    return ours, {after: convert_opset(ours, after) for after in WRITTEN if after > before}


@pytest.mark.parametrize(("before", "build", "shape"), CASES)
def test_an_operator_computes_the_same_at_every_opset_that_is_written(before, build, shape, backend):
    ours, raised = written(before, build, shape)
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (expected,) = run(backend, ours, feeds).values()
    run_at = []
    for after, model in raised.items():
        try:
            (got,) = run(backend, model, feeds).values()
        except InputError as error:
            assert "NOT_IMPLEMENTED" in error.cause, "a release of ONNX Runtime may lack the operator at an opset"
            continue
        run_at.append(after)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=f"opset {after}")
    assert run_at


@pytest.mark.parametrize(
    ("mode", "scale", "noted"), [("nearest", 0.5, True), ("nearest", 2.0, False), ("linear", 0.5, False)]
)
def test_a_resize_that_the_parser_reads_differently_has_a_note(mode, scale, noted, tmp_path):
    b = Builder(opset=10)
    b.node("Resize", ["x", *of("s", [1, 1, scale, scale])(b)], "/small", mode=mode, output="y")
    onnx.save(b.model([floats("x", *CNN)], [floats("y", *CNN[:2], None, None)]), path := tmp_path / "model.onnx")
    assert any("/small" in note for note in open_network(path).notes) is noted


# -- GridSample -----------------------------------------------------------------------------------------------------


def read_mode(node):
    """The mode of a GridSample as the parsers of TensorRT 8.5 to 11.1 read it, whatever the opset."""
    return {"bilinear": "linear", "bicubic": "cubic"}.get(node.attributes.get_string("mode", "bilinear"), "nearest")


def sampled(opset, mode):
    """A Conv in front of a GridSample."""
    b = Builder(opset=opset)
    x = b.conv("x", (4, 4), "/conv", bias=True)
    places = np.random.default_rng(1).uniform(-1, 1, (1, 5, 5, 2)).astype(np.float32)
    b.node("GridSample", [x, b.weight("grid", places)], "/grid", output="y", **({} if mode is None else {"mode": mode}))
    return b.model([floats("x", *CNN)], [floats("y", 1, 4, 5, 5)], ir_version=10)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8, Precision.FP8, Precision.BF16, Precision.FP32])
@pytest.mark.parametrize(
    ("opset", "mode", "meant"),
    [
        (16, "bilinear", "linear"),
        (16, "nearest", "nearest"),
        (16, None, "linear"),
        (20, "linear", "linear"),
        (22, "linear", "linear"),
        (22, "nearest", "nearest"),
    ],
)
def test_a_grid_sample_is_read_as_meant_in_every_precision(opset, mode, meant, precision, tmp_path, backend):
    onnx.save(sampled(opset, mode), path := tmp_path / "model.onnx")
    network = open_network(path)
    lowered = lower_from_source_model(
        network, PrecisionConfig(precision, Precision.FP32), dict.fromkeys(network.calibrated_tensors, 4.0)
    )
    node = next(node for node in lowered.model.graph if node.op_type == "GridSample")
    assert read_mode(node) == meant
    assert any("read the mode linear" in note for note in network.notes) == (opset >= 20 and mode == "linear")
    feeds = {"x": np.random.default_rng(0).standard_normal(CNN).astype(np.float32)}
    expected, got = (run(backend, model, feeds)["y"] for model in (ir.load(path), open_network(path).model))
    np.testing.assert_array_equal(got, expected)


def test_a_cubic_grid_sample_keeps_its_older_form_or_is_refused(tmp_path):
    onnx.save(sampled(16, "bicubic"), path := tmp_path / "model.onnx")
    network = open_network(path)
    scales = dict.fromkeys(network.calibrated_tensors, 4.0)
    for precision in (Precision.FP16, Precision.INT8):
        model = lower_from_source_model(network, PrecisionConfig(precision, Precision.FP16), scales).model
        assert read_mode(next(node for node in model.graph if node.op_type == "GridSample")) == "cubic"
    for precision in (Precision.FP8, Precision.BF16):
        with refused(title="opset", cause="/grid/GridSample (GridSample) has mode cubic", next_step="NVFP4 or BF16"):
            lower_from_source_model(network, PrecisionConfig(precision, Precision.FP32), scales)
    refuse_cubic_grid_samples(network, "TensorRT 8.6")


def test_a_cubic_grid_sample_of_a_newer_file_is_written_for_no_release_that_reads_it_as_nearest(tmp_path, run):
    onnx.save(sampled(20, "cubic"), path := tmp_path / "model.onnx")
    network = open_network(path)
    assert any("mode cubic" in note and "opset from 16 to 19" in note for note in network.notes)
    with refused(title="TensorRT 10 may read /grid/GridSample", cause="nearest", next_step="opset from 16 to 19"):
        refuse_cubic_grid_samples(network, "TensorRT 10")
    code, _, said = run("export", path, "--format", "onnx", "--precision", "fp16", "--output", tmp_path / "out.onnx")
    assert code == 2 and "/grid/GridSample" in said and "nearest" in said and not (tmp_path / "out.onnx").exists()


@pytest.mark.rtx
@pytest.mark.parametrize(("before", "build", "shape"), [case for case in CASES if case[0] >= 13])
def test_a_parser_makes_the_same_layers_at_every_opset_that_is_written(before, build, shape):
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    ours, raised = written(before, build, shape)
    if any(node.op_type in UNSUPPORTED or node.op_type == "GroupNormalization" for node in ours.graph):
        pytest.skip("no parser reads it, or its constants are written otherwise")
    expected = layers_read(trt, ours)
    for after, model in raised.items():
        assert layers_read(trt, model) == expected, f"opset {after}"


def layers_read(trt, model):
    """The layers that a parser makes of a model, with what they compute."""
    kinds = {name[1:-5].lower(): getattr(trt, name) for name in dir(trt) if re.fullmatch(r"I\w+Layer", name)}
    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    proto = ir.to_proto(model)
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    assert parser.parse(proto.SerializeToString()), parser.get_error(0).desc()
    found = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        name = str(layer.type).rpartition(".")[2].lower().replace("_", "")
        layer.__class__ = kinds.get(name, trt.ILayer)
        own = sorted(set(dir(type(layer))) - set(dir(trt.ILayer)))
        values = {key: str(value) for key in own if not callable(value := getattr(layer, key)) and "loop" not in key}
        found.append((name, values, [str(layer.get_output(i).shape) for i in range(layer.num_outputs)]))
    return found


FLOATS = {"LayerNormalization": ["scale"], "MeanVarianceNormalization": [], "ThresholdedRelu": []}


def saved(folder, operator, opset, others=(), nested=False, **attributes):
    """A network of one operator behind a MatMul, and within a branch of an If if it is nested."""
    values = {"weight": np.eye(4, dtype=np.float32), "scale": np.ones(4, np.float32)}
    node = helper.make_node(operator, ["a", *others], ["y"], name="it", **attributes)
    shape = [4, 4]
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["a"], name="product")]
    if nested:
        branch = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("y", 1, shape)])
        values["yes"] = np.array(True)
        nodes.append(helper.make_node("If", ["yes"], ["z"], name="if", then_branch=branch, else_branch=branch))
    else:
        nodes.append(node)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("z" if nested else "y", 1, shape)],
        [numpy_helper.from_array(value, name) for name, value in values.items() if nested or name != "yes"],
    )
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("operator", "opset"),
    [*(("LayerNormalization", opset) for opset in (7, 9, 13, 15, 16)), ("ThresholdedRelu", 7), ("ThresholdedRelu", 9)],
)
def test_what_onnx_runtime_runs_in_every_opset_is_opened(tmp_path, operator, opset):
    network = open_network(saved(tmp_path, operator, opset, FLOATS[operator]))
    assert [layer.op_type for layer in network.layers] == ["MatMul", operator]
    assert network.model.graph.opset_imports[""] == 17 and any("Converted" in note for note in network.notes)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("operator", "opset", "first"),
    [
        ("Gelu", 13, 20),
        ("Trilu", 13, 14),
        ("HardSwish", 13, 14),
        ("Mish", 17, 18),
        ("Bernoulli", 13, 15),
        ("Swish", 17, 24),
        ("RMSNormalization", 9, 23),
    ],
)
def test_what_is_newer_than_the_opset_is_refused_plainly(tmp_path, operator, opset, first, nested):
    with refused(
        title=f"uses {operator} in opset {opset}",
        cause=f"opset {first} or higher",
        next_step=f"opset {first} or higher",
    ):
        open_network(saved(tmp_path, operator, opset, ["scale"] if "Norm" in operator else [], nested))


def test_what_onnx_has_ended_is_refused_plainly(tmp_path):
    with refused(
        title="uses Upsample in opset 13",
        cause="node it has an operator that ONNX removed with opset 10",
        next_step="Resize",
    ):
        open_network(saved(tmp_path, "Upsample", 13, ["scale"]))


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_every_operator_of_the_newest_opset_is_opened_or_refused(tmp_path, opset):
    """A node of each operator that is newer, with as many inputs as it has at least."""
    newest = {one.name: one for one in onnx.defs.get_all_schemas() if one.domain == ""}
    later = [one for one in newest.values() if not onnx.defs.has(one.name, opset, "")]
    assert len(later) > 15
    for schema in later:
        others = ["scale"] * (schema.min_input - 1)
        try:
            open_network(saved(tmp_path, schema.name, opset, others))
        except Exception as error:
            assert getattr(error, "title", ""), (schema.name, error)
            continue
        assert schema.name in FLOATS


def test_the_schema_of_an_operator_is_that_of_the_opset_or_the_first():
    assert get_onnx_schema("Relu", 13).since_version == 13 and get_onnx_schema("Relu", 15).since_version == 14
    assert get_onnx_schema("LayerNormalization", 13).since_version == 17


@pytest.mark.parametrize(
    ("operator", "domain", "attributes", "opset"),
    [
        ("DequantizeLinear", "", {"foo": 1}, 21),
        ("DequantizeLinear", "", {"block_size": 2}, 19),
        ("DequantizeLinear", "com.microsoft", {"foo": 1}, 21),
        ("QuantizeLinear", "com.microsoft", {"foo": 1}, 21),
    ],
)
def test_an_attribute_that_the_operator_does_not_know_is_refused_or_left_to_onnx_runtime(
    tmp_path, operator, domain, attributes, opset
):
    onnxruntime = pytest.importorskip("onnxruntime")
    codes = onnx.TensorProto.INT4 if opset == 21 else onnx.TensorProto.INT8
    stored = operator == "DequantizeLinear"
    node = helper.make_node(
        operator, ["codes" if stored else "x", "step"], ["w"], name="codes_of", domain=domain, **attributes
    )
    nodes = [
        node,
        *(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
            if stored
            else [helper.make_node("DequantizeLinear", ["w", "step"], ["y"], name="back", domain=domain)]
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 4])],
        [helper.make_tensor_value_info("y", 1, [2, 4])],
        [
            helper.make_tensor("codes", codes, [4, 4], list(range(-8, 8))),
            numpy_helper.from_array(np.float32(0.5), "step"),
        ],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(Exception, match="ttribute"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    onnx.save(model, tmp_path / "net.onnx")
    if domain:  # a newer release may have it in its own operators
        network = open_network(tmp_path / "net.onnx")
        assert "foo" in next(one for one in network.model.graph if one.name == "codes_of").attributes
    else:
        with refused(title="an attribute that its operator does not have", cause=next(iter(attributes))):
            open_network(tmp_path / "net.onnx")
    del graph.node[0].attribute[:]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "net.onnx")
    open_network(tmp_path / "net.onnx")
