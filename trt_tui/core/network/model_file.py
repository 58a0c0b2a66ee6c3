"""The reading of an ONNX file from disk, with checks of its structure and its external data.

`check_structure` walks the protobuf message once and refuses damaged networks first of all. It refuses violations of
those ONNX rules that the rest of the program relies on:

- every tensor that is read is written, exactly once;
- every operator has the inputs, outputs and attributes that its schema requires, of the right type;
- every stored tensor has as many values as its shape states.

Shape inference and the backends refuse contradicting shapes. `onnx.checker` checks less: it does not know operators
outside ONNX, does not name the node, and does not count the values of tensors. It also requires sorted nodes.
"""

import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from trt_tui.core.network.graph import stored_tensor
from trt_tui.core.network.operators import EARLY_RUNTIME_OPERATORS, FOREIGN_SCHEMAS, refuse_quantized_operators
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.reading import check_regular_file

SMALL_TENSOR_BYTES = 1024
"""The maximum size of external tensors that are copied into memory; shapes and axes among them affect shape inference.
"""

logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # onnx_ir logs names from files unescaped

_COPY_NEXT_STEP = "It may be truncated or another format: copy or export the network again."


def read_model(path: Path) -> tuple[ir.Model, list[Path]]:
    """Reads an ONNX file. Returns the model and the paths of the external files with its weights.

    Initializers of the main graph in external files are memory-mapped at the first access. All other external tensors
    (in subgraphs, attributes, local functions) are read here, so that no other code resolves their paths.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated or damaged, or its external data are missing, too
            short or outside its folder; or it has operators on quantized values other than Q and DQ.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder", "an ONNX file is needed", "Name the .onnx file in it.")
    if check_regular_file(path).st_size == 0:
        raise InputError(f"{path} is empty", "the file has 0 bytes", "Copy or export the network again.")
    try:
        proto = onnx.load(path, load_external_data=False)
        if not proto.graph.node and not proto.graph.output:
            raise InputError(f"{path} is not an ONNX network", "it holds no graph", _COPY_NEXT_STEP)
        check_structure(proto, path.name)
        model = ir.from_proto(proto)
        refuse_quantized_operators(model, path.name)
        return model, _read_tensors(model, path)
    except TrtTuiError:
        raise
    except PermissionError as error:
        raise InputError(f"{path} cannot be read", str(error), "Check the file's permissions.") from None
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the wrapping exceptions only add the position in the file
            cause = cause.__cause__
        raise InputError(
            f"{path} is not a complete ONNX file", f"{type(cause).__name__}: {cause}", _COPY_NEXT_STEP
        ) from None


def _copy_to_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    array = tensor.numpy()
    return ir.Tensor(
        array.copy() if isinstance(tensor, ir.ExternalTensor) else array,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )


def _read_tensors(model: ir.Model, path: Path) -> list[Path]:
    """Copies tensors out of the parsed protobuf message, connects external tensors to their files in the folder of the
    network, and returns these files.

    A tensor in the message is copied at each access and keeps the whole message in memory.
    """
    folder = path.absolute().parent
    sizes: dict[str, int] = {}
    files = []

    def read_tensor(tensor: ir.TensorProtocol, *, stays_on_disk: bool = False) -> ir.TensorProtocol:
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            return _copy_to_memory(tensor)
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        location = os.fspath(tensor.location)
        if location not in sizes:
            files.append(_find_external_data_file(folder, location, path.name, tensor.name))
            sizes[location] = files[-1].stat().st_size
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if end > sizes[location]:
            raise _external_data_error(
                path.name, f"{location} has {sizes[location]} bytes; tensor {tensor.name} needs {end}: it is truncated"
            )
        tensor.base_dir = folder
        return tensor if stays_on_disk and tensor.nbytes > SMALL_TENSOR_BYTES else _copy_to_memory(tensor)

    for outer_graph in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in (outer_graph, *outer_graph.subgraphs()):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = read_tensor(value.const_value, stays_on_disk=graph is model.graph)
            for node in graph:
                for name, attr in list(node.attributes.items()):
                    if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
                        node.attributes[name] = ir.AttrTensor(name, read_tensor(attr.value), attr.doc_string)
                    elif attr.type == ir.AttributeType.TENSORS and not attr.is_ref():
                        node.attributes[name] = ir.AttrTensors(
                            name, list(map(read_tensor, attr.value)), attr.doc_string
                        )
    return files


def _find_external_data_file(folder: Path, location: str, file_name: str, tensor_name: str | None) -> Path:
    """Returns the path of an external data file after safety checks.

    The file must be in the folder of the network, also after symbolic links are resolved, and must have a single hard
    link.
    """
    data_path = Path(os.path.normpath(folder / location))
    if os.path.isabs(location) or folder not in data_path.parents:
        raise InputError(
            f"external data of {file_name} is outside its folder",
            f"tensor {tensor_name} points to {location}",
            "Save the network again with its data file beside it.",
        )
    if not data_path.is_file():
        raise _external_data_error(file_name, f"{location} is missing; tensor {tensor_name} needs it")
    if folder.resolve() not in data_path.resolve().parents:
        raise InputError(
            f"external data of {file_name} is outside its folder",
            f"{location} is a link to {data_path.resolve()}, which ONNX libraries refuse to follow",
            "Copy the network with its links followed (cp -L) and open the copy.",
        )
    if data_path.stat().st_nlink > 1:
        raise InputError(
            f"external data of {file_name} cannot be read",
            f"{location} has several hard links, which ONNX libraries refuse to read",
            "Copy the network and its data file, and open the copy.",
        )
    return data_path


def _external_data_error(file_name: str, cause: str) -> InputError:
    return InputError(
        f"external data of {file_name} cannot be read",
        cause,
        "Put the data file beside the .onnx file, under the name it was exported with.",
    )


OLDEST_OPSET = 7
"""The lowest opset that is read."""

_ONNX_DOMAIN = ""
_SCHEMA_DOMAINS = (_ONNX_DOMAIN, "ai.onnx.ml")
_ATTRIBUTE_TYPES = ir.AttributeType
_MESSAGE_FIELDS = {_ATTRIBUTE_TYPES.TENSOR: "t", _ATTRIBUTE_TYPES.GRAPH: "g", _ATTRIBUTE_TYPES.TYPE_PROTO: "tp"}
"""The attribute types whose value is a protobuf message, with the field that holds the message."""
_SPARSE_TYPES = (_ATTRIBUTE_TYPES.SPARSE_TENSOR, _ATTRIBUTE_TYPES.SPARSE_TENSORS)
_UNSUPPORTED_KINDS = ("map_type", "opaque_type", "sparse_tensor_type")
"""The kinds of values that are refused. If only the file states such a type of an inner value, the type is removed."""
_ATTRIBUTE_TYPE_NUMBERS = frozenset(int(kind) for kind in _ATTRIBUTE_TYPES) - {int(_ATTRIBUTE_TYPES.UNDEFINED)}
_DTYPE_NUMBERS = frozenset(int(dtype) for dtype in ir.DataType)
_DTYPE_ATTRIBUTES = frozenset(
    "to dtype output_dtype output_datatype precision scale_type softmax_precision stash_type".split()
)
"""The attributes of operators whose value is the number of a type. Optional ones may be 0, for no type."""
_MAX_OPSET = 2**31 - 1
"""The highest opset that onnx and ONNX Runtime can represent."""
_OPERAND_RANKS = {"Conv": (3, 64), "ConvTranspose": (3, 64), "Gemm": (2, 2), "MatMul": (1, 64)}
"""The minimum and maximum rank of both operands."""
_INTERPRETED_OPERATORS = frozenset((*_OPERAND_RANKS, "Cast", "Constant", "QuantizeLinear", "DequantizeLinear"))
"""Operators whose inputs and attributes the program reads.

