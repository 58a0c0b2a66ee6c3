"""The execution of the exported file of a config in ONNX Runtime, in a process of its own."""

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.backends.onnxruntime import ExportedFileRunner, truncates_fp16_quantization
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.lowering.lowering_checks import tensorrt_operators_text
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer, convert_to_comparable_array
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.results import NO_ENGINE_DOUBT, Accuracy, Caveat, ExportedRun, Run, RunKind
from trt_tui.core.measure.run_sources import RunSource
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.randomness import is_random
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.files.writing import create_scratch_folder
from trt_tui.formatting import name_list_text
from trt_tui.jobs.child_exit import ChildProcess, diagnose_exit
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Steps, Urgency, Wait, start_thread
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

LOG_BYTES = 4096
"""The number of bytes at the end of the process's output that are searched for the reason of a crash."""

_STORE_KIND = "exported network"
"""The name under which executions of exported files are stored."""


class _NotExecutedError(TrtTuiError):
    """An exported file was not executed; the title is the reason."""


def execute_exported_file(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                          urgency: Urgency, feed_indices: Sequence[int] | None = None) -> Steps[ExportedRun]:
    """Executes the exported file of a config on the judged samples, or takes the result from the store. Returns the
    result.

    The executed bytes are those that ``export --format onnx`` writes. `trt_tui.backends.onnxruntime` names the
    exceptions. Nothing is built: an `ExportedRun` has neither a latency nor a size, and it confirms no engine.

    If the file cannot be written or executed, no error is raised, and the result contains the reason.

    Args:
        feed_indices: The feeds to execute, whose result is not stored; None for all feeds that values are measured on.

    Raises:
        CancelledError: The job was stopped.
    """
    cached = store.load_result(workspace, _STORE_KIND, config, ExportedRun) if feed_indices is None else None
    if cached is not None:
        return cached
    backend = workspace.backend
    exported_run = ExportedRun(None, f"ONNX Runtime {backend.version} {backend.provider.upper()}", backend.provider)
    reporter.send_progress("exporting the network", 0, 0, time.monotonic())
    yield urgency
    try:
        with create_scratch_folder() as folder:
            path = folder / "exported.onnx"
            _export_onnx(workspace, config, path)
            yield urgency
            accuracy, options = yield from _measure_exported_file_accuracy(
                workspace, reporter, config, path, urgency, feed_indices or workspace.find_judged_feeds(config))
            exported_run = replace(exported_run, options=options,
                                   executor_name=" ".join(filter(None, (exported_run.executor_name, options))))
    except CancelledError:
        raise
    except TrtTuiError as error:
        return replace(exported_run, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    rounding_text = (" with FP16 values quantized in FP32, because this release truncates them"
                     if truncates_fp16_quantization() else "")
    caveat = Caveat("no engine", f"{exported_run.executor_name} executed it{rounding_text}, and {NO_ENGINE_DOUBT}")
    exported_run = replace(exported_run, accuracy=replace(accuracy, caveats=(*accuracy.caveats, caveat)))
    if feed_indices is None:
        store.save_result(workspace, _STORE_KIND, config, exported_run)
    return exported_run


def find_stored_exported_run(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> ExportedRun | None:
    return store.load_result(workspace, _STORE_KIND, config, ExportedRun)


def _export_onnx(workspace: Workspace, config: PrecisionConfig, path: Path) -> None:
    network = workspace.network
    random_nodes = [node.name or node.op_type for node in network.model.graph.all_nodes() if is_random(node)]
    if random_nodes:
        raise _NotExecutedError(
            f"it draws random numbers in {name_list_text(random_nodes, max_count=2)}, so two runs differ by chance")
    if network.blocking_plugins:
        raise _NotExecutedError("it holds plugins, which ONNX Runtime does not have")
    if texts := tensorrt_operators_text(network, config):
        raise _NotExecutedError(
            f"its layers in {texts} contain operators of TensorRT, which ONNX Runtime does not have")
    write_export("onnx", path, network, config, workspace.ranges)


def _measure_exported_file_accuracy(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig, path: Path,
                                    urgency: Urgency, feed_indices: Sequence[int]) -> Steps[tuple[Accuracy, str]]:
    """Executes an exported file in a separate process. Returns its accuracy at the network's outputs, and the options
    that the file needed to load."""
    analysis, options = workspace.analysis, workspace.options
    names = tuple(name for name in list_tensor_outputs(workspace.network) if name in
                  {info.name for info in workspace.network.outputs})
    if not any(output.tensor in names for output in analysis.judged_outputs):
        raise _NotExecutedError("no judged tensor is an output of the exported network")
    process = _ExportedRunProcess(
        partial(ExportedFileRunner, str(path), workspace.backend.provider, tf32=config.tf32, threads=options.threads,
                operators=tuple(map(os.path.abspath, options.ort_ops))), names, reporter.wake)
    source = _ExportedFileRun(analysis, process, names, urgency)
    try:
        partials = analysis.compare(source, feed_indices, with_caveats=False)
        accuracy = yield from reporter.follow(take_last_value(partials, "executing the exported network"), urgency)
    finally:
        process.close()
    return accuracy, source.options


class _ExportedFileRun(RunSource):
    """The run of an exported file that another process executes."""

    def __init__(self, analysis: Analysis, process: "_ExportedRunProcess", output_names: Sequence[str],
                 urgency: Urgency) -> None:
        super().__init__(Run("exported network", RunKind.EXPORTED_FILE), output_names)
        self._analysis, self._process, self.options = analysis, process, ""
        self._blocked_urgencies = frozenset(item for item in Urgency if item > urgency)

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Wait | None]:
        self.options = yield from self._process.take_answer(self._blocked_urgencies)
        for index in feed_indices:
            samples = self._analysis.samples
            self._process.ask(dict(samples.read_full_feed(index)))
            outputs = samples.remove_padding((yield from self._process.take_answer(self._blocked_urgencies)), index)
            reducer.add_feed_outputs(index, cast_to_declared_types(self._analysis, outputs))
            yield None


class _ExportedRunProcess(ChildProcess):
    """The client of a process that executes an exported file (`trt_tui.jobs.exported_process`).

    Args:
        load_file: The function that loads the file in the process.
        names: The names of the requested outputs.
        wake: A function that a thread calls when there is an answer, or the process has ended.
    """

    def __init__(self, load_file: Callable[[], ExportedFileRunner], names: Sequence[str],
                 wake: Callable[[], None]) -> None:
        self._log = tempfile.TemporaryFile()
        super().__init__("trt_tui.jobs.exported_process", stdout=self._log, stderr=self._log)
        self._wake = wake
        self.ask((load_file, names))

    def ask(self, message: object) -> None:
        self.send(message)
        self._answer: Future[Any] = start_thread(self.pipe.recv, self._wake)

    def take_answer(self, blocked_urgencies: frozenset[Urgency]) -> Generator[Wait, None, Any]:
        """Returns the answer to the last message: to the first one the options of the file, to a feed its outputs.

        Raises:
            TrtTuiError: ONNX Runtime refused the file, or the process has ended.
        """
        yield Wait(self._answer.done, blocked_urgencies)
        try:
            answer = self._answer.result()
        except (EOFError, OSError):
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
            text = self._log.read().decode(errors="replace")
            exit_diagnosis = diagnose_exit(self.process.wait(), text, None, None)
            raise _NotExecutedError(
                f"ONNX Runtime crashed on the exported file: {exit_diagnosis.reason.rstrip('.')}") from None
        if isinstance(answer, TrtTuiError):
            raise answer
        return answer

    def close(self) -> None:
        self.process.kill()
        wait([self._answer])
        self.process.wait()
        super().close()
        self._log.close()


def cast_to_declared_types(analysis: Analysis, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns outputs in the types that the network declares. An engine may return INT32 for INT64."""
    network = analysis.network
    types = {info.name: info.dtype for info in network.outputs}
    types |= dict.fromkeys(analysis.extra_outputs, np.dtype(np.float32))
    return {name: array.astype(types[name], copy=False) if array.dtype.kind != "U" else array
            for name, array in ((name, convert_to_comparable_array(value)) for name, value in outputs.items())}
