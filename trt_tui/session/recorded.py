"""What a session hands out: the comparison as a record, the text of precision.json, what to look at in engines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui import __version__
from trt_tui.core.guards.guard import alarm_record
from trt_tui.core.measure.agreement import Parting, parting, what_to_check
from trt_tui.core.measure.comparison import Measured, Verdict
from trt_tui.core.measure.record import (
    comparison_record,
    engine_record,
    errors_record,
    executed_record,
    preview_record,
    result_record,
    stage_record,
    verdict_record,
)
from trt_tui.core.measure.reference import is_network
from trt_tui.core.measure.stages import PRODUCTION, Stage, diverges, is_tested
from trt_tui.core.moves import file as config_file
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.twins import has_own_precisions
from trt_tui.errors import InputError
from trt_tui.jobs import requests as rq
from trt_tui.session.config_results import ENGINE_RUN, EXECUTED_RUN, SIMULATED_RUN
from trt_tui.session.state import RUNS, TOLERANCES, State
from trt_tui.words import EXPORTED, EXPORTED_NETWORK, executed_key


class Recorded(State):
    """See the module's docstring."""

    def record(self) -> dict[str, Any]:
        """What was measured, as `compare --json` writes it."""
        opened = self.opened
        runs = {run: self.measured(run) for run in RUNS}
        if self.fp32 is not None:
            runs = {"fp32": Measured(self.fp32), **runs}
        record = comparison_record(opened.outline, self.sha256, opened.data, opened.backend, runs,
                                   self.results.reference, self.results.fp32_engine,
                                   opened.reference)
        if self.targets:
            record["target"] = self.targets_text
        for run, config in self.run_configs().items():
            for kind, result in self.config_results(config).items():
                record["runs"].get(self.record_names(run)[kind], {}).update(result_record(result))
        if self.config.as_in_file and "config" in record["runs"]:
            record["runs"]["config"]["as_in_file"] = True
        if self.level is not None:
            record["simulation"] = {"level": self.level.name, "reason": self.level.reason}
        if found := self.alarms:
            record["guards"] = [alarm_record(alarm) for alarm in found]
        for run, config in self.run_configs().items():
            preview = self.results.of(config).preview
            if run in record["runs"] and preview is not None and preview.refused is None:
                record["runs"][run]["preview"] = preview_record(opened.outline, config, preview)
        if rows := self.stage_rows():
            record["stages"] = [stage_record(stage, verdict) | result_record(self.target_result(verdict))
                                for stage, verdict in rows]
            record["stages_say"] = self.stage_summary()
        for run in self.run_configs():
            if (parts := self.parting(run)) is not None and (engine := record["runs"].get(f"{run}-engine")):
                engine["layers_read"]["parts_at"] = {"group": parts.group, "engine": errors_record(parts.built),
                                                     "simulated": errors_record(parts.simulated)}
        for run, lines in self.to_check().items():
            record["runs"].get(f"{run}-engine", {})["to_check"] = lines
        return record

    def record_names(self, run: str) -> dict[str, str]:
        """The names of a run's results in the record, by the keys of `config_results`."""
        first = next((one for one in RUNS if self.measured(one).exported is not None), run)
        return {SIMULATED_RUN: run, EXECUTED_RUN: executed_key(run), ENGINE_RUN: f"{run}-engine",
                EXPORTED: EXPORTED if run == first else f"{run}-{EXPORTED}"}

    def precision_text(self, config: PrecisionConfig, sha256: str) -> str:
        """The text of precision.json for a network that is open and of which nothing was measured.

        Args:
            sha256: Of the network and its external data.
        """
        outline = self.preview
        if outline is None:
            raise InputError("nothing is open yet", "", "Wait for the network.")
        return config_file.config_text(outline, config, self.calibration or self.given, made_with=self.made_with(),
                                       sha256=sha256)

    def precision_json(self) -> str:
        """The text of precision.json: the config with ranges, tolerance and evidence."""
        evidence = self._evidence()
        tolerance = self.targets_text
        finding = self.finding
        if finding is not None and finding.ended is not None and finding.config == self.config:
            evidence["search"] = finding.record(self.opened.outline)
            tolerance = TOLERANCES.join(finding.request.tolerances)
        return config_file.config_text(self.opened.outline, self.config, self.calibration, evidence=evidence,
                                       tolerance=tolerance, made_with=self.made_with(), sha256=self.sha256,
                                       weights_of=self._weights_of())

    def _weights_of(self) -> str:
        """Returns the name of the FP32 network that brings the weights of a quantized one; "" without one."""
        reference = self.options.reference or ""
        return Path(reference).name if is_network(reference) and has_own_precisions(self.opened.outline) else ""

    def _evidence(self) -> dict[str, Any]:
        """Judged outputs of the simulation and of the engine, kept apart."""
        known = self.results.of(self.config)
        evidence = {}
        if known.verdict is not None:
            evidence["simulated"] = verdict_record(known.verdict)
        if known.engine is not None:
            evidence["engine"] = engine_record(known.engine)
        if known.executed is not None:
            evidence["exported_network"] = executed_record(known.executed)
        return evidence

    def made_with(self) -> Mapping[str, str]:
        """The versions of what measured, by name."""
        made = {"trt_tui": __version__}
        if self.backend is not None:
            made["onnxruntime"] = self.backend.version
        if self.builder is not None:
            made[self.builder.name] = self.builder.version
            if self.builder.device:
                made["gpu"] = self.builder.device
        return made

    def unbuilt(self) -> list[str]:
        """Returns a sentence for each engine of a comparison that was not built, and each export not executed."""
        known = {run: self.measured(run) for run in RUNS}
        engines = {"fp32": self.results.fp32_engine, **{run: one.engine for run, one in known.items()}}
        return [*(f"Engine of {run} not built: {one.failed}" for run, one in engines.items() if one and one.failed),
                *(f"{EXPORTED_NETWORK.capitalize()} of {run} not executed: {one.executed.missing}"
                  for run, one in known.items() if one.executed and one.executed.missing)]

    def parting(self, run: str) -> Parting | None:
        """Where the engine of a run first does something that is not simulated; see `agreement.parting`."""
        known = self.measured(run)
        if known.engine is None or not known.engine.as_asked or not known.complete:
            return None
        return parting(self.opened.outline, known.groups, known.engine.inside)

    def to_check(self) -> dict[str, list[str]]:
        """What to look at, by run, if an engine is worse than simulated."""
        found = {}
        for run, config in self.run_configs().items():
            known = self.results.of(config)
            if known.engine is not None:
                found[run] = what_to_check(self.opened.outline, config, known.verdict, known.engine,
                                           self.results.fp32_engine, self.parting(run))
        return {run: lines for run, lines in found.items() if lines}

    def stage_rows(self) -> list[tuple[Stage, Verdict | None]]:
        """The stages that were measured, in their order, each with its verdict against the reference."""
        return [(stage, self.results.stage_verdict(stage)) for stage in self.results.stages.values()]

    def stage_misses(self) -> dict[str, str]:
        """Why stages from files miss a target that somebody has stated, by name; those of configs are rows of runs."""
        missed = {}
        for stage, verdict in self.stage_rows() if self.states_target else ():
            result = self.target_result(verdict)
            if stage.config is None and result is not None and not result.passes and verdict is not None:
                missed[stage.name] = self.miss_text(result, verdict)
        return missed

    def stage_summary(self) -> list[str]:
        """Where the stages first go wrong, and whether production is what was tested, a line each."""
        rows = self.stage_rows()
        lines = [diverges([one for one in rows if one[0].name != PRODUCTION], self.targets,
                          self.asked.any(rq.MeasureStages))]
        return [*filter(None, lines), *(self.production[1:] if self.production is not None else ())]

    @property
    def production(self) -> tuple[bool, str] | None:
        """Whether production is what was tested, with a sentence; None where that is not known."""
        rows = self.stage_rows()
        for stage, verdict in rows:
            if stage.name == PRODUCTION and stage.beside:
                what = stage.beside[-1][0]
                tested = next((other for one, other in rows if one.name == what), None)
                if tested is None:
                    known = self.results.of(self.config)
                    tested = known.verdict if len(stage.beside) == 1 or known.engine is None else known.engine.verdict
                return is_tested(stage, verdict, tested, what)
        return None
