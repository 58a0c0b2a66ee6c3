"""The method when none is named."""

from __future__ import annotations

from trt_tui.core.search import bisect
from trt_tui.core.search.evaluation import Steps
from trt_tui.core.search.exchange import exchange
from trt_tui.core.search.greedy import greedy
from trt_tui.core.search.state import State


def auto(state: State) -> Steps:
    """Greedy and swaps where impacts are known, halving of the order of suspicion where that is, else of both ends.

    Behind greedy, runs of first and of last layers are tried that are one group shorter than what it found, so that no
    `bisect` of the network's order finds less (where longer runs never do worse).

    Greedy with swaps found the smallest set, or one group more, on 20 networks that brute force could search, and sets
    no larger than greedy leave-one-out on an encoder and ResNet-50 with a tenth of its evaluations or less
    (tests/benchmarks/search.py). It goes by only-this where that is measured, for the reason that `best_ranking` gives.
    """
    if state.ranking.shares:
        found = yield from greedy(state)
        found = yield from exchange(state, found)
        return (yield from bisect.shorter(state, found))
    if state.ranking.why:
        return (yield from bisect.bisect(state, state.suspects(state.base)))
    first = yield from bisect.forward(state)
    last = yield from bisect.reverse(state)
    return min(first, last, key=len)


def choice(state: State) -> str:
    """What `auto` does, and why, in words."""
    if state.ranking.shares:
        return f"greedy with swaps, by {state.ranking.why}: it finds the smallest sets"
    if state.ranking.why:
        return f"halving, by {state.ranking.why}: no impact at the outputs is known"
    return "halving from either end of the network: nothing is known of its groups"
