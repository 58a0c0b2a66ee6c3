"""The guard facts that can be measured in a workspace at little cost."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.cache import read_cache_header
from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.guards.data_guards import find_scaled_inputs
from trt_tui.core.guards.guard import (
    CACHE_SOURCE,
    MEASURED_SOURCE,
    GuardFacts,
    LabelClassFacts,
    RangeFacts,
    UnfitLabels,
)
from trt_tui.core.guards.input_stats import (
    MAX_CLASSES,
    count_samples_by_label_class,
    count_samples_if_all_equal,
    count_samples_with_byte_images,
    find_unfit_labels,
    measure_input_stats,
)
from trt_tui.core.guards.range_checks import find_mismatched_ranges
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, find_class_score_output
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.workspace import Workspace


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


def send_cached_range_facts(workspace: Workspace, reporter: JobReporter, cache_path: str, ranges: Mapping[str, float],
                            missing_range_method: str) -> bool:
    """Sends the guard facts of ranges from a calibration cache. Returns True if the ranges were compared with samples.

    Args:
        ranges: The ranges of the cache that match the network.
        missing_range_method: The range method of tensors without an entry in the cache; "" if every tensor has one.
    """
    builder, header, method = workspace.builder, read_cache_header(cache_path), workspace.options.calib_method
    uses_cache = builder is not None and builder.name == "tensorrt" and int(builder.version.partition(".")[0]) < 11
    return send_range_facts(
        workspace, reporter,
        RangeFacts(CACHE_SOURCE,
                   Path(cache_path).name, header.range_method, cache_header=header,
                   fallback_method=missing_range_method, requested_method=method if method != RANGE_METHODS[0] else "",
                   builder_release=builder.version if builder is not None and uses_cache else ""), ranges)


def send_range_facts(workspace: Workspace, reporter: JobReporter, range_facts: RangeFacts,
                     ranges: Mapping[str, float]) -> bool:
    """Sends the guard facts of the ranges in use. Ranges from a cache or a config are compared with the samples, if
    there are samples.

    Returns:
        True if the ranges were compared with samples.
    """
    sampled = range_facts.source != MEASURED_SOURCE and workspace.options.has_data and bool(ranges)
    if sampled:
        try:
            off, compared, count = find_mismatched_ranges(
                workspace.network.model, ranges, workspace.calibration_samples, workspace.backend,
                method_clips=range_facts.method != RANGE_METHODS[0],
                progress=reporter.make_progress_callback("comparing ranges with the samples"))
            range_facts = replace(range_facts, mismatches=off, compared_tensors=compared, checked_samples=count)
        except InputError as error:
            reporter.send(
                ev.LogMessage(reporter.job, f"The ranges are not compared with the samples. {error.title}: "
                                            f"{error.cause}"))
    reporter.send(ev.GuardFactsMeasured(reporter.job, GuardFacts(has_random_inputs=workspace.options.data is None
                                                  and workspace.options.calib_data is None, range_facts=range_facts)))
    return sampled
