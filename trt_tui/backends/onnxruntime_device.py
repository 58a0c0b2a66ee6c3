"""GPU execution in ONNX Runtime with I/O binding for all inputs and outputs, as one CUDA graph if the network allows
it.

An array that is fed again, such as weights or samples, is copied to the device once. Its copy is found by the identity
of the array and freed with the array. The modes, from the fastest:

- A CUDA graph for the first shapes that occur twice. It needs a network without control flow and without nodes on the
  CPU. Addresses are fixed at capture, so every input has a separate buffer, and changed inputs are copied there.
- Bound inputs and outputs.

A network in pieces has one `IoBindingRunner` for each piece. The results between pieces stay on the device as
`DeviceResult`. The CUDA graphs and copies of all networks are enqueued on one CUDA stream, so that the host waits once
for all pieces.

Copies that the last execution did not need are kept up to `MAX_IDLE_COPY_BYTES`. With a CUDA graph, whose buffers hold
the inputs, this limit applies to all copies. The device therefore holds the inputs once, plus copies up to the limit.
Results that stay on the device count against the same limit.
"""

import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.backends.cuda import copy_device_memory, create_stream, synchronize_stream
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import FAILED_ALLOCATION

_ShapesKey = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of a feed, by input."""

DEVICE = "cuda"

DEVICE_LOCK = threading.RLock()
"""The lock of all work on the device. While one thread captures a CUDA graph, other threads must not call CUDA."""

RUNS_BEFORE_CAPTURE = 2
"""The number of executions with the same shapes before a CUDA graph is captured."""

MAX_IDLE_COPY_BYTES = 1 << 30
"""The maximum size of the device copies of arrays that the last execution did not need, and of kept results."""

CUDA_GRAPH_MODE, BOUND_MODE = "CUDA graph", "bound inputs and outputs"
"""The names of the two execution modes on a GPU."""

NUMPY_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64, "tensor(bool)": np.bool_
}
"""The numpy types of elements, by ONNX Runtime's name of the type of a tensor."""

_MAX_REASON_CHARACTERS = 160

_MESSAGE_FRAME = re.compile(
    r"^\d+ : [A-Z_]+ : |Exception during initialization: |/\S+\.(cc|h):\d+ .*?\) ?(\[with .*?\] )?")
"""The parts of ONNX Runtime messages around the actual text: error codes and positions in its source."""

_HOST_ONLY_KINDS = "OUS"
"""The numpy kinds of arrays that cannot be copied to a device: objects and strings."""


class DeviceResult:
    """A result of an execution that stays on the device. Nothing writes to it after the execution.

    Attributes:
        value: The OrtValue with the result.
        stream: The CUDA stream that writes the result; None if the result is complete.
    """

    def __init__(self, value: Any, stream: int | None) -> None:
        self.value, self.stream, self.nbytes = value, stream, int(value.tensor_size_in_bytes())
        self.shape, self.dtype = tuple(value.shape()), _numpy_type(value)

    def to_host(self) -> np.ndarray:
        """Returns the result as a host array."""
        with DEVICE_LOCK:
            if self.stream is not None:
                synchronize_stream(self.stream)
            array: np.ndarray = self.value.numpy()
            return array


_Fed = np.ndarray | DeviceResult
"""A value that is fed to an execution."""


