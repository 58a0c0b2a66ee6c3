"""The implementation of each fusion group in an engine: its precision, its kernel, and adjacent reformats. Also
previews.

The precision of a product (a Conv, Gemm or MatMul) is that of the kernel that multiplies. In INT8 the inspector often
lists an ONNX layer in two rows: the product, and a generated kernel beside it that quantizes. TensorRT reports no types
between the operators of one generated kernel. Only the types of its inputs and outputs and its named Casts are visible.

For some forms of Q/DQ nodes in a file, engines need conversions: kernels that only change the type of values.

The check of the file lists such forms (`NetworkOutline.qdq_candidates`). Builders fuse most conversions with the layers
around them. Therefore such a form counts only if the layer information or the profile of an engine shows the
conversion.

A preview is the list of engine layers that TensorRT-RTX reports for a config without a GPU. Nothing is executed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.inspector import COMPUTE, IDLE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.lowering.rulebook import VALUE_PRESERVING
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.fusion.attention import VALUES_ROLE
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqFinding
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.operators import COPIES
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import Profile
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
        precision: The precision of its kernel; None if it is not reported, or if it differs between its engine layers.
        in_fused_region: True if the group is inside a fused region.
        engine_layers: Names of its engine layers.
        latency_ms: Time of its engine layers in ms. None if they also compute another group or were not timed.
        reformat_count: Number of adjacent engine layers that change a layout or a type.
        possible_precisions: The float types of the kernel's inputs, outputs and inner Casts; empty if the kernel
            reports its precision.
        sharing_groups: Names of the other groups in the same kernel, in network order.
        in_mha: True if its kernel is a fused attention.
        cast_count: Number of reformats that change a float type.
        qdq_count: Number of unfused Q or DQ nodes whose result the group reads.
    """

    precision: Precision | None
    in_fused_region: bool
    engine_layers: tuple[str, ...]
    latency_ms: float | None = None
    reformat_count: int = 0
    possible_precisions: tuple[Precision, ...] = ()
    sharing_groups: tuple[str, ...] = ()
    in_mha: bool = False
    cast_count: int = 0
    qdq_count: int = 0

    def implemented_precision(self, requested_precision: Precision) -> Precision | None:
        """Returns the precision in which the group runs; None if the engine does not report it.

        If the requested precision is among several possible ones, it is returned.
        """
        return requested_precision if requested_precision in self.possible_precisions else self.precision


