"""The guards against a comparison in which the quantized precision is not what limits the result."""

import math
from collections.abc import Iterator

from trt_tui.core.guards.data_guards import fp32_miss_text
from trt_tui.core.guards.guard import Alarm, FloatWorkShare, GuardFacts, require
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.measure.target_outcome import judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import percent_text

MAX_GAIN_DB = 1.0


def _sqnr_against_fp32_db(accuracy: Accuracy, guard_facts: GuardFacts) -> float | None:
    """Returns the SQNR of the worst output against FP32 of the network in dB; None if it was not measured."""
    if accuracy.worst_output is None or accuracy.nonfinite_count:
        return None
    name, output = accuracy.worst_output
    return None if output.errors.sqnr_db is None else guard_facts.subtract_fp32_error(output.errors.sqnr_db, name)


def find_fp16_floor(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if FP16 rounding alone causes the error of a quantized run.

    Rule: it warns if three conditions hold. The run misses the target, and FP32 does not. A run with all layers in FP16
    misses the target too. The SQNR of the worst output in FP16 is less than 1 dB above that of the run. Both are taken
    against FP32 of the network: with another reference, the error of FP32 against that reference is subtracted. If the
    target bounds a metric, FP16 does not have a better one.

    Source: errors of INT8 layers and of FP16 roundings add up. A run within 1 dB of FP16 has four fifths of its error
    from FP16 (10^-0.1 = 0.79). All its INT8 layers together cause the last fifth.
    """
    accuracy, fp16_accuracy = accuracies = [require(accuracy, "the runs are not measured")
                                            for accuracy in (facts.accuracy, facts.fp16_accuracy)]
    require(all(item.samples >= item.total for item in accuracies), "the runs are not measured")
    require(facts.float_type == "fp16" and facts.is_quantized, "the run does not combine quantized types with FP16")
    for item in accuracies:
        require(_sqnr_against_fp32_db(item, facts), "no SQNR was measured")
    run_db, fp16_db = (_sqnr_against_fp32_db(item.on_compared_samples, facts) for item in accuracies)
    if run_db is None or fp16_db is None:
        return
    results = [judge_accuracy(facts.targets[:1], item) for item in accuracies]
    if fp32_miss_text(facts) or any(result is None or result.passes for result in results):
        return
    if any(target.error_metric is None and (target.margin_to_bound(fp16_accuracy) or 0.0) > (
            target.margin_to_bound(accuracy) or 0.0) for target in facts.targets[:1]):  # FP16 helps
        return
    if math.isfinite(run_db) and fp16_db - run_db < MAX_GAIN_DB:
        yield (
            f"FP16 rounding alone causes the error of {facts.run_name}",
            f"FP16 throughout has {fp16_db:.1f} dB, {facts.run_name} {run_db:.1f}, and both miss the "
            f"target: raising layers from {facts.quantized_type} to FP16 does not help",
            "Raise the layers with large shares in the FP16 run to FP32, or use --other bf16.")


MIN_FLOAT_SHARE = 1 / 3


def find_float_fallback(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if a config runs a third or more of the quantizable work in floating point.

    Such a network may need quantization-aware training.

    Rule: the layers in floating point that support the quantized type of the config are compared with all layers that
    support it. The guard warns if they take at least a third of the time in the INT8 engine. Without a timed engine, it
    warns if they have a third of the multiply-accumulate operations.

    Source: NVIDIA's guides suggest quantization-aware training if post-training quantization does not reach the
    accuracy. Floating point has half the rate of INT8. With a third of the products in it, the gain of INT8 over FP16
    falls from 2 to 1.5 (Amdahl). Reformats between the layers come on top.
    """
    float_work = require(facts.float_work, "the work of some layers is unknown" if facts.is_quantized else
                         "no layer is requested in a quantized type")
    if float_work.float_share >= MIN_FLOAT_SHARE:
        measure = ("the time that they take in the INT8 engine"
                   if float_work.is_timed else "their multiply-accumulates")
        fp16_accuracy = facts.fp16_accuracy if facts.float_type == "fp16" else None
        yield (
            f"{percent_text(float_work.float_share)} of {facts.quantized_type} work runs in floating point",
            f"{float_work.float_groups} of the {float_work.total_groups} layers that could run in "
            f"{facts.quantized_type} do not, with {percent_text(float_work.float_share)} of {measure}: most of the "
            f"saving of {facts.quantized_type} is lost",
            "FP16 between them overflows, which no range can repair: try --other bf16, which has the range "
            "of FP32." if fp16_accuracy is not None and fp16_accuracy.nonfinite_count else
            "Consider quantization-aware training, or try other ranges (--calib-method) and zero-cost changes "
            "before layers are raised.")



def measure_float_work_share(network: NetworkOutline, config: PrecisionConfig,
                             engine_result: EngineResult | None) -> FloatWorkShare | None:
    """Returns the share of the quantizable work that a config runs in floating point.

    None if the default precision of the config is not a quantized type, or if the work is unknown.

    Args:
        engine_result: The engine with all quantizable layers quantized. If its layers were timed, the work is their
            time. If not, the work is the number of multiply-accumulate operations.
    """
    if config.quantized not in QUANTIZED_TYPES:
        return None
    quantizable_groups = [group for group in network.groups if config.quantized in group.allowed_precisions]
    float_groups = [group for group in quantizable_groups if config.precision_of(group) not in QUANTIZED_TYPES]
    implementations = (engine_result.implementations
                       if engine_result is not None and engine_result.is_built_as_requested else {})
    times = {
        name: implementation.latency_ms
        for name, implementation in implementations.items()
        if implementation.latency_ms is not None
    }
    is_timed = all(group.name in times for group in quantizable_groups)
    weights = times if is_timed else {group.name: float(sum(network.get_layer(name).macs or 0 for name in group.layers))
                                      for group in quantizable_groups}
    total = sum(weights[group.name] for group in quantizable_groups)
    if not total or not all(weights[group.name] for group in quantizable_groups) and not is_timed:
        return None  # some sizes are unknown, so a share of the others would not be a share of the whole
    return FloatWorkShare(
        sum(weights[group.name] for group in float_groups) / total, is_timed, len(float_groups),
        len(quantizable_groups))