class DeviceArrayCopies:
    """Copies of numpy arrays in GPU memory, found by the identity of the array. A copy is freed with its array.

    Attributes:
        total_bytes: The size of all copies.
        result_bytes: The size of all results that stay on the device and are still in use.
        max_idle_bytes: The maximum size of the copies that the last execution did not need, and of the results.
        stream: The CUDA stream whose work may still read a freed copy; None if there is no such work.
    """

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
        self.total_bytes, self.max_idle_bytes = 0, MAX_IDLE_COPY_BYTES
        self.result_bytes = 0
        self.stream: int | None = None

    def __len__(self) -> int:
        return len(self._copies)

    def get_device_copy(self, array: _Fed) -> Any:
        """Returns the device copy of an array, an OrtValue. The copy is made if there is none."""
        if isinstance(array, DeviceResult):
            return array.value
        cached = self._copies.get(id(array))
        if cached is not None and cached[0]() is array:
            return cached[1]
        if self.stream is not None:  # the new copy may get the memory of a freed one
            synchronize_stream(self.stream)
        value = _copy_to_device(self._ort, array)
        key, size = id(array), array.nbytes
        self._copies[key] = weakref.ref(array, lambda _: self._drop_device_copy(key, size)), value
        self.total_bytes += size
        return value

    def _drop_device_copy(self, array_id: int, byte_count: int) -> None:
        if self._copies.pop(array_id, None) is not None:
            self.total_bytes -= byte_count

    def keep_result(self, value: Any, stream: int | None = None) -> DeviceResult:
        """Returns a result that stays on the device. It counts against `max_idle_bytes` as long as it is in use."""
        result = DeviceResult(value, stream)
        self.result_bytes += result.nbytes
        weakref.finalize(result, self._forget_result, result.nbytes).atexit = False
        return result

    def _forget_result(self, byte_count: int) -> None:
        self.result_bytes -= byte_count

    def free_unused_copies(self, used_arrays: Iterable[_Fed] = ()) -> None:
        """Frees the oldest device copies of unused arrays, until they and the kept results take at most
        `max_idle_bytes`."""
        if self.total_bytes + self.result_bytes <= self.max_idle_bytes:
            return
        used_sizes = {id(array): array.nbytes for array in used_arrays if id(array) in self._copies}
        idle_bytes = self.total_bytes + self.result_bytes - sum(used_sizes.values())
        for key in [key for key in self._copies if key not in used_sizes]:
            if idle_bytes <= self.max_idle_bytes:
                return
            array = self._copies[key][0]()
            if array is not None:
                self._drop_device_copy(key, array.nbytes)
                idle_bytes -= array.nbytes

    def free_all_device_copies(self) -> None:
        self._copies.clear()
        self.total_bytes = 0


