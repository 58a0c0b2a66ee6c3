"""Which files a command reads, so that nothing it writes takes the place of one of them."""

import os
from collections.abc import Iterable
from pathlib import Path

from trt_tui.core.data.dumps import split_dump
from trt_tui.core.data.userscript import annotations_of, split_spec
from trt_tui.errors import InputError


def files_read(model: str, *specs: str | None) -> list[Path]:
    """The files behind a network and what else is read: files, folders of data, ``FILE.py:FUNCTION``; without the
    network's external data, which are known once it is open."""
    found = [Path(model)]
    for spec in filter(None, specs):
        spec = str(annotations_of(spec) or split_dump(spec)[0])
        script = split_spec(spec)
        path = script[0] if script is not None and not Path(spec).exists() else Path(spec)
        found += _inside(path) if path.is_dir() else [path]
    return [path for path in found if path.is_file()]


def _inside(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix in (".npz", ".json")]
    except OSError:  # who reads it says so
        return []


def refuse_over(written: Iterable[Path | str], read: Iterable[Path]) -> None:
    """Refuses to overwrite files that are read.

    Args:
        written: Places that are to be written; a network may be written with its weights beside it.
        read: Files that are read, under whatever names.

    Raises:
        InputError: one of the places is one of the files.
    """
    places = [Path(path) for path in written]
    places += [path.with_name(f"{path.name}.data") for path in places if path.suffix.lower() == ".onnx"]
    there = [path for path in places if os.path.isfile(path)]
    for path, other in ((path, other) for path in there for other in read):
        if _same(path, other):
            raise _is_read(path, other)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False


def _is_read(path: Path, other: Path) -> InputError:
    return InputError(f"{path} is read from", f"writing it would lose {other}", "Choose another name.")
