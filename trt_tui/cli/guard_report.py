"""The results of guards as text, Markdown and JSON."""

from typing import Any

from trt_tui.core.guards.guards import run_guards, warning_lines, warning_record
from trt_tui.core.report.document import Section, Table
from trt_tui.formatting import NOT_MEASURED
from trt_tui.session.session import Session


def preflight_sections(session: Session) -> list[Section]:
    """Returns a table with the state of each guard, followed by the reason and the next step of each warning."""
    rows, warnings = [["guard", "says", "looks at"]], list[list[str]]()
    for check in run_guards(session.collect_guard_facts()):
        state = "warns" if check.alarms else NOT_MEASURED if check.missing_facts_reason else "ok"
        rows.append([check.guard.name, state, check.missing_facts_reason or check.guard.description])
        warnings += map(warning_lines, check.alarms)
    return [Section("Guards", [Table(rows, 3)]), Section("Warnings", warnings)]


def preflight_record(session: Session) -> dict[str, Any]:
    """Builds the JSON record of the guard results."""
    outline = session.opened_network.outline
    return {
        "format": "trt-tui/preflight", "version": 1,
        "model": {"name": outline.name, "structure_sha256": outline.structure_sha256,
                  "sha256": session.network_sha256}, "guards": {
                      check.guard.name: {
                          "looks_at": check.guard.description,
                          **({"not_checked": check.missing_facts_reason} if check.missing_facts_reason else {}),
                          "warnings": [warning_record(alarm)
                                       for alarm in check.alarms]
                      }
                      for check in run_guards(session.collect_guard_facts())
                  }
    }
