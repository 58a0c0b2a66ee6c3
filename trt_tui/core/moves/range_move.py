"""The move that replaces the calibrated range of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.calibration.user_ranges import is_data_dependent
from trt_tui.core.moves.move import TENSOR_SUBJECTS, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.quantized_types import MAX_AMAX


@dataclass(frozen=True)
class RangeMove(Move):
    """A range that replaces the calibrated range of a tensor.

    Attributes:
        amax: The end of the range, in the tensor's own units.
        method: The origin of the range: a range method, or "user".
    """

    kind, subject_kind = "range", TENSOR_SUBJECTS

    amax: float
    method: str = "user"

    @property
    def effect_key(self) -> float:
        return self.amax

    @property
    def has_measured_values(self) -> bool:
        return is_data_dependent(self.method)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return "" if 0 <= self.amax <= MAX_AMAX else "a range is a number from 0 to the largest FP32 value"

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        amax_by_tensor.update(dict.fromkeys(tensors, self.amax))