def find_group_implementations(engine_report: EngineReport, network: NetworkOutline) -> dict[str, GroupImplementation]:
    """Returns the implementation of each fusion group in an engine, by group name.

    Groups that no engine layer names are absent.
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
        self.layers_by_node = collect_by_key(
            (node, layer) for layer in engine_report.layers if layer.kind == COMPUTE for node in layer.network_layers
        )
        self.group_by_node = {node: group.name for group in network.groups for node in group.main_layers}
        self.engine_layers_by_group = {group.name: self._find_engine_layers(group) for group in network.groups}
        self.groups_by_kernel = collect_by_key(
            (id(layer), group.name)
            for group in network.groups
            for layer in _select_precision_deciding_layers(self.engine_layers_by_group[group.name])
        )

    def _find_engine_layers(self, group: FusionGroup) -> list[EngineLayer]:
        engine_layers = _remove_duplicate_layers(
            layer for name in group.layers if name in group.main_layers for layer in self.layers_by_node.get(name, ())
        )
        engine_layers = engine_layers or _remove_duplicate_layers(
            layer for name in group.layers for layer in self.layers_by_node.get(name, ())
        )
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
            self.group_by_node.get(node, group.name) == group.name for layer in layers for node in layer.network_layers
        )
        names = {layer.name for layer in layers}
        reads = {tensor for layer in deciding_layers for tensor in layer.input_tensors}
        writes = {tensor for layer in deciding_layers for tensor in layer.output_tensors}
        reformats = [
            layer
            for layer in self.reformat_layers
            if (
                any(layer.name.endswith((f" to {name}", f" from {name}")) for name in names)
                if self.has_named_reformats
                else not reads.isdisjoint(layer.output_tensors) or not writes.isdisjoint(layer.input_tensors)
            )
        ]
        casts = [
            layer
            for layer in reformats
            if layer.kind == REFORMAT
            and _select_float_types(layer.input_types) != _select_float_types(layer.output_types)
        ]
        qdq = [
            layer
            for layer in reformats
            if layer.kind == QDQ
            and not reads.isdisjoint(layer.output_tensors)
            and self.network_inputs.isdisjoint(layer.input_tensors)
        ]
        precisions = {_find_kernel_precision(group, layer, bool(sharing_groups)) for layer in deciding_layers}
        possible_precisions = {
            precision
            for layer in deciding_layers
            if not _is_precision_visible(group, layer)
            for precision in (
                *_select_float_types(layer.input_types),
                *_select_float_types(layer.output_types),
                *(Precision(match[1]) for match in map(_CAST_PATTERN.search, layer.added_nodes) if match is not None),
            )
        }
        if not group.qdq_sites_of_multiplied_inputs():
            possible_precisions |= {
                precision
                for layer in deciding_layers
                if layer.is_mha
                for precision in _select_float_types(layer.input_types)
            }
        return GroupImplementation(
            precisions.pop() if len(precisions) == 1 else None,
            in_region,
            tuple(layer.name for layer in layers),
            sum(times) if is_alone and len(times) == len(layers) else None,
            sum(layer.kind == REFORMAT for layer in reformats),
            tuple(sorted(possible_precisions)),
            tuple(precision.name for precision in self.network.groups if precision.name in sharing_groups),
            any(layer.is_mha for layer in deciding_layers),
            len(casts),
            len(qdq),
        )


def _select_precision_deciding_layers(engine_layers: Sequence[EngineLayer]) -> Sequence[EngineLayer]:
    """Returns the engine layers that determine the precision of a group: its Convs and MatMuls, or all if it has none."""
    return [
        layer for layer in engine_layers if layer.type not in _GENERATED_KERNEL_TYPES or layer.is_mha
    ] or engine_layers


def _is_precision_visible(group: FusionGroup, kernel: EngineLayer) -> bool:
    """Returns True if the input and output types of a kernel show the precision of a group.

    They do not show it for a product that also adds a tensor, because its inputs can have two float types in any order.
    """
    return (
        kernel.is_fused_region
        or kernel.is_mha
        or kernel.type not in _GENERATED_KERNEL_TYPES
        and bool(group.qdq_sites_of_multiplied_inputs())
        and len({*_select_float_types(kernel.input_types)}) < 2
    )


def _find_kernel_precision(group: FusionGroup, kernel: EngineLayer, is_shared_kernel: bool) -> Precision | None:
    """Finds the precision in which a kernel computes a group; None if the engine does not report it."""
    if kernel.is_fused_region or kernel.is_mha and not group.qdq_sites_of_multiplied_inputs():
        return None
    float_types = _select_float_types(kernel.input_types) or _select_float_types(kernel.output_types)
    if kernel.is_mha and group.attention_role == VALUES_ROLE:
        return next(
            (precision for precision in reversed(kernel.input_types) if precision is not None), kernel.precision
        )
    if kernel.type not in _GENERATED_KERNEL_TYPES:
        return kernel.precision
    if not is_shared_kernel:
        return float_types[0] if float_types else kernel.precision
    types = {precision for precision in (*kernel.input_types, *kernel.output_types) if precision is not None}
    return types.pop() if len(types) == 1 else None


def _select_float_types(types: Iterable[Precision | None]) -> list[Precision]:
    return [precision for precision in types if precision in FLOAT_PRECISIONS]


def _remove_duplicate_layers(engine_layers: Iterable[EngineLayer]) -> list[EngineLayer]:
    return list({id(layer): layer for layer in engine_layers}.values())


def has_unrequested_precision(
    group: FusionGroup, config: PrecisionConfig, implementations: Mapping[str, GroupImplementation]
) -> bool:
    """Returns True if an engine computes a group in another precision than a config requests.

    Operators such as MaxPool and copies do not count on quantized values, because they give the same result as on
    floats.
    """
    implementation = implementations.get(group.name)
    return implementation is not None and is_unrequested_precision(group, config.precision_of(group), implementation)


def is_unrequested_precision(
    group: FusionGroup, requested_precision: Precision, implementation: GroupImplementation
) -> bool:
    """Returns True if the precision of a group implementation differs from the requested precision.

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


