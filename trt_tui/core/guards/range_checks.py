"""Executions of the FP32 network for guards: comparison of ranges with samples, and shares of clipped values."""

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.calibration.network_probe import NetworkProbe
from trt_tui.core.calibration.statistics import collect_tensor_stats
from trt_tui.core.calibration.tensor_collection import RunProgress
from trt_tui.core.data.samples import Samples
from trt_tui.core.guards.input_stats import select_evenly_spaced_feeds
from trt_tui.core.guards.range_guards import MAX_RANGE_RATIO, is_range_mismatched
from trt_tui.core.runner import Backend

MAX_CHECKED_SAMPLES = 32
"""Maximum number of samples with which ranges are compared."""

MAX_CHECKED_RANGES = 24
"""Maximum number of ranges below the largest magnitude that are compared with the choices of all methods."""

CLIPPING_FACTOR = 1.1
"""Multiple of the range from which a value counts as clipped; see `trt_tui.core.guards.range_guards`."""

RangeMismatches = dict[str, tuple[float, float]]


def find_mismatched_ranges(model: ir.Model, ranges: Mapping[str, float], samples: Samples, backend: Backend, *,
                           method_clips: bool, progress: RunProgress | None = None) -> tuple[RangeMismatches, int, int]:
    """Finds ranges that the values in samples contradict; see `trt_tui.core.guards.range_guards`.

    Args:
        ranges: The amax by tensor name.
        method_clips: True if the method of the ranges can choose less than the largest magnitude.

    Returns:
        The amax in use and the amax of the samples, for each mismatched tensor. Then the number of compared tensors,
            and the number of samples.

    Raises:
        InputError: The network cannot be executed on these data.
    """
    selected_samples = samples.select_feeds(list(select_evenly_spaced_feeds(samples, MAX_CHECKED_SAMPLES)))
    minmax_ranges = calibrate(model, list(ranges), selected_samples, backend, progress=progress).ranges
    compared = {tensor: amax for tensor, amax in ranges.items() if amax > 0 and minmax_ranges[tensor] > 0}
    mismatches: RangeMismatches = {tensor: (amax, minmax_ranges[tensor]) for tensor, amax in compared.items()
                                   if is_range_mismatched(amax, minmax_ranges[tensor], minmax_ranges[tensor])}
    below = sorted((tensor for tensor in mismatches if mismatches[tensor][0] < mismatches[tensor][1]),
                   key=lambda tensor: mismatches[tensor][0] / mismatches[tensor][1])
    if method_clips and below:
        checked_tensors = below[:MAX_CHECKED_RANGES]
        for tensor, stats in collect_tensor_stats(model, checked_tensors, selected_samples, backend,
                                                  progress=progress).items():
            min_amax = min(stats.ranges.values())
            if is_range_mismatched(mismatches[tensor][0], min_amax, minmax_ranges[tensor]):
                mismatches[tensor] = (mismatches[tensor][0], min_amax)
            else:
                del mismatches[tensor]
        for tensor in below[MAX_CHECKED_RANGES:]:  # these ranges are closer to the samples than all checked ones
            amax, reached = mismatches[tensor]
            if not any(checked in mismatches
                       for checked in checked_tensors) or reached / amax < MAX_RANGE_RATIO * MAX_RANGE_RATIO:
                del mismatches[tensor]
    return mismatches, len(compared), selected_samples.count


def measure_clipped_shares(model: ir.Model, ranges: Mapping[str, float], samples: Samples, backend: Backend
                           ) -> Iterator[dict[str, float]]:
    """Measures the share of values above `CLIPPING_FACTOR` times their range, by tensor. Yields the shares after each
    feed.

    Args:
        ranges: The amax by tensor name, above 0.

    Raises:
        InputError: The network cannot be executed on these data.
    """
    probe = NetworkProbe(model)
    outputs = {}
    for tensor, amax in ranges.items():
        value = probe.get_fp32_value(tensor)
        over = probe.append_operator("ThresholdedRelu", probe.append_operator("Abs", value),
                                     alpha=amax * CLIPPING_FACTOR)
        outputs[tensor] = (*probe.add_reductions(probe.append_operator("Sign", over), "ReduceSum"),
                           probe.add_size(value))
    counts, sizes = dict.fromkeys(ranges, 0.0), dict.fromkeys(ranges, 0)
    with probe.load_probe_runner(backend, samples) as runner:
        for feed in samples.iterate_feeds():
            scalars = runner.run(feed)
            for tensor, (over_name, size_name) in outputs.items():
                counts[tensor] += float(scalars[over_name])
                sizes[tensor] += int(scalars[size_name])
            yield {tensor: counts[tensor] / max(1, sizes[tensor]) for tensor in ranges}
