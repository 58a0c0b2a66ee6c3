"""The top-down search strategies: all groups start in the higher precision, and one group after the other is reduced.

A group that fails the tolerance when it is reduced stays in the higher precision. `reduce_in_network_order` follows
eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). If the similarity at the judged outputs falls below
the threshold, the layer is raised again for the rest of the search. If not, the layer stays reduced. Early layers use
up the tolerance, so late layers tend to stay higher. `reduce_slowest_groups_first` begins with the group that saves
most time.

The result is the set of groups that stay higher. A start config that passes does not end the search.
"""

from collections.abc import Sequence

from trt_tui.core.search.strategy_protocol import ReductionStep, Strategy, StrategyContext, Trial


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
