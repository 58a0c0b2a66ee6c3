"""The search for the smallest set of fusion groups that need a higher precision to meet a tolerance.

Strategies request configs, and a `Search` stores their evaluations.
"""

from trt_tui.core.search.lookahead import predict_next_configs
from trt_tui.core.search.ranking import GroupRanking, choose_ranking
from trt_tui.core.search.search import SEARCH_METHODS, TOP_DOWN_METHODS, Search, SearchOutcome, SearchResult
from trt_tui.core.search.space import SearchSpace, lowest_precision_config, reduce_remaining_groups
from trt_tui.core.search.strategy_protocol import Evaluation, ReductionStep, Trial

__all__ = [
    "TOP_DOWN_METHODS",
    "SEARCH_METHODS",
    "Evaluation",
    "ReductionStep",
    "SearchOutcome",
    "GroupRanking",
    "SearchResult",
    "Search",
    "SearchSpace",
    "Trial",
    "choose_ranking",
    "reduce_remaining_groups",
    "lowest_precision_config",
    "predict_next_configs",
]
