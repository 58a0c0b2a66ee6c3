"""From all groups in the higher precision downwards: each in turn is lowered, and what cannot be sticks to it.

`reduce_in_network_order` takes the groups in network order. Source: eLinux's layer_analyzer (elinux.org,
TensorRT/LayerDumpAndAnalyze). If the similarity at the judged outputs falls below the threshold, the layer is raised
again for good, else it stays lowered. Early layers use up what the tolerance allows, so late layers tend to stick.
`reduce_slowest_groups_first` takes first what saves most time.

What sticks is the result: nothing is taken back afterwards, and a start that passes as a whole is no reason to stop.
"""

from collections.abc import Sequence

from trt_tui.core.search.strategy_protocol import ReductionStep, Strategy, StrategyContext, Trial


def reduce_in_network_order(context: StrategyContext) -> Strategy:
    """In network order; takes one evaluation for each candidate."""
    return _reduce_groups_in_order(context, context.candidates)


def reduce_slowest_groups_first(context: StrategyContext) -> Strategy:
    """What costs most in the higher precision first; takes one evaluation for each candidate."""
    return _reduce_groups_in_order(context,
                                   sorted(context.candidates, key=lambda name: -context.group_costs.get(name, 0.0)))


def _reduce_groups_in_order(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    raised = frozenset(context.candidates)
    for name in group_order:
        evaluation = yield Trial(raised - {name}, group=name)
        value_text = evaluation.target_result.value_text or f"{evaluation.score:+.3g}"
        context.reduction_steps.append(ReductionStep(name, value_text, not evaluation.passes))
        if evaluation.passes:
            raised = raised - {name}
    context.fixed_groups = raised
    return raised
