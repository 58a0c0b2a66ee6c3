"""The guard against too few calibration samples.

Rule: it warns if there are fewer than 32 calibration samples, in this session or for the ranges of a config.

Source: twelve draws of 8 scenes were measured with the bundled network; 2 scenes of each draw calibrate. Ten draws give
11 to 16 dB in INT8. Two give 28 and 33 dB, because no scene with hot pixels calibrates. With 48 scenes the result is 11
dB. With fewer than 32 samples, a property of one sample in ten is missed with a probability above 3 % (0.9^32).
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import CONFIG_SOURCE, Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text, escape_hidden_characters

MIN_CALIBRATION_SAMPLES = 32


class FewSamplesGuard(Guard):
    """The guard that warns if the ranges come from fewer than 32 calibration samples."""

    name = "few-samples"
    description = f"fewer than {MIN_CALIBRATION_SAMPLES} calibration samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.has_random_inputs:
            return "random inputs"
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        return "" if guard_facts.range_facts.calibration_samples else "it is not known how many samples have calibrated"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        ranges = guard_facts.range_facts
        assert ranges is not None, "else it lacks"
        if ranges.calibration_samples >= MIN_CALIBRATION_SAMPLES:
            return
        subject = "calibration is"
        next_step = (f"Give {MIN_CALIBRATION_SAMPLES} or more with --calib-data, or more --data: every fourth batch "
                     "calibrates.")
        if ranges.source == CONFIG_SOURCE:
            subject = f"the ranges of {escape_hidden_characters(ranges.source_name)} are"
            next_step = f"Calibrate again on {MIN_CALIBRATION_SAMPLES} or more: leave this config's ranges out."
        yield (self.make_warning(
            f"{subject} from {counted_noun_text(ranges.calibration_samples, 'sample')}",
            f"with fewer than {MIN_CALIBRATION_SAMPLES} the ranges miss rare values, and {guard_facts.quantized_type} "
            "looks better here than it is",
            next_step))
