"""Folders that are written whole or not at all."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from trt_tui.errors import InputError
from trt_tui.files.scratch import clear_beside, in_use, temporary_beside
from trt_tui.files.writing import cannot_write


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner may enter, and its parents; a folder that exists stays as it is.

    Raises:
        OSError: the folder cannot be made.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


def refuse_folder(place: Path) -> None:
    """Checks that a folder is new, or empty.

    Raises:
        InputError: something is there.
    """
    with cannot_write(place):
        empty = place.is_dir() and not place.is_symlink() and not any(place.iterdir())
        if os.path.lexists(place) and not empty:
            raise InputError(f"{place} is there already", "it is to be a folder of its own; nothing is overwritten",
                             "Name a new folder, or empty that one.")


@contextlib.contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``place`` when the block ends and is dropped if it raises.

    An empty folder that it replaces leaves it its permissions.

    Raises:
        InputError: something is there already, its parent is not there or cannot be written, or the disk is full.
    """
    refuse_folder(place)
    with cannot_write(place):
        named = Path(os.path.abspath(place))
        clear_beside(named)
        folder = temporary_beside(named, secrets.token_hex(4))
        folder.mkdir(0o700)
        try:
            with in_use(folder):
                yield folder
            folder.chmod(stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o777 & ~_umask())
            refuse_folder(place)
            os.replace(folder, place)  # an empty folder gives way
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, InputError):  # in the words of what was asked for
                error.title = error.title.replace(str(folder), str(place))
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
