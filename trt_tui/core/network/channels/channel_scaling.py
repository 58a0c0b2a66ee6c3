"""The search for sets of channels that can be divided at their producers and multiplied back at their readers.

United channel ids of `trt_tui.core.network.channels.channel_tracer` become one factor. Factors with common producing
groups or reading layers become one `ChannelScaling`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trt_tui.core.network.channels.channel_tracer import (
    UNSCALED,
    ChannelRoots,
    ChannelTracer,
    label_connected_components,
)
from trt_tui.core.network.layers import (
    ChannelScaling,
    ClippedTensor,
    FusionGroup,
    Layer,
    ScaledConstant,
    ScaledTensor,
)


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
