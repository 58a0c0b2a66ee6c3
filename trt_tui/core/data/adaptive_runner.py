"""Runs that memory does not suffice for: in portions of their samples, else in ways that take less of a device.

A feed whose first axis is left open goes in halves, and halves again, down to single samples; what was found once
holds for all later runs of that kind. Sessions are loaded anew then: an arena that has grown is never given back, and
pieces of it are all that smaller runs would find.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.randomness import is_random
from trt_tui.core.runner import Backend, ExecutionMode, Runner, TensorInfo
from trt_tui.errors import OutOfMemoryError, TrtTuiError
from trt_tui.formatting import counted_noun_text

HOST_ARRAYS_MODE = "arrays handed over"
"""The name of a level."""

FP32_RUNS = "runs in FP32"
"""What is run where nothing else is said."""

OutputJoin = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Makes an output of what the portions of a feed yielded, in their order."""

RunnerLoader = Callable[[], Runner]


class _PortionJoinError(Exception):
    """What portions yield cannot be put together."""


def load_adaptive_runner(backend: Backend, model: ir.Model, samples: Samples, run_kind: str = FP32_RUNS, *,
                         keep_on_device: bool = False, on_mode_change: Callable[[ExecutionMode], None] | None = None,
                         joins: Mapping[str, OutputJoin] | None = None, extra_inputs: Collection[str] = (),
                         allow_host: bool = True, **options: Any) -> AdaptiveRunner:
    """Loads a network (`Backend.load`) so that feeds of samples run as far as memory suffices, in whatever way.

    Args:
        samples: What it is fed; they say which inputs are cut into samples, and know what was found out before.
        run_kind: What is run, in a few words: runs of one kind go the same way.
        keep_on_device: What is fed stays on the device, where there is one.
        on_mode_change: Called with how runs are made whenever that changes; without it, that is noted with the samples.
        joins: How outputs are put together that are not cut into samples as the inputs are. Extremes, sums and
            shapes of whole tensors need none.
        extra_inputs: Further inputs that are cut like those of the samples.
        allow_host: The last way is to run on the host.
        options: As `Backend.load` takes.

    Raises:
        OutOfMemoryError: memory does not suffice for the network in any way.
        TrtTuiError: the backend refuses the network.
    """
    device = backend.capabilities.has_device
    runner = AdaptiveRunner(samples, run_kind, on_mode_change, {**_find_joins_of_reductions(model), **(joins or {})},
                            extra_inputs, _memory_kind_name(backend), keep_portions=keep_on_device and device,
                            indivisible=_has_random_operators(model))
    default_loader = partial(backend.load, model, **options)
    if keep_on_device and device:
        runner.strategies += [("", partial(backend.load, model, on_mode_change=runner.set_device_mode, **options)),
                              (HOST_ARRAYS_MODE, default_loader)]
    else:
        runner.strategies.append(("", default_loader))
    if allow_host and (host_backend := backend.get_host_backend()) is not None:
        runner.strategies.append((HOST_MODE, partial(host_backend.load, model, **options)))
    runner.load()
    return runner


def load_single_mode_runner(mode_name: str, runner_loader: RunnerLoader, backend: Backend, model: ir.Model,
                            samples: Samples, run_kind: str, on_mode_change: Callable[[ExecutionMode], None] | None,
                            extra_inputs: Collection[str] = (),
                            joins: Mapping[str, OutputJoin] | None = None) -> AdaptiveRunner:
    """The same for a network that ``runner_loader`` loads with a backend, in one way, whose name is told unless it is
    empty."""
    runner = AdaptiveRunner(samples, run_kind, on_mode_change, joins or {}, extra_inputs, _memory_kind_name(backend),
                            keep_portions=False, indivisible=_has_random_operators(model))
    runner.strategies.append((mode_name, runner_loader))
    runner.load()
    return runner