def find_confirmed_qdq_candidates(network: NetworkOutline, engine_report: EngineReport) -> Iterator[QdqFinding]:
    """Yields the candidates of the Q/DQ check that an engine confirms: the engine converts their values in separate
    kernels.

    Raises:
        InputError: No engine layer names a layer of the network.
    """
    if not any(layer.network_layers for layer in engine_report.layers):
        raise InputError(
            f"this is not an engine of {network.name}",
            "no engine layer names one of its layers",
            "Give the engine or the layer information of an engine that was built from this file.",
        )
    for candidate in network.qdq_candidates:
        layers = [
            layer
            for layer in engine_report.layers
            if not layer.is_constant and _is_conversion(layer, candidate, engine_report, network)
        ]
        if layers:
            times = [layer.ms for layer in layers if layer.ms is not None]
            time_text = f", {milliseconds_text(sum(times))}" if times else ""
            names = name_list_text([layer.name for layer in layers], _MAX_NAMED_LAYERS)
            yield replace(
                candidate,
                detail=f"{candidate.detail}; the engine converts in {names}{time_text}",
                conversions=tuple((layer.name, layer.ms) for layer in layers),
            )


def _is_conversion(
    layer: EngineLayer, candidate: QdqFinding, engine_report: EngineReport, network: NetworkOutline
) -> bool:
    """Returns True if an engine layer is the type conversion that a candidate of the Q/DQ check predicts."""
    if layer.network_layers or layer.kind == IDLE or layer.is_fused_region:
        return False
    names = {_QDQ_NAME_SUFFIX.sub("", name) for name in (layer.name, *layer.other_nodes)}
    if not names.isdisjoint(candidate.converting_nodes):
        return True
    return (
        layer.kind in (REFORMAT, QDQ)
        and _quantizes_or_dequantizes(layer)
        and candidate.group != ""
        and any(
            not set(layer.output_tensors).isdisjoint(other.input_tensors)
            or not set(layer.input_tensors).isdisjoint(other.output_tensors)
            for other in engine_report.layers
            if other.kind == COMPUTE
            and not set(other.network_layers).isdisjoint(network.get_group(candidate.group).layers)
        )
    )


def _quantizes_or_dequantizes(layer: EngineLayer) -> bool:
    """Returns True if an engine layer converts floats to quantized values, or the reverse."""
    sides = [
        {precision for precision in types if precision is not None} for types in (layer.input_types, layer.output_types)
    ]
    return any(
        first & set(FLOAT_PRECISIONS) and second & QUANTIZED_TYPES.keys() for first, second in (sides, reversed(sides))
    )


NO_EFFECT, BREAKS_MHA, STANDALONE_QDQ = "no effect", "splits MHA", "unfused Q/DQ"
"""Remarks about a group: its non-default precision does not change the engine; its non-default precision splits a fused
attention; a separate layer quantizes or dequantizes its inputs."""


_GENERATED_CODE_PATTERN = re.compile(r"_0x[0-9a-f]{8,}$")

MHA_KERNEL = "mha"
"""The layer type of a fused attention."""


