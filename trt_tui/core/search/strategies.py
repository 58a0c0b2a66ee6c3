"""The search strategies, which choose the fusion groups to raise.

Strategies of a prefix raise the first groups of an order, and find the smallest number that meets the tolerance.
The greedy strategy repeatedly raises the fusion group that reduces the loss most.
The default strategy, used if the user names none, combines these.
The top-down strategies start with all groups in the higher precision, and reduce one group after the other.

A group that fails the tolerance when it is reduced stays in the higher precision. `reduce_in_network_order` follows
eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). If the similarity at the judged outputs falls below
the threshold, the layer is raised again for the rest of the search. If not, the layer stays reduced. Early layers use
up the tolerance, so late layers tend to stay higher. `reduce_slowest_groups_first` begins with the group that saves
most time.

The result is the set of groups that stay higher. A start config that passes does not end the search.
"""

import math
from collections.abc import Generator, Sequence

from trt_tui.core.search.refinement import swap_raised_groups
from trt_tui.core.search.strategy_protocol import (
    Evaluation,
    ReductionStep,
    Strategy,
    StrategyContext,
    Trial,
)


def raise_growing_prefix(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    """Raises the fusion groups of an order one after the other until the tolerance is met.

    Raising all groups of ``group_order`` must be known to pass. The strategy takes one evaluation for each raised
    group, at most n. A larger set need not have a smaller error.

    Source: Polygraphy's ``debug precision --mode linear`` (``--dir forward`` and ``reverse``), which uses the network
    order.
    """
    raised: frozenset[str] = frozenset()
    for name in group_order:
        raised = raised | {name}
        if (yield Trial(raised, group=name)).passes:
            break
    return raised


def raise_from_first_layers(context: StrategyContext) -> Strategy:
    """Raises fusion groups one by one from the input of the network until the tolerance is met."""
    return raise_growing_prefix(context, context.candidates)


def raise_from_last_layers(context: StrategyContext) -> Strategy:
    """Raises fusion groups one by one from the output of the network until the tolerance is met."""
    return raise_growing_prefix(context, context.candidates[::-1])


def bisect_raised_prefix(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    """Finds by bisection how many fusion groups at the start of an order must be raised to meet the tolerance.

    Raising all of ``group_order`` must be known to pass, and raising none must be known to fail. The bisection takes at
    most ceil(log2(n + 1)) evaluations. The result is exact if every prefix longer than a passing prefix passes too.

    Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``reverse``), which uses the network
    order.
    """
    fails, passes = 0, len(group_order)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        evaluation = yield Trial(frozenset(group_order[:middle]))
        if evaluation.passes:
            passes = middle
        else:
            fails = middle
    return frozenset(group_order[:passes])


def bisect_from_first_layers(context: StrategyContext) -> Strategy:
    """Finds by bisection how many fusion groups from the network input must be raised to meet the tolerance."""
    return bisect_raised_prefix(context, context.candidates)


def bisect_from_last_layers(context: StrategyContext) -> Strategy:
    """Finds by bisection how many fusion groups from the network output must be raised to meet the tolerance."""
    return bisect_raised_prefix(context, context.candidates[::-1])


def shorten_raised_prefix(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Returns a smaller set of first or last groups of the network if raising that meets the tolerance.

    If no such set does, the result is ``raised_groups``, and the strategy takes 2 evaluations.
    """
    for order in (context.candidates, context.candidates[::-1]):
        fewer = order[:max(0, len(raised_groups) - 1)]
        if fewer and (yield Trial(frozenset(fewer))).passes:
            raised_groups = yield from bisect_raised_prefix(context, fewer)
    return raised_groups


def raise_worst_groups_first(context: StrategyContext) -> Strategy:
    """Raises fusion groups one by one, by decreasing expected effect on the error, until the tolerance is met.

    The strategy takes one evaluation for each raised group. Source: the former ``worst-first`` mode of Polygraphy's
    precision tool. That mode compares layers with FP32 one by one and raises them in the order of their errors until
    the network passes. Here the order is the ranking of the search, which stays the same throughout.
    """
    return raise_growing_prefix(context, context.order_candidates_by_suspicion())


INITIAL_FRACTION = 0.5
"""The fraction of the sufficient suspects that the greedy strategy raises without a trial. Bisection finds how many
suspects are sufficient."""


def raise_groups_greedily(context: StrategyContext) -> Strategy:
    """Finds a small set of fusion groups to raise so that the tolerance is met, by bisection and then greedily.

    Bisection finds how many of the most suspicious groups are sufficient. The greedy part starts from a fraction of
    them and searches for a smaller set.

    The gain of a group is measured again only if the new value may matter. Source: Minoux, "Accelerated greedy
    algorithms for maximizing submodular set functions" (1978), known as lazy greedy (CELF in Leskovec et al.,
    "Cost-effective outbreak detection in networks", KDD 2007). The last measured gain of a group is an upper bound of
    its present gain. Groups are measured again in the order of these bounds, until the best gain exceeds the bound of
    the next group. The energy of the judged error is nearly additive over groups, so few groups are measured again.
    """
    suspects = context.order_candidates_by_suspicion()
    prefix = yield from bisect_raised_prefix(context, suspects)
    begin = frozenset(suspects[:int(INITIAL_FRACTION * len(prefix))])
    smaller = yield from _raise_groups_one_by_one(context, begin, len(prefix))
    return prefix if smaller is None else smaller


def raise_groups_within_budget(context: StrategyContext) -> Strategy:
    """Raises fusion groups within the budgets until the tolerance is met or no other group fits into a budget."""
    begin: frozenset[str] = frozenset()
    return (yield from _raise_groups_one_by_one(context, begin, math.inf)) or begin


def _raise_groups_one_by_one(context: StrategyContext, raised_groups: frozenset[str], count_limit: float
                             ) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """Raises one fusion group at a time and returns the first set that meets the tolerance.

    The group with the largest gain is raised. The result is None if no set with fewer than ``count_limit`` groups
    passes. While the error is not finite, groups are raised in the order of suspicion.
    """
    evaluation = yield Trial(raised_groups)
    gain = {
        name: context.expected_loss_reduction(name, evaluation)
        for name in context.order_candidates_by_suspicion(raised_groups)
    }
    while not evaluation.passes:
        best: tuple[bool, float, Evaluation] | None = None
        for name in sorted(gain, key=lambda candidate: -gain[candidate]):
            if best is not None and (best[0] or math.isinf(evaluation.comparable_loss) or best[1] >= gain[name]):
                break
            tried_groups = raised_groups | {name}
            if len(tried_groups) >= count_limit or not context.is_within_budget(tried_groups):
                continue
            trial_evaluation = yield Trial(tried_groups, group=name)
            measured_gain = evaluation.comparable_loss - trial_evaluation.comparable_loss
            if math.isfinite(evaluation.comparable_loss):
                gain[name] = measured_gain
            if best is None or (trial_evaluation.passes, measured_gain) > best[:2]:
                best = (trial_evaluation.passes, measured_gain, trial_evaluation)
        if best is None:
            return None
        evaluation = best[2]
        raised_groups = frozenset(evaluation.raised_groups)
        gain = {name: value for name, value in gain.items() if name not in raised_groups}
    return raised_groups


def run_auto_strategy(context: StrategyContext) -> Strategy:
    """Runs the default search strategy, whose parts depend on the available measurements of the fusion groups.

    - With sensitivities: greedy, then swaps.
    - With a ranking only: bisection of the ranked order.
    - With neither: bisection from both ends of the network; the smaller set is the result.

    After greedy and swaps, prefixes of first and of last layers with one group fewer are tried too. The method `bisect`
    therefore never finds a smaller set, provided that raising more groups never increases the error.

    On 20 networks small enough for brute force, greedy with swaps found the smallest set, or a set with one group more.
    On an encoder and on ResNet-50, the sets were no larger than those of greedy leave-one-out, with at most a tenth of
    the evaluations (tests/benchmarks/search.py). `choose_ranking` describes the rankings.
    """
    if context.ranking.expected_shares:
        raised = yield from raise_groups_greedily(context)
        raised = yield from swap_raised_groups(context, raised)
        return (yield from shorten_raised_prefix(context, raised))
    if context.ranking.basis_text:
        return (yield from bisect_raised_prefix(context, context.order_candidates_by_suspicion()))
    first = yield from bisect_from_first_layers(context)
    last = yield from bisect_from_last_layers(context)
    return min(first, last, key=len)


def describe_auto_strategy(context: StrategyContext) -> str:
    """Returns a sentence for users about the strategy that `run_auto_strategy` chooses, and the reason."""
    if context.ranking.expected_shares:
        return f"greedy with swaps, by {context.ranking.basis_text}"
    if context.ranking.basis_text:
        return f"halving, by {context.ranking.basis_text}: no sensitivity is known"
    return "halving from both ends of the network: no values of its groups are known"


def reduce_in_network_order(context: StrategyContext) -> Strategy:
    """Reduces the fusion groups one after the other in network order, with one evaluation for each candidate."""
    return _reduce_groups_in_order(context, context.candidates)


def reduce_slowest_groups_first(context: StrategyContext) -> Strategy:
    """Reduces the fusion groups one after the other, the most costly first, with one evaluation for each candidate."""
    return _reduce_groups_in_order(context,
                                   sorted(context.candidates, key=lambda name: -context.group_costs.get(name, 0.0)))


def _reduce_groups_in_order(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    raised = frozenset(context.candidates)
    for name in group_order:
        evaluation = yield Trial(raised - {name}, group=name)
        context.reduction_steps.append(ReductionStep(name, evaluation.value_text, not evaluation.passes))
        if evaluation.passes:
            raised = raised - {name}
    context.fixed_groups = raised
    return raised
