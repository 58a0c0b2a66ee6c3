"""The actions on configs, their history and the target: switch, undo and redo, saved sessions, and exports."""

import os
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path

from textual import on
from textual.widgets import OptionList

from trt_tui.core.exporters.bundle import RELEASE_TITLES
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.writing import require_empty_folder
from trt_tui.jobs import events as ev
from trt_tui.session.session import Session
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import ConfirmDialog, Picker, PickerItem, Prompt, input_error_text
from trt_tui.tui.screens.forms import ExportDialog, find_export_dialog_of_job
from trt_tui.tui.screens.pages import ConfigsPage, SessionsPage
from trt_tui.tui.state.config_list import change_text


class ConfigController(Presenter):
    """The part of the main screen for the config list, undo, redo, saved sessions and the target."""

    def do_configs(self) -> None:
        """Focuses the config list. If the list has the focus already or has no room, opens the page of all configs."""
        if self.has_class("-wide", "-tall", "-configs") and not self.config_list.has_focus:
            self.zoom_pane("")
            self.config_list.focus()
        else:
            self.open_dialog(ConfigsPage(self.session), self._select_config)

    @on(OptionList.OptionSelected, "#configs")
    def _select_listed_config(self, event: OptionList.OptionSelected) -> None:
        self._select_config(self.config_list.values[event.option_index])

    def _select_config(self, config: PrecisionConfig) -> None:
        if config != self.session.config:
            self.session.set_config(config)
            self.handle_config_change()

    def refuse_undo(self) -> str:
        """Returns the reason why undo is impossible; "" if it is possible."""
        return "" if self.session.history.can_undo else "nothing to undo"

    def refuse_redo(self) -> str:
        """Returns the reason why redo is impossible; "" if it is possible."""
        return "" if self.session.history.can_redo else "nothing to redo"

    def _restore_state(self, restore: Callable[[Session], None], verb: str, change_template: str) -> None:
        """Undoes or repeats a change, and shows it in the form of a template of `change_text`."""
        before, titles = self.session.history.state, self.layer_list.tree_model.titles
        restore(self.session)
        change = change_text(self.session, before, self.session.history.state, titles, change_template)
        self._show_restored_state(f"{verb}: {change}")

    do_undo = partialmethod(_restore_state, Session.undo, "undid", "{0}: {2} again")
    do_redo = partialmethod(_restore_state, Session.redo, "redone", "{0}: {1} → {2}")

    def do_sessions(self) -> None:
        """Shows the page of saved sessions, and resumes the session that the user chooses."""

        def resume_session(name: str) -> None:
            self.session.resume_session(name)
            self._show_restored_state(f"{self.session.notice} {shown_key('sessions')} leads back")

        self.open_dialog(SessionsPage(self.session, self.show_error), resume_session)

    def _show_restored_state(self, message: str) -> None:
        self.handle_config_change()
        self.show_message(message, "")

    def do_target(self) -> None:
        session = self.session

        def set_typed_target(text: str) -> None:
            session.set_target(text)
            self.draw_all()

        examples = ["sqnr>=20 (dB, worst output)", "cosine>=0.999", "mismatch<=0.01", "agreement>=0.99"]
        examples += ["metric>=base-0.01", "metric>=base-1%"]
        if len(session.results.reference_metric) > 1:
            part = list(session.results.reference_metric)[1]
            examples += [f"metric[{part}]>=base-1%", "metric[*]>=base-2%"]
        examples = [text for text in examples if not input_error_text(session.read_target, text.partition(" (dB")[0])]
        note = " or ".join((*examples, 'several with "; " between them'))
        self.open_dialog(
            Prompt("Target", session.targets_text, note, partial(input_error_text, session.read_targets)),
            set_typed_target,
        )


class ExportController(Presenter):
    """The part of the main screen for the export dialog and the questions that follow it."""

    def __init__(self, session: Session, quit_app: Callable[[], None]) -> None:
        super().__init__(session, quit_app)
        self._exported_configs: dict[int, PrecisionConfig] = {}

    def show_finished_export(self, event: ev.ConfigExported) -> None:
        if (dialog := find_export_dialog_of_job(self.app.screen_stack, event.job)) is not None:
            dialog.show_finished_export(self.session.notice)
        if (config := self._exported_configs.pop(event.job, None)) is not None:
            self.session.record_exported_config(config)
        self.show_message(self.session.notice, "")

    def show_cancelled_export(self, event: ev.JobCancelled) -> None:
        self._exported_configs.pop(event.job, None)
        if (dialog := find_export_dialog_of_job(self.app.screen_stack, event.job)) is not None:
            dialog.show_failure("it was stopped", "", "")

    def do_export(self) -> None:
        """Shows the dialog in which the user chooses a format and a path."""
        self.open_dialog(ExportDialog(self.session, self._request_export))

    def _request_export(self, export_format: str, path: Path) -> None:
        """Requests an export to a path. If necessary, first asks about overwriting, the TensorRT release or the
        samples.

        Raises:
            InputError: The path is a folder, the folder is not empty, or a subgraph export has no single selected row.
        """
        session, group = self.session, self.current_group
        if export_format == "bundle":
            require_empty_folder(path)
            self._ask_for_tensorrt_release(path)
        elif export_format == "subgraph":
            if group is None:
                raise InputError(
                    "a subgraph needs one row",
                    "no row or several rows are selected",
                    "Move the cursor to a layer. For any part: trt-tui subgraph --from T --to T.",
                )
            require_empty_folder(path)
            self._send_request_from_dialog(lambda: session.export_group(path, group), export_format)
        else:
            if os.path.isdir(path):
                raise InputError(f"{path} is a folder", "", "Name a file in it.")
            if os.path.exists(path):
                self.open_dialog(
                    ConfirmDialog(f"{path} exists. Overwrite it?", "overwrite", "keep it"),
                    lambda _: self._send_request_from_dialog(
                        lambda: session.export_config(export_format, path, True), export_format
                    ),
                )
            else:
                self._send_request_from_dialog(lambda: session.export_config(export_format, path), export_format)

    def _ask_for_tensorrt_release(self, bundle_path: Path) -> None:
        """Asks for the TensorRT release of a bundle, and whether the bundle may contain samples."""
        session = self.session

        def ask_to_include_samples(tensorrt_release: str) -> None:
            question = (
                f"Put a few samples of {session.opened_network.data.source} and their outputs into {bundle_path.name}?"
            )
            answers = [PickerItem("n", "leave them out", False), PickerItem("y", "put them in, for verify.sh", True)]
            self.open_dialog(
                Picker(question, answers),
                lambda with_samples: self._send_request_from_dialog(
                    lambda: session.export_bundle(bundle_path, tensorrt_release, with_samples), "bundle"
                ),
            )

        items = [
            PickerItem(key, title, release)
            for key, (release, title) in zip("8016", RELEASE_TITLES.items(), strict=True)
        ]
        self.open_dialog(Picker("A bundle for", items), ask_to_include_samples)

    def _send_request_from_dialog(self, send_request: Callable[[], None], export_format: str) -> None:
        """Sends an export request. The open export dialog then waits for the job, or shows why the request failed."""
        dialog = next(screen for screen in self.app.screen_stack if isinstance(screen, ExportDialog))
        earlier_jobs = set(self.session.pending_requests)
        try:
            send_request()
        except TrtTuiError as error:
            dialog.show_failure(error.title, error.cause, error.next_step)
        for job in set(self.session.pending_requests) - earlier_jobs:
            dialog.wait_for_job(job)
            if EXPORT_FORMATS[export_format].contains_config:
                self._exported_configs[job] = self.session.config
