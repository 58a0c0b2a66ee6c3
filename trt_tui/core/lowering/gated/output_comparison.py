"""Error sums of each sample between a run and the reference, computed inside the graph, so that only sums leave a
device."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.emitter import NodeEmitter
from trt_tui.core.network.network import Network

SAMPLE_SUM_COLUMNS = ("diff2", "test2", "diff1", "diff_max")
"""The columns of each row: Σ(test-ref)², Σtest², Σ|test-ref| and the largest |test-ref|.

If values of the tensors are not finite, the columns are not finite either."""


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor, or a part of one, that is compared with the reference inside the graph.

    Attributes:
        name: A unique name.
        tensor: The tensor, with at least one axis; the first axis is that of the samples.
        slices: The compared part: axis, first index, and index behind the last (None: to the end).
    """

    name: str
    tensor: str
    slices: tuple[tuple[int, int, int | None], ...] = ()


def _find_chunk_length(network: Network, compared_tensor: ComparedTensor) -> int:
    """Returns a divisor of the length of every row, near its square root as far as the length is known."""
    row_length = 1
    sliced_axes = {axis for axis, _, _ in compared_tensor.slices}
    for axis, size in enumerate(network.shape(compared_tensor.tensor) or ()):
        if axis and axis not in sliced_axes and isinstance(size, int):
            row_length *= max(1, size)
    return max(size for size in range(1, math.isqrt(row_length) + 1) if row_length % size == 0)


def emit_error_sums_per_sample(emitter: NodeEmitter, compared_tensor: ComparedTensor, test_value: ir.Value,
                               reference_value: ir.Value) -> ir.Value:
    """Emits the error sums of a compared tensor, float64 ``(rows, len(SAMPLE_SUM_COLUMNS))``.

    Args:
        reference_value: The reference, with the shape of the compared part.
    """
    nodes = emitter.nodes

    def add_operator(operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return emitter.add_operator(nodes, operator, inputs, operator.lower(), **attributes)

    def reshape_to_rows(value: ir.Value) -> ir.Value:
        wide = add_operator("Cast", value, to=int(ir.DataType.DOUBLE))
        return add_operator("Reshape", wide, emitter.get_array_constant(np.array([0, -1], np.int64), "rows"))

    def emit_row_maximum(value: ir.Value) -> ir.Value:
        """Emits the maximum of each row in two steps, because the CUDA provider reduces each row in a single thread
        block."""
        part = _find_chunk_length(emitter.network, compared_tensor)
        split = add_operator("Reshape", value,
                             emitter.get_array_constant(np.array([0, -1, part], np.int64), f"parts/{part}"))
        row_maximum = emitter.add_reduction(nodes, "ReduceMax", emitter.add_reduction(nodes, "ReduceMax", split, 2), 1)
        return add_operator("Reshape", row_maximum, emitter.get_array_constant(np.array([-1, 1], np.int64), "column"))

    last = emitter.get_array_constant(np.array([1], np.int64), "int64/1")
    for axis, start, stop in compared_tensor.slices:
        ends = [emitter.get_array_constant(np.array([number], np.int64), f"int64/{number}")
                for number in (start, np.iinfo(np.int64).max if stop is None else stop, axis)]
        test_value = add_operator("Slice", test_value, *ends)
    test_rows = reshape_to_rows(test_value)
    difference = add_operator("Sub", test_rows, reshape_to_rows(reference_value))
    size = add_operator("Abs", difference)
    columns = {name: add_operator("ReduceSum", add_operator("Mul", row_values, row_values), last, keepdims=1)
               for name, row_values in (("diff2", difference), ("test2", test_rows))}
    columns |= {"diff1": add_operator("ReduceSum", size, last, keepdims=1), "diff_max": emit_row_maximum(size)}
    result = add_operator("Concat", *(columns[name] for name in SAMPLE_SUM_COLUMNS), axis=1)
    result.type, result.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([None, len(SAMPLE_SUM_COLUMNS)])
    return result
