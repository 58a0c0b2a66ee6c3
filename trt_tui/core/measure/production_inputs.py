"""The comparison of the inputs that production dumped with the inputs used here, with explanations of differences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.formatting import add_decibel_unit, number_text

MIN_SAME_INPUT_DB = 60.0
"""The minimum SQNR at which two inputs count as equal. Casts and codecs of FP32 have a higher one."""

_IDENTITY_FIT = (1.0, 0.0)
"""The scale and offset of inputs that differ only by noise."""

_MAX_EXPLAINED_ELEMENTS = 1 << 20
"""The maximum number of elements from which an explanation is sought."""


@dataclass(frozen=True)
class InputDifference:
    """The difference between an input tensor in production and the same input here.

    Attributes:
        description: The difference in words, with an explanation if there is one.
    """

    input_name: str
    errors: ErrorMetrics
    description: str

    @property
    def is_equal_except_rounding(self) -> bool:
        """True if both inputs are equal except for rounding."""
        errors = self.errors
        return errors.exact or errors.sqnr_db is not None and errors.sqnr_db >= MIN_SAME_INPUT_DB


def compare_input_over_feeds(input_name: str, array_pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> InputDifference:
    """Compares a local input with the input in production, over all feeds.

    Args:
        array_pairs: For each feed, the local array and the array in production, of the same shape.
    """
    sums = ErrorSums()
    first: list[tuple[np.ndarray, np.ndarray]] = []
    held_elements = 0
    for local, production in array_pairs:
        sums.add_tensor_pair(local, production)
        if held_elements < _MAX_EXPLAINED_ELEMENTS:
            first.append((np.array(local, np.float64), np.array(production, np.float64)))
            held_elements += local.size
    errors = sums.compute_error_metrics()
    figure = add_decibel_unit(errors.sqnr_text(""))
    difference = InputDifference(input_name, errors, f"{input_name} is the same ({figure})")
    if difference.is_equal_except_rounding:
        return difference
    sides = [np.concatenate(side) for side in zip(*first, strict=True)]
    if sides and _fit_scale_and_offset(*sides) == _IDENTITY_FIT:
        return InputDifference(input_name, errors,
                               f"{input_name} differs by {figure}, as after another resize, decoder or type")
    explanation = explain_input_difference(*sides) if sides else ""
    return InputDifference(input_name, errors,
                           f"{input_name} differs ({figure}){f': {explanation}' if explanation else ''}")


def explain_input_difference(local_array: np.ndarray, production_array: np.ndarray) -> str:
    """Returns an explanation why an input differs in production, such as a scale or swapped channels; "" if there is
    none.

    The possible transformations are a scale and an offset, channels in another order, an axis mirrored or swapped, and
    samples in another order.

    Args:
        local_array, production_array: Arrays of the same shape, first axis samples.
    """
    if local_array.size == 0 or not (np.isfinite(local_array).all() and np.isfinite(production_array).all()):
        return "production has NaN or Inf" if local_array.size else ""
    if (fit := _fit_scale_and_offset(local_array, production_array)) and fit != _IDENTITY_FIT:
        return f"there it is {_linear_formula_text(*fit)}"
    for axis in range(1, local_array.ndim):
        if 2 <= local_array.shape[axis] <= 4:
            turned = np.flip(local_array, axis)
            if _fit_scale_and_offset(turned, production_array) == _IDENTITY_FIT:
                return f"its channels (axis {axis}) are in reverse order, as RGB and BGR are"
            channel_fits = [
                _fit_scale_and_offset(np.take(local_array, index, axis), np.take(production_array, index, axis))
                for index in range(local_array.shape[axis])
            ]
            if all(channel_fits) and any(fit_of_channel != _IDENTITY_FIT for fit_of_channel in channel_fits):
                lines = "; ".join(f"channel {index} is {_linear_formula_text(*fit_of_channel)}"
                                  for index, fit_of_channel in enumerate(channel_fits)
                                  if fit_of_channel)
                return f"different normalisation: there {lines}"
    if local_array.ndim == 4 and local_array.shape[2] == local_array.shape[3] and _fit_scale_and_offset(
            local_array.swapaxes(2, 3), production_array) == _IDENTITY_FIT:
        return "height and width are swapped"
    for axis in range(1, local_array.ndim):
        if local_array.shape[axis] > 4 and _fit_scale_and_offset(np.flip(local_array, axis),
                                                                 production_array) == _IDENTITY_FIT:
            return f"it is mirrored along axis {axis}"
    if len(local_array) > 1 and (order := _find_sample_order(local_array, production_array)) is not None:
        return f"the samples are in another order: there {', '.join(map(str, order[:5]))}, … of those here"
    return ""


def _linear_formula_text(scale: float, offset: float) -> str:
    text = f"{number_text(scale)} times this" if scale != 1 else "this"
    return text + (f" {'+' if offset > 0 else '-'} {number_text(abs(offset))}" if offset else "")


def _fit_scale_and_offset(local_array: np.ndarray, production_array: np.ndarray) -> tuple[float, float] | None:
    """Fits a scale and an offset that convert one array into another; None if the result has less than 40 dB.

    Equal arrays have (1.0, 0.0).
    """
    local_values, production_values = local_array.ravel(), production_array.ravel()
    spread = float(np.var(local_values))
    if not spread:
        return None
    scale = float(np.mean((local_values - local_values.mean()) *
                          (production_values - production_values.mean()))) / spread
    offset = float(production_values.mean() - scale * local_values.mean())
    rest, whole = float(np.var(production_values - scale * local_values)), float(np.var(production_values))
    if not scale or rest > 1e-4 * whole:
        return None
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    return scale, 0.0 if abs(offset) < 1e-3 * float(np.abs(production_values).max()) else offset


def _find_sample_order(local_array: np.ndarray, production_array: np.ndarray) -> Sequence[int] | None:
    """Returns the order of the local samples in which production has them; None if a sample has no equal.

    Also None if all samples are in the same order.
    """
    rows, production_rows = local_array.reshape(len(local_array),
                                                -1), production_array.reshape(len(production_array), -1)
    order = []
    for production_row in production_rows:
        distances = np.square(rows - production_row).sum(1)
        nearest = int(np.argmin(distances))
        if distances[nearest] > 1e-4 * float(np.square(production_row).sum()):
            return None
        order.append(nearest)
    return order if order != list(range(len(rows))) else None
