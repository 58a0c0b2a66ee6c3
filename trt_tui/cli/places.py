"""Checks where commands will write before anything is measured, and writes there."""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from trt_tui.errors import InputError
from trt_tui.words import visible

T = TypeVar("T")


def check_places(model: str, arguments: dict[str, Any], config_path: str | None, *paths: str | None,
                  kind: str = "", config_to: str | None = None) -> list[str]:
    """Refuses files that cannot be written, or that are read, before anything is measured.

    Whether the network's weights lie in one of them is known once it is open; the files are returned for that.

    Args:
        paths: The files to write; None and - are no files.
        kind: The format of the first of them, which may consist of several files.
        config_to: The one of them that takes a config; it may be the config that is read.
    """
    from trt_tui.core.data.places import files_read, refuse_over
    from trt_tui.files.writing import is_special

    read = files_read(model, *(arguments.get(one) for one in ("reference", "data", "calib_data", "calib_cache",
                                                              "metric")))
    read += files_read(model, *(arguments.get(one) for one in ("engine", "outputs", "inputs")),
                       *(text.partition("=")[2] for text in arguments.get("stages", ())))
    config = files_read(model, config_path)
    written = [path for path in paths if path not in (None, "-")]
    beside = _beside(kind, written[0]) if kind and written else []
    timings = [arguments["timing_cache"]] if arguments.get("timing_cache") else []
    everything = [*written, *beside, *timings]
    refuse_over(everything, read)
    refuse_over([path for path in everything if path != config_to], config)
    places = [os.path.realpath(path) for path in everything if not is_special(path)]
    if len(set(places)) < len(places):
        raise InputError("one file cannot hold two things", f"{', '.join(everything)} are asked for",
                         "Give each a name of its own.")
    for path in (*written, *beside):
        _check_place(path)
    return everything


def check_evidence(arguments: dict[str, Any]) -> None:
    """Refuses files of evidence that are not there, before anything is opened; what they hold is read later.

    Raises:
        InputError: an option of stages makes no sense, or a file does not exist.
    """
    from trt_tui.core.data.dumps import split_dump
    from trt_tui.core.measure.stages import stages_of
    from trt_tui.files.reading import regular

    named = [arguments["reference"], arguments["inputs"]]
    named += [one.file for one in stages_of(arguments["stages"], arguments["engine"], arguments["outputs"])]
    for path in (split_dump(one)[0] for one in named if one):
        if not path.is_dir():
            regular(path)


def check_folder(path: str) -> None:
    """Refuses a folder that cannot be made, or that holds something, before anything is measured for it."""
    from trt_tui.files.folders import refuse_folder
    from trt_tui.files.writing import cannot_write

    place = Path(os.path.realpath(path))
    refuse_folder(place)
    with cannot_write(place):
        if not place.parent.is_dir():
            raise FileNotFoundError
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {place.parent} is read-only")


def _beside(kind: str, path: str) -> list[str]:
    from trt_tui.core.exporters import production

    return [str(one) for one in production.companions(kind, Path(path)).values()]


def _check_place(path: str) -> None:
    """Refuses a file that cannot be written, before anything is measured for it."""
    from trt_tui.files.writing import cannot_write, is_special

    place = Path(path)
    with cannot_write(place):
        if is_special(place):
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = Path(os.path.realpath(place)).parent
        if not folder.is_dir():
            raise FileNotFoundError
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with suppress(FileNotFoundError):
            os.stat(place)  # a circle of links leads nowhere
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {folder} is read-only")


def write_outputs(texts: Sequence[tuple[str | None, Callable[[T], str]]], session: T, over: bool = True) -> None:
    """Writes the texts that were asked for; - is stdout, which comes last so that no file is lost if it fails.

    Args:
        texts: Paths (None if nothing is asked for), and what makes the text of a session.
        over: Overwrite files that exist; an incomplete report does not replace a complete one.
    """
    from trt_tui.files.writing import write_atomic

    for path, text in sorted(texts, key=lambda one: one[0] == "-"):
        if path == "-":
            click.echo(text(session), nl=False)
        elif path is not None and not over and os.path.isfile(path):
            click.echo(f"{visible(path)} is left as it was", err=True)
        elif path is not None:
            write_atomic(Path(path), text(session))
            click.echo(f"Wrote {visible(path)}", err=True)
