"""Ranges that the samples do not reach, or go far beyond: a cache from before the network was trained again.

Rule: a range is off where it is more than twice the largest magnitude of up to 32 samples, or less than half of what
any calibration method would choose from them (min-max that magnitude; percentile, entropy and MSE may choose less, and
a cache made by them is given that). It warns where more than one range in ten is off, or one by a factor of 8.

Source: a factor of 2 is one of the 8 bits. Ranges of the same network from other samples of the same kind differ by
less: the bundled network's by at most 1.25 from 16 samples to 48, by 1.43 from 8; single tensors with outliers may
differ by more, so one alone does not count until it costs 3 bits.
"""

import math
from collections.abc import Iterator, Mapping

from trt_tui.core.guards.facts import CACHE, Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import number, plural, visible

FACTOR = 2.0
ALONE = 8.0
SHARE = 0.1


def is_off(amax: float, expected_low: float, expected_high: float) -> bool:
    """Whether a range is outside of what is expected of it by more than `FACTOR`; both in the tensor's units."""
    return amax > FACTOR * expected_high or amax < expected_low / FACTOR


def _factor(pair: tuple[float, float]) -> float:
    low, high = sorted(pair)
    return high / low if low > 0 else math.inf


class StaleRanges(Guard):
    """See the module's docstring."""

    name = "stale-ranges"
    about = "ranges of a cache or config against what samples reach"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        if facts.ranges is None:
            return "nothing takes a range"
        if not facts.ranges.sampled:
            return "the ranges were measured on these samples" if facts.ranges.source == "measured" else "no samples"
        return ""

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        ranges = facts.ranges
        assert ranges is not None, "else it lacks"
        off: Mapping[str, tuple[float, float]] = ranges.off
        if not off:
            return
        worst = max(off, key=lambda tensor: _factor(off[tensor]))
        if len(off) <= SHARE * ranges.compared and _factor(off[worst]) < ALONE:
            return
        amax, sampled = off[worst]
        what = "cache" if ranges.source == CACHE else "config"
        yield self.alarm(
            f"{visible(ranges.name)}: {len(off)} of {plural(ranges.compared, 'range')} off by a factor of 2 or more",
            f"{plural(ranges.sampled, 'sample')} say otherwise: {visible(worst)} has {number(amax)} and they call for "
            f"{number(sampled)}, as after another training or preprocessing",
            f"Calibrate again on samples of now: leave this {what}'s ranges out"
            f"{' (no --calib-cache)' if what == 'cache' else ''} and give --calib-data.")
