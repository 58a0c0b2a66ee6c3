"""A folder that carries a config into production, with samples, a report and what checks the engine."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.statistics import TensorStats, collect_tensor_stats
from trt_tui.core.exporters.bundle import MAX_FEEDS, MAX_SAMPLE_BYTES, BundleContents, SampleRun, write_bundle
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.files.folders import fill_folder_atomically, require_empty_folder
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write
from trt_tui.jobs.engine_accuracy import make_build_settings
from trt_tui.jobs.engine_build import lower_for_builder, timing_cache_path
from trt_tui.jobs.exporting import range_method_text
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

MAX_HISTOGRAMS = 3
"""How many layers that lose have their values drawn."""


def run_write_bundle_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.WriteBundle) -> Steps[None]:
    """Writes a bundle; the folder appears whole or not at all."""
    destination, network, config = Path(request.path), workspace.network, request.config
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    require_empty_folder(destination)
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, config, request.config_ranges)
    workspace.require_unchanged_files()
    iterations = yield from _collect_bundle_sample_runs(workspace, reporter, config, ranges)
    histograms = _collect_input_histograms(workspace, reporter, request, ranges)
    bundle = BundleContents(request.release, network, config, ranges, request.config_text,
                            range_method_text(workspace, request.config_ranges, request.method,
                                              bool(no_data_reason)), workspace.shape_profile,
                            _choose_builder_options(workspace, store, request, ranges), workspace.samples.source,
                            iterations, request.with_samples, request.comparison_record, histograms)
    with fill_folder_atomically(destination) as folder:
        written_paths = write_bundle(folder, bundle)
    paths = [destination / path.relative_to(folder) for path in written_paths]
    reporter.send(ev.ConfigExported(reporter.job, (str(destination), *map(str, paths)), (), ""))


def _choose_builder_options(workspace: Workspace, store: ResultStore, request: rq.WriteBundle,
                            ranges: Mapping[str, float]) -> BuilderOptions:
    """How the builder is to work: with the tactics that were measured where this config was built here, if none are
    named and the bundle is for the release that is here."""
    production, builder = workspace.options.production, workspace.builder
    if production.timing_cache or builder is None or builder.name != "tensorrt" or not builder.version.startswith(
            f"{request.release}."):
        return production
    plan, network, config = workspace.plan, workspace.network, request.config
    constraints = lower_for_builder(network, config, ranges, builder.capabilities, builder.name).constraints
    settings = make_build_settings(workspace.analysis, workspace.feeds, plan, config)
    timing_cache = timing_cache_path(settings, builder, network, constraints, store.engines)
    return replace(production, timing_cache=str(timing_cache)) if timing_cache.is_file() else production


def _collect_bundle_sample_runs(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig,
                                ranges: Mapping[str, float]) -> Steps[list[SampleRun]]:
    """Returns the first judged feeds with the network's own outputs, in FP32 and simulated."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    names = list_tensor_outputs(network)
    analysis = Analysis(network, workspace.backend, samples, workspace.judged_outputs,
                        boundary_type=workspace.options.other, extra_tensors=names)
    iterations: list[SampleRun] = []
    start_time, feed_indices = time.monotonic(), list(range(min(MAX_FEEDS, len(samples))))
    with contextlib.closing(analysis):
        runs = zip(analysis.execute_config(PrecisionConfig.from_precision(Precision.FP32), {}, feed_indices),
                   analysis.execute_config(config, ranges, feed_indices), strict=True)
        for index, (reference, simulated) in zip(feed_indices, runs, strict=True):
            iteration = SampleRun(samples.read_feed(index), {name: reference[name] for name in names},
                                  {name: simulated[name] for name in names})
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
            reporter.send_progress("samples for the bundle", index + 1, len(feed_indices), start_time)
            yield Urgency.BUILD
    return iterations


def _collect_input_histograms(workspace: Workspace, reporter: JobReporter, request: rq.WriteBundle,
                              ranges: Mapping[str, float]) -> list[tuple[str, TensorStats, float | None]]:
    """What the inputs of the layers hold that own most of the config's error; nothing where shares are not known."""
    network = workspace.network
    groups = request.comparison_record.get("runs", {}).get("config", {}).get("groups", {})
    shares = {name: entry["owns"] for name, entry in groups.items() if (entry.get("owns") or 0) > 0}
    tensors: dict[str, None] = {}
    for name in sorted(shares, key=lambda name: -shares[name]):
        group = network.get_group(name)
        tensor_names = [site.tensor for site in group.activation_qdq_sites()] or list(group.inputs)
        tensor = next(
            (entry for entry in tensor_names if network.is_float(entry) and entry not in network.blocking_plugins),
            None)
        if tensor is not None and len(tensors) < MAX_HISTOGRAMS:
            tensors[tensor] = None
    missing = [tensor for tensor in tensors if tensor not in workspace.statistics]
    if missing:
        workspace.statistics.update(collect_tensor_stats(
            network.model, missing, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("activation statistics", is_preemptible=True)))
    return [(tensor, workspace.statistics[tensor], ranges.get(tensor)) for tensor in tensors]
