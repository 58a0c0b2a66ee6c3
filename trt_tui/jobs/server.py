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

from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.runner import ExecutionMode
from trt_tui.files.scratch import remove_unused_scratch_folders
from trt_tui.jobs import (
    build,
    bundling,
    calibration,
    comparing_dumps,
    comparison,
    cutting,
    engine_inspection,
    engine_preview,
    exporting,
    methods,
    opening,
    preflight,
    remedies,
    row_toggles,
    sample_errors,
    saving_outputs,
    search_evaluator,
    setting_ranges,
    stages,
    statistics,
    stored_results,
    whatif,
)
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.lifeline import end_own_process_group, tie_process_to_parent
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter, Scheduler
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

CHECK_INTERVAL_S = 1.0
"""Within a job, the files that were opened are checked for changes this often."""


@dataclass(frozen=True)
class JobHandler:
    """How requests of one type are answered.

    Attributes:
        run: Returns the steps, for a workspace that is open and, unless the job only concerns a file, identified.
        urgency: Of the first step.
        writes_file: It writes or reads a file that was asked for: a newer request of the type does not replace it.
        needs_hashes: What it sends are figures of the network and the data, which are identified before.
    """

    run: Callable[[Workspace, ResultStore, JobReporter, Any], Steps[None]]
    urgency: Urgency
    writes_file: bool = False
    needs_hashes: bool = True


JOB_HANDLERS: dict[type[rq.Request], JobHandler] = {
    rq.CalibrateRanges: JobHandler(calibration.run_calibration_job, Urgency.OPENING),
    rq.UseRanges: JobHandler(calibration.run_use_ranges_job, Urgency.OPENING, needs_hashes=False),
    rq.RunPreflight: JobHandler(preflight.run_preflight_job, Urgency.ACCURACY),
    rq.CompareRuns: JobHandler(comparison.run_comparison_job, Urgency.FIRST_ACCURACY),
    rq.MeasureWhatIf: JobHandler(whatif.run_what_if_job, Urgency.WHAT_IF),
    rq.MeasureSampleErrors: JobHandler(sample_errors.run_sample_error_job, Urgency.ACCURACY),
    rq.MeasureSingleSample: JobHandler(sample_errors.run_single_sample_job, Urgency.FIRST_SHARES),
    rq.LoadStoredResults: JobHandler(stored_results.run_stored_results_job, Urgency.TENSOR_STATS),
    rq.MeasureRemedies: JobHandler(remedies.run_remedy_job, Urgency.REMEDIES),
    rq.MeasureToggles: JobHandler(row_toggles.run_toggle_job, Urgency.TOGGLES),
    rq.MeasureTensorStats: JobHandler(statistics.run_tensor_stats_job, Urgency.TENSOR_STATS),
    rq.SetRanges: JobHandler(setting_ranges.run_set_ranges_job, Urgency.WHAT_IF),
    rq.CompareRangeMethods: JobHandler(methods.run_method_comparison_job, Urgency.ACCURACY),
    rq.BuildEngine: JobHandler(build.run_build_job, Urgency.BUILD),
    rq.WriteEngine: JobHandler(build.run_write_engine_job, Urgency.BUILD, writes_file=True, needs_hashes=False),
    rq.ExportConfig: JobHandler(exporting.run_export_job, Urgency.BUILD, writes_file=True, needs_hashes=False),
    rq.MeasureStages: JobHandler(stages.run_stages_job, Urgency.ACCURACY),
    rq.WriteBundle: JobHandler(bundling.run_write_bundle_job, Urgency.BUILD, writes_file=True, needs_hashes=False),
    rq.WriteSubgraph: JobHandler(cutting.run_write_subgraph_job, Urgency.BUILD, writes_file=True, needs_hashes=False),
    rq.SaveOutputs: JobHandler(saving_outputs.run_save_outputs_job, Urgency.BUILD, writes_file=True,
                               needs_hashes=False),
    rq.ReadEngineFile: JobHandler(engine_inspection.run_engine_inspection_job, Urgency.BUILD, writes_file=True,
                                  needs_hashes=False),
    rq.PreviewEngine: JobHandler(engine_preview.run_preview_job, Urgency.OPENING, needs_hashes=False),
    rq.FindMixedPrecisionConfig: JobHandler(search_evaluator.run_search_job, Urgency.SEARCH),
}
"""The kinds of jobs, opening apart."""


