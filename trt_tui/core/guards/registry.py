"""The list of all guards, and functions that run them on facts."""

from trt_tui.core.guards.batch_dependence import BatchDependenceGuard
from trt_tui.core.guards.byte_images import ByteImagesGuard
from trt_tui.core.guards.clipped_values import ClippedValuesGuard
from trt_tui.core.guards.constant_inputs import ConstantInputsGuard
from trt_tui.core.guards.few_samples import FewSamplesGuard
from trt_tui.core.guards.float_fallback import FloatFallbackGuard
from trt_tui.core.guards.foreign_cache import ForeignCacheGuard
from trt_tui.core.guards.fp16_floor import Fp16FloorGuard
from trt_tui.core.guards.framework_mismatch import FrameworkMismatchGuard
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardResult, GuardWarning
from trt_tui.core.guards.input_mismatch import InputMismatchGuard
from trt_tui.core.guards.missing_classes import MissingClassesGuard
from trt_tui.core.guards.sample_convergence import SampleConvergenceGuard
from trt_tui.core.guards.stale_ranges import StaleRangesGuard
from trt_tui.core.guards.unfit_labels import UnfitLabelsGuard

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
