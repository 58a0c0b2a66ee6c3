"""The parts of a network that zero-cost moves can change: normalisations, biases, scalable channels and attention
scales.

They are plain picklable data in the network outline. The user interface reads from them which moves are possible, and
the reasons against the others.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

Port = tuple[str, int]
"""An input of a layer: the name of the layer and the index of the input."""


@dataclass(frozen=True)
class Normalisation:
    """A LayerNorm or RMSNorm over the last axes, either as one operator or decomposed into several layers.

    Attributes:
        operator: The ONNX operator: "LayerNormalization" or "RMSNormalization".
        layers: The layers that compute it, in network order; one layer if the file contains the operator.
        source: The tensor that is normalised.
        result: The normalised tensor.
        axis: The first normalised axis, counted from the end.
        epsilon: The constant that is added to the variance.
        scale: The input that reads the scale; None if there is no scale.
        bias: The input that reads the bias; None if there is no bias.
        channels: Size of the last axis; 0 if it is open.
        no_rewrite_reason: The reason why the operator cannot replace the layers; "" if it can.
    """

    operator: str
    layers: tuple[str, ...]
    source: str
    result: str
    axis: int
    epsilon: float
    scale: Port | None
    bias: Port | None
    channels: int
    no_rewrite_reason: str = ""

    @property
    def rewrite_text(self) -> str:
        """The advice to write the layers as the operator, or the reason against it."""
        if self.no_rewrite_reason:
            return f"it cannot be written as {self.operator}: {self.no_rewrite_reason}"
        return f"write it as {self.operator}, whose mean and variance TensorRT computes in FP32"


@dataclass(frozen=True)
class CorrectableBias:
    """The bias of a Conv, Gemm or MatMul to which bias correction can add.

    Attributes:
        layer: The Conv, Gemm or MatMul.
        port: The input of the bias, as layer and index. If the layer has no bias, it is the input after its last one.
            None if no constant can be added.
        channels: Number of output channels.
        refusal_reason: The reason why no constant can be added; "" if one can.
    """

    layer: str
    port: Port | None
    channels: int = 0
    refusal_reason: str = ""


@dataclass(frozen=True, eq=False)
class ScaledTensor:
    """A tensor whose channels are divided by the factors of a `ChannelScaling`.

    Attributes:
        tensor: The name.
        factor_ids: The factor of each value, int32 in a shape that broadcasts to the tensor. Values with ``n`` are
            divided by factor ``n``, counted from 1. Values with ``-n`` are multiplied by it, and values with 0 are
            unchanged.
    """

    tensor: str
    factor_ids: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factor_ids.shape

    def divide_channels(self, array: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Returns the values of the tensor with its channels divided by the factors, float32.

        Args:
            factors: Positive numbers, float32 ``(channels,)``.
        """
        for exponent, operation in ((1, np.divide), (-1, np.multiply)):
            if (np.sign(self.factor_ids) == exponent).any():
                array = operation(array, self._expand_factors(factors, exponent))
        return array

    def compute_divisors(self, factors: np.ndarray) -> np.ndarray:
        """Returns the divisors of the tensor, float32 of `shape`, for the given factors ``(channels,)``."""
        divisors: np.ndarray = self._expand_factors(factors, 1) / self._expand_factors(factors, -1)
        return divisors

    def _expand_factors(self, factors: np.ndarray, exponent: int) -> np.ndarray:
        """Returns the factors of the channels that are divided (exponent 1) or multiplied (-1), float32 of `shape`; 1
        for the others.
        """
        expanded: np.ndarray = np.where(
            np.sign(self.factor_ids) == exponent, factors[np.abs(self.factor_ids) - 1], np.float32(1)
        )
        return expanded

    def compute_magnitude_by_divisor(self, array: np.ndarray) -> np.ndarray:
        """Returns the largest magnitude among the values that share a divisor, of `shape`; 0 if there are no values."""
        axes = tuple(axis for axis, size in enumerate(self.shape) if size == 1)
        largest: np.ndarray = np.abs(array).max(axis=axes, keepdims=True, initial=0.0)
        return np.broadcast_to(largest, self.shape)

    def compute_channel_maxima(self, magnitudes: np.ndarray, channels: int, exponent: int = 1) -> np.ndarray:
        """Returns the largest magnitude among the values that share a factor, float32 ``(channels,)``; 0 without
        values.

        Args:
            magnitudes: The values of the tensor, or the result of `compute_magnitude_by_divisor`.
            channels: Number of factors.
            exponent: 1 for the channels that are divided, -1 for those that are multiplied.
        """
        maxima, is_counted = np.zeros(channels, np.float32), np.sign(self.factor_ids) == exponent
        np.maximum.at(
            maxima, np.abs(self.factor_ids[is_counted]) - 1, self.compute_magnitude_by_divisor(magnitudes)[is_counted]
        )
        return maxima


