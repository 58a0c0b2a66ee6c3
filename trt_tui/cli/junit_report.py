"""A comparison for a server that runs tests: fails where the command does."""

from collections.abc import Mapping
from typing import Any

from trt_tui.cli.stage_report import stage_lines
from trt_tui.core.exporters.junit import Case, cases_of, junit_xml
from trt_tui.session.session import Session


def junit_text(session: Session, record: Mapping[str, Any], judged: str | None) -> str:
    """The comparison as JUnit's XML.

    Args:
        record: See `Session.record`.
        judged: The run that must meet the target; None where none was given.
    """
    failures = {}
    asked = session.target
    verdict = session.measured(judged).verdict if judged is not None else None
    if judged is not None and asked is not None and verdict is not None and not asked.reached(verdict):
        why, configs = f"target not met: {asked.shown}, and it has {asked.measured(verdict)}", session.run_configs()
        failures = {run: why for run, config in configs.items() if config == configs[judged]}
    cases = cases_of(record, failures)
    cases += [Case(f"stage {stage.name}", error=stage.failed) for stage, _ in session.stage_rows()]
    if session.production is not None:
        is_tested, said = session.production
        cases.append(Case("production", "" if is_tested else said, text=said))
    alarms = [f"{alarm.what}: {alarm.why}" for alarm in session.alarms]
    return junit_xml(session.opened.outline.name, cases, [*alarms, *session.warnings, *stage_lines(session)])
