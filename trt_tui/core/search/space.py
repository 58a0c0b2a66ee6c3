"""The search space: the fusion groups that a search can raise, and the config that results from a choice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from trt_tui.core.lowering.folded_constants import without_stale_roundings
from trt_tui.core.measure.engine_agreement import PREVIEW_REASON
from trt_tui.core.measure.zero_cost_kinds import drop_moves_of_raised_groups
from trt_tui.core.moves.config import MoveKey, PrecisionConfig, PrecisionMove, RangeMove
from trt_tui.core.moves.move import Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError


@dataclass(frozen=True)
class SearchSpace:
    """The set of configs between the start config of a search and the config with every group raised.

    Attributes:
        start_config: The config at which the search starts. Groups that it raises, and groups that a keep rule fixes,
            are left unchanged.
        higher_precision: The precision to which groups are raised.
        intermediate: Lower precisions that a raised group may have instead, lowest first. TF32 applies to all FP32
            layers.
        zero_cost_stages: Sets of zero-cost moves by the name of the set, one mapping for each stage, with the number of
            configs that were simulated to measure the sets. Each move has its kind and subject as its key. Names are
            unique over all stages.
        fixed_groups: Names of groups that keep the precision of the start config.
        unquantized_groups: Names of groups whose unused Q/DQ were taken out of the start config. They do not count as
            raised, because the engine ran them in this precision before.
        qdq_removals: The float precisions of groups whose unused Q/DQ a result can lose too, by the name of the set.
            `build_config` applies them like `zero_cost_sets`, as the last moves.
        candidates: Names of the groups that can be raised, in network order.

    Raises:
        InputError: No group can be raised, or TF32 cannot be an intermediate precision of this search.
    """

    network: NetworkOutline
    start_config: PrecisionConfig
    higher_precision: Precision = Precision.FP32
    intermediate: tuple[Precision, ...] = ()
    zero_cost_stages: tuple[tuple[Mapping[str, Mapping[MoveKey, Move]], int], ...] = ()
    fixed_groups: frozenset[str] = frozenset()
    unquantized_groups: frozenset[str] = frozenset()
    qdq_removals: Mapping[str, Mapping[str, Precision]] = field(default_factory=dict)
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
    def zero_cost_sets(self) -> Mapping[str, Mapping[MoveKey, Move]]:
        """The sets of zero-cost moves of all stages, by name."""
        return {name: moves for stage, _ in self.zero_cost_stages for name, moves in stage.items()}

    def find_fixed_range_tensors(self, zero_cost_set_names: Iterable[str]) -> frozenset[str]:
        """Returns the tensors whose range belongs to a move of the start config or of some sets."""
        moves = [move for name in zero_cost_set_names for move in self.zero_cost_sets.get(name, {}).values()]
        return self.start_config.fixed_range_tensors.union(*(move.fixed_ranges for move in moves))

    @cached_property
    def groups_raised_at_start(self) -> frozenset[str]:
        """The fusion groups whose precision in the start config is higher than their default, without those whose
        unused Q/DQ were taken out."""
        return frozenset(self.start_config.find_raised_groups(self.network)) - self.unquantized_groups

    def intermediate_precisions(self, group_name: str) -> tuple[Precision, ...]:
        """Returns the precisions of a fusion group between that of the start config and the highest, lowest first."""
        group = self.network.get_group(group_name)
        return tuple(precision for precision in self.intermediate
                     if precision in group.allowed_precisions
                     and precision_rank(self.start_config.precision_of(group))
                     < precision_rank(precision) < precision_rank(self.higher_precision))

    def build_config(self, raised_groups: Iterable[str], range_moves: Mapping[str, RangeMove] | None = None,
                     reason: str = "search", precisions: Mapping[str, Precision] | None = None,
                     zero_cost_set_names: Iterable[str] = ()) -> PrecisionConfig:
        """Returns the start config with zero-cost moves, raised groups and replaced ranges of a search.

        If all readers of a tensor are raised, its range has no effect and is left out. Choices with the same effect
        therefore have equal configs.
        """
        raised_groups, zero_cost_set_names, config = tuple(raised_groups), tuple(zero_cost_set_names), self.start_config
        for name in zero_cost_set_names:
            config = replace(config, moves={**config.moves, **self.zero_cost_sets.get(name, {})})
        config = without_stale_roundings(self.network, config) if zero_cost_set_names else config
        config = config.with_group_precision((self.network.get_group(name) for name in raised_groups),
                                             self.higher_precision, reason)
        if Precision.TF32 in (precisions or {}).values():
            config = replace(config, tf32=True)
        for name, precision in (precisions or {}).items():
            config = config.with_group_precision([self.network.get_group(name)], precision, reason)
        if zero_cost_set_names:
            config = drop_moves_of_raised_groups(config, raised_groups)
        for name in zero_cost_set_names:
            for group_name, precision in self.qdq_removals.get(name, {}).items():
                config = config.with_group_precision([self.network.get_group(group_name)], precision, PREVIEW_REASON)
        if range_moves:
            read_tensors = {site.tensor for group in self.network.groups
                            for site in group.calibrated_qdq_sites(config.precision_of(group))}
            config = config.with_moves({tensor: choice for tensor, choice in range_moves.items()
                                        if tensor in read_tensors})
        return config

    def sort_candidates_in_network_order(self, group_names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names that are candidates of the search, in network order."""
        selected = set(group_names)
        return tuple(name for name in self.candidates if name in selected)


def lowest_precision_config(network: NetworkOutline, precisions: Sequence[Precision], boundary_type: Precision,
                            uses_tf32: bool = False) -> PrecisionConfig:
    """Returns the config with each fusion group in the lowest of the given precisions that it can have.

    If the lowest precision is a quantized type, groups that cannot be quantized have ``boundary_type``.
    """
    config = PrecisionConfig.from_precision(precisions[0], boundary_type, uses_tf32)
    for group in network.groups:
        if group.is_quantizable and precisions[0] in QUANTIZED_TYPES:
            lowest_precision = next((precision for precision in precisions if precision in group.allowed_precisions),
                                    boundary_type)
            config = config.with_group_precision([group], lowest_precision, "search:rungs")
    return config


def reduce_remaining_groups(network: NetworkOutline, config: PrecisionConfig, higher_precision: Precision
                            ) -> tuple[PrecisionConfig, tuple[str, ...]]:
    """Returns the start config of a search that reduces further groups of a config, and the groups that it leaves
    unchanged.

    Groups below ``higher_precision`` keep their precision. Every other group that no keep rule fixes is reduced to the
    lowest precision in use. INT8 is used if the config has no quantized type.
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
    """Returns the moves that a config has in addition to those of a start config.

    A group whose precision move was removed has a move to its default precision in the result.
    """
    back = {key: PrecisionMove(config.precision_of(network.get_group(key[1])), start_config.moves[key].origin_text)
            for key in start_config.moves.keys() - config.moves.keys() if key[0] == PrecisionMove.kind}
    return {**back, **{key: move for key, move in config.moves.items() if start_config.moves.get(key) is not move}}
