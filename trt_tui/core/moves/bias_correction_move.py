"""The bias correction move: the mean error of an INT8 layer is subtracted from its bias.

Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.2.
Quantized weights shift the mean result of a layer by ``E[W'x'] - E[Wx]``, and a changed bias can compensate for that.
The means are measured on the calibration samples (appendix D of the paper).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class BiasCorrectionMove(Move):
    """A correction that is added to the bias of a layer as long as the layer runs in INT8.

    Attributes:
        shift: One number for each output channel in the layer's own units, encoded by `trt_tui.core.moves.vectors`.
    """

    edits_constants = has_measured_values = True
    kind, subject_kind = "bias", GROUP_SUBJECTS

    shift: str
    reason: str = "user"

    @property
    def effect_key(self) -> str:
        return self.shift

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        bias = network.zero_cost_support.biases.get(subject)
        if bias is None:
            return "it cannot run in INT8, so there is no weight error to correct"
        return bias.refusal_reason or vectors.invalid_vector_reason(self.shift, bias.channels)

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the edit of the bias constant if the fusion group runs in INT8, and no edit if not.

        Implements `Move.find_constant_edits`.
        """
        bias = network.zero_cost_support.biases[subject]
        if bias.port is None or default_precisions.precision_of(network.get_group(subject)) is not Precision.INT8:
            return {}
        return {bias.port: _BiasShift(vectors.decode_vector(self.shift))}


@dataclass(frozen=True, eq=False)
class _BiasShift(ConstantEdit):
    shift: np.ndarray

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        if constant is None:
            return self.shift
        shifted: np.ndarray = constant + self.shift
        return shifted.reshape(constant.shape)
