"""The help page: every action with its keys, from the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_tui.tui.actions import ACTIONS, key_text
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.state import Line

if TYPE_CHECKING:
    from trt_tui.tui.screens.main import MainScreen


def help_lines(main: MainScreen) -> list[Line]:
    """One line for each action, under its group's heading; what cannot be done now is dimmed and says why."""
    lines: list[Line] = []
    group = ""
    for action in ACTIONS:
        if action.group != group:
            group = action.group
            lines += [[], [(group, "strong")]] if lines else [[(group, "strong")]]
        keys = " ".join(key_text(key) for key in action.keys)
        reason = action.enabled(main)
        lines.append([(f"  {keys:<10}", "dim" if reason else "key"), (action.help, "dim" if reason else "")])
        if reason:
            lines.append([(f"  {'':<10}now: {reason}", "dim")])
    return lines


class HelpPage(Page):
    def __init__(self, main: MainScreen) -> None:
        super().__init__("Keys", help_lines(main), "↑↓ scroll  esc close")
