"""The first visible GPU, read from the NVIDIA driver library. Neither a CUDA toolkit nor a Python package is needed."""

import contextlib
import ctypes
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from trt_tui.errors import BackendUnavailableError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


@dataclass(frozen=True)
class CudaDevice:
    """The first visible GPU.

    Attributes:
        compute_capability: The compute capability as (major, minor).
        driver: The newest CUDA release that the driver supports, as (major, minor).
    """

    name: str
    compute_capability: tuple[int, int]
    driver: tuple[int, int]


def find_first_device() -> CudaDevice:
    """Returns the first GPU that CUDA_VISIBLE_DEVICES makes visible.

    Raises:
        BackendUnavailableError: There is no driver, the driver does not work, or there is no GPU.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendUnavailableError(
            "no NVIDIA driver was found",
            "its library libcuda.so.1 does not load",
            "Run on a machine with a GPU, or give a container access to it.",
            raw_message=str(error),
        ) from None
    status = cuda.cuInit(0)
    count = ctypes.c_int()
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or status == 0 and count.value == 0:
        raise BackendUnavailableError(
            "no GPU is visible", "the NVIDIA driver finds none", "Check nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    if status != 0:
        raise BackendUnavailableError(
            "the NVIDIA driver does not work",
            f"cuInit: {_cuda_error_text(cuda, status)}",
            "Check nvidia-smi; the driver and its library may differ in version.",
        )
    device, version = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    major, minor = (_read_device_attribute(cuda, number, device) for number in (_MAJOR, _MINOR))
    return CudaDevice(name.value.decode(), (major, minor), (version.value // 1000, version.value % 1000 // 10))


def count_devices() -> int:
    """Returns the number of visible GPUs; 0 without a working driver."""
    count = ctypes.c_int()
    with contextlib.suppress(OSError):  # there is no driver
        cuda = ctypes.CDLL("libcuda.so.1")
        _ = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def copy_device_memory(regions: Iterable[tuple[int, int, int]], stream: int | None = None) -> None:
    """Copies regions within the memory of the first GPU.

    Args:
        regions: The regions, each as (source address, destination address, size in bytes).
        stream: The stream that copies the regions after its earlier work; None to wait for the copies to end.

    Raises:
        RuntimeError: The driver refuses a copy.
    """
    cuda = _load_driver_with_context()
    for source, destination, size in regions:
        _check_cuda_status(
            cuda,
            "a copy on the GPU",
            cuda.cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(destination), ctypes.c_uint64(source), ctypes.c_size_t(size), ctypes.c_void_p(stream)
            ),
        )
    if stream is None:
        _check_cuda_status(cuda, "a copy on the GPU", cuda.cuStreamSynchronize(None))


@functools.cache
def get_shared_stream() -> int:
    """Returns the address of a stream of the first GPU, which the first call creates. The stream does not wait for the
    work of other streams.

    Raises:
        RuntimeError: The driver refuses to create a stream.
    """
    cuda, stream = _load_driver_with_context(), ctypes.c_void_p()
    _check_cuda_status(cuda, "the creation of a CUDA stream", cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
    assert stream.value is not None
    return stream.value


def synchronize_stream(stream: int) -> None:
    """Waits until all work of a stream has ended.

    Raises:
        RuntimeError: Some of the work failed.
    """
    cuda = _load_driver_with_context()
    _check_cuda_status(cuda, "work on the GPU", cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))


def _check_cuda_status(cuda: ctypes.CDLL, work: str, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{work} failed: {_cuda_error_text(cuda, status)}")


def _load_driver_with_context() -> ctypes.CDLL:
    """Returns the driver library, after a CUDA context of the first GPU is made current on this thread.

    The context is the primary one, which the CUDA runtime uses too.
    """
    cuda, context = _load_driver(), ctypes.c_void_p()
    cuda.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        device = ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), 0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
    return cuda


@functools.cache
def _load_driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _read_device_attribute(cuda: ctypes.CDLL, attribute: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value


def _cuda_error_text(cuda: ctypes.CDLL, error_code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorString(error_code, ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode()} ({error_code})"
    return f"error {error_code}"
