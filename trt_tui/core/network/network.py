"""The network as the rest of the program sees it: layers, tensors, fusion groups, and what each can run in."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network import groups as fusion
from trt_tui.core.network.hierarchy import stated_scope
from trt_tui.core.network.layers import COPY_OPERATORS, Group, Kind, Layer, Outline
from trt_tui.core.network.opening import Opened, constant_tensor, convert_opset, open_model
from trt_tui.core.precision import FP16_MAX
from trt_tui.core.runner import Backend, TensorInfo
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError

FP16_MASK = FP16_MAX / 2
"""What a constant beyond FP16 is clamped to: such constants are masks (-3.4e38 in front of a Softmax), and half of the
range leaves room for the scores that are added to them."""


_QUANTIZED_OPERATORS = frozenset(
    "QLinearConv QLinearMatMul ConvInteger MatMulInteger DynamicQuantizeLinear QuantizeLinear DequantizeLinear".split())


class Network:
    """An opened network. Immutable; its model is shared and must not be changed by anybody.

    Args:
        opened: What `trt_tui.core.network.opening.open_model` returned.
        path: The file, for names and hashes.
        backend: Gives what runs the network, and so its constant expressions; asked when the first one is met.
    """

    def __init__(self, opened: Opened, path: Path, backend: Callable[[], Backend] | None = None) -> None:
        self.path = path
        self._backend = backend
        self.name = path.name
        self.model = opened.model
        self.notes = list(opened.notes)
        self.external_files = tuple(opened.external_files)
        self._unused_weights = dict(opened.unused_weights)
        self.opset = self.model.graph.opset_imports.get("", 0)
        self._read_values()
        self._read_layers()
        self.groups: tuple[Group, ...] = fusion.find_groups(self)
        self._group_of = {layer: group for group in self.groups for layer in group.layers}
        self._groups_by_name = {group.name: group for group in self.groups}
        self.quantized_ranges = {t: r for t, r in opened.quantized_ranges.items() if t in self._values}
        self.quantized_groups = frozenset(
            self._group_of[name].name for name in opened.quantized_layers
            if name in self._group_of and self._group_of[name].quantizable)
        self._models: dict[int, ir.Model] = {self.opset: self.model}
        self._constants: dict[str, np.ndarray] = {}
        self._folded = False
        self._amax: dict[tuple[str, int | None], np.ndarray] = {}

    # -- what is in it ------------------------------------------------------------------------------------------

    def _read_values(self) -> None:
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {v.name: v for v in graph.inputs}
        self._values.update((v.name, v) for v in graph.initializers.values())
        for node in graph:
            self._values.update((v.name, v) for v in node.outputs if v.name)
        self.inputs = tuple(self._info(v) for v in graph.inputs)
        self.outputs = tuple(self._info(v) for v in graph.outputs)

    @staticmethod
    def _info(value: ir.Value) -> TensorInfo:
        if value.dtype in (None, ir.DataType.UNDEFINED) or not isinstance(value.type, ir.TensorType):
            dtype = np.dtype(object)
        else:
            dtype = np.dtype(value.dtype.numpy())
        return TensorInfo(value.name, dtype, _shape(value))

    def _read_layers(self) -> None:
        graph = self.model.graph
        nodes = list(graph)
        self.producer: dict[str, str] = {}
        self.consumers: dict[str, list[str]] = {}
        constant = set(graph.initializers)
        static = set(constant)  # computed from constants and shapes alone
        layers = []
        for index, node in enumerate(nodes):
            layer = self._layer(index, node, constant, static)
            layers.append(layer)
            for name in layer.outputs:
                if name:
                    self.producer[name] = layer.name
            for name in dict.fromkeys((*layer.inputs, *_captured(node))):
                if name:
                    self.consumers.setdefault(name, []).append(layer.name)
        self.layers: tuple[Layer, ...] = tuple(layers)
        self._layers_by_name = {layer.name: layer for layer in layers}
        self._nodes = {node.name: node for node in nodes}
        self.constants = frozenset(constant)
        self.static = frozenset(static)

    def _layer(self, index: int, node: ir.Node, constant: set[str], static: set[str]) -> Layer:
        inputs = tuple(v.name if v is not None else "" for v in node.inputs)
        outputs = tuple(v.name or "" for v in node.outputs)
        named = [name for name in (*inputs, *_captured(node)) if name]
        kind, note = self._classify(node)
        random = node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")
        if kind is not Kind.OPAQUE and not random:
            if all(name in constant for name in named):
                kind, note = Kind.CONSTANT, "constant"
                constant.update(outputs)
                static.update(outputs)
            elif node.op_type in ("Shape", "Size") or all(name in static for name in named):
                kind, note = Kind.SHAPE, "shape arithmetic"
                static.update(outputs)
        return Layer(node.name, node.op_type, node.domain, index, inputs, outputs, kind,
                     stated_scope(node), self._macs(node), note)

    def _classify(self, node: ir.Node) -> tuple[Kind, str]:
        if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
            return Kind.OPAQUE, f"{node.op_type} holds a subgraph, which is kept whole in FP32"
        if node.domain not in ("", "ai.onnx"):
            return Kind.OPAQUE, f"operator of another domain ({node.domain}): its types are not known"
        if not onnx.defs.has(node.op_type):
            return Kind.OPAQUE, "ONNX has no such operator: its types are not known"
        if node.op_type in _QUANTIZED_OPERATORS:
            return Kind.OPAQUE, "already computes on integers; export with Q/DQ pairs to choose its precision"
        if any(not isinstance(v.type, ir.TensorType) for v in (*node.inputs, *node.outputs)
               if v is not None and v.type is not None):
            return Kind.OPAQUE, "works on sequences or optionals, which have no precision"
        if node.op_type == "Cast":
            return Kind.CAST, "type conversion"
        dtypes = {v.dtype for v in node.outputs if v.name}
        if None in dtypes:
            return Kind.OPAQUE, "its output type could not be inferred"
        if any(v is not None and v.dtype is None for v in node.inputs):
            return Kind.OPAQUE, "the type of its input could not be inferred"
        if ir.DataType.FLOAT not in dtypes:
            if ir.DataType.DOUBLE in dtypes:
                return Kind.OPAQUE, "computes in FP64"
            return Kind.INTEGER, "integer or boolean result"
        return (Kind.COPY if node.op_type in COPY_OPERATORS else Kind.COMPUTE), ""

    def _macs(self, node: ir.Node) -> int | None:
        if node.op_type not in fusion.ANCHORS or node.domain != "":
            return 0
        result = _sizes(node.outputs[0])
        weight = _sizes(node.inputs[1])
        if result is None or weight is None:
            return None
        if node.op_type == "Conv":
            return math.prod(result) * math.prod(weight[1:])
        if node.op_type == "ConvTranspose":
            data = _sizes(node.inputs[0])
            return None if data is None else math.prod(data) * math.prod(weight[1:])
        if node.op_type == "Gemm":
            transposed = node.attributes.get("transB")
            depth = weight[1] if transposed is not None and transposed.as_int() else weight[0]
        else:
            depth = weight[-2] if len(weight) > 1 else weight[0]
        return math.prod(result) * depth

    # -- looking up ---------------------------------------------------------------------------------------------

    def layer(self, name: str) -> Layer:
        return self._layers_by_name[name]

    def has_layer(self, name: str) -> bool:
        return name in self._layers_by_name

    def node(self, name: str) -> ir.Node:
        """The node behind a layer; not to be changed."""
        return self._nodes[name]

    def reads(self, layer: str) -> tuple[str, ...]:
        """Tensors a layer reads, those captured by its subgraphs too."""
        return (*(t for t in self._layers_by_name[layer].inputs if t), *_captured(self._nodes[layer]))

    def group(self, name: str) -> Group:
        return self._groups_by_name[name]

    def group_of(self, layer: str) -> Group | None:
        """The group a layer belongs to; None for folded layers."""
        return self._group_of.get(layer)

    def has_tensor(self, name: str) -> bool:
        return name in self._values

    def value(self, tensor: str) -> ir.Value:
        return self._values[tensor]

    def is_float(self, tensor: str) -> bool:
        value = self._values.get(tensor)
        return (value is not None and value.dtype == ir.DataType.FLOAT
                and not isinstance(value.type, ir.SequenceType | ir.OptionalType))

    def shape(self, tensor: str) -> tuple[int | str | None, ...] | None:
        value = self._values.get(tensor)
        return None if value is None else _shape(value)

    @property
    def activations(self) -> tuple[str, ...]:
        """Tensors whose range INT8 needs, each once, in network order."""
        return tuple(dict.fromkeys(site.tensor for group in self.groups for site in group.activations()))

    @cached_property
    def range_sets(self) -> dict[str, tuple[str, ...]]:
        """Tensors that must share one scale with others (inputs and output of a Concat), by tensor name."""
        return fusion.shared_ranges(self)

    def outline(self) -> Outline:
        """The network without its weights."""
        tails = {group.tail for group in self.groups} | {o for layer in self.layers for o in layer.outputs[:1]}
        return Outline(
            self.name, str(self.path), self.layers, self.groups, self.inputs, self.outputs,
            {tensor: self.shape(tensor) for tensor in tails}, self.structure_sha256, self.opset,
            self.activations, self.digests, tuple(self.notes),
            self.quantized_groups, dict(self.quantized_ranges))

    # -- constants ----------------------------------------------------------------------------------------------

    def constant(self, tensor: str) -> np.ndarray:
        """The value of a constant tensor, computed from other constants where the file holds it as an expression.

        Raises:
            InputError: the expression could not be evaluated, or the network was opened with nothing to run it.
            BackendUnavailableError: what would run it does not work here.
        """
        if tensor not in self._constants:
            stored = constant_tensor(self._values[tensor])
            if stored is not None:
                return stored.numpy()
            self._constants[tensor] = self._evaluate(tensor)
        return self._constants[tensor]

    def _evaluate(self, tensor: str) -> np.ndarray:
        """A constant expression's value, from what runs the network; the first one asked for brings all others."""
        title, next_step = (f"constant {tensor} could not be computed",
                            "Fold the network's constants (for example with onnxsim) and open it again.")
        if self._backend is None:
            raise InputError(title, "the file holds it as an expression, and the network was opened with nothing to "
                             "run it", next_step)
        try:
            backend = self._backend()
        except BackendUnavailableError as error:
            raise BackendUnavailableError(
                title, f"the file holds it as an expression. {error.title}: {error.cause}", error.next_step) from None
        if not self._folded:
            self._folded = True
            with contextlib.suppress(TrtTuiError):  # one of them, which is named when it is asked for
                self._constants.update(self._run(backend, self._expressions()))
        if tensor in self._constants:
            return self._constants[tensor]
        try:
            return self._run(backend, [tensor])[tensor]
        except TrtTuiError as error:
            raise InputError(title, error.cause or error.title, next_step) from None

    def _run(self, backend: Backend, tensors: Sequence[str]) -> dict[str, np.ndarray]:
        if not tensors:
            return {}
        with backend.load(self._constant_model(tensors)) as runner:
            return {name: np.asarray(array) for name, array in runner.run({}, tensors).items()}

    def _expressions(self) -> list[str]:
        """Float tensors that the file computes from constants and that something else reads."""
        read = dict.fromkeys(name for layer in self.layers if layer.kind is not Kind.CONSTANT
                             for name in self.reads(layer.name) if name in self.constants)
        return [name for name in read if self.is_float(name) and constant_tensor(self._values[name]) is None]

    def _constant_model(self, tensors: Sequence[str]) -> ir.Model:
        """The network that computes constant tensors from those that the file stores."""
        needed: set[str] = set()
        stack = list(tensors)
        while stack:
            name = self.producer.get(stack.pop())
            if name is not None and name not in needed:
                needed.add(name)
                stack.extend(n for n in self.layer(name).inputs if n)
        values: dict[str, ir.Value] = {}
        stored = []
        nodes = []
        for layer in sorted(map(self.layer, needed), key=lambda one: one.index):
            for name in layer.inputs:
                if name and name not in values:
                    held = self._values[name]
                    values[name] = ir.Value(name=name, type=held.type, shape=held.shape, const_value=held.const_value)
                    stored.append(values[name])
            original = self._nodes[layer.name]
            node = ir.Node(original.domain, original.op_type, [values[n] if n else None for n in layer.inputs],
                           list(original.attributes.values()), num_outputs=len(layer.outputs), name=layer.name)
            for name, output in zip(layer.outputs, node.outputs, strict=True):
                output.name = name
                if name:
                    output.type = self._values[name].type
                    values[name] = output
            nodes.append(node)
        graph = ir.Graph([], [values[name] for name in tensors], nodes=nodes, initializers=stored, name="constants",
                         opset_imports=dict(self.model.graph.opset_imports))
        return ir.Model(graph, ir_version=self.model.ir_version)

    def constant_amax(self, tensor: str, axis: int | None = None) -> np.ndarray:
        """Largest absolute value of a constant: a scalar, or one value for each index of ``axis`` (float32).

        Infinities are left out: they are masks, not magnitudes.
        """
        key = (tensor, axis)
        if key not in self._amax:
            array = self.constant(tensor)
            axes = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
            high = np.max(array, axis=axes, initial=0.0)
            low = np.min(array, axis=axes, initial=0.0)
            amax = np.maximum(high, -low).astype(np.float32)
            if not np.all(np.isfinite(amax)):
                finite = np.where(np.isfinite(array), np.abs(array), 0.0)
                amax = np.max(finite, axis=axes, initial=0.0).astype(np.float32)
            self._amax[key] = amax
        return self._amax[key]

    def is_mask(self, constant: str) -> bool:
        """Whether a constant lies beyond FP16 and is no weight: -3.4e38 in front of a Softmax, not a kernel."""
        if any(self.layer(name).op_type in fusion.ANCHORS for name in self.consumers.get(constant, ())):
            return False
        return self.is_float(constant) and float(self.constant_amax(constant)) > FP16_MAX

    @cached_property
    def masked(self) -> frozenset[str]:
        """Tensors that a mask constant was added to, selected into or scaled into, up to the Softmax behind."""
        found: set[str] = set()
        for layer in self.layers:
            if layer.outputs[0] in self.static or layer.op_type not in fusion.POINTWISE | COPY_OPERATORS:
                continue
            if any(t in found or t in self.constants and self.is_mask(t) for t in layer.inputs if t):
                found.update(tensor for tensor in layer.outputs if self.is_float(tensor))
        return frozenset(found)

    # -- other opsets and hashes --------------------------------------------------------------------------------

    def model_at(self, opset: int) -> ir.Model:
        """The model at ``opset`` or, where it is newer already, as it is. Node names are the same.

        Raises:
            InputError: onnx's version converter cannot convert the network.
        """
        if opset <= self.opset:
            return self.model
        if opset not in self._models:
            try:
                self._models[opset] = convert_opset(self.model, opset)
            except Exception as error:
                raise InputError(f"{self.name} cannot be converted from opset {self.opset} to {opset}", str(error),
                                 f"Export the network again with opset {opset}.") from None
        return self._models[opset]

    @cached_property
    def _layer_hashes(self) -> dict[str, bytes]:
        return {layer.name: self._layer_hash(layer) for layer in self.layers}

    def _layer_hash(self, layer: Layer) -> bytes:
        digest = hashlib.sha256(repr((layer.name, layer.domain, layer.op_type, layer.inputs, layer.outputs)).encode())
        for tensor in layer.inputs:
            if tensor in self.constants:
                digest.update(repr(self.shape(tensor)).encode())
        for key, attr in sorted(self._nodes[layer.name].attributes.items()):
            if attr.type == ir.AttributeType.TENSOR:
                what: object = (int(attr.value.dtype), tuple(attr.value.shape))
            elif attr.type == ir.AttributeType.GRAPH:
                what = _structure(attr.value)
            elif attr.type == ir.AttributeType.GRAPHS:
                what = [_structure(graph) for graph in attr.value]
            else:
                what = str(attr.value)
            digest.update(repr((key, what)).encode())
        return digest.digest()

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """The first 3 bytes of each layer's hash, by name: tells which layers of two networks differ."""
        return {name: digest[:3] for name, digest in self._layer_hashes.items()}

    @cached_property
    def structure_sha256(self) -> str:
        """Hash of everything but the weights' values: nodes, attributes, tensor names, types and shapes."""
        digest = hashlib.sha256()
        for info in (*self.inputs, *self.outputs):
            digest.update(repr((info.name, str(info.dtype), info.shape)).encode())
        weights = {**self._unused_weights, **self.model.graph.initializers}
        for name in sorted(weights):
            tensor = weights[name].const_value
            digest.update(repr((name, int(tensor.dtype), tuple(tensor.shape))).encode())
        for layer in self.layers:
            digest.update(self._layer_hashes[layer.name])
        return digest.hexdigest()

    def sha256(self) -> str:
        """Hash of the file and its external data, read in pieces."""
        digest = hashlib.sha256()
        for file in (self.path, *self.external_files):
            with open(file, "rb") as stream:
                while piece := stream.read(1 << 22):
                    digest.update(piece)
        return digest.hexdigest()


