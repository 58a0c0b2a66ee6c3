"""Which moves that cost nothing at run time can be made on a group, and why the others cannot."""

from collections.abc import Iterable

from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision


def rewrite_refusal_reason(network: NetworkOutline, group: FusionGroup) -> str:
    """Why a group cannot be written as an operator, "" where it can."""
    norm = network.zero_cost_support.norms.get(group.name)
    return "no decomposed LayerNorm or RMSNorm" if norm is None else norm.no_rewrite_reason


def smoothquant_refusal_reason(network: NetworkOutline, group: FusionGroup) -> str:
    """Why the channels at a group, a normalisation or what it feeds, cannot be scaled, "" where they can."""
    norm = network.zero_cost_support.find_feeding_normalisation(group.name, group.layers)
    if norm is None:
        return "its input does not come from a LayerNorm or RMSNorm alone"
    return network.zero_cost_support.norms[norm].no_smoothquant_reason


def bias_correction_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Why the bias of a group cannot be corrected in a config, "" where it can."""
    bias = network.zero_cost_support.biases.get(group.name)
    if bias is None:
        return "it has no weight that INT8 rounds"
    if bias.refusal_reason:
        return bias.refusal_reason
    return "" if config.precision_of(group) is Precision.INT8 else "it does not run in INT8"


def replace_file_precision(config: PrecisionConfig, groups: Iterable[FusionGroup],
                           reason: str = "user") -> PrecisionConfig:
    """A config with those of some groups that are as in the file in the precision that comes nearest to it: what a free
    move changes can no longer be written back as it is."""
    for group in groups:
        if config.precision_of(group) is Precision.FILE and group.file_precision is not None:
            config = config.with_group_precision([group], group.file_precision.nearest_precision, reason)
    return config


def list_zero_cost_moves(network: NetworkOutline, config: PrecisionConfig,
                         group: FusionGroup) -> list[tuple[type[Move], str]]:
    """The free moves that a config has on a group, or on the normalisation that feeds it: their kinds and targets."""
    norm = network.zero_cost_support.find_feeding_normalisation(group.name, group.layers)
    candidates: list[tuple[type[Move], str | None]] = [(RewriteMove, group.name), (SmoothQuantMove, norm),
                                                       (BiasCorrectionMove, group.name)]
    return [(move_class, subject)
            for move_class, subject in candidates
            if subject is not None and (move_class.kind, subject) in config.moves]
