"""The move that keeps a fusion group in a precision by rule: no other move lowers it or takes it back."""

from dataclasses import dataclass

from trt_tui.core.moves.move import GROUP_SUBJECTS, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision

KEEP_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""What rules can keep layers in."""


@dataclass(frozen=True)
class KeepMove(Move):
    """The precision that a rule keeps a group in, and the rule as it was given."""

    kind, subject_kind = "keep", GROUP_SUBJECTS
    keeps_precision = True

    rule: str
    precision: Precision = Precision.FP32

    @property
    def effect_key(self) -> str:
        """The precision, as files name it; which rule asks for it changes nothing."""
        return str(self.precision.value)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Why the group cannot run in that precision; see `Move.refusal_reason`."""
        if self.precision not in KEEP_PRECISIONS:
            return f"a rule keeps layers in {', '.join(precision.label for precision in KEEP_PRECISIONS)}"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision
