"""The immutable precision config, which consists of default precisions and moves, and its moves without constants.

`trt_tui.core.moves.constant_moves` has the moves that change constants. This module has all other moves, and the checks
whether a zero-cost move can apply to a fusion group.
"""

from __future__ import annotations

import json
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from trt_tui.core.calibration.calibration import RANGE_METHODS
from trt_tui.core.calibration.user_ranges import is_data_dependent
from trt_tui.core.moves.constant_moves import (
    ROUNDED_OPERATORS,
    ROUNDED_PRECISIONS,
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    SmoothQuantMove,
    find_sole_weight_site,
)
from trt_tui.core.moves.move import (
    GROUP_SUBJECTS,
    MOVE_TEXTS,
    TENSOR_SUBJECTS,
    DefaultPrecisions,
    Move,
    MoveSubjectKind,
    sort_names_in_order,
)
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.precision import DEFAULT_STEPS, Precision, precision_rank
from trt_tui.core.quantized_types import MAX_AMAX, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text


@dataclass(frozen=True)
class PrecisionMove(Move):
    """The precision of a fusion group, with the origin of the decision (``user`` or ``search:<method>``)."""

    kind, subject_kind = "precision", GROUP_SUBJECTS

    precision: Precision
    reason: str = "user"

    @property
    def equivalence_key(self) -> str:
        return self.precision.value

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if self.precision is Precision.TF32:
            return 'TF32 is a setting of the whole engine in every release: "tf32": true, or --tf32'
        if self.precision is Precision.FILE and network.get_group(subject).file_precision is None:
            return "the network file is FP32 and has no file precision"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision

    @classmethod
    def default_label(cls, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions) -> str:
        """Returns the label of the default precision of the fusion group.

        Implements `Move.default_label`.
        """
        group = network.get_group(subject)
        return group.precision_label(default_precisions.default_precision_of(group))


