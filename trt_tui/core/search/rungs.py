"""Lower rungs for what was raised: the pass after `revert`, where a search may give precisions in between.

Which groups have to be raised at all is settled first, with the highest rung; then each rung in between, the lowest
first, takes the least suspicious of them: as many as can go together, found by halving, then each of the others alone.
TF32 takes all that are left or none: it is a setting of the whole engine.
"""

from collections.abc import Generator

from trt_tui.core.precision import Precision
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_context import StrategyContext


def assign_intermediate_precisions(context: StrategyContext, search_space: SearchSpace,
                                   raised_groups: frozenset[str]) -> Generator[Trial, Evaluation, dict[str, Precision]]:
    """Returns the rungs in between, by group; at most ceil(log2(k + 1)) + k evaluations a rung for k groups, one for
    TF32."""
    settled: dict[str, Precision] = {}
    for precision in search_space.intermediate:
        if precision is Precision.TF32:
            rest = dict.fromkeys(search_space.sort_candidates_in_network_order(raised_groups - settled.keys()),
                                 precision)
            if any(search_space.network.get_group(name).qdq_sites_of_multiplied_inputs() for name in rest) \
                    and (yield Trial(raised_groups, precisions={**settled, **rest})).passes:
                settled |= rest
            continue
        candidates = [
            name for name in reversed(context.order_candidates_by_suspicion())
            if name in raised_groups - settled.keys() and precision in search_space.intermediate_precisions(name)
        ]
        passes, fails = 0, len(candidates) + 1  # how many of the first can go together
        middle = len(candidates)
        while fails - passes > 1:
            precisions = {**settled, **dict.fromkeys(candidates[:middle], precision)}
            if (yield Trial(raised_groups, precisions=precisions, group=candidates[0] if middle == 1 else "")).passes:
                passes = middle
            else:
                fails = middle
            middle = (passes + fails) // 2
        settled |= dict.fromkeys(candidates[:passes], precision)
        for name in candidates[passes + 1:]:  # the first one after them fails, as the halving ended on it
            if (yield Trial(raised_groups, precisions={**settled, name: precision}, group=name)).passes:
                settled[name] = precision
    return settled
