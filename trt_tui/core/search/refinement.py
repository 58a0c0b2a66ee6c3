"""Passes after a strategy: unneeded groups are reverted, pairs exchanged, intermediate precisions assigned."""

from collections.abc import Generator
from itertools import combinations

from trt_tui.core.precision import Precision
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import Evaluation, Strategy, StrategyContext, Trial

MAX_SWAPPED_PAIRS = 2
MAX_SWAP_CANDIDATES = 8
"""How many pairs of raised groups, and how many other groups for each, are tried before it gives up."""

GAIN_MARGIN = 1.5
"""A group may gain this many times what is expected of it: below that it is not tried."""


def revert_unneeded_groups(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Takes at most ceil(log2(k)) + k evaluations for a set of k groups that passes.

    Source: backward elimination, the second half of forward-backward selection (Zhang, "Adaptive forward-backward
    greedy algorithm", NIPS 2008). First it finds by halving how many of the least suspicious groups can be taken back
    together, then it tries each of the others alone, the least suspicious first. If a larger set of raised groups never
    does worse, no single group of the result can be taken back.
    """
    order = [name for name in reversed(context.order_candidates_by_suspicion()) if name in raised_groups]
    passes, fails = 0, len(order)  # how many of the first can go together; all of them is the start, which fails
    while fails - passes > 1:
        middle = (passes + fails) // 2
        about = order[0] if middle == 1 else ""
        if (yield Trial(raised_groups.difference(order[:middle]), group=about)).passes:
            passes = middle
        else:
            fails = middle
    raised = raised_groups.difference(order[:passes])
    for name in order[passes:]:
        if (len(raised) > 1 or context.chosen_ranges or context.zero_cost_sets) and (yield Trial(
                raised - {name}, group=name)).passes:
            raised = raised - {name}
    return raised


def swap_raised_groups(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Starts from a set that passes; takes at most 16 evaluations and a `revert_unneeded_groups` pass for each group
    that it saves.

    Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
    weighted graph", 1968), here two for one, since only a smaller set is an improvement. The two that are given up are
    those whose loss costs least. Other groups take their place in the order of suspicion, as long as one can be
    expected to make up for the more costly of the two.
    """
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


def assign_intermediate_precisions(context: StrategyContext, search_space: SearchSpace,
                                   raised_groups: frozenset[str]) -> Generator[Trial, Evaluation, dict[str, Precision]]:
    """Returns the rungs in between, by group; at most ceil(log2(k + 1)) + k evaluations a rung for k groups, one for
    TF32.

    Which groups have to be raised at all is settled first, with the highest rung; then each rung in between, the lowest
    first, takes the least suspicious of them: as many as can go together, found by halving, then each of the others
    alone. TF32 takes all that are left or none: it is a setting of the whole engine.
    """
    settled: dict[str, Precision] = {}
    for precision in search_space.intermediate:
        if precision is Precision.TF32:
            rest = dict.fromkeys(search_space.sort_candidates_in_network_order(raised_groups - settled.keys()),
                                 precision)
            if any(search_space.network.get_group(name).qdq_sites_of_multiplied_inputs() for name in rest) \
                    and (yield Trial(raised_groups, precisions={**settled, **rest})).passes:
                settled |= rest
            continue
        candidates = [
            name for name in reversed(context.order_candidates_by_suspicion())
            if name in raised_groups - settled.keys() and precision in search_space.intermediate_precisions(name)
        ]
        passes, fails = 0, len(candidates) + 1  # how many of the first can go together
        middle = len(candidates)
        while fails - passes > 1:
            precisions = {**settled, **dict.fromkeys(candidates[:middle], precision)}
            if (yield Trial(raised_groups, precisions=precisions, group=candidates[0] if middle == 1 else "")).passes:
                passes = middle
            else:
                fails = middle
            middle = (passes + fails) // 2
        settled |= dict.fromkeys(candidates[:passes], precision)
        for name in candidates[passes + 1:]:  # the first one after them fails, as the halving ended on it
            if (yield Trial(raised_groups, precisions={**settled, name: precision}, group=name)).passes:
                settled[name] = precision
    return settled
