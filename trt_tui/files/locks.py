"""Locks for files that several processes of one user may write. The lock files are in the user's cache folder."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout


@contextlib.contextmanager
def file_lock(path: Path | str, max_wait_s: float) -> Iterator[None]:
    """Holds the lock of a file during the ``with`` block. If the cache folder is not writable, there is no lock.

    Raises:
        Timeout: Another process holds the lock for longer than ``max_wait_s``.
    """
    name = hashlib.sha256(os.path.realpath(path).encode(errors="surrogateescape")).hexdigest()[:32]
    folder = Path(platformdirs.user_cache_dir("trt-tui")) / "locks"
    lock = FileLock(folder / f"{name}.lock", timeout=max_wait_s)
    with contextlib.ExitStack() as held_lock:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held_lock.enter_context(lock)
        except OSError as error:
            if isinstance(error, Timeout):
                raise
        yield
