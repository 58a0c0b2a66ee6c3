"""What the child process tells the program. All events are frozen and picklable.

An event carries the job that it belongs to; events of a job that was stopped or replaced are dropped by whoever
receives them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.statistics import TensorStats, TopChannels
from trt_tui.core.data.watched import Source
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.preview import Preview
from trt_tui.core.engines.rungs import Rung
from trt_tui.core.guards.facts import Facts
from trt_tui.core.measure.comparison import (
    EngineErrors,
    EngineResult,
    ExportedFound,
    ExportedRun,
    GroupErrors,
    Share,
    Verdict,
)
from trt_tui.core.measure.dumped import TensorErrors
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.judgement import HeldOut
from trt_tui.core.measure.reference import Named
from trt_tui.core.measure.single import OneSample, SampleErrors
from trt_tui.core.measure.stages import Stage
from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import LoadedConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline
from trt_tui.core.runner import Level
from trt_tui.core.search import Evaluation, Result
from trt_tui.jobs.summaries import BackendSummary, BuilderSummary, DataSummary


@dataclass(frozen=True)
class Event:
    """What the child process tells; ``job`` is the number of the request that it belongs to."""

    job: int


@dataclass(frozen=True)
class Previewed(Event):
    """The layers of a big network by name; `Opened` follows with everything else, unless the opening is lean."""

    outline: Outline


@dataclass(frozen=True)
class Opened(Event):
    """The network, the data and the backend are open.

    Attributes:
        judged: The outputs that verdicts are about.
        metric: Name of the user's metric, None without one.
        reference: What errors are taken against; None for FP32 of the network itself.
    """

    outline: Outline
    judged: tuple[Judged, ...]
    data: DataSummary
    backend: BackendSummary
    metric: str | None = None
    reference: Named | None = None


@dataclass(frozen=True)
class Hashed(Event):
    """What was opened, with the SHA-256 of the file and its external data (slow for big files, so it comes later)."""

    source: Source


@dataclass(frozen=True)
class ConfigRead(Event):
    """The config that was named when the network was opened."""

    loaded: LoadedConfig


@dataclass(frozen=True)
class BuilderReady(Event):
    """What builds engines; without this event the typed network is run by the backend that simulates."""

    builder: BuilderSummary


@dataclass(frozen=True)
class Calibrated(Event):
    """Ranges are known: measured, or taken from a file or an earlier process."""

    calibration: Calibration


@dataclass(frozen=True)
class FactsMeasured(Event):
    """What guards look at, as far as this job has measured it; see `trt_tui.core.guards`."""

    facts: Facts


@dataclass(frozen=True)
class Progress(Event):
    """How far a job is. ``total`` 0 means that the end is unknown; ``left_s`` is the estimated time left in seconds."""

    phase: str
    done: int
    total: int
    left_s: float | None = None


@dataclass(frozen=True)
class ReferenceMeasured(Event):
    """The reference's own metric on the judged samples."""

    metric: Mapping[str, float]
    samples: int


@dataclass(frozen=True)
class VerdictMeasured(Event):
    """How a run does at the judged outputs; ``final`` once it is judged on all samples that it is to be judged on."""

    run: str
    config: PrecisionConfig
    verdict: Verdict
    final: bool


@dataclass(frozen=True)
class ExportedMeasured(Event):
    """How a file's own network does as it is exported, without what TensorRT refuses of it; of all samples."""

    config: PrecisionConfig
    verdict: Verdict


@dataclass(frozen=True)
class LayersMeasured(Event):
    """Errors of a run at its groups, by name, on so many samples so far; ``final`` on the last of them."""

    run: str
    config: PrecisionConfig
    groups: Mapping[str, GroupErrors]
    samples: int
    final: bool


@dataclass(frozen=True)
class SharesMeasured(Event):
    """Shares of some groups of a config; ``done`` of ``total`` groups are measured. Shares add up over events."""

    run: str
    config: PrecisionConfig
    shares: Mapping[str, Share]
    done: int
    total: int


