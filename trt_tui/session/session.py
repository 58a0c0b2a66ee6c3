"""The session that the app and the commands share: the state of the user interface and the requests that it sends.

A `Session` has no thread and draws nothing. It sends requests to the background process and receives events through
`apply_event`, which the event loop calls. The session is saved after each change of the config, and the background
process stores the results. A closed terminal therefore loses nothing.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs
from trt_tui.core.engines.preview import Preview
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.measure.causes import list_groups_to_explain
from trt_tui.core.measure.results import ExportedRun, failed_build_result
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.stages import list_requested_stages
from trt_tui.core.measure.unused_qdq import (
    UnusedQuantization,
    find_unused_quantization,
    find_used_quantization,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.search import Evaluation
from trt_tui.errors import InputError, NotReadyError, TrtTuiError
from trt_tui.formatting import builder_title
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient
from trt_tui.options import Options
from trt_tui.session.editable_session import EditableSession
from trt_tui.session.event_reducer import EventReducer
from trt_tui.session.opening import SessionOpener
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session_folder import SessionEntry, SessionFolder


class Session(EditableSession):
    """The state of one opened network in the user interface, with all requests and changes that a user can make.

    Attributes:
        requests_previews: True if the session requests previews of configs by itself.
        requests_toggles: True if the session requests the accuracy with each row toggled by itself.

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
        super().__init__(options, config_path=config_path, target=target, automatic=automatic,
                         session_folder=session_folder, network_only=network_only)
        self._force = force
        self._opener = SessionOpener(self, self.send_request, resume=resume)
        self._event_reducer = EventReducer(self, self._opener, self)
        self._client = JobClient(on_event, self._list_reopen_requests)

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, *, written_paths: Iterable[str] = (), needs_builder: bool = False) -> None:
        """Starts the background process and opens the network. Comparisons start automatically once it is open.

        Args:
            written_paths: Files that will be written. The network is refused if its weights are in one of them.
            needs_builder: True refuses to open the network if no TensorRT works.
        """
        self.send_request(
            rq.OpenNetwork(self.options, config=self.config_path, force=self._force, written_paths=tuple(written_paths),
                           network_only=self.network_only, needs_builder=needs_builder))
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
        self._opener.resume_session(name)
        self.request_stored_results()
        self._save_and_measure_config()

    def send_request(self, request: rq.Request) -> None:
        config: Any = getattr(request, "config", None)
        title = request.job_title(self.config_names.get(config, ""), self.builder is not None)
        self.pending_requests.add_request(self._client.send_request(request), request, title)

    def apply_event(self, event: ev.Event) -> None:
        """Applies an event of the background process to the session. Events of stopped jobs are dropped."""
        if not self.pending_requests.accepts_event(event):
            return
        try:
            self._event_reducer.apply(event)
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

    # -- measurements ---------------------------------------------------------------------------------------------

    def request_comparison(self, with_group_errors: bool = True, with_shares: bool = True,
                           with_isolated_errors: bool = True, first_errors_run: str | None = None) -> None:
        """Requests the accuracy of all runs of the session.

        Args:
            with_group_errors: True also measures errors at the groups.
            with_shares: True also measures error shares.
            with_isolated_errors: See `trt_tui.jobs.requests.CompareRuns`.
            first_errors_run: The run whose accumulated errors come before everything else; None for none.
        """
        runs: dict[str, PrecisionConfig] = {}
        for run, config in self.list_run_configs().items():
            if config not in runs.values():
                runs[run] = config
        shares_run = next((run for run, config in runs.items() if config == self.config), list(runs)[-1])
        first_run = next((run for run, config in runs.items() if first_errors_run is not None
                          and config == self.get_run_config(first_errors_run)), None)
        if self.opened_network.reference is not None:
            runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **runs}
        self.send_request(
            rq.CompareRuns(runs, with_group_errors, shares_run if with_group_errors and with_shares else None,
                           with_isolated_errors, first_run))
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
            runs = tuple(replace(run, config=self.get_run_config(run.config_name) if run.config_name else None)
                         for run in runs)
            self.send_request(rq.MeasureStages(runs, self.get_run_config(self.judged_run), options.inputs))

    @property
    def can_preview_engines(self) -> bool:
        """True if the builder can preview the engines of configs in this session."""
        return self.requests_previews and self.options.preview and self.preview_refusal is None

    def request_preview(self, config: PrecisionConfig | None = None, with_effects: bool = True,
                        after_opening: bool = False) -> None:
        """Requests a preview of the engine for a config, unless the preview is known or impossible.

        Implements `EditableSession.request_preview`.

        Args:
            config: The config; None for the current config.
            with_effects: True also requests the effects of the config's choices on the engine.
            after_opening: The ``after_opening`` of `rq.PreviewEngine`.
        """
        config = config if config is not None else self.config
        preview = self.results.get_results_or_empty(config).preview
        if self.can_preview_engines and (preview is None or with_effects and preview.refusal is None
                                         and preview.ineffective_groups is None):
            self.send_request(
                rq.PreviewEngine(config, with_effects=with_effects, low_priority=self.automatic,
                                 after_opening=after_opening))

    def request_qdq_removal(self) -> None:
        """Requests the config without unused Q/DQ, which becomes the current config as one change."""
        self.send_request(rq.RemoveUnusedQdq(self.config, self._list_groups_quantized_in_engine()))

    def find_unused_quantization(self, preview: Preview) -> tuple[UnusedQuantization, ...]:
        """Returns the groups of the config whose quantization its preview shows as unused.

        A built engine of the config counts more: groups that it runs in their quantized type are fixed.
        """
        return find_unused_quantization(self.opened_network.outline, self.config, preview,
                                        self._list_groups_quantized_in_engine())

    def _list_groups_quantized_in_engine(self) -> dict[str, str]:
        engine = self.get_run_results("config").engine_result
        return find_used_quantization(self.opened_network.outline, self.config,
                                      engine.implementations) if engine is not None else {}

    def request_stored_results(self) -> None:
        """Requests the stored results of all named configs, which an earlier program may have measured."""
        other_configs = tuple(config for config in self.config_names if config not in self.list_run_configs().values())
        if other_configs:
            self.send_request(rq.LoadStoredResults(other_configs))

    def request_group_details(self, group: FusionGroup) -> None:
        """Requests the tensor statistics and the remedies of a fusion group, unless they are known or requested.

        Implements `EditableSession.request_group_details`.
        """
        if self.data_summary is None:
            return
        waiting = list(self.pending_requests.values())
        if group.name not in self.results.statistics and rq.MeasureTensorStats(group.name) not in waiting:
            self.send_request(rq.MeasureTensorStats(group.name))
        request = rq.MeasureRemedies(group.name, self.config)
        if (group.name, self.config) not in self.results.remedies and request not in waiting and len(
                group.allowed_precisions) > 1:
            self.send_request(request)

    def request_zero_cost_changes(self, group: FusionGroup | None) -> None:
        """Requests the zero-cost changes of the network and of a fusion group, unless they are known or requested."""
        request = rq.MeasureZeroCostChanges(group.name if group is not None else "", self.config,
                                            self.can_preview_engines)
        changes = self.results.zero_cost_changes.get((request.group, request.config))
        if (changes is None or not changes.is_complete) and request not in self.pending_requests.values():
            self.send_request(request)

    def request_cause_facts(self, configs: Iterable[PrecisionConfig], groups: Collection[str] | None = None) -> None:
        """Requests the facts from which the causes at the groups with the largest losses in some configs are found.

        Args:
            groups: The groups to choose from; None for all.
        """
        names = dict.fromkeys(name for config in dict.fromkeys(configs)
                              for name in list_groups_to_explain(self.results.get_results_or_empty(config), groups)
                              if name not in self.results.group_facts)
        if names:
            first, *others = names
            self.send_request(rq.MeasureTensorStats(first, tuple(others)))

    def request_sample_errors(self) -> None:
        """Requests the error of each sample with the current config, unless it is known or requested."""
        request = rq.MeasureSampleErrors(self.config)
        if (self.data_summary is not None and self.config not in self.results.sample_errors
                and request not in self.pending_requests.values()):
            self.send_request(request)

    def request_single_sample(self, sample: SampleName) -> None:
        """Requests the results of all runs on one sample, and the error shares of the groups on this sample."""
        if (single_sample := self.results.single_samples.get(
            (self.config, sample))) is None or not single_sample.is_complete:
            self.send_request(rq.MeasureSingleSample(self.config, self.list_run_configs(), sample))

    def request_build(self, config: PrecisionConfig | None = None,
                      with_marked_engine: bool = False, later_configs: Iterable[PrecisionConfig] = ()) -> None:
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
            rq.BuildEngine(config if config is not None else self.config, with_marked_engine, tuple(later_configs)))

    def store_build_failure(self, config: PrecisionConfig, error: TrtTuiError) -> None:
        """Stores the reason why an engine or an executed export is missing, for a comparison that continues without
        it."""
        self.error = None
        if self.builder is not None:
            self.results.store_engine_result(
                config, failed_build_result(builder_title(self.builder.name, self.builder.version), error))
            return
        backend = self.opened_network.backend
        reason = ": ".join(filter(None, (error.title, error.cause)))
        self.results.get_or_create_results(config).runs[RunKind.EXPORTED_FILE] = ExportedRun(
            None, f"{backend.name} {backend.version} {backend.device}", backend.device.lower(), reason)

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

    def adopt_search_config(self, config: PrecisionConfig, evaluation: Evaluation | None) -> bool:
        """Makes a config that the search offers the current config, as one change.

        Args:
            evaluation: The evaluation of the config in the search; None if there is none.

        Returns:
            False if there is no search, or the config is the current config already.
        """
        search_status = self.search_status
        if search_status is None or config == self.config:
            return False
        before = self.config.precision_moves
        changed = [group for group in self.opened_network.outline.groups
                   if config.precision_moves.get(group.name) != before.get(group.name)]
        search_status.adopted_config = config
        end_event = search_status.end_event
        if evaluation is not None and end_event is not None and not end_event.has_other_samples:
            self.results.get_or_create_results(config).store_accuracy(evaluation.target_result.accuracy)
        self._apply_config_change(config, changed, search_status.find_move_reasons(config))
        return True

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
        self._refuse_overwriting_inputs([path, *companion_paths],
                                        None if format_name == "json" else self.config_path)
        if format_name == "json":
            self.send_request(rq.WriteTextFile(str(path), self.precision_json_text()))
        elif format_name == "markdown":
            self.send_request(
                rq.WriteTextFile(
                    str(path), comparison_markdown(self.comparison_record(), self.opened_network.outline, self.config)))
        else:
            self.send_request(rq.ExportConfig(format_name, str(path), self.config))

    def export_bundle(self, path: Path, release: str, with_samples: bool,
                      config_calibration: Calibration | None = None) -> None:
        """Requests that the background process writes a folder with all files that production needs for the config.

        Args:
            release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
            with_samples: True includes samples and their outputs.
            config_calibration: The ranges of the config file; see `trt_tui.jobs.requests.ExportConfig`.
        """
        self.send_request(rq.WriteBundle(str(Path(path).expanduser()), release, self.config, self.precision_json_text(),
                                         self.comparison_record(), with_samples, config_calibration))

    def export_group(self, path: Path, group: FusionGroup) -> None:
        """Requests that the background process writes a fusion group as a folder that reproduces the group's error by
        itself."""
        self.send_request(rq.WriteSubgraph(str(Path(path).expanduser()), self.config, group=group.name))

    def save_outputs(self, path: str, run_names: Sequence[str] = ()) -> None:
        """Requests that the background process writes the outputs of runs on all samples.

        Args:
            run_names: Run keys, or ``fp32``. Empty for FP32 and all runs of the session; of several runs with one
                config, only the first.
        """
        all_runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **self.list_run_configs()}
        runs = {name: all_runs[name] if name in all_runs else self.get_run_config(name) for name in run_names}
        for run, config in () if run_names else all_runs.items():
            if config not in runs.values():
                runs[run] = config
        self.send_request(rq.SaveOutputs(path, runs))

    def _refuse_overwriting_inputs(self, written_paths: Iterable[Path], config_path: str | None) -> None:
        options = self.options
        read_paths = list_input_files(options.model, options.reference, options.data, options.calib_data,
                                      options.calib_cache, options.metric, options.production.timing_cache or None,
                                      config_path)
        refuse_overwriting_inputs(written_paths, read_paths)
