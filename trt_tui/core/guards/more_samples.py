"""Whether more calibrating samples would change a quantized run: its SQNR with a quarter, a half and all of them.

Rule: it warns where the worst output's SQNR with all of the calibrating samples is 1 dB or more away from that with
half of them, and went the same way (or stayed, within 0.1 dB) from a quarter to a half; at 3 dB and more in any case.

Source: what is settled changes by less: that of the bundled network, whose outliers are rare, by 0.0 dB from 16 samples
to 24 and by 0.9 to 48; a simulation and its engine are apart by less than 0.5 dB. Rising figures say that more samples
help, falling ones that each more sample widens min-max ranges, and that few make INT8 look better than it is.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard

MOVED_DB = 1.0
STAYED_DB = 0.1
ALONE_DB = 3.0


class MoreSamples(Guard):
    """See the module's docstring."""

    name = "more-samples"
    about = "the quantized run with a quarter, a half and all of the calibrating samples"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        return "" if len(facts.grown) > 1 else facts.not_grown or "it was not measured"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        half, whole = facts.grown[-2:]
        gain, before = whole.sqnr_db - half.sqnr_db, half.sqnr_db - facts.grown[0].sqnr_db
        turned = (before if gain > 0 else -before) < -STAYED_DB
        if abs(gain) < (ALONE_DB if turned else MOVED_DB):
            return
        said = ", ".join(f"{one.sqnr_db:.1f} dB with {one.samples}" for one in facts.grown)
        if gain > 0:
            yield self.alarm("more calibrating samples would help", f"{facts.quantized} gives {said}, and still rises",
                             "Give more with --calib-data.")
        else:
            yield self.alarm(f"{facts.quantized} falls with more calibrating samples",
                             f"it gives {said}: outliers in a few samples widen the ranges of all",
                             "Give more samples, and try --calib-method percentile or entropy, which leave them out.")
