"""The guard against a network whose FP32 outputs differ from the framework's outputs for the same samples.

Rule: it warns if the SQNR of an output against the framework is below 60 dB.

Source: two FP32 runtimes agree to at least 100 dB, even if only one fuses layers. A framework that multiplies in TF32
or FP16 agrees to 50 to 60 dB. Below that, the exported network computes something else, or the inputs were prepared
differently. No precision corrects either.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

MIN_SQNR_DB = 60.0


class FrameworkMismatchGuard(Guard):
    """The guard that warns if FP32 outputs of the network differ from the framework's outputs."""

    name = "framework"
    description = "FP32 against the framework's own outputs"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return "" if guard_facts.framework_errors else "no outputs of the framework were given"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for name, errors in (guard_facts.framework_errors or {}).items():
            bad = errors.nonfinite_count or not errors.exact and (errors.sqnr_db is None
                                                                  or errors.sqnr_db < MIN_SQNR_DB)
            if bad and errors.mismatch is None:
                yield (self.make_warning(
                    f"FP32 differs from the framework: "
                    f"{errors.sqnr_text('')} dB at {escape_hidden_characters(name)}",
                    "two FP32 runtimes agree to 100 dB and more, so this is not a precision problem",
                    "Check the export and the preprocessing of both sides before any layer."))
