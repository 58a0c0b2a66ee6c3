"""Strategies that find the shortest prefix of an order of groups that passes."""

from collections.abc import Sequence

from trt_tui.core.search.strategy_protocol import Strategy, StrategyContext, Trial


def raise_growing_prefix(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    """Takes at most n evaluations; raising all of ``group_order`` must be known to pass.

    Source: Polygraphy's ``debug precision --mode linear`` (``--dir forward`` and ``raise_from_last_layers``), which
    takes the layers in network order. It takes one evaluation for each group that it raises, and does not rely on
    larger sets doing better.
    """
    raised: frozenset[str] = frozenset()
    for name in group_order:
        raised = raised | {name}
        if (yield Trial(raised, group=name)).passes:
            break
    return raised


def raise_from_first_layers(context: StrategyContext) -> Strategy:
    """The first layers, one more at a time."""
    return raise_growing_prefix(context, context.candidates)


def raise_from_last_layers(context: StrategyContext) -> Strategy:
    """The last layers, one more at a time."""
    return raise_growing_prefix(context, context.candidates[::-1])


def bisect_raised_prefix(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    """Halves an order; takes at most ceil(log2(n + 1)) evaluations.

    Raising all of ``group_order`` must be known to pass, and raising none of it to fail.

    Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``bisect_from_last_layers``), which
    takes the layers in network order. The result is exact if every prefix longer than a passing one passes too.
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
    """The fewest first layers that pass."""
    return bisect_raised_prefix(context, context.candidates)


def bisect_from_last_layers(context: StrategyContext) -> Strategy:
    """The fewest last layers that pass."""
    return bisect_raised_prefix(context, context.candidates[::-1])


def shorten_raised_prefix(context: StrategyContext, raised_groups: frozenset[str]) -> Strategy:
    """``raised_groups``, or fewer first or last layers if those pass; takes 2 evaluations if they do not."""
    for order in (context.candidates, context.candidates[::-1]):
        fewer = order[:max(0, len(raised_groups) - 1)]
        if fewer and (yield Trial(frozenset(fewer))).passes:
            raised_groups = yield from bisect_raised_prefix(context, fewer)
    return raised_groups


def raise_worst_groups_first(context: StrategyContext) -> Strategy:
    """Takes one evaluation for each group that it raises.

    Source: the ``worst-first`` mode that Polygraphy's precision tool once had. Layers are compared with FP32 one by one
    and raised in the order of their errors until the network passes. Here the order is the caller's ranking, which
    stays the same throughout.
    """
    return raise_growing_prefix(context, context.order_candidates_by_suspicion())
