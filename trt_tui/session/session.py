"""The session that the app and the commands share: the state of the user interface and the requests that it sends.

A `Session` has no thread and draws nothing. It sends requests to the background process and receives events through
`apply_event`, which the event loop calls. The session is saved after each change of the config, and the background
process stores the results. A closed terminal therefore loses nothing.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import RANGE_METHODS, Calibration, list_range_methods
from trt_tui.core.calibration.user_ranges import parse_amax
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs
from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.guards.guards import GuardFacts
from trt_tui.core.lowering.network_rewrite import replace_edited_file_precisions, without_stale_roundings
from trt_tui.core.measure.causes import GROUP_DETAILS, list_groups_to_explain
from trt_tui.core.measure.engine_agreement import (
    UnusedQuantization,
    find_unused_quantization,
    find_used_quantization,
)
from trt_tui.core.measure.group_sweep import SAMPLE_ERRORS, SINGLE_SAMPLES
from trt_tui.core.measure.results import ExportedRun, RunKind, failed_build_result
from trt_tui.core.measure.stages import list_requested_stages
from trt_tui.core.moves.config import (
    BarrierMove,
    PrecisionConfig,
    RangeMove,
    find_next_precision,
    remove_network_range_method,
)
from trt_tui.core.moves.constant_moves import RoundingMove
from trt_tui.core.moves.keep_rules import apply_keep_rules, default_keep_rules_note
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import FileReplacedError, InputError, NotReadyError, TrtTuiError
from trt_tui.formatting import builder_title, counted_noun_text, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient
from trt_tui.options import Options
from trt_tui.session.comparison_report import comparison_markdown, precision_json_text
from trt_tui.session.history import (
    ConfigNames,
    SavedSession,
    SearchDoubt,
    SessionEntry,
    SessionFolder,
    join_target_texts,
)
from trt_tui.session.jobs import DONE, FAILED, REPLACED, STOPPED
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.state import SessionState


def find_stepped_precision(config: PrecisionConfig, group: FusionGroup, upwards: bool) -> Precision:
    """Returns the precision of a fusion group after one step up or down in the precisions of the config.

    A step down does not pass the file precision of a group that has it by default. Another precision of the same rank
    has other scales, so that a step up and a step down would not lead back to the file.
    """
    current = config.precision_of(group)
    found = find_next_precision(group, current, upwards, config.precision_steps)
    if upwards or config.default_precision_of(group) is not Precision.FILE:
        return found
    file_rank, current_rank = group.precision_rank(Precision.FILE), group.precision_rank(current)
    is_reached = found is current or group.precision_rank(found) <= file_rank
    return Precision.FILE if file_rank < current_rank and is_reached else found


def _drop_equal_configs(runs: Mapping[str, PrecisionConfig]) -> dict[str, PrecisionConfig]:
    """Returns runs without those whose config an earlier run has."""
    first_runs = {config: run for run, config in reversed(list(runs.items()))}
    return {run: config for run, config in runs.items() if first_runs[config] == run}


class Session(SessionState):
    """The state of one opened network in the user interface, with all requests and changes that a user can make.

    A changed config is measured at once. `SessionState.set_target` changes the target, with undo too.

    Args:
        options: The network, the data and further options from the command line.
        on_event: Called with each event of the background process, from another thread. It must hand the event to the
            event loop, which calls `apply_event`.
        config_path: A precision.json with the first config.
        target: A target text, like "metric>=base-0.01" or "sqnr>=20"; None sets a default target.
        force: True accepts a config file of another structure, as far as it fits.
        session_folder: The folder of saved sessions; None for the user's state folder.
        resume: True resumes the saved session of the same network, if there is one.
        automatic: True measures and saves without a request. False for commands that do one thing and end.
        network_only: True opens only the network, for commands that measure nothing.

    Attributes:
        requests_previews: True if the session requests previews of configs by itself.
        requests_toggles: True if the session requests the accuracy with each row toggled by itself.
    """

    requests_previews: ClassVar[bool] = True
    requests_toggles: ClassVar[bool] = True

    def __init__(
        self,
        options: Options,
        on_event: Callable[[ev.Event], None],
        *,
        config_path: str | None = None,
        target: str | None = None,
        force: bool = False,
        resume: bool = True,
        session_folder: SessionFolder | None = None,
        automatic: bool = True,
        network_only: bool = False,
    ) -> None:
        super().__init__(
            options,
            config_path=config_path,
            target=target,
            automatic=automatic,
            session_folder=session_folder,
            network_only=network_only,
        )
        self._force = force
        self._can_resume = resume
        self._replaced_files: tuple[str, ...] = ()
        self._raw_lines: dict[int, list[str]] = {}  # hidden messages of TensorRT, by job
        self._client = JobClient(on_event, self._list_reopen_requests)

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, *, needs_builder: bool = False) -> None:
        """Starts the background process and opens the network. Comparisons start automatically once it is open.

        Args:
            needs_builder: True refuses to open the network if no TensorRT works.
        """
        self.send_request(
            rq.OpenNetwork(
                self.options,
                config=self.config_path,
                force=self._force,
                network_only=self.network_only,
                needs_builder=needs_builder,
            )
        )
        if self.options.tensor_ranges:
            self.send_request(rq.SetRanges(self.config, self.options.tensor_ranges))

    def close(self) -> None:
        """Saves the session and ends the background process."""
        try:
            self.save_session()
            self.session_writer.close()
        finally:
            self._client.close()

    def list_saved_sessions(self) -> list[SessionEntry]:
        """Returns the saved sessions of this network, the newest first."""
        outline = self.opened_network.outline
        self.save_session()
        self.session_writer.flush()
        return self.session_folder.list_sessions(
            outline.structure_sha256, str(outline.path), self.network_sha256, outline
        )

    def resume_session(self, name: str) -> None:
        """Saves this session, and goes on with another saved session of the network.

        Raises:
            InputError: The session cannot be opened; this one goes on.
        """
        self.save_session()
        self.session_writer.flush()
        outline = self.opened_network.outline
        saved = self.session_folder.open_session(name, outline.structure_sha256, str(outline.path), outline)
        doubts = self.config_names.search_doubts
        self._apply_saved_session(saved)
        self.config_names.search_doubts = {**doubts, **self.config_names.search_doubts}  # of the same network and data
        self.set_initial_target()
        self._drop_moves_made_for_other_weights()
        self.request_stored_results()
        self._save_and_measure_config()

    def apply_event(self, event: ev.Event) -> None:
        """Applies an event of the background process to the session. Events of stopped jobs are dropped."""
        if not self.pending_requests.accepts_event(event):
            return
        try:
            self._apply(event)
        except TrtTuiError as error:
            self.show_error(ev.JobFailed(event.job, error))

    def stop_jobs(self, jobs: Collection[int] | None = None, is_urgent: bool = True) -> None:
        """Stops jobs of the background process. If a job does not stop within 2 s, the process is killed.

        Args:
            jobs: The numbers of the jobs; None for all.
            is_urgent: False lets each job complete its current step, however long it takes.
        """
        self.pending_requests.mark_jobs_stopped(self.pending_requests if jobs is None else jobs)
        self._client.stop_jobs(jobs, is_urgent)

    def stop_jobs_of_closed_list(self) -> None:
        """Stops the jobs whose list or chart is closed, and the previews of configs other than the current one."""
        if jobs := [
            number
            for number, job in self.pending_requests.items()
            if job.request.job_kind.ends_with_list
            or isinstance(job.request, rq.PreviewEngine)
            and job.request.config != self.config
        ]:
            self.stop_jobs(jobs, is_urgent=False)

    def _list_reopen_requests(self) -> list[rq.Request]:
        """Returns the requests that bring a new background process to the state of the previous process."""
        if self.outline is None:
            return []
        opening = rq.OpenNetwork(self.options, self.source, self.outline.structure_sha256)
        return [opening, *([rq.UseRanges(self.calibration)] if self.calibration is not None else [])]

    # -- events -------------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _apply(self, event: ev.Event) -> None:
        """Applies an event of the background process to the state of the session.

        Raises:
            TypeError: The type of the event is unknown.
            TrtTuiError: An action that the event triggers is not possible.
        """
        raise TypeError(f"a session takes no {type(event).__name__}")

    # -- the opened network ---------------------------------------------------------------------------------------

    @_apply.register
    def _apply_layer_list(self, event: ev.LayersListed) -> None:
        self.unmeasured_outline = event.outline

    @_apply.register
    def _apply_opened_network(self, event: ev.NetworkOpened) -> None:
        """Applies an opened network to the session.

        For the first network, the saved session is resumed. If the network is opened again, the config of the session
        stays and stale results are dropped.
        """
        is_first = self.outline is None
        self._opened_network = event
        self.warnings = list(event.data.warnings)
        self.log.extend(event.data.warnings)
        if not is_first:
            self._drop_stale_results()
            return
        if event.outline.has_file_precision:
            self.history.change_fields(config=PrecisionConfig.from_precision(Precision.FILE))
        target_text = self.target_text
        outline = event.outline
        saved = (
            self.session_folder.load_session(outline.structure_sha256, str(outline.path), outline)
            if self.automatic and self._can_resume
            else None
        )
        self.warnings.extend(self.session_folder.load_failures)
        if saved is not None:
            self._apply_saved_session(saved)
        config = self._apply_command_line_options(self.config)
        if saved is None:
            config = self.apply_default_keep_rules(config)
            if not self.config_path and (note := default_keep_rules_note(event.outline, config)):
                self.log.append(note)
                self.notice = note
        # What the command line changes in a resumed session is a step to undo.
        self.history.push_state(replace(self.history.state, config=config, target_text=target_text or self.target_text))
        self.set_initial_target()
        self.config_names.get_config_name(self.config)

    def _apply_command_line_options(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config with the TF32 setting and the keep rules of the command line.

        Raises:
            InputError: The errors of `trt_tui.core.moves.keep_rules.apply_keep_rules`.
        """
        options = self.options
        assert self.outline is not None, "an opened network has been announced"
        return apply_keep_rules(self.outline, replace(config, tf32=True) if options.tf32 else config, options.keep)

    def _apply_saved_session(self, saved_session: SavedSession) -> None:
        """Replaces the configs of the session by the configs of a saved session."""
        self.history, self.config_names, self.saved_sha256 = (
            saved_session.to_change_history(),
            saved_session.to_config_names(),
            saved_session.sha256,
        )
        self.rejected_target_reason = None
        count = len(self.config.moves)
        self.notice = (
            f"Resumed: {self.config_names.get_config_name(self.config)}, "
            f"{count} {'change' if count == 1 else 'changes'}."
        )
        if saved_session.note:
            self.warnings.append(saved_session.note)

    @_apply.register
    def _apply_fingerprint(self, event: ev.FilesHashed) -> None:
        """Applies the hashes of network and data, and drops ranges that were measured on other weights or data."""
        previous, current = self.source, event.source
        self.source = current
        if previous is None:
            self._drop_moves_made_for_other_weights()
            return
        is_same = (current.sha256, current.data_sha256) == (previous.sha256, previous.data_sha256)
        changed = current.files.find_files_changed_since(previous.files)
        if not is_same or any(not name.endswith(".py") for name in changed):
            self._drop_measured_moves("the replaced files")
        if self.config_calibration is not None and self.calibration is None and current.sha256 == previous.sha256:
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))

    def _drop_moves_made_for_other_weights(self) -> None:
        if self.saved_sha256 not in ("", self.network_sha256):
            self._drop_measured_moves("other weights, in the session resumed,")

    @_apply.register
    def _apply_loaded_config(self, event: ev.ConfigRead) -> None:
        """Makes the config of a file the current config. Undo returns to the config of the resumed session."""
        loaded_config = event.loaded
        self.history.push_config(self._apply_command_line_options(loaded_config.config))
        self.config_names.get_config_name(self.config)
        self.warnings.extend(loaded_config.warnings)
        if (doubt := loaded_config.doubt) is not None:
            missed_runs = frozenset(kind for kind in RunKind if kind.value in doubt.missed_runs)
            self.config_names.search_doubts.setdefault(
                (loaded_config.config, doubt.targets), SearchDoubt(doubt.text, missed_runs, is_from_file=True)
            )
        if loaded_config.calibration.ranges and not loaded_config.has_stale_ranges:
            self.config_calibration = loaded_config.calibration
            if self.network_only:
                return
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))
            if self.options.calib_data is not None or self.options.calib_method != RANGE_METHODS[0]:
                self.warnings.append(
                    f"The ranges are those of {Path(self.config_path or '').name}; "
                    "ranges by --calib-data and --calib-method are only compared with them."
                )
        if not self.target_text and loaded_config.tolerance:
            self.history.change_fields(target_text=loaded_config.tolerance)
            if not self.network_only:
                self.set_initial_target()
        self.save_session()

    # -- replaced files -------------------------------------------------------------------------------------------

    def _drop_stale_results(self) -> None:
        """Drops all results, because input files have been replaced. The changes of the user stay."""
        if self._replaced_files:
            self.warnings.append(f"{', '.join(self._replaced_files)}: replaced, so everything is measured again.")
        self._replaced_files = ()
        self.calibration = self.last_built_config = None
        self.results = self.make_empty_results()
        self.facts = GuardFacts()
        self.config_names.exported_configs.clear()
        self.config_names.search_doubts.clear()
        self.history.change_fields(choice_reasons={})
        if not self.is_searching:
            self.search_status = None
        self.set_initial_target()

    def _drop_measured_moves(self, origin_text: str) -> None:
        """Removes moves with values measured on other files from every config of the history, and adds a warning."""
        dropped = [move for move in self.config.moves.values() if move.has_measured_values]
        other_count = sum(move.kind != RangeMove.kind for move in dropped)
        self.history.map_configs(lambda config: config.without_measured_moves())
        self.config_names = ConfigNames(
            (config.without_measured_moves(), name) for config, name in self.config_names.items()
        )
        self.config_names.chosen_names = dict(self.history.state.chosen_names)
        self.config_names.get_config_name(self.config)
        if dropped:
            count_texts = [
                counted_noun_text(count, word)
                for count, word in ((len(dropped) - other_count, "range"), (other_count, "zero-cost change"))
                if count
            ]
            self.warnings.append(f"{' and '.join(count_texts)} measured on {origin_text} were undone: choose again.")

    @_apply.register
    def _apply_ready_builder(self, event: ev.BuilderReady) -> None:
        self.builder = event.builder

    # -- results --------------------------------------------------------------------------------------------------

    @_apply.register
    def _apply_calibration(self, event: ev.CalibrationReady) -> None:
        self.calibration = event.calibration

    @_apply.register
    def _apply_guard_facts(self, event: ev.GuardFactsMeasured) -> None:
        self.facts = self.facts.merge_newer_facts(event.facts)
        self.log_shown_warnings()

    @_apply.register
    def _apply_measured_results(self, event: ev.ResultEvent) -> None:
        self.results.store_event_results(event)

    @_apply.register
    def _apply_reference_metric(self, event: ev.ReferenceMetricMeasured) -> None:
        self.results.store_event_results(event)
        self.update_target_baseline()

    @_apply.register
    def _apply_preview(self, event: ev.EnginePreviewed) -> None:
        refusal = event.preview.refusal
        self.results.store_event_results(event)
        if refusal is not None and refusal.is_rtx_missing:
            self.preview_refusal = refusal
        elif refusal is not None and refusal.refusal_text not in self.log:
            self.log.append(refusal.refusal_text)

    @_apply.register
    def _apply_removed_qdq(self, event: ev.UnusedQdqRemoved) -> None:
        """Applies the config without unused Q/DQ, unless the user has changed the config since the request."""
        removal = event.removal
        if removal.groups and self.config == event.config:
            self.set_config(removal.config, removal.move_reasons)
            self.log.append(removal.report_text)

    @_apply.register
    def _apply_built_engine(self, event: ev.EngineBuilt) -> None:
        self.results.store_engine_result(event.config, event.result)
        self.last_built_config = event.config
        self.config_names.get_config_name(event.config)
        self.save_session()

    @_apply.register
    def _apply_exported_run(self, event: ev.ExportedFileExecuted) -> None:
        self.results.store_event_results(event)
        name = self.config_names.get_config_name(event.config)
        if event.result.missing_reason:
            self.log.append(f"The exported network of {name} was not executed: {event.result.missing_reason}")
        self.save_session()

    @_apply.register
    def _apply_written_files(self, event: ev.ConfigExported) -> None:
        first_path, *other_paths = event.paths
        location = "in" if other_paths and other_paths[0].startswith(f"{first_path}/") else "beside"
        self.notice = f"Wrote {first_path}" + (f" and {len(other_paths)} files {location} it" if other_paths else "")
        self.log.extend(event.info_lines)
        self.last_answer = event

    @_apply.register
    def _apply_requested_ranges(self, event: ev.RequestedRangesReady) -> None:
        """Applies the ranges to their tensors as one change of the config."""
        self.set_config(self.config.with_moves(event.ranges))

    @_apply.register
    def _store_command_answer(self, event: ev.CommandAnswer) -> None:
        self.last_answer = event

    # -- search ---------------------------------------------------------------------------------------------------

    @_apply.register
    def _apply_search_progress(self, event: ev.SearchProgress) -> None:
        job = self.pending_requests.get(event.job)
        if self.search_status is None or job is None or not isinstance(job.request, rq.FindMixedPrecisionConfig):
            return
        self.search_status.add_progress(event)
        job.update_progress(ev.JobProgress(event.job, "", event.done, 0))

    @_apply.register
    def _apply_search_result(self, event: ev.SearchEnded) -> None:
        search_status, result, job = self.search_status, event.result, self.pending_requests.get(event.job)
        if search_status is None or job is None or job.request is not search_status.request:
            return
        search_status.end_event, search_status.duration_s = event, job.duration_s
        self.log.extend((result.summary, *(text for text in event.remarks if text not in self.log)))
        if result.best_evaluation is None:
            return
        self.config_names.get_config_name(result.config)
        doubts, targets_text = self.config_names.search_doubts, join_target_texts(search_status.request.tolerances)
        is_whole = not event.was_stopped and not search_status.request.sample
        for config in {evaluation.config for evaluation in event.evaluations}:
            missed_checks = event.find_missed_checks(config)
            earlier = doubts.pop((config, targets_text), SearchDoubt())
            passed_runs = event.passed_checks if config == result.config and is_whole else set()
            unchecked_runs = earlier.missed_runs - passed_runs - missed_checks.keys()
            texts = [*missed_checks.values()]
            if unchecked_runs:  # this search has not made the check that the earlier one saw missed
                texts = [earlier.text, *(text for text in texts if text not in earlier.text)]
            if texts:
                doubts[config, targets_text] = SearchDoubt("; ".join(texts), unchecked_runs | missed_checks.keys())
        if not event.has_other_samples:
            self.results.get_or_create_results(result.config).store_accuracy(
                result.best_evaluation.target_result.accuracy
            )
            for evaluation in (event.evaluations[index] for index in event.pareto_front):
                if (accuracy := evaluation.target_result.accuracy) is not None:
                    self.results.store_missing_accuracy(evaluation.config, accuracy)
        if self.config == result.config:
            chosen = {subject for _, subject in self.config.moves}
            reasons = {name: reason for name, reason in search_status.move_reasons.items() if name in chosen}
            self.history.change_fields(choice_reasons={**self.history.state.choice_reasons, **reasons})

    # -- progress and end of jobs ---------------------------------------------------------------------------------

    @_apply.register
    def _apply_job_progress(self, event: ev.JobProgress) -> None:
        if (job := self.pending_requests.get(event.job)) is not None:
            job.update_progress(event)

    @_apply.register
    def _apply_job_start(self, event: ev.JobStarted) -> None:
        started_job = self.pending_requests.get(event.job)
        if started_job is not None:
            started_job.mark_begun()
        for number, job in self.pending_requests.items():
            job.awaited_job = started_job if number in event.paused_jobs else None

    @_apply.register
    def _apply_execution_mode(self, event: ev.ExecutionModeChanged) -> None:
        if event.mode != self.execution_mode and event.mode.reason:
            host = event.mode.name.startswith(HOST_MODE)
            text = f"Simulated {'' if host else 'with '}{event.mode.name}: {event.mode.reason}"
            self.log.append(text)
            if host:
                self.warnings.append(text)
        self.execution_mode = event.mode

    @_apply.register
    def _apply_log_message(self, event: ev.LogMessage) -> None:
        if event.level == "raw" and not self.options.verbose:
            self._raw_lines.setdefault(event.job, []).append(event.text)
            return
        self.log.append(event.text)
        if event.level == "warning":
            self.warnings.append(event.text)

    @_apply.register
    def _apply_job_end(self, event: ev.JobDone) -> None:
        was_stopped = self.pending_requests.is_job_stopping(event.job)
        self.log_shown_warnings()
        if not isinstance(self._end_job(event, REPLACED if event.was_replaced else DONE), rq.OpenNetwork):
            return
        if self.builder is None and not self.network_only and (unused_options := self.options.engine_only_options):
            self.warnings.append(f"{', '.join(unused_options)}: no TensorRT works here, so it builds no engine.")
        if (
            self.automatic
            and self.options.new_calib_cache is not None
            and self.outline is not None
            and not (self.outline.calibrated_tensors)
        ):
            self.warnings.append(f"{self.options.new_calib_cache} is not written, since no layer can be quantized.")
        if self.automatic and not was_stopped and self.data_summary is not None:
            self.request_comparison()
            self.request_preview(after_opening=True)
            self.request_stored_results()

    @_apply.register
    def _apply_job_cancellation(self, event: ev.JobCancelled) -> None:
        request, search_status = self._end_job(event, STOPPED), self.search_status
        if (
            isinstance(request, rq.FindMixedPrecisionConfig)
            and search_status is not None
            and search_status.best_config is not None
        ):
            self.config_names.get_config_name(search_status.best_config)

    @_apply.register
    def _apply_job_failure(self, event: ev.JobFailed) -> None:
        """Shows an error. Input files that were replaced on disk are opened again, except in a command."""
        request = self._end_job(event, FAILED)
        if self.automatic and isinstance(event.error, FileReplacedError):
            if not self.pending_requests.has_request(rq.OpenNetwork):
                self._replaced_files = event.error.files
                structure_hash = self.opened_network.outline.structure_sha256
                self.send_request(rq.OpenNetwork(self.options, structure_hash=structure_hash))
            return
        self.show_error(event)
        # The config file is read after the network is open. If that fails, the network is compared nevertheless.
        if isinstance(request, rq.OpenNetwork) and request.config and self.automatic and self.source is not None:
            self.request_comparison()

    @_apply.register
    def _apply_process_exit(self, event: ev.ChildProcessDied) -> None:
        for number in [number for number in self.pending_requests if number <= event.job]:
            self.pending_requests.end_request(number, FAILED)
        self.error = event
        self.log.append(f"The background process ended with exit code {event.exit_code}.")
        self.log.extend(event.log.splitlines())

    def _end_job(self, end_event: ev.Event, outcome: str) -> rq.Request | None:
        """Marks a job as ended and logs its duration. Returns the request of the job.

        If the job failed, the messages of TensorRT that were hidden until then are logged too, since they may contain
        the reason.
        """
        raw_lines = self._raw_lines.pop(end_event.job, [])
        if outcome == FAILED:
            self.log.extend(raw_lines)
        job = self.pending_requests.end_request(end_event.job, outcome)
        if job is not None and job.begin_time is not None and not job.is_automatic and outcome != REPLACED:
            sent_clock = time.strftime("%H:%M:%S", time.localtime(job.sent_unix_time))
            self.log.append(f"{sent_clock} {job.title}: {outcome}, {duration_text(job.duration_s)}")
        return job.request if job is not None else None

    def send_request(self, request: rq.Request) -> None:
        config: Any = getattr(request, "config", None)
        titled_request: Any = request
        if self.outline is not None and (name := group_titles(self.outline).get(getattr(request, "group", ""))):
            titled_request = replace(titled_request, group=name)
        title = titled_request.job_title(self.config_names.get(config, ""), self.builder is not None)
        self.pending_requests.add_request(self._client.send_request(request), request, title)

    def _send_request_once(self, request: rq.Request) -> None:
        """Sends a request, unless an equal request is pending. A pending request that is being stopped does not
        count."""
        if not any(job.request == request and not job.is_stopping for job in self.pending_requests.values()):
            self.send_request(request)

    # -- measurements ---------------------------------------------------------------------------------------------

    def request_comparison(
        self,
        with_group_errors: bool = True,
        with_shares: bool = True,
        with_isolated_errors: bool = True,
        first_errors_run: str | None = None,
    ) -> None:
        """Requests the accuracy of all runs of the session.

        Args:
            with_group_errors: True also measures errors at the groups.
            with_shares: True also measures error shares.
            with_isolated_errors: See `trt_tui.jobs.requests.CompareRuns`.
            first_errors_run: The run whose accumulated errors come before everything else; None for none.
        """
        runs = _drop_equal_configs(self.list_run_configs())
        shares_run = next((run for run, config in runs.items() if config == self.config), list(runs)[-1])
        first_run = next(
            (
                run
                for run, config in runs.items()
                if first_errors_run is not None and config == self.get_run_config(first_errors_run)
            ),
            None,
        )
        if self.opened_network.reference is not None:
            runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **runs}
        self.send_request(
            rq.CompareRuns(
                runs,
                with_group_errors,
                shares_run if with_group_errors and with_shares else None,
                with_isolated_errors,
                first_run,
                with_raises=self.automatic,
            )
        )
        if self.automatic:
            self.request_stages()
            self.request_toggles()

    def request_toggles(self) -> None:
        if self.requests_toggles and self.data_summary is not None:
            self.send_request(rq.MeasureToggles(self.config))

    def request_stages(self) -> None:
        """Requests the comparison of the stages on the way to production, if the command line names any."""
        options = self.options
        if runs := list_requested_stages(options.stages, options.engine_files, options.outputs):
            runs = tuple(
                replace(run, config=self.get_run_config(run.config_name) if run.config_name else None) for run in runs
            )
            self.send_request(rq.MeasureStages(runs, self.get_run_config(self.exit_code_run), options.inputs))

    @property
    def can_preview_engines(self) -> bool:
        """True if the builder can preview the engines of configs in this session."""
        return self.requests_previews and self.options.preview and self.preview_refusal is None

    def request_preview(
        self, config: PrecisionConfig | None = None, with_effects: bool = True, after_opening: bool = False
    ) -> None:
        """Requests a preview of the engine for a config, unless the preview is known or impossible.

        Args:
            config: The config; None for the current config.
            with_effects: True also requests the effects of the config's choices on the engine.
            after_opening: The ``after_opening`` of `rq.PreviewEngine`.
        """
        config = config if config is not None else self.config
        preview = self.results.get_results_or_empty(config).preview
        if self.can_preview_engines and (
            preview is None or with_effects and preview.refusal is None and preview.ineffective_groups is None
        ):
            self.send_request(
                rq.PreviewEngine(
                    config, with_effects=with_effects, low_priority=self.automatic, after_opening=after_opening
                )
            )

    def request_qdq_removal(self) -> None:
        """Requests a config without unused Q/DQ. The answer becomes the current config, as one change."""
        self.send_request(rq.RemoveUnusedQdq(self.config, self._list_groups_quantized_in_engine()))

    def find_unused_quantization(self, preview: Preview) -> tuple[UnusedQuantization, ...]:
        """Returns the groups of the current config whose quantization a preview shows as unused.

        Groups that the built engine of the config runs in their quantized type are left out.
        """
        return find_unused_quantization(
            self.opened_network.outline, self.config, preview, self._list_groups_quantized_in_engine()
        )

    def _list_groups_quantized_in_engine(self) -> dict[str, str]:
        engine = self.get_run_results("config").engine_result
        return (
            find_used_quantization(self.opened_network.outline, self.config, engine.implementations)
            if engine is not None
            else {}
        )

    def request_stored_results(self) -> None:
        """Requests the stored results of all named configs. An earlier run of the program may have measured them."""
        other_configs = tuple(config for config in self.config_names if config not in self.list_run_configs().values())
        if other_configs:
            self.send_request(rq.LoadStoredResults(other_configs))

    def request_group_details(self, group: FusionGroup) -> None:
        """Requests the tensor statistics and the remedies of a fusion group, unless they are known or requested."""
        if self.data_summary is None:
            return
        if group.name not in self.results.get_values(GROUP_DETAILS):
            self._send_request_once(rq.MeasureTensorStats(group.name))
        is_measured = (group.name, self.config) in self.results.get_values(ev.REMEDIES)
        if len(group.allowed_precisions) > 1 and (not is_measured or self.has_unfinished_remedies(group)):
            self._send_request_once(rq.MeasureRemedies(group.name, self.config))

    def stop_details_of_other_groups(self, group: FusionGroup | None) -> None:
        """Stops the jobs that measure the tensor statistics and the remedies of all fusion groups but one."""
        group_name = group.name if group is not None else ""
        if jobs := [
            number
            for number, job in self.pending_requests.items()
            if isinstance(job.request, rq.MeasureTensorStats | rq.MeasureRemedies) and job.request.group != group_name
        ]:
            self.stop_jobs(jobs, is_urgent=False)

    def is_measuring_remedies(self, group: FusionGroup) -> bool:
        """Returns True while a job measures the remedies of a group."""
        request = rq.MeasureRemedies(group.name, self.config)
        return any(job.request == request and not job.is_stopping for job in self.pending_requests.values())

    def has_unfinished_remedies(self, group: FusionGroup) -> bool:
        """Returns True if the last job that measures the remedies of a group has not ended, was stopped or replaced."""
        request = rq.MeasureRemedies(group.name, self.config)
        outcomes = [job.outcome for job in self.pending_requests.jobs if job.request == request]
        return outcomes[-1:] in ([""], [REPLACED], [STOPPED])

    def request_zero_cost_changes(self, group: FusionGroup | None) -> None:
        """Requests the zero-cost changes of the network and of a fusion group, unless they are known or requested."""
        request = rq.MeasureZeroCostChanges(
            group.name if group is not None else "", self.config, self.can_preview_engines
        )
        changes = self.results.find_value(ev.ZERO_COST_CHANGES, (request.group, request.config))
        if changes is None or not changes.is_complete:
            self._send_request_once(request)

    def request_cause_facts(self, configs: Iterable[PrecisionConfig], groups: Collection[str] | None = None) -> None:
        """Requests the facts for the causes of the largest losses in some configs.

        Args:
            groups: The groups to choose from; None for all.
        """
        names = dict.fromkeys(
            name
            for config in dict.fromkeys(configs)
            for name in list_groups_to_explain(self.results.get_results_or_empty(config), groups)
            if name not in self.results.get_values(GROUP_DETAILS)
        )
        if names:
            first, *others = names
            self.send_request(rq.MeasureTensorStats(first, tuple(others)))

    def request_sample_errors(self) -> None:
        """Requests the error of each sample with the current config, unless it is known or requested."""
        if self.data_summary is not None and self.config not in self.results.get_values(SAMPLE_ERRORS):
            self._send_request_once(rq.MeasureSampleErrors(self.config))

    def request_single_sample(self, sample: SampleName) -> None:
        """Requests the results of all runs on one sample, and the error shares of the groups on this sample."""
        if (
            single_sample := self.results.find_value(SINGLE_SAMPLES, (self.config, sample))
        ) is None or not single_sample.is_complete:
            self.send_request(rq.MeasureSingleSample(self.config, self.list_run_configs(), sample))

    def request_build(
        self,
        config: PrecisionConfig | None = None,
        with_marked_engine: bool = False,
        later_configs: Iterable[PrecisionConfig] = (),
    ) -> None:
        """Requests that the background process builds and measures an engine of a config.

        Args:
            config: The config; None for the current config.
            with_marked_engine: True also builds the marked engine, which has the result of each group as an output.
            later_configs: Configs that will be built next.

        Raises:
            NotReadyError: A build or a search is running.
        """
        if self.is_building:
            raise NotReadyError("a build is going on", "", "Stop it, or wait.")
        if self.is_searching and self.builder is not None:
            raise NotReadyError("a search is going on, which builds engines too", "", "Stop it, or wait.")
        self.send_request(
            rq.BuildEngine(config if config is not None else self.config, with_marked_engine, tuple(later_configs))
        )

    def store_build_failure(self, config: PrecisionConfig, error: TrtTuiError) -> None:
        """Stores the reason why the engine of a config was not built, or its exported network was not executed. The
        comparison continues."""
        self.error = None
        if self.builder is not None:
            self.results.store_engine_result(
                config, failed_build_result(builder_title(self.builder.name, self.builder.version), error)
            )
            return
        backend = self.opened_network.backend
        reason = ": ".join(filter(None, (error.title, error.cause)))
        self.results.get_or_create_results(config).runs[RunKind.EXPORTED_FILE] = ExportedRun(
            None, f"{backend.name} {backend.version} {backend.device}", backend.device.lower(), reason
        )

    # -- search ---------------------------------------------------------------------------------------------------

    def start_search(self, request: rq.FindMixedPrecisionConfig) -> None:
        """Starts a search. Its result does not change the current config.

        Raises:
            NotReadyError: A build or a search is running.
        """
        if self.is_building or self.is_searching:
            raise NotReadyError(f"a {'build' if self.is_building else 'search'} is going on", "", "Stop it, or wait.")
        request = replace(request, use_preview=self.requests_previews and self.options.preview)
        self.search_status = SearchStatus(request)
        self.send_request(request)

    # -- files ----------------------------------------------------------------------------------------------------

    def export_config(self, format_name: str, path: Path, overwrite: bool = False) -> None:
        """Requests that the background process exports the config as a file. `notice` reports the written file.

        Raises:
            InputError: The format is unknown, the file exists and ``overwrite`` is False, or the file is an input.
        """
        path = Path(path).expanduser()
        file_formats = [name for name, export_format in EXPORT_FORMATS.items() if not export_format.is_folder]
        if format_name not in file_formats:
            raise InputError(f"unknown format {format_name}", f"available: {', '.join(file_formats)}", "")
        companion_paths = find_companion_files(format_name, path).values()
        for existing_path in () if overwrite else (path, *companion_paths):
            if os.path.exists(existing_path):  # works for too long names too, for which Path.exists() raises
                reason = "" if existing_path == path else "it is written beside the other"
                raise InputError(f"{existing_path} exists", reason, "Choose another name, or overwrite it.")
        options = self.options
        read_paths = list_input_files(
            options.model,
            options.reference,
            options.data,
            options.calib_data,
            options.calib_cache,
            options.metric,
            options.production.timing_cache or None,
            None if format_name == "json" else self.config_path,
        )
        refuse_overwriting_inputs([path, *companion_paths], read_paths)
        if format_name == "json":
            self.send_request(rq.WriteTextFile(str(path), precision_json_text(self)))
        elif format_name == "markdown":
            self.send_request(rq.WriteTextFile(str(path), comparison_markdown(self)))
        else:
            self.send_request(rq.ExportConfig(str(path), self.config, format_name))

    def export_bundle(
        self, path: Path, release: str, with_samples: bool, config_calibration: Calibration | None = None
    ) -> None:
        """Requests that the background process writes a folder with all files that production needs for the config.

        Args:
            release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
            with_samples: True includes samples and their outputs.
            config_calibration: The ranges of the config file; see `trt_tui.jobs.requests.WrittenConfig`.
        """
        self.send_request(
            rq.WriteBundle(
                str(Path(path).expanduser()),
                self.config,
                release,
                precision_json_text(self),
                comparison_markdown(self),
                with_samples,
                config_calibration=config_calibration,
            )
        )

    def export_group(self, path: Path, group: FusionGroup) -> None:
        """Requests that the background process writes a folder that reproduces the error of one fusion group."""
        self.send_request(rq.WriteSubgraph(str(Path(path).expanduser()), self.config, group=group.name))

    def save_outputs(self, path: str, run_names: Sequence[str] = ()) -> None:
        """Requests that the background process writes the outputs of runs on all samples.

        Args:
            run_names: Run keys, or ``fp32``. Empty for FP32 and all runs of the session; of several runs with one
                config, only the first.
        """
        all_runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **self.list_run_configs()}
        runs = {name: all_runs[name] if name in all_runs else self.get_run_config(name) for name in run_names}
        self.send_request(rq.SaveOutputs(path, runs or _drop_equal_configs(all_runs)))

    # -- changes of the user --------------------------------------------------------------------------------------

    def toggle_fp32(self, groups: Iterable[FusionGroup]) -> None:
        """Toggles fusion groups between FP32 and their default precisions.

        If all groups run in FP32, they return to their defaults. If not, all are raised to FP32.
        """
        self.set_config(self.config.with_toggled_fp32(list(groups)))

    def toggle_barrier(self, group: FusionGroup) -> None:
        """Adds or removes a fusion barrier behind a fusion group, whose result can be an additional network output."""
        config = self.config
        if group.final_tensor in config.get_moves(BarrierMove):
            config = config.without_moves(BarrierMove, [group.final_tensor])
        else:
            config = config.with_moves({group.final_tensor: BarrierMove()})
        self.set_config(config)

    def step_precisions(self, groups: Iterable[FusionGroup], upwards: bool) -> None:
        """Moves fusion groups one step up or down in the precisions of the config, by default INT8, FP16 and FP32."""
        old_config = config = self.config
        for group in groups:
            config = config.with_group_precision([group], find_stepped_precision(old_config, group, upwards))
        self.set_config(config)

    def set_precision(self, groups: Iterable[FusionGroup], precision: Precision) -> None:
        """Gives fusion groups a precision. Groups that cannot run in the precision are left unchanged."""
        self.set_config(self.config.with_group_precision(list(groups), precision))

    def apply_next_range_method(self, group: FusionGroup) -> str:
        """Applies the next range method to the inputs of a quantized fusion group and returns the name of the method.

        If the statistics of the inputs are unknown, they are requested first.

        Raises:
            NotReadyError: The statistics of the group are not measured yet.
        """
        precision = self.config.precision_of(group)
        tensors = [site.tensor for site in group.calibrated_qdq_sites(precision)]
        details = self.results.find_value(GROUP_DETAILS, group.name)
        if self.calibration is None or details is None or any(tensor not in details.tensors for tensor in tensors):
            self.request_group_details(group)
            raise NotReadyError("its ranges are still being measured", "", "The next method follows then.")
        base_method = self.calibration.method
        methods = [
            base_method,
            *(name for name in list_range_methods(QUANTIZED_TYPES[precision]) if name != base_method),
        ]
        current = self.config.range_moves.get(tensors[0])
        current_method = current.method if current is not None and current.method in methods else base_method
        next_method = methods[(methods.index(current_method) + 1) % len(methods)]
        config = self.config
        for tensor in tensors:
            tensor_stats = details.tensors[tensor].amax_by_range_method(precision)
            choice = None if next_method == base_method else RangeMove(tensor_stats[next_method], next_method)
            config = config.with_range(tensor, choice)
        self.set_config(config)
        return next_method

    def set_ranges(self, tensors: Iterable[str], range_text: str) -> None:
        """Requests a range for tensors: an amax, a range method, ``p99.9`` or ``top5-mean``.

        The config changes once, when the ranges are measured.

        Raises:
            InputError: The text is not a valid range.
        """
        parse_amax(range_text)
        self.send_request(rq.SetRanges(self.config, tuple((tensor, range_text) for tensor in dict.fromkeys(tensors))))

    def compare_range_methods(self, methods: Iterable[str] = RANGE_METHODS) -> None:
        """Requests the accuracy of the config with the ranges of each range method."""
        self.results.get_values(ev.METHOD_COMPARISON).clear()
        self.send_request(
            rq.CompareRangeMethods(
                remove_network_range_method(self.config, self.opened_network.outline), tuple(methods)
            )
        )

    @property
    def has_method_comparison(self) -> bool:
        """True if the range methods have been compared for the current config."""
        return (
            self.method_comparison is not None
            and not self.pending_requests.has_request(rq.CompareRangeMethods)
            and self.method_comparison.config == remove_network_range_method(self.config, self.opened_network.outline)
        )

    def use_range_method(self, method: str) -> None:
        """Applies the ranges of a range method to all tensors, as one change. Ranges set by hand stay.

        If the method is that of the calibration, the change is made at once. If not, it is made when the ranges are
        measured.
        """
        outline = self.opened_network.outline
        config = remove_network_range_method(self.config, outline)
        if self.calibration is not None and method == self.calibration.method:
            self.set_config(config)
            return
        tensors = tuple(tensor for tensor in outline.calibrated_tensors if tensor not in config.range_moves)
        self.send_request(rq.CalibrateRanges(method, tensors, config))

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name.

        Raises:
            InputError: The errors of `ConfigNames.rename_config`.
        """
        self.config_names.rename_config(config, name)
        self._push_change(chosen_names=dict(self.config_names.chosen_names))

    def undo(self) -> bool:
        """Undoes the last change of the user. Returns True if there was a change."""
        return self._undo_or_redo(self.history.undo)

    def redo(self) -> bool:
        """Redoes the last undone change. Returns True if there was one."""
        return self._undo_or_redo(self.history.redo)

    def _undo_or_redo(self, move_in_history: Callable[[], bool]) -> bool:
        """Undoes or redoes a change, and restores the state of that time. Returns True if there was a change.

        Args:
            move_in_history: `ChangeHistory.undo` or `ChangeHistory.redo`.
        """
        earlier = self.history.state
        if not move_in_history():
            return False
        if self.target_text != earlier.target_text:
            self.set_initial_target()
        self.config_names.restore_chosen_names(self.history.state.chosen_names)
        if self.config != earlier.config:
            self._save_and_measure_config()
        else:
            self.save_session()
        return True

    def set_config(self, config: PrecisionConfig, choice_reasons: Mapping[str, str] | None = None) -> None:
        """Makes a config the current one and measures it.

        Args:
            choice_reasons: The reasons for moves of the config, by group or tensor.
        """
        outline = self.outline if not self.network_only else None
        if outline is not None and (fresh := without_stale_roundings(outline, config)) != config:
            count = len(config.get_moves(RoundingMove)) - len(fresh.get_moves(RoundingMove))
            self.notice = f"{counted_noun_text(count, 'rounding')} removed: the change gives other weights to round"
            config = fresh
        if (
            outline is not None
            and (written := replace_edited_file_precisions(outline, config, outline.groups)) != config
        ):
            count = sum(written.precision_of(group) is not config.precision_of(group) for group in outline.groups)
            self.notice = (
                f"{counted_noun_text(count, 'layer')} in the nearest precision instead of that in the file: "
                "other changes edit the weights"
            )
            config = written
        reasons = {**self.history.state.choice_reasons, **(choice_reasons or {})}
        if self.history.push_state(replace(self.history.state, config=config, choice_reasons=reasons)):
            self._save_and_measure_config()

    def _save_and_measure_config(self) -> None:
        self.config_names.get_config_name(self.config)
        self.save_session()
        if self.automatic and self.data_summary is not None:
            self.send_request(rq.MeasureWhatIf(self.config, with_shares=True))
            self.request_preview()
            self.request_toggles()
