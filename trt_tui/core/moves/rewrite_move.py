"""The move that writes a decomposed LayerNorm or RMSNorm as the operator.

TensorRT computes the operator's mean and variance in FP32 whatever the type around it; of the decomposed form every
result is rounded, and a square overflows FP16 from 256 up.
"""

from dataclasses import dataclass
from typing import Literal

from trt_tui.core.moves.move import GROUP_SUBJECTS, Move
from trt_tui.core.network.layers import NetworkOutline


@dataclass(frozen=True)
class RewriteMove(Move):
    """The operator that stands for the layers of a normalisation, and who said so."""

    kind, subject_kind = "rewrite", GROUP_SUBJECTS
    is_normalisation_rewrite = True

    operator: Literal["LayerNormalization", "RMSNormalization"]
    reason: str = "user"

    @property
    def effect_key(self) -> str:
        """The operator."""
        return self.operator

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Why the operator cannot stand there; see `Move.refusal_reason`."""
        norm = network.zero_cost_support.norms.get(subject)
        if norm is None:
            return "it contains no decomposed LayerNorm or RMSNorm"
        if norm.no_rewrite_reason:
            return norm.no_rewrite_reason
        return "" if norm.operator == self.operator else f"the operator is {norm.operator}"
