"""Caches for tensors of feeds: in memory up to a size limit, then in a temporary file or read from the data again."""

from collections.abc import Mapping

import numpy as np

from trt_tui.core.data.array_files import ArraySpool, MappedArray
from trt_tui.core.data.samples import Samples

TENSOR_CACHE_BYTES = 256 << 20
"""The maximum size of tensors in memory. Further tensors go to a temporary file."""
FEED_CACHE_BYTES = 1 << 30
"""The maximum size of feeds that are kept for a device. Further feeds are read from the data each time."""


class TensorCache:
    """A cache of tensors by feed, in memory up to `TENSOR_CACHE_BYTES` and then in a temporary file."""

    def __init__(self) -> None:
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._spooled: dict[int, dict[str, MappedArray]] = {}
        self._spool: ArraySpool | None = None
        self._memory_bytes = 0

    def __contains__(self, feed_index: int) -> bool:
        return feed_index in self._arrays or feed_index in self._spooled

    def put(self, feed_index: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores the tensors of a feed.

        Raises:
            InputError: the disk has too little space for them.
        """
        size = sum(array.nbytes for array in arrays.values())
        if self._memory_bytes + size <= TENSOR_CACHE_BYTES:
            self._arrays[feed_index] = dict(arrays)
            self._memory_bytes += size
            return
        spool = self._spool = self._spool or ArraySpool()
        self._spooled[feed_index] = {name: spool.append_array(array) for name, array in arrays.items()}

    def get(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns the tensors of a feed. Tensors in memory are the same arrays each time."""
        if feed_index in self._arrays:
            return self._arrays[feed_index]
        return {name: stored.load() for name, stored in self._spooled[feed_index].items()}

    def clear(self) -> None:
        self._arrays.clear()
        self._spooled.clear()
        self._spool, self._memory_bytes = None, 0


class FeedCache:
    """A cache of feeds (input batches) for a device, so that the device receives the same arrays each time.

    A device keeps the arrays that it received before, so it receives the same arrays again. Nothing is cached without a
    device.
    """

    def __init__(self, samples: Samples, has_device: bool) -> None:
        self._samples = samples
        self._free_bytes = FEED_CACHE_BYTES if has_device else 0
        self._cached_feeds: dict[int, dict[str, np.ndarray]] = {}

    def get_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns a feed by index, the same arrays each time if it is cached.

        Raises:
            InputError: the data cannot be read.
        """
        if feed_index in self._cached_feeds:
            return self._cached_feeds[feed_index]
        feed = self._samples.read_feed(feed_index)
        size = sum(array.nbytes for array in feed.values())
        if size <= self._free_bytes:
            self._cached_feeds[feed_index] = feed
            self._free_bytes -= size
        return feed
