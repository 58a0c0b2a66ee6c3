"""Writing files that are whole or not there at all."""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trt_tui.errors import InputError
from trt_tui.files.scratch import clear_beside, dropped_with_process, temporary_beside


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Writes a file as `atomic` does; text as UTF-8.

    What UTF-8 cannot hold (a name of broken UTF-8) is written with a backslash, which JSON reads as what it was.

    Raises:
        InputError: see `atomic`.
    """
    with atomic(path) as stream:
        stream.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@dataclass(frozen=True)
class _Pending:
    """A file that is written and takes its place when the transaction ends.

    Attributes:
        path: The target as it was named.
        replaces: The target is there already.
    """

    temporary: Path
    target: Path
    path: Path
    replaces: bool

    def commit(self) -> None:
        """Puts the file in the place of the target."""
        with cannot_write(self.path):
            os.replace(self.temporary, self.target)


@dataclass
class _Transaction:
    """The files of a `file_transaction` in the order of writing, and what removes those that never take their place."""

    files: list[_Pending] = field(default_factory=list)
    temporaries: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_transaction: ContextVar[_Transaction | None] = ContextVar("file_transaction", default=None)


@contextlib.contextmanager
def file_transaction() -> Iterator[None]:
    """In this block `atomic` writes files that take their places when it ends: all of them, or none if it raises.

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
        with transaction.temporaries:
            yield
            for number, file in enumerate(transaction.files):
                try:
                    file.commit()
                except BaseException:
                    for done in transaction.files[:number]:
                        if not done.replaces:
                            _remove(done.target)
                    raise
    finally:
        _transaction.reset(token)


def content_path(path: Path) -> Path:
    """The path of a file's content: a temporary file if the transaction that is under way has written it."""
    transaction, target = _transaction.get(), Path(os.path.realpath(path))
    pending = transaction.files if transaction is not None else ()
    return next((file.temporary for file in reversed(pending) if file.target == target), path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def atomic(path: Path | str) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of ``path`` when the block ends, and is dropped if it raises.

    In a `file_transaction` it takes the place when that ends.

    A symbolic link stays one: the file that it points to is replaced. A replaced file keeps its permissions. Only a
    regular file is replaced; a device or a pipe is written to.

    Raises:
        InputError: the folder does not exist, the place is a folder or is read-only, nothing reads from the pipe, or
            the disk is full.
    """
    path = Path(path)
    with cannot_write(path):
        if is_special(path):  # as it is named: /dev/stdout leads to a pipe that has no name
            with _whole(path) as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(target).st_mode
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not (mode & 0o222 and os.access(target, os.W_OK)):
            raise PermissionError(errno.EACCES, "the file is read-only")
        clear_beside(target)
        temporary = temporary_beside(target, secrets.token_hex(4))
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        with contextlib.ExitStack() as dropped:
            dropped.callback(_remove, temporary)  # without effect once it took its place
            dropped.enter_context(dropped_with_process(temporary))
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if mode is not None:
                os.chmod(temporary, mode & 0o7777)
            file = _Pending(temporary, target, path, mode is not None)
            if (transaction := _transaction.get()) is None:
                file.commit()
            else:
                transaction.files.append(file)
                transaction.temporaries.push(dropped.pop_all())


def is_special(path: Path | str) -> bool:
    """Whether something stands there that is neither a regular file nor a folder: a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[BinaryIO]:
    """A stream whose content is written to a device or a pipe when the block ends."""
    # Without O_NONBLOCK a pipe that nothing reads from would be waited for for ever.
    descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb", buffering=0) as there, tempfile.TemporaryFile(prefix="trt-tui-") as stream:
        yield stream
        stream.seek(0)
        while block := stream.read(1 << 20):
            while block:
                block = block[there.write(block):]


@contextlib.contextmanager
def cannot_write(path: Path) -> Iterator[None]:
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
            cause, next_step = "nothing reads from it", "Start what reads from it first, or name a file."
        else:
            next_step = "Choose another place or change its permissions; nothing was written."
        raise InputError(f"{path} cannot be written", cause, next_step) from None
