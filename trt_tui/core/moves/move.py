"""What every kind of move has in common: one decision on one group or tensor of a network."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trt_tui.core.network.free import Port
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Defaults:
    """The precisions of a config before any move.

    Attributes:
        quantized: Precision of the groups that can be quantized (INT8, or a float precision for an all-float run).
        other: Precision of every other float group, and the float type around INT8 layers.
        tf32: Whether FP32 layers may use TF32 on the GPU.
    """

    quantized: Precision = Precision.INT8
    other: Precision = Precision.FP16
    tf32: bool = False

    @property
    def defaults_said(self) -> str:
        """The precisions before any move, in words."""
        if self.quantized is Precision.FILE:
            return "Layers run as in the file"
        return f"Layers that can be quantized run in {self.quantized.label}, the others in {self.other.label}"

    def default_for(self, group: Group) -> Precision:
        """The precision that a group has before any move."""
        if self.quantized in group.allowed and group.quantizable:
            return self.quantized
        return self.other if self.other in group.allowed else Precision.FP32


    def precision_of(self, group: Group) -> Precision:
        """The precision that a group is asked to run in."""
        return self.default_for(group)


class Change(ABC):
    """What a move makes of a constant that a layer reads."""

    @abstractmethod
    def apply(self, constant: np.ndarray | None) -> np.ndarray:
        """The constant that stands in its place, float32 and of the same shape; the old one is left as it is.

        Args:
            constant: None where the layer has no such input.
        """


class Subject(ABC):
    """What moves of a kind are made on, and how a file names it.

    Attributes:
        noun: One of their names in words, which also heads the column of a table.
        key: The entry of a file that lists names.
        whole: One target in words.
        why_one: Why all names of a target share its moves.
    """

    noun: ClassVar[str]
    key: ClassVar[str]
    whole: ClassVar[str]
    why_one: ClassVar[str]

    @abstractmethod
    def has(self, network: Outline, name: str) -> bool:
        """Whether a name of a file is one of the network."""

    @abstractmethod
    def known(self, network: Outline) -> list[str]:
        """The names that a file may hold, in network order."""

    @abstractmethod
    def target(self, network: Outline, name: str) -> str | None:
        """The target that a name of the network belongs to, None where it belongs to none."""

    def why_none(self, network: Outline, name: str) -> str:
        """Why a name of the network belongs to no target."""
        return f"it is no {self.whole}"

    @abstractmethod
    def names(self, network: Outline, target: str) -> tuple[str, ...]:
        """Every name of a target, in network order."""

    @abstractmethod
    def of(self, group: Group) -> Sequence[str]:
        """The targets that are shown with a group."""

    @abstractmethod
    def ordered(self, network: Outline, targets: Iterable[str]) -> list[str]:
        """Targets in network order, those that the network lacks at the end by name."""


class _Groups(Subject):
    """Fusion groups: a file names every layer of a group, so that a reader need not know the groups."""

    noun, key, whole, why_one = "layer", "layers", "group", "TensorRT fuses them"

    def has(self, network: Outline, name: str) -> bool:
        return network.has_layer(name)

    def known(self, network: Outline) -> list[str]:
        return [layer.name for layer in network.layers]

    def target(self, network: Outline, name: str) -> str | None:
        group = network.group_of(name)
        return None if group is None else group.name

    def why_none(self, network: Outline, name: str) -> str:
        return f"it has no precision of its own: {network.layer(name).note or 'no float result'}"

    def names(self, network: Outline, target: str) -> tuple[str, ...]:
        return network.group(target).layers

    def of(self, group: Group) -> Sequence[str]:
        return (group.name,)

    def ordered(self, network: Outline, targets: Iterable[str]) -> list[str]:
        return in_order([group.name for group in network.groups], targets)


class _Tensors(Subject):
    """Tensors; a group's are those that it reads through Q/DQ in INT8."""

    noun, key, whole, why_one = "tensor", "tensors", "tensor", "a tensor has one"

    def has(self, network: Outline, name: str) -> bool:
        return network.has_tensor(name)

    def known(self, network: Outline) -> list[str]:
        outputs = [output for layer in network.layers for output in layer.outputs if output]
        return [*(info.name for info in network.inputs), *outputs]

    def target(self, network: Outline, name: str) -> str | None:
        return name

    def names(self, network: Outline, target: str) -> tuple[str, ...]:
        return (target,)

    def of(self, group: Group) -> Sequence[str]:
        return [site.tensor for site in group.activations()]

    def ordered(self, network: Outline, targets: Iterable[str]) -> list[str]:
        return in_order(network.activations, targets)


