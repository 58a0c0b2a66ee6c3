"""The check of a file with Q/DQ nodes: forms that cost accuracy or speed in TensorRT, or that TensorRT refuses.

`QDQ_RULES` is the table of all rules. Each rule is a function that yields its findings, with a title, the consequence,
the repair and the sources. The rules read the fusion groups of the FP32 network together with the nodes of the file.
Statements about TensorRT come from NVIDIA's documents, or from builds with TensorRT-RTX 1.7.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import largest_magnitude, stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqFinding, QdqSite
from trt_tui.core.network.operators import COPIES, PRODUCTS
from trt_tui.core.network.qdq_steps import TYPE_NAMES, QdqStep, is_dequantize, is_quantize, type_limits
from trt_tui.core.network.source_model import SourceModel
from trt_tui.core.network.typed_refusals import ASYMMETRIC, BIAS, NARROW, UNSIGNED, WIDE, refusal_workaround_text
from trt_tui.core.precision import MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import counted_noun_text, name_list_text

MIN_LOST_BITS = 2.0
"""The loss of the worst channel of a weight from which one scale for the whole weight is a finding.

A bit is 6 dB. With 2 lost bits, the channel uses a quarter of the quantized values."""

_COMMUTING_OPERATORS = COPIES | {"MaxPool"}
"""Operators that TensorRT swaps with Q/DQ nodes: ``OP(DQ(x)) = DQ(OP(x))``."""

_WEIGHT_ONLY_TYPES = frozenset(("INT4", "FP4"))
"""The types in which TensorRT multiplies quantized weights with float activations."""

_EXPLICIT_QUANTIZATION = ("https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/"
                          "quantized-types-explicit-quantization.html")
"""NVIDIA's page with the recommendations for the places of Q/DQ nodes."""

_QUANTIZED_TYPES = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html"
_DEQUANTIZE = "https://docs.nvidia.com/deeplearning/tensorrt/operators/docs/Dequantize.html"
_DEQUANTIZE_8_6 = ("https://docs.nvidia.com/deeplearning/tensorrt/archives/tensorrt-861/operators/docs/"
                   "Dequantize.html")
_FUSED_ATTENTION = ("https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/"
                    "transformers-fused-attention.html")
_RESIDUAL_ISSUE = "https://github.com/NVIDIA/TensorRT/issues/1992"
_BIAS_ISSUE = "https://github.com/onnx/onnx-tensorrt/issues/850"
_RTX = "built with TensorRT-RTX 1.7"


@dataclass(frozen=True, eq=False)
class QuantizedFile:
    """A file with Q/DQ nodes and the FP32 network that was derived from it, as the rules read them."""

    graph: LayerGraph
    groups: Sequence[FusionGroup]
    source: SourceModel

    def quantizing_steps(self, layer: Layer, input_index: int) -> tuple[QdqStep, ...]:
        """Returns the Q and DQ steps directly before an input of a layer, without those of INT32 biases."""
        tensor = layer.inputs[input_index]
        dequantize_step = self.source.find_dequantize_step(tensor)
        steps = (*self.source.input_conversion_steps(layer, input_index),
                 *((dequantize_step,) if dequantize_step is not None else ()))
        return tuple(step for step in steps if step.quantized_dtype not in (None, ir.DataType.INT32))

    def operand_type(self, layer: Layer, input_index: int) -> str:
        """Returns the quantized type of an input, also behind operators that only move values; "" if it is float."""
        visited: set[str] = set()
        while True:
            if steps := self.quantizing_steps(layer, input_index):
                dtype = steps[-1].quantized_dtype
                assert dtype is not None, "steps without a quantized type are left out"
                return TYPE_NAMES.get(dtype, dtype.name)
            producer = self.graph.by_name.get(self.graph.producer.get(layer.inputs[input_index], ""))
            if producer is None or producer.op_type not in _COMMUTING_OPERATORS or producer.name in visited:
                return ""
            visited.add(producer.name)
            layer, input_index = producer, 0

    def iterate_product_groups(self) -> Iterator[tuple[FusionGroup, Layer]]:
        """Yields the fusion groups around a Conv, ConvTranspose, Gemm or MatMul, each with that layer."""
        for group in self.groups:
            layer = self.graph.by_name[group.name]
            if layer.op_type in PRODUCTS:
                yield group, layer

    def is_quantized_product(self, layer: Layer) -> bool:
        return all(self.operand_type(layer, index) for index in (0, 1))

    def is_read_quantized(self, tensor: str) -> bool:
        """Returns True if a reader of a tensor quantizes it."""
        readers = (self.graph.by_name[name] for name in self.graph.readers.get(tensor, ()))
        return any(name == tensor and self.quantizing_steps(layer, index)
                   for layer in readers for index, name in enumerate(layer.inputs))


