"""Takes back raised groups that are not needed: the pass after every strategy.

Source: backward elimination, the second half of forward-backward selection (Zhang, "Adaptive forward-backward greedy
algorithm", NIPS 2008). First it finds by halving how many of the least suspicious groups can be taken back together,
then it tries each of the others alone, the least suspicious first. If a larger set of raised groups never does worse,
no single group of the result can be taken back.
"""

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Trial


def revert(board: Board, found: frozenset[str]) -> Course:
    """Takes at most ceil(log2(k)) + k evaluations for a set of k groups that passes."""
    order = [name for name in reversed(board.suspects()) if name in found]
    passes, fails = 0, len(order)  # how many of the first can go together; all of them is the start, which fails
    while fails - passes > 1:
        middle = (passes + fails) // 2
        about = order[0] if middle == 1 else ""
        if (yield Trial(found.difference(order[:middle]), about=about)).passed:
            passes = middle
        else:
            fails = middle
    raised = found.difference(order[:passes])
    for name in order[passes:]:
        if (len(raised) > 1 or board.ranges or board.free) and (yield Trial(raised - {name}, about=name)).passed:
            raised = raised - {name}
    return raised
