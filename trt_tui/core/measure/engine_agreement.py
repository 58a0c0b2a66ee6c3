"""The comparison of an engine with its simulation, the checks if the two differ, and the kernels of two configs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    Kernel,
    Preview,
    find_added_kernels,
    has_unrequested_precision,
    list_kernels,
)
from trt_tui.core.engines.inspector import QDQ
from trt_tui.core.lowering.lowering_checks import quantizes_activations
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
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import (
    add_decibel_unit,
    counted_noun_text,
    decibels_text,
    milliseconds_text,
    mismatch_text,
    name_list_text,
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


def sqnr_gap_of_engine_db(simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None) -> float | None:
    """Returns by how many dB an engine's output error is worse than the simulated one, at the output with the largest
    gap.

    None if an accuracy is missing, or if no output has a finite SQNR in both.
    """
    if simulated_accuracy is None or engine_accuracy is None:
        return None
    gaps = []
    for name, engine_output in engine_accuracy.outputs.items():
        simulated_output = simulated_accuracy.outputs.get(name)
        if (simulated_output is not None and engine_output.errors.sqnr_db is not None
                and simulated_output.errors.sqnr_db is not None):
            gaps.append(simulated_output.errors.sqnr_db - engine_output.errors.sqnr_db)
    return max(gaps) if gaps else None


def engine_variation_notes(engine_result: EngineResult) -> list[str]:
    """Returns notes about repeated builds of one config that differ, and about identical samples with different
    outputs."""
    notes = []
    if engine_result.repeated_builds:
        spread = _build_accuracy_texts([build.worst_errors for build in engine_result.repeated_builds])
        times = [build.latency_ms[0] for build in engine_result.repeated_builds if build.latency_ms is not None]
        spread += [f"{milliseconds_text(min(times))} to {milliseconds_text(max(times))}"] if times else []
        notes.append(f"built {len(engine_result.repeated_builds)} times: {', '.join(spread)}; the worst is shown")
        notes += _build_spread_notes(engine_result)
    if engine_result.unequal_outputs:
        notes.append(
            "identical samples of one batch have different results at "
            f"{name_list_text(engine_result.unequal_outputs)}: a kernel depends on the position in the batch")
    return notes


def _build_accuracy_texts(errors_of_builds: Sequence[ErrorMetrics | None]) -> list[str]:
    """Returns the ends of the SQNRs of several builds, then the numbers of builds without one.

    An exact build is the upper end. A build with NaN or Inf is counted separately.
    """
    measured = [errors for errors in errors_of_builds if errors is not None]
    comparable = [errors for errors in measured
                  if not errors.nonfinite_count and (errors.exact or errors.sqnr_db is not None)]
    nonfinite_count = sum(errors.nonfinite_count > 0 for errors in measured)
    texts = []
    if comparable:
        low, high = (end(comparable, key=lambda errors: errors.comparable_sqnr_db) for end in (min, max))
        low_text = low.sqnr_text("")
        if high.exact and not low.exact:
            low_text = add_decibel_unit(low_text)
        texts.append("exact" if low.exact else f"{low_text} to {add_decibel_unit(high.sqnr_text(''))}")
    if nonfinite_count:
        texts.append(f"{nonfinite_count} with NaN or Inf")
    if unknown_count := len(errors_of_builds) - len(comparable) - nonfinite_count:
        texts.append(f"{unknown_count} without an SQNR")
    return texts


def _build_spread_notes(engine_result: EngineResult) -> list[str]:
    """Returns the spread of each output between builds if there are several, and the first kernel that differs."""
    notes, sqnrs_by_output = [], defaultdict(list)
    for build in engine_result.repeated_builds:
        for name, output in build.accuracy.outputs.items() if build.accuracy is not None else ():
            sqnrs_by_output[name].append(output.errors.sqnr_db)
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


def find_engine_divergence(network: NetworkOutline, simulated_errors: Mapping[str, GroupErrors],
                           engine_errors: EngineErrors | None) -> EngineDivergence | None:
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
    return (simulated_errors.sqnr_db is not None
            and simulated_errors.sqnr_db - engine_errors.sqnr_db > UNEXPLAINED_GAP_DB)


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
        f"{counted_noun_text(group_count, 'group')}, {counted_noun_text(engine_errors.samples, 'sample')}"
    )
    if engine_errors.source == MARKED:
        return f"{text} (marked engine, not the engine as built)"
    hidden = (f"; hidden inside kernels: {name_list_text(engine_errors.hidden_groups, _MAX_LISTED_GROUPS)}"
              if engine_errors.hidden_groups else "")
    return f"{text} (debug tensors){hidden}"


def fp32_engine_fault_text(fp32_engine: EngineResult | None) -> str:
    """Returns the fault of the all-FP32 engine as a text; "" if it agrees with ONNX Runtime or was not built."""
    if fp32_engine is None or fp32_engine.accuracy is None or fp32_engine.accuracy.worst_output is None:
        return ""
    if fp32_engine.accuracy.nonfinite_count:
        return f"the FP32 engine yields {fp32_engine.accuracy.nonfinite_count} NaN or Inf"
    faulty = {name: output.errors for name, output in fp32_engine.accuracy.outputs.items()
              if output.errors.mismatch is None and output.errors.sqnr_db is not None
              and output.errors.sqnr_db < MIN_FP32_SQNR_DB}
    if faulty:
        name, errors = min(faulty.items(), key=lambda item: item[1].comparable_sqnr_db)
        return (
            f"the FP32 engine differs from ONNX Runtime's FP32 by "
            f"{add_decibel_unit(errors.sqnr_text(''))} at {name}"
        )
    name, worst = fp32_engine.accuracy.worst_output
    if worst.errors.mismatch is not None and worst.errors.mismatch > MAX_FP32_MISMATCH_SHARE:
        return (
            f"{mismatch_text(worst.errors.mismatch)} of {name} differ between the FP32 engine and ONNX Runtime's FP32")
    return ""


def engine_fault_text(simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None,
                      fp32_engine: EngineResult | None = None) -> str:
    """Returns a text about the output at which an engine is wrong; "" if rounding may explain its error.

    Args:
        fp32_engine: The all-FP32 engine, if it was built.
    """
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_accuracy)
    if (simulated_accuracy is None or engine_accuracy is None or gap is None or gap < ENGINE_FAULT_DB
            or fp32_engine_fault_text(fp32_engine)):
        return ""
    sqnrs_db = {name: (entry.errors.sqnr_db, simulated_accuracy.outputs[name].errors.sqnr_db)
                for name, entry in engine_accuracy.outputs.items() if name in simulated_accuracy.outputs}
    name, engine_db, expected_db = max(((name, engine_db, expected_db)
                                        for name, (engine_db, expected_db) in sqnrs_db.items()
                                        if engine_db is not None and expected_db is not None),
                                       key=lambda item: item[2] - item[1])
    sound = ("the FP32 engine matches ONNX Runtime, so "
             if fp32_engine is not None and fp32_engine.accuracy is not None else "")
    return (
        f"this engine differs from the simulation: "
        f"{add_decibel_unit(decibels_text(engine_db, mark=''))} at {name} for "
        f"{decibels_text(expected_db)} simulated, which "
        f"no rounding explains; {sound}a kernel or a fusion computes something else: build it at another "
        "optimization level or with other tactic sources, or put the layers of its fused regions back to FP32, "
        "half of them at a time")


def find_groups_in_other_precision(network: Network, config: PrecisionConfig, build_attempt: BuildAttempt,
                                   implementations: Mapping[str, GroupImplementation]) -> dict[str, Precision]:
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
        implemented = implementations[group.name].precision if has_unrequested_precision(group, built_config,
                                                                                         implementations) else None
        if implemented is not None and implemented in group.allowed_precisions:
            precision = implemented
        if precision is not config.precision_of(group):
            other_precisions[group.name] = precision
    return other_precisions


def find_unquantized_groups_caveat(network: Network, config: PrecisionConfig,
                                   implementations: Mapping[str, GroupImplementation]) -> tuple[Caveat, ...]:
    """Returns the caveat of a weakly typed engine that does not show each quantized group quantized; () if it does.

    TensorRT may choose any type for them. Without Q/DQ in the graph their values are then not rounded at all. The
    inspector reports no types inside fused regions.
    """
    quantized = [group for group in network.groups if config.precision_of(group) in QUANTIZED_TYPES]
    implemented = [
        implementations[group.name].precision if group.name in implementations else None for group in quantized
    ]
    others = [precision for precision in implemented if precision not in QUANTIZED_TYPES]
    precision_text = "another or an unknown precision" if None in others else "another precision"
    quantized_text = counted_noun_text(len(quantized), "quantized layer")
    return (Caveat("other precisions", f"the engine runs {len(others)} of {quantized_text} in {precision_text}, and "
                   "another build may quantize them"),) if others else ()


def suggest_engine_checks(network: NetworkOutline, config: PrecisionConfig, simulated_accuracy: Accuracy | None,
                          engine_result: EngineResult, fp32_engine: EngineResult | None = None,
                          divergence: EngineDivergence | None = None) -> list[str]:
    """Returns the suggested checks for an engine that is worse than simulated by more than `UNEXPLAINED_GAP_DB`.

    Empty if the gap is smaller, and the engine has no NaN or Inf that the simulation lacks.

    Args:
        divergence: The first group at which engine and simulation differ, see `find_engine_divergence`.
    """
    simulated_accuracy = engine_result.select_comparable_simulation(simulated_accuracy)
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_result.accuracy)
    is_broken = (engine_result.accuracy is not None and engine_result.accuracy.nonfinite_count > 0
                 and simulated_accuracy is not None and not simulated_accuracy.nonfinite_count)
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
            f"{divergence.group_name}: {divergence.divergence_description}; a fusion barrier there may keep it apart")
    marked_accuracy = engine_result.engine_errors.accuracy if engine_result.engine_errors is not None else None
    if marked_accuracy is not None and not marked_accuracy.nonfinite_count and (marked_gap_db := sqnr_gap_of_engine_db(
            simulated_accuracy, marked_accuracy)) is not None and marked_gap_db <= UNEXPLAINED_GAP_DB:
        lines.append("with every group's result as an output the engine agrees with the simulation: a fusion computes "
                     "something else, and fusion barriers locate it")
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
            f"{counted_noun_text(regions, 'group')} in fused regions, which may round at other places than the "
            "simulation")
    if engine_result.engine_report is not None and engine_result.engine_report.count_layers(QDQ):
        lines.append(
            f"{engine_result.engine_report.count_layers(QDQ)} unfused Q/DQ layers: a fusion did not happen")
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
            kernels_before, kernels_after: The number of kernels of the first and of the second config. removed, added:
            The kernels of the first config alone, and of the second alone.
    """

    source: str
    kernels_before: int
    kernels_after: int
    removed: tuple[Kernel, ...]
    added: tuple[Kernel, ...]

    @property
    def description(self) -> str:
        """The kernel counts in one line: ``kernels (preview RTX 1.7, SM89): 5 and 7, 1 lost, 3 gained``."""
        return (f"kernels ({self.source}): {self.kernels_before} and {self.kernels_after}, {len(self.removed)} lost, "
                f"{len(self.added)} gained")

    def diff_lines(self, max_kernels: int) -> list[str]:
        """Returns one line for each removed (``-``) and added (``+``) kernel.

        Args:
            max_kernels: The maximum number of removed kernels, and of added kernels.
        """
        lines: list[str] = []
        for sign, kernels in (("-", self.removed), ("+", self.added)):
            lines += [f"{sign} {kernel.description}" for kernel in kernels[:max_kernels]]
            if len(kernels) > max_kernels:
                lines.append(f"{sign} {counted_noun_text(len(kernels) - max_kernels, 'more kernel')}")
        return lines

    def to_record(self) -> dict[str, Any]:
        return {
            "source": self.source, "before": self.kernels_before, "after": self.kernels_after,
            "lost": [kernel.description for kernel in self.removed],
            "gained": [kernel.description for kernel in self.added]
        }


def diff_kernels(first_results: ConfigResults, second_results: ConfigResults) -> KernelDiff | None:
    """Returns the kernels that differ between two configs; None if the kernels of either are unknown.

    The engines as built are compared if both list their layers, and the previews if not.
    """
    first_engine, second_engine = first_results.engine_result, second_results.engine_result
    if (first_engine is not None and second_engine is not None and first_engine.engine_report is not None
            and second_engine.engine_report is not None and first_engine.builder_name == second_engine.builder_name):
        return _diff_previews(
            f"as built, {first_engine.builder_name}",
            *(Preview(kernels=list_kernels(engine_report))
              for engine_report in (first_engine.engine_report, second_engine.engine_report)))
    before, after = first_results.preview, second_results.preview
    if before is None or after is None or before.refusal is not None or after.refusal is not None:
        return None
    return _diff_previews(f"preview {after.builder_text}", before, after)


def _diff_previews(source: str, before: Preview, after: Preview) -> KernelDiff:
    return KernelDiff(source, len(before.kernels), len(after.kernels), tuple(find_added_kernels(after, before)),
                      tuple(find_added_kernels(before, after)))
