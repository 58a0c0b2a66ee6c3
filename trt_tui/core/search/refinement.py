"""The passes after a search strategy, which reduce the set of raised groups and assign intermediate precisions."""

from collections.abc import Generator
from itertools import combinations

from trt_tui.core.precision import Precision
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import Evaluation, Strategy, StrategyContext, Trial

MAX_SWAPPED_PAIRS = 2
MAX_SWAP_CANDIDATES = 8
"""The maximum number of pairs of raised groups that are tried, and of replacement groups for each pair."""

GAIN_MARGIN = 1.5
"""The factor by which the gain of a group may exceed its expectation. A group is not tried in a swap if even such a
gain would be too small."""


def revert_unneeded_groups(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Returns raised fusion groups to their lower precision if the tolerance is still met without them.

    The pass takes at most ceil(log2(k)) + k evaluations for a passing set of k groups. Source: backward elimination,
    the second half of forward-backward selection (Zhang, "Adaptive forward-backward greedy algorithm", NIPS 2008).

    First, bisection finds how many of the least suspicious groups can be reverted together. Then each remaining group
    is tried alone, the least suspicious first. If a larger set of raised groups never has a larger error, no single
    group of the result can be reverted.
    """
    order = [name for name in reversed(context.order_candidates_by_suspicion()) if name in raised_groups]
    passes, fails = 0, len(order)  # bounds of how many can be reverted together; all is the start, which fails
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
    """Replaces two raised fusion groups by one other, as often as the tolerance is still met.

    The start must be a set that passes. An exchange takes at most 16 evaluations and a `revert_unneeded_groups` pass.

    Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
    weighted graph", 1968). The groups with the smallest loss are reverted. Other groups replace them in the order of
    suspicion. A swap is tried only if the expected gain compensates for the more costly of the groups that it reverts.
    """
    smaller: frozenset[str] | None = raised_groups
    while smaller is not None:
        raised_groups = yield from revert_unneeded_groups(context, smaller)
        smaller = yield from _find_smaller_set_by_swap(context, raised_groups)
    return raised_groups


def _measure_revert_losses(context: StrategyContext, raised_groups: frozenset[str],
                           now: Evaluation) -> Generator[Trial, Evaluation, dict[str, float]]:
    """Returns the increase of the loss if a raised group alone is reverted, by group in network order."""
    losses = {}
    for name in context.candidates:
        if name in raised_groups:
            losses[name] = (yield Trial(raised_groups - {name}, group=name)).comparable_loss - now.comparable_loss
    return losses


def _find_smaller_set_by_swap(context: StrategyContext,
                              raised_groups: frozenset[str]) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """Returns a set that meets the tolerance and in which one new group replaces two; None if no such set is found."""
    now = yield Trial(raised_groups)
    losses = yield from _measure_revert_losses(context, raised_groups, now)
    pairs = sorted(combinations(sorted(losses, key=lambda name: losses[name])[:MAX_SWAPPED_PAIRS + 1], 2),
                   key=lambda pair: losses[pair[0]] + losses[pair[1]])
    for pair in pairs[:MAX_SWAPPED_PAIRS]:
        for name in context.order_candidates_by_suspicion(raised_groups)[:MAX_SWAP_CANDIDATES]:
            if GAIN_MARGIN * context.expected_loss_reduction(name, now) < max(losses[member] for member in pair):
                break
            tried = raised_groups.difference(pair) | {name}
            if context.is_within_budget(tried) and (yield Trial(tried, group=name)).passes:
                return tried
    return None


def assign_intermediate_precisions(context: StrategyContext, search_space: SearchSpace,
                                   raised_groups: frozenset[str]) -> Generator[Trial, Evaluation, dict[str, Precision]]:
    """Returns the raised fusion groups for which an intermediate precision suffices, with that precision.

    The set of raised groups is already fixed, with the highest precision. Each intermediate precision, the lowest
    first, takes as many of the least suspicious groups as can have it together, which bisection finds. Then each
    remaining group is tried alone.

    The pass takes at most ceil(log2(k + 1)) + k evaluations for each precision and k groups. TF32 takes one evaluation:
    as a setting of the whole engine it applies to all remaining groups or to none.
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
        passes, fails = 0, len(candidates) + 1  # bounds of how many can have the precision together
        middle = len(candidates)
        while fails - passes > 1:
            precisions = {**settled, **dict.fromkeys(candidates[:middle], precision)}
            if (yield Trial(raised_groups, precisions=precisions, group=candidates[0] if middle == 1 else "")).passes:
                passes = middle
            else:
                fails = middle
            middle = (passes + fails) // 2
        settled |= dict.fromkeys(candidates[:passes], precision)
        for name in candidates[passes + 1:]:  # bisection has shown that the first group behind them fails
            if (yield Trial(raised_groups, precisions={**settled, name: precision}, group=name)).passes:
                settled[name] = precision
    return settled
