"""The base class of all moves. A move is one decision about one fusion group or tensor of a network.

`MOVE_TEXTS` holds the texts for users about moves, which all lists, comparisons, messages and reports use.

In a text, ``{move}`` is the move, whose fields and other texts can be used, and ``{subject}`` is the title of its group
or tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class MoveTexts:
    """The texts for users about one kind of move.

    Attributes:
        column: The property that the move decides, in one word: the header of a table column.
        label: The decision of a move, short, for tables.
        action: The verb phrase behind "cannot".
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
    "keep": MoveTexts("kept", "{move.precision.label}", "be kept in {move.label}",
                      "kept in {move.label} by {move.origin_text}", "kept: {subject}", origin="rule {move.rule}"),
    "precision": MoveTexts("precision", "{move.precision.label}", "run in {move.label}",
                           "precision {move.label} by {move.origin_text}", "{subject}"),
    "rewrite": MoveTexts("form", "{move.operator}", "be written as {move.label}", "written as {move.label}",
                         "form of {subject}", no_move="decomposed"),
    "qk_scale": MoveTexts("scale", "in {move.placement_text}", "have its scale in {move.placement_text}",
                          "scale {move.factor:.4g} in {move.placement_text}", "scale of {subject}",
                          no_move="as in the network"),
    "smooth": MoveTexts("smoothing", "{move.method} {move.strength:g}", "have its channels scaled",
                        "smoothed ({move.strength:g})", "smoothing of {subject}", no_move="none"),
    "equalize": MoveTexts("equalization", "equalized ({move.formula})", "have its channels equalized",
                          "channels equalized ({move.formula})", "equalization of {subject}",
                          no_move="none"),
    "range": MoveTexts("range", "{move.amax:.5g}", "have the range {move.label}", "range by {move.method}",
                       "range of {subject}", "amax {move.label} ({move.method})", "calibrated", "{move.method}"),
    "rounding": MoveTexts("rounding", "{move.method} {move.precision.label}", "have its weight rounded by the error",
                          "weight rounded by {move.method}", "rounding of {subject}", no_move="nearest"),
    "bias": MoveTexts("bias", "corrected", "have its bias corrected", "bias corrected", "bias of {subject}",
                      no_move="as it is"),
    "barrier": MoveTexts("barrier", "fusion barrier", "become a network output",
                         "fusion barrier: its output becomes a network output", "barrier at {subject}"),
}
"""The texts by the word for the kind of move in files."""


@dataclass(frozen=True)
class DefaultPrecisions:
    """The precisions of a config before any move.

    Attributes:
        quantized: Precision of the groups that can be quantized (INT8, or a float precision for a config without INT8).
        other: Precision of every other float group, and the float type around INT8 layers.
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
        return f"Layers that can be quantized run in {self.quantized.label}, the others in {self.other.label}"

    def default_precision_of(self, group: FusionGroup) -> Precision:
        """Returns the precision that a fusion group has before any move."""
        if self.quantized in group.allowed_precisions and group.is_quantizable:
            return self.quantized
        return self.other if self.other in group.allowed_precisions else Precision.FP32


    def precision_of(self, group: FusionGroup) -> Precision:
        """Returns the precision that a fusion group is requested to run in."""
        return self.default_precision_of(group)


@dataclass(frozen=True, eq=False)
class ConstantEdit:
    """The change that a move makes to a constant input of a layer, such as a weight or bias.

    Attributes:
        edit_constant: Returns the changed constant from the original one, or from None if the layer has no such input:
            float32, with the shape of the original constant, which is not modified.
        weight_edits: The digest of the edits of other moves before one that only rounds a weight, so that the constant
            before it is the exact one; None for any other change.
    """

    edit_constant: Callable[[np.ndarray | None], np.ndarray]
    weight_edits: str | None = None


class SubjectKind:
    """The kind of object that a move changes, its subject: here tensors, and their names in files.

    The subjects of a fusion group are the tensors that it reads through Q/DQ in INT8.

    Attributes:
        noun: The word for one name of a subject, also the header of a table column.
        names_key: The key of the list of names in a file.
        subject_noun: The word for one subject.
        shared_move_reason: The reason why all names of a subject share its moves.
    """

    noun, names_key, subject_noun, shared_move_reason = "tensor", "tensors", "tensor", "a tensor has one"

    def has_subject_name(self, network: NetworkOutline, name: str) -> bool:
        """Returns True if the network has a layer or tensor with a name from a file."""
        return network.has_tensor(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        """Returns the names that a file may contain, in network order."""
        outputs = [output for layer in network.layers for output in layer.outputs if output]
        return [*(info.name for info in network.inputs), *outputs]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        """Returns the subject (fusion group or tensor) that a name of the network belongs to; None if it belongs to no
        subject."""
        return name

    def missing_subject_reason(self, network: NetworkOutline, name: str) -> str:
        """Returns the reason why a name of the network belongs to no subject of a move."""
        return f"it is not a {self.subject_noun}"

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        """Returns every name of a subject, such as all layers of a fusion group, in network order."""
        return (subject,)

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        """Returns the subjects of moves that are shown in the row of a fusion group."""
        return [site.tensor for site in group.activation_qdq_sites()]

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        """Returns the subjects of moves in network order. Subjects that the network lacks follow at the end, sorted by
        name."""
        return sort_names_in_order(network.calibrated_tensors, subjects)


class _GroupSubjectKind(SubjectKind):
    """Fusion groups as the subjects of moves.

    A file names every layer of a group, so that a reader of the file need not know the groups.
    """

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


def sort_names_in_order(ordered_names: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns names in the order of a reference list. Names that are not in that list follow at the end, sorted by
    name."""
    positions = {name: position for position, name in enumerate(ordered_names)}
    return sorted(names, key=lambda name: (positions.get(name, len(positions)), name))


