"""Finding an action by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.tui.actions import ACTIONS, Action, key_text
from trt_tui.tui.screens.dialogs import CLOSE, Choices, Dialog

if TYPE_CHECKING:
    from trt_tui.tui.screens.main import MainScreen

_KEYS_ONLY = {"palette", "close", "up", "down", "left", "right", "page_up", "page_down", "first", "last", "open"}
"""Actions that make no sense but by their keys."""


class Palette(Dialog):
    """The actions whose words match what is typed, the best first; dismisses with the id of the one taken."""

    BINDINGS = [CLOSE, Binding("down", "go(1)", show=False), Binding("up", "go(-1)", show=False)]

    def __init__(self, main: MainScreen) -> None:
        super().__init__()
        self.main = main
        self.found: list[Action] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Actions", classes="heading")
            yield Input(placeholder="words of an action", compact=True)
            yield Choices(compact=True)
            yield Static("↑↓ go  enter does it  esc close", classes="hint")

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, words: str) -> None:
        self.found = [action for action in ACTIONS if action.id not in _KEYS_ONLY]
        if words.strip():
            match = Matcher(words.strip()).match
            scored = [(match(f"{action.label} {action.help}"), action) for action in self.found]
            self.found = [action for score, action in sorted(scored, key=lambda one: -one[0]) if score]
        choices = self.query_one(Choices)
        choices.set_options([Option(self._line(action)) for action in self.found])
        choices.highlighted = 0 if self.found else None

    def _line(self, action: Action) -> Content:
        reason = action.enabled(self.main)
        line = f"{' '.join(map(key_text, action.keys)):<6} {action.help}"
        return Content(f"{line} (not now: {reason})").stylize("$text-muted") if reason else Content(line)

    def action_go(self, by: int) -> None:
        choices = self.query_one(Choices)
        (choices.action_cursor_down if by > 0 else choices.action_cursor_up)()

    def on_input_submitted(self) -> None:
        index = self.query_one(Choices).highlighted
        if index is not None and index < len(self.found):
            self.dismiss(self.found[index].id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.found[event.option_index].id)
