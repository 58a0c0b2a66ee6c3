"""Runs on a GPU with everything bound: what is fed lies there, and where the graph allows it a run is one CUDA graph.

An array that is fed again, as weights and samples are, is copied to the device once: it is known by its identity, and
its copy goes with it. Levels, from the fastest:

- a CUDA graph for the shapes that came twice first, which needs a graph without control flow and without nodes on the
  CPU. Addresses are fixed when it is captured, so that every input has a slot of its own, and what changes is copied
  there;
- inputs and outputs bound.

Copies of what a run does not need are kept up to `MAX_IDLE_COPY_BYTES`; with a CUDA graph, whose slots hold what is
fed, that goes for all of them. So what is fed lies on the device once, and that much of it a second time.
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
"""The shapes of what is fed, by input."""

DEVICE = "cuda"

RUNS_BEFORE_CAPTURE = 2
"""As many runs of the same shapes come before one is captured."""

MAX_IDLE_COPY_BYTES = 1 << 30
"""Copies of arrays that are fed now and then are kept on the device up to this size."""

CUDA_GRAPH_MODE, BOUND_MODE = "CUDA graph", "bound inputs and outputs"
"""The names of the levels."""

_MAX_REASON_CHARACTERS = 160

_MESSAGE_FRAME = re.compile(
    r"^\d+ : [A-Z_]+ : |Exception during initialization: |/\S+\.(cc|h):\d+ .*?\) ?(\[with .*?\] )?")
"""What ONNX Runtime puts around what it says: codes, places in its source."""

_HOST_ONLY_KINDS = "OUS"
"""Kinds of arrays that no device takes."""


class DeviceArrayCopies:
    """Copies of arrays in the memory of a GPU, by the identity of the array; a copy goes when its array does.

    Attributes:
        size: What they take, in bytes.
        max_idle_bytes: What those may take that the last run did not need.
    """

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
        self.total_bytes, self.max_idle_bytes = 0, MAX_IDLE_COPY_BYTES

    def __len__(self) -> int:
        return len(self._copies)

    def get_device_copy(self, array: np.ndarray) -> Any:
        """The copy of an array, an OrtValue."""
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
        """Frees the oldest copies, as far as others than those in use take more than the limit."""
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
        """Frees all copies."""
        self._copies.clear()
        self.total_bytes = 0


class IoBindingRunner:
    """The runs of one network with everything bound.

    Args:
        session: Of any shapes; its first provider is CUDA.
        make_capturing_session: Makes a session for shapes, by input, that captures CUDA graphs; None where there is to
            be none.
        on_mode_change: Called with the level whenever it changes.
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
        """How runs are made: by a CUDA graph those of the shapes that came twice first, others with bound inputs."""

    def run(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> list[np.ndarray]:
        """Runs once; returns the outputs in the order of ``output_names``.

        Where the device has no memory for it, the graph and all copies that it does not need are freed, and it is run
        once more; from then on no others are kept.
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
        """Goes on with a CUDA graph for some shapes, where the session takes the network for that."""
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
        except Exception as error:  # nodes on the CPU, control flow, text, no memory left: runs stay as they are
            self._set_execution_mode(ExecutionMode(BOUND_MODE, f"no CUDA graph: {_short_error_text(error)}"))
        else:
            self._set_execution_mode(ExecutionMode(CUDA_GRAPH_MODE))

    def _set_execution_mode(self, mode: ExecutionMode) -> None:
        self.mode = mode
        self._on_mode_change(mode)

    def close(self) -> None:
        """Frees what lies on the device."""
        self._device_copies.free_all_device_copies()
        self._captured_graph = self._session = self._make_capturing_session = None


class _CapturedCudaGraph:
    """A run of fixed shapes as one CUDA graph, every input and output in a slot of its own.

    Args:
        output_slots: The slots of all outputs.
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
        self._session.run_with_iobinding(self._binding)  # the one that is captured

    def find_changed_inputs(self, feed: Mapping[str, np.ndarray]) -> list[str] | None:
        """Of what other arrays are fed than before; None where something has not the shape that the graph has."""
        last_feed = self._last_feed
        changed_names = [name for name, array in feed.items() if last_feed.get(name) is not array]
        has_same_shapes = len(feed) == len(last_feed) and all(
            name in last_feed and last_feed[name].shape == feed[name].shape for name in changed_names)
        return changed_names if has_same_shapes else None

    def replay(self, feed: Mapping[str, np.ndarray], changed_inputs: Sequence[str], output_names: Sequence[str],
               device_copies: DeviceArrayCopies) -> list[np.ndarray]:
        """Copies what changed to its slots, and replays; returns the results on the host, as named."""
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
    """What an error says in one line, without what ONNX Runtime puts around it."""
    text = " ".join(str(error).split()) or type(error).__name__
    if FAILED_ALLOCATION.search(text):
        return "the GPU memory is too small"
    text = _MESSAGE_FRAME.sub("", text.rpartition("[ONNXRuntimeError] : ")[2]).partition(" ; ")[0]
    return text if len(text) <= _MAX_REASON_CHARACTERS else f"{text[:_MAX_REASON_CHARACTERS]}…"
