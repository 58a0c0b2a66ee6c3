"""Calibrating inputs that are prepared otherwise than the judged ones.

Rules, for each float or 8-bit input, over the means, standard deviations and largest magnitudes of single samples; what
counts must be at least 5 standard errors of the difference of two means away from chance (8 with fewer than 8 samples):

- spread or reach: the standard deviations, or the largest magnitudes, differ by a factor of 2 in the geometric mean;
  near 255 the factor is named, since that is what dividing by 255 makes;
- place: the mean of a channel differs by half of its standard deviation or more;
- order: the means of three channels, each less the sample's own mean, fit when they are reversed and do not as they are
  (RGB read as BGR);
- one side holds the same value throughout and the other does not.

Source: TensorRT's calibrators see what they are given and say nothing; with inputs times 255 the bundled network's F1
falls to 8.5. Samples that are alike differ by chance as Student's t says, for which 5 standard errors are beyond 0.01 %
from 12 samples on.
"""

import math
from collections.abc import Iterator

import numpy as np

from trt_tui.core.guards.facts import Facts, SampleStats
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import number, visible

FACTOR = 2.0
SHIFT = 0.5
ERRORS, ERRORS_OF_FEW, FEW = 5.0, 8.0, 8
_TINY = 1e-12


class UnlikeInputs(Guard):
    """See the module's docstring."""

    name = "unlike-inputs"
    about = "calibrating inputs against judged ones: min, max, mean, std, channel order"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        if facts.random:
            return "random inputs"
        if facts.same_samples:
            return "the same samples calibrate and are judged"
        return "" if facts.inputs else "no input of floats or bytes"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        for name, (calibrating, judged) in (facts.inputs or {}).items():
            found = _difference(calibrating, judged)
            if found is not None:
                what, why = found
                yield self.alarm(f"calibrating inputs are unlike the judged ones: {what} of {visible(name)}",
                                 f"{why} (calibrating {_said(calibrating)}; judged {_said(judged)}): one of the two is "
                                 "not what production feeds", "Prepare both by the same code.")


def _said(one: SampleStats) -> str:
    means = ", ".join(number(float(value) + 0.0) for value in one.mean.mean(0)[:4])
    std = math.sqrt(float(np.mean(np.square(one.std))))
    return (f"{number(float(one.low.min()) + 0.0)} to {number(float(one.high.max()))}, mean {means}, "
            f"std {number(std)}")


def _difference(one: SampleStats, other: SampleStats) -> tuple[str, str] | None:
    """What differs, and how; None where the two may be alike."""
    varied = [bool(stats.high.max() > stats.low.min()) for stats in (one, other)]
    if not all(varied):
        return None if not any(varied) else ("spread", "one holds a single value throughout, the other does not")
    for what, logs in (("spread", _log_spread), ("reach", _log_reach)):
        apart = _apart(*(logs(stats) for stats in (one, other)))
        if apart is not None and abs(apart[0][0]) >= math.log(FACTOR) and apart[1].any():
            factor = math.exp(abs(apart[0][0]))
            side = "larger" if apart[0][0] > 0 else "smaller"
            by_255 = ", as where one is divided by 255 and the other is not" if 200 <= factor <= 325 else ""
            return what, f"the calibrating ones are {number(factor)} times {side}{by_255}"
    if one.channels != other.channels:
        return None
    if _reversed(one, other):
        return "channel order", "the means of their channels fit when they are reversed, as of RGB read as BGR"
    apart = _apart(one.mean, other.mean)
    if apart is None:
        return None
    both = np.concatenate([one.mean, other.mean])
    std = np.sqrt(np.mean(np.square(np.concatenate([one.std, other.std])), 0) + both.var(0)) + _TINY
    channels = [channel for channel in np.flatnonzero(apart[1]) if abs(apart[0][channel]) >= SHIFT * std[channel]]
    if not channels:
        return None
    worst = max(channels, key=lambda channel: float(abs(apart[0][channel]) / std[channel]))
    where = f"of channel {worst} " if one.channels > 1 else ""
    return "mean", f"the mean {where}is {number(float(apart[0][worst]))} off, of a std of {number(float(std[worst]))}"


def _log_spread(one: SampleStats) -> np.ndarray:
    """Logarithms of the samples' standard deviations over all channels, ``(samples, 1)``; samples of one value none."""
    centre = one.mean.mean(1, keepdims=True)
    variance = np.mean(np.square(one.std) + np.square(one.mean - centre), 1)
    logs: np.ndarray = 0.5 * np.log(variance[variance > _TINY])
    return logs[:, None]


def _log_reach(one: SampleStats) -> np.ndarray:
    """Logarithms of the samples' largest magnitudes, ``(samples, 1)``; samples of zeros none."""
    reach = np.maximum(np.abs(one.low), np.abs(one.high)).max(1)
    logs: np.ndarray = np.log(reach[reach > _TINY])
    return logs[:, None]


def _apart(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Differences of the columns' means, and whether each is beyond chance; None where there is nothing to compare."""
    count = len(one) + len(other)
    if not len(one) or not len(other) or count < 3:
        return None
    spread = sum(np.square(rows - rows.mean(0)).sum(0) for rows in (one, other)) / (count - 2)
    difference = one.mean(0) - other.mean(0)
    errors = np.sqrt(spread * (1 / len(one) + 1 / len(other))) + _TINY
    return difference, np.abs(difference) / errors > (ERRORS if count >= FEW else ERRORS_OF_FEW)


def _reversed(one: SampleStats, other: SampleStats) -> bool:
    if one.channels != 3:
        return False
    here, there = (stats.mean - stats.mean.mean(1, keepdims=True) for stats in (one, other))
    apart, turned = _apart(here, there), _apart(here[:, ::-1], there)
    if apart is None or turned is None or not apart[1].any() or turned[1].any():
        return False
    return bool(np.abs(turned[0]).max() < 0.5 * np.abs(apart[0]).max())
