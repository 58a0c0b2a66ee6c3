"""The requests that the program sends to the background process. All requests are frozen and picklable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.measure.results import Run
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.options import Options


class Urgency(IntEnum):
    """The urgency of a step. A lower number goes first."""

    OPENING = 0
    WHAT_IF = 1
    BUILD = 2
    TENSOR_STATS = 3
    REMEDIES = 4
    FIRST_ACCURACY = 5
    ACCURACY = 6
    SEARCH = 7
    FIRST_SHARES = 8
    GROUP_ERRORS = 9
    BACKGROUND = 10
    TOGGLES = 11


@dataclass(frozen=True)
class JobKind:
    """The properties of all jobs of one request type. The functions that run, show or stop jobs read them.

    Titles and phases are format texts. They contain fields of the request, ``{config}`` for the name of its config, and
    ``{file}`` for the last part of its path.

    Attributes:
        handler: The dotted name of the function that yields the steps. Only the background process imports the
            function. Its arguments are the workspace, the `ResultStore`, the `JobReporter` and the request.
        title: The title of a job.
        urgency: The urgency of the first step.
        phase: The text beside the progress; the title by default. A job of several phases names each phase itself.
        needs_network: True if a network must be open. If False, the handler receives the `WorkspaceSlot` in place of
            the workspace.
        needs_hashes: True if the network and the data must be hashed before the job, because its values depend on them.
        is_replaceable: True if a newer request of the type replaces an older one; False if a file is read or written on
            request.
        is_automatic: True if the job follows the cursor or a change, without a key press of the user.
        ends_with_list: True if the app stops the job when the list or chart that shows its values is closed.
        is_waited_for: True if the app counts as busy until the job ends.
        answers_when_stopped: True if a stopped job sends its results so far before it ends.
        measures_current_config: True if the job changes the values of the current config.
    """

    handler: str
    title: str
    urgency: Urgency = Urgency.OPENING
    phase: str = ""
    needs_network: bool = True
    needs_hashes: bool = True
    is_replaceable: bool = True
    is_automatic: bool = False
    ends_with_list: bool = False
    is_waited_for: bool = True
    answers_when_stopped: bool = False
    measures_current_config: bool = False


class Request:
    """A message to the background process that starts a job.

    Each type declares the kind of its jobs; there is no list of types.
    """

    job_kind: ClassVar[JobKind]

    def job_title(self, config_name: str = "", has_builder: bool = True) -> str:
        """Returns the title of the request's job on screen.

        Args:
            config_name: The name of the request's config; "" if the config has no name.
            has_builder: False if no backend builds engines here.
        """
        return self._fill_in_fields(self.job_kind.title, config_name or "a config")

    @property
    def phase(self) -> str:
        """The text beside the progress of the job."""
        return self._fill_in_fields(self.job_kind.phase or self.job_kind.title, "a config")

    def _fill_in_fields(self, text: str, config_name: str) -> str:
        path = Path(getattr(self, "path", ""))
        return text.format_map({**vars(self), "config": config_name, "file": path.name})


@dataclass(frozen=True)
class OpenNetwork(Request):
    """A request to open the network, the data and the backend. The answer is the event `NetworkOpened`, with
    `ConfigRead` if a config is named.

    Attributes:
        expected_fingerprint: The fingerprint of an earlier process. Further requests fail if the network or the data
            differ from it.
        structure_hash: The required structure of the network; "" to accept any.
        config: The path of a precision.json to read; None for none.
        force: True to accept a config of another network structure, as far as it matches.
        network_only: True to open only the network, which `LayersListed` answers. The data and the backends are then
            opened by the first job that needs them.
        needs_builder: True to fail before anything is read if no TensorRT works here.
    """

    job_kind = JobKind(
        "trt_tui.jobs.opening.run_open_job", "opening {file}", needs_network=False, measures_current_config=True
    )
    options: Options
    expected_fingerprint: Fingerprint | None = None
    structure_hash: str = ""
    config: str | None = None
    force: bool = False
    network_only: bool = False
    needs_builder: bool = False

    @property
    def path(self) -> str:
        return self.options.model


@dataclass(frozen=True)
class CalibrateRanges(Request):
    """A request for the ranges of a range method for some tensors. The answer is the event `RequestedRangesReady`.

    Attributes:
        tensors: The tensors that get a range.
        config: The config whose quantized types the ranges are for.
    """

    job_kind = JobKind(
        "trt_tui.jobs.calibration.run_calibration_job", "calibration ({method})", measures_current_config=True
    )
    method: str
    tensors: tuple[str, ...] = ()
    config: PrecisionConfig = PrecisionConfig()


@dataclass(frozen=True)
class UseRanges(Request):
    """A request to use the ranges of a config file or an earlier process instead of calibration. The answer is the
    event `CalibrationReady`.

    Attributes:
        only_missing: True to use the ranges only for tensors that the calibration cache lacks, if a cache is named.
        config_name: The name of the config file with the ranges; "" if they are from an earlier process.
    """

    job_kind = JobKind("trt_tui.jobs.calibration.run_use_ranges_job", "applying ranges", needs_hashes=False)
    calibration: Calibration
    only_missing: bool = False
    config_name: str = ""


@dataclass(frozen=True)
class RunPreflight(Request):
    """A request for the facts of guards that need extra executions of the network. The answer is the event
    `GuardFactsMeasured`.

    Attributes:
        config: The config whose ranges are checked.
    """

    job_kind = JobKind("trt_tui.jobs.opening.run_preflight_job", "preflight", Urgency.ACCURACY)
    config: PrecisionConfig


@dataclass(frozen=True)
class CompareRuns(Request):
    """A request to compare runs with the reference: accuracies on few samples first, then errors at the groups and
    error shares.

    Attributes:
        runs: The configs by run key, in the order of measurement.
        with_group_errors: True to measure the errors at the groups.
        shares_run: The key of the run whose error shares are measured first, before those of the other runs; None for
            no shares.
        with_isolated_errors: False to measure accumulated errors only, in the executions of the accuracy, and nothing
            else.
        first_errors_run: The key of the run whose accumulated errors come before everything else; None for none.
        with_raises: True to measure, behind the shares of a run, the accuracy with its worst groups raised together.
            The app shows it; no report of a command does.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_comparison_job", "comparison", Urgency.FIRST_ACCURACY, measures_current_config=True
    )
    runs: Mapping[str, PrecisionConfig]
    with_group_errors: bool = True
    shares_run: str | None = None
    with_isolated_errors: bool = True
    first_errors_run: str | None = None
    with_raises: bool = True


