"""Ranges as a user gives them: an amax, a method, a percentile, or the mean of the largest values.

``top5-mean`` is the mean of the five largest magnitudes over all samples: less than the amax where a few outliers set
it. ``p99.9`` is the 99.9th percentile of all magnitudes.
"""

import re

from trt_tui.core.calibration.methods import methods_of
from trt_tui.core.calibration.statistics import LARGEST, TensorStats
from trt_tui.core.codes import MAX_AMAX, CodeType
from trt_tui.errors import InputError

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)", re.IGNORECASE)
_TOP = re.compile(r"top(\d+)-mean", re.IGNORECASE)


def amax_given(text: str) -> float | None:
    """The amax that a text is; None where it names a way to choose one from what was measured.

    Raises:
        InputError: it is neither, is negative or not finite, or asks for what is not measured.
    """
    try:
        amax = float(text)
    except ValueError:
        if not _known(text):
            raise InputError(f"{text!r} is no range", "it is neither a number nor a way to choose one",
                             f"Give an amax like 2.5, a method ({', '.join(_METHODS)}), p99.9 or top5-mean.") from None
        return None
    if not 0 <= amax <= MAX_AMAX:
        raise InputError(f"{text} is no range", "an amax is a number from 0 up that FP32 holds", "Give it like 2.5.")
    return amax


def amax_chosen(text: str, stats: TensorStats, code: CodeType) -> float:
    """The amax that a text of `amax_given` chooses from what a tensor holds, in the tensor's own units.

    Args:
        code: What the range is for.

    Raises:
        InputError: the method is none for codes of this type.
    """
    if match := _PERCENTILE.fullmatch(text):
        return stats.percentile(float(match[1]))
    if match := _TOP.fullmatch(text):
        largest = stats.largest[:int(match[1])]
        return sum(largest) / len(largest) if largest else 0.0
    method = text.lower()
    if method not in methods_of(code):
        raise InputError(f"{method} chooses no range for {code.precision.label}", "it assumes equal steps",
                         f"Take one of {', '.join(methods_of(code))}.")
    return stats.ranges_for(code.precision)[method]


_METHODS = ("minmax", "percentile", "entropy", "mse")


def _known(text: str) -> bool:
    if match := _PERCENTILE.fullmatch(text):
        return 0 < float(match[1]) <= 100
    if match := _TOP.fullmatch(text):
        return 1 <= int(match[1]) <= LARGEST
    return text.lower() in _METHODS


def chosen_from_data(method: str) -> bool:
    """Whether what a range was set by looks at data: any method, percentile or mean, but not a number."""
    return _known(method)
