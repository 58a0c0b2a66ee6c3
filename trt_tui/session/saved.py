"""Sessions on disk: the config history by network, so that opening it again goes on from there.

A session is one JSON file in the user's state folder, named after the network's structure. The program that writes it
holds a lock on it. Another one that opens the same network meanwhile starts from a copy and writes a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.entries import UnknownKindError, decoded, encoded
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import FLOATS, OFFERED, Precision
from trt_tui.errors import InputError
from trt_tui.files.damaged import set_aside
from trt_tui.files.folders import make_private
from trt_tui.files.reading import TEXT_BYTES, read_bytes
from trt_tui.files.writing import write_atomic
from trt_tui.session.history import ConfigNames, History, Note

FORMAT = "trt-tui/session"
VERSION = 2
MOST_SESSIONS = 100
"""Sessions of one structure that are saved apart."""
HISTORY_LIMIT = 100
"""Undo steps, redo steps and named configs that are kept, each."""


class StoredConfig(msgspec.Struct, omit_defaults=True):
    """One precision config as the session file holds it.

    Attributes:
        groups: Where version 1 has the precisions, by target; empty since, as `moves` has them.
        ranges: The same of ranges.
    """

    quantized: Precision
    other: Precision
    tf32: bool = False
    moves: list[dict[str, Any]] = []
    name: str = ""
    comment: str = ""
    pinned: bool = False
    groups: dict[str, dict[str, Any]] = {}
    ranges: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, config: PrecisionConfig, name: str = "", note: Note | None = None) -> StoredConfig:
        """A config to be stored; only configs that are listed have names and notes."""
        moves = [{"target": target, **encoded(move)} for (_, target), move in config.moves.items()]
        note = note or Note()
        return cls(config.quantized, config.other, config.tf32, moves, name, note.comment, note.pinned)

    def config(self) -> PrecisionConfig:
        """The config.

        Raises:
            UnknownKindError: it has a move of a kind that is not known.
            ValueError: a move is damaged.
        """
        entries = [*({"target": target, **entry, "kind": Choice.kind} for target, entry in self.groups.items()),
                   *({"target": target, **entry, "kind": RangeChoice.kind} for target, entry in self.ranges.items()),
                   *self.moves]
        moves = [(msgspec.convert(entry.get("target"), str), decoded(entry)) for entry in entries]
        return PrecisionConfig(self.quantized, self.other, self.tf32,
                               {(move.kind, target): move for target, move in moves})


class _Head(msgspec.Struct):
    """What tells a session file from others."""

    format: str
    version: int


class Saved(msgspec.Struct):
    """A saved session; ``sha256`` is of the weights that its ranges were measured on, "" where that is not known."""

    format: str
    version: int
    network: str
    past: list[StoredConfig]
    current: StoredConfig
    future: list[StoredConfig]
    named_configs: list[StoredConfig]
    target: str = ""
    note: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, outline: Outline, history: History, names: ConfigNames, target: str,
           sha256: str = "") -> Saved:
        """A session to be saved, no more of it than `HISTORY_LIMIT` allows."""
        past, current, future = history.snapshot()
        return cls(FORMAT, VERSION, os.path.realpath(outline.path), [StoredConfig.of(c) for c in past[-HISTORY_LIMIT:]],
                   StoredConfig.of(current), [StoredConfig.of(c) for c in future[-HISTORY_LIMIT:]],
                   [StoredConfig.of(c, name, names.notes.get(c)) for place, (c, name) in enumerate(names.items())
                    if place >= len(names) - HISTORY_LIMIT or names.notes.get(c, Note()).pinned], target,
                   sha256=sha256)

    def history(self) -> History:
        """The configs with undo and redo."""
        return History.restored([c.config() for c in self.past], self.current.config(),
                                [c.config() for c in self.future])

    def names(self) -> ConfigNames:
        """The configs that have names, with their notes."""
        stored = [(one.config(), one) for one in self.named_configs]
        return ConfigNames(((config, one.name) for config, one in stored),
                           {config: Note(one.comment, one.pinned) for config, one in stored
                            if one.comment or one.pinned})

    def configs(self) -> list[PrecisionConfig]:
        """All of its configs.

        Raises:
            UnknownKindError: one has a move of a kind that is not known.
            ValueError: a move is damaged.
        """
        return [one.config() for one in (*self.past, self.current, *self.future, *self.named_configs)]

    def misfit(self, network: Outline) -> str:
        """Why its configs cannot be ones of a network, "" if they can."""
        for config in self.configs():
            file = (Precision.FILE,) if network.has_own_precisions else ()
            if config.quantized not in (*OFFERED, *file) or config.other not in (*FLOATS, *file):
                return f"a config's default is {config.quantized.label} and {config.other.label}"
            for (_, target), move in config.moves.items():
                if not move.subject.has(network, target) or move.subject.target(network, target) != target:
                    return f"the network has no {move.subject.whole} {target}"
                if refused := move.refused(network, target):
                    return f"{target} cannot {move.infinitive}: {refused}"
        return ""


class SavedSessions:
    """The folder of saved sessions.

    Args:
        folder: Where; the user's state folder by default.
        wanted: The name of the session to resume; "" for the newest of the network.

    Attributes:
        name: The name of the session that this program writes or wrote last; "" if it wrote none.
        lost: What could not be restored when a session was loaded, a sentence each.
    """

    def __init__(self, folder: Path | None = None, wanted: str = "") -> None:
        self.wanted, self.name = wanted, ""
        self.folder = folder or Path(platformdirs.user_state_dir("trt-tui")) / "sessions"
        self.lost: list[str] = []
        self._path: Path | None = None
        self._others: list[tuple[int, Path, Saved]] = []
        self._lock: FileLock | None = None

    def load(self, structure: str, network: str, outline: Outline | None = None) -> Saved | None:
        """The newest saved session of a structure, of the network file itself where there is one, whatever path leads
        to it.

        Its file is then this program's to write, unless another program or another network file has it. A file of
        another version, or one that does not fit ``outline``, stays as it is; a damaged one is kept under another
        name. `lost` says so.
        """
        self.lost = []
        found: list[tuple[bool, int, Path, Saved]] = []
        for path in self.folder.glob(f"{_base(structure)}*.json"):
            try:
                changed = path.stat().st_mtime_ns
                saved = _read(path)
            except (OSError, InputError) as error:
                self._lose(path, getattr(error, "cause", "") or str(error))
                continue
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
                self.lost.append(_set_aside(path, error))
                continue
            if isinstance(saved, str):
                self._lose(path, saved)
            elif outline is not None and (misfit := saved.misfit(outline)):
                self._lose(path, misfit)
            else:
                found.append((_one_file(saved.network, network), changed, path, saved))
        if not found:
            return None
        same, _, path, saved = max(found, key=lambda one: (one[2].stem == self.wanted, *one[:2]))
        saved.note = ""
        if not same:
            saved.note = f"The session resumed is the one of {saved.network}, which has the same structure."
            self._others = [one[1:] for one in found]
        elif not self._take(path):
            saved.note = "This network is open in another terminal too; the two sessions are saved apart."
        return saved

    def adopt(self, sha256: str) -> Saved | None:
        """Goes on in the newest session of a network of another path that has the same content, where `load` found no
        session of this path.

        Args:
            sha256: Of the network with its weights.

        Returns:
            That session; None where there is none, another program has it, or this one has begun one of its own.
        """
        fitting = sorted((one for one in self._others if one[2].sha256 == sha256), key=lambda one: -one[0])
        if self._path is not None:
            return None
        return next((saved for _, path, saved in fitting if self._take(path)), None)

    def save(self, structure: str, saved: Saved) -> None:
        """Writes the session; the work goes on even if the disk is full or read-only."""
        if self._path is None:
            any(self._take(path) for path in self._places(structure) if not path.exists())
        if self._path is not None:
            with contextlib.suppress(InputError):
                write_atomic(self._path, _encoded(saved), private=True)

    def _lose(self, path: Path, cause: str) -> None:
        self.lost.append(f"The session saved in {path} cannot be taken up and is left as it is: {cause}.")

    def release(self) -> None:
        """Lets other programs write the session."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._path = None

    def _places(self, structure: str) -> list[Path]:
        names = [_base(structure), *(f"{_base(structure)}-{number}" for number in range(2, MOST_SESSIONS))]
        return [self.folder / f"{name}.json" for name in names]

    def _take(self, path: Path) -> bool:
        """Locks a session file for this program; False if another one has it, or none can be written here."""
        # The lock is taken in one thread and let go in another.
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            make_private(self.folder)
            lock.acquire(blocking=False)
        except (OSError, Timeout):
            return False
        self.release()
        self._lock, self._path, self.name = lock, path, path.stem
        return True


