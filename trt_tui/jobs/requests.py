"""What the program asks its child process for. All requests are frozen and picklable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.data.watched import Source
from trt_tui.core.measure.stages import Asked
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.options import Options


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
    """The ranges of a calibration method for tensors of a config; answered by `RangesSet`.

    Attributes:
        tensors: Those that get one.
        config: The quantized types that the ranges are for.
    """

    method: str
    tensors: tuple[str, ...] = ()
    config: PrecisionConfig = PrecisionConfig()


@dataclass(frozen=True)
class UseRanges:
    """Take ranges from a config file or an earlier process in place of calibrating; answered by `Calibrated`.

    Attributes:
        fill: Use them only for tensors that the calibration cache lacks, if one was named.
        name: Of the config file that they are from; "" where they are an earlier process's.
    """

    calibration: Calibration
    fill: bool = False
    name: str = ""


@dataclass(frozen=True)
class Preflight:
    """Measure what the guards need that takes runs of its own; answered by `FactsMeasured`.

    Attributes:
        config: Whose ranges are looked at.
    """

    config: PrecisionConfig


@dataclass(frozen=True)
class Compare:
    """Measure runs against the reference: verdicts on few samples first, then errors at the groups, then shares.

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
class MeasureSamples:
    """The error of each judged sample in a config; answered by `SamplesMeasured`."""

    config: PrecisionConfig


@dataclass(frozen=True)
class JudgeSample:
    """One sample alone; answered by `SampleJudged`, which grows.

    Attributes:
        config: Of which the groups are measured that own the sample's error.
        runs: Configs of which the sample's error is measured, by run name.
        sample: Its number among the judged ones.
    """

    config: PrecisionConfig
    runs: Mapping[str, PrecisionConfig]
    sample: int


@dataclass(frozen=True)
class Recall:
    """What an earlier program measured of configs; answered by `Recalled` for each of which something is known."""

    configs: tuple[PrecisionConfig, ...]


@dataclass(frozen=True)
class TryWaysOut:
    """What-if results of the ways out for one group; answered by `WaysOutMeasured`."""

    group: str
    config: PrecisionConfig


@dataclass(frozen=True)
class TryFlips:
    """The config with one row or scope flipped, for each that matters, in the background; each answered by
    `VerdictMeasured` of run "flip".

    Attributes:
        LARGEST_SCOPE: Groups of a scope that is flipped, at most.
    """

    LARGEST_SCOPE: ClassVar[int] = 256
    config: PrecisionConfig


@dataclass(frozen=True)
class Stats:
    """Value statistics of a group's inputs and tail; answered by `StatsMeasured`."""

    group: str


