"""Search strategies that raise the first groups of an order, and find the smallest number that meets the tolerance."""

from collections.abc import Sequence

from trt_tui.core.search.strategy_protocol import Strategy, StrategyContext, Trial


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
