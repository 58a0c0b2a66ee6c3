"""The network in FP32 against the outputs that a framework gave for the same samples.

Rule: it warns where an output's SQNR against the framework's is below 60 dB.

Source: two FP32 runtimes agree to 100 dB and more, also where one has fused what the other has not; a framework that
multiplied in TF32 or FP16 leaves 50 to 60. Below that the export computes something else, or the inputs were prepared
otherwise, and no precision mends it.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import visible

LEAST_DB = 60.0


class Framework(Guard):
    """See the module's docstring."""

    name = "framework"
    about = "FP32 against the framework's own outputs"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        return "" if facts.framework else "no outputs of the framework were given"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        for name, errors in (facts.framework or {}).items():
            bad = errors.bad or not errors.exact and (errors.sqnr_db is None or errors.sqnr_db < LEAST_DB)
            if bad and errors.mismatch is None:
                yield self.alarm(f"FP32 is not what the framework computed: {errors.figure('')} dB at {visible(name)}",
                                 "two FP32 runtimes agree to 100 dB and more, so this is no precision problem",
                                 "Check the export and the preprocessing of both sides before any layer.")
