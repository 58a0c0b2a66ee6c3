"""Which moves that cost nothing at run time can be made on a group, and why the others cannot."""

from collections.abc import Iterable

from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision


def no_rewrite(network: Outline, group: Group) -> str:
    """Why a group cannot be written as an operator, "" where it can."""
    norm = network.free.norms.get(group.name)
    return "no LayerNorm or RMSNorm that was taken apart" if norm is None else norm.no_rewrite


def no_smoothing(network: Outline, group: Group) -> str:
    """Why the channels at a group, a normalisation or what it feeds, cannot be scaled, "" where they can."""
    norm = network.free.before(group.name, group.layers)
    return "no LayerNorm or RMSNorm alone feeds it" if norm is None else network.free.norms[norm].no_smooth


def no_correction(network: Outline, group: Group, config: PrecisionConfig) -> str:
    """Why the bias of a group cannot be corrected in a config, "" where it can."""
    bias = network.free.biases.get(group.name)
    if bias is None:
        return "it has no weight that INT8 would round"
    if bias.refused:
        return bias.refused
    return "" if config.precision_of(group) is Precision.INT8 else "it does not run in INT8"


def out_of_the_file(config: PrecisionConfig, groups: Iterable[Group], reason: str = "user") -> PrecisionConfig:
    """A config with those of some groups that are as in the file in the precision that comes nearest to it: what a free
    move changes can no longer be written back as it is."""
    for group in groups:
        if config.precision_of(group) is Precision.FILE and group.given is not None:
            config = config.with_groups([group], group.given.stands_for, reason)
    return config


def made(network: Outline, config: PrecisionConfig, group: Group) -> list[tuple[type[Move], str]]:
    """The free moves that a config has on a group, or on the normalisation that feeds it: their kinds and targets."""
    norm = network.free.before(group.name, group.layers)
    wanted: list[tuple[type[Move], str | None]] = [(Rewrite, group.name), (Smooth, norm), (BiasCorrection, group.name)]
    return [(kind, target) for kind, target in wanted if target is not None and (kind.kind, target) in config.moves]
