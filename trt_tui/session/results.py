"""All measured results of a session: the results of each config, and the results of the network itself."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import singledispatchmethod
from typing import TypeVar

from trt_tui.core.calibration.statistics import DominantChannels, TensorStats
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.causes import GroupFacts
from trt_tui.core.measure.results import (
    NO_ENGINE_DOUBT,
    Accuracy,
    ConfigResults,
    EngineResult,
    RunResult,
    on_common_samples,
)
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.single_sample import SampleErrors, SingleSampleResult
from trt_tui.core.measure.stability import StabilityReport
from trt_tui.core.measure.stages import StageResult
from trt_tui.core.measure.target_outcome import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.formatting import EXPORTED, EXPORTED_NETWORK, SIMULATED_MARK
from trt_tui.jobs import events as ev

RESULT_SUFFIXES = {
    RunKind.SIMULATED_CONFIG: "",
    RunKind.TYPED_NETWORK: f" {EXPORTED}",
    RunKind.EXPORTED_FILE: f", {EXPORTED_NETWORK}",
    RunKind.BUILT_ENGINE: " engine"
}
"""The text behind a config's name that identifies the kind of its result."""

RECORD_KEYS = {
    RunKind.SIMULATED_CONFIG: "simulated",
    RunKind.TYPED_NETWORK: EXPORTED,
    RunKind.EXPORTED_FILE: "executed",
    RunKind.BUILT_ENGINE: "engine"
}
"""The key in records that identifies the kind of a config's result."""


K = TypeVar("K")
V = TypeVar("V")

MAX_RECENT_RESULTS, MAX_RECENT_CONFIGS = 32, 128
"""The maximum number of results of one kind that can be requested again, and of configs with all their results. One
screen shows about half as many configs."""


class RecentResults(dict[K, V]):
    """The newest results of one kind. The session requests an older result again when it is needed."""

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > MAX_RECENT_RESULTS:
            del self[next(iter(self))]


