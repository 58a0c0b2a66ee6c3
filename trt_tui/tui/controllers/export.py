"""Writing files for production and for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.exporters.bundle import RELEASES
from trt_tui.errors import TrtTuiError
from trt_tui.files.folders import refuse_folder
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.dialogs import Item, Picker, Question
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
            if answer is not None and answer[0] == "bundle":
                self._ask_for_release(answer[1])
            elif answer is not None and answer[0] == "subgraph":
                self._write_group(answer[1])
            elif answer is not None:
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

    def _ask_for_release(self, path: Path) -> None:
        """Asks what a bundle is for, and whether samples may go in."""
        def chosen(release: str | None) -> None:
            if release is not None:
                data = self.session.opened.data
                question = f"Put a few samples of {data.source} and their outputs into {path.name}?"
                self.desk.app.push_screen(Question(question, "put them in, for verify.sh", "leave them out"),
                                          lambda yes: self._write_bundle(path, release, yes is True))

        items = [Item(key, words, release) for key, (release, words) in zip("8016", RELEASES.items(), strict=True)]
        self.desk.app.push_screen(Picker("A bundle for", items), chosen)

    def _write_bundle(self, path: Path, release: str, samples: bool) -> None:
        try:
            refuse_folder(path)
            self.session.export_bundle(path, release, samples)
        except TrtTuiError as error:
            self.desk.show_error(error)

    def _write_group(self, path: Path) -> None:
        group = self.desk.current_group
        if group is None:
            self.desk.show_failure("a subgraph is of one row", "the cursor is on none, or on several",
                                   "Move it to a layer. Any part: trt-tui export --format subgraph --from T --to T.")
            return
        try:
            refuse_folder(path)
            self.session.export_group(path, group)
        except TrtTuiError as error:
            self.desk.show_error(error)

    def _write(self, kind: str, path: Path, overwrite: bool) -> None:
        try:
            self.session.export(kind, path, overwrite)
        except TrtTuiError as error:
            self.desk.show_error(error)
