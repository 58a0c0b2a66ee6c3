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

from trt_tui.core.guards.guard import CACHE_SOURCE, Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text

MAX_RANGE_RATIO = 2.0
MIN_SINGLE_RANGE_RATIO = 8.0
MAX_MISMATCHED_SHARE = 0.1


def is_range_mismatched(amax: float, min_expected_amax: float, max_expected_amax: float) -> bool:
    """Whether a range is outside of what is expected of it by more than `MAX_RANGE_RATIO`; both in the tensor's units.
    """
    return amax > MAX_RANGE_RATIO * max_expected_amax or amax < min_expected_amax / MAX_RANGE_RATIO


def _amax_ratio(amax_pair: tuple[float, float]) -> float:
    low, high = sorted(amax_pair)
    return high / low if low > 0 else math.inf


class StaleRangesGuard(Guard):
    """See the module's docstring."""

    name = "stale-ranges"
    description = "ranges of a cache or config against the values of the samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        if not guard_facts.range_facts.checked_samples:
            return ("the ranges were measured on these samples"
                    if guard_facts.range_facts.source == "measured" else "no samples")
        return ""

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of."""
        ranges = guard_facts.range_facts
        assert ranges is not None, "else it lacks"
        mismatches: Mapping[str, tuple[float, float]] = ranges.mismatches
        if not mismatches:
            return
        worst = max(mismatches, key=lambda tensor: _amax_ratio(mismatches[tensor]))
        if len(mismatches) <= MAX_MISMATCHED_SHARE * ranges.compared_tensors and _amax_ratio(
                mismatches[worst]) < MIN_SINGLE_RANGE_RATIO:
            return
        amax, expected_amax = mismatches[worst]
        range_source = "cache" if ranges.source == CACHE_SOURCE else "config"
        yield (self.make_warning(
            f"{escape_hidden_characters(ranges.source_name)}: {len(mismatches)} of "
            f"{counted_noun_text(ranges.compared_tensors, 'range')} wrong by a factor of 2 or more",
            f"{counted_noun_text(ranges.checked_samples, 'sample')} contradict it: {escape_hidden_characters(worst)} "
            f"has {number_text(amax)} and they need {number_text(expected_amax)}, as after another training or "
            "preprocessing",
            f"Calibrate again on current samples: leave this {range_source}'s ranges out"
            f"{' (no --calib-cache)' if range_source == 'cache' else ''} and give --calib-data."))
