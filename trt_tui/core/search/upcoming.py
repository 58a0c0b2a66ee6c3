"""What a search may ask for next, whatever comes of what it asks for now: so that several configs are judged at once.

Strategies decide by answers alone, so a copy of the search that is told a guess goes on as the search itself will if
the guess is right. Guesses decide what is judged ahead of being asked for, and nothing else.
"""

import math
import time
from collections import deque
from collections.abc import Collection

from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.search.search import Search

MOST_COPIES = 4
"""For each config that is wanted, so many copies are told a guess at most."""


def upcoming(search: Search, count: int, seconds: float = math.inf, only: Collection[str] = ()
             ) -> list[PrecisionConfig]:
    """What is asked for now, then what may be asked for next, the likelier and the sooner first: ``count`` at most.

    Args:
        seconds: It is worth so long to guess.
        only: The steps that are of use; all of them where none is named.
    """
    until = time.monotonic() + seconds
    found: dict[object, PrecisionConfig] = {}
    open_: deque[Search] = deque([search])
    copies = 0
    while open_ and len(found) < count:
        now = open_.popleft()
        asked, config = now.asked, now.ask()
        if asked is None or config is None or only and asked.step not in only:
            continue
        found.setdefault(asked.key, config)
        if len(found) < count and copies < MOST_COPIES * count and time.monotonic() < until:
            likely = _guess(now).passed
            for passed in (likely, not likely):
                supposed = now.copied()
                supposed.tell(_guess(now, passed))
                open_.append(supposed)
                copies += 1
    return list(found.values())


def _guess(search: Search, passed: bool | None = None) -> Judgement:
    """What may come of what is asked for: the loss at the start without the shares of what is raised; whether that
    passes, where it is not given, by the largest loss that did."""
    asked, start = search.asked, search.board.start
    assert asked is not None, "something is asked for"
    whole = start.error if start is not None and math.isfinite(start.error) else 1.0
    loss = whole * max(0.0, 1 - sum(search.ranking.shares.get(name, 0.0) for name in asked.raised))
    if passed is None:
        passed = loss <= max((one.error for one in search.evaluations if one.judged(search.margins).passed), default=0)
    return Judgement(passed, math.inf if passed else -math.inf, loss=loss)
