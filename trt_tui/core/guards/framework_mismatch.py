"""The guard against a network whose FP32 outputs differ from the reference that the user named.

Rule: it warns if FP32 misses the target, or if the SQNR of an output against outputs of a framework is below 60 dB.

Source: two FP32 runtimes agree to at least 100 dB, even if only one fuses layers. A framework that multiplies in TF32
or FP16 agrees to 50 to 60 dB. Below that, the network computes something else, or the inputs were prepared differently.
No precision of a layer corrects either.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

MIN_SQNR_DB = 60.0


def fp32_miss_text(guard_facts: GuardFacts) -> str:
    """Returns the targets that FP32 itself misses against another reference, in one line; "" if it misses none."""
    accuracy = guard_facts.fp32_accuracy
    missed = [target for target in guard_facts.targets if accuracy is not None and target.is_met_by(accuracy) is False]
    if accuracy is None or not missed:
        return ""
    reference_text = escape_hidden_characters(guard_facts.reference_name)
    return (f"FP32 itself misses the target against {reference_text}: "
            + ", ".join(target.measured_value_text(accuracy) for target in missed))


class FrameworkMismatchGuard(Guard):
    """The guard that warns if FP32 outputs of the network differ from those of the reference."""

    name = "framework"
    description = "FP32 against the reference"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return "" if guard_facts.framework_errors or guard_facts.fp32_accuracy else "FP32 is the reference"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        if summary := fp32_miss_text(guard_facts):
            yield self.make_warning(
                summary, "no precision of a layer corrects that: both compute something else, or their inputs differ",
                "Compare the weights, the exports and the preprocessing of both sides before any layer.")
            return
        for name, errors in (guard_facts.framework_errors or {}).items():
            bad = errors.nonfinite_count or not errors.exact and (errors.sqnr_db is None
                                                                  or errors.sqnr_db < MIN_SQNR_DB)
            if bad and errors.mismatch is None:
                yield (self.make_warning(
                    f"FP32 differs from the framework: "
                    f"{errors.sqnr_text('')} dB at {escape_hidden_characters(name)}",
                    "two FP32 runtimes agree to 100 dB and more, so this is not a precision problem",
                    "Check the export and the preprocessing of both sides before any layer."))
