"""Writing files for production and for people."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.exporters.bundle import RELEASES
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.folders import refuse_folder
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Item, Picker, Question
from trt_tui.tui.screens.export import ExportDialog, waiting_for


class Exports(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers that say what was written."""
        return {ev.Exported: self._exported, ev.Cancelled: self._stopped}

    def _exported(self, event: ev.Exported) -> None:
        if (dialog := waiting_for(self.desk.app.screen_stack, event.job)) is not None:
            dialog.finish(self.session.notice)
        walk = self.desk.walk
        over = f"that is the whole loop, {key('help')} has all keys. " if (
            walk is not None and walk.exported(self.session)) else ""
        self.desk.say(over + self.session.notice, "")

    def _stopped(self, event: ev.Cancelled) -> None:
        if (dialog := waiting_for(self.desk.app.screen_stack, event.job)) is not None:
            dialog.tell("it was stopped", "", "")

    @action(label="export", help="Write precision.json, a typed ONNX, files for other tools, or a report",
            group="Files", disabled=Controller.not_open, footer=58)
    def export(self) -> None:
        """Asks for a format and a path."""
        self.desk.app.push_screen(ExportDialog(self.session, self._write))

    def _write(self, kind: str, path: Path) -> None:
        """Has it written, after questions where there are any; raises what is wrong with the path."""
        session, group = self.session, self.desk.current_group
        if kind == "bundle":
            refuse_folder(path)
            self._ask_for_release(path)
        elif kind == "subgraph":
            if group is None:
                raise InputError("a subgraph is of one row", "the cursor is on none, or on several", "Move it to a "
                                 "layer. Any part: trt-tui export --format subgraph --from T --to T.")
            refuse_folder(path)
            self._ask(lambda: session.export_group(path, group))
        elif os.path.isdir(path):
            raise InputError(f"{path} is a folder", "", "Name a file in it.")
        elif os.path.exists(path):
            self._question(Question(f"{path} exists. Overwrite it?", "overwrite", "keep it"),
                           lambda yes: session.export(kind, path, True) if yes else None)
        else:
            self._ask(lambda: session.export(kind, path))

    def _ask_for_release(self, path: Path) -> None:
        """Asks what a bundle is for, and whether samples may go in."""
        session = self.session

        def chosen(release: str | None) -> None:
            if release is not None:
                question = f"Put a few samples of {session.opened.data.source} and their outputs into {path.name}?"
                self._question(Question(question, "put them in, for verify.sh", "leave them out"),
                               lambda yes: session.export_bundle(path, release, yes))

        items = [Item(key, words, release) for key, (release, words) in zip("8016", RELEASES.items(), strict=True)]
        self.desk.app.push_screen(Picker("A bundle for", items), chosen)

    def _question(self, question: Question, answered: Callable[[bool], None]) -> None:
        self.desk.app.push_screen(question, lambda yes: self._ask(lambda: answered(yes is True)))

    def _ask(self, ask: Callable[[], None]) -> None:
        """Asks for what is to be written; the dialog that is open waits for the job, or says why there is none."""
        dialog = next(one for one in self.desk.app.screen_stack if isinstance(one, ExportDialog))
        before = set(self.session.asked)
        try:
            ask()
        except TrtTuiError as error:
            dialog.tell(error.title, error.cause, error.next_step)
        for job in set(self.session.asked) - before:
            dialog.wait_for(job)
