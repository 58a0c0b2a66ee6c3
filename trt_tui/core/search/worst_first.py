"""The layers with the worst errors, one more at a time.

Source: the ``worst-first`` mode that Polygraphy's precision tool once had. Layers are compared with FP32 one by one and
raised in the order of their errors until the network passes. Here the order is the caller's ranking, which stays the
same throughout.
"""

from trt_tui.core.search.evaluation import Strategy
from trt_tui.core.search.linear import raise_growing_prefix
from trt_tui.core.search.strategy_context import StrategyContext


def raise_worst_groups_first(context: StrategyContext) -> Strategy:
    """Takes one evaluation for each group that it raises."""
    return raise_growing_prefix(context, context.order_candidates_by_suspicion())
