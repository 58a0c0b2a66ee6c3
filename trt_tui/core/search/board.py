"""What a strategy knows when it starts."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.search.evaluation import Evaluation
from trt_tui.core.search.ranking import Ranking


@dataclass(frozen=True)
class LoweredLayer:
    """A layer that was lowered, the similarity at the judged outputs then, and whether it was raised again for good."""

    layer: str
    similarity: str
    sticks: bool


@dataclass
class Board:
    """The board that the strategies of one search share.

    Attributes:
        candidates: Groups that can be raised, in network order.
        fits: Whether a set of raised groups is within the budgets.
        start: The evaluation of the start.
        ranges: Replaced ranges that the search has decided on, by tensor.
        costs: What each group costs in the higher precision, in milliseconds or multiply-accumulates; empty where
            nothing is known.
        rows: What a strategy of `trt_tui.core.search.downwards` has tried, in that order.
        settled: The groups that stick after such a strategy; None before.
        free: Sets of free moves that the search has decided on.
    """

    candidates: tuple[str, ...]
    ranking: Ranking
    fits: Callable[[frozenset[str]], bool]
    start: Evaluation | None = None
    ranges: Mapping[str, RangeChoice] = field(default_factory=dict)
    rows: list[LoweredLayer] = field(default_factory=list)
    costs: Mapping[str, float] = field(default_factory=dict)
    settled: frozenset[str] | None = None
    free: tuple[str, ...] = ()

    def suspects(self, without: Iterable[str] = ()) -> list[str]:
        """All candidates except some, the most suspicious first."""
        left_out = frozenset(without)
        return [name for name in self.ranking.order if name not in left_out]

    def expected(self, name: str, now: Evaluation) -> float:
        """By how much the loss should fall when a group is raised; 0 if nothing is known about it.

        It is the group's share of the loss at the start, or of the loss now if the start's is not finite.
        """
        whole = next((one.error for one in (self.start, now) if one is not None and 0 < one.error < math.inf), 1.0)
        return self.ranking.shares.get(name, 0.0) * whole