KEEP_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""The precisions that a keep rule can fix."""


@dataclass(frozen=True)
class KeepRuleMove(Move):
    """The precision in which a keep rule fixes a fusion group.

    Attributes:
        rule: The keep rule as the user wrote it.
        precision: The fixed precision.
    """

    kind, subject_kind = "keep", GROUP_SUBJECTS
    keeps_precision = True

    rule: str
    precision: Precision = Precision.FP32

    @property
    def equivalence_key(self) -> str:
        """The fixed precision. The name of the keep rule is not part of the key, because it has no effect."""
        return str(self.precision.value)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if self.precision not in KEEP_PRECISIONS:
            return f"a rule keeps layers in {', '.join(precision.label for precision in KEEP_PRECISIONS)}"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision


@dataclass(frozen=True)
class RangeMove(Move):
    """The range of a tensor that replaces its calibrated range.

    Attributes:
        amax: The end of the range, in the tensor's own units.
        method: The origin of the range: a range method, or "user".
    """

    kind, subject_kind = "range", TENSOR_SUBJECTS

    amax: float
    method: str = "user"

    @property
    def equivalence_key(self) -> float:
        return self.amax

    @property
    def has_measured_values(self) -> bool:
        return is_data_dependent(self.method)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return "" if 0 <= self.amax <= MAX_AMAX else "a range is a number from 0 to the largest FP32 value"

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        amax_by_tensor.update(dict.fromkeys(tensors, self.amax))


class _LayerOutputSubjectKind(MoveSubjectKind):
    """The outputs of layers, which fusion barriers can be set at. A fusion group has its output tensors."""

    shared_move_reason = "a barrier has no value"

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        return [output for layer in network.layers for output in layer.outputs if output]

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return tuple(dict.fromkeys((group.final_tensor, *group.outputs)))

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order(self.list_subject_names(network), subjects)


@dataclass(frozen=True)
class BarrierMove(Move):
    """A fusion barrier: a tensor that becomes an additional network output, so that TensorRT does not fuse across it.

    A fusion barrier is a workaround for a fused kernel that computes wrong values. Applications need not read the
    additional output. A debug tensor would not suffice, because TensorRT-RTX 1.7 fuses across it.

    Attributes:
        reason: The origin of the move, such as "user".
    """

    kind, subject_kind, equivalence_key = "barrier", _LayerOutputSubjectKind(), True

    reason: str = "user"

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if any(info.name == subject for info in network.outputs):
            return "it is already a network output"
        producer = next((layer for layer in network.layers if subject in layer.outputs), None)
        if producer is None:
            return "no layer computes it"
        return "" if network.find_group(producer.name) is not None else "it is not a float tensor that a layer computes"


@dataclass(frozen=True)
class NormRewriteMove(Move):
    """The replacement of a decomposed normalisation by its ONNX operator.

    TensorRT computes mean and variance of the operator in FP32, whatever the surrounding type. In the decomposed form
    every intermediate result is rounded, and the square of a value from 256 up overflows FP16.

    Attributes:
        reason: The origin of the move, such as "user".
    """

    kind, subject_kind = "rewrite", GROUP_SUBJECTS
    is_normalisation_rewrite = True

    operator: Literal["LayerNormalization", "RMSNormalization"]
    reason: str = "user"

    @property
    def equivalence_key(self) -> str:
        return self.operator

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        reason = rewrite_refusal_reason(network, subject)
        operator = "" if reason else network.zero_cost_support.norms[subject].operator
        return reason or ("" if operator == self.operator else f"the operator is {operator}")


MOVE_KINDS: dict[str, type[Move]] = {
    kind.kind: kind
    for kind in (
        KeepRuleMove,
        PrecisionMove,
        NormRewriteMove,
        AttentionScaleMove,
        SmoothQuantMove,
        EqualizationMove,
        RangeMove,
        RoundingMove,
        BiasCorrectionMove,
        BarrierMove,
    )
}
"""The kinds of move in the order of files and reports. If several moves set the precision of a group, the first kind in
this order decides. Edits of one constant apply in this order: a rounding is behind all other edits of weights."""


T = TypeVar("T")

_ERROR_LOCATION = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")


class UnknownMoveKindError(ValueError):
    """The error for a file entry with a kind of move that this version does not have. Its text names the kind.

    Attributes:
        next_step: The next step for the user.
    """

    def __init__(self, cause: str, next_step: str = "Update trt-tui, or take the move out of the file.") -> None:
        super().__init__(cause)
        self.next_step = next_step


def encode_move(move: Move) -> dict[str, Any]:
    """Returns the file entry of a move, without the group or tensor to which the move applies.

    Options that are off and texts that are empty are omitted if these are the defaults.
    """
    defaults = {field.name: field.default for field in fields(move)}
    return {
        "kind": move.kind,
        **{name: value for name, value in msgspec.to_builtins(move).items() if value or defaults[name] != value},
    }


def decode_move(entry: Mapping[str, Any]) -> Move:
    """Returns the move that a file entry describes.

    Raises:
        UnknownMoveKindError: The kind of move does not exist. msgspec.ValidationError: A field is missing or has
            another type.
    """
    kind = entry.get("kind")
    removed_move = (
        "an inserted Mul"
        if kind == "insert_mul"
        else "a Min or Max in place of a Clip"
        if kind == "equalize" and entry.get("replaces_clips")
        else ""
    )
    if removed_move:
        names = entry.get("target", entry.get("layers"))
        raise UnknownMoveKindError(
            f"it has {removed_move} at {_value_text(names[:1] if isinstance(names, list) else names)}, a change that "
            "trt-tui no longer makes",
            "Search again, or take the move out of the file: its layers then lose more.",
        )
    if not isinstance(kind, str) or kind not in MOVE_KINDS:
        raise UnknownMoveKindError(
            f"it has a move of kind {_value_text(kind)}, and this trt-tui knows {', '.join(MOVE_KINDS)}"
        )
    return msgspec.convert(dict(entry), MOVE_KINDS[kind])


def convert_file_value(value: Any, expected_type: type[T], file_name: str, location: str = "") -> T:
    """Converts a value of a file to its expected type.

    Args:
        location: The location of the value in the file; "" for the whole file.

    Raises:
        InputError: The value does not fit the type. The error names the location, the value and the expected type.
    """
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise entry_type_error(error, value, expected_type, file_name, location) from None


def entry_type_error(
    error: msgspec.ValidationError, value: Any, expected_type: Any, file_name: str, location: str
) -> InputError:
    """Returns the error for a file entry that does not have the expected type."""
    message, path = match.groups() if (match := _ERROR_LOCATION.fullmatch(str(error))) else (str(error), "")
    if missing_match := _MISSING_FIELD.fullmatch(message):
        path += f".{missing_match[1]}"
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path)
    for name, index in steps:
        value = value.get(name) if name else value[int(index)]
        hints = typing.get_type_hints(expected_type) if name and isinstance(expected_type, type) else {}
        expected_type = hints.get(name, Any)
    location_text = (location + path).lstrip(".") or "it"
    choices_text = _choices_text(expected_type) if "enum" in message else ""
    return InputError(
        f"{file_name}: {location_text} is {_value_text(value)}",
        f"it must be one of {choices_text}" if choices_text else message,
        "Correct the file, or export the config again.",
    )


def _choices_text(expected_type: Any) -> str:
    """Returns the allowed words of an enumeration or literal type, separated by commas; "" for any other type."""
    if isinstance(expected_type, type) and issubclass(expected_type, Enum):
        return ", ".join(str(member.value) for member in expected_type)
    return (
        ", ".join(map(str, typing.get_args(expected_type)))
        if typing.get_origin(expected_type) is typing.Literal
        else ""
    )


def _value_text(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


M = TypeVar("M", bound=Move)
MoveKey = tuple[str, str]
"""The kind of a move and its subject, the name of a group or tensor."""


@dataclass(frozen=True)
class PrecisionConfig(DefaultPrecisions):
    """A precision config: default precisions and moves. Together they give every fusion group a precision.

    A config is immutable; every change creates a new config. Two configs are equal if their decisions have the same
    effect (`comparison_key`). The origins of their moves may differ.

    Attributes:
        moves: The decisions that differ from the defaults, by the kind of move and the name of the group or tensor.
    """

    moves: Mapping[MoveKey, Move] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moves", MappingProxyType(dict(self.moves)))

    def __reduce__(self) -> tuple[type[PrecisionConfig], tuple[Precision, Precision, bool, dict[MoveKey, Move]]]:
        return PrecisionConfig, (self.quantized, self.other, self.tf32, dict(self.moves))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrecisionConfig):
            return NotImplemented
        return self is other or self.comparison_key == other.comparison_key

    def __hash__(self) -> int:
        return hash(self.comparison_key)

    @cached_property
    def comparison_key(self) -> tuple[object, ...]:
        """A key that is equal for configs that lower to the same networks. The origins of moves are not part of it."""
        effects_by_kind = collect_by_key(
            (kind, (subject, move.equivalence_key))
            for (kind, subject), move in sorted(self.moves.items(), key=lambda item: item[0])
        )
        precision_effects, range_effects = (
            tuple(effects_by_kind.pop(kind, ())) for kind in (PrecisionMove.kind, RangeMove.kind)
        )
        other_effects = tuple((kind, tuple(effects)) for kind, effects in effects_by_kind.items())
        return (self.quantized.value, self.other.value, self.tf32, precision_effects, range_effects, *other_effects)

    @classmethod
    def from_precision(
        cls, precision: Precision, other_precision: Precision = Precision.FP16, tf32: bool = False
    ) -> PrecisionConfig:
        """Builds a config with one precision for all fusion groups.

        If the precision is a quantized type, groups that cannot be quantized have ``other_precision``.
        """
        return cls(precision, other_precision if precision in QUANTIZED_TYPES else precision.value_type, tf32)

    @cached_property
    def precision_steps(self) -> tuple[Precision, ...]:
        """The precisions that the user steps through by the keys for a higher and a lower precision, lowest first.

        They are FP32 and the quantized and 16-bit types that the config uses. A kind of type that the config does not
        use is represented by the type in `DEFAULT_STEPS`.
        """
        used = {self.quantized, self.other, *(precision.precision for precision in self.precision_moves.values())}
        precision_families = (QUANTIZED_TYPES, (Precision.FP16, Precision.FP16_ACC_FP32, Precision.BF16))
        precisions = [
            precision
            for family in precision_families
            for precision in sorted(used.intersection(family) or set(DEFAULT_STEPS).intersection(family))
        ]
        return tuple(sorted((*precisions, Precision.FP32), key=precision_rank))

    @property
    def uses_only_file_precisions(self) -> bool:
        """True if every fusion group keeps the precision of the network's own file."""
        return self.quantized is Precision.FILE and not self.moves

    def find_main_quantized_type(self, network: NetworkOutline) -> Precision:
        """Returns the most frequent quantized type among the fusion groups of a network.

        A file precision counts as its nearest precision. If no group is quantized, the result is the default precision
        if that is a quantized type, and INT8 if not.
        """
        counts = Counter(
            quantized_type
            for group in network.groups
            if (quantized_type := group.resolve_file_precision(self.precision_of(group))) in QUANTIZED_TYPES
        )
        if counts:
            return min(counts, key=lambda precision: (-counts[precision], precision_rank(precision)))
        return self.quantized if self.quantized in QUANTIZED_TYPES else Precision.INT8

    def find_main_low_precision(self, network: NetworkOutline) -> Precision:
        """Returns the main quantized type of a network; if nothing is quantized, its most frequent 16-bit type.

        If the config uses no 16-bit type either, the result is FP16.
        """
        quantized_type = self.find_main_quantized_type(network)
        counts = Counter(group.resolve_file_precision(self.precision_of(group)).value_type for group in network.groups)
        if counts[quantized_type] or self.quantized in QUANTIZED_TYPES:
            return quantized_type
        return max((Precision.FP16, Precision.BF16, quantized_type), key=lambda precision: counts[precision])

    # -- moves ----------------------------------------------------------------------------------------------------

    def get_moves(self, move_class: type[M]) -> Mapping[str, M]:
        return MappingProxyType(
            {subject: move for (_, subject), move in self.moves.items() if isinstance(move, move_class)}
        )

    @cached_property
    def precision_moves(self) -> Mapping[str, PrecisionMove]:
        """The moves that set a precision, by group name."""
        return self.get_moves(PrecisionMove)

    @cached_property
    def range_moves(self) -> Mapping[str, RangeMove]:
        """The moves that replace a calibrated range, by tensor name."""
        return self.get_moves(RangeMove)

    @cached_property
    def fixed_range_tensors(self) -> frozenset[str]:
        """The tensors whose ranges are set by moves other than range moves, such as SmoothQuant."""
        return frozenset(tensor for move in self.moves.values() for tensor in move.fixed_ranges)

    def without_fixed_ranges(self) -> PrecisionConfig:
        """Returns the config without the moves that set ranges themselves, because they change the values of tensors."""
        return replace(
            self,
            moves={
                key: move for key, move in self.moves.items() if not move.fixed_ranges and not move.find_range_factors()
            },
        )

    def with_moves(self, moves: Mapping[str, Move]) -> PrecisionConfig:
        """Returns the config with added moves, given by group or tensor name. Such a move replaces the earlier moves of
        its kind on the same group or tensor, and those that scale the same channels.
        """
        kept = {
            (kind, subject): move
            for (kind, subject), move in self.moves.items()
            if subject not in moves or not (move.scales_channels and moves[subject].scales_channels)
        }
        return replace(self, moves={**kept, **{(move.kind, subject): move for subject, move in moves.items()}})

    def with_move_of(self, other: PrecisionConfig, key: MoveKey) -> PrecisionConfig:
        """Returns the config with another config's move of one kind at one subject, or without it if there is none."""
        kept_moves = {kept_key: move for kept_key, move in self.moves.items() if kept_key != key}
        return replace(self, moves=kept_moves | ({key: other.moves[key]} if key in other.moves else {}))

    def has_scaled_channels(self, subject: str) -> bool:
        """Returns True if a move scales the channels that a fusion group produces."""
        return any(move.scales_channels for (_, group), move in self.moves.items() if group == subject)

    def without_moves(self, move_class: type[Move], subjects: Iterable[str] | None = None) -> PrecisionConfig:
        """Returns the config without the moves of one kind on some groups or tensors.

        Args:
            subjects: The names of the groups or tensors; None for all.
        """
        removed_subjects = None if subjects is None else set(subjects)
        return replace(
            self,
            moves={
                (kind_name, subject): move
                for (kind_name, subject), move in self.moves.items()
                if kind_name != move_class.kind or removed_subjects is not None and subject not in removed_subjects
            },
        )

    def find_moves_on_group(self, group: FusionGroup) -> Iterator[tuple[str, Move]]:
        """Yields the moves on a fusion group and on its INT8 input tensors, each after the name of the group or tensor."""
        for move_class in MOVE_KINDS.values():
            yield from (
                (subject, self.moves[move_class.kind, subject])
                for subject in dict.fromkeys(move_class.subject_kind.list_subjects_of_group(group))
                if (move_class.kind, subject) in self.moves
            )

    def list_moves(self, network: NetworkOutline) -> Iterator[tuple[type[Move], list[tuple[str, Move]]]]:
        """Yields the moves of the config by kind. Each move follows the name of its group or tensor, in network order."""
        for move_class in MOVE_KINDS.values():
            subjects = [subject for kind_name, subject in self.moves if kind_name == move_class.kind]
            if subjects:
                yield (
                    move_class,
                    [
                        (subject, self.moves[move_class.kind, subject])
                        for subject in move_class.subject_kind.sort_subjects(network, subjects)
                    ],
                )

    def find_divisors(self, network: NetworkOutline) -> dict[str, np.ndarray]:
        """Returns the divisors of all tensors whose channels are scaled by moves, by tensor name.

        The arrays have the form of `Move.find_divisors`.
        """
        divisors: dict[str, np.ndarray] = {}
        for (_, subject), move in self.moves.items():
            for tensor, divisor in move.find_divisors(network, subject).items():
                divisors[tensor] = divisor * divisors[tensor] if tensor in divisors else divisor
        return divisors

    def list_fp32_difference_reasons(self, network: NetworkOutline) -> list[str]:
        """Returns the reasons why moves may change the FP32 results for values unlike the samples, as sentences without
        a full stop. Each reason names the groups of its moves.
        """
        subjects_by_text = collect_by_key(
            (text, subject)
            for (_, subject), move in self.moves.items()
            if (text := move.fp32_difference_reason(network, subject))
        )
        return [f"{text} ({name_list_text(subjects, 2)})" for text, subjects in subjects_by_text.items()]

    # -- precisions -----------------------------------------------------------------------------------------------

    @cached_property
    def _precision_by_moved_group(self) -> dict[str, Precision]:
        """The precisions that moves give to fusion groups, by group name."""
        requested: dict[str, Precision] = {}
        for kind in MOVE_KINDS:
            for (kind_name, subject), move in self.moves.items():
                if kind_name == kind and (precision := move.group_precision) is not None:
                    requested.setdefault(subject, precision)
        return requested

    def requested_precision(self, group: FusionGroup) -> Precision:
        """Returns the precision that the config requests for a fusion group. The group may not support it."""
        return self._precision_by_moved_group.get(group.name, self.quantized)

    def precision_of(self, group: FusionGroup) -> Precision:
        precision = self._precision_by_moved_group.get(group.name)
        return precision if precision is not None else self.default_precision_of(group)

    def precision_by_group(self, network: NetworkOutline) -> dict[str, Precision]:
        """Returns the requested precision of every fusion group, by group name, in network order."""
        return {group.name: self.precision_of(group) for group in network.groups}

    @cached_property
    def groups_fixed_by_rule(self) -> frozenset[str]:
        """The names of the fusion groups whose precision a keep rule fixes."""
        return frozenset(subject for (_, subject), move in self.moves.items() if move.keeps_precision)

    def with_group_precision(
        self, groups: Iterable[FusionGroup], precision: Precision, reason: str = "user"
    ) -> PrecisionConfig:
        """Returns the config with another precision for some fusion groups.

        Groups that cannot run in the precision, and groups that a keep rule fixes, are left unchanged.
        """
        changeable = [
            group
            for group in groups
            if precision in group.allowed_precisions and group.name not in self.groups_fixed_by_rule
        ]
        new_moves = {
            group.name: PrecisionMove(precision, reason)
            for group in changeable
            if precision is not self.default_precision_of(group)
        }
        return self.without_group_precision(changeable).with_moves(new_moves)

    def without_group_precision(self, groups: Iterable[FusionGroup]) -> PrecisionConfig:
        """Returns the config with the default precision for some fusion groups."""
        return self.without_moves(PrecisionMove, (group.name for group in groups))

    def with_toggled_fp32(self, groups: Iterable[FusionGroup]) -> PrecisionConfig:
        """Returns the config with some fusion groups toggled between FP32 and their default precisions.

        If all groups run in FP32, they return to their defaults. If not, all are raised to FP32.
        """
        groups = [
            group
            for group in groups
            if len(group.allowed_precisions) > 1 and group.name not in self.groups_fixed_by_rule
        ]
        if groups and all(self.precision_of(group) is Precision.FP32 for group in groups):
            return self.without_group_precision(groups)
        return self.with_group_precision(groups, Precision.FP32)

    def find_raised_groups(self, network: NetworkOutline) -> tuple[str, ...]:
        """Returns the fusion groups with a higher precision than their default, in network order."""
        return tuple(
            group.name
            for group in network.groups
            if group.name in self._precision_by_moved_group
            and group.precision_rank(self.precision_of(group)) > group.precision_rank(self.default_precision_of(group))
        )

    # -- ranges ---------------------------------------------------------------------------------------------------

    def with_range(self, tensor: str, range_move: RangeMove | None) -> PrecisionConfig:
        """Returns the config with another range for a tensor. None restores the calibrated range."""
        return self.without_moves(RangeMove, (tensor,)) if range_move is None else self.with_moves({tensor: range_move})

    def without_measured_moves(self) -> PrecisionConfig:
        """Returns the config without moves that contain values measured on data.

        Examples of measured values are ranges chosen by a method, channel factors and bias corrections.
        """
        return replace(self, moves={key: move for key, move in self.moves.items() if not move.has_measured_values})


