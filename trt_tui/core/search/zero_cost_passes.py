"""The passes before a search strategy, which try changes without run-time cost: zero-cost moves and other ranges.

No fixed order is best for every network: factors of channels fix ranges that would have gained more, and other ranges
can leave nothing for the factors to gain. The passes of the first stage are therefore tried alone first, and combined
in the order of their gains.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

from trt_tui.core.moves.config import MoveKey
from trt_tui.core.moves.layer_moves import PrecisionMove, RangeMove
from trt_tui.core.moves.move import Move
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import Evaluation, StrategyContext, Trial

SCALED_CHANNELS = "scaled channels"
"""The kind of all moves that scale channels. A subject has at most one of them."""

MIN_ERROR_SHARE = 0.01
"""The error share below which the ranges of a group are not tried."""

ALONE_STEP, RANGES_STEP, COMBINED_STEP = "free", "ranges", "combined"
"""The search steps that try a set of zero-cost moves alone, another range, and a set on top of kept changes."""

RangesByMethod = Mapping[str, Mapping[str, float]]
"""The amax by tensor and range method."""


@dataclass(frozen=True)
class _Pass:
    """A change that gains alone: a set of zero-cost moves, or the other ranges.

    Attributes:
        set_name: The name of the set; "" for the other ranges.
        evaluation: The evaluation of the change alone, on top of the kept changes of the earlier stages.
    """

    set_name: str
    evaluation: Evaluation


def try_changes_without_cost(context: StrategyContext, search_space: SearchSpace,
                             ranges_by_method: RangesByMethod) -> Generator[Trial, Evaluation, None]:
    """Chooses the sets of zero-cost moves and the ranges that reduce the loss, and stores them in the context.

    Each set of a stage is first tried alone, on top of the changes of earlier stages that were kept. The other ranges
    are a pass of the first stage. Then the passes that gain are combined, those that gain most first. A pass is kept
    if it gains by `_gain_key`. At most one of several sets with moves on the same
    subject is kept. Each set is tried as a whole: its moves act on different layers and hardly influence each other.

    The budget of the context limits the number of evaluations, with those that measured the sets. A limit in seconds
    would change results.
    """
    best = yield Trial(frozenset(), step_name=ALONE_STEP, zero_cost_sets=())
    for index, stage in enumerate(search_space.zero_cost_stages or ({},)):
        ranges = ranges_by_method if index == 0 else {}
        effort = context.zero_cost_effort
        measured = sum(search_space.stage_evaluation_counts[index:index + 1])
        context.zero_cost_effort = replace(effort, total=effort.total + len(stage) + bool(ranges),
                                           evaluations=effort.evaluations + measured)
        if not best.passes:
            best = yield from _try_stage(context, search_space, stage, ranges, best)
        context.zero_cost_sets, context.chosen_ranges = best.zero_cost_sets, dict(best.range_moves)


def _try_stage(context: StrategyContext, search_space: SearchSpace, stage: Mapping[str, Mapping[MoveKey, Move]],
               ranges_by_method: RangesByMethod, before: Evaluation) -> Generator[Trial, Evaluation, Evaluation]:
    """Returns the evaluation with the kept passes of a stage.

    Args:
        before: The evaluation with the kept passes of the earlier stages.
    """
    gains: list[_Pass] = []
    for name in stage:
        if not _has_budget(context):
            break
        _count_tried_pass(context)
        evaluation = yield Trial(frozenset(), _keep_free_ranges(search_space, before, name), step_name=ALONE_STEP,
                                 zero_cost_sets=(*before.zero_cost_sets, name))
        if evaluation.passes:
            return evaluation
        if _is_gain(evaluation, before):
            gains.append(_Pass(name, evaluation))
    if ranges_by_method:
        if context.zero_cost_effort.has_budget:
            _count_tried_pass(context)
        evaluation = yield from _try_other_ranges(context, search_space, ranges_by_method, before)
        if _is_gain(evaluation, before) or evaluation.passes:
            gains.append(_Pass("", evaluation))
    gains.sort(key=lambda gain: _gain_key(gain.evaluation), reverse=True)
    best, subjects = before, set[MoveKey]()
    for gain in gains:
        subjects_of_pass = _find_subjects_of_moves(stage[gain.set_name]) if gain.set_name else set[MoveKey]()
        if best.passes or not subjects.isdisjoint(subjects_of_pass):
            continue
        evaluation = gain.evaluation
        if best is not before and not gain.set_name:
            evaluation = yield from _try_other_ranges(context, search_space, ranges_by_method, best)
        elif best is not before:
            if not _has_budget(context):
                break
            evaluation = yield Trial(
                frozenset(), _keep_free_ranges(search_space, best, gain.set_name), step_name=COMBINED_STEP,
                zero_cost_sets=(*best.zero_cost_sets, gain.set_name))
        if evaluation.passes or _is_gain(evaluation, best):
            best, subjects = evaluation, subjects | subjects_of_pass
    return best


def _keep_free_ranges(search_space: SearchSpace, evaluation: Evaluation, set_name: str) -> dict[str, RangeMove]:
    """Returns the chosen ranges of an evaluation without those of tensors whose range belongs to a set of moves."""
    fixed_tensors = search_space.find_fixed_range_tensors((set_name,))
    return {tensor: choice for tensor, choice in evaluation.range_moves.items() if tensor not in fixed_tensors}


def _count_tried_pass(context: StrategyContext) -> None:
    context.zero_cost_effort = replace(context.zero_cost_effort, tried=context.zero_cost_effort.tried + 1)


def _has_budget(context: StrategyContext) -> bool:
    """Returns True and counts an evaluation if the budget allows one more."""
    effort = context.zero_cost_effort
    if not effort.has_budget:
        context.zero_cost_effort = replace(effort, is_exhausted=True)
        return False
    context.zero_cost_effort = replace(effort, evaluations=effort.evaluations + 1)
    return True


def _gain_key(evaluation: Evaluation) -> tuple[float, float]:
    """Returns the key by which changes without cost are compared: the value of the target, then the loss.

    The value of an error metric and the loss have the same order. A metric of the user can rise although the error
    grows.
    """
    return evaluation.score, -evaluation.comparable_loss


def _is_gain(evaluation: Evaluation, before: Evaluation) -> bool:
    return _gain_key(evaluation) > _gain_key(before)


def _find_subjects_of_moves(moves: Mapping[MoveKey, Move]) -> set[MoveKey]:
    """Returns the kinds and subjects of the moves in a set, without precision moves. All moves that scale channels
    count as one kind.

    Groups in file precision get a precision move for a zero-cost move, and these precision moves are the same in every
    set.
    """
    return {(SCALED_CHANNELS if move.scales_channels else kind, subject) for (kind, subject), move in moves.items()
            if kind != PrecisionMove.kind}


def _try_other_ranges(context: StrategyContext, search_space: SearchSpace, ranges_by_method: RangesByMethod,
                      before: Evaluation) -> Generator[Trial, Evaluation, Evaluation]:
    """Returns the evaluation with other ranges that reduce the loss, on top of the changes of an evaluation.

    The pass takes one evaluation for each range method and quantized group. The source is setting ranges by the error
    that they cause (Nagel et al., "A White Paper on Neural Network Quantization", 2021). Here the error is that at the
    judged outputs. The method is a coordinate descent over groups, the most suspicious first, among the ranges that the
    range methods propose. Tensors whose range belongs to a zero-cost move keep it.
    """
    best = before
    fixed_tensors = search_space.find_fixed_range_tensors(before.zero_cost_sets)
    ranking = context.ranges_ranking or context.ranking
    for name in ranking.candidate_order:
        group = search_space.network.get_group(name)
        range_sites = group.calibrated_qdq_sites(search_space.start_config.precision_of(group))
        if not range_sites:
            continue
        if ranking.expected_shares and ranking.expected_shares.get(name, 0.0) < MIN_ERROR_SHARE:
            continue
        tensors = [tensor for tensor in dict.fromkeys(site.tensor for site in range_sites)
                   if tensor not in fixed_tensors]
        methods = dict.fromkeys(method for tensor in tensors for method in ranges_by_method.get(tensor, ()))
        best_of_group = best
        for method in methods:
            if best_of_group.passes or not _has_budget(context):
                return best_of_group
            choices = {tensor: RangeMove(ranges_by_method[tensor][method], method)
                       for tensor in tensors if method in ranges_by_method.get(tensor, ())}
            evaluation = yield Trial(frozenset(), {**best.range_moves, **choices}, group=name, step_name=RANGES_STEP,
                                     zero_cost_sets=before.zero_cost_sets)
            if _is_gain(evaluation, best_of_group) or evaluation.passes:
                best_of_group = evaluation
        best = best_of_group
    return best
