"""Sessions on disk, by network, and the thread that writes them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move_entries import UnknownMoveKindError, decode_move, encode_move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import ASSIGNABLE, FLOAT_PRECISIONS, Precision
from trt_tui.errors import InputError
from trt_tui.files.damaged_files import rename_damaged_file
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.files.writing import make_private_folder, write_file_atomically
from trt_tui.session.history import ConfigHistory, ConfigNames, ConfigNote

FORMAT = "trt-tui/session"
VERSION = 2
MAX_SESSIONS = 100
"""Sessions of one structure that are saved apart."""

MAX_STORED_CONFIGS = 100
"""Undo steps, redo steps and named configs that are kept, each."""


class StoredConfig(msgspec.Struct, omit_defaults=True):
    """One precision config as the session file holds it.

    A session is one JSON file in the user's state folder, named after the network's structure. The program that writes
    it holds a lock on it. Another one that opens the same network meanwhile starts from a copy and writes a file of its
    own.

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
    def from_precision_config(cls, config: PrecisionConfig, name: str = "",
                              note: ConfigNote | None = None) -> StoredConfig:
        """A config to be stored; only configs that are listed have names and notes."""
        moves = [{"target": subject, **encode_move(move)} for (_, subject), move in config.moves.items()]
        note = note or ConfigNote()
        return cls(config.quantized, config.other, config.tf32, moves, name, note.comment, note.pinned)

    def to_precision_config(self) -> PrecisionConfig:
        """The config.

        Raises:
            UnknownKindError: it has a move of a kind that is not known.
            ValueError: a move is damaged.
        """
        entries = [
            *({"target": subject, **entry, "kind": PrecisionMove.kind} for subject, entry in self.groups.items()),
            *({"target": subject, **entry, "kind": RangeMove.kind} for subject, entry in self.ranges.items()),
            *self.moves
        ]
        moves = [(msgspec.convert(entry.get("target"), str), decode_move(entry)) for entry in entries]
        return PrecisionConfig(self.quantized, self.other, self.tf32,
                               {(move.kind, subject): move for subject, move in moves})


class _SessionFileHeader(msgspec.Struct):
    """What tells a session file from others."""

    format: str
    version: int


class SavedSession(msgspec.Struct):
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
    def from_state(cls, outline: NetworkOutline, history: ConfigHistory, config_names: ConfigNames, target: str,
                   sha256: str = "") -> SavedSession:
        """A session to be saved, no more of it than `MAX_STORED_CONFIGS` allows."""
        past, current, future = history.snapshot()
        return cls(FORMAT, VERSION, os.path.realpath(outline.path),
                   [StoredConfig.from_precision_config(config) for config in past[-MAX_STORED_CONFIGS:]],
                   StoredConfig.from_precision_config(current),
                   [StoredConfig.from_precision_config(config) for config in future[-MAX_STORED_CONFIGS:]], [
                       StoredConfig.from_precision_config(config, name, config_names.notes.get(config))
                       for index, (config, name) in enumerate(config_names.items())
                       if index >= len(config_names)
                       - MAX_STORED_CONFIGS or config_names.notes.get(config, ConfigNote()).pinned
                   ], target, sha256=sha256)

    def to_config_history(self) -> ConfigHistory:
        """The configs with undo and redo."""
        return ConfigHistory.from_snapshot([stored_config.to_precision_config() for stored_config in self.past],
                                           self.current.to_precision_config(),
                                           [stored_config.to_precision_config() for stored_config in self.future])

    def to_config_names(self) -> ConfigNames:
        """The configs that have names, with their notes."""
        stored = [(stored_config.to_precision_config(), stored_config) for stored_config in self.named_configs]
        return ConfigNames(
            ((config, stored_config.name) for config, stored_config in stored), {
                config: ConfigNote(stored_config.comment, stored_config.pinned)
                for config, stored_config in stored
                if stored_config.comment or stored_config.pinned
            })

    def list_configs(self) -> list[PrecisionConfig]:
        """All of its configs.

        Raises:
            UnknownKindError: one has a move of a kind that is not known.
            ValueError: a move is damaged.
        """
        return [
            stored_config.to_precision_config()
            for stored_config in (*self.past, self.current, *self.future, *self.named_configs)
        ]

    def network_mismatch_reason(self, network: NetworkOutline) -> str:
        """Why its configs cannot be ones of a network, "" if they can."""
        for config in self.list_configs():
            file = (Precision.FILE,) if network.has_file_precision else ()
            if config.quantized not in (*ASSIGNABLE, *file) or config.other not in (*FLOAT_PRECISIONS, *file):
                return f"a config's default is {config.quantized.label} and {config.other.label}"
            for (_, subject), move in config.moves.items():
                if not move.subject_kind.has_subject_name(network, subject) or move.subject_kind.find_move_subject(
                        network, subject) != subject:
                    return f"the network has no {move.subject_kind.subject_noun} {subject}"
                if refusal := move.refusal_reason(network, subject):
                    return f"{subject} cannot {move.action_text}: {refusal}"
        return ""


