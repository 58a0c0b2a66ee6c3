"""The saved sessions in the user's state folder, by network, and the thread that writes them."""

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
"""The maximum number of separate saved sessions for one network structure."""

MAX_STORED_CONFIGS = 100
"""The maximum number of stored undo steps, redo steps and named configs, each."""


class StoredConfig(msgspec.Struct, omit_defaults=True):
    """One precision config in the file of a saved session.

    A session is one JSON file in the user's state folder, named after the structure of the network. The program that
    writes the file holds a lock on it. If another program opens the same network meanwhile, it starts from a copy and
    writes a separate file.

    Attributes:
        groups: Precisions by group in version 1; empty in later versions, which use `moves`.
        ranges: Ranges by tensor in version 1; empty in later versions.
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
        """Builds the stored form of a config. Only listed configs have names and notes."""
        moves = [{"target": subject, **encode_move(move)} for (_, subject), move in config.moves.items()]
        note = note or ConfigNote()
        return cls(config.quantized, config.other, config.tf32, moves, name, note.comment, note.pinned)

    def to_precision_config(self) -> PrecisionConfig:
        """Returns the config.

        Raises:
            UnknownMoveKindError: A move has an unknown kind.
            ValueError: A move is damaged.
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
    """The entries that identify a file as a saved session."""

    format: str
    version: int


class SavedSession(msgspec.Struct):
    """A saved session: the history of configs, their names and notes, the target, and the GPU of previews.

    Attributes:
        sha256: The hash of the weights behind the ranges; "" if unknown.
        preview_gpu: The compute capability of previews, as (major, minor); None for the default.
    """

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
    preview_gpu: tuple[int, int] | None = None

    @classmethod
    def from_state(cls, outline: NetworkOutline, history: ConfigHistory, config_names: ConfigNames, target: str,
                   sha256: str = "", preview_gpu: tuple[int, int] | None = None) -> SavedSession:
        """Builds a saved session with at most `MAX_STORED_CONFIGS` configs of each kind. Pinned configs are always
        stored."""
        past, current, future = history.snapshot()
        return cls(FORMAT, VERSION, os.path.realpath(outline.path),
                   [StoredConfig.from_precision_config(config) for config in past[-MAX_STORED_CONFIGS:]],
                   StoredConfig.from_precision_config(current),
                   [StoredConfig.from_precision_config(config) for config in future[-MAX_STORED_CONFIGS:]], [
                       StoredConfig.from_precision_config(config, name, config_names.notes.get(config))
                       for index, (config, name) in enumerate(config_names.items())
                       if index >= len(config_names)
                       - MAX_STORED_CONFIGS or config_names.notes.get(config, ConfigNote()).pinned
                   ], target, sha256=sha256, preview_gpu=preview_gpu)

    def to_config_history(self) -> ConfigHistory:
        return ConfigHistory.from_snapshot([stored_config.to_precision_config() for stored_config in self.past],
                                           self.current.to_precision_config(),
                                           [stored_config.to_precision_config() for stored_config in self.future])

    def to_config_names(self) -> ConfigNames:
        """Returns the names and notes of the configs in the saved session."""
        stored = [(stored_config.to_precision_config(), stored_config) for stored_config in self.named_configs]
        return ConfigNames(
            ((config, stored_config.name) for config, stored_config in stored), {
                config: ConfigNote(stored_config.comment, stored_config.pinned)
                for config, stored_config in stored
                if stored_config.comment or stored_config.pinned
            })

    def list_configs(self) -> list[PrecisionConfig]:
        """Returns all configs of the saved session.

        Raises:
            UnknownMoveKindError: A move has an unknown kind.
            ValueError: A move is damaged.
        """
        return [
            stored_config.to_precision_config()
            for stored_config in (*self.past, self.current, *self.future, *self.named_configs)
        ]

    def network_mismatch_reason(self, network: NetworkOutline) -> str:
        """Returns the reason why the configs of the saved session do not fit a network; "" if they do."""
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
        folder: The folder; None for the user's state folder.
        requested_name: The name of the session to resume; "" for the newest session of the network.

    Attributes:
        name: The name of the session that this program wrote last; "" if it wrote none.
        load_failures: The sessions that could not be loaded, with the reason, one sentence each.
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
        """Returns the newest saved session of a network structure; None if there is none.

        A session of the same network file is preferred, whatever path leads to the file. This program then writes the
        session's file, unless another program has locked it or it belongs to another network file.

        A file of another version, or a file that does not fit ``outline``, is left unchanged. A damaged file is kept
        under another name. Both are listed in `load_failures`.
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
            except (ValueError, RecursionError) as error:  # the errors of msgspec are ValueErrors
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
        """Continues the newest session of a network with the same content under another path.

        Only used if `load_session` found no session of this path.

        Args:
            network_sha256: The hash of the network with its weights.

        Returns:
            The session. None if there is none, if another program has locked it, or if this program already writes
                another.
        """
        matching = sorted(
            (session_entry for session_entry in self._other_sessions if session_entry[2].sha256 == network_sha256),
            key=lambda item: -item[0])
        if self._path is not None:
            return None
        return next((saved for _, path, saved in matching if self._lock_session_file(path)), None)

    def save_session(self, structure_hash: str, saved_session: SavedSession) -> None:
        """Writes the session to its file. A full or read-only disk is ignored, so that the work can go on."""
        if self._path is None:
            any(self._lock_session_file(path) for path in self._list_session_paths(structure_hash) if not path.exists())
        if self._path is not None:
            with contextlib.suppress(InputError):
                write_file_atomically(self._path, _encode_session(saved_session), is_private=True)

    def _record_load_failure(self, path: Path, cause: str) -> None:
        self.load_failures.append(f"The session saved in {path} cannot be loaded and is left as it is: {cause}.")

    def release_session_lock(self) -> None:
        """Releases the lock, so that other programs can write the session."""
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
        """Locks a session file for this program. Returns False if another program has locked it, or the folder is not
        writable."""
        # The lock is acquired in one thread and released in another.
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
    """Returns True if two paths lead to the same file."""
    with contextlib.suppress(OSError, ValueError):  # a path with half a character raises ValueError
        return first_path == second_path or os.path.realpath(first_path) == os.path.realpath(
            second_path) or os.path.samefile(first_path, second_path)
    return False


def _read_session_file(path: Path) -> SavedSession | str:
    """Returns the saved session in a file, or the reason why this version of the program cannot use it.

    Raises:
        InputError: The file cannot be read.
        ValueError: The file is damaged.
        RecursionError: The file is nested too deeply.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        record = msgspec.json.decode(data)
    except msgspec.DecodeError:
        record = json.loads(data)  # accepts lone surrogates (of names in broken UTF-8), unlike msgspec
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
    """Renames a damaged session file, so that it is neither read nor written again. Returns a message about it."""
    message = f"The session saved in {path} is damaged and cannot be loaded"
    kept_path = rename_damaged_file(path)
    return f"{message}; it is kept as {kept_path.name}: {error}." if kept_path is not None else f"{message}: {error}."


