"""What a weakly typed TensorRT (8.6 to 10) is told, layer by layer, so that it builds a config with implicit
quantization: the FP32 network stays as it is, precisions and ranges stand beside it.

What the rules follow:

- ``ILayer::setPrecision`` chooses the type a layer computes in and reads, ``ILayer::setOutputType`` the type it writes;
  under ``OBEY_PRECISION_CONSTRAINTS`` a build fails where no implementation has the wanted ones. The output type of a
  layer says nothing of the type of a network output, TensorRT converts (``NvInfer.h`` of TensorRT 10, ``ILayer``).
- A layer that reads or writes a tensor without a range cannot run in INT8 ("Missing scale and zero-point for tensor
  ..., expect fall back to non-int8 implementation for any layer consuming or producing given tensor"). This holds
  before fusion: a BatchNorm or Add without a range keeps the Conv that it would be fused into from INT8
  (NVIDIA-AI-IOT/torch2trt pull request 450); once they are fused the inner range has no effect (NVIDIA/TensorRT
  issue 25).
- So every tensor inside an INT8 group has a range, measured where there is one, and no tensor outside of them but those
  that they read: what has no range cannot become INT8 by accident.
- INT8 is allowed by ranges and never demanded: under OBEY a build fails at the first layer that has no INT8 kernel for
  its shape, and TensorRT 8.6 failed so at ConvTransposes, at first Convs and at residual Adds. Attention and the other
  regions that TensorRT hands to Myelin have INT8 kernels with Q/DQ alone and stay in FP16 or FP32 (NVIDIA/TensorRT
  issues 2658, 2323 and 4058; seen with 8.6).
- Layers that move values, shape arithmetic, constants and integers take no precision. Softmax, LayerNorm and their like
  have no INT8 implementation and are never asked for one.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from trt_tui.core.codes import INT8
from trt_tui.core.lowering import scales
from trt_tui.core.lowering.applied import applied
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.lowering.releases import WEAK, refuse_codes
from trt_tui.core.lowering.rules import surrounding, why_not
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Kind, Layer
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Told
from trt_tui.words import plural

_TAKE_WEIGHTS = frozenset(("Conv", "ConvTranspose", "BatchNormalization"))
"""Operators whose constants TensorRT's parser makes weights of the layer and no tensors."""


@dataclass(frozen=True)
class Weak(Told):
    """What is told, and what cannot be.

    Attributes:
        model: The network in FP32, not to be changed, with what the config changes of it: its node names are the layer
            names.
        stand_ins: Tensors inside INT8 groups that were not calibrated; they have a range of their group's, which counts
            only where TensorRT does not fuse them away.
        tf32: Whether FP32 layers may use TF32; else the builder's TF32 flag is to be cleared.
        left_alone: Why a layer is not told the precision it was asked for, by layer name.
        notes: What holds for the network as a whole.
    """

    model: ir.Model
    stand_ins: tuple[str, ...]
    tf32: bool
    left_alone: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def obey(self) -> bool:
        """Whether OBEY_PRECISION_CONSTRAINTS is to be set: an FP32 build has nothing to obey."""
        return bool(self.flags)

    def arguments(self) -> dict[str, Any]:
        """What `tell` is given, as plain data that JSON holds."""
        return {"precisions": {name: precision.value for name, precision in self.precisions.items()},
                "output_types": {name: precision.value for name, precision in self.output_types.items()},
                "ranges": dict(self.ranges), "inner": dict(self.inner), "constants": dict(self.constants),
                "names": list(self.names)}

    def cache_ranges(self) -> dict[str, float]:
        """All ranges as a calibration cache names them: TensorRT calls the tensor of a constant ``c`` ``c_output``."""
        return {**self.ranges, **{f"{name}_output": amax for name, amax in self.constants.items()}}


