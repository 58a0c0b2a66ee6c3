"""Figures of whole arrays and of every group, as tests and benchmarks take them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.core.measure.group_sweep import (
    GroupSensitivity,
    GroupSweep,
    error_share_from_sweep,
    sensitivity_from_sweep,
)
from trt_tui.core.measure.results import Accuracy, ErrorShare, OutputErrors
from trt_tui.core.moves.config import PrecisionConfig


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
    analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *, owns: bool = True, **options: Any
) -> dict[str, GroupSensitivity]:
    """Each group lowered alone, and before that raised.

    Args:
        owns: Whether all-but-this is measured too; only-this, by which a search ranks, takes half the runs.
    """
    shares = measure_shares(analysis, config, ranges, **options) if owns else {}
    sweep = GroupSweep(analysis, config, ranges, reduces_groups=True, **options)
    return _figures(sweep, lambda name: sensitivity_from_sweep(sweep, name, shares.get(name)))


def _figures(sweep: GroupSweep, told: Callable[[str], ErrorShare]) -> dict[str, ErrorShare]:
    found = {}
    for _ in sweep.measure_groups():
        found |= {name: told(name) for name in sweep.updated_groups}
        sweep.updated_groups.clear()
    return found | {name: told(name) for name in sweep.updated_groups}
