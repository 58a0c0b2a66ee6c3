"""The job that opens the network, the data and the backends, and the jobs on guard facts.

The preflight job measures the facts that need extra executions: the effect of fewer calibration samples, and the shares
of values outside their range.
"""

import importlib.util
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.guards.guards import (
    CalibrationConvergencePoint,
    ClippedShare,
    GuardFacts,
    LabelClassFacts,
    UnfitLabels,
    find_scaled_inputs,
)
from trt_tui.core.guards.measurements import (
    MAX_CLASSES,
    MAX_COMPARED_SAMPLES,
    count_samples_by_label_class,
    count_samples_if_all_equal,
    count_samples_with_byte_images,
    find_unfit_labels,
    measure_batch_dependence,
    measure_clipped_shares,
    measure_input_stats,
)
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.lowering.network_rewrite import no_lower_precision_reason, quantizes_activations
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, find_class_score_output, unjudged_output_notes
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.run_sources import collect_reference_info, reference_notes
from trt_tui.core.measure.simulation import PartialResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import EngineBackend, map_generator_items
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.comparison import measure_final_accuracy
from trt_tui.jobs.events import BackendSummary, BuilderSummary, DataSummary
from trt_tui.jobs.scheduler import JobReporter, Progress, Steps, Urgency, run_to_last_value
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
    """Returns the worker pool of the cluster that the options request; None if they request no cluster.

    A previous pool that still works is used again.

    Raises:
        InputError: A requested GPU does not exist.
        BackendUnavailableError: Dask is not installed.
    """
    cluster_options = [
        f"--{name}"
        for name, value in (("gpus", options.gpus), ("workers", options.workers), ("scheduler", options.scheduler))
        if value is not None
    ]
    if not cluster_options or previous_pool is not None and not previous_pool.failure_reason:
        return previous_pool
    if importlib.util.find_spec("distributed") is None:
        raise BackendUnavailableError(
            f"{cluster_options[0]} needs Dask, which is not installed", "", "pip install 'trt-tui[cluster]'"
        )
    from trt_tui.cluster.cluster import ClusterWorkerPool, parse_cluster_options

    cluster_spec = parse_cluster_options(options)
    return ClusterWorkerPool(cluster_spec) if cluster_spec is not None else None


def run_open_job(
    slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter, request: rq.OpenNetwork
) -> Steps[None]:
    """Opens a network with its data and backends. The new workspace replaces the current one when all parts are read."""
    try:
        yield from _open_workspace(slot, store, reporter, request)
    except CancelledError:
        raise
    except TrtTuiError as error:
        slot.open_error = error
        raise


