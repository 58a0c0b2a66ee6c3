"""Whether a parsed file holds a network: checked once, before anything is built on it.

`check_structure` goes over the protobuf message once and refuses what ONNX's rules do not allow and the rest of the
program relies on: every tensor that is read is made, once; every operator has the inputs, outputs and attributes that
its schema asks for, of the right type; every stored tensor has as many values as its shape says. Shapes that do not fit
each other are left to shape inference and to what runs the network. `onnx.checker` checks less: it wants sorted
nodes, knows no operator outside of ONNX, names no node, and does not count the values of tensors.
"""

import functools
import math
from collections.abc import Iterable, Iterator, MutableSequence, Sequence

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from trt_tui.core.network.plugins import ORT_BEFORE_ONNX
from trt_tui.errors import InputError

OLDEST_OPSET = 7
"""The lowest opset that is read."""

_DOMAIN = ""
_SCHEMA_DOMAINS = (_DOMAIN, "ai.onnx.ml")
_KINDS = ir.AttributeType
_MESSAGES = {_KINDS.TENSOR: "t", _KINDS.GRAPH: "g", _KINDS.TYPE_PROTO: "tp"}
"""Attributes whose one value is a message of its own, and the field that it lies in."""
_SPARSE = (_KINDS.SPARSE_TENSOR, _KINDS.SPARSE_TENSORS)
_ATTRIBUTE_KINDS = frozenset(int(kind) for kind in _KINDS) - {int(_KINDS.UNDEFINED)}
_DTYPES = frozenset(int(dtype) for dtype in ir.DataType)
_RANKS = {"Conv": (3, 64), "ConvTranspose": (3, 64), "Gemm": (2, 2), "MatMul": (1, 64)}
"""The least and the most axes of both operands."""
_RELIED_ON = frozenset((*_RANKS, "Cast", "Constant", "QuantizeLinear", "DequantizeLinear"))
"""Operators that the program takes apart: in opsets newer than onnx's, too, they must look as in its newest."""
_REPLACEMENTS = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Operators in place of those that ONNX has ended. ONNX Runtime still runs a GroupNormalization of opset 18."""
_SINGLE = OpSchema.FormalParameterOption.Single
_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def check_structure(model: onnx.ModelProto, file: str) -> None:
    """Refuses a damaged network; removes what has no bearing on it (negative sizes, map types of inner tensors), and
    writes ONNX's domain one way.

    Args:
        model: As parsed, external data not loaded.
        file: The file's name, for messages.

    Raises:
        InputError: with the name of the node or tensor that is damaged.
    """
    _Check(model, file).run()


def check_ranks(graph: ir.Graph, file: str) -> None:
    """Refuses operators that multiply whose operands have, as far as shapes are known, an impossible number of axes.

    Raises:
        InputError: with the name of the node.
    """
    for node in graph:
        least, most = _RANKS.get(node.op_type, (0, 0)) if node.domain == _DOMAIN else (0, 0)
        for value in node.inputs[:2] if most else ():
            if value is not None and value.shape is not None and not least <= len(value.shape) <= most:
                raise InputError(f"{file} is damaged", f"{node.name} ({node.op_type}) reads tensor {value.name}, which "
                                 f"has {len(value.shape)} axes", "Copy or export the network again.")


def schema_of(op_type: str, domain: str, opset: int | None) -> OpSchema | None:
    """ONNX's schema of an operator; None for operators that are not ONNX's, and for most of an opset that is newer."""
    domain = _DOMAIN if domain == "ai.onnx" else domain
    return _schema(op_type, domain, opset) if opset is not None and domain in _SCHEMA_DOMAINS else None


@functools.lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, opset: int) -> OpSchema | None:
    newest = onnx.defs.onnx_opset_version()
    if domain == _DOMAIN and (opset < OLDEST_OPSET or opset > newest and op_type not in _RELIED_ON):
        return None
    opset = min(opset, newest) if domain == _DOMAIN else min(opset, 1 << 20)
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:  # an operator of somebody else
        return None


def known_schema(op_type: str, opset: int) -> OpSchema:
    """Returns the schema of an operator of ONNX at an opset, or at the first opset that has it.

    The latter is for `trt_tui.core.network.plugins.ORT_BEFORE_ONNX`; `refuse_other_opsets` refuses other operators.

    Raises:
        onnx.defs.SchemaError: ONNX has no such operator.
    """
    return onnx.defs.get_schema(op_type, max(opset, _first_opset(op_type)))


@functools.cache
def _first_opset(op_type: str) -> int:
    schemas = onnx.defs.get_all_schemas_with_history()
    return min((one.since_version for one in schemas if one.name == op_type and one.domain == _DOMAIN), default=0)


def refuse_other_opsets(graph: ir.Graph, opset: int, file: str) -> None:
    """Refuses operators of ONNX that the opset of a file does not have, or does not have any more.

    Raises:
        InputError: with the name of the node, and the opsets that have its operator.
    """
    for node in graph.all_nodes():
        if node.domain != _DOMAIN or node.op_type in ORT_BEFORE_ONNX or not onnx.defs.has(node.op_type):
            continue
        if opset < (first := _first_opset(node.op_type)):
            raise InputError(f"{file} uses {node.op_type} in opset {opset}",
                             f"node {node.name or node.op_type} needs opset {first} or higher, and ONNX Runtime "
                             "refuses it below",
                             f"Export the network again with opset {first} or higher.")
        other = _REPLACEMENTS.get(node.op_type)
        if other is not None and (schema := known_schema(node.op_type, opset)).deprecated:
            raise InputError(f"{file} uses {node.op_type} in opset {opset}",
                             f"node {node.name or node.op_type} has an operator that ONNX ended with opset "
                             f"{schema.since_version}, and ONNX Runtime refuses it from there on",
                             f"Export the network again; {other} takes its place.")


class _Check:
    """One file under check."""

    def __init__(self, model: onnx.ModelProto, file: str) -> None:
        self.model = model
        self.file = file
        self.functions = {(one.domain, one.name, getattr(one, "overload", "")): one for one in model.functions}

    def run(self) -> None:
        if len(self.functions) < len(self.model.functions):
            raise self._damaged("it defines a local function twice")
        self._text("the opsets", *(one.domain for one in self.model.opset_import))
        for one in (*self.model.opset_import, *(one for each in self.model.functions for one in each.opset_import)):
            if one.domain == "ai.onnx":
                one.domain = _DOMAIN
        opsets = _opsets(self.model.opset_import)
        for function in self.functions.values():
            self._function(function, opsets)
        self._graph(self.model.graph, [], opsets)

    def _text(self, where: str, *names: str | bytes) -> None:
        """Protobuf passes text that is not valid UTF-8 on as bytes."""
        for name in names:
            if isinstance(name, bytes):
                raise self._damaged(f"a name of {where} is no text in UTF-8: {name!r}")

    def _damaged(self, cause: str) -> InputError:
        return InputError(f"{self.file} is damaged", cause, "Copy or export the network again.")

    # -- graphs ---------------------------------------------------------------------------------------------------

    def _function(self, function: onnx.FunctionProto, opsets: dict[str, int]) -> None:
        where = f"local function {function.name}"
        self._text(where, function.name, function.domain, *function.output, *function.attribute)
        made = self._made(where, (), (), function.input)
        self._nodes(function.node, made, [], {**opsets, **_opsets(function.opset_import)}, within=True)
        for name in function.output:
            if name not in made:
                raise self._damaged(f"nothing makes output {name} of {where}")

    def _graph(self, graph: onnx.GraphProto, outer: list[set[str]], opsets: dict[str, int], *,
               within: bool = False) -> None:
        """Args: outer: what the graphs around it make. within: whether it lies in a local function."""
        where = f"graph {graph.name}" if outer else "the network"
        self._text(where, graph.name)
        if graph.sparse_initializer:
            raise InputError(f"{self.file} holds sparse weights", "sparse tensors are not read",
                             "Export the network with dense weights.")
        for tensor in graph.initializer:
            self._tensor(tensor, f"initializer {tensor.name or '(unnamed)'}")
        initializers = [tensor.name for tensor in graph.initializer]
        made = self._made(where, [value.name for value in graph.input], initializers, ())
        for value in (*graph.input, *graph.output):
            self._text(where, value.name)
            self._type(value.type, value.name)
        _drop_unreadable(graph.value_info)
        for value in graph.value_info:
            self._text(where, value.name)
            self._type(value.type, value.name)
        self._nodes(graph.node, made, outer, opsets, within=within)
        for value in graph.output:
            if value.name not in made and not any(value.name in names for names in outer):
                raise self._damaged(f"nothing makes output {value.name or '(unnamed)'} of {where}")

    def _made(self, where: str, inputs: Sequence[str], initializers: Sequence[str],
              parameters: Sequence[str]) -> set[str]:
        """Names that are there before the first node. Old files list initializers among the inputs, too."""
        for names, what in ((inputs, "input"), (initializers, "initializer"), (parameters, "input")):
            twice = _first_repeated(names)
            if twice is not None:
                raise self._damaged(f"{what} {twice} of {where} stands there twice")
            if "" in names:
                raise self._damaged(f"an {what} of {where} has no name")
            self._text(where, *names)
        return {*inputs, *initializers, *parameters}

    def _nodes(self, nodes: Sequence[onnx.NodeProto], made: set[str], outer: list[set[str]], opsets: dict[str, int], *,
               within: bool) -> None:
        """Adds what the nodes make to ``made``, in any order: they may stand unsorted."""
        for node in nodes:
            self._text(_title(node), node.name, node.op_type, node.domain, *node.input, *node.output,
                       *(text for one in node.metadata_props for text in (one.key, one.value)))
            for name in node.output:
                if name in made:
                    raise self._damaged(f"{_title(node)} makes tensor {name}, which is made or given elsewhere, too")
                if name:
                    made.add(name)
        for node in nodes:
            for name in node.input:
                if name and name not in made and not any(name in names for names in outer):
                    raise self._damaged(f"{_title(node)} reads tensor {name}, which nothing makes")
            self._node(node, opsets)
            for attribute in node.attribute:
                self._attribute(node, attribute, within)
                for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                    self._graph(graph, [*outer, made], opsets, within=within)
        on_cycle = _node_on_cycle(nodes)
        if on_cycle is not None:
            raise InputError(f"{self.file} has a cycle", f"{_title(on_cycle)} depends on its own result",
                             "Check the export.")

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _node(self, node: onnx.NodeProto, opsets: dict[str, int]) -> None:
        if not node.op_type:
            raise self._damaged(f"{_title(node)} has no operator")
        if not any(node.output):
            raise self._damaged(f"{_title(node)} has no output")
        twice = _first_repeated(attribute.name for attribute in node.attribute)
        if twice is not None:
            raise self._damaged(f"{_title(node)} has attribute {twice} twice")
        function = self.functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            if len(node.input) > len(function.input) or len(node.output) > len(function.output):
                raise self._damaged(f"{_title(node)} has more inputs or outputs than its local function")
            return
        domain = _DOMAIN if node.domain == "ai.onnx" else node.domain
        schema = schema_of(node.op_type, domain, opsets.get(domain))
        if schema is None:
            return
        self._against(schema, node)
        for attribute in node.attribute:
            if attribute.name not in schema.attributes and not attribute.name.startswith("__"):
                raise InputError(f"{self.file} has an attribute that its operator does not know",
                                 f"{_title(node)} has {attribute.name}, and ONNX Runtime refuses it",
                                 "Remove the attribute, or export the network again.")

    def _against(self, schema: OpSchema, node: onnx.NodeProto) -> None:
        """Checks a node against its operator's schema."""
        for names, least, most, what, formal in (
                (node.input, schema.min_input, schema.max_input, "inputs", schema.inputs),
                (node.output, schema.min_output, schema.max_output, "outputs", schema.outputs)):
            if not least <= len(names) <= most:
                wanted = str(least) if least == most else f"{least} or more" if most > 1 << 20 else f"{least} to {most}"
                raise self._damaged(f"{_title(node)} has {len(names)} {what}; {node.op_type} has {wanted}")
            if what == "inputs":
                for one, name in zip(formal, names, strict=False):
                    if one.option == _SINGLE and not name:
                        raise self._damaged(f"{_title(node)} lacks its input {one.name}")
        given = {attribute.name: attribute for attribute in node.attribute}
        for name, formal_attribute in schema.attributes.items():
            attribute = given.get(name)
            if attribute is None:
                if formal_attribute.required:
                    raise self._damaged(f"{_title(node)} lacks attribute {name}")
            elif attribute.type != _type_number(formal_attribute):
                raise self._damaged(f"attribute {name} of {_title(node)} has another type than {node.op_type} takes")
        if schema.name == "Constant" and not any(name in schema.attributes for name in given):
            raise self._damaged(f"{_title(node)} holds no value")

    def _attribute(self, node: onnx.NodeProto, attribute: onnx.AttributeProto, within: bool) -> None:
        where = f"attribute {attribute.name or '(unnamed)'} of {_title(node)}"
        self._text(where, attribute.name, attribute.ref_attr_name)
        if not attribute.name or attribute.type not in _ATTRIBUTE_KINDS:
            raise self._damaged(f"{where} has no type or no name")
        if attribute.ref_attr_name:
            if not within:
                raise self._damaged(f"{where} stands for one of a local function, and there is none around it")
            return
        kind = _KINDS(attribute.type)
        if kind in _SPARSE:
            raise InputError(f"{self.file} holds sparse tensors", f"{where} is one; they are not read",
                             "Export the network with dense tensors.")
        if kind in _MESSAGES and not attribute.HasField(_MESSAGES[kind]):
            raise self._damaged(f"{where} is empty")
        if kind is _KINDS.STRINGS and not all(map(_readable, attribute.strings)):
            raise self._damaged(f"{where} is no text")
        if kind is _KINDS.TENSOR:
            self._tensor(attribute.t, where)
        for tensor in attribute.tensors:
            self._tensor(tensor, where)
        for one in (*attribute.type_protos, *((attribute.tp,) if kind is _KINDS.TYPE_PROTO else ())):
            self._type(one, where)

    # -- tensors and types ----------------------------------------------------------------------------------------

    def _tensor(self, tensor: onnx.TensorProto, where: str) -> None:
        """Checks what is stored against the shape: a tensor of another size would be read as garbage, or not at all."""
        if tensor.data_type not in _DTYPES or not tensor.data_type:
            raise self._damaged(f"{where} is of no known type ({tensor.data_type})")
        if any(size < 0 for size in tensor.dims):
            raise self._damaged(f"{where} has the shape {list(tensor.dims)}")
        if tensor.HasField("segment"):
            raise self._damaged(f"{where} is stored in segments, which nothing reads")
        count = math.prod(tensor.dims)
        bits = None if tensor.data_type == onnx.TensorProto.STRING else int(ir.DataType(tensor.data_type).itemsize * 8)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            self._external(tensor, where, None if bits is None else -(-count * bits // 8))
            return
        if tensor.HasField("raw_data"):
            if bits is None:
                raise self._damaged(f"{where} holds text as raw bytes")
            wanted, stored, unit = -(-count * bits // 8), len(tensor.raw_data), "bytes"
        else:
            per_value = 8 // bits if bits in (2, 4) else 1
            wanted = count * 2 if tensor.data_type in _COMPLEX else -(-count // per_value)
            stored, unit = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))), "values"
        if stored != wanted:
            raise self._damaged(f"{where} has the shape {list(tensor.dims)} and so {wanted} {unit}; it holds {stored}")

    def _external(self, tensor: onnx.TensorProto, where: str, size: int | None) -> None:
        if size is None:
            raise self._damaged(f"{where} holds text, which cannot lie in another file")
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries.get("location") or "\0" in entries["location"]:
            raise self._damaged(f"{where} lies in another file, which is not named")
        for key in ("offset", "length"):
            text = entries.get(key, "0")
            if not (text.isascii() and text.isdigit() and len(text) < 19):
                raise self._damaged(f"{where} lies in another file, at {key} {text[:40]!r}")
        if "length" in entries and int(entries["length"]) != size:
            raise self._damaged(f"{where} has the shape {list(tensor.dims)} and so {size} bytes; "
                                f"it lies in {entries['length']} of another file")

    def _type(self, given: onnx.TypeProto, where: str) -> None:
        """Checks a type, and removes negative sizes, which mean open ones."""
        kind = given.WhichOneof("value")
        if kind in ("sequence_type", "optional_type"):
            inner = getattr(given, kind)
            if inner.elem_type.WhichOneof("value") is None:
                raise self._damaged(f"{where} is a sequence or an optional of nothing")
            self._type(inner.elem_type, where)
        elif kind in ("map_type", "opaque_type", "sparse_tensor_type"):
            name = kind.removesuffix("_type").replace("_", " ")
            raise InputError(f"{self.file} works on {name}s", f"{where} is one; only tensors and sequences are read",
                             "Export it without (skl2onnx: options={'zipmap': False}).")
        elif kind == "tensor_type":
            if given.tensor_type.elem_type not in _DTYPES:
                raise self._damaged(f"{where} is of no known type ({given.tensor_type.elem_type})")
            for dimension in given.tensor_type.shape.dim:
                self._text(where, dimension.dim_param)
                if dimension.dim_value < 0:
                    dimension.Clear()


def _node_on_cycle(nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    """A node that is computed from its own output; None where there is none."""
    producers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needed = [{producers[name] for name in _reads(node) if name in producers} for node in nodes]
    if all(max(before, default=-1) < index for index, before in enumerate(needed)):
        return None  # sorted, as nearly all are
    done: set[int] = set()
    entered: set[int] = set()
    stack = list(range(len(nodes)))
    while stack:
        index = stack[-1]
        if index in done:
            stack.pop()
        elif index in entered:
            done.add(stack.pop())
        else:
            entered.add(index)
            for before in needed[index] - done:
                if before in entered:
                    return nodes[before]
                stack.append(before)
    return None


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names of what a node reads, what its subgraphs read too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {one.domain: one.version for one in imports}


def _title(node: onnx.NodeProto) -> str:
    """What a node is called in a message, with its operator."""
    name = node.name or f"node_of_{next((name for name in node.output if name), 'nothing')}"
    return f"{name} ({node.op_type or 'no operator'})"


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _type_number(formal: OpSchema.Attribute) -> int:
    number: int = formal.type.value  # type: ignore[attr-defined]  # onnx's stubs know no value of its enums
    return number


def _drop_unreadable(infos: MutableSequence[onnx.ValueInfoProto]) -> None:
    """Removes value infos of inner values that are no tensors, which onnx-ir cannot hold."""
    kept = [info for info in infos if not _unreadable(info.type)]
    if len(kept) < len(infos):
        del infos[:]
        infos.extend(kept)


def _unreadable(given: onnx.TypeProto) -> bool:
    kind = given.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _unreadable(getattr(given, kind).elem_type)
    return kind in ("map_type", "opaque_type", "sparse_tensor_type")


def _readable(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
