"""The job that opens the network, the data and the backends."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.lowering.lowering_checks import no_lower_precision_reason
from trt_tui.core.measure.judged_outputs import unjudged_output_notes
from trt_tui.core.measure.run_sources import collect_reference_info, reference_notes
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.events import BackendSummary, BuilderSummary, DataSummary
from trt_tui.jobs.preflight import measure_data_guard_facts
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.options import Options
from trt_tui.workspace import WorkerPool, Workspace, can_run_engines


@dataclass
class WorkspaceSlot:
    """The current workspace of the background process, or the reason why there is none, with the worker pool."""

    workspace: Workspace | None = None
    open_error: TrtTuiError | None = None
    worker_pool: WorkerPool | None = None

    def require_workspace(self) -> Workspace:
        """Returns the current workspace.

        Raises:
            TrtTuiError: No workspace is open. The error is that of the failed opening.
        """
        if self.workspace is None:
            raise self.open_error or InputError("no network is open", "opening it was stopped", "Open it again.")
        return self.workspace


def open_worker_pool(options: Options, previous_pool: WorkerPool | None) -> WorkerPool | None:
    """Returns the worker pool of the cluster that the options request: the previous pool if it still works, a new one
    if not.

    Returns None if the options request no cluster.

    Raises:
        InputError: A requested GPU does not exist.
        BackendUnavailableError: Dask is not installed.
    """
    cluster_options = [f"--{name}" for name, value in (("gpus", options.gpus), ("workers", options.workers),
                                                       ("scheduler", options.scheduler)) if value is not None]
    if not cluster_options or previous_pool is not None and not previous_pool.failure_reason:
        return previous_pool
    if importlib.util.find_spec("distributed") is None:
        raise BackendUnavailableError(f"{cluster_options[0]} needs Dask, which is not installed", "",
                                      "pip install 'trt-tui[cluster]'")
    from trt_tui.cluster.cluster import ClusterWorkerPool, parse_cluster_options

    cluster_spec = parse_cluster_options(options)
    return ClusterWorkerPool(cluster_spec) if cluster_spec is not None else None


def run_open_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                 request: rq.OpenNetwork) -> Steps[None]:
    """Opens a new workspace, which replaces the current workspace when all parts are read."""
    try:
        yield from _open_workspace(slot, store, reporter, request)
    except CancelledError:
        raise
    except TrtTuiError as error:
        slot.open_error = error
        raise


def _open_workspace(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                    request: rq.OpenNetwork) -> Steps[None]:
    options, previous = request.options, slot.workspace
    report_unused_backend = partial(_report_unused_backend, reporter)
    builder = require_builder(options, report_unused_backend) if request.needs_builder else None
    slot.worker_pool = open_worker_pool(options, slot.worker_pool)
    reporter.send(ev.JobProgress(reporter.job, "reading the network", 0, 0))
    workspace = Workspace(options)
    for done_count, _ in enumerate(workspace.check_reference_weights(), 1):
        reporter.send(ev.JobProgress(reporter.job, "executing the network with the weights of the reference",
                                     done_count, len(workspace.find_judged_feeds())))
        yield Urgency.OPENING
    refuse_overwriting_inputs(options.written_paths, workspace.network.external_files)
    if request.structure_hash and workspace.network.structure_sha256 != request.structure_hash:
        if previous is not None:
            previous.close()
        slot.workspace = None
        raise InputError(f"{options.model} is another network now", "its structure changed since it was opened",
                         "Quit and open it again; the values on screen belong to the former network.")
    if request.network_only:
        slot.workspace, slot.open_error = workspace, None
        workspace.builder = builder
        reporter.send(ev.LayersListed(reporter.job, workspace.network.build_outline()))
        if workspace.network.reference_weights_text:
            reporter.send(ev.LogMessage(reporter.job, workspace.network.reference_weights_text, "note"))
        _read_and_send_config_file(workspace, reporter, request)
        return
    yield Urgency.OPENING
    for _ in workspace.read_all_parts():
        yield Urgency.OPENING
    workspace.expected_fingerprint, workspace.worker_pool = request.expected_fingerprint, slot.worker_pool
    workspace.update_file_stamps()
    if previous is not None:
        previous.close()
    slot.workspace, slot.open_error = workspace, None
    reporter.send(_make_network_opened_event(reporter.job, workspace))
    yield Urgency.OPENING
    builder = workspace.builder = builder or get_engine_builder(options.backend, report_unused_backend,
                                                                plugins=options.production.plugins)
    if builder is not None:
        reporter.send(ev.BuilderReady(reporter.job, BuilderSummary(
            builder.name, builder.version, builder.device, can_run_engines(builder, workspace.plan.settings),
            builder.capabilities.gpu_compute_capability)))
    yield from hash_workspace(workspace, store, reporter)
    if slot.worker_pool is not None:
        slot.worker_pool.open_workspace_on_workers(workspace)
    reporter.send(ev.GuardFactsMeasured(reporter.job, measure_data_guard_facts(workspace)))
    _read_and_send_config_file(workspace, reporter, request)


def require_builder(options: Options,
                    on_unused_backend: Callable[[BackendUnavailableError], None]) -> EngineBackend:
    """Returns the backend that builds engines.

    Raises:
        BackendUnavailableError: No backend builds engines here.
    """
    builder = get_engine_builder(options.backend, on_unused_backend, plugins=options.production.plugins)
    if builder is None:
        raise BackendUnavailableError(
            "no TensorRT here can build an engine",
            "ONNX Runtime builds none" if options.backend == "onnxruntime" else "trt-tui doctor shows why",
            "Write -o typed.onnx instead, or build with --backend tensorrt-rtx, which needs no GPU.")
    return builder


def _report_unused_backend(reporter: JobReporter, error: BackendUnavailableError) -> None:
    reporter.send(ev.LogMessage(reporter.job, f"TensorRT is installed but not used: {error.title}: {error.cause}"))
    if error.raw_message:
        reporter.send(ev.LogMessage(reporter.job, error.raw_message, "raw"))


def _read_and_send_config_file(workspace: Workspace, reporter: JobReporter, request: rq.OpenNetwork) -> None:
    if request.config is not None:
        sha256 = workspace.fingerprint.sha256 if workspace.fingerprint is not None else None
        loaded = read_any_config(request.config, workspace.network, force=request.force, sha256=sha256)
        workspace.given_moves = loaded.config.moves
        reporter.send(ev.ConfigRead(reporter.job, loaded))


def hash_workspace(workspace: Workspace, store: ResultStore, reporter: JobReporter) -> Steps[None]:
    """Hashes the network, and the samples and labels in use."""
    reporter.send(ev.JobProgress(reporter.job, "hashing the network and the data", 0, 0))
    sha256 = store.network_sha256(workspace.network)
    yield Urgency.OPENING
    reporter.send(ev.FilesHashed(reporter.job, workspace.set_fingerprint(sha256)))
    yield Urgency.OPENING


def _make_network_opened_event(job: int, workspace: Workspace) -> ev.NetworkOpened:
    network, data, samples, backend = workspace.network, workspace.data_sets, workspace.samples, workspace.backend
    warnings = [*network.notes, *data.warnings, *samples.warnings]
    masks = {output.mask for output in workspace.judged_outputs}
    unused_labels = [name for name in samples.label_names if name not in masks]
    if unused_labels and workspace.metric is None:
        warnings.append(f"The data hold labels ({', '.join(unused_labels)}), but no --metric uses them.")
    warnings += [f"{output.name}: {output.note}" for output in workspace.judged_outputs if "judged" in output.note]
    warnings += [*unjudged_output_notes(network), *filter(None, [no_lower_precision_reason(network)])]
    reference = None
    if workspace.reference_source is not None:
        scored = workspace.analysis.metric_tensors
        reference = collect_reference_info(workspace.reference_source, network, scored, workspace.judgeable_outputs)
        warnings += reference_notes(reference, network.name, bool(scored))
    return ev.NetworkOpened(
        job, workspace.outline, workspace.judged_outputs,
        DataSummary(samples.source, data.judged_samples.count, data.calibration_samples.count,
                    workspace.count_samples(workspace.feeds.all_feeds), samples.is_random, tuple(samples.label_names),
                    tuple(dict.fromkeys(warnings)), workspace.shape_profile),
        BackendSummary("ONNX Runtime", backend.version, backend.provider.upper(),
                       backend.capabilities.computes_in_fp16),
        workspace.metric.name if workspace.metric is not None else None, reference)
