"""The method when none is named."""

from __future__ import annotations

from trt_tui.core.search import bisect
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course
from trt_tui.core.search.exchange import exchange
from trt_tui.core.search.greedy import greedy


def auto(board: Board) -> Course:
    """Greedy and swaps where impacts are known, halving of the order of suspicion where that is, else of both ends.

    Behind greedy, runs of first and of last layers are tried that are one group shorter than what it found, so that no
    `bisect` of the network's order finds less (where longer runs never do worse).

    Greedy with swaps found the smallest set, or one group more, on 20 networks that brute force could search, and sets
    no larger than greedy leave-one-out on an encoder and ResNet-50 with a tenth of its evaluations or less
    (tests/benchmarks/search.py). It goes by only-this where that is measured, for the reason that `best_ranking` gives.
    """
    if board.ranking.shares:
        found = yield from greedy(board)
        found = yield from exchange(board, found)
        return (yield from bisect.shorter(board, found))
    if board.ranking.why:
        return (yield from bisect.bisect(board, board.suspects(board.base)))
    first = yield from bisect.forward(board)
    last = yield from bisect.reverse(board)
    return min(first, last, key=len)


def choice(board: Board) -> str:
    """What `auto` does, and why, in words."""
    if board.ranking.shares:
        return f"greedy with swaps, by {board.ranking.why}: it finds the smallest sets"
    if board.ranking.why:
        return f"halving, by {board.ranking.why}: no impact at the outputs is known"
    return "halving from either end of the network: nothing is known of its groups"
