"""What a builder would make of a config, as it says itself without a GPU: nothing was run."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    find_group_implementations,
    has_unrequested_precision,
)
from trt_tui.core.engines.inspector import IDLE, QDQ, EngineLayer, EngineReport
from trt_tui.core.engines.plan_accumulators import find_common_accumulators
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.formatting import name_list_text

NO_EFFECT, BREAKS_MHA, STANDALONE_QDQ, BARRIER_SPLITS = "no effect", "splits MHA", "unfused Q/DQ", "splits"
"""Marks of a group: the engine is the same without its choice; its choice takes a fused attention apart; codes that it
reads are made, or taken apart, by a layer of their own; its fusion barrier takes a kernel apart."""


_GENERATED_CODE_PATTERN = re.compile(r"_0x[0-9a-f]{8,}$")

MHA_KERNEL = "mha"
"""The word for the kernel of a fused attention."""


@dataclass(frozen=True)
class Kernel:
    """A layer of an engine by what it is: names and tactics differ from build to build.

    Attributes:
        layer_type: The builder's type of it, or `MHA_KERNEL` for a fused attention.
        input_types: Types of what it reads, "" where it is none of ours; ``output_types`` of what it writes.
        network_layers: Names of the network's layers in it, sorted.
        accumulators: What its product, or QK and PV of an attention, are summed in, "" or empty where it is not told.
        generated_code: Which code the builder has generated for it, "" where that is not told.
    """

    layer_type: str
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    network_layers: tuple[str, ...]
    accumulators: tuple[str, ...] = ()
    generated_code: str = ""

    @property
    def types_text(self) -> str:
        """What goes in and comes out: ``INT8 > FP16``."""
        sides = [
            "+".join(dict.fromkeys(label for label in side if label))
            or "?" for side in (self.input_types, self.output_types)
        ]
        return " > ".join(sides)

    @property
    def description(self) -> str:
        """With the layers in it, those in the scope of the first without it: ``gemm INT8 > FP16: /a/q/MatMul, Add``."""
        sums = f", sums {'+'.join(dict.fromkeys(self.accumulators))}" if any(self.accumulators) else ""
        scope = self.network_layers[0].rpartition("/")[0] if self.network_layers else ""
        names = [
            *self.network_layers[:1],
            *(name.removeprefix(f"{scope}/") if scope else name for name in self.network_layers[1:])
        ]
        return f"{self.layer_type} {self.types_text}{sums}" + (f": {name_list_text(names, 4)}" if names else "")


@dataclass(frozen=True)
class BarrierEffect:
    """What a fusion barrier does to an engine: the kernels that are there without it alone, and with it alone."""

    removed_kernels: tuple[Kernel, ...]
    added_kernels: tuple[Kernel, ...]

    @property
    def description(self) -> str:
        """What it costs, in words."""
        if not (self.removed_kernels or self.added_kernels):
            return "TensorRT did not fuse across it"
        lost, more = (name_list_text([kernel.description
                                      for kernel in kernels], 2)
                      for kernels in (self.removed_kernels, self.added_kernels))
        return f"{more} instead of {lost}" if lost else f"adds {more}"


@dataclass(frozen=True)
class PreviewRefusal:
    """Why there is no preview.

    Attributes:
        layer: The network's layer that the builder names, "" where it names none.
        is_rtx_missing: TensorRT-RTX is not there, or does not load; no config has a preview then.
    """

    title: str
    cause: str = ""
    next_step: str = ""
    layer: str = ""
    is_rtx_missing: bool = False

    @property
    def description(self) -> str:
        """In one line."""
        return ": ".join(filter(None, (self.title, self.cause)))


@dataclass(frozen=True)
class Preview:
    """What a builder makes of a config.

    Attributes:
        builder_release: The builder's release, like "1.7.1".
        compute_capability: The compute capability that it builds for, as (major, minor); ``is_gpu_present`` where a GPU
        of it is here.
        implementations: What became of each group, by name.
        kernels: The layers of the engine; what works on constants alone is left out.
        qdq_count: How many unfused Q or DQ there are among them.
        preview_s: From the typed network to the listing.
        ineffective_groups: Groups whose choice changes nothing in the engine; ``mha_breakers`` those whose choice takes
            a fused attention apart. None while that is not known.
        refusal: Why there is nothing of all this; None where there is.
        builder_warnings: What parser and builder warn of, by group name; see `trt_tui.core.engines.builder_warnings`.
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
    builder_warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def builder_text(self) -> str:
        """Which builder for which GPU: ``RTX 1.7, SM89``."""
        release = ".".join(self.builder_release.split(".")[:2])
        return f"RTX {release}, SM{self.compute_capability[0]}{self.compute_capability[1]}"

    def find_groups_in_unrequested_precision(self, network: NetworkOutline, config: PrecisionConfig) -> tuple[str, ...]:
        """Names of the groups that do not run as a config asks, in network order."""
        return tuple(group.name
                     for group in network.groups
                     if has_unrequested_precision(group, config, self.implementations))

    def list_group_remarks(self, group: FusionGroup, config: PrecisionConfig) -> tuple[str, ...]:
        """What is to be said of a group of a config, the weightiest first."""
        implementation = self.implementations.get(group.name)
        marks = []
        if implementation is not None and has_unrequested_precision(group, config, self.implementations):
            precision = implementation.implemented_precision(group.precision_shown_by_engine(
                config.precision_of(group)))
            marks.append(f"≠ {precision.label if precision is not None else '?'}")
        return (*marks, *self.list_precision_independent_remarks(group))

    def list_precision_independent_remarks(self, group: FusionGroup) -> tuple[str, ...]:
        """What is to be said of a group whatever it is asked to run in."""
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
    """What a listing says of each group."""
    qdq_count = sum(layer.kind == QDQ and not layer.is_constant for layer in engine_report.layers)
    return Preview(builder_release, compute_capability, is_gpu_present,
                   find_group_implementations(engine_report, network), list_kernels(engine_report), qdq_count,
                   preview_s)


