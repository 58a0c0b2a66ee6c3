"""The dialog in which the user chooses a format and a path for an export."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import is_hidden_character
from trt_tui.session.session import Session
from trt_tui.tui.keys import fill_in_keys
from trt_tui.tui.screens.dialogs import Dialog, KeyHints
from trt_tui.tui.widgets.inputs import KeyedOptionList, TextField, bind_keys

_LINES_BESIDE_FORMATS = 11
"""The lines of the dialog besides the list: border, heading, path, a note of three lines, and keys."""


class ExportDialog(Dialog):
    """A dialog that asks for an export format and a path, and then shows the result or the error of the export.

    The dialog stays open until the user closes it.

    Attributes:
        job: The number of the job; None if none runs.
        is_finished: True after the file was written. No field has the focus then, so that a letter meant for the main
            screen changes no path, and enter closes the dialog.

    Args:
        write_export: Requests the export of a format to a path. The function calls `wait_for_job` after it sent a
            request.
    """

    BINDINGS = bind_keys(open="open", up="formats")

    def __init__(self, session: Session, write_export: Callable[[str, Path], None]) -> None:
        super().__init__()
        self.write_export = write_export
        self.model_path = Path(session.options.model)
        self.export_formats = list(EXPORT_FORMATS)
        self.export_format = self.export_formats[0]
        self.job: int | None = None
        self.is_finished = False

    def default_export_path(self, export_format: str) -> str:
        """Returns the proposed path for an export format, in the current folder."""
        stem = "".join("_" if is_hidden_character(character) else character for character in self.model_path.stem)
        return str(Path.cwd() / f"{stem}{EXPORT_FORMATS[export_format].suffix}")

    def compose(self) -> ComposeResult:
        with Vertical(classes="box wide"):
            yield Static("Export", classes="heading")
            yield KeyedOptionList(
                *(Option(Content(f"{export_format.title:<16} {export_format.description}"))
                  for export_format in EXPORT_FORMATS.values()), compact=True)
            yield Static("to", classes="dim")
            yield TextField(self.default_export_path(self.export_format), compact=True)
            yield Static("", id="note", markup=False)
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one(KeyedOptionList).highlighted = 0
        self.query_one(KeyedOptionList).focus()

    def update_lines(self) -> None:
        """Limits the height of the list, so that path and result stay visible on a low screen."""
        self.query_one(KeyedOptionList).styles.max_height = max(2, self.size.height * 9 // 10 - _LINES_BESIDE_FORMATS)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Selects a format. A proposed path that the user did not change is replaced by the path for the new format."""
        path = self.query_one(Input)
        untouched = path.value == self.default_export_path(self.export_format)
        self.export_format = self.export_formats[event.option_index]
        if untouched:
            path.value = self.default_export_path(self.export_format)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.query_one(Input).focus()

    def action_formats(self) -> None:
        self.query_one(KeyedOptionList).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Requests the file, unless it is being written."""
        if not event.value.strip() or self.job is not None:
            return
        self.show_note("", False)
        try:
            self.write_export(self.export_format, Path(event.value.strip()).expanduser())
        except TrtTuiError as error:
            self.show_failure(error.title, error.cause, error.next_step)

    def wait_for_job(self, job_number: int) -> None:
        """Shows that the job runs, and keeps the dialog open until it ends."""
        self.job = job_number
        self.show_note(fill_in_keys("writing …  {close} closes this dialog; the export goes on"), False)
        self._show_current_keys()

    def show_finished_export(self, notice: str) -> None:
        """Shows the written files. The dialog stays open until a key closes it, so that a key press does not reach
        another widget."""
        self.job, self.is_finished = None, True
        self.set_focus(None)
        self.show_note(f"{notice}.", False)
        self._show_current_keys()

    def show_failure(self, title: str, cause: str, next_step: str) -> None:
        """Shows why the file was not written; the user can then try another path or format."""
        self.job = None
        self.show_note(". ".join(part.rstrip(".") for part in (title, cause, next_step) if part) + ".")
        self._show_current_keys()

    def on_descendant_focus(self) -> None:
        """Shows the keys of the field with the focus. After a file was written, the field is there for another one."""
        if self.focused is not None:
            self.is_finished = False
            self._show_current_keys()

    def _show_current_keys(self) -> None:
        keys = "{open} writes it  {up} formats" if self.job is None else "{up} formats"
        if self.is_finished:
            keys = "{open} closes this  {up} formats"
        elif not isinstance(self.focused, Input):
            keys = "{open} chooses the format  {up}{down} go"
        self.query_one(KeyHints).show_keys(f"{keys}  {{close}} close")

    def action_open(self) -> None:
        """Closes the dialog after the file was written."""
        if self.is_finished:
            self.dismiss(None)


def find_export_dialog_of_job(screens: Iterable[Screen[Any]], job_number: int) -> ExportDialog | None:
    return next((screen for screen in screens if isinstance(screen, ExportDialog) and screen.job == job_number), None)
