"""Execution of feeds that are filled up to a fixed batch, and that continues after memory ran out: first with fewer
samples at a time, then in another execution mode.

A feed whose first axis is dynamic is executed in portions, each with some of its samples: in halves, and again in
halves, down to single samples. The outputs of the portions are joined into those of the feed. The size of the portions
holds for all later executions of the same kind. Inference sessions are loaded anew after each step: a memory arena
that has grown is never given back, and smaller executions would only find pieces of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.operators import is_random
from trt_tui.core.runner import Backend, ClosingContext, ExecutionMode, Runner, TensorInfo
from trt_tui.errors import OutOfMemoryError, TrtTuiError
from trt_tui.formatting import counted_noun_text

HOST_ARRAYS_MODE = "arrays handed over"
"""Name of the execution mode in which the host passes the arrays of each feed to the device."""

FP32_RUNS = "runs in FP32"
"""Default kind of execution."""

OutputJoin = Callable[[Sequence[np.ndarray]], np.ndarray]
"""A function that joins the outputs of a feed's portions, in their order, into one output."""


class _UnjoinablePortionsError(Exception):
    """The error for a network whose outputs for the portions of a feed cannot be joined."""


class AdaptiveRunner(ClosingContext):
    """A loaded network, as a `Runner` that divides feeds or changes its execution mode after memory ran out.

    Args:
        backend: The backend whose `Backend.load` loads the network.
        samples: The samples that the runner receives as feeds. They determine which inputs are divided into samples,
            and hold the memory fallbacks found earlier.
        run_kind: A short title of the kind of execution. Executions of one kind share their memory fallbacks.
        keep_on_device: True if feeds stay on the device, where there is one.
        on_mode_change: A callback with the execution mode whenever the mode changes. Without the callback, the mode
            becomes a message of the samples.
        joins: Functions that join outputs which are not divided into samples like the inputs. Maxima, minima, sums and
            shapes of whole tensors need none.
        extra_inputs: Additional inputs that are divided like the inputs of the samples.
        allow_host: True if execution on the host is the last fallback.
        mode_name: The name of the first execution mode, which is reported unless it is empty.
        load_network: A function that loads the network for the first execution mode. On a device it receives a callback
            for the execution mode as ``on_mode_change``. `Backend.load` by default.
        options: Options of `Backend.load`.

    Raises:
        OutOfMemoryError: Memory does not suffice for the network in any mode.
        TrtTuiError: The backend refuses the network.
    """

    def __init__(
        self,
        backend: Backend,
        model: ir.Model,
        samples: Samples,
        run_kind: str = FP32_RUNS,
        *,
        keep_on_device: bool = False,
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
        joins: Mapping[str, OutputJoin] | None = None,
        extra_inputs: Collection[str] = (),
        allow_host: bool = True,
        mode_name: str = "",
        load_network: Callable[..., Runner] | None = None,
        **options: Any,
    ) -> None:
        has_device = backend.capabilities.has_device
        self._samples, self._kind, self._on_mode_change = samples, run_kind, on_mode_change
        self._joins = {**_find_portion_join_functions(model), **(joins or {})}
        self._divisible_inputs = samples.per_sample_array_names.union(extra_inputs)
        self._memory_name = "the GPU memory" if has_device else "memory"
        # A second portion would receive the random numbers of the first.
        self._is_indivisible = any(is_random(node) and node.inputs for node in model.graph.all_nodes())
        self._sample_axes: dict[str, int | None] = {}
        self._device_mode: ExecutionMode | None = None
        self._state = samples.memory_fallbacks.get_fallback_state(run_kind)
        self._runner: Runner | None = None
        default_loader = partial(backend.load, model, **options)
        load_network = load_network or default_loader
        # The execution modes, the fastest first, with the functions that load the network for them.
        self._strategies: list[tuple[str, Callable[[], Runner]]] = (
            [
                ("", partial(load_network, on_mode_change=self._record_device_mode)),
                (HOST_ARRAYS_MODE, default_loader),
            ]
            if keep_on_device and has_device
            else [(mode_name, load_network)]
        )
        if allow_host and (host_backend := backend.get_host_backend()) is not None:
            self._strategies.append((HOST_MODE, partial(host_backend.load, model, **options)))
        self._load()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self._loaded_runner.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self._loaded_runner.outputs

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Executes the network on a feed, in portions if memory requires it, and filled up to a fixed batch. Implements
        `trt_tui.core.runner.Runner.run`.

        Raises:
            OutOfMemoryError: Memory does not suffice for a single sample, or for a feed that cannot be divided.
        """
        padding = self._samples.padding
        if padding is None:
            return self._run_full_feed(feed, fetch)
        full_feed, rows = padding.pad_feed(feed, self._divisible_inputs)
        outputs = self._run_full_feed(full_feed, fetch)
        if rows is None:
            return outputs
        # Sums and maxima of whole tensors include the copies.
        return {
            name: array if name in self._joins else padding.remove_padding(array, rows)
            for name, array in outputs.items()
        }

    def _run_full_feed(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None) -> dict[str, np.ndarray]:
        while True:
            max_rows = self._state.max_rows
            try:
                if max_rows is None or (rows := self._count_separable_samples(feed)) <= max_rows:
                    return self._loaded_runner.run(feed, fetch)
                return self._run_portions(
                    feed, fetch, _compute_portion_bounds(rows, max_rows, self._needs_uneven_portions(fetch))
                )
            except OutOfMemoryError as error:
                rows = self._count_separable_samples(feed)
                self._apply_memory_fallback(min(rows, max_rows or rows), error)
            except _UnjoinablePortionsError as error:
                self._apply_memory_fallback(
                    1,
                    OutOfMemoryError(
                        "out of memory",
                        f"{self._memory_name} is too small for "
                        f"{counted_noun_text(rows, 'sample')} at a time, and {error}",
                        "Use a smaller batch (--batch).",
                    ),
                )

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # -- execution modes ----------------------------------------------------------------------------------------------

    @property
    def _loaded_runner(self) -> Runner:
        return self._load() if self._runner is None else self._runner

    @property
    def _loading_strategy(self) -> tuple[str, Callable[[], Runner]]:
        return self._strategies[min(self._state.strategy, len(self._strategies) - 1)]

    def _load(self) -> Runner:
        """Loads the network in the first execution mode for which memory suffices, and returns its runner.

        Raises:
            OutOfMemoryError: Memory suffices for none of the modes.
        """
        while self._runner is None:
            try:
                self._runner = self._loading_strategy[1]()
            except OutOfMemoryError as error:
                self._apply_memory_fallback(1, error)
        if self._loading_strategy[0] or self._state.max_rows is not None:
            self._report_execution_mode()
        return self._runner

    def _apply_memory_fallback(self, sample_count: int, error: OutOfMemoryError) -> None:
        """Chooses the next attempt after memory ran out: other sessions freed, fewer samples at a time, or the next
        execution mode.

        The first fallback frees the inference sessions of other kinds of execution. The next ones halve the number of
        samples at a time. The last one is the next execution mode, with all samples again.

        Raises:
            OutOfMemoryError: No fallback is left; the error is ``error``.
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
        elif state.strategy + 1 < len(self._strategies):
            state.strategy, state.max_rows = state.strategy + 1, None
        else:
            raise error
        self._device_mode = None

    def _record_device_mode(self, execution_mode: ExecutionMode) -> None:
        """Records and reports the execution mode that a device backend chose for the loaded network."""
        self._device_mode = execution_mode
        self._report_execution_mode()

    def _report_execution_mode(self) -> None:
        """Sends the current execution mode to the callback, or adds it to the messages of the samples."""
        state, device_mode = self._state, self._device_mode
        name_parts = [
            device_mode.name if device_mode is not None else self._loading_strategy[0],
            f"{counted_noun_text(state.max_rows, 'sample')} at a time" if state.max_rows is not None else "",
        ]
        extra_reason = (
            device_mode.reason if device_mode is not None and not state.reason.startswith(device_mode.reason) else ""
        )
        mode = ExecutionMode(", ".join(filter(None, name_parts)), "; ".join(filter(None, (state.reason, extra_reason))))
        if self._on_mode_change is not None:
            self._on_mode_change(mode)
        else:
            self._samples.memory_fallbacks.add_message(self._kind, f"{mode.name}: {mode.reason}")

    # -- portions -----------------------------------------------------------------------------------------------------

    def _count_separable_samples(self, feed: Mapping[str, np.ndarray]) -> int:
        """Counts the samples into which a feed can be divided; 1 if the feed cannot be divided."""
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

    def _run_portions(
        self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None, portion_bounds: _PortionBounds
    ) -> dict[str, np.ndarray]:
        rows = portion_bounds[-1][1]
        portions_by_input = {
            name: [array[start:stop] for start, stop in portion_bounds]
            for name, array in feed.items()
            if name in self._divisible_inputs and array.ndim and len(array) == rows
        }
        arrays_by_output: dict[str, list[np.ndarray]] = {}
        for portion_index in range(len(portion_bounds)):
            try:
                outputs = self._loaded_runner.run(
                    {
                        **feed,
                        **{name: input_portions[portion_index] for name, input_portions in portions_by_input.items()},
                    },
                    fetch,
                )
            except OutOfMemoryError:
                raise
            except TrtTuiError as error:
                raise _UnjoinablePortionsError(f"smaller batches are refused: {error.cause or error.title}") from None
            for name, array in outputs.items():
                arrays_by_output.setdefault(name, []).append(np.asarray(array))
        sizes = [stop - start for start, stop in portion_bounds]
        return {name: self._join_output(name, arrays, sizes) for name, arrays in arrays_by_output.items()}

    def _join_output(self, output_name: str, arrays: Sequence[np.ndarray], portion_sizes: Sequence[int]) -> np.ndarray:
        if output_name in self._joins:
            return self._joins[output_name](arrays)
        if output_name not in self._sample_axes:
            self._sample_axes[output_name] = self._find_sample_axis(output_name, arrays, portion_sizes)
        axis = self._sample_axes[output_name]
        if axis is None:
            if any(
                not np.array_equal(portion, arrays[0], equal_nan=portion.dtype.kind == "f") for portion in arrays[1:]
            ):
                raise _UnjoinablePortionsError(f"{output_name} is a single value for several samples")
            return arrays[0]
        return np.concatenate(arrays, axis)

    def _find_sample_axis(
        self, output_name: str, arrays: Sequence[np.ndarray], portion_sizes: Sequence[int]
    ) -> int | None:
        """Finds the axis of an output along which its samples are arranged; None if the output has no such axis.

        If the portions have different numbers of samples, the axis is the one whose size changes with them. If all
        portions are equal, it is the axis that is declared with the batch dimension. Failing that, it is an axis that
        has the size of a portion and is not declared as fixed.
        """
        first_shape = arrays[0].shape
        differing = [
            axis for axis in range(len(first_shape)) if len({portion.shape[axis : axis + 1] for portion in arrays}) > 1
        ]
        if (
            {portion.ndim for portion in arrays} != {len(first_shape)}
            or len(differing) > 1
            or any(
                portion.shape[axis] * portion_sizes[0] != first_shape[axis] * size
                for axis in differing
                for portion, size in zip(arrays, portion_sizes, strict=True)
            )
        ):
            raise _UnjoinablePortionsError(f"the shape of {output_name} depends on values")
        if len(set(portion_sizes)) > 1:
            return next(iter(differing), None)
        shapes = {info.name: info.shape or () for info in (*self._loaded_runner.inputs, *self._loaded_runner.outputs)}
        lead_sizes = {shapes[portion][0] for portion in self._samples.per_sample_array_names if shapes.get(portion)}
        declared = [
            axis
            for axis, size in enumerate(shapes.get(output_name, ()))
            if isinstance(size, str) and size in lead_sizes
        ]
        fixed = {axis for axis, size in enumerate(shapes.get(output_name, ())) if isinstance(size, int)}
        candidates = declared or [
            axis for axis, size in enumerate(first_shape) if size == portion_sizes[0] and axis not in fixed
        ]
        if not candidates and first_shape:
            raise _UnjoinablePortionsError(f"the sample axis of {output_name} is unknown")
        return candidates[0] if candidates else None