class SessionFolder:
    """The folder of saved sessions.

    Args:
        folder: Where; the user's state folder by default.
        requested_name: The name of the session to resume; "" for the newest of the network.

    Attributes:
        name: The name of the session that this program writes or wrote last; "" if it wrote none.
        load_failures: What could not be restored when a session was loaded, a sentence each.
    """

    def __init__(self, folder: Path | None = None, requested_name: str = "") -> None:
        self.requested_name, self.name = requested_name, ""
        self.folder = folder or Path(platformdirs.user_state_dir("trt-tui")) / "sessions"
        self.load_failures: list[str] = []
        self._path: Path | None = None
        self._other_sessions: list[tuple[int, Path, SavedSession]] = []
        self._lock: FileLock | None = None

    def load_session(self, structure_hash: str, network_path: str,
                     outline: NetworkOutline | None = None) -> SavedSession | None:
        """The newest saved session of a structure, of the network file itself where there is one, whatever path leads
        to it.

        Its file is then this program's to write, unless another program or another network file has it. A file of
        another version, or one that does not fit ``outline``, stays as it is; a damaged one is kept under another
        name. `load_failures` says so.
        """
        self.load_failures = []
        candidates: list[tuple[bool, int, Path, SavedSession]] = []
        for path in self.folder.glob(f"{_session_file_stem(structure_hash)}*.json"):
            try:
                modified_ns = path.stat().st_mtime_ns
                saved = _read_session_file(path)
            except (OSError, InputError) as error:
                self._record_load_failure(path, getattr(error, "cause", "") or str(error))
                continue
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
                self.load_failures.append(_set_aside_damaged_session(path, error))
                continue
            if isinstance(saved, str):
                self._record_load_failure(path, saved)
            elif outline is not None and (misfit := saved.network_mismatch_reason(outline)):
                self._record_load_failure(path, misfit)
            else:
                candidates.append((_is_same_file(saved.network, network_path), modified_ns, path, saved))
        if not candidates:
            return None
        is_same_network, _, path, saved = max(candidates, key=lambda item:
                                              (item[2].stem == self.requested_name, *item[:2]))
        saved.note = ""
        if not is_same_network:
            saved.note = f"The session resumed is the one of {saved.network}, which has the same structure."
            self._other_sessions = [candidate[1:] for candidate in candidates]
        elif not self._lock_session_file(path):
            saved.note = "This network is open in another terminal too; the two sessions are saved apart."
        return saved

    def load_session_by_content(self, network_sha256: str) -> SavedSession | None:
        """Goes on in the newest session of a network of another path that has the same content, where `load_session`
        found no session of this path.

        Args:
            network_sha256: Of the network with its weights.

        Returns:
            That session; None where there is none, another program has it, or this one has begun one of its own.
        """
        matching = sorted(
            (session_entry for session_entry in self._other_sessions if session_entry[2].sha256 == network_sha256),
            key=lambda item: -item[0])
        if self._path is not None:
            return None
        return next((saved for _, path, saved in matching if self._lock_session_file(path)), None)

    def save_session(self, structure_hash: str, saved_session: SavedSession) -> None:
        """Writes the session; the work goes on even if the disk is full or read-only."""
        if self._path is None:
            any(self._lock_session_file(path) for path in self._list_session_paths(structure_hash) if not path.exists())
        if self._path is not None:
            with contextlib.suppress(InputError):
                write_file_atomically(self._path, _encode_session(saved_session), is_private=True)

    def _record_load_failure(self, path: Path, cause: str) -> None:
        self.load_failures.append(f"The session saved in {path} cannot be loaded and is left as it is: {cause}.")

    def release_session_lock(self) -> None:
        """Lets other programs write the session."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._path = None

    def _list_session_paths(self, structure_hash: str) -> list[Path]:
        names = [
            _session_file_stem(structure_hash),
            *(f"{_session_file_stem(structure_hash)}-{number}" for number in range(2, MAX_SESSIONS))
        ]
        return [self.folder / f"{name}.json" for name in names]

    def _lock_session_file(self, path: Path) -> bool:
        """Locks a session file for this program; False if another one has it, or none can be written here."""
        # The lock is taken in one thread and let go in another.
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            make_private_folder(self.folder)
            lock.acquire(blocking=False)
        except (OSError, Timeout):
            return False
        self.release_session_lock()
        self._lock, self._path, self.name = lock, path, path.stem
        return True


def _is_same_file(first_path: str, second_path: str) -> bool:
    """Whether two paths lead to one file."""
    with contextlib.suppress(OSError, ValueError):  # a path with half a character is a ValueError
        return first_path == second_path or os.path.realpath(first_path) == os.path.realpath(
            second_path) or os.path.samefile(first_path, second_path)
    return False


def _read_session_file(path: Path) -> SavedSession | str:
    """The session in a file, or in words which other version it is of, or what it has that is not known.

    Raises:
        InputError: it cannot be read.
        ValueError: it is damaged.
        RecursionError: it is, with very deep nesting.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        record = msgspec.json.decode(data)
    except msgspec.DecodeError:
        record = json.loads(data)  # takes lone surrogates, which names of broken UTF-8 hold, and msgspec does not
    head = msgspec.convert(record, _SessionFileHeader)
    if head.format != FORMAT or head.version not in (1, VERSION):
        return f"it is version {head.version} of {head.format}"
    saved = msgspec.convert(record, SavedSession)
    try:
        saved.list_configs()
    except UnknownMoveKindError as error:
        return str(error)
    return saved


