"""The opening of a network in a session: a saved session is resumed, and replaced files are opened again."""

from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.data.input_files import Fingerprint
from trt_tui.core.guards.guard import GuardFacts
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import LoadedConfig
from trt_tui.core.moves.keep_rules import apply_keep_rules, default_keep_rules_note
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.editable_session import EditableSession
from trt_tui.session.history import ChangeHistory, ConfigNames
from trt_tui.session.saved_sessions import SavedSession


class OpeningSession(EditableSession):
    """A session that applies the answers of the background process to an opened network."""

    _can_resume: bool  # True if the saved session of the network may be resumed; `Session` sets it
    _replaced_files: tuple[str, ...] = ()
    _resume_note: str | None = None
    _resumed_snapshot: object = None
    _saved_target: str | None = None

    def apply_opened_network(self, event: ev.NetworkOpened) -> None:
        """Applies an opened network to the session.

        For the first network, the saved session is resumed. If the network is opened again, the config of the session
        stays and stale results are dropped.
        """
        is_first = self.outline is None
        self.opened_network = event
        self.warnings = list(event.data.warnings)
        self.log.extend(event.data.warnings)
        if not is_first:
            self._drop_stale_results()
            return
        if event.outline.has_file_precision:
            self.history = ChangeHistory(PrecisionConfig.from_precision(Precision.FILE))
        resumed = self.automatic and self._can_resume and self._resume_saved_session(event.outline)
        config = self._apply_command_line_options(self.config)
        if not resumed:
            self.history.replace_state(self.user_state)
            config = self.apply_default_keep_rules(config)
            if not self.config_path and (note := default_keep_rules_note(event.outline, config)):
                self.log.append(note)
                self.notice = note
        self._push_opened_config(config)
        self.set_initial_target()
        self.config_names.get_config_name(self.config)
        self._resumed_snapshot = self.history.snapshot()

    def _apply_command_line_options(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config with TF32 and with the keep rules of the command line.

        Raises:
            InputError: The errors of `trt_tui.core.moves.keep_rules.apply_keep_rules`.
        """
        options, network = self.options, self.outline or self.unmeasured_outline
        assert network is not None, "an opened network has been announced"
        return apply_keep_rules(network, replace(config, tf32=True) if options.tf32 else config, options.keep)

    def _push_opened_config(self, config: PrecisionConfig) -> None:
        """Makes a config the current one. What the command line changes in a resumed session is a step to undo."""
        self.history.push_state(replace(self.user_state, config=config))

    def _resume_saved_session(self, outline: NetworkOutline) -> bool:
        """Resumes the saved session of the same network. Returns False if there is none."""
        saved = self.session_folder.load_session(outline.structure_sha256, str(outline.path), outline)
        self.warnings.extend(self.session_folder.load_failures)
        if saved is None:
            return False
        if not self.target_text:
            self.target_text = self._saved_target = saved.target
        self._apply_saved_session(saved)
        if saved.note:
            self.warnings.append(saved.note)
            self._resume_note = saved.note
        return True

    def _apply_saved_session(self, saved_session: SavedSession) -> None:
        """Replaces the configs of the session by the configs of a saved session."""
        self.history, self.config_names, self.saved_sha256 = saved_session.to_change_history(
        ), saved_session.to_config_names(), saved_session.sha256
        count = len(self.config.moves)
        self.notice = (f"Resumed: {self.config_names.get_config_name(self.config)}, "
                        f"{count} {'change' if count == 1 else 'changes'}.")

    def apply_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Applies the hashes of network and data, and drops ranges that were measured on other weights or data."""
        previous = self.source
        self.source = fingerprint
        if previous is not None:
            self._keep_valid_ranges(previous, fingerprint)
            return
        self._adopt_session_of_same_content(fingerprint)
        self._drop_moves_of_other_weights()

    def _drop_moves_of_other_weights(self) -> None:
        if self.saved_sha256 not in ("", self.network_sha256):
            self._drop_measured_moves("other weights, in the session resumed,")

    def _replace_by_saved_session(self, name: str) -> None:
        """Goes on with another saved session of the network. Its current config is not measured yet.

        Raises:
            InputError: The session cannot be opened.
        """
        outline = self.opened_network.outline
        saved = self.session_folder.open_session(name, outline.structure_sha256, str(outline.path), outline)
        self._apply_saved_session(saved)
        self.filter_text, self.choice_reasons, self.group_change_times = "", {}, {}
        self.target_text = saved.target or None
        self.set_initial_target()
        self.update_target_baseline()
        self._drop_moves_of_other_weights()
        self.config_names.get_config_name(self.config)
        if saved.note:
            self.warnings.append(saved.note)

    def _adopt_session_of_same_content(self, fingerprint: Fingerprint) -> None:
        """Replaces a session of another network with the same structure by the session of a network with the same
        content.

        A network may have been saved under another path; equal content means the same network. If the user has changed
        the resumed session meanwhile, it stays.
        """
        if self._resume_note is None or (
                self.saved_sha256 != fingerprint.sha256 and self.history.snapshot() != self._resumed_snapshot):
            return
        previous_target, own_session = self.target_text, self.session_folder.load_session_by_content(
            fingerprint.sha256)
        if own_session is None:
            return
        self.warnings = [text for text in self.warnings if text != self._resume_note]
        if self.saved_sha256 == fingerprint.sha256:
            return
        self._apply_saved_session(own_session)
        if previous_target == self._saved_target:
            self.target_text = own_session.target
            self.set_initial_target()
        self._push_opened_config(self._apply_command_line_options(self.config))
        self.config_names.get_config_name(self.config)

    def apply_loaded_config(self, loaded_config: LoadedConfig) -> None:
        """Makes the config of a file the current config. Undo restores the resumed config."""
        self.history.push_config(self._apply_command_line_options(loaded_config.config))
        self.config_names.get_config_name(self.config)
        self.warnings.extend(loaded_config.warnings)
        if loaded_config.calibration.ranges and not loaded_config.has_stale_ranges:
            self.config_calibration = loaded_config.calibration
            if self.network_only:
                return
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))
            if self.options.calib_data is not None or self.options.calib_method != RANGE_METHODS[0]:
                self.warnings.append(f"The ranges are those of {Path(self.config_path or '').name}; "
                                      "ranges by --calib-data and --calib-method are only compared with them.")
        if not self.network_only and not self.target_text and loaded_config.tolerance:
            self.target_text = loaded_config.tolerance
            self.set_initial_target()
        self.save_session()

    # -- replaced files -------------------------------------------------------------------------------------------

    def reopen_replaced_files(self, files: tuple[str, ...]) -> None:
        """Requests that input files that were replaced on disk are opened again."""
        if not self.pending_requests.has_request(rq.OpenNetwork):
            self._replaced_files = files
            self.send_request(
                rq.OpenNetwork(self.options, structure_hash=self.opened_network.outline.structure_sha256))

    def _drop_stale_results(self) -> None:
        """Drops all results that were measured on files that have been replaced. The user's changes stay."""
        if self._replaced_files:
            self.warnings.append(f"{', '.join(self._replaced_files)}: replaced, so everything is measured again.")
        self._replaced_files = ()
        self.calibration = self.last_built_config = None
        self.results = self.make_results()
        self.facts = GuardFacts()
        self.config_names.exported_configs.clear()
        self.config_names.search_doubts.clear()
        self.choice_reasons.clear()
        if not self.is_searching:
            self.search_status = None
        self.set_initial_target()
        self.update_target_baseline()

    def _keep_valid_ranges(self, previous_fingerprint: Fingerprint, current_fingerprint: Fingerprint) -> None:
        """Keeps the chosen ranges that are still valid after a file was replaced, and drops the others."""
        changed = current_fingerprint.files.find_files_changed_since(previous_fingerprint.files)
        is_same = (current_fingerprint.sha256, current_fingerprint.data_sha256) == (previous_fingerprint.sha256,
                                                                                    previous_fingerprint.data_sha256)
        if not is_same or any(not name.endswith(".py") for name in changed):
            self._drop_measured_moves("the replaced files")
        if (self.config_calibration is not None and self.calibration is None
                and current_fingerprint.sha256 == previous_fingerprint.sha256):
            self.send_request(rq.UseRanges(self.config_calibration, True, Path(self.config_path or "").name))

    def _drop_measured_moves(self, origin_text: str) -> None:
        """Removes moves with values measured on other files from every config of the history, and adds a warning."""
        dropped = [move for move in self.config.moves.values() if move.has_measured_values]
        other_count = sum(move.kind != RangeMove.kind for move in dropped)
        self.history.map_configs(lambda config: config.without_measured_moves())
        self.config_names = ConfigNames(
            (config.without_measured_moves(), name) for config, name in self.config_names.items())
        self.config_names.chosen_names = dict(self.history.state.chosen_names)
        self.config_names.get_config_name(self.config)
        if dropped:
            count_texts = [
                counted_noun_text(count, word)
                for count, word in ((len(dropped) - other_count, "range"), (other_count, "zero-cost change"))
                if count
            ]
            self.warnings.append(f"{' and '.join(count_texts)} measured on {origin_text} were undone: choose again.")
