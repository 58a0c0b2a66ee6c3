"""The passes before a search strategy, which try changes without run-time cost: zero-cost moves and other ranges."""

from collections.abc import Generator, Mapping
from dataclasses import replace

from trt_tui.core.moves.config import MoveKey
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import Evaluation, StrategyContext, Trial

MIN_ERROR_SHARE = 0.01
"""The error share below which the ranges of a group are not tried."""


def try_zero_cost_moves(context: StrategyContext, search_space: SearchSpace) -> Generator[Trial, Evaluation, None]:
    """Chooses the sets of zero-cost moves that reduce the loss, and stores them in the context.

    Each set of a stage is first tried alone, on top of the sets of earlier stages that were kept. Then the sets that
    gain are combined, those that gain most first. A set is kept if the loss falls and the value of the target is not
    worse. At most one of several sets with moves on the same subject is kept. Each set is tried as a whole: its moves
    act on different layers and hardly influence each other.

    The number of trials is limited by the budget of the context. A limit in seconds would change results.
    """
    best = yield Trial(frozenset(), zero_cost_sets=())
    for stage in search_space.zero_cost_stages:
        context.zero_cost_effort = replace(context.zero_cost_effort, total=context.zero_cost_effort.total + len(stage))
        if not best.passes:
            best = yield from _try_stage(context, stage, best)
    context.zero_cost_sets = best.zero_cost_sets


def _try_stage(context: StrategyContext, stage: Mapping[str, Mapping[MoveKey, Move]],
               before: Evaluation) -> Generator[Trial, Evaluation, Evaluation]:
    """Returns the evaluation with the kept sets of a stage.

    Args:
        before: The evaluation with the kept sets of the earlier stages.
    """
    gains: list[tuple[str, Evaluation]] = []
    for name in stage:
        if not _has_budget(context):
            break
        context.zero_cost_effort = replace(context.zero_cost_effort, tried=context.zero_cost_effort.tried + 1)
        evaluation = yield Trial(frozenset(), zero_cost_sets=(*before.zero_cost_sets, name))
        if evaluation.passes:
            return evaluation
        if _is_gain(evaluation, before):
            gains.append((name, evaluation))
    gains.sort(key=lambda gain: gain[1].comparable_loss)
    best, subjects = before, set[MoveKey]()
    for name, evaluation in gains:
        if not subjects.isdisjoint(_find_subjects_of_moves(stage[name])):
            continue
        if best is not before:
            if not _has_budget(context):
                break
            evaluation = yield Trial(frozenset(), zero_cost_sets=(*best.zero_cost_sets, name))
        if evaluation.passes or _is_gain(evaluation, best):
            best, subjects = evaluation, subjects | _find_subjects_of_moves(stage[name])
        if best.passes:
            break
    return best


def _has_budget(context: StrategyContext) -> bool:
    """Returns True and counts an evaluation if the budget allows one more."""
    effort = context.zero_cost_effort
    if not effort.has_budget:
        context.zero_cost_effort = replace(effort, is_exhausted=True)
        return False
    context.zero_cost_effort = replace(effort, evaluations=effort.evaluations + 1)
    return True


def _is_gain(evaluation: Evaluation, before: Evaluation) -> bool:
    """Returns True if the loss falls and the value of the target is not worse."""
    return evaluation.comparable_loss < before.comparable_loss and evaluation.score >= before.score


def _find_subjects_of_moves(moves: Mapping[MoveKey, Move]) -> set[MoveKey]:
    """Returns the kinds and subjects of the moves in a set, without precision moves.

    Groups in file precision get a precision move for a zero-cost move, and these precision moves are the same in every
    set.
    """
    return {key for key in moves if key[0] != PrecisionMove.kind}


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
