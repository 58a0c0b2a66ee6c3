"""What the process that asks TensorRT-RTX is told."""

from collections.abc import Mapping
from dataclasses import dataclass

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import Profile


@dataclass(frozen=True)
class PreviewNetwork:
    """The network that is asked about.

    Attributes:
        sha256: Of the file and its external data.
        reference: The FP32 network of a quantized one.
        ort_ops: Libraries of operators.
        plugins: Libraries of plugins, each with its SHA-256.
    """

    path: str
    sha256: str
    reference: str | None = None
    ort_ops: tuple[str, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PreviewRequest:
    """What is asked: a config, for a GPU.

    Attributes:
        number: Orders are numbered in the order in which they are sent.
        ranges: amax by tensor, in the tensors' own units: which scales are equal decides what is fused.
        gpu_capability: The compute capability of the GPU here.
        requested_capability: That to build for, if the user named one.
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
    """Nobody waits for an order any more."""

    number: int
