"""The check of a file with Q/DQ nodes. It finds forms that cost accuracy or speed in TensorRT, or that TensorRT
refuses.

`QDQ_RULES` is the table of all rules. A rule has a function that yields its findings, a title, the consequence, the
repair and the sources. The rules compare the fusion groups of the FP32 network with the nodes of the file. Statements
about TensorRT come from NVIDIA's documents, or from builds with TensorRT-RTX 1.7.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph, stored_tensor
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqFinding, QdqSite
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.operators import COPIES, PRODUCTS
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import TYPE_NAMES, QdqStep, is_cast, is_dequantize, is_quantize
from trt_tui.core.precision import FP16_MIN, MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES
from trt_tui.formatting import counted_noun_text, name_list_text, percent_text

MIN_LOST_BITS = 2.0
"""The loss of the worst channel of a weight from which one scale for the whole weight is a finding.

A bit is 6 dB. With 2 lost bits, the channel uses a quarter of the quantized values."""

_MAX_FLOAT_GROUPS, _MAX_CHAINED_PAIRS = 4, 8
"""The maximum number of float groups between two quantized layers, and of Q/DQ pairs one behind another."""

_COMMUTING_OPERATORS = COPIES | {"MaxPool"}
"""Operators that TensorRT swaps with Q/DQ nodes: ``OP(DQ(x)) = DQ(OP(x))``."""

_WEIGHT_ONLY_TYPES = frozenset(("INT4", "FP4"))
"""The types in which TensorRT multiplies quantized weights with float activations."""

_EXPLICIT_QUANTIZATION = (
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html"
)
"""NVIDIA's page with the recommendations for the places of Q/DQ nodes."""

_QUANTIZED_TYPES = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html"
_DEQUANTIZE = "https://docs.nvidia.com/deeplearning/tensorrt/operators/docs/Dequantize.html"
_DEQUANTIZE_8_6 = "https://docs.nvidia.com/deeplearning/tensorrt/archives/tensorrt-861/operators/docs/Dequantize.html"
_FUSED_ATTENTION = (
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html"
)
_RESIDUAL_EXAMPLE = (
    "https://docs.nvidia.com/deeplearning/tensorrt/tensorflow-quantization-toolkit/docs/docs/add_custom_qdq_cases.html"
)
"""NVIDIA's example of a residual block, with Q/DQ nodes in places that fuse and in places that do not."""

_RESIDUAL_ISSUE = "https://github.com/NVIDIA/TensorRT/issues/1992"
_BIAS_ISSUE = "https://github.com/onnx/onnx-tensorrt/issues/850"
_CLIPPED_BIAS_ISSUE = "https://github.com/microsoft/onnxruntime/pull/22020"
_PARSER = "https://github.com/onnx/onnx-tensorrt/blob/main/onnxOpImporters.cpp"
_RTX = "builds of such files with TensorRT-RTX 1.7"


@dataclass(frozen=True)
class QuantizedOperand:
    """An operand of a layer that the file dequantizes, with its DequantizeLinear.

    Attributes:
        step: The effect of the DequantizeLinear.
        blocking_node: The node between the DequantizeLinear and the layer that TensorRT cannot compute on quantized
            values; None if the layer reads the quantized values.
        axis_order: The axis of the dequantized tensor for each axis of the operand; None if unknown.
    """

    step: QdqStep
    blocking_node: ir.Node | None = None
    axis_order: tuple[int, ...] | None = None

    @property
    def type_name(self) -> str:
        """The name of the quantized type; "" if the layer reads floats."""
        dtype = self.step.quantized_dtype
        return TYPE_NAMES.get(dtype, dtype.name) if dtype is not None and self.blocking_node is None else ""

    def find_stored_axis(self, axis: int | None) -> int | None:
        """Converts an axis of the operand to the axis of the dequantized tensor; None if it is unknown."""
        return _select_axis(self.axis_order, axis)


