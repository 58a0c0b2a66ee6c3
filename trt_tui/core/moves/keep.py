"""The move that keeps a fusion group in a precision by rule: no other move lowers it or takes it back."""

from dataclasses import dataclass

from trt_tui.core.moves.move import GROUPS, Move
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision

KEPT_IN = (Precision.FP32, Precision.FP16, Precision.BF16)
"""What rules can keep layers in."""


@dataclass(frozen=True)
class Keep(Move):
    """The precision that a rule keeps a group in, and the rule as it was given."""

    kind, subject, column = "keep", GROUPS, "kept"
    holds = True

    rule: str
    precision: Precision = Precision.FP32

    @property
    def decides(self) -> str:
        """The precision, as files name it; which rule asks for it changes nothing."""
        return str(self.precision.value)

    def refused(self, network: Outline, target: str) -> str:
        """Why the group cannot run in that precision; see `Move.refused`."""
        if self.precision not in KEPT_IN:
            return f"a rule keeps layers in {', '.join(one.label for one in KEPT_IN)}"
        return network.group(target).refusals.get(self.precision, "")

    @property
    def runs_in(self) -> Precision:
        """The precision."""
        return self.precision

    @property
    def label(self) -> str:
        """The precision: ``FP32``."""
        return self.precision.label

    @property
    def set_by(self) -> str:
        """``rule layernorm``."""
        return f"rule {self.rule}"

    @property
    def infinitive(self) -> str:
        """``be kept in FP32``."""
        return f"be kept in {self.label}"

    @property
    def note(self) -> str:
        """``kept in FP32 by rule layernorm``."""
        return f"kept in {self.label} by {self.set_by}"

    @classmethod
    def about(cls, title: str) -> str:
        """``kept: <title>``."""
        return f"kept: {title}"
