"""The move that folds the mean error of an INT8 layer into its bias.

Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
4.2: quantized weights shift a layer's mean result by ``E[W'x'] - E[Wx]``, which its bias can take back. The means are
measured on the calibration samples (appendix D there).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUPS, Change, Decided, Defaults
from trt_tui.core.network.free import Port
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class BiasCorrection(Decided):
    """What is added to the bias of a layer while it runs in INT8.

    Attributes:
        shift: One number for each output channel, in the layer's own units; see `trt_tui.core.moves.vectors`.
    """

    folding = measured = True
    kind, subject, column, absent = "bias", GROUPS, "bias", "as it is"
    label, infinitive, note = "corrected", "have its bias corrected", "bias corrected"

    shift: str
    reason: str = "user"

    @property
    def decides(self) -> str:
        """The shift."""
        return self.shift

    def refused(self, network: Outline, target: str) -> str:
        """Why nothing can be added there; see `Move.refused`."""
        bias = network.free.biases.get(target)
        if bias is None:
            return "it has no INT8 form, and so no error of weights to make up for"
        return bias.refused or vectors.refused(self.shift, bias.channels)

    def folds(self, network: Outline, target: str, defaults: Defaults) -> Mapping[Port, Change]:
        """The bias, while the group runs in INT8; see `Move.folds`."""
        bias = network.free.biases[target]
        if bias.port is None or defaults.precision_of(network.group(target)) is not Precision.INT8:
            return {}
        return {bias.port: _Added(vectors.unpacked(self.shift))}


@dataclass(frozen=True, eq=False)
class _Added(Change):
    shift: np.ndarray

    def apply(self, constant: np.ndarray | None) -> np.ndarray:
        if constant is None:
            return self.shift
        added: np.ndarray = constant + self.shift
        return added.reshape(constant.shape)