def _one_file(one: str, other: str) -> bool:
    """Whether two paths lead to one file."""
    with contextlib.suppress(OSError, ValueError):  # a path with half a character is a ValueError
        return one == other or os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    return False


def _read(path: Path) -> Saved | str:
    """The session in a file, or in words which other version it is of, or what it has that is not known.

    Raises:
        InputError: it cannot be read.
        ValueError: it is damaged.
        RecursionError: it is, with very deep nesting.
    """
    data = read_bytes(path, TEXT_BYTES)
    try:
        record = msgspec.json.decode(data)
    except msgspec.DecodeError:
        record = json.loads(data)  # takes lone surrogates, which names of broken UTF-8 hold, and msgspec does not
    head = msgspec.convert(record, _Head)
    if head.format != FORMAT or head.version not in (1, VERSION):
        return f"it is version {head.version} of {head.format}"
    saved = msgspec.convert(record, Saved)
    try:
        saved.configs()
    except UnknownKindError as error:
        return str(error)
    return saved


def _encoded(saved: Saved) -> bytes:
    try:
        return msgspec.json.encode(saved)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(saved)).encode("ascii")


def _set_aside(path: Path, error: Exception) -> str:
    """Renames a damaged session, so that it is neither read nor written again; says so."""
    said = f"The session saved in {path} is damaged and cannot be taken up"
    kept = set_aside(path)
    return f"{said}; it is kept as {kept.name}: {error}." if kept is not None else f"{said}: {error}."


def _base(structure: str) -> str:
    return structure[:20]
