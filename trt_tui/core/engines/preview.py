"""Previews: the engine layers that TensorRT-RTX lists for a config without a GPU. Nothing is executed."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    find_group_implementations,
    has_unrequested_precision,
)
from trt_tui.core.engines.inspector import IDLE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Profile
from trt_tui.formatting import name_list_text

NO_EFFECT, BREAKS_MHA, STANDALONE_QDQ, BARRIER_SPLITS = "no effect", "splits MHA", "unfused Q/DQ", "splits"
"""Remarks about a group: its non-default precision does not change the engine; its non-default precision splits a fused
attention; a separate layer quantizes or dequantizes its inputs; its fusion barrier splits a kernel."""


_GENERATED_CODE_PATTERN = re.compile(r"_0x[0-9a-f]{8,}$")

MHA_KERNEL = "mha"
"""The layer type of a fused attention."""


@dataclass(frozen=True)
class Kernel:
    """An engine layer identified by its content, because names and tactics differ from build to build.

    Attributes:
        layer_type: The builder's type of the layer, or `MHA_KERNEL` for a fused attention.
        input_types: Types of the tensors that it reads, "" for a type that is not a `Precision`. ``output_types`` holds
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
            "+".join(dict.fromkeys(label for label in side if label))
            or "?" for side in (self.input_types, self.output_types)
        ]
        return " > ".join(sides)

    @property
    def description(self) -> str:
        """The kernel as text with its types and layers, such as ``gemm INT8 > FP16: /a/q/MatMul, Add``.

        Layers in the scope of the first layer are shown without that scope.
        """
        scope = self.network_layers[0].rpartition("/")[0] if self.network_layers else ""
        names = [
            *self.network_layers[:1],
            *(name.removeprefix(f"{scope}/") if scope else name for name in self.network_layers[1:])
        ]
        return f"{self.layer_type} {self.types_text}" + (f": {name_list_text(names, 4)}" if names else "")


@dataclass(frozen=True)
class BarrierEffect:
    """The effect of a fusion barrier on an engine: kernels that exist only without it, and kernels that exist only with
    it."""

    removed_kernels: tuple[Kernel, ...]
    added_kernels: tuple[Kernel, ...]

    @property
    def description(self) -> str:
        """The additional kernels that a fusion barrier causes, as text."""
        if not (self.removed_kernels or self.added_kernels):
            return "TensorRT did not fuse across it"
        lost, more = (name_list_text([kernel.description
                                      for kernel in kernels], 2)
                      for kernels in (self.removed_kernels, self.added_kernels))
        return f"{more} instead of {lost}" if lost else f"adds {more}"


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
    def description(self) -> str:
        """The reason why a config has no preview, in one line."""
        return ": ".join(filter(None, (self.title, self.cause)))


@dataclass(frozen=True)
class Preview:
    """The engine that TensorRT-RTX lists for a config, with effects of the config on it.

    Attributes:
        builder_release: The release of the builder, such as "1.7.1".
        compute_capability: The compute capability for which the engine was listed, as (major, minor).
            ``is_gpu_present`` is True if this machine has such a GPU.
        implementations: The implementation of each group, by name.
        kernels: The layers of the engine without those that read only constants.
        qdq_count: Number of unfused Q or DQ.
        conversion_count: Number of kernels that only convert: unfused Q or DQ, and changes of a type or layout.
        preview_s: Time in seconds from the typed network to the list.
        ineffective_groups: Groups whose non-default precision changes nothing in the engine; None if unknown.
        mha_breakers: Groups whose non-default precision splits a fused attention; None if unknown.
        refusal: The reason why there is no preview; None if there is one.
        builder_warnings: Warnings of parser and builder; see `trt_tui.core.engines.builder_warnings`.
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
    barrier_effects: Mapping[str, BarrierEffect] = field(default_factory=dict)
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
        """Finds the names of the groups that run in a precision other than requested, in network order."""
        return tuple(group.name
                     for group in network.groups
                     if has_unrequested_precision(group, config, self.implementations))

    def list_group_remarks(self, group: FusionGroup, config: PrecisionConfig) -> tuple[str, ...]:
        """Lists the remarks about a group of a config, such as another precision or unfused Q/DQ, the most important
        first."""
        implementation = self.implementations.get(group.name)
        marks = []
        if implementation is not None and has_unrequested_precision(group, config, self.implementations):
            precision = implementation.implemented_precision(group.precision_shown_by_engine(
                config.precision_of(group)))
            marks.append(f"≠ {precision.label if precision is not None else '?'}")
        return (*marks, *self.list_precision_independent_remarks(group))

    def list_precision_independent_remarks(self, group: FusionGroup) -> tuple[str, ...]:
        """Lists the remarks about a group that do not depend on its requested precision."""
        implementation, marks = self.implementations.get(group.name), []
        effects = [
            self.barrier_effects[tensor]
            for tensor in BarrierMove.subject_kind.list_subjects_of_group(group)
            if tensor in self.barrier_effects
        ]
        removed_kernels = [kernel for effect in effects for kernel in effect.removed_kernels]
        if group.name in (self.ineffective_groups or
                          ()) or effects and not any(effect.removed_kernels or effect.added_kernels
                                                     for effect in effects):
            marks.append(NO_EFFECT)
        if group.name in (self.mha_breakers or ()) or any(kernel.layer_type == MHA_KERNEL
                                                          for kernel in removed_kernels):
            marks.append(BREAKS_MHA)
        elif any(effect.removed_kernels or effect.added_kernels for effect in effects):
            marks.append(BARRIER_SPLITS)
        if implementation is not None and implementation.qdq_count:
            marks.append(STANDALONE_QDQ)
        return tuple(marks)


def build_preview(engine_report: EngineReport, network: NetworkOutline, builder_release: str,
                  compute_capability: tuple[int, int], preview_s: float, is_gpu_present: bool = False) -> Preview:
    """Builds a preview from the list of engine layers."""
    conversion_kinds = [
        layer.kind for layer in engine_report.layers if layer.kind in (QDQ, REFORMAT) and not layer.is_constant
    ]
    return Preview(builder_release, compute_capability, is_gpu_present,
                   find_group_implementations(engine_report, network), list_kernels(engine_report),
                   conversion_kinds.count(QDQ), preview_s, conversion_count=len(conversion_kinds))


def list_kernels(engine_report: EngineReport) -> tuple[Kernel, ...]:
    """Lists the kernels of an engine that compute something in each execution."""
    return tuple(
        Kernel(MHA_KERNEL if layer.is_mha else layer.type, _list_type_labels(layer.input_types),
               _list_type_labels(layer.output_types), tuple(sorted(layer.network_layers)),
               _generated_code_text(layer))
        for layer in engine_report.layers
        if layer.kind != IDLE and not layer.is_constant)


def _generated_code_text(engine_layer: EngineLayer) -> str:
    """Returns the part of a tactic's name that distinguishes generated code; "" if there is none."""
    match = _GENERATED_CODE_PATTERN.search(engine_layer.kernel_name)
    return match[0] if match is not None else ""


