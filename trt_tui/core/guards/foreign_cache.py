"""A calibration cache of another release, or made by another method than is asked for.

Rule: the first line of a cache, ``TRT-8601-EntropyCalibration2``, names both. It warns where a TensorRT that takes
caches works here and is of another release; where the cache is older than TensorRT 8.6 or claims a release that writes
none (11 and later); and where the method is another one than ``--calib-method`` or the config asks for, or than that of
the ranges that it lacks and that were measured here.

Source: NVIDIA's developer guide ("calibration caches are not portable across releases"; tensors are named after what a
release fuses); releases up to 10.16 have calibrators. A cache says how it was made by the calibrator's name alone.
"""

from collections.abc import Iterator

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

OLDEST_CACHE_RELEASE, NEWEST_CACHE_RELEASE = (8, 6), (10, 99)
"""Releases that build from calibration caches, as far as they are served here."""


class ForeignCacheGuard(Guard):
    """See the module's docstring."""

    name = "foreign-cache"
    description = "release and method in a calibration cache's first line"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        return ("" if guard_facts.range_facts is not None and guard_facts.range_facts.cache_header is not None else
                "no calibration cache is used")

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of."""
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
        for method, requirement in ((ranges.fallback_method, "the missing ranges are measured"),
                                    (ranges.requested_method, "the request is")):
            if method and method != cache_method:
                yield self.make_warning(
                    f"{name} was made by {cache_method}; {requirement} by {method}",
                    "ranges of two methods clip differently, and the results here belong to neither",
                    f"Calibrate all of it by {method} with --calib-data, or use --calib-method {cache_method}."
                    if cache_method in RANGE_METHODS else f"Calibrate all of it by {method} with --calib-data.")
                return