@dataclass(frozen=True, eq=False)
class ScaledConstant(ScaledTensor):
    """A constant whose channels are divided by the factors at a producer, or multiplied by them at a reader.

    Attributes:
        port: The layer input that reads the constant.
        activation: The tensor that the layer multiplies by the constant of a reader; "" for a producer.
    """

    port: Port = ("", 0)
    activation: str = ""


@dataclass(frozen=True)
class ClippedTensor:
    """A tensor with scaled channels that a Clip limits to bounds other than zero and infinity.

    Attributes:
        tensor: The input of the Clip.
        low: The lower bound; minus infinity if there is none.
        high: The upper bound; infinity if there is none.
    """

    tensor: str
    low: float
    high: float


@dataclass(frozen=True)
class ChannelScaling:
    """A set of channels that can be divided by positive factors where they are produced and multiplied back where they
    are read.

    In FP32 the outputs of the network stay the same, whatever the factors are.

    Attributes:
        channels: Number of factors; 0 if the channels cannot be scaled.
        producers: The weights, biases, scales and added constants that are divided.
        readers: The weights that are multiplied.
        products: The layers that multiply two of the tensors. Their other operand, and its producers, are multiplied by
            the factors, with the exponent -1.
        tensors: The computed tensors whose channels are divided, in network order.
        clips: The Clips between producers and readers. The scaling is correct only while no value reaches a bound.
        refusal_reason: The reason why the channels cannot be scaled; "" if they can. If Clips are the only reason, the
            other attributes are set, because measured values may show that no bound is reached.
    """

    channels: int = 0
    producers: tuple[ScaledConstant, ...] = ()
    readers: tuple[ScaledConstant, ...] = ()
    products: tuple[str, ...] = ()
    tensors: tuple[ScaledTensor, ...] = ()
    clips: tuple[ClippedTensor, ...] = ()
    refusal_reason: str = ""

    @property
    def reading_layers(self) -> tuple[str, ...]:
        """The layers that multiply the channels back, each once."""
        return tuple(dict.fromkeys((*(reader.port[0] for reader in self.readers), *self.products)))

    def find_tensor(self, name: str) -> ScaledTensor:
        """Returns the scaled tensor with a name."""
        return next(tensor for tensor in self.tensors if tensor.tensor == name)


@dataclass(frozen=True)
class ScoreScaling:
    """A Mul or Div by one number that scales the scores of an attention, or one operand of their product.

    Attributes:
        port: The Mul or Div, and its input that reads the number.
        constant: The tensor of the number.
        number: The number.
        is_division: True for a Div, which divides by the number.
        side: The position: behind the product ("scores"), or before its first ("query") or second operand ("key").
        tensors: The tensors between the layer and the product.
    """

    port: Port
    constant: str
    number: float
    is_division: bool
    side: str
    tensors: tuple[str, ...]

    @property
    def multiplier(self) -> float:
        """The number by which the layer multiplies."""
        return 1 / self.number if self.is_division else self.number