In opsets that are newer than the installed onnx, these operators must match its newest schema."""
_REPLACEMENTS = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""The replacement of each operator that ONNX removed. ONNX Runtime still runs a GroupNormalization of opset 18."""
_SINGLE = OpSchema.FormalParameterOption.Single
_UNREAL_TYPES = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
_COMPLEX_TYPES = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def check_structure(model: onnx.ModelProto, file_name: str) -> None:
    """Refuses a damaged network and normalises a valid one, in place.

    Negative sizes and map types of inner tensors are removed, and the domain of ONNX is always written as "".

    Args:
        model: The parsed model, without loaded external data.
        file_name: The name of the file, for messages.

    Raises:
        InputError: the network is damaged; the error names the node or tensor.
    """
    _StructureCheck(model, file_name).check_model()


def check_operand_ranks(graph: ir.Graph, file_name: str) -> None:
    """Refuses products, such as Conv and MatMul, if an operand has an impossible rank. Unknown shapes are accepted.

    Raises:
        InputError: an operand has an impossible rank; the error names the node.
    """
    for node in graph:
        min_rank, max_rank = _OPERAND_RANKS.get(node.op_type, (0, 0)) if node.domain == _ONNX_DOMAIN else (0, 0)
        for value in node.inputs[:2] if max_rank else ():
            if value is not None and value.shape is not None and not min_rank <= len(value.shape) <= max_rank:
                raise InputError(
                    f"{file_name} is damaged",
                    f"{node.name} ({node.op_type}) reads tensor {value.name}, which has {len(value.shape)} axes",
                    "Copy or export the network again.",
                )


