"""Tries other ranges before higher precisions, since a range costs nothing at run time.

Source: setting ranges by the error that they cause (Nagel et al., "A White Paper on Neural Network Quantization",
2021), here the error at the judged outputs. It is a coordinate descent over groups, the most suspicious first, among
the ranges that the calibration methods propose.
"""

from collections.abc import Generator, Mapping

from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_context import StrategyContext

MIN_ERROR_SHARE = 0.01
"""Groups that own less of the error than this are skipped."""


def try_other_ranges(context: StrategyContext, search_space: SearchSpace,
                     ranges_by_method: Mapping[str, Mapping[str, float]]) -> Generator[Trial, Evaluation, None]:
    """Sets ``board.ranges`` to what lowers the loss, with one evaluation for each method and group that reads codes.

    Args:
        ranges_by_method: amax by tensor and method.
    """
    best = yield Trial(frozenset())
    for name in context.order_candidates_by_suspicion():
        if best.passes:
            return
        group = search_space.network.get_group(name)
        range_sites = group.calibrated_qdq_sites(search_space.start_config.precision_of(group))
        if not range_sites:
            continue
        if context.ranking.expected_shares and context.ranking.expected_shares.get(name, 0.0) < MIN_ERROR_SHARE:
            continue
        tensors = dict.fromkeys(site.tensor for site in range_sites)
        methods = dict.fromkeys(method for tensor in tensors for method in ranges_by_method.get(tensor, ()))
        for method in methods:
            choices = {tensor: RangeMove(ranges_by_method[tensor][method], method)
                       for tensor in tensors if method in ranges_by_method.get(tensor, ())}
            evaluation = yield Trial(frozenset(), {**context.chosen_ranges, **choices}, group=name)
            if evaluation.comparable_loss < best.comparable_loss or evaluation.passes:
                best = evaluation
        context.chosen_ranges = dict(best.range_moves)
