"""The detection of networks with very many small layers. They execute fast, but their inference sessions are costly."""

import ctypes
import gc
import math

import onnx_ir as ir

MIN_LAYERS = 5_000
"""The minimum number of layers. Sessions of smaller networks are created quickly in any form."""

MAX_MEAN_ELEMENTS = 2048
"""The maximum mean number of elements per result; open sizes count as 1.

Rounding a result of this size costs no more than the call of its kernel."""


def has_many_small_layers(graph: ir.Graph) -> bool:
    """Returns True if a graph has so many small layers that an inference session costs more to create than to execute.

    ONNX Runtime needs some 30 kB and up to 0.3 ms per node for a session, whatever the node computes.
    """
    if len(graph) < MIN_LAYERS:
        return False
    sizes = [
        math.prod(size for size in value.shape if isinstance(size, int))
        for node in graph
        for value in node.outputs
        if value.shape is not None
    ]
    return sum(sizes) <= MAX_MEAN_ELEMENTS * len(graph)


def collect_garbage_and_trim_memory() -> None:
    """Frees unreferenced graphs and returns freed memory to the system, before or after a large inference session.

    Nodes and values of a graph refer to each other, so only the garbage collector frees them, and it rarely examines
    old objects. The C library keeps the memory that a closed session has freed.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only the GNU C library has malloc_trim
    if trim is not None:
        trim(0)
