"""The choice of scales and of the rounding of a weight by the error of the layer's output.

The error of one output channel is ``d H d^T``, with the errors d of its weights and the sums H of products of two
inputs over samples. The output channels are therefore independent, and no sample is needed once H is known.

Sources: Frantar et al., "GPTQ" (ICLR 2023), with columns in their order and symmetric scales that are fixed before;
Hassibi et al., "Optimal Brain Surgeon and General Network Pruning" (1993), for the update of the weights that are not
rounded yet.

All arrays have a first axis for the groups of a grouped Conv; other layers have one group.
"""

from collections.abc import Callable, Sequence

import numpy as np

from trt_tui.core.quantized_types import QuantizedType

DAMPING = 0.01
"""The share of the mean diagonal of H that is added to its diagonal. It bounds the condition of H."""

COLUMNS_PER_BLOCK = 64
"""The number of columns after which the errors are applied to all later columns in one product."""

RANGE_FACTORS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.7)
"""The factors of a scale that are tried, the largest weight first."""


def measure_row_errors(differences: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Returns the squared error at the output for each output channel, float64 ``(groups, rows)``.

    Args:
        differences: The errors of the weights ``(groups, rows, columns)``.
        products: The sums of products of two inputs ``(groups, columns, columns)``.
    """
    errors = differences @ products
    errors *= differences
    sums: np.ndarray = errors.sum(axis=-1, dtype=np.float64)
    return sums


def invert_to_upper_factor(products: np.ndarray) -> np.ndarray:
    """Returns the upper triangular U with ``U^T U = H^-1`` of damped products, float64.

    With H in reversed order equal to ``L L^T``, the reversed L is the inverse of U.

    Args:
        products: Of shape ``(groups, columns, columns)``; not all 0.
    """
    damped = products.astype(np.float64)
    columns = damped.shape[-1]
    diagonal = np.arange(columns)
    means = damped[:, diagonal, diagonal].mean(axis=1, keepdims=True)
    damped[:, diagonal, diagonal] += np.where(means > 0, DAMPING * means, 1.0)
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return _invert_lower_triangle(lower)[:, ::-1, ::-1]


_TRIANGLE_SIZE = 128
"""The size up to which a triangle is inverted as any matrix."""


def _invert_lower_triangle(lower: np.ndarray) -> np.ndarray:
    """Returns the inverse of lower triangular matrices, by halves."""
    size = lower.shape[-1]
    if size <= _TRIANGLE_SIZE:
        return np.tril(np.linalg.inv(lower))
    half = size // 2
    result = np.zeros_like(lower)
    result[:, :half, :half] = first = _invert_lower_triangle(lower[:, :half, :half])
    result[:, half:, half:] = second = _invert_lower_triangle(lower[:, half:, half:])
    result[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return result


def round_by_output_error(weight: np.ndarray, steps: np.ndarray, products: np.ndarray, quantized_type: QuantizedType,
                          on_progress: Callable[[], None] = lambda: None) -> np.ndarray:
    """Returns quantized values ``(groups, rows, columns)``, float32, rounded by GPTQ.

    Args:
        weight: The weights ``(groups, rows, columns)``.
        steps: The scale of each weight, in the same shape.
        products: The sums of products of two inputs ``(groups, columns, columns)``.
        on_progress: A callback between blocks. An exception from it ends the computation.
    """
    upper = invert_to_upper_factor(products).astype(np.float32)
    remaining = np.array(weight.swapaxes(1, 2), np.float32, order="C")  # a copy (groups, columns, rows)
    column_steps = steps.swapaxes(1, 2)
    result = np.empty_like(remaining)
    columns = remaining.shape[1]
    for start in range(0, columns, COLUMNS_PER_BLOCK):
        on_progress()
        stop = min(start + COLUMNS_PER_BLOCK, columns)
        errors = np.empty_like(remaining[:, start:stop])
        for column in range(start, stop):
            values, step = remaining[:, column], column_steps[:, column]
            result[:, column] = quantized_type.quantize(values / step)
            error = (values - result[:, column] * step) / upper[:, column, column, None]
            errors[:, column - start] = error
            if column + 1 < stop:
                remaining[:, column + 1:stop] -= upper[:, column, column + 1:stop, None] * error[:, None]
        if stop < columns:
            remaining[:, stop:] -= upper[:, start:stop, stop:].swapaxes(1, 2) @ errors
    return np.ascontiguousarray(result.swapaxes(1, 2))


def choose_scale_factors(weight: np.ndarray, steps: np.ndarray, products: np.ndarray, quantized_type: QuantizedType,
                         segments: Sequence[slice], round_steps: Callable[[np.ndarray], np.ndarray],
                         on_progress: Callable[[], None] = lambda: None) -> np.ndarray:
    """Returns the factor of `RANGE_FACTORS` for each scale with the smallest output error ``(groups, rows, segments)``.

    Each factor is chosen by the error of the columns of its scale alone. A row keeps its scales if all chosen factors
    together increase its error.

    Args:
        weight, steps, products: As for `round_by_output_error`.
        segments: The columns that share a scale: all of them, or one slice for each block.
        round_steps: A function that rounds scales to the type in which they are stored.
    """
    best_errors = np.full((*weight.shape[:2], len(segments)), np.inf)
    best_factors = np.ones(best_errors.shape, np.float32)
    for factor in RANGE_FACTORS:
        on_progress()
        candidate_steps = round_steps(steps * np.float32(factor))
        differences = weight - quantized_type.quantize(weight / candidate_steps) * candidate_steps
        for index, columns in enumerate(segments):
            errors = measure_row_errors(differences[..., columns], products[:, columns, columns])
            better = errors < best_errors[..., index]
            best_errors[..., index] = np.where(better, errors, best_errors[..., index])
            best_factors[..., index] = np.where(better, np.float32(factor), best_factors[..., index])
    if len(segments) > 1:
        loses = measure_row_errors(_nearest_errors(weight, round_steps(steps * spread_factors(best_factors, segments)),
                                                   quantized_type), products) >= measure_row_errors(
                                                       _nearest_errors(weight, steps, quantized_type), products)
        best_factors[loses] = 1
    return best_factors


def spread_factors(factors: np.ndarray, segments: Sequence[slice]) -> np.ndarray:
    """Returns the factors of scales ``(groups, rows, segments)`` for each column ``(groups, rows, columns)``."""
    return np.repeat(factors, [columns.stop - columns.start for columns in segments], axis=2)


def _nearest_errors(weight: np.ndarray, steps: np.ndarray, quantized_type: QuantizedType) -> np.ndarray:
    errors: np.ndarray = weight - quantized_type.quantize(weight / steps) * steps
    return errors
