"""The execution of a network over samples with additional outputs, whose values are collected tensor by tensor.

Memory use does not grow with the number of samples. A pass is cut into slices of neighbouring feeds, independently of
the number of processes. The results of the slices are joined in the order of the feeds. Sums are therefore equal to the
last bit on one process and on many.
"""

import copy
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.network_probe import NetworkProbe
from trt_tui.core.calibration.non_finite import make_non_finite_error
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor, LoadingTask, LocalExecutor, Task
from trt_tui.core.runner import Backend, Runner

MEMORY_LIMIT_BYTES = 256 << 20
"""The limit in bytes of the activations that one execution returns."""

MAX_SLICES = 64
"""Maximum number of slices into which a pass over the feeds is cut."""

POLL_INTERVAL_S = 0.01
"""Interval in seconds at which results of other processes are polled."""

RunProgress = Callable[[int, int], None]
"""A callback with the number of executions done and the total number. An exception from it ends the pass."""

Item = TypeVar("Item")
T = TypeVar("T")


class TensorCollector(Protocol):
    """A reducer that receives the arrays of one tensor, feed by feed."""

    def add_values(self, array: np.ndarray) -> None:
        """Adds a float32 array of any shape.

        Raises:
            ValueError: The array contains NaN or an infinity; the message says which.
        """

    def merge_values(self, later_collector: Any) -> None:
        """Adds the values of another collector of the same class, which received later feeds."""


class CollectorFanout(list[TensorCollector]):
    """The collectors of one tensor, each of which receives all of its values."""

    def add_values(self, array: np.ndarray) -> None:
        """Implements `TensorCollector.add_values`."""
        for collector in self:
            collector.add_values(array)

    def merge_values(self, later_collectors: Iterable[TensorCollector]) -> None:
        """Implements `TensorCollector.merge_values`."""
        for collector, later_collector in zip(self, later_collectors, strict=True):
            collector.merge_values(later_collector)


class CalibrationContext(Protocol):
    """The network, calibration samples and backend that a calibration task uses."""

    @property
    def fp32_model(self) -> ir.Model:
        ...

    @property
    def calibration_samples(self) -> Samples:
        ...

    @property
    def backend(self) -> Backend:
        ...


@dataclass(frozen=True)
class CalibrationInputs:
    """The simplest `CalibrationContext`: a network, samples and a backend."""

    fp32_model: ir.Model
    calibration_samples: Samples
    backend: Backend


@dataclass(frozen=True)
class FeedSlice:
    """A slice of the feeds, from ``start`` up to but not including ``stop``, for one chunk of the tensors."""

    chunk_index: int
    start: int
    stop: int


class _NonFiniteValue(NamedTuple):
    tensor: str
    value_kind: str
    feed_index: int


class _TensorCollectionTask(LoadingTask):
    """A task that collects the values of one chunk of tensors over one slice of the feeds, and returns the collectors.
    """

    def __init__(self, chunks: Sequence[Sequence[str]], empty_collectors: Mapping[str, TensorCollector]) -> None:
        self._chunks, self._empty_collectors = chunks, copy.deepcopy(dict(empty_collectors))
        self._loaded: Runner | None = None
        self._chunk_index = -1

    def describe_item(self, item: FeedSlice) -> str:
        return f"the values of feeds {item.start} to {item.stop - 1}"

    def run_item(self, context: CalibrationContext,
                 item: FeedSlice) -> Generator[None, None, dict[str, TensorCollector] | _NonFiniteValue]:
        if self._loaded is None or self._chunk_index != item.chunk_index:
            self.close()
            probe = NetworkProbe(context.fp32_model)
            self._outputs = {tensor: probe.add_output(probe.get_fp32_value(tensor))
                             for tensor in self._chunks[item.chunk_index]}
            self._chunk_index = item.chunk_index
            self._loaded = probe.load_probe_runner(context.backend, context.calibration_samples)
        runner, outputs = self._loaded, self._outputs
        collectors = {tensor: copy.deepcopy(self._empty_collectors[tensor]) for tensor in outputs}
        for index in range(item.start, item.stop):
            arrays = runner.run(context.calibration_samples.read_feed(index))
            for tensor, output in outputs.items():
                try:
                    collectors[tensor].add_values(arrays.pop(output))
                except ValueError as error:
                    return _NonFiniteValue(tensor, str(error), index)
            yield
        return collectors