@dataclass(frozen=True)
class Kernel:
    """An engine layer that is identified by its content. Names and tactics would differ between builds.

    Attributes:
        layer_type: The builder's type of the layer, or `MHA_KERNEL` for a fused attention.
        input_types: Types of the tensors that it reads; "" for a type that is not a `Precision`. ``output_types`` are
            the types of the tensors that it writes.
        network_layers: Names of the network's layers in it, sorted.
        generated_code: The identity of the code that the builder generated for it; "" if unknown.
    """

    layer_type: str
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    network_layers: tuple[str, ...]
    generated_code: str = ""

    @property
    def types_text(self) -> str:
        """The types of inputs and outputs as text, such as ``INT8 > FP16``."""
        sides = [
            "+".join(dict.fromkeys(label for label in side if label)) or "?"
            for side in (self.input_types, self.output_types)
        ]
        return " > ".join(sides)

    @property
    def kernel_text(self) -> str:
        """A text with the types and layers of the kernel, such as ``gemm INT8 > FP16: /a/q/MatMul, Add``.

        Names of layers in the scope of the first layer are shortened.
        """
        scope = self.network_layers[0].rpartition("/")[0] if self.network_layers else ""
        names = [
            *self.network_layers[:1],
            *(name.removeprefix(f"{scope}/") if scope else name for name in self.network_layers[1:]),
        ]
        return f"{self.layer_type} {self.types_text}" + (f": {name_list_text(names, 4)}" if names else "")


@dataclass(frozen=True)
class PreviewRefusal:
    """The reason why a config has no preview.

    Attributes:
        layer: The network's layer that the builder names; "" if it names none.
        is_rtx_missing: True if TensorRT-RTX is not installed or does not load. No config has a preview then.
    """

    title: str
    cause: str = ""
    next_step: str = ""
    layer: str = ""
    is_rtx_missing: bool = False

    @property
    def refusal_text(self) -> str:
        """The reason why a config has no preview, in one line."""
        return ": ".join(filter(None, (self.title, self.cause)))


@dataclass(frozen=True)
class Preview:
    """The engine layers that TensorRT-RTX reports for a config without a GPU, and the effects of the config on them.

    Attributes:
        builder_release: The release of the builder, such as "1.7.1".
        compute_capability: The compute capability for which the engine was listed, as (major, minor).
            ``is_gpu_present`` is True if this machine has such a GPU.
        implementations: The implementation of each group, by name.
        kernels: The layers of the engine without those that read only constants.
        qdq_count: Number of unfused Q or DQ.
        conversion_count: Number of kernels that only convert: unfused Q or DQ, and changes of a type or layout.
        preview_s: Seconds from the typed network to the list of engine layers.
        ineffective_groups: Groups whose non-default precision does not change the engine; None if unknown.
        mha_breakers: Groups whose non-default precision splits a fused attention; None if unknown.
        refusal: The reason why there is no preview; None if there is one.
        builder_warnings: Warnings of parser and builder; see `trt_tui.core.engines.fallback_ladder`.
        raw_messages: Levels and texts of the messages of parser and builder, as they printed them.
    """

    builder_release: str = ""
    compute_capability: tuple[int, int] = (0, 0)
    is_gpu_present: bool = False
    implementations: Mapping[str, GroupImplementation] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    qdq_count: int = 0
    preview_s: float = 0.0
    ineffective_groups: tuple[str, ...] | None = None
    mha_breakers: tuple[str, ...] | None = None
    refusal: PreviewRefusal | None = None
    builder_warnings: tuple[str, ...] = ()
    raw_messages: tuple[tuple[str, str], ...] = ()
    conversion_count: int = 0

    @property
    def builder_text(self) -> str:
        """The builder and the GPU of the preview as text, such as ``RTX 1.7, SM89``."""
        release = ".".join(self.builder_release.split(".")[:2])
        return f"RTX {release}, SM{self.compute_capability[0]}{self.compute_capability[1]}"

    @property
    def attention_kernel_count(self) -> int:
        """The number of kernels of fused attentions."""
        return sum(kernel.layer_type == MHA_KERNEL for kernel in self.kernels)

    def find_groups_in_unrequested_precision(self, network: NetworkOutline, config: PrecisionConfig) -> tuple[str, ...]:
        """Returns the names of the groups that run in another precision than requested, in network order."""
        return tuple(
            group.name for group in network.groups if has_unrequested_precision(group, config, self.implementations)
        )

    def list_group_remarks(self, group: FusionGroup, config: PrecisionConfig) -> tuple[str, ...]:
        """Returns remarks about a group, such as an unrequested precision or unfused Q/DQ, the most important first."""
        implementation = self.implementations.get(group.name)
        marks = []
        if implementation is not None and has_unrequested_precision(group, config, self.implementations):
            precision = implementation.implemented_precision(
                group.precision_shown_by_engine(config.precision_of(group))
            )
            marks.append(f"≠ {precision.label if precision is not None else '?'}")
        return (*marks, *self.list_precision_independent_remarks(group))

    def list_precision_independent_remarks(self, group: FusionGroup) -> tuple[str, ...]:
        """Returns the remarks about a group that do not depend on its requested precision."""
        implementation, marks = self.implementations.get(group.name), []
        if group.name in (self.ineffective_groups or ()):
            marks.append(NO_EFFECT)
        if group.name in (self.mha_breakers or ()):
            marks.append(BREAKS_MHA)
        if implementation is not None and implementation.qdq_count:
            marks.append(STANDALONE_QDQ)
        return tuple(marks)


