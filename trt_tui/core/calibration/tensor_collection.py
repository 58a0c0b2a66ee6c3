"""The execution of a network over samples with additional outputs, whose values are collected tensor by tensor.

Memory use does not grow with the number of samples. A pass is cut into slices of neighbouring feeds, independently of
the number of processes. The results of the slices are joined in the order of the feeds. Sums are therefore equal to the
last bit on one process and on many.
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
"""Default limit in bytes of the activations that one execution returns."""

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


class NetworkProbe:
    """A clone of a network with chosen outputs and added operators. Weights are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {value_name(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._added_count = 0
        self._extra_inputs: list[str] = []

    def get_fp32_value(self, tensor_name: str) -> ir.Value:
        """Returns a tensor of the cloned network as an FP32 value, with a Cast if its type is another float type.

        Raises:
            InputError: The tensor does not exist, or its elements are not floating-point numbers.
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
        """Adds an input of any sizes to the cloned network. It is divided into samples like the other inputs, unless
        its rank is 0."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
        self.model.graph.inputs.append(value)
        if rank:
            self._extra_inputs.append(name)
        return value

    def add_constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """Adds an array to the cloned network as a new initializer."""
        self._added_count += 1
        name = f"trt_tui_constant_{self._added_count}"
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(np.asarray(array), name=name))
        self.model.graph.register_initializer(value)
        return value

    def append_operator(self, operator: str, *values: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT,
                        **attributes: int | float) -> ir.Value:
        """Adds an operator to the cloned network and returns its output.

        The operator follows the producer of its first computed input, or the whole graph if no input is computed.
        """
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
        """Loads the part of the cloned network that its outputs need.

        Other layers are dropped, because a network can contain plugins after the outputs whose library was not loaded.
        """
        drop_unused_nodes(self.model)
        has_small_layers = has_many_small_layers(self.model.graph)
        if has_small_layers:
            collect_garbage_and_trim_memory()
        try:
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=not has_small_layers, frees_tensors_early=True)
        except OutOfMemoryError:
            raise
        except InputError:  # If two Convs are added, the fusions of ONNX Runtime can lose one that is also an output.
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=False, frees_tensors_early=True)

    def add_output(self, value: ir.Value) -> str:
        """Makes a value an output of the cloned network and returns the name of that output."""
        if value.is_graph_input():
            value = self.append_operator("Identity", value)
        self.model.graph.outputs.append(value)
        return value_name(value)


def declare_as_scalar(value: ir.Value) -> ir.Value:
    """Declares that a value has no dimensions, and returns the value."""
    value.shape = ir.Shape([])
    return value


@dataclass(frozen=True)
class FeedSlice:
    """A slice of the feeds, from ``start`` up to but not including ``stop``, for one chunk of the tensors."""

    chunk_index: int
    start: int
    stop: int


class NonFiniteTensorError(InputError):
    """The error for a tensor that contains NaN or an infinity (``value_kind``) in FP32 in a feed of the calibration
    samples.

    `trt_tui.core.calibration.non_finite.explain_non_finite_errors` names the constant or layer that causes the value.
    """

    def __init__(self, tensor: str, value_kind: str, feed_index: int, title: str = "", cause: str = "",
                 next_step: str = "") -> None:
        super().__init__(title or f"Tensor '{tensor}' holds {value_kind} in FP32",
                         cause or "Seen while calibrating.",
                         next_step or "Correct the network or the data: it has no usable range.")
        self.tensor, self.value_kind, self.feed_index = tensor, value_kind, feed_index


@dataclass(frozen=True)
class _NonFiniteValue:
    tensor: str
    value_kind: str
    feed_index: int


class _TensorCollectionTask:
    """A task that collects the values of one chunk of tensors over one slice of the feeds, and returns the collectors.
    """

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
        """Frees the inference session."""
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
    """Adds the values of each tensor in each feed to the collector of that tensor.

    One pass over the feeds reads at most ``max_bytes`` bytes of tensors.

    Args:
        collectors: Empty collectors by tensor.
        executor: The executor of the feeds, with the same network and samples; this process by default.
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


