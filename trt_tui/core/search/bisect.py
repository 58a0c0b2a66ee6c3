"""The shortest prefix of an order that passes, found by halving.

Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``reverse``), which takes the layers in
network order. The result is exact if every prefix longer than a passing one passes too.
"""

from __future__ import annotations

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
        evaluation = yield Trial(board.base.union(order[:middle]))
        if evaluation.passed:
            passes = middle
        else:
            fails = middle
    return board.base.union(order[:passes])


def forward(board: Board) -> Course:
    """The fewest first layers that pass."""
    return bisect(board, _outside(board))


def reverse(board: Board) -> Course:
    """The fewest last layers that pass."""
    return bisect(board, _outside(board)[::-1])


def shorter(board: Board, found: frozenset[str]) -> Course:
    """``found``, or fewer first or last layers if those pass; takes 2 evaluations if they do not."""
    outside = _outside(board)
    for order in (outside, outside[::-1]):
        fewer = order[:max(0, len(found) - len(board.base) - 1)]
        if fewer and (yield Trial(board.base.union(fewer))).passed:
            found = yield from bisect(board, fewer)
    return found


def _outside(board: Board) -> list[str]:
    return [name for name in board.candidates if name not in board.base]