@dataclass(frozen=True)
class RaisedMeasured(Event):
    """The verdicts when the first 1, 2, ... groups of ``order`` are raised to FP32."""

    config: PrecisionConfig
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class SamplesMeasured(Event):
    """The error of each sample in a config."""

    config: PrecisionConfig
    errors: SampleErrors


@dataclass(frozen=True)
class SampleJudged(Event):
    """One sample judged alone, in a config; it is sent again as more of its groups are measured."""

    config: PrecisionConfig
    one: OneSample


FREE_KEY = "9"
"""The key of ways out that cost nothing at run time."""


@dataclass(frozen=True)
class WayOut:
    """One way out for a group: the key that takes it, what it is, the config it leads to, and how that does."""

    key: str
    label: str
    config: PrecisionConfig
    verdict: Verdict


@dataclass(frozen=True)
class WaysOutMeasured(Event):
    """What each way out for a group would yield, in the config that they were tried in."""

    group: str
    config: PrecisionConfig
    options: tuple[WayOut, ...]


@dataclass(frozen=True)
class StatsMeasured(Event):
    """Value statistics of a group's inputs and tail in FP32, by tensor.

    Attributes:
        weights: The ranges of the channels of its weights, by tensor.
    """

    group: str
    tensors: Mapping[str, TensorStats]
    weights: Mapping[str, TopChannels] = field(default_factory=dict)


@dataclass(frozen=True)
class RangesSet(Event):
    """The ranges that were asked for, by tensor."""

    ranges: Mapping[str, RangeChoice]


@dataclass(frozen=True)
class MethodRow:
    """A config with one calibration method's ranges; ``seconds`` is what calibrating took, on ``samples`` samples."""

    method: str
    verdict: Verdict
    seconds: float
    samples: int


@dataclass(frozen=True)
class MethodsCompared(Event):
    """What a config yields with the ranges of each method that was compared so far."""

    config: PrecisionConfig
    rows: tuple[MethodRow, ...]


@dataclass(frozen=True)
class Fp32EngineJudged(Event):
    """The FP32 engine against FP32 on the simulating backend; its error is not caused by low precision."""

    result: EngineResult


@dataclass(frozen=True)
class EngineErrorsMeasured(Event):
    """Errors inside the engine of a config, or why there are none."""

    config: PrecisionConfig
    errors: EngineErrors


@dataclass(frozen=True)
class Built(Event):
    """A config's engine, or why there is none."""

    config: PrecisionConfig
    result: EngineResult


@dataclass(frozen=True)
class ExportedExecuted(Event):
    """The execution of a config's exported file, or why there is none."""

    config: PrecisionConfig
    result: ExportedRun


@dataclass(frozen=True)
class Recalled(Event):
    """Results of an earlier program for a config: simulated, of its engine, and of its exported file, if known."""

    config: PrecisionConfig
    verdict: Verdict | None
    engine: EngineResult | None
    executed: ExportedRun | None = None


@dataclass(frozen=True)
class SearchProgress(Event):
    """What a search is about to evaluate, and what it knows.

    Attributes:
        done: Evaluations so far.
        trying: Groups that are raised in the config to be evaluated.
        about: The one that it is about, "" where it is about several.
        step: Who asks: the method, "revert", "ranges" ...
        latest: The last evaluation.
        best: The best so far, ``config`` its config, ``met`` whether it meets the tolerance within the budgets.
    """

    done: int
    trying: tuple[str, ...]
    about: str
    step: str
    latest: Evaluation | None
    best: Evaluation | None
    config: PrecisionConfig
    met: bool