@dataclass(frozen=True)
class ScaledOperand:
    """The constants that can absorb the scale of an attention at one operand of the product.

    Attributes:
        producers: The weights, biases and scales that produce the operand.
        tensors: The tensors between these and the product.
        refusal_reason: The reason why no constants can absorb the scale; "" if they can.
    """

    producers: tuple[ScaledConstant, ...] = ()
    tensors: tuple[ScaledTensor, ...] = ()
    refusal_reason: str = ""


@dataclass(frozen=True)
class AttentionScale:
    """The scale of the scores of an attention, and the constants before the product that can absorb it.

    Attributes:
        scalings: The layers that scale, in network order.
        query: The first operand of the product.
        key: The second operand.
        refusal_reason: The reason why the scale cannot be moved; "" if it can.
    """

    scalings: tuple[ScoreScaling, ...] = ()
    query: ScaledOperand = field(default_factory=ScaledOperand)
    key: ScaledOperand = field(default_factory=ScaledOperand)
    refusal_reason: str = ""

    @property
    def factor(self) -> float:
        """The number by which all scalings together multiply the scores."""
        return math.prod(scaling.multiplier for scaling in self.scalings)


@dataclass(frozen=True)
class ZeroCostSupport:
    """The normalisations, biases and channels of a network that zero-cost moves can change, by group name.

    Attributes:
        norms: The normalisations, by the group that computes the result.
        biases: The biases of all groups that can run in INT8.
        channel_scalings: The scalable channels, by the group of their first producer.
        attention_scales: The scales, by the group of the product of queries and keys.
    """

    norms: Mapping[str, Normalisation] = field(default_factory=dict)
    biases: Mapping[str, CorrectableBias] = field(default_factory=dict)
    channel_scalings: Mapping[str, ChannelScaling] = field(default_factory=dict)
    attention_scales: Mapping[str, AttentionScale] = field(default_factory=dict)

    def find_channel_scaling_key(self, group_name: str, layers: Collection[str]) -> str | None:
        """Returns the key in `channel_scalings` of the channels that a group reads; None if there are none.

        If the group reads no scalable channels but produces channels, the key is the group itself.
        """
        subjects = (self._scaling_key_by_reading_layer.get(layer) for layer in layers)
        own = group_name if group_name in self.channel_scalings else None
        return next((subject for subject in subjects if subject is not None), own)

    @cached_property
    def _scaling_key_by_reading_layer(self) -> Mapping[str, str]:
        return {
            layer: name
            for name, scaling in self.channel_scalings.items()
            if scaling.channels
            for layer in scaling.reading_layers
        }

    @cached_property
    def scaled_tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of the divisors of each tensor that a move can scale, by tensor name."""
        shapes: dict[str, tuple[int, ...]] = {}
        tensors = [tensor for scaling in self.channel_scalings.values() for tensor in scaling.tensors]
        for scale in self.attention_scales.values():
            tensors += [*scale.query.tensors, *scale.key.tensors]
            tensors += [
                ScaledTensor(name, np.zeros((), np.int32)) for scaling in scale.scalings for name in scaling.tensors
            ]
        for tensor in tensors:
            shapes[tensor.tensor] = np.broadcast_shapes(shapes.get(tensor.tensor, ()), tensor.shape)
        return shapes

    @cached_property
    def scalable_layer_inputs(self) -> tuple[Port, ...]:
        """The layer inputs with constants that scaling of channels or attentions can change, each once."""
        constants = [
            constant
            for scaling in self.channel_scalings.values()
            for constant in (*scaling.producers, *scaling.readers)
        ]
        scales = [scale for scale in self.attention_scales.values() if not scale.refusal_reason]
        constants += [constant for scale in scales for constant in (*scale.query.producers, *scale.key.producers)]
        return tuple(
            dict.fromkeys(
                (
                    *(constant.port for constant in constants),
                    *(scaling.port for scale in scales for scaling in scale.scalings),
                )
            )
        )

    @cached_property
    def attention_scale_constants(self) -> Mapping[str, float]:
        """The numbers that scale attentions, by the tensor that holds the number."""
        return {
            scaling.constant: scaling.number for scale in self.attention_scales.values() for scaling in scale.scalings
        }
