"""Whether an engine does what was simulated, and what to look at if it does not."""

from collections.abc import Mapping
from dataclasses import dataclass

from trt_tui.core.engines.inspector import QDQ
from trt_tui.core.engines.made import Made, differs
from trt_tui.core.engines.rungs import Rung
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.measure.comparison import MARKED, EngineErrors, EngineResult, Errors, GroupErrors, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import decibels, differing, first_few, milliseconds, plural, with_unit

GAP_DB = 3.0
"""An engine whose output error is this much worse than the simulated one does something that is not simulated."""

SUMS_DB = 6.0
"""Kernels that sum in FP16 come out 3 to 6 dB below their simulation; what an engine is worse by beyond that, neither
rounding nor sums explain."""

FAULT_DB = 25.0
"""An engine this much worse than simulated computes something else: rounding does not explain it.

Sums in FP16 would cost the most, 22 dB at 4,608 terms, in layers that are simulated with sums in FP32."""

KERNEL = "⚡ kernel, not rounding"
"""What is said of the first group at which an engine and its simulation part."""

CHECK_DB = 60.0
"""FP32 on two backends agrees to 90 dB and more; below this the engine computes something else."""

CHECK_SHARE = 0.01
"""Of an integer output this share may differ between two backends in FP32: rounding decides near ties."""

_SHOWN = 3


def gap_db(simulated: Verdict | None, engine: Verdict | None) -> float | None:
    """By how many dB the engine's output error is worse than the simulated one, at the output with the largest gap.

    None where either is missing, exact or not finite at all outputs.
    """
    if simulated is None or engine is None:
        return None
    gaps = []
    for name, one in engine.outputs.items():
        other = simulated.outputs.get(name)
        if other is not None and one.errors.sqnr_db is not None and other.errors.sqnr_db is not None:
            gaps.append(other.errors.sqnr_db - one.errors.sqnr_db)
    return max(gaps) if gaps else None


def engine_remarks(result: EngineResult) -> list[str]:
    """How far builds of the same config lie apart, and whether an engine treats identical samples alike."""
    found = []
    if result.builds:
        figures = [one.errors.sqnr_db for one in result.builds if one.errors is not None]
        known = [one for one in figures if one is not None]
        spread = [f"{decibels(min(known), mark='')} to {with_unit(decibels(max(known), mark=''))}"] if known else []
        if len(known) < len(result.builds):
            spread.append(f"{len(result.builds) - len(known)} without a finite SQNR")
        times = [one.latency_ms for one in result.builds if one.latency_ms is not None]
        spread += [f"{milliseconds(min(times))} to {milliseconds(max(times))}"] if times else []
        found.append(f"built {len(result.builds)} times: {', '.join(spread)}; the worst is shown")
    if result.rows_differ:
        found.append(f"identical samples of one batch come out different at {first_few(result.rows_differ)}: a kernel "
                     "depends on the place in the batch")
    return found


@dataclass(frozen=True)
class Parting:
    """The first group at which an engine is worse than its simulation by more than `GAP_DB`."""

    group: str
    built: Errors
    simulated: Errors

    @property
    def said(self) -> str:
        """In words, without the group's name."""
        return f"{KERNEL}: {with_unit(self.built.figure(''))} for {with_unit(self.simulated.figure())} simulated"


def parting(network: Outline, simulated: Mapping[str, GroupErrors], inside: EngineErrors | None
            ) -> Parting | None:
    """Where in network order an engine first does something that is not simulated; None where it does so nowhere, or
    that is not known.

    Args:
        simulated: Errors at the groups by name.
        inside: Errors inside the engine.
    """
    for group in network.groups if inside is not None else ():
        built = inside.groups.get(group.name) if inside is not None else None
        known = simulated.get(group.name)
        wanted = known.accumulated if known is not None else None
        if built is None or wanted is None or wanted.bad:
            continue
        if built.bad or built.sqnr_db is not None and wanted.sqnr_db is not None \
                and wanted.sqnr_db - built.sqnr_db > GAP_DB:
            return Parting(group.name, built, wanted)
    return None


def inside_words(inside: EngineErrors, groups: int) -> str:
    """How errors inside an engine were read, and at how many of its groups.

    Args:
        groups: How many there are.
    """
    if inside.missing:
        return f"layer by layer not known: {inside.missing}"
    told = f"layer by layer at {len(inside.groups)} of {plural(groups, 'group')}, {plural(inside.samples, 'sample')}"
    if inside.how == MARKED:
        return f"{told} (marked: not the engine as built)"
    hidden = f"; hidden inside kernels: {first_few(inside.hidden, _SHOWN)}" if inside.hidden else ""
    return f"{told} (what its kernels hand on){hidden}"


