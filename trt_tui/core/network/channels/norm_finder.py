"""The search for normalisations (LayerNorm and RMSNorm, as one operator or decomposed) and for biases in a network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trt_tui.core.network.channels.channel_scaling import find_attention_scales, find_channel_scalings
from trt_tui.core.network.channels.channel_tracer import ChannelTracer
from trt_tui.core.network.graph import LayerGraph, stored_tensor
from trt_tui.core.network.layers import (
    CorrectableBias,
    FusionGroup,
    Layer,
    LayerKind,
    Normalisation,
    Port,
    ZeroCostSupport,
)

_NORM_OPERATORS = frozenset(("LayerNormalization", "RMSNormalization"))


def find_zero_cost_support(graph: LayerGraph, groups: Sequence[FusionGroup]) -> ZeroCostSupport:
    """Returns the parts of a network that zero-cost moves can change."""
    group_by_layer = {layer: group for group in groups for layer in group.layers}
    norms = {}
    for layer in graph.layers:
        norm = _match_normalisation_operator(graph, layer) or _DecomposedNormalisationMatcher(
            graph
        ).match_normalisation(layer)
        group = group_by_layer.get(norm.layers[-1]) if norm is not None else None
        if norm is None or group is None or group.name in norms:
            continue
        norms[group.name] = _add_rewrite_refusal_reason(
            graph, norm, group, {name: norm_group.name for name, norm_group in group_by_layer.items()}
        )
    tracer = ChannelTracer(graph, group_by_layer)
    tracer.trace_layers()
    attention_scales = find_attention_scales(tracer, groups)
    tracer.unite_products()
    return ZeroCostSupport(
        norms,
        {group.name: _find_correctable_bias(graph, group) for group in groups if group.sites},
        find_channel_scalings(tracer, groups),
        attention_scales,
    )


def _add_rewrite_refusal_reason(
    graph: LayerGraph, normalisation: Normalisation, group: FusionGroup, group_name_by_layer: Mapping[str, str]
) -> Normalisation:
    """Adds to a normalisation the reason why one operator, such as LayerNormalization, cannot replace its layers."""
    no_rewrite_reason = normalisation.no_rewrite_reason
    if len(normalisation.layers) == 1:
        no_rewrite_reason = f"it is the operator {normalisation.operator} already"
    elif any(group_name_by_layer.get(name) != group.name for name in normalisation.layers):
        no_rewrite_reason = "its nodes belong to several fused layers with separate precisions"
    elif normalisation.scale is None and not normalisation.channels:
        no_rewrite_reason = "it has no scale, and the size of its last axis is not known"
    return replace(normalisation, no_rewrite_reason=no_rewrite_reason)


# -- the operator, and the decomposed form ----------------------------------------------------------------------------


def _match_normalisation_operator(graph: LayerGraph, layer: Layer) -> Normalisation | None:
    """Returns the normalisation that a layer computes as one operator; None if it is not one, or if scale or bias are
    computed.
    """
    if layer.op_type not in _NORM_OPERATORS or layer.kind is not LayerKind.COMPUTE or len(layer.outputs) > 1:
        return None
    attributes = graph.node(layer.name).attributes
    axis, rank = attributes.get_int("axis", -1), len(graph.shape(layer.inputs[0]) or ())
    axis = axis - rank if axis >= 0 else axis
    ports: list[Port | None] = [
        (layer.name, index) if len(layer.inputs) > index and layer.inputs[index] else None for index in (1, 2)
    ]
    constant = [
        port if port is not None and layer.inputs[port[1]] in graph.constant_tensors else None for port in ports
    ]
    if constant != ports:
        return None  # its scale or bias is computed
    scale, bias = constant
    return Normalisation(
        layer.op_type,
        (layer.name,),
        layer.inputs[0],
        layer.outputs[0],
        axis,
        float(attributes.get_float("epsilon", 1e-5)),
        scale,
        bias,
        _read_channel_count(graph, layer.inputs[0]),
    )


class _DecomposedNormalisationMatcher:
    """A matcher of decomposed normalisations: a LayerNorm below opset 17 or an RMSNorm below opset 23, as exporters
    write it.

    The pattern is ``(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon) * scale + bias``. An RMSNorm lacks mean and
    bias. The square is a Pow or a Mul. The division is a Div by the root, or a Mul by its reciprocal.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.layers: list[Layer] = []

    def match_normalisation(self, division: Layer) -> Normalisation | None:
        """Returns the decomposed normalisation whose division by the root is the given layer; None if there is none."""
        if division.kind is not LayerKind.COMPUTE or division.op_type not in ("Div", "Mul"):
            return None
        operands = [division.inputs, division.inputs[::-1]] if division.op_type == "Mul" else [division.inputs]
        found = (
            self._match_operands(division, operator, *pair)
            for operator in ("LayerNormalization", "RMSNormalization")
            for pair in operands
        )
        return next(filter(None, found), None)

    def _match_operands(
        self, division: Layer, operator: str, centred_tensor: str, divisor: str
    ) -> Normalisation | None:
        self.layers = [division]
        variance_tensor = self._find_sum_below_root(divisor, is_inverted=division.op_type == "Mul")
        add_layer = self._add_producer(variance_tensor, "Add")
        mean_layer = (
            next(filter(None, (self._add_producer(name, "ReduceMean") for name in add_layer.inputs)), None)
            if add_layer is not None
            else None
        )
        square_layer = self._add_producer(mean_layer.inputs[0], "Pow", "Mul") if mean_layer is not None else None
        if (
            add_layer is None
            or mean_layer is None
            or square_layer is None
            or not self._is_square(square_layer, centred_tensor)
        ):
            return None
        axes, epsilon = (
            self._find_mean_axes(mean_layer),
            next(
                (
                    number
                    for name in add_layer.inputs
                    if (number := _read_scalar_constant(self.graph, name)) is not None
                ),
                None,
            ),
        )
        if axes is None or epsilon is None:
            return None
        source = centred_tensor
        if operator == "LayerNormalization":
            subtraction = self._add_producer(centred_tensor, "Sub")
            first_layer = self._add_producer(subtraction.inputs[1], "ReduceMean") if subtraction is not None else None
            if (
                subtraction is None
                or first_layer is None
                or self._find_mean_axes(first_layer) != axes
                or (first_layer.inputs[0] != subtraction.inputs[0])
            ):
                return None
            source = first_layer.inputs[0]
        return self._build_normalisation(operator, source, axes, epsilon, division)

    def _build_normalisation(
        self, operator: str, source: str, axes: tuple[int, ...], epsilon: float, division: Layer
    ) -> Normalisation | None:
        """Returns the normalisation that ends in ``division``, or in the scale and bias after the division."""
        last_layer, ports = division, []
        sizes = (self.graph.shape(source) or ())[min(axes) :]
        for affine_operator in ("Mul", "Add") if operator == "LayerNormalization" else ("Mul",):
            next_layer = self._find_sole_reader(last_layer.outputs[0], affine_operator)
            index = self._find_affine_parameter_index(next_layer, sizes) if next_layer is not None else None
            if next_layer is None or index is None:
                break
            ports.append((next_layer.name, index))
            last_layer = next_layer
            self.layers.append(next_layer)
        if any(
            not self._is_read_only_inside_pattern(layer.outputs[0]) for layer in self.layers if layer is not last_layer
        ):
            return None
        rank = len(self.graph.shape(source) or ())
        last_axes = tuple(range(-len(axes), 0))
        refusal_reason = (
            ""
            if axes == last_axes
            else "it normalises over an axis that is not the last: the operator would need Transposes around it"
        )
        if not rank:
            refusal_reason = "the rank of its input is unknown"
        scale, bias = (*ports, None, None)[:2]
        return Normalisation(
            operator,
            tuple(layer_in_norm.name for layer_in_norm in sorted(self.layers, key=lambda item: item.index)),
            source,
            last_layer.outputs[0],
            min(axes),
            epsilon,
            scale,
            bias,
            _read_channel_count(self.graph, source),
            refusal_reason,
        )

    def _find_sum_below_root(self, divisor: str, is_inverted: bool) -> str:
        """Returns the tensor under the square root of a divisor; "" if the divisor is not a root."""
        root_layer = self._add_producer(divisor, "Sqrt", "Pow", "Reciprocal", "Div")
        if (
            is_inverted
            and root_layer is not None
            and (
                root_layer.op_type == "Reciprocal"
                or root_layer.op_type == "Div"
                and _read_scalar_constant(self.graph, root_layer.inputs[0]) == 1.0
            )
        ):
            root_layer, is_inverted = self._add_producer(root_layer.inputs[-1], "Sqrt", "Pow"), False
        if root_layer is None or root_layer.op_type not in ("Sqrt", "Pow"):
            return ""
        exponent = 0.5 if root_layer.op_type == "Sqrt" else _read_scalar_constant(self.graph, root_layer.inputs[1])
        return root_layer.inputs[0] if exponent == (-0.5 if is_inverted else 0.5) else ""

    # -- queries --

    def _add_producer(self, tensor: str, *operators: str) -> Layer | None:
        """Adds the layer that computes a tensor to the matched layers; None if the layer has none of the given
        operators.
        """
        layer = self.graph.find_producer(tensor)
        if layer is None or layer.op_type not in operators or layer.kind is not LayerKind.COMPUTE:
            return None
        self.layers.append(layer)
        return layer

    def _find_sole_reader(self, tensor: str, operator: str) -> Layer | None:
        """Returns the only reader of a tensor if it has the given operator; None otherwise."""
        users = [self.graph.by_name[name] for name in self.graph.consumers.get(tensor, ())]
        user = users[0] if len(users) == 1 and tensor not in self.graph.output_names else None
        return user if user is not None and user.op_type == operator and user.kind is LayerKind.COMPUTE else None

    def _is_read_only_inside_pattern(self, tensor: str) -> bool:
        layer_names = {layer.name for layer in self.layers}
        return tensor not in self.graph.output_names and layer_names.issuperset(self.graph.consumers.get(tensor, ()))

    def _is_square(self, layer: Layer, tensor: str) -> bool:
        if layer.op_type == "Mul":
            return layer.inputs == (tensor, tensor)
        return (
            layer.op_type == "Pow"
            and layer.inputs[0] == tensor
            and _read_scalar_constant(self.graph, layer.inputs[1]) == 2.0
        )

    def _find_mean_axes(self, layer: Layer) -> tuple[int, ...] | None:
        """Returns the sorted axes of a mean, counted from the end; None if they are unknown or dropped from the result."""
        attributes = self.graph.node(layer.name).attributes
        rank = len(self.graph.shape(layer.inputs[0]) or ())
        axes = list(attributes.get_ints("axes", ())) if "axes" in attributes else []
        if len(layer.inputs) > 1 and layer.inputs[1]:
            constant = stored_tensor(self.graph.ir_value(layer.inputs[1]))
            axes = [] if constant is None else [int(axis) for axis in constant.numpy().reshape(-1)]
        if not axes or not attributes.get_int("keepdims", 1) or not rank and any(axis >= 0 for axis in axes):
            return None
        return tuple(sorted(axis - rank if axis >= 0 else axis for axis in axes))

    def _find_affine_parameter_index(self, layer: Layer, normalised_sizes: Sequence[object]) -> int | None:
        """Returns the index of a layer's constant input that has one value per normalised element; None if it has none."""
        for index, name in enumerate(layer.inputs):
            shape = self.graph.shape(name)
            if name not in self.graph.constant_tensors or shape is None:
                continue
            fixed_sizes = [size for size in shape if isinstance(size, int)]
            last_sizes = fixed_sizes[-len(normalised_sizes) :] if normalised_sizes else fixed_sizes[-1:]
            if (
                len(fixed_sizes) == len(shape)
                and math.prod(fixed_sizes) == math.prod(last_sizes)
                and (
                    list(last_sizes) == list(normalised_sizes)
                    or len(normalised_sizes) == 1
                    and not isinstance(normalised_sizes[0], int)
                )
            ):
                return index
        return None


