"""A listener for the debug tensors of an engine, which are the tensors between its kernels, with every element type.

Polygraphy's own listener drops BF16, FP8 and INT8. TensorRT calls a listener while an execution is enqueued. The memory
of the tensors belongs to TensorRT again afterwards, so the listener copies them.
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
"""The element types and precisions of debug tensors, by TensorRT's name of the type. Other types represent no float
value."""


def make_debug_listener(trt: Any, tensor_names: Container[str]) -> Any:
    """Creates a debug listener that copies the named debug tensors of an execution.

    After the execution, its ``found`` contains each `DebugTensor` by name. Its ``failed`` is the reason why a tensor
    could not be copied, or "".

    Args:
        trt: The TensorRT module.
        tensor_names: The names of the tensors to copy.
    """
    from polygraphy import cuda

    class Listener(trt.IDebugListener):  # type: ignore[misc]
        """A TensorRT debug listener that copies each named tensor it receives."""

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
            except Exception as error:  # no exception may pass through TensorRT
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
    """Returns the address in a pointer from the Python bindings, which is a number or a capsule."""
    if isinstance(pointer, int):
        return pointer
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(api.PyCapsule_GetPointer(pointer, api.PyCapsule_GetName(pointer)) or 0)
