"""Figures of whole arrays and of every group, as tests and benchmarks take them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.core.measure.group_sweep import (
    GroupSweep,
    error_share_from_sweep,
    sensitivity_from_sweep,
)
from trt_tui.core.measure.results import Accuracy, ErrorShare, OutputErrors
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig

T = TypeVar("T")


def verdict(sqnr_db: float | None, cosine: float | None = 1.0, samples: int = 8, total: int = 8) -> Accuracy:
    """One of an output ``y`` alone."""
    return Accuracy({"y": OutputErrors(ErrorMetrics(sqnr_db, cosine))}, samples=samples, total=total)


def errors_between(reference: np.ndarray, test: np.ndarray) -> ErrorMetrics:
    """Metrics of one pair of float arrays of one shape."""
    sums = ErrorSums()
    sums.add_tensor_pair(reference, test)
    return sums.compute_error_metrics()


def measure_shares(
    analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], **options: Any
) -> dict[str, ErrorShare]:
    """What groups own of the judged error, in the order in which it is told; ``options`` are those of `GroupSweep`."""
    sweep = GroupSweep(analysis, config, ranges, **options)
    return _figures(sweep, lambda name: error_share_from_sweep(sweep, name))


def measure_impacts(
    analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], **options: Any
) -> dict[str, float]:
    """Each group lowered alone."""
    sweep = GroupSweep(analysis, config, ranges, reduces_groups=True, **options)
    return _figures(sweep, lambda name: sensitivity_from_sweep(sweep, name))


def _figures(sweep: GroupSweep, told: Callable[[str], T]) -> dict[str, T]:
    found = {}
    for _ in sweep.measure_groups():
        found |= {name: told(name) for name in sweep.updated_groups}
        sweep.updated_groups.clear()
    return found | {name: told(name) for name in sweep.updated_groups}
