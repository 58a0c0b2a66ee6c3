"""The job that reads the layers of an engine file."""

from pathlib import Path

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.engines.inspector import read_engine_report
from trt_tui.core.engines.profile_report import read_profile_report
from trt_tui.errors import BackendUnavailableError
from trt_tui.files.reading import read_bytes
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_engine_inspection_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              request: rq.ReadEngineFile) -> Steps[None]:
    """Reads the layers of an engine file, of the inspector's JSON file, or of a profile, and sends them.

    Raises:
        InputError: The file is none of these, or the engine is from another release.
        BackendUnavailableError: No TensorRT works here to load the engine.
    """
    yield from ()
    file = Path(request.path)
    data = read_bytes(file)
    if data.lstrip()[:1] == b"[":
        reporter.send(ev.EngineFileRead(reporter.job, read_profile_report(file, workspace.network)))
        return
    if file.suffix.lower() == ".json" or data[:1] == b"{" and b'"Layers"' in data[:4096]:
        text = data.decode("utf-8", "replace")
    else:
        text = _inspect_engine(workspace, data)
    reporter.send(ev.EngineFileRead(reporter.job, read_engine_report(text, workspace.network)))


def _inspect_engine(workspace: Workspace, engine_bytes: bytes) -> str:
    builder = get_engine_builder(workspace.options.backend, plugins=workspace.options.production.plugins)
    if builder is None:
        raise BackendUnavailableError("no TensorRT here can load an engine", "trt-tui doctor shows why",
                                      "Give the JSON of trtexec --exportLayerInfo instead of the engine.")
    with builder.load_engine(engine_bytes) as runner:
        return runner.inspect()
