"""The part of a session that reports results: the JSON record, the text of precision.json, and the checks of
engines."""

from collections.abc import Mapping
from typing import Any

from trt_tui import __version__
from trt_tui.core.guards.guards import warning_record
from trt_tui.core.measure.engine_agreement import EngineDivergence, find_engine_divergence, suggest_engine_checks
from trt_tui.core.measure.results import Accuracy, ConfigResults, RunKind, on_common_samples
from trt_tui.core.measure.stages import (
    PRODUCTION_STAGE,
    STABILITY,
    STAGES,
    StageResult,
    compare_production_with_tested_run,
    first_divergence_text,
)
from trt_tui.core.moves import config_file as config_file
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.report.json_record import (
    accuracy_record,
    cause_record,
    comparison_record,
    error_metrics_record,
    list_run_record_keys,
    preview_record,
    run_result_record,
    stage_record,
    target_outcome_record,
)
from trt_tui.errors import InputError
from trt_tui.formatting import EXPORTED_NETWORK
from trt_tui.jobs import requests as rq
from trt_tui.session.loss_causes import find_raise_causes, find_worst_group_causes
from trt_tui.session.state import TOLERANCE_SEPARATOR, SessionState


class ReportingSession(SessionState):
    """A session that reports its results as JSON records and texts."""

    def comparison_record(self) -> dict[str, Any]:
        """Builds the record of all measured results that `compare --json` writes."""
        opened = self.opened_network
        runs = self._collect_results_by_run_name()
        backend = {"backend": opened.backend.name, "version": opened.backend.version,
                   "provider": opened.backend.device.lower()}
        record = comparison_record(opened.outline, self.network_sha256, opened.data.source, opened.data.what_if_count,
                                   backend, runs, self.results.reference_metric, self.results.reference_sample_count,
                                   opened.reference)
        record["setup"] = self.setup_record
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
        if (stability := self.results.find(STABILITY, None)) is not None:
            record["stability"] = stability.to_record()
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
        for run, config in self.list_run_configs().items():
            if run in record["runs"] and (causes_by_group := find_worst_group_causes(self, config)):
                record["runs"][run]["causes"] = {name: [cause_record(cause) for cause in causes]
                                                 for name, causes in causes_by_group.items()}
        return record

    def _collect_results_by_run_name(self) -> dict[str, ConfigResults]:
        """Returns the results of FP32 and of each run."""
        fp32_results = ConfigResults()
        fp32_results.store_accuracy(self.fp32_accuracy)
        if self.results.fp32_engine is not None:
            fp32_results.runs[RunKind.BUILT_ENGINE] = self.results.fp32_engine
        return {"fp32": fp32_results, **{run: self.get_run_results(run) for run in self.list_run_configs()}}

    def result_record_keys(self, run: str) -> dict[RunKind, str]:
        """Returns the keys of a run's results in the JSON record, by the kinds of run in `config_target_outcomes`."""
        keys = list_run_record_keys(self._collect_results_by_run_name())
        return {kind: key for (name, kind), key in keys.items() if name == run}

    def unmeasured_precision_json_text(self, config: PrecisionConfig, sha256: str) -> str:
        """Returns the text of precision.json for an open network without measured results.

        Args:
            sha256: The hash of the network and its external data.
        """
        outline = self.unmeasured_outline
        if outline is None:
            raise InputError("nothing is open yet", "", "Wait for the network.")
        return config_file.config_text(outline, config, self.calibration or self.config_calibration,
                                       made_with=self.list_component_versions(), sha256=sha256,
                                       weights_of=outline.weights_source_name)

    def precision_json_text(self) -> str:
        """Returns the text of precision.json: the config with ranges, tolerance and evidence."""
        evidence = self._evidence_record()
        tolerance = self.targets_text
        search_status = self.search_status
        if (search_status is not None and search_status.end_event is not None
                and search_status.best_config == self.config):
            evidence["search"] = search_status.make_search_record(self.opened_network.outline)
            if causes_by_group := find_raise_causes(self, self.config):
                evidence["search"]["causes"] = {name: [cause_record(cause) for cause in causes]
                                                for name, causes in causes_by_group.items()}
            tolerance = TOLERANCE_SEPARATOR.join(search_status.request.tolerances)
        return config_file.config_text(self.opened_network.outline, self.config, self.calibration, evidence=evidence,
                                       tolerance=tolerance, made_with=self.list_component_versions(),
                                       sha256=self.network_sha256,
                                       weights_of=self.opened_network.outline.weights_source_name)

    def _evidence_record(self) -> dict[str, Any]:
        """Builds the record of the measured accuracies of the config, separately for simulation, engine and exported
        network."""
        results = self.results.get_results_or_empty(self.config)
        evidence = {"simulated": accuracy_record(results.accuracy)} if results.accuracy is not None else {}
        keys = {RunKind.BUILT_ENGINE: "engine", RunKind.EXPORTED_FILE: "exported_network"}
        return evidence | {key: run_result_record(results.runs[kind]) for kind, key in keys.items()
                           if kind in results.runs}

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

    def unbuilt_engine_lines(self) -> list[str]:
        """Returns a sentence for each engine of a comparison that was not built, and for each exported network not
        executed."""
        run_results = self._collect_results_by_run_name()
        return [
            *(f"Engine of {run} not built: {results.engine_result.failure_reason}"
              for run, results in run_results.items()
              if results.engine_result and results.engine_result.failure_reason),
            *(f"{EXPORTED_NETWORK.capitalize()} of {run} not executed: {results.exported_run.missing_reason}"
              for run, results in run_results.items()
              if results.exported_run and results.exported_run.missing_reason)
        ]

    def find_engine_divergence(self, run: str) -> EngineDivergence | None:
        """Returns the first point at which the engine of a run differs from the simulation; None if there is none or it
        is unknown."""
        results = self.get_run_results(run)
        if (results.engine_result is None or not results.engine_result.is_built_as_requested
                or not results.has_all_group_errors):
            return None
        return find_engine_divergence(self.opened_network.outline, results.group_errors,
                                      results.engine_result.engine_errors)

    def list_engine_checks(self) -> dict[str, list[str]]:
        """Returns the suggested checks, by run, if an engine is less accurate than the simulation."""
        checks = {}
        for run, config in self.list_run_configs().items():
            results = self.results.get_results_or_empty(config)
            if results.engine_result is not None:
                checks[run] = suggest_engine_checks(self.opened_network.outline, config, results.accuracy,
                                                    results.engine_result, self.results.fp32_engine,
                                                    self.find_engine_divergence(run))
        return {run: lines for run, lines in checks.items() if lines}

    def list_stage_accuracies(self) -> list[tuple[StageResult, Accuracy | None]]:
        """The stages that were measured, in their order, each with its accuracy against the reference."""
        return [(stage, result.accuracy if (result := self.results.find_stage_result(stage)) is not None else None)
                for stage in self.results.values_of(STAGES).values()]

    def stage_missed_target_reasons(self) -> dict[str, str]:
        """Returns the reasons why stages from files miss an explicit target, by stage name.

        Stages of configs are not included, because they are reported as runs.
        """
        miss_reasons = {}
        for stage, accuracy in self.list_stage_accuracies() if self.has_explicit_target else ():
            result = self.target_outcome(accuracy)
            if stage.run.config is None and result is not None and not result.passes and accuracy is not None:
                miss_reasons[stage.run.name] = self.missed_target_text(result, accuracy)
        return miss_reasons

    def stability_lines(self) -> list[str]:
        """Returns the spread between several engines as lines, and whether it crosses the target."""
        report = self.results.find(STABILITY, None)
        if report is None:
            return []
        outcomes = {stage.run.name: outcome.passes for stage, accuracy in self.list_stage_accuracies()
                    if stage.run.name in report.runs and (outcome := self.target_outcome(accuracy)) is not None}
        failing = [name for name, passes in outcomes.items() if not passes]
        crossing = [f"  the spread crosses the target: {', '.join(failing)} of {len(outcomes)} engines miss it"
                    ] if 0 < len(failing) < len(outcomes) else []
        return [*report.lines, *crossing]

    def stage_summary_lines(self) -> list[str]:
        """Returns a line about the first stage that diverges, and lines about the agreement of production with the
        tested run."""
        rows = self.list_stage_accuracies()
        lines = [first_divergence_text([row for row in rows if row[0].run.name != PRODUCTION_STAGE], self.targets,
                                       self.pending_requests.has_request(rq.MeasureStages))]
        return [*filter(None, lines), *(self.production_agreement[1:] if self.production_agreement is not None else ())]

    @property
    def production_agreement(self) -> tuple[bool, str] | None:
        """The agreement of production with the tested run as a bool and a sentence; None if it is unknown."""
        rows = self.list_stage_accuracies()
        for stage, accuracy in rows:
            if stage.run.name == PRODUCTION_STAGE and stage.other_accuracies:
                compared_name = stage.other_accuracies[-1][0]
                tested_against = next(
                    (tested_accuracy for other_stage, tested_accuracy in rows if other_stage.run.name == compared_name),
                    None)
                if tested_against is None:
                    results = self.get_run_results(self.judged_run)
                    tested_against = results.accuracy if len(
                        stage.other_accuracies
                    ) == 1 or results.engine_result is None else results.engine_result.accuracy
                if accuracy is not None and tested_against is not None:
                    accuracy, tested_against = on_common_samples([accuracy, tested_against])
                return compare_production_with_tested_run(stage, accuracy, tested_against, compared_name)
        return None
