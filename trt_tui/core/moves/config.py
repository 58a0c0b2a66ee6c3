"""The immutable precision config: default precisions and the moves made on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from trt_tui.core.codes import CODES
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.moves.move import GROUPS, Defaults, Move
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import LADDER, Precision, rank

M = TypeVar("M", bound=Move)
MoveKey = tuple[str, str]
"""The kind of a move and its target."""


@dataclass(frozen=True)
class PrecisionConfig(Defaults):
    """Which group runs in what. Immutable: every change makes a new config.

    Two configs are equal if they decide the same (`key`), whoever made the moves.

    Attributes:
        moves: What was decided beside the defaults, by kind and target.
    """

    moves: Mapping[MoveKey, Move] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moves", MappingProxyType(dict(self.moves)))

    def __reduce__(self) -> tuple[type[PrecisionConfig], tuple[Precision, Precision, bool, dict[MoveKey, Move]]]:
        return PrecisionConfig, (self.quantized, self.other, self.tf32, dict(self.moves))

    def __eq__(self, other: object) -> bool:
        """Whether both decide the same, for whatever reasons."""
        if not isinstance(other, PrecisionConfig):
            return NotImplemented
        return self is other or self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[object, ...]:
        """Equal for configs that lower to the same networks: who decided is no part of it."""
        return self._key

    @cached_property
    def _key(self) -> tuple[object, ...]:
        parts: dict[str, list[tuple[str, object]]] = {Choice.kind: [], RangeChoice.kind: []}
        for (kind, target), move in sorted(self.moves.items(), key=lambda one: one[0]):
            parts.setdefault(kind, []).append((target, move.decides))
        chosen, ranges = tuple(parts.pop(Choice.kind)), tuple(parts.pop(RangeChoice.kind))
        more = tuple((kind, tuple(decided)) for kind, decided in parts.items())
        return (self.quantized.value, self.other.value, self.tf32, chosen, ranges, *more)

    @classmethod
    def uniform(cls, precision: Precision, other: Precision = Precision.FP16, tf32: bool = False) -> PrecisionConfig:
        """Everything in one precision; where that is of codes, ``other`` is what the rest runs in."""
        return cls(precision, other if precision in CODES else precision.values, tf32)

    @cached_property
    def ladder(self) -> tuple[Precision, ...]:
        """What one key press up or down steps through, lowest first: the codes and the 16-bit types in use, those of
        `LADDER` where none is, and FP32."""
        used = {self.quantized, self.other, *(one.precision for one in self.groups.values())}
        kinds = (CODES, (Precision.FP16, Precision.FP16_SUMS_FP32, Precision.BF16))
        rungs = [one for kind in kinds for one in sorted(used.intersection(kind) or set(LADDER).intersection(kind))]
        return tuple(sorted((*rungs, Precision.FP32), key=rank))

    @property
    def as_in_file(self) -> bool:
        """Whether every group has what it has in the network's own file."""
        return self.quantized is Precision.FILE and not self.moves

    def codes_in_use(self, network: Outline) -> Precision:
        """The codes that the groups of a network mostly are in, by a file's own precisions too; where none is, those
        that the config's default names, else INT8."""
        counts = Counter(named for group in network.groups
                         if (named := group.stands_for(self.precision_of(group))) in CODES)
        if counts:
            return min(counts, key=lambda precision: (-counts[precision], rank(precision)))
        return self.quantized if self.quantized in CODES else Precision.INT8

    def lowest_in_use(self, network: Outline) -> Precision:
        """The codes in use, or of a config without any the 16-bit type that most groups are in, if there is one."""
        codes = self.codes_in_use(network)
        counts = Counter(group.stands_for(self.precision_of(group)).values for group in network.groups)
        if counts[codes] or self.quantized in CODES:
            return codes
        return max((Precision.FP16, Precision.BF16, codes), key=lambda one: counts[one])

    # -- moves --------------------------------------------------------------------------------------------------

    def of(self, kind: type[M]) -> Mapping[str, M]:
        """The moves of a kind, by target."""
        return MappingProxyType({target: move for (_, target), move in self.moves.items() if isinstance(move, kind)})

    @cached_property
    def groups(self) -> Mapping[str, Choice]:
        """The precisions that were chosen, by group name."""
        return self.of(Choice)

    @cached_property
    def ranges(self) -> Mapping[str, RangeChoice]:
        """The ranges that differ from the calibration, by tensor name."""
        return self.of(RangeChoice)

    def with_moves(self, moves: Mapping[str, Move]) -> PrecisionConfig:
        """The config with moves, by target, in place of those of the same kind on the same target."""
        return replace(self, moves={**self.moves, **{(move.kind, target): move for target, move in moves.items()}})

    def without(self, kind: type[Move], targets: Iterable[str] | None = None) -> PrecisionConfig:
        """The config without the moves of a kind: those on some targets, or all."""
        gone = None if targets is None else set(targets)
        return replace(self, moves={(word, target): move for (word, target), move in self.moves.items()
                                    if word != kind.kind or gone is not None and target not in gone})

    def moves_on(self, group: Group) -> Iterator[tuple[str, Move]]:
        """The moves on a group and on the tensors that it reads in INT8, with their targets, by kind."""
        for kind in KINDS.values():
            yield from ((target, self.moves[kind.kind, target]) for target in dict.fromkeys(kind.subject.of(group))
                        if (kind.kind, target) in self.moves)

    def shown(self, network: Outline) -> Iterator[tuple[type[Move], list[tuple[str, Move]]]]:
        """The kinds of which there are moves, and these with their targets in network order."""
        for kind in KINDS.values():
            targets = [target for word, target in self.moves if word == kind.kind]
            if targets:
                yield kind, [(target, self.moves[kind.kind, target])
                             for target in kind.subject.ordered(network, targets)]

    # -- precisions ---------------------------------------------------------------------------------------------

    @cached_property
    def _runs_in(self) -> dict[str, Precision]:
        """The precision that moves have a group run in, by its name."""
        asked: dict[str, Precision] = {}
        for kind in KINDS:
            for (word, target), move in self.moves.items():
                if word == kind and (precision := move.runs_in) is not None:
                    asked.setdefault(target, precision)
        return asked

    def wanted(self, group: Group) -> Precision:
        """The precision that a group would be given, whether it can run in it or not."""
        return self._runs_in.get(group.name, self.quantized)

    def precision_of(self, group: Group) -> Precision:
        """The precision a group is asked to run in."""
        precision = self._runs_in.get(group.name)
        return precision if precision is not None else self.default_for(group)

    def assignment(self, network: Outline) -> dict[str, Precision]:
        """The asked precision of every group, by group name, in network order."""
        return {group.name: self.precision_of(group) for group in network.groups}

    @cached_property
    def held(self) -> frozenset[str]:
        """Names of the groups that keep their precision by rule."""
        return frozenset(target for (_, target), move in self.moves.items() if move.holds)

    def with_groups(self, groups: Iterable[Group], precision: Precision, reason: str = "user") -> PrecisionConfig:
        """The config that gives groups a precision; those that cannot run in it, or are held, keep what they have."""
        able = [group for group in groups if precision in group.allowed and group.name not in self.held]
        chosen = {group.name: Choice(precision, reason) for group in able if precision is not self.default_for(group)}
        return self.without_groups(able).with_moves(chosen)

    def without_groups(self, groups: Iterable[Group]) -> PrecisionConfig:
        """Returns groups to the defaults."""
        return self.without(Choice, (group.name for group in groups))

    def toggled(self, groups: Iterable[Group]) -> PrecisionConfig:
        """FP32 on and off: raises all of them, or returns all of them to their defaults if all are FP32."""
        groups = [group for group in groups if len(group.allowed) > 1 and group.name not in self.held]
        if groups and all(self.precision_of(group) is Precision.FP32 for group in groups):
            return self.without_groups(groups)
        return self.with_groups(groups, Precision.FP32)

    def raised(self, network: Outline) -> tuple[str, ...]:
        """Names of the groups that run in a higher precision than the defaults give them, in network order."""
        return tuple(group.name for group in network.groups
                     if group.name in self._runs_in
                     and group.rank(self.precision_of(group)) > group.rank(self.default_for(group)))

    # -- ranges -------------------------------------------------------------------------------------------------

    def with_range(self, tensor: str, choice: RangeChoice | None) -> PrecisionConfig:
        """Replaces the range of a tensor, or returns it to the calibrated one."""
        return self.without(RangeChoice, (tensor,)) if choice is None else self.with_moves({tensor: choice})

    def without_measured(self) -> PrecisionConfig:
        """The config without the moves that hold figures: ranges of a method, factors of channels, shifts of biases."""
        return replace(self, moves={key: move for key, move in self.moves.items() if not move.measured})


