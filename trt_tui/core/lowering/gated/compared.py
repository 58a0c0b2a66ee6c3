"""Sums of each sample over what a run yields and the reference, taken where they lie: sums alone leave a device."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.emitter import Emitter
from trt_tui.core.network.network import Network

COLUMNS = ("diff2", "test2", "diff1", "diff_max")
"""Of each row: Σ(test-ref)², Σtest², Σ|test-ref| and the largest |test-ref|. Where values are not finite, so are
these."""


@dataclass(frozen=True)
class Compared:
    """A tensor, or a part of one, that is compared in the graph.

    Attributes:
        name: Unlike that of any other.
        tensor: The tensor, of one axis at least; the first one is that of the samples.
        cuts: Axis, first and last index but one (None: to the end) of what is taken of it.
    """

    name: str
    tensor: str
    cuts: tuple[tuple[int, int, int | None], ...] = ()


def _part(network: Network, compared: Compared) -> int:
    """A length that divides that of every row, near its root as far as that is known."""
    known = 1
    cut = {axis for axis, _, _ in compared.cuts}
    for axis, size in enumerate(network.shape(compared.tensor) or ()):
        if axis and axis not in cut and isinstance(size, int):
            known *= max(1, size)
    return max(size for size in range(1, math.isqrt(known) + 1) if known % size == 0)


def emit_compared(emitter: Emitter, compared: Compared, test: ir.Value, reference: ir.Value) -> ir.Value:
    """Emits the sums of a tensor, float64 ``(rows, len(COLUMNS))``.

    Args:
        reference: What the part is compared with, of its shape.
    """
    nodes = emitter.nodes

    def add(operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return emitter.add(nodes, operator, inputs, operator.lower(), **attributes)

    def rows(value: ir.Value) -> ir.Value:
        wide = add("Cast", value, to=int(ir.DataType.DOUBLE))
        return add("Reshape", wide, emitter.array(np.array([0, -1], np.int64), "rows"))

    def largest(value: ir.Value) -> ir.Value:
        """In two steps: the CUDA provider takes the maximum of a row in one thread block after the other."""
        part = _part(emitter.network, compared)
        split = add("Reshape", value, emitter.array(np.array([0, -1, part], np.int64), f"parts/{part}"))
        whole = emitter.reduce(nodes, "ReduceMax", emitter.reduce(nodes, "ReduceMax", split, 2), 1)
        return add("Reshape", whole, emitter.array(np.array([-1, 1], np.int64), "column"))

    last = emitter.array(np.array([1], np.int64), "int64/1")
    for axis, start, stop in compared.cuts:
        ends = [emitter.array(np.array([number], np.int64), f"int64/{number}")
                for number in (start, np.iinfo(np.int64).max if stop is None else stop, axis)]
        test = add("Slice", test, *ends)
    found = rows(test)
    difference = add("Sub", found, rows(reference))
    size = add("Abs", difference)
    columns = [add("ReduceSum", add("Mul", one, one), last, keepdims=1) for one in (difference, found)]
    columns += [add("ReduceSum", size, last, keepdims=1), largest(size)]
    result = add("Concat", *columns, axis=1)
    result.type, result.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([None, len(COLUMNS)])
    return result