def fp32_fault(fp32_engine: EngineResult | None) -> str:
    """What is wrong with the FP32 engine, in words; "" if it agrees with ONNX Runtime or was not built."""
    if fp32_engine is None or fp32_engine.verdict is None or fp32_engine.verdict.worst is None:
        return ""
    if fp32_engine.verdict.bad:
        return f"the FP32 engine yields {fp32_engine.verdict.bad} NaN or Inf"
    name, worst = fp32_engine.verdict.worst
    if worst.errors.sqnr_db is not None and worst.errors.sqnr_db < CHECK_DB:
        return f"the FP32 engine differs from ONNX Runtime's FP32 by {with_unit(worst.errors.figure(''))} at {name}"
    if worst.errors.mismatch is not None and worst.errors.mismatch > CHECK_SHARE:
        return f"{differing(worst.errors.mismatch)} of {name} differ between the FP32 engine and ONNX Runtime's FP32"
    return ""


def engine_fault(simulated: Verdict | None, engine: Verdict | None, fp32_engine: EngineResult | None = None) -> str:
    """Which output of an engine is not what was simulated, in words; "" if rounding may explain the difference.

    Args:
        fp32_engine: The all-FP32 engine, if it was built.
    """
    gap = gap_db(simulated, engine)
    if simulated is None or engine is None or gap is None or gap < FAULT_DB or fp32_fault(fp32_engine):
        return ""
    figures = {name: (one.errors.sqnr_db, simulated.outputs[name].errors.sqnr_db)
               for name, one in engine.outputs.items() if name in simulated.outputs}
    name, built, wanted = max(((name, built, wanted) for name, (built, wanted) in figures.items()
                               if built is not None and wanted is not None), key=lambda one: one[2] - one[1])
    sound = "the FP32 engine is sound, so " if fp32_engine is not None and fp32_engine.verdict is not None else ""
    return (f"this engine does not do what was simulated: {with_unit(decibels(built, mark=''))} at {name} for "
            f"{decibels(wanted)} simulated, which "
            f"no rounding explains; {sound}a kernel or a fusion computes something else: build it at another "
            "optimization level or with other tactic sources, or put the layers of its fused regions back to FP32, "
            "half of them at a time")


def made_otherwise(network: Network, config: PrecisionConfig, rung: Rung, made: Mapping[str, Made]
                   ) -> dict[str, Precision]:
    """The groups that an engine runs in a precision other than asked, with that precision; none if built as asked.

    Args:
        config: What was asked for.
        made: What the engine says of its groups; a group of which it says nothing counts as the rung has asked.
    """
    if rung.as_asked:
        return {}
    built = rung.config(network, config)
    found = {}
    for group in network.groups:
        precision = built.precision_of(group)
        told = made[group.name].precision if differs(group, built, made) else None
        if told is not None and told in group.allowed:
            precision = told
        if precision is not config.precision_of(group):
            found[group.name] = precision
    return found


def what_to_check(network: Outline, config: PrecisionConfig, simulated: Verdict | None, result: EngineResult,
                  fp32_engine: EngineResult | None = None, parts: Parting | None = None) -> list[str]:
    """What to look at if an engine is worse than simulated by more than `GAP_DB`; empty if it is not.

    Args:
        parts: Where it parts from its simulation, see `parting`.
    """
    simulated = result.beside(simulated)
    gap = gap_db(simulated, result.verdict)
    broken = result.verdict is not None and result.verdict.bad > 0 and simulated is not None and not simulated.bad
    if not broken and (gap is None or gap <= GAP_DB):
        return []
    lines = []
    if fault := fp32_fault(fp32_engine):
        lines.append(f"{fault}: precision is not the cause")
    elif fp32_engine is None:
        lines.append("the FP32 engine: build the all-FP32 config and see whether it agrees with FP32")
    if fault := engine_fault(simulated, result.verdict, fp32_engine):
        lines.append(fault)
    if parts is not None:
        lines.append(f"{parts.group}: {parts.said}; a fusion barrier there may keep it apart")
    marked = result.inside.verdict if result.inside is not None else None
    if marked is not None and not marked.bad and (kept := gap_db(simulated, marked)) is not None and kept <= GAP_DB:
        lines.append("with every group's result as an output the engine does what was simulated: a fusion computes "
                     "something else, and fusion barriers find which")
    others = [group.name for group in network.groups if differs(group, config, result.made)]
    if others:
        lines.append(f"layers that run in another precision than asked: {first_few(others, _SHOWN)}")
    regions = sum(made.region for made in result.made.values())
    if regions:
        lines.append(f"{plural(regions, 'group')} in fused regions, which may not round where the simulation does")
    if result.report is not None and result.report.count(QDQ):
        lines.append(f"{result.report.count(QDQ)} Q/DQ layers stand on their own: a fusion did not happen")
    if result.quick:
        lines.append("this is a quick build: build it in full")
    if config.tf32:
        lines.append("TF32 is on: FP32 layers keep 10 bits of mantissa")
    if quantizes(network, config):
        lines.append("the ranges: values that calibration has not seen are clipped")
    return lines