def _open_workspace(
    slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter, request: rq.OpenNetwork
) -> Steps[None]:
    options, previous = request.options, slot.workspace
    report_unused_backend = partial(_report_unused_backend, reporter)
    builder = require_builder(options, report_unused_backend) if request.needs_builder else None
    slot.worker_pool = open_worker_pool(options, slot.worker_pool)
    reporter.send(ev.JobProgress(reporter.job, "reading the network", 0, 0))
    workspace = Workspace(options)
    for done_count, _ in enumerate(workspace.check_reference_weights(), 1):
        reporter.send(
            ev.JobProgress(
                reporter.job,
                "executing the network with the weights of the reference",
                done_count,
                len(workspace.find_judged_feeds()),
            )
        )
        yield Urgency.OPENING
    refuse_overwriting_inputs(options.written_paths, workspace.network.external_files)
    if request.structure_hash and workspace.network.structure_sha256 != request.structure_hash:
        if previous is not None:
            previous.close()
        slot.workspace = None
        raise InputError(
            f"{options.model} is another network now",
            "its structure changed since it was opened",
            "Quit and open it again; the values on screen belong to the former network.",
        )
    if request.network_only:
        slot.workspace, slot.open_error = workspace, None
        workspace.builder = builder
        reporter.send(ev.LayersListed(reporter.job, workspace.network.build_outline()))
        if workspace.network.reference_weights_text:
            reporter.log(workspace.network.reference_weights_text, "note")
        _read_and_send_config_file(workspace, reporter, request)
        return
    yield Urgency.OPENING
    _ = workspace.backend, workspace.samples  # each part is opened at its first use
    yield Urgency.OPENING
    _ = workspace.data_sets, workspace.metric, workspace.judged_outputs, workspace.build_plan, workspace.analysis
    workspace.expected_fingerprint, workspace.worker_pool = request.expected_fingerprint, slot.worker_pool
    workspace.update_file_stamps()
    if previous is not None:
        previous.close()
    slot.workspace, slot.open_error = workspace, None
    reporter.send(_make_network_opened_event(reporter.job, workspace))
    yield Urgency.OPENING
    builder = workspace.builder = builder or get_engine_builder(
        options.backend, report_unused_backend, plugins=options.production.plugins
    )
    if builder is not None:
        reporter.send(
            ev.BuilderReady(
                reporter.job,
                BuilderSummary(
                    builder.name,
                    builder.version,
                    builder.device,
                    can_run_engines(builder, workspace.build_plan.settings),
                    builder.capabilities.gpu_compute_capability,
                ),
            )
        )
    yield from hash_workspace(workspace, store, reporter)
    if slot.worker_pool is not None:
        slot.worker_pool.open_workspace_on_workers(workspace)
    reporter.send(ev.GuardFactsMeasured(reporter.job, measure_facts_for_data_guards(workspace)))
    _read_and_send_config_file(workspace, reporter, request)


def require_builder(options: Options, on_unused_backend: Callable[[BackendUnavailableError], None]) -> EngineBackend:
    """Returns the backend that builds engines.

    Raises:
        BackendUnavailableError: No backend builds engines here.
    """
    builder = get_engine_builder(options.backend, on_unused_backend, plugins=options.production.plugins)
    if builder is None:
        raise BackendUnavailableError(
            "no TensorRT here can build an engine",
            "ONNX Runtime builds none" if options.backend == "onnxruntime" else "trt-tui doctor shows why",
            "Write -o typed.onnx instead, or build with --backend tensorrt-rtx, which needs no GPU.",
        )
    return builder


def _report_unused_backend(reporter: JobReporter, error: BackendUnavailableError) -> None:
    reporter.log(f"TensorRT is installed but not used: {error.title}: {error.cause}")
    if error.raw_message:
        reporter.log(error.raw_message, "raw")


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
        job,
        workspace.outline,
        workspace.judged_outputs,
        DataSummary(
            samples.source,
            data.judged_samples.count,
            data.calibration_samples.count,
            workspace.count_samples(workspace.feeds.all_feeds),
            samples.is_random,
            tuple(samples.label_names),
            tuple(dict.fromkeys(warnings)),
            workspace.shape_profile,
        ),
        BackendSummary(
            "ONNX Runtime", backend.version, backend.provider.upper(), backend.capabilities.computes_in_fp16
        ),
        workspace.metric.name if workspace.metric is not None else None,
        reference,
    )


MIN_CALIBRATION_FEEDS = 4
"""The minimum number of calibration feeds, so that a quarter of them is at least one feed."""


def run_preflight_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.RunPreflight
) -> Steps[None]:
    """Measures the guard facts that need extra executions of the network, and sends each when it is measured."""
    config = request.config
    if workspace.samples.is_random:
        reporter.send(ev.GuardFactsMeasured(reporter.job, GuardFacts(no_batch_reason="random inputs")))
    else:
        reporter.send(ev.GuardFactsMeasured(reporter.job, (yield from _measure_batch_dependence(workspace, reporter))))
    if not quantizes_activations(workspace.network, config):
        reporter.send(ev.GuardFactsMeasured(reporter.job, GuardFacts(no_convergence_reason="no layer needs a range")))
        return
    ensure_ranges(workspace, store, reporter, [config])
    reporter.send(
        ev.GuardFactsMeasured(
            reporter.job, (yield from _measure_sqnr_by_calibration_size(workspace, store, reporter, config))
        )
    )
    reporter.send(
        ev.GuardFactsMeasured(
            reporter.job, GuardFacts(clipped=(yield from _measure_values_beyond_ranges(workspace, reporter, config)))
        )
    )


