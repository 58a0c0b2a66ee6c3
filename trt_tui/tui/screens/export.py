"""Choosing a format and a path to export to."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.tui.screens.dialogs import Choices, Dialog

FORMATS: tuple[tuple[str, str, str], ...] = (
    ("precision.json", "precision.json   the config, with ranges and evidence", ".precision.json"),
    ("onnx", "typed ONNX       what a strongly typed TensorRT builds", ".typed.onnx"),
    ("markdown", "Markdown         a report to read", ".report.md"),
)


class ExportDialog(Dialog):
    """Dismisses with (kind, path). The file is written by whoever asked."""

    def __init__(self, model_path: str) -> None:
        super().__init__()
        self.model_path = Path(model_path)
        self.kind = FORMATS[0][0]
        self._typed = False

    def default_path(self, kind: str) -> str:
        suffix = next(suffix for name, _, suffix in FORMATS if name == kind)
        return str(Path.cwd() / f"{self.model_path.stem}{suffix}")

    def compose(self) -> ComposeResult:
        with Vertical(classes="box wide"):
            yield Static("Export", classes="heading")
            yield Choices(*(Option(Content(text)) for _, text, _ in FORMATS), compact=True)
            yield Static("to", classes="dim")
            yield Input(self.default_path(self.kind), compact=True, select_on_focus=False)
            yield Static("enter chooses the format, then writes  esc close", classes="hint")

    def on_mount(self) -> None:
        self.query_one(Choices).highlighted = 0
        self.query_one(Choices).focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        path = self.query_one(Input)
        untouched = path.value == self.default_path(self.kind)
        self.kind = FORMATS[event.option_index][0]
        if untouched:
            path.value = self.default_path(self.kind)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        path = self.query_one(Input)
        path.focus()
        path.cursor_position = len(path.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss((self.kind, Path(event.value.strip()).expanduser()))
