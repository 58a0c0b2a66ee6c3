"""What the ways out that cost nothing at run time can be made on: normalisations, and biases to fold a shift into.

Plain data, picklable: an outline carries it, so that what shows a network knows what can be done, and why not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Port = tuple[str, int]
"""An input of a layer: its name and the input's index."""


@dataclass(frozen=True)
class NormalisationConsumer:
    """A layer that multiplies what a normalisation yields by a weight.

    Attributes:
        port: Where it reads the weight.
        weight: The weight's tensor.
        axis: The weight's axis along the normalisation's channels.
        activation: The tensor that it multiplies, the normalisation's result or a copy of it, channels last.
    """

    port: Port
    weight: str
    axis: int
    activation: str


@dataclass(frozen=True)
class Normalisation:
    """A LayerNorm or RMSNorm over the last axes, as one operator or taken apart.

    Attributes:
        operator: ONNX's name for it: "LayerNormalization" or "RMSNormalization".
        layers: What computes it, in network order; one layer where it is the operator.
        source: What it normalises.
        result: What it yields.
        axis: The first axis that is normalised, counted from the end.
        epsilon: What is added to the variance.
        scale: Where its scale is read; None without one.
        bias: The same of its bias.
        channels: Size of the last axis; 0 where it is open.
        no_rewrite_reason: Why the operator cannot stand in its place, "" where it can.
        consumers: The layers that multiply its result by weights, where these are all that read it.
        no_smoothquant_reason: Why its channels cannot be scaled, "" where they can.
        scaled_tensors: Its result and the copies of it on the way to them, channels last.
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
    """Where a constant can be added to what a layer multiplies.

    Attributes:
        layer: The Conv, Gemm or MatMul.
        port: The input that holds its bias, one beyond its last where it has none; None where nothing can be added.
        channels: How many output channels it has.
        refusal_reason: Why nothing can be added, "" where it can.
    """

    layer: str
    port: Port | None
    channels: int = 0
    refusal_reason: str = ""


@dataclass(frozen=True)
class ZeroCostSupport:
    """What a network offers beside precisions and ranges; by group name.

    Attributes:
        norms: By the group that yields the normalisation's result.
        biases: Of every group that can run in INT8.
    """

    norms: Mapping[str, Normalisation] = field(default_factory=dict)
    biases: Mapping[str, CorrectableBias] = field(default_factory=dict)

    def find_feeding_normalisation(self, group_name: str, reader_layers: tuple[str, ...]) -> str | None:
        """The group whose normalisation feeds one of some layers, or that is ``group_name`` itself; None where none
        does."""
        if group_name in self.norms:
            return group_name
        layer_names = set(reader_layers)
        return next((name for name, norm in self.norms.items() if any(consumer.port[0] in layer_names
                                                                      for consumer in norm.consumers)), None)
