"""The saved sessions in the user's state folder, by network, and the thread that writes them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from trt_tui.core.data.input_files import FileStamp, read_file_stamp
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.files.writing import make_private_folder, rename_damaged_file, write_file_atomically
from trt_tui.session.saved_sessions import SavedSession, encode_session, read_session_file

MAX_SESSIONS = 100
"""The maximum number of separate saved sessions for one network structure."""


@dataclass(frozen=True)
class SessionEntry:
    """A saved session in the list of the sessions of a network.

    Attributes:
        name: The name of the session, which ``--session`` takes.
        modified_time: The Unix time at which it was saved last.
        is_own: True for the session that this program writes.
    """

    name: str
    modified_time: float
    saved_session: SavedSession
    is_own: bool = False


@dataclass(frozen=True)
class _SessionFile:
    """A session file that was read: its content, and its version on disk before the reading."""

    path: Path
    modified_ns: int
    version: FileStamp | None
    saved_session: SavedSession


class SessionFolder:
    """The folder of saved sessions.

    A session file is written by the program that holds its lock, which the system releases when the program ends in
    whatever way. A second program on the same network writes a new session. A file that another program has changed
    nevertheless is never overwritten: the session then goes on in a new file.

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
        self._version: FileStamp | None = None
        self._other_sessions: list[_SessionFile] = []
        self._lock: FileLock | None = None

    def load_session(self, structure_hash: str, network_path: str,
                     outline: NetworkOutline | None = None) -> SavedSession | None:
        """Returns the newest saved session of a network structure; None if there is none.

        A session of the same network file is preferred, whatever path leads to the file. This program then writes the
        session's file, unless another program has locked it or it belongs to another network file.

        A file of another version, or a file that does not fit ``outline``, is left unchanged. A damaged file is kept
        under another name. Both are listed in `load_failures`.
        """
        files = self._read_session_files(structure_hash, outline)
        if self.requested_name and all(file.path.stem != self.requested_name for file in files):
            newest_text = "the newest one is resumed" if files else "none is resumed"
            self.load_failures.append(f"This network has no saved session {self.requested_name}: {newest_text}.")
        if not files:
            return None
        file = max(files, key=lambda entry: (entry.path.stem == self.requested_name,
                                             _is_same_file(entry.saved_session.network, network_path),
                                             entry.modified_ns))
        saved = file.saved_session
        saved.note = ""
        if not _is_same_file(saved.network, network_path):
            saved.note = f"The session resumed is the one of {saved.network}, which has the same structure."
            self._other_sessions = files
        else:
            saved.note = self._lock_session_file(file.path, file.version) or ""
        return saved

    def _read_session_files(self, structure_hash: str, outline: NetworkOutline | None) -> list[_SessionFile]:
        """Returns the sessions of a network structure that fit the network. Others go to `load_failures`."""
        self.load_failures = []
        files = []
        for path in self.folder.glob(f"{_session_file_stem(structure_hash)}*.json"):
            try:
                modified_ns, version = path.stat().st_mtime_ns, read_file_stamp(path)
                saved = read_session_file(path)
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
                files.append(_SessionFile(path, modified_ns, version, saved))
        return files

    def load_session_by_content(self, network_sha256: str) -> SavedSession | None:
        """Continues the newest session of a network with the same content under another path.

        Only used if `load_session` found no session of this path.

        Args:
            network_sha256: The hash of the network with its weights.

        Returns:
            The session. None if there is none, if another program has locked it, or if this program already writes
                another.
        """
        matching = sorted((file for file in self._other_sessions if file.saved_session.sha256 == network_sha256),
                          key=lambda file: -file.modified_ns)
        if self._path is not None:
            return None
        return next((file.saved_session for file in matching
                     if self._lock_session_file(file.path, file.version) is None), None)

    def list_sessions(self, structure_hash: str, network_path: str, network_sha256: str,
                      outline: NetworkOutline) -> list[SessionEntry]:
        """Returns the saved sessions of a network file, or of files with the same content, the newest first."""
        files = [file for file in self._read_session_files(structure_hash, outline)
                 if _is_same_file(file.saved_session.network, network_path)
                 or network_sha256 and file.saved_session.sha256 == network_sha256]
        return [SessionEntry(file.path.stem, file.modified_ns / 1e9, file.saved_session, file.path == self._path)
                for file in sorted(files, key=lambda file: -file.modified_ns)]

    def open_session(self, name: str, structure_hash: str, network_path: str, outline: NetworkOutline) -> SavedSession:
        """Returns a saved session that this program goes on with, in place of the session that it wrote until now.

        If another program has the session open, this program goes on with a copy in a new file.

        Raises:
            InputError: The session is gone, damaged or does not fit the network.
        """
        files = self._read_session_files(structure_hash, outline)
        file = next((file for file in files if file.path.stem == name), None)
        if file is None:
            raise InputError(f"the session {name} cannot be opened",
                             next(iter(self.load_failures), "the file is gone"), "Choose another session.")
        if (reason := self._lock_session_file(file.path, file.version)) is not None:
            file.saved_session.note = reason
            self.release_session_lock()
            self._lock_unused_file(structure_hash)
        return file.saved_session

    def delete_session(self, name: str) -> None:
        """Deletes a saved session.

        Raises:
            InputError: It is the session of this program, another program has it open, or the file cannot be removed.
        """
        path = self.folder / f"{name}.json"
        title = f"the session {name} cannot be deleted"
        if path == self._path:
            raise InputError(title, "it is the current session", "Open another one first.")
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            with lock.acquire(blocking=False):
                path.unlink(missing_ok=True)
        except Timeout:
            raise InputError(title, "it is open in another terminal", "Close it there first.") from None
        except OSError as error:
            raise InputError(title, error.strerror or str(error), "Change the permissions of its folder.") from None

    def save_session(self, structure_hash: str, saved_session: SavedSession) -> None:
        """Writes the session to its file. A full or read-only disk is ignored, so that the work can go on."""
        if self._path is None or read_file_stamp(self._path) not in (self._version, None):
            self._lock_unused_file(structure_hash)
        if self._path is not None:
            with contextlib.suppress(InputError):
                write_file_atomically(self._path, encode_session(saved_session), is_private=True)
                self._version = read_file_stamp(self._path)

    def _record_load_failure(self, path: Path, cause: str) -> None:
        self.load_failures.append(f"The session saved in {path} cannot be loaded and is left as it is: {cause}.")

    def release_session_lock(self) -> None:
        """Releases the lock, so that other programs can write the session."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._path = None

    def _lock_unused_file(self, structure_hash: str) -> None:
        """Locks the first session file that does not exist and that no other program has locked."""
        any(self._lock_session_file(path, None) is None for path in self._list_session_paths(structure_hash)
            if not path.exists())

    def _list_session_paths(self, structure_hash: str) -> list[Path]:
        names = [
            _session_file_stem(structure_hash),
            *(f"{_session_file_stem(structure_hash)}-{number}" for number in range(2, MAX_SESSIONS))
        ]
        return [self.folder / f"{name}.json" for name in names]

    def _lock_session_file(self, path: Path, version: FileStamp | None) -> str | None:
        """Locks a session file for this program.

        Args:
            version: The version of the file that was read. If it is another one later, the file is not overwritten.

        Returns:
            None if this program can write the file; "" if another program has it open; else the reason.
        """
        if path == self._path:
            self._version = version
            return None
        # The lock is acquired in one thread and released in another.
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            make_private_folder(self.folder)
            lock.acquire(blocking=False)
        except Timeout:
            return ""
        except OSError as error:
            return f"Sessions cannot be saved in {self.folder}: {error.strerror or error}."
        self.release_session_lock()
        self._lock, self._path, self._version, self.name = lock, path, version, path.stem
        return None


def _is_same_file(first_path: str, second_path: str) -> bool:
    """Returns True if two paths lead to the same file."""
    with contextlib.suppress(OSError, ValueError):  # a path with half a character raises ValueError
        return first_path == second_path or os.path.realpath(first_path) == os.path.realpath(
            second_path) or os.path.samefile(first_path, second_path)
    return False


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
