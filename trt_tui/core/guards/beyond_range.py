"""Judged values beyond the range that their tensor was calibrated to.

Rule: it warns of tensors of which 0.1 % or more of the judged values are larger than 1.1 times the range, and four
times the share that is so of the calibrating samples; with ranges that were not measured here, of 1 % or more.

Source: a percentile of 99.99 leaves 0.01 % out by design, and entropy and MSE somewhat more on the calibrating samples
themselves, hence the comparison with these. A value clipped from 1.1 of the range has an error of 0.1 of it, one
within it of 1/440 (a step of 1/127 over the root of 12): 0.1 % of such values add twice the noise of all others.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import MEASURED, Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import plural, visible

SHARE = 0.001
TIMES = 4.0
TAKEN = 0.01
NAMED = 3


class BeyondRange(Guard):
    """See the module's docstring."""

    name = "beyond-range"
    about = "judged values beyond their range"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        if facts.ranges is None:
            return "nothing takes a range"
        return "" if facts.beyond is not None else "it was not measured"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        assert facts.ranges is not None and facts.beyond is not None, "else it lacks"
        taken = facts.ranges.source != MEASURED
        over = {tensor: one.judged for tensor, one in facts.beyond.items()
                if one.judged >= SHARE and (one.judged >= TIMES * one.calibrating or taken and one.judged >= TAKEN)}
        if not over:
            return
        worst = sorted(over, key=lambda tensor: -over[tensor])
        shares = ", ".join(f"{visible(tensor)} {100 * over[tensor]:.2g} %" for tensor in worst[:NAMED])
        more = f" and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
        yield self.alarm(f"judged values lie beyond the range of {plural(len(over), 'tensor')}",
                         f"they are clipped: {shares}{more}; the calibrating samples did not reach that far",
                         "Calibrate on samples like those that are judged (--calib-data), or on more of them.")
