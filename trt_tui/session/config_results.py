"""The results of a config against the targets: as simulated, as it is exported, and as built."""

from collections.abc import Mapping

from trt_tui.core.measure.results import Accuracy, ConfigResults
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.target_outcome import TargetOutcome
from trt_tui.formatting import EXPORTED, EXPORTED_NETWORK, SIMULATED_MARK

RESULT_SUFFIXES = {
    RunKind.SIMULATED_CONFIG: "",
    RunKind.TYPED_NETWORK: f" {EXPORTED}",
    RunKind.EXPORTED_FILE: f", {EXPORTED_NETWORK}",
    RunKind.BUILT_ENGINE: " engine"
}
"""How the results of one config are told apart."""


RECORD_KEYS = {
    RunKind.SIMULATED_CONFIG: "simulated",
    RunKind.TYPED_NETWORK: EXPORTED,
    RunKind.EXPORTED_FILE: "executed",
    RunKind.BUILT_ENGINE: "engine"
}
"""How the results of one config are told apart in records."""


def collect_run_accuracies(results: ConfigResults) -> dict[RunKind, Accuracy]:
    """Returns the accuracies of a config that are known, by run. An engine that was not built as requested has none."""
    exported_run, engine_result = results.exported_run, results.engine_result
    accuracies = {
        RunKind.SIMULATED_CONFIG: results.accuracy,
        RunKind.TYPED_NETWORK: results.exported_accuracy,
        RunKind.EXPORTED_FILE: exported_run.accuracy if exported_run is not None else None,
        RunKind.BUILT_ENGINE: engine_result.accuracy if engine_result is not None
        and engine_result.is_built_as_requested else None
    }
    return {kind: accuracy for kind, accuracy in accuracies.items() if accuracy is not None}


def find_decisive_outcome(outcomes: Mapping[RunKind, TargetOutcome]) -> TargetOutcome | None:
    """Returns the result that counts: of the engine, else of an exported network that fails, else as simulated.

    An exported network that passes confirms nothing, since ONNX Runtime builds no engine.
    """
    executed = outcomes.get(RunKind.EXPORTED_FILE)
    failed_export = executed if executed is not None and not executed.passes else None
    return outcomes.get(RunKind.BUILT_ENGINE) or failed_export or outcomes.get(RunKind.SIMULATED_CONFIG)


def outcome_texts(outcomes: Mapping[RunKind, TargetOutcome]) -> tuple[str, ...]:
    """The outcome of a config by `find_decisive_outcome`, then what says otherwise.

    For example ``("FAIL", "~PASS")``; empty if nothing is known.
    """
    shown_outcome = find_decisive_outcome(outcomes)
    if shown_outcome is None:
        return ()
    marks = {RunKind.SIMULATED_CONFIG: SIMULATED_MARK, RunKind.TYPED_NETWORK: f"{EXPORTED} ",
             RunKind.EXPORTED_FILE: f"{EXPORTED_NETWORK} "}
    return (shown_outcome.outcome.value, *(f"{mark}{outcomes[kind].outcome.value}" for kind, mark in marks.items()
                                           if kind in outcomes and outcomes[kind].passes is not shown_outcome.passes))
