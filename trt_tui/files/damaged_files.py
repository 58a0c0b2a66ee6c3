"""Checksums that detect damaged files, and the renaming of damaged files, so that the program does not read them again.
"""

import contextlib
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256, read_text
from trt_tui.files.writing import write_file_atomically

_MAX_DAMAGED_FILES = 100


def write_checksum_file(path: Path) -> None:
    """Writes the checksum of a file to a second file beside it. Nothing is written if the folder is not writable."""
    with contextlib.suppress(OSError, InputError):
        write_file_atomically(_checksum_file_path(path), file_sha256(path))


def update_checksum_file(path: Path) -> None:
    """Writes the checksum file of a file again, if the file has one."""
    if _checksum_file_path(path).is_file():
        write_checksum_file(path)


def has_wrong_checksum(path: Path) -> bool:
    """Returns True if the content of a file differs from its stored checksum; False if no checksum is stored."""
    try:
        return path.is_file() and _checksum_file_path(path).is_file() and read_text(
            _checksum_file_path(path)) != file_sha256(path)
    except (OSError, InputError):
        return True


def _checksum_file_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def rename_damaged_file(path: Path) -> Path | None:
    """Renames a damaged file to an unused name. Returns the new path, or None if the file cannot be renamed."""
    suffixes = ("", *(f"-{number}" for number in range(2, _MAX_DAMAGED_FILES)))
    candidates = (path.with_name(f"{path.name}.damaged{mark}") for mark in suffixes)
    free_path = next((candidate for candidate in candidates if not candidate.exists()), None)
    with contextlib.suppress(OSError):
        if free_path is not None:
            return path.rename(free_path)
    return None
