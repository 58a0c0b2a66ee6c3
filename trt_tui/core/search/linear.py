"""The shortest prefix of an order that passes, found by adding one group at a time.

Source: Polygraphy's ``debug precision --mode linear`` (``--dir forward`` and ``raise_from_last_layers``), which takes
the layers in network order. It takes one evaluation for each group that it raises, and does not rely on larger sets
doing better.
"""

from collections.abc import Sequence

from trt_tui.core.search.evaluation import Strategy, Trial
from trt_tui.core.search.strategy_context import StrategyContext


def raise_growing_prefix(context: StrategyContext, group_order: Sequence[str]) -> Strategy:
    """Takes at most n evaluations; raising all of ``group_order`` must be known to pass."""
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