def build_preview(
    engine_report: EngineReport,
    network: NetworkOutline,
    builder_release: str,
    compute_capability: tuple[int, int],
    preview_s: float,
    is_gpu_present: bool = False,
) -> Preview:
    """Builds a preview from a report of engine layers."""
    conversion_kinds = [
        layer.kind for layer in engine_report.layers if layer.kind in (QDQ, REFORMAT) and not layer.is_constant
    ]
    return Preview(
        builder_release,
        compute_capability,
        is_gpu_present,
        find_group_implementations(engine_report, network),
        list_kernels(engine_report),
        conversion_kinds.count(QDQ),
        preview_s,
        conversion_count=len(conversion_kinds),
    )


def list_kernels(engine_report: EngineReport) -> tuple[Kernel, ...]:
    """Returns the kernels of an engine, without layers that read only constants."""
    return tuple(
        Kernel(
            MHA_KERNEL if layer.is_mha else layer.type,
            _list_type_labels(layer.input_types),
            _list_type_labels(layer.output_types),
            tuple(sorted(layer.network_layers)),
            _generated_code_text(layer),
        )
        for layer in engine_report.layers
        if layer.kind != IDLE and not layer.is_constant
    )


def _generated_code_text(engine_layer: EngineLayer) -> str:
    """Returns the part of a tactic name that identifies generated code; "" if there is none."""
    match = _GENERATED_CODE_PATTERN.search(engine_layer.kernel_name)
    return match[0] if match is not None else ""


def _list_type_labels(types: Iterable[Precision | None]) -> tuple[str, ...]:
    return tuple(precision.label if precision is not None else "" for precision in types)


def is_same_engine(first_preview: Preview, second_preview: Preview) -> bool:
    """Returns True if two previews have the same engine layers with the same generated code."""
    return Counter(first_preview.kernels) == Counter(second_preview.kernels)


def find_added_kernels(base_preview: Preview, changed_preview: Preview) -> list[Kernel]:
    """Returns the kernels of ``changed_preview`` that are not in ``base_preview``, in execution order."""
    remaining = Counter(replace(kernel, generated_code="") for kernel in base_preview.kernels)
    added = []
    for kernel in (replace(kernel, generated_code="") for kernel in changed_preview.kernels):
        if remaining[kernel] > 0:
            remaining[kernel] -= 1
        else:
            added.append(kernel)
    return added


