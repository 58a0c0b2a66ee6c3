"""The shortest prefix of an order that passes, found by halving.

Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``reverse``), which takes the layers in
network order. The result is exact if every prefix longer than a passing one passes too.
"""

from collections.abc import Sequence

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Trial


def bisect(board: Board, order: Sequence[str]) -> Course:
    """Halves an order; takes at most ceil(log2(n + 1)) evaluations.

    Raising all of ``order`` must be known to pass, and raising none of it to fail.
    """
    fails, passes = 0, len(order)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        evaluation = yield Trial(frozenset(order[:middle]))
        if evaluation.passed:
            passes = middle
        else:
            fails = middle
    return frozenset(order[:passes])


def forward(board: Board) -> Course:
    """The fewest first layers that pass."""
    return bisect(board, board.candidates)


def reverse(board: Board) -> Course:
    """The fewest last layers that pass."""
    return bisect(board, board.candidates[::-1])


def shorter(board: Board, found: frozenset[str]) -> Course:
    """``found``, or fewer first or last layers if those pass; takes 2 evaluations if they do not."""
    for order in (board.candidates, board.candidates[::-1]):
        fewer = order[:max(0, len(found) - 1)]
        if fewer and (yield Trial(frozenset(fewer))).passed:
            found = yield from bisect(board, fewer)
    return found
