"""Layer by layer in network order: what cannot be lowered sticks to the higher precision.

Source: eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). All layers begin in the higher precision.
Each in turn is lowered; if that takes the similarity at the judged outputs below the threshold, it sticks, else it
stays low. Errors of early layers use up what the tolerance allows, so that late layers stick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.search.evaluation import Evaluation, Steps, Trial
from trt_tui.core.search.state import State

STEP = "scoped"


def scoped(state: State) -> Steps:
    """As many evaluations as there are candidates outside the base, which sticks without a try."""
    raised = frozenset(state.candidates)
    for name in state.candidates:
        if name not in state.base and (yield Trial(raised - {name}, about=name)).passed:
            raised = raised - {name}
    return raised


@dataclass(frozen=True)
class Row:
    """One line of the table: a layer that was lowered, the judged similarity then, and whether it sticks."""

    layer: str
    similarity: str
    sticks: bool


def table(evaluations: Sequence[Evaluation]) -> tuple[Row, ...]:
    """What a scoped search saw, in its order."""
    return tuple(Row(one.about, one.judgement.figure or f"{one.score:+.3g}", not one.passed)
                 for one in evaluations if one.step == STEP and one.about)


def table_text(rows: Sequence[Row], higher: str = "FP32") -> str:
    """The table in columns, with the layers that stick marked by the precision they keep."""
    if not rows:
        return ""
    name, figure = (max(len(text) for text in texts) for texts in
                    ([row.layer for row in rows] + ["layer"], [row.similarity for row in rows] + ["similarity"]))
    lines = [f"{'layer':<{name}}  {'similarity':>{figure}}  sticks to"]
    lines += [f"{row.layer:<{name}}  {row.similarity:>{figure}}  {higher if row.sticks else '-'}" for row in rows]
    return "\n".join(lines)
