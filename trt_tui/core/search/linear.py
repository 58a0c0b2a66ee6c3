"""The shortest prefix of an order that passes, found by adding one group at a time.

Source: Polygraphy's ``debug precision --mode linear`` (``--dir forward`` and ``reverse``), which takes the layers in
network order. It takes one evaluation for each group that it raises, and does not rely on larger sets doing better.
"""

from collections.abc import Sequence

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Trial


def linear(board: Board, order: Sequence[str]) -> Course:
    """Takes at most n evaluations; raising all of ``order`` must be known to pass."""
    raised: frozenset[str] = frozenset()
    for name in order:
        raised = raised | {name}
        if (yield Trial(raised, about=name)).passed:
            break
    return raised


def forward(board: Board) -> Course:
    """The first layers, one more at a time."""
    return linear(board, board.candidates)


def reverse(board: Board) -> Course:
    """The last layers, one more at a time."""
    return linear(board, board.candidates[::-1])
