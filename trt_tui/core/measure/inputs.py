"""The inputs that production has dumped, held against those here, and what may have made them differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.comparison import Errors
from trt_tui.core.measure.metrics import Sums
from trt_tui.words import number, with_unit

SAME_DB = 60.0
"""Inputs this close are the same: casts and codecs of FP32 leave more."""

_IDENTITY = (1.0, 0.0)
"""The scale and offset of inputs that are the same but for noise."""

_MOST = 1 << 20
"""Elements that an explanation is looked for in."""


@dataclass(frozen=True)
class InputDifference:
    """How an input in production differs from the one here.

    Attributes:
        said: In words, with what would explain it.
    """

    name: str
    errors: Errors
    said: str

    @property
    def same(self) -> bool:
        """Whether both are the same but for rounding."""
        errors = self.errors
        return errors.exact or errors.sqnr_db is not None and errors.sqnr_db >= SAME_DB


def compare_inputs(name: str, pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> InputDifference:
    """Compares an input over feeds; each pair is what is fed here and what production was given, of one shape."""
    sums = Sums()
    first: list[tuple[np.ndarray, np.ndarray]] = []
    held = 0
    for here, there in pairs:
        sums.add(here, there)
        if held < _MOST:
            first.append((np.array(here, np.float64), np.array(there, np.float64)))
            held += here.size
    errors = sums.errors()
    figure = with_unit(errors.figure(""))
    found = InputDifference(name, errors, f"{name} is the same ({figure})")
    if found.same:
        return found
    sides = [np.concatenate(side) for side in zip(*first, strict=True)]
    if sides and _line(*sides) == _IDENTITY:
        return InputDifference(name, errors, f"{name} is {figure} apart, as after another resize, decoder or type")
    why = explain(*sides) if sides else ""
    return InputDifference(name, errors, f"{name} differs ({figure}){f': {why}' if why else ''}")


def explain(here: np.ndarray, there: np.ndarray) -> str:
    """What turns ``here`` into ``there``, in words: a scale and an offset, channels in another order, another axis
    mirrored or swapped, samples in another order; "" where none of these does.

    Args:
        here, there: Of one shape, first axis samples.
    """
    if here.size == 0 or not (np.isfinite(here).all() and np.isfinite(there).all()):
        return "production has NaN or Inf" if here.size else ""
    if (fit := _line(here, there)) and fit != _IDENTITY:
        return f"there it is {_formula(*fit)}"
    for axis in range(1, here.ndim):
        if 2 <= here.shape[axis] <= 4:
            turned = np.flip(here, axis)
            if _line(turned, there) == _IDENTITY:
                return f"its channels (axis {axis}) are in reverse order, as RGB and BGR are"
            each = [_line(np.take(here, index, axis), np.take(there, index, axis)) for index in range(here.shape[axis])]
            if all(each) and any(one != _IDENTITY for one in each):
                lines = "; ".join(f"channel {index} is {_formula(*one)}" for index, one in enumerate(each) if one)
                return f"normalised otherwise: there {lines}"
    if here.ndim == 4 and here.shape[2] == here.shape[3] and _line(here.swapaxes(2, 3), there) == _IDENTITY:
        return "height and width are swapped"
    for axis in range(1, here.ndim):
        if here.shape[axis] > 4 and _line(np.flip(here, axis), there) == _IDENTITY:
            return f"it is mirrored along axis {axis}"
    if len(here) > 1 and (order := _order(here, there)) is not None:
        return f"the samples are in another order: there {', '.join(map(str, order[:5]))}, … of those here"
    return ""


def _formula(scale: float, offset: float) -> str:
    text = f"{number(scale)} times this" if scale != 1 else "this"
    return text + (f" {'+' if offset > 0 else '-'} {number(abs(offset))}" if offset else "")


def _line(here: np.ndarray, there: np.ndarray) -> tuple[float, float] | None:
    """Scale and offset that turn one into the other but for an error of 40 dB; whole ones are (1.0, 0.0)."""
    x, y = here.ravel(), there.ravel()
    spread = float(np.var(x))
    if not spread:
        return None
    scale = float(np.mean((x - x.mean()) * (y - y.mean()))) / spread
    offset = float(y.mean() - scale * x.mean())
    rest, whole = float(np.var(y - scale * x)), float(np.var(y))
    if not scale or rest > 1e-4 * whole:
        return None
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    return scale, 0.0 if abs(offset) < 1e-3 * float(np.abs(y).max()) else offset


def _order(here: np.ndarray, there: np.ndarray) -> Sequence[int] | None:
    """The sample here that each sample there is; None where one is none of them, or all stand in their place."""
    rows, others = here.reshape(len(here), -1), there.reshape(len(there), -1)
    order = []
    for other in others:
        distances = np.square(rows - other).sum(1)
        nearest = int(np.argmin(distances))
        if distances[nearest] > 1e-4 * float(np.square(other).sum()):
            return None
        order.append(nearest)
    return order if order != list(range(len(rows))) else None
