"""The guard against a quantized result that more calibration samples would change.

Rule: the SQNR of the worst output is measured with a quarter, a half and all of the calibration samples. The guard
warns if the SQNR changes by at least 1 dB from a half to all. The change before, from a quarter to a half, must have
the same sign or be within 0.1 dB. If it has the opposite sign, the limit is 3 dB instead of 1 dB.
The values are those against FP32 of the network. With another reference, the error of FP32 is subtracted.

Source: a stable result changes by less. That of the bundled network, whose outliers are rare, changes by 0.0 dB from 16
to 24 samples, and by 0.9 dB from there to 48. A simulation differs from its engine by less than 0.5 dB. A rising SQNR
shows that more samples help. A falling one shows that each additional sample widens min-max ranges, and that INT8 looks
better with few samples than it is.
"""

import math
from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning

MIN_CHANGE_DB = 1.0
MAX_STEADY_CHANGE_DB = 0.1
MIN_REVERSED_CHANGE_DB = 3.0


class SampleConvergenceGuard(Guard):
    """The guard that warns if the accuracy of a quantized run still changes with the number of calibration samples."""

    name = "more-samples"
    description = "the quantized run with a quarter, a half and all of the calibration samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return "" if len(guard_facts.convergence) > 1 else guard_facts.no_convergence_reason or "it was not measured"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        quarter_db, half_db, full_db = values_db = [guard_facts.subtract_fp32_error(point.sqnr_db)
                                                    for point in guard_facts.convergence]
        gain, before = full_db - half_db, half_db - quarter_db
        is_reversed = (before if gain > 0 else -before) < -MAX_STEADY_CHANGE_DB
        min_change_db = MIN_REVERSED_CHANGE_DB if is_reversed else MIN_CHANGE_DB
        if not all(map(math.isfinite, values_db)) or abs(gain) < min_change_db:
            return
        points_text = ", ".join(f"{value_db:.1f} dB with {point.samples}"
                                for value_db, point in zip(values_db, guard_facts.convergence, strict=True))
        if gain > 0:
            yield self.make_warning("more calibration samples would help",
                                    f"{guard_facts.quantized_type} gives {points_text}, and still rises",
                                    "Give more with --calib-data.")
        else:
            yield self.make_warning(
                f"{guard_facts.quantized_type} falls with more calibration samples",
                f"it gives {points_text}: outliers in a few samples widen all ranges",
                "Give more samples, and try --calib-method percentile or entropy, which leave them out.")
