"""Saving in a thread, since syncing to a disk would delay keys."""

import threading
from collections.abc import Callable

from trt_tui.session.saved import SavedSession, SessionFolder


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
