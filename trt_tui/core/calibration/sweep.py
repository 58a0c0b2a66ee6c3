"""Running a network over samples with chosen outputs. Nothing here grows with the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.samples import Samples
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.unused import drop_unused
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError

MEMORY_LIMIT = 256 << 20
"""Bytes of activations that one run may hand out, by default."""

OnRun = Callable[[int, int], None]
"""Called with runs done and runs in all."""


class Collector(Protocol):
    """Takes the arrays of one tensor, feed by feed."""

    def add(self, array: np.ndarray) -> None:
        """Takes a float32 array of any shape.

        Raises:
            ValueError: it holds NaN or an infinity; says which.
        """


class Probe:
    """A clone of a network with chosen outputs; tensors are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {name_of(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._number = 0

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

    def apply(self, operator: str, value: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT,
              **attributes: int | float) -> ir.Value:
        """Adds an operator with one input right behind its producer and returns its output."""
        self._number += 1
        node = ir.node(operator, [value], attributes, name=f"trt_tui_probe_{self._number}")
        producer = value.producer()
        if producer is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_after(producer, node)
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(dtype)
        return result

    def load(self, backend: Backend) -> Runner:
        """Loads what the outputs need: a network may hold plugins behind it that no library was given for."""
        drop_unused(self.model)
        try:
            return backend.load(self.model, lean=True)
        except InputError:  # where two Convs are added, ONNX Runtime's fusions can lose one that is an output too
            return backend.load(self.model, lean=True, optimize=False)

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


def sweep(
    model: ir.Model,
    collectors: Mapping[str, Collector],
    samples: Samples,
    backend: Backend,
    progress: OnRun | None,
    memory_limit: int,
) -> None:
    """Hands each tensor of each feed to its collector, at most ``memory_limit`` bytes of tensors in a pass."""
    if not collectors:
        return
    chunks = list(_chunks(_tensor_bytes(model, collectors, samples, backend), memory_limit))
    for number, chunk in enumerate(chunks):
        probe = Probe(model)
        outputs = {tensor: probe.emit(probe.float_value(tensor)) for tensor in chunk}
        with probe.load(backend) as runner:
            for index, feed in enumerate(samples.feeds()):
                arrays = runner.run(feed)
                for tensor, output in outputs.items():
                    try:
                        collectors[tensor].add(arrays.pop(output))
                    except ValueError as error:
                        raise not_finite(tensor, str(error), index) from None
                if progress:
                    progress(number * len(samples) + index + 1, len(chunks) * len(samples))


def _tensor_bytes(model: ir.Model, tensors: Iterable[str], samples: Samples, backend: Backend) -> dict[str, int]:
    """Bytes of each tensor as FP32 in the first feed."""
    probe = Probe(model)
    outputs = {
        tensor: probe.emit(scalar(probe.apply("Size", probe.float_value(tensor), ir.DataType.INT64)))
        for tensor in tensors
    }
    with probe.load(backend) as runner:
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


def not_finite(tensor: str, what: str, feed: int) -> InputError:
    """The error of a tensor that holds NaN or an infinity (``what``) in a feed."""
    return InputError(
        f"Tensor '{tensor}' holds {what} in FP32",
        f"Seen while calibrating, in feed {feed}.",
        "Correct the network or the data: a range cannot be taken from it.",
    )
