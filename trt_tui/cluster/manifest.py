"""The manifest of a workspace: all that a worker needs to open the same workspace.

A manifest contains the options and the files that they name. File contents are sent only to workers that do not see the
same file at the same path; workers on the same host do. A script that generates samples is not executed again: its
samples are sent as files.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.input_files import FileStamp, Fingerprint, read_file_stamp
from trt_tui.core.data.samples import Samples
from trt_tui.core.data.userscript import split_script_spec
from trt_tui.options import Options
from trt_tui.workspace import Workspace


@dataclass(frozen=True)
class ManifestFile:
    """A file of a manifest, with its stamp at the time of reading.

    Attributes:
        path: The absolute path.
    """

    path: str
    stamp: FileStamp

    @property
    def is_present_on_this_host(self) -> bool:
        """True if this process sees the same file at the same path."""
        return read_file_stamp(self.path) == self.stamp

    @property
    def size_bytes(self) -> int:
        return self.stamp[1]


@dataclass(frozen=True)
class WorkspaceManifest:
    """The options, files and fingerprint from which a worker opens the same workspace.

    Attributes:
        options: The options, with absolute paths.
        source: The fingerprint of the results. A worker that has opened anything else is refused.
        uses_reference_weights: True if FP32 means the weights of the reference.
        key: The key of the workspace on workers.
    """

    options: Options
    files: tuple[ManifestFile, ...]
    source: Fingerprint
    uses_reference_weights: bool = False
    key: str = field(default_factory=lambda: f"trt-tui-{uuid.uuid4().hex}")

    def list_resources(self, for_engines: bool) -> dict[str, int]:
        """Returns Dask's resources that a task of this workspace requires: the worker itself, for one task at a time.

        Args:
            for_engines: True if the task needs a worker with the same builder and GPU as this process.
        """
        return {self.key: 1, **({f"{self.key}-engines": 1} if for_engines else {})}

    def rebase_option_paths(self, root_folder: Path) -> Options:
        """Returns the options with all paths below ``root_folder`` in place of the file system root."""
        return _map_option_paths(self.options, lambda path: str(root_folder) + path)

    def read_file_piece(self, file_index: int, start_byte: int, byte_count: int) -> bytes:
        """Reads ``byte_count`` bytes of a file from ``start_byte`` on, or fewer at the end of the file."""
        with open(self.files[file_index].path, "rb") as stream:
            stream.seek(start_byte)
            return stream.read(byte_count)


def build_manifest(workspace: Workspace, folder: Path) -> WorkspaceManifest:
    """Builds the manifest of a workspace whose network and data are hashed.

    Args:
        folder: The folder for the samples of scripts. It must exist as long as the manifest is in use.

    Raises:
        OSError: The disk is full.
    """
    source, options = workspace.fingerprint, workspace.options
    assert source is not None, "a workspace is identified before it is handed on"
    # Ranges are part of tasks; the other options concern this process only.
    options = replace(options, calib_cache=None, new_calib_cache=None, stages=(), engine_files=(), outputs=None,
                      inputs=None, gpus=None, workers=None, scheduler=None,
                      production=replace(options.production, timing_cache=""))
    options = _map_option_paths(options, os.path.abspath)
    paths = [path for path, current_stamp in workspace.stamped_files.stamps if current_stamp is not None]
    if _is_script_spec(options.data):
        paths += _write_feeds(workspace.samples, folder / "data")
        options = replace(options, data=str(folder / "data"), samples=None, batch=workspace.samples.batch)
    if workspace.calib_data_samples is not None and _is_script_spec(options.calib_data):
        paths += _write_feeds(workspace.calib_data_samples, folder / "calib")
        options = replace(options, calib_data=str(folder / "calib"))
    files = [ManifestFile(path, current_stamp) for path in dict.fromkeys(map(os.path.abspath, paths))
             if (current_stamp := read_file_stamp(path)) is not None]
    return WorkspaceManifest(options, tuple(files), source, bool(workspace.network.weights_source_name))


def _map_option_paths(options: Options, map_path: Callable[[str], str]) -> Options:
    """Returns the options with ``map_path`` applied to each path. A suffix behind a path, such as a function name,
    stays."""
    def map_path_specs(path_specs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(map_path, path_specs))

    def map_optional_path_spec(path_spec: str | None) -> str | None:
        return map_path(path_spec) if path_spec is not None else None

    return replace(options, model=map_path(options.model), data=map_optional_path_spec(options.data),
                   calib_data=map_optional_path_spec(options.calib_data), metric=map_optional_path_spec(options.metric),
                   reference=map_optional_path_spec(options.reference),
                   production=replace(options.production, plugins=map_path_specs(options.production.plugins)),
                   ort_ops=map_path_specs(options.ort_ops))


def _is_script_spec(spec: str | None) -> bool:
    return spec is not None and split_script_spec(spec) is not None and not Path(spec).is_dir()


def _write_feeds(samples: Samples, folder: Path) -> list[str]:
    """Writes each feed with its labels to a separate file. Returns the paths."""
    folder.mkdir()
    paths = []
    for index in range(len(samples)):
        path = folder / f"{index:08d}.npz"
        arrays: dict[str, Any] = {**samples.read_feed(index), **samples.read_labels(index)}
        np.savez(path, **arrays)
        paths.append(str(path))
    return paths
