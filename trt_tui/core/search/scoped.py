"""Lowers layer by layer in network order; what cannot be lowered keeps the higher precision.

Source: eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). All layers start in the higher precision.
Each in turn is lowered. If the similarity at the judged outputs then falls below the threshold, the layer is raised
again for good, else it stays lowered. Early layers use up what the tolerance allows, so late layers tend to be raised.
"""

from __future__ import annotations

from collections.abc import Sequence

from trt_tui.core.search.board import Board, LoweredLayer
from trt_tui.core.search.evaluation import Course, Trial


def scoped(board: Board) -> Course:
    """Takes one evaluation for each candidate."""
    raised = frozenset(board.candidates)
    for name in board.candidates:
        lowered = yield Trial(raised - {name}, about=name)
        figure = lowered.judgement.figure or f"{lowered.score:+.3g}"
        board.rows.append(LoweredLayer(name, figure, not lowered.passed))
        if lowered.passed:
            raised = raised - {name}
    return raised


def table_rows(rows: Sequence[LoweredLayer], higher: str = "FP32") -> list[tuple[str, str, str]]:
    """The table's rows, the header first; a layer that sticks shows the precision that it keeps."""
    return [("layer", "similarity", "sticks to"),
            *((row.layer, row.similarity, higher if row.sticks else "-") for row in rows)]
