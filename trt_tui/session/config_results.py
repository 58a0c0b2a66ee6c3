"""The results of a config against the targets: as simulated, as it is exported, and as built."""

from collections.abc import Mapping

from trt_tui.core.measure.target_result import TargetResult
from trt_tui.words import EXPORTED, SIMULATED

SIMULATED_RUN, ENGINE_RUN = "simulated", "engine"
"""The keys of the results beside `trt_tui.words.EXPORTED`."""

SUFFIXES = {SIMULATED_RUN: "", EXPORTED: f" {EXPORTED}", ENGINE_RUN: " engine"}
"""How the results of one config are told apart."""


def outcome_words(results: Mapping[str, TargetResult]) -> tuple[str, ...]:
    """The outcome of a config: as built where it was built, else as simulated; then what says otherwise.

    For example ``("FAIL", "~PASS")``; empty if nothing is known.
    """
    shown = results.get(ENGINE_RUN) or results.get(SIMULATED_RUN)
    if shown is None:
        return ()
    others = {SIMULATED: results.get(SIMULATED_RUN), f"{EXPORTED} ": results.get(EXPORTED)}
    return (shown.outcome.value, *(f"{mark}{other.outcome.value}" for mark, other in others.items()
                                   if other is not None and other.passes is not shown.passes))
