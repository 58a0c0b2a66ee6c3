"""The move that replaces a decomposed LayerNorm or RMSNorm by the ONNX operator.

TensorRT computes mean and variance of the operator in FP32, whatever the surrounding type. In the decomposed form every
intermediate result is rounded, and the square of a value from 256 up overflows FP16.
"""

from dataclasses import dataclass
from typing import Literal

from trt_tui.core.moves.move import GROUP_SUBJECTS, Move
from trt_tui.core.network.layers import NetworkOutline


@dataclass(frozen=True)
class RewriteMove(Move):
    """The ONNX operator that replaces the layers of a decomposed normalisation.

    Attributes:
        reason: The origin of the move, such as "user".
    """

    kind, subject_kind = "rewrite", GROUP_SUBJECTS
    is_normalisation_rewrite = True

    operator: Literal["LayerNormalization", "RMSNormalization"]
    reason: str = "user"

    @property
    def effect_key(self) -> str:
        return self.operator

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        norm = network.zero_cost_support.norms.get(subject)
        if norm is None:
            return "it contains no decomposed LayerNorm or RMSNorm"
        if norm.no_rewrite_reason:
            return norm.no_rewrite_reason
        return "" if norm.operator == self.operator else f"the operator is {norm.operator}"
