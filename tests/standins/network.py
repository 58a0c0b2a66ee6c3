"""Parsing: networks, tensors, layers, and the ONNX parser with what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, numpy_helper

from tests.standins import Bound, Value, make
from tests.standins import flags as flags_of

NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "FP8": ml_dtypes.float8_e4m3fn,
    "INT4": ml_dtypes.int4,
}
"""NumPy's types by TensorRT's."""

_TYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.DOUBLE: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "UINT8",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.BOOL: "BOOL",
}
_PAIR = "ElementWiseOperation {} must have same input types. But they are of types {{0}} and {{1}}."
_PRODUCT = "IMatrixMultiplyLayer must have same input types. `A` is of type {0} and `B` is of type {1}."
_ONE_TYPE = {
    "Conv": "IConvolutionLayer `input` and `kernel` must be of same type. `input` type is {0} but `kernel` is of type "
    "{1}.",
    "ConvTranspose": "IDeconvolutionLayer `input` and `kernel_weights` must have same type. `input` is of type {0} and "
    "`kernel_weights` are of type {1}.",
    "Gemm": _PRODUCT,
    "MatMul": _PRODUCT,
    **{op: _PAIR.format(word) for op, word in (("Add", "SUM"), ("Sub", "SUB"), ("Mul", "PROD"), ("Div", "DIV"))},
}
"""What is said of operators whose first two inputs a strongly typed network wants of one type (TensorRT-RTX 1.7.1)."""

_SHAPES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
    "TopK": (1,),
}
"""Inputs whose values decide sizes, by operator."""

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_LAYERS = {
    "Conv": "CONVOLUTION",
    "ConvTranspose": "DECONVOLUTION",
    "Gemm": "MATRIX_MULTIPLY",
    "MatMul": "MATRIX_MULTIPLY",
    "QuantizeLinear": "QUANTIZE",
    "DequantizeLinear": "DEQUANTIZE",
    "Cast": "CAST",
    "Constant": "CONSTANT",
    "BatchNormalization": "SCALE",
    "LayerNormalization": "NORMALIZATION",
    "Softmax": "SOFTMAX",
    "TopK": "TOPK",
    "Concat": "CONCATENATION",
    "Gather": "GATHER",
    "Slice": "SLICE",
    "Shape": "SHAPE",
    "Resize": "RESIZE",
    "Where": "SELECT",
    "Identity": "IDENTITY",
    "Einsum": "EINSUM",
    "ArgMax": "TOPK",
    "Expand": "SLICE",
    "LRN": "LRN",
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "Elu", "HardSigmoid"), "ACTIVATION"),
    **dict.fromkeys(("MaxPool", "AveragePool"), "POOLING"),
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum", "ReduceMax"), "REDUCE"),
    **dict.fromkeys(("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"), "SHUFFLE"),
    **dict.fromkeys(("Sqrt", "Erf", "Exp", "Log", "Neg", "Abs", "Not", "Floor"), "UNARY"),
}
"""Layer types by operator; elementwise otherwise."""


class Dims:
    """A shape: a sequence that equals tuples, and no more than that."""

    def __init__(self, sizes: object = ()) -> None:
        self._sizes = tuple(int(size) for size in sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: object) -> object:
        return self._sizes[index]

    def __eq__(self, other: object) -> bool:
        return self._sizes == tuple(other)

    def __repr__(self) -> str:
        return str(self._sizes)

    __hash__ = None


class ITensor:
    name = Value("")
    is_network_input = Value(False)
    is_network_output = Value(False)
    is_shape_tensor = Value(False)
    allowed_formats = Value(8191)

    @property
    def shape(self) -> Bound:
        return self._trt.Dims(self._shape)

    def set_dynamic_range(self, min: float, max: float) -> bool:
        self._range = (float(min), float(max))
        return True


class ILayer:
    """``_inputs``, ``_outputs``: tensors; ``_node``: the ONNX node's name, "" for the parser's own layers."""

    name = Value("")
    metadata = Value("")

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Bound | None:
        return self._inputs[index] if index < len(self._inputs) else None

    def get_output(self, index: int) -> Bound | None:
        return self._outputs[index] if index < len(self._outputs) else None

    @property
    def precision(self) -> object:
        return self.__dict__.get("_precision") or self._trt.float32

    @precision.setter
    def precision(self, dtype: object) -> None:
        self._precision = dtype

    @property
    def precision_is_set(self) -> bool:
        return self.__dict__.get("_precision") is not None

    def set_output_type(self, index: int, dtype: object) -> None:
        self.__dict__.setdefault("_types", {})[index] = dtype


class INetworkDefinition:
    """``_model``: the ONNX model parsed, with the types and shapes of its values in ``_values``."""

    name = Value("Unnamed Network 0")
    has_implicit_batch_dimension = Value(False)
    num_layers = property(lambda self: len(self._layers))
    num_inputs = property(lambda self: len(self._inputs))
    num_outputs = property(lambda self: len(self._outputs))
    flags = property(lambda self: self._flags)
    get_flag = flags_of("_flags", "NetworkDefinitionCreationFlag")[2]
    builder = property(lambda self: self._builder)

    @property
    def _strong(self) -> bool:
        flag = getattr(self._trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return self._release.strong or bool(flag is not None and self._flags >> int(flag) & 1)

    def get_layer(self, index: int) -> Bound:
        return self._layers[index]

    def get_input(self, index: int) -> Bound:
        return self._inputs[index]

    def __getitem__(self, index: int) -> Bound:
        return self._layers[index]

    def mark_unfused_tensors_as_debug_tensors(self) -> bool:
        self._hands_out = True
        return True

    def mark_output(self, tensor: Bound) -> None:
        tensor.is_network_output = True
        self._outputs.append(tensor)


class ParserError:
    def code(self) -> object:
        return self._code

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator


class OnnxParser:
    flags = Value(0)
    set_flag, clear_flag, get_flag = flags_of("flags", "OnnxParserFlag")
    num_errors = property(lambda self: len(self._errors))

    def __init__(self, network: Bound, logger: Bound) -> None:
        self._network, self._logger, self._errors = network, logger, []

    def get_error(self, index: int) -> Bound:
        return self._errors[index]

    def parse(self, model: bytes, path: str | None = None) -> bool:
        proto = self._read(model, path)
        return proto is not None and self._parse(proto)

    def parse_from_file(self, model: str) -> bool:
        if not Path(model).is_file():
            return self._fail("INVALID_VALUE", f"Input file cannot be found, or is not a regular file: {model}")
        return self.parse(Path(model).read_bytes(), model)

    def _read(self, model: bytes, path: str | None) -> onnx.ModelProto | None:
        try:
            proto = onnx.ModelProto.FromString(bytes(model))
            onnx.load_external_data_for_model(proto, str(Path(path).parent) if path else ".")
            if proto.functions and self._release.major >= 10:
                proto = onnx.inliner.inline_local_functions(proto)
        except Exception:
            self._fail(
                "MODEL_DESERIALIZE_FAILED",
                "Assertion failed: model->ParseFromCodedStream(&codedInput): Failed to parse the ONNX model.",
            )
            return None
        return proto

    def _fail(self, code: str, desc: str, number: int = -1, node: onnx.NodeProto | None = None) -> bool:
        error = make(
            self._trt,
            "ParserError",
            _code=getattr(self._trt.ErrorCode, code),
            _desc=desc,
            _node=number,
            _name=node.name if node else "",
            _operator=node.op_type if node else "",
        )
        self._errors.append(error)
        severity = self._trt.ILogger.Severity.ERROR
        if node:
            self._logger.log(
                severity,
                f'ModelImporter.cpp:140: While parsing node number {number} [{node.op_type} -> "{node.output[0]}"]:',
            )
            self._logger.log(severity, f"ModelImporter.cpp:142: --- Begin node ---\nNode name: {node.name}")
        self._logger.log(
            severity,
            f"ModelImporter.cpp:151: ERROR: ModelImporter.cpp:489 In function parseNode:\n[{int(error._code)}] {desc}",
        )
        return False

    def _refusal(self, node: onnx.NodeProto, values: dict, model: onnx.ModelProto) -> tuple[str, str] | None:
        """The error code and what the parser says of a node it does not take."""
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
            return (
                "UNSUPPORTED_NODE" if self._release.major < 10 else "INVALID_NODE",
                'creator && "Plugin not found, are the plugin name, version, and namespace correct?"',
            )
        if "Sequence" in node.op_type:
            return "UNSUPPORTED_NODE", "false"
        types = [_TYPES.get(values[name][0], "?") if name in values else "?" for name in node.input]
        about = f"Invalid Node - {node.name}\nITensor::getDimensions: Error Code 4: API Usage Error ({node.name}: "
        if missing := [name for name in types if name != "?" and not hasattr(self._trt.DataType, name)]:
            if missing != ["INT64"] * len(missing):
                return "UNSUPPORTED_NODE", f"Unsupported data type {missing[0]}"
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            if types[0] == "INT32":
                return "INVALID_NODE", f"{about}input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8."
            if types[1] != "FLOAT" and self._release.major < 10:
                return "INVALID_NODE", f"{about}scale must be of type Float."
            zero = {one.name: one for one in model.graph.initializer}.get(node.input[2] if len(node.input) > 2 else "")
            if zero is not None and np.any(numpy_helper.to_array(zero)):
                return "INVALID_NODE", (
                    "Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported."
                )
        mixed = [one.title() for one in types[:2]] if node.op_type in _ONE_TYPE else []
        if self._network._strong and len({one for one in mixed if one != "?"}) > 1:
            return "INVALID_NODE", about + _ONE_TYPE[node.op_type].format(*mixed)
        return None

    def _parse(self, model: onnx.ModelProto) -> bool:
        network = self._network
        if network.has_implicit_batch_dimension:
            return self._fail(
                "INVALID_VALUE",
                "This version of the ONNX parser only supports TensorRT "
                "INetworkDefinitions with an explicit batch dimension.",
            )
        if network._layers:
            return self._fail("INVALID_VALUE", "Parse was called with a non-empty network definition")
        for node in model.graph.node:
            node.name = node.name or f"node_of_{next(filter(None, node.output))}"
        values = _values(model)
        for number, node in enumerate(model.graph.node):
            if refusal := self._refusal(node, values, model):
                return self._fail(*refusal, number, node)
        network._model, network._values = model, values
        weights = {one.name for one in model.graph.initializer}
        tensors: dict[str, Bound] = {}
        names: set[str] = set()

        def tensor(name: str, **state: object) -> Bound:
            if name not in tensors:
                kind, shape = values.get(name, (TensorProto.FLOAT, ()))
                tensors[name] = make(self._trt, "ITensor", name=name, _shape=shape, dtype=self._dtype(kind), **state)
            return tensors[name]

        def add(kind: str, name: str, inputs: list[Bound], outputs: list[Bound], node: str = "") -> None:
            unique, number = name, len(network._layers)
            while unique in names:
                unique, number = f"{name}_{number}", number + 1
            names.add(unique)
            network._layers.append(
                make(
                    self._trt,
                    "ILayer",
                    name=unique,
                    type=getattr(self._trt.LayerType, kind),
                    _node=node,
                    metadata=f"[ONNX Layer: {node}]" if node else "",
                    _inputs=inputs,
                    _outputs=outputs,
                )
            )

        sizes = {
            node.input[index]
            for node in model.graph.node
            for index in _SHAPES.get(node.op_type, ())
            if index < len(node.input)
        }
        for value in model.graph.input:
            if value.name not in weights:
                network._inputs.append(tensor(value.name, is_network_input=True, is_shape_tensor=value.name in sizes))
        for node in model.graph.node:
            held = [name for name in node.input if name in weights]
            if node.op_type not in ("Conv", "ConvTranspose", "BatchNormalization", "Reshape"):
                for name in held:
                    if name not in tensors:
                        add("CONSTANT", name, [], [tensor(name)])
                        tensors[name].name = f"{name}_output"
            inputs = [tensor(name) for name in node.input if name and (name in tensors or name not in weights)]
            outputs = [tensor(name) for name in node.output if name]
            kind = _LAYERS.get(node.op_type, "ELEMENTWISE")
            if node.op_type == "Gemm" and len(node.input) > 2:
                product = make(
                    self._trt, "ITensor", name=f"{node.name}_output", _shape=outputs[0]._shape, dtype=outputs[0].dtype
                )
                add(kind, node.name, inputs[:2], [product], node.name)
                helper = (
                    f"(Unnamed Layer* {len(network._layers)}) [Shuffle]"
                    if self._release.major < 10
                    else "ONNXTRT_Broadcast"
                )
                bias = make(
                    self._trt, "ITensor", name=f"{helper}_output", _shape=(1, *inputs[2]._shape), dtype=inputs[2].dtype
                )
                add("SHUFFLE", helper, inputs[2:], [bias])
                add("ELEMENTWISE", node.name, [product, bias], outputs, node.name)
            else:
                add(kind, node.name, inputs, outputs, node.name)
        for value in model.graph.output:
            network.mark_output(tensor(value.name))
        return True

    def _dtype(self, kind: int) -> object:
        name = _TYPES.get(kind, "FLOAT")
        if name == "INT64" and not hasattr(self._trt.DataType, "INT64"):
            name = "INT32"
            self._logger.log(
                self._trt.ILogger.Severity.WARNING,
                "Your ONNX model has been generated with INT64 weights"
                ", while TensorRT does not natively support INT64. Attempting to cast down to INT32.",
            )
        return getattr(self._trt.DataType, name)


def _values(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The element type and shape of every value, -1 for an open dimension."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph

    def found() -> Iterator[tuple[str, tuple[int, tuple[int, ...]]]]:
        for value in (*graph.value_info, *graph.input, *graph.output):
            kind = value.type.tensor_type
            yield (
                value.name,
                (kind.elem_type, tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)),
            )
        for tensor in graph.initializer:
            yield tensor.name, (tensor.data_type, tuple(tensor.dims))

    return dict(found())
