"""The parts of a metric, such as one for each class, side by side: what each loses, the worst first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PartRow:
    """One part of a metric.

    Attributes:
        name: Its name.
        reference: In FP32.
        figures: In each run, None where the run has none.
        drop: By how much the worst run is below FP32; negative if every run is above. None if no run has it.
    """

    name: str
    reference: float
    figures: tuple[float | None, ...]
    drop: float | None


def part_rows(reference: Mapping[str, float], runs: Sequence[Mapping[str, float]]) -> list[PartRow]:
    """The headline, then the parts by the drop of the worst run, the largest first.

    Args:
        reference: The metric and its parts in FP32, the headline first.
        runs: The same of each run; what a run lacks was not measured there.
    """
    rows = []
    for name, base in reference.items():
        figures = tuple(run.get(name) for run in runs)
        known = [base - figure for figure in figures if figure is not None]
        rows.append(PartRow(name, base, figures, max(known) if known else None))
    return rows[:1] + sorted(rows[1:], key=lambda row: -row.drop if row.drop is not None else float("inf"))