@dataclass(frozen=True, eq=False)
class QuantizedFile:
    """A file with Q/DQ nodes and the FP32 network derived from it, with queries for the rules."""

    graph: LayerGraph
    groups: Sequence[FusionGroup]
    source: SourceModel

    def find_operand(self, layer: Layer, input_index: int) -> QuantizedOperand | None:
        """Returns the dequantized operand that a layer reads at an input; None if the input has no DequantizeLinear.

        Copies and Casts may be between the DequantizeLinear and the layer. For a constant, other nodes may be there
        too.
        """
        is_constant = layer.inputs[input_index] in self.graph.constant_tensors
        shape = self.graph.shape(layer.inputs[input_index])
        order: tuple[int, ...] | None = tuple(range(len(shape))) if shape is not None else None
        value = self.source.find_input_value(layer, input_index)
        blocking_node: ir.Node | None = None
        while value is not None and (node := value.producer()) is not None:
            if is_dequantize(node):
                step = self.source.get_qdq_step(node)
                return (
                    None if step.quantized_dtype is ir.DataType.INT32 else QuantizedOperand(step, blocking_node, order)
                )
            moves_values = (
                not node.domain
                and node.op_type in _COMMUTING_OPERATORS
                and not (is_constant and node.op_type == "Concat")
            )
            if not (moves_values or is_cast(node)):
                if not is_constant:
                    return None
                stored_axis = _select_axis(order, self._channel_axes.get((layer.name, input_index)))
                if blocking_node is None and not _scales_only_axis(node, stored_axis, len(order or ())):
                    blocking_node = node
            if node.op_type == "Transpose" and order is not None and "perm" in node.attributes:
                permutation = node.attributes["perm"].as_ints()
                order = tuple(permutation[axis] for axis in order) if len(permutation) == len(order) else None
            elif moves_values and node.op_type != "Identity":
                order = None
            value = next((item for item in node.inputs if item is not None and stored_tensor(item) is None), None)
        return None

    @cached_property
    def _channel_axes(self) -> dict[tuple[str, int], int]:
        """The axis of the output channels of each weight, by layer and input index."""
        return {
            (site.layer, site.index): site.axis
            for group in self.groups
            for site in group.weight_qdq_sites()
            if site.axis is not None
        }

    def operand_type(self, layer: Layer, input_index: int) -> str:
        """Returns the quantized type of an operand; "" if the layer reads floats."""
        operand = self.find_operand(layer, input_index)
        return operand.type_name if operand is not None else ""

    def file_tensor_name(self, fp32_tensor: str) -> str:
        """Returns the name that a tensor of the FP32 network has in the file."""
        return self.source.source_tensors.get(fp32_tensor, fp32_tensor)

    def find_qdq_pair(self, layer: Layer, input_index: int) -> QdqStep | None:
        """Returns the QuantizeLinear of the Q/DQ pair directly before an input of a layer; None if there is none."""
        steps = self.source.find_conversion_steps(layer, input_index)
        return next((step for step in steps or () if step.operator == "quantize"), None)

    def iterate_product_groups(self) -> Iterator[tuple[FusionGroup, Layer]]:
        """Yields the fusion groups with a Conv, ConvTranspose, Gemm or MatMul, each with that layer."""
        for group in self.groups:
            layer = self.graph.by_name[group.name]
            if layer.op_type in PRODUCTS:
                yield group, layer

    def is_quantized_product(self, layer: Layer) -> bool:
        return all(self.operand_type(layer, index) for index in (0, 1))

    def has_quantized_reader(self, tensor: str) -> bool:
        """Returns True if a reader of a tensor quantizes it."""
        readers = (self.graph.by_name[name] for name in self.graph.readers.get(tensor, ()))
        return any(
            name == tensor and self.find_qdq_pair(layer, index) is not None
            for layer in readers
            for index, name in enumerate(layer.inputs)
        )


def _select_axis(order: tuple[int, ...] | None, axis: int | None) -> int | None:
    return order[axis] if order is not None and axis is not None and axis < len(order) else None


def _scales_only_axis(node: ir.Node, axis: int | None, rank: int) -> bool:
    """Returns True if a node multiplies a tensor by a constant that varies along at most the given axis.

    TensorRT-RTX 1.7 moves a factor per output channel to the result of the product.
    """
    if node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return False
    factor = stored_tensor(node.inputs[1])
    if factor is None and node.op_type == "Mul":
        factor = stored_tensor(node.inputs[0])
    if factor is None:
        return False
    sizes = factor.shape.numpy()
    return all(size == 1 or position + rank - len(sizes) == axis for position, size in enumerate(sizes))


Findings = Iterator[QdqFinding]


