"""The child process: answers the program's requests, one step of a job at a time.

Requests arrive on a pipe that a thread reads; when the program at the other end is gone, the process ends.
"""

import contextlib
import faulthandler
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trt_tui.core.data.portions import ON_HOST
from trt_tui.core.runner import Level
from trt_tui.files.scratch import clear_scratch
from trt_tui.jobs import (
    bench,
    build,
    bundling,
    calibrating,
    comparing,
    comparing_dumps,
    cutting,
    exporting,
    flips,
    inspecting,
    methods,
    opening,
    preflight,
    previewing,
    recalling,
    samples,
    saving_outputs,
    setting_ranges,
    staging,
    statistics,
    ways_out,
    whatif,
)
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.lifeline import end_process, tie
from trt_tui.jobs.opening import Place
from trt_tui.jobs.scheduler import Report, Scheduler
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace

LOOKS_S = 1.0
"""Within a job, the files that were opened are checked for changes this often."""


@dataclass(frozen=True)
class Job:
    """How requests of one type are answered.

    Attributes:
        run: Returns the steps, for a workspace that is open and, unless the job only concerns a file, identified.
        urgency: Of the first step.
        file: It writes or reads a file that was asked for: a newer request of the type does not replace it.
        measures: What it sends are figures of the network and the data, which are identified before.
    """

    run: Callable[[Workspace, Store, Report, Any], Steps[None]]
    urgency: Urgency
    file: bool = False
    measures: bool = True


JOBS: dict[type[rq.Request], Job] = {
    rq.Calibrate: Job(calibrating.run, Urgency.OPENING),
    rq.UseRanges: Job(calibrating.use, Urgency.OPENING, measures=False),
    rq.Preflight: Job(preflight.run, Urgency.VERDICT),
    rq.Compare: Job(comparing.run, Urgency.FIRST_VERDICT),
    rq.WhatIf: Job(whatif.run, Urgency.WHAT_IF),
    rq.MeasureSamples: Job(samples.run, Urgency.VERDICT),
    rq.JudgeSample: Job(samples.alone, Urgency.MAP),
    rq.Recall: Job(recalling.run, Urgency.STATS),
    rq.TryWaysOut: Job(ways_out.run, Urgency.WAYS_OUT),
    rq.TryFlips: Job(flips.run, Urgency.FLIPS),
    rq.Stats: Job(statistics.run, Urgency.STATS),
    rq.SetRanges: Job(setting_ranges.run, Urgency.WHAT_IF),
    rq.CompareMethods: Job(methods.run, Urgency.VERDICT),
    rq.Build: Job(build.run, Urgency.BUILD),
    rq.WriteEngine: Job(build.write, Urgency.BUILD, file=True, measures=False),
    rq.Export: Job(exporting.run, Urgency.BUILD, file=True, measures=False),
    rq.MeasureStages: Job(staging.run, Urgency.VERDICT),
    rq.WriteBundle: Job(bundling.run, Urgency.BUILD, file=True, measures=False),
    rq.WriteSubgraph: Job(cutting.run, Urgency.BUILD, file=True, measures=False),
    rq.SaveOutputs: Job(saving_outputs.run, Urgency.BUILD, file=True, measures=False),
    rq.ReadEngine: Job(inspecting.run, Urgency.BUILD, file=True, measures=False),
    rq.PreviewEngine: Job(previewing.run, Urgency.OPENING, measures=False),
    rq.FindConfig: Job(bench.run, Urgency.SEARCH),
}
"""The kinds of jobs, opening apart."""


class Worker:
    """Answers the requests that come into the scheduler's inbox.

    Args:
        send: Called with each event.
        store: What was measured before; in the user's cache folder by default.
    """

    def __init__(self, send: Callable[[ev.Event], None], store: Store | None = None) -> None:
        self.store = store or Store()
        self.place = Place()
        self.scheduler = Scheduler(self._steps, {request: job.urgency for request, job in JOBS.items()}, send,
                                   lasting=(rq.WriteText, rq.CompareDumps,
                                            *(request for request, job in JOBS.items() if job.file)),
                                   hold=previewing.hold)

    def listen(self, pipe: Connection) -> None:
        """Takes in what comes on a pipe until the other end closes it, then ends the process; run by a thread."""
        scheduler = self.scheduler
        with contextlib.suppress(EOFError, OSError):
            while (received := pipe.recv()) is not None:
                if isinstance(received, rq.Stop):
                    scheduler.stop(received.jobs)
                else:
                    scheduler.inbox.append(received)
                scheduler.arrived.set()
        end_process()

    def _steps(self, request: rq.Request, report: Report) -> Steps[None]:
        """The steps of a job; between two of them the files that were opened are checked for changes."""
        try:
            if isinstance(request, rq.Open):
                yield from opening.run(self.place, self.store, report, request)
                return
            if isinstance(request, rq.WriteText):
                yield from exporting.write_text(self.place.workspace, report, request)
                return
            if isinstance(request, rq.CompareDumps):
                yield from comparing_dumps.run(self.place.workspace, self.store, report, request)
                return
            workspace = self.place.opened()
            job = JOBS[type(request)]
            if workspace.source is None and job.measures:
                yield from opening.identify(workspace, self.store, report)
            workspace.require_unchanged()
            with contextlib.closing(job.run(workspace, self.store, report, request)) as steps:
                level = None
                for step in steps:
                    level = _tell(workspace, report, level)
                    yield step
                    workspace.require_unchanged(LOOKS_S)
                _tell(workspace, report, level)
        finally:
            if self.place.workspace is not None:
                self.place.workspace.watch()  # some of a metric may have been imported by this job


def _tell(workspace: Workspace, report: Report, told: Level | None) -> Level | None:
    """Sends what other processes tell, what memory did not suffice for, and how the simulation runs where that is not
    what a job was told last; returns what it knows of that now."""
    for note, text in workspace.others.told() if workspace.others is not None else ():
        report.send(ev.Note(report.job, text, note))
    for text in workspace.portions.news():
        report.send(ev.Note(report.job, text, "warning" if ON_HOST in text else "info"))
    if (level := workspace.level) is not None and level != told:
        report.send(ev.RunsAt(report.job, level))
    return level


def _sender(pipe: Connection) -> Callable[[ev.Event], None]:
    """Returns what sends an event, from any thread; the process ends if the program does not take it any more."""
    lock = threading.Lock()

    def send(event: ev.Event) -> None:
        message = pickle.dumps(event)
        try:
            with lock:
                pipe.send_bytes(message)
        except OSError:
            end_process()

    return send


def main(argv: Sequence[str]) -> None:
    """Entry of the child process: file descriptors of the pipe, the log and the lifeline."""
    requests, log, lifeline = (int(text) for text in argv)
    tie(lifeline)
    os.set_inheritable(requests, False)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr, all_threads=False)  # the log tells where an abort or a crash came from
    with Connection(requests) as pipe:
        worker = Worker(_sender(pipe))
        clear_scratch()
        worker.store.trim()
        threading.Thread(target=worker.listen, args=(pipe,), daemon=True).start()
        worker.scheduler.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
