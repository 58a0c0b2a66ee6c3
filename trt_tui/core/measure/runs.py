"""Runs: anything with outputs that are compared with a reference, whether simulated, executed, built or dumped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Waitable
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer
from trt_tui.core.measure.reference import ExternalOutputs
from trt_tui.core.measure.results import Caveat
from trt_tui.core.measure.tensor_cache import TensorCache
from trt_tui.core.moves.config import PrecisionConfig


class RunKind(Enum):
    """The origin of the outputs of a run. Records contain the values of this enum."""

    SIMULATED_CONFIG = "simulated"
    TYPED_NETWORK = "typed"
    EXPORTED_FILE = "exported"
    BUILT_ENGINE = "built"
    NETWORK_FILE = "network"
    DUMP = "outputs"
    ENGINE_FILE = "engine"


@dataclass(frozen=True)
class Run:
    """Something with outputs that are compared with the reference and with other runs, such as an engine or a dump.

    Attributes:
        name: The name of its row.
        config_name: The name of the config of a simulated or built run, from `trt_tui.formatting.RUN_NAMES`.
        config: That config, under which the results are stored; None until it is known.
        file_path: The file of a run that is read from a file.
        unavailable_reason: The reason why the run has no outputs, "" if it has outputs.
    """

    name: str
    kind: RunKind
    config_name: str = ""
    config: PrecisionConfig | None = None
    file_path: str = ""
    unavailable_reason: str = ""


class RunSource(ABC):
    """A source of the outputs of a run: simulation, engine, dump or another network.

    Args:
        available_tensors: The names of the tensors that the run yields.
    """

    def __init__(self, available_tensors: Collection[str]) -> None:
        self.available_tensors = frozenset(available_tensors)

    @abstractmethod
    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        """Passes the outputs of a run on some feeds to an `AccuracyReducer`.

        Yields None after each feed, and each `Waitable` that the run waits for.

        Raises:
            TrtTuiError: the outputs cannot be read or computed.
        """

    def find_caveats(self, feed_indices: Sequence[int]) -> Sequence[Caveat]:
        """Returns the caveats of this run in addition to those of its outputs. Called after all feeds are measured."""
        return ()

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Frees files and inference sessions of the source."""


class IterableRunSource(RunSource):
    """The source of a run that yields its outputs without waiting."""

    @abstractmethod
    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the available tensors of a run for each feed, in the types that the network declares.

        Raises:
            TrtTuiError: as `RunSource.measure`.
        """

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        for index, outputs in zip(feed_indices, self.iterate_outputs(feed_indices), strict=True):
            reducer.add_feed_outputs(index, outputs)
            yield None


class IndexedRunSource(IterableRunSource):
    """The source of a run whose feeds are read in any order, so that the run can be the reference of another run."""

    @abstractmethod
    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        """Returns the available tensors of a run for one feed.

        Raises:
            TrtTuiError: as `RunSource.measure`.
        """

    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        return map(self.get_outputs, feed_indices)


class ExternalRun(IndexedRunSource):
    """The source of a run that is a dump of tensors or another network."""

    def __init__(self, outputs: ExternalOutputs, samples: Samples) -> None:
        super().__init__(outputs.available_tensors)
        self._outputs, self._samples = outputs, samples

    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        return self._outputs.get_outputs(self._samples, feed_index)

    def close(self) -> None:
        self._outputs.close()


class RecordedRun(IndexedRunSource):
    """The recorded outputs of a run, which can be read again without another execution.

    Args:
        tensors: The tensors to record, as far as the run yields them.
    """

    def __init__(self, source: IterableRunSource, tensors: Collection[str]) -> None:
        super().__init__(source.available_tensors & frozenset(tensors))
        self._source, self._recorded_outputs = source, TensorCache()

    def record(self, feed_indices: Sequence[int]) -> Iterator[None]:
        """Records the outputs of a run on some feeds; yields after each feed."""
        for index, outputs in zip(feed_indices, self._source.iterate_outputs(feed_indices), strict=True):
            self._recorded_outputs.put(index, {tensor: outputs[tensor] for tensor in self.available_tensors})
            yield

    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        return self._recorded_outputs.get(feed_index)
