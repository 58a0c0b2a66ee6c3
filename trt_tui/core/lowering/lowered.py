"""Whether a config lowers anything: a run in which nothing is lowered is exact by construction and proves nothing."""

from dataclasses import replace

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision, precision_rank


def reduces_precision(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Whether any group runs below FP32 in a config, or multiplies in TF32."""
    return any(
        _is_below_fp32(group, config.precision_of(group)) or config.tf32 and group.qdq_sites_of_multiplied_inputs()
        for group in network.groups)


def _is_below_fp32(group: FusionGroup, precision: Precision) -> bool:
    if precision is Precision.FILE and group.file_precision is not None:
        return not group.file_precision.is_plain_fp32
    return precision is not Precision.FP32


def quantizes_activations(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Whether any group of a config reads activations as codes, and so takes scales from ranges."""
    return any(group.calibrated_qdq_sites(config.precision_of(group)) for group in network.groups)


def replace_file_precision(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """A config for what cannot be told a file's own precisions: in place of each the one that comes nearest, and the
    ranges of the file's Q/DQ pairs."""
    file_groups = [group for group in network.groups if config.precision_of(group) is Precision.FILE]
    if not file_groups:
        return config
    float_types = {group.file_precision.float_type for group in file_groups if group.file_precision is not None}
    other_precision = config.other if config.other is not Precision.FILE else max(float_types, default=Precision.FP32,
                                                                                  key=precision_rank)
    replaced = replace(config, quantized=Precision.INT8 if config.quantized is Precision.FILE else config.quantized,
                       other=other_precision)
    for group in network.groups:
        replaced = replaced.with_group_precision([group], group.resolve_file_precision(config.precision_of(group)),
                                                 "file")
    quantized_tensors = {
        site.tensor
        for group in file_groups
        if group.file_precision is not None and group.file_precision.nearest_precision is Precision.INT8
        for site in group.activation_qdq_sites()
    }
    for tensor, amax in network.quantized_ranges.items():
        if tensor in quantized_tensors and tensor not in config.range_moves:
            replaced = replaced.with_range(tensor, RangeMove(amax, "file"))
    return replaced


def no_lower_precision_reason(network: NetworkOutline) -> str:
    """Why nothing of a network can be lowered, or nothing quantized; "" where something can."""
    if not any(group.allowed_precisions - {Precision.FP32} for group in network.groups):
        refusals = [reason for group in network.groups for reason in group.refusal_reasons.values()]
        notes = [layer.refusal_reason for layer in network.layers if layer.refusal_reason]
        first_reason = next(iter(refusals or notes), "it has no layer in FP32")
        return f"Nothing of this network can be lowered ({first_reason}): every run is FP32, and exact for that reason"
    if not any(Precision.INT8 in group.allowed_precisions for group in network.groups):
        return "No layer of this network can run in INT8: the INT8 run is what the other layers lose"
    return ""
