"""The events that the background process sends to the program. All events are frozen and picklable.

An event contains the number of its job. The receiver drops the events of jobs that were stopped or replaced.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import ShapeRange
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.guards.guards import GuardFacts
from trt_tui.core.measure.dump_comparison import TensorDifference, TensorSummary
from trt_tui.core.measure.engine_agreement import QdqRemoval
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.results import (
    MAX_RECENT_RESULTS,
    Accuracy,
    EngineResult,
    ErrorShare,
    ExportedResult,
    ExportedRun,
    GroupErrors,
    ResultKind,
    Run,
    RunKind,
    RunResult,
)
from trt_tui.core.measure.run_sources import ReferenceInfo
from trt_tui.core.measure.target import HeldOutResult, TargetOutcome
from trt_tui.core.measure.zero_cost_kinds import ConfigProposal
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import LoadedConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.runner import ExecutionMode
from trt_tui.core.search import Evaluation, SearchResult, Trial, ZeroCostEffort
from trt_tui.errors import TrtTuiError


@dataclass(frozen=True)
class DataSummary:
    """The source of the samples, and the number of samples for each purpose. Batches are not counted.

    Attributes:
        what_if_count: The samples in use. A run that some of them calibrate is judged on the others.
        shapes: The smallest, usual and largest shapes of the dynamic inputs.
    """

    source: str
    judged_count: int
    calibration_count: int
    what_if_count: int
    is_random: bool
    label_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)


@dataclass(frozen=True)
class BackendSummary:
    """The backend that executes the simulation.

    Attributes:
        real_fp16: True if the backend computes FP16 in FP16.
    """

    name: str
    version: str
    device: str
    real_fp16: bool


@dataclass(frozen=True)
class BuilderSummary:
    """The backend that builds engines.

    Attributes:
        device: The name of the GPU; "" without a GPU.
        can_run: True if engines can be executed on this machine.
        compute_capability: The compute capability of the GPU; None if it is unknown.
    """

    name: str
    version: str
    device: str
    can_run: bool
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Event:
    """A message from the background process to the program.

    Attributes:
        changes_rows: True if the event may change values in the rows of the app. All other parts of the screen are
            drawn again after every event.
        job: The number of the job that the event belongs to.
    """

    changes_rows: ClassVar[bool] = True
    job: int

    def __init_subclass__(cls, changes_rows: bool | None = None) -> None:
        cls.changes_rows = cls.changes_rows if changes_rows is None else changes_rows


@dataclass(frozen=True)
class ResultEvent(Event):
    """An event with measured values, which `trt_tui.session.results.SessionResults` stores."""


@dataclass(frozen=True)
class ValueMeasured(ResultEvent, changes_rows=False):
    """A measured value that the session only keeps and shows. It may be sent again as more values are measured.

    Attributes:
        kind: The kind of the value, which also says what the key is.
        accuracies: The accuracies of configs that were measured on the way. They count where no accuracy is known.
    """

    kind: ResultKind[Any, Any]
    key: Hashable
    value: object
    accuracies: Mapping[PrecisionConfig, Accuracy] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandAnswer(Event, changes_rows=False):
    """The answer to the request of a command. `SessionState.last_answer` holds the newest answer."""


@dataclass(frozen=True)
class LayersListed(Event, changes_rows=False):
    """The event with the layers of a network that was opened without data and backends."""

    outline: NetworkOutline


@dataclass(frozen=True)
class NetworkOpened(Event):
    """The event that is sent when the network, the data and the backend are open.

    Attributes:
        judged_outputs: The outputs at which accuracy is measured.
        metric: The name of the user's metric; None without a metric.
        reference: The external reference; None if the reference is the network itself in FP32.
    """

    outline: NetworkOutline
    judged_outputs: tuple[JudgedOutput, ...]
    data: DataSummary
    backend: BackendSummary
    metric: str | None = None
    reference: ReferenceInfo | None = None


@dataclass(frozen=True)
class FilesHashed(Event):
    """The event with the fingerprint of the opened network and data, which is sent when large files are hashed."""

    source: Fingerprint


@dataclass(frozen=True)
class ConfigRead(Event, changes_rows=False):
    """The event with the config file of the user, which was read after the network was opened."""

    loaded: LoadedConfig


@dataclass(frozen=True)
class BuilderReady(Event):
    """The event that is sent when a backend can build engines. It is not sent if only ONNX Runtime works here."""

    builder: BuilderSummary


@dataclass(frozen=True)
class CalibrationReady(Event, changes_rows=False):
    """The event that is sent when ranges are available: measured, or from a file or an earlier process."""

    calibration: Calibration


@dataclass(frozen=True)
class GuardFactsMeasured(Event, changes_rows=False):
    """The event with the guard facts that this job has measured (`trt_tui.core.guards`)."""

    facts: GuardFacts


@dataclass(frozen=True)
class JobProgress(Event, changes_rows=False):
    """The progress of a job.

    Attributes:
        total: The number of steps; 0 if the end is unknown.
        left_s: The estimated time left in seconds.
    """

    phase: str
    done: int
    total: int
    left_s: float | None = None


@dataclass(frozen=True)
class ReferenceMetricMeasured(ResultEvent):
    """The event with the metric of the reference on the samples that judge every run.

    Attributes:
        final: True if all of these samples are measured.
    """

    metric: Mapping[str, float]
    samples: int
    final: bool


@dataclass(frozen=True)
class AccuracyMeasured(ResultEvent):
    """The event with the accuracy of a config in one kind of run.

    Attributes:
        final: True if all judged samples are measured.
    """

    run: str
    config: PrecisionConfig
    accuracy: Accuracy
    final: bool
    kind: RunKind = RunKind.SIMULATED_CONFIG


@dataclass(frozen=True)
class GroupErrorsMeasured(ResultEvent):
    """The event with the errors at the groups of a run, by group name, on the samples measured so far.

    Attributes:
        final: True if the errors cover all samples.
    """

    run: str
    config: PrecisionConfig
    groups: Mapping[str, GroupErrors]
    final: bool


@dataclass(frozen=True)
class ErrorSharesMeasured(ResultEvent):
    """The event with the error shares of some groups of a config. The receiver collects the shares of several events.

    Attributes:
        done, total: The number of measured groups, and of all groups.
    """

    run: str
    config: PrecisionConfig
    shares: Mapping[str, ErrorShare]
    done: int
    total: int


RAISED_ACCURACIES = ResultKind[PrecisionConfig, tuple[Accuracy, ...]]("accuracies when raised", MAX_RECENT_RESULTS)
"""The accuracies of a config after the worst 1, 2, ... groups are raised to FP32."""


ZERO_COST_KEY = "9"
"""The key that selects the remedies without run-time cost."""


@dataclass(frozen=True, kw_only=True)
class Remedy(ConfigProposal):
    """A change that may reduce the error of a group, with the key that selects it, and the accuracy of its config.

    Attributes:
        compared_accuracy: The accuracy on the samples that judge all remedies of a list; None if these are all samples.
    """

    key: str
    accuracy: Accuracy
    compared_accuracy: Accuracy | None = None

    @property
    def shown_accuracy(self) -> Accuracy:
        return self.compared_accuracy or self.accuracy


@dataclass(frozen=True, kw_only=True)
class ZeroCostChange(ConfigProposal):
    """A zero-cost change that the user can choose.

    Attributes:
        is_for_network: True if the change is made wherever the network allows it; False for a single group.
        accuracy: The simulated accuracy of the config; None if it is not measured yet.
        added_kernels: The number of kernels that the previewed engine has more than without the change; None if it is
            unknown.
        attention_kernels: The numbers of fused attentions (MHA) in the previewed engines without and with the change;
            None if they are unknown.
    """

    is_for_network: bool = False
    accuracy: Accuracy | None = None
    added_kernels: int | None = None
    attention_kernels: tuple[int, int] | None = None


@dataclass(frozen=True)
class ZeroCostChanges:
    """The zero-cost changes that were found for a group and for the whole network in a config.

    Attributes:
        is_complete: True if all changes are listed and measured.
    """

    changes: tuple[ZeroCostChange, ...]
    is_complete: bool = False


REMEDIES = ResultKind[tuple[str, PrecisionConfig], tuple[Remedy, ...]]("remedies", MAX_RECENT_RESULTS)
"""The remedies for a group, by group name and the config in which they were tried."""

ZERO_COST_CHANGES = ResultKind[tuple[str, PrecisionConfig], ZeroCostChanges]("zero-cost changes", MAX_RECENT_RESULTS)
"""The zero-cost changes, by the name of the group whose changes are among them ("" for none) and the config."""


@dataclass(frozen=True)
class RequestedRangesReady(Event, changes_rows=False):
    """The event with the requested ranges, by tensor."""

    ranges: Mapping[str, RangeMove]


@dataclass(frozen=True)
class RangeMethodResult:
    """The accuracy of a config with the ranges of one range method.

    Attributes:
        seconds: The duration of the calibration.
        samples: The number of calibration samples.
    """

    method: str
    accuracy: Accuracy
    seconds: float
    samples: int


@dataclass(frozen=True)
class RangeMethodComparison:
    """The accuracy of a config for each range method compared so far."""

    config: PrecisionConfig
    rows: tuple[RangeMethodResult, ...]


METHOD_COMPARISON = ResultKind[None, RangeMethodComparison]("range methods")
"""The last comparison of range methods."""


@dataclass(frozen=True)
class EngineBuilt(Event):
    """The event with the engine of a config. If there is no engine, it contains the reason.

    It is sent again with the errors inside the engine.
    """

    config: PrecisionConfig
    result: EngineResult


@dataclass(frozen=True)
class ExportedFileExecuted(ResultEvent, changes_rows=False):
    """The event with the execution of a config's exported file, or the reason why there is none."""

    config: PrecisionConfig
    result: ExportedRun


