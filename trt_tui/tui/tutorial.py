"""The tutorial on the bundled network: the hint line shows three keys, one after another."""

import contextlib
from pathlib import Path

import msgspec
import platformdirs

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
)
from trt_tui.tui.keys import shown_key
from trt_tui.tui.state.hint import Hint

STEP_ACTIONS = ("find", "build", "export")
"""The actions of the tutorial, in their order."""
STEP_WORDS = ("first", "then", "last")
"""The word before each step. Numbers would be wrong, because a search that executes the export makes the second step
unnecessary."""


class Tutorial:
    """A tutorial that leads a new user from a config that misses the target to an exported config.

    The step depends on the current config, so a change that undoes a result leads back to an earlier step. The tutorial
    ends with the export of a config that meets the target in simulation, and as a built engine or an executed export.

    Args:
        path: The file that stores the end of the tutorial; by default a file in the user's state folder.

    Attributes:
        is_finished: True after such an export, also in an earlier session.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("trt-tui")) / "walk.json"
        self.is_finished = False
        with contextlib.suppress(InputError, ValueError, OSError), limit_file_reading(self._path):
            self.is_finished = msgspec.json.decode(read_bytes(self._path, MAX_TEXT_BYTES),
                                                   type=int) >= len(STEP_ACTIONS)

    def record_finished_export(self, session: Session) -> bool:
        """Records the export of the current config, and returns True if the tutorial ends with it."""
        if self.is_finished or not is_confirmed_by_execution(session):
            return False
        self.is_finished = True
        with contextlib.suppress(InputError, OSError):  # without the file the tutorial starts again in the next session
            make_private_folder(self._path.parent)
            write_file_atomically(self._path, msgspec.json.encode(len(STEP_ACTIONS)), is_private=True)
        return True

    def build_tutorial_hint(self, session: Session) -> Hint:
        """Returns the hint with the next key and its purpose; an empty hint if no step is possible now."""
        if (self.is_finished or session.data_summary is None or session.is_building or session.is_searching
                or has_unfinished_accuracy(session, session.config)):
            return Hint()
        results, name = session.get_run_results("config"), config_name(session)
        if is_confirmed_by_execution(session):
            step_index, texts = 2, [
                f"{shown_key('export')} exports {name} for production", f"{shown_key('export')} exports {name}"
            ]
        elif not config_meets_target_simulated(session, session.config):
            step_index, texts = 0, [f"{shown_key('find')} finds the cheapest config that meets the target",
                                    f"{shown_key('find')} finds a fix"]
        elif results.engine_result is None and results.exported_run is None:
            has_builder = session.builder is not None
            step_index, texts = 1, [
                f"{shown_key('build')} builds {name} and measures the engine", f"{shown_key('build')} builds {name}"
            ] if has_builder else [
                f"{shown_key('build')} executes the export of {name} in ONNX Runtime",
                f"{shown_key('build')} executes its export"
            ]
        else:
            return Hint()
        return Hint(tuple(f"{STEP_WORDS[step_index]}: {text}" for text in texts), (STEP_ACTIONS[step_index],))