class IoBindingRunner:
    """The executions of one network on a GPU with I/O binding for all inputs and outputs.

    Args:
        session: An inference session for any shapes, with CUDA as its first provider.
        make_capturing_session: A function that creates an inference session that captures CUDA graphs for given input
            shapes; None to capture no graph.
        on_mode_change: A function that is called with the execution mode whenever the mode changes.
        device_copies: The device copies of the other pieces of the same network; None for a network in one piece.
    """

    def __init__(self, ort: Any, session: Any,
                 make_capturing_session: Callable[[Mapping[str, tuple[int, ...]]], Any] | None,
                 on_mode_change: Callable[[ExecutionMode], None],
                 device_copies: DeviceArrayCopies | None = None) -> None:
        self._ort = ort
        self._session = session
        self._make_capturing_session = make_capturing_session
        self._on_mode_change = on_mode_change
        self.device_copies = device_copies if device_copies is not None else DeviceArrayCopies(ort)
        self._captured_graph: _CapturedCudaGraph | None = None
        self._shape_counts: Counter[_ShapesKey] = Counter()
        self.mode = ExecutionMode(BOUND_MODE)
        """The execution mode: a CUDA graph for the first shapes that occurred twice, bound inputs for other shapes."""

    def run(self, feed: Mapping[str, _Fed], output_names: Sequence[str], *, keep_results: bool = False) -> list[_Fed]:
        """Executes the network once. Returns the outputs in the order of ``output_names``.

        If device memory runs out, the CUDA graph and all copies that this execution does not need are freed, and the
        network is executed again. From then on, no idle copies are kept.

        Args:
            keep_results: True for outputs that stay on the device, False for host arrays.
        """
        try:
            return self._run_without_retry(feed, output_names, keep_results)
        except Exception as error:
            if not FAILED_ALLOCATION.search(str(error)):
                raise
            reason = _short_error_text(error)
        self._captured_graph = self._make_capturing_session = None
        self.device_copies.max_idle_bytes = 0
        self.device_copies.free_unused_copies(feed.values())
        results = self._run_without_retry(feed, output_names, keep_results)
        self._set_execution_mode(ExecutionMode(BOUND_MODE, reason))
        return results

    def _run_without_retry(self, feed: Mapping[str, _Fed], output_names: Sequence[str],
                           keep_results: bool) -> list[_Fed]:
        copies = self.device_copies
        if self._captured_graph is not None and (changed_names :=
                                                 self._captured_graph.find_changed_inputs(feed)) is not None:
            results = self._captured_graph.replay(feed, changed_names, output_names, copies, keep_results)
            copies.free_unused_copies()
            return results
        if copies.stream is not None:  # pieces before this one may have a CUDA graph
            synchronize_stream(copies.stream)
        binding = self._bind_inputs(feed)
        for name in output_names:
            binding.bind_output(name, DEVICE if keep_results else "cpu")
        self._session.run_with_iobinding(binding)
        results = ([copies.keep_result(value) for value in binding.get_outputs()]
                   if keep_results else list(binding.copy_outputs_to_cpu()))
        copies.free_unused_copies(feed.values())
        if self._make_capturing_session is not None:
            self._shape_counts[_input_shapes_key(feed)] += 1
            if self._shape_counts[_input_shapes_key(feed)] == RUNS_BEFORE_CAPTURE:
                self._capture_cuda_graph(feed)
        return results

    def _bind_inputs(self, feed: Mapping[str, _Fed]) -> Any:
        binding = self._session.io_binding()
        for name, array in feed.items():
            if array.dtype.kind in _HOST_ONLY_KINDS:
                binding.bind_cpu_input(name, array)
            else:
                binding.bind_ortvalue_input(name, self.device_copies.get_device_copy(array))
        return binding

    def _capture_cuda_graph(self, feed: Mapping[str, _Fed]) -> None:
        """Captures a CUDA graph for the shapes of a feed, if the network can be captured. Later executions with these
        shapes use the graph."""
        make_session, self._make_capturing_session = self._make_capturing_session, None
        self._shape_counts.clear()
        assert make_session is not None
        try:
            names = [output.name for output in self._session.get_outputs()]
            binding = self._bind_inputs(feed)
            for name in names:
                binding.bind_output(name, DEVICE)
            self._session.run_with_iobinding(binding)
            output_slots = dict(zip(names, binding.get_outputs(), strict=True))
            del binding
            self.device_copies.free_unused_copies()
            session = make_session(dict(_input_shapes_key(feed)))
            self.device_copies.stream = find_stream()
            self._captured_graph = _CapturedCudaGraph(self._ort, session, feed, output_slots,
                                                      self.device_copies.stream)
        except Exception as error:  # nodes on the CPU, control flow, strings, no memory: inputs and outputs stay bound
            self._set_execution_mode(ExecutionMode(BOUND_MODE, f"no CUDA graph: {_short_error_text(error)}"))
        else:
            self._set_execution_mode(ExecutionMode(CUDA_GRAPH_MODE))

    def _set_execution_mode(self, mode: ExecutionMode) -> None:
        self.mode = mode
        self._on_mode_change(mode)

    def close(self) -> None:
        self.device_copies.free_all_device_copies()
        self._captured_graph = self._session = self._make_capturing_session = None


