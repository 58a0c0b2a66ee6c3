"""What a search chooses from: the groups that can be raised, and the config that a choice makes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from trt_tui.core.codes import CODES
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import MoveKey, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision, rank
from trt_tui.errors import InputError


@dataclass(frozen=True)
class Space:
    """The configs between a start and the one with every group raised.

    Attributes:
        start: What the search starts from; groups that it has raised already, and those kept by rule, stay as they are.
        higher: The precision that groups are raised to.
        between: Precisions below it that a raised group may have where that does, lowest first; TF32 is had by every
            layer in FP32.
        free: Moves that cost nothing at run time, by the name of a set, by kind and target.
        fixed: Names of groups that stay as they are at the start.
        candidates: Names of the groups that can be raised, in network order.

    Raises:
        InputError: no group can be raised, or TF32 is no rung of this start.
    """

    network: Outline
    start: PrecisionConfig
    higher: Precision = Precision.FP32
    between: tuple[Precision, ...] = ()
    free: Mapping[str, Mapping[MoveKey, Move]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    candidates: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if Precision.TF32 in self.between and (self.start.tf32 or self.higher is not Precision.FP32):
            why = "every layer in FP32 uses it from the start on" if self.start.tf32 else \
                f"layers are raised to {self.higher.label}, and it is a setting of all layers in FP32"
            raise InputError("TF32 is no rung of this search", why, "Leave it out of the rungs"
                             + (", or start without --tf32." if self.start.tf32 else "."))
        names = tuple(group.name for group in self.network.groups if self.higher in group.allowed
                      and group.name not in self.start.held | self.fixed
                      and group.rank(self.start.precision_of(group)) < rank(self.higher))
        if not names:
            raise InputError(
                f"{self.network.name} has no layer to raise to {self.higher.label}",
                "it has no float layer" if not self.network.groups else "no layer runs in a lower precision than that"
                + (" but those kept as they are" if self.start.held | self.fixed else ""),
                "Start from a config with quantized layers (--precision int8 or fp8), or raise to FP32.")
        object.__setattr__(self, "candidates", names)

    @cached_property
    def already(self) -> frozenset[str]:
        """The groups that the start raises above their defaults."""
        return frozenset(self.start.raised(self.network))

    def rungs_of(self, name: str) -> tuple[Precision, ...]:
        """The precisions between what a group has at the start and the highest that it can have, lowest first."""
        group = self.network.group(name)
        return tuple(one for one in self.between if one in group.allowed
                     and rank(self.start.precision_of(group)) < rank(one) < rank(self.higher))

    def config(self, raised: Iterable[str], ranges: Mapping[str, RangeChoice] | None = None,
               reason: str = "search", rungs: Mapping[str, Precision] | None = None,
               free: Iterable[str] = ()) -> PrecisionConfig:
        """The start with sets of free moves made, groups raised and ranges replaced, each with the reason."""
        raised, free, config = tuple(raised), tuple(free), self.start
        for name in free:
            config = replace(config, moves={**config.moves, **self.free[name]})
        config = config.with_groups((self.network.group(name) for name in raised), self.higher, reason)
        if Precision.TF32 in (rungs or {}).values():
            config = replace(config, tf32=True)
        for name, rung in (rungs or {}).items():
            config = config.with_groups([self.network.group(name)], rung, reason)
        if free:
            config = config.without(BiasCorrection, raised)
        for tensor, choice in (ranges or {}).items():
            config = config.with_range(tensor, choice)
        return config

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those names that are candidates, in network order."""
        wanted = set(names)
        return tuple(name for name in self.candidates if name in wanted)


def lowest(network: Outline, rungs: Sequence[Precision], other: Precision, tf32: bool = False
           ) -> PrecisionConfig:
    """Each group in the lowest of some rungs that it can have; those that read no codes in ``other`` where the lowest
    of them is of codes."""
    config = PrecisionConfig.uniform(rungs[0], other, tf32)
    for group in network.groups:
        if group.quantizable and rungs[0] in CODES:
            rung = next((one for one in rungs if one in group.allowed), other)
            config = config.with_groups([group], rung, "search:rungs")
    return config


def lowered_beside(network: Outline, config: PrecisionConfig, higher: Precision
                   ) -> tuple[PrecisionConfig, tuple[str, ...]]:
    """The start of a search that lowers more than a config does, and the groups that stay as they are in it.

    What the config has below ``higher`` stays; every other group, but those held, is lowered to the lowest precision
    that the config uses, INT8 where it uses none of codes.
    """
    fixed = [group for group in network.groups if group.rank(config.precision_of(group)) < rank(higher)]
    start = replace(config, quantized=config.ladder[0]).without_groups(network.groups)
    for group in fixed:
        start = start.with_groups([group], config.precision_of(group), config.groups[group.name].reason
                                  if group.name in config.groups else "user")
    return start, tuple(group.name for group in fixed)


def made_beside(network: Outline, start: PrecisionConfig, config: PrecisionConfig) -> dict[MoveKey, Move]:
    """The moves that a config has beside those of a start, with the precisions of groups that have their default again.
    """
    back = {key: Choice(config.precision_of(network.group(key[1])), start.moves[key].set_by)
            for key in start.moves.keys() - config.moves.keys() if key[0] == Choice.kind}
    return {**back, **{key: move for key, move in config.moves.items() if start.moves.get(key) is not move}}
