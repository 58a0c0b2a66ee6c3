"""Moves of a file, made on a network: names found, what cannot be refused, several for one target brought together."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.entries import UnknownKindError, decoded, nonsense, shaped
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.moves.move import Move, Subject
from trt_tui.core.network.layers import Outline
from trt_tui.errors import InputError
from trt_tui.words import first_few

_NAMED = 5


@dataclass(frozen=True)
class Named:
    """A move as a file has it.

    Attributes:
        where: Its place in the file.
        names: What the file names for it.
        unknown: Entries of it that no move of its kind has.
    """

    where: str
    move: Move
    names: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A move in a file, unread.

    Attributes:
        where: Its place in the file.
        given: What the version of the file says of it by its place alone.
        entry: What stands there.
    """

    where: str
    given: Mapping[str, Any]
    entry: Any

    def read(self, file: str) -> Named:
        """The move.

        Raises:
            InputError: it is of no known kind, or not of the shape that this has.
        """
        record = {**shaped(self.entry, dict[str, Any], file, self.where), **self.given}
        try:
            move = decoded(record)
        except UnknownKindError as error:
            raise InputError(f"{file}: {self.where} is no move that can be made here", str(error),
                             "Update trt-tui, or take the move out of the file.") from None
        except msgspec.ValidationError as error:
            raise nonsense(error, record, KINDS[record["kind"]], file, self.where) from None
        key = move.subject.key
        names = shaped(record.get(key), list[str], file, f"{self.where}.{key}")
        fields = {one.name for one in dataclasses.fields(type(move))} | {"kind", key}
        return Named(self.where, move, tuple(names), tuple(entry for entry in record if entry not in fields))


class Placing:
    """Makes the moves of a file on a network.

    Args:
        file: The name of the file, for what is said.
        moves: Its moves, in its order.

    Attributes:
        lenient: Whether what does not fit is ignored with a warning, and not refused.
        warnings: What was ignored and what to mind, one sentence each.
    """

    def __init__(self, file: str, network: Outline, moves: Sequence[Named]) -> None:
        self.file = file
        self.network = network
        self.moves = list(moves)
        self.lenient = False
        self.warnings = [f"{file}: {one.where}: unknown entry {entry!r} is ignored."
                         for one in moves for entry in one.unknown]

    def unknown(self, subject: Subject) -> list[str]:
        """The names for moves on a subject that the network lacks."""
        return [name for one in self.moves if one.move.subject is subject for name in one.names
                if not subject.has(self.network, name)]

    def check_names(self, subject: Subject, names: Iterable[str], what: str) -> None:
        """Refuses names that the network lacks, or warns of them.

        Args:
            what: Which part of the file has them, with its verb: "calibration.ranges names".

        Raises:
            InputError: there are some, and this is not lenient.
        """
        unknown = [name for name in names if not subject.has(self.network, name)]
        if not unknown:
            return
        if not self.lenient:
            near = _near(unknown, subject.known(self.network))
            raise InputError(f"{self.file}: {what} {subject.noun}s that {self.network.name} does not have",
                             first_few(unknown), f"Did you mean {', '.join(near)}?" if near else
                             "Check the names; trt-tui inspect lists them.")
        self.warnings.append(f"{self.file}: {what} {subject.noun}s that are not in this network, ignored: "
                             f"{first_few(unknown)}.")

    def made(self, config: PrecisionConfig) -> PrecisionConfig:
        """The config with the moves made.

        Raises:
            InputError: a name is not one of the network or cannot have its move, or two moves contradict each other.
        """
        for kind in KINDS.values():
            mine = [one for one in self.moves if type(one.move) is kind]
            named = [name for one in mine for name in one.names]
            self.check_names(kind.subject, named, f"a move of kind {kind.kind!r} names")
            chosen = self._chosen(kind, mine)
            self._tell_of_groups(kind, named, chosen)
            config = config.with_moves({target: chosen[target][1]
                                        for target in kind.subject.ordered(self.network, chosen)})
        for target, kept in config.of(Keep).items():
            other = config.groups.get(target)
            if other is not None and other.precision is not kept.precision:
                raise InputError(f"{self.file}: {target} has two precisions", f"it is kept in {kept.label} by "
                                 f"{kept.set_by}, and set to {other.label}", "Take one of them out.")
        return config.without(Choice, config.held)

    def _chosen(self, kind: type[Move], mine: Sequence[Named]) -> dict[str, tuple[str, Move]]:
        """The move on each target, and the name by which the file gives it."""
        subject = kind.subject
        chosen: dict[str, tuple[str, Move]] = {}
        for name, move in ((name, one.move) for one in mine for name in one.names):
            if not subject.has(self.network, name):
                continue
            target = subject.target(self.network, name)
            refused = subject.why_none(self.network, name) if target is None else move.refused(self.network, target)
            if target is None or refused:
                if not self.lenient:
                    raise InputError(f"{self.file}: {name} cannot {move.infinitive}", refused,
                                     "Take it out of the file, or give it what it can have.")
                self.warnings.append(f"{self.file}: ignored, {name} cannot {move.infinitive}: {refused}.")
                continue
            first, before = chosen.get(target, (name, move))
            if before.decides != move.decides:
                raise InputError(
                    f"{self.file} gives one {subject.whole} two {kind.column}s",
                    f"{first} {before.label} and {name} {move.label}: {subject.why_one}",
                    "Give both the same, or take one of them out.")
            if target not in chosen or name == target:
                chosen[target] = (name, move)
        return chosen

    def _tell_of_groups(self, kind: type[Move], named: Sequence[str], chosen: Mapping[str, tuple[str, Move]]) -> None:
        """Says which names take a move that the file does not give them, since they are of one target."""
        given = set(named)
        moved = {name: rest for target, (name, _) in chosen.items()
                 if (rest := [one for one in kind.subject.names(self.network, target) if one not in given])}
        if moved:
            told = "; ".join(f"{name} takes {first_few(rest)} with it" for name, rest in list(moved.items())[:_NAMED])
            more = f"; {len(moved) - _NAMED} more do" if len(moved) > _NAMED else ""
            self.warnings.append(f"{self.file}: a {kind.column} is one of the whole {kind.subject.whole}: "
                                 f"{told}{more}.")


def _near(unknown: Sequence[str], known: Sequence[str]) -> list[str]:
    near = (difflib.get_close_matches(name, known, 1, 0.6) for name in unknown[:_NAMED])
    return list(dict.fromkeys(match[0] for match in near if match))
