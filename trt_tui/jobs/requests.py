"""What the program asks its child process for. All requests are frozen and picklable."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.measure.runs import Run
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs.steps import Urgency
from trt_tui.options import Options


@dataclass(frozen=True)
class JobKind:
    """The properties of all jobs of one type of request, for everything that runs, shows or stops jobs.

    Titles and phases are formats. They name fields of the request, ``{config}`` for the name of its config, and
    ``{file}`` for the last part of its path.

    Attributes:
        handler: Dotted name of the function that yields the steps. Only the child process imports it. Its arguments are
            the workspace, the `ResultStore`, the `JobReporter` and the request.
        title: What a job is called.
        urgency: Of the first step.
        phase: What the progress counts; the title by default. A job of several phases names each of them itself.
        needs_network: A network has to be open. A handler without this takes the `WorkspaceSlot` for the workspace.
        needs_hashes: Network and data are identified before, because the values that it sends depend on them.
        is_replaceable: A newer request of the type replaces an older one; not if a file is read or written that
            somebody asked for.
        is_automatic: It follows the cursor or a change; nobody asked for it by a key.
        is_waited_for: The app counts as busy until it ends.
        answers_when_stopped: If it is stopped, it sends what it has found before it ends.
        measures_current_config: The values of the current config change with it.
    """

    handler: str
    title: str
    urgency: Urgency = Urgency.OPENING
    phase: str = ""
    needs_network: bool = True
    needs_hashes: bool = True
    is_replaceable: bool = True
    is_automatic: bool = False
    is_waited_for: bool = True
    answers_when_stopped: bool = False
    measures_current_config: bool = False


class Request:
    """A message to the child process; each type declares the kind of its jobs, and nothing else lists the types."""

    job_kind: ClassVar[JobKind]

    def job_title(self, config_name: str = "", has_builder: bool = True) -> str:
        """Returns what its job is called on screen.

        Args:
            config_name: The name of its config, "" if that has none.
            has_builder: False if nothing builds engines here.
        """
        return self._fill_in_fields(self.job_kind.title, config_name or "a config")

    @property
    def phase(self) -> str:
        """What the progress of its job counts."""
        return self._fill_in_fields(self.job_kind.phase or self.job_kind.title, "a config")

    def _fill_in_fields(self, text: str, config_name: str) -> str:
        path = Path(getattr(self, "path", ""))
        return text.format_map({**vars(self), "config": config_name, "file": path.name})


@dataclass(frozen=True)
class OpenNetwork(Request):
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

    job_kind = JobKind("trt_tui.jobs.opening.run_open_job", "opening {file}", needs_network=False,
                       measures_current_config=True)
    options: Options
    expected_fingerprint: Fingerprint | None = None
    structure_hash: str = ""
    config: str | None = None
    force: bool = False
    written_paths: tuple[str, ...] = ()
    network_only: bool = False
    needs_builder: bool = False

    @property
    def path(self) -> str:
        """The file of the network."""
        return self.options.model


@dataclass(frozen=True)
class CalibrateRanges(Request):
    """The ranges of a calibration method for tensors of a config; answered by `RequestedRangesReady`.

    Attributes:
        tensors: Those that get one.
        config: The quantized types that the ranges are for.
    """

    job_kind = JobKind("trt_tui.jobs.calibration.run_calibration_job", "calibration ({method})",
                       measures_current_config=True)
    method: str
    tensors: tuple[str, ...] = ()
    config: PrecisionConfig = PrecisionConfig()


@dataclass(frozen=True)
class UseRanges(Request):
    """Take ranges from a config file or an earlier process in place of calibrating; answered by `CalibrationReady`.

    Attributes:
        only_missing: Use them only for tensors that the calibration cache lacks, if one was named.
        config_name: Of the config file that they are from; "" where they are an earlier process's.
    """

    job_kind = JobKind("trt_tui.jobs.calibration.run_use_ranges_job", "taking ranges over", needs_hashes=False)
    calibration: Calibration
    only_missing: bool = False
    config_name: str = ""


@dataclass(frozen=True)
class RunPreflight(Request):
    """Measure what the guards need that takes runs of its own; answered by `GuardFactsMeasured`.

    Attributes:
        config: Whose ranges are looked at.
    """

    job_kind = JobKind("trt_tui.jobs.preflight.run_preflight_job", "preflight", Urgency.ACCURACY)
    config: PrecisionConfig


@dataclass(frozen=True)
class CompareRuns(Request):
    """Measure runs against the reference: verdicts on few samples first, then errors at the groups, then shares.

    Attributes:
        runs: Configs by run name, in the order to measure.
        with_group_errors: Whether to measure errors at the groups.
        shares_run: The run whose shares are measured first, the other runs' after it; None for no shares.
    """

    job_kind = JobKind("trt_tui.jobs.comparison.run_comparison_job", "comparison", Urgency.FIRST_ACCURACY,
                       measures_current_config=True)
    runs: Mapping[str, PrecisionConfig]
    with_group_errors: bool = True
    shares_run: str | None = None


@dataclass(frozen=True)
class MeasureWhatIf(Request):
    """The output error of one config on the what-if samples; answered by `AccuracyMeasured` of run "config".

    Attributes:
        with_shares: Whether to measure the config's shares and its errors at the groups after that, in the background.
    """

    job_kind = JobKind("trt_tui.jobs.whatif.run_what_if_job", "what-if {config}", Urgency.WHAT_IF,
                       measures_current_config=True)
    config: PrecisionConfig
    with_shares: bool = False

    def job_title(self, config_name: str = "", has_builder: bool = True) -> str:
        return super().job_title(config_name or "of a config")


@dataclass(frozen=True)
class MeasureSampleErrors(Request):
    """The error of each judged sample in a config; answered by `SampleErrorsMeasured`."""

    job_kind = JobKind("trt_tui.jobs.sample_errors.run_sample_error_job", "error over samples of {config}",
                       Urgency.ACCURACY, phase="errors sample by sample")
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureSingleSample(Request):
    """One sample alone; answered by `SingleSampleMeasured`, which grows.

    Attributes:
        config: Of which the groups are measured that own the sample's error.
        runs: Configs of which the sample's error is measured, by run name.
        sample_index: Its number among the judged ones.
    """

    job_kind = JobKind("trt_tui.jobs.sample_errors.run_single_sample_job", "sample {sample_index} alone",
                       Urgency.FIRST_SHARES, phase="judging sample {sample_index} alone")
    config: PrecisionConfig
    runs: Mapping[str, PrecisionConfig]
    sample_index: int


@dataclass(frozen=True)
class LoadStoredResults(Request):
    """What an earlier program measured of configs; answered by `StoredResultsLoaded` for each of which something is
    known."""

    job_kind = JobKind("trt_tui.jobs.stored_results.run_stored_results_job", "figures of other configs",
                       Urgency.TENSOR_STATS, is_automatic=True)
    configs: tuple[PrecisionConfig, ...]


@dataclass(frozen=True)
class MeasureRemedies(Request):
    """What-if results of the ways out for one group; answered by `RemediesMeasured`."""

    job_kind = JobKind("trt_tui.jobs.remedies.run_remedy_job", "ways out of {group}", Urgency.REMEDIES,
                       is_automatic=True)
    group: str
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureToggles(Request):
    """The config with one row or scope flipped, for each that matters, in the background; each answered by
    `AccuracyMeasured` of run "flip".

    Attributes:
        MAX_SCOPE_GROUPS: Groups of a scope that is flipped, at most.
    """

    job_kind = JobKind("trt_tui.jobs.row_toggles.run_toggle_job", "flips of {config}", Urgency.TOGGLES,
                       phase="each row if flipped", is_automatic=True, is_waited_for=False)
    MAX_SCOPE_GROUPS: ClassVar[int] = 256
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureTensorStats(Request):
    """Value statistics of a group's inputs and tail; answered by `TensorStatsMeasured`."""

    job_kind = JobKind("trt_tui.jobs.ranges.run_tensor_stats_job", "values of {group}", Urgency.TENSOR_STATS,
                       is_automatic=True)
    group: str


