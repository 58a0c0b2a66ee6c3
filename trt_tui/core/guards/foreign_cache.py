"""A calibration cache of another release, or made by another method than is asked for.

Rule: the first line of a cache, ``TRT-8601-EntropyCalibration2``, names both. It warns where a TensorRT that takes
caches works here and is of another release; where the cache is older than TensorRT 8.6 or claims a release that writes
none (11 and later); and where the method is another one than ``--calib-method`` or the config asks for, or than that of
the ranges that it lacks and that were measured here.

Source: NVIDIA's developer guide ("calibration caches are not portable across releases"; tensors are named after what a
release fuses); releases up to 10.16 have calibrators. A cache says how it was made by the calibrator's name alone.
"""

from collections.abc import Iterator

from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import visible

OLDEST, NEWEST = (8, 6), (10, 99)
"""Releases that build from calibration caches, as far as they are served here."""


class ForeignCache(Guard):
    """See the module's docstring."""

    name = "foreign-cache"
    about = "release and method in a calibration cache's first line"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        return "" if facts.ranges is not None and facts.ranges.header is not None else "no calibration cache is used"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        ranges = facts.ranges
        assert ranges is not None and ranges.header is not None, "else it lacks"
        header, name = ranges.header, visible(ranges.name)
        release = tuple(int(part) for part in header.release.split("."))
        if ranges.builder and ranges.builder.split(".")[:3] != header.release.split(".")[:3]:
            yield self.alarm(f"{name} is a cache of TensorRT {header.release}, and {ranges.builder} works here",
                             "releases fuse and name tensors in their own ways, and do not take each other's caches",
                             f"Calibrate with {ranges.builder}, or here with --calib-data.")
        elif not OLDEST <= release[:2] <= NEWEST:
            yield self.alarm(f"{name} is a cache of TensorRT {header.release}",
                             "8.6 to 10 are served here, and releases do not take each other's caches",
                             "Calibrate with the release that builds, or here with --calib-data.")
        made = header.method or header.algorithm
        for method, whose in ((ranges.rest, "the ranges that it lacks are measured"), (ranges.wanted, "what is asked")):
            if method and method != made:
                yield self.alarm(f"{name} was made by {made}, {whose} by {method}",
                                 "ranges of two methods clip differently, and no figure here is of one of them",
                                 f"Calibrate all of it by {method} with --calib-data, or use --calib-method {made}."
                                 if made in RANGE_METHODS else f"Calibrate all of it by {method} with --calib-data.")
                return
