"""A GPU of host memory: `install` replaces Polygraphy's wrapper of the CUDA runtime, and the driver library."""

import ctypes
import os
import sys

import numpy as np

MEMORY_BYTES = 24 << 30


def capability() -> str:
    """The GPU's compute capability: STANDIN_DEVICE, 8.9 by default."""
    return os.environ.get("STANDIN_DEVICE", "8.9")


class Cuda:
    """What `polygraphy.cuda.wrapper()` returns. "Device" pointers are those of NumPy arrays that are kept alive."""

    def __init__(self) -> None:
        self.allocations: dict[int, np.ndarray] = {}
        self.streams = 0
        self.handle = Runtime()

    def create_stream(self) -> int:
        self.streams += 1
        return self.streams

    def stream_synchronize(self, ptr: int) -> None:
        pass

    def destroy_stream(self, ptr: int) -> None:
        pass

    def malloc(self, nbytes: int) -> int:
        buffer = np.empty(max(int(nbytes), 1), np.uint8)
        self.allocations[buffer.ctypes.data] = buffer
        return buffer.ctypes.data

    def free(self, ptr: int) -> None:
        if ptr:
            del self.allocations[ptr]

    def memcpy(self, dst: int, src: int, nbytes: int, kind: ctypes.c_int, stream_ptr: int | None = None) -> None:
        for ptr, on_device in ((dst, kind.value in (1, 3)), (src, kind.value in (2, 3))):
            if on_device:
                self.check(ptr, nbytes)
        ctypes.memmove(int(dst), int(src), int(nbytes))

    def check(self, ptr: int, nbytes: int) -> None:
        """Raises `RuntimeError` where a range is no device memory."""
        if not any(start <= ptr and ptr + nbytes <= start + held.nbytes for start, held in self.allocations.items()):
            raise RuntimeError("CUDA Error: 700 (an illegal memory access was encountered)")


class Runtime:
    """What the CUDA runtime's library gives: graphs, of which only launches count; STANDIN_FAULT ``no graph`` refuses
    them."""

    def __init__(self) -> None:
        self.launches = self.graphs = 0

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)

    def cudaStreamBeginCapture(self, stream: object, mode: int) -> int:
        return 900 if os.environ.get("STANDIN_FAULT") == "no graph" else 0

    def cudaStreamEndCapture(self, stream: object, graph: object) -> int:
        return 0

    def cudaGraphInstantiateWithFlags(self, made: object, graph: object, flags: object) -> int:
        self.graphs += 1
        return 0

    def cudaGraphLaunch(self, graph: object, stream: object) -> int:
        self.launches += 1
        return 0

    def cudaGraphDestroy(self, graph: object) -> int:
        return 0

    def cudaGraphExecDestroy(self, graph: object) -> int:
        self.graphs -= 1
        return 0


class Driver:
    """What ``ctypes.CDLL("libcuda.so.1")`` gives: one GPU."""

    def cuInit(self, flags: int) -> int:
        return 100 if os.environ.get("STANDIN_FAULT") == "no gpu" else 0

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device: object, ordinal: int) -> int:
        return 0

    def cuDeviceGetName(self, name: ctypes.Array, length: int, device: object) -> int:
        name.value = b"Stand-in GPU"
        return 0

    def cuDeviceTotalMem_v2(self, total: object, device: object) -> int:
        total._obj.value = MEMORY_BYTES
        return 0

    def cuDriverGetVersion(self, version: object) -> int:
        version._obj.value = 13000
        return 0

    def cuDeviceGetAttribute(self, value: object, attribute: int, device: object) -> int:
        major, minor = capability().split(".")
        value._obj.value = int({75: major, 76: minor}[attribute])
        return 0

    def cuGetErrorString(self, code: int, text: object) -> int:
        return 1


def install() -> Cuda:
    """Makes Polygraphy's CUDA wrapper one of host memory, and `Driver` the driver library; returns the wrapper."""
    import polygraphy.cuda  # noqa: F401

    original = ctypes.CDLL

    class CDLL(original):
        def __new__(cls, name: str | None = None, *args: object, **kwargs: object) -> object:
            return Driver() if name == "libcuda.so.1" else super().__new__(cls)

    if original.__module__ != __name__:
        ctypes.CDLL = CDLL
    wrapper = Cuda()
    sys.modules["polygraphy.cuda.cuda"].G_CUDA = wrapper
    return wrapper