def _session_file_stem(structure_hash: str) -> str:
    return structure_hash[:20]


class SessionWriter:
    """The thread that writes saved sessions in the order of their requests. Of several waiting sessions only the newest
    is written.

    The thread lives while there is something to write, and Python does not exit before it has finished. Only a kill
    loses a session that waits to be written.

    Args:
        session_folder: The folder of saved sessions.
    """

    def __init__(self, session_folder: SessionFolder) -> None:
        self._session_folder = session_folder
        self._lock = threading.Lock()
        self._pending: tuple[str, Callable[[], SavedSession]] | None = None
        self._thread: threading.Thread | None = None
        self._defect: Exception | None = None

    def save_session(self, structure_hash: str, make_saved_session: Callable[[], SavedSession]) -> None:
        """Requests that a session is written by the thread.

        Args:
            make_saved_session: Builds the session. It is called in the thread, so it must not read shared state.

        Raises:
            Exception: The error of the previous write.
        """
        with self._lock:
            self._pending = (structure_hash, make_saved_session)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_pending_sessions, name="saving")
                self._thread.start()
        self._raise_write_error()

    def flush(self) -> None:
        """Waits until all requested sessions are on disk. Raises the errors of `save_session`."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._raise_write_error()

    def close(self) -> None:
        """Writes all waiting sessions and releases the lock of the session file."""
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
