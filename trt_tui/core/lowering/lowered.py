"""Whether a config lowers anything: a run in which nothing is lowered is exact by construction and proves nothing."""

from dataclasses import replace

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision, rank


def lowers(network: Outline, config: PrecisionConfig) -> bool:
    """Whether any group runs below FP32 in a config, or multiplies in TF32."""
    return any(_below_fp32(group, config.precision_of(group)) or config.tf32 and group.multiplied()
               for group in network.groups)


def _below_fp32(group: Group, precision: Precision) -> bool:
    if precision is Precision.FILE and group.given is not None:
        return not group.given.plain
    return precision is not Precision.FP32


def quantizes(network: Outline, config: PrecisionConfig) -> bool:
    """Whether any group of a config reads activations as codes, and so takes scales from ranges."""
    return any(group.ranged(config.precision_of(group)) for group in network.groups)


def told_as(network: Outline, config: PrecisionConfig) -> PrecisionConfig:
    """A config for what cannot be told a file's own precisions: in place of each the one that comes nearest, and the
    ranges of the file's Q/DQ pairs."""
    as_given = [group for group in network.groups if config.precision_of(group) is Precision.FILE]
    if not as_given:
        return config
    floats = {group.given.floats for group in as_given if group.given is not None}
    other = config.other if config.other is not Precision.FILE else max(floats, default=Precision.FP32, key=rank)
    told = replace(config, quantized=Precision.INT8 if config.quantized is Precision.FILE else config.quantized,
                   other=other)
    for group in network.groups:
        told = told.with_groups([group], group.stands_for(config.precision_of(group)), "file")
    reads = {site.tensor for group in as_given if group.given is not None
             and group.given.stands_for is Precision.INT8 for site in group.activations()}
    for tensor, amax in network.quantized_ranges.items():
        if tensor in reads and tensor not in config.ranges:
            told = told.with_range(tensor, RangeChoice(amax, "file"))
    return told


def cannot_lower(network: Outline) -> str:
    """Why nothing of a network can be lowered, or nothing quantized; "" where something can."""
    if not any(group.allowed - {Precision.FP32} for group in network.groups):
        refusals = [reason for group in network.groups for reason in group.refusals.values()]
        notes = [layer.note for layer in network.layers if layer.note]
        why = next(iter(refusals or notes), "it has no layer in FP32")
        return f"Nothing of this network can be lowered ({why}): every run is FP32, and exact for that reason"
    if not any(Precision.INT8 in group.allowed for group in network.groups):
        return "No layer of this network can run in INT8: the INT8 run is what the other layers lose"
    return ""
