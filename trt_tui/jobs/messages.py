"""What passes between the program and its child process: requests one way, events the other.

All are frozen and picklable. An event carries the job it belongs to; events of a job that was stopped or replaced are
dropped by whoever receives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.data.watched import Source
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.rungs import Rung
from trt_tui.core.measure.comparison import EngineResult, GroupErrors, Share, Verdict
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import LoadedConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.core.search import Evaluation, Result
from trt_tui.jobs.summaries import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options

# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Open the network, the data and the backend; answered by `Opened`, and by `ConfigRead` where a config is named.

    Attributes:
        known: What an earlier process had opened; further requests are answered only if it is still the same.
        structure: Refuse a network of another structure; "" takes any.
        config: A precision.json to read.
        force: Take a config that was made for another structure, as far as it fits.
        writes: Files that will be written; refused if the network's weights lie there.
        lean: Read the network only, which is answered by `Previewed`; data and backends when a job needs them.
        builds: Refuse to go on, before anything is read, if no TensorRT works.
    """

    options: Options
    known: Source | None = None
    structure: str = ""
    config: str | None = None
    force: bool = False
    writes: tuple[str, ...] = ()
    lean: bool = False
    builds: bool = False


@dataclass(frozen=True)
class Calibrate:
    """Measure ranges; answered by `Calibrated`. Happens by itself, once, before anything that needs ranges."""

    method: str


@dataclass(frozen=True)
class UseRanges:
    """Take ranges from a config file or an earlier process in place of calibrating; answered by `Calibrated`.

    Attributes:
        fill: Use them only for tensors that the calibration cache lacks, if one was named.
    """

    calibration: Calibration
    fill: bool = False


@dataclass(frozen=True)
class Compare:
    """Measure runs against FP32: verdicts on few samples first, then errors at the groups, then shares.

    Attributes:
        runs: Configs by run name, in the order to measure.
        layers: Whether to measure errors at the groups.
        shares_of: The run whose shares are measured first, the other runs' after it; None for no shares.
    """

    runs: Mapping[str, PrecisionConfig]
    layers: bool = True
    shares_of: str | None = None


@dataclass(frozen=True)
class WhatIf:
    """The output error of one config on the what-if samples; answered by `VerdictMeasured` of run "config".

    Attributes:
        shares: Whether to measure the config's shares and its errors at the groups after that, in the background.
    """

    config: PrecisionConfig
    shares: bool = False


@dataclass(frozen=True)
class TryWaysOut:
    """What-if results of the ways out for one group; answered by `WaysOutMeasured`."""

    group: str
    config: PrecisionConfig


@dataclass(frozen=True)
class Stats:
    """Value statistics of a group's inputs and tail; answered by `StatsMeasured`."""

    group: str


@dataclass(frozen=True)
class Build:
    """Build the config and judge what came out; answered by `Fp32EngineJudged` (the FP32 engine) and `Built`.

    Attributes:
        quick: Build with the lowest effort, as a preview.
    """

    config: PrecisionConfig
    quick: bool = False


@dataclass(frozen=True)
class WriteEngine:
    """Build the config and write the engine to a file, without judging it; answered by `EngineWritten`.

    Attributes:
        quick: Build with the lowest effort.
        given: See `Export`.
    """

    config: PrecisionConfig
    path: str
    quick: bool = False
    given: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Export:
    """Write a config in another tool's format; answered by `Exported`.

    Attributes:
        kind: A name of `trt_tui.core.exporters.production.EXPORT_FORMATS`.
        given: The amax by tensor name that came with the config. Only tensors without one are measured, and never on
            random inputs. With None the ranges in use are taken.
    """

    kind: str
    path: str
    config: PrecisionConfig
    given: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ReadEngine:
    """Tell what became of each layer in an engine; answered by `EngineRead`.

    Attributes:
        path: An engine, which `Options.backend` loads, or the JSON of trtexec --exportLayerInfo.
    """

    path: str


@dataclass(frozen=True)
class WriteText:
    """Write a text to a file; answered by `Exported`."""

    path: str
    text: str


@dataclass(frozen=True)
class FindConfig:
    """Find the smallest set of groups to raise; answered by `SharesMeasured`, `SearchProgress` and `SearchEnded`.

    Attributes:
        config: What it starts from; groups that are raised there stay raised.
        tolerances: Target texts that must all be met.
        method: A name of `trt_tui.core.search.SEARCH_METHODS`.
        higher: What groups are raised to.
        presets: Names of `trt_tui.core.search.PRESETS` whose groups are raised from the beginning.
        keep: Layers to raise for good, or names of `trt_tui.core.search.PRESETS`.
        ranges: Try other ranges before groups are raised.
        free: Try what costs nothing at run time before that.
        max_raised: At most so many groups above their defaults.
        max_latency: At most so many milliseconds, as estimated from engines.
        max_builds: At most so many engines are built in all, if engines can run; a latency budget takes two of them.
        check: A command whose exit code 0 passes a config; see `trt_tui.jobs.searching.run_check`.
        shares: Measure what each group owns, too.
        rungs: Precisions below ``higher`` that raised groups may have where that does, lowest first.
    """

    config: PrecisionConfig
    tolerances: tuple[str, ...] = ()
    method: str = "auto"
    higher: Precision = Precision.FP32
    presets: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    ranges: bool = True
    max_raised: int | None = None
    max_latency: float | None = None
    max_builds: int = 3
    check: str | None = None
    shares: bool = False
    rungs: tuple[Precision, ...] = ()
    free: bool = True


Request = (Open | Calibrate | UseRanges | Compare | WhatIf | TryWaysOut | Stats | Build | WriteEngine
           | Export | ReadEngine | WriteText | FindConfig)


@dataclass(frozen=True)
class Stop:
    """End every job whose number is below ``before``; each is answered by `Cancelled`."""

    before: int


# -- events -----------------------------------------------------------------------------------------------------------


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
    """

    outline: Outline
    judged: tuple[Judged, ...]
    data: DataSummary
    backend: BackendSummary
    metric: str | None = None


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
class Progress(Event):
    """How far a job is. ``total`` 0 means that the end is unknown; ``left_s`` is the estimated time left in seconds."""

    phase: str
    done: int
    total: int
    left_s: float | None = None


@dataclass(frozen=True)
class ReferenceMeasured(Event):
    """The FP32 network's own metric on the judged samples."""

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


FREE_KEY = "f"
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
    """Value statistics of a group's inputs and tail in FP32, by tensor."""

    group: str
    tensors: Mapping[str, TensorStats]


@dataclass(frozen=True)
class Fp32EngineJudged(Event):
    """The FP32 engine against FP32 on the simulating backend; its error is not caused by low precision."""

    result: EngineResult


@dataclass(frozen=True)
class Built(Event):
    """A config's engine, or why there is none."""

    config: PrecisionConfig
    result: EngineResult


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
class HeldOut:
    """The simulation of the config that was found, on samples that the search has not used.

    Attributes:
        judgement: By the tolerances; a metric is compared with FP32's on these samples.
        samples: How many samples these are.
        chosen_on: On how many samples the config was chosen.
    """

    judgement: Judgement
    samples: int
    chosen_on: int


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


@dataclass(frozen=True)
class Done(Event):
    """The job is done."""


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
class EngineRead(Event):
    """The layers of an engine file that was opened."""

    report: EngineReport


@dataclass(frozen=True)
class Note(Event):
    """A line for the log pane; one of level "warning" stays on screen."""

    text: str
    level: str = field(default="info")
