"""What costs nothing at run time before anything is raised: operators for decomposed normalisations, scaled channels,
corrected biases.

Each set of moves is tried as a whole, on top of those that were kept before: the moves of one set act on different
layers and hardly on each other, so that one evaluation tells of them all.
"""

from collections.abc import Generator, Mapping

from trt_tui.core.moves.config import MoveKey
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_context import StrategyContext


def try_zero_cost_moves(context: StrategyContext, search_space: SearchSpace) -> Generator[Trial, Evaluation, None]:
    """Settles ``board.free`` on the sets that lower the loss; of sets with moves on the same target one at most."""
    best = yield Trial(frozenset(), zero_cost_sets=())
    for name, moves in search_space.zero_cost_sets.items():
        if best.passes:
            break
        kept_sets = tuple(set_name for set_name in best.zero_cost_sets
                          if _find_subjects_of_moves(search_space.zero_cost_sets[set_name]).isdisjoint(moves))
        evaluation = yield Trial(frozenset(), zero_cost_sets=(*kept_sets, name))
        if evaluation.passes or evaluation.comparable_loss < best.comparable_loss:
            best = evaluation
    context.zero_cost_sets = best.zero_cost_sets


def _find_subjects_of_moves(moves: Mapping[MoveKey, Move]) -> set[MoveKey]:
    """What a set moves, less the precisions that groups as in the file take for it, which are the same in each."""
    return {key for key in moves if key[0] != PrecisionMove.kind}
