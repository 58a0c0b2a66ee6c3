"""Files for other tools and for people."""

from collections.abc import Mapping
from pathlib import Path

from trt_tui.core.calibration.cache import read_cache_header
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.exporters import formats
from trt_tui.core.exporters.onnx import export_typed_network, onnxruntime_loading_note, qdq_loss_debug_note
from trt_tui.core.lowering.lowered import replace_file_precision
from trt_tui.core.lowering.network_rewrite import fusion_barrier_output_notes
from trt_tui.core.lowering.releases import refuse_cubic_grid_samples
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

PROFILE_FORMATS = ("trtexec", "polygraphy")
"""The formats that hold an optimization profile."""


def run_export_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.ExportConfig) -> Steps[None]:
    """Writes a config in another tool's format."""
    path, network, config = Path(request.path), workspace.network, request.config
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    shapes = workspace.shape_profile if request.kind in PROFILE_FORMATS else workspace.requested_shape_ranges
    written_config = config if request.kind == "onnx" else replace_file_precision(network, config)
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, written_config, request.config_ranges,
                                                     all_tensors=request.kind == "calibration-cache")
    workspace.require_unchanged_files()
    refuse_cubic_grid_samples(network, "TensorRT")
    if request.kind == "onnx":
        written_paths, lines = write_typed_network(network, config, ranges, path)
    else:
        method = range_method_text(workspace, request.config_ranges, request.method, bool(no_data_reason))
        written_paths, lines = (formats.write_export(request.kind, path, network, config, ranges, shapes=shapes,
                                                     builder_options=workspace.options.production,
                                                     range_method=method), _additional_output_lines(network, request))
    reporter.send(ev.ConfigExported(reporter.job, tuple(map(str, written_paths)), tuple(lines), no_data_reason))


def _additional_output_lines(network: Network, request: rq.ExportConfig) -> list[str]:
    """What to know of the outputs that are written beside the network's own."""
    barriers = request.config.get_moves(BarrierMove) if request.kind != "calibration-cache" else {}
    return list(fusion_barrier_output_notes(BarrierMove.subject_kind.sort_subjects(network, barriers)))


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


def write_typed_network(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                        path: Path) -> tuple[list[Path], list[str]]:
    """Writes the typed network; returns its files and what to tell the user.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: a range is missing, or the file cannot be written.
    """
    refuse_overwriting_inputs([path], [network.path, *network.external_files])
    typed_model = lower_from_source_model(network, config, ranges)
    written = export_typed_network(typed_model.model, network, path)
    counts: dict[str, int] = {}
    for group in network.groups:
        precision = config.precision_of(group)
        label = (f"{group.file_precision.label} as in the file"
                 if precision is Precision.FILE and group.file_precision is not None else precision.label)
        counts[label] = counts.get(label, 0) + 1
    lines = [
        ", ".join(f"{counted_noun_text(count, 'group')} in {label}" for label, count in sorted(counts.items())),
        *typed_model.notes,
        *filter(None, (onnxruntime_loading_note(typed_model.model), qdq_loss_debug_note(typed_model.model)))
    ]
    return [written.path, *written.data_files], lines
