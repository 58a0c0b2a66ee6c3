"""Runs on a GPU with everything bound: what is fed lies there, and where the graph allows it a run is one CUDA graph.

An array that is fed again, as weights and samples are, is copied to the device once: it is known by its identity, and
its copy goes with it. Levels, from the fastest:

- a CUDA graph for the shapes that came first, which needs a graph without control flow and without nodes on the CPU.
  Addresses are fixed when it is captured, so that every input has a slot of its own, and what changes is copied there;
- inputs and outputs bound;
- (`trt_tui.backends.onnxruntime.OnnxRuntimeRunner`) arrays handed over at each run.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of what is fed, by input."""

GRAPH_RUNS = 2
"""Runs without a graph before one is captured: they allocate what it uses."""


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
        value = self._ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
        key = id(array)
        self._copies[key] = weakref.ref(array, lambda _: self._copies.pop(key, None)), value
        return value

    def close(self) -> None:
        """Frees all copies."""
        self._copies.clear()


class BoundRuns:
    """The runs of one session.

    Args:
        session: Its first provider is CUDA.
        graphs: It was made with ``enable_cuda_graph``.
    """

    def __init__(self, ort: Any, session: Any, *, graphs: bool) -> None:
        self._ort = ort
        self._session = session
        self._graphs = graphs
        self._device = OnDevice(ort)
        self._binding = session.io_binding()
        self._bound: dict[str, np.ndarray] = {}
        self._slots: dict[str, Any] = {}
        self._results: dict[str, Any] = {}
        self._captured: tuple[Shapes, tuple[str, ...]] | None = None
        self._runs = 0

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """Runs once; returns the outputs in the order of ``names``."""
        if not self._graphs:
            return self._plain(feeds, names, "")
        key = tuple((name, array.shape) for name, array in feeds.items()), tuple(names)
        if self._captured is None:
            self._captured = key
        if key != self._captured:
            return self._plain(feeds, names, "-1")
        self._runs += 1
        if self._runs <= GRAPH_RUNS:
            results = self._plain(feeds, names, "-1")
            self._results = {name: self._device_value(result) for name, result in zip(names, results, strict=True)}
            return results
        return self._replayed(feeds, names)

    def _plain(self, feeds: Mapping[str, np.ndarray], names: Sequence[str], graph: str) -> list[np.ndarray]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._device.copy(array))
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._options(graph))
        return list(binding.copy_outputs_to_cpu())

    def _replayed(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        binding = self._binding
        for name, array in feeds.items():
            if self._bound.get(name) is array:
                continue
            slot = self._slots.get(name)
            if slot is None:
                slot = self._slots[name] = self._device_value(array)
                binding.bind_ortvalue_input(name, slot)
            else:
                slot.update_inplace(self._device.copy(array))
            self._bound[name] = array
        if self._runs == GRAPH_RUNS + 1:
            for name in names:
                binding.bind_ortvalue_output(name, self._results[name])
        self._session.run_with_iobinding(binding, self._options("0"))
        return [self._results[name].numpy() for name in names]

    def _device_value(self, array: np.ndarray) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)

    def _options(self, graph: str) -> Any:
        options = self._ort.RunOptions()
        if graph:
            options.add_run_config_entry("gpu_graph_id", graph)
        return options

    def close(self) -> None:
        """Frees what lies on the device."""
        self._device.close()
        self._slots.clear()
        self._results.clear()
        self._bound.clear()
        self._session = self._binding = None
