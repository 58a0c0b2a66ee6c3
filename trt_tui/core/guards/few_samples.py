"""Too few samples calibrate.

Rule: it warns below 32 samples, whether they calibrate here or have calibrated for a config.

Source: of twelve draws of 8 of the bundled network's scenes, 2 of which calibrate, ten give 11 to 16 dB in INT8 and two
28 and 33, since no scene with hot pixels calibrates there; with 48 it gives 11. Below 32 samples, what one in ten has
is missed with a chance above 3 % (0.9^32).
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import CONFIG_SOURCE, Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text, escape_hidden_characters

MIN_CALIBRATION_SAMPLES = 32


class FewSamplesGuard(Guard):
    """See the module's docstring."""

    name = "few-samples"
    description = f"fewer than {MIN_CALIBRATION_SAMPLES} calibration samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        if guard_facts.has_random_inputs:
            return "random inputs"
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        return "" if guard_facts.range_facts.calibration_samples else "it is not known how many samples have calibrated"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of."""
        ranges = guard_facts.range_facts
        assert ranges is not None, "else it lacks"
        if ranges.calibration_samples >= MIN_CALIBRATION_SAMPLES:
            return
        subject = (f"the ranges of {escape_hidden_characters(ranges.source_name)} are"
                   if ranges.source == CONFIG_SOURCE else "calibration is")
        yield (self.make_warning(
            f"{subject} from {counted_noun_text(ranges.calibration_samples, 'sample')}",
            f"with fewer than {MIN_CALIBRATION_SAMPLES} the ranges miss rare values, and {guard_facts.quantized_type} "
            "looks better here than it is",
            f"Give {MIN_CALIBRATION_SAMPLES} or more with --calib-data, or more --data: every fourth batch calibrates.")
               )