def _measure_batch_dependence(workspace: Workspace, reporter: JobReporter) -> Steps[GuardFacts]:
    """Returns the SQNR of FP32 outputs of single samples against the same samples in the batch in use."""
    done_counts = itertools.count(1)
    steps = map_generator_items(
        measure_batch_dependence(workspace.analysis, workspace.feeds),
        lambda _: Progress("single samples against their batch", next(done_counts), MAX_COMPARED_SAMPLES + 1),
    )
    return reporter.run_steps(steps, Urgency.ACCURACY)


def _measure_sqnr_by_calibration_size(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig
) -> Steps[GuardFacts]:
    """Returns the SQNR of a config with ranges from a quarter, a half and all of the calibration samples."""
    calibration, samples = workspace.calibration, workspace.calibration_samples
    assert calibration is not None, "it was ensured"
    is_measured_here = workspace.options.calib_cache is None and calibration.samples == samples.count
    if samples.is_random or not is_measured_here:
        return GuardFacts(
            no_convergence_reason="random inputs"
            if samples.is_random
            else "the ranges were not measured on these samples"
        )
    if len(samples) < MIN_CALIBRATION_FEEDS:
        return GuardFacts(no_convergence_reason=f"fewer than {MIN_CALIBRATION_FEEDS} batches calibrate")
    network, config_ranges = workspace.network, {tensor: item.amax for tensor, item in config.range_moves.items()}
    sqnr_steps: list[CalibrationConvergencePoint] = []
    for step in (4, 2):
        sample_part = samples.select_feeds(range(0, len(samples), step))
        phase = f"calibrating on {sample_part.count} of {counted_noun_text(samples.count, 'sample')}"
        ranges = calibrate(
            network.model,
            network.calibrated_tensors,
            sample_part,
            workspace.backend,
            method=calibration.method,
            progress=reporter.make_progress_callback(phase),
        ).ranges
        yield Urgency.ACCURACY
        partials = workspace.analysis.measure_accuracy(
            config, {**ranges, **config_ranges}, workspace.find_judged_feeds(config)
        )
        accuracy = yield from reporter.run_steps(
            run_to_last_value(partials, f"{config.find_main_quantized_type(network).label} {phase}"), Urgency.ACCURACY
        )
        sqnr_steps.append(CalibrationConvergencePoint(sample_part.count, _worst_output_sqnr_db(accuracy)))
    accuracy = yield from measure_final_accuracy(workspace, store, reporter, config, Urgency.ACCURACY)
    sqnr_steps.append(CalibrationConvergencePoint(samples.count, _worst_output_sqnr_db(accuracy)))
    if any(math.isnan(item.sqnr_db) for item in sqnr_steps):
        return GuardFacts(no_convergence_reason="no SQNR was measured")
    return GuardFacts(convergence=tuple(sqnr_steps))


def _worst_output_sqnr_db(accuracy: Accuracy) -> float:
    """Returns the SQNR of the worst output in dB; NaN if no output has an SQNR."""
    sqnr_db = accuracy.worst_output[1].errors.sqnr_db if accuracy.worst_output is not None else None
    return math.nan if sqnr_db is None else sqnr_db