Findings = Iterator[QdqFinding]


@dataclass(frozen=True)
class QdqRule:
    """A rule of the check.

    Attributes:
        name: The name in JSON and in findings.
        title: The form that the rule finds, as a heading.
        effects: The kinds of consequences: "accuracy", "speed" or "refusal".
        consequence: The consequence in TensorRT, with the releases that it is known of, as sentences.
        repair: The repair, as sentences.
        sources: The addresses of documents, and the release that built such files.
        find: Yields the findings in a file.
        is_noted_at_opening: False if the notes at opening name such nodes already.
    """

    name: str
    title: str
    effects: tuple[str, ...]
    consequence: str
    repair: str
    sources: tuple[str, ...]
    find: Callable[[QuantizedFile], Findings] = field(repr=False)
    is_noted_at_opening: bool = True


def find_qdq_findings(graph: LayerGraph, groups: Sequence[FusionGroup], source: SourceModel | None
                      ) -> tuple[QdqFinding, ...] | None:
    """Returns all findings in a file, in the order of `QDQ_RULES`; None if the file has no Q/DQ nodes."""
    if source is None or not any(is_quantize(node) or is_dequantize(node) for node in source.model.graph):
        return None
    file = QuantizedFile(graph, groups, source)
    return tuple(finding for rule in QDQ_RULES for finding in rule.find(file))


# -- places of Q/DQ nodes ---------------------------------------------------------------------------------------------


