"""Layers, fusion groups and the network outline: plain picklable data without weights.

The outline contains the parts of a network that zero-cost moves can change: normalisations, biases, scalable channels
and attention scales. The user interface reads from them which moves are possible, and the reasons against the others.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np

from trt_tui.core.precision import ASSIGNABLE, Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import TensorInfo

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


class LayerKind(StrEnum):
    """The role of a layer in decisions about precision, such as computing, copying or shape arithmetic."""

    COMPUTE = "compute"
    COPY = "copy"
    CAST = "cast"
    CONSTANT = "constant"
    SHAPE = "shape"
    INTEGER = "integer"
    OPAQUE = "opaque"


IRRELEVANT_KINDS = (LayerKind.CAST, LayerKind.CONSTANT, LayerKind.SHAPE, LayerKind.INTEGER)
"""Kinds of layers that do not affect precision; the layer tree counts them in one row."""

Shape: TypeAlias = tuple[int | str | None, ...]
"""The sizes of a tensor: a number, the name of an open size, or None for an open size without a name."""


@dataclass(frozen=True)
class Layer:
    """One ONNX node in the description of a network.

    Attributes:
        name: Unique; TensorRT uses it in its layer names.
        index: Position in network order.
        inputs: Tensor names; "" for an omitted optional input.
        scope: Call path in the file (local functions, exporter metadata), outermost first; may be empty.
        macs: Multiply-accumulates of one execution; an open batch size counts as 1. None if unknown.
        refusal_reason: The reason why the layer cannot take a lower precision; "" if it can.
        body_layers: Number of layers inside its subgraphs, at any depth, that compute floats.
    """

    name: str
    op_type: str
    domain: str
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: LayerKind
    scope: tuple[str, ...] = ()
    macs: int | None = None
    refusal_reason: str = ""
    body_layers: int = 0


@dataclass(frozen=True)
class QdqSite:
    """An input of a layer that gets a Q/DQ pair when its group runs in INT8.

    Other quantized types can have fewer sites.

    Attributes:
        index: Index of the input.
        axis: Channel axis of a weight, which has one scale per channel. None for one scale per tensor.
        role: "input", "weight" or "skip" (the other input of a residual Add).
        reduced_axis: The axis along which a Gemm or MatMul sums products; None for other operators, or if the number of
            dimensions is unknown.
    """

    layer: str
    index: int
    tensor: str
    role: str
    axis: int | None = None
    reduced_axis: int | None = None


@dataclass(frozen=True)
class FilePrecision:
    """The precision that a quantized or typed model file gives to a fusion group.

    Attributes:
        label: The precision for users: "INT8", "INT4 w" if only weights are quantized, "FP16".
        float_type: The float type of the products of the group, or of most of its layers if none of them multiplies.
        result_type: The float type of the group's results.
        nearest_precision: The precision of a config that is nearest to this one.
        is_plain_fp32: True if the group runs in FP32 without Q/DQ nodes before it.
        refused_nodes: Nodes of the group, or before it, that a TensorRT release refuses, each with the reason.
    """

    label: str
    float_type: Precision
    result_type: Precision
    nearest_precision: Precision
    is_plain_fp32: bool
    refused_nodes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FusionGroup:
    """The layers that TensorRT runs as one kernel and that take one precision.

    Attributes:
        name: The name of its main layer (the Conv, the Softmax, ...).
        operator: The operator of its main layer, or the name of the decomposed operator, such as GELU.
        layers: Names, in network order.
        inputs: Float tensors that are computed outside the group, in order of first use.
        outputs: Tensors that are read outside the group.
        final_tensor: The last computed tensor; the group's error is measured there.
        sites: Inputs that get Q/DQ when the group runs in INT8; empty if it cannot.
        refusal_reasons: The reason why a precision is not possible, by precision.
        shape_layers: Layers outside of all groups that compute shapes for the group from the group's own tensors, in
            network order.
        attention: The attention that contains the group, named after its Softmax; "" if there is none.
        attention_role: The role in the attention: ``QK``, ``Softmax``, ``PV``, or ``mask`` for a group between these.
            "" if the group is in no attention.
        file_precision: The precision of the group in the file; None if the file has no precisions.
    """

    name: str
    operator: str
    layers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    final_tensor: str
    sites: tuple[QdqSite, ...] = ()
    refusal_reasons: Mapping[Precision, str] = field(default_factory=dict)
    shape_layers: tuple[str, ...] = ()
    attention: str = ""
    attention_role: str = ""
    file_precision: FilePrecision | None = None

    @property
    def is_quantizable(self) -> bool:
        return Precision.INT8 not in self.refusal_reasons

    @cached_property
    def allowed_precisions(self) -> frozenset[Precision]:
        """The precisions that the fusion group can run in."""
        file_precisions = (Precision.FILE,) if self.file_precision is not None else ()
        return frozenset(
            precision for precision in (*ASSIGNABLE, *file_precisions) if precision not in self.refusal_reasons
        )

    def resolve_file_precision(self, precision: Precision) -> Precision:
        """Replaces `Precision.FILE` by the nearest precision that a config can assign; returns other precisions
        unchanged.
        """
        return (
            self.file_precision.nearest_precision
            if precision is Precision.FILE and self.file_precision is not None
            else precision
        )

    def precision_shown_by_engine(self, precision: Precision) -> Precision:
        """Returns the precision that the inspector of an engine shows for a fusion group with the requested precision.

        It has no type of the accumulator, because no TensorRT release reports one.
        """
        return self.resolve_file_precision(precision).value_type

    def precision_rank(self, precision: Precision) -> int:
        """Returns the rank of a precision among all precisions, including the file precision; a higher precision ranks
        higher.

        The order is that of `trt_tui.core.precision.precision_rank`. The file precision has the rank of FP32 if it is
        plain FP32, and at most the rank of FP16 if not.
        """
        if precision is not Precision.FILE or self.file_precision is None:
            return precision_rank(precision)
        return (
            precision_rank(Precision.FP32)
            if self.file_precision.is_plain_fp32
            else min(precision_rank(self.file_precision.nearest_precision), precision_rank(Precision.FP16))
        )

    def precision_label(self, precision: Precision) -> str:
        """Returns the label of a precision for users; a precision that the model file prescribes gets the suffix `` f``."""
        return (
            f"{self.file_precision.label} f"
            if precision is Precision.FILE and self.file_precision is not None
            else precision.label
        )

    @cached_property
    def main_layers(self) -> frozenset[str]:
        """The layers that multiply (Conv, Gemm, MatMul) or, if there are none, the main layer of the fusion group."""
        return frozenset(site.layer for site in self.sites if site.role != "skip") or frozenset((self.name,))

    def activation_qdq_sites(self) -> tuple[QdqSite, ...]:
        return tuple(site for site in self.sites if site.role != "weight")

    def weight_qdq_sites(self) -> tuple[QdqSite, ...]:
        return tuple(site for site in self.sites if site.role == "weight")

    def qdq_sites_at_precision(self, precision: Precision) -> tuple[QdqSite, ...]:
        """Returns the inputs of the fusion group that get Q/DQ in a precision."""
        quantized_type = QUANTIZED_TYPES.get(precision)
        if quantized_type is None:
            return ()
        return tuple(
            site
            for site in self.sites
            if site.role == "weight"
            or quantized_type.quantizes_activations
            and (quantized_type.quantizes_skips or site.role != "skip")
        )

    def qdq_sites_of_multiplied_inputs(self) -> tuple[QdqSite, ...]:
        """Returns the Q/DQ sites of computed tensors that are operands of a Conv, Gemm or MatMul of the fusion group."""
        return tuple(site for site in self.sites if site.role == "input")

    def activation_qdq_sites_at_precision(self, precision: Precision) -> tuple[QdqSite, ...]:
        """Returns the Q/DQ sites of activations in a precision."""
        return tuple(site for site in self.qdq_sites_at_precision(precision) if site.role != "weight")

    def calibrated_qdq_sites(self, precision: Precision) -> tuple[QdqSite, ...]:
        """Returns the Q/DQ sites of activations in a precision whose scales need calibrated ranges."""
        quantized_type = QUANTIZED_TYPES.get(precision)
        return (
            self.activation_qdq_sites_at_precision(precision)
            if quantized_type is not None and quantized_type.needs_ranges
            else ()
        )


@dataclass(frozen=True)
class QdqFinding:
    """A problem that the check of Q/DQ nodes found in a file; `trt_tui.core.network.qdq.check` has the rules.

    Attributes:
        rule: The name of the rule.
        node: The node of the file.
        group: The fusion group that the finding is about; "" if it is about the node alone.
        detail: The problem with its names and values, as the end of a sentence about the node.
        repair_precision: The precision of the group that repairs the problem, because an export then writes new Q/DQ
            nodes. None if no precision repairs it.
        converting_nodes: The Q nodes that may become separate kernels; empty unless the rule needs an engine.
        conversions: The engine layers that convert the values, each with its time in ms or None; empty unless the rule
            needs an engine.
    """

    rule: str
    node: str
    group: str
    detail: str
    repair_precision: Precision | None = None
    converting_nodes: tuple[str, ...] = ()
    conversions: tuple[tuple[str, float | None], ...] = ()


@dataclass(frozen=True)
class DefectSite:
    """The layers of a network that a known defect of some TensorRT releases affects.

    Attributes:
        key: The key of the defect in `trt_tui.core.network.known_defects.KNOWN_DEFECTS`.
        layers: The names of the layers with the defect.
        groups: The names of the fusion groups that contain them; empty for layers in no group.
    """

    key: str
    layers: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class ReferenceWeights:
    """The choice of the weights of FP32 runs of a quantized or typed file: those of its FP32 reference, or its own.

    Attributes:
        name: The file name of the reference.
        refusal_reason: The reason why FP32 runs use the weights of the file; "" if they use those of the reference.
    """

    name: str
    refusal_reason: str = ""

    def weights_source_text(self, file_name: str) -> str:
        """Returns a sentence for users that names the network whose weights FP32 runs use.

        Args:
            file_name: The name of the quantized or typed file.
        """
        if not self.refusal_reason:
            return f"FP32 means the weights of {self.name}."
        return (
            f"FP32 means the weights of {file_name}, and only outputs are compared with {self.name}: "
            f"{self.refusal_reason}."
        )


@dataclass(frozen=True, eq=False)
class NetworkOutline:
    """The description of a network without weights, which the user interface receives; plain picklable data.

    Attributes:
        shapes: Shapes of the final tensor of each group and the first output of each layer, by tensor name.
        structure_sha256: Hash of everything except the values of the weights.
        opset: The opset of ONNX's own operators.
        layer_digests: The first 3 bytes of each layer's hash, by name; a comparison shows which layers of two networks
            differ.
        notes: Changes made when the file was opened, one sentence each.
        quantized_ranges: amax of activation tensors that have Q/DQ pairs in the file, by tensor name.
        zero_cost_support: The parts that can be changed without added run time.
        known_issues: The reasons why a quantized type saves no time at a group, by group name; see
            `trt_tui.core.network.known_defects`.
        tensors_with_shared_range: The sets of tensors that must share a scale, such as the inputs and the output of a
            Concat, by tensor name.
        index_groups: Groups whose results are converted to integers or used as positions; see
            `trt_tui.core.network.graph`.
        qdq_findings: The findings of the check of Q/DQ nodes; None if the file has no Q/DQ nodes.
        qdq_candidates: Possible findings, which count only if an engine converts the values with separate kernels.
        defect_sites: Places with a known defect of some TensorRT release; see `trt_tui.core.network.known_defects`.
        reference_weights: The choice of the weights of FP32 runs. None if the file is FP32 or has no reference network.
    """

    name: str
    path: Path
    layers: tuple[Layer, ...]
    groups: tuple[FusionGroup, ...]
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    shapes: Mapping[str, Shape | None] = field(default_factory=dict)
    structure_sha256: str = ""
    opset: int = 0
    layer_digests: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    quantized_ranges: Mapping[str, float] = field(default_factory=dict)
    zero_cost_support: ZeroCostSupport = field(default_factory=ZeroCostSupport)
    known_issues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tensors_with_shared_range: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    index_groups: tuple[str, ...] = ()
    qdq_findings: tuple[QdqFinding, ...] | None = None
    defect_sites: tuple[DefectSite, ...] = ()
    qdq_candidates: tuple[QdqFinding, ...] = ()
    reference_weights: ReferenceWeights | None = None

    @property
    def reference_weights_text(self) -> str:
        """A sentence that names the network whose weights FP32 runs use; "" if the file is FP32 or has no reference
        network.
        """
        return self.reference_weights.weights_source_text(self.name) if self.reference_weights is not None else ""

    @property
    def weights_source_name(self) -> str:
        """The name of the FP32 network that supplies the weights of a quantized network; "" if there is none."""
        weights = self.reference_weights
        return weights.name if weights is not None and not weights.refusal_reason else ""

    @property
    def has_file_precision(self) -> bool:
        """True if the model file gives precisions to its layers: it contains Q/DQ, or float types below FP32."""
        return any(group.file_precision is not None for group in self.groups)

    @cached_property
    def group_by_name(self) -> dict[str, FusionGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def layer_by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def group_by_layer(self) -> dict[str, FusionGroup]:
        return {layer: group for group in self.groups for layer in group.layers}

    @cached_property
    def calibrated_tensors(self) -> tuple[str, ...]:
        """The tensors that need a range for INT8, each once, in network order."""
        return tuple(dict.fromkeys(site.tensor for group in self.groups for site in group.activation_qdq_sites()))

    @cached_property
    def _tensor_names(self) -> frozenset[str]:
        return frozenset(info.name for info in self.inputs) | {
            tensor for layer in self.layers for tensor in (*layer.inputs, *layer.outputs) if tensor
        }

    def get_layer(self, name: str) -> Layer:
        return self.layer_by_name[name]

    def has_layer(self, name: str) -> bool:
        return name in self.layer_by_name

    def get_group(self, name: str) -> FusionGroup:
        return self.group_by_name[name]

    def find_group(self, layer_name: str) -> FusionGroup | None:
        return self.group_by_layer.get(layer_name)

    def has_tensor(self, name: str) -> bool:
        return name in self._tensor_names

    def shape(self, tensor: str) -> Shape | None:
        return self.shapes.get(tensor)
