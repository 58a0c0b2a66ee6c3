"""The guards against ranges that mislead: from few, other or unrepresentative samples."""

import math
from collections.abc import Iterator

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.guards.guard import CACHE_SOURCE, CONFIG_SOURCE, MEASURED_SOURCE, Alarm, GuardFacts, require
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text

MAX_RANGE_RATIO = 2.0
MIN_SINGLE_RANGE_RATIO = 8.0
MAX_MISMATCHED_SHARE = 0.1


def is_range_mismatched(amax: float, min_expected_amax: float, max_expected_amax: float) -> bool:
    """Returns True if an amax is outside an expected interval by more than the factor `MAX_RANGE_RATIO`.

    All values are in the units of the tensor.
    """
    return amax > MAX_RANGE_RATIO * max_expected_amax or amax < min_expected_amax / MAX_RANGE_RATIO


def _amax_ratio(amax_pair: tuple[float, float]) -> float:
    low, high = sorted(amax_pair)
    return high / low if low > 0 else math.inf


def find_exceeded_ranges(facts: GuardFacts) -> dict[str, float]:
    """Returns the tensors whose values far exceed their range, with the ratio; empty if the guard does not warn."""
    ranges = facts.range_facts
    if ranges is None or not ranges.checked_samples or not any(find_stale_ranges(facts)):
        return {}
    return {tensor: expected_amax / amax for tensor, (amax, expected_amax) in ranges.mismatches.items()
            if expected_amax > amax}


