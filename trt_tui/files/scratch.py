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

_LOCK = ".in-use"
"""A file in each scratch folder that its process holds a lock on: ids of processes are others in another container."""

STALE_S = 3600.0
"""After so long a temporary file that nothing was written to, and a folder without a lock, belong to nobody."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that is gone after the block, and after the next `clear_scratch` if the process was killed.

    Raises:
        InputError: there is no place for one.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=f"trt-tui-{os.getpid()}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError("no temporary folder can be made", error.strerror or str(error),
                         "Free some space, or set TMPDIR to a folder that has some.") from None
    with made as folder, contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without it the folder is left alone for `STALE_S`
            fcntl.flock(held.enter_context(open(Path(folder) / _LOCK, "w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(folder)


def clear_scratch() -> None:
    """Removes the scratch folders of this user's processes that were killed."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("trt-tui-*-*"):
            with contextlib.suppress(OSError):
                if re.fullmatch(r"trt-tui-\d+-\w+", path.name) and path.stat().st_uid == os.getuid() and _left(path):
                    shutil.rmtree(path)


def _left(folder: Path) -> bool:
    """Whether no process holds a scratch folder any more."""
    try:
        with open(folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return _stale(folder)
    except BlockingIOError:
        return False


def temporary_beside(target: Path, token: str) -> Path:
    """The name of a temporary file that is to take the place of ``target``."""
    return target.with_name(f".{target.name[:100]}.{token}.tmp")


_temporaries: set[Path] = set()


@contextlib.contextmanager
def dropped_with_process(path: Path) -> Iterator[None]:
    """In this block `drop_temporaries` removes a file."""
    _temporaries.add(path)
    try:
        yield
    finally:
        _temporaries.discard(path)


def drop_temporaries() -> None:
    """Removes the temporary files that are being written, for a process that is about to end in the middle of it."""
    for path in tuple(_temporaries):
        with contextlib.suppress(OSError):
            path.unlink()


def clear_beside(target: Path) -> None:
    """Removes temporary files and folders of a target whose writers were killed."""
    start, end = f".{target.name[:100]}.", ".tmp"
    with contextlib.suppress(OSError):
        for entry in os.scandir(target.parent):
            if entry.name.startswith(start) and entry.name.endswith(end):
                remove_stale(Path(entry.path))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """In this block a folder is locked; raises BlockingIOError if it is already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """In this block `remove_stale` leaves a folder alone, however long ago something was added to it."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without it the folder is left alone for `STALE_S`
            held.enter_context(_locked(folder))
        yield


def remove_stale(path: Path) -> bool:
    """Removes a temporary file or folder that nobody writes to any more; whether it did."""
    with contextlib.suppress(OSError):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name) and _stale(path):
            if path.is_dir() and not path.is_symlink():
                with _locked(path):
                    shutil.rmtree(path)
            else:
                path.unlink()
            return True
    return False


def _stale(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > STALE_S
