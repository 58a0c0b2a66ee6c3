"""A third of what INT8 was to compute is back in floats: the network may have to be trained for INT8.

Rule: it warns where the layers that could run in the config's codes and run in floats took a third or more of the time
of all such layers in the INT8 engine; without an engine that was timed, of their multiply-accumulates.

Source: NVIDIA's guides suggest quantization-aware training where post-training quantization does not hold the accuracy;
with a third of the products back in floats at half of INT8's rate, INT8's gain over FP16 falls from 2 to 1.5 times
(Amdahl), before reformatting between them.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import percent

SHARE = 1 / 3


class BackInFloat(Guard):
    """See the module's docstring."""

    name = "back-in-float"
    about = "how much of the quantized work is back in floats"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        if facts.in_float is not None:
            return ""
        return "the work of some layers is not known" if facts.codes else "nothing is to run in codes"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        found = facts.in_float
        assert found is not None, "else it lacks"
        if found.share >= SHARE:
            of = "the time that they take in the INT8 engine" if found.timed else "their multiply-accumulates"
            half = facts.half if facts.floats == "fp16" else None
            yield self.alarm(f"{percent(found.share)} of {facts.quantized}'s work is back in floats",
                             f"{found.groups} of the {found.of} layers that could run in {facts.quantized} do not, "
                             f"with {percent(found.share)} of {of}: little is left of what {facts.quantized} saves",
                             "FP16 between them overflows, which no range mends: try --other bf16, which has the range "
                             "of FP32." if half is not None and half.bad else
                             "Consider quantization-aware training, or try other ranges (--calib-method) and what is "
                             "free before layers are raised.")
