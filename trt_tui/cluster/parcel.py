"""What a worker needs to open what is open here: the options, and the files that they name.

Files go by content, and only to workers that do not see the same file at the same place, as those of one host do. A
script that gives samples is not run again: what it gave goes as files.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.data.userscript import DETECTION, split_spec
from trt_tui.core.data.watched import Source, Stamp, stamp
from trt_tui.options import Options
from trt_tui.workspace import Workspace


@dataclass(frozen=True)
class File:
    """A file as it was when it was read here.

    Attributes:
        path: Its absolute path.
    """

    path: str
    stamp: Stamp

    @property
    def here(self) -> bool:
        """Whether this process sees the same file there."""
        return stamp(self.path) == self.stamp

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stamp[1]


@dataclass(frozen=True)
class Parcel:
    """See the module's docstring.

    Attributes:
        options: With absolute paths.
        source: What figures are of: a worker that has opened anything else is refused.
    """

    options: Options
    files: tuple[File, ...]
    source: Source

    def under(self, root: Path) -> Options:
        """The options, with every path below a folder in place of ``/``."""
        return _located(self.options, lambda path: str(root) + path)

    def piece(self, number: int, start: int, size: int) -> bytes:
        """So many bytes of a file's content, fewer at its end."""
        with open(self.files[number].path, "rb") as stream:
            stream.seek(start)
            return stream.read(size)


def parcel_of(workspace: Workspace, folder: Path) -> Parcel:
    """What is open in a workspace whose network and data are hashed.

    Args:
        folder: Takes what scripts gave; it has to last as long as the parcel.

    Raises:
        OSError: the folder has no room.
    """
    source, options = workspace.source, workspace.options
    assert source is not None, "a workspace is identified before it is handed on"
    # Ranges go with errands; the rest concerns this process.
    options = replace(options, calib_cache=None, stages=(), engine=None, outputs=None, inputs=None, gpus=None,
                      workers=None, scheduler=None, production=replace(options.production, timing_cache=""))
    options = _located(options, os.path.abspath)
    paths = [path for path, known in workspace.inputs.stamps if known is not None]
    if _is_script(options.data):
        paths += _written(workspace.samples, folder / "data")
        options = replace(options, data=str(folder / "data"), samples=None, batch=workspace.samples.batch)
    if workspace.given is not None and _is_script(options.calib_data):
        paths += _written(workspace.given, folder / "calib")
        options = replace(options, calib_data=str(folder / "calib"))
    files = [File(path, known) for path in dict.fromkeys(map(os.path.abspath, paths))
             if (known := stamp(path)) is not None]
    return Parcel(options, tuple(files), source)


def _located(options: Options, place: Callable[[str], str]) -> Options:
    """The options with each path in another place; what stands behind a path, such as a function, stays."""
    def moved(text: str) -> str:
        start = DETECTION if text.startswith(DETECTION) else ""
        return start + place(text.removeprefix(start))

    def each(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(moved, texts))

    def maybe(text: str | None) -> str | None:
        return moved(text) if text is not None else None

    return replace(options, model=moved(options.model), data=maybe(options.data), calib_data=maybe(options.calib_data),
                   metric=maybe(options.metric), reference=maybe(options.reference),
                   production=replace(options.production, plugins=each(options.production.plugins)),
                   ort_ops=each(options.ort_ops))


def _is_script(spec: str | None) -> bool:
    return spec is not None and split_spec(spec) is not None and not Path(spec).is_dir()


def _written(samples: Samples, folder: Path) -> list[str]:
    """Writes each feed with its labels as a file of its own; returns their paths."""
    folder.mkdir()
    paths = []
    for index in range(len(samples)):
        path = folder / f"{index:08d}.npz"
        arrays: dict[str, Any] = {**samples.feed(index), **samples.labels(index)}
        np.savez(path, **arrays)
        paths.append(str(path))
    return paths