class JobServer:
    """Answers the requests that come into the scheduler's inbox.

    Args:
        send: Called with each event.
        store: What was measured before; in the user's cache folder by default.
    """

    def __init__(self, send: Callable[[ev.Event], None], store: ResultStore | None = None) -> None:
        self.store = store or ResultStore()
        self.slot = WorkspaceSlot()
        self.scheduler = Scheduler(
            self._run_requested_job, {request: handler.urgency
                                      for request, handler in JOB_HANDLERS.items()}, send,
            unreplaced_types=(rq.WriteTextFile, rq.CompareDumps,
                              *(request for request, handler in JOB_HANDLERS.items() if handler.writes_file)),
            pause_others=engine_preview.set_preview_process_paused)

    def receive_requests(self, pipe: Connection) -> None:
        """Takes in what comes on a pipe until the other end closes it, then ends the process; run by a thread."""
        scheduler = self.scheduler
        with contextlib.suppress(EOFError, OSError):
            while (received := pipe.recv()) is not None:
                if isinstance(received, rq.StopJobs):
                    scheduler.stop_jobs(received.jobs)
                else:
                    scheduler.inbox.append(received)
                scheduler.arrival_event.set()
        end_own_process_group()

    def _run_requested_job(self, request: rq.Request, reporter: JobReporter) -> Steps[None]:
        """The steps of a job; between two of them the files that were opened are checked for changes."""
        try:
            if isinstance(request, rq.OpenNetwork):
                yield from opening.run_open_job(self.slot, self.store, reporter, request)
                return
            if isinstance(request, rq.WriteTextFile):
                yield from exporting.run_write_text_job(self.slot.workspace, reporter, request)
                return
            if isinstance(request, rq.CompareDumps):
                yield from comparing_dumps.run_dump_comparison_job(self.slot.workspace, self.store, reporter, request)
                return
            workspace = self.slot.require_workspace()
            handler = JOB_HANDLERS[type(request)]
            if workspace.fingerprint is None and handler.needs_hashes:
                yield from opening.hash_workspace(workspace, self.store, reporter)
            workspace.require_unchanged_files()
            with contextlib.closing(handler.run(workspace, self.store, reporter, request)) as steps:
                mode = None
                for step in steps:
                    mode = _send_pending_notices(workspace, reporter, mode)
                    yield step
                    workspace.require_unchanged_files(CHECK_INTERVAL_S)
                _send_pending_notices(workspace, reporter, mode)
        finally:
            if self.slot.workspace is not None:
                self.slot.workspace.update_file_stamps()  # some of a metric may have been imported by this job


def _send_pending_notices(workspace: Workspace, reporter: JobReporter,
                          last_execution_mode: ExecutionMode | None) -> ExecutionMode | None:
    """Sends what other processes tell, what memory did not suffice for, and how the simulation runs where that is not
    what a job was told last; returns what it knows of that now."""
    for log_level, text in workspace.worker_pool.take_new_messages() if workspace.worker_pool is not None else ():
        reporter.send(ev.LogMessage(reporter.job, text, log_level))
    for text in workspace.memory_fallbacks.take_messages():
        reporter.send(ev.LogMessage(reporter.job, text, "warning" if HOST_MODE in text else "info"))
    if (mode := workspace.execution_mode) is not None and mode != last_execution_mode:
        reporter.send(ev.ExecutionModeChanged(reporter.job, mode))
    return mode


def _make_event_sender(pipe: Connection) -> Callable[[ev.Event], None]:
    """Returns what sends an event, from any thread; the process ends if the program does not take it any more."""
    lock = threading.Lock()

    def send_event(event: ev.Event) -> None:
        message = pickle.dumps(event)
        try:
            with lock:
                pipe.send_bytes(message)
        except OSError:
            end_own_process_group()

    return send_event


def main(argv: Sequence[str]) -> None:
    """Entry of the child process: file descriptors of the pipe, the log and the lifeline."""
    pipe_descriptor, log, lifeline = (int(text) for text in argv)
    tie_process_to_parent(lifeline)
    os.set_inheritable(pipe_descriptor, False)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr, all_threads=False)  # the log tells where an abort or a crash came from
    with Connection(pipe_descriptor) as pipe:
        server = JobServer(_make_event_sender(pipe))
        remove_unused_scratch_folders()
        server.store.trim_to_size_limit()
        threading.Thread(target=server.receive_requests, args=(pipe,), daemon=True).start()
        server.scheduler.serve_requests()


if __name__ == "__main__":
    main(sys.argv[1:])
