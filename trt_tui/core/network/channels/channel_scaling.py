"""The search for sets of channels that can be divided at their producers and multiplied back at their readers.

United channel ids of `trt_tui.core.network.channels.channel_tracer` become one factor. Factors with common producing
groups or reading layers become one `ChannelScaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trt_tui.core.network.channels.channel_roots import ChannelRoots, label_connected_components
from trt_tui.core.network.channels.channel_tracer import UNSCALED, ChannelTracer
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.zero_cost_support import (
    ChannelScaling,
    ClippedTensor,
    ScaledConstant,
    ScaledTensor,
)


def find_channel_scalings(tracer: ChannelTracer, groups: Sequence[FusionGroup]) -> dict[str, ChannelScaling]:
    """Returns the sets of channels that can be scaled, by the group of their first producer.

    For a group whose output channels cannot be scaled, the entry has the reason.

    Args:
        tracer: The tracer after `unite_products`.
    """
    return _ChannelScalingBuilder(
        tracer, {layer: group.name for group in groups for layer in group.layers}
    ).build_scalings()


class _ChannelScalingBuilder:
    """The builder of the sets of channels from traced channel ids.

    Args:
        group_by_layer: The name of the group of each layer.
    """

    def __init__(self, tracer: ChannelTracer, group_by_layer: Mapping[str, str]) -> None:
        self._tracer, self._group_by_layer = tracer, group_by_layer
        self._roots = ChannelRoots(tracer)

    def build_scalings(self) -> dict[str, ChannelScaling]:
        tracer, root_count = self._tracer, self._tracer.count
        ports = [
            (layer, index, "", self._roots.find_roots(channel_ids), channel_ids)
            for layer, index, channel_ids in tracer.producers
        ]
        readers = [
            (layer, index, activation, self._roots.find_roots(channel_ids), channel_ids)
            for layer, index, activation, channel_ids in tracer.readers
        ]
        # channels that share a group of producers, or a reading layer, form one set
        keys: dict[tuple[str, str], int] = {}
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for is_reader, entries in ((False, ports), (True, readers)):
            for layer, _, _, roots, _ in entries:
                name = layer.name if is_reader else self._group_by_layer.get(layer.name, layer.name)
                key = keys.setdefault(("reader" if is_reader else "producer", name), root_count + len(keys))
                scaled = np.unique(np.abs(roots[roots != UNSCALED]))
                pairs.append((scaled, np.full_like(scaled, key)))
        labels = label_connected_components(
            root_count + len(keys),
            *(np.concatenate([pair[side] for pair in pairs] or [np.zeros(0, np.int64)]) for side in (0, 1)),
        )
        sets: dict[int, _ChannelScalingDraft] = {}
        scalings: dict[str, ChannelScaling] = {}
        for layer, index, _, roots, channel_ids in ports:
            group_name = self._group_by_layer.get(layer.name)
            scaled = np.abs(roots[roots != UNSCALED])
            if group_name is None or not scaled.size:
                if group_name is not None and group_name not in scalings:
                    scalings[group_name] = ChannelScaling(refusal_reason=self._roots.find_refusal_reason(channel_ids))
                continue
            draft = sets.setdefault(int(labels[scaled[0]]), _ChannelScalingDraft(group_name))
            draft.producers.append((layer, index, roots))
        for layer, index, activation, roots, _ in readers:
            scaled = np.abs(roots[roots != UNSCALED])
            if scaled.size and (reading_set := sets.get(int(labels[scaled[0]]))) is not None:
                reading_set.readers.append((layer, index, activation, roots))
        for layer, first, second in tracer.products:
            for label in self._list_labels(labels, np.concatenate((first.ravel(), second.ravel()))):
                if label in sets:
                    sets[label].products.append(layer.name)
        for tensor, channel_ids in tracer.channel_ids.items():
            self._add_tensor(sets, labels, tensor, self._roots.find_roots(channel_ids))
        for clip, channel_ids in tracer.clips:
            for label in self._list_labels(labels, channel_ids):
                if label in sets:
                    sets[label].clips.append(clip)
        for draft in sets.values():
            scalings[draft.group_name] = draft.build_scaling()
        return scalings

    def _list_labels(self, labels: np.ndarray, channel_ids: np.ndarray) -> list[int]:
        """Returns the labels of the sets to which some channel ids belong."""
        roots = np.unique(np.abs(self._roots.find_roots(channel_ids)))
        return [int(label) for label in np.unique(labels[roots[roots != UNSCALED]])]

    @staticmethod
    def _add_tensor(
        sets: Mapping[int, _ChannelScalingDraft], labels: np.ndarray, tensor: str, roots: np.ndarray
    ) -> None:
        label_by_root = {int(root): int(labels[root]) for root in np.unique(np.abs(roots)) if root != UNSCALED}
        for label in dict.fromkeys(label_by_root.values()):
            if label in sets:
                own = [root for root, other in label_by_root.items() if other == label]
                sets[label].tensors.append((tensor, np.where(np.isin(np.abs(roots), own), roots, UNSCALED)))


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
