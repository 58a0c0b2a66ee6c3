"""Saving in a thread, since syncing to a disk would delay keys."""

import threading
from collections.abc import Callable

from trt_tui.session.saved import Saved, SavedSessions


class Saver:
    """Writes sessions in the order in which they were given; of several that wait only the newest.

    Its thread lives while there is something to write, and Python does not end before it. Only a kill loses what was
    given.

    Args:
        store: Where sessions are saved.
    """

    def __init__(self, store: SavedSessions) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: tuple[str, Callable[[], Saved]] | None = None
        self._thread: threading.Thread | None = None
        self._defect: Exception | None = None

    def save(self, structure: str, make: Callable[[], Saved]) -> None:
        """Has a session of a structure written; ``make`` is called in the thread, and so may read no state.

        Raises:
            Exception: what the write before it raised.
        """
        with self._lock:
            self._waiting = (structure, make)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="saving")
                self._thread.start()
        self._tell()

    def flush(self) -> None:
        """Waits until everything that was given is on disk; raises as `save` does."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._tell()

    def close(self) -> None:
        """Flushes, and lets other programs write the session."""
        try:
            self.flush()
        finally:
            self._store.release()

    def _write(self) -> None:
        while True:
            with self._lock:
                if self._waiting is None:
                    self._thread = None
                    return
                (structure, make), self._waiting = self._waiting, None
            try:
                self._store.save(structure, make())
            except Exception as error:
                self._defect = error

    def _tell(self) -> None:
        defect, self._defect = self._defect, None
        if defect is not None:
            raise defect
