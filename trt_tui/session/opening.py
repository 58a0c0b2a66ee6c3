"""The opening of a network in a session: a saved session is resumed, and replaced files are opened again."""

from collections.abc import Callable
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
from trt_tui.session.history import ChangeHistory, ConfigNames
from trt_tui.session.saved_sessions import SavedSession
from trt_tui.session.state import SessionState


class SessionOpener:
    """The part of a session that applies the answers of the background process to an opened network.

    Args:
        state: The state to change.
        send_request: Sends a request to the background process.
        resume: True resumes the saved session of the same network, if there is one.
    """

    def __init__(self, state: SessionState, send_request: Callable[[rq.Request], None], *, resume: bool) -> None:
        self._state = state
        self._send_request = send_request
        self._can_resume = resume
        self._replaced_files: tuple[str, ...] = ()
        self._resume_note: str | None = None
        self._resumed_snapshot: object = None
        self._saved_target: str | None = None

    def apply_opened_network(self, event: ev.NetworkOpened) -> None:
        """Applies an opened network to the session.

        For the first network, the saved session is resumed. If the network is opened again, the config of the session
        stays and stale results are dropped.
        """
        state, is_first = self._state, self._state.outline is None
        state.opened_network = event
        state.warnings = list(event.data.warnings)
        state.log.extend(event.data.warnings)
        if not is_first:
            self._drop_stale_results()
            return
        if event.outline.has_file_precision:
            state.history = ChangeHistory(PrecisionConfig.from_precision(Precision.FILE))
        resumed = state.automatic and self._can_resume and self._resume_saved_session(event.outline)
        config = self._apply_command_line_options(state.config)
        if not resumed:
            state.history.replace_state(state.user_state)
            config = state.apply_default_keep_rules(config)
            if not state.config_path and (note := default_keep_rules_note(event.outline, config)):
                state.log.append(note)
                state.notice = note
        self._push_opened_config(config)
        state.set_initial_target()
        state.config_names.get_config_name(state.config)
        self._resumed_snapshot = state.history.snapshot()

    def _apply_command_line_options(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config with TF32 and with the keep rules of the command line.

        Raises:
            InputError: The errors of `trt_tui.core.moves.keep_rules.apply_keep_rules`.
        """
        options, network = self._state.options, self._state.outline or self._state.unmeasured_outline
        assert network is not None, "an opened network has been announced"
        return apply_keep_rules(network, replace(config, tf32=True) if options.tf32 else config, options.keep)

    def _push_opened_config(self, config: PrecisionConfig) -> None:
        """Makes a config the current one. What the command line changes in a resumed session is a step to undo."""
        state = self._state
        state.history.push_state(replace(state.user_state, config=config))

    def _resume_saved_session(self, outline: NetworkOutline) -> bool:
        """Resumes the saved session of the same network. Returns False if there is none."""
        state = self._state
        saved = state.session_folder.load_session(outline.structure_sha256, str(outline.path), outline)
        state.warnings.extend(state.session_folder.load_failures)
        if saved is None:
            return False
        if not state.target_text:
            state.target_text = self._saved_target = saved.target
        self._apply_saved_session(saved)
        if saved.note:
            state.warnings.append(saved.note)
            self._resume_note = saved.note
        return True

    def _apply_saved_session(self, saved_session: SavedSession) -> None:
        """Replaces the configs of the session by the configs of a saved session."""
        state = self._state
        state.history, state.config_names, state.saved_sha256 = saved_session.to_change_history(
        ), saved_session.to_config_names(), saved_session.sha256
        count = len(state.config.moves)
        state.notice = (f"Resumed: {state.config_names.get_config_name(state.config)}, "
                        f"{count} {'change' if count == 1 else 'changes'}.")

    def apply_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Applies the hashes of network and data, and drops ranges that were measured on other weights or data."""
        state, previous = self._state, self._state.source
        state.source = fingerprint
        if previous is not None:
            self._keep_valid_ranges(previous, fingerprint)
            return
        self._adopt_session_of_same_content(fingerprint)
        self._drop_moves_of_other_weights()

    def _drop_moves_of_other_weights(self) -> None:
        if self._state.saved_sha256 not in ("", self._state.network_sha256):
            self._drop_measured_moves("other weights, in the session resumed,")

    def resume_session(self, name: str) -> None:
        """Goes on with another saved session of the network. Its current config is not measured yet.

        Raises:
            InputError: The session cannot be opened.
        """
        state, outline = self._state, self._state.opened_network.outline
        saved = state.session_folder.open_session(name, outline.structure_sha256, str(outline.path), outline)
        self._apply_saved_session(saved)
        state.filter_text, state.choice_reasons, state.group_change_times = "", {}, {}
        state.target_text = saved.target or None
        state.set_initial_target()
        state.update_target_baseline()
        self._drop_moves_of_other_weights()
        state.config_names.get_config_name(state.config)
        if saved.note:
            state.warnings.append(saved.note)

    def _adopt_session_of_same_content(self, fingerprint: Fingerprint) -> None:
        """Replaces a session of another network with the same structure by the session of a network with the same
        content.

        A network may have been saved under another path; equal content means the same network. If the user has changed
        the resumed session meanwhile, it stays.
        """
        state = self._state
        if self._resume_note is None or (
                state.saved_sha256 != fingerprint.sha256 and state.history.snapshot() != self._resumed_snapshot):
            return
        previous_target, own_session = state.target_text, state.session_folder.load_session_by_content(
            fingerprint.sha256)
        if own_session is None:
            return
        state.warnings = [text for text in state.warnings if text != self._resume_note]
        if state.saved_sha256 == fingerprint.sha256:
            return
        self._apply_saved_session(own_session)
        if previous_target == self._saved_target:
            state.target_text = own_session.target
            state.set_initial_target()
        self._push_opened_config(self._apply_command_line_options(state.config))
        state.config_names.get_config_name(state.config)

    def apply_loaded_config(self, loaded_config: LoadedConfig) -> None:
        """Makes the config of a file the current config. Undo restores the resumed config."""
        state = self._state
        state.history.push_config(self._apply_command_line_options(loaded_config.config))
        state.config_names.get_config_name(state.config)
        state.warnings.extend(loaded_config.warnings)
        if loaded_config.calibration.ranges and not loaded_config.has_stale_ranges:
            state.config_calibration = loaded_config.calibration
            if state.network_only:
                return
            self._send_request(rq.UseRanges(state.config_calibration, True, Path(state.config_path or "").name))
            if state.options.calib_data is not None or state.options.calib_method != RANGE_METHODS[0]:
                state.warnings.append(f"The ranges are those of {Path(state.config_path or '').name}; "
                                      "ranges by --calib-data and --calib-method are only compared with them.")
        if not state.network_only and not state.target_text and loaded_config.tolerance:
            state.target_text = loaded_config.tolerance
            state.set_initial_target()
        state.save_session()

    # -- replaced files -------------------------------------------------------------------------------------------

    def reopen_replaced_files(self, files: tuple[str, ...]) -> None:
        """Requests that input files that were replaced on disk are opened again."""
        state = self._state
        if not state.pending_requests.has_request(rq.OpenNetwork):
            self._replaced_files = files
            self._send_request(
                rq.OpenNetwork(state.options, structure_hash=state.opened_network.outline.structure_sha256))

    def _drop_stale_results(self) -> None:
        """Drops all results that were measured on files that have been replaced. The user's changes stay."""
        state = self._state
        if self._replaced_files:
            state.warnings.append(f"{', '.join(self._replaced_files)}: replaced, so everything is measured again.")
        self._replaced_files = ()
        state.calibration = state.last_built_config = None
        state.results = state.make_results()
        state.facts = GuardFacts()
        state.config_names.exported_configs.clear()
        state.config_names.search_doubts.clear()
        state.choice_reasons.clear()
        if not state.is_searching:
            state.search_status = None
        state.set_initial_target()
        state.update_target_baseline()

    def _keep_valid_ranges(self, previous_fingerprint: Fingerprint, current_fingerprint: Fingerprint) -> None:
        """Keeps the chosen ranges that are still valid after a file was replaced, and drops the others."""
        state = self._state
        changed = current_fingerprint.files.find_files_changed_since(previous_fingerprint.files)
        is_same = (current_fingerprint.sha256, current_fingerprint.data_sha256) == (previous_fingerprint.sha256,
                                                                                    previous_fingerprint.data_sha256)
        if not is_same or any(not name.endswith(".py") for name in changed):
            self._drop_measured_moves("the replaced files")
        if (state.config_calibration is not None and state.calibration is None
                and current_fingerprint.sha256 == previous_fingerprint.sha256):
            self._send_request(rq.UseRanges(state.config_calibration, True, Path(state.config_path or "").name))

    def _drop_measured_moves(self, origin_text: str) -> None:
        """Removes moves with values measured on other files from every config of the history, and adds a warning."""
        state = self._state
        dropped = [move for move in state.config.moves.values() if move.has_measured_values]
        other_count = sum(move.kind != RangeMove.kind for move in dropped)
        state.history.map_configs(lambda config: config.without_measured_moves())
        state.config_names = ConfigNames(
            (config.without_measured_moves(), name) for config, name in state.config_names.items())
        state.config_names.chosen_names = dict(state.history.state.chosen_names)
        state.config_names.get_config_name(state.config)
        if dropped:
            count_texts = [
                counted_noun_text(count, word)
                for count, word in ((len(dropped) - other_count, "range"), (other_count, "zero-cost change"))
                if count
            ]
            state.warnings.append(f"{' and '.join(count_texts)} measured on {origin_text} were undone: choose again.")
