"""The guard against calibration inputs that are prepared differently from the judged inputs.

Rules, for each float or 8-bit input, over means, standard deviations and largest magnitudes of single samples:

- Spread or reach: the standard deviations, or the largest magnitudes, differ by a factor of 2 in the geometric mean. If
  the factor is near 255, the warning says so, because a missing division by 255 causes it.
- Mean: the mean of a channel differs by at least half of its standard deviation.
- Order: the means of three channels, each minus the mean of the sample, agree only in reversed order (RGB read as BGR).
- One of the two inputs has a single value everywhere, and the other has not.

A difference counts if it is at least 5 standard errors of the difference of two means; 8 with fewer than 8 samples.

Source: TensorRT's calibrators accept any input without a warning. With inputs times 255, the F1 of the bundled network
falls to 8.5. Samples of the same kind differ by chance according to Student's t. From 12 samples on, 5 standard errors
have a probability below 0.01 %.
"""

import math
from collections.abc import Iterator

import numpy as np

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning, InputStats
from trt_tui.formatting import escape_hidden_characters, number_text

MIN_SPREAD_RATIO = 2.0
MIN_MEAN_SHIFT = 0.5
MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_FEW, FEW_SAMPLES = 5.0, 8.0, 8
_TINY = 1e-12


class InputMismatchGuard(Guard):
    """The guard that warns if calibration inputs differ from the judged inputs in scale, mean or channel order."""

    name = "unlike-inputs"
    description = "calibration inputs against judged inputs: min, max, mean, std, channel order"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.has_random_inputs:
            return "random inputs"
        if guard_facts.judges_calibration_samples:
            return "the same samples calibrate and are judged"
        if guard_facts.range_facts is None:
            return "no layer needs a range"
        return "" if guard_facts.input_stats else "no input of floats or bytes"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for name, (calibration_stats, judged_stats) in (guard_facts.input_stats or {}).items():
            difference = _describe_input_difference(calibration_stats, judged_stats)
            if difference is not None:
                quantity, explanation = difference
                yield (self.make_warning(
                    f"calibration inputs differ from judged inputs: {quantity} of {escape_hidden_characters(name)}",
                    f"{explanation} (calibration {_input_stats_text(calibration_stats)}; judged "
                    f"{_input_stats_text(judged_stats)}): one of the two does not match production",
                        "Prepare both with the same code."))


def _input_stats_text(input_stats: InputStats) -> str:
    means = ", ".join(number_text(float(value) + 0.0) for value in input_stats.mean.mean(0)[:4])
    std = math.sqrt(float(np.mean(np.square(input_stats.std))))
    return (
        f"{number_text(float(input_stats.minimum.min()) + 0.0)} to "
        f"{number_text(float(input_stats.maximum.max()))}, mean {means}, "
        f"std {number_text(std)}")


def _describe_input_difference(calibration_stats: InputStats, judged_stats: InputStats) -> tuple[str, str] | None:
    """Returns the quantity in which two inputs differ, and an explanation; None if they may be of the same kind."""
    varied = [bool(stats.maximum.max() > stats.minimum.min()) for stats in (calibration_stats, judged_stats)]
    if not all(varied):
        return None if not any(varied) else ("spread", "one is constant, the other is not")
    for quantity, logs in (("spread", _compute_log_std_by_sample), ("reach", _compute_log_amax_by_sample)):
        differences = _compare_column_means(*(logs(stats) for stats in (calibration_stats, judged_stats)))
        if differences is not None and abs(differences[0][0]) >= math.log(MIN_SPREAD_RATIO) and differences[1].any():
            factor = math.exp(abs(differences[0][0]))
            side = "larger" if differences[0][0] > 0 else "smaller"
            by_255 = ", as where one is divided by 255 and the other is not" if 200 <= factor <= 325 else ""
            return quantity, f"the calibration inputs are {number_text(factor)} times {side}{by_255}"
    if calibration_stats.channel_count != judged_stats.channel_count:
        return None
    if _has_reversed_channels(calibration_stats, judged_stats):
        return "channel order", "the means of their channels fit when they are reversed, as of RGB read as BGR"
    differences = _compare_column_means(calibration_stats.mean, judged_stats.mean)
    if differences is None:
        return None
    both = np.concatenate([calibration_stats.mean, judged_stats.mean])
    std = np.sqrt(np.mean(np.square(np.concatenate([calibration_stats.std, judged_stats.std])), 0)
                  + both.var(0)) + _TINY
    channels = [
        channel for channel in np.flatnonzero(differences[1])
        if abs(differences[0][channel]) >= MIN_MEAN_SHIFT * std[channel]
    ]
    if not channels:
        return None
    worst = max(channels, key=lambda channel: float(abs(differences[0][channel]) / std[channel]))
    channel_text = f"of channel {worst} " if calibration_stats.channel_count > 1 else ""
    return (
        "mean",
        f"the mean "
        f"{channel_text}is "
        f"{number_text(float(differences[0][worst]))} off, of a std of {number_text(float(std[worst]))}"
    )


def _compute_log_std_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithms of the samples' standard deviations over all channels, ``(samples, 1)``.

    Samples with a single value are left out.
    """
    centre = input_stats.mean.mean(1, keepdims=True)
    variance = np.mean(np.square(input_stats.std) + np.square(input_stats.mean - centre), 1)
    logs: np.ndarray = 0.5 * np.log(variance[variance > _TINY])
    return logs[:, None]


def _compute_log_amax_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithms of the samples' largest magnitudes, ``(samples, 1)``. Samples of zeros are left out."""
    reach = np.maximum(np.abs(input_stats.minimum), np.abs(input_stats.maximum)).max(1)
    logs: np.ndarray = np.log(reach[reach > _TINY])
    return logs[:, None]


def _compare_column_means(first_array: np.ndarray, second_array: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the differences of column means, and True for each difference that chance does not explain.

    None if there are too few rows to compare.
    """
    count = len(first_array) + len(second_array)
    if not len(first_array) or not len(second_array) or count < 3:
        return None
    spread = sum(np.square(rows - rows.mean(0)).sum(0) for rows in (first_array, second_array)) / (count - 2)
    difference = first_array.mean(0) - second_array.mean(0)
    errors = np.sqrt(spread * (1 / len(first_array) + 1 / len(second_array))) + _TINY
    return difference, np.abs(difference) / errors > (MIN_STANDARD_ERRORS
                                                      if count >= FEW_SAMPLES else MIN_STANDARD_ERRORS_FEW)


def _has_reversed_channels(calibration_stats: InputStats, judged_stats: InputStats) -> bool:
    if calibration_stats.channel_count != 3:
        return False
    calibration_offsets, judged_offsets = (stats.mean - stats.mean.mean(1, keepdims=True)
                                           for stats in (calibration_stats, judged_stats))
    direct, reversed_order = _compare_column_means(calibration_offsets, judged_offsets), _compare_column_means(
        calibration_offsets[:, ::-1], judged_offsets)
    if direct is None or reversed_order is None or not direct[1].any() or reversed_order[1].any():
        return False
    return bool(np.abs(reversed_order[0]).max() < 0.5 * np.abs(direct[0]).max())
