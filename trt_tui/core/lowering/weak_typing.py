"""Lowerings for weakly typed TensorRT (8.6 to 10), which takes float precisions as layer constraints.

Implicit quantization is an FP32 network with layer constraints and ranges. Explicit quantization has Q/DQ nodes in the
graph and no ranges. The rules of implicit quantization follow these facts:

- ``ILayer::setPrecision`` chooses the type in which a layer computes and reads, ``ILayer::setOutputType`` the type that
  it writes. Under ``OBEY_PRECISION_CONSTRAINTS`` a build fails if no implementation has the requested types. The output
  type of a layer does not set the type of a network output, because TensorRT converts (``NvInfer.h`` of TensorRT 10,
  ``ILayer``).
- A layer that reads or writes a tensor without a range cannot run in INT8 ("Missing scale and zero-point for tensor
  ..., expect fall back to non-int8 implementation for any layer consuming or producing given tensor"). This applies
  before fusion: a BatchNorm or Add without a range keeps the Conv that it would be fused into from INT8
  (NVIDIA-AI-IOT/torch2trt pull request 450). Once they are fused, the inner range has no effect (NVIDIA/TensorRT issue
  25).
- Therefore every tensor inside an INT8 group has a range, a measured one if possible. Outside these groups only the
  tensors that they read have a range, because a layer without ranges cannot become INT8 by accident.
- INT8 is allowed by ranges and never demanded. Under OBEY a build fails at the first layer without an INT8 kernel for
  its shape; TensorRT 8.6 failed at ConvTransposes, at first Convs and at residual Adds. Attention and the other regions
  that TensorRT delegates to Myelin have INT8 kernels only with Q/DQ, and stay in FP16 or FP32 (NVIDIA/TensorRT issues
  2658, 2323 and 4058; seen with 8.6).
- Layers that move values, shape arithmetic, constants and integers get no precision. Softmax, LayerNorm and similar
  operators have no INT8 implementation, and INT8 is never requested for them.

In explicit quantization, the only float type in the graph is FP32. The float precision of each layer is set as a layer
constraint, which TensorRT obeys. Layers that Q/DQ make INT8 get no constraint, so that TensorRT fuses them freely, with
one exception. TensorRT 8.6 fuses a residual Add into the Conv before it, whatever reads the sum. It has no such kernel
with INT8 inputs and a float result, and the build fails ("the node being incorrectly marked as an int8 node"). If the
number of channels is not a multiple of 32, the build may fail too ("buildRefitEngine: Assertion engine failed"). In
both cases the Add is constrained to the surrounding float precision, so that it stays a separate layer.

Casts in the graph do not work for these releases. On TensorRT 8.6 a network typed FP16 by Casts ran in FP32, and one
that also had Q/DQ did not build.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from trt_tui.core.lowering.network_rewrite import (
    WEAK_PRECISIONS,
    refuse_unsupported_precisions,
    replace_all_file_precisions,
    rewrite_network_for_config,
    weak_typing_notes,
)
from trt_tui.core.lowering.rulebook import (
    compute_activation_ranges,
    compute_activation_scale,
    divide_inner_ranges,
    find_boundary_type,
    precision_refusal_reason,
)
from trt_tui.core.lowering.typed_network import TypedNetwork, lower_rewritten_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import RoundingMove
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import list_subgraphs
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8
from trt_tui.core.runner import LayerConstraints
from trt_tui.formatting import counted_noun_text, name_list_text

_WEIGHT_OPERATORS = frozenset(("Conv", "ConvTranspose", "BatchNormalization"))
"""Operators whose constants become weights of the layer, and not tensors, in TensorRT's parser."""


