"""The passes before a search strategy, which try changes without run-time cost: zero-cost moves and other ranges."""

from collections.abc import Generator, Mapping

from trt_tui.core.moves.config import MoveKey
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import Evaluation, StrategyContext, Trial

SCALED_CHANNELS = "scaled channels"
"""The kind of all moves that scale channels. A subject has at most one of them."""

MIN_ERROR_SHARE = 0.01
"""The error share below which the ranges of a group are not tried."""


def try_zero_cost_moves(context: StrategyContext, search_space: SearchSpace) -> Generator[Trial, Evaluation, None]:
    """Chooses the sets of zero-cost moves that reduce the loss, and stores them in the context.

    At most one of several sets with moves on the same subject is chosen. Each set is tried as a whole, on top of the
    sets that were kept before. The moves of one set act on different layers and hardly influence each other, so one
    evaluation suffices for all of them.
    """
    best = yield Trial(frozenset(), zero_cost_sets=())
    for name, moves in search_space.zero_cost_sets.items():
        if best.passes:
            break
        kept_sets = tuple(set_name for set_name in best.zero_cost_sets
                          if _find_subjects_of_moves(search_space.zero_cost_sets[set_name]).isdisjoint(
                              _find_subjects_of_moves(moves)))
        evaluation = yield Trial(frozenset(), zero_cost_sets=(*kept_sets, name))
        if evaluation.passes or evaluation.comparable_loss < best.comparable_loss:
            best = evaluation
    context.zero_cost_sets = best.zero_cost_sets


def _find_subjects_of_moves(moves: Mapping[MoveKey, Move]) -> set[MoveKey]:
    """Returns the kinds and subjects of the moves in a set, without precision moves. All moves that scale channels
    count as one kind.

    Groups in file precision get a precision move for a zero-cost move, and these precision moves are the same in every
    set.
    """
    return {(SCALED_CHANNELS if move.scales_channels else kind, subject) for (kind, subject), move in moves.items()
            if kind != PrecisionMove.kind}


def try_other_ranges(context: StrategyContext, search_space: SearchSpace,
                     ranges_by_method: Mapping[str, Mapping[str, float]]) -> Generator[Trial, Evaluation, None]:
    """Chooses other ranges that reduce the loss, and stores them in the context.

    The pass takes one evaluation for each range method and quantized group. The source is setting ranges by the error
    that they cause (Nagel et al., "A White Paper on Neural Network Quantization", 2021). Here the error is that at the
    judged outputs. The method is a coordinate descent over groups, the most suspicious first, among the ranges that the
    range methods propose.

    Args:
        ranges_by_method: The amax by tensor and range method.
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
