"""The list of configs as a page of its own."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import CLOSE, Dialog
from trt_tui.tui.state.configs import Marks
from trt_tui.tui.widgets.choices import ConfigList
from trt_tui.tui.widgets.lines import Lines


class ConfigsPage(Dialog):
    """All configs with their results; dismisses with the one taken up.

    Args:
        diff: Shows what differs between the marked ones.
    """

    BINDINGS = [CLOSE, Binding("q,c", "close", show=False), Binding("m", "mark", show=False),
                Binding("d", "diff", show=False)]

    def __init__(self, session: Session, marks: Marks, diff: Callable[[], None]) -> None:
        super().__init__()
        self.session, self.marks, self.diff = session, marks, diff

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static("Configs", classes="heading")
            yield Lines(id="config-header")
            yield ConfigList()
            yield Static("enter takes it up  m marks A, then B  d diff  esc close", classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        self.call_after_refresh(self.show)
        self.query_one(ConfigList).focus()

    def show(self) -> None:
        """Draws the list."""
        self.query_one(ConfigList).show(self.session, self.marks.configs, self.query_one("#config-header", Lines))

    def on_config_list_taken(self, event: ConfigList.Taken) -> None:
        """A config was chosen."""
        self.dismiss(event.config)

    def action_mark(self) -> None:
        """Marks the config under the cursor."""
        if (config := self.query_one(ConfigList).chosen) is not None:
            self.marks.mark(config)
            self.show()

    def action_diff(self) -> None:
        """Shows what differs."""
        self.diff()
