"""The results of a config against the targets: as simulated, as it is exported, and as built."""

from collections.abc import Mapping

from trt_tui.core.measure.target_outcome import TargetOutcome
from trt_tui.formatting import EXPORTED, EXPORTED_NETWORK, SIMULATED_MARK

SIMULATED_RUN, EXECUTED_RUN, ENGINE_RUN = "simulated", "executed", "engine"
"""The keys of the results beside `trt_tui.formatting.EXPORTED`; executed is the exported file in ONNX Runtime."""

RESULT_SUFFIXES = {
    SIMULATED_RUN: "", EXPORTED: f" {EXPORTED}", EXECUTED_RUN: f", {EXPORTED_NETWORK}", ENGINE_RUN: " engine"
}
"""How the results of one config are told apart."""


def find_decisive_outcome(outcomes: Mapping[str, TargetOutcome]) -> TargetOutcome | None:
    """Returns the result that counts: of the engine, else of an exported network that fails, else as simulated.

    An exported network that passes confirms nothing, since ONNX Runtime builds no engine.
    """
    executed = outcomes.get(EXECUTED_RUN)
    failed_export = executed if executed is not None and not executed.passes else None
    return outcomes.get(ENGINE_RUN) or failed_export or outcomes.get(SIMULATED_RUN)


def outcome_texts(outcomes: Mapping[str, TargetOutcome]) -> tuple[str, ...]:
    """The outcome of a config by `find_decisive_outcome`, then what says otherwise.

    For example ``("FAIL", "~PASS")``; empty if nothing is known.
    """
    shown_outcome = find_decisive_outcome(outcomes)
    if shown_outcome is None:
        return ()
    other_results = {SIMULATED_MARK: outcomes.get(SIMULATED_RUN), f"{EXPORTED} ": outcomes.get(EXPORTED),
                     f"{EXPORTED_NETWORK} ": outcomes.get(EXECUTED_RUN)}
    return (shown_outcome.outcome.value, *(f"{mark}{result.outcome.value}" for mark, result in other_results.items()
                                           if result is not None and result.passes is not shown_outcome.passes))
