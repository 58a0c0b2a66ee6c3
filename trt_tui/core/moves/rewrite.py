"""The move that writes a decomposed LayerNorm or RMSNorm as the operator.

TensorRT computes the operator's mean and variance in FP32 whatever the type around it; of the decomposed form every
result is rounded, and a square overflows FP16 from 256 up.
"""

from dataclasses import dataclass
from typing import Literal

from trt_tui.core.moves.move import GROUPS, Decided
from trt_tui.core.network.layers import Outline


@dataclass(frozen=True)
class Rewrite(Decided):
    """The operator that stands for the layers of a normalisation, and who said so."""

    kind, subject, column, absent = "rewrite", GROUPS, "form", "decomposed"
    rewrites = True

    operator: Literal["LayerNormalization", "RMSNormalization"]
    reason: str = "user"

    @property
    def decides(self) -> str:
        """The operator."""
        return self.operator

    def refused(self, network: Outline, target: str) -> str:
        """Why the operator cannot stand there; see `Move.refused`."""
        norm = network.free.norms.get(target)
        if norm is None:
            return "it holds no LayerNorm or RMSNorm that was taken apart"
        if norm.no_rewrite:
            return norm.no_rewrite
        return "" if norm.operator == self.operator else f"what it computes is {norm.operator}"

    @property
    def label(self) -> str:
        """The operator."""
        return self.operator

    @property
    def infinitive(self) -> str:
        """``be written as LayerNormalization``."""
        return f"be written as {self.operator}"

    @property
    def note(self) -> str:
        """``written as LayerNormalization``."""
        return f"written as {self.operator}"
