"""Folders that are written whole or not at all."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.scratch import mark_folder_in_use, remove_stale_files_beside, temporary_path
from trt_tui.files.writing import convert_write_errors


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only its owner may enter, and its parents; a folder that exists stays as it is.

    Raises:
        OSError: the folder cannot be made.
    """
    if not folder.parent.exists():
        make_private_folder(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


def require_empty_folder(folder: Path) -> None:
    """Checks that a folder is new, or empty.

    Raises:
        InputError: something is there.
    """
    with convert_write_errors(folder):
        is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
        if os.path.lexists(folder) and not is_empty:
            raise InputError(f"{folder} is there already", "it is to be a folder of its own; nothing is overwritten",
                             "Name a new folder, or empty that one.")


@contextlib.contextmanager
def fill_folder_atomically(destination: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``destination`` when the block ends and is dropped if it raises.

    An empty folder that it replaces leaves it its permissions.

    Raises:
        InputError: something is there already, its parent is not there or cannot be written, or the disk is full.
    """
    require_empty_folder(destination)
    with convert_write_errors(destination):
        absolute_path = Path(os.path.abspath(destination))
        remove_stale_files_beside(absolute_path)
        temporary_folder = temporary_path(absolute_path, secrets.token_hex(4))
        temporary_folder.mkdir(0o700)
        try:
            with mark_folder_in_use(temporary_folder):
                yield temporary_folder
            temporary_folder.chmod(
                stat.S_IMODE(destination.stat().st_mode) if destination.exists() else 0o777 & ~_read_umask())
            require_empty_folder(destination)
            os.replace(temporary_folder, destination)  # an empty folder gives way
        except BaseException as error:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            if isinstance(error, InputError):  # in the words of what was asked for
                error.title = error.title.replace(str(temporary_folder), str(destination))
            raise


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
