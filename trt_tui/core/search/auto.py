"""The default search method, used if the user names no method."""

from trt_tui.core.search import prefix_search
from trt_tui.core.search.greedy import raise_groups_greedily
from trt_tui.core.search.refinement import swap_raised_groups
from trt_tui.core.search.strategy_protocol import Strategy, StrategyContext


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
        return (yield from prefix_search.shorten_raised_prefix(context, raised))
    if context.ranking.basis_text:
        return (yield from prefix_search.bisect_raised_prefix(context, context.order_candidates_by_suspicion()))
    first = yield from prefix_search.bisect_from_first_layers(context)
    last = yield from prefix_search.bisect_from_last_layers(context)
    return min(first, last, key=len)


def describe_auto_strategy(context: StrategyContext) -> str:
    """Returns a sentence for users about the strategy that `run_auto_strategy` chooses, and the reason."""
    if context.ranking.expected_shares:
        return f"greedy with swaps, by {context.ranking.basis_text}"
    if context.ranking.basis_text:
        return f"halving, by {context.ranking.basis_text}: no sensitivity is known"
    return "halving from both ends of the network: no values of its groups are known"