def collect_tensors(
    model: ir.Model,
    collectors: Mapping[str, TensorCollector],
    samples: Samples,
    backend: Backend,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> None:
    """Adds the values of each tensor in each feed to the collector of that tensor.

    One pass over the feeds reads at most `MEMORY_LIMIT_BYTES` of tensors.

    Args:
        collectors: Empty collectors by tensor.
        executor: The executor of the feeds, with the same network and samples; this process by default.

    Raises:
        NonFiniteTensorError: A collector refuses NaN or an infinity.
    """
    if not collectors:
        return
    chunks = list(_split_tensors_into_chunks(_measure_tensor_bytes(model, collectors, samples, backend)))
    feed_count, count = len(samples), min(MAX_SLICES, len(samples))
    bounds = [feed_count * number // count for number in range(count + 1)]
    slices = [FeedSlice(chunk, start, stop) for chunk in range(len(chunks))
              for start, stop in zip(bounds, bounds[1:], strict=False)]
    task = _TensorCollectionTask(chunks, collectors)
    try:
        for _, collectors_of_slice in run_items_in_order(
                executor or LocalExecutor(CalibrationInputs(model, samples, backend)), task,
                slices, lambda feed_slice: feed_slice.stop - feed_slice.start, progress):
            if isinstance(collectors_of_slice, _NonFiniteValue):
                raise make_non_finite_error(model, samples, backend, *collectors_of_slice)
            for tensor, collector in collectors_of_slice.items():
                collectors[tensor].merge_values(collector)
    finally:
        task.close()


def run_items_in_order(executor: Executor[CalibrationContext], task: Task[CalibrationContext, Item,
                                                                          T], items: Sequence[Item],
                       count_runs: Callable[[Item], int], progress: RunProgress | None) -> Iterator[tuple[Item, T]]:
    """Yields each item with its result in the order of the items, even if the results arrive in another order.

    The first tensor that is not finite is therefore the same on every executor.

    Args:
        count_runs: A function that returns the number of executions of an item.
    """
    results: dict[Item, T] = {}
    index, done_runs, total_runs = 0, 0, sum(map(count_runs, items))
    for completed in executor.map(task, items):
        while not executor.is_ready():
            time.sleep(POLL_INTERVAL_S)
            if progress:
                progress(done_runs, total_runs)
        if completed is None:
            if progress:
                progress(done_runs, total_runs)
            continue
        results[completed[0]] = completed[1]
        while index < len(items) and items[index] in results:
            yield items[index], results.pop(items[index])
            done_runs += count_runs(items[index])
            index += 1
            if progress:
                progress(done_runs, total_runs)


def _measure_tensor_bytes(model: ir.Model, tensors: Iterable[str], samples: Samples,
                          backend: Backend) -> dict[str, int]:
    """Measures the size of each tensor in bytes, as FP32 in the first feed."""
    probe = NetworkProbe(model)
    outputs = {tensor: probe.add_size(probe.get_fp32_value(tensor)) for tensor in tensors}
    with probe.load_probe_runner(backend, samples) as runner:
        sizes = runner.run(samples.read_feed(0))
    return {tensor: 4 * int(sizes[output]) for tensor, output in outputs.items()}


def _split_tensors_into_chunks(bytes_by_tensor: Mapping[str, int]) -> Iterator[list[str]]:
    chunk: list[str] = []
    total = 0
    for tensor, size in bytes_by_tensor.items():
        if chunk and total + size > MEMORY_LIMIT_BYTES:
            yield chunk
            chunk, total = [], 0
        chunk.append(tensor)
        total += size
    yield chunk


