"""A folder that carries a config into production, with samples, a report and what checks the engine."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.statistics import TensorStats, collect_stats
from trt_tui.core.exporters.bundle import MOST_FEEDS, MOST_SAMPLE_BYTES, Bundle, Iteration, write_bundle
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judge import tensor_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.production import Production
from trt_tui.files.folders import new_folder, refuse_folder
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ranges_to_write
from trt_tui.jobs.engine_building import lower_for, timing_cache_of
from trt_tui.jobs.exporting import method_of
from trt_tui.jobs.judging import settings_of
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace

DRAWN = 3
"""How many layers that lose have their values drawn."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.WriteBundle) -> Steps[None]:
    """Writes a bundle; the folder appears whole or not at all."""
    place, network, config = Path(request.path), workspace.network, request.config
    report.send(ev.Progress(report.job, f"writing {place.name}", 0, 0))
    yield Urgency.BUILD
    refuse_folder(place)
    ranges, needless = ranges_to_write(workspace, store, report, config, request.given)
    workspace.require_unchanged()
    iterations = yield from _iterations(workspace, report, config, ranges)
    histograms = _histograms(workspace, report, request, ranges)
    bundle = Bundle(request.release, network, config, ranges, request.config_text,
                    method_of(workspace, request.given, request.method, bool(needless)), workspace.profile,
                    _production(workspace, store, request, ranges), workspace.samples.source, iterations,
                    request.samples, request.comparison, histograms)
    with new_folder(place) as folder:
        written = write_bundle(folder, bundle)
    paths = [place / path.relative_to(folder) for path in written]
    report.send(ev.Exported(report.job, (str(place), *map(str, paths)), (), ""))


def _production(workspace: Workspace, store: Store, request: rq.WriteBundle, ranges: Mapping[str, float]
                ) -> Production:
    """How the builder is to work: with the tactics that were measured where this config was built here, if none are
    named and the bundle is for the release that is here."""
    production, builder = workspace.options.production, workspace.builder
    if production.timing_cache or builder is None or builder.name != "tensorrt" or not builder.version.startswith(
            f"{request.release}."):
        return production
    plan, network, config = workspace.plan, workspace.network, request.config
    told = lower_for(network, config, ranges, builder.capabilities, builder.name).told
    settings = settings_of(workspace.analysis, workspace.feeds, plan, config)
    timings = timing_cache_of(settings, builder, network, told, store.engines)
    return replace(production, timing_cache=str(timings)) if timings.is_file() else production


def _iterations(workspace: Workspace, report: Report, config: PrecisionConfig, ranges: Mapping[str, float]
                ) -> Steps[list[Iteration]]:
    """Returns the first judged feeds with the network's own outputs, in FP32 and simulated."""
    network, samples = workspace.network, workspace.data.judged
    names = tensor_outputs(network)
    analysis = Analysis(network, workspace.backend, samples, workspace.judged, other=workspace.options.other,
                        yields=names)
    found: list[Iteration] = []
    since, feeds = time.monotonic(), list(range(min(MOST_FEEDS, len(samples))))
    with contextlib.closing(analysis):
        runs = zip(analysis.outputs(PrecisionConfig.uniform(Precision.FP32), {}, feeds),
                   analysis.outputs(config, ranges, feeds), strict=True)
        for index, (reference, simulated) in zip(feeds, runs, strict=True):
            one = Iteration(samples.feed(index), {name: reference[name] for name in names},
                            {name: simulated[name] for name in names})
            if found and sum(each.size for each in (*found, one)) > MOST_SAMPLE_BYTES:
                break
            found.append(one)
            report.progress("samples for the bundle", index + 1, len(feeds), since)
            yield Urgency.BUILD
    return found


def _histograms(workspace: Workspace, report: Report, request: rq.WriteBundle, ranges: Mapping[str, float]
                ) -> list[tuple[str, TensorStats, float | None]]:
    """What the inputs of the layers hold that own most of the config's error; nothing where shares are not known."""
    network = workspace.network
    groups = request.comparison.get("runs", {}).get("config", {}).get("groups", {})
    owns = {name: one["owns"] for name, one in groups.items() if (one.get("owns") or 0) > 0}
    tensors: dict[str, None] = {}
    for name in sorted(owns, key=lambda name: -owns[name]):
        group = network.group(name)
        named = [site.tensor for site in group.activations()] or list(group.inputs)
        tensor = next((one for one in named if network.is_float(one) and one not in network.behind), None)
        if tensor is not None and len(tensors) < DRAWN:
            tensors[tensor] = None
    missing = [tensor for tensor in tensors if tensor not in workspace.statistics]
    if missing:
        workspace.statistics.update(collect_stats(
            network.model, missing, workspace.calibrating, workspace.backend,
            progress=report.sweeping("activation statistics", gives_way=True)))
    return [(tensor, workspace.statistics[tensor], ranges.get(tensor)) for tensor in tensors]