@dataclass(frozen=True)
class StoredResultsLoaded(ResultEvent, changes_rows=False):
    """The event with the results of a config that an earlier run of the program has stored."""

    config: PrecisionConfig
    runs: Mapping[RunKind, RunResult]


@dataclass(frozen=True)
class SearchProgress(Event, changes_rows=False):
    """The event before each evaluation of a search, with the best result so far.

    Attributes:
        done: The number of evaluations so far.
        trial: The config to be evaluated, with the step of the search that requests it; "search" between evaluations.
        result: The best result so far.
        has_other_samples: True if the values belong to other samples than those of the session.
        margins: The lowest score of each tolerance that the search requires; see `SearchEnded`.
        remarks: Further information so far, such as the reason why the search went on after a result.
    """

    done: int
    trial: Trial
    result: SearchResult
    has_other_samples: bool = False
    margins: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchEnded(Event):
    """The event with the result of a search.

    If the search was stopped, the outcome of the result is that the search has not ended.

    Attributes:
        description: The steps of the method with their reasons, as text.
        evaluations: All evaluations, in their order.
        candidate_count: The number of groups that could be raised.
        used_method: False if the search ended before the method began.
        confirmed: True if the engine of the result meets the tolerance too; None if no engine was built and measured.
        remarks: Further information, one sentence each.
        was_stopped: True if the search was stopped. A smaller set of groups may then exist, even if the result meets
            the tolerance.
        held_out: The accuracy on held-out samples; None if there are too few.
        engine_texts: The results of the engines of evaluations as texts, by index of the evaluation.
        pareto_front: The indices of the evaluations on the Pareto front in cost and score, the cheapest first. The cost
            is the estimated latency, or the cost of the raised groups without an estimate
            (`trt_tui.core.search.Search.costs`).
        margins: The lowest score of each tolerance that the search required, because an exported network or an engine
            yielded less than was simulated; () without such a margin.
        target_outcome: The outcome of the result for all tolerances and the user's command, with the exported file
            taken into account; None without a result.
        exported: The exported file of the result; None if the simulated result does not meet the tolerances.
        has_other_samples: True if the values belong to other samples than those of the session.
        qdq_removals: The removals of unused Q/DQ, in their order: those in the result, and those that were rejected.
        zero_cost_effort: The number of zero-cost changes that were tried, within their budget.
        missed_checks: What the exported network and the engine of an evaluation yielded, if they missed the target, by
            index of the evaluation.
    """

    result: SearchResult
    description: str
    evaluations: tuple[Evaluation, ...]
    candidate_count: int
    used_method: bool = True
    confirmed: bool | None = None
    remarks: tuple[str, ...] = ()
    was_stopped: bool = False
    held_out: HeldOutResult | None = None
    engine_texts: Mapping[int, str] = field(default_factory=dict)
    pareto_front: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()
    target_outcome: TargetOutcome | None = None
    exported: ExportedResult | None = None
    has_other_samples: bool = False
    qdq_removals: tuple[QdqRemoval, ...] = ()
    zero_cost_effort: ZeroCostEffort = field(default_factory=ZeroCostEffort)
    missed_checks: Mapping[int, Mapping[RunKind, str]] = field(default_factory=dict)

    def find_missed_checks(self, config: PrecisionConfig) -> dict[RunKind, str]:
        """Returns the checks of the search that a config misses, by run: its exported network, its engine, or its
        simulation on held-out samples."""
        checks = {run: f"on the samples of the search {text}" for run, text in self._find_missed_runs(config).items()}
        miss_text = self.held_out.miss_text if self.held_out is not None and config == self.result.config else ""
        return checks | ({RunKind.SIMULATED_CONFIG: miss_text} if miss_text else {})

    @property
    def passed_checks(self) -> set[RunKind]:
        """The runs of the result that were checked and meet the target, the simulated one on held-out samples."""
        checks = {
            RunKind.SIMULATED_CONFIG: self.held_out is not None and self.held_out.target_result.passes,
            RunKind.EXPORTED_FILE: self.exported is not None and self.exported.is_met,
            RunKind.BUILT_ENGINE: self.confirmed,
        }
        return {run for run, passes in checks.items() if passes}

    def missed_runs_text(self, config: PrecisionConfig) -> str:
        """Returns what the exported network and the engine of a config yield if they miss the target; "" if none
        does."""
        return "; ".join(self._find_missed_runs(config).values())

    def _find_missed_runs(self, config: PrecisionConfig) -> Mapping[RunKind, str]:
        return next(
            (checks for index, checks in self.missed_checks.items() if self.evaluations[index].config == config), {}
        )


