"""All that is known about what was opened: the network, its data, configs, results, the target, and its records."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.engines.preview import PreviewRefusal
from trt_tui.core.guards.float_work import measure_float_work_share
from trt_tui.core.guards.guard import FloatWorkShare, GuardFacts, GuardWarning
from trt_tui.core.guards.registry import collect_guard_warnings
from trt_tui.core.lowering.lowering_checks import reduces_precision
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.reference import is_network_file
from trt_tui.core.measure.results import Accuracy, ConfigResults, EngineResult
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.target import Target, choose_default_target, parse_target
from trt_tui.core.measure.target_outcome import TargetOutcome, judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_rules import apply_default_keep_rules
from trt_tui.core.moves.network_method import find_network_range_method
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import InputError, NotReadyError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.events import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options
from trt_tui.session.history import ConfigHistory, ConfigNames
from trt_tui.session.jobs import PendingRequests
from trt_tui.session.results import SessionResults, collect_run_accuracies
from trt_tui.session.saved_sessions import SavedSession, SessionFolder, SessionWriter
from trt_tui.session.search_status import SearchStatus

TOLERANCE_SEPARATOR = "; "
"""What stands between several tolerances in a file; all of them are targets when it is read."""

RUN_NAMES = ("fp16", "int8", "config")
"""The runs of the verdict, in the order they are shown."""


SAVED_RUN_NAMES = ("fp32", *RUN_NAMES)
"""The runs whose outputs can be written."""


class SessionState:
    """What is known so far; None, "" or empty if it is not known yet. It sends no requests and draws nothing.

    Attributes:
        options: The options of the command line.
        config_path: The precision.json that was named.
        automatic: Whether it measures by itself and is saved.
        network_only: Whether the network alone is opened; ``preliminary_outline`` is all of it then.
        preliminary_outline: The layers of a big network, before the rest of it is known.
        builder: What builds engines.
        execution_mode: How the simulation runs on a device.
        source: The hashes of network and data, and their files.
        calibration: The ranges in use; ``config_calibration`` are those of the config file.
        saved_sha256: Hash of the weights that the resumed session was measured on.
        history: The configs; ``config_names`` what they are called, ``group_change_times`` when a group was last
        changed (Unix time).
        results: All that was measured.
        last_built_config: The config that was built last.
        search_status: The search that runs or ran last.
        choice_reasons: The reason for each choice of the last search whose result became the config; see
        `SearchStatus.move_reasons`.
        target: What a run must reach; ``target_text`` as it was given, "" or None for the default.
        further_targets: What it must reach too: the other tolerances of a config file.
        facts: What guards look at, as far as the child process measures it.
        pending_requests: The requests under way.
        error: The last error.
        warnings: Messages that stay on screen; ``log`` holds all of them, ``notice`` is the last message to show.
        last_answer: The answer to the last request that writes or reads a file.
        preview_refusal: Why no config of this session has a preview, once that is known.
        method_comparison: The calibration methods that were compared last.
        was_interrupted: Whether a command was interrupted and shows what it had measured.
        session_folder: Where it is saved; ``session_writer`` writes to it.
    """

    def __init__(self, options: Options, *, config_path: str | None = None, target: str | None = None,
                 automatic: bool = True, session_folder: SessionFolder | None = None,
                 network_only: bool = False) -> None:
        self.options = options
        self.config_path = config_path
        self.automatic = automatic
        self.network_only = network_only
        self.preliminary_outline: NetworkOutline | None = None
        self.builder: BuilderSummary | None = None
        self.execution_mode: ExecutionMode | None = None
        self.source: Fingerprint | None = None
        self.calibration: Calibration | None = None
        self.config_calibration: Calibration | None = None
        self.saved_sha256 = ""
        self.history = ConfigHistory(PrecisionConfig.from_precision(Precision.INT8, options.other, options.tf32))
        self.config_names = ConfigNames()
        self.group_change_times: dict[str, float] = {}
        self.results = SessionResults()
        self.last_built_config: PrecisionConfig | None = None
        self.search_status: SearchStatus | None = None
        self.choice_reasons: dict[str, str] = {}
        self.target: Target | None = None
        self.further_targets: tuple[Target, ...] = ()
        self.target_text = target
        self.facts = GuardFacts()
        self.pending_requests = PendingRequests()
        self.error: ev.JobFailed | ev.ChildProcessDied | None = None
        self.warnings: list[str] = []
        self.log: list[str] = []
        self.notice = ""
        self.preview_refusal: PreviewRefusal | None = None
        self.last_answer: ev.CommandAnswer | None = None
        self.method_comparison: ev.RangeMethodsCompared | None = None
        self.was_interrupted = False
        self.session_folder = session_folder if session_folder is not None else SessionFolder()
        self.session_writer = SessionWriter(self.session_folder)
        self._opened_network: ev.NetworkOpened | None = None
        self._float_work_cache: tuple[tuple[NetworkOutline, PrecisionConfig, EngineResult | None],
                                      FloatWorkShare | None] | None = None

    # -- what was opened ----------------------------------------------------------------------------------------

    @property
    def opened_network(self) -> ev.NetworkOpened:
        """What was opened.

        Raises:
            NotYetError: nothing is open yet.
        """
        if self._opened_network is None:
            raise NotReadyError("nothing is open yet", "", "Wait for the network.")
        return self._opened_network

    @opened_network.setter
    def opened_network(self, event: ev.NetworkOpened) -> None:
        self._opened_network = event

    @property
    def outline(self) -> NetworkOutline | None:
        """The network that is open."""
        return self._opened_network.outline if self._opened_network is not None else None

    @property
    def judged_outputs(self) -> tuple[JudgedOutput, ...]:
        """The outputs that errors are taken at."""
        return self._opened_network.judged_outputs if self._opened_network is not None else ()

    @property
    def data_summary(self) -> DataSummary | None:
        """The samples in use."""
        return self._opened_network.data if self._opened_network is not None else None

    @property
    def backend_summary(self) -> BackendSummary | None:
        """What simulates."""
        return self._opened_network.backend if self._opened_network is not None else None

    @property
    def metric_name(self) -> str | None:
        """The name of the user's metric."""
        return self._opened_network.metric if self._opened_network is not None else None

    @property
    def reference_name(self) -> str:
        """What errors are taken against, in words: ``FP32_FILE``, or the file that was named."""
        named = self._opened_network.reference if self._opened_network is not None else None
        return named.name if named is not None else "FP32"

    @property
    def fp32_accuracy(self) -> Accuracy | None:
        """FP32 of the network itself, where errors are taken against something else and it is measured."""
        if self._opened_network is None or self._opened_network.reference is None:
            return None
        return self.results.get_results_or_empty(PrecisionConfig.from_precision(Precision.FP32)).accuracy

    @property
    def network_sha256(self) -> str:
        """The hash of the network and its weights; "" until it is known."""
        return self.source.sha256 if self.source is not None else ""

    @property
    def ranges_source_text(self) -> str:
        """Where the ranges in use are from, in words; "" while none are needed."""
        if self.calibration is None or self.data_summary is None:
            return ""
        if self.options.calib_cache is not None:
            suffix = " and others" if self.calibration.samples else ""
            return f"ranges of {Path(self.options.calib_cache).name}{suffix}"
        if self.config_path is not None and self.config_calibration is not None and (
                self.config_calibration.ranges.items() <= self.calibration.ranges.items()):
            suffix = "" if self.calibration == self.config_calibration else " and others"
            return f"ranges of {Path(self.config_path).name}{suffix}"
        method = find_network_range_method(self.config, self.opened_network.outline) or self.calibration.method
        return (
            f"calibrated on "
            f"{self.data_summary.calibration_count}{f' by {method}' if method in RANGE_METHODS[1:] else ''}"
        )

    # -- what is going on ---------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way; in the app, previews and flips aside."""
        return bool(self.pending_requests) if not self.automatic else self.pending_requests.has_foreground_request

    @property
    def is_building(self) -> bool:
        """Whether an engine is being built because the user asked for it."""
        return self.pending_requests.has_request(rq.BuildEngine, rq.WriteEngine)

    @property
    def is_searching(self) -> bool:
        """Whether a search is going on."""
        return self.pending_requests.has_request(rq.FindMixedPrecisionConfig)

    def show_error(self, failure: ev.JobFailed) -> None:
        """Shows an error in the log and on the screen."""
        self.error = failure
        self.log.append(f"{failure.title}: {failure.cause}")
        self.log.extend(failure.detail.splitlines())

    # -- configs and results ------------------------------------------------------------------------------------

    @property
    def config(self) -> PrecisionConfig:
        """The current config."""
        return self.history.current

    def list_run_configs(self) -> dict[str, PrecisionConfig]:
        """The config of every run of `RUN_NAMES`."""
        float_precision = self.config.other if self.config.other is not Precision.FILE else self.options.other
        tf32 = self.config.tf32
        return {
            "fp16": self.apply_default_keep_rules(PrecisionConfig.from_precision(Precision.FP16, tf32=tf32)),
            "int8": self.apply_default_keep_rules(PrecisionConfig.from_precision(Precision.INT8, float_precision,
                                                                                 tf32)), "config": self.config
        }

    def apply_default_keep_rules(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config of uniform precisions with the rules that apply by default, less those turned off."""
        network = self.outline or self.preliminary_outline
        return config if network is None else apply_default_keep_rules(network, config, self.options.no_keep)

    def get_run_results(self, run: str) -> ConfigResults:
        """What is known of the config of a run."""
        return self.results.get_results_or_empty(self.list_run_configs()[run])

    # -- what guards say ----------------------------------------------------------------------------------------

    def collect_guard_facts(self) -> GuardFacts:
        """What guards look at: what the child process has measured of data and ranges, and what is known of runs."""
        if self.outline is None:
            return self.facts
        config, fp32 = self.config, self.fp32_accuracy
        has_dump = self.options.reference is not None and not is_network_file(self.options.reference)
        name = ("the file" if config.uses_only_file_precisions else
                config.quantized.label if not config.moves else self.config_names.get(config, "the config"))
        framework = fp32.outputs if fp32 is not None and has_dump and fp32.samples >= fp32.total else {}
        return replace(self.facts,
                       framework_errors={output: judged_output.errors
                                         for output, judged_output in framework.items()
                                         }, run_name=name, accuracy=self.results.get_results_or_empty(config).accuracy,
                       fp16_accuracy=self.get_run_results("fp16").accuracy, float_type=config.other.value,
                       is_quantized=config.quantized in QUANTIZED_TYPES,
                       quantized_type=config.find_main_quantized_type(self.outline).label, target=self.target,
                       float_work=self._measure_float_work(self.outline))

    def _measure_float_work(self, outline: NetworkOutline) -> FloatWorkShare | None:
        """How much of the config's work is done in floats: counted over all groups for each config, not at each key."""
        inputs = outline, self.config, self.get_run_results("int8").engine_result
        if self._float_work_cache is None or any(
                first is not second for first, second in zip(inputs, self._float_work_cache[0], strict=True)):
            self._float_work_cache = inputs, measure_float_work_share(*inputs)
        return self._float_work_cache[1]

    @property
    def guard_warnings(self) -> tuple[GuardWarning, ...]:
        """What guards warn of, the gravest first."""
        return collect_guard_warnings(self.collect_guard_facts())

    @property
    def shown_warnings(self) -> list[tuple[str, str]]:
        """All that stays on screen, in short and in full: what guards warn of, then the other warnings."""
        return [
            *((alarm.summary, alarm.warning_line) for alarm in self.guard_warnings),
            *((text, text) for text in self.warnings)
        ]

    def log_shown_warnings(self) -> None:
        """Puts into the log what stays on screen and is not in it yet."""
        logged = set(self.log)
        self.log.extend(f"warning: {line}" for _, line in self.shown_warnings
                        if not {line, f"warning: {line}"} & logged)

    # -- the target ---------------------------------------------------------------------------------------------

    def read_target(self, text: str) -> Target:
        """Reads a target of this network.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        target = parse_target(text)
        if self.outline is not None:
            target.refuse_if_unmeasurable(self.judged_outputs, self.outline, self.metric_name)
        if target.kind == "metric" and self.results.has_full_reference:
            target.with_base_values(self.results.reference_metric)
        return target

    def read_targets(self, text: str) -> list[Target]:
        """Reads several targets, with `TOLERANCE_SEPARATOR` between them; raises as `read_target`."""
        return [self.read_target(target_text) for target_text in text.split(TOLERANCE_SEPARATOR)]

    def set_target(self, text: str) -> None:
        """Changes the target, or several with `TOLERANCE_SEPARATOR` between them.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        self.target, *further = self.read_targets(text)
        self.further_targets, self.target_text = tuple(further), text
        self.update_target_baseline()
        self.save_session()

    def set_initial_target(self) -> None:
        """The target that was given with the network or in a file; the default if it cannot be used here."""
        try:
            self.target, *further = self._read_initial_targets()
        except InputError as error:
            # The text comes from a file: the command line's is checked before a session is made.
            self.warnings.append(f"The target is not accepted. {error.title}: {error.cause}")
            self.target_text = None
            self.target, *further = self._read_initial_targets()
        self.further_targets = tuple(further)

    def _read_initial_targets(self) -> list[Target]:
        if self.target_text:
            return self.read_targets(self.target_text)
        return [
            choose_default_target(self.metric_name, self.judged_outputs, self.opened_network.outline,
                                  bool(self.opened_network.data.label_names))
        ]

    @property
    def targets(self) -> tuple[Target, ...]:
        """All that a run must reach."""
        return (self.target, *self.further_targets) if self.target is not None else ()

    def update_target_baseline(self, covers_all_samples: bool = True) -> None:
        """Gives a target that bounds the metric what that is in FP32.

        Args:
            covers_all_samples: Whether that was measured on all samples.

        Raises:
            InputError: the metric has no part of the target's name; in the app the default takes its place.
        """
        def add_baseline(target: Target) -> Target:
            return target.with_base_values(self.results.reference_metric,
                                           covers_all_samples) if target.kind == "metric" else target

        if self.target is None:
            return
        try:
            self.target, self.further_targets = add_baseline(self.target), tuple(map(add_baseline,
                                                                                     self.further_targets))
        except InputError as error:
            if not self.automatic:
                raise
            self.warnings.append(f"The target is not accepted. {error.title}: {error.cause}")
            self.target_text, self.further_targets = None, ()
            self.target = add_baseline(self._read_initial_targets()[0])

    @property
    def has_explicit_target(self) -> bool:
        """Whether somebody has stated the target: the user, or who wrote the config. Nobody has stated the default."""
        return bool(self.target_text)

    @property
    def targets_text(self) -> str:
        """The targets as they are written in a file."""
        return TOLERANCE_SEPARATOR.join(target.text for target in self.targets)

    def target_outcome(self, accuracy: Accuracy | None) -> TargetOutcome | None:
        """Whether an accuracy meets the targets, with reasons; None where nobody can say yet."""
        return judge_accuracy(self.targets, accuracy) if accuracy is not None else None

    def missed_target_reasons(self, config: PrecisionConfig) -> dict[RunKind, str]:
        """Why a config misses a target that somebody has stated, by run; empty if it does not.

        It is missed for FAIL and FAIL?, as simulated, as exported or as built.
        """
        if not self.has_explicit_target:
            return {}
        accuracies = collect_run_accuracies(self.results.get_results_or_empty(config))
        return {kind: self.missed_target_text(outcome, accuracies[kind])
                for kind, outcome in self.config_target_outcomes(config).items() if not outcome.passes}

    def missed_target_text(self, target_outcome: TargetOutcome, accuracy: Accuracy) -> str:
        """Why a target is missed, in words."""
        targets = " and ".join(target.description for target in self.targets)
        measured_text = " and ".join(target.measured_value_text(accuracy) for target in self.targets)
        reasons = "; ".join(reason for reason in target_outcome.reasons if reason not in measured_text)
        return f"{targets}, and it has {measured_text}" + (f" ({target_outcome.outcome.value}: {reasons})"
                                                           if reasons else "")

    def config_target_outcomes(self, config: PrecisionConfig) -> dict[RunKind, TargetOutcome]:
        """The results of a config: as simulated, as it is exported, and as built where it was built as asked.

        Empty for a config that lowers nothing, which proves nothing.
        """
        if self.outline is None or not reduces_precision(self.outline, config):
            return {}
        accuracies = collect_run_accuracies(self.results.get_results_or_empty(config))
        return {kind: outcome for kind, accuracy in accuracies.items()
                if (outcome := self.target_outcome(accuracy)) is not None}

    # -- saving -------------------------------------------------------------------------------------------------

    def save_session(self) -> None:
        """Has history, names and target saved, unless nothing was opened or this session belongs to a command."""
        if self.outline is None or not self.automatic:
            return
        self.session_writer.save_session(
            self.outline.structure_sha256,
            partial(SavedSession.from_state, self.outline, ConfigHistory.from_snapshot(*self.history.snapshot()),
                    self.config_names.copy(), self.target_text or "", self.network_sha256 or self.saved_sha256))
