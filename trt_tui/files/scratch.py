"""Temporary folders and files, which are removed after use, or by a later process if their own process was killed."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trt_tui.errors import InputError

_LOCK_FILE = ".in-use"
"""The file in each scratch folder that the process of the folder locks.

A process id would not identify the process: ids in another container are different.
"""

STALE_S = 3600.0
"""The age in seconds from which a temporary file, or a folder without a lock, is considered abandoned."""


@contextlib.contextmanager
def create_scratch_folder() -> Iterator[Path]:
    """Creates a temporary folder that is removed after the ``with`` block.

    If the process is killed, the next `remove_unused_scratch_folders` removes the folder.

    Raises:
        InputError: No temporary folder can be created.
    """
    while True:
        try:
            temporary_folder = tempfile.TemporaryDirectory(prefix=f"trt-tui-{os.getpid()}-", ignore_cleanup_errors=True)
        except OSError as error:
            raise InputError("no temporary folder can be made", error.strerror or str(error),
                             "Free some space, or set TMPDIR to a folder that has some.") from None
        with temporary_folder as folder, contextlib.ExitStack() as lock_stack:
            if _lock_scratch_folder(Path(folder), lock_stack):
                yield Path(folder)
                return


def _lock_scratch_folder(folder: Path, lock_stack: contextlib.ExitStack) -> bool:
    """Locks a new scratch folder until ``lock_stack`` is closed.

    Returns False if another starting process removed the folder with `remove_unused_scratch_folders` before the lock.
    """
    try:
        lock = lock_stack.enter_context(open(folder / _LOCK_FILE, "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / _LOCK_FILE))
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks: other processes keep the folder for `STALE_S`
        return True


def remove_unused_scratch_folders() -> None:
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("trt-tui-*-*"):
            with contextlib.suppress(OSError):
                if re.fullmatch(r"trt-tui-\d+-\w+", path.name) and path.stat().st_uid == os.getuid():
                    _remove_unused_folder(path)


def _remove_unused_folder(folder: Path) -> None:
    """Removes a scratch folder under its lock. Raises OSError if a process holds the lock."""
    try:
        with open(folder / _LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except FileNotFoundError:
        if _is_stale(folder):
            shutil.rmtree(folder)


def temporary_path(destination: Path, unique_suffix: str) -> Path:
    """Returns the path of the temporary file that will replace ``destination``."""
    return destination.with_name(f".{destination.name[:100]}.{unique_suffix}.tmp")


_temporaries: set[Path] = set()


@contextlib.contextmanager
def register_temporary_file(path: Path) -> Iterator[None]:
    """Marks a file as temporary during the ``with`` block, so that `remove_temporary_files` removes the file."""
    _temporaries.add(path)
    try:
        yield
    finally:
        _temporaries.discard(path)


def remove_temporary_files() -> None:
    """Removes the temporary files that are being written, before the process ends early."""
    for path in tuple(_temporaries):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_stale_files_beside(destination: Path) -> None:
    """Removes the temporary files and folders of a destination whose writing processes were killed."""
    start, end = f".{destination.name[:100]}.", ".tmp"
    with contextlib.suppress(OSError):
        for entry in os.scandir(destination.parent):
            if entry.name.startswith(start) and entry.name.endswith(end):
                remove_stale_path(Path(entry.path))


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder during the ``with`` block.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def mark_folder_in_use(folder: Path) -> Iterator[None]:
    """Protects a temporary folder from `remove_stale_path` during the ``with`` block, even if its last file is old."""
    with contextlib.ExitStack() as lock_stack:
        with contextlib.suppress(OSError):  # without the lock, other processes keep the folder for `STALE_S`
            lock_stack.enter_context(_lock_folder(folder))
        yield


def remove_stale_path(path: Path) -> bool:
    """Removes a temporary file or folder that no process writes to any more. Returns True if the path was removed."""
    with contextlib.suppress(OSError):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name) and _is_stale(path):
            if path.is_dir() and not path.is_symlink():
                with _lock_folder(path):
                    shutil.rmtree(path)
            else:
                path.unlink()
            return True
    return False


def _is_stale(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > STALE_S
