"""The comparison of an engine with its simulation, the checks if the two differ, and the kernels of two configs.

A previewed engine may compute quantized layers in a float type, and the config can do without their Q/DQ.

Such Q/DQ round values and can need kernels of their own, and no kernel computes faster for them. A layer whose product
runs in the quantized type keeps its Q/DQ, even if they are unfused: a preview does not show times, so it cannot show
that the product would be as fast in a float type.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    Kernel,
    Preview,
    find_added_kernels,
    has_unrequested_precision,
    is_unrequested_precision,
    list_kernels,
)
from trt_tui.core.engines.inspector import QDQ
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import (
    MARKED,
    Accuracy,
    Caveat,
    ConfigResults,
    EngineErrors,
    EngineResult,
    GroupErrors,
)
from trt_tui.core.moves.config import KeepRuleMove, PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import (
    add_decibel_unit,
    counted_noun_text,
    decibels_text,
    milliseconds_text,
    mismatch_text,
    name_list_text,
    value_range_text,
)

UNEXPLAINED_GAP_DB = 3.0
"""The gap in dB between the output errors of simulation and engine beyond which the engine computes something that is
not simulated."""

ACCUMULATION_GAP_DB = 6.0
"""The gap in dB that FP16 accumulators explain. Kernels that accumulate in FP16 are 3 to 6 dB worse than their
simulation. Neither rounding nor accumulation explains a larger gap."""

ENGINE_FAULT_DB = 25.0
"""The gap in dB from which on an engine computes something other than simulated, which rounding does not explain. The
largest cost of an accumulator is 22 dB: FP16 sums of 4,608 terms in layers that are simulated with FP32 accumulators.
"""

KERNEL_FAULT_TEXT = "⚡ kernel error, not rounding"
"""The label of the first group at which an engine differs from its simulation."""

MIN_FP32_SQNR_DB = 60.0
"""The minimum SQNR between two backends in FP32. They agree to 90 dB and more; below 60 dB the engine computes
something else."""

MAX_FP32_MISMATCH_SHARE = 0.01
"""The maximum share of an integer output that may differ between two backends in FP32, because rounding decides near
ties."""

_MAX_LISTED_GROUPS = 3


def engine_sqnr_gap_db(simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None) -> float | None:
    """Returns the largest SQNR gap between simulation and engine over the outputs, in dB; positive if the engine is
    worse.

    None if an accuracy is missing, or if no output has a finite SQNR in both.
    """
    gap = _find_largest_sqnr_gap(simulated_accuracy, engine_accuracy)
    return gap[0] if gap is not None else None


def _find_largest_sqnr_gap(
    simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None
) -> tuple[float, str, float, float] | None:
    """Returns the largest gap in dB with its output, and the SQNR of that output in the simulation and in the engine."""
    if simulated_accuracy is None or engine_accuracy is None:
        return None
    gaps = [
        (simulated_db - engine_db, name, simulated_db, engine_db)
        for name, output in engine_accuracy.outputs.items()
        if name in simulated_accuracy.outputs
        and (simulated_db := simulated_accuracy.outputs[name].errors.sqnr_db) is not None
        and (engine_db := output.errors.sqnr_db) is not None
    ]
    return max(gaps, key=lambda gap: gap[0], default=None)


def engine_variation_notes(engine_result: EngineResult) -> list[str]:
    """Returns notes about repeated builds of one config that differ, and about identical samples with different
    outputs."""
    notes = []
    if engine_result.repeated_builds:
        spread = _sqnr_range_texts([build.worst_errors for build in engine_result.repeated_builds])
        times = [build.latency_ms[0] for build in engine_result.repeated_builds if build.latency_ms is not None]
        spread += [value_range_text(milliseconds_text(min(times)), milliseconds_text(max(times)))] if times else []
        notes.append(f"built {len(engine_result.repeated_builds)} times: {', '.join(spread)}; the worst is shown")
        notes += _spread_between_builds_notes(engine_result)
    if engine_result.unequal_outputs:
        notes.append(
            "identical samples of one batch have different results at "
            f"{name_list_text(engine_result.unequal_outputs)}: a kernel depends on the position in the batch"
        )
    return notes


def _sqnr_range_texts(errors_of_builds: Sequence[ErrorMetrics | None]) -> list[str]:
    """Returns texts on several builds: the lowest and highest SQNR, and the numbers of builds without an SQNR.

    An exact build is the upper end. A build with NaN or Inf is counted separately.
    """
    measured = [errors for errors in errors_of_builds if errors is not None]
    comparable = [
        errors for errors in measured if not errors.nonfinite_count and (errors.exact or errors.sqnr_db is not None)
    ]
    nonfinite_count = sum(errors.nonfinite_count > 0 for errors in measured)
    texts = []
    if comparable:
        low, high = (end(comparable, key=lambda errors: errors.comparable_sqnr_db) for end in (min, max))
        low_text = low.sqnr_text("")
        if high.exact and not low.exact:
            low_text = add_decibel_unit(low_text)
        texts.append("exact" if low.exact else add_decibel_unit(value_range_text(low_text, high.sqnr_text(""))))
    if nonfinite_count:
        texts.append(f"{nonfinite_count} with NaN or Inf")
    if unknown_count := len(errors_of_builds) - len(comparable) - nonfinite_count:
        texts.append(f"{unknown_count} without an SQNR")
    return texts


def _spread_between_builds_notes(engine_result: EngineResult) -> list[str]:
    """Returns the spread of each output between builds if there are several, and the first kernel that differs."""
    notes = []
    sqnrs_by_output = collect_by_key(
        (name, output.errors.sqnr_db)
        for build in engine_result.repeated_builds
        if build.accuracy is not None
        for name, output in build.accuracy.outputs.items()
    )
    for name, values in sqnrs_by_output.items() if len(sqnrs_by_output) > 1 else ():
        sqnrs_db = [value for value in values if value is not None]
        texts = []
        if len(sqnrs_db) > 1 and min(sqnrs_db) < max(sqnrs_db):
            texts.append(f"spread {max(sqnrs_db) - min(sqnrs_db):.1f} dB between builds")
        if 0 < len(sqnrs_db) < len(values):
            texts.append(f"a finite SQNR in {len(sqnrs_db)} of {len(values)} builds, the others are exact, NaN or Inf")
        notes += [f"{name}: {', '.join(texts)}"] if texts else []
    different = next(filter(None, engine_result.different_kernels), "")
    return notes + ([f"first kernel that differs between builds: {different}"] if different else [])


@dataclass(frozen=True)
class EngineDivergence:
    """The first group in an engine that is worse than simulated by more than `UNEXPLAINED_GAP_DB`."""

    group_name: str
    engine_errors: ErrorMetrics
    simulated_errors: ErrorMetrics

    @property
    def divergence_description(self) -> str:
        """The divergence of an engine from its simulation as a text, without the name of the group."""
        return (
            f"{KERNEL_FAULT_TEXT}: "
            f"{add_decibel_unit(self.engine_errors.sqnr_text(''))} for "
            f"{add_decibel_unit(self.simulated_errors.sqnr_text())} simulated"
        )


def find_engine_divergence(
    network: NetworkOutline, simulated_errors: Mapping[str, GroupErrors], engine_errors: EngineErrors | None
) -> EngineDivergence | None:
    """Returns the first group, in network order, at which an engine differs from its simulation; None if there is none.

    Also None if the errors inside the engine are unknown.

    Args:
        simulated_errors: Simulated errors by group name.
        engine_errors: Errors inside the engine.
    """
    for group in network.groups if engine_errors is not None else ():
        engine_error = engine_errors.group_errors.get(group.name) if engine_errors is not None else None
        group_errors = simulated_errors.get(group.name)
        simulated_error = group_errors.accumulated if group_errors is not None else None
        if engine_error is None or simulated_error is None or simulated_error.nonfinite_count:
            continue
        if engine_error.nonfinite_count or _is_worse_than_simulated(engine_error, simulated_error):
            return EngineDivergence(group.name, engine_error, simulated_error)
    return None


def _is_worse_than_simulated(engine_errors: ErrorMetrics, simulated_errors: ErrorMetrics) -> bool:
    """Returns True if the SQNR of an engine is lower than simulated by more than `UNEXPLAINED_GAP_DB`.

    An exact simulation rounds nothing, so the engine may be as far from it as two backends in FP32 are. False if an
    SQNR is unknown.
    """
    if engine_errors.sqnr_db is None:
        return False
    if simulated_errors.exact:
        return engine_errors.sqnr_db < MIN_FP32_SQNR_DB
    return (
        simulated_errors.sqnr_db is not None and simulated_errors.sqnr_db - engine_errors.sqnr_db > UNEXPLAINED_GAP_DB
    )


def engine_errors_text(engine_errors: EngineErrors, group_count: int) -> str:
    """Returns a text about the measurement of errors inside an engine: its source, and the number of groups it covers.

    Args:
        group_count: The number of groups of the network.
    """
    if engine_errors.missing_reason:
        return f"errors layer by layer unknown: {engine_errors.missing_reason}"
    text = (
        f"layer by layer at "
        f"{len(engine_errors.group_errors)} of "
        f"{counted_noun_text(group_count, 'fused layer')}, {counted_noun_text(engine_errors.samples, 'sample')}"
    )
    if engine_errors.source == MARKED:
        return f"{text} (marked engine, not the engine as built)"
    hidden = (
        f"; hidden inside kernels: {name_list_text(engine_errors.hidden_groups, _MAX_LISTED_GROUPS)}"
        if engine_errors.hidden_groups
        else ""
    )
    return f"{text} (debug tensors){hidden}"


def fp32_engine_fault_text(fp32_engine: EngineResult | None) -> str:
    """Returns the fault of the all-FP32 engine as a text; "" if it agrees with ONNX Runtime or was not built."""
    if fp32_engine is None or fp32_engine.accuracy is None or fp32_engine.accuracy.worst_output is None:
        return ""
    if fp32_engine.accuracy.nonfinite_count:
        return f"the FP32 engine yields {fp32_engine.accuracy.nonfinite_count} NaN or Inf"
    faulty = {
        name: output.errors
        for name, output in fp32_engine.accuracy.outputs.items()
        if output.errors.mismatch is None
        and output.errors.sqnr_db is not None
        and output.errors.sqnr_db < MIN_FP32_SQNR_DB
    }
    if faulty:
        name, errors = min(faulty.items(), key=lambda item: item[1].comparable_sqnr_db)
        return f"the FP32 engine differs from ONNX Runtime's FP32 by {add_decibel_unit(errors.sqnr_text(''))} at {name}"
    name, worst = fp32_engine.accuracy.worst_output
    if worst.errors.mismatch is not None and worst.errors.mismatch > MAX_FP32_MISMATCH_SHARE:
        return (
            f"{mismatch_text(worst.errors.mismatch)} of {name} differ between the FP32 engine and ONNX Runtime's FP32"
        )
    return ""


def engine_fault_text(
    simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None, fp32_engine: EngineResult | None = None
) -> str:
    """Returns a text about the output at which an engine is wrong; "" if rounding may explain its error.

    Args:
        fp32_engine: The all-FP32 engine, if it was built.
    """
    gap = _find_largest_sqnr_gap(simulated_accuracy, engine_accuracy)
    if gap is None or gap[0] < ENGINE_FAULT_DB or fp32_engine_fault_text(fp32_engine):
        return ""
    _, name, simulated_db, engine_db = gap
    sound = (
        "the FP32 engine matches ONNX Runtime, so "
        if fp32_engine is not None and fp32_engine.accuracy is not None
        else ""
    )
    return (
        f"this engine differs from the simulation: "
        f"{add_decibel_unit(decibels_text(engine_db, mark=''))} at {name} for "
        f"{decibels_text(simulated_db)} simulated, which "
        f"no rounding explains; {sound}a kernel or a fusion computes something else: build it at another "
        "optimization level or with other tactic sources, or put the layers of its fused regions back to FP32, "
        "half of them at a time"
    )


def find_groups_in_other_precision(
    network: Network,
    config: PrecisionConfig,
    build_attempt: BuildAttempt,
    implementations: Mapping[str, GroupImplementation],
) -> dict[str, Precision]:
    """Returns the groups that an engine runs in another precision than requested, with that precision.

    Empty if the engine was built as requested.

    Args:
        config: The requested config.
        implementations: The group implementations that the engine reports. A group without a reported precision counts
            with the precision of the build attempt.
    """
    if build_attempt.has_requested_precisions:
        return {}
    built_config = build_attempt.derive_attempt_config(network, config)
    other_precisions = {}
    for group in network.groups:
        precision = built_config.precision_of(group)
        implemented = (
            implementations[group.name].precision
            if has_unrequested_precision(group, built_config, implementations)
            else None
        )
        if implemented is not None and implemented in group.allowed_precisions:
            precision = implemented
        if precision is not config.precision_of(group):
            other_precisions[group.name] = precision
    return other_precisions


def find_unquantized_groups_caveat(
    network: Network, config: PrecisionConfig, implementations: Mapping[str, GroupImplementation]
) -> tuple[Caveat, ...]:
    """Returns the caveat of a weakly typed engine whose inspector does not report each quantized group as quantized.

    TensorRT may choose any type for the other groups. Without Q/DQ in the graph their values are then not rounded at
    all. The inspector reports no types inside fused regions.
    """
    quantized = [group for group in network.groups if config.precision_of(group) in QUANTIZED_TYPES]
    implemented = [
        implementations[group.name].precision if group.name in implementations else None for group in quantized
    ]
    others = [precision for precision in implemented if precision not in QUANTIZED_TYPES]
    precision_text = "another or an unknown precision" if None in others else "another precision"
    quantized_text = counted_noun_text(len(quantized), "quantized layer")
    return (
        (
            Caveat(
                "other precisions",
                f"the engine runs {len(others)} of {quantized_text} in {precision_text}, and "
                "another build may quantize them",
            ),
        )
        if others
        else ()
    )


def suggest_engine_checks(
    network: NetworkOutline,
    config: PrecisionConfig,
    simulated_accuracy: Accuracy | None,
    engine_result: EngineResult,
    fp32_engine: EngineResult | None = None,
    divergence: EngineDivergence | None = None,
) -> list[str]:
    """Returns the suggested checks for an engine that is worse than simulated by more than `UNEXPLAINED_GAP_DB`.

    Empty if the gap is smaller, and the engine has no NaN or Inf that the simulation lacks.

    Args:
        divergence: The first group at which engine and simulation differ, see `find_engine_divergence`.
    """
    simulated_accuracy = engine_result.select_comparable_simulation(simulated_accuracy)
    gap = engine_sqnr_gap_db(simulated_accuracy, engine_result.accuracy)
    is_broken = (
        engine_result.accuracy is not None
        and engine_result.accuracy.nonfinite_count > 0
        and simulated_accuracy is not None
        and not simulated_accuracy.nonfinite_count
    )
    if not is_broken and (gap is None or gap <= UNEXPLAINED_GAP_DB):
        return []
    lines = []
    if fault := fp32_engine_fault_text(fp32_engine):
        lines.append(f"{fault}: precision is not the cause")
    elif fp32_engine is None:
        lines.append("the FP32 engine: build the all-FP32 config and see whether it agrees with FP32")
    if fault := engine_fault_text(simulated_accuracy, engine_result.accuracy, fp32_engine):
        lines.append(fault)
    if divergence is not None:
        lines.append(
            f"{divergence.group_name}: {divergence.divergence_description}; a fusion barrier there may keep it apart"
        )
    marked_accuracy = engine_result.engine_errors.accuracy if engine_result.engine_errors is not None else None
    if (
        marked_accuracy is not None
        and not marked_accuracy.nonfinite_count
        and (marked_gap_db := engine_sqnr_gap_db(simulated_accuracy, marked_accuracy)) is not None
        and marked_gap_db <= UNEXPLAINED_GAP_DB
    ):
        lines.append(
            "with every fused layer's result as an output the engine agrees with the simulation: a fusion computes "
            "something else, and fusion barriers locate it"
        )
    other_precision_groups = [
        group.name
        for group in network.groups
        if has_unrequested_precision(group, config, engine_result.implementations)
    ]
    if other_precision_groups:
        lines.append(
            f"layers that run in another precision than requested: "
            f"{name_list_text(other_precision_groups, _MAX_LISTED_GROUPS)}"
        )
    regions = sum(implementation.in_fused_region for implementation in engine_result.implementations.values())
    if regions:
        lines.append(
            f"{counted_noun_text(regions, 'fused layer')} in fused regions, which may round at other places than the "
            "simulation"
        )
    if engine_result.engine_report is not None and engine_result.engine_report.count_layers(QDQ):
        lines.append(f"{engine_result.engine_report.count_layers(QDQ)} unfused Q/DQ layers: a fusion did not happen")
    if config.tf32:
        lines.append("TF32 is on: FP32 layers keep 10 bits of mantissa")
    if quantizes_activations(network, config):
        lines.append("the ranges: values that calibration has not seen are clipped")
    return lines


@dataclass(frozen=True)
class KernelDiff:
    """The kernels that are removed and added from one config to another.

    Attributes:
        source: The origin of both kernel lists: the builder of both engines, or the preview of both configs.
        kernels_before, kernels_after: The number of kernels of the first and of the second config.
        removed, added: The kernels of the first config alone, and of the second alone.
    """

    source: str
    kernels_before: int
    kernels_after: int
    removed: tuple[Kernel, ...]
    added: tuple[Kernel, ...]

    def diff_lines(self, max_kernels: int) -> list[str]:
        """Returns one line for each removed (``-``) and added (``+``) kernel.

        Args:
            max_kernels: The maximum number of removed kernels, and of added kernels.
        """
        lines: list[str] = []
        for sign, kernels in (("-", self.removed), ("+", self.added)):
            lines += [f"{sign} {kernel.kernel_text}" for kernel in kernels[:max_kernels]]
            if len(kernels) > max_kernels:
                lines.append(f"{sign} {counted_noun_text(len(kernels) - max_kernels, 'more kernel')}")
        return lines

    def to_record(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "before": self.kernels_before,
            "after": self.kernels_after,
            "lost": [kernel.kernel_text for kernel in self.removed],
            "gained": [kernel.kernel_text for kernel in self.added],
        }


def diff_kernels(first_results: ConfigResults, second_results: ConfigResults) -> KernelDiff | None:
    """Returns the kernels that differ between two configs; None if the kernels of either are unknown.

    The engines as built are compared if both list their layers, and the previews if not.
    """
    first_engine, second_engine = first_results.engine_result, second_results.engine_result
    if (
        first_engine is not None
        and second_engine is not None
        and first_engine.engine_report is not None
        and second_engine.engine_report is not None
        and first_engine.builder_name == second_engine.builder_name
    ):
        return _diff_previews(
            f"as built, {first_engine.builder_name}",
            *(
                Preview(kernels=list_kernels(engine_report))
                for engine_report in (first_engine.engine_report, second_engine.engine_report)
            ),
        )
    before, after = first_results.preview, second_results.preview
    if before is None or after is None or before.refusal is not None or after.refusal is not None:
        return None
    return _diff_previews(f"preview {after.builder_text}", before, after)


def _diff_previews(source: str, before: Preview, after: Preview) -> KernelDiff:
    return KernelDiff(
        source,
        len(before.kernels),
        len(after.kernels),
        tuple(find_added_kernels(after, before)),
        tuple(find_added_kernels(before, after)),
    )


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
    def finding_text(self) -> str:
        """The finding as text, such as "INT8 in the config, runs in FP16: its Q/DQ cost 2 conversions"."""
        cost_text = (
            f"cost {counted_noun_text(self.qdq_count, 'conversion')}"
            if self.qdq_count
            else "add rounding, but no kernel"
        )
        kept_text = f"; {self.fixed_reason}" if self.fixed_reason else ""
        return (
            f"{self.requested_type.label} in the config, runs in {self.implemented.label}: "
            f"its Q/DQ {cost_text}{kept_text}"
        )


def find_unused_quantization_of_group(
    group: FusionGroup, requested_precision: Precision, implementation: GroupImplementation | None
) -> UnusedQuantization | None:
    """Returns the unused quantization of one group; None if it is not quantized, or may run in its quantized type.

    A type that quantizes only weights (INT4) never counts, because its layers multiply in a float type by design.
    """
    quantized_type = QUANTIZED_TYPES.get(group.resolve_file_precision(requested_precision))
    if (
        implementation is None
        or quantized_type is None
        or not quantized_type.quantizes_activations
        or not is_unrequested_precision(group, requested_precision, implementation)
    ):
        return None
    implemented = implementation.implemented_precision(quantized_type.precision)
    if implemented not in FLOAT_PRECISIONS:
        return None
    return UnusedQuantization(group.name, quantized_type.precision, implemented, implementation.qdq_count)


def find_unused_quantization(
    network: NetworkOutline,
    config: PrecisionConfig,
    preview: Preview,
    fixed_reasons: Mapping[str, str] = MappingProxyType({}),
) -> tuple[UnusedQuantization, ...]:
    """Returns the groups of a config whose quantization the previewed engine does not use, in network order.

    Args:
        fixed_reasons: The reasons why further groups keep their precision, by group name.
    """
    return tuple(
        replace(unused, fixed_reason=_fixed_precision_reason(group, config, unused.implemented, fixed_reasons))
        for group in network.groups
        if (
            unused := find_unused_quantization_of_group(
                group, config.precision_of(group), preview.implementations.get(group.name)
            )
        )
        is not None
    )


def _fixed_precision_reason(
    group: FusionGroup, config: PrecisionConfig, precision: Precision, fixed_reasons: Mapping[str, str]
) -> str:
    """Returns the reason why the precision of a group must stay; "" if it may change."""
    if group.name in config.groups_fixed_by_rule:
        return config.get_moves(KeepRuleMove)[group.name].row_note
    if group.name in fixed_reasons:
        return fixed_reasons[group.name]
    move = config.precision_moves.get(group.name)
    if move is not None and move.reason == "user":
        return f"set to {group.precision_label(move.precision)} by you"
    return f"it cannot run in {precision.label} as requested" if precision not in group.allowed_precisions else ""


def find_used_quantization(
    network: NetworkOutline, config: PrecisionConfig, implementations: Mapping[str, GroupImplementation]
) -> dict[str, str]:
    """Returns the groups that a built engine runs in their quantized type, each with a reason to keep its Q/DQ.

    The engine counts more than a preview, which another builder makes.
    """
    return {
        group.name: f"runs in {group.precision_label(config.precision_of(group))} in the built engine"
        for group in network.groups
        if _runs_in_quantized_type(group, config, implementations)
    }


def unused_qdq_record(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """Returns the JSON key of the unused Q/DQ of a preview, with a text for each group; {} if there are none."""
    unused = find_unused_quantization(network, config, preview)
    return {"unused_qdq": {item.group_name: item.finding_text for item in unused}} if unused else {}


def replace_quantization_by_float(
    network: NetworkOutline, config: PrecisionConfig, groups: Sequence[UnusedQuantization]
) -> PrecisionConfig:
    """Returns a config in which some quantized groups get the float precision that the previewed engine gives them."""
    for unused in groups:
        if not unused.fixed_reason:
            config = config.with_group_precision(
                [network.get_group(unused.group_name)], unused.implemented, PREVIEW_REASON
            )
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
    def savings_text(self) -> str:
        """The savings: "Took the Q/DQ of 5 layers out: 31 to 26 kernels, 9 to 3 conversions"."""
        count_text = counted_noun_text(len(self.groups), "layer")
        text = (
            f"The Q/DQ of {count_text} stay, {self.rejection}: without them"
            if self.rejection
            else f"Took the Q/DQ of {count_text} out:"
        )
        parts = [
            f"{value_range_text(*map(str, self.kernels))} kernels",
            f"{value_range_text(*map(str, self.conversions))} conversions",
        ]
        if self.accuracies is not None:
            before, after = (accuracy.worst_errors for accuracy in self.accuracies)
            if before is not None and after is not None and before.mismatch is None and after.mismatch is None:
                parts.append(add_decibel_unit(value_range_text(before.sqnr_text(), after.sqnr_text())))
        if self.latencies_ms is not None:
            parts.append(value_range_text(*map(milliseconds_text, self.latencies_ms)))
        return f"{text} {', '.join(parts)}"

    @property
    def move_reasons(self) -> dict[str, str]:
        """The reasons for the precision moves that take the Q/DQ out, by group name, in network order."""
        return {
            unused.group_name: f"{unused.requested_type.label} ran in {unused.implemented.label} "
            f"(preview {self.builder_text})"
            for unused in self.groups
        }

    def find_quantized_groups(self, network: NetworkOutline, config: PrecisionConfig) -> tuple[str, ...]:
        """Finds the names of the groups that are quantized in a config although this removal took their Q/DQ out."""
        return tuple(
            unused.group_name
            for unused in self.groups
            if network.get_group(unused.group_name).resolve_file_precision(
                config.precision_of(network.get_group(unused.group_name))
            )
            in QUANTIZED_TYPES
        )

    @property
    def report_text(self) -> str:
        """The summary with the names of the layers and the source of the numbers, for reports."""
        names = name_list_text(
            [
                f"{unused.group_name} ({unused.requested_type.label} ran in {unused.implemented.label})"
                for unused in self.groups
            ]
        )
        source = f"preview {self.builder_text}" + (", times of engines" if self.latencies_ms is not None else "")
        return f"{self.savings_text} ({source}): {names}"

    def to_record(self) -> dict[str, Any]:
        """Returns the JSON record of the removal: each pair is the value before and after."""
        record: dict[str, Any] = {
            "layers": {
                unused.group_name: {"asked": unused.requested_type.value, "made": unused.implemented.value}
                for unused in self.groups
            },
            "preview": self.builder_text,
            "kernels": list(self.kernels),
            "conversions": list(self.conversions),
            "removed": not self.rejection,
        }
        if self.accuracies is not None:
            errors = [accuracy.worst_errors for accuracy in self.accuracies]
            record["simulated_sqnr_db"] = [item.sqnr_db if item is not None else None for item in errors]
        if self.latencies_ms is not None:
            record["latency_ms"] = list(self.latencies_ms)
        return record | ({"kept_because": self.rejection} if self.rejection else {})


def remove_all_unused_qdq(
    network: NetworkOutline,
    config: PrecisionConfig,
    preview: Preview,
    preview_config: Callable[[PrecisionConfig], Generator[Step, None, Preview | None]],
    fixed_reasons: Mapping[str, str] = MappingProxyType({}),
) -> Generator[Step, None, QdqRemoval]:
    """Removes unused Q/DQ from a config, preview by preview, until the last preview has no removable Q/DQ.

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
            still_unused = {
                unused.group_name
                for unused in _list_removable_groups(network, current_config, current_preview, fixed_reasons, needed)
            }
            batch = [unused for unused in batches.pop() if unused.group_name in still_unused]
            if not batch:
                continue
            changed_config = replace_quantization_by_float(network, current_config, batch)
            if changed_config not in previews:
                previews[changed_config] = yield from preview_config(changed_config)
            changed_preview = previews[changed_config]
            if (
                changed_preview is not None
                and changed_preview.refusal is None
                and not _is_worse_engine(network, current_config, current_preview, changed_preview, batch)
            ):
                current_config, current_preview = changed_config, changed_preview
                taken.update((unused.group_name, unused) for unused in batch)
            elif len(batch) == 1:
                needed.add(batch[0].group_name)
            else:
                half = len(batch) // 2
                batches += [batch[half:], batch[:half]]
    return QdqRemoval(
        current_config,
        tuple(taken[group.name] for group in network.groups if group.name in taken),
        find_unused_quantization(network, current_config, current_preview, fixed_reasons),
        preview.builder_text,
        (len(preview.kernels), len(current_preview.kernels)),
        (preview.conversion_count, current_preview.conversion_count),
    )


