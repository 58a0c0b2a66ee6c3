"""The part of a session that sends requests: for measurements, engines, searches and files."""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs
from trt_tui.core.engines.preview import Preview
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.measure.causes import GROUP_DETAILS, list_groups_to_explain
from trt_tui.core.measure.results import ExportedRun, failed_build_result
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.single_sample import SAMPLE_ERRORS, SINGLE_SAMPLES
from trt_tui.core.measure.stages import list_requested_stages
from trt_tui.core.measure.unused_qdq import (
    UnusedQuantization,
    find_unused_quantization,
    find_used_quantization,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, NotReadyError, TrtTuiError
from trt_tui.formatting import builder_title
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient
from trt_tui.session.comparison_report import comparison_markdown
from trt_tui.session.reporting_session import ReportingSession
from trt_tui.session.search_status import SearchStatus


class MeasuringSession(ReportingSession):
    """A session that requests measurements, engines, searches and files from the background process.

    Attributes:
        requests_previews: True if the session requests previews of configs by itself.
        requests_toggles: True if the session requests the accuracy with each row toggled by itself.
    """

    requests_previews: ClassVar[bool] = True
    requests_toggles: ClassVar[bool] = True
    _client: JobClient  # which `Session` starts

    def send_request(self, request: rq.Request) -> None:
        config: Any = getattr(request, "config", None)
        title = request.job_title(self.config_names.get(config, ""), self.builder is not None)
        self.pending_requests.add_request(self._client.send_request(request), request, title)

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
                           with_isolated_errors, first_run, with_raises=self.automatic))
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
        """Requests the tensor statistics and the remedies of a fusion group, unless they are known or requested."""
        if self.data_summary is None:
            return
        waiting = list(self.pending_requests.values())
        if group.name not in self.results.values_of(GROUP_DETAILS) and rq.MeasureTensorStats(group.name) not in waiting:
            self.send_request(rq.MeasureTensorStats(group.name))
        request = rq.MeasureRemedies(group.name, self.config)
        if (group.name, self.config) not in self.results.values_of(ev.REMEDIES) and request not in waiting and len(
                group.allowed_precisions) > 1:
            self.send_request(request)

    def request_zero_cost_changes(self, group: FusionGroup | None) -> None:
        """Requests the zero-cost changes of the network and of a fusion group, unless they are known or requested."""
        request = rq.MeasureZeroCostChanges(group.name if group is not None else "", self.config,
                                            self.can_preview_engines)
        changes = self.results.find(ev.ZERO_COST_CHANGES, (request.group, request.config))
        if (changes is None or not changes.is_complete) and request not in self.pending_requests.values():
            self.send_request(request)

    def request_cause_facts(self, configs: Iterable[PrecisionConfig], groups: Collection[str] | None = None) -> None:
        """Requests the facts from which the causes at the groups with the largest losses in some configs are found.

        Args:
            groups: The groups to choose from; None for all.
        """
        names = dict.fromkeys(name for config in dict.fromkeys(configs)
                              for name in list_groups_to_explain(self.results.get_results_or_empty(config), groups)
                              if name not in self.results.values_of(GROUP_DETAILS))
        if names:
            first, *others = names
            self.send_request(rq.MeasureTensorStats(first, tuple(others)))

    def request_sample_errors(self) -> None:
        """Requests the error of each sample with the current config, unless it is known or requested."""
        request = rq.MeasureSampleErrors(self.config)
        if (self.data_summary is not None and self.config not in self.results.values_of(SAMPLE_ERRORS)
                and request not in self.pending_requests.values()):
            self.send_request(request)

    def request_single_sample(self, sample: SampleName) -> None:
        """Requests the results of all runs on one sample, and the error shares of the groups on this sample."""
        if (single_sample := self.results.find(
                SINGLE_SAMPLES, (self.config, sample))) is None or not single_sample.is_complete:
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
            self.send_request(rq.WriteTextFile(str(path), comparison_markdown(self)))
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
                                         comparison_markdown(self), with_samples, config_calibration))

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