class SessionResults(Mapping[PrecisionConfig, ConfigResults]):
    """The measured results of each config, and of the network. Configs that differ only in the origins of their moves
    are equal.

    The configs used last have all their results. Of the others, configs that are listed or built keep the results of
    their runs, since a change to a config requests everything else again.

    Args:
        is_listed: Returns True if the session lists a config.

    Attributes:
        reference_metric: The metric of the reference and its parts, the headline first; empty without a metric.
        reference_sample_count: The number of samples of `reference_metric`.
        has_full_reference: True if these are all samples that judge all runs.
        stages: The stages on the way to production, by name in their order. The results of a stage that is a config are
            stored with the config.
        fp32_engine: The FP32 engine, compared with FP32 on the simulating backend.
        statistics: Tensor statistics of the inputs and the output of a group in FP32, by group name and tensor name.
        group_facts: The facts of a group from which causes of its loss are found, by group name.
        sample_errors: The error of each sample, by config.
        single_samples: The results on single samples, by config and sample.
        weight_ranges: The ranges of the channels of a group's weights, by group name and tensor name.
        remedies: The remedies for a group, by group name and the config in which they were measured.
        zero_cost_changes: The zero-cost changes of a group and of the network, by group name and config.
        stability: The spread between several engines; None if fewer than two were measured.
    """

    def __init__(self, is_listed: Callable[[PrecisionConfig], bool] = lambda config: False) -> None:
        self._is_listed = is_listed
        self.reference_metric: Mapping[str, float] = {}
        self.reference_sample_count = 0
        self.has_full_reference = False
        self.fp32_engine: EngineResult | None = None
        self.stages: dict[str, StageResult] = {}
        self.statistics: dict[str, Mapping[str, TensorStats]] = {}
        self.group_facts: dict[str, GroupFacts] = {}
        self.sample_errors = RecentResults[PrecisionConfig, SampleErrors]()
        self.single_samples = RecentResults[tuple[PrecisionConfig, SampleName], SingleSampleResult]()
        self.weight_ranges: dict[str, Mapping[str, DominantChannels]] = {}
        self.remedies = RecentResults[tuple[str, PrecisionConfig], tuple[ev.Remedy, ...]]()
        self.zero_cost_changes = RecentResults[tuple[str, PrecisionConfig], ev.ZeroCostChangesMeasured]()
        self.stability: StabilityReport | None = None
        self._configs: dict[PrecisionConfig, ConfigResults] = {}

    def __getitem__(self, config: PrecisionConfig) -> ConfigResults:
        return self._configs[config]

    def __iter__(self) -> Iterator[PrecisionConfig]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def get_results_or_empty(self, config: PrecisionConfig) -> ConfigResults:
        """Returns the results of a config; an empty `ConfigResults` if nothing was measured."""
        return self.get_or_create_results(config) if config in self._configs else ConfigResults()

    def get_or_create_results(self, config: PrecisionConfig) -> ConfigResults:
        """Returns the stored results of a config, which the caller may change. An empty entry is created if there is
        none."""
        is_new = config not in self._configs
        results = self._configs[config] = self._configs.pop(config) if not is_new else ConfigResults()
        for old in list(self._configs)[:-MAX_RECENT_CONFIGS] if is_new else ():
            runs = self._configs[old].runs
            if self._is_listed(old) or runs.keys() - {RunKind.SIMULATED_CONFIG}:
                self._configs[old] = ConfigResults(runs)
            else:
                del self._configs[old]
        return results

    @singledispatchmethod
    def apply(self, event: ev.Event) -> None:
        """Stores the results that an event contains.

        Raises:
            TypeError: The event contains no results.
        """
        raise TypeError(f"{type(event).__name__} measures nothing")

    @apply.register
    def _apply_reference_metric(self, event: ev.ReferenceMetricMeasured) -> None:
        self.reference_metric, self.reference_sample_count = dict(event.metric), event.samples

    @apply.register
    def _apply_accuracy(self, event: ev.AccuracyMeasured) -> None:
        """Keeps an accuracy; of two that are not final the one on more samples stands."""
        measured = self.get_or_create_results(event.config)
        known = measured.get_accuracy(event.kind)
        if known is None or event.final or event.accuracy.samples >= known.samples:
            measured.store_accuracy(event.accuracy, event.kind)

    @apply.register
    def _apply_group_errors(self, event: ev.GroupErrorsMeasured) -> None:
        measured = self.get_or_create_results(event.config)
        measured.group_errors, measured.has_all_group_errors = dict(event.groups), event.final

    @apply.register
    def _apply_shares(self, event: ev.ErrorSharesMeasured) -> None:
        self.get_or_create_results(event.config).shares.update(event.shares)

    @apply.register
    def _apply_cumulative_raise(self, event: ev.CumulativeRaiseMeasured) -> None:
        measured = self.get_or_create_results(event.config)
        measured.raised_order, measured.cumulative = event.order, event.accuracies

    @apply.register
    def _apply_remedies(self, event: ev.RemediesMeasured) -> None:
        accuracies = on_common_samples([option.accuracy for option in event.options])
        self.remedies[event.group, event.config] = tuple(
            replace(option, compared_accuracy=accuracy)
            for option, accuracy in zip(event.options, accuracies, strict=True))
        for option in event.options:
            self.store_missing_accuracy(option.config, option.accuracy)

    @apply.register
    def _apply_zero_cost_changes(self, event: ev.ZeroCostChangesMeasured) -> None:
        self.zero_cost_changes[event.group, event.config] = event
        for change in event.changes:
            if change.accuracy is not None:
                self.store_missing_accuracy(change.config, change.accuracy)

    def store_missing_accuracy(self, config: PrecisionConfig, accuracy: Accuracy) -> None:
        """Stores an accuracy of a config, unless the config has an accuracy already."""
        measured = self.get_or_create_results(config)
        if measured.accuracy is None:
            measured.store_accuracy(accuracy)

    @apply.register
    def _apply_stored_results(self, event: ev.StoredResultsLoaded) -> None:
        """Keeps stored results; what was measured since stands."""
        measured = self.get_or_create_results(event.config)
        measured.runs = {**event.runs, **measured.runs}

    @apply.register
    def _apply_stability(self, event: ev.StabilityMeasured) -> None:
        self.stability = event.report

    @apply.register
    def _apply_exported_run(self, event: ev.ExportedFileExecuted) -> None:
        self.get_or_create_results(event.config).runs[RunKind.EXPORTED_FILE] = event.result

    @apply.register
    def _apply_stage(self, event: ev.StageMeasured) -> None:
        self.stages[event.stage.run.name] = event.stage

    def find_stage_result(self, stage: StageResult) -> RunResult | None:
        """Returns the result of a stage; that of a config is kept under the config."""
        if stage.run.config is None or stage.run.unavailable_reason:
            return stage.result
        return self.get_results_or_empty(stage.run.config).runs.get(stage.run.kind)

    @apply.register
    def _apply_tensor_stats(self, event: ev.TensorStatsMeasured) -> None:
        self.statistics[event.group] = dict(event.tensors)
        self.weight_ranges[event.group] = dict(event.weights)
        self.group_facts[event.group] = event.facts

    @apply.register
    def _apply_sample_errors(self, event: ev.SampleErrorsMeasured) -> None:
        self.sample_errors[event.config] = event.errors

    @apply.register
    def _apply_single_sample(self, event: ev.SingleSampleMeasured) -> None:
        self.single_samples[event.config, event.sample.name] = event.sample

    @apply.register
    def _apply_fp32_engine(self, event: ev.Fp32EngineMeasured) -> None:
        self.fp32_engine = event.result

    @apply.register
    def _apply_engine_errors(self, event: ev.EngineErrorsMeasured) -> None:
        measured = self.get_or_create_results(event.config)
        if measured.engine_result is not None:
            measured.runs[RunKind.BUILT_ENGINE] = replace(measured.engine_result, engine_errors=event.errors)

    @apply.register
    def _apply_preview(self, event: ev.EnginePreviewed) -> None:
        self.get_or_create_results(event.config).preview = event.preview

    def store_engine_result(self, config: PrecisionConfig, result: EngineResult) -> None:
        """Stores the engine of a config."""
        self.get_or_create_results(config).runs[RunKind.BUILT_ENGINE] = result


