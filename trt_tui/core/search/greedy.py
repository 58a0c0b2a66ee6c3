"""Raises the group that lowers the loss most, again and again; gains are measured anew only if they may matter.

Source: Minoux, "Accelerated greedy algorithms for maximizing submodular set functions" (1978), known as lazy greedy
(CELF in Leskovec et al., "Cost-effective outbreak detection in networks", KDD 2007). What a group gained when it was
last measured is an upper bound of what it can gain now. Groups are measured anew in the order of these bounds, until
the best one beats the bound of the next. The energy of the judged error is nearly additive over groups, so few of them
are measured anew.
"""

import math
from collections.abc import Generator

from trt_tui.core.search.bisect import bisect
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Course, Evaluation, Trial

KEPT = 0.5
"""Halving finds how many of the most suspicious groups are enough; this part of them is raised without being tried."""


def greedy(board: Board) -> Course:
    """Finds by halving how many suspects are enough, then tries to do with fewer: greedily, from a part of them."""
    suspects = board.suspects()
    prefix = yield from bisect(board, suspects)
    begin = frozenset(suspects[:int(KEPT * len(prefix))])
    found = yield from _add(board, begin, len(prefix) - 1)
    return prefix if found is None else found


def fill(board: Board) -> Course:
    """Raises groups within the budgets until the tolerance is met or no other group fits."""
    begin: frozenset[str] = frozenset()
    return (yield from _add(board, begin, len(board.candidates))) or begin


def _add(board: Board, raised: frozenset[str], most: int
         ) -> Generator[Trial, Evaluation, frozenset[str] | None]:
    """Raises one group at a time; returns None if no set of at most ``most`` groups passes that way.

    While the error is not finite, groups are raised in the order of suspicion.
    """
    now = yield Trial(raised)
    gain = {name: board.expected(name, now) for name in board.suspects(raised)}
    while not now.passed and len(raised) < most:
        best: Evaluation | None = None
        for name in sorted(gain, key=lambda one: -gain[one]):
            if best is not None and (best.passed or math.isinf(now.error) or now.error - best.error >= gain[name]):
                break
            if not board.fits(raised | {name}):
                continue
            tried = yield Trial(raised | {name}, about=name)
            if math.isfinite(now.error):
                gain[name] = now.error - tried.error
            if best is None or (tried.passed, -tried.error) > (best.passed, -best.error):
                best = tried
        if best is None:
            return None
        raised, now = frozenset(best.raised), best
        gain = {name: value for name, value in gain.items() if name not in raised}
    return raised if now.passed else None
