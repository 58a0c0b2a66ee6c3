"""The results of guards as text for a terminal or a file."""

from typing import Any

from trt_tui import formatting
from trt_tui.core.exporters.markdown import guard_warnings_markdown, markdown_table, setup_text, text_cell
from trt_tui.core.guards.guard import warning_record
from trt_tui.core.guards.registry import run_guards
from trt_tui.formatting import NOT_MEASURED, table_lines
from trt_tui.session.session import Session


def preflight_table(session: Session) -> str:
    """Returns a table with the state of each guard, followed by the reason and the next step of each warning."""
    rows, lines = [["guard", "", "looks at"]], []
    for check in run_guards(session.collect_guard_facts()):
        state = "warns" if check.alarms else NOT_MEASURED if check.missing_facts_reason else "ok"
        rows.append([
            check.guard.name, state,
            check.missing_facts_reason if check.missing_facts_reason else check.guard.description
        ])
        for alarm in check.alarms:
            lines += [
                "", f"{alarm.guard_name}: {alarm.summary}", f"  Why: {alarm.reason}", f"  Next: {alarm.next_step}"
            ]
    return "\n".join(map(formatting.escape_hidden_characters, [*table_lines(rows, left_aligned_columns=3), *lines]))


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


def preflight_markdown(session: Session) -> str:
    """Returns the guard results in Markdown."""
    rows = [(text_cell(check.guard.name), "warns" if check.alarms else
             text_cell(f"not checked: {check.missing_facts_reason}") if check.missing_facts_reason else "ok",
             text_cell(check.guard.description)) for check in run_guards(session.collect_guard_facts())]
    lines = [f"# Before precision of {text_cell(session.opened_network.outline.name)}", "",
             f"{text_cell(setup_text(session.setup_record))}.", "",
             *markdown_table(("guard", "says", "looks at"), rows), "",
             *guard_warnings_markdown([warning_record(alarm) for alarm in session.guard_warnings])]
    return "\n".join(lines).rstrip() + "\n"
