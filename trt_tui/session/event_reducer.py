"""The effect of each event of the background process on the state of a session."""

import time
from collections.abc import Mapping
from functools import singledispatchmethod
from typing import Protocol

from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.measure.unused_qdq import QdqRemoval
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.formatting import duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.history import SearchDoubt, join_targets
from trt_tui.session.jobs import DONE, FAILED, REPLACED, STOPPED
from trt_tui.session.opening import SessionOpener
from trt_tui.session.state import SessionState


class SessionActions(Protocol):
    """The actions of a session that events of the background process can trigger."""

    def request_comparison(self, with_group_errors: bool = True) -> None:
        """Requests the accuracy of all runs of the session."""

    def request_preview(self, *, after_opening: bool = False) -> None:
        """Requests a preview of the engine for the config."""

    def request_stored_results(self) -> None:
        """Requests the stored results of earlier measurements of the other configs."""

    def apply_qdq_removal(self, removal: QdqRemoval) -> None:
        """Makes the config without unused Q/DQ the current config, as one change."""

    def apply_ranges(self, range_moves: Mapping[str, RangeMove]) -> None:
        """Applies ranges to tensors as one change of the config."""


class EventReducer:
    """The reducer that applies events of the background process to the state of a session, by event type.

    Args:
        state: The state to change.
        opening: The object that applies an opened network.
        actions: The actions that the end of a job can trigger.
    """

    def __init__(self, state: SessionState, opening: SessionOpener, actions: SessionActions) -> None:
        self._state = state
        self._opening = opening
        self._actions = actions
        self._raw_lines: dict[int, list[str]] = {}  # hidden messages of TensorRT, by job

    @singledispatchmethod
    def apply(self, event: ev.Event) -> None:
        """Applies an event of the background process to the state of the session.

        Raises:
            TypeError: The type of the event is unknown.
            TrtTuiError: An action that the event triggers is not possible.
        """
        raise TypeError(f"a session takes no {type(event).__name__}")

    # -- the opened network ---------------------------------------------------------------------------------------

    @apply.register
    def _apply_layer_list(self, event: ev.LayersListed) -> None:
        self._state.unmeasured_outline = event.outline

    @apply.register
    def _apply_opened_network(self, event: ev.NetworkOpened) -> None:
        self._opening.apply_opened_network(event)

    @apply.register
    def _apply_loaded_config(self, event: ev.ConfigRead) -> None:
        self._opening.apply_loaded_config(event.loaded)

    @apply.register
    def _apply_ready_builder(self, event: ev.BuilderReady) -> None:
        self._state.builder = event.builder

    @apply.register
    def _apply_fingerprint(self, event: ev.FilesHashed) -> None:
        self._opening.apply_fingerprint(event.source)

    @apply.register
    def _reopen_replaced_files(self, event: ev.FilesReplaced) -> None:
        """Reopens input files that were replaced on disk. A command ends with an error instead."""
        self._end_job(event, FAILED)
        if self._state.automatic:
            self._opening.reopen_replaced_files(event.files)
        else:
            self._state.show_error(event)

    # -- results --------------------------------------------------------------------------------------------------

    @apply.register
    def _apply_calibration(self, event: ev.CalibrationReady) -> None:
        self._state.calibration = event.calibration

    @apply.register
    def _apply_guard_facts(self, event: ev.GuardFactsMeasured) -> None:
        self._state.facts = self._state.facts.merge_newer_facts(event.facts)
        self._state.log_shown_warnings()

    @apply.register
    def _apply_measured_results(self, event: ev.ResultEvent) -> None:
        self._state.results.apply(event)

    @apply.register
    def _apply_reference_metric(self, event: ev.ReferenceMetricMeasured) -> None:
        state = self._state
        state.results.apply(event)
        state.results.has_full_reference = bool(event.metric) and event.final
        state.update_target_baseline(state.results.has_full_reference)

    @apply.register
    def _apply_preview(self, event: ev.EnginePreviewed) -> None:
        state, refusal = self._state, event.preview.refusal
        state.results.apply(event)
        if refusal is not None and refusal.is_rtx_missing:
            state.preview_refusal = refusal
        elif refusal is not None and refusal.description not in state.log:
            state.log.append(refusal.description)

    @apply.register
    def _apply_removed_qdq(self, event: ev.UnusedQdqRemoved) -> None:
        """Applies the config without unused Q/DQ, unless the user has changed the config since the request."""
        if event.removal.groups and self._state.config == event.config:
            self._actions.apply_qdq_removal(event.removal)
            self._state.log.append(event.removal.report_text)

    @apply.register
    def _apply_built_engine(self, event: ev.EngineBuilt) -> None:
        state = self._state
        state.results.store_engine_result(event.config, event.result)
        state.last_built_config = event.config
        state.config_names.get_config_name(event.config)
        state.save_session()

    @apply.register
    def _apply_exported_run(self, event: ev.ExportedFileExecuted) -> None:
        self._state.results.apply(event)
        name = self._state.config_names.get_config_name(event.config)
        if event.result.missing_reason:
            self._state.log.append(f"The exported network of {name} was not executed: {event.result.missing_reason}")
        self._state.save_session()

    @apply.register
    def _apply_written_files(self, event: ev.ConfigExported) -> None:
        first_path, *other_paths = event.paths
        location = "in" if other_paths and other_paths[0].startswith(f"{first_path}/") else "beside"
        self._state.notice = f"Wrote {first_path}" + (f" and {len(other_paths)} files {location} it"
                                                      if other_paths else "")
        self._state.last_answer = event

    @apply.register
    def _apply_requested_ranges(self, event: ev.RequestedRangesReady) -> None:
        self._actions.apply_ranges(event.ranges)

    @apply.register
    def _apply_method_comparison(self, event: ev.RangeMethodsCompared) -> None:
        self._state.method_comparison = event

    @apply.register
    def _store_command_answer(self, event: ev.CommandAnswer) -> None:
        self._state.last_answer = event

    # -- search ---------------------------------------------------------------------------------------------------

    @apply.register
    def _apply_search_progress(self, event: ev.SearchProgress) -> None:
        state = self._state
        request = state.pending_requests.get(event.job)
        if state.search_status is None or not isinstance(request, rq.FindMixedPrecisionConfig):
            return
        state.search_status.progress = event
        state.pending_requests.update_progress(ev.JobProgress(event.job, request.phase, event.done, 0))

    @apply.register
    def _apply_search_result(self, event: ev.SearchEnded) -> None:
        state, search_status, result = self._state, self._state.search_status, event.result
        if search_status is None or state.pending_requests.get(event.job) is not search_status.request:
            return
        search_status.end_event = event
        state.log.extend((result.summary, *event.remarks))
        if result.best_evaluation is None:
            return
        state.config_names.get_config_name(result.config)
        for config in (result.config, *event.pareto_configs.values()):
            state.config_names.search_doubts.pop(config, None)
            if doubt := event.find_doubt(config):
                state.config_names.search_doubts[config] = SearchDoubt(doubt, join_targets(
                    search_status.request.tolerances))
        if not event.has_other_samples:
            state.results.get_or_create_results(result.config).store_accuracy(
                result.best_evaluation.target_result.accuracy)
        if not search_status.request.sample and not event.has_other_samples:
            for index, config in event.pareto_configs.items():
                if (accuracy := event.evaluations[index].target_result.accuracy) is not None:
                    state.results.store_missing_accuracy(config, accuracy)
        if state.config in (result.config, search_status.adopted_config):
            chosen = {subject for _, subject in state.config.moves}
            state.choice_reasons |= {
                name: reason
                for name, reason in search_status.move_reasons.items()
                if name in chosen
            }

    # -- progress and end of jobs ---------------------------------------------------------------------------------

    @apply.register
    def _apply_job_progress(self, event: ev.JobProgress) -> None:
        self._state.pending_requests.update_progress(event)

    @apply.register
    def _apply_job_start(self, event: ev.JobStarted) -> None:
        if (job := self._state.pending_requests.find_job(event.job)) is not None:
            job.begin()

    @apply.register
    def _apply_execution_mode(self, event: ev.ExecutionModeChanged) -> None:
        state = self._state
        if event.mode != state.execution_mode and event.mode.reason:
            host = event.mode.name.startswith(HOST_MODE)
            text = f"Simulated {'' if host else 'with '}{event.mode.name}: {event.mode.reason}"
            state.log.append(text)
            if host:
                state.warnings.append(text)
        state.execution_mode = event.mode

    @apply.register
    def _apply_log_message(self, event: ev.LogMessage) -> None:
        if event.level == "raw" and not self._state.options.verbose:
            self._raw_lines.setdefault(event.job, []).append(event.text)
            return
        self._state.log.append(event.text)
        if event.level == "warning":
            self._state.warnings.append(event.text)

    @apply.register
    def _apply_job_end(self, event: ev.JobDone) -> None:
        state, was_stopped = self._state, self._state.pending_requests.is_job_stopping(event.job)
        state.log_shown_warnings()
        if not isinstance(self._end_job(event, REPLACED if event.was_replaced else DONE), rq.OpenNetwork):
            return
        if state.builder is None and not state.network_only and (unused_options := state.options.engine_only_options):
            state.warnings.append(f"{', '.join(unused_options)}: no TensorRT works here, so it builds no engine.")
        if state.automatic and state.options.new_calib_cache is not None and state.outline is not None and not (
                state.outline.calibrated_tensors):
            state.warnings.append(f"{state.options.new_calib_cache} is not written, since no layer can be quantized.")
        if state.automatic and not was_stopped and state.data_summary is not None:
            self._actions.request_comparison()
            self._actions.request_preview(after_opening=True)
            self._actions.request_stored_results()

    @apply.register
    def _apply_job_cancellation(self, event: ev.JobCancelled) -> None:
        state = self._state
        request, search_status = self._end_job(event, STOPPED), state.search_status
        if isinstance(
                request,
                rq.FindMixedPrecisionConfig) and search_status is not None and search_status.best_config is not None:
            state.config_names.get_config_name(search_status.best_config)

    @apply.register
    def _apply_job_failure(self, event: ev.JobFailed) -> None:
        request = self._end_job(event, FAILED)
        self._state.show_error(event)
        # The config file is read after the network is open. If that fails, the network is compared nevertheless.
        if isinstance(request,
                      rq.OpenNetwork) and request.config and self._state.automatic and self._state.source is not None:
            self._actions.request_comparison()

    @apply.register
    def _apply_process_exit(self, event: ev.ChildProcessDied) -> None:
        state = self._state
        for number in [number for number in state.pending_requests if number <= event.job]:
            state.pending_requests.end_request(number, FAILED)
        state.error = event
        state.log.append(f"The background process ended with exit code {event.exit_code}.")
        state.log.extend(event.log.splitlines())

    def _end_job(self, end_event: ev.Event, outcome: str) -> rq.Request | None:
        """Marks a job as ended and logs its duration. Returns the request of the job.

        If the job failed, the messages of TensorRT that were hidden until then are logged too, since they may contain
        the reason.
        """
        state = self._state
        raw_lines = self._raw_lines.pop(end_event.job, [])
        if outcome == FAILED:
            state.log.extend(raw_lines)
        job = state.pending_requests.end_request(end_event.job, outcome)
        if job is not None and job.begin_time is not None and not job.is_automatic:
            sent_clock = time.strftime("%H:%M:%S", time.localtime(job.sent_unix_time))
            state.log.append(f"{sent_clock} {job.title}: {outcome}, {duration_text(job.duration_s)}")
        return job.request if job is not None else None
