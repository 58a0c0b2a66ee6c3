"""Locks for files that several programs of one user may write; they lie in the user's cache folder."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout


@contextlib.contextmanager
def file_lock(path: Path | str, max_wait_s: float) -> Iterator[None]:
    """Holds a file's lock. Where the cache folder cannot be written to there is none, and the body runs all the same.

    Raises:
        Timeout: another program holds it for longer than ``max_wait_s``.
    """
    name = hashlib.sha256(os.path.realpath(path).encode(errors="surrogateescape")).hexdigest()[:32]
    folder = Path(platformdirs.user_cache_dir("trt-tui")) / "locks"
    lock = FileLock(folder / f"{name}.lock", timeout=max_wait_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()
