"""The walk through the loop on the bundled network: three keys, one after another, in the place of the hint."""

import contextlib
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.folders import make_private
from trt_tui.files.reading import TEXT_BYTES, read_bytes
from trt_tui.files.writing import write_atomic
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_met, config_name, is_confirmed, is_unfinished
from trt_tui.tui.state.hint import Hint

STEPS = ("find", "build", "export")
"""The actions of the walk."""
LEADS = ("first", "then", "last")
"""The words before each of them; no numbers, since a search that executes the export spares the second one."""


class Walk:
    """A newcomer's way from a config that misses the target to one that is exported.

    The step follows from the config in hand, so that a change that undoes what was reached leads back. The walk is over
    once a config was exported that meets the target as simulated, and as built or exported and executed.

    Args:
        path: The file that remembers that it is over; one in the user's state folder by default.

    Attributes:
        over: True once such a config was exported.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("trt-tui")) / "walk.json"
        self.over = False
        with contextlib.suppress(InputError, ValueError, OSError), file_budget(self._path):
            self.over = msgspec.json.decode(read_bytes(self._path, TEXT_BYTES), type=int) >= len(STEPS)

    def exported(self, session: Session) -> bool:
        """Takes in that the config was exported; returns True if the walk ends by that."""
        if self.over or not is_confirmed(session):
            return False
        self.over = True
        with contextlib.suppress(InputError, OSError):  # it begins anew another time
            make_private(self._path.parent)
            write_atomic(self._path, msgspec.json.encode(len(STEPS)), private=True)
        return True

    def hint(self, session: Session) -> Hint:
        """Returns the next key and what it is for; nothing while it cannot be pressed, or leads nowhere."""
        if (self.over or session.data is None or session.building or session.searching
                or is_unfinished(session, session.config)):
            return Hint()
        known, name = session.measured("config"), config_name(session)
        if is_confirmed(session):
            step, texts = 2, [f"{key('export')} hands {name} over to production", f"{key('export')} hands {name} over"]
        elif not config_met(session, session.config):
            step, texts = 0, [f"{key('find')} finds what meets the target at the least cost",
                              f"{key('find')} finds a fix"]
        elif known.engine is None and known.executed is None:
            builds = session.builder is not None
            step, texts = 1, [f"{key('build')} builds {name} and judges what was built",
                              f"{key('build')} builds {name}"] if builds else [
                f"{key('build')} executes the export of {name} in ONNX Runtime", f"{key('build')} executes its export"]
        else:
            return Hint()
        return Hint(tuple(f"{LEADS[step]}: {text}" for text in texts), (STEPS[step],))