def _encode_session(saved_session: SavedSession) -> bytes:
    try:
        return msgspec.json.encode(saved_session)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(saved_session)).encode("ascii")


def _set_aside_damaged_session(path: Path, error: Exception) -> str:
    """Renames a damaged session, so that it is neither read nor written again; says so."""
    message = f"The session saved in {path} is damaged and cannot be loaded"
    kept_path = rename_damaged_file(path)
    return f"{message}; it is kept as {kept_path.name}: {error}." if kept_path is not None else f"{message}: {error}."


def _session_file_stem(structure_hash: str) -> str:
    return structure_hash[:20]


class SessionWriter:
    """Writes sessions in the order in which they were given; of several that wait only the newest.

    Its thread lives while there is something to write, and Python does not end before it. Only a kill loses what was
    given.

    Args:
        session_folder: Where sessions are saved.
    """

    def __init__(self, session_folder: SessionFolder) -> None:
        self._session_folder = session_folder
        self._lock = threading.Lock()
        self._pending: tuple[str, Callable[[], SavedSession]] | None = None
        self._thread: threading.Thread | None = None
        self._defect: Exception | None = None

    def save_session(self, structure_hash: str, make_saved_session: Callable[[], SavedSession]) -> None:
        """Has a session of a structure written; ``make_saved_session`` is called in the thread, and so may read no
        state.

        Raises:
            Exception: what the write before it raised.
        """
        with self._lock:
            self._pending = (structure_hash, make_saved_session)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_pending_sessions, name="saving")
                self._thread.start()
        self._raise_write_error()

    def flush(self) -> None:
        """Waits until everything that was given is on disk; raises as `save_session` does."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._raise_write_error()

    def close(self) -> None:
        """Flushes, and lets other programs write the session."""
        try:
            self.flush()
        finally:
            self._session_folder.release_session_lock()

    def _write_pending_sessions(self) -> None:
        while True:
            with self._lock:
                if self._pending is None:
                    self._thread = None
                    return
                (structure_hash, make_saved), self._pending = self._pending, None
            try:
                self._session_folder.save_session(structure_hash, make_saved())
            except Exception as error:
                self._defect = error

    def _raise_write_error(self) -> None:
        defect, self._defect = self._defect, None
        if defect is not None:
            raise defect
