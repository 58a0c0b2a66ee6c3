"""Too few samples calibrate.

Rule: it warns below 32 samples, whether they calibrate here or have calibrated for a config.

Source: of twelve draws of 8 of the bundled network's scenes, 2 of which calibrate, ten give 11 to 16 dB in INT8 and two
28 and 33, since no scene with hot pixels calibrates there; with 48 it gives 11. Below 32 samples, what one in ten has
is missed with a chance above 3 % (0.9^32).
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import CONFIG, Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import plural, visible

LEAST = 32


class FewSamples(Guard):
    """See the module's docstring."""

    name = "few-samples"
    about = f"fewer than {LEAST} calibrating samples"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        if facts.random:
            return "random inputs"
        if facts.ranges is None:
            return "nothing takes a range"
        return "" if facts.ranges.samples else "it is not known how many samples have calibrated"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        ranges = facts.ranges
        assert ranges is not None, "else it lacks"
        if ranges.samples >= LEAST:
            return
        whose = f"the ranges of {visible(ranges.name)} are" if ranges.source == CONFIG else "calibration is"
        yield self.alarm(f"{whose} from {plural(ranges.samples, 'sample')}",
                         f"below {LEAST} the ranges miss what few inputs have, and {facts.quantized} looks better here "
                         "than it is",
                         f"Give {LEAST} or more with --calib-data, or more --data: every fourth batch calibrates.")
