"""The parts of a network that zero-cost moves can change: normalisations, and biases that can be corrected.

The data are plain and picklable. They are part of the network outline, so that the user interface knows the possible
moves and the reasons against the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class ZeroCostSupport:
    """The normalisations and biases of a network that zero-cost moves can change, by group name.

    Attributes:
        norms: By the group that computes the normalisation's result.
        biases: Of every group that can run in INT8.
    """

    norms: Mapping[str, Normalisation] = field(default_factory=dict)
    biases: Mapping[str, CorrectableBias] = field(default_factory=dict)

    def find_feeding_normalisation(self, group_name: str, reader_layers: tuple[str, ...]) -> str | None:
        """Returns the name of the group with a normalisation that feeds one of the layers; None if there is none.

        If ``group_name`` has a normalisation itself, the result is ``group_name``.
        """
        if group_name in self.norms:
            return group_name
        layer_names = set(reader_layers)
        return next((name for name, norm in self.norms.items() if any(consumer.port[0] in layer_names
                                                                      for consumer in norm.consumers)), None)
