"""Files for other tools and for people."""

from __future__ import annotations

from pathlib import Path

from trt_tui.core.exporters import production
from trt_tui.files.writing import write_atomic
from trt_tui.jobs import messages as m
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: m.Export) -> Steps[None]:
    """Writes a config in another tool's format, with the ranges in use."""
    report.send(m.Progress(report.job, f"writing {Path(request.path).name}", 0, 0))
    yield Urgency.BUILD
    ensure_ranges(workspace, store, report, [request.config])
    workspace.check()
    written = production.write(request.kind, Path(request.path), workspace.network, request.config, workspace.ranges,
                               shapes=workspace.profile, effort=workspace.options.effort)
    report.send(m.Exported(report.job, tuple(map(str, written))))


def write_text(report: Report, request: m.WriteText) -> Steps[None]:
    """Writes a text; nothing has to be open for it."""
    write_atomic(Path(request.path), request.text)
    report.send(m.Exported(report.job, (request.path,)))
    yield from ()
