"""The outputs of runs, be they simulated, executed, built or dumped.

Tensors of feeds are cached in memory up to a size limit, then in a temporary file or read from the data again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from trt_tui.core.data.array_files import ArraySpool, MappedArray
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Waitable
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer
from trt_tui.core.measure.results import Caveat, Run

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


class RunSource(ABC):
    """The outputs of a run.

    Args:
        run: The run.
        available_tensors: The names of the tensors of the network that it yields.
        extra_tensors: The names of its tensors that the network does not have.
    """

    def __init__(self, run: Run, available_tensors: Collection[str], extra_tensors: Sequence[str] = ()) -> None:
        self.run = run
        self.available_tensors = frozenset(available_tensors)
        self.extra_tensors = tuple(extra_tensors)

    @abstractmethod
    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        """Adds the outputs of feeds to a reducer. Yields None after each feed, or what has to be waited for.

        Raises:
            TrtTuiError: the outputs cannot be read or computed.
        """

    def find_caveats(self, feed_indices: Sequence[int]) -> Sequence[Caveat]:
        """Returns the caveats of this run in addition to those of its outputs; called once all feeds are measured."""
        return ()

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Frees what the source holds."""


class IterableRunSource(RunSource):
    """A run that yields its outputs without waiting."""

    @abstractmethod
    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the available tensors of each feed, in the types that the network declares; raises as `measure`."""

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        for index, outputs in zip(feed_indices, self.iterate_outputs(feed_indices), strict=True):
            reducer.add_feed_outputs(index, outputs)
            yield None


class IndexedRunSource(IterableRunSource):
    """A run whose feeds are read in any order, so that it can be the reference of another run."""

    @abstractmethod
    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        """Returns the available tensors of a feed; raises as `measure`."""

    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        return map(self.get_outputs, feed_indices)


class RecordedRun(IndexedRunSource):
    """The outputs of a run that were kept, so that they are read again without executing it again.

    Args:
        tensors: The tensors that are kept, as far as the run yields them.
    """

    def __init__(self, source: IterableRunSource, tensors: Collection[str]) -> None:
        super().__init__(source.run, source.available_tensors & frozenset(tensors))
        self._source, self._recorded_outputs = source, TensorCache()

    def record(self, feed_indices: Sequence[int]) -> Iterator[None]:
        """Keeps the outputs of feeds; yields after each feed."""
        for index, outputs in zip(feed_indices, self._source.iterate_outputs(feed_indices), strict=True):
            self._recorded_outputs.put(index, {tensor: outputs[tensor] for tensor in self.available_tensors})
            yield

    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        return self._recorded_outputs.get(feed_index)
