"""Readers: an ``.npz``, a folder of them, Polygraphy's inputs JSON and scripts, as *parts* (see `batches`)."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from trt_tui.core.data.inputs_json import polygraphy_feeds
from trt_tui.core.data.stored import DATA_FORMATS, Part, Spool, npz_part, reading, spooled_part
from trt_tui.core.data.userscript import UserFunction, split_spec
from trt_tui.errors import InputError
from trt_tui.files.reading import missing_file, regular

MAX_SCRIPT_FEEDS = 1024
"""Most feeds taken from a script when no number of samples is asked for."""


def read_parts(spec: str, limit: int | None, warnings: list[str]) -> Iterator[Part]:
    """The parts of a data spec, read as they are asked for; may be endless for a script with a limit.

    Args:
        limit: Most samples that are asked for; None for as many as there are.
        warnings: Takes what the user is to know.

    Raises:
        InputError: the data cannot be read; or whatever `UserFunction` raises.
    """
    script = split_spec(spec)
    if script is not None and not Path(spec).is_dir():
        yield from _script_parts(UserFunction(script[0], script[1] or "load_data"), limit, warnings)
        return
    path = Path(spec)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".json"))
        if not files:
            raise InputError(f"Folder {path} holds no .npz file", next_step=f"Give {DATA_FORMATS}.")
        for file in files:
            yield from _file_parts(file, f"{path.name}/{file.name}")
    elif path.exists():
        yield from _file_parts(path, path.name)
    else:
        raise missing_file(f"Data not found: {spec}", path, f"Give {DATA_FORMATS}.")


def _file_parts(path: Path, source: str) -> Iterator[Part]:
    with reading(source):
        empty = regular(path).st_size == 0
        archive = zipfile.is_zipfile(path)
    if empty:
        raise InputError(f"{source} is empty", next_step=f"Give {DATA_FORMATS}.")
    if archive or path.suffix == ".npz":
        yield npz_part(path, source)
    elif path.suffix == ".json":
        spool = Spool()
        for index, feed in enumerate(polygraphy_feeds(path, source)):
            yield spooled_part(feed, f"{source}, feed {index}", spool)
    else:
        hint = "A single .npy has no input name: save it with numpy.savez. " if path.suffix == ".npy" else ""
        raise InputError(f"{source} is no data file that can be read", next_step=f"{hint}Give {DATA_FORMATS}.")


def _script_parts(function: UserFunction, limit: int | None, warnings: list[str]) -> Iterator[Part]:
    spool = Spool()
    feeds = function.iterate()
    for index, feed in enumerate(feeds):
        if limit is None and index == MAX_SCRIPT_FEEDS:
            warnings.append(f"{function} gave over {MAX_SCRIPT_FEEDS} feeds; the rest is not used")
            return
        yield spooled_part(feed, f"{function}, feed {index}", spool)
