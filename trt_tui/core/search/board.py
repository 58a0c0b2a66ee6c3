"""What a strategy knows when it begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.search.evaluation import Evaluation
from trt_tui.core.search.ranking import Ranking


@dataclass(frozen=True)
class LoweredLayer:
    """A layer that was lowered, the judged similarity then, and whether it sticks to the higher precision."""

    layer: str
    similarity: str
    sticks: bool


@dataclass
class Board:
    """The board that the strategies of one search share.

    Attributes:
        candidates: Groups that can be raised, in network order.
        base: Groups to begin with (presets); every strategy raises at least these.
        fits: Whether raising some groups stays within the budgets.
        start: The evaluation of the start.
        ranges: Replaced ranges that the search has settled on, by tensor.
        rows: What `scoped` saw, in its order.
    """

    candidates: tuple[str, ...]
    ranking: Ranking
    base: frozenset[str]
    fits: Callable[[frozenset[str]], bool]
    start: Evaluation | None = None
    ranges: Mapping[str, RangeChoice] = field(default_factory=dict)
    rows: list[LoweredLayer] = field(default_factory=list)

    def suspects(self, without: Iterable[str] = ()) -> list[str]:
        """Candidates but for some, most suspicious first."""
        left_out = frozenset(without)
        return [name for name in self.ranking.order if name not in left_out]

    def expected(self, name: str, now: Evaluation) -> float:
        """How much the loss is expected to fall when a group is raised, by its share of the start's loss, or of what is
        left now where the start's is not finite; 0 where nothing is known."""
        whole = next((one.error for one in (self.start, now) if one is not None and 0 < one.error < math.inf), 1.0)
        return self.ranking.shares.get(name, 0.0) * whole
