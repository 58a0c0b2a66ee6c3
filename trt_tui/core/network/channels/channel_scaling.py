"""The search for sets of channels that can be divided at their producers and multiplied back at their readers, and for
the scales of attentions.

United channel ids of `trt_tui.core.network.channels.channel_tracer` become one factor. Factors with common producing
groups or reading layers become one `ChannelScaling`.

The scales of an attention are the numbers that multiply its scores, and the constants that can absorb them. If the
scale follows the product of queries and keys, the product may overflow in FP16. TensorRT's documents ask for the scale
before the product, where a fused attention has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trt_tui.core.network.channels.channel_tracer import (
    UNSCALED,
    ChannelRoots,
    ChannelTracer,
    label_connected_components,
)
from trt_tui.core.network.fusion.attention import SCORES_ROLE
from trt_tui.core.network.layers import (
    AttentionScale,
    ChannelScaling,
    ClippedTensor,
    FusionGroup,
    Layer,
    LayerKind,
    ScaledConstant,
    ScaledOperand,
    ScaledTensor,
    ScoreScaling,
)
from trt_tui.core.network.operators import RANGE_PRESERVING_COPIES


def find_channel_scalings(tracer: ChannelTracer, groups: Sequence[FusionGroup]) -> dict[str, ChannelScaling]:
    """Returns the sets of channels that can be scaled, by the group of their first producer.

    For a group whose output channels cannot be scaled, the entry has the reason.

    Args:
        tracer: The tracer after `unite_products`.
    """
    group_by_layer = {layer: group.name for group in groups for layer in group.layers}
    channel_roots = ChannelRoots(tracer)
    ports = [
        (layer, index, channel_roots.find_roots(channel_ids), channel_ids)
        for layer, index, channel_ids in tracer.producers
    ]
    readers = [
        (layer, index, activation, channel_roots.find_roots(channel_ids))
        for layer, index, activation, channel_ids in tracer.readers
    ]
    # channels that share a group of producers, or a reading layer, form one set
    nodes: dict[tuple[str, str], int] = {}
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for key, roots in (
        *((("producer", group_by_layer.get(layer.name, layer.name)), roots) for layer, _, roots, _ in ports),
        *((("reader", layer.name), roots) for layer, _, _, roots in readers),
    ):
        scaled = np.unique(np.abs(roots[roots != UNSCALED]))
        pairs.append((scaled, np.full_like(scaled, nodes.setdefault(key, tracer.count + len(nodes)))))
    labels = label_connected_components(
        tracer.count + len(nodes),
        *(np.concatenate([pair[side] for pair in pairs] or [np.zeros(0, np.int64)]) for side in (0, 1)),
    )
    sets: dict[int, _ChannelScalingDraft] = {}
    scalings: dict[str, ChannelScaling] = {}

    def list_sets(roots: np.ndarray) -> list[tuple[int, _ChannelScalingDraft]]:
        """Returns the sets to which some channels belong, each with its label."""
        return [(label, sets[label]) for label in np.unique(labels[np.abs(roots)]).tolist() if label in sets]

    for layer, index, roots, channel_ids in ports:
        group_name = group_by_layer.get(layer.name)
        scaled = np.abs(roots[roots != UNSCALED])
        if group_name is not None and scaled.size:
            draft = sets.setdefault(int(labels[scaled[0]]), _ChannelScalingDraft(group_name))
            draft.producers.append((layer, index, roots))
        elif group_name is not None:  # the last producer decides: a norm behind a Conv stands for its result
            scalings[group_name] = ChannelScaling(refusal_reason=channel_roots.find_refusal_reason(channel_ids))
    for layer, index, activation, roots in readers:
        for _, draft in list_sets(roots):
            draft.readers.append((layer, index, activation, roots))
    for layer, *operands in tracer.products:
        for _, draft in list_sets(np.concatenate([channel_roots.find_roots(ids).ravel() for ids in operands])):
            draft.products.append(layer.name)
    for tensor, channel_ids in tracer.channel_ids.items():
        roots = channel_roots.find_roots(channel_ids)
        for label, draft in list_sets(roots):
            draft.tensors.append((tensor, np.where(labels[np.abs(roots)] == label, roots, UNSCALED)))
    for clip, channel_ids in tracer.clips:
        for _, draft in list_sets(channel_roots.find_roots(channel_ids)):
            draft.clips.append(clip)
    return {**scalings, **{draft.group_name: draft.build_scaling() for draft in sets.values()}}


@dataclass
class _ChannelScalingDraft:
    """A set of channels under construction: its constants and tensors, each with the roots of its channels."""

    group_name: str
    producers: list[tuple[Layer, int, np.ndarray]] = field(default_factory=list)
    readers: list[tuple[Layer, int, str, np.ndarray]] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    tensors: list[tuple[str, np.ndarray]] = field(default_factory=list)
    clips: list[ClippedTensor] = field(default_factory=list)

    def build_scaling(self) -> ChannelScaling:
        """Returns the complete set. Its factors are numbered in the order of the producers."""
        every = np.concatenate([np.abs(roots).ravel() for *_, roots in self.producers])
        unique, first_indices = np.unique(every, return_index=True)
        ordered = [int(root) for root in unique[np.argsort(first_indices)] if root != UNSCALED]
        numbering = np.zeros(max(ordered) + 1, np.int32)
        numbering[ordered] = np.arange(1, len(ordered) + 1)

        def find_factor_ids(roots: np.ndarray) -> np.ndarray:
            return np.asarray(np.sign(roots) * numbering[np.abs(roots)], np.int32)

        producers = tuple(
            ScaledConstant(layer.inputs[index], find_factor_ids(roots), (layer.name, index))
            for layer, index, roots in self.producers
        )
        readers = tuple(
            ScaledConstant(layer.inputs[index], -find_factor_ids(roots), (layer.name, index), activation)
            for layer, index, activation, roots in self.readers
        )
        scaling = ChannelScaling(
            len(ordered),
            producers,
            readers,
            tuple(self.products),
            tuple(ScaledTensor(tensor, find_factor_ids(roots)) for tensor, roots in self.tensors),
            tuple(self.clips),
        )
        if self.clips:
            clip = self.clips[0]
            return replace(
                scaling,
                refusal_reason=(
                    f"a Clip limits {clip.tensor} to {clip.low:g} and {clip.high:g}, which would have to scale with it"
                ),
            )
        return scaling


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
