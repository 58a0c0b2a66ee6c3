"""The search for the smallest set of fusion groups that need a higher precision to meet a tolerance."""

from trt_tui.core.search.search import (
    SEARCH_METHODS,
    TOP_DOWN_METHODS,
    Evaluation,
    ReductionStep,
    Search,
    SearchOutcome,
    SearchResult,
    SearchSpace,
    Trial,
    ZeroCostEffort,
    build_reduced_start_config,
    lowest_precision_config,
)

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
    "build_reduced_start_config",
    "lowest_precision_config",
]
