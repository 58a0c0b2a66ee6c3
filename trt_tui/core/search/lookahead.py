"""The prediction of configs that a search may request next, so that several configs can be evaluated at the same time.

A search depends only on the results of its trials. A copy of the search that receives a guessed result therefore
continues like the search itself if the guess is right. Guesses only decide which configs are evaluated early.
"""

import math
from collections import deque
from collections.abc import Collection

from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.search.search import Search
from trt_tui.core.search.trials import Trial

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
        trial = current.current_trial
        if trial is None or step_names and trial.step_name not in step_names:
            continue
        configs_by_key.setdefault(trial.config_key, current.build_config(trial))
        loss, likely = _guess_loss(current, trial)
        is_complete = len(configs_by_key) >= max_configs or copies >= MAX_COPIES_PER_CONFIG * max_configs
        for passed in () if is_complete else (likely, not likely):
            guessing_search = current.copy()
            if guessing_search.current_trial is not None:
                score = math.inf if passed else -math.inf
                guessing_search.record_target_result(TargetResult(passed, score, loss=loss))
            open_.append(guessing_search)
            copies += 1
    return list(configs_by_key.values())


def _guess_loss(search: Search, trial: Trial) -> tuple[float, bool]:
    """Returns the guessed loss of a trial, and whether the trial passes with it.

    The loss is that at the start without the error shares of the raised groups. The trial passes if its loss is at most
    the largest loss that has passed.
    """
    start = search.start_evaluation
    whole = start.comparable_loss if start is not None and math.isfinite(start.comparable_loss) else 1.0
    loss = whole * max(0.0, 1 - sum(search.expected_shares.get(name, 0.0) for name in trial.raised_groups))
    return loss, loss <= max((evaluation.comparable_loss for evaluation in search.evaluations
                              if evaluation.with_required_margins(search.margins).passes), default=0)