def _find_pairs_inside_groups(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        members = [file.graph.by_name[name] for name in group.layers]
        computed = set(product.outputs)
        last_computing = max((layer.index for layer in members if layer.kind is LayerKind.COMPUTE), default=0)
        for layer in members:
            for index, tensor in enumerate(layer.inputs):
                if tensor not in computed:
                    continue
                computed.update(layer.outputs)
                steps = file.quantizing_steps(layer, index)
                if steps and layer.index <= last_computing and not _can_fuse_with_other_product(file, layer, index):
                    yield QdqFinding("pair-inside-fused-layer", steps[0].node_name, group.name,
                                     f"between {product.name} and {layer.name} ({layer.op_type})",
                                     _find_repair_precision(file, group, product))


def _can_fuse_with_other_product(file: QuantizedFile, layer: Layer, input_index: int) -> bool:
    """Returns True if the other operand of an Add is the float result of another product that only the Add reads.

    TensorRT can then fuse the Add with that product, and the Q/DQ pair is on the residual input.
    """
    if layer.op_type != "Add" or len(layer.inputs) != 2:
        return False
    other_index = 1 - input_index
    tensor = layer.inputs[other_index]
    return (not file.quantizing_steps(layer, other_index) and file.graph.readers.get(tensor) == [layer.name]
            and any(group.final_tensor == tensor for group, _ in file.iterate_product_groups()))


def _find_float_skips(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        skip = next((site for site in group.sites if site.role == "skip"), None)
        if skip is None or file.operand_type(product, 0) != "INT8" or not file.is_quantized_product(product):
            continue
        add = file.graph.by_name[skip.layer]
        if (not file.operand_type(add, skip.index) and not file.quantizing_steps(add, 1 - skip.index)
                and file.is_read_quantized(group.final_tensor)):
            yield QdqFinding("float-skip", add.name, group.name,
                             f"{skip.tensor} is float, and {product.name} and the reader of the sum are INT8",
                             _find_repair_precision(file, group, product))


def _find_one_sided_products(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        types = [file.operand_type(product, index) for index in (0, 1)]
        if bool(types[0]) is bool(types[1]):
            continue
        quantized_index = 0 if types[0] else 1
        float_index = 1 - quantized_index
        is_weight_only = product.inputs[quantized_index] in file.graph.constant_tensors
        if is_weight_only and types[quantized_index] in _WEIGHT_ONLY_TYPES or _find_op_behind_dequantize(
                file, product, float_index) is not None:
            continue
        yield QdqFinding("one-sided-product", product.name, group.name,
                         f"{product.inputs[quantized_index]} is {types[quantized_index]}, and "
                         f"{product.inputs[float_index]} is float", _find_repair_precision(file, group, product))


def _find_partial_attentions(file: QuantizedFile) -> Findings:
    products: dict[str, dict[str, tuple[FusionGroup, Layer]]] = {}
    for group, product in file.iterate_product_groups():
        if group.attention_role in ("QK", "PV"):
            products.setdefault(group.attention, {})[group.attention_role] = group, product
    for attention, by_role in products.items():
        quantized = [role for role, (_, product) in by_role.items() if file.is_quantized_product(product)]
        floats = [role for role, (_, product) in by_role.items()
                  if not any(file.operand_type(product, index) for index in (0, 1))]
        if len(quantized) == len(floats) == 1:
            group, product = by_role[floats[0]]
            yield QdqFinding("partial-attention", product.name, group.name,
                             f"{floats[0]} of {attention} is float, and {quantized[0]} "
                             f"({by_role[quantized[0]][1].name}) is quantized",
                             _find_repair_precision(file, group, by_role[quantized[0]][1]))


def _find_unfoldable_weights(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        tensor = product.inputs[1]
        precision = _find_repair_precision(file, group, product)
        if (operation := _find_op_behind_dequantize(file, product, 1)) is not None:
            dequantize, node = operation
            yield QdqFinding("unfolded-weight", node.name or "", group.name,
                             f"{node.op_type} between {dequantize.name} and {product.name}", precision)
        elif (product.op_type != "MatMul" and tensor not in file.graph.constant_tensors
              and file.quantizing_steps(product, 1)):
            yield QdqFinding("unfolded-weight", file.quantizing_steps(product, 1)[0].node_name, group.name,
                             f"the weight {tensor} of {product.name} is computed")


def _find_op_behind_dequantize(file: QuantizedFile, layer: Layer, input_index: int) -> tuple[ir.Node, ir.Node] | None:
    """Returns the DQ node of a constant operand and the operator between it and the layer; None if there are not both.
    """
    if layer.inputs[input_index] not in file.graph.constant_tensors:
        return None
    value = file.source.find_input_value(layer, input_index)
    last_node: ir.Node | None = None
    visited: set[ir.Node] = set()
    while value is not None and (node := value.producer()) is not None and node not in visited:
        visited.add(node)
        if is_dequantize(node):
            return (node, last_node) if last_node is not None else None
        last_node = last_node or node
        value = next((item for item in node.inputs if item is not None and stored_tensor(item) is None), None)
    return None


# -- scales -----------------------------------------------------------------------------------------------------------


def _find_wrong_axes(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        for site in group.sites:
            layer = file.graph.by_name[site.layer]
            for step in file.quantizing_steps(layer, site.index)[-1:]:
                if step.scale is None or step.block_size or step.scale.size == 1:
                    continue
                rank = len(file.graph.shape(site.tensor) or ())
                axis = step.axis % rank if rank else step.axis
                if site.role != "weight":
                    yield QdqFinding("scale-axis", step.node_name, group.name,
                                     f"{counted_noun_text(step.scale.size, 'scale')} along axis {axis} of the "
                                     f"activation {site.tensor}", _find_repair_precision(file, group, product))
                elif site.axis is not None and axis != site.axis:
                    yield QdqFinding("scale-axis", step.node_name, group.name,
                                     f"scales along axis {axis} of the weight of {product.name}, whose output channels "
                                     f"are axis {site.axis}", _find_repair_precision(file, group, product))


def _find_subnormal_scales(file: QuantizedFile) -> Findings:
    for node in file.source.model.graph:
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        step = file.source.get_qdq_step(node)
        stored = stored_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
        if stored is None or stored.dtype is not ir.DataType.FLOAT16 or step.scale is None:
            continue
        smallest = float(np.abs(step.scale).min())
        if smallest < MIN_FP16_SCALE:
            yield QdqFinding("subnormal-scale", node.name or "", "",
                             f"its smallest scale is {smallest:.3g}, in steps of {2.0**-24:.1g}")


def _find_coarse_weight_scales(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        for site in group.weight_qdq_sites():
            loss = _measure_channel_loss(file, site) if site.axis is not None else None
            if loss is not None and loss.worst_lost_bits >= MIN_LOST_BITS:
                yield QdqFinding("per-tensor-weight", loss.node_name, group.name,
                                 f"channel {loss.worst_channel} of {loss.channel_count} uses {loss.worst_level:.3g} of "
                                 f"{loss.max_level:.3g} levels and loses {loss.worst_lost_bits:.1f} bits, the median "
                                 f"channel {loss.median_lost_bits:.1f}", _find_repair_precision(file, group, product))


@dataclass(frozen=True)
class _ChannelLoss:
    """The quantized values that the channels of a weight leave unused because they share a scale.

    Attributes:
        worst_level: The largest quantized value of the worst channel, of ``max_level``.
        worst_lost_bits: The binary logarithm of ``max_level`` divided by ``worst_level``; a bit is 6 dB.
    """

    node_name: str
    channel_count: int
    worst_channel: int
    worst_level: float
    max_level: float
    worst_lost_bits: float
    median_lost_bits: float


def _measure_channel_loss(file: QuantizedFile, site: QdqSite) -> _ChannelLoss | None:
    """Returns the loss of a weight with one integer scale; None for other weights. Channels of zeros do not count."""
    layer = file.graph.by_name[site.layer]
    step = next(reversed(file.quantizing_steps(layer, site.index)), None)
    if step is None or step.scale is None or step.scale.size != 1 or step.block_size or step.zero_point is None:
        return None
    dtype = step.quantized_dtype
    if dtype is None or dtype.is_floating_point() or TYPE_NAMES.get(dtype) != "INT8":
        return None
    values = _find_quantized_levels(file, site, step)
    if values is None or values.ndim < 2:
        return None
    max_level = float(type_limits(ir.DataType.INT8)[1])
    levels = largest_magnitude(values, site.axis).astype(np.float64)
    used = np.flatnonzero(levels > 0)
    if len(used) < 2:
        return None
    worst = int(used[np.argmin(levels[used])])
    lost_bits = np.maximum(0.0, np.log2(max_level / levels[used]))
    return _ChannelLoss(step.node_name, len(levels), worst, float(levels[worst]), max_level,
                        math.log2(max_level / float(levels[worst])), float(np.median(lost_bits)))


def _find_quantized_levels(file: QuantizedFile, site: QdqSite, step: QdqStep) -> np.ndarray | None:
    """Returns a weight in units of its scale, without its zero point; None if it is not stored."""
    assert step.scale is not None and step.zero_point is not None
    value = file.source.find_ir_value(site.tensor)
    producer = value.producer() if value is not None else None
    if producer is not None and is_dequantize(producer):
        stored = stored_tensor(producer.inputs[0])
        return None if stored is None else stored.numpy().astype(np.int32) - np.int32(step.zero_point.item())
    stored = stored_tensor(value)
    return None if stored is None else stored.numpy().astype(np.float32) / np.float32(step.scale.item())


# -- refused types ----------------------------------------------------------------------------------------------------


def _find_refusals(rule_name: str, reasons: Sequence[str]) -> Callable[[QuantizedFile], Findings]:
    """Returns a rule that finds the nodes which TensorRT refuses for some reasons of `typed_refusals`."""

    def find(file: QuantizedFile) -> Findings:
        for refusal in file.source.node_refusals:
            if refusal.reason in reasons:
                yield QdqFinding(rule_name, refusal.node_name, "", refusal.reason)

    return find


def _find_repair_precision(file: QuantizedFile, group: FusionGroup, quantized_product: Layer) -> Precision | None:
    """Returns the precision that repairs a finding if a group gets it in a config; None if the group cannot have it.

    An export writes new Q/DQ nodes for a group with another precision than that of the file. The type is that of the
    file.
    """
    types = {file.operand_type(quantized_product, index) for index in (0, 1)}
    return next((precision for precision, quantized_type in QUANTIZED_TYPES.items()
                 if precision.label in types and quantized_type.quantizes_activations
                 and precision in group.allowed_precisions), None)


# -- the table of rules -----------------------------------------------------------------------------------------------

QDQ_RULES: tuple[QdqRule, ...] = (
    QdqRule("pair-inside-fused-layer", "Q/DQ pair between a layer and its residual Add or activation",
            ("speed", "accuracy"), "X", "Y", (_EXPLICIT_QUANTIZATION, _RTX), _find_pairs_inside_groups),
    QdqRule("float-skip", "skip connection in floats beside a quantized branch", ("speed",), "X", "Y",
            (_EXPLICIT_QUANTIZATION, _RESIDUAL_ISSUE, _RTX), _find_float_skips),
    QdqRule("one-sided-product", "product of a quantized and a float operand", ("speed", "accuracy"), "X", "Y",
            (_EXPLICIT_QUANTIZATION, _RTX), _find_one_sided_products),
    QdqRule("partial-attention", "attention that is quantized in part", ("speed",), "X", "Y",
            (_FUSED_ATTENTION, _RTX), _find_partial_attentions),
    QdqRule("unfolded-weight", "quantized weight that is not a constant, or not directly before its layer",
            ("speed", "accuracy"), "X", "Y", (_EXPLICIT_QUANTIZATION, _RTX), _find_unfoldable_weights),
    QdqRule("scale-axis", "scales along another axis than the output channels", ("refusal",), "X", "Y", (_RTX,),
            _find_wrong_axes),
    QdqRule("subnormal-scale", "FP16 scale that is subnormal", ("accuracy",), "X", "Y", (), _find_subnormal_scales),
    QdqRule("per-tensor-weight", "one scale for a weight whose channels differ", ("accuracy",), "X", "Y",
            (_EXPLICIT_QUANTIZATION,), _find_coarse_weight_scales),
    QdqRule("zero-point", "zero point other than 0", ("refusal",), "X", "Y",
            (_DEQUANTIZE, _DEQUANTIZE_8_6, _RTX), _find_refusals("zero-point", (ASYMMETRIC, UNSIGNED)),
            is_noted_at_opening=False),
    QdqRule("int32-bias", "DequantizeLinear on an int32 bias", ("refusal",), "X", "Y",
            (_DEQUANTIZE, _DEQUANTIZE_8_6, _BIAS_ISSUE, _RTX), _find_refusals("int32-bias", (BIAS,)),
            is_noted_at_opening=False),
    QdqRule("refused-type", "quantized type that TensorRT refuses", ("refusal",), "X", "Y", (_QUANTIZED_TYPES, _RTX),
            _find_refusals("refused-type", (WIDE, NARROW)), is_noted_at_opening=False))
"""All rules, those that cost speed first and refusals last."""


def qdq_note_lines(findings: Sequence[QdqFinding]) -> list[str]:
    """Returns a note for each rule with findings, for the opening of a file.

    Refused nodes have notes of their own (`typed_refusals.refusal_summary_lines`).
    """
    lines = []
    for rule in QDQ_RULES:
        nodes = [finding.node for finding in findings if finding.rule == rule.name]
        if nodes and rule.is_noted_at_opening:
            lines.append(f"Q/DQ check: {rule.title} ({name_list_text(nodes, max_count=2)}). {rule.consequence} "
                         "The command inspect --lint names the repair.")
    return lines
