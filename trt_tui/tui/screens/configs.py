"""The list of configs, as a pane of the main screen and as a page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.tui.screens.dialogs import CLOSE, Choices, Dialog
from trt_tui.tui.spans import Line
from trt_tui.tui.state.configs import config_table
from trt_tui.tui.widgets.lines import Lines
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.tui.screens.main import MainScreen


class ConfigList(Choices):
    """The configs of a session, the newest first; enter takes one up."""

    class Taken(Message):
        """A config was chosen."""

        def __init__(self, config: PrecisionConfig) -> None:
            super().__init__()
            self.config = config

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self.configs: list[PrecisionConfig] = []
        self._shown: list = []

    def show(self, main: MainScreen, header: Lines) -> None:
        """Fills the list and its header anew where they changed; the cursor stays on its config."""
        titles, lines = config_table(main.session, main.marks, header.size.width - 1 or 60)
        header.lines = [[(" ", ""), *titles]]  # an option stands one cell in
        shown = [one.line for one in lines]
        if shown == self._shown:
            return
        current = self.chosen
        self._shown, self.configs = shown, [one.config for one in lines]
        self.clear_options()
        self.add_options([Option(_content(line)) for line in shown])
        if self.configs:
            self.highlighted = self.configs.index(current) if current in self.configs else 0

    @property
    def chosen(self) -> PrecisionConfig | None:
        if self.highlighted is None or self.highlighted >= len(self.configs):
            return None
        return self.configs[self.highlighted]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Taken(self.configs[event.option_index]))


def _content(line: Line) -> Content:
    return Content.assemble(*((visible(text), _CONTENT.get(style, "")) for text, style in line))


_CONTENT = {"dim": "$text-muted", "strong": "bold", "key": "bold $accent", "bad": "bold $error", "good": "$success"}


class ConfigsPage(Dialog):
    """All configs with their results; dismisses with the one taken up."""

    BINDINGS = [CLOSE, Binding("q,c", "close", show=False), Binding("m", "mark", show=False),
                Binding("d", "diff", show=False)]

    def __init__(self, main: MainScreen) -> None:
        super().__init__()
        self.main = main

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Configs", classes="heading")
            yield Lines(id="config-header")
            yield ConfigList()
            yield Static("enter takes it up  m marks A, then B  d diff  esc close", classes="hint")

    def on_mount(self) -> None:
        self.call_after_refresh(self.show)
        self.query_one(ConfigList).focus()

    def show(self) -> None:
        self.query_one(ConfigList).show(self.main, self.query_one("#config-header", Lines))

    def on_config_list_taken(self, event: ConfigList.Taken) -> None:
        self.dismiss(event.config)

    def action_mark(self) -> None:
        if (config := self.query_one(ConfigList).chosen) is not None:
            self.main.mark_config(config)
            self.show()

    def action_diff(self) -> None:
        self.main.perform("diff")
