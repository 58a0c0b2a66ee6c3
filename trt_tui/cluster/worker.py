"""What runs in a worker: it says what it is, opens what the program has open, and does errands.

A `WorkerWorkspace` is a result that Dask keeps in the worker for as long as the program that asked for it is connected;
with it go the sessions and the files.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import pickle
import shutil
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from distributed import get_worker

import trt_tui
from trt_tui.backends.cuda import find_first_device
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.core.execution import Task
from trt_tui.core.lowering.rulebook import ARITHMETIC_VERSION
from trt_tui.core.runner import Backend
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.files.writing import make_private_folder
from trt_tui.workspace import Workspace

POLL_INTERVAL_S = 0.05
"""A task that waits for its turn looks this often whether it was called off."""


@dataclass(frozen=True)
class WorkerEnvironment:
    """What results depend on beside the network, the data and the options.

    Attributes:
        program: Version of this program, with that of its arithmetic.
        runtime: ONNX Runtime, with what it runs on.
        builders: The releases of TensorRT and TensorRT-RTX.
        gpu: Its name; "" where there is none.
    """

    program: str
    runtime: str
    builders: str
    gpu: str

    def describe_differences(self, other_environment: WorkerEnvironment, for_engines: bool) -> list[str]:
        """How another kind differs, in words; what engines alone depend on counts if ``for_engines``."""
        labels = {"program": "trt-tui", "runtime": "ONNX Runtime"} | (
            {"builders": "TensorRT", "gpu": "GPU"} if for_engines else {})
        values, other_values = ({field.name: str(kind.__dict__[field.name]) for field in fields(WorkerEnvironment)}
                                for kind in (self, other_environment))
        return [f"{word} {other_values[name] or 'none'}, here {values[name] or 'none'}" for name, word in labels.items()
                if values[name] != other_values[name]]


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker says of itself.

    Attributes:
        threads: How many it runs an operator on, where it runs on processor cores.
    """

    environment: WorkerEnvironment
    host: str
    threads: int


def get_worker_environment(backend: Backend) -> WorkerEnvironment:
    """The kind of this process, whose backend simulates."""
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
    """What this worker is."""
    from trt_tui.backends.registry import get_simulation_backend

    return WorkerInfo(get_worker_environment(get_simulation_backend()), socket.gethostname(),
                      get_worker().state.nthreads)


class WorkerWorkspace:
    """What a worker has open; its errands run one at a time.

    Args:
        manifest: What to open.
    """

    def __init__(self, manifest: WorkspaceManifest) -> None:
        self._manifest = manifest
        self._folder = Path(get_worker().local_directory) / f"trt-tui-{uuid.uuid4().hex}"
        self._workspace: Workspace | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __reduce__(self) -> str:
        raise TypeError("a place stays in its worker")

    def list_missing_files(self) -> list[int]:
        """The numbers of the files that are not seen here."""
        return [index for index, file in enumerate(self._manifest.files) if not file.is_present_on_this_host]

    def receive_file_piece(self, file_index: int, piece: bytes) -> None:
        """Takes the next piece of a file."""
        path = self._received_file_path(file_index)
        make_private_folder(path.parent)
        with open(path, "ab") as stream:
            stream.write(piece)

    def open_workspace(self) -> None:
        """Opens the parcel.

        Raises:
            InputError: what is open now is not what the program has open.
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
        fingerprint = workspace.set_fingerprint(workspace.network.sha256())
        for kind, actual_hash, expected_hash in (("network", fingerprint.sha256, manifest.source.sha256),
                                                 ("samples", fingerprint.data_sha256, manifest.source.data_sha256)):
            if actual_hash != expected_hash:
                raise InputError(f"it reads another {kind}", "the same files have other results there")
        _ = workspace.analysis
        self._workspace = workspace

    @contextlib.contextmanager
    def lock_workspace(self, task_key: str) -> Iterator[Workspace | None]:
        """The workspace once no other errand uses it; None if the task was called off meanwhile."""
        while not self._lock.acquire(timeout=POLL_INTERVAL_S):
            if is_task_cancelled(task_key):
                yield None
                return
        try:
            yield self._workspace
        finally:
            self._lock.release()

    def _received_file_path(self, file_index: int) -> Path:
        return Path(f"{self._folder}{self._manifest.files[file_index].path}")


def list_missing_files(worker_workspace: WorkerWorkspace) -> list[int]:
    return worker_workspace.list_missing_files()


def receive_file_piece(worker_workspace: WorkerWorkspace, file_index: int, piece: bytes) -> None:
    worker_workspace.receive_file_piece(file_index, piece)


def open_workspace(worker_workspace: WorkerWorkspace) -> None:
    worker_workspace.open_workspace()


def unpickle_task(pickled_task: bytes) -> Any:
    """The errand, which stays in the worker until the program lets go of it."""
    return pickle.loads(pickled_task)


def is_task_cancelled(task_key: str) -> bool:
    """Whether nobody waits for the task that this thread runs: it was cancelled, or the program is gone."""
    task_state = get_worker().state.tasks.get(task_key)
    return task_state is None or task_state.state != "executing"


def run_task(worker_workspace: WorkerWorkspace, worker_task: Task[Workspace, Any, Any],
             pickled_items: bytes) -> tuple[float, bytes]:
    """Does an errand with some items, which are pickled.

    Returns:
        Seconds; what came of each item, pickled, in place of the last of them an exception where one failed.
    """
    task_key, results = str(get_worker().get_current_task()), []
    with worker_workspace.lock_workspace(task_key) as workspace:
        start_time = time.perf_counter()
        for item in pickle.loads(pickled_items) if workspace is not None else ():
            assert workspace is not None, "there are no items without one"
            with contextlib.closing(worker_task.run_item(workspace, item)) as steps:
                try:
                    waitable = None
                    while not is_task_cancelled(task_key):
                        if waitable is None or waitable.ready():
                            waitable = next(steps)
                        else:
                            time.sleep(POLL_INTERVAL_S)
                    break
                except StopIteration as stop:
                    results.append(stop.value)
                except Exception as error:
                    results.append(error)
                    break
        return time.perf_counter() - start_time, pickle.dumps(results)
