"""The state of a session: the opened network, its data, configs, results, targets and pending requests."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trt_tui import __version__
from trt_tui.core.calibration.calibration import RANGE_METHODS, Calibration
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.engines.group_implementations import PreviewRefusal
from trt_tui.core.guards.guards import (
    FloatWorkShare,
    GuardFacts,
    GuardWarning,
    collect_guard_warnings,
    fp32_miss_text,
    measure_float_work_share,
)
from trt_tui.core.lowering.network_rewrite import reduces_precision
from trt_tui.core.measure.engine_agreement import EngineDivergence, find_engine_divergence, suggest_engine_checks
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.results import Accuracy, ConfigResults, EngineResult, RunKind, restrict_to_common_samples
from trt_tui.core.measure.run_sources import is_network_file
from trt_tui.core.measure.stages import (
    PRODUCTION_STAGE,
    STABILITY,
    STAGES,
    StageResult,
    compare_production_with_tested_run,
    first_divergence_text,
)
from trt_tui.core.measure.target import (
    Outcome,
    Target,
    TargetOutcome,
    choose_default_target,
    judge_accuracy,
    parse_target,
)
from trt_tui.core.moves.config import PrecisionConfig, find_network_range_method
from trt_tui.core.moves.keep_rules import apply_default_keep_rules
from trt_tui.core.network.known_defects import BuildTarget
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import InputError, NotReadyError
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.events import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options
from trt_tui.session.history import (
    ChangeHistory,
    ConfigNames,
    SavedSession,
    SearchDoubt,
    SessionFolder,
    SessionWriter,
    imply_targets,
)
from trt_tui.session.jobs import PendingRequests
from trt_tui.session.results import SessionResults, collect_run_accuracies, outcome_texts
from trt_tui.session.search_status import SearchStatus

_MIN_SIMULATION_GAP = 1.0
"""The difference between simulated and executed values, in dB or percentage points, from which it raises a doubt about
other simulated values. Exported networks usually differ by a few tenths."""

TOLERANCE_SEPARATOR = "; "
"""The text between several tolerances in a file. When the file is read, all of them are targets."""

DEFAULT_RUNS = ("fp16", "int8", "config")
"""The runs that a session compares with FP32 if ``--runs`` names none, in the order of display."""


class SessionState:
    """The state of a session. Unknown values are None, "" or empty. It sends no requests and draws nothing.

    Attributes:
        options: The options of the command line.
        config_path: The precision.json of the command line.
        automatic: True if the session measures without a request and is saved.
        network_only: True if only the network is opened, without data and backends.
        unmeasured_outline: The network in a session with ``network_only``; None in other sessions.
        builder: The backend that builds engines.
        execution_mode: The way in which the simulation runs on a device.
        source: The hashes of network and data, and their files.
        calibration: The ranges in use; ``config_calibration`` are the ranges of the config file.
        saved_sha256: Hash of the weights behind the resumed session.
        history: The current state of everything that the user can change, and earlier states for undo.
        config_names: The names of configs.
        results: All measured results.
        last_built_config: The config that was built last.
        search_status: The search that runs or ran last.
        targets: The targets of a run, of which a config file can name several.
        rejected_target_reason: The reason why a stored target is not in use.
        facts: The facts that guards check, as far as the background process measures them.
        pending_requests: The requests without a final answer.
        error: The last error.
        warnings: Messages that stay on screen; ``log`` contains all messages, ``notice`` is the last message to show.
        last_answer: The answer to the last request that writes or reads a file.
        preview_refusal: The reason why no config of this session can have a preview, as soon as it is known.
        was_interrupted: True if a command was interrupted and shows the results so far.
        session_folder: The folder of saved sessions; ``session_writer`` writes to it.
    """

    def __init__(
        self,
        options: Options,
        *,
        config_path: str | None = None,
        target: str | None = None,
        automatic: bool = True,
        session_folder: SessionFolder | None = None,
        network_only: bool = False,
    ) -> None:
        self.options = options
        self.config_path = config_path
        self.automatic = automatic
        self.network_only = network_only
        self.unmeasured_outline: NetworkOutline | None = None
        self.builder: BuilderSummary | None = None
        self.execution_mode: ExecutionMode | None = None
        self.source: Fingerprint | None = None
        self.calibration: Calibration | None = None
        self.config_calibration: Calibration | None = None
        self.saved_sha256 = ""
        self.history = ChangeHistory(
            PrecisionConfig.from_precision(Precision.INT8, options.other, options.tf32), target or ""
        )
        self.config_names = ConfigNames()
        self.results = self.make_empty_results()
        self.last_built_config: PrecisionConfig | None = None
        self.search_status: SearchStatus | None = None
        self.targets: tuple[Target, ...] = ()
        self.rejected_target_reason: str | None = None
        self.facts = GuardFacts()
        self.pending_requests = PendingRequests()
        self.error: ev.JobFailed | ev.ChildProcessDied | None = None
        self.warnings: list[str] = []
        self.log: list[str] = []
        self.notice = ""
        self.preview_refusal: PreviewRefusal | None = None
        self.last_answer: ev.CommandAnswer | None = None
        self.was_interrupted = False
        self.session_folder = session_folder if session_folder is not None else SessionFolder()
        self.session_writer = SessionWriter(self.session_folder)
        self._opened_network: ev.NetworkOpened | None = None
        self._float_work_cache: (
            tuple[tuple[NetworkOutline, PrecisionConfig, EngineResult | None], FloatWorkShare | None] | None
        ) = None

    # -- the opened network ---------------------------------------------------------------------------------------

    @property
    def opened_network(self) -> ev.NetworkOpened:
        """The event that reported the opened network.

        Raises:
            NotReadyError: No network is open yet.
        """
        if self._opened_network is None:
            raise NotReadyError("nothing is open yet", "", "Wait for the network.")
        return self._opened_network

    @property
    def outline(self) -> NetworkOutline | None:
        """The network in outline; None until it is read."""
        return self._opened_network.outline if self._opened_network is not None else self.unmeasured_outline

    @property
    def build_target(self) -> BuildTarget:
        """The release and the GPU that engines are built for: of ``--for``, or else of the builder."""
        builder = self.builder
        return (
            self.options.make_build_target()
            if builder is None
            else self.options.make_build_target(builder.name, builder.version, builder.compute_capability)
        )

    @property
    def judged_outputs(self) -> tuple[JudgedOutput, ...]:
        return self._opened_network.judged_outputs if self._opened_network is not None else ()

    @property
    def data_summary(self) -> DataSummary | None:
        """The summary of the samples in use; None if no network is open yet."""
        return self._opened_network.data if self._opened_network is not None else None

    @property
    def backend_summary(self) -> BackendSummary | None:
        return self._opened_network.backend if self._opened_network is not None else None

    @property
    def metric_name(self) -> str | None:
        return self._opened_network.metric if self._opened_network is not None else None

    @property
    def reference_name(self) -> str:
        """The name of the reference that errors are computed against: "FP32", or the file of the reference."""
        opened = self._opened_network
        return opened.reference.name if opened is not None and opened.reference is not None else "FP32"

    @property
    def fp32_accuracy(self) -> Accuracy | None:
        """The accuracy of the network in FP32 against another reference. None if FP32 is the reference, or it is not
        measured."""
        if self._opened_network is None or self._opened_network.reference is None:
            return None
        return self.results.get_results_or_empty(PrecisionConfig.from_precision(Precision.FP32)).accuracy

    @property
    def network_sha256(self) -> str:
        """The hash of the network and its weights; "" until it is known."""
        return self.source.sha256 if self.source is not None else ""

    @property
    def ranges_source_text(self) -> str:
        """The origin of the ranges in use as text; "" if no ranges are needed yet."""
        if self.calibration is None or self.data_summary is None:
            return ""
        if self.options.calib_cache is not None:
            suffix = " and others" if self.calibration.samples else ""
            return f"ranges of {Path(self.options.calib_cache).name}{suffix}"
        if (
            self.config_path is not None
            and self.config_calibration is not None
            and (self.config_calibration.ranges.items() <= self.calibration.ranges.items())
        ):
            suffix = "" if self.calibration == self.config_calibration else " and others"
            return f"ranges of {Path(self.config_path).name}{suffix}"
        method = find_network_range_method(self.config, self.opened_network.outline) or self.calibration.method
        method_text = f" by {method}" if method in RANGE_METHODS[1:] else ""
        is_split = (
            self.options.calib_data is None and self.data_summary.calibration_count < self.data_summary.judged_count
        )
        batches_text = " (every fourth batch from the first; the others judge)" * is_split
        return f"calibrated on {self.data_summary.calibration_count}{method_text}{batches_text}"

    @property
    def setup_record(self) -> dict[str, str]:
        """The ranges in use, with their method and samples, and the flags of builds, as texts for reports. If no ranges
        are needed yet, their text is missing."""
        calibration, options = self.calibration or self.config_calibration, self.options
        flags = [
            f"TF32 {'on' if self.config.tf32 else 'off'}",
            *(["weakly typed"] if options.weak else []),
            *options.production.requested_option_texts,
            *(f"shapes {shape}" for shape in options.shapes),
        ]
        record = {"build": ", ".join(flags)}
        if calibration is not None and calibration.ranges:
            method = find_network_range_method(self.config, self.outline) if self.outline is not None else ""
            samples_text = counted_noun_text(calibration.samples, "sample") if calibration.samples else ""
            source = self.ranges_source_text.removeprefix("ranges of ") or Path(self.config_path or "").name
            if source.startswith("calibrated on") and self.data_summary is not None:
                data_name = Path(options.calib_data).name if options.calib_data else self.data_summary.source
                source, samples_text = f"calibrated on {samples_text} of {data_name}", ""
            file_method = self.facts.range_facts.method if self.facts.range_facts is not None else calibration.method
            record["ranges"] = ", ".join(filter(None, (source, method or file_method, samples_text)))
        return record

    @property
    def setup_text(self) -> str:
        """The ranges in use and the flags of builds, as a text for reports."""
        record = self.setup_record
        return ". ".join(
            f"{title}: {record[key]}"
            for key, title in (("ranges", "Ranges"), ("build", "Build flags"))
            if key in record
        )

    # -- activity and errors --------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True if the session has pending requests. In the app, previews and toggles do not count."""
        jobs = self.pending_requests.values()
        return any(job.request.job_kind.is_waited_for or not self.automatic for job in jobs)

    @property
    def is_building(self) -> bool:
        """True if the background process builds an engine that the user requested."""
        return self.pending_requests.has_request(rq.BuildEngine, rq.WriteEngine)

    @property
    def is_searching(self) -> bool:
        return self.pending_requests.has_request(rq.FindMixedPrecisionConfig)

    @property
    def has_search_config(self) -> bool:
        """True if the last search has found a config so far."""
        return self.search_status is not None and self.search_status.best_config is not None

    def show_error(self, failure: ev.JobFailed) -> None:
        """Shows an error on the screen and adds it to the log."""
        self.error = failure
        self.log.append(f"{failure.error.title}: {failure.error.cause}")
        self.log.extend(failure.detail.splitlines())

    # -- configs and results --------------------------------------------------------------------------------------

    def make_empty_results(self) -> SessionResults:
        """Returns an empty store of results. It keeps the runs of configs with a name."""
        return SessionResults(lambda config: config in self.config_names)

    @property
    def method_comparison(self) -> ev.RangeMethodComparison | None:
        return self.results.find_value(ev.METHOD_COMPARISON, None)

    @property
    def config(self) -> PrecisionConfig:
        return self.history.state.config

    @property
    def target_text(self) -> str:
        """The text of the targets as given; "" for the default target."""
        return self.history.state.target_text

    def _push_change(self, **changed_fields: Any) -> None:
        """Changes fields of the user's state, as one step of undo."""
        if self.history.push_state(replace(self.history.state, **changed_fields)):
            self.save_session()

    def list_run_configs(self) -> dict[str, PrecisionConfig]:
        """Returns the configs that the session compares with FP32, by the run keys of the option ``--runs``."""
        runs = self.options.runs
        if not runs:
            runs = DEFAULT_RUNS
        elif self.has_own_config or self.automatic:
            runs = (*runs, "config")
        return {run: self.get_run_config(run) for run in runs}

    @property
    def has_own_config(self) -> bool:
        """True if the command line or the network itself has a config that differs from INT8 in all layers."""
        return bool(
            self.config_path
            or self.options.keep
            or self.options.tensor_ranges
            or (self.outline is not None and self.outline.has_file_precision)
        )

    @property
    def exit_code_run(self) -> str:
        """The key of the run that decides the exit code: that of the config, or else of the last run."""
        if self.automatic or self.has_own_config:
            return "config"
        return self.options.runs[-1] if self.options.runs else "int8"

    def get_run_config(self, run: str) -> PrecisionConfig:
        """Returns the config of a run: the current config, or the config in which all groups have one precision."""
        if run == "config":
            return self.config
        if run == Precision.TF32:
            return self.apply_default_keep_rules(PrecisionConfig.from_precision(Precision.FP32, tf32=True))
        float_precision = self.config.other if self.config.other is not Precision.FILE else self.options.other
        return self.apply_default_keep_rules(
            PrecisionConfig.from_precision(Precision(run), float_precision, self.config.tf32)
        )

    def list_distinct_runs(self) -> list[str]:
        """Returns the run keys, without ``config`` if the current config is equal to another run."""
        runs = list(self.list_run_configs())
        return [run for run in runs if run != "config" or self.config not in map(self.get_run_config, {*runs} - {run})]

    def apply_default_keep_rules(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config of uniform precisions with the default keep rules that the user has not disabled."""
        return config if self.outline is None else apply_default_keep_rules(self.outline, config)

    def get_run_results(self, run: str) -> ConfigResults:
        return self.results.get_results_or_empty(self.get_run_config(run))

    def count_judging_samples(self, config: PrecisionConfig) -> int:
        """Returns the number of samples that judge a config: the samples in use that did not calibrate it.

        Before they are known, all samples in use count.
        """
        accuracy = self.results.get_results_or_empty(config).accuracy
        in_use = self.data_summary.what_if_count if self.data_summary is not None else 0
        return accuracy.total if accuracy is not None else in_use

    # -- guards ---------------------------------------------------------------------------------------------------

    def collect_guard_facts(self) -> GuardFacts:
        """Returns the facts that guards check: measurements of data and ranges, and the results of runs."""
        if self._opened_network is None:
            return self.facts
        config, fp32, outline = self.config, self.fp32_accuracy, self._opened_network.outline
        fp32 = fp32 if fp32 is not None and fp32.samples >= fp32.total else None
        has_dump = self.options.reference is not None and not is_network_file(self.options.reference)
        name = (
            "the file"
            if config.uses_only_file_precisions
            else config.quantized.label
            if not config.moves
            else self.config_names.get(config, "the config")
        )
        framework = fp32.outputs if fp32 is not None and has_dump else {}
        ranges = self.facts.range_facts
        return replace(
            self.facts,
            framework_errors={output: judged_output.errors for output, judged_output in framework.items()},
            range_facts=ranges and ranges.restrict_comparison(self._list_read_ranges(outline)),
            set_ranges=frozenset(config.range_moves),
            run_name=name,
            accuracy=self.results.get_results_or_empty(config).accuracy,
            fp16_accuracy=self.get_run_results("fp16").accuracy,
            fp32_accuracy=fp32,
            reference_name=self.reference_name,
            float_type=config.other.value,
            is_quantized=config.quantized in QUANTIZED_TYPES,
            quantized_type=config.find_main_quantized_type(outline).label,
            targets=self.targets,
            rejected_target_reason="" if self.target_text else self.rejected_target_reason,
            float_work=self._compute_float_work_share(outline),
        )

    def _list_read_ranges(self, outline: NetworkOutline) -> set[str]:
        """Returns the tensors whose ranges the quantized layers of the config and of the requested runs read."""
        return {
            site.tensor
            for config in {self.config, *map(self.get_run_config, self.options.runs)}
            for group in outline.groups
            for site in group.calibrated_qdq_sites(config.precision_of(group))
        }

    def _compute_float_work_share(self, outline: NetworkOutline) -> FloatWorkShare | None:
        """Returns the share of the config's work that is done in floating point, over all groups.

        The result is cached, because it is needed at every key press.
        """
        inputs = outline, self.config, self.get_run_results("int8").engine_result
        if self._float_work_cache is None or any(
            first is not second for first, second in zip(inputs, self._float_work_cache[0], strict=True)
        ):
            self._float_work_cache = inputs, measure_float_work_share(*inputs)
        return self._float_work_cache[1]

    @property
    def guard_warnings(self) -> tuple[GuardWarning, ...]:
        """The warnings of the guards, the most severe first."""
        return collect_guard_warnings(self.collect_guard_facts())

    @property
    def fp32_miss_text(self) -> str:
        """The targets that FP32 itself misses against another reference, as a line; "" if there are none."""
        return fp32_miss_text(self.collect_guard_facts())

    @property
    def shown_warnings(self) -> list[tuple[str, str]]:
        """The warnings that stay on screen, each as a summary and in full: warnings of guards first, then all
        others."""
        return [
            *((alarm.summary, alarm.warning_line) for alarm in self.guard_warnings),
            *((text, text) for text in self.warnings),
        ]

    def log_shown_warnings(self) -> None:
        """Adds to the log the warnings on screen that are not in the log yet."""
        logged = set(self.log)
        self.log.extend(
            f"warning: {line}" for _, line in self.shown_warnings if not {line, f"warning: {line}"} & logged
        )

    # -- the target -----------------------------------------------------------------------------------------------

    def read_target(self, text: str) -> Target:
        """Reads a target from text and checks it against the network.

        Raises:
            InputError: The text is not a valid target, or the bounded value is not measured for this network.
        """
        target = parse_target(text)
        if self.outline is not None:
            target.refuse_if_unmeasurable(self.judged_outputs, self.outline, self.metric_name)
        if target.kind == "metric" and self.results.has_full_reference:
            target.with_base_values(self.results.reference_metric)
        return target

    def read_targets(self, text: str) -> tuple[Target, ...]:
        """Reads several targets, separated by `TOLERANCE_SEPARATOR`. Raises the errors of `read_target`."""
        return tuple(map(self.read_target, text.split(TOLERANCE_SEPARATOR)))

    def set_target(self, text: str) -> None:
        """Changes the accuracy target, or several targets separated by `TOLERANCE_SEPARATOR`.

        Raises:
            InputError: The text is not a valid target, or the bounded value is not measured for this network.
        """
        self.targets = self.read_targets(text)
        self.update_target_baseline()
        self._push_change(target_text=text)

    def set_initial_target(self) -> None:
        """Sets the target of the command line or of a file. If it cannot be used, the default target is set."""
        try:
            self.targets = self.read_targets(self.target_text) if self.target_text else (self._choose_default_target(),)
        except InputError as error:
            # The text comes from a file, because a text from the command line is checked before a session exists.
            self._reject_target(error)
        self.update_target_baseline()

    def _reject_target(self, error: InputError) -> None:
        """Sets the default target instead of one that cannot be used. A guard warns of it."""
        self.rejected_target_reason = f"{error.title}: {error.cause}"
        self.history.change_fields(target_text="")
        self.targets = (self._choose_default_target(),)

    def _choose_default_target(self) -> Target:
        return choose_default_target(
            self.metric_name,
            self.judged_outputs,
            self.opened_network.outline,
            bool(self.opened_network.data.label_names),
        )

    @property
    def target(self) -> Target | None:
        """The first target; None before the network is open."""
        return next(iter(self.targets), None)

    def update_target_baseline(self) -> None:
        """Adds the FP32 value of the metric to targets that are relative to it.

        Raises:
            InputError: The metric has no part with the name in the target. In the app, the default target is set
                instead.
        """

        def add_baseline(target: Target) -> Target:
            return (
                target.with_base_values(self.results.reference_metric, self.results.has_full_reference)
                if target.kind == "metric"
                else target
            )

        try:
            self.targets = tuple(map(add_baseline, self.targets))
        except InputError as error:
            if not self.automatic:
                raise
            self._reject_target(error)
            self.targets = tuple(map(add_baseline, self.targets))

    @property
    def target_descriptions(self) -> list[str]:
        """The targets in words. If runs are judged on different samples, relative targets are distances from FP32."""
        totals = {
            accuracy.total
            for run in self.list_run_configs()
            if (accuracy := self.get_run_results(run).accuracy) is not None
        }
        return [target.relative_description if len(totals) > 1 else target.description for target in self.targets]

    @property
    def first_target_text(self) -> str:
        """The first target in words, and the number of the others; "" before the network is open."""
        more_text = f" and {len(self.targets) - 1} more" if len(self.targets) > 1 else ""
        return f"{self.target_descriptions[0]}{more_text}" if self.targets else ""

    @property
    def has_explicit_target(self) -> bool:
        """True if the user or the author of the config has stated a target. False for the default target."""
        return bool(self.target_text)

    @property
    def targets_text(self) -> str:
        """The accuracy targets of the session as text, as files contain them."""
        return TOLERANCE_SEPARATOR.join(target.text for target in self.targets)

    def target_outcome(self, accuracy: Accuracy | None, config: PrecisionConfig | None = None) -> TargetOutcome | None:
        """Returns the pass or fail of an accuracy against the targets, with reasons; None for an unknown accuracy.

        Args:
            config: The config if the accuracy is that of one of its runs. Checks that it missed in a search then count.
        """
        if accuracy is None or config is None:
            return judge_accuracy(self.targets, accuracy) if accuracy is not None else None
        accuracies = collect_run_accuracies(self.results.get_results_or_empty(config))
        outcomes = self.config_target_outcomes(config).items()
        return next(
            (outcome for kind, outcome in outcomes if accuracies[kind] is accuracy), self.target_outcome(accuracy)
        )

    def missed_target_reasons(self, config: PrecisionConfig) -> dict[RunKind, str]:
        """Returns the reasons why a config misses an explicit target, by kind of run; empty if it does not.

        The results FAIL and FAIL? both miss a target, whether simulated, exported or built.
        """
        if not self.has_explicit_target:
            return {}
        accuracies = collect_run_accuracies(self.results.get_results_or_empty(config))
        return {
            kind: self.missed_target_text(outcome, accuracies[kind])
            for kind, outcome in self.config_target_outcomes(config).items()
            if not outcome.passes
        }

    def missed_target_text(self, target_outcome: TargetOutcome, accuracy: Accuracy) -> str:
        """Returns a text with the target, the measured value, and the reasons why the target is missed."""
        targets = " and ".join(target.with_baseline_of_samples(accuracy).description for target in self.targets)
        measured_text = " and ".join(target.measured_value_text(accuracy) for target in self.targets)
        reasons = "; ".join(reason for reason in target_outcome.reasons if reason not in measured_text)
        return f"{targets}, and it has {measured_text}" + (
            f" ({target_outcome.outcome.value}: {reasons})" if reasons else ""
        )

    def config_target_outcomes(
        self, config: PrecisionConfig, targets: Sequence[Target] | None = None
    ) -> dict[RunKind, TargetOutcome]:
        """Returns the target results of a config by kind of run: simulated, exported, and built as requested.

        Empty for a config with all layers in FP32, which proves nothing.

        Args:
            targets: The targets; None for those of the session.
        """
        if self.outline is None or not reduces_precision(self.outline, config):
            return {}
        accuracies = collect_run_accuracies(self.results.get_results_or_empty(config))
        doubt = self.find_search_doubt(config, [target.text for target in self.targets])
        failed_runs = doubt.missed_runs - {RunKind.SIMULATED_CONFIG} if not doubt.is_from_file else ()
        targets = self.targets if targets is None else targets
        outcomes = {
            kind: outcome.with_missed_check(
                doubt.text if doubt.missed_runs else "",
                Outcome.FAIL
                if failed_runs and kind in {RunKind.SIMULATED_CONFIG, *failed_runs}
                else Outcome.UNCERTAIN_FAIL,
            )
            for kind, accuracy in accuracies.items()
            if (outcome := judge_accuracy(targets, accuracy)) is not None
        }
        simulated = outcomes.pop(RunKind.SIMULATED_CONFIG, None)
        if simulated is not None and not any(outcome.passes for outcome in outcomes.values()):
            accuracy = accuracies[RunKind.SIMULATED_CONFIG]
            gap_text = self.find_simulation_gap_text(accuracy, targets) if simulated.passes else ""
            simulated = simulated.with_missed_check(gap_text or doubt.text, Outcome.UNCERTAIN_PASS)
        return outcomes if simulated is None else {RunKind.SIMULATED_CONFIG: simulated, **outcomes}

    def find_simulation_gap_text(self, accuracy: Accuracy, targets: Sequence[Target]) -> str:
        """Returns by how much exported networks and engines were worse than simulated.

        "" if that is little, or less than half of the margin of a simulated accuracy.
        """
        search_status = self.search_status
        pairs = [
            (simulated, run)
            for runs in (collect_run_accuracies(results) for results in self.results.values() if len(results.runs) > 1)
            if (simulated := runs.pop(RunKind.SIMULATED_CONFIG, None)) is not None
            for run in runs.values()
            if run.samples == simulated.samples
        ]
        for target in targets:
            gaps = [search_status.margins_by_target.get(target.text, 0.0)] if search_status is not None else []
            for scores in ([target.margin_score(accuracy) for accuracy in pair] for pair in pairs):
                gaps += [scores[0] - scores[1]] if scores[0] is not None and scores[1] is not None else []
            gap, margin = max(filter(math.isfinite, gaps), default=0.0), target.margin_score(accuracy)
            if margin is not None and margin < 2 * gap and gap >= _MIN_SIMULATION_GAP:
                unit = "dB" if target.normalized_loss(accuracy) is not None else "%"
                return (
                    f"exported networks or engines yield up to {gap:.1f} {unit} less than simulated, and the margin is "
                    "not twice as large"
                )
        return ""

    def find_search_doubt(self, config: PrecisionConfig, targets: Iterable[str]) -> SearchDoubt:
        """Returns the checks that a config missed in a search for the same or weaker targets; an empty doubt if there
        are none.

        For example, the config misses the target on held-out samples, or its exported network or engine misses it.
        Saved sessions and config files contain such checks.
        """
        targets = [*targets]
        return next(
            (
                doubt
                for (other, doubt_targets), doubt in self.config_names.search_doubts.items()
                if imply_targets(targets, doubt_targets) and (other == config or self._has_equal_values(config, other))
            ),
            SearchDoubt(),
        )

    def _has_equal_values(self, config: PrecisionConfig, other_config: PrecisionConfig) -> bool:
        """Returns True if two configs have the same simulated values, so that their difference has no effect."""
        accuracy, other_accuracy = (
            self.results.get_results_or_empty(entry).accuracy for entry in (config, other_config)
        )
        return (
            accuracy is not None
            and other_accuracy is not None
            and bool(accuracy.outputs)
            and (accuracy.outputs, accuracy.samples) == (other_accuracy.outputs, other_accuracy.samples)
        )

    # -- engines and stages --------------------------------------------------------------------------------------------

    def list_component_versions(self) -> Mapping[str, str]:
        """Returns the versions of the program, the backends and the GPU behind the measurements, by name."""
        versions = {"trt_tui": __version__}
        if self.backend_summary is not None:
            versions["onnxruntime"] = self.backend_summary.version
        if self.builder is not None:
            versions[self.builder.name] = self.builder.version
            if self.builder.device:
                versions["gpu"] = self.builder.device
        return versions

    def find_engine_divergence(self, run: str) -> EngineDivergence | None:
        """Returns the first point at which the engine of a run differs from the simulation; None if there is none or it
        is unknown."""
        results = self.get_run_results(run)
        if (
            results.engine_result is None
            or not results.engine_result.is_built_as_requested
            or not results.has_all_group_errors
        ):
            return None
        return find_engine_divergence(
            self.opened_network.outline, results.group_errors, results.engine_result.engine_errors
        )

    def list_engine_checks(self) -> dict[str, list[str]]:
        """Returns the suggested checks, by run, if an engine is less accurate than the simulation."""
        checks = {
            run: suggest_engine_checks(
                self.opened_network.outline,
                config,
                results.accuracy,
                results.engine_result,
                self.results.fp32_engine,
                self.find_engine_divergence(run),
            )
            for run, config in self.list_run_configs().items()
            for results in [self.results.get_results_or_empty(config)]
            if results.engine_result is not None
        }
        return {run: lines for run, lines in checks.items() if lines}

    def list_stage_accuracies(self) -> list[tuple[StageResult, Accuracy | None]]:
        """Returns the measured stages in their order, each with its accuracy against the reference."""
        return [
            (stage, result.accuracy if (result := self.results.find_stage_result(stage)) is not None else None)
            for stage in self.results.get_values(STAGES).values()
        ]

    def stage_missed_target_reasons(self) -> dict[str, str]:
        """Returns the reasons why stages from files miss an explicit target, by stage name.

        Stages of configs are not included, because they are reported as runs.
        """
        return {
            stage.run.name: self.missed_target_text(result, accuracy)
            for stage, accuracy in (self.list_stage_accuracies() if self.has_explicit_target else ())
            if stage.run.config is None
            and accuracy is not None
            and (result := self.target_outcome(accuracy)) is not None
            and not result.passes
        }

    def engine_spread_lines(self) -> list[str]:
        """Returns the lines about the spread of accuracy between several engines.

        If only some of the engines miss the target, the last line names these.
        """
        report = self.results.find_value(STABILITY, None)
        if report is None:
            return []
        outcomes = {
            stage.run.name: outcome.passes
            for stage, accuracy in self.list_stage_accuracies()
            if stage.run.name in report.runs and (outcome := self.target_outcome(accuracy)) is not None
        }
        failing = [name for name, passes in outcomes.items() if not passes]
        crossing = (
            [f"  the spread crosses the target: {', '.join(failing)} of {len(outcomes)} engines miss it"]
            if 0 < len(failing) < len(outcomes)
            else []
        )
        return [*report.lines, *crossing]

    def stage_summary_lines(self) -> list[str]:
        """Returns a line about the first stage that diverges, and a line about the agreement of production."""
        rows = self.list_stage_accuracies()
        lines = [
            first_divergence_text(
                [row for row in rows if row[0].run.name != PRODUCTION_STAGE],
                self.targets,
                self.pending_requests.has_request(rq.MeasureStages),
            )
        ]
        return [*filter(None, lines), *(self.production_agreement[1:] if self.production_agreement is not None else ())]

    @property
    def production_agreement(self) -> tuple[bool, str] | None:
        """A pair: True if the outputs of production agree with those of the tested run, and a sentence about it. None
        if unknown."""
        rows = self.list_stage_accuracies()
        for stage, accuracy in rows:
            if stage.run.name == PRODUCTION_STAGE and stage.other_accuracies:
                compared_name = stage.other_accuracies[-1][0]
                tested_against = next(
                    (tested_accuracy for other_stage, tested_accuracy in rows if other_stage.run.name == compared_name),
                    None,
                )
                if tested_against is None:
                    results = self.get_run_results(self.exit_code_run)
                    tested_against = (
                        results.accuracy
                        if len(stage.other_accuracies) == 1 or results.engine_result is None
                        else results.engine_result.accuracy
                    )
                if accuracy is not None and tested_against is not None:
                    accuracy, tested_against = restrict_to_common_samples([accuracy, tested_against])
                return compare_production_with_tested_run(stage, accuracy, tested_against, compared_name)
        return None

    # -- saving ---------------------------------------------------------------------------------------------------

    def record_exported_config(self, config: PrecisionConfig) -> None:
        """Records that a file for production with a config was written."""
        self.config_names.exported_configs.add(config)
        self.save_session()

    def save_session(self) -> None:
        """Saves history, names and target, unless no network is open or the session belongs to a command."""
        if self.outline is None or not self.automatic:
            return
        accuracy = self.get_run_results("config").accuracy
        self.session_writer.save_session(
            self.outline.structure_sha256,
            partial(
                SavedSession.from_state,
                self.outline,
                ChangeHistory.from_snapshot(*self.history.snapshot()),
                self.config_names.copy(),
                self.target_text,
                self.network_sha256 or self.saved_sha256,
                " ".join(outcome_texts(self.config_target_outcomes(self.config))),
                f"{accuracy.samples} of {accuracy.total}" if accuracy is not None else "",
            ),
        )
