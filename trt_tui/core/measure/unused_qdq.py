"""Quantized layers that a previewed engine computes in a float type, and the config without their Q/DQ.

Such Q/DQ round values and can need kernels of their own, and no kernel computes faster for them. A layer whose product
runs in the quantized type keeps its Q/DQ, even if they are unfused: a preview does not show times, so it cannot show
that the product would be as fast in a float type.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from trt_tui.core.engines.group_implementations import GroupImplementation, Preview, is_unrequested_precision
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.moves.config import KeepMove, PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import add_decibel_unit, counted_noun_text, milliseconds_text, name_list_text

Step = TypeVar("Step")

PREVIEW_REASON = "preview"
"""The origin of the precision moves that take Q/DQ out."""


@dataclass(frozen=True)
class UnusedQuantization:
    """A fusion group that the config quantizes and the previewed engine computes in a float type.

    Attributes:
        requested_type: The quantized type in the config.
        implemented: The float precision in the engine.
        qdq_count: Number of unfused Q or DQ whose result the group reads, each a kernel.
        fixed_reason: The reason why the group keeps its precision; "" if its Q/DQ can be taken out.
    """

    group_name: str
    requested_type: Precision
    implemented: Precision
    qdq_count: int
    fixed_reason: str = ""

    @property
    def description(self) -> str:
        """The finding as text, such as "INT8 in the config, runs in FP16: its Q/DQ cost 2 conversions"."""
        cost_text = (f"cost {counted_noun_text(self.qdq_count, 'conversion')}"
                     if self.qdq_count else "add rounding, but no kernel")
        kept_text = f"; {self.fixed_reason}" if self.fixed_reason else ""
        return (f"{self.requested_type.label} in the config, runs in {self.implemented.label}: "
                f"its Q/DQ {cost_text}{kept_text}")


def find_unused_quantization_of_group(group: FusionGroup, requested_precision: Precision,
                                      implementation: GroupImplementation | None) -> UnusedQuantization | None:
    """Returns the unused quantization of one group; None if the group is not quantized, or an engine layer may compute
    in its quantized type.

    A type that quantizes only weights (INT4) never counts, because its layers multiply in a float type by design.
    """
    quantized_type = QUANTIZED_TYPES.get(group.resolve_file_precision(requested_precision))
    if (implementation is None or quantized_type is None or not quantized_type.quantizes_activations
            or not is_unrequested_precision(group, requested_precision, implementation)):
        return None
    implemented = implementation.implemented_precision(quantized_type.precision)
    if implemented not in FLOAT_PRECISIONS:
        return None
    return UnusedQuantization(group.name, quantized_type.precision, implemented, implementation.qdq_count)


def find_unused_quantization(network: NetworkOutline, config: PrecisionConfig, preview: Preview,
                             fixed_reasons: Mapping[str, str] = MappingProxyType({})
                             ) -> tuple[UnusedQuantization, ...]:
    """Returns the groups of a config whose quantization the previewed engine does not use, in network order.

    Args:
        fixed_reasons: The reasons why further groups keep their precision, by group name.
    """
    return tuple(
        replace(unused, fixed_reason=_fixed_reason(group, config, unused.implemented, fixed_reasons))
        for group in network.groups
        if (unused := find_unused_quantization_of_group(group, config.precision_of(group),
                                                        preview.implementations.get(group.name))) is not None)


def _fixed_reason(group: FusionGroup, config: PrecisionConfig, precision: Precision,
                  fixed_reasons: Mapping[str, str]) -> str:
    """Returns the reason why a group keeps its precision; "" if it can have another one."""
    if group.name in config.groups_kept_by_rule:
        return config.get_moves(KeepMove)[group.name].row_note
    if group.name in fixed_reasons:
        return fixed_reasons[group.name]
    move = config.precision_moves.get(group.name)
    if move is not None and move.reason == "user":
        return f"set to {group.precision_label(move.precision)} by you"
    return f"it cannot run in {precision.label} as requested" if precision not in group.allowed_precisions else ""


def find_used_quantization(network: NetworkOutline, config: PrecisionConfig,
                           implementations: Mapping[str, GroupImplementation]) -> dict[str, str]:
    """Returns the groups that a built engine runs in their quantized type, each with a reason to keep its Q/DQ.

    The engine counts more than a preview, which another builder makes.
    """
    return {group.name: f"runs in {group.precision_label(config.precision_of(group))} in the built engine"
            for group in network.groups if _runs_in_quantized_type(group, config, implementations)}


def unused_qdq_record(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """Returns the JSON key of the unused Q/DQ of a preview, with a text for each group; {} if there are none."""
    unused = find_unused_quantization(network, config, preview)
    return {"unused_qdq": {item.group_name: item.description for item in unused}} if unused else {}


def remove_unused_quantization(network: NetworkOutline, config: PrecisionConfig,
                               groups: Sequence[UnusedQuantization]) -> PrecisionConfig:
    """Returns the config in which some groups have the float precision of the previewed engine instead of Q/DQ."""
    for unused in groups:
        if not unused.fixed_reason:
            config = config.with_group_precision([network.get_group(unused.group_name)], unused.implemented,
                                                 PREVIEW_REASON)
    return config


@dataclass(frozen=True)
class QdqRemoval:
    """A config without the Q/DQ that the engine does not use, with the savings that previews and engines showed.

    Attributes:
        config: The config without these Q/DQ; the original config if there are none.
        groups: The groups that lost their Q/DQ, in network order.
        kept_groups: The groups that keep their unused Q/DQ: fixed ones, and those without which the engine is worse.
        builder_text: The builder and the GPU of the previews.
        kernels: The number of kernels before and after.
        conversions: The number of conversions (reformats and unfused Q/DQ) among the kernels, before and after.
        accuracies: The simulated accuracy before and after; None if not measured.
        latencies_ms: The median latency of the engines before and after; None if either was not measured.
        rejection: The reason why the Q/DQ stay after all; "" if they are taken out.
    """

    config: PrecisionConfig
    groups: tuple[UnusedQuantization, ...]
    kept_groups: tuple[UnusedQuantization, ...]
    builder_text: str
    kernels: tuple[int, int]
    conversions: tuple[int, int]
    accuracies: tuple[Accuracy, Accuracy] | None = None
    latencies_ms: tuple[float, float] | None = None
    rejection: str = ""

    @property
    def summary(self) -> str:
        """The savings: "Took the Q/DQ of 5 layers out: 31 to 26 kernels, 9 to 3 conversions"."""
        count_text = counted_noun_text(len(self.groups), "layer")
        text = (f"The Q/DQ of {count_text} stay, {self.rejection}: without them"
                if self.rejection else f"Took the Q/DQ of {count_text} out:")
        parts = [f"{self.kernels[0]} to {self.kernels[1]} kernels",
                 f"{self.conversions[0]} to {self.conversions[1]} conversions"]
        if self.accuracies is not None:
            before, after = (accuracy.worst_errors for accuracy in self.accuracies)
            if before is not None and after is not None and before.mismatch is None and after.mismatch is None:
                parts.append(f"{before.sqnr_text()} to {add_decibel_unit(after.sqnr_text())}")
        if self.latencies_ms is not None:
            parts.append(f"{milliseconds_text(self.latencies_ms[0])} to {milliseconds_text(self.latencies_ms[1])}")
        return f"{text} {', '.join(parts)}"

    @property
    def move_reasons(self) -> dict[str, str]:
        """The reasons for the precision moves that take the Q/DQ out, by group name, in network order."""
        return {unused.group_name: f"{unused.requested_type.label} ran in {unused.implemented.label} "
                                   f"(preview {self.builder_text})" for unused in self.groups}

    def find_quantized_groups(self, network: NetworkOutline, config: PrecisionConfig) -> tuple[str, ...]:
        """Finds the names of the groups that are quantized in a config although this removal took their Q/DQ out."""
        return tuple(unused.group_name for unused in self.groups
                     if network.get_group(unused.group_name).resolve_file_precision(
                         config.precision_of(network.get_group(unused.group_name))) in QUANTIZED_TYPES)

    @property
    def report_text(self) -> str:
        """The summary with the names of the layers and the source of the numbers, for reports."""
        names = name_list_text([f"{unused.group_name} ({unused.requested_type.label} ran in {unused.implemented.label})"
                                for unused in self.groups])
        source = f"preview {self.builder_text}" + (", times of engines" if self.latencies_ms is not None else "")
        return f"{self.summary} ({source}): {names}"

    def to_record(self) -> dict[str, Any]:
        """Returns the JSON record of the removal: each pair is the value before and after."""
        record: dict[str, Any] = {
            "layers": {unused.group_name: {"asked": unused.requested_type.value, "made": unused.implemented.value}
                       for unused in self.groups},
            "preview": self.builder_text, "kernels": list(self.kernels), "conversions": list(self.conversions),
            "removed": not self.rejection
        }
        if self.accuracies is not None:
            errors = [accuracy.worst_errors for accuracy in self.accuracies]
            record["simulated_sqnr_db"] = [item.sqnr_db if item is not None else None for item in errors]
        if self.latencies_ms is not None:
            record["latency_ms"] = list(self.latencies_ms)
        return record | ({"kept_because": self.rejection} if self.rejection else {})


def remove_unused_qdq(network: NetworkOutline, config: PrecisionConfig, preview: Preview,
                      preview_config: Callable[[PrecisionConfig], Generator[Step, None, Preview | None]],
                      fixed_reasons: Mapping[str, str] = MappingProxyType({})) -> Generator[Step, None, QdqRemoval]:
    """Takes unused Q/DQ out of a config until its preview shows none that can go.

    All groups of a preview are tried at once. If the engine is worse without them, each half is tried, down to single
    groups. A changed engine can show further groups, which are tried next.

    Args:
        preview: The preview of the config.
        preview_config: A function that returns the preview of another config; None if it has none.
        fixed_reasons: The reasons why further groups keep their precision, by group name.
    """
    taken: dict[str, UnusedQuantization] = {}
    needed: set[str] = set()
    previews: dict[PrecisionConfig, Preview | None] = {}
    current_config, current_preview = config, preview
    while batch := _list_removable_groups(network, current_config, current_preview, fixed_reasons, needed):
        batches = [batch]
        while batches:
            still_unused = {unused.group_name for unused in _list_removable_groups(
                network, current_config, current_preview, fixed_reasons, needed)}
            batch = [unused for unused in batches.pop() if unused.group_name in still_unused]
            if not batch:
                continue
            changed_config = remove_unused_quantization(network, current_config, batch)
            if changed_config not in previews:
                previews[changed_config] = yield from preview_config(changed_config)
            changed_preview = previews[changed_config]
            if changed_preview is not None and changed_preview.refusal is None and not _is_worse_engine(
                    network, current_config, current_preview, changed_preview, batch):
                current_config, current_preview = changed_config, changed_preview
                taken.update((unused.group_name, unused) for unused in batch)
            elif len(batch) == 1:
                needed.add(batch[0].group_name)
            else:
                half = len(batch) // 2
                batches += [batch[half:], batch[:half]]
    return QdqRemoval(current_config, tuple(taken[group.name] for group in network.groups if group.name in taken),
                      find_unused_quantization(network, current_config, current_preview, fixed_reasons),
                      preview.builder_text, (len(preview.kernels), len(current_preview.kernels)),
                      (preview.conversion_count, current_preview.conversion_count))


def _list_removable_groups(network: NetworkOutline, config: PrecisionConfig, preview: Preview,
                           fixed_reasons: Mapping[str, str], needed: Collection[str]) -> list[UnusedQuantization]:
    return [unused for unused in find_unused_quantization(network, config, preview, fixed_reasons)
            if not unused.fixed_reason and unused.group_name not in needed]


def _is_worse_engine(network: NetworkOutline, config: PrecisionConfig, before: Preview, after: Preview,
                     batch: Sequence[UnusedQuantization]) -> bool:
    """Returns True if an engine without some Q/DQ has more kernels or, with as many kernels, more conversions.

    An engine in which another layer no longer runs in its quantized type is worse too.
    """
    if (len(after.kernels), after.conversion_count) > (len(before.kernels), before.conversion_count):
        return True
    changed_names = {unused.group_name for unused in batch}
    return any(
        _runs_in_quantized_type(group, config, before.implementations)
        and not _runs_in_quantized_type(group, config, after.implementations)
        for group in network.groups if group.name not in changed_names)


def _runs_in_quantized_type(group: FusionGroup, config: PrecisionConfig,
                            implementations: Mapping[str, GroupImplementation]) -> bool:
    implementation = implementations.get(group.name)
    requested = group.precision_shown_by_engine(config.precision_of(group))
    return implementation is not None and implementation.implemented_precision(requested) in QUANTIZED_TYPES