@functools.lru_cache(maxsize=4096)
def find_schema(op_type: str, domain: str, opset: int | None) -> OpSchema | None:
    """Returns the ONNX schema of an operator; None if it is not an ONNX operator.

    If the opset is newer than the installed onnx, only operators that the program interprets have a schema.
    """
    domain, newest_opset = _ONNX_DOMAIN if domain == "ai.onnx" else domain, onnx.defs.onnx_opset_version()
    if (
        opset is None
        or domain not in _SCHEMA_DOMAINS
        or domain == _ONNX_DOMAIN
        and (opset < OLDEST_OPSET or opset > newest_opset and op_type not in _INTERPRETED_OPERATORS)
    ):
        return None
    try:
        return onnx.defs.get_schema(op_type, min(opset, newest_opset if domain == _ONNX_DOMAIN else 1 << 20), domain)
    except onnx.defs.SchemaError:  # not an ONNX operator
        return None


def _find_any_schema(op_type: str, domain: str, opset: int | None) -> OpSchema | None:
    """Returns the schema of an ONNX operator, or of a foreign operator that the program reads; None for any other
    operator.
    """
    return FOREIGN_SCHEMAS.get((domain, op_type)) or find_schema(op_type, domain, opset)


def get_onnx_schema(op_type: str, opset: int) -> OpSchema:
    """Returns the schema of an ONNX operator at an opset. If the opset lacks the operator, it is that of the first
    opset with it.

    The opset may lack operators of `trt_tui.core.network.operators.EARLY_RUNTIME_OPERATORS`; `check_operator_opsets`
    refuses others.

    Raises:
        onnx.defs.SchemaError: ONNX has no such operator.
    """
    return onnx.defs.get_schema(op_type, max(opset, _find_first_opset(op_type)))


@functools.cache
def _find_first_opset(op_type: str) -> int:
    schemas = onnx.defs.get_all_schemas_with_history()
    return min(
        (schema.since_version for schema in schemas if schema.name == op_type and schema.domain == _ONNX_DOMAIN),
        default=0,
    )


def check_operator_opsets(graph: ir.Graph, opset: int, file_name: str) -> None:
    """Refuses ONNX operators that do not exist in the opset of the file.

    Raises:
        InputError: an operator is not part of the opset; the error names the node and the opsets that define its
            operator.
    """
    for node in graph.all_nodes():
        if node.domain != _ONNX_DOMAIN or node.op_type in EARLY_RUNTIME_OPERATORS or not onnx.defs.has(node.op_type):
            continue
        if opset < (first_opset := _find_first_opset(node.op_type)):
            raise InputError(
                f"{file_name} uses {node.op_type} in opset {opset}",
                f"node {node.name or node.op_type} needs opset {first_opset} or higher, and ONNX Runtime "
                "refuses it below",
                f"Export the network again with opset {first_opset} or higher.",
            )
        replacement = _REPLACEMENTS.get(node.op_type)
        if replacement is not None and (schema := get_onnx_schema(node.op_type, opset)).deprecated:
            raise InputError(
                f"{file_name} uses {node.op_type} in opset {opset}",
                f"node {node.name or node.op_type} has an operator that ONNX removed with opset "
                f"{schema.since_version}, and ONNX Runtime refuses it from there on",
                f"Export the network again; use {replacement} instead.",
            )


