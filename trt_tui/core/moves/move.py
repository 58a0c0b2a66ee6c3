"""The base class of all moves, and their texts for users. A move is one decision about one fusion group or tensor.

All lists, comparisons, messages and reports take the texts about moves from `MOVE_TEXTS`.

In a text, ``{move}`` is the move, whose fields and other texts can be used, and ``{subject}`` is the title of its group
or tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trt_tui.core.network.layers import FusionGroup, NetworkOutline, Port
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class MoveTexts:
    """The texts for users about one kind of move.

    Attributes:
        column: The property that the move decides, in one word, as the header of a table column.
        label: The decision of a move as a short text for tables.
        action: The verb phrase after "cannot" in error messages.
        row_note: The note in the row of a fusion group.
        difference_title: The title of a line in a comparison of two configs.
        difference: The text for a move in a comparison of two configs; ``no_move`` is the text if there is no move.
        origin: The origin of a move: "user", "search:<method>", or the method of a range.
    """

    column: str
    label: str
    action: str
    row_note: str
    difference_title: str
    difference: str = "{move.label}"
    no_move: str = "–"
    origin: str = "{move.reason}"


MOVE_TEXTS = {
    "keep": MoveTexts(
        "kept",
        "{move.precision.label}",
        "be kept in {move.label}",
        "kept in {move.label} by {move.origin_text}",
        "kept: {subject}",
        origin="rule {move.rule}",
    ),
    "precision": MoveTexts(
        "precision",
        "{move.precision.label}",
        "run in {move.label}",
        "precision {move.label} by {move.origin_text}",
        "{subject}",
    ),
    "rewrite": MoveTexts(
        "form",
        "{move.operator}",
        "be written as {move.label}",
        "written as {move.label}",
        "form of {subject}",
        no_move="decomposed",
    ),
    "qk_scale": MoveTexts(
        "scale",
        "in {move.placement_text}",
        "have its scale in {move.placement_text}",
        "scale {move.factor:.4g} in {move.placement_text}",
        "scale of {subject}",
        no_move="as in the network",
    ),
    "smooth": MoveTexts(
        "smoothing",
        "{move.method} {move.strength:g}",
        "have its channels scaled",
        "smoothed ({move.strength:g})",
        "smoothing of {subject}",
        no_move="none",
    ),
    "equalize": MoveTexts(
        "equalization",
        "equalized ({move.formula})",
        "have its channels equalized",
        "channels equalized ({move.formula})",
        "equalization of {subject}",
        no_move="none",
    ),
    "range": MoveTexts(
        "range",
        "{move.amax:.5g}",
        "have the range {move.label}",
        "range by {move.method}",
        "range of {subject}",
        "amax {move.label} ({move.method})",
        "calibrated",
        "{move.method}",
    ),
    "rounding": MoveTexts(
        "rounding",
        "{move.method} {move.precision.label}",
        "have its weight rounded by the error",
        "weight rounded by {move.method}",
        "rounding of {subject}",
        no_move="nearest",
    ),
    "bias": MoveTexts(
        "bias", "corrected", "have its bias corrected", "bias corrected", "bias of {subject}", no_move="as it is"
    ),
    "barrier": MoveTexts(
        "barrier",
        "fusion barrier",
        "become a network output",
        "fusion barrier: its output becomes a network output",
        "barrier at {subject}",
    ),
}
"""The texts by the word for the kind of move in files."""


@dataclass(frozen=True)
class DefaultPrecisions:
    """The precisions of a config before any move.

    Attributes:
        quantized: Precision of the groups that can be quantized (INT8, or a float precision for a config without INT8).
        other: Precision of all other float groups, and the float type around quantized layers.
        tf32: True if FP32 layers may use TF32 on the GPU.
    """

    quantized: Precision = Precision.INT8
    other: Precision = Precision.FP16
    tf32: bool = False

    @property
    def defaults_text(self) -> str:
        """The default precisions of a config as a sentence for users."""
        if self.quantized is Precision.FILE:
            return "Layers run in file precision"
        if self.quantized is self.other:
            return f"Layers run in {self.quantized.label}"
        return f"Layers that can be quantized run in {self.quantized.label}, the others in {self.other.label}"

    def default_precision_of(self, group: FusionGroup) -> Precision:
        """Returns the precision that a fusion group has before any move."""
        if self.quantized in group.allowed_precisions and group.is_quantizable:
            return self.quantized
        return self.other if self.other in group.allowed_precisions else Precision.FP32

    def precision_of(self, group: FusionGroup) -> Precision:
        """Returns the precision that is requested for a fusion group."""
        return self.default_precision_of(group)


@dataclass(frozen=True, eq=False)
class ConstantEdit:
    """The edit of a constant input of a layer, such as a weight or bias, by a move.

    Attributes:
        edit_constant: A function from the original constant, or None if the layer has no such input, to the changed
            one. The result is float32 with the same shape; the original is not modified.
        weight_edits: For an edit that only rounds a weight, the digest of the edits of other moves before it. None for
            any other edit.
    """

    edit_constant: Callable[[np.ndarray | None], np.ndarray]
    weight_edits: str | None = None


class MoveSubjectKind:
    """The kind of object to which a kind of move applies (its subjects), and the names of such objects in files.

    This class is for tensors; subclasses are for other objects. A fusion group has the tensors that it reads through
    Q/DQ in INT8.

    Attributes:
        noun: The word for one name of a subject, also the header of a table column.
        names_key: The key of the list of names in a file.
        subject_noun: The word for one subject.
        shared_move_reason: The reason why all names of a subject share its moves.
    """

    noun, names_key, subject_noun, shared_move_reason = "tensor", "tensors", "tensor", "a tensor has one"

    def has_layer_or_tensor(self, network: NetworkOutline, name: str) -> bool:
        """Returns True if the network has a layer or tensor with a name from a file."""
        return network.has_tensor(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        """Returns the names that a file may contain, in network order."""
        outputs = [output for layer in network.layers for output in layer.outputs if output]
        return [*(info.name for info in network.inputs), *outputs]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        """Returns the fusion group or tensor to which a name in a file belongs; None if there is none."""
        return name

    def name_refusal_reason(self, network: NetworkOutline, name: str) -> str:
        """Returns the reason why the network has no group or tensor of this kind for a name."""
        return f"it is not a {self.subject_noun}"

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        """Returns all names of a group or tensor in files, such as all layers of a fusion group, in network order."""
        return (subject,)

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        """Returns the groups or tensors whose moves are shown in the row of a fusion group."""
        return [site.tensor for site in group.activation_qdq_sites()]

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        """Returns groups or tensors in network order. Names that the network lacks follow in alphabetical order."""
        return sort_names_in_order(network.calibrated_tensors, subjects)


class _GroupSubjectKind(MoveSubjectKind):
    """Fusion groups, to which moves such as a precision apply.

    A file names all layers of a group, so that its readers need not know the groups.
    """

    noun, names_key, subject_noun, shared_move_reason = "layer", "layers", "fused layer", "TensorRT fuses them"

    def has_layer_or_tensor(self, network: NetworkOutline, name: str) -> bool:
        return network.has_layer(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        return [layer.name for layer in network.layers]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        group = network.find_group(name)
        return None if group is None else group.name

    def name_refusal_reason(self, network: NetworkOutline, name: str) -> str:
        return f"it has no selectable precision: {network.get_layer(name).refusal_reason or 'no float result'}"

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        return network.get_group(subject).layers

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return (group.name,)

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order([group.name for group in network.groups], subjects)


def sort_names_in_order(ordered_names: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns names in the order of a reference list. Other names follow in alphabetical order."""
    positions = {name: position for position, name in enumerate(ordered_names)}
    return sorted(names, key=lambda name: (positions.get(name, len(positions)), name))


