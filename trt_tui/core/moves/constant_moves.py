"""The moves that replace the constants of a layer: its bias, or the quantized values of its weight."""

import functools
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqSite
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, QuantizedType, broadcast_weight_scales
from trt_tui.errors import InputError


@dataclass(frozen=True)
class BiasCorrectionMove(Move):
    """A correction that is added to the bias of a layer as long as the layer runs in INT8.

    Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
    4.2. Quantized weights shift the mean result of a layer by ``E[W'x'] - E[Wx]``, and a changed bias can compensate
    for that. The means are measured on the calibration samples (appendix D of the paper).

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
        return {bias.port: ConstantEdit(functools.partial(_shift_bias, vectors.decode_vector(self.shift)))}


def _shift_bias(shift: np.ndarray, constant: np.ndarray | None) -> np.ndarray:
    return shift if constant is None else np.reshape(constant + shift, constant.shape)


ROUNDED_PRECISIONS = (Precision.INT8, Precision.INT4)
"""The precisions whose quantized values are integers, so that a weight can be rounded up or down."""

ROUNDED_OPERATORS = frozenset(("Conv", "Gemm", "MatMul"))
"""The operators whose weights can be rounded by the error of the output."""


@dataclass(frozen=True)
class RoundingMove(Move):
    """The scales and the rounding of the weight of one group, used while the group runs in one precision.

    Sources of the methods that compute such moves: Frantar et al., "GPTQ: Accurate Post-Training Quantization for
    Generative Pre-trained Transformers" (ICLR 2023), and the choice of scales by the error of the output, layer by
    layer in the order of execution ("sequential MSE" of AIMET).

    The move turns the weight into ``quantized value * scale`` and fixes the scale. All lowerings quantize this weight
    like any other, and get the quantized values of the move back exactly: the quotient differs from the quantized value
    q by at most ``|q| * 2**-10`` if weight and scale are rounded to FP16, which is below a half for every type with
    integers.

    The move stores the differences from the nearest values, since almost all of them are 0 and compress well. One file
    therefore still describes a config completely. The differences belong to one weight, whose edits by other moves are
    part of the move as a digest.

    Attributes:
        method: "scales" if the values are the nearest ones, "GPTQ" if they were rounded by the error of the output.
        precision: The precision in which the group has these values. In any other precision the move has no effect.
        scales: The scales, encoded by `trt_tui.core.moves.vectors`: one for each channel or block, in the order of the
            weight in memory.
        differences: The differences of the quantized values from the nearest ones, encoded by
            `trt_tui.core.moves.vectors`, in the order of the weight in memory; "" if all are 0.
        weight_edits: The digest of the edits that other moves made to the weight before; "" if there were none.
    """

    edits_constants = has_measured_values = True
    kind, subject_kind = "rounding", GROUP_SUBJECTS

    method: Literal["scales", "GPTQ"]
    precision: Precision
    scales: str
    differences: str = ""
    weight_edits: str = ""
    reason: str = "user"

    @property
    def effect_key(self) -> tuple[str, str]:
        return self.precision.value, _digest_texts(self.scales, self.differences, self.weight_edits)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        group = network.get_group(subject)
        if self.precision not in ROUNDED_PRECISIONS:
            return f"weights in {self.precision.label} have no integers to round to"
        if self.precision not in group.allowed_precisions:
            return group.refusal_reasons.get(self.precision, f"it cannot run in {self.precision.label}")
        if find_rounded_site(group) is None:
            return "it does not have exactly one weight"
        if invalid := vectors.invalid_vector_reason(self.scales, None, positive=True, noun="scale"):
            return invalid
        if self.differences:
            try:
                vectors.decode_integers(self.differences)
            except ValueError as error:
                return f"its differences are not compressed integers: {error}"
        return ""

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the edit of the weight if the fusion group runs in the precision of the move, and no edit if not.

        Implements `Move.find_constant_edits`.
        """
        group = network.get_group(subject)
        site = find_rounded_site(group)
        if site is None or default_precisions.precision_of(group) is not self.precision:
            return {}
        return {(site.layer, site.index): ConstantEdit(functools.partial(self._round_weight, subject, site),
                                                       self.weight_edits)}

    def _round_weight(self, subject: str, site: QdqSite, weight: np.ndarray | None) -> np.ndarray:
        """Returns the weight as ``quantized value * scale``.

        Raises:
            InputError: The move has values for a weight of another shape.
        """
        assert weight is not None  # `find_rounded_site` has found it
        quantized_type = QUANTIZED_TYPES[self.precision]
        layout = quantized_type.find_weight_scale_layout(weight.shape, site.axis)
        try:
            steps = broadcast_weight_scales(vectors.decode_vector(self.scales), weight.shape, *layout)
            differences = vectors.decode_integers(self.differences).reshape(weight.shape) if self.differences else None
            rounded: np.ndarray = quantize_weight(weight, steps, quantized_type, differences) * steps
        except ValueError:
            raise InputError(f"the rounding of {subject} does not fit its weight",
                             f"the weight has the shape {weight.shape}",
                             "Take the rounding out of the config, and measure it again.") from None
        return rounded

    def find_weight_scales(self, precision: Precision) -> np.ndarray | None:
        return vectors.decode_vector(self.scales) if precision is self.precision else None


def find_rounded_site(group: FusionGroup) -> QdqSite | None:
    """Returns the only weight of a group; None if the group has no weight or several."""
    sites = group.weight_qdq_sites()
    return sites[0] if len(sites) == 1 else None


def quantize_weight(weight: np.ndarray, steps: np.ndarray, quantized_type: QuantizedType,
                    differences: np.ndarray | None = None) -> np.ndarray:
    """Returns the quantized values of a weight, float32: the nearest ones, with the differences of a move added.

    Args:
        steps: The scales, in a form that broadcasts to the weight.
    """
    nearest = quantized_type.quantize((weight / steps).astype(np.float32, copy=False))
    if differences is None:
        return nearest
    values: np.ndarray = np.clip(nearest + differences, quantized_type.min_value, quantized_type.max_value)
    return values


def digest_weight_edits(edit_keys: tuple[Hashable, ...]) -> str:
    """Returns the digest of the edits that moves make to a weight; "" if there are none."""
    return hashlib.sha256(repr(edit_keys).encode()).hexdigest()[:16] if edit_keys else ""


@functools.lru_cache(maxsize=4096)
def _digest_texts(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
