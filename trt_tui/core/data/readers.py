"""Readers of input data, which open an ``.npz``, a folder, a Polygraphy inputs JSON or a script as a series of data
parts."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.array_files import (
    DATA_FORMATS,
    ArraySpool,
    DataPart,
    check_array_file,
    convert_damaged_file_errors,
    open_npz,
    spool_feed,
)
from trt_tui.core.data.polygraphy_json import open_polygraphy_array, polygraphy_object_kind
from trt_tui.core.data.userscript import UserFunction, split_script_spec
from trt_tui.errors import InputError
from trt_tui.files.lazy_json import read_lazy_json
from trt_tui.files.reading import missing_file_error

MAX_SCRIPT_FEEDS = 1024
"""Maximum number of feeds from a script if no number of samples is requested."""


def read_data_parts(spec: str, sample_limit: int | None, warnings: list[str]) -> Iterator[DataPart]:
    """Yields the data parts (files or single feeds) of a ``--data`` specification, each when it is requested.

    A script with a limit on the samples may yield parts without end.

    Args:
        sample_limit: Maximum number of samples that are used; None for all.
        warnings: A list to which warnings for the user are appended.

    Raises:
        InputError: The data cannot be read. `UserFunction` can raise other errors.
    """
    script = split_script_spec(spec)
    if script is not None and not Path(spec).is_dir():
        yield from _read_script_parts(UserFunction(script[0], script[1] or "load_data"), sample_limit, warnings)
        return
    path = Path(spec)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".json"))
        if not files:
            raise InputError(f"Folder {path} holds no .npz file", next_step=f"Give {DATA_FORMATS}.")
        for file in files:
            for part in _read_file_parts(file, f"{path.name}/{file.name}"):
                yield replace(part, file=file.name if len(files) > 1 else "")
    elif path.exists():
        yield from _read_file_parts(path, path.name)
    else:
        raise missing_file_error(f"Data not found: {spec}", path, f"Give {DATA_FORMATS}.")


def _read_file_parts(path: Path, source_title: str) -> Iterator[DataPart]:
    empty = check_array_file(path, source_title) == 0
    with convert_damaged_file_errors(source_title):
        archive = zipfile.is_zipfile(path)
    if empty:
        raise InputError(f"{source_title} is empty", next_step=f"Give {DATA_FORMATS}.")
    if archive or path.suffix == ".npz":
        yield open_npz(path, source_title)
    elif path.suffix == ".json":
        spool, value = ArraySpool(), read_lazy_json(path, source_title)
        for index, feed in enumerate(value if isinstance(value, list | np.ndarray) else [value]):
            title = f"{source_title}, feed {index}"
            if isinstance(feed, dict):
                feed = _load_polygraphy_arrays(feed, title)
            yield spool_feed(feed, title, spool)
    else:
        hint = "A single .npy has no input name: save it with numpy.savez. " if path.suffix == ".npy" else ""
        raise InputError(f"{source_title} is not a readable data file", next_step=f"{hint}Give {DATA_FORMATS}.")


def _load_polygraphy_arrays(feed: dict[str, Any], title: str) -> dict[str, np.ndarray]:
    if kind := polygraphy_object_kind(feed):
        raise InputError(f"{title} holds Polygraphy's {kind}, not feeds of numpy arrays", "",
                         "Save the inputs with polygraphy run --save-inputs, or as .npz.")
    with convert_damaged_file_errors(title):
        return {name: open_polygraphy_array(value, f"{title}: {name}").load() for name, value in feed.items()}


def _read_script_parts(user_function: UserFunction, sample_limit: int | None,
                       warnings: list[str]) -> Iterator[DataPart]:
    spool = ArraySpool()
    feeds = user_function.iterate_results()
    for feed_index, feed in enumerate(feeds):
        if sample_limit is None and feed_index == MAX_SCRIPT_FEEDS:
            warnings.append(f"{user_function} gave over {MAX_SCRIPT_FEEDS} feeds; the rest is ignored")
            return
        yield spool_feed(feed, f"{user_function}, feed {feed_index}", spool)