def collect_run_accuracies(results: ConfigResults) -> dict[RunKind, Accuracy]:
    """Returns the known accuracies of a config by kind of run. An engine that was not built as requested has none."""
    is_requested_engine = results.engine_result is not None and results.engine_result.is_built_as_requested
    return {kind: accuracy for kind in RunKind if (accuracy := results.get_accuracy(kind)) is not None
            and (kind is not RunKind.BUILT_ENGINE or is_requested_engine)}


def find_decisive_outcome(outcomes: Mapping[RunKind, TargetOutcome]) -> TargetOutcome | None:
    """Returns the target result that counts: of the engine, or of the simulation.

    The result of the exported network counts instead of the simulation's if it fails, or if its values are in doubt and
    those of the simulation are not. Otherwise it confirms nothing, because ONNX Runtime builds no engine.
    """
    built, executed, simulated = (outcomes.get(kind) for kind in (RunKind.BUILT_ENGINE, RunKind.EXPORTED_FILE,
                                                                  RunKind.SIMULATED_CONFIG))
    if built is None and executed is not None and (not executed.passes or (
            simulated is None or simulated.outcome is Outcome.PASS) and any(
                not reason.endswith(NO_ENGINE_DOUBT) for reason in executed.reasons)):
        return executed
    return built or simulated


def outcome_texts(outcomes: Mapping[RunKind, TargetOutcome]) -> tuple[str, ...]:
    """Returns the target result of `find_decisive_outcome` as text, followed by the other results that differ.

    For example ``("FAIL", "~PASS")``; empty if there are no results.
    """
    shown_outcome = find_decisive_outcome(outcomes)
    if shown_outcome is None:
        return ()
    marks = {RunKind.SIMULATED_CONFIG: SIMULATED_MARK, RunKind.TYPED_NETWORK: f"{EXPORTED} ",
             RunKind.EXPORTED_FILE: f"{EXPORTED_NETWORK} "}
    return (shown_outcome.outcome.value, *(f"{mark}{outcomes[kind].outcome.value}" for kind, mark in marks.items()
                                           if kind in outcomes and outcomes[kind].passes is not shown_outcome.passes))
