"""The search for the smallest set of fusion groups that need a higher precision to meet a tolerance."""

from trt_tui.core.search.search import SEARCH_METHODS, TOP_DOWN_METHODS, Search, SearchOutcome, SearchResult
from trt_tui.core.search.space import SearchSpace, lowest_precision_config, reduce_remaining_groups
from trt_tui.core.search.trials import Evaluation, ReductionStep, Trial, ZeroCostEffort

__all__ = [
    "TOP_DOWN_METHODS",
    "SEARCH_METHODS",
    "Evaluation",
    "ReductionStep",
    "SearchOutcome",
    "SearchResult",
    "Search",
    "SearchSpace",
    "Trial",
    "ZeroCostEffort",
    "reduce_remaining_groups",
    "lowest_precision_config",
]
