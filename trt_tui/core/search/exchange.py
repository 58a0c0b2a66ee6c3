"""Two members for one outsider, while that passes.

Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
weighted graph", 1968), here of two for one, since only a smaller set is better. The two are those that cost least when
they are taken back; outsiders are tried in the order of suspicion, as long as one may gain what the dearer member cost.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import combinations

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Evaluation, Trial
from trt_tui.core.search.revert import revert

PAIRS = 2
OUTSIDERS = 8
"""How many pairs of members, and how many outsiders for each, are tried before the set is taken to be the smallest."""

HOPE = 1.5
"""How many times its expected gain an outsider is trusted to gain."""


def exchange(board: Board, found: frozenset[str]) -> Course:
    """Needs a passing set; beside the `revert` passes at most 16 evaluations more for each group it saves."""
    smaller: frozenset[str] | None = found
    while smaller is not None:
        found = yield from revert(board, smaller)
        smaller = yield from _swap(board, found)
    return found


def _swap(board: Board, found: frozenset[str]) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """A passing set with one group less, or None."""
    now, cost = (yield Trial(found)), {}
    for name in board.candidates:
        if name in found:
            cost[name] = (yield Trial(found - {name}, about=name)).error - now.error
    pairs = sorted(combinations(sorted(cost, key=lambda name: cost[name])[:PAIRS + 1], 2),
                   key=lambda pair: cost[pair[0]] + cost[pair[1]])
    for pair in pairs[:PAIRS]:
        for name in board.suspects(found)[:OUTSIDERS]:
            if HOPE * board.expected(name, now) < max(cost[member] for member in pair):
                break
            tried = found.difference(pair) | {name}
            if board.fits(tried) and (yield Trial(tried, about=name)).passed:
                return tried
    return None
