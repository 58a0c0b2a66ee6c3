"""Damaged files: checksums that reveal them, and their removal from the path, so that nothing fails again."""

import contextlib
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256, read_text
from trt_tui.files.writing import write_file_atomically

_MAX_DAMAGED_FILES = 100


def write_checksum_file(path: Path) -> None:
    """Stores the checksum of a file beside it; nothing happens if the folder takes none."""
    with contextlib.suppress(OSError, InputError):
        write_file_atomically(_checksum_file_path(path), file_sha256(path))


def update_checksum_file(path: Path) -> None:
    """Stores the checksum of a file anew, if it has one."""
    if _checksum_file_path(path).is_file():
        write_checksum_file(path)


def has_wrong_checksum(path: Path) -> bool:
    """Returns True if a file is not what it was when its checksum was stored; False without a checksum."""
    try:
        return path.is_file() and _checksum_file_path(path).is_file() and read_text(
            _checksum_file_path(path)) != file_sha256(path)
    except (OSError, InputError):
        return True


def _checksum_file_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def rename_damaged_file(path: Path) -> Path | None:
    """Renames a damaged file to a name that is free; returns the new path, None if it cannot be renamed."""
    suffixes = ("", *(f"-{number}" for number in range(2, _MAX_DAMAGED_FILES)))
    candidates = (path.with_name(f"{path.name}.damaged{mark}") for mark in suffixes)
    free_path = next((candidate for candidate in candidates if not candidate.exists()), None)
    with contextlib.suppress(OSError):
        if free_path is not None:
            return path.rename(free_path)
    return None
