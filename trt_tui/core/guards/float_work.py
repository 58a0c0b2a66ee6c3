"""The share of a config's quantizable work that runs in floating point."""

from trt_tui.core.guards.guard import FloatWorkShare
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.quantized_types import QUANTIZED_TYPES


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
