"""Networks of very many small layers, whose runs cost little and whose inference sessions cost much."""

import ctypes
import gc
import math

import onnx_ir as ir

MIN_LAYERS = 5_000
"""Below, sessions are made quickly enough in any form."""

MAX_MEAN_ELEMENTS = 2048
"""Up to this size a rounding costs no more than the call of its kernel. Open sizes count as 1."""


def has_many_small_layers(graph: ir.Graph) -> bool:
    """Returns True if a graph has so many layers, with so small results, that its session costs more than its runs.

    ONNX Runtime takes some 30 kB and up to 0.3 ms a node for a session, whatever the node computes.
    """
    if len(graph) < MIN_LAYERS:
        return False
    sizes = [math.prod(size for size in value.shape if isinstance(size, int))
             for node in graph for value in node.outputs if value.shape is not None]
    return sum(sizes) <= MAX_MEAN_ELEMENTS * len(graph)


def collect_garbage_and_trim_memory() -> None:
    """Frees graphs that nothing refers to and returns freed memory to the system, before or after a large session.

    Nodes and values of a graph refer to each other, so only the garbage collector frees them. It rarely looks at old
    objects. The C library keeps what a closed session has freed.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library has it
    if trim is not None:
        trim(0)