def in_order(order: Iterable[str], names: Iterable[str]) -> list[str]:
    """Names in the order of others, those that are not among them at the end by name."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))


GROUPS, TENSORS = _Groups(), _Tensors()


@dataclass(frozen=True)
class Move(ABC):
    """One decision; which target it is made on stands beside it, in the config. Immutable: a frozen dataclass.

    All lowerings read a config through the rulebook (`trt_tui.core.lowering.rules`), which asks moves for `runs_in`,
    `adjust`, `folds` and `rewrites`, so that typed, gated, explicit and weak mean the same by a move.

    The fields of the dataclass are its entry in a file and in a saved session, under their own names and checked by
    their types.

    Attributes:
        kind: The word for it in files.
        subject: What it is made on.
        column: What it decides, in a word: the header of a table.
        absent: What stands in a comparison where there is no such move.
        folding: Whether it changes constants; see `folds`.
        holds: Whether its group keeps the precision that it runs in, whatever other moves say.
    """

    kind: ClassVar[str]
    subject: ClassVar[Subject]
    column: ClassVar[str]
    absent: ClassVar[str] = "–"
    folding: ClassVar[bool] = False
    holds: ClassVar[bool] = False

    # -- what it means --

    @property
    def measured(self) -> bool:
        """Whether it holds figures that were measured, and so does not outlive weights or data."""
        return False

    @property
    @abstractmethod
    def decides(self) -> Hashable:
        """What it changes, without who said so. It has a ``repr`` that is the same in every run."""

    @abstractmethod
    def refused(self, network: Outline, target: str) -> str:
        """Why it cannot be made on a target of the network, "" where it can."""

    @property
    def runs_in(self) -> Precision | None:
        """The precision that it has its group run in; None where it says nothing of that."""
        return None

    def adjust(self, amax: dict[str, float], tensors: Sequence[str]) -> None:
        """Changes the ranges (amax by tensor name) that INT8 takes its scales from.

        Args:
            tensors: The target and the tensors that share its scale.
        """
        return

    def folds(self, network: Outline, target: str, defaults: Defaults) -> Mapping[Port, Change]:
        """The constants that it changes, by the layer input that reads them.

        Args:
            defaults: The config that it is part of.
        """
        return {}

    @property
    def divides(self) -> np.ndarray | None:
        """What the channels that its group's normalisation yields are divided by, float32; None where they are not."""
        return None

    @property
    def rewrites(self) -> bool:
        """Whether the normalisation of its group is written as the operator."""
        return False

    # -- in words --

    @property
    @abstractmethod
    def label(self) -> str:
        """What it decides, short, as a table shows it."""

    @property
    def compared(self) -> str:
        """What stands for it in a comparison."""
        return self.label

    @property
    @abstractmethod
    def set_by(self) -> str:
        """Who or what decided it: "user", "search:<method>", the method of a range."""

    @property
    @abstractmethod
    def infinitive(self) -> str:
        """What the target is to do by it, as words after "cannot"."""

    @property
    def note(self) -> str:
        """What is said of it on the row of a group."""
        return f"{self.column} {self.label} by {self.set_by}"

    @classmethod
    def label_without(cls, network: Outline, target: str, defaults: Defaults) -> str:
        """What stands in a comparison for a target without such a move."""
        return cls.absent

    @classmethod
    def about(cls, title: str) -> str:
        """What a line of a comparison is about, given the target's title."""
        return f"{cls.column} of {title}"


class Decided(Move):
    """A move that says who made it: ``user`` or ``search:<method>``."""

    reason: str

    @property
    def set_by(self) -> str:
        """The reason."""
        return self.reason
