"""The search for the scales of attentions: the numbers that multiply the scores, and the constants that can absorb
them.

If the scale follows the product of queries and keys, the product may overflow in FP16. TensorRT's documents ask for the
scale before the product, where a fused attention has it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from trt_tui.core.network.channels.channel_tracer import UNSCALED, ChannelRoots, ChannelTracer
from trt_tui.core.network.fusion.attention import SCORES_ROLE
from trt_tui.core.network.layers import (
    AttentionScale,
    FusionGroup,
    Layer,
    LayerKind,
    ScaledConstant,
    ScaledOperand,
    ScaledTensor,
    ScoreScaling,
)
from trt_tui.core.network.operators import RANGE_PRESERVING_COPIES

_MAX_CHAIN = 8
"""The maximum number of layers that are followed from a product to its scale."""


def find_attention_scales(tracer: ChannelTracer, groups: Sequence[FusionGroup]) -> dict[str, AttentionScale]:
    """Returns the scale of each attention of a network. The key is the group of the product of queries and keys.

    Args:
        tracer: The tracer after `trace_layers` and before `unite_products`, because queries are scaled without keys.
    """
    products = {layer.name: (first, second) for layer, first, second in tracer.products}
    roots = ChannelRoots(tracer) if products else None
    scales = {}
    for group in groups:
        if group.attention_role != SCORES_ROLE:
            continue
        layer = tracer.graph.by_name[group.name]
        product = (
            layer
            if layer.op_type == "MatMul"
            else next((other for name in group.layers if (other := tracer.graph.by_name[name]).name in products), None)
        )
        if product is not None and product.op_type == "MatMul":
            scales[group.name] = _AttentionScaleFinder(tracer, roots, product).find_scale()
    return scales


class _AttentionScaleFinder:
    def __init__(self, tracer: ChannelTracer, roots: ChannelRoots | None, product: Layer) -> None:
        self._tracer, self._graph, self._roots, self._product = tracer, tracer.graph, roots, product

    def find_scale(self) -> AttentionScale:
        query_tensor, key_tensor = self._product.inputs[:2]
        scalings = [
            *self._list_attention_scale_layers(query_tensor, "query"),
            *self._list_attention_scale_layers(key_tensor, "key"),
            *self._list_attention_scale_layers(self._product.outputs[0], "scores"),
        ]
        if not scalings:
            return AttentionScale(refusal_reason="its scores are not scaled by one number")
        if not all(0 < scaling.multiplier < np.inf for scaling in scalings):
            return AttentionScale(refusal_reason="its scale is not a number above 0")
        if all(scaling.multiplier == 1 for scaling in scalings):
            return AttentionScale(refusal_reason="its scale is 1")
        query, key = (self._find_scaled_operand(index) for index in (0, 1))
        reason = ""
        if query.refusal_reason and key.refusal_reason and all(scaling.side == "scores" for scaling in scalings):
            reason = f"no constant in front can take the scale: {query.refusal_reason}"
        return AttentionScale(tuple(scalings), query, key, reason)

    # -- scalings --

    def _list_attention_scale_layers(self, tensor: str, side: str) -> Iterator[ScoreScaling]:
        """Follows a chain of layers from a tensor, and yields those that scale an operand of the attention product, or its
        scores.
        """
        is_behind, previous_layer, passed = side == "scores", self._product, list[str]()
        for _ in range(_MAX_CHAIN):
            reader = self._graph.find_sole_reader(tensor)
            layer = reader if is_behind else self._graph.find_producer(tensor)
            if layer is None or not is_behind and reader is not previous_layer:
                return
            passed.append(tensor)
            source = (
                tensor
                if is_behind
                else next((name for name in layer.inputs if name not in self._graph.static_tensors), "")
            )
            if (number := self._match_scaling(layer, source)) is not None:
                yield ScoreScaling(
                    (layer.name, number[0]),
                    layer.inputs[number[0]],
                    number[1],
                    layer.op_type == "Div",
                    side,
                    tuple(passed),
                )
            elif layer.op_type not in RANGE_PRESERVING_COPIES:
                return
            tensor, previous_layer = layer.outputs[0] if is_behind else source, layer

    def _match_scaling(self, layer: Layer, tensor: str) -> tuple[int, float] | None:
        """Returns the input index and the value of the number by which a layer multiplies or divides a tensor; None if
        it does neither.
        """
        if (
            layer.op_type not in ("Mul", "Div")
            or layer.domain
            or layer.kind is not LayerKind.COMPUTE
            or (layer.inputs.count(tensor) != 1 or layer.op_type == "Div" and layer.inputs[0] != tensor)
        ):
            return None
        index = 1 - layer.inputs.index(tensor)
        shape = self._graph.shape(layer.inputs[index])
        if (
            shape is None
            or any(size != 1 for size in shape)
            or len(shape) > len(self._graph.shape(layer.outputs[0]) or ())
            or layer.name not in self._tracer.grouped_layers
        ):
            return None
        number = self._tracer.values.find_value(layer.inputs[index])
        return None if number is None or number.dtype != np.float32 else (index, float(number.item()))

    # -- operands --

    def _find_computing_layer(self, tensor: str) -> Layer | None:
        """Returns the layer that computes the values of a tensor, before any copies; None for an input of the network."""
        layer = self._graph.find_producer(tensor)
        while layer is not None and layer.kind is LayerKind.COPY and layer.inputs:
            layer = self._graph.find_producer(layer.inputs[0])
        return layer

    def _find_scaled_operand(self, index: int) -> ScaledOperand:
        """Returns the constants and tensors that change if an operand of the product is multiplied by a factor."""
        tracer, roots = self._tracer, self._roots
        by_layer = {layer.name: operands for layer, *operands in tracer.products}
        tensor = self._product.inputs[index]
        if roots is None or self._product.name not in by_layer or not tracer.channel_ids.get(tensor, np.zeros(1)).any():
            layer = self._find_computing_layer(tensor)
            return ScaledOperand(
                refusal_reason=(
                    f"{layer.name} ({layer.op_type}) computes {layer.outputs[0]}"
                    if layer is not None
                    else f"{tensor} is an input of the network"
                )
            )
        own_ids = by_layer[self._product.name][index]
        own_roots = np.unique(np.abs(roots.find_roots(own_ids)))
        if UNSCALED in own_roots:
            return ScaledOperand(refusal_reason=roots.find_refusal_reason(own_ids))

        def is_selected(channel_ids: np.ndarray) -> np.ndarray:
            return np.isin(np.abs(roots.find_roots(channel_ids)), own_roots)

        obstacles = [
            *(
                (f"{layer.name} reads {layer.inputs[1 - position]} too", channel_ids)
                for layer, position, _, channel_ids in tracer.readers
            ),
            *(
                (f"{name} multiplies it too", channel_ids)
                for name, operands in by_layer.items()
                for position, channel_ids in enumerate(operands)
                if (name, position) != (self._product.name, index)
            ),
            *((f"a Clip limits {clip.tensor}", channel_ids) for clip, channel_ids in tracer.clips),
        ]
        if reasons := [reason for reason, channel_ids in obstacles if is_selected(channel_ids).any()]:
            return ScaledOperand(refusal_reason=reasons[0])

        def find_factor_ids(channel_ids: np.ndarray) -> np.ndarray:
            selected = -is_selected(channel_ids).astype(np.int32)
            return selected if not selected.all() else np.full((1,) * channel_ids.ndim, -1, np.int32)

        producers = tuple(
            ScaledConstant(layer.inputs[port], find_factor_ids(channel_ids), (layer.name, port))
            for layer, port, channel_ids in tracer.producers
            if is_selected(channel_ids).any()
        )
        tensors = tuple(
            ScaledTensor(name, find_factor_ids(ids))
            for name, ids in tracer.channel_ids.items()
            if is_selected(ids).any()
        )
        return ScaledOperand(producers, tensors)
