"""The worker side of a cluster: its description, its workspace, and the execution of tasks.

Dask keeps a `WorkerWorkspace` while the program that created it is connected. Its inference sessions and files are
removed when Dask drops it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import pickle
import shutil
import socket
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed import get_worker
from distributed.utils import sync

import trt_tui
from trt_tui.backends.cuda import find_first_device
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.core.execution import LocalExecutor, Task
from trt_tui.core.lowering.rulebook import ARITHMETIC_VERSION
from trt_tui.core.runner import Backend
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.files.writing import make_private_folder
from trt_tui.workspace import Workspace

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


@dataclass(frozen=True)
class WorkerInfo:
    """The description that a worker gives of its process.

    Attributes:
        threads: The number of threads that the worker runs an operator on, if it uses processor cores.
    """

    environment: WorkerEnvironment
    host: str
    threads: int


def get_worker_environment(backend: Backend) -> WorkerEnvironment:
    """Returns the environment of this process, with the version of its simulation backend."""
    releases = []
    for name in ("tensorrt", "tensorrt-rtx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases.append(f"{name} {importlib.metadata.version(name)}")
    gpu = ""
    with contextlib.suppress(BackendUnavailableError):
        gpu = find_first_device().name
    program = f"{trt_tui.__version__} ({ARITHMETIC_VERSION}, source {source_sha256()[:12]})"
    return WorkerEnvironment(program, f"{backend.version} ({backend.provider})", ", ".join(releases), gpu)


def describe_worker() -> WorkerInfo:
    from trt_tui.backends.registry import get_simulation_backend

    return WorkerInfo(get_worker_environment(get_simulation_backend()), socket.gethostname(),
                      get_worker().state.nthreads)


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
        return [index for index, file in enumerate(self._manifest.files) if not file.is_present_on_this_host]

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
            options = manifest.rebase_option_paths(self._folder)
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


def list_missing_files(worker_workspace: WorkerWorkspace) -> list[int]:
    return worker_workspace.list_missing_files()


def receive_file_piece(worker_workspace: WorkerWorkspace, file_index: int, piece: bytes) -> None:
    worker_workspace.receive_file_piece(file_index, piece)


def open_workspace(worker_workspace: WorkerWorkspace, builds_engines: bool) -> None:
    worker_workspace.open_workspace(builds_engines)


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
