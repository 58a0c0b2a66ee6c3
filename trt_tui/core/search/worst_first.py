"""The layers with the worst errors, one more at a time.

Source: the ``worst-first`` mode that Polygraphy's precision tool once had. Layers are compared with FP32 one by one and
raised in the order of their errors until the network passes. Here the order is the caller's ranking, which stays the
same throughout.
"""

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course
from trt_tui.core.search.linear import linear


def worst_first(board: Board) -> Course:
    """Takes one evaluation for each group that it raises."""
    return linear(board, board.suspects())
