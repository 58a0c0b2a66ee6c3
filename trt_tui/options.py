"""What the user asks for when a network is opened."""

from __future__ import annotations

from dataclasses import dataclass

from trt_tui.core.exporters.trtexec import Effort
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Options:
    """What to open, how to judge it, and how to build; see the command line's help for each."""

    model: str
    data: str | None = None
    calib_data: str | None = None
    judge: tuple[str, ...] = ()
    metric: str | None = None
    shapes: tuple[str, ...] = ()
    backend: str = "auto"
    calib_method: str = "minmax"
    samples: int | None = None
    whatif_samples: int = 32
    batch: int | None = None
    seed: int = 0
    other: Precision = Precision.FP16
    calib_cache: str | None = None
    weak: bool = False
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: str | None = None
    compute_capability: tuple[int, int] | None = None
    judge_at: tuple[str, ...] = ()
    optimization_level: int | None = None
    strict: bool = False
    builds: int = 1
    hold_out: bool = False
    reference: str | None = None
    stages: tuple[str, ...] = ()
    engine: str | None = None
    outputs: str | None = None
    inputs: str | None = None
    tf32: bool = False
    plugins: tuple[str, ...] = ()
    ort_ops: tuple[str, ...] = ()
    preview: bool = True
    keep: tuple[str, ...] = ()
    exact: bool = False
    tensor_ranges: tuple[tuple[str, str], ...] = ()
    gpus: str | None = None
    workers: str | None = None
    scheduler: str | None = None
    threads: int | None = None

    @property
    def has_data(self) -> bool:
        """Whether data are named that would be read."""
        return self.data is not None or self.calib_data is not None

    @property
    def about_engines(self) -> tuple[str, ...]:
        """The options given that say nothing where no engine is built, as they are written."""
        given = {"--weak": self.weak, "--strict": self.strict, "--judge-at": self.judge_at,
                 "--builds": self.builds > 1,
                 "--timing-cache": self.timing_cache, "--plugins": self.plugins,
                 "--tactic-sources": self.tactic_sources, "--compute-capability": self.compute_capability,
                 "--optimization-level": self.optimization_level is not None}
        return tuple(name for name, value in given.items() if value)

    @property
    def effort(self) -> Effort:
        """How the builder is to work, as other tools are told it."""
        return Effort(self.optimization_level, self.timing_cache or "", self.tactic_sources or (), self.plugins)
