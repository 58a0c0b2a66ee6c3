"""Replaces two raised groups by one other, as long as the result passes.

Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
weighted graph", 1968), here two for one, since only a smaller set is an improvement. The two that are given up are
those whose loss costs least. Other groups take their place in the order of suspicion, as long as one can be expected to
make up for the more costly of the two.
"""

from collections.abc import Generator
from itertools import combinations

from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Evaluation, Trial
from trt_tui.core.search.revert import revert

PAIRS = 2
OUTSIDERS = 8
"""How many pairs of raised groups, and how many other groups for each, are tried before it gives up."""

HOPE = 1.5
"""A group may gain this many times what is expected of it: below that it is not tried."""


def exchange(board: Board, found: frozenset[str]) -> Course:
    """Starts from a set that passes; takes at most 16 evaluations and a `revert` pass for each group that it saves."""
    smaller: frozenset[str] | None = found
    while smaller is not None:
        found = yield from revert(board, smaller)
        smaller = yield from _swap(board, found)
    return found


def _swap(board: Board, found: frozenset[str]) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """A set that passes with one group less; None if none was found."""
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