@dataclass(frozen=True)
class ImplicitQuantizationConstraints(LayerConstraints):
    """The layer constraints and ranges of a config for implicit quantization. Layers whose precision cannot be
    expressed are listed.

    Attributes:
        model: The FP32 network with the edits of the config; read-only. Its node names are the layer names.
        estimated_ranges: Tensors inside INT8 groups that were not calibrated. They get a range of their group, which
            has an effect only if TensorRT does not fuse them away.
        allows_tf32: True if FP32 layers may use TF32; if False, the builder's TF32 flag must be cleared.
        refused_layers: The reason why a layer does not get its requested precision, by layer name.
        notes: Notes on the network as a whole.
    """

    model: ir.Model
    estimated_ranges: tuple[str, ...]
    allows_tf32: bool
    refused_layers: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def needs_obey_constraints_flag(self) -> bool:
        """True if the build needs OBEY_PRECISION_CONSTRAINTS. An FP32 build has no constraints."""
        return bool(self.precision_flags)

    def constraint_arguments(self) -> dict[str, Any]:
        return {
            "precisions": {name: precision.value for name, precision in self.precisions.items()},
            "output_types": {name: precision.value for name, precision in self.output_types.items()},
            "ranges": dict(self.ranges),
            "inner": dict(self.inner_ranges),
            "constants": dict(self.constant_ranges),
            "names": list(self.layer_names),
        }

    def calibration_cache_ranges(self) -> dict[str, float]:
        """Returns all ranges under the tensor names that a calibration cache uses.

        TensorRT gives the constant ``c`` the tensor name ``c_output``.
        """
        return {**self.ranges, **{f"{name}_output": amax for name, amax in self.constant_ranges.items()}}


def lower_to_implicit_quantization(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float]
) -> ImplicitQuantizationConstraints:
    """Lowers a config to an FP32 network with the layer constraints and ranges of implicit quantization.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units, including tensors inside groups.

    Raises:
        InputError: an INT8 layer's input has no range, or a layer has a quantized type other than INT8.
    """
    config = replace_all_file_precisions(network, config)
    refuse_unsupported_precisions(network, config, WEAK_PRECISIONS, "a weakly typed TensorRT")
    rounded_groups = RoundingMove.subject_kind.sort_subjects(network, config.get_moves(RoundingMove))
    config = config.without_moves(RoundingMove)
    rewritten_network = rewrite_network_for_config(network, config)
    constraints = _ImplicitLowering(
        rewritten_network.network, config, divide_inner_ranges(network, ranges, config)
    ).lower_network()
    notes = (
        (
            f"The roundings of {name_list_text(rounded_groups)} are left out: without Q/DQ, TensorRT quantizes the "
            "weights itself.",
        )
        if rounded_groups
        else ()
    )
    return replace(constraints, notes=(*constraints.notes, *rewritten_network.notes, *notes))


