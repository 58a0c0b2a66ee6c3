"""Whether more calibrating samples would change a quantized run: its SQNR with a quarter, a half and all of them.

Rule: it warns where the worst output's SQNR with all of the calibrating samples is 1 dB or more away from that with
half of them, and went the same way (or stayed, within 0.1 dB) from a quarter to a half; at 3 dB and more in any case.

Source: what is settled changes by less: that of the bundled network, whose outliers are rare, by 0.0 dB from 16 samples
to 24 and by 0.9 to 48; a simulation and its engine are apart by less than 0.5 dB. Rising figures say that more samples
help, falling ones that each more sample widens min-max ranges, and that few make INT8 look better than it is.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning

MIN_CHANGE_DB = 1.0
MAX_STEADY_CHANGE_DB = 0.1
MIN_REVERSED_CHANGE_DB = 3.0


class SampleConvergenceGuard(Guard):
    """See the module's docstring."""

    name = "more-samples"
    description = "the quantized run with a quarter, a half and all of the calibration samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        return "" if len(guard_facts.convergence) > 1 else guard_facts.no_convergence_reason or "it was not measured"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of."""
        half, full = guard_facts.convergence[-2:]
        gain, before = full.sqnr_db - half.sqnr_db, half.sqnr_db - guard_facts.convergence[0].sqnr_db
        is_reversed = (before if gain > 0 else -before) < -MAX_STEADY_CHANGE_DB
        if abs(gain) < (MIN_REVERSED_CHANGE_DB if is_reversed else MIN_CHANGE_DB):
            return
        points_text = ", ".join(f"{point.sqnr_db:.1f} dB with {point.samples}" for point in guard_facts.convergence)
        if gain > 0:
            yield self.make_warning("more calibration samples would help",
                                    f"{guard_facts.quantized_type} gives {points_text}, and still rises",
                                    "Give more with --calib-data.")
        else:
            yield self.make_warning(
                f"{guard_facts.quantized_type} falls with more calibration samples",
                f"it gives {points_text}: outliers in a few samples widen all ranges",
                "Give more samples, and try --calib-method percentile or entropy, which leave them out.")