@dataclass(frozen=True)
class SetRanges(Request):
    """Ranges for tensors, as `trt_tui.core.calibration.user_ranges` reads them; answered by `RequestedRangesReady`.

    Attributes:
        config: Which codes the ranges are for.
        ranges: Tensors with the text for each.
    """

    job_kind = JobKind("trt_tui.jobs.ranges.run_set_ranges_job", "ranges", Urgency.WHAT_IF,
                       measures_current_config=True)
    config: PrecisionConfig
    ranges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CompareRangeMethods(Request):
    """A config with the ranges of several calibration methods; answered by `RangeMethodsCompared` after each."""

    job_kind = JobKind("trt_tui.jobs.ranges.run_method_comparison_job", "calibration methods", Urgency.ACCURACY)
    config: PrecisionConfig
    methods: tuple[str, ...]


@dataclass(frozen=True)
class BuildEngine(Request):
    """Build the config and judge what came out; answered by `Fp32EngineMeasured` (the FP32 engine) and `EngineBuilt`.

    Attributes:
        quick: Build with the lowest effort.
        with_marked_engine: Also measure errors at the groups of a second engine that has their results as outputs;
            answered by `EngineErrorsMeasured`, as an engine is whose release hands out what its kernels hand on.
        later_configs: Configs that will be built after it: where there are other processes, they build them all at
    once.
    """

    job_kind = JobKind("trt_tui.jobs.build.run_build_job", "build of {config}", Urgency.BUILD)
    config: PrecisionConfig
    quick: bool = False
    with_marked_engine: bool = False
    later_configs: tuple[PrecisionConfig, ...] = ()

    def job_title(self, config_name: str = "", has_builder: bool = True) -> str:
        work = "execution of the export" if not has_builder else "quick build" if self.quick else "build"
        return f"{work} of {config_name or 'a config'}"


