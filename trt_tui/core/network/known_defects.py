"""Accuracy defects of TensorRT releases, each with its source and a workaround.

`KNOWN_DEFECTS` is the one table. A row states what its source states, and nothing more: a release that the source does
not name is unknown. The rows of a network are found when it is opened (`find_defect_sites`), and compared with the
precisions of a config and with the target release wherever they are shown (`match_known_defects`). A reported defect
warns. A confirmed or reproduced defect of a precision also forbids that precision (`find_forbidden_precisions`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import DefectSite, FusionGroup, Layer, NetworkOutline
from trt_tui.core.network.operators import COPIES
from trt_tui.core.network.opset_conversion import CUBIC_GRID_NEXT_STEP, GRID_MODE_OPSET
from trt_tui.core.network.target_release import (
    TENSORRT,
    TENSORRT_RTX,
    AffectedReleases,
    BuildTarget,
    TensorRTRelease,
)
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import name_list_text

_MAX_KEY_DISTANCE = 16
"""The maximum number of layers between the product of an attention and a Conv that reduces its keys."""

_GITHUB_THREAD_PATTERN = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)")

PrecisionLookup: TypeAlias = Callable[[FusionGroup], Precision]
"""A function that returns the precision of a fusion group in a config."""

_Places: TypeAlias = Iterator[tuple[tuple[str, ...], tuple[str, ...]]]
"""The layers and the groups of each place in a network that has a defect."""


class DefectStatus(str, Enum):
    """The evidence for a defect."""

    REPORTED = "reported"
    CONFIRMED = "confirmed by NVIDIA"
    REPRODUCED = "reproduced with trt-tui"


@dataclass(frozen=True)
class KnownDefect:
    """An accuracy defect of some releases of TensorRT.

    Attributes:
        component: The part of TensorRT with the defect: "parser" or "builder".
        symptom: The defect as a clause in the present tense, to which the releases are added.
        sources: The addresses of the threads or release notes, the most important first.
        workaround: The workaround, as one or two sentences in the imperative.
        find_places: Function that yields the places of a network that have the defect, whatever their precision.
        precisions: The precisions of a group that have the defect, without accumulators; empty if all have it.
        compute_capabilities: The GPUs on which it was observed; empty if the source restricts it to none.
        needs_strong_typing: True if only strongly typed networks have the defect.
        needs_other_fp16_groups: True if the group has the defect only in a network with other groups in FP16.
        needs_float_place: True if no group of a place may be quantized: a fused attention with INT8 products has other
            kernels than one in FP16.
        is_in_exports: False if the files that trt-tui writes do not have the defect.
    """

    component: str
    symptom: str
    status: DefectStatus
    releases: tuple[AffectedReleases, ...]
    sources: tuple[str, ...]
    workaround: str
    find_places: Callable[[LayerGraph, Sequence[FusionGroup]], _Places]
    precisions: frozenset[Precision] = frozenset()
    compute_capabilities: tuple[tuple[int, int], ...] = ()
    needs_strong_typing: bool = False
    needs_other_fp16_groups: bool = False
    needs_float_place: bool = False
    is_in_exports: bool = True

    def affects(self, target: BuildTarget) -> bool | None:
        """Returns True if a target has the defect, False if it has not, None if that is unknown."""
        if self.needs_strong_typing and target.is_strongly_typed is False:
            return False
        if self.compute_capabilities and target.compute_capability is not None and (
                target.compute_capability not in self.compute_capabilities):
            return False
        is_affected = self.affects_release(target.release)
        return None if is_affected and self.compute_capabilities and target.compute_capability is None else is_affected

    def affects_release(self, release: TensorRTRelease | None) -> bool | None:
        """Returns True if a release has the defect, whatever the GPU, False if it has not, None if that is unknown."""
        answers = [None if release is None else releases.affects(release) for releases in self.releases]
        return True if True in answers else None if None in answers else False

    def find_groups(self, network: NetworkOutline, site: DefectSite, precision_of: PrecisionLookup) -> tuple[str, ...]:
        """Returns the names of the fusion groups of a place that have the defect in their precision of a config."""
        groups = [network.get_group(name) for name in site.groups]
        if self.needs_float_place and any(
                group.resolve_file_precision(precision_of(group)) in QUANTIZED_TYPES for group in groups):
            return ()
        return tuple(group.name for group in groups if self._occurs_in(network, group, precision_of))

    def _occurs_in(self, network: NetworkOutline, group: FusionGroup, precision_of: PrecisionLookup) -> bool:
        precision = group.resolve_file_precision(precision_of(group)).value_type
        if self.precisions and precision not in self.precisions:
            return False
        return not self.needs_other_fp16_groups or any(
            other.resolve_file_precision(precision_of(other)).value_type is Precision.FP16
            for other in network.groups if other.name != group.name)

    @property
    def source_label(self) -> str:
        """The main source as a short text: "NVIDIA/TensorRT#4646"."""
        match = _GITHUB_THREAD_PATTERN.fullmatch(self.sources[0])
        return f"{match[1]}#{match[2]}" if match is not None else self.sources[0]

    @property
    def releases_text(self) -> str:
        gpus = [f"{major}.{minor}" for major, minor in self.compute_capabilities]
        return " and ".join(releases.releases_text for releases in self.releases) + (
            f", on GPUs of compute capability {' and '.join(gpus)}" if gpus else "")


@dataclass(frozen=True)
class DefectMatch:
    """A known defect that a network has in a config and may have in a target release.

    Attributes:
        key: The key of the defect in `KNOWN_DEFECTS`.
        layers: The names of the layers with the defect, in network order.
        groups: The names of their fusion groups that have the defect in the config; empty for layers in no group.
        is_certain: True if the target release has the defect according to the source.
        target: The target release and GPU.
    """

    key: str
    layers: tuple[str, ...]
    groups: tuple[str, ...]
    is_certain: bool
    target: BuildTarget

    @property
    def defect(self) -> KnownDefect:
        return KNOWN_DEFECTS[self.key]

    @property
    def is_in_other_releases(self) -> bool:
        """True if the target release is known, and the source states nothing about it."""
        return self.target.release is not None and self.defect.affects_release(self.target.release) is None

    @property
    def text(self) -> str:
        """The symptom with the releases, status and source, and the workaround."""
        defect, release = self.defect, self.target.release
        remark = f"; unknown for {release.title}" if release is not None and self.is_in_other_releases else ""
        return (f"{defect.symptom} {defect.releases_text} ({defect.status.value}, {defect.source_label}{remark}). "
                f"{defect.workaround}")

    def warning_text(self, network: NetworkOutline) -> str:
        """The text of the defect behind its layers: "/grid (GridSample): the parser reads ..."."""
        return f"{self.layers_text(network)}: {self.text}"

    def layers_text(self, network: NetworkOutline) -> str:
        operators = dict.fromkeys(network.get_layer(name).op_type for name in self.layers)
        return f"{name_list_text(self.layers, max_count=3)} ({', '.join(operators)})"

    def make_record(self) -> dict[str, Any]:
        """Returns the record of the match for JSON, as ``schemas/known-defects-v1.json`` describes it."""
        defect = self.defect
        record: dict[str, Any] = {
            "defect": self.key, "component": defect.component, "status": defect.status.name.lower(),
            "symptom": defect.symptom, "releases": defect.releases_text, "layers": list(self.layers),
            "groups": list(self.groups), "affects_target": "yes" if self.is_certain else "unknown",
            "sources": list(defect.sources), "workaround": defect.workaround
        }
        return record


# -- places in a network ----------------------------------------------------------------------------------------------


def _is_onnx_operator(layer: Layer, *op_types: str) -> bool:
    return layer.op_type in op_types and layer.domain in ("", "ai.onnx")


def _find_layers(graph: LayerGraph, *op_types: str) -> list[Layer]:
    return [layer for layer in graph.layers if _is_onnx_operator(layer, *op_types)]


def _place(groups: Sequence[FusionGroup], layers: Iterable[Layer]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of some layers, and of the groups that contain them."""
    names = tuple(layer.name for layer in layers)
    return names, tuple(group.name for group in groups if not set(names).isdisjoint(group.layers))