@dataclass(frozen=True)
class QdqRule:
    """A rule of the check of Q/DQ nodes.

    Attributes:
        name: The name in JSON and in findings.
        title: The form that the rule finds, as a heading.
        effects: The kinds of consequences: "accuracy", "speed" or "refusal".
        consequence: The consequence in TensorRT, with the releases in which it was observed, as sentences.
        repair: The repair, as sentences.
        sources: The addresses of documents, and the release that built such files.
        find: Yields the findings in a file.
        is_noted_at_opening: False if another note at opening already names such nodes.
        needs_engine: True if only an engine can show the problem: separate kernels that convert the values. Builders
            fuse most of these conversions with the layers around them.
    """

    name: str
    title: str
    effects: tuple[str, ...]
    consequence: str
    repair: str
    sources: tuple[str, ...]
    find: Callable[[QuantizedFile], Findings] = field(repr=False)
    is_noted_at_opening: bool = True
    needs_engine: bool = False


def find_qdq_findings(
    graph: LayerGraph, groups: Sequence[FusionGroup], source: SourceModel
) -> tuple[tuple[QdqFinding, ...] | None, tuple[QdqFinding, ...]]:
    """Returns the findings in a file, in the order of `QDQ_RULES`, and its candidates. Without Q/DQ nodes, the findings
    are None.

    A candidate becomes a finding only if an engine converts the values with a separate kernel
    (`trt_tui.core.engines.group_implementations`).
    """
    if not any(is_quantize(node) or is_dequantize(node) for node in source.model.graph):
        return None, ()
    file = QuantizedFile(graph, groups, source)
    findings, candidates = (
        tuple(finding for rule in QDQ_RULES if rule.needs_engine is needs_engine for finding in rule.find(file))
        for needs_engine in (False, True)
    )
    return findings, candidates


# -- places of Q/DQ nodes ---------------------------------------------------------------------------------------------


