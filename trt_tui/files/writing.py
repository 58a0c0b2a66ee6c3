"""Atomic writing of files and folders, completely or not at all, and temporary folders.

Temporary files and folders are removed after use, or by a later process if their own process was killed. A damaged
file is renamed, so that the program does not read it again.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trt_tui.errors import InputError

STALE_S = 3600.0
"""The age in seconds from which a temporary file or folder beside a destination is considered abandoned."""

_SCRATCH_PREFIX = "trt-tui-run-"


@contextlib.contextmanager
def create_scratch_folder() -> Iterator[Path]:
    """Creates a temporary folder that is removed after the ``with`` block.

    If the process is killed, the next `remove_unused_scratch_folders` removes the folder.

    Raises:
        InputError: No temporary folder can be created.
    """
    while True:
        try:
            temporary_folder = tempfile.TemporaryDirectory(
                prefix=f"{_SCRATCH_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True
            )
        except OSError as error:
            raise InputError(
                "no temporary folder can be made",
                error.strerror or str(error),
                "Free some space, or set TMPDIR to a folder that has some.",
            ) from None
        with temporary_folder as folder, mark_folder_in_use(Path(folder)):
            if os.path.exists(folder):  # another starting process may have removed it before the lock
                yield Path(folder)
                return


def remove_unused_scratch_folders() -> None:
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
            with contextlib.suppress(OSError):
                if re.fullmatch(rf"{_SCRATCH_PREFIX}\d+-\w+", path.name) and path.stat().st_uid == os.getuid():
                    with _lock_folder(path):
                        shutil.rmtree(path)


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
        _remove_file(path)


def remove_stale_files_beside(destination: Path) -> None:
    """Removes the temporary files and folders of a destination whose writing processes were killed."""
    start, end = f".{destination.name[:100]}.", ".tmp"
    with contextlib.suppress(OSError):
        for entry in os.scandir(destination.parent):
            if entry.name.startswith(start) and entry.name.endswith(end):
                remove_stale_path(Path(entry.path))


@contextlib.contextmanager
def _lock_folder(folder: Path, mode: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> Iterator[None]:
    """Locks a folder during the ``with`` block.

    The lock identifies the process of the folder. A process id would not: ids in another container are different.

    Raises:
        BlockingIOError: Another process holds the lock, and the mode does not wait for it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, mode)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def mark_folder_in_use(folder: Path) -> Iterator[None]:
    """Protects a temporary folder from removal by other processes during the ``with`` block."""
    with contextlib.ExitStack() as lock_stack:
        with contextlib.suppress(OSError):  # a file system without locks, where other processes remove no folder either
            lock_stack.enter_context(_lock_folder(folder, fcntl.LOCK_EX))
        yield


def remove_stale_path(path: Path) -> bool:
    """Removes a temporary file or folder that no process writes to any more. Returns True if the path was removed."""
    with contextlib.suppress(OSError):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name) and _is_stale_path(path):
            if path.is_dir() and not path.is_symlink():
                with _lock_folder(path):
                    shutil.rmtree(path)
            else:
                path.unlink()
            return True
    return False


