"""Runs on a GPU with everything bound: what is fed lies there, and where the graph allows it a run is one CUDA graph.

An array that is fed again, as weights and samples are, is copied to the device once: it is known by its identity, and
its copy goes with it. Levels, from the fastest:

- a CUDA graph for the shapes that came twice first, which needs a graph without control flow and without nodes on the
  CPU. Addresses are fixed when it is captured, so that every input has a slot of its own, and what changes is copied
  there;
- inputs and outputs bound.

Copies of what a run does not need are kept up to `KEPT_BYTES`; with a CUDA graph, whose slots hold what is fed, that
goes for all of them. So what is fed lies on the device once, and that much of it a second time.
"""

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.backends.cuda import copy_on_device
from trt_tui.core.runner import Level
from trt_tui.errors import FAILED_ALLOCATION

_Key = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of what is fed, by input."""

DEVICE = "cuda"

GRAPH_RUNS = 2
"""As many runs of the same shapes come before one is captured."""

KEPT_BYTES = 1 << 30
"""Copies of arrays that are fed now and then are kept on the device up to this size."""

GRAPH, BOUND = "CUDA graph", "bound inputs and outputs"
"""The names of the levels."""

_REASON_CHARACTERS = 160

_AROUND = re.compile(r"^\d+ : [A-Z_]+ : |Exception during initialization: |/\S+\.(cc|h):\d+ .*?\) ?(\[with .*?\] )?")
"""What ONNX Runtime puts around what it says: codes, places in its source."""

_TEXT = "OUS"
"""Kinds of arrays that no device takes."""


class OnDevice:
    """Copies of arrays in the memory of a GPU, by the identity of the array; a copy goes when its array does.

    Attributes:
        size: What they take, in bytes.
        limit: What those may take that the last run did not need.
    """

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
        self.size, self.limit = 0, KEPT_BYTES

    def __len__(self) -> int:
        return len(self._copies)

    def copy(self, array: np.ndarray) -> Any:
        """The copy of an array, an OrtValue."""
        known = self._copies.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        value = _on_device(self._ort, array)
        key, size = id(array), array.nbytes
        self._copies[key] = weakref.ref(array, lambda _: self._drop(key, size)), value
        self.size += size
        return value

    def _drop(self, key: int, size: int) -> None:
        if self._copies.pop(key, None) is not None:
            self.size -= size

    def trim(self, used: Iterable[np.ndarray] = ()) -> None:
        """Frees the oldest copies, as far as others than those in use take more than the limit."""
        if self.size <= self.limit:
            return
        held = {id(array): array.nbytes for array in used if id(array) in self._copies}
        spare = self.size - sum(held.values())
        for key in [key for key in self._copies if key not in held]:
            if spare <= self.limit:
                return
            array = self._copies[key][0]()
            if array is not None:
                self._drop(key, array.nbytes)
                spare -= array.nbytes

    def clear(self) -> None:
        """Frees all copies."""
        self._copies.clear()
        self.size = 0


class BoundRuns:
    """The runs of one network with everything bound.

    Args:
        session: Of any shapes; its first provider is CUDA.
        captured: Makes a session for shapes, by input, that captures CUDA graphs; None where there is to be none.
        told: Called with the level whenever it changes.
    """

    def __init__(self, ort: Any, session: Any, captured: Callable[[Mapping[str, tuple[int, ...]]], Any] | None,
                 told: Callable[[Level], None]) -> None:
        self._ort = ort
        self._session = session
        self._captured = captured
        self._told = told
        self._device = OnDevice(ort)
        self._graph: _Graph | None = None
        self._seen: Counter[_Key] = Counter()
        self.level = Level(BOUND)
        """How runs are made: by a CUDA graph those of the shapes that came twice first, others with bound inputs."""

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """Runs once; returns the outputs in the order of ``names``.

        Where the device has no memory for it, the graph and all copies that it does not need are freed, and it is run
        once more; from then on no others are kept.
        """
        try:
            return self._run(feeds, names)
        except Exception as error:
            if not FAILED_ALLOCATION.search(str(error)):
                raise
            why = _said(error)
        self._graph = self._captured = None
        self._device.limit = 0
        self._device.trim(feeds.values())
        results = self._run(feeds, names)
        self._set(Level(BOUND, why))
        return results

    def _run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        if self._graph is not None and (changed := self._graph.changed(feeds)) is not None:
            results = self._graph.run(feeds, changed, names, self._device)
            self._device.trim()
            return results
        binding = self._binding(feeds)
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        results = list(binding.copy_outputs_to_cpu())
        self._device.trim(feeds.values())
        if self._captured is not None:
            self._seen[_key(feeds)] += 1
            if self._seen[_key(feeds)] == GRAPH_RUNS:
                self._capture(feeds)
        return results

    def _binding(self, feeds: Mapping[str, np.ndarray]) -> Any:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            if array.dtype.kind in _TEXT:
                binding.bind_cpu_input(name, array)
            else:
                binding.bind_ortvalue_input(name, self._device.copy(array))
        return binding

    def _capture(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Goes on with a CUDA graph for some shapes, where the session takes the network for that."""
        captured, self._captured = self._captured, None
        self._seen.clear()
        assert captured is not None
        try:
            names = [one.name for one in self._session.get_outputs()]
            binding = self._binding(feeds)
            for name in names:
                binding.bind_output(name, DEVICE)
            self._session.run_with_iobinding(binding)
            slots = dict(zip(names, binding.get_outputs(), strict=True))
            del binding
            self._device.trim()
            self._graph = _Graph(self._ort, captured(dict(_key(feeds))), feeds, slots)
        except Exception as error:  # nodes on the CPU, control flow, text, no memory left: runs stay as they are
            self._set(Level(BOUND, f"no CUDA graph: {_said(error)}"))
        else:
            self._set(Level(GRAPH))

    def _set(self, level: Level) -> None:
        self.level = level
        self._told(level)

    def close(self) -> None:
        """Frees what lies on the device."""
        self._device.clear()
        self._graph = self._session = self._captured = None


