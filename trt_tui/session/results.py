"""All measured results of a session: the results of each config, and the results of the network itself."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import singledispatchmethod
from typing import Any

from trt_tui.core.measure.results import (
    FP32_ENGINE,
    Accuracy,
    ConfigResults,
    EngineResult,
    K,
    ResultKind,
    RunKind,
    RunResult,
    V,
)
from trt_tui.core.measure.stages import StageResult
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.formatting import EXPORTED, EXPORTED_NETWORK, SIMULATED_MARK
from trt_tui.jobs import events as ev

RESULT_SUFFIXES = {
    RunKind.SIMULATED_CONFIG: "",
    RunKind.TYPED_NETWORK: f" {EXPORTED}",
    RunKind.EXPORTED_FILE: f", {EXPORTED_NETWORK}",
    RunKind.BUILT_ENGINE: " engine",
}
"""The text behind a config's name that identifies the kind of its result."""

RECORD_KEYS = {
    RunKind.SIMULATED_CONFIG: "simulated",
    RunKind.TYPED_NETWORK: EXPORTED,
    RunKind.EXPORTED_FILE: "executed",
    RunKind.BUILT_ENGINE: "engine",
}
"""The key in records that identifies the kind of a config's result."""


MAX_RECENT_CONFIGS = 128
"""The maximum number of configs with all their results. One screen shows about half as many configs."""


class SessionResults(dict[PrecisionConfig, ConfigResults]):
    """The measured results of each config, and of the network.

    Configs that differ only in the origins of their moves are equal. The configs used last keep all their results.
    Older configs that are listed or built keep only the results of their runs. Everything else is requested again when
    such a config becomes the current one.

    Args:
        is_listed: Returns True if the session lists a config.

    Attributes:
        reference_metric: The metric of the reference and its parts, the headline first; empty without a metric.
        reference_sample_count: The number of samples of `reference_metric`.
        has_full_reference: True if these are all samples that judge all runs.
    """

    def __init__(self, is_listed: Callable[[PrecisionConfig], bool] = lambda config: False) -> None:
        super().__init__()
        self._is_listed = is_listed
        self.reference_metric: Mapping[str, float] = {}
        self.reference_sample_count = 0
        self.has_full_reference = False
        self._measured: defaultdict[ResultKind[Any, Any], dict[Any, Any]] = defaultdict(dict)

    def get_results_or_empty(self, config: PrecisionConfig) -> ConfigResults:
        """Returns the results of a config; an empty `ConfigResults` if nothing was measured."""
        return self.get_or_create_results(config) if config in self else ConfigResults()

    def get_or_create_results(self, config: PrecisionConfig) -> ConfigResults:
        """Returns the stored results of a config, which the caller may change. An empty entry is created if there is
        none."""
        is_new = config not in self
        results = self[config] = ConfigResults() if is_new else self.pop(config)
        for old in list(self)[:-MAX_RECENT_CONFIGS] if is_new else ():
            runs = self[old].runs
            if self._is_listed(old) or runs.keys() - {RunKind.SIMULATED_CONFIG}:
                self[old] = ConfigResults(runs)
            else:
                del self[old]
        return results

    @singledispatchmethod
    def store_event_results(self, event: ev.Event) -> None:
        """Stores the results of an event.

        Raises:
            TypeError: The event contains no results.
        """
        raise TypeError(f"{type(event).__name__} measures nothing")

    @store_event_results.register
    def _store_reference_metric(self, event: ev.ReferenceMetricMeasured) -> None:
        self.reference_metric, self.reference_sample_count = dict(event.metric), event.samples
        self.has_full_reference = event.final

    @store_event_results.register
    def _store_accuracy(self, event: ev.AccuracyMeasured) -> None:
        """Stores an accuracy. Of two accuracies that are not final, the one on more samples is kept."""
        measured = self.get_or_create_results(event.config)
        known = measured.get_accuracy(event.kind)
        if known is None or event.final or event.accuracy.samples >= known.samples:
            measured.store_accuracy(event.accuracy, event.kind)

    @store_event_results.register
    def _store_group_errors(self, event: ev.GroupErrorsMeasured) -> None:
        measured = self.get_or_create_results(event.config)
        measured.group_errors, measured.has_all_group_errors = dict(event.groups), event.final

    @store_event_results.register
    def _store_error_shares(self, event: ev.ErrorSharesMeasured) -> None:
        measured = self.get_or_create_results(event.config)
        measured.shares.update(event.shares)
        measured.has_all_shares = event.done == event.total

    @store_event_results.register
    def _store_measured_value(self, event: ev.ValueMeasured) -> None:
        self.store_value(event.kind, event.key, event.value)
        for config, accuracy in event.accuracies.items():
            self.store_missing_accuracy(config, accuracy)

    def store_value(self, kind: ResultKind[K, V], key: K, value: V) -> None:
        """Stores a measured value. If there are more values than `ResultKind.max_kept`, the oldest is removed."""
        values = self.get_values(kind)
        values.pop(key, None)
        values[key] = value
        if kind.max_kept is not None and len(values) > kind.max_kept:
            del values[next(iter(values))]

    def get_values(self, kind: ResultKind[K, V]) -> dict[K, V]:
        """Returns the stored values of a kind by key, the newest last."""
        return self._measured[kind]

    def find_value(self, kind: ResultKind[K, V], key: K) -> V | None:
        """Returns the stored value of a kind under a key; None if there is none."""
        return self.get_values(kind).get(key)

    @property
    def fp32_engine(self) -> EngineResult | None:
        return self.find_value(FP32_ENGINE, None)

    def store_missing_accuracy(self, config: PrecisionConfig, accuracy: Accuracy) -> None:
        """Stores an accuracy of a config, unless the config has an accuracy on as many samples already."""
        measured = self.get_or_create_results(config)
        if measured.accuracy is None or measured.accuracy.samples < accuracy.samples:
            measured.store_accuracy(accuracy)

    @store_event_results.register
    def _store_stored_results(self, event: ev.StoredResultsLoaded) -> None:
        """Stores results of an earlier run of the program. Results that this run has measured are kept."""
        measured = self.get_or_create_results(event.config)
        measured.runs = {**event.runs, **measured.runs}

    @store_event_results.register
    def _store_exported_run(self, event: ev.ExportedFileExecuted) -> None:
        self.get_or_create_results(event.config).runs[RunKind.EXPORTED_FILE] = event.result

    def find_stage_result(self, stage: StageResult) -> RunResult | None:
        """Returns the result of a stage; None if it is unknown.

        The result of a stage that executes a config is stored with the results of the config.
        """
        if stage.run.config is None or stage.run.unavailable_reason:
            return stage.result
        return self.get_results_or_empty(stage.run.config).runs.get(stage.run.kind)

    @store_event_results.register
    def _store_preview(self, event: ev.EnginePreviewed) -> None:
        self.get_or_create_results(event.config).preview = event.preview

    def store_engine_result(self, config: PrecisionConfig, result: EngineResult) -> None:
        """Stores the engine of a config."""
        self.get_or_create_results(config).runs[RunKind.BUILT_ENGINE] = result


