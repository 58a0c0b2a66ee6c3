"""Running a network over samples with chosen outputs. Nothing here grows with the number of samples.

A pass is cut into slices of neighbouring feeds, the same whoever runs them, and what came of them is joined in their
order: sums are equal to the last bit on one process and on many.
"""

import copy
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.fitted import fitted
from trt_tui.core.data.samples import Samples
from trt_tui.core.hands import Errand, Hands, Here
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.small_layers import has_many_small_layers, release_memory
from trt_tui.core.network.unused import drop_unused
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError, OutOfMemoryError

MEMORY_LIMIT = 256 << 20
"""Bytes of activations that one run may hand out, by default."""

SLICES = 64
"""A pass over the feeds is cut into so many slices, at most."""

WAIT_S = 0.01
"""How often, in seconds, the work of others is looked at."""

OnRun = Callable[[int, int], None]
"""Called with runs done and runs in all; what it raises ends the pass."""

Item = TypeVar("Item")
T = TypeVar("T")


class Collector(Protocol):
    """Takes the arrays of one tensor, feed by feed."""

    def add(self, array: np.ndarray) -> None:
        """Takes a float32 array of any shape.

        Raises:
            ValueError: it holds NaN or an infinity; says which.
        """

    def merge(self, later: Any) -> None:
        """Takes what another of its kind took of later feeds."""


class Calibrating(Protocol):
    """Where a network is run on the samples that calibrate."""

    @property
    def fp32(self) -> ir.Model:
        """The network in FP32."""

    @property
    def calibrating(self) -> Samples:
        """The samples that calibrate."""

    @property
    def backend(self) -> Backend:
        """What runs the network."""


@dataclass(frozen=True)
class Given:
    """A network, samples and a backend."""

    fp32: ir.Model
    calibrating: Samples
    backend: Backend


class Probe:
    """A clone of a network with chosen outputs; tensors are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {name_of(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._number = 0
        self._more: list[str] = []

    def float_value(self, tensor: str) -> ir.Value:
        """The tensor as an FP32 value.

        Raises:
            InputError: no such tensor, or its elements are not floating-point numbers.
        """
        value = self._values.get(tensor)
        if value is None:
            raise InputError(
                f"The network has no tensor '{tensor}'", "Only inputs and outputs of its layers can have ranges."
            )
        if value.dtype is not None and not value.dtype.is_floating_point():
            raise InputError(f"Tensor '{tensor}' is {value.dtype.name}", "Only floating-point tensors have a range.")
        return value if value.dtype == ir.DataType.FLOAT else self.apply("Cast", value, to=int(ir.DataType.FLOAT))

    def input(self, name: str, dtype: ir.DataType, rank: int) -> ir.Value:
        """A further input of the network, of any sizes, cut into samples like the others."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
        self.model.graph.inputs.append(value)
        self._more.append(name)
        return value

    def constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """An initializer of its own."""
        self._number += 1
        name = f"trt_tui_constant_{self._number}"
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(np.asarray(array), name=name))
        self.model.graph.register_initializer(value)
        return value

    def apply(self, operator: str, *values: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT,
              **attributes: int | float) -> ir.Value:
        """Adds an operator right behind what computes the one input that a layer computes; returns its output."""
        self._number += 1
        node = ir.node(operator, list(values), attributes, name=f"trt_tui_probe_{self._number}")
        producer = next(filter(None, (value.producer() for value in values)), None)
        if producer is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_after(producer, node)
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(dtype)
        return result

    def load(self, backend: Backend, samples: Samples) -> Runner:
        """A runner of what the outputs need for these samples: a network may hold plugins behind it that no library
        was given for."""
        drop_unused(self.model)
        small = has_many_small_layers(self.model.graph)
        if small:
            release_memory()
        try:
            return fitted(backend, self.model, samples, more=self._more, lean=True,
                          optimize=not small)
        except OutOfMemoryError:
            raise
        except InputError:  # where two Convs are added, ONNX Runtime's fusions can lose one that is an output too
            return fitted(backend, self.model, samples, more=self._more, lean=True, optimize=False)

    def emit(self, value: ir.Value) -> str:
        """Makes a value an output and returns the output's name."""
        if value.is_graph_input():
            value = self.apply("Identity", value)
        self.model.graph.outputs.append(value)
        return name_of(value)


def scalar(value: ir.Value) -> ir.Value:
    """The value, declared to have no dimension."""
    value.shape = ir.Shape([])
    return value


@dataclass(frozen=True)
class Slice:
    """The feeds from ``start`` to before ``stop``, for one chunk of the tensors."""

    chunk: int
    start: int
    stop: int


