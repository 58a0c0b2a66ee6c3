"""Layers, fusion groups and their outline: plain data, no weights, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from trt_tui.core.network.zero_cost_support import ZeroCostSupport
from trt_tui.core.precision import ASSIGNABLE, Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import TensorInfo


class LayerKind(str, Enum):
    """What a layer is to the precision question."""

    COMPUTE = "compute"
    COPY = "copy"
    CAST = "cast"
    CONSTANT = "constant"
    SHAPE = "shape"
    INTEGER = "integer"
    OPAQUE = "opaque"


IRRELEVANT_KINDS = (LayerKind.CAST, LayerKind.CONSTANT, LayerKind.SHAPE, LayerKind.INTEGER)
"""Kinds that make no difference to precision; the tree counts them in one row."""

Shape: TypeAlias = tuple[int | str | None, ...]
"""Sizes of a tensor: a number, a name, or None for an open one without a name."""


@dataclass(frozen=True)
class Layer:
    """One ONNX node.

    Attributes:
        name: Unique; TensorRT's layer names follow it.
        inputs: Tensor names, "" for an optional input left out.
        scope: Call path that the file states (local functions, exporter metadata), outermost first; may be empty.
        macs: Multiply-accumulates of one run with a batch of 1 where the file leaves it open; None where unknown.
        refusal_reason: Why the layer cannot take a lower precision, "" where it can.
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


@dataclass(frozen=True)
class QdqSite:
    """One input of a layer that carries Q/DQ when its group runs in INT8; fewer do in other code types.

    Attributes:
        axis: Channel axis of a weight (one scale per channel), None for one scale per tensor.
        role: "input", "weight" or "skip" (the other input of a residual Add).
    """

    layer: str
    index: int
    tensor: str
    role: str
    axis: int | None = None


