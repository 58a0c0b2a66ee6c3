"""What the child process tells the program. All events are frozen and picklable.

An event carries the job that it belongs to; events of a job that was stopped or replaced are dropped by whoever
receives them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.calibration.statistics import DominantChannels, TensorStats
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.data.shapes import ShapeRange
from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.preview import Preview
from trt_tui.core.guards.guard import GuardFacts
from trt_tui.core.measure.dump_comparison import TensorDifference
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.reference import ReferenceInfo
from trt_tui.core.measure.results import (
    Accuracy,
    EngineErrors,
    EngineResult,
    ErrorShare,
    ExportedResult,
    ExportedRun,
    GroupErrors,
    RunResult,
)
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.measure.single_sample import SampleErrors, SingleSampleResult
from trt_tui.core.measure.stages import StageResult
from trt_tui.core.measure.target_outcome import HeldOutResult, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import LoadedConfig
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.runner import ExecutionMode
from trt_tui.core.search import Evaluation, SearchResult


@dataclass(frozen=True)
class DataSummary:
    """The samples in use, counted in samples, not in batches; ``shapes`` is the profile of the dynamic inputs."""

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
    """The backend that runs and simulates networks; ``real_fp16`` if it computes FP16 in FP16."""

    name: str
    version: str
    device: str
    real_fp16: bool


@dataclass(frozen=True)
class BuilderSummary:
    """What builds engines.

    Attributes:
        device: The GPU, "" where there is none.
        can_run: Whether engines can run here.
    """

    name: str
    version: str
    device: str
    can_run: bool


@dataclass(frozen=True)
class Event:
    """What the child process tells; ``job`` is the number of the request that it belongs to.

    Attributes:
        changes_rows: The values in the rows of the app may differ after it. The rest is drawn anew after every event.
    """

    changes_rows: ClassVar[bool] = True
    job: int

    def __init_subclass__(cls, changes_rows: bool | None = None) -> None:
        cls.changes_rows = cls.changes_rows if changes_rows is None else changes_rows


@dataclass(frozen=True)
class ResultEvent(Event):
    """Measured values, which `trt_tui.session.results.SessionResults` keeps."""


@dataclass(frozen=True)
class CommandAnswer(Event, changes_rows=False):
    """The answer to a request of a command, which `SessionState.last_answer` keeps."""


@dataclass(frozen=True)
class LayersListed(Event, changes_rows=False):
    """The layers of a big network by name; `NetworkOpened` follows with everything else, unless the opening is lean."""

    outline: NetworkOutline


@dataclass(frozen=True)
class NetworkOpened(Event):
    """The network, the data and the backend are open.

    Attributes:
        judged_outputs: The outputs that verdicts are about.
        metric: Name of the user's metric, None without one.
        reference: What errors are taken against; None for FP32 of the network itself.
    """

    outline: NetworkOutline
    judged_outputs: tuple[JudgedOutput, ...]
    data: DataSummary
    backend: BackendSummary
    metric: str | None = None
    reference: ReferenceInfo | None = None


@dataclass(frozen=True)
class FilesHashed(Event):
    """What was opened, with the SHA-256 of the file and its external data (slow for big files, so it comes later)."""

    source: Fingerprint


@dataclass(frozen=True)
class ConfigRead(Event, changes_rows=False):
    """The config that was named when the network was opened."""

    loaded: LoadedConfig


@dataclass(frozen=True)
class BuilderReady(Event):
    """What builds engines; without this event the typed network is run by the backend that simulates."""

    builder: BuilderSummary


@dataclass(frozen=True)
class CalibrationReady(Event, changes_rows=False):
    """Ranges are known: measured, or taken from a file or an earlier process."""

    calibration: Calibration


@dataclass(frozen=True)
class GuardFactsMeasured(Event, changes_rows=False):
    """What guards look at, as far as this job has measured it; see `trt_tui.core.guards`."""

    facts: GuardFacts


@dataclass(frozen=True)
class JobProgress(Event, changes_rows=False):
    """How far a job is. ``total`` 0 means that the end is unknown; ``left_s`` is the estimated time left in seconds."""

    phase: str
    done: int
    total: int
    left_s: float | None = None


@dataclass(frozen=True)
class ReferenceMetricMeasured(ResultEvent):
    """The reference's own metric on the judged samples."""

    metric: Mapping[str, float]
    samples: int


@dataclass(frozen=True)
class AccuracyMeasured(ResultEvent):
    """The accuracy of a config in one kind of run; ``final`` once all samples that are to be measured are."""

    run: str
    config: PrecisionConfig
    accuracy: Accuracy
    final: bool
    kind: RunKind = RunKind.SIMULATED_CONFIG


