"""A job of the child process as people see it: what it is called, how far it is, how long it took and how it ended."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.history import ConfigNames

BY_ITSELF = (rq.Recall, rq.Stats, rq.TryWaysOut, rq.TryFlips, rq.PreviewEngine)
"""Requests that follow the cursor or a change; nobody asked for them by a key."""

DONE, STOPPED, FAILED, REPLACED = "done", "stopped", "failed", "replaced by a newer one"


@dataclass
class Job:
    """A request from when it was sent; times are seconds of the monotonic clock, None while they are to come.

    Attributes:
        words: What it is called.
        sent_at: Unix time when it was sent.
        begun: When the child process began with it.
        how: How it ended; "" until then.
        phase: What it does, "" where that is not told.
        since: When that phase began.
        progress: How far the phase is; None where that is unknown, or it is over and the next is not told.
        stopping: Whether it was told to stop.
    """

    number: int
    request: rq.Request
    words: str
    sent: float = field(default_factory=time.monotonic)
    sent_at: float = field(default_factory=time.time)
    begun: float | None = None
    ended: float | None = None
    how: str = ""
    phase: str = ""
    since: float = 0.0
    progress: ev.Progress | None = None
    stopping: bool = False

    def begin(self) -> None:
        """The child process works on it."""
        if self.begun is None:
            self.begun = self.since = time.monotonic()

    def take(self, progress: ev.Progress) -> None:
        """Takes in how far it is."""
        self.begin()
        if progress.phase != self.phase:
            self.phase, self.since = progress.phase, time.monotonic()
        over = progress.total > 0 and progress.done >= progress.total
        if over:
            self.since = time.monotonic()
        self.progress = progress if progress.total and not over else None

    def end(self, how: str) -> None:
        """It ended."""
        self.how, self.ended, self.progress = how, time.monotonic(), None

    @property
    def seconds(self) -> float:
        """How long it has run or ran; before it began, how long it waits."""
        start = self.begun if self.begun is not None else self.sent
        return (self.ended if self.ended is not None else time.monotonic()) - start

    @property
    def seconds_of_phase(self) -> float:
        """How long its phase has run; before it began, how long it waits."""
        return time.monotonic() - (self.since if self.begun is not None else self.sent)


def job_words(request: rq.Request, names: ConfigNames, builds: bool = True) -> str:
    """What the job of a request is called.

    Args:
        names: What configs are called.
        builds: Whether anything builds engines here.
    """
    match request:
        case rq.Open():
            return f"opening {Path(request.options.model).name}"
        case rq.Compare():
            return "comparison"
        case rq.WhatIf():
            return f"what-if {names.get(request.config, 'of a config')}"
        case rq.Build() if not builds:
            return f"execution of the export of {names.get(request.config, 'a config')}"
        case rq.Build():
            return f"{'quick build' if request.quick else 'build'} of {names.get(request.config, 'a config')}"
        case rq.FindConfig():
            return f"search from {names.get(request.config, 'a config')}"
        case rq.PreviewEngine():
            return f"preview of {names.get(request.config, 'a config')}"
        case rq.Stats():
            return f"values of {request.group}"
        case rq.TryWaysOut():
            return f"ways out of {request.group}"
        case rq.Recall():
            return "figures of other configs"
        case rq.TryFlips():
            return f"flips of {names.get(request.config, 'a config')}"
        case rq.MeasureSamples():
            return f"error over samples of {names.get(request.config, 'a config')}"
        case rq.JudgeSample():
            return f"sample {request.sample} alone"
        case rq.Calibrate():
            return f"calibration ({request.method})"
        case rq.MeasureStages():
            return "stages"
        case rq.ReadEngine():
            return f"reading {Path(request.path).name}"
        case rq.WriteEngine() | rq.Export() | rq.WriteBundle() | rq.WriteSubgraph() | rq.WriteText() | rq.SaveOutputs():
            return f"writing {Path(request.path).name}"
        case _:
            return _OTHERS[type(request)]


_OTHERS: dict[type[rq.Request], str] = {
    rq.UseRanges: "taking ranges over", rq.Preflight: "preflight", rq.SetRanges: "ranges",
    rq.CompareMethods: "calibration methods", rq.CompareDumps: "comparing dumps"}