# -- differences of two configs -----------------------------------------------------------------------------------


def move_tables(
    config: PrecisionConfig, network: NetworkOutline
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yields a table for each kind of move in a config: a header, and a row for each move.

    The columns are the group or tensor, the operator (groups only), the decision and its origin.
    """
    for move_class, moves in config.list_moves(network):
        if move_class.subject_kind is GROUP_SUBJECTS:
            yield (
                (move_class.subject_kind.noun, "operator", MOVE_TEXTS[move_class.kind].column, "set by"),
                [
                    (subject, network.get_group(subject).operator, move.label, move.origin_text)
                    for subject, move in moves
                ],
            )
        else:
            yield (
                (move_class.subject_kind.noun, MOVE_TEXTS[move_class.kind].column, "set by"),
                [(subject, move.label, move.origin_text) for subject, move in moves],
            )


@dataclass(frozen=True)
class ConfigDifference:
    """A line in the comparison of two configs: one kind of move at one group or tensor, with the decision of each
    config as text.
    """

    move_class: type[Move]
    subject: str
    first_text: str
    second_text: str


def list_config_differences(
    first_config: PrecisionConfig, second_config: PrecisionConfig, network: NetworkOutline
) -> list[ConfigDifference]:
    """Returns the differences between two configs as texts, by kind of move and in network order."""
    lines = []
    has_other_defaults = (first_config.quantized, first_config.other) != (second_config.quantized, second_config.other)
    for move_class in MOVE_KINDS.values():
        subjects = {subject for config in (first_config, second_config) for subject in config.get_moves(move_class)}
        if move_class.subject_kind is GROUP_SUBJECTS and has_other_defaults:
            subjects |= {group.name for group in network.groups}
        for subject in move_class.subject_kind.sort_subjects(network, subjects):
            moves = [config.moves.get((move_class.kind, subject)) for config in (first_config, second_config)]
            first_text, second_text = (
                move_class.default_label(network, subject, config) if move is None else move.difference_text
                for move, config in zip(moves, (first_config, second_config), strict=True)
            )
            if (
                first_text != second_text
                or moves[0]
                and moves[1]
                and moves[0].equivalence_key != moves[1].equivalence_key
            ):
                lines.append(ConfigDifference(move_class, subject, first_text, second_text))
    return lines


def find_next_precision(
    group: FusionGroup, precision: Precision, is_increase: bool, precision_steps: Sequence[Precision] = DEFAULT_STEPS
) -> Precision:
    """Returns the next higher or lower precision among ``precision_steps`` in which a fusion group can run.

    If there is none, the current precision is returned.
    """
    current_rank = group.precision_rank(precision)
    candidates = [
        candidate
        for candidate in precision_steps
        if candidate in group.allowed_precisions
        and (precision_rank(candidate) > current_rank) is is_increase
        and precision_rank(candidate) != current_rank
    ]
    if not candidates:
        return precision
    return min(candidates, key=precision_rank) if is_increase else max(candidates, key=precision_rank)


def find_network_range_method(config: PrecisionConfig, network: NetworkOutline) -> str:
    """Returns the range method that a config sets for more than half of the tensors of a network.

    "" if no method has so many tensors.
    """
    methods = Counter(choice.method for choice in config.range_moves.values() if choice.method in RANGE_METHODS)
    method, count = methods.most_common(1)[0] if methods else ("", 0)
    return method if count > len(network.calibrated_tensors) / 2 else ""


def remove_network_range_method(config: PrecisionConfig, network: NetworkOutline) -> PrecisionConfig:
    """Returns a config without the range moves of the method that `find_network_range_method` returns."""
    method = find_network_range_method(config, network)
    return config.without_moves(
        RangeMove, [tensor for tensor, choice in config.range_moves.items() if choice.method == method]
    )


# -- checks of zero-cost moves ---------------------------------------------------------------------------------------


def rewrite_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why an operator cannot replace the normalisation of a fusion group; "" if it can."""
    norm = network.zero_cost_support.norms.get(subject)
    return "it contains no decomposed LayerNorm or RMSNorm" if norm is None else norm.no_rewrite_reason


def bias_correction_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why the bias of a fusion group cannot be corrected in a config; "" if it can."""
    bias = network.zero_cost_support.biases.get(group.name)
    if bias is None:
        return "it has no weight that INT8 rounds"
    if bias.refusal_reason:
        return bias.refusal_reason
    return "" if config.precision_of(group) is Precision.INT8 else "it does not run in INT8"


def rounding_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why the weight of a fusion group cannot get a measured rounding in a config; "" if it can."""
    site = find_sole_weight_site(group)
    if site is None:
        return "it does not have exactly one weight"
    if config.precision_of(group) not in ROUNDED_PRECISIONS:
        return f"it runs in neither {' nor '.join(precision.label for precision in ROUNDED_PRECISIONS)}"
    operator = network.get_layer(site.layer).op_type
    return "" if operator in ROUNDED_OPERATORS else f"the rounding of a {operator} by the error is not supported"


def replace_file_precision_of_groups(
    config: PrecisionConfig, groups: Iterable[FusionGroup], reason: str = "user"
) -> PrecisionConfig:
    """Returns a config in which some fusion groups have the precision nearest to their file precision.

    A group with a zero-cost move cannot keep its form in the file.
    """
    for group in groups:
        if config.precision_of(group) is Precision.FILE and group.file_precision is not None:
            config = config.with_group_precision([group], group.file_precision.nearest_precision, reason)
    return config


def find_qdq_repair(network: NetworkOutline, config: PrecisionConfig, group: FusionGroup) -> Precision | None:
    """Returns the precision of a fusion group with which an export repairs its Q/DQ nodes; None if nothing needs
    repair.

    An export writes new Q/DQ nodes in this precision. Returns None too if the group is not in file precision.
    """
    if config.precision_of(group) is not Precision.FILE:
        return None
    return next(
        (
            finding.repair_precision
            for finding in network.qdq_findings or ()
            if finding.group == group.name and finding.repair_precision is not None
        ),
        None,
    )


def qdq_repair_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why new Q/DQ nodes would not repair a fusion group; "" if they would."""
    if network.qdq_findings is None:
        return "the file has no Q/DQ nodes"
    return (
        ""
        if find_qdq_repair(network, config, group) is not None
        else ("the check of the file finds no Q/DQ nodes here that new ones repair")
    )
