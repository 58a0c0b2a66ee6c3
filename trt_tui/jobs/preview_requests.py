"""The messages to the preview process, which builds with TensorRT-RTX."""

from collections.abc import Mapping
from dataclasses import dataclass

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import Profile


@dataclass(frozen=True)
class PreviewNetwork:
    """The network of a preview.

    Attributes:
        sha256: The hash of the file and its external data.
        reference: The path of the FP32 network of a quantized network; None if there is none.
        ort_ops: The paths of custom operator libraries.
        plugins: The paths of plugin libraries, each with its SHA-256.
    """

    path: str
    sha256: str
    reference: str | None = None
    ort_ops: tuple[str, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PreviewRequest:
    """A request to preview a config for a GPU.

    Attributes:
        number: The number of the request, in the order of sending.
        ranges: The amax by tensor, in the tensors' own units. Kernels are fused only if scales are equal.
        gpu_capability: The compute capability of the GPU here; None without a GPU.
        requested_capability: The compute capability that the user has named; None if none was named.
    """

    number: int
    network: PreviewNetwork
    config: PrecisionConfig
    ranges: Mapping[str, float]
    profile: Profile
    gpu_capability: tuple[int, int] | None = None
    requested_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class PreviewCancellation:
    """A message that cancels a preview request."""

    number: int
