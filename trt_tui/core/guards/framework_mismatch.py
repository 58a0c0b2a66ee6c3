"""The network in FP32 against the outputs that a framework gave for the same samples.

Rule: it warns where an output's SQNR against the framework's is below 60 dB.

Source: two FP32 runtimes agree to 100 dB and more, also where one has fused what the other has not; a framework that
multiplied in TF32 or FP16 leaves 50 to 60. Below that the export computes something else, or the inputs were prepared
otherwise, and no precision mends it.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

MIN_SQNR_DB = 60.0


class FrameworkMismatchGuard(Guard):
    """See the module's docstring."""

    name = "framework"
    description = "FP32 against the framework's own outputs"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
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
