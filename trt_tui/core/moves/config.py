"""The immutable precision config: which layer runs in what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from trt_tui.core.network.layers import Group
from trt_tui.core.precision import LADDER, Precision, rank

if TYPE_CHECKING:
    from trt_tui.core.network.network import Network


@dataclass(frozen=True)
class Choice:
    """The precision a group was given, and who gave it (``user`` or ``search:<method>``)."""

    precision: Precision
    reason: str = "user"


@dataclass(frozen=True)
class RangeChoice:
    """A range (amax, in the tensor's own units) that replaces the calibrated one, and where it came from."""

    amax: float
    method: str = "user"


def _frozen(mapping: Mapping) -> Mapping:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True)
class PrecisionConfig:
    """Which group runs in what. Immutable: every change makes a new config.

    Attributes:
        quantized: Precision of the groups that can be quantized (INT8, or a float precision for an all-float run).
        other: Precision of every other float group, and the float type around INT8 layers.
        tf32: Whether FP32 layers may use TF32 on the GPU.
        groups: Choices that differ from the defaults, by group name.
        ranges: Ranges that differ from the calibration, by tensor name.
    """

    quantized: Precision = Precision.INT8
    other: Precision = Precision.FP16
    tf32: bool = False
    groups: Mapping[str, Choice] = field(default_factory=dict)
    ranges: Mapping[str, RangeChoice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _frozen(self.groups))
        object.__setattr__(self, "ranges", _frozen(self.ranges))

    def __reduce__(self):
        return (_restore, (self.quantized, self.other, self.tf32, dict(self.groups), dict(self.ranges)))

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple:
        """What two configs that lower to the same networks have in common."""
        groups = tuple(sorted((name, c.precision.value) for name, c in self.groups.items()))
        ranges = tuple(sorted((name, r.amax) for name, r in self.ranges.items()))
        return (self.quantized.value, self.other.value, self.tf32, groups, ranges)

    @classmethod
    def uniform(cls, precision: Precision, other: Precision = Precision.FP16) -> PrecisionConfig:
        """Everything in one precision; for INT8, ``other`` is what the rest runs in."""
        if precision is Precision.INT8:
            return cls(quantized=precision, other=other)
        return cls(quantized=precision, other=precision)

    def default_for(self, group: Group) -> Precision:
        """The precision a group has when nobody chose one."""
        if self.quantized in group.allowed and group.quantizable:
            return self.quantized
        return self.other if self.other in group.allowed else Precision.FP32

    def precision_of(self, group: Group) -> Precision:
        """The precision a group is asked to run in."""
        choice = self.groups.get(group.name)
        return choice.precision if choice is not None else self.default_for(group)

    def assignment(self, network: Network) -> dict[str, Precision]:
        """The asked precision of every group, by group name, in network order."""
        return {group.name: self.precision_of(group) for group in network.groups}

    def with_groups(self, groups: Iterable[Group], precision: Precision, reason: str = "user") -> PrecisionConfig:
        """Gives groups a precision; those that cannot run in it keep what they have."""
        choices = dict(self.groups)
        for group in groups:
            if precision not in group.allowed:
                continue
            if precision is self.default_for(group):
                choices.pop(group.name, None)
            else:
                choices[group.name] = Choice(precision, reason)
        return replace(self, groups=choices)

    def without_groups(self, groups: Iterable[Group]) -> PrecisionConfig:
        """Returns groups to the defaults."""
        names = {group.name for group in groups}
        return replace(self, groups={n: c for n, c in self.groups.items() if n not in names})

    def with_range(self, tensor: str, choice: RangeChoice | None) -> PrecisionConfig:
        """Replaces the range of a tensor, or returns it to the calibrated one."""
        ranges = dict(self.ranges)
        if choice is None:
            ranges.pop(tensor, None)
        else:
            ranges[tensor] = choice
        return replace(self, ranges=ranges)

    def without_ranges(self, methods: Iterable[str]) -> PrecisionConfig:
        """Returns the tensors whose ranges some methods measured to the calibrated ones."""
        methods = set(methods)
        return replace(self, ranges={name: one for name, one in self.ranges.items() if one.method not in methods})

    def raised(self, network: Network) -> tuple[str, ...]:
        """Names of the groups that run in a higher precision than the defaults give them, in network order."""
        return tuple(
            group.name
            for group in network.groups
            if group.name in self.groups and rank(self.precision_of(group)) > rank(self.default_for(group))
        )

    def diff(self, other: PrecisionConfig, network: Network) -> list[tuple[str, Precision, Precision]]:
        """Groups whose precision differs: name, here, there."""
        changed = []
        for group in network.groups:
            here, there = self.precision_of(group), other.precision_of(group)
            if here is not there:
                changed.append((group.name, here, there))
        return changed


def _restore(quantized, other, tf32, groups, ranges) -> PrecisionConfig:
    return PrecisionConfig(quantized, other, tf32, groups, ranges)


def step(group: Group, precision: Precision, up: bool) -> Precision:
    """The next precision of `LADDER` that the group can run in, or the same one at an end."""
    candidates = [p for p in LADDER if p in group.allowed and (rank(p) > rank(precision)) is up and p is not precision]
    candidates = [p for p in candidates if rank(p) != rank(precision)]
    if not candidates:
        return precision
    return min(candidates, key=rank) if up else max(candidates, key=rank)
