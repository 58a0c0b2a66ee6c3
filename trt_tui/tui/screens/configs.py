"""The list of configs as a page of its own."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.session.history import LONGEST_NAME, Note
from trt_tui.session.session import Session
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, QUIT, Dialog, Prompt
from trt_tui.tui.state.configs import Marks
from trt_tui.tui.widgets.choices import ConfigList
from trt_tui.tui.widgets.lines import Lines


class ConfigsPage(Dialog):
    """All configs with their results; dismisses with the one taken up.

    Args:
        diff: Shows what differs between the marked ones.
    """

    BINDINGS = [CLOSE, QUIT, Binding("c", "close", id="configs"), Binding("m", "mark", id="mark"),
                Binding("d", "diff", id="diff"), Binding("n", "name", id="name"), Binding("p", "pin", id="pin")]

    def __init__(self, session: Session, marks: Marks, diff: Callable[[], None]) -> None:
        super().__init__()
        self.session, self.marks, self.diff = session, marks, diff

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static("Configs", classes="heading")
            yield Lines(id="config-header")
            yield ConfigList()
            yield Static(worded("{open} takes it up  {name} name  {pin} pin  {mark} marks A, then B  {diff} diff  "
                                "{close} close"), classes="hint")

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

    def action_pin(self) -> None:
        """Pins the config under the cursor to the top, or no longer."""
        if (config := self.query_one(ConfigList).chosen) is not None:
            self.session.names.pin(config)
            self.session.save()
            self.show()

    def action_name(self) -> None:
        """Asks for a name and a comment for the config under the cursor."""
        config, names = self.query_one(ConfigList).chosen, self.session.names
        if config is None:
            return
        comment = names.notes.get(config, Note()).comment

        def typed(text: str | None) -> None:
            if text is not None:
                name, _, said = text.partition(":")
                names.rename(config, name.strip())
                names.say(config, said.strip())
                self.session.save()
                self.show()

        self.app.push_screen(Prompt("Name: comment", f"{names[config]}{': ' if comment else ''}{comment}",
                                    f"a name of at most {LONGEST_NAME} characters; what follows a colon is a comment",
                                    lambda text: self._wrong_with(config, text)), typed)

    def _wrong_with(self, config: PrecisionConfig, text: str) -> str:
        try:
            self.session.names.copy().rename(config, text.partition(":")[0].strip())
        except InputError as error:
            return f"{error.title}: {error.cause}"
        return ""

    def action_diff(self) -> None:
        """Shows what differs."""
        self.diff()
