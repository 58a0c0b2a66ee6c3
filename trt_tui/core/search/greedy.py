"""The greedy search strategy: it repeatedly raises the precision of the fusion group that reduces the loss most.

The gain of a group is measured again only if the new value may matter. Source: Minoux, "Accelerated greedy algorithms
for maximizing submodular set functions" (1978), known as lazy greedy (CELF in Leskovec et al., "Cost-effective outbreak
detection in networks", KDD 2007). The last measured gain of a group is an upper bound of its present gain. Groups are
measured again in the order of these bounds, until the best gain exceeds the bound of the next group. The energy of the
judged error is nearly additive over groups, so few groups are measured again.
"""

import math
from collections.abc import Generator

from trt_tui.core.search.prefix_search import bisect_raised_prefix
from trt_tui.core.search.strategy_protocol import Evaluation, Strategy, StrategyContext, Trial

INITIAL_FRACTION = 0.5
"""The fraction of the sufficient suspects that the greedy strategy raises without a trial. Bisection finds how many
suspects are sufficient."""


def raise_groups_greedily(context: StrategyContext) -> Strategy:
    """Finds a small set of fusion groups to raise so that the tolerance is met, by bisection and then greedily.

    Bisection finds how many of the most suspicious groups are sufficient. The greedy part starts from a fraction of
    them and searches for a smaller set.
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