def check_input_types(graph: ir.Graph, opset: int, file_name: str) -> None:
    """Refuses operators that read text or complex numbers where their schema requires other numbers.

    Raises:
        InputError: an operator has such an input; the error names the node and the tensor.
    """
    for node in graph.all_nodes():
        for index, value in enumerate(node.inputs):
            dtype = _find_tensor_type(value)
            schema = _find_any_schema(node.op_type, node.domain, opset) if dtype in _UNREAL_TYPES else None
            if dtype is None or value is None or schema is None or not schema.inputs:
                continue
            if f"tensor({dtype.name.lower()})" not in schema.inputs[min(index, len(schema.inputs) - 1)].types:
                raise InputError(
                    f"{file_name} is damaged",
                    f"{node.name} ({node.op_type}) reads tensor {value.name}, which has the type {dtype.name}",
                    "Copy or export the network again.",
                )


def _find_tensor_type(value: ir.Value | None) -> ir.DataType | None:
    """Returns the type of a tensor as the file states it; None for sequences and unknown types."""
    if value is None or value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    constant = stored_tensor(value)
    return value.dtype if constant is None else constant.dtype


class _StructureCheck:
    """The structure check of one ONNX file."""

    def __init__(self, model: onnx.ModelProto, file_name: str) -> None:
        self.model = model
        self.file_name = file_name
        self.functions = {
            (function.domain, function.name, getattr(function, "overload", "")): function
            for function in model.functions
        }

    def check_model(self) -> None:
        if len(self.functions) < len(self.model.functions):
            raise self._damaged_file_error("it defines a local function twice")
        self._check_names_are_utf8("the opsets", *(entry.domain for entry in self.model.opset_import))
        for entry in (
            *self.model.opset_import,
            *(entry for local_function in self.model.functions for entry in local_function.opset_import),
        ):
            if not 0 <= entry.version <= _MAX_OPSET:
                raise self._damaged_file_error(f"its opset of {entry.domain or 'ONNX'} is {entry.version}")
            if entry.domain == "ai.onnx":
                entry.domain = _ONNX_DOMAIN
        opsets = _opset_by_domain(self.model.opset_import)
        for function in self.functions.values():
            self._check_function(function, opsets)
        self._check_graph(self.model.graph, [], opsets)

    def _check_names_are_utf8(self, location: str, *names: str | bytes) -> None:
        """Raises an error if a name is not valid UTF-8, which protobuf returns as bytes."""
        for name in names:
            if isinstance(name, bytes):
                raise self._damaged_file_error(f"a name of {location} is not UTF-8 text: {name!r}")

    def _damaged_file_error(self, cause: str) -> InputError:
        return InputError(f"{self.file_name} is damaged", cause, "Copy or export the network again.")

    # -- graphs ---------------------------------------------------------------------------------------------------

    def _check_function(self, function: onnx.FunctionProto, opsets: dict[str, int]) -> None:
        location = f"local function {function.name}"
        self._check_names_are_utf8(location, function.name, function.domain, *function.output, *function.attribute)
        tensor_names = self._collect_initial_names(location, function.input, ())
        self._check_nodes(
            function.node, tensor_names, [], {**opsets, **_opset_by_domain(function.opset_import)}, in_function=True
        )
        for name in function.output:
            if name not in tensor_names:
                raise self._damaged_file_error(f"no node computes output {name} of {location}")

    def _check_graph(
        self, graph: onnx.GraphProto, outer_names: list[set[str]], opsets: dict[str, int], *, in_function: bool = False
    ) -> None:
        """Checks a graph and its subgraphs.

        Args:
            outer_names: Tensor names of each surrounding graph.
            in_function: True if the graph is inside a local function.
        """
        location = f"graph {graph.name}" if outer_names else "the network"
        self._check_names_are_utf8(location, graph.name)
        if graph.sparse_initializer:
            raise InputError(
                f"{self.file_name} holds sparse weights",
                "sparse tensors are not supported",
                "Export the network with dense weights.",
            )
        for tensor in graph.initializer:
            self._check_tensor(tensor, f"initializer {tensor.name or '(unnamed)'}")
        initializers = [tensor.name for tensor in graph.initializer]
        tensor_names = self._collect_initial_names(location, [value.name for value in graph.input], initializers)
        for info in [info for info in graph.value_info if info.type.WhichOneof("value") in _UNSUPPORTED_KINDS]:
            graph.value_info.remove(info)  # onnx-ir cannot represent it
        for value in (*graph.input, *graph.output, *graph.value_info):
            self._check_names_are_utf8(location, value.name)
            self._check_type(value.type, value.name)
        self._check_nodes(graph.node, tensor_names, outer_names, opsets, in_function=in_function)
        for value in graph.output:
            if value.name not in tensor_names and not any(value.name in names for names in outer_names):
                raise self._damaged_file_error(f"no node computes output {value.name or '(unnamed)'} of {location}")

    def _collect_initial_names(self, location: str, inputs: Sequence[str], initializers: Sequence[str]) -> set[str]:
        """Returns the names of the tensors that exist before the first node. Old files also list initializers as
        inputs.
        """
        for names, kind in ((inputs, "input"), (initializers, "initializer")):
            repeated_name = _find_repeated_name(names)
            if repeated_name is not None:
                raise self._damaged_file_error(f"{kind} {repeated_name} of {location} occurs twice")
            if "" in names:
                raise self._damaged_file_error(f"an {kind} of {location} has no name")
            self._check_names_are_utf8(location, *names)
        return {*inputs, *initializers}

    def _check_nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        tensor_names: set[str],
        outer_names: list[set[str]],
        opsets: dict[str, int],
        *,
        in_function: bool,
    ) -> None:
        """Checks the nodes of a graph, in any order, and adds the names of their outputs to ``tensor_names``."""
        for node in nodes:
            self._check_names_are_utf8(
                _node_title(node),
                node.name,
                node.op_type,
                node.domain,
                *node.input,
                *node.output,
                *(text for entry in node.metadata_props for text in (entry.key, entry.value)),
            )
            for name in node.output:
                if name in tensor_names:
                    raise self._damaged_file_error(f"{_node_title(node)} computes tensor {name}, which already exists")
                if name:
                    tensor_names.add(name)
        for node in nodes:
            for name in node.input:
                if name and name not in tensor_names and not any(name in names for names in outer_names):
                    raise self._damaged_file_error(f"{_node_title(node)} reads tensor {name}, which does not exist")
            self._check_node(node, opsets)
            for attribute in node.attribute:
                self._check_attribute(node, attribute, in_function)
                for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                    self._check_graph(graph, [*outer_names, tensor_names], opsets, in_function=in_function)
        cyclic_node = _find_node_on_cycle(nodes)
        if cyclic_node is not None:
            raise InputError(
                f"{self.file_name} has a cycle",
                f"{_node_title(cyclic_node)} depends on its own result",
                "Check the export.",
            )

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _check_node(self, node: onnx.NodeProto, opsets: dict[str, int]) -> None:
        if not node.op_type:
            raise self._damaged_file_error(f"{_node_title(node)} has no operator")
        if not any(node.output):
            raise self._damaged_file_error(f"{_node_title(node)} has no output")
        repeated_name = _find_repeated_name(attribute.name for attribute in node.attribute)
        if repeated_name is not None:
            raise self._damaged_file_error(f"{_node_title(node)} has attribute {repeated_name} twice")
        function = self.functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            if len(node.input) > len(function.input) or len(node.output) > len(function.output):
                raise self._damaged_file_error(
                    f"{_node_title(node)} has more inputs or outputs than its local function"
                )
            return
        domain = _ONNX_DOMAIN if node.domain == "ai.onnx" else node.domain
        schema = _find_any_schema(node.op_type, domain, opsets.get(domain))
        if schema is None:
            return
        self._check_schema(schema, node)
        if schema.domain not in _SCHEMA_DOMAINS:  # other releases may know further attributes
            return
        for attribute in node.attribute:
            if attribute.name not in schema.attributes and not attribute.name.startswith("__"):
                raise InputError(
                    f"{self.file_name} has an attribute that its operator does not have",
                    f"{_node_title(node)} has {attribute.name}, and ONNX Runtime refuses it",
                    "Remove the attribute, or export the network again.",
                )

    def _check_schema(self, schema: OpSchema, node: onnx.NodeProto) -> None:
        for names, min_count, max_count, kind, parameters in (
            (node.input, schema.min_input, schema.max_input, "inputs", schema.inputs),
            (node.output, schema.min_output, schema.max_output, "outputs", schema.outputs),
        ):
            if not min_count <= len(names) <= max_count:
                expected_count = (
                    str(min_count)
                    if min_count == max_count
                    else f"{min_count} or more"
                    if max_count > 1 << 20
                    else f"{min_count} to {max_count}"
                )
                raise self._damaged_file_error(
                    f"{_node_title(node)} has {len(names)} {kind}; {node.op_type} has {expected_count}"
                )
            if kind == "inputs":
                for parameter, name in zip(parameters, names, strict=False):
                    if parameter.option == _SINGLE and not name:
                        raise self._damaged_file_error(f"{_node_title(node)} lacks its input {parameter.name}")
        attribute_by_name = {attribute.name: attribute for attribute in node.attribute}
        for name, formal_attribute in schema.attributes.items():
            attribute = attribute_by_name.get(name)
            if attribute is None:
                if formal_attribute.required:
                    raise self._damaged_file_error(f"{_node_title(node)} lacks attribute {name}")
            elif attribute.type != formal_attribute.type.value:  # type: ignore[attr-defined]  # onnx's stubs lack it
                raise self._damaged_file_error(
                    f"attribute {name} of {_node_title(node)} has another type than {node.op_type} takes"
                )
            elif attribute.type == onnx.AttributeProto.STRING and name != "value_string" and not _is_utf8(attribute.s):
                raise self._damaged_file_error(f"attribute {name} of {_node_title(node)} is not text")
            elif (
                name in _DTYPE_ATTRIBUTES
                and not attribute.ref_attr_name
                and attribute.i not in (_DTYPE_NUMBERS if not formal_attribute.required else _DTYPE_NUMBERS - {0})
            ):
                raise self._damaged_file_error(
                    f"attribute {name} of {_node_title(node)} is {attribute.i}, which is not the number of a type"
                )
        if schema.name == "Constant" and not any(name in schema.attributes for name in attribute_by_name):
            raise self._damaged_file_error(f"{_node_title(node)} holds no value")

    def _check_attribute(self, node: onnx.NodeProto, attribute: onnx.AttributeProto, in_function: bool) -> None:
        location = f"attribute {attribute.name or '(unnamed)'} of {_node_title(node)}"
        self._check_names_are_utf8(location, attribute.name, attribute.ref_attr_name)
        if not attribute.name or attribute.type not in _ATTRIBUTE_TYPE_NUMBERS:
            raise self._damaged_file_error(f"{location} has no type or no name")
        if attribute.ref_attr_name:
            if not in_function:
                raise self._damaged_file_error(f"{location} refers to a local function, but is not in one")
            return
        kind = _ATTRIBUTE_TYPES(attribute.type)
        if kind in _SPARSE_TYPES:
            raise InputError(
                f"{self.file_name} holds sparse tensors",
                f"{location} is a sparse tensor, which is not supported",
                "Export the network with dense tensors.",
            )
        if kind in _MESSAGE_FIELDS and not attribute.HasField(_MESSAGE_FIELDS[kind]):
            raise self._damaged_file_error(f"{location} is empty")
        if kind is _ATTRIBUTE_TYPES.STRINGS and not all(map(_is_utf8, attribute.strings)):
            raise self._damaged_file_error(f"{location} is not text")
        if kind is _ATTRIBUTE_TYPES.TENSOR:
            self._check_tensor(attribute.t, location)
        for tensor in attribute.tensors:
            self._check_tensor(tensor, location)
        for type_proto in (*attribute.type_protos, *((attribute.tp,) if kind is _ATTRIBUTE_TYPES.TYPE_PROTO else ())):
            self._check_type(type_proto, location)

    # -- tensors and types ----------------------------------------------------------------------------------------

    def _check_tensor(self, tensor: onnx.TensorProto, location: str) -> None:
        """Checks that a stored tensor has as many values as its shape requires."""
        if tensor.data_type not in _DTYPE_NUMBERS or not tensor.data_type:
            raise self._damaged_file_error(f"{location} is of no known type ({tensor.data_type})")
        if any(size < 0 for size in tensor.dims):
            raise self._damaged_file_error(f"{location} has the shape {list(tensor.dims)}")
        if tensor.HasField("segment"):
            raise self._damaged_file_error(f"{location} is stored in segments, which are not supported")
        count = math.prod(tensor.dims)
        bits = None if tensor.data_type == onnx.TensorProto.STRING else int(ir.DataType(tensor.data_type).itemsize * 8)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            self._check_external_data(tensor, location, None if bits is None else -(-count * bits // 8))
            return
        if tensor.HasField("raw_data"):
            if bits is None:
                raise self._damaged_file_error(f"{location} holds text as raw bytes")
            expected_count, stored_count, unit = -(-count * bits // 8), len(tensor.raw_data), "bytes"
        else:
            per_value = 8 // bits if bits in (2, 4) else 1
            expected_count = count * 2 if tensor.data_type in _COMPLEX_TYPES else -(-count // per_value)
            stored_count, unit = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))), "values"
        if stored_count != expected_count:
            raise self._damaged_file_error(
                f"{location} has the shape {list(tensor.dims)} and so {expected_count} {unit}; it holds {stored_count}"
            )

    def _check_external_data(self, tensor: onnx.TensorProto, location: str, size: int | None) -> None:
        if size is None:
            raise self._damaged_file_error(f"{location} holds text, which cannot be in another file")
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries.get("location") or "\0" in entries["location"]:
            raise self._damaged_file_error(f"{location} is in another file without a name")
        for key in ("offset", "length"):
            text = entries.get(key, "0")
            if not (text.isascii() and text.isdigit() and len(text) < 19):
                raise self._damaged_file_error(f"{location} is in another file, at {key} {text[:40]!r}")
        if "length" in entries and int(entries["length"]) != size:
            raise self._damaged_file_error(
                f"{location} has the shape {list(tensor.dims)} and so {size} bytes; it has "
                f"{entries['length']} bytes in another file"
            )

    def _check_type(self, type_proto: onnx.TypeProto, location: str) -> None:
        """Checks the type of a value, and removes negative sizes, which mean open sizes."""
        kind = type_proto.WhichOneof("value")
        if kind in ("sequence_type", "optional_type"):
            inner = getattr(type_proto, kind)
            if inner.elem_type.WhichOneof("value") is None:
                raise self._damaged_file_error(f"{location} is a sequence or an optional of nothing")
            self._check_type(inner.elem_type, location)
        elif kind in _UNSUPPORTED_KINDS:
            name = kind.removesuffix("_type").replace("_", " ")
            raise InputError(
                f"{self.file_name} works on {name}s",
                f"{location} is such a value; only tensors and sequences are supported",
                "Export it without (skl2onnx: options={'zipmap': False}).",
            )
        elif kind == "tensor_type":
            if type_proto.tensor_type.elem_type not in _DTYPE_NUMBERS:
                raise self._damaged_file_error(f"{location} is of no known type ({type_proto.tensor_type.elem_type})")
            for dimension in type_proto.tensor_type.shape.dim:
                self._check_names_are_utf8(location, dimension.dim_param)
                if dimension.dim_value < 0:
                    dimension.Clear()


def _find_node_on_cycle(nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    """Returns a node that depends on its own output; None if there is none."""
    producers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    predecessors = [{producers[name] for name in _iterate_input_names(node) if name in producers} for node in nodes]
    if all(max(predecessor, default=-1) < index for index, predecessor in enumerate(predecessors)):
        return None  # the nodes are sorted, as in nearly all files
    try:
        TopologicalSorter(dict(enumerate(predecessors))).prepare()
    except CycleError as error:
        index: int = error.args[1][0]
        return nodes[index]
    return None


def _iterate_input_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names of all tensors that a node and its subgraphs read."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _iterate_input_names(inner)


def _opset_by_domain(opset_imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {entry.domain: entry.version for entry in opset_imports}


def _node_title(node: onnx.NodeProto) -> str:
    """Returns the name of a node for messages, with its operator."""
    name = node.name or f"node_of_{next((name for name in node.output if name), 'nothing')}"
    return f"{name} ({node.op_type or 'no operator'})"


def _find_repeated_name(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _is_utf8(text: bytes) -> bool:
    return text.decode(errors="ignore").encode() == text
