"""Finding the smallest set of groups to raise: strategies that ask for configs, and the search that remembers them."""

from trt_tui.core.search.board import LoweredLayer
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.ranking import Ranking, best_ranking
from trt_tui.core.search.search import DOWNWARDS, SEARCH_METHODS, Outcome, Result, Search
from trt_tui.core.search.space import Space, lowered_beside, lowest
from trt_tui.core.search.upcoming import upcoming

__all__ = [
    "DOWNWARDS",
    "SEARCH_METHODS",
    "Evaluation",
    "LoweredLayer",
    "Outcome",
    "Ranking",
    "Result",
    "Search",
    "Space",
    "Trial",
    "best_ranking",
    "lowered_beside",
    "lowest",
    "upcoming",
]