@dataclass(frozen=True)
class JobStarted(Event, changes_rows=False):
    """The event before the first step of a job, and before a step that pauses other jobs than the step before.

    Attributes:
        paused_jobs: The numbers of the jobs that are ready for their next step too.
    """

    paused_jobs: tuple[int, ...] = ()


@dataclass(frozen=True)
class JobDone(Event, changes_rows=False):
    """The event that is sent when a job is done. It is also sent if a newer request of the same kind replaces the
    job."""

    was_replaced: bool = False


@dataclass(frozen=True)
class JobCancelled(Event, changes_rows=False):
    """The event that is sent when a job has ended because it was stopped."""


@dataclass(frozen=True)
class JobFailed(Event):
    """The event that is sent when a job has failed with an error that the user can correct.

    Attributes:
        detail: The traceback, for the log, if the error is a bug; "" if not.
    """

    error: TrtTuiError
    detail: str = ""


@dataclass(frozen=True)
class ChildProcessDied(Event):
    """The event that is sent when the background process has crashed or was killed. A new process starts with the next
    request.

    All running jobs up to number ``job`` ended with the process. ``reason`` and ``next_step`` are sentences.
    """

    exit_code: int | None
    log: str = ""
    reason: str = ""
    next_step: str = ""

    @property
    def error(self) -> TrtTuiError:
        """The error of a command whose work the end of the process interrupts."""
        return TrtTuiError("the background process ended", f"{self.reason}\n{self.log}".strip(), self.next_step)