@dataclass(frozen=True)
class MeasureWhatIf(Request):
    """A request for the simulated accuracy of one config on the what-if samples. The answer is the event
    `AccuracyMeasured` of the run "config".

    Attributes:
        with_shares: True to measure the config's error shares and errors at the groups afterwards, in the background.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_what_if_job", "what-if {config}", Urgency.WHAT_IF, measures_current_config=True
    )
    config: PrecisionConfig
    with_shares: bool = False


@dataclass(frozen=True)
class MeasureSampleErrors(Request):
    """A request for the error of each judged sample in a config.

    The answer is a `ValueMeasured` of the kind `SAMPLE_ERRORS`.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_sample_error_job",
        "error over samples of {config}",
        Urgency.ACCURACY,
        phase="errors sample by sample",
        ends_with_list=True,
    )
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureSingleSample(Request):
    """A request for the results of a single sample.

    The answer is a `ValueMeasured` of the kind `SINGLE_SAMPLES`, several times as more is measured.

    Attributes:
        config: The config whose groups' error shares are measured on the sample.
        runs: The configs in which the error of the sample is measured, by run key.
        sample: The name of the sample.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_single_sample_job",
        "sample {sample}",
        Urgency.FIRST_SHARES,
        phase="measuring sample {sample}",
        ends_with_list=True,
    )
    config: PrecisionConfig
    runs: Mapping[str, PrecisionConfig]
    sample: SampleName


@dataclass(frozen=True)
class LoadStoredResults(Request):
    """A request for the stored results of configs from an earlier program. The answer is the event
    `StoredResultsLoaded` for each config with results."""

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_stored_results_job", "values of other configs", Urgency.ACCURACY, is_automatic=True
    )
    configs: tuple[PrecisionConfig, ...]


@dataclass(frozen=True)
class MeasureRemedies(Request):
    """A request for the what-if accuracies of the remedies for one group.

    The answer is a `ValueMeasured` of the kind `REMEDIES`.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_remedy_job", "remedies for {group}", Urgency.REMEDIES, is_automatic=True
    )
    group: str
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureZeroCostChanges(Request):
    """A request for the zero-cost changes of a config, of one group and of the whole network. The answers are the
    events `ValueMeasured` of the kind `ZERO_COST_CHANGES`.

    Attributes:
        group: The name of the group; "" for the whole network only.
        use_preview: True to preview the kernels of each change.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_zero_cost_job",
        "zero-cost changes of {config}",
        Urgency.REMEDIES,
        ends_with_list=True,
    )
    group: str
    config: PrecisionConfig
    use_preview: bool = False


@dataclass(frozen=True)
class MeasureToggles(Request):
    """A request to measure the config with each relevant row or scope toggled, in the background. The answer is the
    event `AccuracyMeasured` of the run "flip", for each row and scope.

    Attributes:
        MAX_SCOPE_GROUPS: The maximum number of groups in a toggled scope.
    """

    job_kind = JobKind(
        "trt_tui.jobs.comparison.run_toggle_job",
        "toggles of {config}",
        Urgency.TOGGLES,
        phase="toggling each row",
        is_automatic=True,
        is_waited_for=False,
    )
    MAX_SCOPE_GROUPS: ClassVar[int] = 256
    config: PrecisionConfig


@dataclass(frozen=True)
class MeasureTensorStats(Request):
    """A request for the details of a group, from which the causes of its loss are found.

    The answer is a `ValueMeasured` of the kind `GROUP_DETAILS` for each group. It contains the tensor statistics of the
    inputs and the result.

    Attributes:
        other_groups: Further groups that are measured in the same pass.
    """

    job_kind = JobKind(
        "trt_tui.jobs.calibration.run_tensor_stats_job", "values of {group}", Urgency.TENSOR_STATS, is_automatic=True
    )
    group: str
    other_groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetRanges(Request):
    """A request to set the ranges of tensors to values from the user. The answer is the event `RequestedRangesReady`.

    Attributes:
        config: The config whose quantized types the ranges are for.
        ranges: Names of tensors, scopes or patterns, each with the text of a range, as
            `trt_tui.core.calibration.user_ranges` reads them. The last entry that names a tensor sets its range.
    """

    job_kind = JobKind(
        "trt_tui.jobs.calibration.run_set_ranges_job", "ranges", Urgency.WHAT_IF, measures_current_config=True
    )
    config: PrecisionConfig
    ranges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CompareRangeMethods(Request):
    """A request for the accuracy of a config with the ranges of several range methods. The answer is the event
    `ValueMeasured` of the kind `METHOD_COMPARISON`, after each method."""

    job_kind = JobKind("trt_tui.jobs.comparison.run_method_comparison_job", "calibration methods", Urgency.ACCURACY)
    config: PrecisionConfig
    methods: tuple[str, ...]


@dataclass(frozen=True)
class BuildEngine(Request):
    """A request to build the engine of a config and to measure it. The answers are a `ValueMeasured` of the kind
    `FP32_ENGINE` and `EngineBuilt`.

    Attributes:
        with_marked_engine: True to measure errors at the groups of a marked engine too, which a second `EngineBuilt`
            answers. A release with debug tensors answers with this event without such a request.
        later_configs: The configs of the next requests. Workers build all of them in parallel.
    """

    job_kind = JobKind("trt_tui.jobs.engine.run_build_job", "build of {config}", Urgency.BUILD)
    config: PrecisionConfig
    with_marked_engine: bool = False
    later_configs: tuple[PrecisionConfig, ...] = ()

    def job_title(self, config_name: str = "", has_builder: bool = True) -> str:
        return f"{'build' if has_builder else 'execution of the export'} of {config_name or 'a config'}"


@dataclass(frozen=True)
class WrittenConfig:
    """The fields that the requests to write a config to a file or folder share.

    Attributes:
        path: The path of the file, or of the folder, which must be new or empty.
        config_calibration: The ranges of the config file, which may be none. Only tensors without a range are measured,
            and never on random inputs. None to use the ranges of the workspace.
    """

    path: str
    config: PrecisionConfig
    config_calibration: Calibration | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class WriteEngine(WrittenConfig, Request):
    """A request to build the engine of a config and to write it to a file, without measuring it. The answer is the
    event `ConfigExported`."""

    job_kind = JobKind(
        "trt_tui.jobs.engine.run_write_engine_job",
        "writing {file}",
        Urgency.BUILD,
        is_replaceable=False,
        needs_hashes=False,
    )


@dataclass(frozen=True)
class ExportConfig(WrittenConfig, Request):
    """A request to write a config in the format of another tool. The answer is the event `ConfigExported`.

    Attributes:
        kind: A name of `trt_tui.core.exporters.registry.EXPORT_FORMATS`.
        target_entries: The entries of `trt_tui.session.comparison_report.make_target_entries`, for precision.json.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_export_job",
        "writing {file}",
        Urgency.BUILD,
        is_replaceable=False,
        needs_hashes=False,
    )
    kind: str
    target_entries: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteBundle(WrittenConfig, Request):
    """A request to write a folder with all files that production needs for a config. The answer is the event
    `ConfigExported`, with the folder first.

    Attributes:
        release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
        config_text: The config as the text of a precision.json.
        comparison_report: The report of the measured values in Markdown.
        with_samples: True to add samples and their outputs.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_write_bundle_job",
        "writing {file}",
        Urgency.BUILD,
        is_replaceable=False,
        needs_hashes=False,
    )
    release: str
    config_text: str
    comparison_report: str
    with_samples: bool = True


@dataclass(frozen=True)
class WriteSubgraph(WrittenConfig, Request):
    """A request to write the part of the network between some tensors to a folder. The answer is the event
    `ConfigExported`, with the folder first.

    Attributes:
        start_tensors, stop_tensors: The inputs and the outputs of the part.
        group: The name of the group to write, in place of tensors; "" to use the tensors.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_write_subgraph_job",
        "writing {file}",
        Urgency.BUILD,
        is_replaceable=False,
        needs_hashes=False,
    )
    start_tensors: tuple[str, ...] = ()
    stop_tensors: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class ReadEngineFile(Request):
    """A request for the layers of an engine file. The answer is the event `EngineFileRead`.

    Attributes:
        path: The path of an engine, which `Options.backend` loads, or of the JSON of trtexec --exportLayerInfo.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_engine_inspection_job",
        "reading {file}",
        Urgency.BUILD,
        is_replaceable=False,
        needs_hashes=False,
    )
    path: str


@dataclass(frozen=True)
class MeasureStages(Request):
    """A request to execute stages on the way to production and to compare each with the previous stage. The answer is
    a `ValueMeasured` of the kind `STAGES` for each stage.

    Attributes:
        runs: The stages in their order. A simulated or built stage has its config.
        config: The config that production is compared with.
        inputs_path: The path of a dump of the inputs in production; None to search for the inputs beside its outputs.
    """

    job_kind = JobKind("trt_tui.jobs.production.run_stages_job", "stages", Urgency.ACCURACY)
    runs: tuple[Run, ...]
    config: PrecisionConfig
    inputs_path: str | None = None


@dataclass(frozen=True)
class SaveOutputs(Request):
    """A request to write the outputs of runs on all samples as Polygraphy's RunResults. The answer is the event
    `ConfigExported`.

    Attributes:
        runs: The configs by runner name.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_save_outputs_job",
        "writing {file}",
        Urgency.BUILD,
        phase="outputs for {file}",
        is_replaceable=False,
        needs_hashes=False,
    )
    path: str
    runs: Mapping[str, PrecisionConfig]


