"""The exported file of a config, executed by ONNX Runtime as a user's own program would, and judged at its outputs.

What is executed are the bytes that ``export --format onnx`` writes, with default session options. Nothing is built: an
`ExportedRun` has neither a latency nor a size, and it confirms no engine.
"""

import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np

from trt_tui.core.exporters.production import write
from trt_tui.core.measure.comparison import Caveat, ExportedRun, Verdict
from trt_tui.core.measure.judge import tensor_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.chance import draws
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.files.scratch import scratch_folder
from trt_tui.jobs.death import why_it_ended
from trt_tui.jobs.exported_process import Execution
from trt_tui.jobs.judging import as_declared
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import Store
from trt_tui.module_path import python_command
from trt_tui.words import first_few
from trt_tui.workspace import Workspace

LOG_BYTES = 4096
"""The end of what the process has printed, for the reason of a crash."""

_KIND = "exported network"
"""The name under which executions are stored."""


class _NotExecutedError(Exception):
    """The reason why a file was not executed."""


def execute(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, urgency: Urgency,
            feeds: Sequence[int] | None = None) -> Steps[ExportedRun]:
    """Returns the execution of a config's exported file on the judged samples; from the store if it is known.

    A file that cannot be written or executed is no error: the result has the reason.

    Args:
        feeds: Execute it on these feeds alone, which is not stored; on all that values are taken on if None.

    Raises:
        CancelledError: The job was stopped.
    """
    known = store.known(workspace, _KIND, config, ExportedRun) if feeds is None else None
    if known is not None:
        return known
    backend = workspace.backend
    found = ExportedRun(f"ONNX Runtime {backend.version} {backend.provider.upper()}", backend.provider)
    report.progress("exporting the network", 0, 0, time.monotonic())
    yield urgency
    try:
        with scratch_folder() as folder:
            path = folder / "exported.onnx"
            _write(workspace, config, path)
            yield urgency
            verdict = yield from _judged(workspace, report, config, path, urgency, feeds or workspace.feeds)
    except CancelledError:
        raise
    except _NotExecutedError as error:
        return replace(found, missing=str(error))
    except TrtTuiError as error:
        return replace(found, missing=": ".join(filter(None, (error.title, error.cause))))
    caveat = Caveat("no engine", f"{found.executor} executed it, and production may run another engine")
    found = replace(found, accuracy=replace(verdict, caveats=(*verdict.caveats, caveat)))
    if feeds is None:
        store.keep(workspace, _KIND, config, found)
    return found


def known_run(workspace: Workspace, store: Store, config: PrecisionConfig) -> ExportedRun | None:
    """Returns the stored execution of a config's exported file; None if there is none."""
    return store.known(workspace, _KIND, config, ExportedRun)


def _write(workspace: Workspace, config: PrecisionConfig, path: Path) -> None:
    network = workspace.network
    random = [node.name or node.op_type for node in network.model.graph.all_nodes() if draws(node)]
    if random:
        raise _NotExecutedError(f"it draws random numbers in {first_few(random, most=2)}, so two runs differ by chance")
    if network.behind:
        raise _NotExecutedError("it holds plugins, which ONNX Runtime does not have")
    write("onnx", path, network, config, workspace.ranges)


def _judged(workspace: Workspace, report: Report, config: PrecisionConfig, path: Path, urgency: Urgency,
            feeds: Sequence[int]) -> Steps[Verdict]:
    """Executes a file in a process of its own; returns the accuracy at the network's outputs."""
    analysis, options = workspace.analysis, workspace.options
    names = tuple(name for name in tensor_outputs(workspace.network) if name in
                  {info.name for info in workspace.network.outputs})
    judged = [one for one in analysis.judged if one.tensor in names]
    if not judged:
        raise _NotExecutedError("no judged tensor is an output of the exported network")
    tally = analysis.tally(feeds, judged, scored=set(analysis.scored) <= set(names))
    process = _Process(Execution(str(path), names, workspace.backend.provider, config.tf32, options.threads,
                                 tuple(map(os.path.abspath, options.ort_ops))), report.wake)
    since, waits = time.monotonic(), Wait(process.answered, frozenset(one for one in Urgency if one > urgency))
    try:
        yield waits
        process.answer()
        for done, index in enumerate(feeds, 1):
            process.send(analysis.samples.feed(index))
            yield waits
            tally.add(index, as_declared(analysis, process.answer() or {}))
            report.progress("executing the exported network", done, len(feeds), since)
            yield urgency
    finally:
        process.close()
    verdict = tally.verdict()
    for settled in tally.settled(verdict):
        verdict = settled
        yield urgency
    return verdict


class _Process:
    """The process that executes a file, and what it has answered; see `trt_tui.jobs.exported_process`.

    Args:
        wake: Called from a thread when there is an answer, or the process has ended.
    """

    def __init__(self, asked: Execution, wake: Callable[[], None]) -> None:
        self._pipe, theirs = Pipe()
        tied, held = os.pipe()
        self._lifeline = open(held, "wb")
        self._log = tempfile.TemporaryFile()
        with theirs, open(tied, "rb"):
            descriptors = (theirs.fileno(), tied)
            self._process = subprocess.Popen(
                python_command("trt_tui.jobs.exported_process", *descriptors),
                pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._wake = wake
        self._ended = False
        self._answers = queue.SimpleQueue[Mapping[str, np.ndarray] | str | None]()
        self._outgoing = queue.SimpleQueue[object]()
        self._outgoing.put(asked)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, feed: Mapping[str, np.ndarray]) -> None:
        """Asks for the outputs of a feed."""
        self._outgoing.put(dict(feed))

    def answered(self) -> bool:
        """Returns True if there is an answer, or will be none."""
        return self._ended or not self._answers.empty()

    def answer(self) -> Mapping[str, np.ndarray] | None:
        """Returns the next answer.

        Raises:
            _NotExecutedError: The file was refused, or the process has ended.
        """
        if self._answers.empty():
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
            text = self._log.read().decode(errors="replace")
            death = why_it_ended(self._process.wait(), text, None, None)
            raise _NotExecutedError(f"ONNX Runtime crashed on the exported file: {death.why.rstrip('.')}")
        found = self._answers.get()
        if isinstance(found, str):
            raise _NotExecutedError(found)
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._outgoing.put(None)
        self._thread.join()
        self._process.wait()
        self._pipe.close()
        self._lifeline.close()
        self._log.close()

    def _serve(self) -> None:
        with suppress(EOFError, OSError):
            while (message := self._outgoing.get()) is not None:
                self._pipe.send(message)
                self._answers.put(self._pipe.recv())
                self._wake()
        self._ended = True
        self._wake()
