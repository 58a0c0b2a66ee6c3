"""Choosing a format and a path to export to."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.errors import TrtTuiError
from trt_tui.session.session import Session
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, Dialog
from trt_tui.tui.widgets.choices import Choices
from trt_tui.tui.widgets.field import Field
from trt_tui.words import is_hidden, visible

FORMATS: dict[str, tuple[str, str, str]] = {
    "precision.json": ("precision.json", "the config, with ranges and evidence", ".precision.json"),
    "onnx": ("typed ONNX", "what a strongly typed TensorRT builds", ".typed.onnx"),
    "engine": ("engine", "built for this GPU and this TensorRT", ".engine"),
    "trtexec": ("trtexec", "commands that build it with TensorRT 10 and 11", ".trtexec.sh"),
    "polygraphy": ("Polygraphy", "a network postprocess script, for TensorRT up to 10", ".polygraphy.py"),
    "modelopt": ("ModelOpt", "its lists of nodes, the ranges as a cache", ".modelopt.json"),
    "calibration-cache": ("calibration", "a cache of the ranges, for TensorRT up to 10", ".cache"),
    "markdown": ("Markdown", "a report to read", ".report.md"),
    "bundle": ("bundle", "all for one release, and what checks its engine", ".bundle"),
    "subgraph": ("subgraph", "the row alone, with what goes into it: for a bug report", ".piece"),
}
"""By kind: name, what it is, and how the file's name ends."""

def offered(session: Session) -> list[str]:
    """The kinds that a session can write, in the order of `FORMATS`."""
    return [kind for kind in FORMATS if kind in session.EXPORTS]


class ExportDialog(Dialog):
    """Asks for a kind and a path, and stands until the user closes it: what was written or fails is told in it.

    Args:
        write: Has a kind written to a path, and gives `wait_for` the job once there is one.

    Attributes:
        job: The job that writes, None while none does.
        finished: It was written, and the next enter closes the dialog.
    """

    BINDINGS = [CLOSE, Binding("up", "formats", id="up")]

    def __init__(self, session: Session, write: Callable[[str, Path], None]) -> None:
        super().__init__()
        self.write = write
        self.job: int | None = None
        self.finished = False
        self.model_path = Path(session.options.model)
        self.kinds = offered(session)
        self.kind = self.kinds[0]

    def default_path(self, kind: str) -> str:
        """Where a kind is written unless another path is typed."""
        stem = "".join("_" if is_hidden(one) else one for one in self.model_path.stem)
        return str(Path.cwd() / f"{stem}{FORMATS[kind][2]}")

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box wide"):
            yield Static("Export", classes="heading")
            yield Choices(*(Option(Content(f"{FORMATS[kind][0]:<16} {FORMATS[kind][1]}")) for kind in self.kinds),
                          compact=True)
            yield Static("to", classes="dim")
            yield Field(self.default_path(self.kind), compact=True, select_on_focus=False)
            yield Static("", id="note", markup=False)
            yield Static(worded("{open} chooses the format, then writes  {up} back to the formats  {close} close"),
                         classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        self.query_one(Choices).highlighted = 0
        self.query_one(Choices).focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The cursor is on another entry."""
        self.finished = False
        path = self.query_one(Input)
        untouched = path.value == self.default_path(self.kind)
        self.kind = self.kinds[event.option_index]
        if untouched:
            path.value = self.default_path(self.kind)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """An entry was taken."""
        path = self.query_one(Input)
        path.focus()
        path.cursor_position = len(path.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed behind the path."""
        if self.finished:
            self.dismiss(None)
        if self.finished or not event.value.strip() or self.job is not None:
            return
        self._note("")
        try:
            self.write(self.kind, Path(event.value.strip()).expanduser())
        except TrtTuiError as error:
            self.tell(error.title, error.cause, error.next_step)

    def wait_for(self, job: int) -> None:
        """A job writes; the dialog stands until it has ended."""
        self.job = job
        self._note(worded("writing …  {close} closes this, and it is written all the same"))

    def finish(self, notice: str) -> None:
        """Says what was written; the dialog stands until a key closes it, so that no key goes elsewhere."""
        self.job, self.finished = None, True
        self._note(worded(f"{visible(notice).replace('{', '{{').replace('}', '}}')}. {{open}} closes this."))

    def tell(self, title: str, cause: str, next_step: str) -> None:
        """Says why nothing was written; another path or format can be tried."""
        self.job = None
        self._note(". ".join(part.rstrip(".") for part in (title, cause, next_step) if part) + ".", True)

    def _note(self, text: str, bad: bool = False) -> None:
        note = self.query_one("#note", Static)
        note.update(Content(visible(text)))
        note.set_class(bad, "bad")

    def action_formats(self) -> None:
        """Back to the formats."""
        self.query_one(Choices).focus()


def waiting_for(screens: Iterable[Screen[Any]], job: int) -> ExportDialog | None:
    """The dialog that waits for a job."""
    return next((one for one in screens if isinstance(one, ExportDialog) and one.job == job), None)