@dataclass(frozen=True)
class GroupErrorsMeasured(ResultEvent):
    """Errors of a run at its groups, by name, on so many samples so far; ``final`` on the last of them."""

    run: str
    config: PrecisionConfig
    groups: Mapping[str, GroupErrors]
    samples: int
    final: bool


@dataclass(frozen=True)
class ErrorSharesMeasured(ResultEvent):
    """Shares of some groups of a config; ``done`` of ``total`` groups are measured. Shares add up over events."""

    run: str
    config: PrecisionConfig
    shares: Mapping[str, ErrorShare]
    done: int
    total: int


@dataclass(frozen=True)
class CumulativeRaiseMeasured(ResultEvent):
    """The verdicts when the first 1, 2, ... groups of ``order`` are raised to FP32."""

    config: PrecisionConfig
    order: tuple[str, ...]
    accuracies: tuple[Accuracy, ...]


@dataclass(frozen=True)
class SampleErrorsMeasured(ResultEvent, changes_rows=False):
    """The error of each sample in a config."""

    config: PrecisionConfig
    errors: SampleErrors


@dataclass(frozen=True)
class SingleSampleMeasured(ResultEvent, changes_rows=False):
    """One sample judged alone, in a config; it is sent again as more of its groups are measured."""

    config: PrecisionConfig
    sample: SingleSampleResult


ZERO_COST_KEY = "9"
"""The key of ways out that cost nothing at run time."""


@dataclass(frozen=True)
class Remedy:
    """One way out for a group: the key that takes it, what it is, the config it leads to, and how that does."""

    key: str
    label: str
    config: PrecisionConfig
    accuracy: Accuracy


@dataclass(frozen=True)
class RemediesMeasured(ResultEvent, changes_rows=False):
    """What each way out for a group would yield, in the config that they were tried in."""

    group: str
    config: PrecisionConfig
    options: tuple[Remedy, ...]


@dataclass(frozen=True)
class TensorStatsMeasured(ResultEvent, changes_rows=False):
    """Value statistics of a group's inputs and tail in FP32, by tensor.

    Attributes:
        weights: The ranges of the channels of its weights, by tensor.
    """

    group: str
    tensors: Mapping[str, TensorStats]
    weights: Mapping[str, DominantChannels] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestedRangesReady(Event, changes_rows=False):
    """The ranges that were asked for, by tensor."""

    ranges: Mapping[str, RangeMove]


@dataclass(frozen=True)
class RangeMethodResult:
    """A config with one calibration method's ranges; ``seconds`` is what calibrating took, on ``samples`` samples."""

    method: str
    accuracy: Accuracy
    seconds: float
    samples: int


@dataclass(frozen=True)
class RangeMethodsCompared(Event, changes_rows=False):
    """What a config yields with the ranges of each method that was compared so far."""

    config: PrecisionConfig
    rows: tuple[RangeMethodResult, ...]


@dataclass(frozen=True)
class Fp32EngineMeasured(ResultEvent):
    """The FP32 engine against FP32 on the simulating backend; its error is not caused by low precision."""

    result: EngineResult


@dataclass(frozen=True)
class EngineErrorsMeasured(ResultEvent):
    """Errors inside the engine of a config, or why there are none."""

    config: PrecisionConfig
    errors: EngineErrors


@dataclass(frozen=True)
class EngineBuilt(Event):
    """A config's engine, or why there is none."""

    config: PrecisionConfig
    result: EngineResult


@dataclass(frozen=True)
class ExportedFileExecuted(ResultEvent, changes_rows=False):
    """The execution of a config's exported file, or why there is none."""

    config: PrecisionConfig
    result: ExportedRun


@dataclass(frozen=True)
class StoredResultsLoaded(ResultEvent, changes_rows=False):
    """Results of an earlier program for the runs of a config."""

    config: PrecisionConfig
    runs: Mapping[RunKind, RunResult]


@dataclass(frozen=True)
class SearchProgress(Event, changes_rows=False):
    """What a search is about to evaluate, and what it knows.

    Attributes:
        done: Evaluations so far.
        trial_groups: Groups that are raised in the config to be evaluated.
        group: The one that it is about, "" where it is about several.
        pass_name: Who asks: the method, "revert", "ranges" ...
        best: The best so far, ``config`` its config, ``is_met`` whether it meets the tolerance within the budgets.
    """

    done: int
    trial_groups: tuple[str, ...]
    group: str
    pass_name: str
    best: Evaluation | None
    config: PrecisionConfig
    is_met: bool


