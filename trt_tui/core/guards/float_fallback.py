"""A third of what INT8 was to compute is back in floats: the network may have to be trained for INT8.

Rule: it warns where the layers that could run in the config's codes and run in floats took a third or more of the time
of all such layers in the INT8 engine; without an engine that was timed, of their multiply-accumulates.

Source: NVIDIA's guides suggest quantization-aware training where post-training quantization does not hold the accuracy;
with a third of the products back in floats at half of INT8's rate, INT8's gain over FP16 falls from 2 to 1.5 times
(Amdahl), before reformatting between them.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import percent_text

MIN_FLOAT_SHARE = 1 / 3


class FloatFallbackGuard(Guard):
    """See the module's docstring."""

    name = "back-in-float"
    description = "share of the quantized work that runs in floating point"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        if guard_facts.float_work is not None:
            return ""
        return ("the work of some layers is unknown" if guard_facts.is_quantized
                else "no layer is requested in a quantized type")

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of."""
        float_work = guard_facts.float_work
        assert float_work is not None, "else it lacks"
        if float_work.float_share >= MIN_FLOAT_SHARE:
            measure = ("the time that they take in the INT8 engine"
                       if float_work.is_timed else "their multiply-accumulates")
            fp16_accuracy = guard_facts.fp16_accuracy if guard_facts.float_type == "fp16" else None
            yield (self.make_warning(
                f"{percent_text(float_work.float_share)} of {guard_facts.quantized_type} work runs in floating point",
                f"{float_work.float_groups} of the "
                f"{float_work.total_groups} layers that could run in {guard_facts.quantized_type} do not, "
                f"with "
                f"{percent_text(float_work.float_share)} of "
                f"{measure}: most of the saving of {guard_facts.quantized_type} is lost",
                "FP16 between them overflows, which no range can repair: try --other bf16, which has the range "
                "of FP32." if fp16_accuracy is not None and fp16_accuracy.nonfinite_count else
                "Consider quantization-aware training, or try other ranges (--calib-method) and zero-cost changes "
                "before layers are raised."))
