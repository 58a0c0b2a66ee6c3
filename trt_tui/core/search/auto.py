"""The method that is used when none is named."""

from trt_tui.core.search import bisect
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course
from trt_tui.core.search.exchange import exchange
from trt_tui.core.search.greedy import greedy


def auto(board: Board) -> Course:
    """Chooses a method by what was measured of the groups.

    With impacts: greedy, then swaps. With a ranking only: halving of the ranked order. With neither: halving from both
    ends of the network, of which the smaller set is taken.

    After greedy and swaps, the first and the last layers are tried too, with one group fewer than was found. `bisect`
    alone therefore never finds a smaller set (as long as raising more groups never does harm).

    On 20 networks small enough for brute force, greedy with swaps found the smallest set, or one with one group more.
    On an encoder and on ResNet-50 its sets were no larger than those of greedy leave-one-out, with at most a tenth of
    the evaluations (tests/benchmarks/search.py). `best_ranking` says which ranking it uses, and why.
    """
    if board.ranking.shares:
        found = yield from greedy(board)
        found = yield from exchange(board, found)
        return (yield from bisect.shorter(board, found))
    if board.ranking.why:
        return (yield from bisect.bisect(board, board.suspects()))
    first = yield from bisect.forward(board)
    last = yield from bisect.reverse(board)
    return min(first, last, key=len)


def choice(board: Board) -> str:
    """What `auto` does and why, as a sentence."""
    if board.ranking.shares:
        return f"greedy with swaps, by {board.ranking.why}"
    if board.ranking.why:
        return f"halving, by {board.ranking.why}: no impact on the outputs is known"
    return "halving from both ends of the network: nothing is known about its groups"
