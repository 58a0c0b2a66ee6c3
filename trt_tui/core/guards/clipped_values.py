"""The guard against judged values outside the calibrated range of their tensor.

Rule: a tensor counts if at least 0.1 % of its judged values are larger than 1.1 times its range. In addition, that
share must be at least four times the share in the calibration samples. If the ranges were not measured in this session,
a share of 1 % is enough. A tensor that the guard against stale ranges names counts with any share, because few values
far outside a range are clipped too.

Source: a percentile of 99.99 leaves 0.01 % of the values outside by design. Entropy and MSE leave somewhat more
outside, even of the calibration samples; hence the comparison with these. A value clipped from 1.1 times the range has
an error of 0.1 of the range. A value inside has an error of 1/440 of the range (a step of 1/127 divided by the root of
12). A share of 0.1 % of such values adds twice the noise of all others.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import MEASURED_SOURCE, Guard, GuardFacts, GuardWarning
from trt_tui.core.guards.stale_ranges import find_exceeded_ranges
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text

MIN_CLIPPED_SHARE = 0.001
MIN_CALIBRATION_RATIO = 4.0
MIN_EXTERNAL_RANGE_SHARE = 0.01
MAX_NAMED_TENSORS = 3


class ClippedValuesGuard(Guard):
    """The guard that warns if many judged values are outside the range of their tensor and are therefore clipped."""

    name = "beyond-range"
    description = "judged values outside their range"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        return "" if guard_facts.clipped is not None else "it was not measured"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        assert guard_facts.range_facts is not None and guard_facts.clipped is not None, "else it lacks"
        is_external = guard_facts.range_facts.source != MEASURED_SOURCE
        exceeded_ranges = find_exceeded_ranges(guard_facts)
        shares_over_limit = {
            tensor: clipped.judged_share
            for tensor, clipped in guard_facts.clipped.items()
            if tensor in exceeded_ranges or clipped.judged_share >= MIN_CLIPPED_SHARE and (
                clipped.judged_share >= MIN_CALIBRATION_RATIO
                * clipped.calibration_share or is_external and clipped.judged_share >= MIN_EXTERNAL_RANGE_SHARE)
        }
        if not shares_over_limit:
            return
        worst = sorted(shares_over_limit, key=lambda tensor: -shares_over_limit[tensor])
        shares = ", ".join(f"{escape_hidden_characters(tensor)} {100 * shares_over_limit[tensor]:.2g} %"
                           for tensor in worst[:MAX_NAMED_TENSORS])
        ratio = max((exceeded_ranges.get(tensor, 0.0) for tensor in worst), default=0.0)
        reached_text = f"; values reach {number_text(ratio, 2)} times a range" if ratio else ""
        more = f" and {len(worst) - MAX_NAMED_TENSORS} more" if len(worst) > MAX_NAMED_TENSORS else ""
        yield self.make_warning(
            f"judged values are outside the range of {counted_noun_text(len(shares_over_limit), 'tensor')}",
            f"they are clipped: {shares}{more}{reached_text}; the calibration samples had smaller values",
            "Calibrate on samples like the judged samples (--calib-data), or on more samples.")
