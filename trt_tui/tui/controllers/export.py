"""Writing files for production and for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.dialogs import Question
from trt_tui.tui.screens.export import ExportDialog


class Exports(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Says what was written."""
        return {ev.Exported: self._exported}

    def _exported(self, event: ev.Exported) -> None:
        self.desk.say(self.session.notice, "")

    @action("e", label="export", help="Write precision.json, a typed ONNX, files for other tools, or a report",
            group="Files", disabled=Controller.not_open, footer=58)
    def export(self) -> None:
        """Asks for a format and a path."""
        def chosen(answer: tuple[str, Path] | None) -> None:
            if answer is not None:
                self._ask_to_overwrite(*answer)

        self.desk.app.push_screen(ExportDialog(self.session), chosen)

    def _ask_to_overwrite(self, kind: str, path: Path) -> None:
        if path.is_dir():
            self.desk.show_failure(f"{path} is a folder", "", "Name a file in it.")
        elif path.exists():
            def answered(yes: bool | None) -> None:
                if yes:
                    self._write(kind, path, True)

            self.desk.app.push_screen(Question(f"{path} exists. Overwrite it?", "overwrite", "keep it"), answered)
        else:
            self._write(kind, path, False)

    def _write(self, kind: str, path: Path, overwrite: bool) -> None:
        try:
            self.session.export(kind, path, overwrite)
        except TrtTuiError as error:
            self.desk.show_error(error)
