"""The moves that change constants: biases, rounded weights, and the constants of scaled channels.

Files and saved sessions store the numbers of moves as base64 of float32 bytes, or of compressed small integers.
"""

import base64
import binascii
import functools
import hashlib
import math
import zlib
from abc import abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Literal

import numpy as np

from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import (
    AttentionScale,
    ChannelScaling,
    FusionGroup,
    NetworkOutline,
    Port,
    QdqSite,
    ScaledConstant,
    ScaledOperand,
    ScoreScaling,
)
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MAX_AMAX, QUANTIZED_TYPES, QuantizedType, broadcast_scales
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text

MAX_INTEGERS = 1 << 30
"""The maximum number of integers in one text. A damaged file cannot fill the memory."""

_COMPRESSION_LEVEL = 6


def encode_vector(vector: np.ndarray) -> str:
    """Returns a float vector ``(n,)`` as base64 text."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> np.ndarray:
    """Returns the float32 vector ``(n,)`` of a base64 text.

    Raises:
        ValueError: The text is not base64 of whole float32 numbers, or a number is not finite.
    """
    try:
        vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if not np.isfinite(vector).all():
        raise ValueError("a number is not finite")
    return vector


def invalid_vector_reason(text: str, length: int | None, *, positive: bool = False, noun: str = "factor") -> str:
    """Returns the reason why a base64 text does not encode a valid vector of ``length`` numbers; "" if it does.

    Args:
        length: The number of channels; None for any length above 0.
        positive: True if the numbers must be above 0.
        noun: The word for one number.
    """
    try:
        vector = decode_vector(text)
    except ValueError as error:
        return f"its values are not base64 of float32 numbers: {error}"
    if length is not None and len(vector) != length:
        return f"it has {counted_noun_text(len(vector), 'value')} for {counted_noun_text(length, 'channel')}"
    if not len(vector):
        return "it has no values"
    return f"a {noun} is a number above 0" if positive and not (vector > 0).all() else ""


def encode_integers(integers: np.ndarray) -> str:
    """Returns integers from -128 to 127 as base64 of compressed bytes."""
    data = np.ascontiguousarray(integers, np.int8).tobytes()
    return base64.b64encode(zlib.compress(data, _COMPRESSION_LEVEL)).decode("ascii")


def decode_integers(text: str) -> np.ndarray:
    """Returns the int8 vector ``(n,)`` of a text from `encode_integers`.

    Raises:
        ValueError: The text is not base64 of compressed bytes, or has more than `MAX_INTEGERS` integers.
    """
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b64decode(text, validate=True), MAX_INTEGERS)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof:
        raise ValueError("the compressed numbers are incomplete, or there are too many")
    return np.frombuffer(data, np.int8)


@dataclass(frozen=True)
class BiasCorrectionMove(Move):
    """A correction that is added to the bias of a layer while the layer runs in INT8.

    Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
    4.2. Quantized weights shift the mean result of a layer by ``E[W'x'] - E[Wx]``, and a changed bias can compensate
    for that. The means are measured on the calibration samples (appendix D of the paper).

    Attributes:
        shift: One number for each output channel in the layer's own units, encoded by `encode_vector`.
    """

    edits_constants = has_measured_values = True
    kind, subject_kind = "bias", GROUP_SUBJECTS

    shift: str
    reason: str = "user"

    @property
    def equivalence_key(self) -> str:
        return self.shift

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        bias = network.zero_cost_support.biases.get(subject)
        if bias is None:
            return "it cannot run in INT8, so there is no weight error to correct"
        return bias.refusal_reason or invalid_vector_reason(self.shift, bias.channels)

    def find_constant_edits(
        self, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions
    ) -> Mapping[Port, ConstantEdit]:
        """Returns the edit of the bias if the fusion group runs in INT8; no edit in other precisions.

        Implements `Move.find_constant_edits`.
        """
        bias = network.zero_cost_support.biases[subject]
        if bias.port is None or default_precisions.precision_of(network.get_group(subject)) is not Precision.INT8:
            return {}
        return {bias.port: ConstantEdit(functools.partial(_shift_bias, decode_vector(self.shift)))}


def _shift_bias(shift: np.ndarray, constant: np.ndarray | None) -> np.ndarray:
    return shift if constant is None else np.reshape(constant + shift, constant.shape)


ROUNDED_PRECISIONS = (Precision.INT8, Precision.INT4)
"""The precisions whose quantized values are integers, so that a weight can be rounded up or down."""

ROUNDED_OPERATORS = frozenset(("Conv", "Gemm", "MatMul"))
"""The operators whose weights can be rounded by the error of the output."""


@dataclass(frozen=True)
class RoundingMove(Move):
    """The scales and quantized values of a group's weight. They apply only while the group has the precision of the
    move.

    Sources of the methods that compute such moves: Frantar et al., "GPTQ: Accurate Post-Training Quantization for
    Generative Pre-trained Transformers" (ICLR 2023), and the choice of scales by the error of the output, layer by
    layer in the order of execution ("sequential MSE" of AIMET).

    The move replaces the weight by ``quantized value * scale`` and fixes the scale. All lowerings quantize this weight
    like any other, and get exactly the quantized values of the move. If weight and scale are rounded to FP16, the
    quotient differs from the quantized value q by at most ``|q| * 2**-10``. That is below a half for every integer
    type.

    The move stores the differences from the nearest quantized values. Almost all of them are 0, so they compress well
    and fit into the file of a config. The differences are valid for one weight only. Therefore the move has a digest of
    the edits that other moves make to the weight.

    Attributes:
        method: "scales" if the values are the nearest ones, "GPTQ" if they were rounded by the error of the output.
        precision: The precision in which the group has these values. In any other precision the move has no effect.
        scales: The scales, encoded by `encode_vector`: one for each channel or block, in the order of the
            weight in memory.
        differences: The differences of the quantized values from the nearest ones, encoded by
            `trt_tui.core.moves.constant_moves`, in the order of the weight in memory; "" if all are 0.
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
    def equivalence_key(self) -> tuple[str, str]:
        return self.precision.value, _hash_texts(self.scales, self.differences, self.weight_edits)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        group = network.get_group(subject)
        if self.precision not in ROUNDED_PRECISIONS:
            return f"weights in {self.precision.label} have no integers to round to"
        if self.precision not in group.allowed_precisions:
            return group.refusal_reasons.get(self.precision, f"it cannot run in {self.precision.label}")
        if find_sole_weight_site(group) is None:
            return "it does not have exactly one weight"
        if invalid := invalid_vector_reason(self.scales, None, positive=True, noun="scale"):
            return invalid
        if self.differences:
            try:
                decode_integers(self.differences)
            except ValueError as error:
                return f"its differences are not compressed integers: {error}"
        return ""

    def find_constant_edits(
        self, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions
    ) -> Mapping[Port, ConstantEdit]:
        """Returns the edit of the weight if the fusion group runs in the precision of the move; no edit in other
        precisions.

        Implements `Move.find_constant_edits`.
        """
        group = network.get_group(subject)
        site = find_sole_weight_site(group)
        if site is None or default_precisions.precision_of(group) is not self.precision:
            return {}
        return {
            (site.layer, site.index): ConstantEdit(
                functools.partial(self._round_weight, subject, site), self.weight_edits
            )
        }

    def _round_weight(self, subject: str, site: QdqSite, weight: np.ndarray | None) -> np.ndarray:
        """Returns the weight as ``quantized value * scale``.

        Raises:
            InputError: The move has values for a weight of another shape.
        """
        assert weight is not None  # `find_sole_weight_site` has found it
        quantized_type = QUANTIZED_TYPES[self.precision]
        layout = quantized_type.find_weight_scale_layout(weight.shape, site.axis)
        try:
            steps = broadcast_scales(decode_vector(self.scales), weight.shape, *layout)
            differences = decode_integers(self.differences).reshape(weight.shape) if self.differences else None
            rounded: np.ndarray = quantize_weight(weight, steps, quantized_type, differences) * steps
        except ValueError:
            raise InputError(
                f"the rounding of {subject} does not fit its weight",
                f"the weight has the shape {weight.shape}",
                "Take the rounding out of the config, and measure it again.",
            ) from None
        return rounded

    def find_weight_scales(self, precision: Precision) -> np.ndarray | None:
        return decode_vector(self.scales) if precision is self.precision else None


