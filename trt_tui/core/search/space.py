"""What a search chooses from: the groups that can be raised, and the config that a choice makes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.config import MoveKey, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError


@dataclass(frozen=True)
class SearchSpace:
    """The configs between a start and the one with every group raised.

    Attributes:
        start_config: What the search starts from; groups that it has raised already, and those kept by rule, stay as
        they are.
        higher_precision: The precision that groups are raised to.
        intermediate: Precisions below it that a raised group may have where that does, lowest first; TF32 is had by
            every layer in FP32.
        zero_cost_sets: Moves that cost nothing at run time, by the name of a set, by kind and target.
        fixed_groups: Names of groups that stay as they are at the start.
        candidates: Names of the groups that can be raised, in network order.

    Raises:
        InputError: no group can be raised, or TF32 is no rung of this start.
    """

    network: NetworkOutline
    start_config: PrecisionConfig
    higher_precision: Precision = Precision.FP32
    intermediate: tuple[Precision, ...] = ()
    zero_cost_sets: Mapping[str, Mapping[MoveKey, Move]] = field(default_factory=dict)
    fixed_groups: frozenset[str] = frozenset()
    candidates: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if Precision.TF32 in self.intermediate and (self.start_config.tf32
                                                    or self.higher_precision is not Precision.FP32):
            reason = "every FP32 layer already uses it" if self.start_config.tf32 else \
                f"layers are raised to {self.higher_precision.label}, and TF32 is a setting for all layers in FP32"
            raise InputError("TF32 cannot be an intermediate precision here", reason, "Leave it out of --rungs"
                             + (", or start without --tf32." if self.start_config.tf32 else "."))
        names = tuple(
            group.name for group in self.network.groups if self.higher_precision in group.allowed_precisions
            and group.name not in self.start_config.groups_kept_by_rule | self.fixed_groups
            and group.precision_rank(self.start_config.precision_of(group)) < precision_rank(self.higher_precision))
        if not names:
            raise InputError(
                f"{self.network.name} has no layer to raise to {self.higher_precision.label}",
                "it has no float layer" if not self.network.groups else "no layer runs in a lower precision"
                + (" except those kept by rule" if self.start_config.groups_kept_by_rule | self.fixed_groups else ""),
                "Start from a config with quantized layers (--precision int8 or fp8), or raise to FP32.")
        object.__setattr__(self, "candidates", names)

    @cached_property
    def groups_raised_at_start(self) -> frozenset[str]:
        """The groups that the start raises above their defaults."""
        return frozenset(self.start_config.find_raised_groups(self.network))

    def intermediate_precisions(self, group_name: str) -> tuple[Precision, ...]:
        """The precisions between what a group has at the start and the highest that it can have, lowest first."""
        group = self.network.get_group(group_name)
        return tuple(precision for precision in self.intermediate
                     if precision in group.allowed_precisions and precision_rank(self.start_config.precision_of(group))
                     < precision_rank(precision) < precision_rank(self.higher_precision))

    def build_config(self, raised_groups: Iterable[str], range_moves: Mapping[str, RangeMove] | None = None,
                     reason: str = "search", precisions: Mapping[str, Precision] | None = None,
                     zero_cost_set_names: Iterable[str] = ()) -> PrecisionConfig:
        """The start with sets of free moves made, groups raised and ranges replaced, each with the reason."""
        raised_groups, zero_cost_set_names, config = tuple(raised_groups), tuple(zero_cost_set_names), self.start_config
        for name in zero_cost_set_names:
            config = replace(config, moves={**config.moves, **self.zero_cost_sets[name]})
        config = config.with_group_precision((self.network.get_group(name) for name in raised_groups),
                                             self.higher_precision, reason)
        if Precision.TF32 in (precisions or {}).values():
            config = replace(config, tf32=True)
        for name, precision in (precisions or {}).items():
            config = config.with_group_precision([self.network.get_group(name)], precision, reason)
        if zero_cost_set_names:
            config = config.without_moves(BiasCorrectionMove, raised_groups)
        for tensor, choice in (range_moves or {}).items():
            config = config.with_range(tensor, choice)
        return config

    def sort_candidates_in_network_order(self, group_names: Iterable[str]) -> tuple[str, ...]:
        """Those names that are candidates, in network order."""
        selected = set(group_names)
        return tuple(name for name in self.candidates if name in selected)


def lowest_precision_config(network: NetworkOutline, precisions: Sequence[Precision], boundary_type: Precision,
                            uses_tf32: bool = False) -> PrecisionConfig:
    """Each group in the lowest of some rungs that it can have; those that read no codes in ``boundary_type`` where the
    lowest of them is of codes."""
    config = PrecisionConfig.from_precision(precisions[0], boundary_type, uses_tf32)
    for group in network.groups:
        if group.is_quantizable and precisions[0] in QUANTIZED_TYPES:
            lowest_precision = next((precision for precision in precisions if precision in group.allowed_precisions),
                                    boundary_type)
            config = config.with_group_precision([group], lowest_precision, "search:rungs")
    return config


def reduce_remaining_groups(network: NetworkOutline, config: PrecisionConfig, higher_precision: Precision
                            ) -> tuple[PrecisionConfig, tuple[str, ...]]:
    """The start of a search that lowers more than a config does, and the groups that stay as they are in it.

    What the config has below ``higher_precision`` stays; every other group, but those held, is lowered to the lowest
    precision that the config uses, INT8 where it uses none of codes.
    """
    fixed = [
        group for group in network.groups
        if group.precision_rank(config.precision_of(group)) < precision_rank(higher_precision)
    ]
    start = replace(config, quantized=config.precision_steps[0]).without_group_precision(network.groups)
    for group in fixed:
        start = start.with_group_precision(
            [group], config.precision_of(group),
            config.precision_moves[group.name].reason if group.name in config.precision_moves else "user")
    return start, tuple(group.name for group in fixed)


def find_added_moves(network: NetworkOutline, start_config: PrecisionConfig,
                     config: PrecisionConfig) -> dict[MoveKey, Move]:
    """The moves that a config has beside those of a start, with the precisions of groups that have their default again.
    """
    back = {key: PrecisionMove(config.precision_of(network.get_group(key[1])), start_config.moves[key].origin_text)
            for key in start_config.moves.keys() - config.moves.keys() if key[0] == PrecisionMove.kind}
    return {**back, **{key: move for key, move in config.moves.items() if start_config.moves.get(key) is not move}}
