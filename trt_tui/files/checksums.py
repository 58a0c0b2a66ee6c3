"""Checksums beside files whose format belongs to somebody else, such as TensorRT's timing caches."""

import contextlib
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256, read_text
from trt_tui.files.writing import write_file_atomically


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
