"""The export action: it writes a config as files for production, for other tools or as a report."""

import os
from collections.abc import Callable
from pathlib import Path

from trt_tui.core.exporters.bundle import RELEASE_TITLES
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.writing import require_empty_folder
from trt_tui.jobs import events as ev
from trt_tui.session.session import Session
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.screens.dialogs import ConfirmDialog, Picker, PickerItem
from trt_tui.tui.screens.export import ExportDialog, find_export_dialog_of_job


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
        """Requests an export to a path, after questions about overwriting, release or samples if the format needs them.

        Raises:
            InputError: The path is a folder, the folder is not empty, or a subgraph export has no single selected row.
        """
        session, group = self.session, self.current_group
        if export_format == "bundle":
            require_empty_folder(path)
            self._ask_for_tensorrt_release(path)
        elif export_format == "subgraph":
            if group is None:
                raise InputError("a subgraph needs one row", "no row or several rows are selected",
                    "Move the cursor to a layer. For any part: trt-tui subgraph --from T --to T.")
            require_empty_folder(path)
            self._send_request_from_dialog(lambda: session.export_group(path, group), export_format)
        else:
            if os.path.isdir(path):
                raise InputError(f"{path} is a folder", "", "Name a file in it.")
            if os.path.exists(path):
                self._export_after_confirmation(
                    ConfirmDialog(f"{path} exists. Overwrite it?", "overwrite", "keep it"),
                    lambda confirmed: session.export_config(export_format, path, True) if confirmed else None,
                    export_format)
            else:
                self._send_request_from_dialog(lambda: session.export_config(export_format, path), export_format)

    def _ask_for_tensorrt_release(self, bundle_path: Path) -> None:
        """Asks for the TensorRT release of a bundle, and whether the bundle may contain samples."""
        session = self.session

        def ask_to_include_samples(tensorrt_release: str) -> None:
            question = (f"Put a few samples of {session.opened_network.data.source} and their outputs into "
                        f"{bundle_path.name}?")
            self._export_after_confirmation(
                ConfirmDialog(question, "put them in, for verify.sh", "leave them out"),
                lambda confirmed: session.export_bundle(bundle_path, tensorrt_release, confirmed), "bundle")

        items = [
            PickerItem(key, title, release)
            for key, (release, title) in zip("8016", RELEASE_TITLES.items(), strict=True)
        ]
        self.open_dialog(Picker("A bundle for", items), ask_to_include_samples)

    def _export_after_confirmation(self, dialog: ConfirmDialog, on_answer: Callable[[bool], None],
                                   export_format: str) -> None:
        self.app.push_screen(dialog, lambda confirmed: self._send_request_from_dialog(
            lambda: on_answer(confirmed is True), export_format))

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
