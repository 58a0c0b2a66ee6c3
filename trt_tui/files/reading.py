"""Reading of files that users name. Only regular files up to a maximum size are read.

Reading a pipe or a device would never end, and a file of an unexpected kind may be too large for memory. Both are
refused before any byte is read.

CPU time and memory for reading one file are limited too. A file below 1 MB can keep a reader busy for years, for
example with a backtracking pattern, doubling lists or repeated names. A timer of the CPU time of this process
interrupts the main thread, even within a regular expression. The reading then ends with an error that names the file.
"""

import contextlib
import hashlib
import itertools
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.formatting import find_similar_names, suggestion_question

MAX_TEXT_BYTES = 256 << 20
"""The maximum size of a file that is read as one text: configs, calibration caches, the JSON of engine layers."""
MAX_SCRIPT_BYTES = 16 << 20
"""The maximum size of a Python file."""
MAX_BINARY_BYTES = 16 << 30
"""The maximum size of an engine or a timing cache."""

MAX_DEPTH = 64
"""The maximum nesting depth of lists and objects in a file of trt-tui. Python's own limits for pickles and JSON are far
higher."""

_BLOCK_BYTES, _BLOCK_COUNT = 1 << 16, 128
"""The size and number of the blocks that `sampled_file_sha256` reads of a large file: 8 MiB in total."""

MAX_SCANNED_FILES = 10_000
"""The maximum number of files of a folder that are searched for names similar to that of a missing file."""

_SPECIAL_FILE_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


def check_regular_file(path: Path | str, *, max_bytes: int | None = None) -> os.stat_result:
    """Checks that a path is a regular file of at most ``max_bytes`` bytes. Returns the status of the file.

    Raises:
        InputError: The file does not exist, its status cannot be read, or it is too large. A pipe, a device, a socket
            or a folder raises the same error.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise missing_file_error(f"{path} does not exist", path) from None
    except (OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None
    return _check_file_status(path, status, max_bytes)


def find_similar_files(path: Path | str) -> list[str]:
    """Returns up to 3 files of the same folder with names similar to that of a missing file, the most similar first.

    If the missing file has a suffix, only files with the same or a similar suffix are returned.
    """
    missing_path = Path(path)
    try:
        names = [entry.name for entry in itertools.islice(os.scandir(missing_path.parent), MAX_SCANNED_FILES)]
    except (OSError, ValueError):
        return []
    suffixes = (
        find_similar_names(missing_path.suffix, {Path(name).suffix for name in names} - {""})
        if missing_path.suffix
        else None
    )
    similar_stems = find_similar_names(
        missing_path.stem,
        sorted({Path(name).stem for name in names if suffixes is None or Path(name).suffix in suffixes}),
    )
    by_stem = {
        stem: [
            name
            for name in sorted(names)
            if Path(name).stem == stem and (suffixes is None or Path(name).suffix in suffixes)
        ]
        for stem in similar_stems
    }
    return [str(missing_path.with_name(name)) for stem in similar_stems for name in by_stem[stem]][:3]


def missing_file_error(title: str, path: Path | str, next_step: str = "Check the path.") -> InputError:
    """Returns the error for a file that does not exist, with the names of similar files."""
    folder = Path(path).parent
    cause = suggestion_question(find_similar_files(path)) if folder.is_dir() else f"the folder {folder} does not exist"
    return InputError(title, cause, next_step)


def open_regular_file(path: Path | str, *, max_bytes: int | None = None) -> BufferedReader:
    """Opens a regular file for reading. The call never waits for the other end of a pipe.

    Raises:
        InputError: `check_regular_file` raises it, or reading is not permitted.
    """
    check_regular_file(path, max_bytes=max_bytes)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None
    stream = os.fdopen(descriptor, "rb")
    try:
        _check_file_status(path, os.fstat(descriptor), max_bytes)
    except BaseException:
        stream.close()
        raise
    return stream


def read_bytes(path: Path | str, max_bytes: int = MAX_BINARY_BYTES) -> bytes:
    """Reads a regular file of at most ``max_bytes`` bytes.

    Raises:
        InputError: `open_regular_file` raises it, or reading fails.
    """
    with open_regular_file(path, max_bytes=max_bytes) as stream:
        try:
            # A read of `max_bytes` bytes would allocate them; files under /proc are longer than their reported size.
            data = stream.read(min(max_bytes, os.fstat(stream.fileno()).st_size) + 1)
            while len(data) <= max_bytes and (piece := stream.read(1 << 20)):
                data += piece
        except (OSError, MemoryError) as error:
            raise _unreadable_error(path, error) from None
    if len(data) > max_bytes:
        raise _too_large_error(path, len(data), max_bytes)
    return data


def read_text(path: Path | str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Reads a regular file as UTF-8, with or without a byte order mark.

    Raises:
        InputError: `read_bytes` raises it, or the file is not UTF-8 text.
    """
    data = read_bytes(path, max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} cannot be read", f"it is not UTF-8 text (byte {error.start})", "Name another file."
        ) from None