def lower_weak(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> Weak:
    """Lowers to what a weakly typed TensorRT is told.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units; those inside groups too.

    Raises:
        InputError: an INT8 layer's input has no range, or a layer reads other codes.
    """
    config = told_as(network, config)
    refuse_codes(network, config, WEAK, "a weakly typed TensorRT")
    base = applied(network, config)
    weak = _WeakLowering(base.network, config, ranges).lower()
    return replace(weak, notes=(*weak.notes, *base.notes))


class _WeakLowering:
    def __init__(self, network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> None:
        self.network = network
        self.config = config
        self.measured = ranges
        self.assignment = config.assignment(network)
        self.amax = scales.activation_ranges(network, ranges, config)
        self.precisions: dict[str, Precision] = {}
        self.output_types: dict[str, Precision] = {}
        self.ranges: dict[str, float] = {}
        self.inner: dict[str, float] = {}
        self.constants: dict[str, float] = {}
        self.stand_ins: list[str] = []
        self.left_alone: dict[str, str] = {}
        self.quantized_ports = {(site.layer, site.index) for group in network.groups if self._is_int8(group)
                                for site in group.activations()}
        self.outputs = {info.name for info in network.outputs}

    def lower(self) -> Weak:
        for group in self.network.groups:
            if self._is_int8(group):
                self._lower_int8(group)
            else:
                self._lower_float(group)
            self._explain(group)
        flags = {self._float(group) for group in self.network.groups} - {Precision.FP32}
        if self.ranges:
            flags.add(Precision.INT8)
        if not flags:
            self.precisions, self.output_types = {}, {}
        return Weak(self.precisions, self.output_types, self.ranges, frozenset(flags), self.network.model,
                    tuple(self.stand_ins), self.config.tf32, self.left_alone, tuple(self._notes()), inner=self.inner,
                    constants=self.constants, names=tuple(layer.name for layer in self.network.layers))

    # -- groups -------------------------------------------------------------------------------------------------

    def _is_int8(self, group: Group) -> bool:
        return self.assignment[group.name] is Precision.INT8

    def _float(self, group: Group) -> Precision:
        """The float precision of a group, or for INT8 the one its results have outside of it."""
        precision = surrounding(group, self.assignment[group.name], self.config.other)
        if precision is Precision.BF16 and self._is_int8(group):
            return Precision.FP32
        return precision

    def _lower_float(self, group: Group) -> None:
        precision = self._float(group)
        for layer in self._layers(group):
            if self._holds_subgraph(layer):
                self.left_alone[layer.name] = "the layers inside its subgraphs have no names to tell a precision by"
            elif layer.kind is Kind.COPY:
                # Left open, TensorRT moves values in the type that it finds fastest, which can be a narrower one.
                if precision is Precision.FP32 or self._readers(layer) == {"quantized", "float"}:
                    self.output_types[layer.name] = precision
            else:
                self.precisions[layer.name] = precision
                if precision is Precision.FP32 or self._readers(layer) != {"quantized"}:
                    self.output_types[layer.name] = precision

    def _lower_int8(self, group: Group) -> None:
        for site in group.activations():
            scales.require(self.amax, site.tensor)
            self.ranges[site.tensor] = _positive(self.amax[site.tensor])
        fallback = self._nearest_range(group)
        for layer in self._layers(group):
            for tensor in layer.outputs:
                if self.network.is_float(tensor):
                    self.inner[layer.name] = self._range_inside(tensor, fallback)
            if layer.op_type not in _TAKE_WEIGHTS:
                for tensor in layer.inputs:
                    if tensor in self.network.constants and self.network.is_float(tensor):
                        self.constants[tensor] = _positive(float(self.network.constant_amax(tensor)))
            if self._leaves(layer, group) and self._readers(layer) != {"quantized"}:
                self.output_types[layer.name] = self._float(group)

    def _holds_subgraph(self, layer: Layer) -> bool:
        return any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
                   for attr in self.network.node(layer.name).attributes.values())

    # -- tensors ------------------------------------------------------------------------------------------------

    def _layers(self, group: Group) -> list[Layer]:
        return [self.network.layer(name) for name in group.layers]

    def _leaves(self, layer: Layer, group: Group) -> bool:
        """Whether the values of a result are used outside its group, or it is a network output."""
        return any(tensor in self.outputs or any(user not in group.layers
                                                 for user in self.network.graph.readers.get(tensor, ()))
                   for tensor in layer.outputs)

    def _readers(self, layer: Layer) -> set[str]:
        """How the layer's float results are used: "quantized" by an INT8 layer, "float" by any other or nobody."""
        found: set[str] = set()
        for tensor in layer.outputs:
            if not self.network.is_float(tensor):
                continue
            uses = [(user, index) for user in self.network.graph.readers.get(tensor, ())
                    for index, name in enumerate(self.network.layer(user).inputs) if name == tensor]
            captured = len({user for user, _ in uses}) < len(self.network.graph.readers.get(tensor, ()))
            if tensor in self.outputs or captured or not uses:
                found.add("float")
            found.update("quantized" if use in self.quantized_ports else "float" for use in uses)
        return found

    def _range_inside(self, tensor: str, fallback: float) -> float:
        """Gives a tensor of an INT8 group its range."""
        if tensor not in self.ranges:
            if tensor in self.amax:
                self.ranges[tensor] = _positive(self.amax[tensor])
            elif tensor in self.measured:
                self.ranges[tensor] = _positive(float(self.measured[tensor]))
            else:
                self.stand_ins.append(tensor)
                self.ranges[tensor] = fallback
        return self.ranges[tensor]

    def _nearest_range(self, group: Group) -> float:
        """A range for the tensors of a group that have none: that of its last result, else its largest input's."""
        outside = [self.amax[tensor] for tensor in (group.tail, *group.outputs) if tensor in self.amax]
        return _positive(outside[0] if outside else max(self.amax[site.tensor] for site in group.activations()))

    # -- in words -----------------------------------------------------------------------------------------------

    def _explain(self, group: Group) -> None:
        reason = why_not(group, self.config)
        if reason:
            self.left_alone.update((name, reason) for name in group.layers if name not in self.left_alone)

    def _notes(self) -> list[str]:
        notes = []
        if self.ranges:
            notes.append("TensorRT itself quantizes the weights, with scales of its own.")
        if self.stand_ins:
            notes.append(f"{plural(len(self.stand_ins), 'tensor')} inside INT8 groups not calibrated; given the "
                         "group's range, which only matters if TensorRT does not fuse them.")
        if self.config.other is Precision.BF16 and any(self._is_int8(group) for group in self.network.groups):
            notes.append("Results of INT8 layers are FP32 in place of BF16: TensorRT has no such INT8 kernels.")
        return notes


def _positive(amax: float) -> float:
    """The range that is told: a tensor that was zero throughout has scale 1."""
    return amax if amax > 0 else INT8.greatest


# -- telling -----------------------------------------------------------------------------------------------------------
# The Polygraphy script holds the source of the two functions below: they use no name from outside but each other's.


def layer_of(trt_layer_name: str, metadata: str = "", names: Container[str] = ()) -> str | None:
    """The network's layer that a layer of a parsed TensorRT network stands for, or None.

    TensorRT's ONNX parser names a layer after its node, and further layers of a node that it decomposes ``<node>_<n>``
    (onnx-tensorrt, ``ImporterContext::registerLayer``); the metadata of each is ``[ONNX Layer: <node>]``. The metadata
    goes first, since ``conv_1`` can be a second layer of ``conv`` as well as a node. A layer inside an If or Loop
    stands for that, its metadata being ``[ONNX Layer: <inner node> | <graph> | <outer node> (<operator>)]``. Layers
    that the parser adds of its own, like ``ONNXTRT_Broadcast_2``, stand for none.

    Args:
        names: The network's layers, anything with ``in``; without them the name of the metadata, else the layer's own
            is taken as it is.
    """
    import re

    for piece in re.split("[\x1e\x1f]", metadata or ""):
        found = re.fullmatch(r"\[ONNX Layer: (.*)\]", piece.strip(), re.DOTALL)
        if found:
            inner, *around = found[1].split(" | ")
            nodes = (found[1], inner, *(re.sub(r" \([^()]*\)$", "", node) for node in around))
            known = [node for node in nodes if node in names] if names else [inner]
            if known:
                return known[0]
    if not names or trt_layer_name in names:
        return trt_layer_name or None
    base, _, number = trt_layer_name.rpartition("_")
    return base if number.isdigit() and base in names else None


def tell(trt: Any, network: Any, precisions: Mapping[str, str], output_types: Mapping[str, str],
         ranges: Mapping[str, float], inner: Mapping[str, float] | None = None,
         constants: Mapping[str, float] | None = None, names: Iterable[str] = ()) -> list[str]:
    """Sets precisions, output types and ranges in a parsed TensorRT network that is weakly typed.

    Args:
        trt: The ``tensorrt`` module.
        network: An ``INetworkDefinition``.
        precisions: As all further ones, the field of `Weak` of that name; precisions may be plain words like "fp16".
            The last three are for implicit quantization.

    Returns:
        The layers that were to be told a precision and are not in the network.
    """
    types = {"fp32": trt.float32, "fp16": trt.float16, "int8": trt.int8}
    if hasattr(trt, "bfloat16"):
        types["bf16"] = trt.bfloat16
    floats = [types[word] for word in types if word != "int8"]
    computes_in_int8 = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")
    moves = ("SHUFFLE", "IDENTITY", "CAST", "SLICE", "CONCATENATION", "GATHER", "PADDING", "SQUEEZE", "UNSQUEEZE",
             "SCATTER", "ONE_HOT", "REVERSE_SEQUENCE", "FILL", "NON_ZERO", "NMS")
    untold = ("CONSTANT", "SHAPE", "ASSERTION", "QUANTIZE", "DEQUANTIZE", "CONDITION", "CONDITIONAL_INPUT",
              "CONDITIONAL_OUTPUT", "ITERATOR", "LOOP_OUTPUT", "RECURRENCE", "TRIP_LIMIT")
    inner, constants, names = inner or {}, constants or {}, frozenset(names)
    held: dict[str, float] = {}

    def give(tensor: Any, amax: float | None) -> None:
        if amax is not None:
            tensor.set_dynamic_range(-amax, amax)
            held[tensor.name] = amax

    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        give(tensor, ranges.get(tensor.name))
    missing = dict.fromkeys(precisions)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        name = layer_of(layer.name, layer.metadata, names) or ""
        missing.pop(name, None)
        results = [(position, layer.get_output(position)) for position in range(layer.num_outputs)]
        results = [(position, tensor) for position, tensor in results
                   if tensor is not None and tensor.dtype in floats and not tensor.is_shape_tensor]
        kind = layer.type.name
        precision = str(precisions[name]) if name in precisions else None
        if results and precision and kind not in moves + untold and (precision != "int8" or kind in computes_in_int8):
            layer.precision = types[precision]
        for position, tensor in results:
            # A constant's layer bears its name; what the parser added to reshape a tensor has its range; any other
            # tensor that the parser added has the range of the node's result.
            amax = ranges.get(tensor.name)
            if amax is None and kind == "CONSTANT":
                amax = constants.get(layer_of(layer.name, "", constants) or "") if constants else None
            elif amax is None and kind in moves and (not name or layer.name != name):
                source = layer.get_input(0)
                amax = held.get(source.name) if source is not None else None
            elif amax is None:
                amax = inner.get(name)
            give(tensor, amax)
            if name in output_types and kind not in untold:
                layer.set_output_type(position, types[str(output_types[name])])
    return list(missing)
