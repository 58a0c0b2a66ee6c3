"""Reading files that users name: only regular ones, and only up to a size.

Reading a pipe or a device in place of a file would never end, and a file of another kind may be too large for memory;
both are refused before anything is read.
"""

import hashlib
import itertools
import os
import stat
from pathlib import Path
from typing import BinaryIO

from trt_tui.errors import InputError
from trt_tui.formatting import find_similar_names, suggestion_question

MAX_TEXT_BYTES = 256 << 20
"""Most bytes of a file that is read as text in one piece: configs, calibration caches, the JSON of engine layers."""
MAX_SCRIPT_BYTES = 16 << 20
"""Most bytes of a Python file."""
MAX_BINARY_BYTES = 16 << 30
"""Most bytes of an engine or a timing cache."""

MAX_DEPTH = 64
"""Lists and objects within each other in a file of ours; far fewer than Python's own limit for pickles and JSON."""

_BLOCK_BYTES, _BLOCK_COUNT = 1 << 16, 128
"""What `sampled_file_sha256` reads of a large file: 8 MiB of it."""

MAX_SCANNED_FILES = 10_000
"""Files of a folder that are looked at for names like that of a missing file."""

_SPECIAL_FILE_KINDS = ((stat.S_ISDIR, "it is a folder"), (stat.S_ISFIFO, "it is a pipe"),
                       (stat.S_ISSOCK, "it is a socket"), (stat.S_ISCHR, "it is a device"), (stat.S_ISBLK,
                                                                                             "it is a device"))


def check_regular_file(path: Path | str, *, max_bytes: int | None = None) -> os.stat_result:
    """Refuses what is no regular file, or is larger than ``max_bytes`` bytes; returns its status.

    Raises:
        InputError: there is no such file, it cannot be asked for, is a pipe, a device, a socket or a folder, or is too
            large.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise missing_file_error(f"{path} does not exist", path) from None
    except (OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None
    return _check_file_status(path, status, max_bytes)


def find_similar_files(path: Path | str) -> list[str]:
    """Returns up to 3 files of the same folder whose names are most like that of a missing one, the likeliest first.

    Of a file with a suffix only files with that suffix, or with one that is spelled alike, are suggested.
    """
    missing_path = Path(path)
    try:
        names = [entry.name for entry in itertools.islice(os.scandir(missing_path.parent), MAX_SCANNED_FILES)]
    except (OSError, ValueError):
        return []
    suffixes = find_similar_names(missing_path.suffix, {Path(name).suffix
                                                        for name in names} - {""}) if missing_path.suffix else None
    similar_stems = find_similar_names(
        missing_path.stem,
        sorted({Path(name).stem
                for name in names
                if suffixes is None or Path(name).suffix in suffixes}))
    by_stem = {stem: [name for name in sorted(names) if Path(name).stem == stem
                      and (suffixes is None or Path(name).suffix in suffixes)] for stem in similar_stems}
    return [str(missing_path.with_name(name)) for stem in similar_stems for name in by_stem[stem]][:3]


def missing_file_error(title: str, path: Path | str, next_step: str = "Check the path.") -> InputError:
    """Returns the error of a file that is not there, with the files that may be meant."""
    folder = Path(path).parent
    cause = suggestion_question(find_similar_files(path)) if folder.is_dir() else f"the folder {folder} does not exist"
    return InputError(title, cause, next_step)


def open_regular_file(path: Path | str, *, max_bytes: int | None = None) -> BinaryIO:
    """Opens a file for reading, checked as by `check_regular_file`; it never waits for a pipe's other end.

    Raises:
        InputError: as `check_regular_file`, or it may not be read.
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
    """The content of a regular file of at most ``max_bytes`` bytes.

    Raises:
        InputError: as `open_regular_file`, or reading fails.
    """
    with open_regular_file(path, max_bytes=max_bytes) as stream:
        try:
            # A read of `max_bytes` bytes would allocate them; files under /proc are longer than they say.
            data = stream.read(min(max_bytes, os.fstat(stream.fileno()).st_size) + 1)
            while len(data) <= max_bytes and (piece := stream.read(1 << 20)):
                data += piece
        except (OSError, MemoryError) as error:
            raise _unreadable_error(path, error) from None
    if len(data) > max_bytes:
        raise _too_large_error(path, len(data), max_bytes)
    return data


def read_text(path: Path | str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The content of a regular file in UTF-8, with or without a byte order mark.

    Raises:
        InputError: as `read_bytes`, or it is no text in UTF-8.
    """
    data = read_bytes(path, max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read", f"it is not UTF-8 text (byte {error.start})",
                         "Name another file.") from None


def is_nested_deeper(value: object, max_depth: int) -> bool:
    """Returns True if lists and dictionaries stand within each other at more than ``max_depth`` levels."""
    level_values = [value]
    for _ in range(max_depth + 1):
        containers = [container for container in level_values if isinstance(container, (dict, list))]
        if not containers:
            return False
        level_values = [
            inner for container in containers
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
    return True


def file_sha256(path: Path | str) -> str:
    """SHA-256 of a regular file, read in pieces; "" where there is none, or it cannot be read."""
    sha256 = hashlib.sha256()
    try:
        with open_regular_file(path) as stream:
            while piece := stream.read(1 << 22):
                sha256.update(piece)
    except (OSError, InputError):
        return ""
    return sha256.hexdigest()


def sampled_file_sha256(path: Path | str) -> str:
    """Returns a SHA-256 of blocks spread evenly over a file, its first and last among them, and of its size.

    Two versions of trained weights differ nearly everywhere, so most replaced files are noticed in a few milliseconds.
    A change between the blocks is not: `file_sha256` reads all. "" if the file cannot be read.
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
        raise InputError(f"{path} cannot be read", f"{kind}; a regular file is needed",
                         "Name a file; write the content of a pipe to a file first.")
    if max_bytes is not None and file_status.st_size > max_bytes:
        raise _too_large_error(path, file_status.st_size, max_bytes)
    return file_status


def _too_large_error(path: Path | str, size: int, max_bytes: int) -> InputError:
    return InputError(f"{path} is too large",
                      f"it has {size:,} bytes; at most {max_bytes:,} are read of a file of its kind",
                      "Check that this is the right file.")


def _unreadable_error(path: Path | str, error: Exception) -> InputError:
    cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return InputError(f"{path} cannot be read", cause, "Check the path and its permissions.")