def find_sole_weight_site(group: FusionGroup) -> QdqSite | None:
    """Returns the Q/DQ site of a group's weight; None unless the group has exactly one weight."""
    sites = group.weight_qdq_sites()
    return sites[0] if len(sites) == 1 else None


def quantize_weight(
    weight: np.ndarray, steps: np.ndarray, quantized_type: QuantizedType, differences: np.ndarray | None = None
) -> np.ndarray:
    """Returns the quantized values of a weight, float32: the nearest values plus the differences of a move.

    Args:
        steps: The scales, in a form that broadcasts to the weight.
    """
    nearest = quantized_type.quantize((weight / steps).astype(np.float32, copy=False))
    if differences is None:
        return nearest
    return np.asarray(np.clip(nearest + differences, quantized_type.min_value, quantized_type.max_value))


def digest_weight_edits(edit_keys: tuple[Hashable, ...]) -> str:
    """Returns a digest of the edits of a weight by moves; "" if there are none."""
    return hashlib.sha256(repr(edit_keys).encode()).hexdigest()[:16] if edit_keys else ""


@functools.lru_cache(maxsize=4096)
def _hash_texts(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


class ChannelScalingMove(Move):
    """The base class of moves that divide the output channels of a group by factors, and multiply them back at the
    readers.

    A subclass is a dataclass that declares these attributes as fields, in the order of their keys in files.

    Attributes:
        factors: One positive number for each factor of the scaling, encoded by `encode_vector`.
        ranges: The amax of each divided tensor, after the division.
    """

    edits_constants = has_measured_values = scales_channels = True
    subject_kind = GROUP_SUBJECTS

    factors: str
    ranges: dict[str, float]

    @property
    def equivalence_key(self) -> tuple[object, ...]:
        return self.factors, tuple(sorted(self.ranges.items()))

    @abstractmethod
    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the output channels of a fusion group cannot be scaled by such a move; "" if they can."""

    def ranges_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the ranges of the move do not fit the divided tensors; "" if they fit."""
        tensors = {tensor.tensor for tensor in network.zero_cost_support.channel_scalings[subject].tensors}
        if unknown_tensors := [name for name in self.ranges if name not in tensors]:
            return f"{unknown_tensors[0]} is not one of the scaled tensors"
        return ""

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if reason := self.subject_refusal_reason(network, subject) or self.ranges_refusal_reason(network, subject):
            return reason
        if not all(0 <= amax <= MAX_AMAX for amax in self.ranges.values()):
            return "a range is a number from 0 to the largest FP32 value"
        channels = network.zero_cost_support.channel_scalings[subject].channels
        return invalid_vector_reason(self.factors, channels, positive=True)

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        return self.ranges

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        factors = decode_vector(self.factors)
        return {
            tensor.tensor: tensor.compute_divisors(factors)
            for tensor in network.zero_cost_support.channel_scalings[subject].tensors
        }

    def find_constant_edits(
        self, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions
    ) -> Mapping[Port, ConstantEdit]:
        """Returns the divisions of the constants that produce the channels, and the multiplications of the weights that
        read them.

        Implements `Move.find_constant_edits`.
        """
        return make_scaling_edits(network.zero_cost_support.channel_scalings[subject], decode_vector(self.factors))


def make_scaling_edits(scaling: ChannelScaling, factors: np.ndarray) -> dict[Port, ConstantEdit]:
    """Returns the edits of the constants of a `ChannelScaling` for given factors, float32 ``(channels,)``.

    A weight that both reads and produces channels of the set is multiplied along its inputs and divided along its
    outputs.
    """
    constants_by_port = collect_by_key((constant.port, constant) for constant in (*scaling.producers, *scaling.readers))
    return {
        port: ConstantEdit(partial(_divide_channels, factors, constants))
        for port, constants in constants_by_port.items()
    }


def _divide_channels(
    factors: np.ndarray, constants: Sequence[ScaledConstant], constant: np.ndarray | None
) -> np.ndarray:
    assert constant is not None, "channels are scaled by constants of the network"
    for scaled_constant in constants:
        constant = scaled_constant.divide_channels(constant, factors)
    return constant


DEFAULT_STRENGTH = 0.5
"""The exponent a: 0 leaves the difficulty of quantization in the activations, 1 moves it into the weights."""


@dataclass(frozen=True)
class SmoothQuantMove(ChannelScalingMove):
    """The SmoothQuant factors of the output channels of a group, and the ranges of the divided tensors.

    The move applies to the group that produces the channels.

    The source is Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
    Models" (ICML 2023): ``X W = (X diag(s)^-1) (diag(s) W)`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``. The division
    is folded into the constants of the producers (the scale and bias of a normalisation, or the weights and bias of a
    layer), the product into the weights of the readers. Nothing is added at run time, and only the rounding changes.
    `trt_tui.core.network.channels.channel_scaling` finds the channels.

    Attributes:
        strength: The exponent a from which the factors were computed.
        method: The formula of the factors: SmoothQuant, or AWQ in configs of earlier versions.
    """

    kind = "smooth"

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"
    method: Literal["SmoothQuant", "AWQ"] = "SmoothQuant"

    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return channel_scaling_refusal_reason(network, subject)


def channel_scaling_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the output channels of a fusion group cannot be scaled; "" if they can."""
    scaling = network.zero_cost_support.channel_scalings.get(subject)
    if scaling is None:
        return "it has no constant weight or scale by which its channels could be divided"
    return scaling.refusal_reason


def smoothquant_factors(
    activation_amax: np.ndarray, weight_amax: np.ndarray, strength: float = DEFAULT_STRENGTH
) -> np.ndarray:
    """Returns the SmoothQuant factors of the channels, float32 ``(channels,)``: ``max|X_j|^a / max|W_j|^(1-a)``.

    The factor is 1 for a channel whose activations or weights are all zero.

    Args:
        activation_amax: Largest magnitude of each channel in front of the weights.
        weight_amax: Largest magnitude of the weights of each channel, over all layers that read the channel.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = activation_amax.astype(np.float64) ** strength / weight_amax.astype(np.float64) ** (1 - strength)
    usable = np.isfinite(ratios) & (ratios > 0) & (activation_amax > 0)
    return np.where(usable, ratios, 1.0).astype(np.float32)


WEIGHT_RANGES_FORMULA = "weights"
"""The formula that equalizes the ranges of the weights on both sides of a channel."""

EQUALIZATION_FORMULAS: Mapping[str, float | None] = {"0.5": 0.5, WEIGHT_RANGES_FORMULA: None, "0.75": 0.75, "1": 1.0}
"""The formulas of the factors, the usual one first: the exponent of the activations, None for the ranges of weights."""

CLIP_HEADROOM = 1.25
"""The minimum ratio between a bound of a Clip and the values of a channel with another factor than 1, on all
samples."""

MAX_FACTOR = 1024.0
"""The largest factor, and the reciprocal of the smallest one."""


def equalization_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the output channels of a fusion group cannot be equalized; "" if they can.

    A Clip is no obstacle, because channels that reach its bounds keep the factor 1.
    """
    scaling = network.zero_cost_support.channel_scalings.get(subject)
    if scaling is None:
        return "it writes no channels that other layers multiply"
    if not scaling.channels:
        return scaling.refusal_reason
    if scaling.products:
        return "its channels are multiplied by other computed channels, not by weights alone"
    return "SmoothQuant scales its channels" if subject in network.zero_cost_support.norms else ""


def compute_equalization_factors(
    formula: str, activation_amax: np.ndarray, producer_amax: np.ndarray, reader_amax: np.ndarray
) -> np.ndarray:
    """Returns the channel factors of one of `EQUALIZATION_FORMULAS`, float32 ``(channels,)``; 1 for dead channels.

    A channel is dead if its activations are all zero, or the weights on a side that the formula uses.

    Args:
        activation_amax: Largest magnitude of each channel at the readers.
        producer_amax: Largest magnitude of the weights that write each channel.
        reader_amax: Largest magnitude of the weights that read each channel.
    """
    exponent = EQUALIZATION_FORMULAS[formula]
    if exponent is not None:
        return smoothquant_factors(activation_amax, reader_amax, exponent)
    factors = smoothquant_factors(producer_amax, reader_amax, 0.5)
    return np.where(activation_amax > 0, factors, 1.0).astype(np.float32)


def limit_factors(factors: np.ndarray, min_factors: np.ndarray, is_fixed: np.ndarray) -> np.ndarray:
    """Adjusts channel factors so that no range becomes larger, float32 ``(channels,)``.

    All factors are multiplied by a common number, which does not change quantization errors. It is the smallest number
    with which every factor reaches its minimum. If there are fixed channels, it is the number that brings their factors
    nearest to 1. Then the factors are limited to `MAX_FACTOR`, its reciprocal and their minima.

    Args:
        factors: Positive factors.
        min_factors: The minimum of each factor: the share of the range of a tensor that the channel uses.
        is_fixed: True for channels whose factor must be 1.
    """
    exact = factors.astype(np.float64)
    if is_fixed.any():
        scale = float(np.exp(-np.log(exact[is_fixed]).mean()))
    else:
        scale = float((min_factors / exact).max(initial=0.0)) or 1.0
    limited = np.maximum(np.clip(exact * scale, 1 / MAX_FACTOR, MAX_FACTOR), min_factors)
    return np.where(is_fixed, 1.0, limited).astype(np.float32)


@dataclass(frozen=True)
class EqualizationMove(ChannelScalingMove):
    """The equalization factors of the output channels of a group, and the ranges of the divided tensors.

    A network computes the same values if the output channels of a layer are divided by positive factors and all readers
    multiply the channels back, as long as the operators between commute with the factors. Sources of the factors:

    - Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.1:
      ``s = sqrt(r1 / r2)``, after which the weights ``r1`` that write a channel and ``r2`` that read it have equal
      ranges.
    - Xiao et al., "SmoothQuant" (ICML 2023), for any producer: ``s = max|X|^a / max|W|^(1-a)``.

    No formula is best for every network. `trt_tui.core.measure.zero_cost_kinds` chooses by the judged error.

    Attributes:
        formula: The formula of the factors, one of `EQUALIZATION_FORMULAS`.
    """

    kind = "equalize"

    formula: str
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return equalization_refusal_reason(network, subject)

    def ranges_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        unknown_tensors = [name for name in self.ranges if not network.has_tensor(name)]
        return f"{unknown_tensors[0]} is not a tensor of the network" if unknown_tensors else ""

    def fp32_difference_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns a sentence if a Clip limits channels with a factor other than 1.

        Implements `Move.fp32_difference_reason`.
        """
        clipped = {clip.tensor for clip in network.zero_cost_support.channel_scalings[subject].clips}
        is_limited = any(
            (divisors != 1).any()
            for tensor, divisors in self.find_divisors(network, subject).items()
            if tensor in clipped
        )
        return (
            f"a Clip limits equalized channels at other values if these exceed {CLIP_HEADROOM:g} times those of the"
            " samples"
            if is_limited
            else ""
        )


class ScalePlacement(StrEnum):
    """The place before the product to which the scale of an attention moves.

    - QUERY, KEY: the constants that produce this operand;
    - BOTH: the square root in the constants of both operands;
    - SCALING: the Mul or Div that the network has in front of the product.
    """

    QUERY = "query"
    KEY = "key"
    BOTH = "both"
    SCALING = "scaling"


PLACEMENT_TEXTS = {
    ScalePlacement.QUERY: "the weights of Q",
    ScalePlacement.KEY: "the weights of K",
    ScalePlacement.BOTH: "the weights of Q and K",
    ScalePlacement.SCALING: "the scaling in front of QK",
}
"""The places of the scale for users."""

PLACEMENT_LABELS = {
    ScalePlacement.QUERY: "in Q",
    ScalePlacement.KEY: "in K",
    ScalePlacement.BOTH: "in Q and K",
    ScalePlacement.SCALING: "in front",
}
"""The places of the scale, short, for lists."""

SINGLE_PLACEMENTS = (ScalePlacement.QUERY, ScalePlacement.KEY, ScalePlacement.SCALING)
"""The places at one operand, the best first."""


@dataclass(frozen=True)
class AttentionScaleMove(Move):
    """A move of the scale of an attention to a place before its product. It applies to the group of the product.

    ``(q k) s = (s q) k``: the weights and bias that produce the queries or the keys absorb the number, or both absorb
    its square root. The layers that scaled then multiply by 1 and are left out of exported networks. If the scale
    follows the product, the product of large queries and keys may overflow in FP16. TensorRT's documents ask for the
    scale before the product. In FP32 the result is equal if the number is a power of two, and equal up to rounding if
    not.

    Attributes:
        placement: A value of `ScalePlacement`.
        factor: The scale: the number by which the scores are multiplied in total.
        range_factors: The factors by which the ranges of tensors change, by tensor.
    """

    edits_constants = True
    kind, subject_kind = "qk_scale", GROUP_SUBJECTS

    placement: Literal["query", "key", "both", "scaling"]
    factor: float
    range_factors: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    @property
    def equivalence_key(self) -> tuple[str, float]:
        return self.placement, self.factor

    @property
    def placement_text(self) -> str:
        """The name of the place for users."""
        return PLACEMENT_TEXTS[ScalePlacement(self.placement)]

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if reason := attention_scale_refusal_reason(network, subject):
            return reason
        scale = network.zero_cost_support.attention_scales[subject]
        if not math.isclose(self.factor, scale.factor, rel_tol=1e-5):
            return f"its scale is {scale.factor:g}"
        if not all(0 < factor < math.inf for factor in self.range_factors.values()):
            return "a factor of a range is a number above 0"
        return placement_refusal_reason(scale, ScalePlacement(self.placement))

    def find_range_factors(self) -> Mapping[str, float]:
        return self.range_factors

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        scale = network.zero_cost_support.attention_scales[subject]
        return compute_placement_divisors(scale, ScalePlacement(self.placement))

    def find_constant_edits(
        self, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions
    ) -> Mapping[Port, ConstantEdit]:
        """Returns the edits of the weights and biases that absorb the scale, and of the numbers in the layers that
        scale.

        Implements `Move.find_constant_edits`.
        """
        scale, placement = network.zero_cost_support.attention_scales[subject], ScalePlacement(self.placement)
        absorbing_layer = _find_absorbing_layer(scale) if placement is ScalePlacement.SCALING else None
        edits: dict[Port, ConstantEdit] = {}
        for scaling in scale.scalings:
            number = (
                1.0 if scaling is not absorbing_layer else (1 / scale.factor if scaling.is_division else scale.factor)
            )
            edits[scaling.port] = ConstantEdit(partial(_replace_number, number))
        operands = _list_scaled_operands(scale, placement)
        producers = tuple(producer for operand in operands for producer in operand.producers)
        factor = np.full(1, scale.factor ** (1 / max(len(operands), 1)), np.float32)
        return edits | make_scaling_edits(ChannelScaling(1, producers), factor)

    def find_neutral_layers(self, network: NetworkOutline, subject: str) -> Collection[str]:
        scale, placement = network.zero_cost_support.attention_scales[subject], ScalePlacement(self.placement)
        absorbing_layer = _find_absorbing_layer(scale) if placement is ScalePlacement.SCALING else None
        return [scaling.port[0] for scaling in scale.scalings if scaling is not absorbing_layer]


def _replace_number(number: float, constant: np.ndarray | None) -> np.ndarray:
    assert constant is not None  # the number by which the layer multiplies
    return np.full(constant.shape, number, np.float32)


def attention_scale_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the scale of an attention cannot move to any place before its product; "" if it can."""
    scale = network.zero_cost_support.attention_scales.get(subject)
    if scale is None:
        return "it is not the product of queries and keys of an attention"
    reasons = [placement_refusal_reason(scale, placement) for placement in SINGLE_PLACEMENTS]
    return scale.refusal_reason or (reasons[0] if all(reasons) else "")


def placement_refusal_reason(scale: AttentionScale, placement: ScalePlacement) -> str:
    """Returns the reason why the scale of an attention cannot move to a given place; "" if it can."""
    if placement is ScalePlacement.SCALING:
        if _find_absorbing_layer(scale) is None:
            return "no layer in front of the product scales an operand"
        return "" if any(scaling.side == "scores" for scaling in scale.scalings) else "the scale is in front already"
    return next(
        (operand.refusal_reason for operand in _list_scaled_operands(scale, placement) if operand.refusal_reason), ""
    )


def compute_placement_divisors(scale: AttentionScale, placement: ScalePlacement) -> dict[str, np.ndarray]:
    """Returns the divisors of the tensors whose values change if the scale moves to a place, float32, by tensor name."""
    divisors: dict[str, np.ndarray] = {}

    def add_divisor(tensor: str, divisor: np.ndarray) -> None:
        divisors[tensor] = divisors[tensor] * divisor if tensor in divisors else divisor

    operands = _list_scaled_operands(scale, placement)
    factor = np.full(1, scale.factor ** (1 / max(len(operands), 1)), np.float32)
    for operand in operands:
        for tensor in operand.tensors:
            add_divisor(tensor.tensor, tensor.compute_divisors(factor))
    absorbing_layer = _find_absorbing_layer(scale) if placement is ScalePlacement.SCALING else None
    for scaling in scale.scalings:
        remaining = scale.factor if scaling is absorbing_layer else 1.0
        multiplier = remaining / scaling.multiplier if scaling.side != "scores" else scaling.multiplier
        for name in scaling.tensors:
            add_divisor(name, np.full((), 1 / multiplier, np.float32))
    return divisors


def _list_scaled_operands(scale: AttentionScale, placement: ScalePlacement) -> list[ScaledOperand]:
    """Returns the operands whose constants absorb the scale. Each of two operands absorbs its square root."""
    return {
        ScalePlacement.QUERY: [scale.query],
        ScalePlacement.KEY: [scale.key],
        ScalePlacement.BOTH: [scale.query, scale.key],
        ScalePlacement.SCALING: [],
    }[placement]


def _find_absorbing_layer(scale: AttentionScale) -> ScoreScaling | None:
    """Returns the layer before the product that can absorb the whole scale; None if there is none."""
    return next((scaling for scaling in scale.scalings if scaling.side != "scores"), None)


def make_attention_scale_move(
    network: NetworkOutline, subject: str, placement: ScalePlacement, reason: str = "user"
) -> AttentionScaleMove:
    """Returns the move of an attention's scale to a place, with the resulting changes of ranges.

    If only a part of a tensor changes, its range stays equal or grows with that part.
    """
    scale = network.zero_cost_support.attention_scales[subject]
    factors = {
        tensor: float((1 / divisor).max(initial=0.0 if divisor.size == 1 else 1.0))
        for tensor, divisor in compute_placement_divisors(scale, placement).items()
        if tensor in network.calibrated_tensors
    }
    return AttentionScaleMove(placement.value, scale.factor, factors, reason)
