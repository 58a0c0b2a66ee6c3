"""What a worker needs to open the workspace of the program, and the worker side of a cluster.

A manifest contains the options and the files that they name. File contents are sent only to workers that do not see the
same file at the same path; workers on the same host do. A script that generates samples is not executed again: its
samples are sent as files.

Dask keeps a `WorkerWorkspace` while the program that created it is connected. Its inference sessions and files are
removed when Dask drops it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from distributed import get_worker
from distributed.utils import sync

import trt_tui
from trt_tui.backends.cuda import find_first_device
from trt_tui.backends.registry import BUILDER_NAMES, find_installed_version, get_simulation_backend
from trt_tui.core.data.input_files import FileStamp, Fingerprint, read_file_stamp
from trt_tui.core.data.samples import Samples
from trt_tui.core.data.userscript import split_script_spec
from trt_tui.core.execution import LocalExecutor, Task
from trt_tui.core.lowering.rulebook import ARITHMETIC_VERSION
from trt_tui.core.runner import Backend
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.files.writing import make_private_folder
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


POLL_INTERVAL_S = 0.05
"""The interval in seconds at which a waiting task checks if it was cancelled."""

_open_workspaces: weakref.WeakValueDictionary[str, WorkerWorkspace] = weakref.WeakValueDictionary()
"""The open workspaces of this worker, by the key of their manifest."""


@dataclass(frozen=True)
class WorkerEnvironment:
    """The software and hardware of a process that results depend on, besides the network, the data and the options.

    Attributes:
        program: The version of trt-tui, with those of its arithmetic and source.
        runtime: The version of ONNX Runtime, with its execution provider.
        builders: The versions of TensorRT and TensorRT-RTX.
        gpu: The name of the GPU; "" without a GPU.
    """

    program: str
    runtime: str
    builders: str
    gpu: str

    def describe_differences(self, other_environment: WorkerEnvironment, for_engines: bool) -> list[str]:
        """Returns a text for each difference between this environment and another one.

        Args:
            for_engines: True to compare the builders and the GPUs too, on which only engines depend.
        """
        labels = {"program": "trt-tui", "runtime": "ONNX Runtime"} | (
            {"builders": "TensorRT", "gpu": "GPU"} if for_engines else {})
        values, other_values = ({field.name: str(kind.__dict__[field.name]) for field in fields(WorkerEnvironment)}
                                for kind in (self, other_environment))
        return [f"{word} {other_values[name] or 'none'}, here {values[name] or 'none'}" for name, word in labels.items()
                if values[name] != other_values[name]]


def get_worker_environment(backend: Backend) -> WorkerEnvironment:
    """Returns the environment of this process, with the version of its simulation backend."""
    releases = [f"{name} {version}" for name in BUILDER_NAMES if (version := find_installed_version(name))]
    gpu = ""
    with contextlib.suppress(BackendUnavailableError):
        gpu = find_first_device().name
    program = f"{trt_tui.__version__} ({ARITHMETIC_VERSION}, source {source_sha256()[:12]})"
    return WorkerEnvironment(program, f"{backend.version} ({backend.provider})", ", ".join(releases), gpu)


def describe_worker() -> WorkerEnvironment:
    return get_worker_environment(get_simulation_backend())


class WorkerWorkspace:
    """The workspace of a worker.

    Args:
        manifest: The manifest of the workspace to open.
    """

    def __init__(self, manifest: WorkspaceManifest) -> None:
        self._manifest = manifest
        self._folder = Path(get_worker().local_directory) / f"trt-tui-{uuid.uuid4().hex}"
        self.workspace: Workspace | None = None
        self.unpickle_task: Callable[[bytes], Task[Workspace, Any, Any]] = lru_cache(maxsize=2)(pickle.loads)
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __reduce__(self) -> str:
        raise TypeError("a place stays in its worker")

    def list_missing_files(self) -> list[int]:
        """Returns the indices of the files that this process does not see at the same path."""
        return [index for index, file in enumerate(self._manifest.files) if read_file_stamp(file.path) != file.stamp]

    def receive_file_piece(self, file_index: int, piece: bytes) -> None:
        """Appends a piece to the local copy of a file."""
        path = self._received_file_path(file_index)
        make_private_folder(path.parent)
        with open(path, "ab") as stream:
            stream.write(piece)

    def open_workspace(self, builds_engines: bool) -> None:
        """Opens the workspace of the manifest, and offers this worker to its tasks.

        Args:
            builds_engines: True if the worker executes the tasks for engines too.

        Raises:
            InputError: The hashes of the network or the samples differ from those of the program.
        """
        manifest, options = self._manifest, self._manifest.options
        if self._folder.exists():
            options = _map_option_paths(options, lambda path: str(self._folder) + path)
            for index, file in enumerate(manifest.files):
                path = self._received_file_path(index)
                if not path.exists():
                    make_private_folder(path.parent)
                    path.symlink_to(file.path)
        workspace = Workspace(replace(options, threads=get_worker().state.nthreads))
        if manifest.uses_reference_weights and options.reference is not None:
            workspace.use_reference_weights(options.reference)
        fingerprint = workspace.set_fingerprint(workspace.network.sha256())
        for kind, actual_hash, expected_hash in (("network", fingerprint.sha256, manifest.source.sha256),
                                                 ("samples", fingerprint.data_sha256, manifest.source.data_sha256)):
            if actual_hash != expected_hash:
                raise InputError(f"it reads another {kind}", "the same files give other data there")
        _ = workspace.analysis
        self.workspace = workspace
        _open_workspaces[manifest.key] = self
        sync(get_worker().loop, get_worker().set_resources, **manifest.list_resources(builds_engines))

    def _received_file_path(self, file_index: int) -> Path:
        return Path(f"{self._folder}{self._manifest.files[file_index].path}")


def is_task_cancelled(task_key: str) -> bool:
    """Returns True if the Dask task of this thread was cancelled, or the program has ended."""
    task_state = get_worker().state.tasks.get(task_key)
    return task_state is None or task_state.state != "executing"


def run_task(manifest_key: str, pickled_task: bytes, pickled_items: bytes) -> tuple[float, bytes]:
    """Executes a task for items in the workspace of a manifest.

    Returns:
        The duration in seconds, and the pickled results. If an item fails, the last result is its exception.
    """
    worker_workspace = _open_workspaces[manifest_key]
    workspace, worker_task = worker_workspace.workspace, worker_workspace.unpickle_task(pickled_task)
    assert workspace is not None, "only a worker that has opened it has the resource"
    task_key, results, start_time = str(get_worker().get_current_task()), [], time.perf_counter()
    executor = LocalExecutor(workspace)
    with contextlib.closing(executor.map(worker_task, pickle.loads(pickled_items))) as steps:
        try:
            while not is_task_cancelled(task_key):
                if not executor.is_ready():
                    time.sleep(POLL_INTERVAL_S)
                elif (finished := next(steps)) is not None:
                    results.append(finished[1])
        except StopIteration:
            pass
        except Exception as error:
            results.append(error)
    return time.perf_counter() - start_time, pickle.dumps(results)