def _list_type_labels(types: Iterable[Precision | None]) -> tuple[str, ...]:
    return tuple(precision.label if precision is not None else "" for precision in types)


def is_same_engine(first_preview: Preview, second_preview: Preview) -> bool:
    """Returns True if two previews show engines with the same layers and the same generated code."""
    return Counter(first_preview.kernels) == Counter(second_preview.kernels)


def find_added_kernels(base_preview: Preview, changed_preview: Preview) -> list[Kernel]:
    """Returns the kernels that a preview has and the preview of another config lacks, in their order."""
    remaining = Counter(replace(kernel, generated_code="") for kernel in base_preview.kernels)
    added = []
    for kernel in (replace(kernel, generated_code="") for kernel in changed_preview.kernels):
        if remaining[kernel] > 0:
            remaining[kernel] -= 1
        else:
            added.append(kernel)
    return added


def choose_compute_capability(supported_capabilities: Iterable[tuple[int, int]], gpu_capability: tuple[int, int] | None,
                              requested_capability: tuple[int, int] | None = None,
                              min_capability: tuple[int, int] | None = None) -> tuple[int, int]:
    """Chooses the compute capability of a preview.

    The requested capability comes first, then that of the GPU in this machine, then 8.9, or the lowest supported
    capability that the precisions of the config need (``min_capability``) if that is higher. The result is the
    supported capability nearest to it.
    """
    candidates = sorted(supported_capabilities)
    default = next((capability for capability in candidates if capability >= max((8, 9), min_capability or (0, 0))),
                   (8, 9))
    target = requested_capability or gpu_capability or default
    return min(
        candidates, key=lambda capability:
        (abs(capability[0] * 10 + capability[1] - target[0] * 10 - target[1]), capability), default=target)


# -- effects of a group's non-default precision on the engine ---------------------------------------------------------


def find_possibly_ineffective_groups(network: NetworkOutline, config: PrecisionConfig,
                                     preview: Preview) -> list[FusionGroup]:
    """Finds groups whose non-default precision may have no effect in the engine.

    The engine runs them in another precision. A kernel of fused attention does not show the types of its sums, so that
    the effect of a group inside it is unknown.
    """
    return [group for group in network.groups if config.precision_of(group) is not config.default_precision_of(group)
            and has_unrequested_precision(group, config, preview.implementations)
            and not preview.implementations[group.name].in_mha]


def find_split_attention_groups(network: NetworkOutline, config: PrecisionConfig,
                                preview: Preview) -> list[FusionGroup]:
    """Finds groups with a precision other than the default whose attention is not a single kernel."""
    fused_attentions = {
        group.attention
        for group in network.groups
        if group.attention and (
            implementation := preview.implementations.get(group.name)) is not None and implementation.in_mha
    }
    return [group for group in network.groups if group.attention and group.attention not in fused_attentions
            and config.precision_of(group) is not config.default_precision_of(group)]


def find_groups_splitting_mha(network: NetworkOutline, groups: Iterable[FusionGroup],
                              preview_without_choices: Preview) -> tuple[str, ...]:
    """Finds groups whose non-default precision splits an attention that is a single kernel without it.

    Args:
        groups: Groups with a precision other than the default.
        preview_without_choices: The preview of the config in which the groups have their default precision.
    """
    fused_attentions = {
        group.attention
        for group in network.groups
        if group.attention and (implementation := preview_without_choices.implementations.get(group.name)) is not None
        and implementation.in_mha
    }
    return tuple(group.name for group in groups if group.attention in fused_attentions)


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreviewNetwork:
    """The network of a preview.

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
        gpu_capability: The compute capability of the GPU here; None without a GPU.
        requested_capability: The compute capability that the user has named; None if none was named.
    """

    network: PreviewNetwork
    config: PrecisionConfig
    ranges: Mapping[str, float]
    profile: Profile
    gpu_capability: tuple[int, int] | None = None
    requested_capability: tuple[int, int] | None = None
