"""GPU execution in ONNX Runtime with I/O binding for all inputs and outputs, as one CUDA graph if the network allows
it.

An array that is fed again, such as weights or samples, is copied to the device once. Its copy is found by the identity
of the array and freed with the array. The modes, from the fastest:

- A CUDA graph for the first shapes that occur twice. It needs a network without control flow and without nodes on the
  CPU. Addresses are fixed at capture, so every input has a separate buffer, and changed inputs are copied there.
- Bound inputs and outputs.

Copies that the last execution did not need are kept up to `MAX_IDLE_COPY_BYTES`. With a CUDA graph, whose buffers hold
the inputs, this limit applies to all copies. The device therefore holds the inputs once, plus copies up to the limit.
"""

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.backends.cuda import copy_device_memory
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import FAILED_ALLOCATION

_ShapesKey = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of a feed, by input."""

DEVICE = "cuda"

RUNS_BEFORE_CAPTURE = 2
"""The number of executions with the same shapes before a CUDA graph is captured."""

MAX_IDLE_COPY_BYTES = 1 << 30
"""The maximum size of the device copies of arrays that the last execution did not need."""

CUDA_GRAPH_MODE, BOUND_MODE = "CUDA graph", "bound inputs and outputs"
"""The names of the two execution modes on a GPU."""

_MAX_REASON_CHARACTERS = 160

_MESSAGE_FRAME = re.compile(
    r"^\d+ : [A-Z_]+ : |Exception during initialization: |/\S+\.(cc|h):\d+ .*?\) ?(\[with .*?\] )?")
"""The parts of ONNX Runtime messages around the actual text: error codes and positions in its source."""

_HOST_ONLY_KINDS = "OUS"
"""The numpy kinds of arrays that cannot be copied to a device: objects and strings."""


class DeviceArrayCopies:
    """Copies of numpy arrays in GPU memory, found by the identity of the array. A copy is freed with its array.

    Attributes:
        total_bytes: The size of all copies.
        max_idle_bytes: The maximum size of the copies that the last execution did not need.
    """

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
        self.total_bytes, self.max_idle_bytes = 0, MAX_IDLE_COPY_BYTES

    def __len__(self) -> int:
        return len(self._copies)

    def get_device_copy(self, array: np.ndarray) -> Any:
        """Returns the device copy of an array, an OrtValue. The copy is made if there is none."""
        cached = self._copies.get(id(array))
        if cached is not None and cached[0]() is array:
            return cached[1]
        value = _copy_to_device(self._ort, array)
        key, size = id(array), array.nbytes
        self._copies[key] = weakref.ref(array, lambda _: self._drop_device_copy(key, size)), value
        self.total_bytes += size
        return value

    def _drop_device_copy(self, array_id: int, byte_count: int) -> None:
        if self._copies.pop(array_id, None) is not None:
            self.total_bytes -= byte_count

    def free_unused_copies(self, used_arrays: Iterable[np.ndarray] = ()) -> None:
        """Frees the oldest device copies of unused arrays, until such copies take at most `max_idle_bytes`."""
        if self.total_bytes <= self.max_idle_bytes:
            return
        used_sizes = {id(array): array.nbytes for array in used_arrays if id(array) in self._copies}
        idle_bytes = self.total_bytes - sum(used_sizes.values())
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
    """

    def __init__(self, ort: Any, session: Any,
                 make_capturing_session: Callable[[Mapping[str, tuple[int, ...]]], Any] | None,
                 on_mode_change: Callable[[ExecutionMode], None]) -> None:
        self._ort = ort
        self._session = session
        self._make_capturing_session = make_capturing_session
        self._on_mode_change = on_mode_change
        self._device_copies = DeviceArrayCopies(ort)
        self._captured_graph: _CapturedCudaGraph | None = None
        self._shape_counts: Counter[_ShapesKey] = Counter()
        self.mode = ExecutionMode(BOUND_MODE)
        """The execution mode: a CUDA graph for the first shapes that occurred twice, bound inputs for other shapes."""

    def run(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> list[np.ndarray]:
        """Executes the network once. Returns the outputs in the order of ``output_names``.

        If device memory runs out, the CUDA graph and all copies that this execution does not need are freed, and the
        network is executed again. From then on, no idle copies are kept.
        """
        try:
            return self._run_without_retry(feed, output_names)
        except Exception as error:
            if not FAILED_ALLOCATION.search(str(error)):
                raise
            reason = _short_error_text(error)
        self._captured_graph = self._make_capturing_session = None
        self._device_copies.max_idle_bytes = 0
        self._device_copies.free_unused_copies(feed.values())
        results = self._run_without_retry(feed, output_names)
        self._set_execution_mode(ExecutionMode(BOUND_MODE, reason))
        return results

    def _run_without_retry(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> list[np.ndarray]:
        if self._captured_graph is not None and (changed_names :=
                                                 self._captured_graph.find_changed_inputs(feed)) is not None:
            results = self._captured_graph.replay(feed, changed_names, output_names, self._device_copies)
            self._device_copies.free_unused_copies()
            return results
        binding = self._bind_inputs(feed)
        for name in output_names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        results = list(binding.copy_outputs_to_cpu())
        self._device_copies.free_unused_copies(feed.values())
        if self._make_capturing_session is not None:
            self._shape_counts[_input_shapes_key(feed)] += 1
            if self._shape_counts[_input_shapes_key(feed)] == RUNS_BEFORE_CAPTURE:
                self._capture_cuda_graph(feed)
        return results

    def _bind_inputs(self, feed: Mapping[str, np.ndarray]) -> Any:
        binding = self._session.io_binding()
        for name, array in feed.items():
            if array.dtype.kind in _HOST_ONLY_KINDS:
                binding.bind_cpu_input(name, array)
            else:
                binding.bind_ortvalue_input(name, self._device_copies.get_device_copy(array))
        return binding

    def _capture_cuda_graph(self, feed: Mapping[str, np.ndarray]) -> None:
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
            self._device_copies.free_unused_copies()
            self._captured_graph = _CapturedCudaGraph(self._ort, make_session(dict(_input_shapes_key(feed))), feed,
                                                      output_slots)
        except Exception as error:  # nodes on the CPU, control flow, strings, no memory: inputs and outputs stay bound
            self._set_execution_mode(ExecutionMode(BOUND_MODE, f"no CUDA graph: {_short_error_text(error)}"))
        else:
            self._set_execution_mode(ExecutionMode(CUDA_GRAPH_MODE))

    def _set_execution_mode(self, mode: ExecutionMode) -> None:
        self.mode = mode
        self._on_mode_change(mode)

    def close(self) -> None:
        self._device_copies.free_all_device_copies()
        self._captured_graph = self._session = self._make_capturing_session = None


class _CapturedCudaGraph:
    """A captured CUDA graph of a network with fixed shapes. Every input and output has a separate buffer.

    Args:
        output_slots: The buffers of all outputs, by name.
    """

    def __init__(self, ort: Any, session: Any, feed: Mapping[str, np.ndarray], output_slots: Mapping[str, Any]) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._input_slots = {name: _copy_to_device(ort, array) for name, array in feed.items()}
        self._output_slots = dict(output_slots)
        self._last_feed = dict(feed)
        for name, slot in self._input_slots.items():
            self._binding.bind_ortvalue_input(name, slot)
        for name, slot in self._output_slots.items():
            self._binding.bind_ortvalue_output(name, slot)
        self._session.run_with_iobinding(self._binding)  # this execution is captured

    def find_changed_inputs(self, feed: Mapping[str, np.ndarray]) -> list[str] | None:
        """Returns the names of the inputs whose arrays differ from the last feed; None if a shape differs from the
        captured shape."""
        last_feed = self._last_feed
        changed_names = [name for name, array in feed.items() if last_feed.get(name) is not array]
        has_same_shapes = len(feed) == len(last_feed) and all(
            name in last_feed and last_feed[name].shape == feed[name].shape for name in changed_names)
        return changed_names if has_same_shapes else None

    def replay(self, feed: Mapping[str, np.ndarray], changed_inputs: Sequence[str], output_names: Sequence[str],
               device_copies: DeviceArrayCopies) -> list[np.ndarray]:
        """Copies the changed inputs to their buffers and replays the graph. Returns the named outputs as host arrays.
        """
        copies = []
        for name in changed_inputs:
            array = self._last_feed[name] = feed[name]
            copies.append(
                (device_copies.get_device_copy(array).data_ptr(), self._input_slots[name].data_ptr(), array.nbytes))
        if copies:
            copy_device_memory(copies)
        self._session.run_with_iobinding(self._binding)
        return [self._output_slots[name].numpy() for name in output_names]


def _input_shapes_key(feed: Mapping[str, np.ndarray]) -> _ShapesKey:
    return tuple((name, array.shape) for name, array in feed.items())


def _copy_to_device(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


def _short_error_text(error: Exception) -> str:
    """Returns the message of an ONNX Runtime error in one line, without error codes and positions in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    if FAILED_ALLOCATION.search(text):
        return "the GPU memory is too small"
    text = _MESSAGE_FRAME.sub("", text.rpartition("[ONNXRuntimeError] : ")[2]).partition(" ; ")[0]
    return text if len(text) <= _MAX_REASON_CHARACTERS else f"{text[:_MAX_REASON_CHARACTERS]}…"
