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
from trt_tui.words import did_you_mean, near_names

TEXT_BYTES = 256 << 20
"""Most bytes of a file that is read as text in one piece: configs, calibration caches, the JSON of engine layers."""
SCRIPT_BYTES = 16 << 20
"""Most bytes of a Python file."""
BINARY_BYTES = 16 << 30
"""Most bytes of an engine or a timing cache."""

MAX_DEPTH = 64
"""Lists and objects within each other in a file of ours; far fewer than Python's own limit for pickles and JSON."""

_BLOCK_BYTES, _BLOCKS = 1 << 16, 128
"""What `sample_digest` reads of a large file: 8 MiB of it."""

MAX_SCANNED_FILES = 10_000
"""Files of a folder that are looked at for names like that of a missing file."""

_NO_FILES = ((stat.S_ISDIR, "it is a folder"), (stat.S_ISFIFO, "it is a pipe"), (stat.S_ISSOCK, "it is a socket"),
             (stat.S_ISCHR, "it is a device"), (stat.S_ISBLK, "it is a device"))


def regular(path: Path | str, *, most: int | None = None) -> os.stat_result:
    """Refuses what is no regular file, or is larger than ``most`` bytes; returns its status.

    Raises:
        InputError: there is no such file, it cannot be asked for, is a pipe, a device, a socket or a folder, or is too
            large.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise missing_file(f"{path} does not exist", path) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return _checked(path, status, most)


def near_files(path: Path | str) -> list[str]:
    """Returns up to 3 files of the same folder whose names are most like that of a missing one, the likeliest first.

    Of a file with a suffix only files with that suffix, or with one that is spelled alike, are suggested.
    """
    wanted = Path(path)
    try:
        names = [entry.name for entry in itertools.islice(os.scandir(wanted.parent), MAX_SCANNED_FILES)]
    except (OSError, ValueError):
        return []
    suffixes = near_names(wanted.suffix, {Path(name).suffix for name in names} - {""}) if wanted.suffix else None
    near = near_names(wanted.stem, sorted({Path(name).stem for name in names
                                           if suffixes is None or Path(name).suffix in suffixes}))
    by_stem = {stem: [name for name in sorted(names) if Path(name).stem == stem
                      and (suffixes is None or Path(name).suffix in suffixes)] for stem in near}
    return [str(wanted.with_name(name)) for stem in near for name in by_stem[stem]][:3]


def missing_file(title: str, path: Path | str, next_step: str = "Check the path.") -> InputError:
    """Returns the error of a file that is not there, with the files that may be meant."""
    folder = Path(path).parent
    cause = did_you_mean(near_files(path)) if folder.is_dir() else f"there is no folder {folder}"
    return InputError(title, cause, next_step)


def open_regular(path: Path | str, *, most: int | None = None) -> BinaryIO:
    """Opens a file for reading, checked as by `regular`; it never waits for a pipe's other end.

    Raises:
        InputError: as `regular`, or it may not be read.
    """
    regular(path, most=most)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    stream = os.fdopen(descriptor, "rb")
    try:
        _checked(path, os.fstat(descriptor), most)
    except BaseException:
        stream.close()
        raise
    return stream


def read_bytes(path: Path | str, most: int = BINARY_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises:
        InputError: as `open_regular`, or reading fails.
    """
    with open_regular(path, most=most) as stream:
        try:
            # A read of `most` bytes would allocate them; files under /proc are longer than they say.
            data = stream.read(min(most, os.fstat(stream.fileno()).st_size) + 1)
            while len(data) <= most and (piece := stream.read(1 << 20)):
                data += piece
        except (OSError, MemoryError) as error:
            raise _unreadable(path, error) from None
    if len(data) > most:
        raise _too_large(path, len(data), most)
    return data


def read_text(path: Path | str, most: int = TEXT_BYTES) -> str:
    """The content of a regular file in UTF-8, with or without a byte order mark.

    Raises:
        InputError: as `read_bytes`, or it is no text in UTF-8.
    """
    data = read_bytes(path, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read", f"it is no text in UTF-8 (byte {error.start})",
                         "Name another file.") from None


def is_nested_deeper(value: object, depth: int) -> bool:
    """Returns True if lists and dictionaries stand within each other at more than ``depth`` levels."""
    level = [value]
    for _ in range(depth + 1):
        holders = [one for one in level if isinstance(one, (dict, list))]
        if not holders:
            return False
        level = [inner for one in holders for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def digest(path: Path | str) -> str:
    """SHA-256 of a regular file, read in pieces; "" where there is none, or it cannot be read."""
    total = hashlib.sha256()
    try:
        with open_regular(path) as stream:
            while piece := stream.read(1 << 22):
                total.update(piece)
    except (OSError, InputError):
        return ""
    return total.hexdigest()


def sample_digest(path: Path | str) -> str:
    """Returns a SHA-256 of blocks spread evenly over a file, its first and last among them, and of its size.

    Two versions of trained weights differ nearly everywhere, so most replaced files are noticed in a few milliseconds.
    A change between the blocks is not: `digest` reads all. "" if the file cannot be read.
    """
    total = hashlib.sha256()
    try:
        with open_regular(path) as stream:
            last = max(os.fstat(stream.fileno()).st_size - _BLOCK_BYTES, 0)
            total.update(f"{last}\0".encode())
            for block in range(_BLOCKS):
                stream.seek(last * block // (_BLOCKS - 1))
                total.update(stream.read(_BLOCK_BYTES))
    except (OSError, InputError):
        return ""
    return total.hexdigest()


def _checked(path: Path | str, status: os.stat_result, most: int | None) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        what = next((what for is_it, what in _NO_FILES if is_it(status.st_mode)), "it is no file")
        raise InputError(f"{path} cannot be read", f"{what}; a regular file is needed",
                         "Name a file; what comes through a pipe is to be written to one first.")
    if most is not None and status.st_size > most:
        raise _too_large(path, status.st_size, most)
    return status


def _too_large(path: Path | str, size: int, most: int) -> InputError:
    return InputError(f"{path} is too large", f"it has {size:,} bytes; at most {most:,} are read of a file of its kind",
                      "Check that it is the file meant.")


def _unreadable(path: Path | str, error: Exception) -> InputError:
    cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return InputError(f"{path} cannot be read", cause, "Check the path and its permissions.")
