"""The list of all guards, and functions that run them on facts."""

from trt_tui.core.guards.data_guards import (
    find_batch_dependence,
    find_byte_images,
    find_constant_inputs,
    find_framework_mismatches,
    find_input_mismatches,
    find_missing_classes,
    find_unfit_label_warnings,
)
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardResult, GuardWarning, MissingFactsError
from trt_tui.core.guards.precision_guards import find_float_fallback, find_fp16_floor
from trt_tui.core.guards.range_guards import (
    MIN_CALIBRATION_SAMPLES,
    find_clipped_values,
    find_few_samples,
    find_foreign_cache,
    find_sample_divergence,
    find_stale_ranges,
)

GUARDS = (
    Guard("framework", "FP32 against the reference", find_framework_mismatches),
    Guard("constant-inputs", "judged samples that are all the same", find_constant_inputs),
    Guard("unlike-inputs", "calibration inputs against judged inputs: min, max, mean, std, channel order",
          find_input_mismatches),
    Guard("byte-images", "images of whole numbers from 0 to 255 in a float input", find_byte_images),
    Guard("unfit-labels", "class labels against the classes of the output", find_unfit_label_warnings),
    Guard("batch-dependent", "FP32 of single samples against the batch in use", find_batch_dependence),
    Guard("stale-ranges", "ranges of a cache or config against the values of the samples", find_stale_ranges),
    Guard("foreign-cache", "release and method in a calibration cache's first line", find_foreign_cache),
    Guard("few-samples", f"fewer than {MIN_CALIBRATION_SAMPLES} calibration samples", find_few_samples),
    Guard("missing-classes", "classes that no calibration sample has", find_missing_classes),
    Guard("more-samples", "the quantized run with a quarter, a half and all of the calibration samples",
          find_sample_divergence),
    Guard("beyond-range", "judged values outside their range", find_clipped_values),
    Guard("fp16-floor", "error of FP16 rounding alone against the error of the run", find_fp16_floor),
    Guard("back-in-float", "share of the quantized work that runs in floating point", find_float_fallback),
)
"""All guards, the most serious first."""


def run_guards(guard_facts: GuardFacts) -> tuple[GuardResult, ...]:
    """Runs each guard on the facts and returns the results in the order of `GUARDS`."""
    results = []
    for guard in GUARDS:
        try:
            results.append(GuardResult(guard, tuple(GuardWarning(guard.name, *alarm)
                                                    for alarm in guard.find_alarms(guard_facts))))
        except MissingFactsError as error:
            results.append(GuardResult(guard, (), str(error)))
    return tuple(results)


def collect_guard_warnings(guard_facts: GuardFacts) -> tuple[GuardWarning, ...]:
    """Returns the warnings of all guards for the facts, the most serious first."""
    return tuple(alarm for result in run_guards(guard_facts) for alarm in result.alarms)
