"""What guards say, as text for a terminal or a file."""

from typing import Any

from trt_tui import words
from trt_tui.core.exporters.markdown import guards_markdown, markdown_table, text_cell
from trt_tui.core.guards.guard import alarm_record
from trt_tui.core.guards.table import checked
from trt_tui.session.session import Session
from trt_tui.words import NOTHING, table


def preflight_table(session: Session) -> str:
    """What each guard makes of the facts, a line each, and below it why and what to do."""
    rows, lines = [["guard", "", "looks at"]], []
    for one in checked(session.guarded()):
        said = "warns" if one.alarms else NOTHING if one.lacks else "ok"
        rows.append([one.guard.name, said, one.lacks if one.lacks else one.guard.about])
        for alarm in one.alarms:
            lines += ["", f"{alarm.guard}: {alarm.what}", f"  Why: {alarm.why}", f"  Next: {alarm.next_step}"]
    return "\n".join(map(words.visible, [*table(rows, flush_left=3), *lines]))


def preflight_record(session: Session) -> dict[str, Any]:
    """What the guards say, as JSON holds it."""
    outline = session.opened.outline
    return {"format": "trt-tui/preflight", "version": 1,
            "model": {"name": outline.name, "structure_sha256": outline.structure_sha256, "sha256": session.sha256},
            "guards": {one.guard.name: {"looks_at": one.guard.about,
                                        **({"not_checked": one.lacks} if one.lacks else {}),
                                        "warnings": [alarm_record(alarm) for alarm in one.alarms]}
                       for one in checked(session.guarded())}}


def preflight_markdown(session: Session) -> str:
    """The same in Markdown."""
    rows = [(text_cell(one.guard.name), "warns" if one.alarms else text_cell(f"not checked: {one.lacks}")
             if one.lacks else "ok", text_cell(one.guard.about)) for one in checked(session.guarded())]
    lines = [f"# Before precision of {text_cell(session.opened.outline.name)}", "",
             *markdown_table(("guard", "says", "looks at"), rows), "",
             *guards_markdown([alarm_record(alarm) for alarm in session.alarms])]
    return "\n".join(lines).rstrip() + "\n"
