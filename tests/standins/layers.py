"""Engine layers: how nodes fuse, which precision they get, and the engine inspector's words for them.

TensorRT 8.6 and CNN parts of 10 speak of fused layers (``conv1 + relu1``), reformats and ``{ForeignNode[a...b]}``;
encoders on 10, and everything on 11 and TensorRT-RTX, of Myelin kernels (``__myl_AddMulSoft_myl0_3``, ``fc_myl0_6``).
Metadata, from 10 on, joins the nodes of a fused layer with U+001E and those of a kernel with U+001F, and a node can be
in several kernels: TensorRT-RTX 1.7.1 prints it so in its verbose build log, in these very words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import onnx

from tests.standins import Bound, Release
from tests.standins.network import _TYPES, WEIGHTED

_NAMES = {"FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16", "INT8": "Int8", "UINT8": "UInt8", "INT32": "Int32",
          "INT64": "Int64", "BOOL": "Bool"}
_FORMATS = {"Float": "Row major linear FP32", "Half": "Channel major FP16 format where channel % 8 == 0",
            "Int8": "Thirty-two wide channel vectorized row major Int8 format", "Int32": "Row major linear INT32",
            "Int64": "Row major linear INT64", "Bool": "Row major linear BOOL", "BFloat16": "Row major linear BF16"}
_KINDS = {"Conv": "CaskConvolution", "ConvTranspose": "CaskDeconvolutionV2", "Gemm": "CaskGemmMatrixMultiply",
          "MatMul": "CaskGemmMatrixMultiply", "MaxPool": "CaskPooling", "AveragePool": "CaskPooling",
          "Softmax": "CaskSoftMaxV2", "Reshape": "NoOp", "Flatten": "NoOp", "Transpose": "Shuffle"}
_KERNELS = {"Conv": "correlation", "ConvTranspose": "deconvolution", "Gemm": "gemm", "MatMul": "gemm",
            "MaxPool": "maxpool", "AveragePool": "avgpool"}
_POINTWISE = ("Relu", "Sigmoid", "Tanh", "Add", "Sub", "Mul", "Div", "Erf", "LeakyRelu", "Clip", "HardSwish", "Elu")
_FUSED = ("Relu", "BatchNormalization", "LeakyRelu", "Clip")
_REGION = ("MatMul", "Softmax", "LayerNormalization", "Sqrt", "Pow", "ReduceMean", "Transpose", "Reshape", "Cast",
           "Gelu", "Where", "Split", "Slice", "Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Expand",
           *_POINTWISE)


class Fusion:
    """The layers of one network.

    Args:
        precision: What a node computes in: "Float", "Half", "BFloat16" or "Int8"; asked of float nodes alone.
        base: What an INT8 node gives in a weakly typed network.
    """

    def __init__(self, network: Bound, precision: Callable[[onnx.NodeProto], str], base: str) -> None:
        self.strong = network._strong
        graph = network._model.graph
        self.values, self.release, self.precision, self.base = network._values, network._release, precision, base
        self.constants = {one.name for one in graph.initializer}
        self.nodes = []
        for node in graph.node:
            if node.op_type == "Constant":
                self.constants.add(node.output[0])
            else:
                self.nodes.append(node)
        self.place = {node.output[0]: number for number, node in enumerate(self.nodes)}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.outputs = {tensor.name for tensor in network._outputs}
        self.types = {name: _NAMES.get(_TYPES.get(kind, ""), "Float") for name, (kind, _) in self.values.items()}
        self.layers: list[dict] = []

    def run(self) -> list[dict]:
        """The layers in order of execution, as JSON takes them."""
        # Q and DQ of weights, and DQ that feed nothing but Conv, Gemm and MatMul, are part of those.
        for node in self.nodes:
            if node.op_type == "QuantizeLinear" and node.input[0] in self.constants:
                self.constants.add(node.output[0])
        waiting = [node for node in self.nodes if not self._folded(node)]
        taken: set[str] = set()
        for number, node in enumerate(waiting):
            if node.output[0] in taken:
                continue
            members = region = waiting if self.release.major >= 11 else self._region(waiting, number)
            if region and self.release.major >= 10:
                self._kernels(members)
            elif region:
                self._add(f"{{ForeignNode[{members[0].name}...{members[-1].name}]}}", "Myelin", members)
            else:
                members = self._chain(node)
                prefix = [name for one in self._weights(node) if one.op_type == "QuantizeLinear"
                          for name in (one.input[0], one.name)]
                name = " + ".join([*prefix, *(one.name for one in members)])
                pointwise = node.op_type in _POINTWISE
                self._add(f"PWN({name})" if pointwise else name, "PointWiseV2" if pointwise else
                          "Reformat" if node.op_type in ("QuantizeLinear", "DequantizeLinear") else
                          _KINDS.get(node.op_type, node.op_type), members)
            taken.update(one.output[0] for one in members)
        return self.layers

    def _folded(self, node: onnx.NodeProto) -> bool:
        if node.op_type == "QuantizeLinear":
            return node.output[0] in self.constants
        if node.op_type != "DequantizeLinear" or node.output[0] in self.outputs:
            return False
        return all(one.op_type in WEIGHTED for one in self.consumers.get(node.output[0], []))

    def _weights(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The Q and DQ that are part of a node: of its weights first."""
        parts = []
        for name in reversed(node.input):
            made = self.producer.get(name)
            if made is not None and made.op_type == "DequantizeLinear" and self._folded(made):
                quantize = self.producer.get(made.input[0])
                if quantize is not None and made.input[0] in self.constants:
                    parts.append(quantize)
                parts.append(made)
        return parts

    def _chain(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A Conv, Gemm or MatMul with what follows it in one layer."""
        members = [node]
        while node.op_type in WEIGHTED and members[-1].output[0] not in self.outputs:
            following = self.consumers.get(members[-1].output[0], [])
            if len(following) != 1:
                break
            others = [name for name in following[0].input if name != members[-1].output[0]]
            early = all(name in self.constants or name not in self.producer
                        or self.place[self.producer[name].output[0]] < self.place[node.output[0]] for name in others)
            if not (following[0].op_type in _FUSED or following[0].op_type == "Add" and early):
                break
            members.append(following[0])
        return members

    def _region(self, waiting: list[onnx.NodeProto], first: int) -> list[onnx.NodeProto]:
        """The nodes that one Myelin region takes from a node on; none where it takes no such node."""
        following = itertools.islice(waiting, first, None)
        members = list(itertools.takewhile(lambda node: node.op_type in _REGION, following))
        kinds = {node.op_type for node in members}
        return members if "MatMul" in kinds and kinds & {"Softmax", "LayerNormalization"} and len(members) > 2 else []

    def _kernels(self, members: list[onnx.NodeProto]) -> None:
        light: list[onnx.NodeProto] = []

        def flush() -> None:
            if light:
                # The kernel after a Conv or Gemm adds its bias, and names it too.
                before = [self.producer[name] for name in light[0].input if name in self.producer
                          and self.producer[name].op_type in ("Conv", "Gemm") and len(self.producer[name].input) > 2]
                code = "".join(one.op_type[:4] for one in light)
                self._add(f"__myl_{code}_myl0_{len(self.layers)}", "kgen", list(light), before, "\x1f")
                light.clear()

        for node in members:
            if node.op_type in _KERNELS:
                flush()
                self._add(f"{node.name}_myl0_{len(self.layers)}", _KERNELS[node.op_type], [node], [], "\x1f")
            else:
                light.append(node)
        flush()

    def _add(self, name: str, kind: str, members: list[onnx.NodeProto], shared: list[onnx.NodeProto] = (),
             separator: str = "\x1e") -> None:
        made = {output for node in members for output in node.output}
        parts = [part for node in members for part in self._weights(node)]
        inputs, constants = [], []
        for node in members:
            sources = {part.output[0]: part.input[0] for part in self._weights(node)}
            for source in (sources.get(source, source) for source in node.input):
                if source in self.constants:
                    constants.append(source)
                elif source and source not in made and source not in inputs:
                    inputs.append(source)
        outputs = [one for node in members for one in node.output if one and (
            one in self.outputs or any(user not in members for user in self.consumers.get(one, [])))]
        floats = ("Float", "Half", "BFloat16")
        precision = self.types.get(outputs[0], "Float") if outputs else "Float"
        if any(self.types.get(one) in floats for one in outputs):
            weighted = [node for node in members if node.op_type in WEIGHTED]
            precision = self.precision((weighted or members)[0])
        given = []
        for index, source in enumerate(inputs):
            have = self.types.get(source, "Float")
            converted = have in floats and precision in (*floats, "Int8") and precision != have
            if converted and kind not in ("kgen", "Reformat") and not self.strong:
                self._reformat(f"Input Tensor {index} to {name}", f"Reformatted Input Tensor {index} to {name}",
                               source, have, precision)
                source, have = f"Reformatted Input Tensor {index} to {name}", precision
            given.append([source, have])
        result = precision if precision in floats else self.base
        for one in outputs:
            if self.types.get(one) in floats:
                if one not in self.outputs and not self.strong:
                    self.types[one] = result
        self.layers.append({
            "name": name, "type": kind, "precision": precision, "separator": separator, "inputs": given,
            "nodes": list(dict.fromkeys(one.name for one in (*shared, *parts, *members))),
            "constants": [[one, self.types.get(one, "Float")] for one in constants],
            "outputs": [[one, self.types.get(one, "Float")] for one in outputs]})
        for index, one in enumerate(outputs):
            if one in self.outputs and self.types[one] in floats and self.types[one] != result and not self.strong:
                inner = f"Reformatted Output Tensor {index} to {name}"
                self.layers[-1]["outputs"][index] = [inner, result]
                self._reformat(f"Output Tensor {index} to {name}", one, inner, result, self.types[one])

    def _reformat(self, what: str, output: str, source: str, have: str, wanted: str) -> None:
        self.layers.append({"name": f"Reformatting CopyNode for {what}", "type": "Reformat", "precision": wanted,
                            "separator": "", "nodes": [], "constants": [], "inputs": [[source, have]],
                            "outputs": [[output, wanted]]})


def information(layer: dict, release: Release, shapes: dict[str, list[int]]) -> dict:
    """What the engine inspector says of a layer, in the release's words; ``shapes`` by tensor, -1 for open sizes."""
    kernel = layer["separator"] == "\x1f"

    def tensor(name: str, kind: str) -> dict:
        about = {"Name": name, "Dimensions": shapes.get(name, [])}
        if release.major >= 11:
            return {**about, "Datatype": kind, "Format": "(Linear) Row major linear format"}
        return {**about, "Location": "Device", "Format/Datatype": kind if kernel else _FORMATS.get(kind, kind)}

    said = {"Name": layer["name"], "LayerType": layer["type"], "Inputs": [tensor(*one) for one in layer["inputs"]],
            "Outputs": [tensor(*one) for one in layer["outputs"]]}
    if release.major >= 11 or kernel:
        said["Constants"] = [tensor(*one) for one in layer["constants"]]
    elif layer["type"] == "CaskConvolution":
        said |= {"ParameterType": "Convolution", "Weights": {"Type": layer["precision"], "Count": 1}}
    elif layer["type"] == "Reformat":
        said |= {"ParameterType": "Reformat", "Origin": "QDQ" if layer["nodes"] else "REFORMAT"}
    short = {"Float": "f32", "Half": "f16", "Int8": "i8", "BFloat16": "bf16"}.get(layer["precision"], "i32")
    said |= {"TacticName": f"sm80_xmma_{layer['type'].lower()}_{short}{short}_{short}", "TacticValue": "0x1"}
    metadata = layer["separator"].join(f"[ONNX Layer: {node}]" for node in layer["nodes"])
    return said if release.major < 10 else {**said, "StreamId": 0, "Metadata": metadata}
