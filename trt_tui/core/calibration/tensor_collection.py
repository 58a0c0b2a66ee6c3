"""Running a network over samples with chosen outputs. Nothing here grows with the number of samples.

A pass is cut into slices of neighbouring feeds, the same whoever runs them, and what came of them is joined in their
order: sums are equal to the last bit on one process and on many.
"""

import copy
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor, LocalExecutor, Task
from trt_tui.core.network.model_outputs import drop_unused_nodes
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.small_layers import collect_garbage_and_trim_memory, has_many_small_layers
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError, OutOfMemoryError

DEFAULT_MEMORY_LIMIT_BYTES = 256 << 20
"""Bytes of activations that one run may hand out, by default."""

MAX_SLICES = 64
"""A pass over the feeds is cut into so many slices, at most."""

POLL_INTERVAL_S = 0.01
"""How often, in seconds, the work of others is looked at."""

RunProgress = Callable[[int, int], None]
"""Called with runs done and runs in all; what it raises ends the pass."""

Item = TypeVar("Item")
T = TypeVar("T")


class TensorCollector(Protocol):
    """Takes the arrays of one tensor, feed by feed."""

    def add_values(self, array: np.ndarray) -> None:
        """Takes a float32 array of any shape.

        Raises:
            ValueError: it holds NaN or an infinity; says which.
        """

    def merge_values(self, later_collector: Any) -> None:
        """Takes what another of its kind took of later feeds."""


class CalibrationContext(Protocol):
    """Where a network is run on the samples that calibrate."""

    @property
    def fp32_model(self) -> ir.Model:
        """The network in FP32."""

    @property
    def calibration_samples(self) -> Samples:
        """The samples that calibrate."""

    @property
    def backend(self) -> Backend:
        """What runs the network."""


@dataclass(frozen=True)
class CalibrationInputs:
    """A network, samples and a backend."""

    fp32_model: ir.Model
    calibration_samples: Samples
    backend: Backend


class NetworkProbe:
    """A clone of a network with chosen outputs; tensors are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {value_name(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._added_count = 0
        self._extra_inputs: list[str] = []

    def get_fp32_value(self, tensor_name: str) -> ir.Value:
        """The tensor as an FP32 value.

        Raises:
            InputError: no such tensor, or its elements are not floating-point numbers.
        """
        value = self._values.get(tensor_name)
        if value is None:
            raise InputError(
                f"The network has no tensor '{tensor_name}'", "Only inputs and outputs of its layers can have ranges."
            )
        if value.dtype is not None and not value.dtype.is_floating_point():
            raise InputError(f"Tensor '{tensor_name}' is {value.dtype.name}",
                             "Only floating-point tensors have a range.")
        return value if value.dtype == ir.DataType.FLOAT else self.append_operator("Cast", value, to=int(
            ir.DataType.FLOAT))

    def add_input(self, name: str, dtype: ir.DataType, rank: int) -> ir.Value:
        """A further input of the network, of any sizes, cut into samples like the others."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
        self.model.graph.inputs.append(value)
        self._extra_inputs.append(name)
        return value

    def add_constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """An initializer of its own."""
        self._added_count += 1
        name = f"trt_tui_constant_{self._added_count}"
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(np.asarray(array), name=name))
        self.model.graph.register_initializer(value)
        return value

    def append_operator(self, operator: str, *values: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT,
                        **attributes: int | float) -> ir.Value:
        """Adds an operator right behind what computes the one input that a layer computes; returns its output."""
        self._added_count += 1
        node = ir.node(operator, list(values), attributes, name=f"trt_tui_probe_{self._added_count}")
        producer = next(filter(None, (value.producer() for value in values)), None)
        if producer is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_after(producer, node)
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(dtype)
        return result

    def load_probe_runner(self, backend: Backend, samples: Samples) -> Runner:
        """A runner of what the outputs need for these samples: a network may hold plugins behind it that no library
        was given for."""
        drop_unused_nodes(self.model)
        has_small_layers = has_many_small_layers(self.model.graph)
        if has_small_layers:
            collect_garbage_and_trim_memory()
        try:
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=not has_small_layers)
        except OutOfMemoryError:
            raise
        except InputError:  # where two Convs are added, ONNX Runtime's fusions can lose one that is an output too
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=False)

    def add_output(self, value: ir.Value) -> str:
        """Makes a value an output and returns the output's name."""
        if value.is_graph_input():
            value = self.append_operator("Identity", value)
        self.model.graph.outputs.append(value)
        return value_name(value)


def declare_as_scalar(value: ir.Value) -> ir.Value:
    """The value, declared to have no dimension."""
    value.shape = ir.Shape([])
    return value


@dataclass(frozen=True)
class FeedSlice:
    """The feeds from ``start`` to before ``stop``, for one chunk of the tensors."""

    chunk_index: int
    start: int
    stop: int


