"""What a session hands out: the comparison as a record, the text of precision.json, what to look at in engines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui import __version__
from trt_tui.core.guards.guard import warning_record
from trt_tui.core.measure.engine_agreement import EngineDivergence, find_engine_divergence, suggest_engine_checks
from trt_tui.core.measure.reference import is_network_file
from trt_tui.core.measure.results import Accuracy, ConfigResults
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.stages import (
    PRODUCTION_STAGE,
    StageResult,
    compare_production_with_tested_run,
    first_divergence_text,
)
from trt_tui.core.moves import config_file as config_file
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.quantized_twins import has_file_precision
from trt_tui.core.report.json_record import (
    accuracy_record,
    comparison_record,
    engine_result_record,
    error_metrics_record,
    exported_run_record,
    preview_record,
    stage_record,
    target_outcome_record,
)
from trt_tui.errors import InputError
from trt_tui.formatting import EXPORTED, EXPORTED_NETWORK, executed_run_key
from trt_tui.jobs import requests as rq
from trt_tui.session.state import RUN_NAMES, TOLERANCE_SEPARATOR, SessionState


class ReportingSession(SessionState):
    """See the module's docstring."""

    def comparison_record(self) -> dict[str, Any]:
        """What was measured, as `compare --json` writes it."""
        opened = self.opened_network
        runs = {run: self.get_run_results(run) for run in RUN_NAMES}
        if self.fp32_accuracy is not None:
            runs = {"fp32": ConfigResults(self.fp32_accuracy), **runs}
        record = comparison_record(opened.outline, self.network_sha256, opened.data, opened.backend, runs,
                                   self.results.reference_metric, self.results.fp32_engine,
                                   opened.reference)
        if self.targets:
            record["target"] = self.targets_text
        for run, config in self.list_run_configs().items():
            for kind, result in self.config_target_outcomes(config).items():
                record["runs"].get(self.result_record_keys(run)[kind], {}).update(target_outcome_record(result))
        if self.config.uses_only_file_precisions and "config" in record["runs"]:
            record["runs"]["config"]["as_in_file"] = True
        if self.execution_mode is not None:
            record["simulation"] = {"level": self.execution_mode.name, "reason": self.execution_mode.reason}
        if guard_warnings := self.guard_warnings:
            record["guards"] = [warning_record(alarm) for alarm in guard_warnings]
        for run, config in self.list_run_configs().items():
            preview = self.results.get_results_or_empty(config).preview
            if run in record["runs"] and preview is not None and preview.refusal is None:
                record["runs"][run]["preview"] = preview_record(opened.outline, config, preview)
        if rows := self.list_stage_accuracies():
            record["stages"] = [stage_record(stage, accuracy) | target_outcome_record(self.target_outcome(accuracy))
                                for stage, accuracy in rows]
            record["stages_say"] = self.stage_summary_lines()
        for run in self.list_run_configs():
            if (divergence := self.find_engine_divergence(run)) is not None and (engine :=
                                                                                 record["runs"].get(f"{run}-engine")):
                engine["layers_read"]["parts_at"] = {
                    "group": divergence.group_name, "engine": error_metrics_record(divergence.engine_errors),
                    "simulated": error_metrics_record(divergence.simulated_errors)
                }
        for run, lines in self.list_engine_checks().items():
            record["runs"].get(f"{run}-engine", {})["to_check"] = lines
        return record

    def result_record_keys(self, run: str) -> dict[RunKind, str]:
        """The names of a run's results in the record, by the keys of `config_target_outcomes`."""
        first = next(
            (run_name for run_name in RUN_NAMES if self.get_run_results(run_name).exported_accuracy is not None), run)
        return {RunKind.SIMULATED_CONFIG: run, RunKind.EXPORTED_FILE: executed_run_key(run),
                RunKind.BUILT_ENGINE: f"{run}-engine",
                RunKind.TYPED_NETWORK: EXPORTED if run == first else f"{run}-{EXPORTED}"}

    def unmeasured_precision_json_text(self, config: PrecisionConfig, sha256: str) -> str:
        """The text of precision.json for a network that is open and of which nothing was measured.

        Args:
            sha256: Of the network and its external data.
        """
        outline = self.preliminary_outline
        if outline is None:
            raise InputError("nothing is open yet", "", "Wait for the network.")
        return config_file.config_text(outline, config, self.calibration or self.config_calibration,
                                       made_with=self.list_component_versions(), sha256=sha256)

    def precision_json_text(self) -> str:
        """The text of precision.json: the config with ranges, tolerance and evidence."""
        evidence = self._evidence_record()
        tolerance = self.targets_text
        search_status = self.search_status
        if (search_status is not None and search_status.end_event is not None
                and search_status.best_config == self.config):
            evidence["search"] = search_status.make_search_record(self.opened_network.outline)
            tolerance = TOLERANCE_SEPARATOR.join(search_status.request.tolerances)
        return config_file.config_text(self.opened_network.outline, self.config, self.calibration, evidence=evidence,
                                       tolerance=tolerance, made_with=self.list_component_versions(),
                                       sha256=self.network_sha256, weights_of=self._weights_source_name())

    def _weights_source_name(self) -> str:
        """Returns the name of the FP32 network that brings the weights of a quantized one; "" without one."""
        reference = self.options.reference or ""
        return Path(reference).name if is_network_file(reference) and has_file_precision(
            self.opened_network.outline) else ""

    def _evidence_record(self) -> dict[str, Any]:
        """Judged outputs of the simulation and of the engine, kept apart."""
        results = self.results.get_results_or_empty(self.config)
        evidence = {}
        if results.accuracy is not None:
            evidence["simulated"] = accuracy_record(results.accuracy)
        if results.engine_result is not None:
            evidence["engine"] = engine_result_record(results.engine_result)
        if results.exported_run is not None:
            evidence["exported_network"] = exported_run_record(results.exported_run)
        return evidence

    def list_component_versions(self) -> Mapping[str, str]:
        """The versions of what measured, by name."""
        versions = {"trt_tui": __version__}
        if self.backend_summary is not None:
            versions["onnxruntime"] = self.backend_summary.version
        if self.builder is not None:
            versions[self.builder.name] = self.builder.version
            if self.builder.device:
                versions["gpu"] = self.builder.device
        return versions

    def unbuilt_engine_lines(self) -> list[str]:
        """Returns a sentence for each engine of a comparison that was not built, and each export not executed."""
        run_results = {run: self.get_run_results(run) for run in RUN_NAMES}
        engines = {
            "fp32": self.results.fp32_engine, **{run: result.engine_result
                                                 for run, result in run_results.items()}
        }
        return [
            *(f"Engine of {run} not built: {result.failure_reason}" for run, result in engines.items()
              if result and result.failure_reason),
            *(f"{EXPORTED_NETWORK.capitalize()} of {run} not executed: {result.exported_run.missing_reason}"
              for run, result in run_results.items()
              if result.exported_run and result.exported_run.missing_reason)
        ]

    def find_engine_divergence(self, run: str) -> EngineDivergence | None:
        """Where the engine of a run first does something that is not simulated."""
        results = self.get_run_results(run)
        if (results.engine_result is None or not results.engine_result.is_built_as_requested
                or not results.has_all_group_errors):
            return None
        return find_engine_divergence(self.opened_network.outline, results.group_errors,
                                      results.engine_result.engine_errors)

    def list_engine_checks(self) -> dict[str, list[str]]:
        """What to look at, by run, if an engine is worse than simulated."""
        checks = {}
        for run, config in self.list_run_configs().items():
            results = self.results.get_results_or_empty(config)
            if results.engine_result is not None:
                checks[run] = suggest_engine_checks(self.opened_network.outline, config, results.accuracy,
                                                    results.engine_result, self.results.fp32_engine,
                                                    self.find_engine_divergence(run))
        return {run: lines for run, lines in checks.items() if lines}

    def list_stage_accuracies(self) -> list[tuple[StageResult, Accuracy | None]]:
        """The stages that were measured, in their order, each with its verdict against the reference."""
        return [(stage, self.results.stage_accuracy(stage)) for stage in self.results.stages.values()]

    def stage_missed_target_reasons(self) -> dict[str, str]:
        """Why stages from files miss a target that somebody has stated, by name; those of configs are rows of runs."""
        miss_reasons = {}
        for stage, accuracy in self.list_stage_accuracies() if self.has_explicit_target else ():
            result = self.target_outcome(accuracy)
            if stage.run.config is None and result is not None and not result.passes and accuracy is not None:
                miss_reasons[stage.run.name] = self.missed_target_text(result, accuracy)
        return miss_reasons

    def stage_summary_lines(self) -> list[str]:
        """Where the stages first go wrong, and whether production is what was tested, a line each."""
        rows = self.list_stage_accuracies()
        lines = [first_divergence_text([row for row in rows if row[0].run.name != PRODUCTION_STAGE], self.targets,
                                       self.pending_requests.has_request(rq.MeasureStages))]
        return [*filter(None, lines), *(self.production_agreement[1:] if self.production_agreement is not None else ())]

    @property
    def production_agreement(self) -> tuple[bool, str] | None:
        """Whether production is what was tested, with a sentence; None where that is not known."""
        rows = self.list_stage_accuracies()
        for stage, accuracy in rows:
            if stage.run.name == PRODUCTION_STAGE and stage.other_accuracies:
                compared_name = stage.other_accuracies[-1][0]
                tested_against = next(
                    (tested_accuracy for other_stage, tested_accuracy in rows if other_stage.run.name == compared_name),
                    None)
                if tested_against is None:
                    results = self.results.get_results_or_empty(self.config)
                    tested_against = results.accuracy if len(
                        stage.other_accuracies
                    ) == 1 or results.engine_result is None else results.engine_result.accuracy
                return compare_production_with_tested_run(stage, accuracy, tested_against, compared_name)
        return None
