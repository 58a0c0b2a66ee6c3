"""Layer by layer in network order: what cannot be lowered sticks to the higher precision.

Source: eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). All layers begin in the higher precision.
Each in turn is lowered; if that takes the similarity at the judged outputs below the threshold, it sticks, else it
stays low. Errors of early layers use up what the tolerance allows, so that late layers stick.
"""

from __future__ import annotations

from collections.abc import Sequence

from trt_tui.core.search.board import Board, LoweredLayer
from trt_tui.core.search.evaluation import Course, Trial


def scoped(board: Board) -> Course:
    """As many evaluations as there are candidates outside the base, which sticks without a try."""
    raised = frozenset(board.candidates)
    for name in board.candidates:
        if name not in board.base:
            lowered = yield Trial(raised - {name}, about=name)
            figure = lowered.judgement.figure or f"{lowered.score:+.3g}"
            board.rows.append(LoweredLayer(name, figure, not lowered.passed))
            if lowered.passed:
                raised = raised - {name}
    return raised


def table_rows(rows: Sequence[LoweredLayer], higher: str = "FP32") -> list[tuple[str, str, str]]:
    """The table's rows, a header first; layers that stick are marked by the precision they keep."""
    return [("layer", "similarity", "sticks to"),
            *((row.layer, row.similarity, higher if row.sticks else "-") for row in rows)]
