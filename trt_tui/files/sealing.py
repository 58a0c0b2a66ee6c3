"""Checksums beside files whose format belongs to somebody else, such as TensorRT's timing caches."""

import contextlib
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.reading import digest, read_text
from trt_tui.files.writing import write_atomic


def seal(path: Path) -> None:
    """Stores the checksum of a file beside it; nothing happens if the folder takes none."""
    with contextlib.suppress(OSError, InputError):
        write_atomic(_seal_of(path), digest(path))


def reseal(path: Path) -> None:
    """Stores the checksum of a file anew, if it has one."""
    if _seal_of(path).is_file():
        seal(path)


def is_broken(path: Path) -> bool:
    """Returns True if a file is not what it was when its checksum was stored; False without a checksum."""
    try:
        return path.is_file() and _seal_of(path).is_file() and read_text(_seal_of(path)) != digest(path)
    except (OSError, InputError):
        return True


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
