"""The roots of channel ids, and the reasons why a factor must be 1. Channels with equal roots share a factor."""

import numpy as np

from trt_tui.core.network.channels.channel_tracer import UNSCALED, ChannelTracer


class ChannelRoots:
    """The roots of all channel ids. United ids have the same root and must share a factor.

    Attributes:
        count: One more than the largest root.
    """

    def __init__(self, tracer: ChannelTracer) -> None:
        self.count = tracer.count
        self._tracer = tracer
        # node 2n is the id n, node 2n + 1 its negation, so that an id that meets its negation is found
        links = [link for first, second in tracer.links for link in ((first, second), (-first, -second))]
        labels = label_connected_components(
            2 * tracer.count,
            *(
                _signed_node_indices(np.concatenate([np.zeros(0, np.int64), *(link[side] for link in links)]))
                for side in (0, 1)
            ),
        )
        positive, negative = labels[0::2], labels[1::2]
        representative = np.minimum(positive, negative) >> 1
        known = np.flatnonzero(tracer.reason_by_id[: tracer.count])
        reasons = np.full(tracer.count, len(tracer.reasons), np.int64)
        np.minimum.at(reasons, representative[known], tracer.reason_by_id[known])
        self._reasons = reasons[representative]
        is_unscaled = (positive == negative) | (self._reasons < len(tracer.reasons))
        self._root = np.where(is_unscaled, UNSCALED, (positive >> 1) * (1 - 2 * (positive & 1)))

    def find_roots(self, channel_ids: np.ndarray) -> np.ndarray:
        """Returns the root of each channel id, with the sign of the id; `UNSCALED` for a channel whose factor is 1."""
        roots: np.ndarray = np.sign(channel_ids) * self._root[np.abs(channel_ids)]
        return roots

    def find_refusal_reason(self, channel_ids: np.ndarray) -> str:
        """Returns the first reason why one of the channels must have the factor 1."""
        reasons = self._tracer.reasons
        index = int(self._reasons[np.abs(channel_ids)].min(initial=len(reasons)))
        return reasons[index] if index < len(reasons) else "its channels meet others that would need the inverse factor"


def _signed_node_indices(channel_ids: np.ndarray) -> np.ndarray:
    """Returns the node of each signed channel id in the graph of united ids: ``2n`` for the id ``n``, ``2n + 1`` for
    ``-n``.
    """
    nodes: np.ndarray = 2 * np.abs(channel_ids) + (channel_ids < 0)
    return nodes


def label_connected_components(count: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Labels each node of a graph with the smallest node of its connected component."""
    labels = np.arange(count)
    while True:
        smaller = np.minimum(labels[first], labels[second])
        updated = labels.copy()
        for ends in (first, second):
            np.minimum.at(updated, labels[ends], smaller)
            np.minimum.at(updated, ends, smaller)
        while not np.array_equal(jumped := updated[updated], updated):
            updated = jumped
        if np.array_equal(updated, labels):
            return labels
        labels = updated
