"""Finding an action by its name."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.tui.actions import BoundAction, key_text
from trt_tui.tui.screens.dialogs import CLOSE, Dialog
from trt_tui.tui.widgets.choices import Choices

_KEYS_ONLY = {"palette", "close", "up", "down", "left", "right", "page_up", "page_down", "first", "last", "open"}
"""Actions that make no sense but by their keys."""


class Palette(Dialog):
    """The actions whose words match what is typed, the best first; dismisses with the id of the one taken."""

    BINDINGS = [CLOSE, Binding("down", "go(1)", show=False), Binding("up", "go(-1)", show=False)]

    def __init__(self, offers: Iterable[BoundAction]) -> None:
        super().__init__()
        self.offers = [offer for offer in offers if offer.action.id not in _KEYS_ONLY]
        self.found: list[BoundAction] = []

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static("Actions", classes="heading")
            yield Input(placeholder="words of an action", compact=True)
            yield Choices(compact=True)
            yield Static("↑↓ go  enter does it  esc close", classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        self.query_one(Input).focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Other words were typed."""
        self._show(event.value)

    def _show(self, words: str) -> None:
        self.found = self.offers
        if words.strip():
            match = Matcher(words.strip()).match
            scored = [(match(f"{offer.action.label} {offer.action.help}"), offer) for offer in self.offers]
            self.found = [offer for score, offer in sorted(scored, key=lambda one: -one[0]) if score]
        choices = self.query_one(Choices)
        choices.set_options([Option(_line(offer)) for offer in self.found])
        choices.highlighted = 0 if self.found else None

    def action_go(self, by: int) -> None:
        """Moves the cursor of the list while words are typed."""
        choices = self.query_one(Choices)
        (choices.action_cursor_down if by > 0 else choices.action_cursor_up)()

    def on_input_submitted(self) -> None:
        """Enter was pressed in a line."""
        index = self.query_one(Choices).highlighted
        if index is not None and index < len(self.found):
            self.dismiss(self.found[index].action.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """An entry was taken."""
        self.dismiss(self.found[event.option_index].action.id)


def _line(offer: BoundAction) -> Content:
    reason = offer.reason()
    line = f"{' '.join(map(key_text, offer.action.keys)):<6} {offer.action.help}"
    return Content(f"{line} (not now: {reason})").stylize("$text-muted") if reason else Content(line)
