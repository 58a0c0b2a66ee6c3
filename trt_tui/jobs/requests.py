"""What the program asks its child process for. All requests are frozen and picklable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.file_stamps import Fingerprint
from trt_tui.core.measure.stages import StageSpec
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.options import Options


@dataclass(frozen=True)
class OpenNetwork:
    """Open the network, the data and the backend; answered by `Opened`, and by `ConfigRead` where a config is named.

    Attributes:
        expected_fingerprint: What an earlier process had opened; further requests are answered only if it is still the
        same.
        structure_hash: Refuse a network of another structure; "" takes any.
        config: A precision.json to read.
        force: Take a config that was made for another structure, as far as it fits.
        written_paths: Files that will be written; refused if the network's weights lie there.
        network_only: Read the network only, which is answered by `LayersListed`; data and backends when a job needs
        them.
        needs_builder: Refuse to go on, before anything is read, if no TensorRT works.
    """

    options: Options
    expected_fingerprint: Fingerprint | None = None
    structure_hash: str = ""
    config: str | None = None
    force: bool = False
    written_paths: tuple[str, ...] = ()
    network_only: bool = False
    needs_builder: bool = False


@dataclass(frozen=True)
class CalibrateRanges:
    """The ranges of a calibration method for tensors of a config; answered by `RequestedRangesReady`.

    Attributes:
        tensors: Those that get one.
        config: The quantized types that the ranges are for.
    """

    method: str
    tensors: tuple[str, ...] = ()
    config: PrecisionConfig = PrecisionConfig()


@dataclass(frozen=True)
class UseRanges:
    """Take ranges from a config file or an earlier process in place of calibrating; answered by `CalibrationReady`.

    Attributes:
        only_missing: Use them only for tensors that the calibration cache lacks, if one was named.
        config_name: Of the config file that they are from; "" where they are an earlier process's.
    """

    calibration: Calibration
    only_missing: bool = False
    config_name: str = ""


@dataclass(frozen=True)
class RunPreflight:
    """Measure what the guards need that takes runs of its own; answered by `GuardFactsMeasured`.

    Attributes:
        config: Whose ranges are looked at.
    """

    config: PrecisionConfig


@dataclass(frozen=True)
class CompareRuns:
    """Measure runs against the reference: verdicts on few samples first, then errors at the groups, then shares.

    Attributes:
        runs: Configs by run name, in the order to measure.
        with_group_errors: Whether to measure errors at the groups.
        shares_run: The run whose shares are measured first, the other runs' after it; None for no shares.
    """

    runs: Mapping[str, PrecisionConfig]
    with_group_errors: bool = True
    shares_run: str | None = None


@dataclass(frozen=True)
class MeasureWhatIf:
    """The output error of one config on the what-if samples; answered by `AccuracyMeasured` of run "config".

    Attributes:
        with_shares: Whether to measure the config's shares and its errors at the groups after that, in the background.
    """

    config: PrecisionConfig
    with_shares: bool = False


@dataclass(frozen=True)
class MeasureSampleErrors:
    """The error of each judged sample in a config; answered by `SampleErrorsMeasured`."""

    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureSingleSample:
    """One sample alone; answered by `SingleSampleMeasured`, which grows.

    Attributes:
        config: Of which the groups are measured that own the sample's error.
        runs: Configs of which the sample's error is measured, by run name.
        sample_index: Its number among the judged ones.
    """

    config: PrecisionConfig
    runs: Mapping[str, PrecisionConfig]
    sample_index: int


@dataclass(frozen=True)
class LoadStoredResults:
    """What an earlier program measured of configs; answered by `StoredResultsLoaded` for each of which something is
    known."""

    configs: tuple[PrecisionConfig, ...]


@dataclass(frozen=True)
class MeasureRemedies:
    """What-if results of the ways out for one group; answered by `RemediesMeasured`."""

    group: str
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureToggles:
    """The config with one row or scope flipped, for each that matters, in the background; each answered by
    `AccuracyMeasured` of run "flip".

    Attributes:
        MAX_SCOPE_GROUPS: Groups of a scope that is flipped, at most.
    """

    MAX_SCOPE_GROUPS: ClassVar[int] = 256
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureTensorStats:
    """Value statistics of a group's inputs and tail; answered by `TensorStatsMeasured`."""

    group: str


@dataclass(frozen=True)
class SetRanges:
    """Ranges for tensors, as `trt_tui.core.calibration.user_ranges` reads them; answered by `RequestedRangesReady`.

    Attributes:
        config: Which codes the ranges are for.
        ranges: Tensors with the text for each.
    """

    config: PrecisionConfig
    ranges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CompareRangeMethods:
    """A config with the ranges of several calibration methods; answered by `RangeMethodsCompared` after each."""

    config: PrecisionConfig
    methods: tuple[str, ...]


@dataclass(frozen=True)
class BuildEngine:
    """Build the config and judge what came out; answered by `Fp32EngineMeasured` (the FP32 engine) and `EngineBuilt`.

    Attributes:
        quick: Build with the lowest effort.
        with_marked_engine: Also measure errors at the groups of a second engine that has their results as outputs;
            answered by `EngineErrorsMeasured`, as an engine is whose release hands out what its kernels hand on.
        later_configs: Configs that will be built after it: where there are other processes, they build them all at
    once.
    """

    config: PrecisionConfig
    quick: bool = False
    with_marked_engine: bool = False
    later_configs: tuple[PrecisionConfig, ...] = ()


