"""The guard for errors that FP16 rounding alone causes, which raising quantized layers to FP16 cannot reduce.

Rule: it warns if three conditions hold. The run misses the target, and FP32 does not. A run with all layers in FP16
misses the target too. The SQNR of the worst output in FP16 is less than 1 dB above that of the run. Both are taken
against FP32 of the network: with another reference, the error of FP32 against that reference is subtracted.
If the target bounds a metric, FP16 does not have a better one.

Source: errors of INT8 layers and of FP16 roundings add up. A run within 1 dB of FP16 has four fifths of its error from
FP16 (10^-0.1 = 0.79). All its INT8 layers together cause the last fifth.
"""

import math
from collections.abc import Iterator

from trt_tui.core.guards.framework_mismatch import fp32_miss_text
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target_outcome import judge_accuracy

MAX_GAIN_DB = 1.0


def _sqnr_against_fp32_db(accuracy: Accuracy, guard_facts: GuardFacts) -> float | None:
    """Returns the SQNR of the worst output against FP32 of the network in dB; None if it was not measured."""
    if accuracy.worst_output is None or accuracy.nonfinite_count:
        return None
    name, output = accuracy.worst_output
    return None if output.errors.sqnr_db is None else guard_facts.subtract_fp32_error(output.errors.sqnr_db, name)


class Fp16FloorGuard(Guard):
    """The guard that warns if FP16 rounding alone causes the error of a quantized run."""

    name = "fp16-floor"
    description = "error of FP16 rounding alone against the error of the run"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        accuracy, fp16_accuracy = guard_facts.accuracy, guard_facts.fp16_accuracy
        if accuracy is None or fp16_accuracy is None or any(
                judged_accuracy.samples < judged_accuracy.total for judged_accuracy in (accuracy, fp16_accuracy)):
            return "the runs are not measured"
        if guard_facts.float_type != "fp16" or not guard_facts.is_quantized:
            return "the run does not combine quantized types with FP16"
        return "" if _sqnr_against_fp32_db(accuracy, guard_facts) is not None and _sqnr_against_fp32_db(
            fp16_accuracy, guard_facts) is not None else "no SQNR was measured"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        accuracy, fp16_accuracy = guard_facts.accuracy, guard_facts.fp16_accuracy
        assert accuracy is not None and fp16_accuracy is not None, "else it lacks"
        run_db, fp16_db = (_sqnr_against_fp32_db(item.on_compared_samples, guard_facts)
                           for item in (accuracy, fp16_accuracy))
        if run_db is None or fp16_db is None:
            return
        results = [judge_accuracy(guard_facts.targets[:1], judged_accuracy)
                   for judged_accuracy in (accuracy, fp16_accuracy)]
        if fp32_miss_text(guard_facts) or any(result is None or result.passes for result in results):
            return
        if any(target.error_metric is None and (target.margin_to_bound(fp16_accuracy) or 0.0) > (
                target.margin_to_bound(accuracy) or 0.0) for target in guard_facts.targets[:1]):  # FP16 helps
            return
        if math.isfinite(run_db) and fp16_db - run_db < MAX_GAIN_DB:
            yield self.make_warning(
                f"FP16 rounding alone causes the error of {guard_facts.run_name}",
                f"FP16 throughout has {fp16_db:.1f} dB, {guard_facts.run_name} {run_db:.1f}, and both miss the "
                f"target: raising layers from {guard_facts.quantized_type} to FP16 does not help",
                "Raise the layers with large shares in the FP16 run to FP32, or use --other bf16.")