GROUP_SUBJECTS, TENSOR_SUBJECTS = _GroupSubjectKind(), SubjectKind()


@dataclass(frozen=True)
class Move(ABC):
    """One decision of a precision config about one fusion group or tensor, such as its precision or its range.

    A move is a frozen dataclass. Its subject, the group or tensor, is stored beside the move in the config.

    All lowerings read a config through the rulebook (`trt_tui.core.lowering.rulebook`). The rulebook reads
    `group_precision`, `fixed_ranges`, `adjust_ranges`, `find_constant_edits`, `find_weight_scales` and
    `is_normalisation_rewrite` of each move, and errors are measured with `find_divisors`. Therefore
    typed networks, gated graphs, and explicit and implicit quantization all interpret a move in the same way.

    The fields of the dataclass are the entry of the move in a file and in a saved session. They keep their names there
    and are checked by their types.

    Attributes:
        kind: The word for the kind of move in files.
        subject_kind: The kind of object that the move changes.
        edits_constants: True if the move changes constants; see `find_constant_edits`.
        scales_channels: True if the move scales the channels that its subject produces. A subject has one such move.
        keeps_precision: True if the fusion group keeps the precision of this move, whatever other moves request.
        is_normalisation_rewrite: True if the move replaces the decomposed normalisation of its group by the LayerNorm
            or RMSNorm operator.
    """

    kind: ClassVar[str]
    subject_kind: ClassVar[SubjectKind]
    edits_constants: ClassVar[bool] = False
    scales_channels: ClassVar[bool] = False
    keeps_precision: ClassVar[bool] = False
    is_normalisation_rewrite: ClassVar[bool] = False

    # -- the effect of the move --

    @property
    def has_measured_values(self) -> bool:
        """True if the move contains measured values, which become invalid when weights or data change."""
        return False

    @property
    @abstractmethod
    def effect_key(self) -> Hashable:
        """The effect of the move without its origin. Equal keys mean equal effects. The ``repr`` of the key is the same
        in every run of the program."""

    @abstractmethod
    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the move cannot be made on a group or tensor of the network; "" if it can."""

    @property
    def group_precision(self) -> Precision | None:
        """The precision that the move gives to its fusion group; None if the move does not set a precision."""
        return None

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        """Changes the ranges (amax by tensor name) from which INT8 scales are computed.

        Args:
            tensors: The subject of the move and the tensors that share its scale.
        """
        return

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        """The amax of the tensors whose range belongs to the move, in the units that the tensors have with the move. No
        other range can be chosen for them."""
        return {}

    def equality_limit_text(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the move changes the network in FP32 for values far from those of the samples, as a
        sentence without a full stop; "" if it does not."""
        return ""

    def find_range_factors(self) -> Mapping[str, float]:
        """Returns the factors by which the move changes the ranges of tensors, by tensor, besides `fixed_ranges`."""
        return {}

    def find_neutral_layers(self, network: NetworkOutline, subject: str) -> Collection[str]:
        """Returns the Muls and Divs by numbers that compute nothing with the move; exported networks lack them."""
        return ()

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        """Returns the divisors of the tensors whose values differ from those of the network by a factor per channel.

        Each array is float32 and broadcasts to its tensor, with the rank of the tensor.
        """
        return {}

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the changes that the move makes to constants, by the layer input that reads the constant.

        Args:
            default_precisions: The config that contains the move.
        """
        return {}

    def find_weight_scales(self, precision: Precision) -> np.ndarray | None:
        """Returns the scales that the move fixes for the only weight of its group in a precision, float32 ``(n,)``.

        None if the move fixes no scales in that precision.
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
        """The note about the move that the layer list shows in the row of its fusion group."""
        return MOVE_TEXTS[self.kind].row_note.format(move=self)

    @classmethod
    def default_label(cls, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions) -> str:
        """Returns the text that a comparison of two configs shows for a group or tensor without a move of this kind."""
        return MOVE_TEXTS[cls.kind].no_move

    @classmethod
    def difference_title(cls, subject_title: str) -> str:
        """Returns the title of a line in a comparison of two configs, built from the title of the group or tensor."""
        return MOVE_TEXTS[cls.kind].difference_title.format(subject=subject_title)