def _read_scalar_constant(graph: LayerGraph, tensor: str) -> float | None:
    """Returns the value of a stored constant with one element; None for any other tensor."""
    constant = stored_tensor(graph.ir_value(tensor)) if tensor in graph.constant_tensors else None
    return float(constant.numpy().reshape(-1)[0]) if constant is not None and constant.size == 1 else None


def _read_channel_count(graph: LayerGraph, tensor: str) -> int:
    shape = graph.shape(tensor)
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _read_input_sizes(graph: LayerGraph, layer_input: Port) -> list[int]:
    layer, index = layer_input
    return [size if isinstance(size, int) else 0 for size in graph.shape(graph.by_name[layer].inputs[index]) or (0,)]


# -- biases -----------------------------------------------------------------------------------------------------------


def _find_correctable_bias(graph: LayerGraph, group: FusionGroup) -> CorrectableBias:
    """Returns the bias of a fusion group that can absorb a correction, or the reason why there is none."""
    weights, main_layer = group.weight_qdq_sites(), graph.by_name[group.name]
    if len(weights) != 1:
        return CorrectableBias(
            main_layer.name,
            None,
            refusal_reason="it multiplies two computed tensors: there is no weight whose error a bias could correct",
        )
    site = weights[0]
    layer = graph.by_name[site.layer]
    shape = graph.shape(site.tensor) or ()
    size = shape[site.axis] if site.index == 1 and site.axis is not None else None
    channels = size if isinstance(size, int) else 0
    if layer.op_type == "MatMul" and channels:
        return _find_added_bias(graph, group, layer, channels)
    attributes, bias = graph.node(layer.name).attributes, layer.inputs[2] if len(layer.inputs) > 2 else ""
    rules = (
        (not channels, "its weight has no axis of output channels"),
        (layer.op_type == "ConvTranspose", "a ConvTranspose sums different weights at different positions"),
        (
            layer.op_type == "Gemm" and any(attributes.get_float(factor, 1.0) != 1.0 for factor in ("alpha", "beta")),
            "it scales its product or its bias (alpha, beta)",
        ),
        (
            bias
            and (
                bias not in graph.constant_tensors or math.prod(_read_input_sizes(graph, (layer.name, 2))) != channels
            ),
            "its bias is not a constant with one value per channel",
        ),
    )
    if refusal_reason := next((reason for applies, reason in rules if applies), ""):
        return CorrectableBias(layer.name, None, refusal_reason=refusal_reason)
    return CorrectableBias(layer.name, (layer.name, 2), channels)


def _find_added_bias(graph: LayerGraph, group: FusionGroup, layer: Layer, channel_count: int) -> CorrectableBias:
    """Returns the bias that an Add after a MatMul adds, if the Add is in the same fusion group."""
    users = graph.consumers.get(layer.outputs[0], ())
    next_layer = graph.by_name[users[0]] if len(users) == 1 else None
    if next_layer is not None and next_layer.op_type == "Add" and next_layer.name in group.layers:
        for index, name in enumerate(next_layer.inputs):
            if (
                name in graph.constant_tensors
                and math.prod(_read_input_sizes(graph, (next_layer.name, index))) == channel_count
                and _read_input_sizes(graph, (next_layer.name, index))[-1] == channel_count
            ):
                return CorrectableBias(layer.name, (next_layer.name, index), channel_count)
    return CorrectableBias(
        layer.name, None, refusal_reason="no Add of a constant follows the MatMul: a bias would be one more operator"
    )