def _measure_values_beyond_ranges(
    workspace: Workspace, reporter: JobReporter, config: PrecisionConfig
) -> Steps[Mapping[str, ClippedShare]]:
    """Returns the share of values outside the range of each calibrated tensor, in the judged and the calibration
    samples."""
    network, data = workspace.network, workspace.data_sets
    ranged_tensors = dict.fromkeys(
        site.tensor for group in network.groups for site in group.calibrated_qdq_sites(config.precision_of(group))
    )
    all_ranges = {**workspace.ranges, **{tensor: choice.amax for tensor, choice in config.range_moves.items()}}
    ranges = {tensor: all_ranges[tensor] for tensor in ranged_tensors if all_ranges.get(tensor, 0.0) > 0}
    if not ranges:
        return {}
    shares: list[dict[str, float]] = []
    judged_samples = data.judged_samples.select_feeds(workspace.find_judged_feeds(config))
    for samples in (judged_samples, data.calibration_samples):
        partials = (
            PartialResult(partial_shares, done, len(samples))
            for done, partial_shares in enumerate(
                measure_clipped_shares(network.model, ranges, samples, workspace.backend), 1
            )
        )
        shares.append(
            (yield from reporter.run_steps(run_to_last_value(partials, "values outside their range"), Urgency.ACCURACY))
        )
    return {tensor: ClippedShare(shares[0][tensor], shares[1][tensor]) for tensor in ranges}


# -- facts at little cost ---------------------------------------------------------------------------------------------


def measure_facts_for_data_guards(workspace: Workspace) -> GuardFacts:
    """Returns the guard facts of the inputs and labels. If the data cannot be read, there are no facts.

    Another job that needs the data reports the error.
    """
    samples, data = workspace.samples, workspace.data_sets
    if samples.is_random:
        return GuardFacts(has_random_inputs=True, no_classes_reason="random inputs")
    is_same_data = data.calibration_samples is data.judged_samples
    try:
        stats = (
            (measure_input_stats(data.calibration_samples), measure_input_stats(data.other_samples))
            if not is_same_data
            else ({}, {})
        )
        classes, reason = _measure_label_class_facts(workspace)
        equal = count_samples_if_all_equal(data.judged_samples)
        byte_images = count_samples_with_byte_images(data.judged_samples)
        unfit_labels = _find_unfit_labels(workspace)
    except InputError:
        return GuardFacts()
    return GuardFacts(
        input_stats={
            name: (calibration_stats, stats[1][name])
            for name, calibration_stats in stats[0].items()
            if name in stats[1]
        },
        judges_calibration_samples=is_same_data,
        equal_sample_count=equal,
        byte_inputs={
            name: count for name, count in byte_images.items() if name not in find_scaled_inputs(workspace.network)
        },
        unfit_labels=unfit_labels,
        class_facts=classes,
        no_classes_reason=reason,
    )


def _find_unfit_labels(workspace: Workspace) -> tuple[UnfitLabels, ...] | None:
    """Returns the labels that do not fit the classes of the output. If no output has classes or no labels exist,
    returns None."""
    network, outputs = workspace.network, workspace.judged_outputs
    samples, scores = workspace.data_sets.judged_samples, find_class_score_output(network, outputs)
    float_outputs = [output for output in outputs if output.kind == FLOAT_KIND and not output.slices]
    output = scores or (float_outputs[0] if len(float_outputs) == 1 else None)
    shape = (network.shape(output.tensor) or ()) if output is not None else ()
    if output is None or not samples.label_names or len(shape) < 2 or scores is None and len(shape) != 4:
        return None
    class_count = shape[1]
    if not isinstance(class_count, int) or not 2 <= class_count <= MAX_CLASSES:
        return None
    return find_unfit_labels(
        samples,
        output.tensor,
        class_count,
        per_pixel=scores is None,
        mask_names={item.mask for item in outputs if item.mask},
    )


def _measure_label_class_facts(workspace: Workspace) -> tuple[tuple[LabelClassFacts, ...], str]:
    """Returns the numbers of samples of each label class, and the reason if they are unknown."""
    data, masks = workspace.data_sets, {output.mask for output in workspace.judged_outputs if output.mask}
    labels = set(data.judged_samples.label_names) - masks
    if not labels:
        return (), "the data hold no labels"
    if labels.isdisjoint(data.calibration_samples.label_names):
        return (), "the calibration samples have no labels"
    return count_samples_by_label_class(data.calibration_samples, data.other_samples, masks), ""