def is_nested_deeper(value: object, max_depth: int) -> bool:
    """Returns True if lists and dictionaries are nested at more than ``max_depth`` levels."""
    level_values = [value]
    for _ in range(max_depth + 1):
        containers = [container for container in level_values if isinstance(container, (dict, list))]
        if not containers:
            return False
        level_values = [
            inner
            for container in containers
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
    return True


def file_sha256(path: Path | str) -> str:
    """Returns the SHA-256 of a regular file; "" if the file does not exist or cannot be read."""
    try:
        with open_regular_file(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, InputError):
        return ""


def sampled_file_sha256(path: Path | str) -> str:
    """Returns a SHA-256 of the size of a file and of blocks spread evenly over it; "" if the file cannot be read.

    Two versions of trained weights differ nearly everywhere, so most replaced files are noticed in a few milliseconds.
    A change between the blocks is not noticed: `file_sha256` reads the whole file.
    """
    sha256 = hashlib.sha256()
    try:
        with open_regular_file(path) as stream:
            last_offset = max(os.fstat(stream.fileno()).st_size - _BLOCK_BYTES, 0)
            sha256.update(f"{last_offset}\0".encode())
            for block_index in range(_BLOCK_COUNT):
                stream.seek(last_offset * block_index // (_BLOCK_COUNT - 1))
                sha256.update(stream.read(_BLOCK_BYTES))
    except (OSError, InputError):
        return ""
    return sha256.hexdigest()


def _check_file_status(path: Path | str, file_status: os.stat_result, max_bytes: int | None) -> os.stat_result:
    if not stat.S_ISREG(file_status.st_mode):
        kind = next((kind for is_kind, kind in _SPECIAL_FILE_KINDS if is_kind(file_status.st_mode)), "it is not a file")
        raise InputError(
            f"{path} cannot be read",
            f"{kind}; a regular file is needed",
            "Name a file; write the content of a pipe to a file first.",
        )
    if max_bytes is not None and file_status.st_size > max_bytes:
        raise _too_large_error(path, file_status.st_size, max_bytes)
    return file_status


def _too_large_error(path: Path | str, size: int, max_bytes: int) -> InputError:
    return InputError(
        f"{path} is too large",
        f"it has {size:,} bytes; at most {max_bytes:,} are read of a file of its kind",
        "Check that this is the right file.",
    )


def _unreadable_error(path: Path | str, error: Exception) -> InputError:
    cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return InputError(f"{path} cannot be read", cause, "Check the path and its permissions.")


MAX_READ_S = 5.0
"""The CPU time in seconds for reading a small file. A large file gets additional time: its size divided by
`MIN_BYTES_PER_S`."""
MIN_BYTES_PER_S = 10 << 20
MAX_MEMORY_BYTES = 2 << 30
"""The growth of process memory for reading a small file. A large file gets additional memory: `MAX_MEMORY_PER_BYTE`
times its size."""
MAX_MEMORY_PER_BYTE = 32
_TICK_S = 0.05

_DEFAULT_NEXT_STEP = "Check that this is the right file; if it is, shorten its repetitions."


class _ReadingBudgetExceededError(BaseException):
    """The error of a reading that has used up its CPU time or memory.

    The class is a BaseException, so that no reader catches it."""


_is_running = False


@contextlib.contextmanager
def limit_reading_resources(
    input_title: str, size_bytes: int = 0, *, max_seconds: float | None = None, next_step: str = _DEFAULT_NEXT_STEP
) -> Iterator[None]:
    """Stops the ``with`` block with an error if it uses too much CPU time or memory, or reads too deeply nested data.

    A block within another one shares the budget of the outer block. Only the main thread can be interrupted, so there
    is no limit in other threads. Every reader of this program runs in a main thread.

    Args:
        input_title: The name of the file in messages.
        size_bytes: The size of the file.
        max_seconds: The CPU time for a small file; `MAX_READ_S` by default.
        next_step: The advice if a limit is exceeded.

    Raises:
        InputError: A limit is exceeded, or the block raised a RecursionError or a MemoryError.
    """
    global _is_running
    if _is_running or threading.current_thread() is not threading.main_thread():
        with _convert_exhaustion_errors(input_title):
            yield
        return
    max_s = (MAX_READ_S if max_seconds is None else max_seconds) + size_bytes / MIN_BYTES_PER_S
    max_bytes = MAX_MEMORY_BYTES + size_bytes * MAX_MEMORY_PER_BYTE
    begin_s, begin_bytes = time.thread_time(), _read_resident_memory_bytes()

    def check_budget(*_: object) -> None:
        if _is_running and time.thread_time() - begin_s > max_s:
            raise _ReadingBudgetExceededError(f"it was stopped after {max_s:.3g} s of computing")
        if _is_running and _read_resident_memory_bytes() - begin_bytes > max_bytes:
            raise _ReadingBudgetExceededError(f"it was stopped at {max_bytes / 2**30:.1f} GB of memory")

    previous_handler = signal.signal(signal.SIGVTALRM, check_budget)
    _is_running = True
    try:
        with _convert_exhaustion_errors(input_title):
            signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
            yield
    except _ReadingBudgetExceededError as error:
        _is_running = False
        raise InputError(f"{input_title} takes too much time or memory", str(error), next_step) from None
    finally:
        _is_running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)


@contextlib.contextmanager
def limit_file_reading(path: Path | str) -> Iterator[None]:
    """Applies `limit_reading_resources` to the ``with`` block, with the size and the name of a file."""
    size = 0
    with contextlib.suppress(OSError, ValueError):
        size = os.stat(path).st_size
    with limit_reading_resources(Path(path).name, size):
        yield


@contextlib.contextmanager
def _convert_exhaustion_errors(input_title: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InputError(f"{input_title} cannot be read", "it is nested too deep", _DEFAULT_NEXT_STEP) from None
    except MemoryError:
        raise InputError(
            f"{input_title} takes too much time or memory", "the memory is too small", _DEFAULT_NEXT_STEP
        ) from None


def _read_resident_memory_bytes() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
