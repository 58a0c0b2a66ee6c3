"""Files for other tools and for people."""

from collections.abc import Mapping
from pathlib import Path

from trt_tui.core.calibration.cache import read_header
from trt_tui.core.data.places import refuse_over
from trt_tui.core.exporters import production
from trt_tui.core.exporters.onnx import export_typed, loading_note, matching_note
from trt_tui.core.lowering.applied import hidden_note
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.lowering.releases import refuse_cubic_grids
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.files.writing import write_atomic
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ranges_to_write
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.words import plural
from trt_tui.workspace import Workspace

WITH_SHAPES = ("trtexec", "polygraphy")
"""The formats that hold an optimization profile."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.Export) -> Steps[None]:
    """Writes a config in another tool's format."""
    path, network, config = Path(request.path), workspace.network, request.config
    report.send(ev.Progress(report.job, f"writing {path.name}", 0, 0))
    yield Urgency.BUILD
    shapes = workspace.profile if request.kind in WITH_SHAPES else workspace.shapes
    told = config if request.kind == "onnx" else told_as(network, config)
    ranges, needless = ranges_to_write(workspace, store, report, told, request.given,
                                       every=request.kind == "calibration-cache")
    workspace.require_unchanged()
    refuse_cubic_grids(network, "TensorRT")
    if request.kind == "onnx":
        written, lines = write_typed(network, config, ranges, path)
    else:
        method = method_of(workspace, request.given, request.method, bool(needless))
        written, lines = production.write(request.kind, path, network, config, ranges, shapes=shapes,
                                          production=workspace.options.production, method=method), \
            _hidden(network, request)
    report.send(ev.Exported(report.job, tuple(map(str, written)), tuple(lines), needless))


def _hidden(network: Network, request: rq.Export) -> list[str]:
    """What to know of the outputs that are written beside the network's own."""
    kept = request.config.of(Barrier) if request.kind != "calibration-cache" else {}
    return list(hidden_note(Barrier.subject.ordered(network, kept)))


def method_of(workspace: Workspace, given: Mapping[str, float] | None, method: str, known: bool) -> str:
    """How the ranges that are written were measured; "" where nobody knows.

    Args:
        given, method: See `trt_tui.jobs.requests.Export`.
        known: Whether none had to be measured for this.
    """
    if workspace.options.calib_cache is not None:
        return read_header(workspace.options.calib_cache).method
    if given is None:
        return workspace.calibration.method if workspace.calibration is not None else ""
    return method if known else workspace.options.calib_method


def write_text(workspace: Workspace | None, report: Report, request: rq.WriteText) -> Steps[None]:
    """Writes a text, for which nothing has to be open; never overwrites a file that is open."""
    if workspace is not None:
        refuse_over([request.path], [workspace.network.path, *workspace.network.external_files])
    write_atomic(Path(request.path), request.text)
    report.send(ev.Exported(report.job, (request.path,)))
    yield from ()


def write_typed(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                path: Path) -> tuple[list[Path], list[str]]:
    """Writes the typed network; returns its files and what to tell the user.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: a range is missing, or the file cannot be written.
    """
    refuse_over([path], [network.path, *network.external_files])
    typed = lower_strong(network, config, ranges)
    written = export_typed(typed.model, network, path)
    counts: dict[str, int] = {}
    for group in network.groups:
        precision = config.precision_of(group)
        label = f"{group.given.label} as in the file" if precision is Precision.FILE and group.given is not None \
            else precision.label
        counts[label] = counts.get(label, 0) + 1
    lines = [", ".join(f"{plural(count, 'group')} in {label}" for label, count in sorted(counts.items())), *typed.notes,
             *filter(None, (loading_note(typed.model), matching_note(typed.model)))]
    return [written.path, *written.data], lines