@dataclass(frozen=True)
class SetRanges:
    """Ranges for tensors, as `trt_tui.core.calibration.given` reads them; answered by `RangesSet`.

    Attributes:
        config: Which codes the ranges are for.
        ranges: Tensors with the text for each.
    """

    config: PrecisionConfig
    ranges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CompareMethods:
    """A config with the ranges of several calibration methods; answered by `MethodsCompared` after each."""

    config: PrecisionConfig
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """Build the config and judge what came out; answered by `Fp32EngineJudged` (the FP32 engine) and `Built`.

    Attributes:
        quick: Build with the lowest effort.
        marked: Also measure errors at the groups of a second engine that has their results as outputs; answered by
            `EngineErrorsMeasured`, as an engine is whose release hands out what its kernels hand on.
        ahead: Configs that will be built after it: where there are other processes, they build them all at once.
    """

    config: PrecisionConfig
    quick: bool = False
    marked: bool = False
    ahead: tuple[PrecisionConfig, ...] = ()


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
        method: How those were measured, "" where nobody says.
    """

    kind: str
    path: str
    config: PrecisionConfig
    given: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteBundle:
    """Write a folder that carries a config into production; answered by `Exported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        release: A name of `trt_tui.core.exporters.bundle.RELEASES`.
        config_text: The config as precision.json.
        comparison: What was measured, as `compare --json` writes it.
        samples: Whether samples and their outputs go in.
        given, method: See `Export`.
    """

    path: str
    release: str
    config: PrecisionConfig
    config_text: str
    comparison: Mapping[str, Any]
    samples: bool = True
    given: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteSubgraph:
    """Write the part of the network between some tensors as a folder; answered by `Exported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        start, stop: Tensors that the part reads, and those that it makes.
        group: In place of them: the group that it is.
        given: See `Export`.
    """

    path: str
    config: PrecisionConfig
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    group: str = ""
    given: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ReadEngine:
    """Tell what became of each layer in an engine; answered by `EngineRead`.

    Attributes:
        path: An engine, which `Options.backend` loads, or the JSON of trtexec --exportLayerInfo.
    """

    path: str


@dataclass(frozen=True)
class MeasureStages:
    """Run stages on the way to production and hold each against the one before; answered by `StageMeasured` for each.

    Attributes:
        configs: By the runs that stages name; "config" is what production is to run.
        inputs: A dump of what production was given; None where it is to be looked for beside its outputs.
    """

    stages: tuple[Asked, ...]
    configs: Mapping[str, PrecisionConfig]
    inputs: str | None = None


@dataclass(frozen=True)
class SaveOutputs:
    """Write the outputs of runs on all samples as Polygraphy's RunResults; answered by `Exported`.

    Attributes:
        runs: Configs by runner name.
    """

    path: str
    runs: Mapping[str, PrecisionConfig]


@dataclass(frozen=True)
class CompareDumps:
    """Hold two dumps of tensors against each other; answered by `DumpsCompared`. Nothing has to be open.

    Attributes:
        first, second: ``FILE`` or ``FILE:RUNNER``.
        threshold: Of the relative error of a tensor.
        scaled: Tensors of the network whose channels a config scales.
    """

    first: str
    second: str
    threshold: float
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreviewEngine:
    """Tell what the builder makes of a config, without a GPU; answered by `EnginePreviewed`, once or twice.

    Attributes:
        given: See `Export`.
        effects: Ask what the config's choices do to the engine too.
        background: Nothing that somebody waits for is to be slower for it.
        opening: The network was opened just now: its first verdict, and first look at who owns what, go before.
    """

    config: PrecisionConfig
    given: Mapping[str, float] | None = None
    effects: bool = True
    background: bool = False
    opening: bool = False


@dataclass(frozen=True)
class WriteText:
    """Write a text to a file; answered by `Exported`."""

    path: str
    text: str


@dataclass(frozen=True)
class FindConfig:
    """Find a small set of groups to raise; answered by `SearchProgress` and `SearchEnded`.

    The app and the commands make it with `trt_tui.session.finding.search_request`.

    Attributes:
        config: What it starts from; groups that are raised there stay raised.
        tolerances: Target texts that must all be met.
        method: A name of `trt_tui.core.search.SEARCH_METHODS`.
        higher: What groups are raised to.
        ranges: Try other ranges before groups are raised.
        free: Try what costs nothing at run time before that.
        max_raised: At most so many groups above their defaults.
        max_latency: At most so many milliseconds, as estimated from engines.
        max_builds: At most so many engines are built in all, if engines can run; a latency budget takes two of them.
        check: A command whose exit code 0 passes a config; see `trt_tui.jobs.checking.run_check`.
        rungs: Precisions below ``higher`` that raised groups may have where that does, lowest first.
        fixed: Groups that stay as they are in ``config``.
        preview: Ask what the builder would make of what is found, and take raises back that change nothing in it.
        sample: Judge on the batch of one sample alone: its number, "worst" for the worst one of ``config``, "" for all.
        hold_out: Judge the result on every third batch, and choose on the others, if there are enough samples.
    """

    config: PrecisionConfig
    tolerances: tuple[str, ...] = ()
    method: str = "auto"
    higher: Precision = Precision.FP32
    ranges: bool = True
    max_raised: int | None = None
    max_latency: float | None = None
    max_builds: int = 3
    check: str | None = None
    rungs: tuple[Precision, ...] = ()
    free: bool = True
    fixed: tuple[str, ...] = ()
    sample: str = ""
    preview: bool = False
    hold_out: bool = True


Request = (Open | Calibrate | UseRanges | Preflight | Compare | WhatIf | MeasureSamples | JudgeSample | TryWaysOut
           | TryFlips | Stats | SetRanges | CompareMethods | Build | WriteEngine | Export | WriteBundle | WriteSubgraph
           | Recall | ReadEngine | PreviewEngine | MeasureStages | SaveOutputs | CompareDumps | WriteText | FindConfig)


@dataclass(frozen=True)
class Stop:
    """End the jobs of these numbers; each is answered by `Cancelled`."""

    jobs: frozenset[int]
