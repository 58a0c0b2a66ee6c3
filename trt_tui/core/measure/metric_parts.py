"""The parts of a metric, such as one for each class, side by side: what each loses, the worst first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricPartRow:
    """One part of a metric.

    Attributes:
        part_name: Its name.
        reference_value: In FP32.
        run_values: In each run, None where the run has none.
        max_drop: By how much the worst run is below FP32; negative if every run is above. None if no run has it.
    """

    part_name: str
    reference_value: float
    run_values: tuple[float | None, ...]
    max_drop: float | None


def metric_part_rows(reference_metric: Mapping[str, float],
                     run_metrics: Sequence[Mapping[str, float]]) -> list[MetricPartRow]:
    """The headline, then the parts by the drop of the worst run, the largest first.

    Args:
        reference_metric: The metric and its parts in FP32, the headline first.
        run_metrics: The same of each run; what a run lacks was not measured there.
    """
    rows = []
    for name, base in reference_metric.items():
        run_values = tuple(run.get(name) for run in run_metrics)
        drops = [base - figure for figure in run_values if figure is not None]
        rows.append(MetricPartRow(name, base, run_values, max(drops) if drops else None))
    return rows[:1] + sorted(rows[1:], key=lambda row: -row.max_drop if row.max_drop is not None else float("inf"))