@dataclass(frozen=True)
class CompareDumps(Request):
    """A request to compare two dumps. The answer is the event `DumpsCompared`. No network needs to be open.

    Attributes:
        reference, run: The two dumps; errors are those of the second.
        threshold: The relative error from which a tensor counts as different.
        scaled_tensors: The tensors of the network whose channels a config scales.
    """

    job_kind = JobKind(
        "trt_tui.jobs.production.run_dump_comparison_job",
        "comparing dumps",
        phase="comparing tensors",
        is_replaceable=False,
        needs_network=False,
    )
    reference: Run
    run: Run
    threshold: float
    scaled_tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class InspectDump(Request):
    """A request for the values of a dump. The answer is the event `DumpInspected`. No network needs to be open."""

    job_kind = JobKind(
        "trt_tui.jobs.production.run_dump_inspection_job",
        "inspecting a dump",
        phase="reading tensors",
        is_replaceable=False,
        needs_network=False,
    )
    file_path: str


@dataclass(frozen=True)
class PreviewEngine(Request):
    """A request for the preview of a config. The answer is the event `EnginePreviewed` once, and again with the effects
    of moves.

    Attributes:
        config_calibration: The ranges of the config file, as in `WrittenConfig`.
        with_effects: True to preview the effects of the config's moves too.
        low_priority: True if the preview must not delay jobs that the user waits for.
        after_opening: True if the network was just opened. The first accuracy and the first error shares then come
            before the preview.
    """

    job_kind = JobKind(
        "trt_tui.jobs.engine_preview.run_preview_job",
        "preview of {config}",
        is_automatic=True,
        is_waited_for=False,
        needs_hashes=False,
    )
    config: PrecisionConfig
    config_calibration: Calibration | None = None
    with_effects: bool = True
    low_priority: bool = False
    after_opening: bool = False