@dataclass(frozen=True)
class WriteEngine:
    """Build the config and write the engine to a file, without judging it; answered by `EngineWritten`.

    Attributes:
        quick: Build with the lowest effort.
        config_ranges: See `ExportConfig`.
    """

    config: PrecisionConfig
    path: str
    quick: bool = False
    config_ranges: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ExportConfig:
    """Write a config in another tool's format; answered by `ConfigExported`.

    Attributes:
        kind: A name of `trt_tui.core.exporters.registry.EXPORT_FORMATS`.
        config_ranges: The amax by tensor name that came with the config. Only tensors without one are measured, and
            never on random inputs. With None the ranges in use are taken.
        method: How those were measured, "" where nobody says.
    """

    kind: str
    path: str
    config: PrecisionConfig
    config_ranges: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteBundle:
    """Write a folder that carries a config into production; answered by `ConfigExported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
        config_text: The config as precision.json.
        comparison_record: What was measured, as `compare --json` writes it.
        with_samples: Whether samples and their outputs go in.
        config_ranges, method: See `ExportConfig`.
    """

    path: str
    release: str
    config: PrecisionConfig
    config_text: str
    comparison_record: Mapping[str, Any]
    with_samples: bool = True
    config_ranges: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteSubgraph:
    """Write the part of the network between some tensors as a folder; answered by `ConfigExported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        start_tensors, stop_tensors: Tensors that the part reads, and those that it makes.
        group: In place of them: the group that it is.
        config_ranges: See `ExportConfig`.
    """

    path: str
    config: PrecisionConfig
    start_tensors: tuple[str, ...] = ()
    stop_tensors: tuple[str, ...] = ()
    group: str = ""
    config_ranges: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ReadEngineFile:
    """Tell what became of each layer in an engine; answered by `EngineFileRead`.

    Attributes:
        path: An engine, which `Options.backend` loads, or the JSON of trtexec --exportLayerInfo.
    """

    path: str


@dataclass(frozen=True)
class MeasureStages:
    """Run stages on the way to production and hold each against the one before; answered by `StageMeasured` for each.

    Attributes:
        configs: By the runs that stages name; "config" is what production is to run.
        inputs_path: A dump of what production was given; None where it is to be looked for beside its outputs.
    """

    stages: tuple[StageSpec, ...]
    configs: Mapping[str, PrecisionConfig]
    inputs_path: str | None = None


@dataclass(frozen=True)
class SaveOutputs:
    """Write the outputs of runs on all samples as Polygraphy's RunResults; answered by `ConfigExported`.

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
        scaled_tensors: Tensors of the network whose channels a config scales.
    """

    first: str
    second: str
    threshold: float
    scaled_tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreviewEngine:
    """Tell what the builder makes of a config, without a GPU; answered by `EnginePreviewed`, once or twice.

    Attributes:
        config_ranges: See `ExportConfig`.
        with_effects: Ask what the config's choices do to the engine too.
        low_priority: Nothing that somebody waits for is to be slower for it.
        after_opening: The network was opened just now: its first verdict, and first look at who owns what, go before.
    """

    config: PrecisionConfig
    config_ranges: Mapping[str, float] | None = None
    with_effects: bool = True
    low_priority: bool = False
    after_opening: bool = False


@dataclass(frozen=True)
class WriteTextFile:
    """Write a text to a file; answered by `ConfigExported`."""

    path: str
    text: str


@dataclass(frozen=True)
class FindMixedPrecisionConfig:
    """Find a small set of groups to raise; answered by `SearchProgress` and `SearchEnded`.

    The app and the commands make it with `trt_tui.session.search_status.make_search_request`.

    Attributes:
        config: What it starts from; groups that are raised there stay raised.
        tolerances: Target texts that must all be met.
        method: A name of `trt_tui.core.search.SEARCH_METHODS`.
        higher_precision: What groups are raised to.
        try_ranges: Try other ranges before groups are raised.
        try_zero_cost: Try what costs nothing at run time before that.
        max_raised: At most so many groups above their defaults.
        max_latency: At most so many milliseconds, as estimated from engines.
        max_builds: At most so many engines are built in all, if engines can run; a latency budget takes two of them.
        check_command: A command whose exit code 0 passes a config; see `trt_tui.jobs.check_command.run_check_command`.
        intermediate_precisions: Precisions below ``higher_precision`` that raised groups may have where that does,
        lowest first.
        fixed_groups: Groups that stay as they are in ``config``.
        use_preview: Ask what the builder would make of what is found, and take raises back that change nothing in it.
        sample: Judge on the batch of one sample alone: its number, "worst" for the worst one of ``config``, "" for all.
        hold_out: Judge the result on every third batch, and choose on the others, if there are enough samples.
    """

    config: PrecisionConfig
    tolerances: tuple[str, ...] = ()
    method: str = "auto"
    higher_precision: Precision = Precision.FP32
    try_ranges: bool = True
    max_raised: int | None = None
    max_latency: float | None = None
    max_builds: int = 3
    check_command: str | None = None
    intermediate_precisions: tuple[Precision, ...] = ()
    try_zero_cost: bool = True
    fixed_groups: tuple[str, ...] = ()
    sample: str = ""
    use_preview: bool = False
    hold_out: bool = True


Request = (OpenNetwork | CalibrateRanges | UseRanges | RunPreflight | CompareRuns | MeasureWhatIf | MeasureSampleErrors
           | MeasureSingleSample | MeasureRemedies
           | MeasureToggles | MeasureTensorStats | SetRanges | CompareRangeMethods | BuildEngine | WriteEngine
           | ExportConfig
           | WriteBundle | WriteSubgraph
           | LoadStoredResults | ReadEngineFile | PreviewEngine | MeasureStages | SaveOutputs | CompareDumps
           | WriteTextFile
           | FindMixedPrecisionConfig)


@dataclass(frozen=True)
class StopJobs:
    """End the jobs of these numbers; each is answered by `JobCancelled`."""

    jobs: frozenset[int]