def choose_compute_capability(
    supported_capabilities: Iterable[tuple[int, int]],
    gpu_capability: tuple[int, int] | None,
    requested_capability: tuple[int, int] | None = None,
    min_capability: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Chooses the compute capability of a preview.

    The candidates are the requested capability, that of the GPU in this machine, and 8.9; the first that exists is
    chosen. Instead of 8.9 it is ``min_capability``, which the precisions of the config need, if that is higher. The
    result is the supported capability nearest to the chosen one.
    """
    candidates = sorted(supported_capabilities)
    default = next(
        (capability for capability in candidates if capability >= max((8, 9), min_capability or (0, 0))), (8, 9)
    )
    target = requested_capability or gpu_capability or default
    return min(
        candidates,
        key=lambda capability: (abs(capability[0] * 10 + capability[1] - target[0] * 10 - target[1]), capability),
        default=target,
    )


# -- effects of a group's non-default precision on the engine ---------------------------------------------------------


def find_possibly_ineffective_groups(
    network: NetworkOutline, config: PrecisionConfig, preview: Preview
) -> list[FusionGroup]:
    """Returns groups whose non-default precision may have no effect on the engine.

    The engine runs them in another precision than requested. A fused attention does not show the types of its sums, so
    the effect of a group inside it is unknown.
    """
    return [
        group
        for group in network.groups
        if config.precision_of(group) is not config.default_precision_of(group)
        and has_unrequested_precision(group, config, preview.implementations)
        and not preview.implementations[group.name].in_mha
    ]


def find_split_attention_groups(
    network: NetworkOutline, config: PrecisionConfig, preview: Preview
) -> list[FusionGroup]:
    """Returns groups with a non-default precision whose attention is not a single kernel."""
    fused_attentions = {
        group.attention
        for group in network.groups
        if group.attention
        and (implementation := preview.implementations.get(group.name)) is not None
        and implementation.in_mha
    }
    return [
        group
        for group in network.groups
        if group.attention
        and group.attention not in fused_attentions
        and config.precision_of(group) is not config.default_precision_of(group)
    ]


def find_groups_splitting_mha(
    network: NetworkOutline, groups: Iterable[FusionGroup], preview_without_choices: Preview
) -> tuple[str, ...]:
    """Returns groups whose non-default precision splits an attention into several kernels.

    Args:
        groups: Groups with a precision other than the default.
        preview_without_choices: The preview of the config in which the groups have their default precision.
    """
    fused_attentions = {
        group.attention
        for group in network.groups
        if group.attention
        and (implementation := preview_without_choices.implementations.get(group.name)) is not None
        and implementation.in_mha
    }
    return tuple(group.name for group in groups if group.attention in fused_attentions)


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreviewNetwork:
    """The identity of a network to preview: its files and those of its libraries.

    Attributes:
        sha256: The hash of the file and its external data.
        reference: The path of the FP32 network of a quantized network; None if there is none.
        ort_ops: The paths of custom operator libraries.
        plugins: The paths of plugin libraries, each with its SHA-256.
    """

    path: str
    sha256: str
    reference: str | None = None
    ort_ops: tuple[str, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PreviewRequest:
    """A request to preview a config for a GPU.

    Attributes:
        ranges: The amax by tensor, in the tensors' own units. Kernels are fused only if scales are equal.
        gpu_capability: The compute capability of the GPU in this machine; None without a GPU.
        requested_capability: The compute capability that the user requests; None if the user requests none.
    """

    network: PreviewNetwork
    config: PrecisionConfig
    ranges: Mapping[str, float]
    profile: Profile
    gpu_capability: tuple[int, int] | None = None
    requested_capability: tuple[int, int] | None = None
