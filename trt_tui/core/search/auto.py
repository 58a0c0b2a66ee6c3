"""The method that is used when none is named."""

from trt_tui.core.search import prefix_search
from trt_tui.core.search.greedy import raise_groups_greedily
from trt_tui.core.search.refinement import swap_raised_groups
from trt_tui.core.search.strategy_protocol import Strategy, StrategyContext


def run_auto_strategy(context: StrategyContext) -> Strategy:
    """Chooses a method by what was measured of the groups.

    With impacts: greedy, then swaps. With a ranking only: halving of the ranked order. With neither: halving from both
    ends of the network, of which the smaller set is taken.

    After greedy and swaps, the first and the last layers are tried too, with one group fewer than was found. `bisect`
    alone therefore never finds a smaller set (as long as raising more groups never does harm).

    On 20 networks small enough for brute force, greedy with swaps found the smallest set, or one with one group more.
    On an encoder and on ResNet-50 its sets were no larger than those of greedy leave-one-out, with at most a tenth of
    the evaluations (tests/benchmarks/search.py). `choose_ranking` says which ranking it uses, and why.
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
    """What `run_auto_strategy` does and why, as a sentence."""
    if context.ranking.expected_shares:
        return f"greedy with swaps, by {context.ranking.basis_text}"
    if context.ranking.basis_text:
        return f"halving, by {context.ranking.basis_text}: no sensitivity is known"
    return "halving from both ends of the network: no values of its groups are known"
