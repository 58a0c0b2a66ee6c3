"""The export jobs: files for other tools, bundles for production, and subgraphs of the network."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.exporters.bundle import MAX_FEEDS, MAX_SAMPLE_BYTES, BundleContents, SampleRun, write_bundle
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.exporters.subgraph import (
    FP32_FILE,
    TYPED_FILE,
    check_tensor_names,
    extract_subgraph,
    find_group_boundary,
    write_subgraph,
)
from trt_tui.core.lowering.lowering_checks import refuse_cubic_grid_samples, replace_file_precision
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.failed_runs import attribute_failures_to_rounding
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_outputs import add_outputs
from trt_tui.core.network.target_release import BuildTarget, parse_release
from trt_tui.core.precision import Precision
from trt_tui.files.writing import fill_folder_atomically, require_empty_folder, write_file_atomically
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import add_ranges_of_config, collect_calibration_to_write, collect_ranges_to_write
from trt_tui.jobs.engine import lower_for_builder, make_build_settings, report_known_defects, timing_cache_path
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_export_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.ExportConfig) -> Steps[None]:
    """Writes a config in the format of another tool."""
    path, network, config = Path(request.path), workspace.network, request.config
    export_format = EXPORT_FORMATS[request.kind]
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    shapes = workspace.shape_profile if export_format.has_build_commands else workspace.requested_shape_ranges
    written_config = config if export_format.keeps_file_precision else replace_file_precision(network, config)
    calibration, no_data_reason = collect_calibration_to_write(
        workspace, store, reporter, written_config, request.config_calibration,
        all_tensors=export_format.needs_all_ranges, needs_ranges=not export_format.can_lack_ranges)
    workspace.require_unchanged_files()
    if not export_format.can_lack_ranges:
        refuse_cubic_grid_samples(network, "TensorRT")
    report_known_defects(workspace, reporter, config, workspace.build_target)
    ranges = add_ranges_of_config(calibration.range_table, config)
    written = write_export(request.kind, path, network, config, ranges, shapes=shapes,
                           builder_options=workspace.options.production, calibration=calibration)
    reporter.send(ev.ConfigExported(reporter.job, tuple(map(str, written.paths)), written.notes, no_data_reason))


def _make_bundle_target(workspace: Workspace, release_name: str) -> BuildTarget:
    """Returns the target of a bundle: the exact release if it is known, or else all releases of the bundle's name."""
    target = workspace.build_target
    if target.release is not None and target.release.family == release_name:
        return target
    return replace(target, release=parse_release(release_name))


def run_write_text_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                       request: rq.WriteTextFile) -> Steps[None]:
    """Writes a text file. No network needs to be open, and a file of an open network is never overwritten."""
    if (workspace := slot.workspace) is not None:
        refuse_overwriting_inputs([request.path], [workspace.network.path, *workspace.network.external_files])
    write_file_atomically(Path(request.path), request.text)
    reporter.send(ev.ConfigExported(reporter.job, (request.path,)))
    yield from ()


def run_write_bundle_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.WriteBundle) -> Steps[None]:
    """Writes a bundle into a new folder, which appears complete or not at all."""
    destination, network, config = Path(request.path), workspace.network, request.config
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    require_empty_folder(destination)
    report_known_defects(workspace, reporter, config, _make_bundle_target(workspace, request.release))
    calibration, no_data_reason = collect_calibration_to_write(workspace, store, reporter, config,
                                                               request.config_calibration)
    ranges = add_ranges_of_config(calibration.range_table, config)
    workspace.require_unchanged_files()
    iterations = yield from _collect_bundle_sample_runs(workspace, reporter, config, ranges)
    bundle = BundleContents(request.release, network, config, ranges, request.config_text,
                            calibration.method, workspace.shape_profile,
                            _choose_builder_options(workspace, store, request, ranges), workspace.samples.source,
                            iterations, request.with_samples, request.comparison_report)
    with fill_folder_atomically(destination) as folder:
        written_paths = write_bundle(folder, bundle)
    paths = [destination / path.relative_to(folder) for path in written_paths]
    reporter.send(ev.ConfigExported(reporter.job, (str(destination), *map(str, paths)), (), ""))


