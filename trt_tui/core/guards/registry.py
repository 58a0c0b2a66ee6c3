"""The list of all guards, and functions that run them on facts."""

from trt_tui.core.guards.data_guards import (
    BatchDependenceGuard,
    ByteImagesGuard,
    ConstantInputsGuard,
    FrameworkMismatchGuard,
    InputMismatchGuard,
    MissingClassesGuard,
    UnfitLabelsGuard,
)
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardResult, GuardWarning
from trt_tui.core.guards.precision_guards import FloatFallbackGuard, Fp16FloorGuard
from trt_tui.core.guards.range_guards import (
    ClippedValuesGuard,
    FewSamplesGuard,
    ForeignCacheGuard,
    SampleConvergenceGuard,
    StaleRangesGuard,
)

GUARDS: tuple[Guard, ...] = (FrameworkMismatchGuard(), ConstantInputsGuard(), InputMismatchGuard(), ByteImagesGuard(),
                             UnfitLabelsGuard(), BatchDependenceGuard(), StaleRangesGuard(), ForeignCacheGuard(),
                             FewSamplesGuard(), MissingClassesGuard(), SampleConvergenceGuard(), ClippedValuesGuard(),
                             Fp16FloorGuard(), FloatFallbackGuard())
"""All guards, the most serious first."""


def run_guards(guard_facts: GuardFacts) -> tuple[GuardResult, ...]:
    """Runs each guard on the facts and returns the results in the order of `GUARDS`."""
    results = []
    for guard in GUARDS:
        missing_reason = guard.explain_missing_facts(guard_facts)
        results.append(
            GuardResult(guard, () if missing_reason else tuple(guard.find_warnings(guard_facts)), missing_reason))
    return tuple(results)


def collect_guard_warnings(guard_facts: GuardFacts) -> tuple[GuardWarning, ...]:
    """Returns the warnings of all guards for the facts, the most serious first."""
    return tuple(alarm for result in run_guards(guard_facts) for alarm in result.alarms)
