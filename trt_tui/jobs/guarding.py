"""The facts that guards look at, from a workspace: those that are had at little cost, as they become known."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.cache import read_header
from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.guards.facts import CACHE, MEASURED, ClassFacts, Facts, RangeFacts
from trt_tui.core.guards.inputs import class_facts, count_equal_samples, input_stats
from trt_tui.core.guards.sampled import ranges_off
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs.scheduler import Report
from trt_tui.workspace import Workspace


def facts_of_data(workspace: Workspace) -> Facts:
    """What inputs and labels say; nothing of data that cannot be read, which whoever needs them says."""
    samples, data = workspace.samples, workspace.data
    if samples.random:
        return Facts(random=True, no_classes="random inputs")
    same = data.calibration is data.judged
    try:
        both = (input_stats(data.calibration), input_stats(data.judged)) if not same else ({}, {})
        found, why = _classes(workspace)
        equal = count_equal_samples(data.judged)
    except InputError:
        return Facts()
    return Facts(inputs={name: (one, both[1][name]) for name, one in both[0].items() if name in both[1]},
                 same_samples=same, equal_samples=equal, classes=found, no_classes=why)


def _classes(workspace: Workspace) -> tuple[tuple[ClassFacts, ...], str]:
    """Which classes the samples have, and why that is not known."""
    data, masks = workspace.data, {one.mask for one in workspace.judged if one.mask}
    labels = set(data.judged.label_names) - masks
    if not labels:
        return (), "the data hold no labels"
    if labels.isdisjoint(data.calibration.label_names):
        return (), "the calibrating samples have no labels"
    return class_facts(data.calibration, data.judged, masks), ""


def tell_of_cache(workspace: Workspace, report: Report, path: str, ranges: Mapping[str, float], rest: str) -> bool:
    """Sends the facts of ranges from a calibration cache; returns whether samples were looked at for them.

    Args:
        ranges: Those of its ranges that fit the network.
        rest: The method of the ranges that it lacks, "" where it lacks none.
    """
    builder, header, method = workspace.builder, read_header(path), workspace.options.calib_method
    takes = builder is not None and builder.name == "tensorrt" and int(builder.version.partition(".")[0]) < 11
    return tell_of_ranges(workspace, report, RangeFacts(
        CACHE, Path(path).name, header.method, header=header, rest=rest,
        wanted=method if method != RANGE_METHODS[0] else "",
        builder=builder.version if builder is not None and takes else ""), ranges)


def tell_of_ranges(workspace: Workspace, report: Report, facts: RangeFacts, ranges: Mapping[str, float]) -> bool:
    """Sends the facts of the ranges in use, held against samples where they are from elsewhere and there are samples.

    Returns:
        Whether samples were looked at.
    """
    sampled = facts.source != MEASURED and workspace.options.has_data and bool(ranges)
    facts = replace(facts, count=len(ranges))
    if sampled:
        try:
            off, compared, count = ranges_off(
                workspace.network.model, ranges, workspace.calibrating, workspace.backend,
                clips=facts.method != RANGE_METHODS[0], progress=report.sweeping("holding ranges against samples"))
            facts = replace(facts, off=off, compared=compared, sampled=count)
        except InputError as error:
            report.send(ev.Note(report.job, f"The ranges are not held against samples. {error.title}: {error.cause}"))
    report.send(ev.FactsMeasured(report.job, Facts(random=workspace.options.data is None
                                                  and workspace.options.calib_data is None, ranges=facts)))
    return sampled
