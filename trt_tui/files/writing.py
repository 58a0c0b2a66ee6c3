"""Writes files and folders completely or not at all."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trt_tui.errors import InputError
from trt_tui.files.scratch import mark_folder_in_use, register_temporary_file, remove_stale_files_beside, temporary_path


def write_file_atomically(path: Path | str, data: bytes | str, *, is_private: bool = False) -> None:
    """Writes a file as `open_atomic_writer` does; text as UTF-8.

    What UTF-8 cannot hold (a name of broken UTF-8) is written with a backslash, which JSON reads as what it was.

    Raises:
        InputError: see `open_atomic_writer`.
    """
    with open_atomic_writer(path, is_private=is_private) as stream:
        stream.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@dataclass(frozen=True)
class _PendingFile:
    """A file that is written and takes its place when the transaction ends.

    Attributes:
        is_new: False if it replaces a file.
    """

    temporary_file: Path
    destination: Path
    path: Path
    is_new: bool

    def move_to_destination(self) -> None:
        """Puts the file at its place."""
        with convert_write_errors(self.path):
            os.replace(self.temporary_file, self.destination)


@dataclass
class _Transaction:
    """The files of a `file_transaction` in the order of writing, and what removes those that never take their place."""

    pending_files: list[_PendingFile] = field(default_factory=list)
    cleanup_stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_transaction: ContextVar[_Transaction | None] = ContextVar("file_transaction", default=None)


@contextlib.contextmanager
def file_transaction() -> Iterator[None]:
    """In this block `open_atomic_writer` writes files that take their places when it ends: all of them, or none if it
    raises.

    A block within another one is part of it. Devices and pipes are written at once.

    Raises:
        InputError: a file cannot take its place. Those before it are removed, unless they replaced others.
    """
    if _transaction.get() is not None:
        yield
        return
    transaction = _Transaction()
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
    """The path of a file's content: a temporary file if the transaction that is under way has written it."""
    transaction, destination = _transaction.get(), Path(os.path.realpath(path))
    pending_files = transaction.pending_files if transaction is not None else ()
    return next((pending_file.temporary_file
                 for pending_file in reversed(pending_files)
                 if pending_file.destination == destination), path)


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def open_atomic_writer(path: Path | str, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of ``path`` when the block ends, and is dropped if it raises.

    In a `file_transaction` it takes the place when that ends.

    A symbolic link stays one: the file that it points to is replaced. A replaced file keeps its permissions, and until
    then only its owner may read the new content. Only a regular file is replaced; a device or a pipe is written to.

    Args:
        is_private: True for a file that only its owner may read and write, whatever permissions a replaced one has.

    Raises:
        InputError: the folder does not exist, the place is a folder or is read-only, nothing reads from the pipe, or
            the disk is full.
    """
    path = Path(path)
    with convert_write_errors(path):
        if is_special_file(path):  # as it is named: /dev/stdout leads to a pipe that has no name
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
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0),
                             0o666 if replaced_status is None and not is_private else 0o600)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(_remove_file, temporary)  # without effect once it took its place
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
    """Gives a temporary file the group and the permissions of the file that it replaces.

    If it cannot get the group, no group has any permission.
    """
    mode = stat.S_IMODE(replaced_status.st_mode)
    if os.stat(temporary).st_gid != replaced_status.st_gid:
        try:
            os.chown(temporary, -1, replaced_status.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    os.chmod(temporary, mode)


def is_special_file(path: Path | str) -> bool:
    """Whether something stands there that is neither a regular file nor a folder: a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _open_device_writer(destination: Path) -> Iterator[BinaryIO]:
    """A stream whose content is written to a device or a pipe when the block ends."""
    # Without O_NONBLOCK a pipe that nothing reads from would be waited for for ever.
    descriptor = os.open(destination, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb", buffering=0) as device, tempfile.TemporaryFile(prefix="trt-tui-") as stream:
        yield stream
        stream.seek(0)
        while block := stream.read(1 << 20):
            while block:
                block = block[device.write(block):]


@contextlib.contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into an InputError that names ``path`` and what to do."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            next_step = "Free some space or choose another place; nothing was written."
        elif isinstance(error, FileNotFoundError):
            cause, next_step = f"folder {path.parent} does not exist", "Make the folder or choose another place."
        elif isinstance(error, IsADirectoryError):
            cause, next_step = "it is a folder", "Name a file."
        elif error.errno == errno.ENAMETOOLONG:
            next_step = "Choose a shorter name; an export adds endings like .typed.onnx to it."
        elif error.errno == errno.ENXIO:
            cause, next_step = "no process reads from it", "Start the reader first, or name a file."
        else:
            next_step = "Choose another place or change its permissions; nothing was written."
        raise InputError(f"{path} cannot be written", cause, next_step) from None


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only its owner may enter, and its parents; a folder that exists stays as it is.

    Raises:
        OSError: the folder cannot be made.
    """
    if not folder.parent.exists():
        make_private_folder(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


def require_empty_folder(folder: Path) -> None:
    """Checks that a folder is new, or empty.

    Raises:
        InputError: something is there.
    """
    with convert_write_errors(folder):
        is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
        if os.path.lexists(folder) and not is_empty:
            raise InputError(f"{folder} already exists", "the export needs a new folder; nothing is overwritten",
                             "Name a new folder, or empty that one.")


@contextlib.contextmanager
def fill_folder_atomically(destination: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``destination`` when the block ends and is dropped if it raises.

    An empty folder that it replaces leaves it its permissions.

    Raises:
        InputError: something is there already, its parent is not there or cannot be written, or the disk is full.
    """
    require_empty_folder(destination)
    with convert_write_errors(destination):
        absolute_path = Path(os.path.abspath(destination))
        remove_stale_files_beside(absolute_path)
        temporary_folder = temporary_path(absolute_path, secrets.token_hex(4))
        temporary_folder.mkdir(0o700)
        try:
            with mark_folder_in_use(temporary_folder):
                yield temporary_folder
            temporary_folder.chmod(
                stat.S_IMODE(destination.stat().st_mode) if destination.exists() else 0o777 & ~_read_umask())
            require_empty_folder(destination)
            os.replace(temporary_folder, destination)  # an empty folder gives way
        except BaseException as error:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            if isinstance(error, InputError):  # in the words of what was asked for
                error.title = error.title.replace(str(temporary_folder), str(destination))
            raise


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
