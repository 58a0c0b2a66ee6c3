"""The parts of a network that zero-cost moves can change: normalisations, biases and channels that can be scaled.

The data are plain and picklable. They are part of the network outline, so that the user interface knows the possible
moves and the reasons against the others.
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
    """The bias of a Conv, Gemm or MatMul, which bias correction can change or add.

    Attributes:
        layer: The Conv, Gemm or MatMul.
        port: The input that holds the bias. If the layer has no bias, this is the input after its last one. None if no
            constant can be added.
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
        numbers: The factor of each divisor, int32 in a shape that broadcasts to the tensor: ``n`` if the values are
            divided by factor ``n``, counted from 1, ``-n`` if they are multiplied by it, and 0 if they stay unchanged.
            A size above 1 marks an axis along which the divisors differ.
    """

    tensor: str
    numbers: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the divisors."""
        return self.numbers.shape

    @property
    def axis(self) -> int | None:
        """The only axis along which the divisors differ; None if there are several axes or none."""
        axes = [axis for axis, size in enumerate(self.shape) if size > 1]
        return axes[0] if len(axes) == 1 else None

    def divide(self, array: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Returns the tensor with its channels divided, float32.

        Args:
            factors: Positive numbers, float32 ``(channels,)``.
        """
        for exponent, operation in ((1, np.divide), (-1, np.multiply)):
            if (np.sign(self.numbers) == exponent).any():
                array = operation(array, self._expand_factors(factors, exponent))
        return array

    def divisors(self, factors: np.ndarray) -> np.ndarray:
        """Returns the divisors of the tensor, float32 of `shape`, from the factors ``(channels,)``."""
        divisors: np.ndarray = self._expand_factors(factors, 1) / self._expand_factors(factors, -1)
        return divisors

    def _expand_factors(self, factors: np.ndarray, exponent: int) -> np.ndarray:
        """Returns the factors of the channels with an exponent, float32 of `shape`; 1 for the other channels."""
        expanded: np.ndarray = np.where(np.sign(self.numbers) == exponent, factors[np.abs(self.numbers) - 1],
                                        np.float32(1))
        return expanded

    def reduce_magnitudes(self, array: np.ndarray) -> np.ndarray:
        """Returns the largest magnitude of the values with each divisor, of `shape`; 0 if there are no values."""
        axes = tuple(axis for axis, size in enumerate(self.shape) if size == 1)
        largest: np.ndarray = np.abs(array).max(axis=axes, keepdims=True, initial=0.0)
        return np.broadcast_to(largest, self.shape)

    def channel_maxima(self, magnitudes: np.ndarray, channels: int, exponent: int = 1) -> np.ndarray:
        """Returns the largest magnitude of the values that take each factor, float32 ``(channels,)``; 0 if none do.

        Args:
            magnitudes: The values of the tensor, or the result of `reduce_magnitudes`.
            channels: Number of factors.
            exponent: The exponent of the channels that count.
        """
        maxima, is_counted = np.zeros(channels, np.float32), np.sign(self.numbers) == exponent
        np.maximum.at(maxima, np.abs(self.numbers[is_counted]) - 1, self.reduce_magnitudes(magnitudes)[is_counted])
        return maxima


@dataclass(frozen=True, eq=False)
class ScaledConstant(ScaledTensor):
    """A constant whose channels are divided (a producer) or multiplied (a reader) by the factors.

    Attributes:
        port: The layer input that reads the constant.
        activation: The tensor that the layer multiplies by the constant of a reader; "" for a producer.
    """

    port: Port = ("", 0)
    activation: str = ""


@dataclass(frozen=True)
class ClippedTensor:
    """A tensor on the way of scaled channels that a Clip limits to other bounds than zero and infinity.

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
    """Channels that can be divided by positive factors at their producers and multiplied back at their readers.

    In FP32 the outputs of the network stay the same, whatever the factors are.

    Attributes:
        channels: Number of factors; 0 if the channels cannot be scaled.
        producers: The weights, biases, scales and added constants that are divided.
        readers: The weights that are multiplied.
        products: The layers that multiply two of the tensors. Their other operand, and its producers, are multiplied by
            the factors, with the exponent -1.
        tensors: The computed tensors whose channels are divided, in network order.
        clips: The Clips on the way. The scaling is correct only while no value reaches a bound.
        refusal_reason: The reason why the channels cannot be scaled; "" if they can. With Clips alone, the other
            attributes are set nevertheless: measured values may show that no bound is reached.
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
        """The layers behind which the channels are no longer divided, each once."""
        return tuple(dict.fromkeys((*(reader.port[0] for reader in self.readers), *self.products)))

    def find_tensor(self, name: str) -> ScaledTensor:
        """Returns a tensor of the set by its name."""
        return next(tensor for tensor in self.tensors if tensor.tensor == name)


@dataclass(frozen=True)
class ScoreScaling:
    """A Mul or Div that multiplies the scores of an attention, or an operand of their product, by one number.

    Attributes:
        layer: The Mul or Div.
        port: Its input that reads the number.
        constant: The tensor of the number.
        number: The number.
        is_division: True for a Div, which divides by the number.
        side: The position: behind the product ("scores"), or in front of its first ("query") or second operand ("key").
        tensors: Behind the product, the tensors from the result of the product to the input of the layer. In front, the
            tensors from the result of the layer to the operand.
    """

    layer: str
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
    """The constants that can take the scale of an attention at one operand of the product.

    Attributes:
        producers: The weights, biases and scales that produce the operand, or the part of them that does.
        tensors: The tensors from there to the operand.
        refusal_reason: The reason why no constants can take the scale; "" if they can.
    """

    producers: tuple[ScaledConstant, ...] = ()
    tensors: tuple[ScaledTensor, ...] = ()
    refusal_reason: str = ""


@dataclass(frozen=True)
class AttentionScale:
    """The scale of the scores of an attention, and the constants in front of the product that can take it.

    Attributes:
        product: The MatMul of queries and keys.
        scalings: The layers that scale, in network order.
        query: The first operand of the product.
        key: The second operand.
        refusal_reason: The reason why there is nothing to move; "" if there is.
    """

    product: str
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
        norms: By the group that computes the normalisation's result.
        biases: Of every group that can run in INT8.
        channel_scalings: By the group of the first producer of the channels.
        attention_scales: By the group of the product of queries and keys.
    """

    norms: Mapping[str, Normalisation] = field(default_factory=dict)
    biases: Mapping[str, CorrectableBias] = field(default_factory=dict)
    channel_scalings: Mapping[str, ChannelScaling] = field(default_factory=dict)
    attention_scales: Mapping[str, AttentionScale] = field(default_factory=dict)

    def find_scaling_subject(self, group_name: str, layers: Collection[str]) -> str | None:
        """Returns the name in `channel_scalings` of the channels that a group reads; None if there are none.

        If the group reads no such channels, or they cannot be scaled, the result is the group itself if it produces
        channels.
        """
        subjects = (self._subject_by_reading_layer.get(layer) for layer in layers)
        own = group_name if group_name in self.channel_scalings else None
        return next((subject for subject in subjects if subject is not None), own)

    @cached_property
    def _subject_by_reading_layer(self) -> Mapping[str, str]:
        return {layer: name for name, scaling in self.channel_scalings.items() if scaling.channels
                for layer in scaling.reading_layers}

    @cached_property
    def scaled_tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of the divisors of each tensor that a move can scale, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        tensors = [tensor for scaling in self.channel_scalings.values() for tensor in scaling.tensors]
        for scale in self.attention_scales.values():
            tensors += [*scale.query.tensors, *scale.key.tensors]
            tensors += [ScaledTensor(name, np.zeros((), np.int32)) for scaling in scale.scalings
                        for name in scaling.tensors]
        for tensor in tensors:
            shapes[tensor.tensor] = np.broadcast_shapes(shapes.get(tensor.tensor, ()), tensor.shape)
        return shapes

    @cached_property
    def edited_ports(self) -> tuple[Port, ...]:
        """The constants that the scaling of channels and of attentions can change, each once."""
        constants = [constant for scaling in self.channel_scalings.values()
                     for constant in (*scaling.producers, *scaling.readers)]
        scales = [scale for scale in self.attention_scales.values() if not scale.refusal_reason]
        constants += [constant for scale in scales for constant in (*scale.query.producers, *scale.key.producers)]
        return tuple(dict.fromkeys((*(constant.port for constant in constants),
                                    *(scaling.port for scale in scales for scaling in scale.scalings))))

    @cached_property
    def folded_scalars(self) -> Mapping[str, float]:
        """The numbers by which attentions are scaled and that the file computes from sizes, by tensor."""
        return {scaling.constant: scaling.number for scale in self.attention_scales.values()
                for scaling in scale.scalings}
