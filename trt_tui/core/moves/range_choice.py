"""The move that replaces the calibrated range of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.calibration.given import chosen_from_data
from trt_tui.core.codes import MAX_AMAX
from trt_tui.core.moves.move import TENSORS, Move
from trt_tui.core.network.layers import Outline


@dataclass(frozen=True)
class RangeChoice(Move):
    """A range (amax, in the tensor's own units) that replaces the calibrated one, and where it came from."""

    kind, subject, column, absent = "range", TENSORS, "range", "calibrated"

    amax: float
    method: str = "user"

    @property
    def decides(self) -> float:
        """The amax, in the tensor's own units."""
        return self.amax

    @property
    def measured(self) -> bool:
        """Whether it holds figures that were measured."""
        return chosen_from_data(self.method)

    def refused(self, network: Outline, target: str) -> str:
        """Why this is no range; see `Move.refused`."""
        return "" if 0 <= self.amax <= MAX_AMAX else "a range is a number from 0 up that FP32 holds"

    def adjust(self, amax: dict[str, float], tensors: Sequence[str]) -> None:
        """Gives the tensors this amax."""
        amax.update(dict.fromkeys(tensors, self.amax))

    @property
    def label(self) -> str:
        """The amax with five digits."""
        return f"{self.amax:.5g}"

    @property
    def compared(self) -> str:
        """The method and the amax: ``entropy 2.5``."""
        return f"{self.method} {self.label}"

    @property
    def set_by(self) -> str:
        """``user`` or the calibration method that proposed it."""
        return self.method

    @property
    def infinitive(self) -> str:
        """``have the range 2.5``."""
        return f"have the range {self.label}"

    @property
    def note(self) -> str:
        """``range by entropy``."""
        return f"range by {self.method}"
