"""Lower rungs for what was raised: the pass after `revert`, where a search may give precisions in between.

Which groups have to be raised at all is settled first, with the highest rung; then each rung in between, the lowest
first, takes the least suspicious of them: as many as can go together, found by halving, then each of the others alone.
TF32 takes all that are left or none: it is a setting of the whole engine.
"""

from collections.abc import Generator

from trt_tui.core.precision import Precision
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import Space


def settle(board: Board, space: Space, found: frozenset[str]) -> Generator[Trial, Evaluation, dict[str, Precision]]:
    """Returns the rungs in between, by group; at most ceil(log2(k + 1)) + k evaluations a rung for k groups, one for
    TF32."""
    settled: dict[str, Precision] = {}
    for rung in space.between:
        if rung is Precision.TF32:
            rest = dict.fromkeys(space.ordered(found - settled.keys()), rung)
            if any(space.network.group(name).multiplied() for name in rest) \
                    and (yield Trial(found, rungs={**settled, **rest})).passed:
                settled |= rest
            continue
        able = [name for name in reversed(board.suspects()) if name in found - settled.keys()
                and rung in space.rungs_of(name)]
        passes, fails = 0, len(able) + 1  # how many of the first can go together
        middle = len(able)
        while fails - passes > 1:
            rungs = {**settled, **dict.fromkeys(able[:middle], rung)}
            if (yield Trial(found, rungs=rungs, about=able[0] if middle == 1 else "")).passed:
                passes = middle
            else:
                fails = middle
            middle = (passes + fails) // 2
        settled |= dict.fromkeys(able[:passes], rung)
        for name in able[passes + 1:]:  # the first one after them fails, as the halving ended on it
            if (yield Trial(found, rungs={**settled, name: rung}, about=name)).passed:
                settled[name] = rung
    return settled