# -- between two configs ----------------------------------------------------------------------------------------------


def distance(one: PrecisionConfig, other: PrecisionConfig) -> int:
    """How many decisions, default precisions included, differ between two configs."""
    def decided(config: PrecisionConfig) -> set[tuple[MoveKey, Hashable]]:
        return {(key, move.decides) for key, move in config.moves.items()}

    moves = {key for key, _ in decided(one) ^ decided(other)}
    return len(moves) + (one.quantized is not other.quantized) + (one.other is not other.other)


def tables(config: PrecisionConfig, network: Outline) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """The moves of each kind as a table: its header, and rows of target, operator (of a group), what, by whom."""
    for kind, moves in config.shown(network):
        if kind.subject is GROUPS:
            yield ((kind.subject.noun, "operator", kind.column, "set by"),
                   [(target, network.group(target).operator, move.label, move.set_by) for target, move in moves])
        else:
            yield ((kind.subject.noun, kind.column, "set by"),
                   [(target, move.label, move.set_by) for target, move in moves])


@dataclass(frozen=True)
class Compared:
    """A line of the comparison of two configs: the kind of move, its target, and in words what each has there."""

    kind: type[Move]
    target: str
    here: str
    there: str


def compared(one: PrecisionConfig, other: PrecisionConfig, network: Outline) -> list[Compared]:
    """What differs between two configs in words, by kind, in network order."""
    lines = []
    for kind in KINDS.values():
        targets = {target for config in (one, other) for target in config.of(kind)}
        if kind.subject is GROUPS:  # their defaults may differ
            targets |= {group.name for group in network.groups}
        for target in kind.subject.ordered(network, targets):
            moves = [config.moves.get((kind.kind, target)) for config in (one, other)]
            here, there = (kind.label_without(network, target, config) if move is None else move.compared
                           for move, config in zip(moves, (one, other), strict=True))
            if here != there or moves[0] and moves[1] and moves[0].decides != moves[1].decides:
                lines.append(Compared(kind, target, here, there))
    return lines


def step(group: Group, precision: Precision, up: bool, ladder: Sequence[Precision] = LADDER) -> Precision:
    """The next precision of a ladder that the group can run in, or the same one at an end."""
    now = group.rank(precision)
    candidates = [p for p in ladder if p in group.allowed and (rank(p) > now) is up and rank(p) != now]
    if not candidates:
        return precision
    return min(candidates, key=rank) if up else max(candidates, key=rank)
