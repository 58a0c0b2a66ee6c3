"""The guard against ranges that samples do not reach or far exceed, such as a cache from before the network was
retrained.

Rule: a range is wrong if it is more than twice the largest magnitude in up to 32 samples. It is also wrong if it is
less than half of the smallest amax that a calibration method would choose from them. Min-max chooses the largest
magnitude. Percentile, entropy and MSE can choose less, which counts only for a cache made by these methods. The guard
warns if more than one range in ten is wrong, or a single one by a factor of 8.

Source: a factor of 2 is one of the 8 bits. Ranges of one network from different samples of the same kind differ by
less. Those of the bundled network differ by at most 1.25 between 16 and 48 samples, and by 1.43 between 8 and 48.
Single tensors with outliers can differ by more, so one tensor alone does not count until it loses 3 bits.
"""

import math
from collections.abc import Iterator, Mapping

from trt_tui.core.guards.guard import CACHE_SOURCE, Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text

MAX_RANGE_RATIO = 2.0
MIN_SINGLE_RANGE_RATIO = 8.0
MAX_MISMATCHED_SHARE = 0.1


def is_range_mismatched(amax: float, min_expected_amax: float, max_expected_amax: float) -> bool:
    """Returns True if an amax is outside an expected interval by more than the factor `MAX_RANGE_RATIO`.

    All values are in the units of the tensor.
    """
    return amax > MAX_RANGE_RATIO * max_expected_amax or amax < min_expected_amax / MAX_RANGE_RATIO


def _amax_ratio(amax_pair: tuple[float, float]) -> float:
    low, high = sorted(amax_pair)
    return high / low if low > 0 else math.inf


def find_exceeded_ranges(guard_facts: GuardFacts) -> dict[str, float]:
    """Returns the tensors whose values far exceed their range, with the ratio; empty if the guard does not warn."""
    ranges = guard_facts.range_facts
    if ranges is None or not any(StaleRangesGuard().find_warnings(guard_facts)):
        return {}
    return {tensor: expected_amax / amax for tensor, (amax, expected_amax) in ranges.mismatches.items()
            if expected_amax > amax}


class StaleRangesGuard(Guard):
    """The guard that warns if the ranges of a cache or config contradict the values in the samples."""

    name = "stale-ranges"
    description = "ranges of a cache or config against the values of the samples"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        if not guard_facts.range_facts.checked_samples:
            return ("the ranges were measured on these samples"
                    if guard_facts.range_facts.source == "measured" else "no samples")
        return ""

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
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
            f"{counted_noun_text(ranges.checked_samples, 'sample')} contradict them: {escape_hidden_characters(worst)} "
            f"has {number_text(amax)}, and the samples need {number_text(expected_amax)}, as after another training or "
            "preprocessing",
            f"Calibrate again on current samples: leave this {range_source}'s ranges out"
            f"{' (no --calib-cache)' if range_source == 'cache' else ''} and give --calib-data."))
