"""The guard against configs in which a third of the INT8 work runs in floating point.

Such a network may need quantization-aware training.

Rule: the layers in floating point that support the quantized type of the config are compared with all layers that
support it. The guard warns if they take at least a third of the time in the INT8 engine. Without a timed engine, it
warns if they have a third of the multiply-accumulate operations.

Source: NVIDIA's guides suggest quantization-aware training if post-training quantization does not reach the accuracy.
Floating point has half the rate of INT8. With a third of the products in it, the gain of INT8 over FP16 falls from 2 to
1.5 (Amdahl). Reformats between the layers come on top.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import percent_text

MIN_FLOAT_SHARE = 1 / 3


class FloatFallbackGuard(Guard):
    """The guard that warns if a config runs a third or more of the quantizable work in floating point."""

    name = "back-in-float"
    description = "share of the quantized work that runs in floating point"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.float_work is not None:
            return ""
        return ("the work of some layers is unknown" if guard_facts.is_quantized
                else "no layer is requested in a quantized type")

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
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
