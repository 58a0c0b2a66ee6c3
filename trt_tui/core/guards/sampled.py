"""Runs of the FP32 network for guards: what ranges samples call for, and what lies beyond a range."""

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.calibration.statistics import collect_stats
from trt_tui.core.calibration.sweep import OnRun, Probe, scalar
from trt_tui.core.data.samples import Samples
from trt_tui.core.guards.inputs import spread_over
from trt_tui.core.guards.stale_ranges import FACTOR, is_off
from trt_tui.core.runner import Backend

SAMPLES = 32
"""Ranges are held against so many samples."""

MOST_LOOKED_AT = 24
"""So many ranges that lie below what samples reach are held against what every method would choose."""

BEYOND = 1.1
"""Values count as beyond a range from here on; see `trt_tui.core.guards.beyond_range`."""

Off = dict[str, tuple[float, float]]


def ranges_off(model: ir.Model, ranges: Mapping[str, float], samples: Samples, backend: Backend, *, clips: bool,
               progress: OnRun | None = None) -> tuple[Off, int, int]:
    """Ranges that samples contradict; see `trt_tui.core.guards.stale_ranges`.

    Args:
        ranges: The amax by tensor name.
        clips: Whether the method that made them may choose less than the largest magnitude.

    Returns:
        Range and what the samples call for, by tensor, where they are apart; how many tensors were compared, and on how
        many samples.

    Raises:
        InputError: the network cannot run these data.
    """
    some = samples.take(list(spread_over(samples, SAMPLES)))
    found = calibrate(model, list(ranges), some, backend, progress=progress).ranges
    compared = {tensor: amax for tensor, amax in ranges.items() if amax > 0 and found[tensor] > 0}
    off: Off = {tensor: (amax, found[tensor]) for tensor, amax in compared.items()
                if is_off(amax, found[tensor], found[tensor])}
    below = sorted((tensor for tensor in off if off[tensor][0] < off[tensor][1]),
                   key=lambda tensor: off[tensor][0] / off[tensor][1])
    if clips and below:
        looked = below[:MOST_LOOKED_AT]
        for tensor, stats in collect_stats(model, looked, some, backend, progress=progress).items():
            least = min(stats.ranges.values())
            if is_off(off[tensor][0], least, found[tensor]):
                off[tensor] = (off[tensor][0], least)
            else:
                del off[tensor]
        for tensor in below[MOST_LOOKED_AT:]:  # nearer than any of those that were looked at
            amax, reached = off[tensor]
            if not any(one in off for one in looked) or reached / amax < FACTOR * FACTOR:
                del off[tensor]
    return off, len(compared), some.count


def shares_beyond(model: ir.Model, ranges: Mapping[str, float], samples: Samples, backend: Backend
                  ) -> Iterator[dict[str, float]]:
    """Yields after each feed the share of the values so far beyond `BEYOND` times their range, by tensor.

    Args:
        ranges: The amax by tensor name, above 0.

    Raises:
        InputError: the network cannot run these data.
    """
    probe = Probe(model)
    outputs = {}
    for tensor, amax in ranges.items():
        value = probe.float_value(tensor)
        over = probe.apply("ThresholdedRelu", probe.apply("Abs", value), alpha=amax * BEYOND)
        outputs[tensor] = (probe.emit(scalar(probe.apply("ReduceSum", probe.apply("Sign", over), keepdims=0))),
                           probe.emit(scalar(probe.apply("Size", value, dtype=ir.DataType.INT64))))
    counts, sizes = dict.fromkeys(ranges, 0.0), dict.fromkeys(ranges, 0)
    with probe.load(backend, samples) as runner:
        for feed in samples.feeds():
            scalars = runner.run(feed)
            for tensor, (over_name, size_name) in outputs.items():
                counts[tensor] += float(scalars[over_name])
                sizes[tensor] += int(scalars[size_name])
            yield {tensor: counts[tensor] / max(1, sizes[tensor]) for tensor in ranges}
