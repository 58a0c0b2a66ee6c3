"""Files for other tools and for people."""

from collections.abc import Mapping
from pathlib import Path

from trt_tui.core.calibration.cache import read_cache_header
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.lowering.lowered import replace_file_precision
from trt_tui.core.lowering.releases import refuse_cubic_grid_samples
from trt_tui.files.writing import write_file_atomically
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_export_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.ExportConfig) -> Steps[None]:
    """Writes a config in another tool's format."""
    path, network, config = Path(request.path), workspace.network, request.config
    export_format = EXPORT_FORMATS[request.kind]
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    shapes = workspace.shape_profile if export_format.has_build_commands else workspace.requested_shape_ranges
    written_config = config if export_format.keeps_file_precision else replace_file_precision(network, config)
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, written_config, request.config_ranges,
                                                     all_tensors=export_format.needs_all_ranges)
    workspace.require_unchanged_files()
    refuse_cubic_grid_samples(network, "TensorRT")
    method = range_method_text(workspace, request.config_ranges, request.method, bool(no_data_reason))
    written = write_export(request.kind, path, network, config, ranges, shapes=shapes,
                           builder_options=workspace.options.production, range_method=method)
    reporter.send(ev.ConfigExported(reporter.job, tuple(map(str, written.paths)), written.notes, no_data_reason))


def range_method_text(workspace: Workspace, config_ranges: Mapping[str, float] | None, range_method: str,
                      uses_known_ranges: bool) -> str:
    """How the ranges that are written were measured; "" where nobody knows.

    Args:
        config_ranges, range_method: See `trt_tui.jobs.requests.ExportConfig`.
        uses_known_ranges: Whether none had to be measured for this.
    """
    if workspace.options.calib_cache is not None:
        return read_cache_header(workspace.options.calib_cache).range_method
    if config_ranges is None:
        return workspace.calibration.method if workspace.calibration is not None else ""
    return range_method if uses_known_ranges else workspace.options.calib_method


def run_write_text_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                       request: rq.WriteTextFile) -> Steps[None]:
    """Writes a text, for which nothing has to be open; never overwrites a file that is open."""
    if (workspace := slot.workspace) is not None:
        refuse_overwriting_inputs([request.path], [workspace.network.path, *workspace.network.external_files])
    write_file_atomically(Path(request.path), request.text)
    reporter.send(ev.ConfigExported(reporter.job, (request.path,)))
    yield from ()
