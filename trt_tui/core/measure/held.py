"""Tensors of feeds that are needed again, in memory up to a size and above that in a temporary file or read anew."""

from collections.abc import Mapping

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.data.stored import Mapped, Spool

HELD_BYTES = 256 << 20
"""Up to this size tensors stay in memory; above it they go to a temporary file."""
FED_BYTES = 1 << 30
"""Feeds are kept for a device that keeps them too up to this size, and read anew beyond."""


class Held:
    """Tensors by feed."""

    def __init__(self) -> None:
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._stored: dict[int, dict[str, Mapped]] = {}
        self._spool: Spool | None = None
        self._held = 0

    def __contains__(self, index: int) -> bool:
        """Whether the tensors of a feed are held."""
        return index in self._arrays or index in self._stored

    def put(self, index: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps the tensors of a feed.

        Raises:
            InputError: the disk has no room for them.
        """
        size = sum(array.nbytes for array in arrays.values())
        if self._held + size <= HELD_BYTES:
            self._arrays[index] = dict(arrays)
            self._held += size
            return
        spool = self._spool = self._spool or Spool()
        self._stored[index] = {name: spool.put(array) for name, array in arrays.items()}

    def get(self, index: int) -> dict[str, np.ndarray]:
        """The tensors of a feed; the same arrays again where they are in memory."""
        if index in self._arrays:
            return self._arrays[index]
        return {name: stored.load() for name, stored in self._stored[index].items()}

    def clear(self) -> None:
        """Lets go of all."""
        self._arrays.clear()
        self._stored.clear()
        self._spool, self._held = None, 0


class FedAgain:
    """The feeds of samples; for a device, which keeps what it was given before, the same arrays again."""

    def __init__(self, samples: Samples, device: bool) -> None:
        self._samples = samples
        self._room = FED_BYTES if device else 0
        self._kept: dict[int, dict[str, np.ndarray]] = {}

    def feed(self, index: int) -> dict[str, np.ndarray]:
        """A feed.

        Raises:
            InputError: the data cannot be read.
        """
        if index in self._kept:
            return self._kept[index]
        feed = self._samples.feed(index)
        size = sum(array.nbytes for array in feed.values())
        if size <= self._room:
            self._kept[index] = feed
            self._room -= size
        return feed
