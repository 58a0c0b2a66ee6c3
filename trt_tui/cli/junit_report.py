"""The comparison as JUnit XML for a CI server: a test case fails if its result makes the command fail."""

from collections.abc import Mapping
from typing import Any

from trt_tui.cli.stage_report import stage_table_lines
from trt_tui.core.exporters.junit import JUnitCase, build_junit_cases, junit_xml_text
from trt_tui.session.session import Session


def junit_text(session: Session, record: Mapping[str, Any], run_name: str) -> str:
    """Returns a comparison as JUnit XML. A test case fails if a missed target sets the exit code.

    Args:
        record: The record of `Session.comparison_record`.
        run_name: The run that must meet the target.
    """
    configs = session.list_run_configs()
    target_misses = session.missed_target_reasons(configs[run_name])
    failures = {
        name: f"target not met: {target_misses[kind]}"
        for run, config in configs.items() if config == configs[run_name]
        for kind, name in session.result_record_keys(run).items() if kind in target_misses
    }
    cases = build_junit_cases(record, failures)
    misses = session.stage_missed_target_reasons()
    cases += [JUnitCase(f"stage {run.name}", f"target not met: {misses[run.name]}" if run.name in misses else "",
                        run.unavailable_reason) for run in (stage.run for stage, _ in session.list_stage_accuracies())]
    if session.production_agreement is not None:
        is_tested, description = session.production_agreement
        cases.append(JUnitCase("production", "" if is_tested else description, text=description))
    alarms = [f"{alarm.summary}: {alarm.reason}" for alarm in session.guard_warnings]
    return junit_xml_text(session.opened_network.outline.name, cases,
                          [*alarms, *session.warnings, *stage_table_lines(session)])