@dataclass(frozen=True)
class FilePrecision:
    """What a file of its own precisions runs a group in.

    Attributes:
        label: In words: "INT8", "INT4 w" where weights alone are codes, "FP16".
        float_type: The float type of its results.
        nearest_precision: The precision that comes nearest to it.
        is_plain_fp32: It is FP32, with nothing in front of it.
        refused_nodes: Nodes in front of it, or its own, that a TensorRT refuses, and for what.
    """

    label: str
    float_type: Precision
    nearest_precision: Precision
    is_plain_fp32: bool
    refused_nodes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FusionGroup:
    """Layers that TensorRT fuses and that take one precision.

    Attributes:
        name: The name of the layer that gives the group its character (the Conv, the Softmax, ...).
        layers: Names, in network order.
        inputs: Float tensors computed outside, in order of first use.
        outputs: Tensors that something outside uses.
        final_tensor: The last computed tensor, where the group's error is taken.
        sites: Where Q/DQ goes when the group runs in INT8; empty if it cannot.
        refusal_reasons: Why a precision is not possible, by precision.
        shape_layers: Layers in no group that compute, from the group's tensors, shapes that it reads; in network order.
        attention: The attention that it is a part of, named after its Softmax; "" where it is of none.
        attention_role: What it is in it: ``QK``, ``Softmax``, ``PV``, or ``mask`` for what lies between; "" where it is
        of none.
        file_precision: What the file runs it in, where the file has precisions of its own.
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
        """Whether it can run in INT8."""
        return Precision.INT8 not in self.refusal_reasons

    @cached_property
    def allowed_precisions(self) -> frozenset[Precision]:
        """The precisions it can run in."""
        file_precisions = (Precision.FILE,) if self.file_precision is not None else ()
        return frozenset(precision for precision in (*ASSIGNABLE, *file_precisions)
                         if precision not in self.refusal_reasons)

    def resolve_file_precision(self, precision: Precision) -> Precision:
        """A precision, or for what the file has the one that comes nearest to it."""
        return (self.file_precision.nearest_precision
                if precision is Precision.FILE and self.file_precision is not None else precision)

    def precision_shown_by_engine(self, precision: Precision) -> Precision:
        """What an engine that runs it in a precision shows: `resolve_file_precision`, without the type that products
        are summed in, which no release tells."""
        return self.resolve_file_precision(precision).value_type

    def precision_rank(self, precision: Precision) -> int:
        """The order of `precision.rank`, what the file has at its place in it."""
        if precision is not Precision.FILE or self.file_precision is None:
            return precision_rank(precision)
        return precision_rank(Precision.FP32) if self.file_precision.is_plain_fp32 else min(
            precision_rank(self.file_precision.nearest_precision), precision_rank(Precision.FP16))

    def precision_label(self, precision: Precision) -> str:
        """A precision as it is shown: what the file has with an ``f`` behind it."""
        return (f"{self.file_precision.label} f"
                if precision is Precision.FILE and self.file_precision is not None else precision.label)

    @cached_property
    def main_layers(self) -> frozenset[str]:
        """The layers that give it its character: those that multiply, else the one it is named after."""
        return frozenset(site.layer for site in self.sites if site.role != "skip") or frozenset((self.name,))

    def activation_qdq_sites(self) -> tuple[QdqSite, ...]:
        """Its sites on tensors that are computed."""
        return tuple(site for site in self.sites if site.role != "weight")

    def weight_qdq_sites(self) -> tuple[QdqSite, ...]:
        """Its sites on constants."""
        return tuple(site for site in self.sites if site.role == "weight")

    def qdq_sites_at_precision(self, precision: Precision) -> tuple[QdqSite, ...]:
        """The sites that carry Q/DQ when it runs in a precision."""
        quantized_type = QUANTIZED_TYPES.get(precision)
        if quantized_type is None:
            return ()
        return tuple(site for site in self.sites if site.role == "weight" or quantized_type.quantizes_activations and
                     (quantized_type.quantizes_skips or site.role != "skip"))

    def qdq_sites_of_multiplied_inputs(self) -> tuple[QdqSite, ...]:
        """The sites on tensors that are computed and that a product reads."""
        return tuple(site for site in self.sites if site.role == "input")

    def calibrated_qdq_sites(self, precision: Precision) -> tuple[QdqSite, ...]:
        """Those of them on tensors that are computed, which take their scales from ranges."""
        return tuple(site for site in self.qdq_sites_at_precision(precision) if site.role != "weight")


@dataclass(frozen=True)
class KnownIssue:
    """What is known of a layer in codes, as a sentence, and its source."""

    text: str
    source: str

    @property
    def issue_description(self) -> str:
        """Both: "a Conv of 3 channels in, 12 out: ModelOpt leaves it out (ModelOpt 0.47)"."""
        return f"{self.text} ({self.source})"


@dataclass(frozen=True, eq=False)
class NetworkOutline:
    """What a front end needs to know of a network: plain data, no weights, picklable.

    Attributes:
        shapes: Of each group's tail and each layer's first output.
        structure_sha256: Hash of everything but the weights' values.
        opset: Of ONNX's own operators.
        layer_digests: The first 3 bytes of each layer's hash, by name: tells which layers of two networks differ.
        notes: What was changed at opening, one sentence each.
        quantized_ranges: amax of activation tensors that carried Q/DQ pairs, by tensor name.
        zero_cost_support: What can be changed at no cost at run time.
        known_issues: What is known to go wrong with groups in codes, by name; see `trt_tui.core.network.known_issues`.
        index_groups: Groups whose floats become integers or positions; see `trt_tui.core.network.index_paths`.
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
    known_issues: Mapping[str, tuple[KnownIssue, ...]] = field(default_factory=dict)
    index_groups: tuple[str, ...] = ()

    @property
    def has_file_precision(self) -> bool:
        """Whether the file says what its layers run in: it has Q/DQ, or float types below FP32."""
        return any(group.file_precision is not None for group in self.groups)

    @cached_property
    def group_by_name(self) -> dict[str, FusionGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def layer_by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def group_by_layer(self) -> dict[str, FusionGroup]:
        """The group of each layer that is in one, by layer name."""
        return {layer: group for group in self.groups for layer in group.layers}

    @cached_property
    def calibrated_tensors(self) -> tuple[str, ...]:
        """Tensors whose range INT8 needs, each once, in network order."""
        return tuple(dict.fromkeys(site.tensor for group in self.groups for site in group.activation_qdq_sites()))

    @cached_property
    def _tensor_names(self) -> frozenset[str]:
        return frozenset(info.name for info in self.inputs) | {
            tensor for layer in self.layers for tensor in (*layer.inputs, *layer.outputs) if tensor}

    def get_layer(self, name: str) -> Layer:
        return self.layer_by_name[name]

    def has_layer(self, name: str) -> bool:
        return name in self.layer_by_name

    def get_group(self, name: str) -> FusionGroup:
        return self.group_by_name[name]

    def find_group(self, layer_name: str) -> FusionGroup | None:
        """The group a layer belongs to; None for folded layers."""
        return self.group_by_layer.get(layer_name)

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor of this name is read or made."""
        return name in self._tensor_names

    def shape(self, tensor: str) -> Shape | None:
        """Sizes of a tensor, as far as `shapes` has it."""
        return self.shapes.get(tensor)
