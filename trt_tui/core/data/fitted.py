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

from trt_tui.core.data.portions import ON_HOST
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.chance import draws
from trt_tui.core.runner import Backend, Level, Runner, TensorInfo
from trt_tui.errors import OutOfMemoryError, TrtTuiError
from trt_tui.words import plural

ARRAYS = "arrays handed over"
"""The name of a level."""

PLAIN = "runs in FP32"
"""What is run where nothing else is said."""

Join = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Makes an output of what the portions of a feed yielded, in their order."""

Load = Callable[[], Runner]


class _ApartError(Exception):
    """What portions yield cannot be put together."""


def fitted(backend: Backend, model: ir.Model, samples: Samples, what: str = PLAIN, *, bound: bool = False,
           told: Callable[[Level], None] | None = None, joins: Mapping[str, Join] | None = None,
           more: Collection[str] = (), host: bool = True, **options: Any) -> Fitted:
    """Loads a network (`Backend.load`) so that feeds of samples run as far as memory suffices, in whatever way.

    Args:
        samples: What it is fed; they say which inputs are cut into samples, and know what was found out before.
        what: What is run, in a few words: runs of one kind go the same way.
        bound: What is fed stays on the device, where there is one.
        told: Called with how runs are made whenever that changes; without it, that is noted with the samples.
        joins: How outputs are put together that are not cut into samples as the inputs are. Extremes, sums and
            shapes of whole tensors need none.
        more: Further inputs that are cut like those of the samples.
        host: The last way is to run on the host.
        options: As `Backend.load` takes.

    Raises:
        OutOfMemoryError: memory does not suffice for the network in any way.
        TrtTuiError: the backend refuses the network.
    """
    device = backend.capabilities.device
    runner = Fitted(samples, what, told, {**_reductions(model), **(joins or {})}, more,
                    _memory(backend), keeps=bound and device, whole=_draws_for_feeds(model))
    plain = partial(backend.load, model, **options)
    if bound and device:
        runner.ways += [("", partial(backend.load, model, bound=runner.at_level, **options)), (ARRAYS, plain)]
    else:
        runner.ways.append(("", plain))
    if host and (other := backend.on_host()) is not None:
        runner.ways.append((ON_HOST, partial(other.load, model, **options)))
    runner.load()
    return runner


def fitted_as(name: str, load: Load, backend: Backend, model: ir.Model, samples: Samples, what: str,
              told: Callable[[Level], None] | None, more: Collection[str] = (),
              joins: Mapping[str, Join] | None = None) -> Fitted:
    """The same for a network that ``load`` loads with a backend, in one way, whose name is told unless it is empty."""
    runner = Fitted(samples, what, told, joins or {}, more, _memory(backend), keeps=False,
                    whole=_draws_for_feeds(model))
    runner.ways.append((name, load))
    runner.load()
    return runner


class Fitted:
    """A runner (`trt_tui.core.runner.Runner`); see `fitted`.

    Attributes:
        ways: Names of ways to run it, and what loads it, the fastest first.

    Args:
        memory: What does not suffice, in words.
        keeps: Portions of arrays are kept for as long as the arrays, so that a device knows them again.
        whole: Feeds are not divided: portions would be given other values than the feed.
    """

    def __init__(self, samples: Samples, what: str, told: Callable[[Level], None] | None, joins: Mapping[str, Join],
                 more: Collection[str], memory: str, *, keeps: bool, whole: bool) -> None:
        self.ways: list[tuple[str, Load]] = []
        self._samples, self._what, self._told = samples, what, told
        self._joins = dict(joins)
        self._names = samples.by_sample.union(more)
        self._memory = memory
        self._keeps, self._whole = keeps, whole
        self._axes: dict[str, int | None] = {}
        self._kept: dict[int, tuple[weakref.ref[np.ndarray], _Places, list[np.ndarray]]] = {}
        self._below: Level | None = None
        self._found = samples.portions.of(what)
        self._runner: Runner | None = None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """See `trt_tui.core.runner.Runner`."""
        return self._loaded.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """See `trt_tui.core.runner.Runner`."""
        return self._loaded.outputs

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs a feed, in portions where that is needed; see `trt_tui.core.runner.Runner`.

        Raises:
            OutOfMemoryError: memory does not suffice for a single sample, or for a feed that cannot be divided.
        """
        while True:
            most = self._found.rows
            try:
                if most is None or (rows := self._rows(feeds)) <= most:
                    return self._loaded.run(feeds, fetch)
                return self._divided(feeds, fetch, _places(rows, most, self._uneven(fetch)))
            except OutOfMemoryError as error:
                rows = self._rows(feeds)
                self._less(min(rows, most or rows), error)
            except _ApartError as error:
                self._less(1, OutOfMemoryError("out of memory", f"{self._memory} does not suffice for "
                                               f"{plural(rows, 'sample')} at a time, and {error}",
                                               "Use a smaller batch (--batch)."))

    def close(self) -> None:
        """See `trt_tui.core.runner.Runner`."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._kept.clear()

    def __enter__(self) -> Fitted:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- ways ---------------------------------------------------------------------------------------------------------

    @property
    def _loaded(self) -> Runner:
        if self._runner is None:
            self.load()
        assert self._runner is not None
        return self._runner

    @property
    def _way(self) -> tuple[str, Load]:
        return self.ways[min(self._found.way, len(self.ways) - 1)]

    def load(self) -> None:
        """Loads it, in the first way that works.

        Raises:
            OutOfMemoryError: none does.
        """
        while self._runner is None:
            try:
                self._runner = self._way[1]()
            except OutOfMemoryError as error:
                self._less(1, error)
        if self._way[0] or self._found.rows is not None:
            self._say()

    def _less(self, rows: int, error: OutOfMemoryError) -> None:
        """Goes on with nothing else loaded, then with half the samples at a time, or in the next way with all of them.

        Raises:
            OutOfMemoryError: ``error``, where there is none.
        """
        self.close()
        if self._samples.portions.spare(self._what):
            return
        found = self._found
        found.why = f"{self._memory} does not suffice"
        if rows > 1 or found.rows == 1:
            found.why += f" for {plural(rows, 'sample')} at a time"
        if rows > 1:
            found.rows = (rows + 1) // 2
        elif found.way + 1 < len(self.ways):
            found.way, found.rows = found.way + 1, None
        else:
            raise error
        self._below = None

    def at_level(self, level: Level) -> None:
        """Takes in how a device runs what is loaded."""
        self._below = level
        self._say()

    def _say(self) -> None:
        """Says how runs are made."""
        found, below = self._found, self._below
        words = [below.name if below is not None else self._way[0],
                 f"{plural(found.rows, 'sample')} at a time" if found.rows is not None else ""]
        more = below.reason if below is not None and not found.why.startswith(below.reason) else ""
        level = Level(", ".join(filter(None, words)), "; ".join(filter(None, (found.why, more))))
        if self._told is not None:
            self._told(level)
        else:
            self._samples.portions.note(self._what, f"{level.name}: {level.reason}")

    # -- portions -----------------------------------------------------------------------------------------------------

    def _rows(self, feeds: Mapping[str, np.ndarray]) -> int:
        """How many samples a feed can be divided into; 1 where it cannot be."""
        if self._whole:
            return 1
        shapes = {info.name: info.shape for info in self._loaded.inputs}
        rows = set()
        for name in feeds.keys() & self._samples.by_sample:
            shape = shapes.get(name)
            if name not in shapes:
                continue
            if not feeds[name].ndim or shape is not None and (not shape or isinstance(shape[0], int)):
                return 1
            rows.add(len(feeds[name]))
        return rows.pop() if len(rows) == 1 else 1

    def _uneven(self, fetch: Sequence[str] | None) -> bool:
        names = fetch if fetch is not None else [info.name for info in self._loaded.outputs]
        return not self._axes.keys() | self._joins.keys() >= set(names)

    def _divided(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None, places: _Places
                 ) -> dict[str, np.ndarray]:
        rows = places[-1][1]
        cut = {name: self._cut(array, places) for name, array in feeds.items()
               if name in self._names and array.ndim and len(array) == rows}
        found: dict[str, list[np.ndarray]] = {}
        for number in range(len(places)):
            try:
                yielded = self._loaded.run({**feeds, **{name: parts[number] for name, parts in cut.items()}}, fetch)
            except OutOfMemoryError:
                raise
            except TrtTuiError as error:
                raise _ApartError(f"fewer at a time are refused: {error.cause or error.title}") from None
            for name, array in yielded.items():
                found.setdefault(name, []).append(np.asarray(array))
        sizes = [stop - start for start, stop in places]
        return {name: self._joined(name, arrays, sizes) for name, arrays in found.items()}

    def _cut(self, array: np.ndarray, places: _Places) -> list[np.ndarray]:
        """The portions of an array; the same arrays again where they are kept."""
        if not self._keeps:
            return [array[start:stop] for start, stop in places]
        key = id(array)
        known = self._kept.get(key)
        if known is not None and known[0]() is array and known[1] == places:
            return known[2]
        parts = [array[start:stop].copy() for start, stop in places]  # a view would keep the array alive
        self._kept[key] = weakref.ref(array, lambda _: self._kept.pop(key, None)), places, parts
        return parts

    def _joined(self, name: str, arrays: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
        if name in self._joins:
            return self._joins[name](arrays)
        if name not in self._axes:
            self._axes[name] = self._axis(name, arrays, sizes)
        axis = self._axes[name]
        if axis is None:
            if any(not np.array_equal(one, arrays[0], equal_nan=one.dtype.kind == "f") for one in arrays[1:]):
                raise _ApartError(f"{name} is one value of several samples")
            return arrays[0]
        return np.concatenate(arrays, axis)

    def _axis(self, name: str, arrays: Sequence[np.ndarray], sizes: Sequence[int]) -> int | None:
        """The axis of an output that goes with the samples; None where it has none.

        It is told by the sizes of portions that differ; where all are alike, by what is declared, or by a size that is
        theirs and not declared as fixed.
        """
        first = arrays[0].shape
        if any(one.ndim != len(first) for one in arrays):
            raise _ApartError(f"the shape of {name} depends on values")
        differing = [axis for axis in range(len(first)) if len({one.shape[axis] for one in arrays}) > 1]
        if len(set(sizes)) > 1:
            if not differing:
                return None
            axis = differing[0]
            if len(differing) > 1 or any(one.shape[axis] * sizes[0] != first[axis] * size
                                         for one, size in zip(arrays, sizes, strict=True)):
                raise _ApartError(f"the shape of {name} depends on values")
            return axis
        shapes = {info.name: info.shape or () for info in (*self._loaded.inputs, *self._loaded.outputs)}
        leads = {shapes[one][0] for one in self._samples.by_sample if shapes.get(one)}
        declared = [axis for axis, size in enumerate(shapes.get(name, ())) if isinstance(size, str) and size in leads]
        fixed = {axis for axis, size in enumerate(shapes.get(name, ())) if isinstance(size, int)}
        fits = declared or [axis for axis, size in enumerate(first) if size == sizes[0] and axis not in fixed]
        if differing or not fits and first:
            raise _ApartError(f"it is not known which axis of {name} is that of the samples")
        return fits[0] if fits else None


_Places = tuple[tuple[int, int], ...]


def _memory(backend: Backend) -> str:
    return "the memory of the GPU" if backend.capabilities.device else "memory"


def _places(rows: int, most: int, uneven: bool) -> _Places:
    """Where portions begin and end; ``uneven`` with some of another size, from which the axes of outputs are told."""
    sizes = [most] * (rows // most) + ([rows % most] if rows % most else [])
    if uneven and most > 1 and len(set(sizes)) == 1:
        sizes[-1:] = [most - 1, 1]
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(zip(ends, ends[1:], strict=False))


def _sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total: np.ndarray = np.sum(np.stack(arrays), axis=0, dtype=arrays[0].dtype)
    return total


def _largest(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.maximum.reduce(list(arrays)))


def _least(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.minimum.reduce(list(arrays)))


def _shape(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The shape of a tensor: along the axis that differs, the first where none does, sizes add up."""
    sizes = np.stack(arrays)
    along = (sizes != sizes[0]).any(axis=0)
    along[:1] |= not along.any()
    whole: np.ndarray = np.where(along, sizes.sum(axis=0), sizes[0])
    return whole


_OF_WHOLE: Mapping[str, Join] = {"ReduceMax": _largest, "ReduceMin": _least, "ReduceSum": _sum, "ReduceL1": _sum,
                                 "Size": _sum, "Shape": _shape}
"""How what an operator makes of all elements of a tensor is put together."""


def _draws_for_feeds(model: ir.Model) -> bool:
    """Whether random numbers are drawn for what is fed, in its order: the second portion has none of its own."""
    return any(draws(node) and node.inputs for node in model.graph.all_nodes())


def _reductions(model: ir.Model) -> dict[str, Join]:
    """The outputs that are whole tensors reduced, or their shapes."""
    found = {}
    for value in model.graph.outputs:
        node = value.producer()
        if node is not None and node.op_type in _OF_WHOLE and len(node.inputs) == 1 and not (
                node.attributes.keys() & {"axes", "start", "end"}):
            found[value.name or ""] = _OF_WHOLE[node.op_type]
    return found