@dataclass(frozen=True)
class WriteEngine(Request):
    """Build the config and write the engine to a file, without judging it; answered by `EngineWritten`.

    Attributes:
        quick: Build with the lowest effort.
        config_ranges: See `ExportConfig`.
    """

    job_kind = JobKind("trt_tui.jobs.build.run_write_engine_job", "writing {file}", Urgency.BUILD, is_replaceable=False,
                       needs_hashes=False)
    config: PrecisionConfig
    path: str
    quick: bool = False
    config_ranges: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ExportConfig(Request):
    """Write a config in another tool's format; answered by `ConfigExported`.

    Attributes:
        kind: A name of `trt_tui.core.exporters.registry.EXPORT_FORMATS`.
        config_ranges: The amax by tensor name that came with the config. Only tensors without one are measured, and
            never on random inputs. With None the ranges in use are taken.
        method: How those were measured, "" where nobody says.
    """

    job_kind = JobKind("trt_tui.jobs.export.run_export_job", "writing {file}", Urgency.BUILD, is_replaceable=False,
                       needs_hashes=False)
    kind: str
    path: str
    config: PrecisionConfig
    config_ranges: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteBundle(Request):
    """Write a folder that carries a config into production; answered by `ConfigExported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
        config_text: The config as precision.json.
        comparison_record: What was measured, as `compare --json` writes it.
        with_samples: Whether samples and their outputs go in.
        config_ranges, method: See `ExportConfig`.
    """

    job_kind = JobKind("trt_tui.jobs.export.run_write_bundle_job", "writing {file}", Urgency.BUILD,
                       is_replaceable=False, needs_hashes=False)
    path: str
    release: str
    config: PrecisionConfig
    config_text: str
    comparison_record: Mapping[str, Any]
    with_samples: bool = True
    config_ranges: Mapping[str, float] | None = None
    method: str = ""