class _ImplicitLowering:
    def __init__(self, network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> None:
        self.network = network
        self.config = config
        self.measured_ranges = ranges
        self.precision_by_group = config.precision_by_group(network)
        self.amax_by_tensor = compute_activation_ranges(network, ranges, config)
        self.precisions: dict[str, Precision] = {}
        self.output_types: dict[str, Precision] = {}
        self.ranges: dict[str, float] = {}
        self.inner_ranges: dict[str, float] = {}
        self.constant_ranges: dict[str, float] = {}
        self.estimated_ranges: list[str] = []
        self.refused_layers: dict[str, str] = {}
        self.quantized_inputs = {
            (site.layer, site.index)
            for group in network.groups
            if self._is_int8(group)
            for site in group.activation_qdq_sites()
        }
        self.output_names = {info.name for info in network.outputs}

    def lower_network(self) -> ImplicitQuantizationConstraints:
        for group in self.network.groups:
            if self._is_int8(group):
                self._lower_int8_group(group)
            else:
                self._lower_float_group(group)
        flags = {self._find_float_precision(group) for group in self.network.groups} - {Precision.FP32}
        if self.ranges:
            flags.add(Precision.INT8)
        if not flags:
            self.precisions, self.output_types = {}, {}
        return ImplicitQuantizationConstraints(
            self.precisions,
            self.output_types,
            self.ranges,
            frozenset(flags),
            self.network.model,
            tuple(self.estimated_ranges),
            self.config.tf32,
            {
                name: reason
                for group in self.network.groups
                for name in group.layers
                if (reason := self.refused_layers.get(name) or precision_refusal_reason(group, self.config))
            },
            tuple(self._list_notes(flags)),
            inner_ranges=self.inner_ranges,
            constant_ranges=self.constant_ranges,
            layer_names=tuple(layer.name for layer in self.network.layers),
        )

    # -- groups -------------------------------------------------------------------------------------------------

    def _is_int8(self, group: FusionGroup) -> bool:
        return self.precision_by_group[group.name] is Precision.INT8

    def _find_float_precision(self, group: FusionGroup) -> Precision:
        """Returns the float precision of a group; for an INT8 group the float precision of its results."""
        precision = find_boundary_type(group, self.precision_by_group[group.name], self.config.other)
        if precision is Precision.BF16 and self._is_int8(group):
            return Precision.FP32
        return precision

    def _lower_float_group(self, group: FusionGroup) -> None:
        precision = self._find_float_precision(group)
        for layer in self._list_layers(group):
            if list_subgraphs(self.network.node(layer.name)):
                self.refused_layers[layer.name] = "the layers inside its subgraphs have no names to tell a precision by"
            elif layer.kind is LayerKind.COPY:
                # Without a constraint, TensorRT moves values in the fastest type, which can be narrower.
                if precision is Precision.FP32 or self._find_precision_kinds_of_readers(layer) == {
                    "quantized",
                    "float",
                }:
                    self.output_types[layer.name] = precision
            else:
                self.precisions[layer.name] = precision
                if precision is Precision.FP32 or self._find_precision_kinds_of_readers(layer) != {"quantized"}:
                    self.output_types[layer.name] = precision

    def _lower_int8_group(self, group: FusionGroup) -> None:
        for site in group.activation_qdq_sites():
            compute_activation_scale(self.amax_by_tensor, site.tensor)
            self.ranges[site.tensor] = _replace_zero_amax(self.amax_by_tensor[site.tensor])
        fallback = self._find_fallback_range(group)
        for layer in self._list_layers(group):
            for tensor in layer.outputs:
                if self.network.is_fp32(tensor):
                    self.inner_ranges[layer.name] = self._assign_range_inside_group(tensor, fallback)
            if layer.op_type not in _WEIGHT_OPERATORS:
                self.constant_ranges.update(
                    (tensor, _replace_zero_amax(float(self.network.constant_amax(tensor))))
                    for tensor in layer.inputs
                    if tensor in self.network.constant_tensors and self.network.is_fp32(tensor)
                )
            if self._is_result_used_outside_group(layer, group) and self._find_precision_kinds_of_readers(layer) != {
                "quantized"
            }:
                self.output_types[layer.name] = self._find_float_precision(group)

    # -- tensors ------------------------------------------------------------------------------------------------

    def _list_layers(self, group: FusionGroup) -> list[Layer]:
        return [self.network.get_layer(name) for name in group.layers]

    def _is_result_used_outside_group(self, layer: Layer, group: FusionGroup) -> bool:
        return any(
            tensor in self.output_names
            or any(user not in group.layers for user in self.network.graph.readers.get(tensor, ()))
            for tensor in layer.outputs
        )

    def _find_precision_kinds_of_readers(self, layer: Layer) -> set[str]:
        """Returns the kinds of readers of a layer's float results: "quantized" for INT8 layers, "float" for others or
        without readers."""
        kinds: set[str] = set()
        for tensor in layer.outputs:
            if not self.network.is_fp32(tensor):
                continue
            uses = [
                (user, index)
                for user in self.network.graph.readers.get(tensor, ())
                for index, name in enumerate(self.network.get_layer(user).inputs)
                if name == tensor
            ]
            is_captured = len({user for user, _ in uses}) < len(self.network.graph.readers.get(tensor, ()))
            if tensor in self.output_names or is_captured or not uses:
                kinds.add("float")
            kinds.update("quantized" if use in self.quantized_inputs else "float" for use in uses)
        return kinds

    def _assign_range_inside_group(self, tensor: str, fallback_range: float) -> float:
        """Sets the range of a tensor inside an INT8 group and returns the range."""
        if tensor not in self.ranges:
            amax = self.amax_by_tensor.get(tensor, self.measured_ranges.get(tensor))
            self.ranges[tensor] = fallback_range if amax is None else _replace_zero_amax(float(amax))
            if amax is None:
                self.estimated_ranges.append(tensor)
        return self.ranges[tensor]

    def _find_fallback_range(self, group: FusionGroup) -> float:
        """Returns the range for uncalibrated tensors of a group: the range of its last result, or else of its largest
        input.
        """
        outside = [
            self.amax_by_tensor[tensor]
            for tensor in (group.final_tensor, *group.outputs)
            if tensor in self.amax_by_tensor
        ]
        return _replace_zero_amax(
            outside[0] if outside else max(self.amax_by_tensor[site.tensor] for site in group.activation_qdq_sites())
        )

    # -- texts --------------------------------------------------------------------------------------------------

    def _list_notes(self, flags: Collection[Precision]) -> list[str]:
        notes = []
        if self.ranges:
            notes.append("TensorRT itself quantizes the weights, with its own scales.")
        if self.estimated_ranges:
            notes.append(
                f"{counted_noun_text(len(self.estimated_ranges), 'tensor')} inside INT8 layers not calibrated; given "
                "the range of the layer, which only matters if TensorRT does not fuse them."
            )
        notes += weak_typing_notes(self.network, flags)
        if self.config.other is Precision.BF16 and any(self._is_int8(group) for group in self.network.groups):
            notes.append("Results of INT8 layers are FP32 in place of BF16: TensorRT has no such INT8 kernels.")
        return notes


def _replace_zero_amax(amax: float) -> float:
    """Returns the amax; for a tensor of zeros, the amax that gives the scale 1."""
    return amax if amax > 0 else INT8.max_value


# -- explicit quantization ------------------------------------------------------------------------------------------


def lower_to_explicit_quantization(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float]
) -> tuple[TypedNetwork, LayerConstraints]:
    """Lowers a config to a network with Q/DQ nodes, and to the layer constraints of the float layers.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an INT8 layer's input has no range, or a layer has a quantized type other than INT8.
    """
    config = replace_all_file_precisions(network, config)
    refuse_unsupported_precisions(network, config, WEAK_PRECISIONS, "TensorRT 8.6")
    rewritten_network = rewrite_network_for_config(network, config)
    typed_network = lower_rewritten_network(rewritten_network, config, ranges, with_casts=False)
    network = rewritten_network.network
    precisions: dict[str, Precision] = {}
    output_types: dict[str, Precision] = {}
    quantized = {
        (site.layer, site.index)
        for group in network.groups
        if config.precision_of(group) is Precision.INT8
        for site in group.activation_qdq_sites()
    }
    flags = set()
    for group in network.groups:
        precision = config.precision_of(group)
        flags.add(precision)
        if precision is Precision.INT8:
            boundary_type = find_boundary_type(group, precision, config.other)
            flags.add(boundary_type)
            if _has_unfusable_residual_add(network, group, quantized):
                precisions.update((name, boundary_type) for name in group.layers if name not in group.main_layers)
                output_types.update((name, boundary_type) for name in group.layers)
            continue
        computing = [name for name in group.layers if network.get_layer(name).kind is LayerKind.COMPUTE]
        precisions.update((name, precision) for name in computing)
        output_types.update((name, precision) for name in computing)
    flags -= {Precision.FP32, Precision.TF32}
    if not flags:
        precisions.clear()  # all layers are FP32 without constraints
        output_types.clear()
    typed_network = replace(typed_network, notes=(*typed_network.notes, *weak_typing_notes(network, flags)))
    return typed_network, LayerConstraints(
        precisions, output_types, {}, frozenset(flags), layer_names=tuple(layer.name for layer in network.layers)
    )