@dataclass(frozen=True)
class ConfigExported(CommandAnswer):
    """The event that is sent when the files of an export, or an engine, were written.

    Attributes:
        paths: All written files, the requested file first.
        info_lines: Notes about the files.
        no_data_reason: The reason why no data was read for ranges; "" if data was read.
        deviation: The differences between the built and the requested precisions of an engine; "" if there are none.
    """

    paths: tuple[str, ...]
    info_lines: tuple[str, ...] = ()
    no_data_reason: str = ""
    deviation: str = ""


@dataclass(frozen=True)
class DumpsCompared(CommandAnswer):
    """The event with the differences between two dumps.

    Attributes:
        reference, run: The two dumps.
        tensors: The differences of common tensors, in network order if a network is open. Tensors that the network
            lacks come last.
        only_in_reference, only_in_run: The tensors that only one of the dumps has.
        advice_lines: The conclusions and next steps, in sentences.
        sha256: The hash of the open network and its external data; "" if none is open.
    """

    reference: Run
    run: Run
    iterations: int
    tensors: tuple[TensorDifference, ...]
    only_in_reference: tuple[str, ...]
    only_in_run: tuple[str, ...]
    advice_lines: tuple[str, ...]
    sha256: str = ""


@dataclass(frozen=True)
class DumpInspected(CommandAnswer):
    """The event with a summary of each tensor of a dump, in the order of the dump."""

    source: str
    iterations: int
    tensors: tuple[TensorSummary, ...]


@dataclass(frozen=True)
class EngineFileRead(CommandAnswer):
    """The event with the layers of an engine file."""

    engine_report: EngineReport


@dataclass(frozen=True)
class EnginePreviewed(ResultEvent):
    """The event with the preview of a config. A second event adds the effects of the config's moves, if they were
    requested."""

    config: PrecisionConfig
    preview: Preview


@dataclass(frozen=True)
class UnusedQdqRemoved(Event):
    """The event with a config from which unused Q/DQ were removed.

    Attributes:
        config: The config of the request.
        removal: The changed config with its savings. It has no groups if no Q/DQ can be taken out.
    """

    config: PrecisionConfig
    removal: QdqRemoval


@dataclass(frozen=True)
class LogMessage(Event, changes_rows=False):
    """A line for the log pane.

    Attributes:
        level: "warning" for a line that stays on screen; "note" for a line that commands print; "raw" for a message of
            TensorRT or CUDA, which is shown with ``--verbose`` only; "info" for any other line.
    """

    text: str
    level: str = field(default="info")


@dataclass(frozen=True)
class ExecutionModeChanged(Event, changes_rows=False):
    """The event that is sent when the execution mode of the simulation has changed, or is known for the first time."""

    mode: ExecutionMode
