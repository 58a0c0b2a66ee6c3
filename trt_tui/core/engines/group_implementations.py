"""The implementation of each fusion group in an engine: its precision, its kernel, and the reformats around it.

The precision of a product (a Conv, Gemm or MatMul) is that of the kernel that multiplies. In INT8 the inspector often
lists an ONNX layer in two rows: the product, and a generated kernel beside it that quantizes. TensorRT reports no types
between the operators of one generated kernel. Only the types of its inputs and outputs and its named Casts are visible.

The forms of Q/DQ nodes in a file that cost an engine conversions: kernels that only change the type of values.

The check of the file lists such forms (`NetworkOutline.qdq_candidates`). Builders fuse most conversions with the layers
around them, so a form is a finding only if the layer information or the profile of an engine shows the conversion.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.engines.inspector import COMPUTE, IDLE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.lowering.rulebook import VALUE_PRESERVING
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.fusion.attention import VALUES_ROLE
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqFinding
from trt_tui.core.network.operators import COPIES
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import milliseconds_text, name_list_text

_CAST_PATTERN = re.compile(r"__(fp32|fp16|bf16)(?:_\d+)?$")

_GENERATED_KERNEL_TYPES = ("kgen", "runtime_function")
"""Types of the kernels that TensorRT generates for elementwise work. A generated kernel that adds the bias of a product
names the product too."""


@dataclass(frozen=True)
class GroupImplementation:
    """The implementation of one fusion group in an engine.

    Attributes:
        precision: The precision of its kernel; None if its engine layers differ or do not report it.
        in_fused_region: True if the group is inside a fused region.
        engine_layers: Names of its engine layers.
        latency_ms: Time of its engine layers in ms. None if they compute another group too or were not timed.
        reformat_count: Number of engine layers before or after its own that change a layout or a type.
        possible_precisions: The float types at the kernel's inputs, outputs and inner Casts. Empty if the kernel
            reports its precision.
        kernel_mates: Names of the other groups in the same kernel, in network order.
        in_mha: True if its kernel is one of fused attention.
        cast_count: Number of the reformats that change a float type.
        qdq_count: Number of unfused Q or DQ whose result the group reads.
    """

    precision: Precision | None
    in_fused_region: bool
    engine_layers: tuple[str, ...]
    latency_ms: float | None = None
    reformat_count: int = 0
    possible_precisions: tuple[Precision, ...] = ()
    kernel_mates: tuple[str, ...] = ()
    in_mha: bool = False
    cast_count: int = 0
    qdq_count: int = 0

    def implemented_precision(self, requested_precision: Precision) -> Precision | None:
        """Returns the precision in which the group runs, as far as the engine reports it.

        If several precisions are possible and the requested one is among them, the requested one is returned.
        """
        return requested_precision if requested_precision in self.possible_precisions else self.precision


def find_group_implementations(engine_report: EngineReport, network: NetworkOutline) -> dict[str, GroupImplementation]:
    """Finds the implementation of each fusion group in an engine, by group name.

    A group that no engine layer names is absent.
    """
    finder = _ImplementationFinder(engine_report, network)
    return {
        group.name: implementation
        for group in network.groups
        if (implementation := finder.find_group_implementation(group)) is not None
    }


class _ImplementationFinder:
    def __init__(self, engine_report: EngineReport, network: NetworkOutline) -> None:
        self.network = network
        self.network_inputs = {info.name for info in network.inputs}
        self.reformat_layers = [
            layer for layer in engine_report.layers if layer.kind in (REFORMAT, QDQ) and not layer.is_constant
        ]
        self.has_named_reformats = any(layer.name.startswith("Reformatting ") for layer in self.reformat_layers)
        self.layers_by_node: dict[str, list[EngineLayer]] = {}
        for layer in engine_report.layers:
            if layer.kind == COMPUTE:
                for node in layer.network_layers:
                    self.layers_by_node.setdefault(node, []).append(layer)
        self.group_by_node = {node: group.name for group in network.groups for node in group.main_layers}
        self.engine_layers_by_group = {group.name: self._find_engine_layers(group) for group in network.groups}
        self.groups_by_kernel: dict[int, list[str]] = {}
        for group in network.groups:
            for layer in _select_precision_deciding_layers(self.engine_layers_by_group[group.name]):
                self.groups_by_kernel.setdefault(id(layer), []).append(group.name)

    def _find_engine_layers(self, group: FusionGroup) -> list[EngineLayer]:
        engine_layers = _remove_duplicate_layers(layer for name in group.layers if name in group.main_layers
                                                 for layer in self.layers_by_node.get(name, ()))
        engine_layers = engine_layers or _remove_duplicate_layers(layer for name in group.layers
                                                                  for layer in self.layers_by_node.get(name, ()))
        return [layer for layer in engine_layers if not layer.is_constant] or engine_layers

    def find_group_implementation(self, group: FusionGroup) -> GroupImplementation | None:
        layers = self.engine_layers_by_group[group.name]
        if not layers:
            return None
        deciding_layers = _select_precision_deciding_layers(layers)
        sharing_groups = {name for layer in deciding_layers for name in self.groups_by_kernel[id(layer)]} - {group.name}
        in_region = any(layer.is_fused_region for layer in layers)
        times = [layer.ms for layer in layers if layer.ms is not None]
        is_alone = all(
            self.group_by_node.get(node, group.name) == group.name for layer in layers for node in layer.network_layers)
        names = {layer.name for layer in layers}
        reads = {tensor for layer in deciding_layers for tensor in layer.input_tensors}
        writes = {tensor for layer in deciding_layers for tensor in layer.output_tensors}
        reformats = [
            layer for layer in self.reformat_layers
            if (any(_is_reformat_of_layer(layer.name, name) for name in names) if self.has_named_reformats else
                not reads.isdisjoint(layer.output_tensors) or not writes.isdisjoint(layer.input_tensors))
        ]
        casts = [
            layer for layer in reformats if layer.kind == REFORMAT
            and _select_float_types(layer.input_types) != _select_float_types(layer.output_types)
        ]
        qdq = [layer for layer in reformats if layer.kind == QDQ and not reads.isdisjoint(layer.output_tensors)
               and self.network_inputs.isdisjoint(layer.input_tensors)]
        precisions = {_find_kernel_precision(group, layer, bool(sharing_groups)) for layer in deciding_layers}
        possible_precisions = {
            precision
            for layer in deciding_layers if not _is_precision_visible(group, layer)
            for precision in (*_select_float_types(layer.input_types), *_select_float_types(layer.output_types),
                              *_list_cast_types(layer))
        }
        if not group.qdq_sites_of_multiplied_inputs():
            possible_precisions |= {
                precision
                for layer in deciding_layers if layer.is_mha
                for precision in _select_float_types(layer.input_types)
            }
        return GroupImplementation(
            precisions.pop() if len(precisions) == 1 else None, in_region, tuple(layer.name for layer in layers),
            sum(times) if is_alone and len(times) == len(layers) else None,
            sum(layer.kind == REFORMAT for layer in reformats), tuple(sorted(possible_precisions)),
            tuple(precision.name for precision in self.network.groups if precision.name in sharing_groups),
            any(layer.is_mha for layer in deciding_layers), len(casts), len(qdq))


def _select_precision_deciding_layers(engine_layers: Sequence[EngineLayer]) -> Sequence[EngineLayer]:
    """Selects the engine layers that determine the precision of a group: the products, or all layers if there is no
    product."""
    return [layer for layer in engine_layers if layer.type not in _GENERATED_KERNEL_TYPES or layer.is_mha
            ] or engine_layers


def _is_precision_visible(group: FusionGroup, kernel: EngineLayer) -> bool:
    """Returns True if the input and output types of a kernel show the precision in which it computes a group.

    The inputs of a product that also adds a tensor can have two float types, in any order.
    """
    return kernel.is_fused_region or kernel.is_mha or kernel.type not in _GENERATED_KERNEL_TYPES and bool(
        group.qdq_sites_of_multiplied_inputs()) and len({*_select_float_types(kernel.input_types)}) < 2


def _find_kernel_precision(group: FusionGroup, kernel: EngineLayer, is_shared_kernel: bool) -> Precision | None:
    """Finds the precision in which a kernel computes a group; None if the engine does not report it."""
    if kernel.is_fused_region or kernel.is_mha and not group.qdq_sites_of_multiplied_inputs():
        return None
    float_types = _select_float_types(kernel.input_types) or _select_float_types(kernel.output_types)
    if kernel.is_mha and group.attention_role == VALUES_ROLE:
        return next((precision for precision in reversed(kernel.input_types) if precision is not None),
                    kernel.precision)
    if kernel.type not in _GENERATED_KERNEL_TYPES:
        return kernel.precision
    if not is_shared_kernel:
        return float_types[0] if float_types else kernel.precision
    types = {precision for precision in (*kernel.input_types, *kernel.output_types) if precision is not None}
    return types.pop() if len(types) == 1 else None


def _select_float_types(types: Iterable[Precision | None]) -> list[Precision]:
    return [precision for precision in types if precision in FLOAT_PRECISIONS]


def _list_cast_types(engine_layer: EngineLayer) -> list[Precision]:
    return [
        Precision(match[1]) for name in engine_layer.added_nodes if (match := _CAST_PATTERN.search(name)) is not None
    ]


def _remove_duplicate_layers(engine_layers: Iterable[EngineLayer]) -> list[EngineLayer]:
    return list({id(layer): layer for layer in engine_layers}.values())


def _is_reformat_of_layer(reformat_name: str, layer_name: str) -> bool:
    return reformat_name.endswith((f" to {layer_name}", f" from {layer_name}"))


def has_unrequested_precision(group: FusionGroup, config: PrecisionConfig,
                              implementations: Mapping[str, GroupImplementation]) -> bool:
    """Returns True if the engine computes a group in a precision other than requested.

    Operators such as MaxPool and copies of quantized values do not count. Their result is the same on quantized values
    as on the values that these represent.
    """
    implementation = implementations.get(group.name)
    return implementation is not None and is_unrequested_precision(group, config.precision_of(group), implementation)


def is_unrequested_precision(group: FusionGroup, requested_precision: Precision,
                             implementation: GroupImplementation) -> bool:
    """Returns True if a group implementation has another precision than the requested precision of its group.

    The exceptions of `has_unrequested_precision` apply.
    """
    if group.operator in VALUE_PRESERVING:
        return False
    requested_precision = group.precision_shown_by_engine(requested_precision)
    implemented = implementation.implemented_precision(requested_precision)
    if implemented in QUANTIZED_TYPES and requested_precision not in QUANTIZED_TYPES and group.operator in COPIES:
        return False
    return implemented is not None and implemented is not requested_precision


_QDQ_NAME_SUFFIX = re.compile(r"(?:_(?:de)?quantize_scale_node)?(?:_clone_\d+)?$")
"""The suffix of a Q or DQ node in the name of an engine layer of TensorRT 8."""

_MAX_NAMED_LAYERS = 2


def find_converted_findings(network: NetworkOutline, engine_report: EngineReport) -> Iterator[QdqFinding]:
    """Yields the candidates of a file that an engine of the file converts, with the engine layers that do so.

    Raises:
        InputError: No engine layer names a layer of the network.
    """
    if not any(layer.network_layers for layer in engine_report.layers):
        raise InputError(f"this is not an engine of {network.name}", "no engine layer names one of its layers",
                         "Give the engine or the layer information of an engine that was built from this file.")
    for candidate in network.qdq_candidates:
        layers = [layer for layer in engine_report.layers
                  if not layer.is_constant and _is_conversion(layer, candidate, engine_report, network)]
        if layers:
            times = [layer.ms for layer in layers if layer.ms is not None]
            time_text = f", {milliseconds_text(sum(times))}" if times else ""
            names = name_list_text([layer.name for layer in layers], _MAX_NAMED_LAYERS)
            yield replace(candidate, detail=f"{candidate.detail}; the engine converts in {names}{time_text}",
                          conversions=tuple((layer.name, layer.ms) for layer in layers))


def _is_conversion(layer: EngineLayer, candidate: QdqFinding, engine_report: EngineReport,
                   network: NetworkOutline) -> bool:
    """Returns True if an engine layer computes nothing but a conversion that belongs to a candidate."""
    if layer.network_layers or layer.kind == IDLE or layer.is_fused_region:
        return False
    names = {_QDQ_NAME_SUFFIX.sub("", name) for name in (layer.name, *layer.other_nodes)}
    if not names.isdisjoint(candidate.converting_nodes):
        return True
    return layer.kind in (REFORMAT, QDQ) and _changes_quantized_type(layer) and candidate.group != "" and any(
        not set(layer.output_tensors).isdisjoint(other.input_tensors)
        or not set(layer.input_tensors).isdisjoint(other.output_tensors)
        for other in engine_report.layers if other.kind == COMPUTE
        and not set(other.network_layers).isdisjoint(network.get_group(candidate.group).layers))


def _changes_quantized_type(layer: EngineLayer) -> bool:
    """Returns True if an engine layer reads floats and writes quantized values, or the reverse."""
    sides = [{precision for precision in types if precision is not None}
             for types in (layer.input_types, layer.output_types)]
    return any(first & set(FLOAT_PRECISIONS) and second & QUANTIZED_TYPES.keys()
               for first, second in (sides, reversed(sides)))