def _find_pairs_inside_groups(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        members = [file.graph.by_name[name] for name in group.layers]
        last_computing = max((layer.index for layer in members if layer.kind is LayerKind.COMPUTE), default=0)
        computed = set(product.outputs)
        for layer in members:
            for index, tensor in enumerate(layer.inputs):
                if tensor not in computed:
                    continue
                computed.update(layer.outputs)
                pair = file.find_qdq_pair(layer, index)
                if pair is not None and layer.index <= last_computing and not _is_residual_input(file, layer, index):
                    yield QdqFinding(
                        "pair-inside-fused-layer",
                        pair.node_name,
                        group.name,
                        f"between {product.name} and {layer.name} ({layer.op_type})",
                        _find_repair_precision(file, group, product),
                    )


def _is_residual_input(file: QuantizedFile, add: Layer, input_index: int) -> bool:
    """Returns True if an input of an Add is the residual of a fused Add.

    The other operand of the Add must be the float result of a product that only the Add reads. TensorRT can then fuse
    the Add with the product.
    """
    if add.op_type != "Add" or len(add.inputs) != 2:
        return False
    other_index = 1 - input_index
    tensor = add.inputs[other_index]
    return (
        file.find_qdq_pair(add, other_index) is None
        and file.graph.readers.get(tensor) == [add.name]
        and any(group.final_tensor == tensor for group, _ in file.iterate_product_groups())
    )


def _find_float_skips(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        skip = next((site for site in group.sites if site.role == "skip"), None)
        if skip is None or [file.operand_type(product, index) for index in (0, 1)] != ["INT8", "INT8"]:
            continue
        add = file.graph.by_name[skip.layer]
        if (
            not file.operand_type(add, skip.index)
            and file.find_qdq_pair(add, 1 - skip.index) is None
            and file.has_quantized_reader(group.final_tensor)
        ):
            yield QdqFinding(
                "float-skip",
                add.name,
                group.name,
                f"{file.file_tensor_name(skip.tensor)} is float; {product.name} and the reader of the sum are INT8",
                _find_repair_precision(file, group, product),
            )


def _find_one_sided_products(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        operands = [file.find_operand(product, index) for index in (0, 1)]
        types = [operand.type_name if operand is not None else "" for operand in operands]
        if bool(types[0]) is bool(types[1]) or any(
            operand is not None and operand.blocking_node is not None for operand in operands
        ):
            continue
        index = 0 if types[0] else 1
        if types[index] in _WEIGHT_ONLY_TYPES and product.inputs[index] in file.graph.constant_tensors:
            continue
        yield QdqFinding(
            "one-sided-product",
            product.name,
            group.name,
            f"{file.file_tensor_name(product.inputs[index])} is {types[index]}, and "
            f"{file.file_tensor_name(product.inputs[1 - index])} is float",
            _find_repair_precision(file, group, product),
        )


def _find_partial_attentions(file: QuantizedFile) -> Findings:
    products = collect_by_key(
        (group.attention, (group.attention_role, (group, product)))
        for group, product in file.iterate_product_groups()
        if group.attention_role in ("QK", "PV")
    )
    for attention, by_role in ((attention, dict(roles)) for attention, roles in products.items()):
        quantized = [role for role, (_, product) in by_role.items() if file.is_quantized_product(product)]
        floats = [
            role
            for role, (_, product) in by_role.items()
            if not any(file.operand_type(product, index) for index in (0, 1))
        ]
        if len(quantized) == len(floats) == 1:
            (group, product), (_, other_product) = by_role[floats[0]], by_role[quantized[0]]
            yield QdqFinding(
                "partial-attention",
                product.name,
                group.name,
                f"{floats[0]} of {attention} is float, and {quantized[0]} ({other_product.name}) is "
                f"{file.operand_type(other_product, 0)}",
                _find_repair_precision(file, group, other_product),
            )


def _find_unfolded_weights(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        operand = file.find_operand(product, 1)
        if operand is None:
            continue
        if (node := operand.blocking_node) is not None:
            yield QdqFinding(
                "unfolded-weight",
                node.name or "",
                group.name,
                f"{node.op_type} between {operand.step.node_name} and {product.name}",
                _find_repair_precision(file, group, product),
            )
        elif product.op_type != "MatMul" and product.inputs[1] not in file.graph.constant_tensors:
            yield QdqFinding(
                "unfolded-weight",
                operand.step.node_name,
                group.name,
                f"the weight {file.file_tensor_name(product.inputs[1])} of {product.name} is computed",
            )


# -- scales -----------------------------------------------------------------------------------------------------------


def _find_wrong_axes(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        for site in group.sites:
            operand = file.find_operand(file.graph.by_name[site.layer], site.index)
            if (
                operand is None
                or operand.blocking_node is not None
                or not operand.axis_order
                or (scale := operand.step.scale) is None
                or scale.size == 1
                or operand.step.block_size
            ):
                continue
            axis = operand.step.axis % len(operand.axis_order)
            if site.role != "weight":
                yield QdqFinding(
                    "scale-axis",
                    operand.step.node_name,
                    group.name,
                    f"{scale.size} scales along axis {axis} of the activation {file.file_tensor_name(site.tensor)}",
                    _find_repair_precision(file, group, product),
                )
            elif (channel_axis := operand.find_stored_axis(site.axis)) is not None and axis != channel_axis:
                yield QdqFinding(
                    "scale-axis",
                    operand.step.node_name,
                    group.name,
                    f"scales along axis {axis} of the weight of {product.name}, whose output channels are "
                    f"axis {channel_axis}",
                    _find_repair_precision(file, group, product),
                )


def _find_mixed_scale_types(file: QuantizedFile) -> Findings:
    stored_types = {
        node.name: stored.dtype
        for node in file.source.model.graph
        if is_dequantize(node) and len(node.inputs) > 1 and (stored := stored_tensor(node.inputs[1])) is not None
    }
    for group, product in file.iterate_product_groups():
        shape = file.graph.shape(product.inputs[0])
        operands = [file.find_operand(product, index) for index in (0, 1)]
        types = {
            operand.step.node_name: stored_types.get(operand.step.node_name)
            for operand in operands
            if operand is not None and operand.type_name
        }
        if (
            product.op_type == "MatMul"
            and len(set(types.values())) == 2
            and None not in types.values()
            and (shape is None or len(shape) > 2)
        ):
            yield QdqFinding(
                "mixed-scale-types",
                product.name,
                group.name,
                " and ".join(f"{dtype.name} scale of {name}" for name, dtype in types.items() if dtype is not None),
                _find_repair_precision(file, group, product),
            )


def _find_subnormal_scales(file: QuantizedFile) -> Findings:
    for node in file.source.model.graph:
        stored = (
            stored_tensor(node.inputs[1])
            if (is_quantize(node) or is_dequantize(node)) and len(node.inputs) > 1
            else None
        )
        if stored is None or stored.dtype is not ir.DataType.FLOAT16:
            continue
        scale = file.source.get_qdq_step(node).scale
        if scale is not None and (smallest := float(np.abs(scale).min())) < MIN_FP16_SCALE:
            yield QdqFinding(
                "subnormal-scale",
                node.name or "",
                "",
                f"scale {smallest:.3g}, which FP16 rounds by up to {percent_text(FP16_MIN / 2 / smallest)}",
            )


def _find_coarse_weight_scales(file: QuantizedFile) -> Findings:
    for group, product in file.iterate_product_groups():
        for site in group.weight_qdq_sites():
            loss = _find_channel_loss(file, product, site) if site.axis is not None else None
            if loss is not None:
                yield QdqFinding(
                    "per-tensor-weight",
                    loss[0].node_name,
                    group.name,
                    loss[1],
                    _find_repair_precision(file, group, product),
                )


def _find_channel_loss(file: QuantizedFile, product: Layer, site: QdqSite) -> tuple[QdqStep, str] | None:
    """Returns the `QdqStep` of a weight whose single INT8 scale is too coarse for a channel, and the channel's loss as
    text.

    A channel loses the binary logarithm of 127 divided by its largest quantized value. Channels of zeros do not count.
    """
    operand = file.find_operand(product, site.index)
    if (
        operand is None
        or operand.type_name != "INT8"
        or operand.step.block_size
        or operand.step.scale is None
        or operand.step.zero_point is None
        or operand.step.scale.size != 1
        or (channel_axis := operand.find_stored_axis(site.axis)) is None
    ):
        return None
    stored = _find_stored_weight(file, operand.step)
    if stored is None or len(stored.shape) != len(operand.axis_order or ()):
        return None
    values = stored.numpy()
    other_axes = tuple(axis for axis in range(values.ndim) if axis != channel_axis)
    low, high = values.min(axis=other_axes).astype(np.float64), values.max(axis=other_axes).astype(np.float64)
    zero_point = 0.0 if stored.dtype.is_floating_point() else float(operand.step.zero_point.item())
    levels = np.maximum(high - zero_point, zero_point - low)
    if stored.dtype.is_floating_point():
        levels /= float(operand.step.scale.item())
    used = np.flatnonzero(levels > 0)
    if len(used) < 2:
        return None
    lost_bits = np.maximum(0.0, np.log2(INT8.max_value / levels[used]))
    if lost_bits.max() < MIN_LOST_BITS:
        return None
    worst = int(used[np.argmax(lost_bits)])
    return operand.step, (
        f"channel {worst} of {len(levels)} loses {lost_bits.max():.1f} bits (largest value "
        f"{levels[worst]:.3g} of 127), the median channel {np.median(lost_bits):.1f}"
    )


def _find_stored_weight(file: QuantizedFile, step: QdqStep) -> ir.TensorProtocol | None:
    """Returns the stored tensor of a weight: its quantized values, or the floats that its QuantizeLinear reads."""
    node = file.source.find_node(step.node_name)
    value = node.inputs[0] if node is not None else None
    producer = value.producer() if value is not None else None
    return stored_tensor(producer.inputs[0] if producer is not None and is_quantize(producer) else value)


# -- conversions in an engine -----------------------------------------------------------------------------------------


def _find_floats_between_quantized_layers(file: QuantizedFile) -> Findings:
    quantized = {
        group.name: product for group, product in file.iterate_product_groups() if file.is_quantized_product(product)
    }
    group_by_layer = {name: group for group in file.groups for name in group.layers}
    yielded: set[str] = set()
    for product in quantized.values():
        for index, tensor in enumerate(product.inputs[:2]):
            group = group_by_layer.get(file.graph.producer.get(tensor, ""))
            pair = file.find_qdq_pair(product, index)
            if pair is None or group is None or group.name in quantized or pair.node_name in yielded:
                continue
            source = _find_quantized_producer(file, group, group_by_layer, quantized)
            if source is not None:
                yielded.add(pair.node_name)
                yield QdqFinding(
                    "floats-between",
                    pair.node_name,
                    group.name,
                    f"{group.name} ({group.operator}) is in floats between {source.name} and {product.name}",
                    converting_nodes=(pair.node_name,),
                )


def _find_quantized_producer(
    file: QuantizedFile, group: FusionGroup, group_by_layer: Mapping[str, FusionGroup], quantized: Mapping[str, Layer]
) -> Layer | None:
    """Returns the nearest quantized product on which a float group depends through float groups only; None if there is
    none.
    """
    pending, visited = [group], {group.name}
    while pending:
        for tensor in pending.pop(0).inputs:
            producer = group_by_layer.get(file.graph.producer.get(tensor, ""))
            if producer is None or producer.name in visited:
                continue
            if producer.name in quantized:
                return quantized[producer.name]
            visited.add(producer.name)
            if len(visited) <= _MAX_FLOAT_GROUPS:
                pending.append(producer)
    return None


def _find_tensors_with_several_scales(file: QuantizedFile) -> Findings:
    steps_by_source = collect_by_key(
        (source, (node, np.asarray(scale, np.float32)))
        for node in file.source.model.graph
        if is_quantize(node)
        and (source := _find_quantized_value(node)) is not None
        and (scale := file.source.get_qdq_step(node).scale) is not None
        and stored_tensor(source) is None
    )
    for source, steps in steps_by_source.items():
        by_scale = [*collect_by_key((scale.tobytes(), (node, scale)) for node, scale in steps).values()]
        if len(by_scale) > 1:
            names = tuple(node.name or "" for of_scale in by_scale for node, _ in of_scale)
            detail = ", ".join(f"{float(np.max(scale)):.3g} at {node.name}" for (node, scale), *_ in by_scale)
            yield QdqFinding(
                "several-scales", names[0], "", f"{source.name} has the scales {detail}", converting_nodes=names
            )


def _find_quantized_value(node: ir.Node) -> ir.Value | None:
    """Returns the value before a QuantizeLinear, and before any Q/DQ pairs in front of it."""
    value = node.inputs[0]
    for _ in range(_MAX_CHAINED_PAIRS):
        dequantize = value.producer() if value is not None else None
        quantize = (
            dequantize.inputs[0].producer()
            if dequantize is not None and is_dequantize(dequantize) and dequantize.inputs[0] is not None
            else None
        )
        if quantize is None or not is_quantize(quantize):
            return value
        value = quantize.inputs[0]
    return value


# -- refused types ----------------------------------------------------------------------------------------------------


def _find_refused_nodes(rule_name: str, file: QuantizedFile) -> Findings:
    """Yields the nodes that TensorRT refuses for the reason of a rule; see `trt_tui.core.network.qdq.rewrites`."""
    for name in file.source.node_refusals:
        node = file.source.find_node(name)
        if node is not None and (is_quantize(node) or is_dequantize(node)):
            refusal_rule, detail = _describe_refused_node(node, file.source.get_qdq_step(node))
            if refusal_rule == rule_name:
                yield QdqFinding(rule_name, name, "", detail)


def _describe_refused_node(node: ir.Node, step: QdqStep) -> tuple[str, str]:
    """Returns the name of the rule for a node that TensorRT refuses, and the detail of the finding."""
    dtype, zero_point = step.quantized_dtype, step.zero_point
    assert dtype is not None and zero_point is not None, "refused nodes have a type and a zero point"
    if dtype is ir.DataType.INT32:
        readers = [use.node.name or "" for use in node.outputs[0].uses()]
        return "int32-bias", f"read by {name_list_text(readers, max_count=2)}{_clipped_values_text(node)}"
    if dtype.bitwidth < 16 and zero_point.any():
        values = zero_point.astype(np.int32).reshape(-1)
        return "zero-point", f"{dtype.name} with zero point {values[np.abs(values).argmax()]}"
    return "unsigned-type" if dtype is ir.DataType.UINT8 else "refused-type", f"{dtype.name} with " + (
        "one scale" if not zero_point.shape else f"{zero_point.size} scales"
    )


def _clipped_values_text(dequantize: ir.Node) -> str:
    """Returns a clause on stored INT32 values at the limits of their type; "" if there are none."""
    stored = stored_tensor(dequantize.inputs[0])
    if stored is None:
        return ""
    values, limits = stored.numpy().astype(np.int64), np.iinfo(np.int32)
    clipped_count = int(np.count_nonzero((values <= -limits.max) | (values >= limits.max)))
    return f"; {clipped_count} of {counted_noun_text(values.size, 'value')} clipped to INT32" if clipped_count else ""


def _find_repair_precision(file: QuantizedFile, group: FusionGroup, quantized_product: Layer) -> Precision | None:
    """Returns the precision of a group that repairs a finding; None if the group cannot run in it.

    The precision is the quantized type of the file. With it, an export writes new Q/DQ nodes instead of those of the
    file.
    """
    types = {file.operand_type(quantized_product, index) for index in (0, 1)}
    return next(
        (
            precision
            for precision, quantized_type in QUANTIZED_TYPES.items()
            if precision.label in types
            and quantized_type.quantizes_activations
            and precision in group.allowed_precisions
        ),
        None,
    )


# -- the table of rules -----------------------------------------------------------------------------------------------

_EXPORT_REPAIR = "Or write the file anew with build --precision file -o typed.onnx, which "

QDQ_RULES: tuple[QdqRule, ...] = (
    QdqRule(
        "pair-inside-fused-layer",
        "Q/DQ pair between a layer and its batch norm, residual Add or activation",
        ("accuracy", "speed"),
        "The values are rounded to the quantized type once more. By NVIDIA's documents such a pair separates the Conv "
        "from the Add. TensorRT-RTX 1.7 fuses the pair and builds no further kernel.",
        "Remove the pair. Quantize only the inputs of the Conv, Gemm or MatMul and the other input of the Add.",
        (_EXPLICIT_QUANTIZATION, _RESIDUAL_EXAMPLE, _RTX),
        _find_pairs_inside_groups,
    ),
    QdqRule(
        "float-skip",
        "skip connection in floats beside a quantized branch",
        ("speed",),
        "By NVIDIA's documents the fused Conv then writes floats, and the next QuantizeLinear is not fused with it. "
        "TensorRT-RTX 1.7 fuses that node, and its Add reads floats instead of INT8.",
        "Quantize the input of the Add that is the skip connection, and not the result of the Conv.",
        (_EXPLICIT_QUANTIZATION, _RESIDUAL_EXAMPLE, _RESIDUAL_ISSUE, _RTX),
        _find_float_skips,
    ),
    QdqRule(
        "one-sided-product",
        "product of a quantized and a float operand",
        ("accuracy", "speed"),
        "TensorRT-RTX 1.7 dequantizes the operand and multiplies floats: the rounding stays, and no INT8 kernel runs.",
        "Quantize both operands, or neither.",
        (_EXPLICIT_QUANTIZATION, _RTX),
        _find_one_sided_products,
    ),
    QdqRule(
        "partial-attention",
        "attention that is quantized in part",
        ("speed",),
        "TensorRT-RTX 1.7 fuses QK, Softmax and PV into one kernel if both products are INT8, or both FP16. "
        "If only one is INT8, the attention is not fused.",
        "Quantize both inputs of QK and both inputs of PV, or none of them.",
        (_FUSED_ATTENTION, _RTX),
        _find_partial_attentions,
    ),
    QdqRule(
        "unfolded-weight",
        "quantized weight that is computed, or not directly before its layer",
        ("speed", "refusal"),
        "TensorRT-RTX 1.7 computes such a weight in each execution. Behind any operator but copies and channel "
        "factors, the layer runs in floats. Some forms of Concat are refused.",
        "Compute the weight before it is quantized, and store it as a constant.",
        (_EXPLICIT_QUANTIZATION, _RTX),
        _find_unfolded_weights,
    ),
    QdqRule(
        "scale-axis",
        "scales along another axis than the output channels",
        ("speed",),
        "TensorRT-RTX 1.7 dequantizes the values and computes the layer in floats: no INT8 kernel runs.",
        "Write one scale for each output channel of a weight, with the axis of these channels. Write one scale for "
        "each activation tensor.",
        (_EXPLICIT_QUANTIZATION, _RTX),
        _find_wrong_axes,
    ),
    QdqRule(
        "mixed-scale-types",
        "MatMul of more than two axes with scales of different types",
        ("refusal",),
        'TensorRT-RTX 1.7 does not build the product: "type mismatch between matmul operand scales".',
        "Store the scales of both operands in one type.",
        (_RTX,),
        _find_mixed_scale_types,
    ),
    QdqRule(
        "subnormal-scale",
        "FP16 scale that FP16 holds in few bits",
        ("accuracy",),
        "FP16 numbers below 2^-14 have steps of 6e-8. The layer computes with the rounded scale, and not with the "
        "scale that the quantizer chose.",
        "Store the scales of all operands of the layer in FP32, each with a Cast to FP16 behind its DequantizeLinear.",
        ("IEEE 754-2019, binary16",),
        _find_subnormal_scales,
    ),
    QdqRule(
        "per-tensor-weight",
        "one scale for a weight whose channels differ",
        ("accuracy",),
        "Channels with small values are rounded to few numbers; a lost bit costs 6 dB in that channel. NVIDIA "
        "recommends a scale for each channel of a weight.",
        "Write one scale for each output channel of the weight.",
        (_EXPLICIT_QUANTIZATION,),
        _find_coarse_weight_scales,
    ),
    QdqRule(
        "zero-point",
        "zero point other than 0",
        ("refusal",),
        'TensorRT 8.6 to 11 require zero points of 0. The parser of TensorRT-RTX 1.7 refuses the file: "Non-zero zero '
        'point is not supported".',
        "Quantize symmetrically (ONNX Runtime: ActivationSymmetric and WeightSymmetric). "
        f"{_EXPORT_REPAIR}has zero points of 0.",
        (_DEQUANTIZE, _DEQUANTIZE_8_6, _RTX),
        partial(_find_refused_nodes, "zero-point"),
        is_noted_at_opening=False,
    ),
    QdqRule(
        "unsigned-type",
        "UINT8 with zero point 0",
        ("accuracy", "refusal"),
        "The parser of TensorRT-RTX 1.7 reads UINT8 activations as INT8. Quantized values above 127 are then clipped, "
        "without an error. The parser refuses UINT8 weights.",
        f"Quantize to INT8 (ONNX Runtime: QuantType.QInt8; PyTorch: torch.int8). {_EXPORT_REPAIR}has INT8 with the "
        "same range.",
        (_PARSER, _RTX),
        partial(_find_refused_nodes, "unsigned-type"),
    ),
    QdqRule(
        "int32-bias",
        "DequantizeLinear on an int32 bias",
        ("accuracy", "refusal"),
        'TensorRT dequantizes no INT32. TensorRT 8.6 reads INT8 only, and TensorRT-RTX 1.7 refuses the node: "input '
        'has type Int32". A value clipped to INT32 is wrong in every runtime: the product of its scales is too small.',
        "Keep biases in floats (ONNX Runtime: QuantizeBias False), or quantize with ONNX Runtime 1.20.1 or later, "
        f"which clips none. {_EXPORT_REPAIR}has equal biases in floats.",
        (_DEQUANTIZE, _DEQUANTIZE_8_6, _BIAS_ISSUE, _CLIPPED_BIAS_ISSUE, _RTX),
        partial(_find_refused_nodes, "int32-bias"),
        is_noted_at_opening=False,
    ),
    QdqRule(
        "refused-type",
        "quantized type that TensorRT refuses",
        ("refusal",),
        "TensorRT quantizes to INT8, INT4, FP8 and FP4 only. TensorRT-RTX 1.7 refuses other types, and INT4 with one "
        "scale beside INT8.",
        f"Quantize to INT8. {_EXPORT_REPAIR}has no such types.",
        (_QUANTIZED_TYPES, _RTX),
        partial(_find_refused_nodes, "refused-type"),
        is_noted_at_opening=False,
    ),
    QdqRule(
        "floats-between",
        "float layer between quantized layers, which the engine converts",
        ("speed",),
        "The engine writes floats, computes the layer, and quantizes its result in a kernel of its own. "
        "TensorRT-RTX 1.7 does so around AveragePool, InstanceNormalization and float products. It fuses the "
        "conversion with pointwise layers, Softmax, Resize and copies.",
        "Quantize the layer too, if TensorRT has a quantized kernel for it. Leave its quantized neighbours in floats "
        "if the conversions cost more than the quantized kernels save.",
        (_EXPLICIT_QUANTIZATION, _RTX),
        _find_floats_between_quantized_layers,
        needs_engine=True,
    ),
    QdqRule(
        "several-scales",
        "one tensor with several scales, which the engine converts",
        ("accuracy", "speed"),
        "The engine quantizes the tensor once for each scale. TensorRT-RTX 1.7 does so in one kernel with the layer "
        "that computes the tensor, if it can fuse them.",
        "Write the same scale for all readers of the tensor, so that they share the quantized values.",
        (_EXPLICIT_QUANTIZATION, _RTX),
        _find_tensors_with_several_scales,
        needs_engine=True,
    ),
)
"""All rules: places of Q/DQ nodes first, then scales, then refused types, then forms that need an engine."""


def qdq_note_lines(findings: Sequence[QdqFinding]) -> list[str]:
    """Returns the notes that the opening of a file shows, one for each rule with findings.

    Refused nodes have separate notes (`rewrites.refusal_summary_lines`).
    """
    return [
        f"Q/DQ check: {rule.title} ({name_list_text(nodes, max_count=2)}). {rule.consequence} "
        "The command lint names the repair."
        for rule in QDQ_RULES
        if rule.is_noted_at_opening and (nodes := [finding.node for finding in findings if finding.rule == rule.name])
    ]
