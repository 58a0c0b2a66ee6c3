"""The results of a config against the targets: as simulated, as it is exported, and as built."""

from collections.abc import Mapping

from trt_tui.core.measure.target_result import TargetResult
from trt_tui.words import EXPORTED, EXPORTED_NETWORK, SIMULATED

SIMULATED_RUN, EXECUTED_RUN, ENGINE_RUN = "simulated", "executed", "engine"
"""The keys of the results beside `trt_tui.words.EXPORTED`; executed is the exported file in ONNX Runtime."""

SUFFIXES = {SIMULATED_RUN: "", EXPORTED: f" {EXPORTED}", EXECUTED_RUN: f", {EXPORTED_NETWORK}", ENGINE_RUN: " engine"}
"""How the results of one config are told apart."""


def shown_result(results: Mapping[str, TargetResult]) -> TargetResult | None:
    """Returns the result that counts: of the engine, else of an exported network that fails, else as simulated.

    An exported network that passes confirms nothing, since ONNX Runtime builds no engine.
    """
    executed = results.get(EXECUTED_RUN)
    refuting = executed if executed is not None and not executed.passes else None
    return results.get(ENGINE_RUN) or refuting or results.get(SIMULATED_RUN)


def outcome_words(results: Mapping[str, TargetResult]) -> tuple[str, ...]:
    """The outcome of a config by `shown_result`, then what says otherwise.

    For example ``("FAIL", "~PASS")``; empty if nothing is known.
    """
    shown = shown_result(results)
    if shown is None:
        return ()
    others = {SIMULATED: results.get(SIMULATED_RUN), f"{EXPORTED} ": results.get(EXPORTED),
              f"{EXPORTED_NETWORK} ": results.get(EXECUTED_RUN)}
    return (shown.outcome.value, *(f"{mark}{other.outcome.value}" for mark, other in others.items()
                                   if other is not None and other.passes is not shown.passes))