class AdaptiveRunner:
    """A runner (`trt_tui.core.runner.Runner`); see `load_adaptive_runner`.

    Attributes:
        strategies: Names of ways to run it, and what loads it, the fastest first.

    Args:
        memory_name: What does not suffice, in words.
        keep_portions: Portions of arrays are kept for as long as the arrays, so that a device knows them again.
        indivisible: Feeds are not divided: portions would be given other values than the feed.
    """

    def __init__(self, samples: Samples, kind: str, on_mode_change: Callable[[ExecutionMode], None] | None,
                 joins: Mapping[str, OutputJoin], extra_inputs: Collection[str], memory_name: str, *,
                 keep_portions: bool, indivisible: bool) -> None:
        self.strategies: list[tuple[str, RunnerLoader]] = []
        self._samples, self._kind, self._on_mode_change = samples, kind, on_mode_change
        self._joins = dict(joins)
        self._divisible_inputs = samples.per_sample_array_names.union(extra_inputs)
        self._memory_name = memory_name
        self._keeps_portions, self._is_indivisible = keep_portions, indivisible
        self._sample_axes: dict[str, int | None] = {}
        self._kept_portions: dict[int, tuple[weakref.ref[np.ndarray], _PortionBounds, list[np.ndarray]]] = {}
        self._device_mode: ExecutionMode | None = None
        self._state = samples.memory_fallbacks.get_fallback_state(kind)
        self._runner: Runner | None = None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self._loaded_runner.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self._loaded_runner.outputs

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs a feed, in portions where that is needed; see `trt_tui.core.runner.Runner`.

        Raises:
            OutOfMemoryError: memory does not suffice for a single sample, or for a feed that cannot be divided.
        """
        while True:
            max_rows = self._state.max_rows
            try:
                if max_rows is None or (rows := self._count_separable_samples(feed)) <= max_rows:
                    return self._loaded_runner.run(feed, fetch)
                return self._run_portions(feed, fetch,
                                          _compute_portion_bounds(rows, max_rows, self._needs_uneven_portions(fetch)))
            except OutOfMemoryError as error:
                rows = self._count_separable_samples(feed)
                self._apply_memory_fallback(min(rows, max_rows or rows), error)
            except _PortionJoinError as error:
                self._apply_memory_fallback(
                    1,
                    OutOfMemoryError(
                        "out of memory", f"{self._memory_name} is too small for "
                        f"{counted_noun_text(rows, 'sample')} at a time, and {error}",
                        "Use a smaller batch (--batch)."))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._kept_portions.clear()

    def __enter__(self) -> AdaptiveRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- ways ---------------------------------------------------------------------------------------------------------

    @property
    def _loaded_runner(self) -> Runner:
        if self._runner is None:
            self.load()
        assert self._runner is not None
        return self._runner

    @property
    def _loading_strategy(self) -> tuple[str, RunnerLoader]:
        return self.strategies[min(self._state.strategy, len(self.strategies) - 1)]

    def load(self) -> None:
        """Loads it, in the first way that works.

        Raises:
            OutOfMemoryError: none does.
        """
        while self._runner is None:
            try:
                self._runner = self._loading_strategy[1]()
            except OutOfMemoryError as error:
                self._apply_memory_fallback(1, error)
        if self._loading_strategy[0] or self._state.max_rows is not None:
            self._report_execution_mode()

    def _apply_memory_fallback(self, sample_count: int, error: OutOfMemoryError) -> None:
        """Goes on with nothing else loaded, then with half the samples at a time, or in the next way with all of them.

        Raises:
            OutOfMemoryError: ``error``, where there is none.
        """
        self.close()
        if self._samples.memory_fallbacks.free_sessions_of_other_runs(self._kind):
            return
        state = self._state
        state.reason = f"{self._memory_name} is too small"
        if sample_count > 1 or state.max_rows == 1:
            state.reason += f" for {counted_noun_text(sample_count, 'sample')} at a time"
        if sample_count > 1:
            state.max_rows = (sample_count + 1) // 2
        elif state.strategy + 1 < len(self.strategies):
            state.strategy, state.max_rows = state.strategy + 1, None
        else:
            raise error
        self._device_mode = None

    def set_device_mode(self, execution_mode: ExecutionMode) -> None:
        """Takes in how a device runs what is loaded."""
        self._device_mode = execution_mode
        self._report_execution_mode()

    def _report_execution_mode(self) -> None:
        """Says how runs are made."""
        state, device_mode = self._state, self._device_mode
        name_parts = [device_mode.name if device_mode is not None else self._loading_strategy[0],
                      f"{counted_noun_text(state.max_rows, 'sample')} at a time" if state.max_rows is not None else ""]
        extra_reason = device_mode.reason if device_mode is not None and not state.reason.startswith(
            device_mode.reason) else ""
        mode = ExecutionMode(", ".join(filter(None, name_parts)), "; ".join(filter(None, (state.reason, extra_reason))))
        if self._on_mode_change is not None:
            self._on_mode_change(mode)
        else:
            self._samples.memory_fallbacks.add_message(self._kind, f"{mode.name}: {mode.reason}")

    # -- portions -----------------------------------------------------------------------------------------------------

    def _count_separable_samples(self, feed: Mapping[str, np.ndarray]) -> int:
        """How many samples a feed can be divided into; 1 where it cannot be."""
        if self._is_indivisible:
            return 1
        shapes = {info.name: info.shape for info in self._loaded_runner.inputs}
        rows = set()
        for name in feed.keys() & self._samples.per_sample_array_names:
            shape = shapes.get(name)
            if name not in shapes:
                continue
            if not feed[name].ndim or shape is not None and (not shape or isinstance(shape[0], int)):
                return 1
            rows.add(len(feed[name]))
        return rows.pop() if len(rows) == 1 else 1

    def _needs_uneven_portions(self, fetch: Sequence[str] | None) -> bool:
        names = fetch if fetch is not None else [info.name for info in self._loaded_runner.outputs]
        return not self._sample_axes.keys() | self._joins.keys() >= set(names)

    def _run_portions(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None, portion_bounds: _PortionBounds
                      ) -> dict[str, np.ndarray]:
        rows = portion_bounds[-1][1]
        portions_by_input = {name: self._split_array(array, portion_bounds) for name, array in feed.items()
                             if name in self._divisible_inputs and array.ndim and len(array) == rows}
        arrays_by_output: dict[str, list[np.ndarray]] = {}
        for portion_index in range(len(portion_bounds)):
            try:
                outputs = self._loaded_runner.run(
                    {
                        **feed, **
                        {name: input_portions[portion_index]
                         for name, input_portions in portions_by_input.items()}
                    }, fetch)
            except OutOfMemoryError:
                raise
            except TrtTuiError as error:
                raise _PortionJoinError(f"smaller batches are refused: {error.cause or error.title}") from None
            for name, array in outputs.items():
                arrays_by_output.setdefault(name, []).append(np.asarray(array))
        sizes = [stop - start for start, stop in portion_bounds]
        return {name: self._join_output(name, arrays, sizes) for name, arrays in arrays_by_output.items()}

    def _split_array(self, array: np.ndarray, portion_bounds: _PortionBounds) -> list[np.ndarray]:
        """The portions of an array; the same arrays again where they are kept."""
        if not self._keeps_portions:
            return [array[start:stop] for start, stop in portion_bounds]
        key = id(array)
        cached = self._kept_portions.get(key)
        if cached is not None and cached[0]() is array and cached[1] == portion_bounds:
            return cached[2]
        array_portions = [array[start:stop].copy()
                          for start, stop in portion_bounds]  # a view would keep the array alive
        self._kept_portions[key] = weakref.ref(
            array, lambda _: self._kept_portions.pop(key, None)), portion_bounds, array_portions
        return array_portions

    def _join_output(self, output_name: str, arrays: Sequence[np.ndarray], portion_sizes: Sequence[int]) -> np.ndarray:
        if output_name in self._joins:
            return self._joins[output_name](arrays)
        if output_name not in self._sample_axes:
            self._sample_axes[output_name] = self._find_sample_axis(output_name, arrays, portion_sizes)
        axis = self._sample_axes[output_name]
        if axis is None:
            if any(not np.array_equal(portion, arrays[0], equal_nan=portion.dtype.kind == "f")
                   for portion in arrays[1:]):
                raise _PortionJoinError(f"{output_name} is a single value for several samples")
            return arrays[0]
        return np.concatenate(arrays, axis)

    def _find_sample_axis(self, output_name: str, arrays: Sequence[np.ndarray],
                          portion_sizes: Sequence[int]) -> int | None:
        """The axis of an output that goes with the samples; None where it has none.

        It is told by the sizes of portions that differ; where all are alike, by what is declared, or by a size that is
        theirs and not declared as fixed.
        """
        first_shape = arrays[0].shape
        if any(portion.ndim != len(first_shape) for portion in arrays):
            raise _PortionJoinError(f"the shape of {output_name} depends on values")
        differing = [axis for axis in range(len(first_shape)) if len({portion.shape[axis] for portion in arrays}) > 1]
        if len(set(portion_sizes)) > 1:
            if not differing:
                return None
            axis = differing[0]
            if len(differing) > 1 or any(portion.shape[axis] * portion_sizes[0] != first_shape[axis] * size
                                         for portion, size in zip(arrays, portion_sizes, strict=True)):
                raise _PortionJoinError(f"the shape of {output_name} depends on values")
            return axis
        shapes = {info.name: info.shape or () for info in (*self._loaded_runner.inputs, *self._loaded_runner.outputs)}
        lead_sizes = {shapes[portion][0] for portion in self._samples.per_sample_array_names if shapes.get(portion)}
        declared = [
            axis for axis, size in enumerate(shapes.get(output_name, ()))
            if isinstance(size, str) and size in lead_sizes
        ]
        fixed = {axis for axis, size in enumerate(shapes.get(output_name, ())) if isinstance(size, int)}
        candidates = declared or [
            axis for axis, size in enumerate(first_shape) if size == portion_sizes[0] and axis not in fixed
        ]
        if differing or not candidates and first_shape:
            raise _PortionJoinError(f"the sample axis of {output_name} is unknown")
        return candidates[0] if candidates else None


_PortionBounds = tuple[tuple[int, int], ...]


def _memory_kind_name(backend: Backend) -> str:
    return "the memory of the GPU" if backend.capabilities.has_device else "memory"


def _compute_portion_bounds(sample_count: int, max_portion_samples: int, needs_uneven_portions: bool) -> _PortionBounds:
    """Where portions begin and end; ``needs_uneven_portions`` with some of another size, from which the axes of outputs
    are told."""
    sizes = [max_portion_samples] * (sample_count // max_portion_samples) + ([sample_count % max_portion_samples] if
                                                                             sample_count % max_portion_samples else [])
    if needs_uneven_portions and max_portion_samples > 1 and len(set(sizes)) == 1:
        sizes[-1:] = [max_portion_samples - 1, 1]
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(zip(ends, ends[1:], strict=False))


def _join_by_sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total: np.ndarray = np.sum(np.stack(arrays), axis=0, dtype=arrays[0].dtype)
    return total


def _join_by_maximum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.maximum.reduce(list(arrays)))


def _join_by_minimum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.minimum.reduce(list(arrays)))


def _join_shapes(shape_arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The shape of a tensor: along the axis that differs, the first where none does, sizes add up."""
    sizes = np.stack(shape_arrays)
    is_summed = (sizes != sizes[0]).any(axis=0)
    is_summed[:1] |= not is_summed.any()
    shape: np.ndarray = np.where(is_summed, sizes.sum(axis=0), sizes[0])
    return shape


_REDUCTION_JOINS: Mapping[str, OutputJoin] = {
    "ReduceMax": _join_by_maximum, "ReduceMin": _join_by_minimum, "ReduceSum": _join_by_sum, "ReduceL1": _join_by_sum,
    "Size": _join_by_sum, "Shape": _join_shapes
}
"""How what an operator makes of all elements of a tensor is put together."""


def _has_random_operators(model: ir.Model) -> bool:
    """Whether random numbers are drawn for what is fed, in its order: the second portion has none of its own."""
    return any(is_random(node) and node.inputs for node in model.graph.all_nodes())


def _find_joins_of_reductions(model: ir.Model) -> dict[str, OutputJoin]:
    """The outputs that are whole tensors reduced, or their shapes."""
    joins = {}
    for value in model.graph.outputs:
        node = value.producer()
        if node is not None and node.op_type in _REDUCTION_JOINS and len(node.inputs) == 1 and not (
                node.attributes.keys() & {"axes", "start", "end"}):
            joins[value.name or ""] = _REDUCTION_JOINS[node.op_type]
    return joins
