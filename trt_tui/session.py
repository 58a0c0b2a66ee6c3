"""The workspace that the app and the commands share: network, samples, config history and results.

A `Session` owns no thread and draws nothing. It sends requests to the child process and takes its events through
`apply`, which whoever runs the event loop calls; after each change it saves itself, so that a closed terminal loses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trt_tui.core.calibration import Calibration, TensorStats
from trt_tui.core.comparison import EngineResult, RunRecord, Share, Verdict
from trt_tui.core.judge import Judged
from trt_tui.core.network import Group, Outline
from trt_tui.core.precision import History, Precision, PrecisionConfig, RangeChoice, step
from trt_tui.jobs import messages as m

RUNS = ("fp16", "int8", "config")
"""The runs of the verdict, in the order they are shown."""


@dataclass(frozen=True)
class Target:
    """What a run must reach: ``kind`` is "sqnr" (dB, worst judged output), "metric" or "agreement" (share, 0 to 1).

    ``text`` is how it is shown, ``value`` the least value that passes.
    """

    kind: str
    value: float
    text: str

    def reached(self, verdict: Verdict) -> bool | None:
        """Whether a verdict meets the target; None where what it needs was not measured."""
        raise NotImplementedError


@dataclass
class ConfigResults:
    """What is known of one config."""

    verdict: Verdict | None = None
    shares: dict[str, Share] = field(default_factory=dict)
    shares_done: int = 0
    shares_total: int = 0
    raised_order: tuple[str, ...] = ()
    raised_db: tuple[float | None, ...] = ()
    engine: EngineResult | None = None


class Session:
    """See the module's docstring.

    Args:
        options: What to open.
        deliver: Called with each event of the child process, from another thread; it must hand the event to the
            event loop, which calls `apply`.
    """

    options: m.Options
    outline: Outline | None  # None until the network is open
    judged: tuple[Judged, ...]
    data: m.DataSummary | None
    backend: m.BackendSummary | None
    calibration: Calibration | None
    reference_metric: dict[str, float]  # the FP32 network's own metric
    history: History
    names: dict[PrecisionConfig, str]  # "c1", "c2", ... in the order they were made
    runs: dict[str, RunRecord]  # by run name of RUNS; "config" is the current config's
    results: dict[PrecisionConfig, ConfigResults]
    stats: dict[str, dict[str, TensorStats]]  # by group, then tensor
    tried: dict[tuple[str, PrecisionConfig], tuple[m.Option, ...]]  # by group and config
    built: PrecisionConfig | None  # the config of the last engine
    target: Target | None
    job: m.Progress | None  # the running job's last progress, None when idle
    warnings: list[str]
    log: list[str]

    def __init__(self, options: m.Options, deliver: Callable[[m.Event], None]) -> None: ...

    # -- life ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Starts the child process and opens the network; comparisons start by themselves once it is open."""

    def apply(self, event: m.Event) -> None:
        """Takes an event in. Events of jobs that were stopped are dropped."""

    def stop_job(self) -> None:
        """Stops the running job: asks, and kills the child process if it has not stopped within 2 s."""

    def close(self) -> None:
        """Saves and ends the child process."""

    # -- changing the config (each starts the what-if of the new config) -----------------------------------------
    @property
    def config(self) -> PrecisionConfig: ...

    def toggle(self, groups: Iterable[Group]) -> None:
        """FP32 on and off: raises all of them, or returns all of them to their defaults if all are FP32."""

    def step(self, groups: Iterable[Group], up: bool) -> None:
        """One step up or down the ladder INT8, FP16, FP32."""

    def set_precision(self, groups: Iterable[Group], precision: Precision) -> None: ...

    def set_range(self, tensor: str, choice: RangeChoice | None) -> None: ...

    def next_range(self, group: Group) -> str:
        """The next range method for a group's inputs; returns its name."""
        raise NotImplementedError

    def set_config(self, config: PrecisionConfig) -> None: ...

    def undo(self) -> bool: ...

    def redo(self) -> bool: ...

    # -- asking for more ------------------------------------------------------------------------------------------
    def compare(self) -> None:
        """Measures the runs of the verdict, their groups and shares (again)."""

    def measure_shares(self) -> None:
        """Measures the shares of the current config."""

    def look_at(self, group: Group) -> None:
        """Asks for the statistics and the ways out of a group, unless they are known."""

    def build(self) -> None:
        """Builds the current config with the backend."""

    # -- files ----------------------------------------------------------------------------------------------------
    def export(self, kind: str, path: Path, overwrite: bool = False) -> str:
        """Writes "precision.json", "onnx" or "markdown"; returns what to tell the user. InputError if it exists."""
        raise NotImplementedError


__all__ = ["RUNS", "ConfigResults", "Precision", "Session", "Target", "step"]
