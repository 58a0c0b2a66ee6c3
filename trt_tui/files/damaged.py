"""Damaged files of the program's own: they are kept under another name, so that nothing stops a start again."""

import contextlib
from pathlib import Path

_MAX_KEPT = 100


def set_aside(path: Path) -> Path | None:
    """Renames a damaged file to a name that is free; returns the new path, None if it cannot be renamed."""
    marks = ("", *(f"-{number}" for number in range(2, _MAX_KEPT)))
    free = (path.with_name(f"{path.name}.damaged{mark}") for mark in marks)
    kept = next((place for place in free if not place.exists()), None)
    with contextlib.suppress(OSError):
        if kept is not None:
            return path.rename(kept)
    return None