@dataclass(frozen=True)
class SearchEnded(Event):
    """What a search found. It may have been stopped; the outcome of the result is then that it is still searching.

    Attributes:
        how: What the method did and why, in words.
        evaluations: All of them, in their order.
        candidates: How many groups could be raised.
        ranked: Whether it got as far as using the method.
        confirmed: Whether the engine of the result meets the tolerance too; None if none was built and judged.
        remarks: What else to know, a sentence each.
        stopped: It was stopped, so a smaller set may exist even if the result meets the tolerance.
        held_out: None if there are too few samples for it.
        built: What the engines of evaluations yield, in words, by place.
        front: The configs of the evaluations that no other beats in cost and score, by place, the cheapest first. The
            cost is the latency where it is estimated, else what the raised groups cost; see
            `trt_tui.jobs.searching.Bench.costs`.
        target_result: Of the result, by all tolerances and the user's command, with the exported file taken into
            account; None without a result.
        exported: The exported file of the result; None if it meets no tolerance as simulated.
        other_samples: Its values are on other samples than those of the session.
    """

    result: Result
    how: str
    evaluations: tuple[Evaluation, ...]
    candidates: int
    ranked: bool = True
    confirmed: bool | None = None
    remarks: tuple[str, ...] = ()
    stopped: bool = False
    held_out: HeldOut | None = None
    built: Mapping[int, str] = field(default_factory=dict)
    front: Mapping[int, PrecisionConfig] = field(default_factory=dict)
    target_result: TargetResult | None = None
    exported: ExportedFound | None = None
    other_samples: bool = False


@dataclass(frozen=True)
class Begun(Event):
    """The first step of the job is about to be done."""


@dataclass(frozen=True)
class Done(Event):
    """The job is done, or a newer request of its kind took its place."""

    replaced: bool = False


@dataclass(frozen=True)
class Cancelled(Event):
    """The job ended because it was stopped."""


@dataclass(frozen=True)
class Failed(Event):
    """The job ended with an error the user can act on.

    Attributes:
        detail: A traceback for the log where it was a bug.
        rungs: What was tried, if it was a build that the builder refused.
    """

    title: str
    cause: str = ""
    next_step: str = ""
    exit_code: int = 2
    detail: str = ""
    rungs: tuple[Rung, ...] = ()


@dataclass(frozen=True)
class Replaced(Failed):
    """The job ended because files that were opened have been replaced since: ``files`` have to be opened again."""

    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Died(Event):
    """The child process ended by itself or was killed; a new one starts with the next request.

    Every job up to number ``job`` that was still running ended with it. ``why`` and ``next_step`` are sentences.
    """

    exit_code: int | None
    log: str = ""
    why: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class Exported(Event):
    """A config was written.

    Attributes:
        paths: All files of it, the one asked for first.
        lines: What to know about it.
        needless: Why no data was read for ranges, "" where it was.
    """

    paths: tuple[str, ...]
    lines: tuple[str, ...] = ()
    needless: str = ""


@dataclass(frozen=True)
class EngineWritten(Event):
    """An engine file was written, in so many bytes; ``lines`` say what to know about it.

    Attributes:
        otherwise: How it was built where it could not be as asked, "" where it was.
        needless: Why no data was read for ranges, "" where it was.
    """

    path: str
    bytes: int
    lines: tuple[str, ...] = ()
    otherwise: str = ""
    needless: str = ""


@dataclass(frozen=True)
class StageMeasured(Event):
    """A stage on the way to production, or why it has no figures."""

    stage: Stage


@dataclass(frozen=True)
class DumpsCompared(Event):
    """How two dumps of tensors differ.

    Attributes:
        first, second: What they are called.
        tensors: Those of both, in network order where a network is open; behind them those that it does not have.
        only_first, only_second: Those of one alone.
        advice: What that says and what to try, in sentences.
        sha256: Hash of the network that is open and its external data, "" if none is.
    """

    first: str
    second: str
    iterations: int
    tensors: tuple[TensorErrors, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    advice: tuple[str, ...]
    sha256: str = ""


@dataclass(frozen=True)
class EngineRead(Event):
    """The layers of an engine file that was opened."""

    report: EngineReport


@dataclass(frozen=True)
class EnginePreviewed(Event):
    """What the builder makes of a config; what its choices do to the engine follows where the builder is asked more."""

    config: PrecisionConfig
    preview: Preview


@dataclass(frozen=True)
class Note(Event):
    """A line for the log pane. One of level "warning" stays on screen, one of level "note" is printed by commands."""

    text: str
    level: str = field(default="info")


@dataclass(frozen=True)
class RunsAt(Event):
    """How the simulation runs on a device, told at first and when that changes."""

    level: Level
