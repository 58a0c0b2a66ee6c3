"""A run as one CUDA graph, which trtexec 11 measures by default: no layer is enqueued on its own any more."""

import ctypes
from collections.abc import Callable

_RELAXED_CAPTURE_MODE = 2  # cudaStreamCaptureModeRelaxed: what other threads do meanwhile is no part of it


class CudaGraph:
    """What was enqueued on a stream, to be launched again with the same addresses.

    Args:
        stream: The handle of a stream other than the default one.
        enqueue: Enqueues a run on it; returns False where it could not.

    Raises:
        RuntimeError: the CUDA runtime does not capture it; says which call failed.
    """

    def __init__(self, stream: int, enqueue: Callable[[], bool]) -> None:
        from polygraphy import cuda

        self._runtime, self._stream = cuda.wrapper().handle, ctypes.c_void_p(stream)
        self._executable_graph = ctypes.c_void_p()
        graph = ctypes.c_void_p()
        self._call_cuda_runtime("cudaStreamBeginCapture", self._stream, _RELAXED_CAPTURE_MODE)
        try:
            enqueued = enqueue()
        finally:
            end_status = self._runtime.cudaStreamEndCapture(self._stream, ctypes.byref(graph))
        if not enqueued or end_status:
            raise RuntimeError("the engine's run cannot be captured"
                               + (f" (CUDA error {end_status})" if end_status else ""))
        try:
            self._call_cuda_runtime("cudaGraphInstantiateWithFlags", ctypes.byref(self._executable_graph), graph,
                                    ctypes.c_ulonglong(0))
        finally:
            self._runtime.cudaGraphDestroy(graph)

    def launch_graph(self) -> None:
        """Enqueues it.

        Raises:
            RuntimeError: the CUDA runtime refuses it.
        """
        self._call_cuda_runtime("cudaGraphLaunch", self._executable_graph, self._stream)

    def close(self) -> None:
        """Frees it."""
        self._runtime.cudaGraphExecDestroy(self._executable_graph)

    def _call_cuda_runtime(self, function_name: str, *arguments: object) -> None:
        if status := self._runtime[function_name](*arguments):
            raise RuntimeError(f"{function_name}: CUDA error {status}")