def _find_cubic_grid_samples(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    if graph.opset >= GRID_MODE_OPSET:
        for layer in _find_layers(graph, "GridSample"):
            if graph.node(layer.name).attributes.get_string("mode", "") == "cubic":
                yield _place(groups, [layer])


def _find_grid_samples(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "GridSample"):
        yield _place(groups, [layer])


def _find_no_places(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    """Yields nothing: the places are known only when the file is opened."""
    yield from ()


def _cumulative_sum_axis(graph: LayerGraph, layer: Layer) -> int | None:
    """Returns the axis of a CumSum from 0, or from -1 backwards if the rank is unknown; None if it is computed."""
    tensor = stored_tensor(graph.ir_value(layer.inputs[1])) if layer.inputs[1] else None
    if tensor is None or tensor.size != 1:
        return None
    axis, shape = int(tensor.numpy().reshape(-1)[0]), graph.shape(layer.inputs[0])
    return axis + len(shape) if axis < 0 and shape is not None else axis


def _find_cumulative_sums_of_several_axes(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    layers = _find_layers(graph, "CumSum")
    if len({_cumulative_sum_axis(graph, layer) for layer in layers}) > 1:
        yield _place(groups, layers)


def _find_cumulative_sums_of_several_directions(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    layers = _find_layers(graph, "CumSum")
    if len({graph.node(layer.name).attributes.get_int("reverse", 0) for layer in layers}) > 1:
        yield _place(groups, layers)


def _find_group_normalisations_of_one_group(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "GroupNormalization"):
        shape = graph.shape(layer.inputs[0])
        channels = shape[1] if shape is not None and len(shape) > 1 else None
        if graph.node(layer.name).attributes.get_int("num_groups", 0) == 1 and channels != 1:
            yield _place(groups, [layer])


def _find_instance_normalisations(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "InstanceNormalization"):
        yield _place(groups, [layer])


def _find_1d_transposed_convolutions_with_bias(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "ConvTranspose"):
        if len(graph.shape(layer.inputs[1]) or ()) == 3 and len(layer.inputs) > 2 and layer.inputs[2]:
            yield _place(groups, [layer])


def _find_transposed_convolutions(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "ConvTranspose"):
        yield _place(groups, [layer])


def _find_attentions(groups: Sequence[FusionGroup]) -> Iterator[dict[str, FusionGroup]]:
    """Yields the groups QK, Softmax and PV of each attention, by role."""
    attentions: dict[str, dict[str, FusionGroup]] = {}
    for group in groups:
        if group.attention and group.attention_role in ("QK", "Softmax", "PV"):
            attentions.setdefault(group.attention, {})[group.attention_role] = group
    yield from (attention for attention in attentions.values() if len(attention) == 3)


def _attention_place(attention: Mapping[str, FusionGroup]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = tuple(group.name for group in attention.values())
    return names, names


def _find_all_attentions(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for attention in _find_attentions(groups):
        yield _attention_place(attention)


def _find_attentions_of_many_keys(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for attention in _find_attentions(groups):
        shape = graph.shape(graph.by_name[attention["Softmax"].name].outputs[0])
        if shape and isinstance(shape[-1], int) and shape[-1] > FP16_MAX:
            yield _attention_place(attention)


def _find_attentions_of_several_rows(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for attention in _find_attentions(groups):
        if _can_have_several_rows(graph):
            yield _attention_place(attention)


def _can_have_several_rows(graph: LayerGraph) -> bool:
    """Returns True if the batch size of an input is open or above 1."""
    return any(info.shape is None or len(info.shape) > 0 and info.shape[0] != 1 for info in graph.inputs)


def _product_layer(graph: LayerGraph, group: FusionGroup) -> Layer | None:
    """Returns the layer of an attention's product that multiplies two computed tensors."""
    return next((layer for name in group.layers if _is_onnx_operator(layer := graph.by_name[name], "MatMul", "Einsum")
                 and len(layer.inputs) == 2), None)


def _skip_copies(graph: LayerGraph, tensor: str) -> Layer | None:
    """Returns the layer that computes the values of a tensor, behind copies; None for inputs and constants."""
    while (layer := graph.by_name.get(graph.producer.get(tensor, ""))) is not None:
        if layer.op_type not in COPIES or not layer.inputs:
            return layer
        tensor = layer.inputs[0]
    return None


def _find_attentions_with_transposed_inputs(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    network_inputs = {info.name for info in graph.inputs}
    for attention in _find_attentions(groups):
        products = [_product_layer(graph, attention[role]) for role in ("QK", "PV")]
        producers = [graph.by_name.get(graph.producer.get(tensor, "")) for product in products if product is not None
                     for tensor in product.inputs]
        if any(layer is not None and _is_onnx_operator(layer, "Transpose") and layer.inputs[0] in network_inputs
               for layer in producers):
            yield _attention_place(attention)


def _find_attentions_with_two_scalings(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for attention in _find_attentions(groups):
        product = _product_layer(graph, attention["QK"])
        producers = [_skip_copies(graph, tensor) for tensor in product.inputs] if product is not None else []
        if len(producers) == 2 and all(
                layer is not None and _is_onnx_operator(layer, "Mul", "Div")
                and any(tensor in graph.static_tensors for tensor in layer.inputs) for layer in producers):
            yield _attention_place(attention)


def _find_attentions_with_reduced_keys(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    """Yields the attentions whose keys, but not their queries, are reduced by a Conv with a stride of its kernel size.

    SegFormer reduces the sequence of the keys in this way.
    """
    if not _can_have_several_rows(graph):
        return
    for attention in _find_attentions(groups):
        product = _product_layer(graph, attention["QK"])
        if product is not None:
            first, second = (_find_reducing_convolutions(graph, tensor) for tensor in product.inputs)
            if first != second and not (first and second):
                yield _attention_place(attention)


def _find_reducing_convolutions(graph: LayerGraph, tensor: str) -> set[str]:
    """Returns the Convs with a stride of their kernel size above 1 that a tensor is computed from, near it."""
    convolutions, visited, pending = set(), set(), [(tensor, 0)]
    while pending:
        name, distance = pending.pop(0)
        layer = graph.by_name.get(graph.producer.get(name, ""))
        if layer is None or layer.name in visited or distance >= _MAX_KEY_DISTANCE:
            continue
        visited.add(layer.name)
        if _is_onnx_operator(layer, "Conv"):
            kernel = (graph.shape(layer.inputs[1]) or ())[2:]
            strides = graph.node(layer.name).attributes.get_ints("strides", ())
            if kernel and tuple(strides) == tuple(kernel) and max(strides) > 1:
                convolutions.add(layer.name)
            continue
        pending += [(name, distance + 1) for name in layer.inputs if name and name not in graph.static_tensors]
    return convolutions


def _is_vector_product(graph: LayerGraph, layer: Layer) -> bool:
    """Returns True if a MatMul or Gemm has one row or one column."""
    shape = graph.shape(layer.outputs[0])
    return _is_onnx_operator(layer, "MatMul", "Gemm") and shape is not None and len(shape) > 1 and 1 in shape[-2:]


def _find_consecutive_vector_products(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for layer in _find_layers(graph, "MatMul", "Gemm"):
        if _is_vector_product(graph, layer):
            for tensor in layer.inputs[:2]:
                producer = _skip_copies(graph, tensor)
                if producer is not None and _is_vector_product(graph, producer):
                    yield _place(groups, [producer, layer])


def _find_resized_transposes_of_conditions(graph: LayerGraph, groups: Sequence[FusionGroup]) -> _Places:
    for resize in _find_layers(graph, "Resize"):
        transpose = graph.by_name.get(graph.producer.get(resize.inputs[0], ""))
        if transpose is not None and _is_onnx_operator(transpose, "Transpose"):
            condition = graph.by_name.get(graph.producer.get(transpose.inputs[0], ""))
            shape = graph.shape(resize.inputs[0])
            if condition is not None and _is_onnx_operator(condition, "If") and (
                    shape is None or not all(isinstance(size, int) for size in shape)):
                yield _place(groups, [condition, transpose, resize])


# -- the table --------------------------------------------------------------------------------------------------------

_FP16, _FP16_OR_BF16 = frozenset((Precision.FP16,)), frozenset((Precision.FP16, Precision.BF16))
_ISSUES = "https://github.com/NVIDIA/TensorRT/issues/"

LINEAR_GRID_KEY = "grid-sample-linear"
"""The key of the defect whose places are known only when the file is opened."""

KNOWN_DEFECTS: Mapping[str, KnownDefect] = {
    LINEAR_GRID_KEY: KnownDefect(
        "parser", "the parser reads mode linear of opset 20 and later as nearest", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.13.3", "11.1")),
         AffectedReleases(TENSORRT_RTX, ("1.5", "1.5"), fixed="1.7")),
        (f"{_ISSUES}4646", "https://github.com/onnx/onnx-tensorrt/pull/1060"),
        "Build from a file that trt-tui writes, which leaves the mode out, or export with an opset from 16 to 19.",
        _find_no_places, is_in_exports=False),
    "grid-sample-cubic": KnownDefect(
        "parser", "the parser reads mode cubic of opset 20 and later as nearest", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("11.1", "11.1")),),
        ("https://github.com/onnx/onnx-tensorrt/pull/1060", f"{_ISSUES}4646"), CUBIC_GRID_NEXT_STEP,
        _find_cubic_grid_samples),
    "grid-sample-cubic-rtx": KnownDefect(
        "parser", "the parser reads mode cubic of opset 20 and later as nearest", DefectStatus.REPRODUCED,
        (AffectedReleases(TENSORRT_RTX, ("1.4", "1.5"), fixed="1.7"),),
        ("https://github.com/onnx/onnx-tensorrt/pull/1060",), CUBIC_GRID_NEXT_STEP, _find_cubic_grid_samples),
    "grid-sample-fp32-in-fp16": KnownDefect(
        "builder", "an FP32 GridSample between layers in FP16 has wrong results", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.14.1.48", "10.14.1.48"), introduced="10.14.1.48"),),
        ("https://github.com/pytorch/TensorRT/issues/4074",),
        "Build with an earlier release, or keep the whole network in FP32.", _find_grid_samples,
        frozenset((Precision.FP32,)), needs_strong_typing=True, needs_other_fp16_groups=True),
    "cumsum-axes": KnownDefect(
        "builder", "CumSums of different axes all sum along one axis", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.11.0.33", "10.11.0.33"), introduced="10.8"),),
        (f"{_ISSUES}4551", "https://github.com/onnx/onnx-tensorrt/issues/1034"),
        "Replace them by MatMuls with a triangular matrix of ones, or build with a release before 10.8.",
        _find_cumulative_sums_of_several_axes),
    "cumsum-directions": KnownDefect(
        "builder", "CumSums that differ in the attribute reverse have the same result", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT),), (f"{_ISSUES}4513",),
        "Replace them by MatMuls with a triangular matrix of ones.", _find_cumulative_sums_of_several_directions),
    "group-norm-of-one-group": KnownDefect(
        "parser", "a GroupNormalization of one group is computed for each channel alone", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.16.1.11", "10.16.1.11")), AffectedReleases(TENSORRT_RTX, ("1.7.1", "1.7.1"))),
        (f"{_ISSUES}4756", "https://github.com/onnx/onnx-tensorrt/pull/1052"),
        "Reshape its input to one channel, use InstanceNormalization there, and reshape back.",
        _find_group_normalisations_of_one_group),
    "instance-norm-fp16": KnownDefect(
        "builder", "an InstanceNormalization in FP16 has large errors", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("8.2.1.8", "8.2.1.8")),),
        ("https://github.com/NVIDIA-AI-IOT/torch2trt/issues/776", f"{_ISSUES}2691"), "Keep it in FP32.",
        _find_instance_normalisations, _FP16),
    "conv-transpose-1d-int8-bias": KnownDefect(
        "builder", "a one-dimensional ConvTranspose with a bias has wrong results in INT8", DefectStatus.CONFIRMED,
        (AffectedReleases(TENSORRT, ("8.2.1.8", "8.2.1.8"), fixed="8.4"),), (f"{_ISSUES}1840",),
        "Build with 8.4 or later, or keep it in FP16 or FP32.", _find_1d_transposed_convolutions_with_bias,
        frozenset((Precision.INT8,))),
    "conv-transpose-channel-scales": KnownDefect(
        "builder", "an INT8 ConvTranspose with a weight scale for each output channel is refused or has wrong results",
        DefectStatus.CONFIRMED, (AffectedReleases(TENSORRT, ("8.0.1.6", "8.2.0.6")),),
        (f"{_ISSUES}1699", f"{_ISSUES}1694", f"{_ISSUES}2380", f"{_ISSUES}1519"),
        "Write a scale for each input channel (axis 0), or keep it in FP16 or FP32.",
        _find_transposed_convolutions, frozenset((Precision.INT8,))),
    "attention-fp16-mha-v2": KnownDefect(
        "builder", "the kernel _gemm_mha_v2 of a fused attention in FP16 has wrong results", DefectStatus.CONFIRMED,
        (AffectedReleases(TENSORRT, ("10.0.0", "10.0.0"), introduced="10.0.0", fixed="10.0.1"),), (f"{_ISSUES}3777",),
        "Build with 10.0.1 or later, or keep the attention in FP32.", _find_all_attentions, _FP16,
        needs_float_place=True),
    "attention-many-keys": KnownDefect(
        "builder", "the sum of the Softmax overflows to NaN in a fused FP16 attention of more than 65,504 keys",
        DefectStatus.REPORTED, (AffectedReleases(TENSORRT),), ("https://github.com/tier4/autoware-ml/pull/95",),
        "Run the attention in BF16, which sums in FP32, or subtract the maximum before the Softmax.",
        _find_attentions_of_many_keys, _FP16, needs_float_place=True),
    "attention-sm120": KnownDefect(
        "builder", "a fused attention in FP16 or BF16 has wrong results", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.16.1", "10.16.1")),), (f"{_ISSUES}4837",),
        "Keep the attention in FP32, or prevent its fusion.", _find_all_attentions, _FP16_OR_BF16,
        compute_capabilities=((12, 0),), needs_float_place=True),
    "attention-transposed-input": KnownDefect(
        "builder", "a fused FP16 or BF16 attention reads a transposed network input with wrong strides",
        DefectStatus.REPORTED, (AffectedReleases(TENSORRT, ("11.2", "11.2")),), (f"{_ISSUES}4826",),
        "Keep the attention in FP32, which is not fused.", _find_attentions_with_transposed_inputs, _FP16_OR_BF16,
        needs_float_place=True),
    "attention-two-scalings": KnownDefect(
        "builder", "an attention with scaled queries and scaled keys has wrong results, even in FP32",
        DefectStatus.CONFIRMED, (AffectedReleases(TENSORRT, ("10.7.0.23", "10.7.0.23")),),
        (f"{_ISSUES}4333", f"{_ISSUES}4328"), "Scale the queries only, by the product of both factors.",
        _find_attentions_with_two_scalings),
    "attention-equal-rows": KnownDefect(
        "builder", "equal samples of one batch have different results behind an FP16 attention", DefectStatus.REPORTED,
        (AffectedReleases(TENSORRT, ("10.6.0.23", "10.16.0.72")),), (f"{_ISSUES}4796",),
        "Build with batch size 1, or compare the engine on a batch of equal samples.",
        _find_attentions_of_several_rows, _FP16, compute_capabilities=((8, 9),), needs_strong_typing=True,
        needs_float_place=True),
    "attention-reduced-keys": KnownDefect(
        "builder", "a SegFormer attention, whose keys a Conv reduces, has wrong results with more than one sample",
        DefectStatus.REPORTED, (AffectedReleases(TENSORRT, ("10.11", "11.1")),), (f"{_ISSUES}4853",),
        "Build with batch size 1.", _find_attentions_with_reduced_keys),
    "consecutive-vector-products": KnownDefect(
        "builder", "two consecutive products of one row or one column lose accuracy", DefectStatus.CONFIRMED,
        (AffectedReleases(TENSORRT, ("10.0.1", "10.1.0"), introduced="10.0"),), (f"{_ISSUES}3969",),
        "Pad the inputs of the products to more than one row and column.", _find_consecutive_vector_products),
    "resize-of-transposed-condition": KnownDefect(
        "builder", "a Resize of the transposed result of an If has wrong results with dynamic shapes",
        DefectStatus.REPORTED, (AffectedReleases(TENSORRT, ("11.1.0.106", "11.2.1.2")),), (f"{_ISSUES}4846",),
        "Move the Transpose before the If.", _find_resized_transposes_of_conditions),
}
"""The known defects by a key, which records name.

Restrictions of the sources:

- grid-sample-linear: issue 4646 was observed in 10.13.3, pull request 1060 in 11.1 and RTX 1.5. RTX 1.7.1 reads both
  modes.
- grid-sample-cubic-rtx: observed here with the parser of TensorRT-RTX 1.4. The pull request names 1.5.
- grid-sample-fp32-in-fp16: one report, which an engineer of NVIDIA could not reproduce.
- group-norm-of-one-group: the parser of TensorRT-RTX 1.7.1 creates the layer that the thread names as the cause, a
  normalisation without the channel axis. No engine of it was executed here.
- conv-transpose-1d-int8-bias: NVIDIA announced the correction for 8.4.
- conv-transpose-channel-scales: 8.0.1.6 refuses other numbers of input and output channels. In thread 2380 of 2022
  NVIDIA writes that the kernels read the scales along the input channels, and names no release.
- attention-fp16-mha-v2: the thread quotes the release notes of 10.0.0 EA.
- attention-equal-rows: the libraries 10.6.0.23 and 10.16.0.72 on an L20. A comment found equal results in 11.0.0.114.
- attention-two-scalings: the label of the thread says that NVIDIA tracks the defect.
- consecutive-vector-products: the thread quotes the release notes of 10.1.0, and measured 8.6.3 without the defect.
"""


def find_defect_sites(graph: LayerGraph, groups: Sequence[FusionGroup],
                      linear_grid_samples: Sequence[str] = ()) -> tuple[DefectSite, ...]:
    """Returns the places of a network that have a known defect in some release and precision, in the table's order.

    Args:
        linear_grid_samples: The GridSamples whose mode linear was removed when the file was opened.
    """
    sites = [DefectSite(LINEAR_GRID_KEY, *_place(groups, [graph.by_name[name]])) for name in linear_grid_samples
             if name in graph.by_name]
    return (*sites, *(DefectSite(key, *place) for key, defect in KNOWN_DEFECTS.items()
                      for place in dict.fromkeys(defect.find_places(graph, groups))))


# -- matches ----------------------------------------------------------------------------------------------------------


def match_known_defects(network: NetworkOutline, target: BuildTarget,
                        precision_of: PrecisionLookup | None = None) -> list[DefectMatch]:
    """Returns the known defects that a network has in a config and may have in a target release.

    Places with the same defect are one match. The table's order, certain matches first.

    Args:
        precision_of: The precisions of the config; None for defects of any precision.
    """
    matches: dict[str, DefectMatch] = {}
    for site in network.defect_sites:
        defect = KNOWN_DEFECTS[site.key]
        is_affected = defect.affects(target)
        groups = site.groups if precision_of is None else defect.find_groups(network, site, precision_of)
        if is_affected is False or site.groups and not groups:
            continue
        layers = [name for name in site.layers
                  if (group := network.find_group(name)) is None or group.name in groups]
        earlier = matches.get(site.key, DefectMatch(site.key, (), (), is_affected is True, target))
        matches[site.key] = replace(earlier, layers=tuple(dict.fromkeys((*earlier.layers, *layers))),
                                    groups=tuple(dict.fromkeys((*earlier.groups, *groups))))
    return sorted(matches.values(), key=lambda match: not match.is_certain)


def known_defect_lines(network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup,
                       group: FusionGroup) -> list[str]:
    """Returns the known defects of a fusion group in a config as texts for users.

    If the target release is known, defects of other releases are left out.
    """
    return [match.text for match in match_known_defects(network, target, precision_of)
            if group.name in match.groups and not match.is_in_other_releases]


def known_defects_record(target: BuildTarget, matches: Iterable[DefectMatch]) -> dict[str, Any]:
    """Returns the record of the known defects of a network, as ``schemas/known-defects-v1.json`` describes it."""
    record: dict[str, Any] = {"defects": [match.make_record() for match in matches]}
    if target.release is not None:
        record["release"] = target.release.title
    if target.compute_capability is not None:
        record["compute_capability"] = ".".join(map(str, target.compute_capability))
    return record


def known_defects_table(network: NetworkOutline, target: BuildTarget, matches: Sequence[DefectMatch],
                        subject: str) -> list[str]:
    """Returns the known defects of a network as lines of text; none if it has none and the release is unknown.

    Args:
        subject: The subject of the matches: "this network" for defects of any precision, or "this config".
    """
    release = target.release
    if release is not None and not matches:
        return [f"no known defect of {release.title} concerns {subject}"]
    titles = ("", f"known defects of some releases that concern {subject} (--for RELEASE names those of one release)"
              ) if release is None else (f"known defects of {release.title} that concern {subject}",
                                         f"known defects of other releases or GPUs that may concern {subject}")
    lines: list[str] = []
    for is_certain, title in zip((True, False), titles, strict=True):
        texts = [f"  {match.warning_text(network)}" for match in matches if match.is_certain is is_certain]
        lines += [f"{title}:", *texts] if texts else []
    return lines


def known_defect_warnings(network: NetworkOutline, target: BuildTarget,
                          precision_of: PrecisionLookup) -> tuple[list[str], str]:
    """Returns warnings about the files that are written for a config: one for each defect that the release has.

    The second value is a note on the defects that the target may have, because its release or its GPU is unknown, or
    "". Defects that the files do not have, and those of other releases than a known one, are left out.
    """
    matches = [match for match in match_known_defects(network, target, precision_of)
               if match.defect.is_in_exports and not match.is_in_other_releases]
    others = [f"{match.defect.symptom} {match.defect.releases_text} ({match.defect.source_label})"
              for match in matches if not match.is_certain]
    note = (f"Known defects of some releases or GPUs concern this config: {'; '.join(others)}. --for RELEASE names "
            "those of one release.") if others else ""
    return [match.warning_text(network) for match in matches if match.is_certain], note


def find_forbidden_precisions(network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup | None = None
                              ) -> dict[str, dict[Precision, str]]:
    """Returns the precisions in which a target release computes a fusion group wrongly, with the reason, by group name.

    Only confirmed and reproduced defects of single precisions forbid, and only in releases that are known to have them.

    Args:
        precision_of: The precisions of a config, of which only the forbidden ones are returned; None for all
            precisions.
    """
    forbidden: dict[str, dict[Precision, str]] = {}
    for match in match_known_defects(network, target, precision_of):
        defect = match.defect
        if match.is_certain and defect.precisions and defect.status is not DefectStatus.REPORTED:
            for name in match.groups:
                forbidden.setdefault(name, {}).update(
                    {precision: match.text for precision in Precision if precision.value_type in defect.precisions})
    return forbidden


def find_suspect_groups(network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup,
                        precision: Precision) -> frozenset[str]:
    """Returns the names of the fusion groups that get a known defect of a target release if they change to a precision.

    Each group is considered alone; all others have the precisions of the config.
    """
    suspects = set()
    for name in dict.fromkeys(name for site in network.defect_sites for name in site.groups):
        def changed_precision_of(group: FusionGroup, changed_name: str = name) -> Precision:
            return precision if group.name == changed_name else precision_of(group)

        if _find_certain_defects(network, target, changed_precision_of, name) - _find_certain_defects(
                network, target, precision_of, name):
            suspects.add(name)
    return frozenset(suspects)


def _find_certain_defects(network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup,
                          group_name: str) -> set[str]:
    """Returns the keys of the defects that a fusion group has in a config in a target release."""
    return {match.key for match in match_known_defects(network, target, precision_of)
            if match.is_certain and group_name in match.groups}