class _CapturedCudaGraph:
    """A captured CUDA graph of a network with fixed shapes. Every input and output has a separate buffer.

    Args:
        output_slots: The buffers of all outputs, by name.
        stream: The CUDA stream of the inference session, on which inputs and results are copied too; None if the
            session has a stream of its own.
    """

    def __init__(self, ort: Any, session: Any, feed: Mapping[str, _Fed], output_slots: Mapping[str, Any],
                 stream: int | None) -> None:
        self._ort, self._session, self._stream = ort, session, stream
        self._binding = session.io_binding()
        self._input_slots = {name: self._make_input_slot(array) for name, array in feed.items()}
        self._output_slots = dict(output_slots)
        self._last_feed: dict[str, _Fed] = {name: array for name, array in feed.items()
                                            if not isinstance(array, DeviceResult)}
        self._shapes = {name: array.shape for name, array in feed.items()}
        for name, slot in self._input_slots.items():
            self._binding.bind_ortvalue_input(name, slot)
        for name, slot in self._output_slots.items():
            self._binding.bind_ortvalue_output(name, slot)
        self._session.run_with_iobinding(self._binding)  # this execution is captured
        self._replay_options = ort.RunOptions()
        if stream is not None:
            self._replay_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def _make_input_slot(self, array: _Fed) -> Any:
        return _copy_to_device(self._ort, array) if not isinstance(array, DeviceResult) else _allocate_like(
            self._ort, array.value)

    def find_changed_inputs(self, feed: Mapping[str, _Fed]) -> list[str] | None:
        """Returns the names of the inputs whose arrays differ from the last feed; None if a shape differs from the
        captured shape."""
        changed_names = [name for name, array in feed.items() if self._last_feed.get(name) is not array]
        has_same_shapes = len(feed) == len(self._shapes) and all(
            self._shapes.get(name) == feed[name].shape for name in changed_names)
        return changed_names if has_same_shapes else None

    def replay(self, feed: Mapping[str, _Fed], changed_inputs: Sequence[str], output_names: Sequence[str],
               device_copies: DeviceArrayCopies, keep_results: bool) -> list[_Fed]:
        """Copies the changed inputs to their buffers and replays the graph. Returns the named outputs, copied from
        their buffers to other device memory or to the host."""
        regions = []
        for name in changed_inputs:
            array = feed[name]
            source = device_copies.get_device_copy(array)
            if not isinstance(array, DeviceResult):  # a result would stay in use
                self._last_feed[name] = array
            regions.append((source.data_ptr(), self._input_slots[name].data_ptr(), array.nbytes))
        if regions:
            copy_device_memory(regions, self._stream)
        self._session.run_with_iobinding(self._binding, self._replay_options)
        slots = [self._output_slots[name] for name in output_names]
        if not keep_results:
            if self._stream is not None:
                synchronize_stream(self._stream)
            return [slot.numpy() for slot in slots]
        results = [device_copies.keep_result(_allocate_like(self._ort, slot), self._stream) for slot in slots]
        copy_device_memory([(slot.data_ptr(), result.value.data_ptr(), result.nbytes)
                            for slot, result in zip(slots, results, strict=True)], self._stream)
        return list(results)


_stream: int | None = None


def find_stream() -> int | None:
    """Returns the CUDA stream of all CUDA graphs of this process, which is created by the first call; None without a
    GPU."""
    global _stream
    if _stream is None and DEVICE == "cuda":
        _stream = create_stream()
    return _stream


def _input_shapes_key(feed: Mapping[str, _Fed]) -> _ShapesKey:
    return tuple((name, array.shape) for name, array in feed.items())


def _copy_to_device(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


def _allocate_like(ort: Any, value: Any) -> Any:
    """Returns device memory for a tensor of the same shape and type, an OrtValue."""
    return ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), _numpy_type(value), DEVICE, 0)


def _numpy_type(value: Any) -> np.dtype:
    """Returns the numpy type of the elements of an OrtValue."""
    return np.dtype(NUMPY_TYPES[value.data_type()])


def _short_error_text(error: Exception) -> str:
    """Returns the message of an ONNX Runtime error in one line, without error codes and positions in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    if FAILED_ALLOCATION.search(text):
        return "the GPU memory is too small"
    text = _MESSAGE_FRAME.sub("", text.rpartition("[ONNXRuntimeError] : ")[2]).partition(" ; ")[0]
    return text if len(text) <= _MAX_REASON_CHARACTERS else f"{text[:_MAX_REASON_CHARACTERS]}…"