class _Graph:
    """A run of fixed shapes as one CUDA graph, every input and output in a slot of its own.

    Args:
        results: The slots of all outputs.
    """

    def __init__(self, ort: Any, session: Any, feeds: Mapping[str, np.ndarray], results: Mapping[str, Any]) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._slots = {name: _on_device(ort, array) for name, array in feeds.items()}
        self._results = dict(results)
        self._fed = dict(feeds)
        for name, slot in self._slots.items():
            self._binding.bind_ortvalue_input(name, slot)
        for name, slot in self._results.items():
            self._binding.bind_ortvalue_output(name, slot)
        self._session.run_with_iobinding(self._binding)  # the one that is captured

    def changed(self, feeds: Mapping[str, np.ndarray]) -> list[str] | None:
        """Of what other arrays are fed than before; None where something has not the shape that the graph has."""
        fed = self._fed
        found = [name for name, array in feeds.items() if fed.get(name) is not array]
        alike = len(feeds) == len(fed) and all(name in fed and fed[name].shape == feeds[name].shape for name in found)
        return found if alike else None

    def run(self, feeds: Mapping[str, np.ndarray], changed: Sequence[str], names: Sequence[str], device: OnDevice
            ) -> list[np.ndarray]:
        """Copies what changed to its slots, and replays; returns the results on the host, as named."""
        copies = []
        for name in changed:
            array = self._fed[name] = feeds[name]
            copies.append((device.copy(array).data_ptr(), self._slots[name].data_ptr(), array.nbytes))
        if copies:
            copy_on_device(copies)
        self._session.run_with_iobinding(self._binding)
        return [self._results[name].numpy() for name in names]


def _key(feeds: Mapping[str, np.ndarray]) -> _Key:
    return tuple((name, array.shape) for name, array in feeds.items())


def _on_device(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


def _said(error: Exception) -> str:
    """What an error says in one line, without what ONNX Runtime puts around it."""
    text = " ".join(str(error).split()) or type(error).__name__
    if FAILED_ALLOCATION.search(text):
        return "the memory of the GPU does not suffice"
    text = _AROUND.sub("", text.rpartition("[ONNXRuntimeError] : ")[2]).partition(" ; ")[0]
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS]}…"
