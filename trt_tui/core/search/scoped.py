"""Layer by layer in network order: what cannot be lowered sticks to the higher precision.

Source: eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). All layers begin in the higher precision.
Each in turn is lowered; if that takes the similarity at the judged outputs below the threshold, it sticks, else it
stays low. Errors of early layers use up what the tolerance allows, so that late layers stick.
"""

from __future__ import annotations

from collections.abc import Sequence

from trt_tui.core.search.evaluation import Steps, Trial
from trt_tui.core.search.state import Row, State


def scoped(state: State) -> Steps:
    """As many evaluations as there are candidates outside the base, which sticks without a try."""
    raised = frozenset(state.candidates)
    for name in state.candidates:
        if name not in state.base:
            lowered = yield Trial(raised - {name}, about=name)
            state.rows.append(Row(name, lowered.judgement.figure or f"{lowered.score:+.3g}", not lowered.passed))
            if lowered.passed:
                raised = raised - {name}
    return raised


def table_text(rows: Sequence[Row], higher: str = "FP32") -> str:
    """The table in columns, with the layers that stick marked by the precision they keep."""
    if not rows:
        return ""
    name, figure = (max(len(text) for text in texts) for texts in
                    ([row.layer for row in rows] + ["layer"], [row.similarity for row in rows] + ["similarity"]))
    lines = [f"{'layer':<{name}}  {'similarity':>{figure}}  sticks to"]
    lines += [f"{row.layer:<{name}}  {row.similarity:>{figure}}  {higher if row.sticks else '-'}" for row in rows]
    return "\n".join(lines)