def _list_removable_groups(
    network: NetworkOutline,
    config: PrecisionConfig,
    preview: Preview,
    fixed_reasons: Mapping[str, str],
    needed: Collection[str],
) -> list[UnusedQuantization]:
    return [
        unused
        for unused in find_unused_quantization(network, config, preview, fixed_reasons)
        if not unused.fixed_reason and unused.group_name not in needed
    ]


def _is_worse_engine(
    network: NetworkOutline,
    config: PrecisionConfig,
    before: Preview,
    after: Preview,
    batch: Sequence[UnusedQuantization],
) -> bool:
    """Returns True if an engine without some Q/DQ has more kernels or, with as many kernels, more conversions.

    An engine in which another layer no longer runs in its quantized type is worse too.
    """
    if (len(after.kernels), after.conversion_count) > (len(before.kernels), before.conversion_count):
        return True
    changed_names = {unused.group_name for unused in batch}
    return any(
        _runs_in_quantized_type(group, config, before.implementations)
        and not _runs_in_quantized_type(group, config, after.implementations)
        for group in network.groups
        if group.name not in changed_names
    )


def _runs_in_quantized_type(
    group: FusionGroup, config: PrecisionConfig, implementations: Mapping[str, GroupImplementation]
) -> bool:
    implementation = implementations.get(group.name)
    requested = group.precision_shown_by_engine(config.precision_of(group))
    return implementation is not None and implementation.implemented_precision(requested) in QUANTIZED_TYPES