def _is_stale_path(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > STALE_S


def write_file_atomically(path: Path | str, data: bytes | str, *, is_private: bool = False) -> None:
    """Writes a file completely or not at all. Text is encoded as UTF-8.

    The file is written by `open_atomic_writer`. Characters that UTF-8 cannot encode (from a name in broken UTF-8) are
    written as backslash escapes, which JSON decodes again.

    Raises:
        InputError: The file cannot be written.
    """
    with open_atomic_writer(path, is_private=is_private) as stream:
        stream.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@dataclass(frozen=True)
class _PendingFile:
    """A file with a temporary name. At the end of the transaction, it is renamed to its destination.

    Attributes:
        path: The destination as the caller named it, for messages; `destination` has symbolic links resolved.
        is_new: False if the file replaces another one.
    """

    temporary_file: Path
    destination: Path
    path: Path
    is_new: bool

    def move_to_destination(self) -> None:
        with convert_write_errors(self.path):
            os.replace(self.temporary_file, self.destination)


@dataclass
class _FileTransaction:
    """The files of a `file_transaction` in the order of writing, and the cleanup of their temporary files."""

    pending_files: list[_PendingFile] = field(default_factory=list)
    cleanup_stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_transaction: ContextVar[_FileTransaction | None] = ContextVar("file_transaction", default=None)


@contextlib.contextmanager
def file_transaction() -> Iterator[None]:
    """Puts all files that the ``with`` block writes in place when the block ends. If the block raises, none is kept.

    It collects the files of `open_atomic_writer`. A block within another one is part of the outer block. Devices and
    pipes are written at once.

    Raises:
        InputError: A file cannot be renamed to its destination. The new files before it are removed; files that
            replaced others stay.
    """
    if _transaction.get() is not None:
        yield
        return
    transaction = _FileTransaction()
    token = _transaction.set(transaction)
    try:
        with transaction.cleanup_stack:
            yield
            for index, pending_file in enumerate(transaction.pending_files):
                try:
                    pending_file.move_to_destination()
                except BaseException:
                    for committed_file in transaction.pending_files[:index]:
                        if committed_file.is_new:
                            _remove_file(committed_file.destination)
                    raise
    finally:
        _transaction.reset(token)


def find_content_path(path: Path) -> Path:
    """Returns the path with the current content of a file.

    It is a temporary file if the open transaction has written the file, or else ``path``.
    """
    transaction, destination = _transaction.get(), Path(os.path.realpath(path))
    pending_files = transaction.pending_files if transaction is not None else ()
    return next(
        (
            pending_file.temporary_file
            for pending_file in reversed(pending_files)
            if pending_file.destination == destination
        ),
        path,
    )


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def open_atomic_writer(path: Path | str, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """Opens a stream for the new content of the file ``path``. The end of the ``with`` block replaces the file; an
    error discards the content.

    In a `file_transaction` the file is replaced when the transaction ends.

    A symbolic link stays a link, and the file behind it is replaced. A replaced file keeps its permissions; before the
    replacement, only its owner can read the new content. Only a regular file is replaced; a device or a pipe is written
    to.

    Args:
        is_private: True for a file that only its owner may read and write, whatever the permissions of a replaced file.

    Raises:
        InputError: The folder does not exist, the destination is a folder or is read-only, no process reads from the
            pipe, or the disk is full.
    """
    path = Path(path)
    with convert_write_errors(path):
        if is_special_file(path):  # links are not resolved here: /dev/stdout leads to a pipe without a name
            with _open_device_writer(path) as stream:
                yield stream
            return
        destination = Path(os.path.realpath(path))
        replaced_status = None
        with contextlib.suppress(FileNotFoundError):
            replaced_status = os.stat(destination)
        if replaced_status is not None and stat.S_ISDIR(replaced_status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if replaced_status is not None and not (replaced_status.st_mode & 0o222 and os.access(destination, os.W_OK)):
            raise PermissionError(errno.EACCES, "the file is read-only")
        remove_stale_files_beside(destination)
        temporary = temporary_path(destination, secrets.token_hex(4))
        descriptor = os.open(
            temporary,
            os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0),
            0o666 if replaced_status is None and not is_private else 0o600,
        )
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(_remove_file, temporary)  # without effect after the rename
            cleanup.enter_context(register_temporary_file(temporary))
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if replaced_status is not None and not is_private:
                _copy_permissions(replaced_status, temporary)
            pending_file = _PendingFile(temporary, destination, path, replaced_status is None)
            if (transaction := _transaction.get()) is None:
                pending_file.move_to_destination()
            else:
                transaction.pending_files.append(pending_file)
                transaction.cleanup_stack.push(cleanup.pop_all())


def _copy_permissions(replaced_status: os.stat_result, temporary: Path) -> None:
    """Copies the group and the permissions of a replaced file to the temporary file that replaces it.

    If the group cannot be set, the group permissions are removed.
    """
    mode = stat.S_IMODE(replaced_status.st_mode)
    if os.stat(temporary).st_gid != replaced_status.st_gid:
        try:
            os.chown(temporary, -1, replaced_status.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    os.chmod(temporary, mode)


def is_special_file(path: Path | str) -> bool:
    """Returns True if a path is a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _open_device_writer(destination: Path) -> Iterator[BinaryIO]:
    """Opens a stream whose content is written to a device or a pipe when the ``with`` block ends."""
    # Without O_NONBLOCK, opening a pipe without a reader would wait for ever.
    descriptor = os.open(destination, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb", buffering=0) as device, tempfile.TemporaryFile(prefix="trt-tui-") as stream:
        yield stream
        stream.seek(0)
        while block := stream.read(1 << 20):
            while block:
                block = block[device.write(block) :]


@contextlib.contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Converts an OSError of the ``with`` block to an InputError that names ``path`` and the next step."""
    try:
        yield
    except OSError as error:
        cause, next_step = {
            **dict.fromkeys(
                (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
                ("", "Free some space or choose another place; nothing was written."),
            ),
            errno.ENOENT: (f"folder {path.parent} does not exist", "Make the folder or choose another place."),
            errno.EISDIR: ("it is a folder", "Name a file."),
            errno.ENAMETOOLONG: ("", "Choose a shorter name; an export adds endings like .typed.onnx to it."),
            errno.ENXIO: ("no process reads from it", "Start the reader first, or name a file."),
        }.get(error.errno or 0, ("", "Choose another place or change its permissions; nothing was written."))
        raise InputError(f"{path} cannot be written", cause or error.strerror or str(error), next_step) from None


def make_private_folder(folder: Path) -> None:
    """Creates a folder that only its owner may enter, and its missing parents. An existing folder stays unchanged.

    Raises:
        OSError: The folder cannot be created.
    """
    if not folder.parent.exists():
        make_private_folder(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


def require_empty_folder(folder: Path) -> None:
    """Raises an error unless a folder is empty or does not exist.

    Raises:
        InputError: The folder has content, or the path is not a folder.
    """
    with convert_write_errors(folder):
        is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
        if os.path.lexists(folder) and not is_empty:
            raise InputError(
                f"{folder} already exists",
                "the export needs a new folder; nothing is overwritten",
                "Name a new folder, or empty that one.",
            )


@contextlib.contextmanager
def fill_folder_atomically(destination: Path) -> Iterator[Path]:
    """Yields a new temporary folder that becomes ``destination`` when the ``with`` block ends. If the block raises, the
    folder is removed.

    If ``destination`` is an empty folder, the new folder takes its permissions.

    Raises:
        InputError: The destination has content, its parent does not exist or is not writable, or the disk is full.
    """
    require_empty_folder(destination)
    with convert_write_errors(destination):
        absolute_path = Path(os.path.abspath(destination))
        remove_stale_files_beside(absolute_path)
        temporary_folder = temporary_path(absolute_path, secrets.token_hex(4))
        temporary_folder.mkdir(0o700)
        umask = os.umask(0)  # the mask can be read only if it is set
        os.umask(umask)
        try:
            with mark_folder_in_use(temporary_folder):
                yield temporary_folder
            temporary_folder.chmod(stat.S_IMODE(destination.stat().st_mode) if destination.exists() else 0o777 & ~umask)
            require_empty_folder(destination)
            os.replace(temporary_folder, destination)  # an empty folder is replaced
        except BaseException as error:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            if isinstance(error, InputError):  # the message names the folder that the user named
                error.title = error.title.replace(str(temporary_folder), str(destination))
            raise


def rename_damaged_file(path: Path) -> Path | None:
    """Appends ``.damaged`` to the name of a file. Returns the new path, or None if the file cannot be renamed."""
    with contextlib.suppress(OSError):
        return path.replace(path.with_name(f"{path.name}.damaged"))
    return None
