"""The effect of single groups on the judged outputs: error shares, sensitivities, and the accuracy with groups raised.

All measurements use the loaded inference session of an `Analysis`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.measure.analysis import Analysis, PartialResult
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.results import Accuracy, ErrorShare
from trt_tui.core.measure.sweep_plan import FIRST_SAMPLES
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.formatting import counted_noun_text

MAX_SHARE_HALF_WIDTH = 1.0
"""The half width of the interval, as a fraction of the error, above which a share is unknown."""


@dataclass(frozen=True)
class GroupSensitivity(ErrorShare):
    """The effect of one group on the judged outputs, both if it alone is raised (`ErrorShare`) and if it alone is
    reduced.

    ``fraction`` is NaN if the error with the group raised was not requested.

    Attributes:
        judged_error: The judged error (`Accuracy.judged_error`) with this group alone as in the run and all others in
            FP32. Infinite if that leads to NaN or Inf, 0 if the group changes no value, None if it was not measured.
    """

    judged_error: float | None = None


def error_share_from_sweep(group_sweep: GroupSweep, group_name: str) -> ErrorShare:
    """Returns the error share of a group, from a sweep in which each group alone is raised to FP32.

    The share is unknown if it is measured on fewer than `FIRST_SAMPLES` of more samples, or if its interval is
    too wide. A share that is not finite stays so on any further sample.
    """
    effect = group_sweep.estimate_group_effect(group_name)
    share = ErrorShare(effect.estimate.value, effect.worst_db, samples=effect.sample_count)
    half = effect.estimate.half_width
    if (effect.sample_count >= group_sweep.sample_count or not math.isfinite(share.fraction)
            or math.isinf(group_sweep.judged_error)):
        return share
    if effect.sample_count >= FIRST_SAMPLES and half <= MAX_SHARE_HALF_WIDTH:
        return replace(share, half_width=half)
    samples_text = counted_noun_text(effect.sample_count, "sample")
    return replace(share, fraction=math.nan, unknown_reason=(
        f"its interval on {samples_text} is ±{100 * half:,.0f} points" if math.isfinite(half) else
        f"{samples_text} are too few"))


def sensitivity_from_sweep(group_sweep: GroupSweep, group_name: str,
                           error_share: ErrorShare | None = None) -> GroupSensitivity:
    """Returns the sensitivity of a group, from a sweep in which each group alone is reduced, together with its error
    share."""
    effect, energy = group_sweep.estimate_group_effect(group_name), group_sweep.judged_error
    scale = energy if 0 < energy < math.inf else 1.0
    alone = math.inf if math.isinf(effect.estimate.value) else effect.estimate.value * scale
    error_share = error_share or ErrorShare(math.nan, samples=effect.sample_count)
    return GroupSensitivity(error_share.fraction, error_share.sqnr_if_raised_db, effect.worst_db, error_share.samples,
                            error_share.half_width, error_share.unknown_reason, alone)


def measure_accuracy_per_raised_group(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                                      group_order: Sequence[str], feed_indices: Sequence[int] | None = None
                                      ) -> Iterator[PartialResult[tuple[Accuracy, ...]]]:
    """Yields a growing tuple of accuracies: with the first 1, 2, ... groups of ``group_order`` raised to FP32."""
    indices = analysis.resolve_feed_indices(feed_indices)
    accuracies: tuple[Accuracy, ...] = ()
    for name in group_order:
        config = config.with_group_precision([analysis.network.get_group(name)], Precision.FP32)
        for partial in analysis.measure_accuracy(config, ranges, indices):
            if partial.is_final_result:
                accuracies += (partial.value,)
            yield PartialResult(accuracies, len(accuracies), len(group_order))
