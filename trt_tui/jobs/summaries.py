"""What an opened network is measured with: data, backend and builder, as the program shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.data.shapes import ShapeRange


@dataclass(frozen=True)
class DataSummary:
    """The samples in use, counted in samples, not in batches; ``shapes`` is the profile of the dynamic inputs."""

    source: str
    judged_count: int
    calibration_count: int
    what_if_count: int
    is_random: bool
    label_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)


@dataclass(frozen=True)
class BackendSummary:
    """The backend that runs and simulates networks; ``real_fp16`` if it computes FP16 in FP16."""

    name: str
    version: str
    device: str
    real_fp16: bool


@dataclass(frozen=True)
class BuilderSummary:
    """What builds engines.

    Attributes:
        device: The GPU, "" where there is none.
        can_run: Whether engines can run here.
    """

    name: str
    version: str
    device: str
    can_run: bool