@dataclass(frozen=True)
class WriteSubgraph(Request):
    """Write the part of the network between some tensors as a folder; answered by `ConfigExported`, the folder first.

    Attributes:
        path: The folder, which is new or empty.
        start_tensors, stop_tensors: Tensors that the part reads, and those that it makes.
        group: In place of them: the group that it is.
        config_ranges: See `ExportConfig`.
    """

    job_kind = JobKind("trt_tui.jobs.export.run_write_subgraph_job", "writing {file}", Urgency.BUILD,
                       is_replaceable=False, needs_hashes=False)
    path: str
    config: PrecisionConfig
    start_tensors: tuple[str, ...] = ()
    stop_tensors: tuple[str, ...] = ()
    group: str = ""
    config_ranges: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ReadEngineFile(Request):
    """Tell what became of each layer in an engine; answered by `EngineFileRead`.

    Attributes:
        path: An engine, which `Options.backend` loads, or the JSON of trtexec --exportLayerInfo.
    """

    job_kind = JobKind("trt_tui.jobs.engine_inspection.run_engine_inspection_job", "reading {file}", Urgency.BUILD,
                       is_replaceable=False, needs_hashes=False)
    path: str


@dataclass(frozen=True)
class MeasureStages(Request):
    """Run stages on the way to production and hold each against the one before; answered by `StageMeasured` for each.

    Attributes:
        runs: In their order; a simulated or built one has its config.
        configs: By name; "config" is what production is to run.
        inputs_path: A dump of what production was given; None where it is to be looked for beside its outputs.
    """

    job_kind = JobKind("trt_tui.jobs.stages.run_stages_job", "stages", Urgency.ACCURACY)
    runs: tuple[Run, ...]
    configs: Mapping[str, PrecisionConfig]
    inputs_path: str | None = None


@dataclass(frozen=True)
class SaveOutputs(Request):
    """Write the outputs of runs on all samples as Polygraphy's RunResults; answered by `ConfigExported`.

    Attributes:
        runs: Configs by runner name.
    """

    job_kind = JobKind("trt_tui.jobs.dumps.run_save_outputs_job", "writing {file}", Urgency.BUILD,
                       phase="outputs for {file}", is_replaceable=False, needs_hashes=False)
    path: str
    runs: Mapping[str, PrecisionConfig]


@dataclass(frozen=True)
class CompareDumps(Request):
    """Hold two dumps of tensors against each other; answered by `DumpsCompared`. Nothing has to be open.

    Attributes:
        first, second: ``FILE`` or ``FILE:RUNNER``.
        threshold: Of the relative error of a tensor.
        scaled_tensors: Tensors of the network whose channels a config scales.
    """

    job_kind = JobKind("trt_tui.jobs.dumps.run_dump_comparison_job", "comparing dumps",
                       phase="comparing tensors", is_replaceable=False, needs_network=False)
    first: str
    second: str
    threshold: float
    scaled_tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreviewEngine(Request):
    """Tell what the builder makes of a config, without a GPU; answered by `EnginePreviewed`, once or twice.

    Attributes:
        config_ranges: See `ExportConfig`.
        with_effects: Ask what the config's choices do to the engine too.
        low_priority: Nothing that somebody waits for is to be slower for it.
        after_opening: The network was opened just now: its first verdict, and first look at who owns what, go before.
    """

    job_kind = JobKind("trt_tui.jobs.engine_preview.run_preview_job", "preview of {config}", is_automatic=True,
                       is_waited_for=False, needs_hashes=False)
    config: PrecisionConfig
    config_ranges: Mapping[str, float] | None = None
    with_effects: bool = True
    low_priority: bool = False
    after_opening: bool = False


@dataclass(frozen=True)
class WriteTextFile(Request):
    """Write a text to a file; answered by `ConfigExported`."""

    job_kind = JobKind("trt_tui.jobs.export.run_write_text_job", "writing {file}", is_replaceable=False,
                       needs_network=False)
    path: str
    text: str


@dataclass(frozen=True)
class FindMixedPrecisionConfig(Request):
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

    job_kind = JobKind("trt_tui.jobs.search_evaluator.run_search_job", "search from {config}", Urgency.SEARCH,
                       answers_when_stopped=True)
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


@dataclass(frozen=True)
class StopJobs:
    """End the jobs of these numbers; each is answered by `JobCancelled`."""

    jobs: frozenset[int]
