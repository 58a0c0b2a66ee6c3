"""The parts of a network that zero-cost moves can change: normalisations, biases and channels that can be scaled.

The data are plain and picklable. They are part of the network outline, so that the user interface knows the possible
moves and the reasons against the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

Port = tuple[str, int]
"""An input of a layer: the name of the layer and the index of the input."""


@dataclass(frozen=True)
class NormalisationConsumer:
    """A layer that multiplies the result of a normalisation by a weight.

    Attributes:
        port: The input that reads the weight.
        weight: The tensor of the weight.
        axis: The axis of the weight along the channels of the normalisation.
        activation: The tensor that is multiplied: the result of the normalisation or a copy of it, channels last.
    """

    port: Port
    weight: str
    axis: int
    activation: str


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
        consumers: The layers that multiply the result by weights, if no other layer reads the result.
        no_smoothquant_reason: The reason why the channels cannot be scaled; "" if they can.
        scaled_tensors: The result, and its copies on the way to the consumers, channels last.
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
    consumers: tuple[NormalisationConsumer, ...] = ()
    no_smoothquant_reason: str = ""
    scaled_tensors: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class ChannelRun:
    """Consecutive channels of a tensor that take consecutive factors.

    Attributes:
        first: The number of the first factor.
        count: Number of factors.
        repeat: Number of consecutive channels that share each factor.
        exponent: 1 if the channels are divided by the factors, -1 if they are multiplied, 0 if they stay unchanged.
    """

    first: int
    count: int
    repeat: int = 1
    exponent: int = 1


@dataclass(frozen=True)
class ScaledTensor:
    """A tensor whose channels are divided by the factors of a `ChannelScaling`.

    Attributes:
        tensor: The name; "" for a constant that the network does not have yet.
        shape: The shape of the divisors, which broadcasts to the shape of the tensor. A size above 1 marks an axis
            along which the divisors differ.
        runs: The factor of each divisor, in the order of the flattened shape.
    """

    tensor: str
    shape: tuple[int, ...]
    runs: tuple[ChannelRun, ...]

    @property
    def axis(self) -> int | None:
        """The only axis along which the divisors differ; None if there are several axes or none."""
        axes = [axis for axis, size in enumerate(self.shape) if size > 1]
        return axes[0] if len(axes) == 1 else None

    def divisors(self, factors: np.ndarray) -> np.ndarray:
        """Returns the divisors of the tensor, float32 of `shape`, from the factors ``(channels,)``."""
        parts = [np.repeat(factors[run.first:run.first + run.count] if run.exponent > 0 else
                           1 / factors[run.first:run.first + run.count] if run.exponent else np.ones(run.count),
                           run.repeat) for run in self.runs]
        return np.concatenate(parts).astype(np.float32).reshape(self.shape)

    def channel_maxima(self, magnitudes: np.ndarray, channels: int) -> np.ndarray:
        """Returns the largest magnitude of the values that take each factor, float32 ``(channels,)``; 0 if none do.

        Args:
            magnitudes: Magnitudes in a shape that broadcasts with `shape`, such as those of the tensor itself.
            channels: Number of factors.
        """
        lead = magnitudes.ndim - len(self.shape)
        shape = (1,) * lead + self.shape
        reduced_axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
        largest = np.broadcast_to(magnitudes.max(axis=reduced_axes, keepdims=True, initial=0.0), shape).ravel()
        maxima, start = np.zeros(channels, np.float32), 0
        for run in self.runs:
            stop = start + run.count * run.repeat
            if run.exponent:
                maxima_of_run = largest[start:stop].reshape(run.count, run.repeat).max(axis=1, initial=0.0)
                part = maxima[run.first:run.first + run.count]
                np.maximum(part, maxima_of_run, out=part)
            start = stop
        return maxima


@dataclass(frozen=True)
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
        readers: The weights that are multiplied. The other side of a product of two computed tensors has no reader: its
            producers are multiplied, so that they have the exponent -1.
        tensors: The computed tensors whose channels are divided, in network order.
        clips: The Clips on the way. The scaling is correct only while no value reaches a bound.
        refusal_reason: The reason why the channels cannot be scaled; "" if they can. With Clips alone, the other
            attributes are set nevertheless: measured values may show that no bound is reached.
    """

    channels: int = 0
    producers: tuple[ScaledConstant, ...] = ()
    readers: tuple[ScaledConstant, ...] = ()
    tensors: tuple[ScaledTensor, ...] = ()
    clips: tuple[ClippedTensor, ...] = ()
    refusal_reason: str = ""


@dataclass(frozen=True)
class ZeroCostSupport:
    """The normalisations, biases and channels of a network that zero-cost moves can change, by group name.

    Attributes:
        norms: By the group that computes the normalisation's result.
        biases: Of every group that can run in INT8.
        channel_scalings: By the group of the first producer of the channels.
    """

    norms: Mapping[str, Normalisation] = field(default_factory=dict)
    biases: Mapping[str, CorrectableBias] = field(default_factory=dict)
    channel_scalings: Mapping[str, ChannelScaling] = field(default_factory=dict)

    def find_feeding_normalisation(self, group_name: str, reader_layers: tuple[str, ...]) -> str | None:
        """Returns the name of the group with a normalisation that feeds one of the layers; None if there is none.

        If ``group_name`` has a normalisation itself, the result is ``group_name``.
        """
        if group_name in self.norms:
            return group_name
        layer_names = set(reader_layers)
        return next((name for name, norm in self.norms.items() if any(consumer.port[0] in layer_names
                                                                      for consumer in norm.consumers)), None)
