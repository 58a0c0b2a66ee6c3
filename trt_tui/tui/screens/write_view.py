"""The dialog that writes a table or a chart of the screen to a file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from trt_tui.formatting import is_hidden_character
from trt_tui.tui.screens.dialogs import ChoiceField, KeyHints
from trt_tui.tui.screens.export import FileDialog
from trt_tui.tui.state.view_files import VIEW_FORMATS, ViewContent
from trt_tui.tui.widgets.inputs import TextField


class WriteViewDialog(FileDialog):
    """A dialog that asks what to write, in which format and where. The suffix of the path decides the format.

    Args:
        contents: The tables and charts to choose from, the proposed one first.
        model_path: The path of the network, whose name begins the proposed file name.
        suffix: The suffix of the proposed format.
        write_view: Requests a file with one of the contents. It calls `wait_for_job` after it sent a request.
    """

    AUTO_FOCUS = "#path"

    BINDINGS = [Binding("down", "app.focus_next", id="down"), Binding("up", "app.focus_previous", id="up")]

    CHOICE_KEYS, OTHER_FIELD_KEYS = "{left}{right} change  {open} goes to the path  {up}{down} go", "{up}{down} go"

    def __init__(self, contents: Sequence[ViewContent], model_path: Path, suffix: str,
                 write_view: Callable[[ViewContent, Path], None]) -> None:
        super().__init__()
        self.write_view = write_view
        stem = model_path.stem
        self._stem = "".join("_" if is_hidden_character(character) else character for character in stem)
        self.content_field = ChoiceField("what", [(content, content.label) for content in contents], "what")
        self.format_field = ChoiceField("format", [(name, f"{title} ({name})")
                                                   for name, (title, _) in VIEW_FORMATS.items()], "format")
        self.format_field.select_value(suffix)
        self._proposed_path = self._propose_path()

    def _propose_path(self) -> str:
        label = self.content_field.value.label.replace(" ", "-")
        return str(Path.cwd() / f"{self._stem}-{label}{self.format_field.value}")

    def compose(self) -> ComposeResult:
        with Vertical(classes="box wide"):
            yield Static("Write to a file", classes="heading")
            yield self.content_field
            yield self.format_field
            with Vertical(classes="field"):
                yield Static("to ")
                yield TextField(self._proposed_path, compact=True, id="path")
            yield Static("", id="note", markup=False)
        yield KeyHints()

    def on_choice_field_changed(self) -> None:
        """Adapts the path: a proposed path is replaced, and in a path of the user only the suffix of a format."""
        path, proposed_path = self.query_one(Input), self._propose_path()
        typed_path = Path(path.value.strip())
        if path.value == self._proposed_path:
            path.value = proposed_path
        elif typed_path.suffix.lower() in VIEW_FORMATS:
            path.value = str(typed_path.with_suffix(self.format_field.value))
        self._proposed_path = proposed_path

    def action_open(self) -> None:
        """Moves the focus from a choice to the path, or closes the dialog after the file was written."""
        if not self.is_finished:
            self.query_one(Input).focus()
        super().action_open()

    def request_file(self, path: Path) -> None:
        self.write_view(self.content_field.value, path)
