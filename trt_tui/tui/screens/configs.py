"""The page of configs with their results, on which configs are marked, named, pinned and compared."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.session.history import MAX_NAME_LENGTH, ConfigNote
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import CLOSE_BINDING, QUIT_BINDING, Dialog, KeyHints, Prompt
from trt_tui.tui.state.config_list import ConfigMarks
from trt_tui.tui.widgets.inputs import ConfigList
from trt_tui.tui.widgets.lines import Lines


class ConfigsPage(Dialog):
    """The page of all configs with their results. Its result is the config that the user chooses.

    Args:
        show_diff: Shows the difference between the marked configs.
    """

    BINDINGS = [CLOSE_BINDING, QUIT_BINDING, Binding("c", "close", id="configs"), Binding("m", "mark", id="mark"),
                Binding("d", "diff", id="diff"), Binding("n", "name", id="name"), Binding("p", "pin", id="pin")]

    def __init__(self, session: Session, config_marks: ConfigMarks, show_diff: Callable[[], None]) -> None:
        super().__init__()
        self.session, self.config_marks, self.show_diff = session, config_marks, show_diff

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Configs", classes="heading")
            yield Lines(id="config-header")
            yield ConfigList()
        yield KeyHints("{open} selects it  {name} name  {pin} pin  {mark} marks A, then B  {diff} diff  "
                       "{close} close")

    def on_mount(self) -> None:
        self.call_after_refresh(self.update_config_list)
        self.query_one(ConfigList).focus()

    def update_config_list(self) -> None:
        self.query_one(ConfigList).show_configs(self.session, self.config_marks.configs_by_letter,
                                                self.query_one("#config-header", Lines))

    def on_config_list_taken(self, event: ConfigList.Taken) -> None:
        self.dismiss(event.config)

    def action_mark(self) -> None:
        """Marks the selected config as A or B, or removes its mark."""
        if (config := self.query_one(ConfigList).selected_value) is not None:
            self.config_marks.toggle_mark(config)
            self.update_config_list()

    def action_pin(self) -> None:
        """Pins the selected config to the top of the list, or unpins it."""
        if (config := self.query_one(ConfigList).selected_value) is not None:
            self.session.toggle_config_pin(config)
            self.update_config_list()

    def action_name(self) -> None:
        """Asks for a name and a comment for the selected config."""
        config, names = self.query_one(ConfigList).selected_value, self.session.config_names
        if config is None:
            return
        comment = names.notes.get(config, ConfigNote()).comment

        def save_name(text: str | None) -> None:
            if text is not None:
                self.session.label_config(config, self._read_name(config, text), text.partition(":")[2].strip())
                self.update_config_list()

        self.app.push_screen(
            Prompt("Name: comment", f"{names[config]}{': ' if comment else ''}{comment}",
                   f"a name of at most {MAX_NAME_LENGTH} characters; text after a colon is a comment",
                   lambda text: self._name_error_text(config, text)), save_name)

    def _read_name(self, config: PrecisionConfig, text: str) -> str:
        """Returns the name in a typed text; the present name if only a comment was typed, as in ": with FP16 norms"."""
        name, colon, _ = text.partition(":")
        return name.strip() or (self.session.config_names[config] if colon else "")

    def _name_error_text(self, config: PrecisionConfig, text: str) -> str:
        try:
            self.session.config_names.copy().rename_config(config, self._read_name(config, text))
        except InputError as error:
            return f"{error.title}: {error.cause}"
        return ""

    def action_diff(self) -> None:
        self.show_diff()
