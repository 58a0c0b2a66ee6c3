"""Takes back raised groups that are not needed: the pass after every strategy.

Source: backward elimination, the second half of forward-backward selection (Zhang, "Adaptive forward-backward greedy
algorithm", NIPS 2008). First it finds by halving how many of the least suspicious groups can be taken back together,
then it tries each of the others alone, the least suspicious first. If a larger set of raised groups never does worse,
no single group of the result can be taken back.
"""

from trt_tui.core.search.evaluation import Strategy, Trial
from trt_tui.core.search.strategy_context import StrategyContext


def revert_unneeded_groups(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """Takes at most ceil(log2(k)) + k evaluations for a set of k groups that passes."""
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
