"""The guard facts: those of the inputs and labels, and those of the preflight job, which needs extra executions.

These are the effect of fewer calibration samples, and the shares of values outside their range.
"""

import itertools
import math
from collections.abc import Mapping

from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.execution import translate_steps
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
from trt_tui.core.lowering.lowering_checks import quantizes_activations
from trt_tui.core.measure.analysis import PartialResult
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, find_class_score_output
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.comparison import measure_final_accuracy
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Progress, Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

MIN_CALIBRATION_FEEDS = 4
"""The minimum number of calibration feeds, so that a quarter of them is at least one feed."""


def run_preflight_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                      request: rq.RunPreflight) -> Steps[None]:
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
        ev.GuardFactsMeasured(reporter.job,
                              (yield from _measure_sqnr_by_calibration_size(workspace, store, reporter, config))))
    reporter.send(
        ev.GuardFactsMeasured(
            reporter.job, GuardFacts(clipped=(yield from _measure_values_beyond_ranges(workspace, reporter, config)))))


def _measure_batch_dependence(workspace: Workspace, reporter: JobReporter) -> Steps[GuardFacts]:
    """Returns the SQNR of FP32 outputs of single samples against the same samples in the batch in use."""
    done_counts = itertools.count(1)
    steps = translate_steps(
        measure_batch_dependence(workspace.analysis, workspace.feeds),
        lambda _: Progress("single samples against their batch", next(done_counts), MAX_COMPARED_SAMPLES + 1))
    return reporter.follow(steps, Urgency.ACCURACY)


def _measure_sqnr_by_calibration_size(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                      config: PrecisionConfig) -> Steps[GuardFacts]:
    """Returns the SQNR of a config with ranges from a quarter, a half and all of the calibration samples."""
    calibration, samples = workspace.calibration, workspace.calibration_samples
    assert calibration is not None, "it was ensured"
    is_measured_here = workspace.options.calib_cache is None and calibration.samples == samples.count
    if samples.is_random or not is_measured_here:
        return GuardFacts(no_convergence_reason="random inputs" if samples.
                          is_random else "the ranges were not measured on these samples")
    if len(samples) < MIN_CALIBRATION_FEEDS:
        return GuardFacts(no_convergence_reason=f"fewer than {MIN_CALIBRATION_FEEDS} batches calibrate")
    network, config_ranges = workspace.network, {tensor: item.amax for tensor, item in config.range_moves.items()}
    sqnr_steps: list[CalibrationConvergencePoint] = []
    for step in (4, 2):
        sample_part = samples.select_feeds(range(0, len(samples), step))
        phase = f"calibrating on {sample_part.count} of {samples.count} samples"
        ranges = calibrate(network.model, network.calibrated_tensors, sample_part, workspace.backend,
                           method=calibration.method, progress=reporter.make_progress_callback(phase)).ranges
        yield Urgency.ACCURACY
        partials = workspace.analysis.measure_accuracy(config, {**ranges, **config_ranges},
                                                       workspace.find_judged_feeds(config))
        accuracy = yield from reporter.follow(take_last_value(
            partials, f"{config.find_main_quantized_type(network).label} {phase}"), Urgency.ACCURACY)
        sqnr_steps.append(CalibrationConvergencePoint(sample_part.count, _worst_output_sqnr_db(accuracy)))
    accuracy = yield from measure_final_accuracy(workspace, store, reporter, config, Urgency.ACCURACY)
    sqnr_steps.append(CalibrationConvergencePoint(samples.count, _worst_output_sqnr_db(accuracy)))
    if any(math.isnan(item.sqnr_db) for item in sqnr_steps):
        return GuardFacts(no_convergence_reason="no SQNR was measured")
    return GuardFacts(convergence=tuple(sqnr_steps))


def _worst_output_sqnr_db(accuracy: Accuracy) -> float:
    """Returns the SQNR of the worst output in dB; NaN if it has none."""
    sqnr_db = accuracy.worst_output[1].errors.sqnr_db if accuracy.worst_output is not None else None
    return math.nan if sqnr_db is None else sqnr_db


def _measure_values_beyond_ranges(workspace: Workspace, reporter: JobReporter,
                                  config: PrecisionConfig) -> Steps[Mapping[str, ClippedShare]]:
    """Returns the share of values outside the range of each calibrated tensor, in the judged and the calibration
    samples."""
    network, data = workspace.network, workspace.data_sets
    ranged_tensors = dict.fromkeys(site.tensor for group in network.groups
                                   for site in group.calibrated_qdq_sites(config.precision_of(group)))
    all_ranges = {**workspace.ranges, **{tensor: choice.amax for tensor, choice in config.range_moves.items()}}
    ranges = {tensor: all_ranges[tensor] for tensor in ranged_tensors if all_ranges.get(tensor, 0.0) > 0}
    if not ranges:
        return {}
    shares: list[dict[str, float]] = []
    judged_samples = data.judged_samples.select_feeds(workspace.find_judged_feeds(config))
    for samples in (judged_samples, data.calibration_samples):
        partials = (PartialResult(partial_shares, done, len(samples)) for done, partial_shares in enumerate(
            measure_clipped_shares(network.model, ranges, samples, workspace.backend), 1))
        shares.append((yield from reporter.follow(take_last_value(partials, "values outside their range"),
                                                  Urgency.ACCURACY)))
    return {tensor: ClippedShare(shares[0][tensor], shares[1][tensor]) for tensor in ranges}


# -- facts at little cost ---------------------------------------------------------------------------------------------


def measure_data_guard_facts(workspace: Workspace) -> GuardFacts:
    """Returns the guard facts of the inputs and labels; no facts if the data cannot be read.

    Another job that needs the data reports the error.
    """
    samples, data = workspace.samples, workspace.data_sets
    if samples.is_random:
        return GuardFacts(has_random_inputs=True, no_classes_reason="random inputs")
    is_same_data = data.calibration_samples is data.judged_samples
    try:
        stats = (measure_input_stats(data.calibration_samples),
                 measure_input_stats(data.other_samples)) if not is_same_data else ({}, {})
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
        }, judges_calibration_samples=is_same_data, equal_sample_count=equal,
        byte_inputs={name: count for name, count in byte_images.items()
                     if name not in find_scaled_inputs(workspace.network)},
        unfit_labels=unfit_labels, class_facts=classes, no_classes_reason=reason)


def _find_unfit_labels(workspace: Workspace) -> tuple[UnfitLabels, ...] | None:
    """Returns the labels that do not fit the classes of the output; None if no output has classes or no labels exist.
    """
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
    return find_unfit_labels(samples, output.tensor, class_count, per_pixel=scores is None,
                             mask_names={item.mask for item in outputs if item.mask})


def _measure_label_class_facts(workspace: Workspace) -> tuple[tuple[LabelClassFacts, ...], str]:
    """Returns the numbers of samples of each label class, and the reason if they are unknown."""
    data, masks = workspace.data_sets, {output.mask for output in workspace.judged_outputs if output.mask}
    labels = set(data.judged_samples.label_names) - masks
    if not labels:
        return (), "the data hold no labels"
    if labels.isdisjoint(data.calibration_samples.label_names):
        return (), "the calibration samples have no labels"
    return count_samples_by_label_class(data.calibration_samples, data.other_samples, masks), ""
