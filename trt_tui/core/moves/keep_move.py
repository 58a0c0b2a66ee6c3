"""The move that a keep rule makes: it fixes the precision of a fusion group, and no other move changes that
precision."""

from dataclasses import dataclass

from trt_tui.core.moves.move import GROUP_SUBJECTS, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision

KEEP_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""The precisions that a keep rule can fix."""


@dataclass(frozen=True)
class KeepMove(Move):
    """The precision that a keep rule fixes for a fusion group.

    Attributes:
        rule: The keep rule as the user wrote it.
        precision: The fixed precision.
    """

    kind, subject_kind = "keep", GROUP_SUBJECTS
    keeps_precision = True

    rule: str
    precision: Precision = Precision.FP32

    @property
    def effect_key(self) -> str:
        """The fixed precision as files name it. The name of the keep rule has no effect."""
        return str(self.precision.value)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if self.precision not in KEEP_PRECISIONS:
            return f"a rule keeps layers in {', '.join(precision.label for precision in KEEP_PRECISIONS)}"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision
