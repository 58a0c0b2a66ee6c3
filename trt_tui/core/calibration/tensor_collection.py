"""The execution of a network over samples with additional outputs, and the collection of their values by tensor.

Memory use does not depend on the number of samples. The feeds are divided into slices, independently of the number of
processes. The results of the slices are joined in the order of the feeds. Sums are therefore bit-identical on one
process and on many.
"""

import copy
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.graph import iterate_captured_tensors, register_constant, stored_tensor
from trt_tui.core.network.model_editing import iterate_reachable, prune_model, value_name
from trt_tui.core.network.small_layers import collect_garbage_and_trim_memory, has_many_small_layers
from trt_tui.core.runner import Backend, Executor, LoadingTask, LocalExecutor, Runner, Task
from trt_tui.errors import InputError, OutOfMemoryError, TrtTuiError

AMAX_OPERATORS = "ReduceMax", "ReduceMin", "ReduceL1"
"""The reductions that `compute_amax_from_reductions` reads. ReduceMax and ReduceMin ignore NaN; ReduceL1 does not."""


class NetworkProbe:
    """A clone of a network for measurements, with chosen outputs and added operators. It shares the weights of the
    network.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {value_name(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._added_count = 0
        self._extra_inputs: list[str] = []

    def find_or_add_fp32_value(self, tensor_name: str) -> ir.Value:
        """Returns a tensor of the cloned network in FP32. A Cast is added for a tensor of another float type.

        Raises:
            InputError: The tensor does not exist, or its elements are not floating-point numbers.
        """
        value = self._values.get(tensor_name)
        if value is None:
            raise InputError(
                f"The network has no tensor '{tensor_name}'", "Only inputs and outputs of its layers can have ranges."
            )
        if value.dtype is not None and not value.dtype.is_floating_point():
            raise InputError(
                f"Tensor '{tensor_name}' is {value.dtype.name}", "Only floating-point tensors have a range."
            )
        return (
            value
            if value.dtype == ir.DataType.FLOAT
            else self.append_operator("Cast", value, to=int(ir.DataType.FLOAT))
        )

    def add_input(self, name: str, dtype: ir.DataType, rank: int) -> ir.Value:
        """Adds an input with open sizes to the cloned network. The first axis of an input with axes is that of the
        samples."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
        self.model.graph.inputs.append(value)
        if rank:
            self._extra_inputs.append(name)
        return value

    def add_constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """Adds an array to the cloned network as a new initializer."""
        self._added_count += 1
        name = f"trt_tui_constant_{self._added_count}"
        return register_constant(self.model.graph, name, ir.tensor(np.asarray(array), name=name))

    def append_operator(
        self, operator: str, *values: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT, **attributes: int | float
    ) -> ir.Value:
        """Adds an operator to the cloned network and returns its result.

        Its node is placed after the producer of its first computed input, or at the end if no input is computed.
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

    def load_output_runner(self, backend: Backend, samples: Samples) -> Runner:
        """Loads the cloned network for execution, without the parts that no output depends on.

        Other layers are dropped, because they may be plugins whose library was not loaded.
        """
        prune_model(self.model)
        has_small_layers = has_many_small_layers(self.model.graph)
        if has_small_layers:
            collect_garbage_and_trim_memory()
        try:
            return AdaptiveRunner(
                backend,
                self.model,
                samples,
                extra_inputs=self._extra_inputs,
                low_memory=True,
                optimize=not has_small_layers,
                frees_tensors_early=True,
            )
        except OutOfMemoryError:
            raise
        except InputError:  # If two Convs are added, the fusions of ONNX Runtime can lose one that is also an output.
            return AdaptiveRunner(
                backend,
                self.model,
                samples,
                extra_inputs=self._extra_inputs,
                low_memory=True,
                optimize=False,
                frees_tensors_early=True,
            )

    def add_output(self, value: ir.Value) -> str:
        """Makes a value an output of the cloned network and returns the name of the output."""
        if value.is_graph_input():
            value = self.append_operator("Identity", value)
        self.model.graph.outputs.append(value)
        return value_name(value)

    def add_reductions(self, value: ir.Value, *operators: str) -> list[str]:
        """Adds reductions of a value to scalars, as outputs, and returns their names."""
        results = [self.append_operator(operator, value, keepdims=0) for operator in operators]
        for result in results:
            result.shape = ir.Shape([])
        return list(map(self.add_output, results))

    def add_shape_output(self, tensor_name: str) -> str:
        """Adds an output with the shape of a float tensor, and returns the name of the output."""
        return self.add_output(
            self.append_operator("Shape", self.find_or_add_fp32_value(tensor_name), dtype=ir.DataType.INT64)
        )


def compute_amax_from_reductions(scalars: Mapping[str, np.ndarray], names: Sequence[str]) -> float:
    """Returns the amax of a tensor from the results of `AMAX_OPERATORS`; NaN or infinity if the tensor contains such a
    value."""
    largest, smallest, norm = (float(scalars[name]) for name in names)
    return math.nan if math.isnan(norm) else max(largest, -smallest)


_DIVIDING_OPERATORS = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0, "Sqrt": 0}
"""Index of the input that an epsilon keeps from 0, by operator."""

_EPSILON_OPERATORS = frozenset(("Add", "Max", "Clip"))
_MAX_UPSTREAM_DEPTH = 6

REMEDY = (
    "Correct the network or the data. A file in half precision can have lost a value: export it again from FP32, "
    "or name the FP32 network that it was made from with --reference."
)
"""The next step after a value that is not finite, as a sentence."""


@dataclass(frozen=True)
class FirstNonFiniteValue:
    """The first constant or tensor, in network order, with NaN or an infinity, as texts without a full stop.

    Attributes:
        title: The constant with its value, or the tensor if all constants before it are finite.
        effect_text: The layer that reads the constant, and the first tensor with such a value.
        origin_text: The constant with its value, and the effect.
    """

    title: str
    effect_text: str
    origin_text: str


def find_first_non_finite_value(
    model: ir.Model, samples: Samples, feed_index: int, backend: Backend, tensors: Set[str]
) -> FirstNonFiniteValue | None:
    """Finds the first value of an FP32 network in one feed that is NaN or infinite and reaches some tensors.

    The value reaches them through tensors that are not finite either. An infinite mask in front of a Softmax does not.
    None if the tensors are finite or the network cannot be executed.
    """
    try:
        amax_by_tensor = _measure_tensor_amaxes(model, samples, feed_index, backend)
    except TrtTuiError:
        return None

    results = {value.name: value for node in model.graph for value in node.outputs if value.name}

    def can_pass_on(value: ir.Value) -> bool:
        """Returns True if a value is not finite, or was not measured, as a sequence is not."""
        amax = amax_by_tensor.get(value_name(value))
        if amax is None:
            return not isinstance(value.type, ir.TensorType) or value.dtype is None or value.dtype.is_floating_point()
        return not np.isfinite(amax)

    def list_broken_producers(node: ir.Node) -> list[ir.Node]:
        names = (*(value.name for value in node.inputs if value is not None), *iterate_captured_tensors(node))
        read = [results[name] for name in names if name in results]
        return [producer for value in read if can_pass_on(value) and (producer := value.producer()) is not None]

    reached = set(
        iterate_reachable(
            [node for node in model.graph if not tensors.isdisjoint(value.name for value in node.outputs)],
            list_broken_producers,
        )
    )
    title, constant_text, reader_text = "", "", ""
    for node in (node for node in model.graph if node in reached):
        node_title = f"{node.name} ({node.op_type})"
        for value in node.inputs:
            if not title and value is not None and (number_text := _non_finite_constant_text(value)):
                title = f"Constant '{value_name(value)}' is {number_text}"
                constant_text = f"constant {value_name(value)} is {number_text}, and "
                reader_text = f"{node_title} reads it"
        for value in node.outputs:
            amax = amax_by_tensor.get(value.name or "", 0.0)
            if not np.isfinite(amax):
                kind = "NaN" if np.isnan(amax) else "an infinity"
                epsilon_text = "" if title else _zero_epsilon_text(node)
                effect_text = "; ".join(filter(None, (reader_text, f"the first tensor with {kind} is {value.name}")))
                effect_text += f", the result of {node_title}{epsilon_text}"
                title = title or f"Tensor '{value.name}' holds {kind} in FP32"
                return FirstNonFiniteValue(title, effect_text, constant_text + effect_text)
    return FirstNonFiniteValue(title, reader_text, constant_text + reader_text) if title else None


class NonFiniteTensorError(InputError):
    """The error for a tensor that contains NaN or an infinity in FP32 on the calibration samples."""

    tensor: str


def make_non_finite_error(
    model: ir.Model, samples: Samples, backend: Backend, tensor: str, value_kind: str, feed_index: int
) -> NonFiniteTensorError:
    """Returns the error for a tensor with NaN or an infinity. It names the constant or layer that causes the value.

    Args:
        value_kind: "NaN" or "an infinity".
        feed_index: The feed in which the value was seen.
    """
    origin = find_first_non_finite_value(model, samples, feed_index, backend, {tensor})
    cause = f"Seen while calibrating, in the batch of sample {samples.sample_name(feed_index)}."
    error = (
        NonFiniteTensorError(
            f"Tensor '{tensor}' holds {value_kind} in FP32",
            cause,
            "Correct the network or the data: it has no usable range.",
        )
        if origin is None
        else NonFiniteTensorError(
            origin.title, f"{origin.effect_text[:1].upper()}{origin.effect_text[1:]}. {cause}", REMEDY
        )
    )
    error.tensor = tensor
    return error


def _measure_tensor_amaxes(model: ir.Model, samples: Samples, feed_index: int, backend: Backend) -> Mapping[str, float]:
    """Measures the amax of each float tensor of the main graph; NaN for a tensor that contains NaN."""
    probe = NetworkProbe(model)
    outputs = {
        name: probe.add_reductions(probe.find_or_add_fp32_value(name), *AMAX_OPERATORS)
        for name in [
            value.name
            for node in model.graph
            for value in node.outputs
            if value.name and value.dtype is not None and value.dtype.is_floating_point()
        ]
    }
    with probe.load_output_runner(backend, samples) as runner:
        scalars = runner.run(samples.read_feed(feed_index))
    return {name: compute_amax_from_reductions(scalars, names) for name, names in outputs.items()}


def _non_finite_constant_text(value: ir.Value) -> str:
    """Returns "NaN", "Inf" or "-Inf" if a constant contains such a value; "" if it is finite."""
    stored = stored_tensor(value)
    if stored is None or not stored.dtype.is_floating_point():
        return ""
    array = stored.numpy().astype(np.float32)
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "-Inf" if not (array == np.inf).any() else "Inf"


def _zero_epsilon_text(node: ir.Node) -> str:
    """Returns a clause on an epsilon of 0 that is added to a divisor of a layer; "" if there is none."""
    index = _DIVIDING_OPERATORS.get(node.op_type)
    value = node.inputs[index] if index is not None and len(node.inputs) > index else None
    for upstream_node in _iterate_upstream_nodes(value.producer() if value is not None else None, _MAX_UPSTREAM_DEPTH):
        if upstream_node.op_type not in _EPSILON_OPERATORS:
            continue
        for input_value in upstream_node.inputs:
            stored = stored_tensor(input_value)
            if input_value is None or stored is None or not stored.dtype.is_floating_point():
                continue
            if not stored.numpy().any():
                return (
                    f"; constant {value_name(input_value)}, which {upstream_node.name} ({upstream_node.op_type}) adds, "
                    "is 0 and does not protect a divisor from 0 (in FP16 an epsilon below 6e-8 is 0)"
                )
    return ""


def _iterate_upstream_nodes(node: ir.Node | None, max_depth: int) -> Iterator[ir.Node]:
    """Yields a node and the nodes that it depends on up to a depth, depth first."""
    if node is None or not max_depth:
        return
    yield node
    for value in node.inputs:
        yield from _iterate_upstream_nodes(value.producer() if value is not None else None, max_depth - 1)


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


class CollectedTensor(NamedTuple):
    """A tensor whose values a collector receives. With divisors, the collector receives the divided values."""

    tensor: str
    collector: TensorCollector
    divisors: np.ndarray | None = None


class CalibrationContext(Protocol):
    """The network, calibration samples and backend that a calibration task uses."""

    @property
    def fp32_model(self) -> ir.Model: ...

    @property
    def calibration_samples(self) -> Samples: ...

    @property
    def backend(self) -> Backend: ...


@dataclass(frozen=True)
class CalibrationInputs:
    """The simplest `CalibrationContext`: a network, its calibration samples and a backend."""

    fp32_model: ir.Model
    calibration_samples: Samples
    backend: Backend


@dataclass(frozen=True)
class FeedSlice:
    """A range of feeds (``start`` to before ``stop``), and the chunk of tensors whose values are collected on these
    feeds."""

    chunk_index: int
    start: int
    stop: int


class _NonFiniteValue(NamedTuple):
    tensor: str
    value_kind: str
    feed_index: int


class _TensorCollectionTask(LoadingTask):
    """A task that collects the values of one chunk of tensors over one slice of the feeds. Its result is the
    collectors, by the index of their tensor.
    """

    item_text = "the values of the feeds from {0.start}"

    def __init__(self, chunks: Sequence[Sequence[str]], collected_tensors: Sequence[CollectedTensor]) -> None:
        self._chunks, self._initial_tensors = chunks, copy.deepcopy(list(collected_tensors))
        self._chunk_index = -1

    def run_item(
        self, context: CalibrationContext, item: FeedSlice
    ) -> Generator[None, None, dict[int, TensorCollector] | _NonFiniteValue]:
        if self._loaded is None or self._chunk_index != item.chunk_index:
            self.close()
            probe = NetworkProbe(context.fp32_model)
            self._outputs = {
                tensor: probe.add_output(probe.find_or_add_fp32_value(tensor))
                for tensor in self._chunks[item.chunk_index]
            }
            self._chunk_index = item.chunk_index
            self._loaded = probe.load_output_runner(context.backend, context.calibration_samples)
        runner, outputs = self._loaded, self._outputs
        collected_tensors = {
            number: copy.deepcopy(collected)
            for number, collected in enumerate(self._initial_tensors)
            if collected.tensor in outputs
        }
        for index in range(item.start, item.stop):
            arrays = runner.run(context.calibration_samples.read_feed(index))
            for tensor, collector, divisors in collected_tensors.values():
                array = arrays[outputs[tensor]]
                try:
                    collector.add_values(array if divisors is None else array / divisors)
                except ValueError as error:
                    return _NonFiniteValue(tensor, str(error), index)
            del arrays, array  # before the next execution, which returns as many
            yield
        return {number: collected.collector for number, collected in collected_tensors.items()}


def collect_tensors(
    model: ir.Model,
    collected_tensors: Sequence[CollectedTensor],
    samples: Samples,
    backend: Backend,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> None:
    """Passes the values of each tensor in all feeds to the collectors of that tensor.

    One pass over the feeds reads at most `MEMORY_LIMIT_BYTES` of tensors.

    Args:
        collected_tensors: The tensors, each with an empty collector.
        executor: The executor of the feeds, with the same network and samples; this process by default.

    Raises:
        NonFiniteTensorError: A collector refuses NaN or an infinity.
    """
    if not collected_tensors:
        return
    tensors = dict.fromkeys(collected.tensor for collected in collected_tensors)
    shapes = measure_tensor_shapes(model, tensors, samples, backend)
    chunks = list(divide_by_size(shapes, lambda tensor: 4 * math.prod(shapes[tensor]), MEMORY_LIMIT_BYTES))
    feed_count, count = len(samples), min(MAX_SLICES, len(samples))
    bounds = [feed_count * number // count for number in range(count + 1)]
    slices = [
        FeedSlice(chunk, start, stop)
        for chunk in range(len(chunks))
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]
    task = _TensorCollectionTask(chunks, collected_tensors)
    try:
        for _, collectors_of_slice in run_items_in_order(
            executor or LocalExecutor(CalibrationInputs(model, samples, backend)),
            task,
            slices,
            lambda feed_slice: feed_slice.stop - feed_slice.start,
            progress,
        ):
            if isinstance(collectors_of_slice, _NonFiniteValue):
                raise make_non_finite_error(model, samples, backend, *collectors_of_slice)
            for number, collector in collectors_of_slice.items():
                collected_tensors[number].collector.merge_values(collector)
    finally:
        task.close()


def run_items_in_order(
    executor: Executor[CalibrationContext],
    task: Task[CalibrationContext, Item, T],
    items: Sequence[Item],
    count_runs: Callable[[Item], int],
    progress: RunProgress | None,
) -> Iterator[tuple[Item, T]]:
    """Runs a task on all items, and yields each item with its result in the order of the items.

    The executor may return results in another order. The first reported error is therefore the same on every executor.

    Args:
        count_runs: A function that returns the number of executions of an item.
    """
    results: dict[Item, T] = {}
    report_progress: RunProgress = progress or (lambda done_runs, total_runs: None)
    index, done_runs, total_runs = 0, 0, sum(map(count_runs, items))
    for completed in executor.map(task, items):
        while not executor.is_ready():
            time.sleep(POLL_INTERVAL_S)
            report_progress(done_runs, total_runs)
        if completed is None:
            report_progress(done_runs, total_runs)
            continue
        results[completed[0]] = completed[1]
        while index < len(items) and items[index] in results:
            yield items[index], results.pop(items[index])
            done_runs += count_runs(items[index])
            index += 1
            report_progress(done_runs, total_runs)


def measure_tensor_shapes(
    model: ir.Model, tensors: Iterable[str], samples: Samples, backend: Backend, feed_index: int = 0
) -> dict[str, tuple[int, ...]]:
    """Measures the shapes of float tensors in a feed."""
    probe = NetworkProbe(model)
    outputs = {tensor: probe.add_shape_output(tensor) for tensor in tensors}
    with probe.load_output_runner(backend, samples) as runner:
        shapes = runner.run(samples.read_feed(feed_index))
    return {tensor: tuple(map(int, shapes[output])) for tensor, output in outputs.items()}


def divide_by_size(items: Iterable[T], measure_size: Callable[[T], int], max_size: int) -> Iterator[list[T]]:
    """Divides items, in their order, into lists of at most a total size. An item above that size is alone in its list."""
    chunk: list[T] = []
    total = 0
    for item in items:
        size = measure_size(item)
        if chunk and total + size > max_size:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
