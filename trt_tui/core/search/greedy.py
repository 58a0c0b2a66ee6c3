"""Raises the group that lowers the loss most, again and again; gains are measured anew only if they may matter.

Source: Minoux, "Accelerated greedy algorithms for maximizing submodular set functions" (1978), known as lazy greedy
(CELF in Leskovec et al., "Cost-effective outbreak detection in networks", KDD 2007). What a group gained when it was
last measured is an upper bound of what it can gain now. Groups are measured anew in the order of these bounds, until
the best one beats the bound of the next. The energy of the judged error is nearly additive over groups, so few of them
are measured anew.
"""

import math
from collections.abc import Generator

from trt_tui.core.search.prefix_search import bisect_raised_prefix
from trt_tui.core.search.strategy_protocol import Evaluation, Strategy, StrategyContext, Trial

INITIAL_FRACTION = 0.5
"""Halving finds how many of the most suspicious groups are enough; this part of them is raised without being tried."""


def raise_groups_greedily(context: StrategyContext) -> Strategy:
    """Finds by halving how many suspects are enough, then tries to do with fewer: greedily, from a part of them."""
    suspects = context.order_candidates_by_suspicion()
    prefix = yield from bisect_raised_prefix(context, suspects)
    begin = frozenset(suspects[:int(INITIAL_FRACTION * len(prefix))])
    smaller = yield from _raise_groups_one_by_one(context, begin, len(prefix) - 1)
    return prefix if smaller is None else smaller


def raise_groups_within_budget(context: StrategyContext) -> Strategy:
    """Raises groups within the budgets until the tolerance is met or no other group fits."""
    begin: frozenset[str] = frozenset()
    return (yield from _raise_groups_one_by_one(context, begin, len(context.candidates))) or begin


def _raise_groups_one_by_one(context: StrategyContext, raised_groups: frozenset[str], max_raised_groups: int
                             ) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """Raises one group at a time; returns None if no set of at most ``max_raised_groups`` groups passes that way.

    While the error is not finite, groups are raised in the order of suspicion.
    """
    evaluation = yield Trial(raised_groups)
    gain = {
        name: context.expected_loss_reduction(name, evaluation)
        for name in context.order_candidates_by_suspicion(raised_groups)
    }
    while not evaluation.passes and len(raised_groups) < max_raised_groups:
        best: Evaluation | None = None
        for name in sorted(gain, key=lambda candidate: -gain[candidate]):
            if best is not None and (best.passes or math.isinf(evaluation.comparable_loss)
                                     or evaluation.comparable_loss - best.comparable_loss >= gain[name]):
                break
            if not context.is_within_budget(raised_groups | {name}):
                continue
            trial_evaluation = yield Trial(raised_groups | {name}, group=name)
            if math.isfinite(evaluation.comparable_loss):
                gain[name] = evaluation.comparable_loss - trial_evaluation.comparable_loss
            if best is None or (trial_evaluation.passes, -trial_evaluation.comparable_loss) > (best.passes,
                                                                                               -best.comparable_loss):
                best = trial_evaluation
        if best is None:
            return None
        raised_groups, evaluation = frozenset(best.raised_groups), best
        gain = {name: value for name, value in gain.items() if name not in raised_groups}
    return raised_groups if evaluation.passes else None
