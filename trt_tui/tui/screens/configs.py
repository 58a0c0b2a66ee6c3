"""The page of configs with their results, on which configs are named."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.errors import InputError
from trt_tui.session.history import MAX_NAME_LENGTH
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import Dialog, KeyHints, Prompt
from trt_tui.tui.widgets.inputs import ConfigList, bind_keys
from trt_tui.tui.widgets.lines import Lines


class ConfigsPage(Dialog):
    """The page of all configs with their results. Its result is the config that the user chooses."""

    BINDINGS = bind_keys(quit="close", configs="close", name="name")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Configs", classes="heading")
            yield Lines(id="config-header")
            yield ConfigList()
        yield KeyHints("{open} selects it  {name} name  {close} close")

    def on_mount(self) -> None:
        self.call_after_refresh(self.update_config_list)
        self.query_one(ConfigList).focus()

    def update_config_list(self) -> None:
        self.query_one(ConfigList).show_configs(self.session, self.query_one("#config-header", Lines))

    def on_config_list_taken(self, event: ConfigList.Taken) -> None:
        self.dismiss(event.config)

    def action_name(self) -> None:
        """Asks for a name of the selected config."""
        config, names = self.query_one(ConfigList).selected_value, self.session.config_names
        if config is None:
            return

        def save_name(name: str | None) -> None:
            if name is not None:
                self.session.rename_config(config, name.strip())
                self.update_config_list()

        def find_name_error(name: str) -> str:
            try:
                names.copy().rename_config(config, name.strip())
            except InputError as error:
                return f"{error.title}: {error.cause}"
            return ""

        self.app.push_screen(Prompt("Name", names[config], f"at most {MAX_NAME_LENGTH} characters", find_name_error),
                             save_name)
