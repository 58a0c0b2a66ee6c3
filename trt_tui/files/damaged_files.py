"""Damaged files of the program's own: they are kept under another name, so that nothing stops a start again."""

import contextlib
from pathlib import Path

_MAX_DAMAGED_FILES = 100


def rename_damaged_file(path: Path) -> Path | None:
    """Renames a damaged file to a name that is free; returns the new path, None if it cannot be renamed."""
    suffixes = ("", *(f"-{number}" for number in range(2, _MAX_DAMAGED_FILES)))
    candidates = (path.with_name(f"{path.name}.damaged{mark}") for mark in suffixes)
    free_path = next((candidate for candidate in candidates if not candidate.exists()), None)
    with contextlib.suppress(OSError):
        if free_path is not None:
            return path.rename(free_path)
    return None
