"""From all groups in the higher precision downwards: each in turn is lowered, and what cannot be sticks to it.

`scoped` takes the groups in network order. Source: eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze).
If the similarity at the judged outputs falls below the threshold, the layer is raised again for good, else it stays
lowered. Early layers use up what the tolerance allows, so late layers tend to stick. `lower` takes first what saves
most time.

What sticks is the result: nothing is taken back afterwards, and a start that passes as a whole is no reason to stop.
"""

from collections.abc import Sequence

from trt_tui.core.search.board import Board, LoweredLayer
from trt_tui.core.search.evaluation import Course, Trial


def scoped(board: Board) -> Course:
    """In network order; takes one evaluation for each candidate."""
    return _lowered(board, board.candidates)


def lower(board: Board) -> Course:
    """What costs most in the higher precision first; takes one evaluation for each candidate."""
    return _lowered(board, sorted(board.candidates, key=lambda name: -board.costs.get(name, 0.0)))


def _lowered(board: Board, order: Sequence[str]) -> Course:
    raised = frozenset(board.candidates)
    for name in order:
        lowered = yield Trial(raised - {name}, about=name)
        figure = lowered.judgement.figure or f"{lowered.score:+.3g}"
        board.rows.append(LoweredLayer(name, figure, not lowered.passed))
        if lowered.passed:
            raised = raised - {name}
    board.settled = raised
    return raised