def list_kernels(engine_report: EngineReport) -> tuple[Kernel, ...]:
    """The engine layers of a listing that do something in each run, by what they are."""
    return tuple(
        Kernel(MHA_KERNEL if layer.is_mha else layer.type, _list_type_labels(layer.input_types),
               _list_type_labels(layer.output_types), tuple(sorted(layer.network_layers)),
               _list_type_labels(find_common_accumulators(layer.accumulators)) if layer.accumulators else (
               ), _generated_code_text(layer))
        for layer in engine_report.layers
        if layer.kind != IDLE and not layer.is_constant)


def _generated_code_text(engine_layer: EngineLayer) -> str:
    """What tells generated code apart: part of the tactic's name, and what all kernels of that name sum in."""
    match = _GENERATED_CODE_PATTERN.search(engine_layer.kernel_name)
    return " ".join((match[0] if match is not None else "", *("+".join(_list_type_labels(pair))
                                                              for pair in engine_layer.accumulators))).strip()


def _list_type_labels(types: Iterable[Precision | None]) -> tuple[str, ...]:
    return tuple(precision.label if precision is not None else "" for precision in types)


def is_same_engine(first_preview: Preview, second_preview: Preview) -> bool:
    """Whether two previews are of engines with the same layers, and the same code in those that are generated."""
    return Counter(first_preview.kernels) == Counter(second_preview.kernels)


def find_added_kernels(base_preview: Preview, changed_preview: Preview) -> list[Kernel]:
    """The kernels of the other engine that this one lacks, in their order."""
    remaining = Counter(replace(kernel, generated_code="") for kernel in base_preview.kernels)
    added = []
    for kernel in (replace(kernel, generated_code="") for kernel in changed_preview.kernels):
        if remaining[kernel] > 0:
            remaining[kernel] -= 1
        else:
            added.append(kernel)
    return added


def find_groups_sharing_kernel(group: FusionGroup, implementations: Mapping[str, GroupImplementation],
                               network: NetworkOutline) -> tuple[FusionGroup, ...]:
    """A group and those that share its kernel, in network order."""
    implementation = implementations.get(group.name)
    names = {group.name, *(implementation.kernel_mates if implementation is not None else ())}
    return tuple(mate for mate in network.groups if mate.name in names)


def choose_compute_capability(supported_capabilities: Iterable[tuple[int, int]], gpu_capability: tuple[int, int] | None,
                              requested_capability: tuple[int, int] | None = None) -> tuple[int, int]:
    """What to build for: what is asked for, else the GPU here if it is known, else the nearest of the known ones."""
    candidates = sorted(supported_capabilities)
    target = requested_capability or gpu_capability or (8, 9)
    return min(
        candidates, key=lambda capability:
        (abs(capability[0] * 10 + capability[1] - target[0] * 10 - target[1]), capability), default=target)


# -- what a choice does to the engine ---------------------------------------------------------------------------------


def find_possibly_ineffective_groups(network: NetworkOutline, config: PrecisionConfig,
                                     preview: Preview) -> list[FusionGroup]:
    """Groups that were given a precision of their own and do not run in it, or lie in an attention that does not tell:
    their choice may do nothing."""
    def has_unknown_precision(group: FusionGroup) -> bool:
        implementation = preview.implementations.get(group.name)
        return implementation is not None and implementation.in_mha and implementation.implemented_precision(
            group.precision_shown_by_engine(config.precision_of(group))) is None

    return [group for group in network.groups if config.precision_of(group) is not config.default_precision_of(group)
            and (has_unrequested_precision(group, config, preview.implementations) or has_unknown_precision(group))]


def find_split_attention_groups(network: NetworkOutline, config: PrecisionConfig,
                                preview: Preview) -> list[FusionGroup]:
    """Groups of attentions that are no one kernel, if some of it was given a precision of its own: those that were."""
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
    """Which of some groups lie in attentions that are one kernel without their choices.

    Args:
        preview_without_choices: The preview of the config in which they have their defaults.
    """
    fused_attentions = {
        group.attention
        for group in network.groups
        if group.attention and (implementation := preview_without_choices.implementations.get(group.name)) is not None
        and implementation.in_mha
    }
    return tuple(group.name for group in groups if group.attention in fused_attentions)

