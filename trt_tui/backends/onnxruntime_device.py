"""Runs on a GPU with everything bound: what is fed lies there, and where the graph allows it a run is one CUDA graph.

An array that is fed again, as weights and samples are, is copied to the device once: it is known by its identity, and
its copy goes with it. Levels, from the fastest:

- a CUDA graph for the shapes that came twice first, which needs a graph without control flow and without nodes on the
  CPU. Addresses are fixed when it is captured, so that every input has a slot of its own, and what changes is copied
  there;
- inputs and outputs bound;
- (`trt_tui.backends.onnxruntime.OnnxRuntimeRunner`) arrays handed over at each run.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_Key = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, ...]]
"""The shapes of what is fed, by input, and the outputs that are wanted."""

DEVICE = "cuda"

GRAPH_RUNS = 2
"""As many runs of the same shapes come before one is captured."""


class OnDevice:
    """Copies of arrays in the memory of a GPU, by the identity of the array; a copy goes when its array does."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}

    def copy(self, array: np.ndarray) -> Any:
        """The copy of an array, an OrtValue."""
        known = self._copies.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        value = _on_device(self._ort, array)
        key = id(array)
        self._copies[key] = weakref.ref(array, lambda _: self._copies.pop(key, None)), value
        return value

    def close(self) -> None:
        """Frees all copies."""
        self._copies.clear()


class BoundRuns:
    """The runs of one network with everything bound.

    Args:
        session: Of any shapes; its first provider is CUDA.
        captured: Makes a session for shapes, by input, that captures CUDA graphs.
    """

    def __init__(self, ort: Any, session: Any, captured: Callable[[Mapping[str, tuple[int, ...]]], Any]) -> None:
        self._ort = ort
        self._session = session
        self._captured = captured
        self._device = OnDevice(ort)
        self._graph: _Graph | None = None
        self._seen: Counter[_Key] = Counter()
        self.level = "bound"
        """How runs are made: "CUDA graph" for the shapes that came twice first, "bound" for others, or where no session
        captures one."""

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """Runs once; returns the outputs in the order of ``names``."""
        key = tuple((name, array.shape) for name, array in feeds.items()), tuple(names)
        if self._graph is not None and key == self._graph.key:
            return self._graph.run(feeds, self._device)
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._device.copy(array))
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        results = list(binding.copy_outputs_to_cpu())
        self._seen[key] += 1
        if self._seen[key] == GRAPH_RUNS and self._graph is None:
            self._capture(key, feeds, results)
        return results

    def _capture(self, key: _Key, feeds: Mapping[str, np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Goes on with a CUDA graph for some shapes, where the session takes the network for that."""
        try:
            self._graph = _Graph(self._ort, self._captured(dict(key[0])), key, feeds, results)
            self.level = "CUDA graph"
        except Exception:  # nodes on the CPU, control flow, no memory left: runs stay as they are
            self._seen.clear()
            self._captured = _none

    def close(self) -> None:
        """Frees what lies on the device."""
        self._device.close()
        self._graph = self._session = None


class _Graph:
    """A run of fixed shapes as one CUDA graph, every input and output in a slot of its own."""

    def __init__(self, ort: Any, session: Any, key: _Key, feeds: Mapping[str, np.ndarray],
                 results: Sequence[np.ndarray]) -> None:
        self.key = key
        self._session = session
        self._binding = session.io_binding()
        self._slots = {name: _on_device(ort, array) for name, array in feeds.items()}
        self._results = {name: _on_device(ort, array) for name, array in zip(key[1], results, strict=True)}
        self._fed = dict(feeds)
        for name, slot in self._slots.items():
            self._binding.bind_ortvalue_input(name, slot)
        for name, slot in self._results.items():
            self._binding.bind_ortvalue_output(name, slot)
        self._session.run_with_iobinding(self._binding)  # the one that is captured

    def run(self, feeds: Mapping[str, np.ndarray], device: OnDevice) -> list[np.ndarray]:
        """Copies what changed to its slots, and replays."""
        for name, array in feeds.items():
            if self._fed[name] is not array:
                self._slots[name].update_inplace(device.copy(array))
                self._fed[name] = array
        self._session.run_with_iobinding(self._binding)
        return [slot.numpy() for slot in self._results.values()]


def _on_device(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


def _none(shapes: Mapping[str, tuple[int, ...]]) -> Any:
    raise RuntimeError("no graph was captured before")
