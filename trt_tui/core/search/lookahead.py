"""The prediction of configs that a search may request next, so that several configs can be evaluated at the same time.

A strategy depends only on the results of its trials. A copy of the search that receives a guessed result therefore
continues like the search itself if the guess is right. Guesses only decide which configs are evaluated early.
"""

import math
from collections import deque
from collections.abc import Collection

from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.search.search import Search

MAX_COPIES_PER_CONFIG = 4
"""The maximum number of search copies with a guessed result, for each config that is wanted."""


def predict_next_configs(search: Search, max_configs: int,
                         step_names: Collection[str] = ()) -> list[PrecisionConfig]:
    """Returns the config that a search requests now, and configs that it may request next.

    Likelier and earlier configs come first. There are at most ``max_configs``.

    Args:
        step_names: Names of the search steps whose configs are useful; empty for all steps.
    """
    configs_by_key: dict[object, PrecisionConfig] = {}
    open_: deque[Search] = deque([search])
    copies = 0
    while open_ and len(configs_by_key) < max_configs:
        current = open_.popleft()
        trial, config = current.current_trial, current.propose_config()
        if trial is None or config is None or step_names and trial.step_name not in step_names:
            continue
        configs_by_key.setdefault(trial.config_key, config)
        if len(configs_by_key) < max_configs and copies < MAX_COPIES_PER_CONFIG * max_configs:
            likely = _guess_target_result(current).passes
            for passed in (likely, not likely):
                guessing_search = current.copy()
                guessing_search.record_target_result(_guess_target_result(current, passed))
                open_.append(guessing_search)
                copies += 1
    return list(configs_by_key.values())


def _guess_target_result(search: Search, assumed_pass: bool | None = None) -> TargetResult:
    """Returns a guessed result of the current trial.

    The loss is that at the start without the error shares of the raised groups. The trial passes if its loss is at most
    the largest loss that has passed.

    Args:
        assumed_pass: The pass or fail to use instead of the guess; None for the guess.
    """
    trial, start = search.current_trial, search.context.start_evaluation
    assert trial is not None, "something is asked for"
    whole = start.comparable_loss if start is not None and math.isfinite(start.comparable_loss) else 1.0
    loss = whole * max(0.0, 1 - sum(search.ranking.expected_shares.get(name, 0.0) for name in trial.raised_groups))
    if assumed_pass is None:
        assumed_pass = loss <= max((evaluation.comparable_loss
                                    for evaluation in search.evaluations
                                    if evaluation.with_required_margins(search.margins).passes), default=0)
    return TargetResult(assumed_pass, math.inf if assumed_pass else -math.inf, loss=loss)
