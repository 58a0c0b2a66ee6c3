"""The guard against a calibration cache of another TensorRT release or range method.

Rule: the first line of a cache, ``TRT-8601-EntropyCalibration2``, names both. The guard warns in these cases:

- A TensorRT that reads caches works on this machine and is of another release.
- The cache is older than TensorRT 8.6, or names a release that writes no caches (11 and later).
- The method differs from ``--calib-method`` or from the config.
- The method differs from that of the ranges that the cache lacks and that were measured in this session.

Source: NVIDIA's developer guide ("calibration caches are not portable across releases"; the names of tensors depend on
the fusions of a release). Releases up to 10.16 have calibrators. A cache states its method only by the name of the
calibrator.
"""

from collections.abc import Iterator

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

OLDEST_CACHE_RELEASE, NEWEST_CACHE_RELEASE = (8, 6), (10, 99)
"""Oldest and newest release whose calibration caches are supported."""


class ForeignCacheGuard(Guard):
    """The guard that warns if a calibration cache is from another TensorRT release or range method than the session
    uses."""

    name = "foreign-cache"
    description = "release and method in a calibration cache's first line"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return ("" if guard_facts.range_facts is not None and guard_facts.range_facts.cache_header is not None else
                "no calibration cache is used")

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        ranges = guard_facts.range_facts
        assert ranges is not None and ranges.cache_header is not None, "else it lacks"
        header, name = ranges.cache_header, escape_hidden_characters(ranges.source_name)
        release = tuple(int(part) for part in header.release.split("."))
        if ranges.builder_release and ranges.builder_release.split(".")[:3] != header.release.split(".")[:3]:
            yield self.make_warning(
                f"{name} is a cache of TensorRT {header.release}, and {ranges.builder_release} works here",
                "releases fuse and name tensors differently, and do not accept each other's caches",
                f"Calibrate with {ranges.builder_release}, or here with --calib-data.")
        elif not OLDEST_CACHE_RELEASE <= release[:2] <= NEWEST_CACHE_RELEASE:
            yield self.make_warning(f"{name} is a cache of TensorRT {header.release}",
                                    "8.6 to 10 are supported here, and releases do not accept each other's caches",
                                    "Calibrate with the release that builds, or here with --calib-data.")
        cache_method = header.range_method or header.algorithm
        for method, requirement in ((ranges.fallback_method, "but the missing ranges are measured by"),
                                    (ranges.requested_method, "and the requested method is")):
            if method and method != cache_method:
                yield self.make_warning(
                    f"{name} was made by {cache_method}, {requirement} {method}",
                    "ranges of two methods clip differently, and the results here belong to neither",
                    f"Calibrate all of it by {method} with --calib-data, or use --calib-method {cache_method}."
                    if cache_method in RANGE_METHODS else f"Calibrate all of it by {method} with --calib-data.")
                return
