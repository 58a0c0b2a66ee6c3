"""The outputs of runs, be they simulated, executed, built or dumped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from trt_tui.core.execution import Waitable
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer
from trt_tui.core.measure.results import Caveat, Run
from trt_tui.core.measure.tensor_cache import TensorCache


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