_PortionBounds = tuple[tuple[int, int], ...]
"""The rows of each portion of a feed, from the first one to the one behind the last."""


def _compute_portion_bounds(sample_count: int, max_portion_samples: int, needs_uneven_portions: bool) -> _PortionBounds:
    """Returns the row interval (start, stop) of each portion of a feed.

    With ``needs_uneven_portions``, at least one portion has another size, so that the sample axis of outputs can be
    recognised.
    """
    sizes = [max_portion_samples] * (sample_count // max_portion_samples) + (
        [sample_count % max_portion_samples] if sample_count % max_portion_samples else []
    )
    if needs_uneven_portions and max_portion_samples > 1 and len(set(sizes)) == 1:
        sizes[-1:] = [max_portion_samples - 1, 1]
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(zip(ends, ends[1:], strict=False))


def _join_shapes(shape_arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Joins the shapes of a tensor's portions: sizes are added along the axis that differs.

    If no axis differs, sizes are added along the first.
    """
    sizes = np.stack(shape_arrays)
    is_summed = (sizes != sizes[0]).any(axis=0)
    is_summed[:1] |= not is_summed.any()
    return np.asarray(np.where(is_summed, sizes.sum(axis=0), sizes[0]))


_REDUCTION_JOINS: Mapping[str, OutputJoin] = {
    "ReduceMax": lambda arrays: np.asarray(np.max(arrays, axis=0)),
    "ReduceMin": lambda arrays: np.asarray(np.min(arrays, axis=0)),
    **dict.fromkeys(
        ("ReduceSum", "ReduceL1"), lambda arrays: np.asarray(np.sum(arrays, axis=0, dtype=arrays[0].dtype))
    ),
    "Shape": _join_shapes,
}
"""Functions that join the results of operators which reduce whole tensors, by operator."""


def _find_portion_join_functions(model: ir.Model) -> dict[str, OutputJoin]:
    """Finds the outputs that are reductions or shapes of whole tensors, with the function that joins their portions."""
    return {
        value.name or "": _REDUCTION_JOINS[node.op_type]
        for value in model.graph.outputs
        if (node := value.producer()) is not None
        and node.op_type in _REDUCTION_JOINS
        and len(node.inputs) == 1
        and not (node.attributes.keys() & {"axes", "start", "end"})
    }