def _has_unfusable_residual_add(network: Network, group: FusionGroup, quantized_inputs: Set[tuple[str, int]]) -> bool:
    """Returns True if a fusion group has a residual Add that TensorRT 8.6 fails to fuse into the Conv before it."""
    if not any(site.role == "skip" for site in group.sites):
        return False
    tail = group.final_tensor
    shape = network.shape(tail)
    return (
        shape is None
        or len(shape) < 2
        or not isinstance(shape[1], int)
        or shape[1] % 32 != 0
        or tail in {info.name for info in network.outputs}
        or any(
            (layer.name, index) not in quantized_inputs
            for layer in network.layers
            for index, tensor in enumerate(layer.inputs)
            if tensor == tail
        )
    )


# -- application -------------------------------------------------------------------------------------------------------
# The source of the two functions below is copied into the Polygraphy script, so they use no other global names.


def find_source_layer(trt_layer_name: str, metadata: str = "", names: Container[str] = ()) -> str | None:
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
        match = re.fullmatch(r"\[ONNX Layer: (.*)\]", piece.strip(), re.DOTALL)
        if match:
            inner_node, *outer_nodes = match[1].split(" | ")
            nodes = (match[1], inner_node, *(re.sub(r" \([^()]*\)$", "", node) for node in outer_nodes))
            known_nodes = [node for node in nodes if node in names] if names else [inner_node]
            if known_nodes:
                return known_nodes[0]
    if not names or trt_layer_name in names:
        return trt_layer_name or None
    base, _, number = trt_layer_name.rpartition("_")
    return base if number.isdigit() and base in names else None


