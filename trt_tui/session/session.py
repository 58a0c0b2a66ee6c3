"""The session that the app and the commands share: the state of the user interface and the requests that it sends.

A `Session` has no thread and draws nothing. It sends requests to the background process and receives events through
`apply_event`, which the event loop calls. The session is saved after each change of the config, and the background
process stores the results. A closed terminal therefore loses nothing.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.guards.guards import GuardFacts
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.keep_rules import apply_keep_rules, default_keep_rules_note
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import counted_noun_text, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient
from trt_tui.options import Options
from trt_tui.session.editable_session import EditableSession
from trt_tui.session.history import ChangeHistory, ConfigNames, SearchDoubt, join_targets
from trt_tui.session.jobs import DONE, FAILED, REPLACED, STOPPED
from trt_tui.session.saved_sessions import SavedSession
from trt_tui.session.session_folder import SessionEntry, SessionFolder


class Session(EditableSession):
    """The state of one opened network in the user interface, with all requests and changes that a user can make.

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
    """

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
        super().__init__(options, config_path=config_path, target=target, automatic=automatic,
                         session_folder=session_folder, network_only=network_only)
        self._force = force
        self._can_resume = resume
        self._replaced_files: tuple[str, ...] = ()
        self._resume_note: str | None = None
        self._resumed_snapshot: object = None
        self._saved_target: str | None = None
        self._raw_lines: dict[int, list[str]] = {}  # hidden messages of TensorRT, by job
        self._client = JobClient(on_event, self._list_reopen_requests)

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, *, needs_builder: bool = False) -> None:
        """Starts the background process and opens the network. Comparisons start automatically once it is open.

        Args:
            needs_builder: True refuses to open the network if no TensorRT works.
        """
        self.send_request(
            rq.OpenNetwork(self.options, config=self.config_path, force=self._force, network_only=self.network_only,
                           needs_builder=needs_builder))
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
        return self.session_folder.list_sessions(outline.structure_sha256, str(outline.path), self.network_sha256,
                                                 outline)

    def resume_session(self, name: str) -> None:
        """Saves this session, and goes on with another saved session of the network.

        Raises:
            InputError: The session cannot be opened; this one goes on.
        """
        self.save_session()
        self.session_writer.flush()
        self._replace_by_saved_session(name)
        self.request_stored_results()
        self._save_and_measure_config()

    def apply_event(self, event: ev.Event) -> None:
        """Applies an event of the background process to the session. Events of stopped jobs are dropped."""
        if not self.pending_requests.accepts_event(event):
            return
        try:
            self._apply(event)
        except TrtTuiError as error:
            self.show_error(ev.JobFailed(event.job, error.title, error.cause, error.next_step, int(error.exit_code)))

    def stop_jobs(self, jobs: Collection[int] | None = None) -> None:
        """Stops jobs of the background process. If a job does not stop within 2 s, the process is killed.

        Args:
            jobs: The numbers of the jobs; None for all.
        """
        self.pending_requests.mark_jobs_stopped(self.pending_requests if jobs is None else jobs)
        self._client.stop_jobs(jobs)

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
            self.history = ChangeHistory(PrecisionConfig.from_precision(Precision.FILE))
        resumed = self.automatic and self._can_resume and self._resume_saved_session(event.outline)
        config = self._apply_command_line_options(self.config)
        if not resumed:
            self.history.state = self.user_state
            config = self.apply_default_keep_rules(config)
            if not self.config_path and (note := default_keep_rules_note(event.outline, config)):
                self.log.append(note)
                self.notice = note
        # What the command line changes in a resumed session is a step to undo.
        self.history.push_state(replace(self.user_state, config=config))
        self.set_initial_target()
        self.config_names.get_config_name(self.config)
        self._resumed_snapshot = self.history.snapshot()

    def _apply_command_line_options(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config with TF32 and with the keep rules of the command line.

        Raises:
            InputError: The errors of `trt_tui.core.moves.keep_rules.apply_keep_rules`.
        """
        options, network = self.options, self.outline or self.unmeasured_outline
        assert network is not None, "an opened network has been announced"
        return apply_keep_rules(network, replace(config, tf32=True) if options.tf32 else config, options.keep)

    def _resume_saved_session(self, outline: NetworkOutline) -> bool:
        """Resumes the saved session of the same network. Returns False if there is none."""
        saved = self.session_folder.load_session(outline.structure_sha256, str(outline.path), outline)
        self.warnings.extend(self.session_folder.load_failures)
        if saved is None:
            return False
        if not self.target_text:
            self.target_text = self._saved_target = saved.target
        self._apply_saved_session(saved)
        if saved.note:
            self.warnings.append(saved.note)
            self._resume_note = saved.note
        return True

    def _apply_saved_session(self, saved_session: SavedSession) -> None:
        """Replaces the configs of the session by the configs of a saved session."""
        self.history, self.config_names, self.saved_sha256 = saved_session.to_change_history(
        ), saved_session.to_config_names(), saved_session.sha256
        count = len(self.config.moves)
        self.notice = (f"Resumed: {self.config_names.get_config_name(self.config)}, "
                        f"{count} {'change' if count == 1 else 'changes'}.")

    @_apply.register
    def _apply_fingerprint(self, event: ev.FilesHashed) -> None:
        """Applies the hashes of network and data, and drops ranges that were measured on other weights or data."""
        previous, fingerprint = self.source, event.source
        self.source = fingerprint
        if previous is not None:
            self._keep_valid_ranges(previous, fingerprint)
            return
        self._adopt_session_of_same_content(fingerprint)
        self._drop_moves_of_other_weights()

    def _drop_moves_of_other_weights(self) -> None:
        if self.saved_sha256 not in ("", self.network_sha256):
            self._drop_measured_moves("other weights, in the session resumed,")

    def _replace_by_saved_session(self, name: str) -> None:
        """Goes on with another saved session of the network. Its current config is not measured yet.

        Raises:
            InputError: The session cannot be opened.
        """
        outline = self.opened_network.outline
        saved = self.session_folder.open_session(name, outline.structure_sha256, str(outline.path), outline)
        self._apply_saved_session(saved)
        self.filter_text, self.choice_reasons, self.group_change_times = "", {}, {}
        self.target_text = saved.target or None
        self.set_initial_target()
        self.update_target_baseline()
        self._drop_moves_of_other_weights()
        self.config_names.get_config_name(self.config)
        if saved.note:
            self.warnings.append(saved.note)

    def _adopt_session_of_same_content(self, fingerprint: Fingerprint) -> None:
        """Replaces a session of another network with the same structure by the session of a network with the same
        content.

        A network may have been saved under another path; equal content means the same network. If the user has changed
        the resumed session meanwhile, it stays.
        """
        if self._resume_note is None or (
                self.saved_sha256 != fingerprint.sha256 and self.history.snapshot() != self._resumed_snapshot):
            return
        previous_target, own_session = self.target_text, self.session_folder.load_session_by_content(
            fingerprint.sha256)
        if own_session is None:
            return
        self.warnings = [text for text in self.warnings if text != self._resume_note]
        if self.saved_sha256 == fingerprint.sha256:
            return
        self._apply_saved_session(own_session)
        if previous_target == self._saved_target:
            self.target_text = own_session.target
            self.set_initial_target()
        self.history.push_state(replace(self.user_state, config=self._apply_command_line_options(self.config)))
        self.config_names.get_config_name(self.config)

    @_apply.register
    def _apply_loaded_config(self, event: ev.ConfigRead) -> None:
        """Makes the config of a file the current config. Undo restores the resumed config."""
        loaded_config = event.loaded
        self.history.push_config(self._apply_command_line_options(loaded_config.config))
        self.config_names.get_config_name(self.config)
        self.warnings.extend(loaded_config.warnings)
        if loaded_config.calibration.ranges and not loaded_config.has_stale_ranges:
            self.config_calibration = loaded_config.calibration
            if self.network_only:
                return
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))
            if self.options.calib_data is not None or self.options.calib_method != RANGE_METHODS[0]:
                self.warnings.append(f"The ranges are those of {Path(self.config_path or '').name}; "
                                      "ranges by --calib-data and --calib-method are only compared with them.")
        if not self.network_only and not self.target_text and loaded_config.tolerance:
            self.target_text = loaded_config.tolerance
            self.set_initial_target()
        self.save_session()

    # -- replaced files -------------------------------------------------------------------------------------------

    @_apply.register
    def _reopen_replaced_files(self, event: ev.FilesReplaced) -> None:
        """Reopens input files that were replaced on disk. A command ends with an error instead."""
        self._end_job(event, FAILED)
        if not self.automatic:
            self.show_error(event)
        elif not self.pending_requests.has_request(rq.OpenNetwork):
            self._replaced_files = event.files
            self.send_request(
                rq.OpenNetwork(self.options, structure_hash=self.opened_network.outline.structure_sha256))

    def _drop_stale_results(self) -> None:
        """Drops all results that were measured on files that have been replaced. The user's changes stay."""
        if self._replaced_files:
            self.warnings.append(f"{', '.join(self._replaced_files)}: replaced, so everything is measured again.")
        self._replaced_files = ()
        self.calibration = self.last_built_config = None
        self.results = self.make_results()
        self.facts = GuardFacts()
        self.config_names.exported_configs.clear()
        self.config_names.search_doubts.clear()
        self.choice_reasons.clear()
        if not self.is_searching:
            self.search_status = None
        self.set_initial_target()
        self.update_target_baseline()

    def _keep_valid_ranges(self, previous_fingerprint: Fingerprint, current_fingerprint: Fingerprint) -> None:
        """Keeps the chosen ranges that are still valid after a file was replaced, and drops the others."""
        changed = current_fingerprint.files.find_files_changed_since(previous_fingerprint.files)
        is_same = (current_fingerprint.sha256, current_fingerprint.data_sha256) == (previous_fingerprint.sha256,
                                                                                    previous_fingerprint.data_sha256)
        if not is_same or any(not name.endswith(".py") for name in changed):
            self._drop_measured_moves("the replaced files")
        if (self.config_calibration is not None and self.calibration is None
                and current_fingerprint.sha256 == previous_fingerprint.sha256):
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))

    def _drop_measured_moves(self, origin_text: str) -> None:
        """Removes moves with values measured on other files from every config of the history, and adds a warning."""
        dropped = [move for move in self.config.moves.values() if move.has_measured_values]
        other_count = sum(move.kind != RangeMove.kind for move in dropped)
        self.history.map_configs(lambda config: config.without_measured_moves())
        self.config_names = ConfigNames(
            (config.without_measured_moves(), name) for config, name in self.config_names.items())
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
        self.results.apply(event)

    @_apply.register
    def _apply_reference_metric(self, event: ev.ReferenceMetricMeasured) -> None:
        self.results.apply(event)
        self.results.has_full_reference = bool(event.metric) and event.final
        self.update_target_baseline(self.results.has_full_reference)

    @_apply.register
    def _apply_preview(self, event: ev.EnginePreviewed) -> None:
        refusal = event.preview.refusal
        self.results.apply(event)
        if refusal is not None and refusal.is_rtx_missing:
            self.preview_refusal = refusal
        elif refusal is not None and refusal.description not in self.log:
            self.log.append(refusal.description)

    @_apply.register
    def _apply_removed_qdq(self, event: ev.UnusedQdqRemoved) -> None:
        """Applies the config without unused Q/DQ, unless the user has changed the config since the request."""
        if event.removal.groups and self.config == event.config:
            self.apply_qdq_removal(event.removal)
            self.log.append(event.removal.report_text)

    @_apply.register
    def _apply_built_engine(self, event: ev.EngineBuilt) -> None:
        self.results.store_engine_result(event.config, event.result)
        self.last_built_config = event.config
        self.config_names.get_config_name(event.config)
        self.save_session()

    @_apply.register
    def _apply_exported_run(self, event: ev.ExportedFileExecuted) -> None:
        self.results.apply(event)
        name = self.config_names.get_config_name(event.config)
        if event.result.missing_reason:
            self.log.append(f"The exported network of {name} was not executed: {event.result.missing_reason}")
        self.save_session()

    @_apply.register
    def _apply_written_files(self, event: ev.ConfigExported) -> None:
        first_path, *other_paths = event.paths
        location = "in" if other_paths and other_paths[0].startswith(f"{first_path}/") else "beside"
        self.notice = f"Wrote {first_path}" + (f" and {len(other_paths)} files {location} it"
                                                      if other_paths else "")
        self.last_answer = event

    @_apply.register
    def _apply_requested_ranges(self, event: ev.RequestedRangesReady) -> None:
        self.apply_ranges(event.ranges)

    @_apply.register
    def _store_command_answer(self, event: ev.CommandAnswer) -> None:
        self.last_answer = event

    # -- search ---------------------------------------------------------------------------------------------------

    @_apply.register
    def _apply_search_progress(self, event: ev.SearchProgress) -> None:
        request = self.pending_requests.get(event.job)
        if self.search_status is None or not isinstance(request, rq.FindMixedPrecisionConfig):
            return
        self.search_status.progress = event
        self.pending_requests.update_progress(ev.JobProgress(event.job, request.phase, event.done, 0))

    @_apply.register
    def _apply_search_result(self, event: ev.SearchEnded) -> None:
        search_status, result = self.search_status, event.result
        if search_status is None or self.pending_requests.get(event.job) is not search_status.request:
            return
        search_status.end_event = event
        self.log.extend((result.summary, *event.remarks))
        if result.best_evaluation is None:
            return
        self.config_names.get_config_name(result.config)
        for config in (result.config, *event.pareto_configs.values()):
            self.config_names.search_doubts.pop(config, None)
            if doubt := event.find_doubt(config):
                self.config_names.search_doubts[config] = SearchDoubt(doubt, join_targets(
                    search_status.request.tolerances))
        if not event.has_other_samples:
            self.results.get_or_create_results(result.config).store_accuracy(
                result.best_evaluation.target_result.accuracy)
        if not search_status.request.sample and not event.has_other_samples:
            for index, config in event.pareto_configs.items():
                if (accuracy := event.evaluations[index].target_result.accuracy) is not None:
                    self.results.store_missing_accuracy(config, accuracy)
        if self.config in (result.config, search_status.adopted_config):
            chosen = {subject for _, subject in self.config.moves}
            self.choice_reasons |= {
                name: reason
                for name, reason in search_status.move_reasons.items()
                if name in chosen
            }

    # -- progress and end of jobs ---------------------------------------------------------------------------------

    @_apply.register
    def _apply_job_progress(self, event: ev.JobProgress) -> None:
        self.pending_requests.update_progress(event)

    @_apply.register
    def _apply_job_start(self, event: ev.JobStarted) -> None:
        if (job := self.pending_requests.find_job(event.job)) is not None:
            job.begin()

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
        if self.automatic and self.options.new_calib_cache is not None and self.outline is not None and not (
                self.outline.calibrated_tensors):
            self.warnings.append(f"{self.options.new_calib_cache} is not written, since no layer can be quantized.")
        if self.automatic and not was_stopped and self.data_summary is not None:
            self.request_comparison()
            self.request_preview(after_opening=True)
            self.request_stored_results()

    @_apply.register
    def _apply_job_cancellation(self, event: ev.JobCancelled) -> None:
        request, search_status = self._end_job(event, STOPPED), self.search_status
        if isinstance(
                request,
                rq.FindMixedPrecisionConfig) and search_status is not None and search_status.best_config is not None:
            self.config_names.get_config_name(search_status.best_config)

    @_apply.register
    def _apply_job_failure(self, event: ev.JobFailed) -> None:
        request = self._end_job(event, FAILED)
        self.show_error(event)
        # The config file is read after the network is open. If that fails, the network is compared nevertheless.
        if isinstance(request,
                      rq.OpenNetwork) and request.config and self.automatic and self.source is not None:
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
        if job is not None and job.begin_time is not None and not job.is_automatic:
            sent_clock = time.strftime("%H:%M:%S", time.localtime(job.sent_unix_time))
            self.log.append(f"{sent_clock} {job.title}: {outcome}, {duration_text(job.duration_s)}")
        return job.request if job is not None else None
