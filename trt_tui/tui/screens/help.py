"""The help page: every action with its keys, from the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_tui.tui.actions import ACTIONS, key_text
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.spans import Line, wrap

if TYPE_CHECKING:
    from trt_tui.tui.screens.main import MainScreen


def help_lines(main: MainScreen) -> list[Line]:
    """One line for each action, under its group's heading; what cannot be done now is dimmed and says why."""
    width = max(20, min(96, main.size.width * 96 // 100) - 18)
    lines: list[Line] = []
    group = ""
    for action in ACTIONS:
        if action.group != group:
            group = action.group
            lines += [[], [(group, "strong")]] if lines else [[(group, "strong")]]
        keys = " ".join(key_text(key) for key in action.keys)
        reason = action.enabled(main)
        for index, text in enumerate(wrap(action.help, width)):
            lines.append([(f"  {'' if index else keys:<11}", "dim" if reason else "key"),
                          (text, "dim" if reason else "")])
        lines += [[(f"  {'':<11}{text}", "dim")] for text in (wrap(f"not now: {reason}", width) if reason else ())]
    return lines


class HelpPage(Page):
    def __init__(self, main: MainScreen) -> None:
        super().__init__("Keys", help_lines(main), "↑↓ scroll  esc close")