@dataclass(frozen=True)
class RemoveUnusedQdq(Request):
    """A request to take the Q/DQ of layers out of a config if the previewed engine computes these layers in a float
    type. The answer is the event `UnusedQdqRemoved`.

    Attributes:
        fixed_reasons: The reasons why some groups keep their Q/DQ, by group name.
    """

    job_kind = JobKind("trt_tui.jobs.comparison.run_qdq_removal_job", "unused Q/DQ of {config}", Urgency.WHAT_IF)
    config: PrecisionConfig
    fixed_reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteTextFile(Request):
    """A request to write a text file. The answer is the event `ConfigExported`."""

    job_kind = JobKind(
        "trt_tui.jobs.production.run_write_text_job", "writing {file}", is_replaceable=False, needs_network=False
    )
    path: str
    text: str


@dataclass(frozen=True)
class FindMixedPrecisionConfig(Request):
    """A request to find a small set of groups to raise. The answers are the events `SearchProgress` and `SearchEnded`.

    `trt_tui.session.search_status.make_search_request` makes this request for the app and the commands.

    Attributes:
        config: The start config. Groups that are raised in it stay raised.
        tolerances: The texts of the targets, all of which must be met.
        method: A name of `trt_tui.core.search.SEARCH_METHODS`.
        higher_precision: The precision that groups are raised to.
        try_ranges: True to try other ranges before groups are raised.
        try_zero_cost: True to try zero-cost moves before groups are raised.
        max_raised: The maximum number of groups above their default precision; None for no limit.
        max_latency: The maximum latency in ms, estimated from engines; None for no limit.
        max_builds: The maximum number of engines, if engines can run here. A latency budget needs two of them.
        check_command: A command that accepts or rejects a config (`trt_tui.jobs.check_command.run_check_command`); None
            for none.
        intermediate_precisions: The precisions below ``higher_precision`` that raised groups may have if they suffice,
            lowest first.
        fixed_groups: The groups that keep their precision in ``config``.
        use_preview: True to preview start and result, to take out Q/DQ that the engine does not use, and to undo raises
            that do not change the engine.
        sample: The sample on whose batch alone accuracy is measured: its index, "worst" for the worst sample of
            ``config``, or "" for all samples.
        hold_out: True to measure the result on held-out samples, and to choose on the others, if there are enough
            samples (`trt_tui.core.data.samples`).
    """

    job_kind = JobKind(
        "trt_tui.jobs.search_job.run_search_job", "search from {config}", Urgency.SEARCH, answers_when_stopped=True
    )
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
    """A message to end some jobs, given by number. The answer is the event `JobCancelled` for each job."""

    jobs: frozenset[int]
