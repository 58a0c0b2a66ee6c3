"""The walk through the loop on the bundled network: four keys, one after another, in the place of the hint."""

import contextlib
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.reading import TEXT_BYTES, read_bytes
from trt_tui.files.writing import write_atomic
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_met, config_name
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.hint import next_raise

STEPS = ("view", "toggle", "build", "export")
"""The actions of the walk."""


class Walk:
    """How far a newcomer has walked: each key is told until what it is for has happened, and never again.

    Args:
        path: Where that is remembered; a file in the user's state folder by default.

    Attributes:
        step: The place in `STEPS` of the next key; their number at the end.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("trt-tui")) / "walk.json"
        self.step = 0
        with contextlib.suppress(InputError, ValueError, OSError), file_budget(self._path):
            self.step = min(max(0, msgspec.json.decode(read_bytes(self._path, TEXT_BYTES), type=int)), len(STEPS))

    @property
    def over(self) -> bool:
        """Whether all four were pressed."""
        return self.step == len(STEPS)

    def pressed(self, action: str) -> None:
        """An action was done. With raising one row the target is not met yet, and a build takes its time."""
        if action in STEPS and STEPS.index(action) >= self.step:
            self._go(STEPS.index(action) + (action in ("view", "export")))

    def built(self) -> None:
        """An engine, or what stands in for one, was judged."""
        if self.step == STEPS.index("build"):
            self._go(self.step + 1)

    def hint(self, session: Session, found: Figures | None, cursor: str, short: bool, room: int) -> str:
        """The next key and what it is for; "" where that cannot be pressed yet, or all were. See `next_step`."""
        if found is None or session.measured("config").verdict is None or session.building or session.searching:
            return ""
        if STEPS[self.step:self.step + 1] == ("toggle",) and config_met(session, session.config):
            self._go(self.step + 1)
        if self.over:
            return ""
        raising = next_raise(session, found, cursor, short, room).removeprefix("next: ")
        if self.step == STEPS.index("toggle") and not raising and session.config.groups:
            return ""
        name, pressed = config_name(session), key(STEPS[self.step])
        said = {"view": f"{pressed} puts the worst layers first",
                "toggle": raising or f"{pressed} raises a row to FP32",
                "build": f"{pressed} builds {name} and judges what was built" if session.builder is not None else
                f"{pressed} executes the export of {name} in ONNX Runtime",
                "export": f"{pressed} hands {name} over to production"}[STEPS[self.step]]
        return f"{self.step + 1} of {len(STEPS)}: {said}"

    def _go(self, step: int) -> None:
        """Goes on, and remembers it; where it cannot be written, it is told again another time."""
        self.step = step
        with contextlib.suppress(InputError, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, msgspec.json.encode(step))