GROUP_SUBJECTS, TENSOR_SUBJECTS = _GroupSubjectKind(), MoveSubjectKind()


@dataclass(frozen=True)
class Move(ABC):
    """The base class of moves. A move is one decision of a config about one fusion group or tensor, such as its
    precision.

    A move is a frozen dataclass. The config stores it under the name of its subject: the fusion group or tensor to
    which it applies.

    All lowerings read a config through the rulebook (`trt_tui.core.lowering.rulebook`). The rulebook reads
    `group_precision`, `fixed_ranges`, `adjust_ranges`, `find_constant_edits`, `find_weight_scales` and
    `is_normalisation_rewrite` of each move, and errors are measured with `find_divisors`. Therefore
    typed networks, gated graphs, and explicit and implicit quantization all interpret a move in the same way.

    The fields of the dataclass are the entry of the move in a file and in a saved session. They keep their names there
    and are checked by their types.

    Attributes:
        kind: The name of the kind of move in files.
        subject_kind: The kind of object to which the move applies.
        edits_constants: True if the move changes constants; see `find_constant_edits`.
        scales_channels: True if the move scales the output channels of its group. A group has at most one such move.
        keeps_precision: True if the fusion group keeps the precision of this move, whatever other moves request.
        is_normalisation_rewrite: True if the move replaces the decomposed normalisation of its group by the LayerNorm
            or RMSNorm operator.
    """

    kind: ClassVar[str]
    subject_kind: ClassVar[MoveSubjectKind]
    edits_constants: ClassVar[bool] = False
    scales_channels: ClassVar[bool] = False
    keeps_precision: ClassVar[bool] = False
    is_normalisation_rewrite: ClassVar[bool] = False

    # -- the effect of the move --

    @property
    def has_measured_values(self) -> bool:
        """True if the move contains values measured on data, which become stale when weights or data change."""
        return False

    @property
    @abstractmethod
    def equivalence_key(self) -> Hashable:
        """A key of the effect of the move. Moves with equal effects have equal keys, whatever their origins. The
        ``repr`` of the key is the same in every run of the program.
        """

    @abstractmethod
    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the move cannot apply to a group or tensor of the network; "" if it can."""

    @property
    def group_precision(self) -> Precision | None:
        """The precision that the move gives to its fusion group; None if the move does not set a precision."""
        return None

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        """Changes the ranges (amax by tensor name) from which INT8 scales are computed, in place.

        Args:
            tensors: The tensor to which the move applies, and the tensors that share its scale.
        """
        return

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        """The amax of tensors whose ranges the move sets, in the units that the tensors have with the move. No other
        range can be chosen for them.
        """
        return {}

    def fp32_difference_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the move may change FP32 results for values unlike the samples, as a sentence without
        a full stop; "" if it cannot.
        """
        return ""

    def find_range_factors(self) -> Mapping[str, float]:
        """Returns the factors by which the move changes ranges of tensors, by tensor name. Tensors of `fixed_ranges`
        are left out.
        """
        return {}

    def find_neutral_layers(self, network: NetworkOutline, subject: str) -> Collection[str]:
        """Returns the layers that multiply or divide by 1 because of the move. Exported networks lack them."""
        return ()

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        """Returns the divisors by which the move divides the channels of tensors, by tensor name.

        Each array is float32 and broadcasts to its tensor, with the rank of the tensor.
        """
        return {}

    def find_constant_edits(
        self, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions
    ) -> Mapping[Port, ConstantEdit]:
        """Returns the edits that the move makes to constants, by the layer input that reads the constant.

        Args:
            default_precisions: The config of the move, which gives the precision of its group.
        """
        return {}

    def find_weight_scales(self, precision: Precision) -> np.ndarray | None:
        """Returns the scales that the move sets for the only weight of its group in a precision, float32 ``(n,)``.

        None if the move sets no scales in that precision.
        """
        return None

    # -- texts from `MOVE_TEXTS` --

    @property
    def label(self) -> str:
        """The short text of the move in tables, such as its precision or range."""
        return MOVE_TEXTS[self.kind].label.format(move=self)

    @property
    def difference_text(self) -> str:
        """The text for this move in a comparison of two configs."""
        return MOVE_TEXTS[self.kind].difference.format(move=self)

    @property
    def origin_text(self) -> str:
        """The origin of the move: "user", "search:<method>", or the method of a range."""
        return MOVE_TEXTS[self.kind].origin.format(move=self)

    @property
    def action_text(self) -> str:
        """The verb phrase after "cannot" in an error message, such as ``run in FP16``."""
        return MOVE_TEXTS[self.kind].action.format(move=self)

    @property
    def row_note(self) -> str:
        """The note about the move in the row of its fusion group."""
        return MOVE_TEXTS[self.kind].row_note.format(move=self)

    @classmethod
    def default_label(cls, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions) -> str:
        """Returns the text for a group or tensor without a move of this kind, for the comparison of two configs."""
        return MOVE_TEXTS[cls.kind].no_move

    @classmethod
    def difference_title(cls, subject_title: str) -> str:
        """Returns the title of a line in the comparison of two configs, from the title of the group or tensor."""
        return MOVE_TEXTS[cls.kind].difference_title.format(subject=subject_title)