def collect_run_accuracies(results: ConfigResults) -> dict[RunKind, Accuracy]:
    """Returns the known accuracies of a config by kind of run. An engine that was not built as requested has none."""
    is_requested_engine = results.engine_result is not None and results.engine_result.is_built_as_requested
    return {
        kind: accuracy
        for kind in RunKind
        if (accuracy := results.get_accuracy(kind)) is not None
        and (kind is not RunKind.BUILT_ENGINE or is_requested_engine)
    }


def find_decisive_outcome(outcomes: Mapping[RunKind, TargetOutcome]) -> TargetOutcome | None:
    """Returns the target result that decides about a config: of the engine, or else of the simulation.

    The result of the exported network replaces that of the simulation in two cases: it fails, or only its values are in
    doubt. In other cases it confirms nothing, because ONNX Runtime builds no engine.
    """
    built, executed, simulated = (
        outcomes.get(kind) for kind in (RunKind.BUILT_ENGINE, RunKind.EXPORTED_FILE, RunKind.SIMULATED_CONFIG)
    )
    if (
        built is None
        and executed is not None
        and (not executed.passes or (simulated is None or simulated.outcome is Outcome.PASS) and executed.reasons)
    ):
        return executed
    return built or simulated


def outcome_texts(outcomes: Mapping[RunKind, TargetOutcome]) -> tuple[str, ...]:
    """Returns the target result of `find_decisive_outcome` as text, followed by the other results that differ.

    For example ``("FAIL", "~PASS")``; empty if there are no results.
    """
    shown_outcome = find_decisive_outcome(outcomes)
    if shown_outcome is None:
        return ()
    marks = {
        RunKind.SIMULATED_CONFIG: SIMULATED_MARK,
        RunKind.TYPED_NETWORK: f"{EXPORTED} ",
        RunKind.EXPORTED_FILE: f"{EXPORTED_NETWORK} ",
    }
    return (
        shown_outcome.outcome.value,
        *(
            f"{mark}{outcomes[kind].outcome.value}"
            for kind, mark in marks.items()
            if kind in outcomes and outcomes[kind].passes is not shown_outcome.passes
        ),
    )