@dataclass(frozen=True)
class SearchEnded(Event):
    """What a search found. It may have been stopped; the outcome of the result is then that it is still searching.

    Attributes:
        description: What the method did and why, in words.
        evaluations: All of them, in their order.
        candidate_count: How many groups could be raised.
        used_method: Whether it got as far as using the method.
        confirmed: Whether the engine of the result meets the tolerance too; None if none was built and judged.
        remarks: What else to know, a sentence each.
        was_stopped: It was stopped, so a smaller set may exist even if the result meets the tolerance.
        held_out: None if there are too few samples for it.
        engine_texts: What the engines of evaluations yield, in words, by place.
        pareto_configs: The configs of the evaluations that no other beats in cost and score, by place, the cheapest
            first. The cost is the latency where it is estimated, else what the raised groups cost; see
            `trt_tui.jobs.search_job.SearchEvaluator.costs`.
        target_outcome: Of the result, by all tolerances and the user's command, with the exported file taken into
            account; None without a result.
        exported: The exported file of the result; None if it meets no tolerance as simulated.
        has_other_samples: Its values are on other samples than those of the session.
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
    pareto_configs: Mapping[int, PrecisionConfig] = field(default_factory=dict)
    target_outcome: TargetOutcome | None = None
    exported: ExportedResult | None = None
    has_other_samples: bool = False


@dataclass(frozen=True)
class JobStarted(Event, changes_rows=False):
    """The first step of the job is about to be done."""


@dataclass(frozen=True)
class JobDone(Event, changes_rows=False):
    """The job is done, or a newer request of its kind took its place."""

    was_replaced: bool = False


@dataclass(frozen=True)
class JobCancelled(Event, changes_rows=False):
    """The job ended because it was stopped."""


@dataclass(frozen=True)
class JobFailed(Event):
    """The job ended with an error the user can act on.

    Attributes:
        detail: A traceback for the log where it was a bug.
        attempts: What was tried, if it was a build that the builder refused.
    """

    title: str
    cause: str = ""
    next_step: str = ""
    exit_code: int = 2
    detail: str = ""
    attempts: tuple[BuildAttempt, ...] = ()


@dataclass(frozen=True)
class FilesReplaced(JobFailed):
    """The job ended because files that were opened have been replaced since: ``files`` have to be opened again."""

    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChildProcessDied(Event):
    """The child process ended by itself or was killed; a new one starts with the next request.

    Every job up to number ``job`` that was still running ended with it. ``reason`` and ``next_step_hint`` are
    sentences.
    """

    exit_code: int | None
    log: str = ""
    reason: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class ConfigExported(CommandAnswer):
    """A config was written.

    Attributes:
        paths: All files of it, the one asked for first.
        info_lines: What to know about it.
        no_data_reason: Why no data was read for ranges, "" where it was.
    """

    paths: tuple[str, ...]
    info_lines: tuple[str, ...] = ()
    no_data_reason: str = ""


@dataclass(frozen=True)
class EngineWritten(CommandAnswer):
    """An engine file was written, in so many bytes; ``info_lines`` say what to know about it.

    Attributes:
        deviation: How it was built where it could not be as asked, "" where it was.
        no_data_reason: Why no data was read for ranges, "" where it was.
    """

    path: str
    size_bytes: int
    info_lines: tuple[str, ...] = ()
    deviation: str = ""
    no_data_reason: str = ""


@dataclass(frozen=True)
class StageMeasured(ResultEvent, changes_rows=False):
    """A stage on the way to production, or why it has no figures."""

    stage: StageResult


@dataclass(frozen=True)
class DumpsCompared(CommandAnswer):
    """The differences of a dump to another one.

    Attributes:
        reference, run: The two dumps.
        tensors: Those of both, in network order where a network is open; behind them those that it does not have.
        only_in_reference, only_in_run: Those of one alone.
        advice_lines: What that says and what to try, in sentences.
        sha256: Hash of the network that is open and its external data, "" if none is.
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
class EngineFileRead(CommandAnswer):
    """The layers of an engine file that was opened."""

    engine_report: EngineReport


@dataclass(frozen=True)
class EnginePreviewed(ResultEvent):
    """What the builder makes of a config; what its choices do to the engine follows where the builder is asked more."""

    config: PrecisionConfig
    preview: Preview


@dataclass(frozen=True)
class LogMessage(Event, changes_rows=False):
    """A line for the log pane. One of level "warning" stays on screen, one of level "note" is printed by commands."""

    text: str
    level: str = field(default="info")


@dataclass(frozen=True)
class ExecutionModeChanged(Event, changes_rows=False):
    """How the simulation runs on a device, told at first and when that changes."""

    mode: ExecutionMode
