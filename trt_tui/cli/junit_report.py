"""A comparison for a server that runs tests: fails where the command does."""

from collections.abc import Mapping
from typing import Any

from trt_tui.cli.stage_report import stage_lines
from trt_tui.core.exporters.junit import Case, cases_of, junit_xml
from trt_tui.session.session import Session


def junit_text(session: Session, record: Mapping[str, Any], judged: str) -> str:
    """The comparison as JUnit's XML: where the target is missed for the exit code, a case fails.

    Args:
        record: See `Session.record`.
        judged: The run that must meet the target.
    """
    configs = session.run_configs()
    missed = session.missed_by(configs[judged])
    failures = {name: f"target not met: {missed[kind]}" for run, config in configs.items() if config == configs[judged]
                for kind, name in session.record_names(run).items() if kind in missed}
    cases = cases_of(record, failures)
    misses = session.stage_misses()
    cases += [Case(f"stage {stage.name}", f"target not met: {misses[stage.name]}" if stage.name in misses else "",
                   stage.failed) for stage, _ in session.stage_rows()]
    if session.production is not None:
        is_tested, said = session.production
        cases.append(Case("production", "" if is_tested else said, text=said))
    alarms = [f"{alarm.what}: {alarm.why}" for alarm in session.alarms]
    return junit_xml(session.opened.outline.name, cases, [*alarms, *session.warnings, *stage_lines(session)])