def open_network(path: Path | str, backend: Callable[[], Backend] | None = None) -> Network:
    """Opens an ONNX file.

    Args:
        backend: Gives what runs the network's constant expressions (weights that the file computes from others), such
            as `trt_tui.backends.registry.get_backend`. Without it the network opens as well, and `Network.constant`
            raises for those.

    Raises:
        InputError: see `trt_tui.core.network.opening.open_model`.
    """
    path = Path(path)
    return Network(open_model(path), path, backend)


def _shape(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def _sizes(value: ir.Value | None) -> list[int] | None:
    """Static sizes, an open first dimension (the batch) taken as 1; None where another one is open."""
    shape = _shape(value)
    if shape is None:
        return None
    sizes = [1 if i == 0 and not isinstance(d, int) else d for i, d in enumerate(shape)]
    return sizes if all(isinstance(d, int) for d in sizes) else None


def _captured(node: ir.Node) -> Iterable[str]:
    """Names of outer tensors that a node's subgraphs use, those nested in them too."""
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            subgraphs: Iterable[ir.Graph] = (attr.value,)
        elif attr.type == ir.AttributeType.GRAPHS:
            subgraphs = attr.value
        else:
            continue
        for subgraph in subgraphs:
            graphs = [subgraph, *subgraph.subgraphs()]
            inner = {id(v) for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
            inner.update(id(v) for n in subgraph.all_nodes() for v in n.outputs)
            used = [v for n in subgraph.all_nodes() for v in n.inputs if v is not None]
            used += [v for graph in graphs for v in graph.outputs]
            yield from dict.fromkeys(v.name for v in used if id(v) not in inner)


def _structure(graph: ir.Graph) -> list[tuple]:
    """A subgraph without its weights' values."""
    nodes = []
    for node in graph.all_nodes():
        attributes = [(name, str(attr.value)) for name, attr in sorted(node.attributes.items())
                      if attr.type not in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)]
        nodes.append((node.name, node.domain, node.op_type, [v.name if v is not None else "" for v in node.inputs],
                      [v.name for v in node.outputs], attributes))
    return nodes
