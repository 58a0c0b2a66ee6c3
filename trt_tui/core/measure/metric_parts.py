"""The parts of a metric, such as one for each class, in FP32 and in several runs, sorted by their loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricPartRow:
    """One part of a metric, in FP32 and in each run.

    Attributes:
        reference_value: The value in FP32.
        run_values: The value in each run; None if the run has no such part.
        max_drop: By how much the worst run is below FP32; negative if every run is above. None if no run has the part.
    """

    part_name: str
    reference_value: float
    run_values: tuple[float | None, ...]
    max_drop: float | None


def metric_part_rows(reference_metric: Mapping[str, float],
                     run_metrics: Sequence[Mapping[str, float]]) -> list[MetricPartRow]:
    """Returns one row for each part of a metric: first the headline, then the parts, the largest drop of any run first.

    Args:
        reference_metric: The metric and its parts in FP32, the headline first.
        run_metrics: The metric and its parts in each run. A part that was not measured is absent.
    """
    rows = []
    for name, base in reference_metric.items():
        run_values = tuple(run.get(name) for run in run_metrics)
        drops = [base - figure for figure in run_values if figure is not None]
        rows.append(MetricPartRow(name, base, run_values, max(drops) if drops else None))
    return rows[:1] + sorted(rows[1:], key=lambda row: -row.max_drop if row.max_drop is not None else float("inf"))
