"""What the kernels of an engine hand on to each other: a debug listener that takes tensors of every type.

Polygraphy's own drops BF16, FP8 and INT8. TensorRT calls a listener while a run is enqueued, with memory that is its
own again afterwards.
"""

import ctypes
import math
from collections.abc import Container
from typing import Any

import ml_dtypes
import numpy as np

from trt_tui.core.precision import Precision
from trt_tui.core.runner import DebugTensor

_TENSOR_TYPES: dict[str, tuple[np.dtype, Precision]] = {
    "FLOAT": (np.dtype(np.float32), Precision.FP32), "HALF": (np.dtype(np.float16), Precision.FP16),
    "BF16": (np.dtype(ml_dtypes.bfloat16), Precision.BF16),
    "FP8": (np.dtype(ml_dtypes.float8_e4m3fn), Precision.FP8), "INT8": (np.dtype(np.int8), Precision.INT8)}
"""Element types and precisions by TensorRT's word for a type; whatever else there is has no float behind it."""


def make_debug_listener(trt: Any, tensor_names: Container[str]) -> Any:
    """A debug listener whose ``found`` has `DebugTensor` by name after a run, and ``failed`` why one could not be
    copied.

    Args:
        trt: The package.
        tensor_names: The names to take.
    """
    from polygraphy import cuda

    class Listener(trt.IDebugListener):  # type: ignore[misc]
        """Copies what it is shown."""

        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.found: dict[str, DebugTensor] = {}
            self.failed = ""

        def process_debug_tensor(self, addr: Any, location: Any, type: Any, shape: Any, name: str, stream: Any) -> None:
            type_and_precision = _TENSOR_TYPES.get(type.name)
            if name not in tensor_names or type_and_precision is None:
                return
            try:
                self.found[name] = self._copy_debug_tensor(_read_pointer_address(addr), location, *type_and_precision,
                                                           tuple(shape), int(stream))
            except Exception as error:  # it must not go up into TensorRT
                self.failed = self.failed or f"{name}: {error}"

        def _copy_debug_tensor(self, address: int, location: Any, dtype: np.dtype, precision: Precision,
                               shape: tuple[int, ...], stream: int) -> DebugTensor:
            raw = np.empty(math.prod(shape), dtype)
            if location == trt.TensorLocation.HOST:
                ctypes.memmove(raw.ctypes.data, address, raw.nbytes)
            else:
                cuda.wrapper().stream_synchronize(stream)
                cuda.wrapper().memcpy(raw.ctypes.data, address, raw.nbytes, cuda.MemcpyKind.DeviceToHost, stream)
                cuda.wrapper().stream_synchronize(stream)
            return DebugTensor(raw.astype(np.float32).reshape(shape), precision)

    return Listener()


def _read_pointer_address(pointer: Any) -> int:
    """The address that a binding hands on: a number, or a capsule around it."""
    if isinstance(pointer, int):
        return pointer
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(api.PyCapsule_GetPointer(pointer, api.PyCapsule_GetName(pointer)) or 0)
