"""What every kind of move has in common: one decision on one group or tensor of a network."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trt_tui.core.moves.move_texts import MOVE_TEXTS
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class DefaultPrecisions:
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
    def defaults_text(self) -> str:
        """The precisions before any move, in words."""
        if self.quantized is Precision.FILE:
            return "Layers run in file precision"
        return f"Layers that can be quantized run in {self.quantized.label}, the others in {self.other.label}"

    def default_precision_of(self, group: FusionGroup) -> Precision:
        """The precision that a group has before any move."""
        if self.quantized in group.allowed_precisions and group.is_quantizable:
            return self.quantized
        return self.other if self.other in group.allowed_precisions else Precision.FP32


    def precision_of(self, group: FusionGroup) -> Precision:
        """The precision that a group is asked to run in."""
        return self.default_precision_of(group)


class ConstantEdit(ABC):
    """What a move makes of a constant that a layer reads."""

    @abstractmethod
    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        """The constant that stands in its place, float32 and of the same shape; the old one is left as it is.

        Args:
            constant: None where the layer has no such input.
        """


class SubjectKind(ABC):
    """What moves of a kind are made on, and how a file names it.

    Attributes:
        noun: One of their names in words, which also heads the column of a table.
        names_key: The entry of a file that lists names.
        subject_noun: One target in words.
        shared_move_reason: Why all names of a target share its moves.
    """

    noun: ClassVar[str]
    names_key: ClassVar[str]
    subject_noun: ClassVar[str]
    shared_move_reason: ClassVar[str]

    @abstractmethod
    def has_subject_name(self, network: NetworkOutline, name: str) -> bool:
        """Whether a name of a file is one of the network."""

    @abstractmethod
    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        """The names that a file may hold, in network order."""

    @abstractmethod
    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        """The target that a name of the network belongs to, None where it belongs to none."""

    def missing_subject_reason(self, network: NetworkOutline, name: str) -> str:
        """Why a name of the network belongs to no target."""
        return f"it is not a {self.subject_noun}"

    @abstractmethod
    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        """Every name of a target, in network order."""

    @abstractmethod
    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        """The targets that are shown with a group."""

    @abstractmethod
    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        """Targets in network order, those that the network lacks at the end by name."""


class _GroupSubjectKind(SubjectKind):
    """Fusion groups: a file names every layer of a group, so that a reader need not know the groups."""

    noun, names_key, subject_noun, shared_move_reason = "layer", "layers", "group", "TensorRT fuses them"

    def has_subject_name(self, network: NetworkOutline, name: str) -> bool:
        return network.has_layer(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        return [layer.name for layer in network.layers]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        group = network.find_group(name)
        return None if group is None else group.name

    def missing_subject_reason(self, network: NetworkOutline, name: str) -> str:
        return f"it has no selectable precision: {network.get_layer(name).refusal_reason or 'no float result'}"

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        return network.get_group(subject).layers

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return (group.name,)

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order([group.name for group in network.groups], subjects)


class _TensorSubjectKind(SubjectKind):
    """Tensors; a group's are those that it reads through Q/DQ in INT8."""

    noun, names_key, subject_noun, shared_move_reason = "tensor", "tensors", "tensor", "a tensor has one"

    def has_subject_name(self, network: NetworkOutline, name: str) -> bool:
        return network.has_tensor(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        outputs = [output for layer in network.layers for output in layer.outputs if output]
        return [*(info.name for info in network.inputs), *outputs]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        return name

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        return (subject,)

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return [site.tensor for site in group.activation_qdq_sites()]

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order(network.calibrated_tensors, subjects)


def sort_names_in_order(ordered_names: Iterable[str], names: Iterable[str]) -> list[str]:
    """Names in the order of others, those that are not among them at the end by name."""
    positions = {name: position for position, name in enumerate(ordered_names)}
    return sorted(names, key=lambda name: (positions.get(name, len(positions)), name))


GROUP_SUBJECTS, TENSOR_SUBJECTS = _GroupSubjectKind(), _TensorSubjectKind()


@dataclass(frozen=True)
class Move(ABC):
    """One decision; which target it is made on stands beside it, in the config. Immutable: a frozen dataclass.

    All lowerings read a config through the rulebook (`trt_tui.core.lowering.rulebook`), which asks moves for
    `group_precision`, `adjust_ranges`, `find_constant_edits` and `is_normalisation_rewrite`, so that typed, gated,
    explicit and weak mean the same by a move.

    The fields of the dataclass are its entry in a file and in a saved session, under their own names and checked by
    their types.

    Attributes:
        kind: The word for it in files.
        subject_kind: What it is made on.
        edits_constants: Whether it changes constants; see `find_constant_edits`.
        keeps_precision: Whether its group keeps the precision that it runs in, whatever other moves say.
    """

    kind: ClassVar[str]
    subject_kind: ClassVar[SubjectKind]
    edits_constants: ClassVar[bool] = False
    keeps_precision: ClassVar[bool] = False

    # -- what it means --

    @property
    def has_measured_values(self) -> bool:
        """Whether it holds figures that were measured, and so does not outlive weights or data."""
        return False

    @property
    @abstractmethod
    def effect_key(self) -> Hashable:
        """What it changes, without who said so. It has a ``repr`` that is the same in every run."""

    @abstractmethod
    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Why it cannot be made on a target of the network, "" where it can."""

    @property
    def group_precision(self) -> Precision | None:
        """The precision that it has its group run in; None where it says nothing of that."""
        return None

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        """Changes the ranges (amax by tensor name) that INT8 takes its scales from.

        Args:
            tensors: The target and the tensors that share its scale.
        """
        return

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """The constants that it changes, by the layer input that reads them.

        Args:
            default_precisions: The config that it is part of.
        """
        return {}

    @property
    def channel_divisors(self) -> np.ndarray | None:
        """What the channels that its group's normalisation yields are divided by, float32; None where they are not."""
        return None

    @property
    def is_normalisation_rewrite(self) -> bool:
        """Whether the normalisation of its group is written as the operator."""
        return False

    # -- in words, by `MOVE_TEXTS` --

    @property
    def label(self) -> str:
        """What it decides, short, as a table shows it."""
        return MOVE_TEXTS[self.kind].label.format(move=self)

    @property
    def difference_text(self) -> str:
        """What stands for it in a comparison."""
        return MOVE_TEXTS[self.kind].difference.format(move=self)

    @property
    def origin_text(self) -> str:
        """Who or what decided it: "user", "search:<method>", the method of a range."""
        return MOVE_TEXTS[self.kind].origin.format(move=self)

    @property
    def action_text(self) -> str:
        """What the target is to do by it, as words after "cannot"."""
        return MOVE_TEXTS[self.kind].action.format(move=self)

    @property
    def row_note(self) -> str:
        """What is said of it on the row of a group."""
        return MOVE_TEXTS[self.kind].row_note.format(move=self)

    @classmethod
    def default_label(cls, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions) -> str:
        """What stands in a comparison for a target without such a move."""
        return MOVE_TEXTS[cls.kind].no_move

    @classmethod
    def difference_title(cls, subject_title: str) -> str:
        """What a line of a comparison is about, given the target's title."""
        return MOVE_TEXTS[cls.kind].difference_title.format(subject=subject_title)
