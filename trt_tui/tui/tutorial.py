"""The tutorial on the bundled network: the hint line shows the next step, from a search to an exported config."""

import contextlib
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.files.writing import make_private_folder, write_file_atomically
from trt_tui.session.session import Session
from trt_tui.tui.config_status import (
    config_meets_target_simulated,
    config_name,
    has_unfinished_accuracy,
    is_confirmed_by_execution,
    is_measuring_current_config,
)
from trt_tui.tui.keys import shown_key
from trt_tui.tui.state.hint import MEASURING_HINT, Hint, find_worst_row, has_search_result_for_config
from trt_tui.tui.state.row_values import RowValues

STEP_COUNT = 3
"""The number that the file of a finished tutorial contains."""


class Tutorial:
    """A tutorial that leads a new user from a config that misses the target to an exported config.

    The first step is a search. Then the user takes its result, changes one row by hand, and exports a config. The step
    depends on the current config, so a change that undoes a result leads back to an earlier step. No step is shown
    while the values of the config are not final.

    The tutorial ends when a config was written that meets the target in simulation, and as a built engine or an
    executed export.

    Args:
        path: The file that stores the end of the tutorial; by default a file in the user's state folder.

    Attributes:
        is_finished: True after such an export, also in an earlier session.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("trt-tui")) / "walk.json"
        self.is_finished = False
        with contextlib.suppress(InputError, ValueError, OSError), limit_file_reading(self._path):
            self.is_finished = msgspec.json.decode(read_bytes(self._path, MAX_TEXT_BYTES), type=int) >= STEP_COUNT

    def record_finished_export(self, session: Session, config: PrecisionConfig) -> bool:
        """Records that a file with a config was written, and returns True if the tutorial ends with it."""
        if self.is_finished or not is_confirmed_by_execution(session, config):
            return False
        self.is_finished = True
        with contextlib.suppress(InputError, OSError):  # without the file the tutorial starts again in the next session
            make_private_folder(self._path.parent)
            write_file_atomically(self._path, msgspec.json.encode(STEP_COUNT), is_private=True)
        return True

    def build_tutorial_hint(self, session: Session, row_values: RowValues | None) -> Hint:
        """Returns the hint with the next keys and their purpose, or that values are still being measured.

        The hint is empty if no step is possible now.
        """
        if (self.is_finished or row_values is None or session.data_summary is None or session.is_building
                or session.is_searching):
            return Hint()
        if is_measuring_current_config(session):
            return MEASURING_HINT  # any other hint could lead past a step
        if has_unfinished_accuracy(session, session.config):
            return Hint()
        name = config_name(session)
        if has_search_result_for_config(session):
            return _make_step("then", ("find",), f"{shown_key('find')} shows what the search found",
                              f"{shown_key('find')} shows its result")
        if is_confirmed_by_execution(session, session.config):
            worst = find_worst_row(session, row_values)
            if worst is not None and session.config.moves and not _has_manual_change(session):
                return _make_step(
                    "then by hand", ("first_nan", "toggle"),
                    f"{shown_key('first_nan')} goes to the worst row, {shown_key('toggle')} raises it, "
                    f"{shown_key('undo')} undoes that",
                    f"{shown_key('first_nan')}, {shown_key('toggle')} raises the worst row")
            return _make_step("last", ("export",), f"{shown_key('export')} exports {name} for production",
                              f"{shown_key('export')} exports {name}")
        if not config_meets_target_simulated(session, session.config):
            search_status = session.search_status
            if search_status is not None and search_status.best_config is not None:
                return _make_step("first", ("find",), f"{shown_key('find')} shows what the search found",
                                  f"{shown_key('find')} shows its result")
            return _make_step("first", ("find",),
                              f"{shown_key('find')} finds the cheapest config that meets the target",
                              f"{shown_key('find')} finds a fix")
        results = session.get_run_results("config")
        if results.engine_result is not None or results.exported_run is not None:
            return Hint()
        past, _, _ = session.history.snapshot()
        earlier_config = past[-1].config if past else session.config
        undo = (f", {shown_key('undo')} goes back to {config_name(session, earlier_config)}"
                if earlier_config != session.config and is_confirmed_by_execution(session, earlier_config) else "")
        if session.builder is not None:
            return _make_step("then", ("build",), f"{shown_key('build')} builds {name} and measures the engine{undo}",
                              f"{shown_key('build')} builds {name}{undo}", f"{shown_key('build')} builds {name}")
        return _make_step("then", ("build",), f"{shown_key('build')} executes the export of {name} in ONNX Runtime"
                          f"{undo}", f"{shown_key('build')} executes the export of {name}{undo}",
                          f"{shown_key('build')} executes its export")


def _make_step(word: str, actions: tuple[str, ...], *texts: str) -> Hint:
    """Returns a step as a hint. Steps have a word instead of a number, because some steps can be unnecessary."""
    return Hint(tuple(f"{word}: {text}" for text in texts), actions)


def _has_manual_change(session: Session) -> bool:
    """Returns True if the user changed the precision of a row by hand, even if the change was undone."""
    return any(move.reason == "user" for config in session.config_names for move in config.precision_moves.values())
