"""What costs nothing at run time before anything is raised: operators for decomposed normalisations, scaled channels,
corrected biases.

Each set of moves is tried as a whole, on top of those that were kept before: the moves of one set act on different
layers and hardly on each other, so that one evaluation tells of them all.
"""

from collections.abc import Generator, Mapping

from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import MoveKey
from trt_tui.core.moves.move import Move
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import Space


def improve_free(board: Board, space: Space) -> Generator[Trial, Evaluation, None]:
    """Settles ``board.free`` on the sets that lower the loss; of sets with moves on the same target one at most."""
    best = yield Trial(frozenset(), free=())
    for name, moves in space.free.items():
        if best.passed:
            break
        beside = tuple(one for one in best.free if _targets(space.free[one]).isdisjoint(moves))
        tried = yield Trial(frozenset(), free=(*beside, name))
        if tried.passed or tried.error < best.error:
            best = tried
    board.free = best.free


def _targets(moves: Mapping[MoveKey, Move]) -> set[MoveKey]:
    """What a set moves, less the precisions that groups as in the file take for it, which are the same in each."""
    return {key for key in moves if key[0] != Choice.kind}