def find_stale_ranges(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the ranges of a cache or config contradict the values in the samples.

    Rule: a range is wrong if it is more than twice the largest magnitude in up to 32 samples. It is also wrong if it is
    less than half of the smallest amax that a calibration method would choose from them. Min-max chooses the largest
    magnitude. Percentile, entropy and MSE can choose less, which counts only for a cache made by these methods. The
    guard warns if more than one range in ten is wrong, or a single one by a factor of 8.

    Source: a factor of 2 is one of the 8 bits. Ranges of one network from different samples of the same kind differ by
    less. Those of the bundled network differ by at most 1.25 between 16 and 48 samples, and by 1.43 between 8 and 48.
    Single tensors with outliers can differ by more, so one tensor alone does not count until it loses 3 bits.
    """
    ranges = require(facts.range_facts, "no layer needs a range")
    require(bool(ranges.checked_samples), "the ranges were measured on these samples"
            if ranges.source == MEASURED_SOURCE else "no samples")
    mismatches = ranges.mismatches
    if not mismatches:
        return
    worst = max(mismatches, key=lambda tensor: _amax_ratio(mismatches[tensor]))
    if len(mismatches) <= MAX_MISMATCHED_SHARE * ranges.compared_tensors and _amax_ratio(
            mismatches[worst]) < MIN_SINGLE_RANGE_RATIO:
        return
    amax, expected_amax = mismatches[worst]
    range_source = "cache" if ranges.source == CACHE_SOURCE else "config"
    yield (
        f"{escape_hidden_characters(ranges.source_name)}: {len(mismatches)} of "
        f"{counted_noun_text(ranges.compared_tensors, 'range')} wrong by a factor of 2 or more",
        f"{counted_noun_text(ranges.checked_samples, 'sample')} contradict them: {escape_hidden_characters(worst)} "
        f"has {number_text(amax)}, and the samples need {number_text(expected_amax)}, as after another training or "
        "preprocessing",
        f"Calibrate again on current samples: leave this {range_source}'s ranges out"
        f"{' (no --calib-cache)' if range_source == 'cache' else ''} and give --calib-data.")


OLDEST_CACHE_RELEASE, NEWEST_CACHE_RELEASE = (8, 6), (10, 99)
"""Oldest and newest release whose calibration caches are supported."""


def find_foreign_cache(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if a calibration cache is from another TensorRT release or range method than the session
    uses.

    Rule: the first line of a cache, ``TRT-8601-EntropyCalibration2``, names both. The guard warns in these cases:

    - A TensorRT that reads caches works on this machine and is of another release.
    - The cache is older than TensorRT 8.6, or names a release that writes no caches (11 and later).
    - The method differs from ``--calib-method`` or from the config.
    - The method differs from that of the ranges that the cache lacks and that were measured in this session.

    Source: NVIDIA's developer guide ("calibration caches are not portable across releases"; the names of tensors depend
    on the fusions of a release). Releases up to 10.16 have calibrators. A cache states its method only by the name of
    the calibrator.
    """
    ranges = require(facts.range_facts, "no calibration cache is used")
    header = require(ranges.cache_header, "no calibration cache is used")
    name = escape_hidden_characters(ranges.source_name)
    release = tuple(int(part) for part in header.release.split("."))
    if ranges.builder_release and ranges.builder_release.split(".")[:3] != header.release.split(".")[:3]:
        yield (
            f"{name} is a cache of TensorRT {header.release}, and {ranges.builder_release} works here",
            "releases fuse and name tensors differently, and do not accept each other's caches",
            f"Calibrate with {ranges.builder_release}, or here with --calib-data.")
    elif not OLDEST_CACHE_RELEASE <= release[:2] <= NEWEST_CACHE_RELEASE:
        yield (f"{name} is a cache of TensorRT {header.release}",
               "8.6 to 10 are supported here, and releases do not accept each other's caches",
               "Calibrate with the release that builds, or here with --calib-data.")
    cache_method = header.range_method or header.algorithm
    for method, requirement in ((ranges.fallback_method, "but the missing ranges are measured by"),
                                (ranges.requested_method, "and the requested method is")):
        if method and method != cache_method:
            yield (
                f"{name} was made by {cache_method}, {requirement} {method}",
                "ranges of two methods clip differently, and the results here belong to neither",
                f"Calibrate all of it by {method} with --calib-data, or use --calib-method {cache_method}."
                if cache_method in RANGE_METHODS else f"Calibrate all of it by {method} with --calib-data.")
            return


MIN_CALIBRATION_SAMPLES = 32


def find_few_samples(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the ranges come from fewer than 32 calibration samples.

    Rule: it warns if there are fewer than 32 calibration samples, in this session or for the ranges of a config.

    Source: twelve draws of 8 scenes were measured with the bundled network; 2 scenes of each draw calibrate. Ten draws
    give 11 to 16 dB in INT8. Two give 28 and 33 dB, because no scene with hot pixels calibrates. With 48 scenes the
    result is 11 dB. With fewer than 32 samples, a property of one sample in ten is missed with a probability above 3 %
    (0.9^32).
    """
    require(not facts.has_random_inputs, "random inputs")
    ranges = require(facts.range_facts, "no layer needs a range")
    require(bool(ranges.calibration_samples), "it is not known how many samples have calibrated")
    if ranges.calibration_samples >= MIN_CALIBRATION_SAMPLES:
        return
    subject = "calibration is"
    next_step = (f"Give {MIN_CALIBRATION_SAMPLES} or more with --calib-data, or more --data: every fourth batch "
                 "calibrates.")
    if ranges.source == CONFIG_SOURCE:
        subject = f"the ranges of {escape_hidden_characters(ranges.source_name)} are"
        next_step = f"Calibrate again on {MIN_CALIBRATION_SAMPLES} or more: leave this config's ranges out."
    yield (
        f"{subject} from {counted_noun_text(ranges.calibration_samples, 'sample')}",
        f"with fewer than {MIN_CALIBRATION_SAMPLES} the ranges miss rare values, and {facts.quantized_type} "
        "looks better here than it is",
        next_step)


MIN_CHANGE_DB = 1.0
MAX_STEADY_CHANGE_DB = 0.1
MIN_REVERSED_CHANGE_DB = 3.0


def find_sample_divergence(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the accuracy of a quantized run still changes with the number of calibration samples.

    Rule: the SQNR of the worst output is measured with a quarter, a half and all of the calibration samples. The guard
    warns if the SQNR changes by at least 1 dB from a half to all. The change before, from a quarter to a half, must
    have the same sign or be within 0.1 dB. If it has the opposite sign, the limit is 3 dB instead of 1 dB. The values
    are those against FP32 of the network. With another reference, the error of FP32 is subtracted.

    Source: a stable result changes by less. That of the bundled network, whose outliers are rare, changes by 0.0 dB
    from 16 to 24 samples, and by 0.9 dB from there to 48. A simulation differs from its engine by less than 0.5 dB. A
    rising SQNR shows that more samples help. A falling one shows that each additional sample widens min-max ranges, and
    that INT8 looks better with few samples than it is.
    """
    require(len(facts.convergence) > 1, facts.no_convergence_reason or "it was not measured")
    quarter_db, half_db, full_db = values_db = [facts.subtract_fp32_error(point.sqnr_db)
                                                for point in facts.convergence]
    gain, before = full_db - half_db, half_db - quarter_db
    is_reversed = (before if gain > 0 else -before) < -MAX_STEADY_CHANGE_DB
    min_change_db = MIN_REVERSED_CHANGE_DB if is_reversed else MIN_CHANGE_DB
    if not all(map(math.isfinite, values_db)) or abs(gain) < min_change_db:
        return
    points_text = ", ".join(f"{value_db:.1f} dB with {point.samples}"
                            for value_db, point in zip(values_db, facts.convergence, strict=True))
    if gain > 0:
        yield ("more calibration samples would help",
               f"{facts.quantized_type} gives {points_text}, and still rises",
               "Give more with --calib-data.")
    else:
        yield (
            f"{facts.quantized_type} falls with more calibration samples",
            f"it gives {points_text}: outliers in a few samples widen all ranges",
            "Give more samples, and try --calib-method percentile or entropy, which leave them out.")


MIN_CLIPPED_SHARE = 0.001
MIN_CALIBRATION_RATIO = 4.0
MIN_EXTERNAL_RANGE_SHARE = 0.01
MAX_NAMED_TENSORS = 3


def find_clipped_values(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if many judged values are outside the range of their tensor and are therefore clipped.

    Rule: a tensor counts if at least 0.1 % of its judged values are larger than 1.1 times its range. In addition, that
    share must be at least four times the share in the calibration samples. If the ranges were not measured in this
    session, a share of 1 % is enough. A tensor that the guard against stale ranges names counts with any share, because
    few values far outside a range are clipped too.

    Source: a percentile of 99.99 leaves 0.01 % of the values outside by design. Entropy and MSE leave somewhat more
    outside, even of the calibration samples; hence the comparison with these. A value clipped from 1.1 times the range
    has an error of 0.1 of the range. A value inside has an error of 1/440 of the range (a step of 1/127 divided by the
    root of 12). A share of 0.1 % of such values adds twice the noise of all others.
    """
    ranges = require(facts.range_facts, "no layer needs a range")
    clipped_shares = require(facts.clipped, "it was not measured")
    is_external = ranges.source != MEASURED_SOURCE
    exceeded_ranges = find_exceeded_ranges(facts)
    shares_over_limit = {
        tensor: clipped.judged_share
        for tensor, clipped in clipped_shares.items()
        if tensor in exceeded_ranges or clipped.judged_share >= MIN_CLIPPED_SHARE and (
            clipped.judged_share >= MIN_CALIBRATION_RATIO
            * clipped.calibration_share or is_external and clipped.judged_share >= MIN_EXTERNAL_RANGE_SHARE)
    }
    if not shares_over_limit:
        return
    worst = sorted(shares_over_limit, key=lambda tensor: -shares_over_limit[tensor])
    shares = ", ".join(f"{escape_hidden_characters(tensor)} {100 * shares_over_limit[tensor]:.2g} %"
                       for tensor in worst[:MAX_NAMED_TENSORS])
    ratio = max((exceeded_ranges.get(tensor, 0.0) for tensor in worst), default=0.0)
    reached_text = f"; values reach {number_text(ratio, 2)} times a range" if ratio else ""
    more = f" and {len(worst) - MAX_NAMED_TENSORS} more" if len(worst) > MAX_NAMED_TENSORS else ""
    yield (
        f"judged values are outside the range of {counted_noun_text(len(shares_over_limit), 'tensor')}",
        f"they are clipped: {shares}{more}{reached_text}; the calibration samples had smaller values",
        "Calibrate on samples like the judged samples (--calib-data), or on more samples.")