def _choose_builder_options(workspace: Workspace, store: ResultStore, request: rq.WriteBundle,
                            ranges: Mapping[str, float]) -> BuilderOptions:
    """Returns the builder options of a bundle, with the timing cache of an earlier build of the config if there is one.

    The timing cache is added only if the options name none, and the bundle is for the installed release.
    """
    production, builder = workspace.options.production, workspace.builder
    if production.timing_cache or builder is None or builder.name != "tensorrt" or not builder.version.startswith(
            f"{request.release}."):
        return production
    plan, network, config = workspace.plan, workspace.network, request.config
    constraints = lower_for_builder(network, config, ranges, builder.capabilities, builder.name).constraints
    settings = make_build_settings(workspace.analysis, workspace.find_judged_feeds(config), plan, config)
    timing_cache = timing_cache_path(settings, builder, network, constraints, store.engines)
    return replace(production, timing_cache=str(timing_cache)) if timing_cache.is_file() else production


def _collect_bundle_sample_runs(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig,
                                ranges: Mapping[str, float]) -> Steps[list[SampleRun]]:
    """Returns the first judged feeds with the network's outputs in FP32 and in the simulation of the config."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    names = list_tensor_outputs(network)
    analysis = Analysis(network, workspace.backend, samples, workspace.judged_outputs,
                        boundary_type=workspace.options.other, extra_tensors=names)
    iterations: list[SampleRun] = []
    start_time, feed_indices = time.monotonic(), workspace.find_judged_feeds(config)[:MAX_FEEDS]
    with contextlib.closing(analysis):
        runs = zip(analysis.execute_config(PrecisionConfig.from_precision(Precision.FP32), {}, feed_indices),
                   analysis.execute_config(config, ranges, feed_indices), strict=True)
        for done, (index, (reference, simulated)) in enumerate(zip(feed_indices, runs, strict=True), 1):
            iteration = SampleRun(samples.read_full_feed(index),
                                  *({name: samples.pad_rows(outputs[name], index) for name in names}
                                    for outputs in (reference, simulated)))
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
            reporter.send_progress("samples for the bundle", done, len(feed_indices), start_time)
            yield Urgency.BUILD
    return iterations


def run_write_subgraph_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           request: rq.WriteSubgraph) -> Steps[None]:
    """Writes a subgraph of the network into a new folder, which appears complete or not at all."""
    destination, network = Path(request.path), workspace.network
    require_empty_folder(destination)
    start, stop = find_group_boundary(network, network.get_group(
        request.group)) if request.group else (request.start_tensors, request.stop_tensors)
    check_tensor_names(network, (*start, *stop))
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, request.config,
                                                     request.config_calibration)
    typed_model = lower_from_source_model(network, request.config, ranges).model
    iterations = _collect_subgraph_sample_runs(workspace, request.config, typed_model, start, stop)
    workspace.require_unchanged_files()
    with fill_folder_atomically(destination) as folder:
        written_paths = write_subgraph(folder, network, {FP32_FILE: network.model, TYPED_FILE: typed_model}, start,
                                       stop, iterations)
    reporter.send(
        ev.ConfigExported(reporter.job, (str(destination), *(str(destination / path.name) for path in written_paths)),
                          (), no_data_reason))


def _collect_subgraph_sample_runs(workspace: Workspace, config: PrecisionConfig, typed_model: ir.Model,
                                  start_tensors: Sequence[str], stop_tensors: Sequence[str]) -> list[SampleRun]:
    """Returns the inputs of a subgraph on the first judged feeds, with its outputs in FP32 and in the typed network."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    produced = {value.name for node in network.model.graph for value in node.outputs}
    output_names = {output.name for output in network.model.graph.outputs}
    read_names = [name for name in dict.fromkeys((*start_tensors, *stop_tensors)) if name in produced]
    extended_model = add_outputs(network.model, [name for name in read_names if name not in output_names])
    iterations: list[SampleRun] = []
    piece_model = extract_subgraph(typed_model, start_tensors, stop_tensors)
    with load_adaptive_runner(workspace.backend, extended_model,
                              samples) as fp32, workspace.backend.load(piece_model) as lowered:
        for index in workspace.find_judged_feeds(config)[:MAX_FEEDS]:
            feed: Mapping[str, np.ndarray] = samples.read_full_feed(index)
            values = {**feed, **fp32.run(feed, read_names)}
            inputs = {name: values[name] for name in start_tensors}
            reference = {name: values[name] for name in stop_tensors}
            with attribute_failures_to_rounding(network):
                iteration = SampleRun(inputs, reference, lowered.run(inputs, list(stop_tensors)))
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
    return iterations