class NonFiniteTensorError(InputError):
    """A tensor that holds NaN or an infinity (``value_kind``) in FP32, in a feed of the samples that calibrate.

    `trt_tui.core.calibration.non_finite.explain_non_finite_errors` names the value that it comes from.
    """

    def __init__(self, tensor: str, value_kind: str, feed_index: int, title: str = "", cause: str = "",
                 next_step: str = "") -> None:
        super().__init__(title or f"Tensor '{tensor}' holds {value_kind} in FP32",
                         cause or f"Seen while calibrating, in feed {feed_index}.",
                         next_step or "Correct the network or the data: it has no usable range.")
        self.tensor, self.value_kind, self.feed_index = tensor, value_kind, feed_index


@dataclass(frozen=True)
class _NonFiniteValue:
    tensor: str
    value_kind: str
    feed_index: int


class _TensorCollectionTask:
    """An errand: collectors that have taken the tensors of a chunk on a slice of the feeds."""

    def __init__(self, chunks: Sequence[Sequence[str]], empty_collectors: Mapping[str, TensorCollector]) -> None:
        self._chunks, self._empty_collectors = chunks, copy.deepcopy(dict(empty_collectors))
        self._loaded: tuple[int, Runner, dict[str, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def describe_item(self, item: FeedSlice) -> str:
        return f"the values of feeds {item.start} to {item.stop - 1}"

    def run_item(self, context: CalibrationContext,
                 item: FeedSlice) -> Generator[None, None, dict[str, TensorCollector] | _NonFiniteValue]:
        if self._loaded is None or self._loaded[0] != item.chunk_index:
            self.close()
            probe = NetworkProbe(context.fp32_model)
            emitted = {
                tensor: probe.add_output(probe.get_fp32_value(tensor))
                for tensor in self._chunks[item.chunk_index]
            }
            self._loaded = item.chunk_index, probe.load_probe_runner(context.backend,
                                                                     context.calibration_samples), emitted
        _, runner, outputs = self._loaded
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

    def close(self) -> None:
        """Frees the session."""
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None


def collect_tensors(
    model: ir.Model,
    collectors: Mapping[str, TensorCollector],
    samples: Samples,
    backend: Backend,
    progress: RunProgress | None,
    max_bytes: int,
    executor: Executor[CalibrationContext] | None = None,
) -> None:
    """Hands each tensor of each feed to its collector, at most ``max_bytes`` bytes of tensors in a pass.

    Args:
        collectors: By tensor; they have taken nothing yet.
        executor: Who runs the feeds of the same network and samples; this process by default.
    """
    if not collectors:
        return
    chunks = list(_split_tensors_into_chunks(_measure_tensor_bytes(model, collectors, samples, backend), max_bytes))
    feed_count, count = len(samples), min(MAX_SLICES, len(samples))
    bounds = [feed_count * number // count for number in range(count + 1)]
    slices = [FeedSlice(chunk, start, stop) for chunk in range(len(chunks))
              for start, stop in zip(bounds, bounds[1:], strict=False)]
    task = _TensorCollectionTask(chunks, collectors)
    try:
        for _, collectors_of_slice in run_items_in_order(
                executor if executor is not None else LocalExecutor(CalibrationInputs(model, samples, backend)), task,
                slices, lambda feed_slice: feed_slice.stop - feed_slice.start, progress):
            if isinstance(collectors_of_slice, _NonFiniteValue):
                raise NonFiniteTensorError(collectors_of_slice.tensor, collectors_of_slice.value_kind,
                                           collectors_of_slice.feed_index)
            for tensor, collector in collectors_of_slice.items():
                collectors[tensor].merge_values(collector)
    finally:
        task.close()


def run_items_in_order(executor: Executor[CalibrationContext], task: Task[CalibrationContext, Item,
                                                                          T], items: Sequence[Item],
                       count_runs: Callable[[Item], int], progress: RunProgress | None) -> Iterator[tuple[Item, T]]:
    """What came of each item, in the order of the items, whoever was first: so the first tensor that is not finite is
    named.

    Args:
        count_runs: How many runs an item is.
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
    """Bytes of each tensor as FP32 in the first feed."""
    probe = NetworkProbe(model)
    outputs = {
        tensor: probe.add_output(
            declare_as_scalar(probe.append_operator("Size", probe.get_fp32_value(tensor), dtype=ir.DataType.INT64)))
        for tensor in tensors
    }
    with probe.load_probe_runner(backend, samples) as runner:
        sizes = runner.run(samples.read_feed(0))
    return {tensor: 4 * int(sizes[output]) for tensor, output in outputs.items()}


def _split_tensors_into_chunks(bytes_by_tensor: Mapping[str, int], max_bytes: int) -> Iterator[list[str]]:
    chunk: list[str] = []
    total = 0
    for tensor, size in bytes_by_tensor.items():
        if chunk and total + size > max_bytes:
            yield chunk
            chunk, total = [], 0
        chunk.append(tensor)
        total += size
    yield chunk


