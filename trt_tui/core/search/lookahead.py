"""What a search may ask for next, whatever comes of what it asks for now: so that several configs are judged at once.

Strategies decide by answers alone, so a copy of the search that is told a guess goes on as the search itself will if
the guess is right. Guesses decide what is judged ahead of being asked for, and nothing else.
"""

import math
import time
from collections import deque
from collections.abc import Collection

from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.search.search import Search

MAX_COPIES_PER_CONFIG = 4
"""For each config that is wanted, so many copies are told a guess at most."""


def predict_next_configs(search: Search, max_configs: int, time_limit_s: float = math.inf,
                         step_names: Collection[str] = ()) -> list[PrecisionConfig]:
    """What is asked for now, then what may be asked for next, the likelier and the sooner first: ``max_configs`` at
    most.

    Args:
        time_limit_s: It is worth so long to guess.
        step_names: The steps that are of use; all of them where none is named.
    """
    until = time.monotonic() + time_limit_s
    configs_by_key: dict[object, PrecisionConfig] = {}
    open_: deque[Search] = deque([search])
    copies = 0
    while open_ and len(configs_by_key) < max_configs:
        current = open_.popleft()
        trial, config = current.current_trial, current.propose_config()
        if trial is None or config is None or step_names and trial.step_name not in step_names:
            continue
        configs_by_key.setdefault(trial.config_key, config)
        if len(configs_by_key) < max_configs and copies < MAX_COPIES_PER_CONFIG * max_configs and time.monotonic(
        ) < until:
            likely = _guess_target_result(current).passes
            for passed in (likely, not likely):
                guessing_search = current.copy()
                guessing_search.record_target_result(_guess_target_result(current, passed))
                open_.append(guessing_search)
                copies += 1
    return list(configs_by_key.values())


def _guess_target_result(search: Search, assumed_pass: bool | None = None) -> TargetResult:
    """What may come of what is asked for: the loss at the start without the shares of what is raised; whether that
    passes, where it is not given, by the largest loss that did."""
    trial, start = search.current_trial, search.context.start_evaluation
    assert trial is not None, "something is asked for"
    whole = start.comparable_loss if start is not None and math.isfinite(start.comparable_loss) else 1.0
    loss = whole * max(0.0, 1 - sum(search.ranking.expected_shares.get(name, 0.0) for name in trial.raised_groups))
    if assumed_pass is None:
        assumed_pass = loss <= max((evaluation.comparable_loss
                                    for evaluation in search.evaluations
                                    if evaluation.with_required_margins(search.margins).passes), default=0)
    return TargetResult(assumed_pass, math.inf if assumed_pass else -math.inf, loss=loss)