class NotFiniteError(InputError):
    """A tensor that holds NaN or an infinity (``what``) in FP32, in a feed of the samples that calibrate.

    `trt_tui.core.calibration.not_finite.explained` names the value that it comes from.
    """

    def __init__(self, tensor: str, what: str, feed: int, title: str = "", cause: str = "", next_step: str = ""
                 ) -> None:
        super().__init__(title or f"Tensor '{tensor}' holds {what} in FP32",
                         cause or f"Seen while calibrating, in feed {feed}.",
                         next_step or "Correct the network or the data: a range cannot be taken from it.")
        self.tensor, self.what, self.feed = tensor, what, feed


@dataclass(frozen=True)
class _NotFinite:
    tensor: str
    what: str
    feed: int


class _Passing:
    """An errand: collectors that have taken the tensors of a chunk on a slice of the feeds."""

    def __init__(self, chunks: Sequence[Sequence[str]], empty: Mapping[str, Collector]) -> None:
        self._chunks, self._empty = chunks, copy.deepcopy(dict(empty))
        self._loaded: tuple[int, Runner, dict[str, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def words(self, item: Slice) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the values of feeds {item.start} to {item.stop - 1}"

    def do(self, subject: Calibrating, item: Slice) -> Generator[None, None, dict[str, Collector] | _NotFinite]:
        """See `trt_tui.core.hands.Errand`."""
        if self._loaded is None or self._loaded[0] != item.chunk:
            self.close()
            probe = Probe(subject.fp32)
            emitted = {tensor: probe.emit(probe.float_value(tensor)) for tensor in self._chunks[item.chunk]}
            self._loaded = item.chunk, probe.load(subject.backend, subject.calibrating), emitted
        _, runner, outputs = self._loaded
        found = {tensor: copy.deepcopy(self._empty[tensor]) for tensor in outputs}
        for index in range(item.start, item.stop):
            arrays = runner.run(subject.calibrating.feed(index))
            for tensor, output in outputs.items():
                try:
                    found[tensor].add(arrays.pop(output))
                except ValueError as error:
                    return _NotFinite(tensor, str(error), index)
            yield
        return found

    def close(self) -> None:
        """Frees the session."""
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None


def sweep(
    model: ir.Model,
    collectors: Mapping[str, Collector],
    samples: Samples,
    backend: Backend,
    progress: OnRun | None,
    memory_limit: int,
    hands: Hands[Calibrating] | None = None,
) -> None:
    """Hands each tensor of each feed to its collector, at most ``memory_limit`` bytes of tensors in a pass.

    Args:
        collectors: By tensor; they have taken nothing yet.
        hands: Who runs the feeds of the same network and samples; this process by default.
    """
    if not collectors:
        return
    chunks = list(_chunks(_tensor_bytes(model, collectors, samples, backend), memory_limit))
    feeds, count = len(samples), min(SLICES, len(samples))
    places = [feeds * number // count for number in range(count + 1)]
    slices = [Slice(chunk, start, stop) for chunk in range(len(chunks))
              for start, stop in zip(places, places[1:], strict=False)]
    errand = _Passing(chunks, collectors)
    try:
        for _, found in in_order(hands if hands is not None else Here(Given(model, samples, backend)), errand, slices,
                                 lambda one: one.stop - one.start, progress):
            if isinstance(found, _NotFinite):
                raise NotFiniteError(found.tensor, found.what, found.feed)
            for tensor, collector in found.items():
                collectors[tensor].merge(collector)
    finally:
        errand.close()


def in_order(hands: Hands[Calibrating], errand: Errand[Calibrating, Item, T], items: Sequence[Item],
             runs: Callable[[Item], int], progress: OnRun | None) -> Iterator[tuple[Item, T]]:
    """What came of each item, in the order of the items, whoever was first: so the first tensor that is not finite is
    named.

    Args:
        runs: How many runs an item is.
    """
    found: dict[Item, T] = {}
    place, done, total = 0, 0, sum(map(runs, items))
    for one in hands.work(errand, items):
        while not hands.ready():
            time.sleep(WAIT_S)
            if progress:
                progress(done, total)
        if one is None:
            if progress:
                progress(done, total)
            continue
        found[one[0]] = one[1]
        while place < len(items) and items[place] in found:
            yield items[place], found.pop(items[place])
            done += runs(items[place])
            place += 1
            if progress:
                progress(done, total)


def _tensor_bytes(model: ir.Model, tensors: Iterable[str], samples: Samples, backend: Backend) -> dict[str, int]:
    """Bytes of each tensor as FP32 in the first feed."""
    probe = Probe(model)
    outputs = {
        tensor: probe.emit(scalar(probe.apply("Size", probe.float_value(tensor), dtype=ir.DataType.INT64)))
        for tensor in tensors
    }
    with probe.load(backend, samples) as runner:
        sizes = runner.run(samples.feed(0))
    return {tensor: 4 * int(sizes[output]) for tensor, output in outputs.items()}


def _chunks(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    chunk: list[str] = []
    total = 0
    for tensor, size in sizes.items():
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(tensor)
        total += size
    yield chunk


