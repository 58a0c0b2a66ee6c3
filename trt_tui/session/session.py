"""The session that the app and the commands share: what they ask for, and the config they change.

A `Session` owns no thread and draws nothing. It sends requests to the child process and takes its events through
`apply`, which whoever runs the event loop calls; after each change of the config it saves itself, and results are kept
by the child process, so that a closed terminal loses nothing.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.measure.results import ExportedRun, failed_build_result
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.stages import list_requested_stages
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, NotReadyError, TrtTuiError
from trt_tui.formatting import builder_title
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient
from trt_tui.options import Options
from trt_tui.session.editable_session import EditableSession
from trt_tui.session.event_reducer import EventReducer
from trt_tui.session.opening import SessionOpener
from trt_tui.session.saved_sessions import SessionFolder
from trt_tui.session.search_status import SearchStatus


class Session(EditableSession):
    """What is known of a network, and all that can be asked and changed; see the module's docstring.

    Attributes:
        requests_previews: Whether it asks by itself what the builder makes of configs; ``requests_toggles`` what the
            figures become when a row is flipped.

    Args:
        options: What to open.
        on_event: Called with each event of the child process, from another thread; it must hand the event to the
            event loop, which calls `apply_event`.
        config_path: A precision.json to start from.
        target: A target text, like "metric>=base-0.01" or "sqnr>=20"; a default is set when None.
        force: Take a config file of another structure, as far as it fits.
        session_folder: Where sessions are saved; the user's state folder by default.
        resume: Resume the saved session of the same network, if there is one.
        automatic: Measure by itself and save; False for commands that do one thing and end.
        network_only: Open only the network, for commands that measure nothing.
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
        self._event_reducer = EventReducer(self, SessionOpener(self, self.send_request, resume=resume), self)
        self._client = JobClient(on_event, self._list_reopen_requests)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, *, written_paths: Iterable[str] = (), needs_builder: bool = False) -> None:
        """Starts the child process and opens the network; comparisons start by themselves once it is open.

        Args:
            written_paths: Files that will be written; refused if the network's weights lie there.
            needs_builder: Refuse to open it if no TensorRT works.
        """
        self.send_request(
            rq.OpenNetwork(self.options, config=self.config_path, force=self._force, written_paths=tuple(written_paths),
                           network_only=self.network_only, needs_builder=needs_builder))
        if self.options.tensor_ranges:
            self.send_request(rq.SetRanges(self.config, self.options.tensor_ranges))

    def close(self) -> None:
        """Saves and ends the child process."""
        try:
            self.save_session()
            self.session_writer.close()
        finally:
            self._client.close()

    def send_request(self, request: rq.Request) -> None:
        """Sends a request to the child process."""
        config: Any = getattr(request, "config", None)
        title = request.job_title(self.config_names.get(config, ""), self.builder is not None)
        self.pending_requests.add_request(self._client.send_request(request), request, title)

    def apply_event(self, event: ev.Event) -> None:
        """Takes an event in. Events of jobs that were stopped are dropped."""
        if not self.pending_requests.accepts_event(event):
            return
        try:
            self._event_reducer.apply(event)
        except TrtTuiError as error:
            self.show_error(ev.JobFailed(event.job, error.title, error.cause, error.next_step, int(error.exit_code)))

    def stop_jobs(self, jobs: Collection[int] | None = None) -> None:
        """Stops jobs, by default all: asks, and kills the child process if one has not stopped within 2 s."""
        self.pending_requests.mark_jobs_stopped(self.pending_requests if jobs is None else jobs)
        self._client.stop_jobs(jobs)

    def _list_reopen_requests(self) -> list[rq.Request]:
        """The requests that bring a new child process to the state of the last one."""
        if self.outline is None:
            return []
        opening = rq.OpenNetwork(self.options, self.source, self.outline.structure_sha256)
        return [opening, *([rq.UseRanges(self.calibration)] if self.calibration is not None else [])]

    # -- asking for more ------------------------------------------------------------------------------------------

    def request_comparison(self, with_group_errors: bool = True, with_shares: bool = True) -> None:
        """Measures the runs of the verdict (again), with ``with_group_errors`` errors at their groups, and
        ``with_shares``."""
        runs: dict[str, PrecisionConfig] = {}
        for run, config in self.list_run_configs().items():
            if config not in runs.values():
                runs[run] = config
        shares_run = next(run for run, config in runs.items() if config == self.config)
        if self.opened_network.reference is not None:
            runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **runs}
        self.send_request(
            rq.CompareRuns(runs, with_group_errors, shares_run if with_group_errors and with_shares else None))
        if self.automatic:
            self.request_stages()
            self.request_toggles()

    def request_toggles(self) -> None:
        """Asks what the figures become when a row is flipped, of the rows that matter."""
        if self.requests_toggles and self.data_summary is not None:
            self.send_request(rq.MeasureToggles(self.config))

    def request_stages(self) -> None:
        """Runs the stages on the way to production, if any are asked for."""
        options = self.options
        if runs := list_requested_stages(options.stages, options.engine, options.outputs):
            configs = self.list_run_configs()
            runs = tuple(replace(run, config=configs.get(run.config_name)) for run in runs)
            self.send_request(rq.MeasureStages(runs, configs, options.inputs))

    @property
    def can_preview_engines(self) -> bool:
        """Whether the builder can be asked what it makes of configs."""
        return self.requests_previews and self.options.preview and self.preview_refusal is None

    def request_preview(self, config: PrecisionConfig | None = None, with_effects: bool = True,
                        after_opening: bool = False) -> None:
        """Asks what the builder makes of a config, the current one by default, unless that is known or cannot be.

        Args:
            with_effects: Ask what its choices do to the engine too.
            after_opening: See `rq.PreviewEngine`.
        """
        config = config if config is not None else self.config
        preview = self.results.get_results_or_empty(config).preview
        if self.can_preview_engines and (preview is None or with_effects and preview.refusal is None
                                         and preview.ineffective_groups is None):
            self.send_request(
                rq.PreviewEngine(config, with_effects=with_effects, low_priority=self.automatic,
                                 after_opening=after_opening))

    def request_stored_results(self) -> None:
        """Asks what an earlier program measured of the configs that have names, so that their figures stand again."""
        other_configs = tuple(config for config in self.config_names if config not in self.list_run_configs().values())
        if other_configs:
            self.send_request(rq.LoadStoredResults(other_configs))

    def request_group_details(self, group: FusionGroup) -> None:
        """Asks for the statistics and the ways out of a group, unless they are known or asked for."""
        if self.data_summary is None:
            return
        waiting = list(self.pending_requests.values())
        if group.name not in self.results.statistics and rq.MeasureTensorStats(group.name) not in waiting:
            self.send_request(rq.MeasureTensorStats(group.name))
        request = rq.MeasureRemedies(group.name, self.config)
        if (group.name, self.config) not in self.results.remedies and request not in waiting and len(
                group.allowed_precisions) > 1:
            self.send_request(request)

    def request_sample_errors(self) -> None:
        """Asks for the error of each sample in the config, unless it is known or asked for."""
        request = rq.MeasureSampleErrors(self.config)
        if (self.data_summary is not None and self.config not in self.results.sample_errors
                and request not in self.pending_requests.values()):
            self.send_request(request)

    def request_single_sample(self, sample_index: int) -> None:
        """Asks for one sample alone, in all runs, and for what each group owns of its error."""
        if (single_sample := self.results.single_samples.get(
            (self.config, sample_index))) is None or not single_sample.is_complete:
            self.send_request(rq.MeasureSingleSample(self.config, self.list_run_configs(), sample_index))

    def request_build(self, quick: bool = False, config: PrecisionConfig | None = None,
                      with_marked_engine: bool = False, later_configs: Iterable[PrecisionConfig] = ()) -> None:
        """Builds a config, the current one by default; ``quick`` takes the lowest effort, ``with_marked_engine`` also
        looks into a second engine that has the groups' results as outputs, ``later_configs`` are configs that will be
        built next.

        Raises:
            NotYetError: a build is going on.
        """
        if self.is_building:
            raise NotReadyError("a build is going on", "", "Stop it, or wait.")
        if self.is_searching and self.builder is not None:
            raise NotReadyError("a search is going on, which builds engines too", "", "Stop it, or wait.")
        self.send_request(
            rq.BuildEngine(config if config is not None else self.config, quick, with_marked_engine,
                           tuple(later_configs)))

    def store_build_failure(self, config: PrecisionConfig, error: TrtTuiError) -> None:
        """Keeps the reason in place of an engine or an executed export, for a comparison that goes on without it."""
        self.error = None
        if self.builder is not None:
            self.results.store_engine_result(
                config, failed_build_result(builder_title(self.builder.name, self.builder.version), error))
            return
        backend = self.opened_network.backend
        reason = ": ".join(filter(None, (error.title, error.cause)))
        self.results.get_or_create_results(config).runs[RunKind.EXPORTED_FILE] = ExportedRun(
            None, f"{backend.name} {backend.version} {backend.device}", backend.device.lower(), reason)

    # -- searching ------------------------------------------------------------------------------------------------

    def start_search(self, request: rq.FindMixedPrecisionConfig) -> None:
        """Starts a search. In the app what it finds becomes the config, as one change.

        Raises:
            NotYetError: a build or a search is going on.
        """
        if self.is_building or self.is_searching:
            raise NotReadyError(f"a {'build' if self.is_building else 'search'} is going on", "", "Stop it, or wait.")
        request = replace(request, use_preview=self.requests_previews and self.options.preview)
        self.search_status = SearchStatus(request)
        self.send_request(request)

    def adopt_search_result(self) -> bool:
        """Makes the best config of the search current, as one change; False where there is none, or it is already."""
        search_status = self.search_status
        if (search_status is None or search_status.best_config is None or search_status.best_evaluation is None
                or search_status.best_config == self.config):
            return False
        before = self.config.precision_moves
        changed = [group for group in self.opened_network.outline.groups
                   if search_status.best_config.precision_moves.get(group.name) != before.get(group.name)]
        search_status.adopted_config = search_status.best_config
        self.choice_reasons |= search_status.move_reasons
        if search_status.end_event is not None and not search_status.end_event.has_other_samples:
            self.results.get_or_create_results(search_status.best_config).store_accuracy(
                search_status.best_evaluation.target_result.accuracy)
        self._apply_config_change(search_status.best_config, changed)
        return True

    # -- files ----------------------------------------------------------------------------------------------------

    def export_config(self, format_name: str, path: Path, overwrite: bool = False) -> None:
        """Has the child process write a format that is a file; `notice` says when it is there.

        Raises:
            InputError: there is no such format, the file exists and ``overwrite`` is False, or it is read from.
        """
        path = Path(path).expanduser()
        file_formats = [name for name, export_format in EXPORT_FORMATS.items() if not export_format.is_folder]
        if format_name not in file_formats:
            raise InputError(f"unknown format {format_name}", f"there are {', '.join(file_formats)}", "")
        companion_paths = find_companion_files(format_name, path).values()
        for existing_path in () if overwrite else (path, *companion_paths):
            if os.path.exists(existing_path):  # also of a name that is too long, which Path.exists() raises for
                reason = "" if existing_path == path else "it is written beside the other"
                raise InputError(f"{existing_path} exists", reason, "Choose another name, or overwrite it.")
        self._refuse_overwriting_inputs([path, *companion_paths],
                                        None if format_name == "precision.json" else self.config_path)
        if format_name == "precision.json":
            self.send_request(rq.WriteTextFile(str(path), self.precision_json_text()))
        elif format_name == "markdown":
            self.send_request(
                rq.WriteTextFile(
                    str(path), comparison_markdown(self.comparison_record(), self.opened_network.outline, self.config)))
        else:
            self.send_request(rq.ExportConfig(format_name, str(path), self.config))

    def export_bundle(self, path: Path, release: str, with_samples: bool,
                      config_ranges: Mapping[str, float] | None = None) -> None:
        """Has the child process write a folder that carries the config into production.

        Args:
            release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.
            with_samples: Whether samples and their outputs go in.
            config_ranges: See `trt_tui.jobs.requests.ExportConfig`.
        """
        method = (self.config_calibration.method
                  if config_ranges is not None and self.config_calibration is not None else "")
        self.send_request(rq.WriteBundle(str(Path(path).expanduser()), release, self.config, self.precision_json_text(),
                                         self.comparison_record(), with_samples, config_ranges, method))

    def export_group(self, path: Path, group: FusionGroup) -> None:
        """Has the child process write a group as a folder that shows its fault by itself."""
        self.send_request(rq.WriteSubgraph(str(Path(path).expanduser()), self.config, group=group.name))

    def save_outputs(self, path: str, run_names: Sequence[str] = ()) -> None:
        """Has the child process write the outputs of runs on all samples.

        Args:
            run_names: Of `SAVED_RUN_NAMES`; by default FP32 and each run, of several with one config the first.
        """
        all_runs = {"fp32": PrecisionConfig.from_precision(Precision.FP32), **self.list_run_configs()}
        runs = {name: all_runs[name] for name in run_names}
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
