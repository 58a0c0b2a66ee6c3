"""The application of moves from a file to a network.

Names are looked up, impossible moves are refused, and moves on one fusion group are merged.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import KeepMove, PrecisionMove
from trt_tui.core.moves.move import Move, SubjectKind
from trt_tui.core.moves.move_kinds import (
    MOVE_KINDS,
    UnknownMoveKindError,
    convert_file_value,
    decode_move,
    entry_type_error,
)
from trt_tui.core.moves.move_texts import MOVE_TEXTS
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

_MAX_NAMED = 5


@dataclass(frozen=True)
class FileMove:
    """One move read from a file, with the names of its layers or tensors.

    Attributes:
        location: The location of the move in the file.
        names: The names of layers or tensors that the file lists for the move.
        unknown_entries: Keys of the file entry that its kind of move does not have.
    """

    location: str
    move: Move
    names: tuple[str, ...]
    unknown_entries: tuple[str, ...]


@dataclass(frozen=True)
class MoveEntry:
    """The undecoded entry of a move in a file.

    Attributes:
        location: The location of the entry in the file.
        implied_entries: Keys and values that follow from the location alone (in version 1).
        entry: The JSON value of the entry.
    """

    location: str
    implied_entries: Mapping[str, Any]
    entry: Any

    def decode_file_move(self, file_name: str) -> FileMove:
        """Decodes the file entry into a move and its names.

        Raises:
            InputError: The kind of move is unknown, or a field is missing or has another type.
        """
        record = {**convert_file_value(self.entry, dict[str, Any], file_name, self.location), **self.implied_entries}
        try:
            move = decode_move(record)
        except UnknownMoveKindError as error:
            raise InputError(f"{file_name}: {self.location} is not a possible move here", str(error),
                             error.next_step) from None
        except msgspec.ValidationError as error:
            raise entry_type_error(error, record, MOVE_KINDS[record["kind"]], file_name, self.location) from None
        key = move.subject_kind.names_key
        names = convert_file_value(record.get(key), list[str], file_name, f"{self.location}.{key}")
        fields = {field.name for field in dataclasses.fields(type(move))} | {"kind", key}
        return FileMove(self.location, move, tuple(names), tuple(entry for entry in record if entry not in fields))


class FileMoveApplier:
    """The object that applies the moves of a file to a network.

    Args:
        file_name: The name of the file, for messages.
        moves: The moves in the order of the file.

    Attributes:
        is_lenient: True if unsuitable moves are ignored with a warning; False if they are refused.
        warnings: The ignored entries and other cautions, one sentence each.
    """

    def __init__(self, file_name: str, network: NetworkOutline, moves: Sequence[FileMove]) -> None:
        self.file = file_name
        self.network = network
        self.moves = list(moves)
        self.is_lenient = False
        self.warnings = [f"{file_name}: {named_move.location}: unknown entry {entry!r} is ignored."
                         for named_move in moves for entry in named_move.unknown_entries]

    def find_unknown_names(self, subject_kind: SubjectKind) -> list[str]:
        """Returns the names in moves on one kind of subject (groups or tensors) that the network lacks."""
        return [
            name for named_move in self.moves if named_move.move.subject_kind is subject_kind
            for name in named_move.names if not subject_kind.has_subject_name(self.network, name)
        ]

    def check_subject_names(self, subject_kind: SubjectKind, names: Iterable[str], file_part_text: str) -> None:
        """Refuses names of layers or tensors that the network lacks. If `is_lenient` is True, a warning is added
        instead.

        Args:
            file_part_text: The part of the file that contains the names, with a verb: "calibration.ranges names".

        Raises:
            InputError: The network lacks a name, and `is_lenient` is False.
        """
        unknown_names = [name for name in names if not subject_kind.has_subject_name(self.network, name)]
        if not unknown_names:
            return
        if not self.is_lenient:
            near_names = _find_similar_names(unknown_names, subject_kind.list_subject_names(self.network))
            raise InputError(
                f"{self.file}: {file_part_text} {subject_kind.noun}s that {self.network.name} does not have",
                name_list_text(unknown_names), f"Did you mean {', '.join(near_names)}?"
                if near_names else "Check the names; trt-tui inspect lists them.")
        self.warnings.append(
            f"{self.file}: {file_part_text} {subject_kind.noun}s that are not in this network, ignored: "
            f"{name_list_text(unknown_names)}.")

    def apply_moves(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns the config with the moves of the file.

        Raises:
            InputError: The network lacks a name, a layer or tensor cannot have its move, or two moves contradict each
                other.
        """
        for move_class in MOVE_KINDS.values():
            named_moves = [named_move for named_move in self.moves if type(named_move.move) is move_class]
            names = [name for named_move in named_moves for name in named_move.names]
            self.check_subject_names(move_class.subject_kind, names, f"a move of kind {move_class.kind!r} names")
            moves_by_subject = self._choose_moves_by_subject(move_class, named_moves)
            self._warn_of_shared_moves(move_class, names, moves_by_subject)
            config = config.with_moves({
                subject: moves_by_subject[subject][1]
                for subject in move_class.subject_kind.sort_subjects(self.network, moves_by_subject)
            })
        for subject, keep_move in config.get_moves(KeepMove).items():
            precision_move = config.precision_moves.get(subject)
            if precision_move is not None and precision_move.precision is not keep_move.precision:
                raise InputError(f"{self.file}: {subject} has two precisions", f"it is kept in {keep_move.label} by "
                                 f"{keep_move.origin_text}, and set to {precision_move.label}", "Take one of them out.")
        return config.without_moves(PrecisionMove, config.groups_kept_by_rule)

    def _choose_moves_by_subject(self, move_class: type[Move],
                                 named_moves: Sequence[FileMove]) -> dict[str, tuple[str, Move]]:
        """Returns the move on each group or tensor, with the name that the file uses for the group or tensor."""
        subject_kind = move_class.subject_kind
        moves_by_subject: dict[str, tuple[str, Move]] = {}
        for name, move in ((name, named_move.move) for named_move in named_moves for name in named_move.names):
            if not subject_kind.has_subject_name(self.network, name):
                continue
            subject_name = subject_kind.find_move_subject(self.network, name)
            reason = subject_kind.missing_subject_reason(
                self.network, name) if subject_name is None else move.refusal_reason(self.network, subject_name)
            if subject_name is None or reason:
                if not self.is_lenient:
                    raise InputError(f"{self.file}: {name} cannot {move.action_text}", reason,
                                     "Take it out of the file, or choose a possible value.")
                self.warnings.append(f"{self.file}: ignored, {name} cannot {move.action_text}: {reason}.")
                continue
            first_name, first_move = moves_by_subject.get(subject_name, (name, move))
            if first_move.effect_key != move.effect_key:
                raise InputError(
                    f"{self.file} gives one {subject_kind.subject_noun} two {MOVE_TEXTS[move_class.kind].column}s",
                    f"{first_name} {first_move.label} and {name} {move.label}: {subject_kind.shared_move_reason}",
                    "Give both the same, or take one of them out.")
            if subject_name not in moves_by_subject or name == subject_name:
                moves_by_subject[subject_name] = (name, move)
        return moves_by_subject

    def _warn_of_shared_moves(self, move_class: type[Move], names: Sequence[str],
                              moves_by_subject: Mapping[str, tuple[str, Move]]) -> None:
        """Adds a warning about layers that get a move although the file does not name them, because their fusion group
        gets it."""
        named_names = set(names)
        moved_names = {
            name: other_names
            for subject, (name, _) in moves_by_subject.items()
            if (other_names := [
                member_name for member_name in move_class.subject_kind.list_names_of_subject(self.network, subject)
                if member_name not in named_names
            ])
        }
        if moved_names:
            texts = "; ".join(f"{name} includes {name_list_text(other_names)}"
                              for name, other_names in list(moved_names.items())[:_MAX_NAMED])
            more = f"; {len(moved_names) - _MAX_NAMED} more do" if len(moved_names) > _MAX_NAMED else ""
            self.warnings.append(
                f"{self.file}: a {MOVE_TEXTS[move_class.kind].column} applies to the whole "
                f"{move_class.subject_kind.subject_noun}: {texts}{more}.")


def _find_similar_names(unknown_names: Sequence[str], known_names: Sequence[str]) -> list[str]:
    matches = (difflib.get_close_matches(name, known_names, 1, 0.6) for name in unknown_names[:_MAX_NAMED])
    return list(dict.fromkeys(match[0] for match in matches if match))
