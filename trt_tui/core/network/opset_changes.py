"""The changes of ONNX operators between the opsets that are read and written, with the way to keep each meaning.

A conversion to a higher opset changes neither the result of an operator nor its reading by TensorRT's parser. Therefore
the table below lists each change of a schema. `tests/test_opset_changes.py` compares the table with the schemas of the
installed onnx and fails if a change is missing. A change that only adds types needs no row: attributes, inputs, outputs
and texts are equal.

Sources:

- Meaning: the schemas of onnx 1.23; the tests run operators of both versions in ONNX Runtime.
- Parser: network definitions that the parsers of TensorRT-RTX 1.4.0 and 1.7.1 create from an operator at each opset,
  compared layer by layer with their attributes. They differ for GridSample (RTX 1.4 only), and for a Resize of opset 10
  that shrinks by nearest values. onnx-tensorrt's importers read attributes by name with ONNX's defaults.
- GridSample: onnx-tensorrt pull request 1060 and TensorRT issue 4646. TensorRT 10.13.3, 11.1 and RTX 1.5 read "linear"
  and "cubic" as nearest; RTX 1.4 and 1.7.1 read an absent mode as linear, at opset 16 and at 20.
"""

from collections.abc import Mapping
from enum import Enum

NEWEST_WRITTEN_OPSET = 23
"""The highest opset that a network is converted to; RMSNormalization was introduced in it."""


class OpsetChange(Enum):
    """The way in which the meaning of an operator is kept across a change of its schema."""

    DEFAULT = "a new attribute or input, whose default is the earlier meaning, for ONNX and for TensorRT's parser"
    MOVED = "an attribute became an input, or an input is optional now; onnx's version converter moves it"
    CONVERTER = "onnx's version converter writes operators of the earlier meaning around it or sets an attribute"
    ADAPTER = "an adapter in `trt_tui.core.network.opset_conversion` writes the earlier meaning or refuses the node"
    UNSUPPORTED = "no TensorRT parser reads the operator; onnx's version converter keeps the meaning for ONNX Runtime"
    WORDING = "the wording of the schema: more types, negative axes, formulas written out"


def _map_operators_to_change(change: OpsetChange,
                             operators_by_opset: Mapping[int, str]) -> dict[tuple[str, int], OpsetChange]:
    return {(operator, opset): change
            for opset, operators in operators_by_opset.items()
            for operator in operators.split()}


_REDUCTION_NAMES = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare")

OPSET_CHANGES: Mapping[tuple[str, int], OpsetChange] = {
    **_map_operators_to_change(OpsetChange.DEFAULT, {
        8: "MaxPool", 10: "AveragePool MaxPool", 11: "Constant DepthToSpace Gemm",
        12: "ArgMax ArgMin Constant GatherND", 13: "DequantizeLinear QuantizeLinear", 14: "GRU LSTM RNN Reshape",
        15: "Shape", 16: "ScatterElements ScatterND", 18: "LpPool Resize",
        19: "AveragePool Cast CastLike QuantizeLinear", 21: "DequantizeLinear QuantizeLinear",
        23: "DequantizeLinear QuantizeLinear"}),
    **_map_operators_to_change(OpsetChange.MOVED, {
        9: "Upsample", 10: "Slice TopK", 11: "Clip TopK", 12: "Dropout",
        13: "ReduceSum Resize Split Squeeze Unsqueeze", 18: f"{_REDUCTION_NAMES} Pad Split"}),
    **_map_operators_to_change(OpsetChange.CONVERTER, {
        9: "BatchNormalization Scan", 10: "Upsample", 11: "Scatter", 13: "LogSoftmax Softmax", 16: "RoiAlign"}),
    **_map_operators_to_change(OpsetChange.ADAPTER, {
        11: "Pad Resize", 13: "Hardmax", 14: "BatchNormalization", 20: "GridSample", 21: "GroupNormalization"}),
    **_map_operators_to_change(OpsetChange.UNSUPPORTED, {18: "OptionalGetElement OptionalHasElement", 20: "DFT"}),
    **_map_operators_to_change(OpsetChange.WORDING, {
        8: "Max Mean Min Sum", 9: "Cast", 10: "Dropout",
        11: f"{_REDUCTION_NAMES} ReduceSum ArgMax ArgMin AveragePool Compress Concat Conv ConvTranspose Flatten Gather "
            "Hardmax If LogSoftmax Loop LpPool MaxPool MaxUnpool NonMaxSuppression OneHot Scan Slice Softmax Split "
            "Squeeze Unsqueeze",
        12: "MaxPool ReduceMax ReduceMin",
        13: f"{_REDUCTION_NAMES} Abs ArgMax ArgMin Cast Ceil Clip Floor Gather Loop MeanVarianceNormalization Mod Pad "
            "Pow Slice",
        14: "Add Div Mul Sub", 15: "BatchNormalization", 18: "ScatterElements ScatterND",
        19: "DequantizeLinear Pad Resize", 20: "ReduceMax ReduceMin", 21: "Transpose",
        22: "AveragePool Dropout EyeLike LSTM MaxPool", 23: "Squeeze Unsqueeze"}),
}
"""The way to keep the meaning, by operator and the opset that changed it."""
