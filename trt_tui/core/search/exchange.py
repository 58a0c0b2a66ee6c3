"""Replaces two raised groups by one other, as long as the result passes.

Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
weighted graph", 1968), here two for one, since only a smaller set is an improvement. The two that are given up are
those whose loss costs least. Other groups take their place in the order of suspicion, as long as one can be expected to
make up for the more costly of the two.
"""

from collections.abc import Generator
from itertools import combinations

from trt_tui.core.search.evaluation import Evaluation, Strategy, Trial
from trt_tui.core.search.revert import revert_unneeded_groups
from trt_tui.core.search.strategy_context import StrategyContext

MAX_SWAPPED_PAIRS = 2
MAX_SWAP_CANDIDATES = 8
"""How many pairs of raised groups, and how many other groups for each, are tried before it gives up."""

GAIN_MARGIN = 1.5
"""A group may gain this many times what is expected of it: below that it is not tried."""


def swap_raised_groups(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Starts from a set that passes; takes at most 16 evaluations and a `revert_unneeded_groups` pass for each group
    that it saves."""
    smaller: frozenset[str] | None = raised_groups
    while smaller is not None:
        raised_groups = yield from revert_unneeded_groups(context, smaller)
        smaller = yield from _find_smaller_set_by_swap(context, raised_groups)
    return raised_groups


def _find_smaller_set_by_swap(context: StrategyContext,
                              raised_groups: frozenset[str]) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """A set that passes with one group less; None if none was found."""
    now, cost = (yield Trial(raised_groups)), {}
    for name in context.candidates:
        if name in raised_groups:
            cost[name] = (yield Trial(raised_groups - {name}, group=name)).comparable_loss - now.comparable_loss
    pairs = sorted(combinations(sorted(cost, key=lambda name: cost[name])[:MAX_SWAPPED_PAIRS + 1], 2),
                   key=lambda pair: cost[pair[0]] + cost[pair[1]])
    for pair in pairs[:MAX_SWAPPED_PAIRS]:
        for name in context.order_candidates_by_suspicion(raised_groups)[:MAX_SWAP_CANDIDATES]:
            if GAIN_MARGIN * context.expected_loss_reduction(name, now) < max(cost[member] for member in pair):
                break
            tried = raised_groups.difference(pair) | {name}
            if context.is_within_budget(tried) and (yield Trial(tried, group=name)).passes:
                return tried
    return None