def apply_constraints(
    trt: Any,
    network: Any,
    precisions: Mapping[str, str],
    output_types: Mapping[str, str],
    ranges: Mapping[str, float],
    inner: Mapping[str, float] | None = None,
    constants: Mapping[str, float] | None = None,
    names: Iterable[str] = (),
) -> list[str]:
    """Sets precisions, output types and ranges in a parsed TensorRT network that is weakly typed.

    Args:
        trt: The ``tensorrt`` module.
        network: An ``INetworkDefinition``.
        precisions: As all further ones, the field of `ImplicitQuantizationConstraints` of that name; precisions may be
            plain words like "fp16". The last three are for implicit quantization.

    Returns:
        The layers that were to be told a precision and are not in the network.
    """
    types = {"fp32": trt.float32, "fp16": trt.float16, "int8": trt.int8}
    if hasattr(trt, "bfloat16"):
        types["bf16"] = trt.bfloat16
    float_types = [types[word] for word in types if word != "int8"]
    computes_in_int8 = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")
    moves = (
        "SHUFFLE",
        "IDENTITY",
        "CAST",
        "SLICE",
        "CONCATENATION",
        "GATHER",
        "PADDING",
        "SQUEEZE",
        "UNSQUEEZE",
        "SCATTER",
        "ONE_HOT",
        "REVERSE_SEQUENCE",
        "FILL",
        "NON_ZERO",
        "NMS",
    )
    unconstrained = (
        "CONSTANT",
        "SHAPE",
        "ASSERTION",
        "QUANTIZE",
        "DEQUANTIZE",
        "CONDITION",
        "CONDITIONAL_INPUT",
        "CONDITIONAL_OUTPUT",
        "ITERATOR",
        "LOOP_OUTPUT",
        "RECURRENCE",
        "TRIP_LIMIT",
    )
    inner, constants, names = inner or {}, constants or {}, frozenset(names)
    assigned_ranges: dict[str, float] = {}

    def set_range(tensor: Any, amax: float | None) -> None:
        if amax is not None:
            tensor.set_dynamic_range(-amax, amax)
            assigned_ranges[tensor.name] = amax

    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        set_range(tensor, ranges.get(tensor.name))
    missing = dict.fromkeys(precisions)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        name = find_source_layer(layer.name, layer.metadata, names) or ""
        missing.pop(name, None)
        results = [(position, layer.get_output(position)) for position in range(layer.num_outputs)]
        results = [
            (position, tensor)
            for position, tensor in results
            if tensor is not None and tensor.dtype in float_types and not tensor.is_shape_tensor
        ]
        kind = layer.type.name
        precision = str(precisions[name]) if name in precisions else None
        if (
            results
            and precision
            and kind not in moves + unconstrained
            and (precision != "int8" or kind in computes_in_int8)
        ):
            layer.precision = types[precision]
        for position, tensor in results:
            # A constant's layer bears its name; what the parser added to reshape a tensor has its range; any other
            # tensor that the parser added has the range of the node's result.
            amax = ranges.get(tensor.name)
            if amax is None and kind == "CONSTANT":
                amax = constants.get(find_source_layer(layer.name, "", constants) or "") if constants else None
            elif amax is None and kind in moves and (not name or layer.name != name):
                source = layer.get_input(0)
                amax = assigned_ranges.get(source.name) if source is not None else None
            elif amax is None:
                amax = inner.get(name)
            set_range(tensor, amax)
            if name in output_types and kind not in unconstrained:
                layer.set_output_type(position, types[str(output_types[name])])
    return list(missing)
