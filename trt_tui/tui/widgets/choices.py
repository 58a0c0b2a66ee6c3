"""Lists to choose from."""

from __future__ import annotations

from collections.abc import Mapping

from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line
from trt_tui.tui.state.configs import config_table
from trt_tui.tui.widgets.lines import Lines
from trt_tui.words import visible


class Choices(OptionList):
    """A list that j and k move in, too."""

    BINDINGS = [Binding("j", "cursor_down", show=False), Binding("k", "cursor_up", show=False),
                Binding("space", "select", show=False)]


class ConfigList(Choices):
    """The configs of a session, the newest first; enter switches to one."""

    class Taken(Message):
        """A config was chosen."""

        def __init__(self, config: PrecisionConfig) -> None:
            super().__init__()
            self.config = config

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self.configs: list[PrecisionConfig] = []
        self._shown: list[Line] = []

    def show(self, session: Session, marks: Mapping[str, PrecisionConfig], header: Lines) -> None:
        """Refills the list and its header where they changed; the cursor stays on its config."""
        titles, lines = config_table(session, marks, header.size.width - 1 or 60)
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
        """The config under the cursor."""
        if self.highlighted is None or self.highlighted >= len(self.configs):
            return None
        return self.configs[self.highlighted]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter was pressed."""
        event.stop()
        self.post_message(self.Taken(self.configs[event.option_index]))


def _content(line: Line) -> Content:
    return Content.assemble(*((visible(text), _CONTENT.get(style, "")) for text, style in line))


_CONTENT = {"dim": "$text-muted", "strong": "bold", "key": "bold $accent", "bad": "bold $error", "good": "$success"}
