"""Temporary folders and files: gone when their block ends, and cleared later where the process was killed in it."""

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
"""A file in each scratch folder that its process holds a lock on: ids of processes are others in another container."""

STALE_S = 3600.0
"""After so long a temporary file that nothing was written to, and a folder without a lock, belong to nobody."""


@contextlib.contextmanager
def create_scratch_folder() -> Iterator[Path]:
    """A temporary folder that is gone after the block, and after the next `remove_unused_scratch_folders` if the
    process was killed.

    Raises:
        InputError: no temporary folder can be made.
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

    Returns False if `remove_unused_scratch_folders` of a process that was starting removed the folder before it was
    locked.
    """
    try:
        lock = lock_stack.enter_context(open(folder / _LOCK_FILE, "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / _LOCK_FILE))
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks: the folder is left alone for `STALE_S`
        return True


def remove_unused_scratch_folders() -> None:
    """Removes the scratch folders of this user's processes that were killed."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("trt-tui-*-*"):
            with contextlib.suppress(OSError):
                if re.fullmatch(r"trt-tui-\d+-\w+", path.name) and path.stat().st_uid == os.getuid():
                    _remove_unused_folder(path)


def _remove_unused_folder(folder: Path) -> None:
    """Removes a scratch folder that no process holds, under its lock."""
    try:
        with open(folder / _LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except FileNotFoundError:
        if _is_stale(folder):
            shutil.rmtree(folder)


def temporary_path(destination: Path, unique_suffix: str) -> Path:
    """The name of a temporary file that is to take the place of ``destination``."""
    return destination.with_name(f".{destination.name[:100]}.{unique_suffix}.tmp")


_temporaries: set[Path] = set()


@contextlib.contextmanager
def register_temporary_file(path: Path) -> Iterator[None]:
    """In this block `remove_temporary_files` removes a file."""
    _temporaries.add(path)
    try:
        yield
    finally:
        _temporaries.discard(path)


def remove_temporary_files() -> None:
    """Removes the temporary files that are being written, for a process that is about to end in the middle of it."""
    for path in tuple(_temporaries):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_stale_files_beside(destination: Path) -> None:
    """Removes temporary files and folders of a target whose writers were killed."""
    start, end = f".{destination.name[:100]}.", ".tmp"
    with contextlib.suppress(OSError):
        for entry in os.scandir(destination.parent):
            if entry.name.startswith(start) and entry.name.endswith(end):
                remove_stale_path(Path(entry.path))


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """In this block a folder is locked; raises BlockingIOError if it is already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def mark_folder_in_use(folder: Path) -> Iterator[None]:
    """In this block `remove_stale_path` leaves a folder alone, however long ago something was added to it."""
    with contextlib.ExitStack() as lock_stack:
        with contextlib.suppress(OSError):  # without it the folder is left alone for `STALE_S`
            lock_stack.enter_context(_lock_folder(folder))
        yield


def remove_stale_path(path: Path) -> bool:
    """Removes a temporary file or folder that nobody writes to any more; whether it did."""
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
