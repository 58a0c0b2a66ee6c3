"""The workers of a Dask cluster, the workspace on each of them, and the executor of jobs on them.

The cluster is a local one of this program, or a running scheduler of the user. Dask decides which worker executes a
task, repeats the tasks of lost workers, restarts processes, transfers bytes, and frees all results when this program
ends. A worker that has opened the workspace offers a resource of Dask with the key of its manifest, which the tasks of
the workspace require. Only workers with the same software as this process open it.

A manifest contains the options and the files that they name. File contents are sent only to workers that do not see the
same file at the same path; workers on the same host do. A script that generates samples is not executed again: its
samples are sent as files. Dask keeps a `WorkerWorkspace` while the program that created it is connected. Its inference
sessions and files are removed when Dask drops it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import pickle
import shutil
import threading
import time
import uuid
import weakref
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import dask
import numpy as np
from distributed import Client, Future, KilledWorker, Nanny, Scheduler, SpecCluster, get_worker
from distributed.client import FutureCancelledError
from distributed.utils import sync

import trt_tui
from trt_tui.backends.cuda import count_devices, find_first_device
from trt_tui.backends.registry import BUILDER_NAMES, find_installed_version, get_simulation_backend
from trt_tui.core.data.input_files import FileStamp, Fingerprint, read_file_stamp
from trt_tui.core.data.samples import Samples
from trt_tui.core.data.userscript import split_script_spec
from trt_tui.core.lowering.rulebook import ARITHMETIC_VERSION
from trt_tui.core.runner import Backend, LocalExecutor, Task
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError, exception_text
from trt_tui.files.writing import create_scratch_folder, make_private_folder
from trt_tui.formatting import counted_noun_text
from trt_tui.options import Options
from trt_tui.workspace import Workspace


@dataclass(frozen=True)
class WorkspaceManifest:
    """The options, files and fingerprint from which a worker opens the same workspace.

    Attributes:
        options: The options, with absolute paths.
        files: The absolute paths of the files, each with its stamp at the time of reading.
        source: The fingerprint of the results. A worker that has opened anything else is refused.
        uses_reference_weights: True if FP32 means the weights of the reference.
        key: The key of the workspace on workers.
    """

    options: Options
    files: tuple[tuple[str, FileStamp], ...]
    source: Fingerprint
    uses_reference_weights: bool = False
    key: str = field(default_factory=lambda: f"trt-tui-{uuid.uuid4().hex}")

    def list_dask_resources(self, for_engines: bool) -> dict[str, int]:
        """Returns Dask's resources that a task of this workspace requires: the worker itself, for one task at a time.

        Args:
            for_engines: True if the task needs a worker with the same builder and GPU as this process.
        """
        return {self.key: 1, **({f"{self.key}-engines": 1} if for_engines else {})}


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
    options = replace(
        options,
        calib_cache=None,
        new_calib_cache=None,
        stages=(),
        engine_files=(),
        outputs=None,
        inputs=None,
        gpus=None,
        workers=None,
        scheduler=None,
        production=replace(options.production, timing_cache=""),
    )
    options = _map_option_paths(options, os.path.abspath)
    paths = [path for path, current_stamp in workspace.stamped_files.stamps if current_stamp is not None]
    if _is_script_spec(options.data):
        paths += _write_feeds(workspace.samples, folder / "data")
        options = replace(options, data=str(folder / "data"), samples=None, batch=workspace.samples.batch)
    if workspace.calib_data_samples is not None and _is_script_spec(options.calib_data):
        paths += _write_feeds(workspace.calib_data_samples, folder / "calib")
        options = replace(options, calib_data=str(folder / "calib"))
    files = [
        (path, current_stamp)
        for path in dict.fromkeys(map(os.path.abspath, paths))
        if (current_stamp := read_file_stamp(path)) is not None
    ]
    return WorkspaceManifest(options, tuple(files), source, bool(workspace.network.weights_source_name))


def _map_option_paths(options: Options, map_path: Callable[[str], str]) -> Options:
    """Returns the options of a worker, with ``map_path`` applied to each path. A suffix behind a path, such as a
    function name, stays."""

    def map_value(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(map_path, value))
        return map_path(value) if value is not None else None

    names = ("model", "data", "calib_data", "metric", "reference", "ort_ops")
    # A worker writes no files of the command, and shares its workspace with commands that write others.
    return replace(
        options,
        written_paths=(),
        **{name: map_value(getattr(options, name)) for name in names},
        production=replace(options.production, plugins=map_value(options.production.plugins)),
    )


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


TASK_POLL_INTERVAL_S = 0.05
"""The interval in seconds at which a waiting task checks if it was cancelled."""

_open_workspaces: weakref.WeakValueDictionary[str, WorkerWorkspace] = weakref.WeakValueDictionary()
"""The open workspaces of this worker, by the key of their manifest."""


WorkerEnvironment: TypeAlias = dict[str, str]
"""The versions of the software and the GPU of a process that results depend on, besides the network, the data and the
options. A version is "" if the software or the GPU is missing."""


SIMULATION_SOFTWARE = ("trt-tui", "ONNX Runtime")
"""The names of the versions that simulated results depend on. Engines depend on all versions."""


def get_worker_environment(backend: Backend) -> WorkerEnvironment:
    """Returns the environment of this process, with the version of its simulation backend."""
    releases = [f"{name} {version}" for name in BUILDER_NAMES if (version := find_installed_version(name))]
    gpu = ""
    with contextlib.suppress(BackendUnavailableError):
        gpu = find_first_device().name
    return {
        "trt-tui": f"{trt_tui.__version__} ({ARITHMETIC_VERSION}, source {source_sha256()[:12]})",
        "ONNX Runtime": f"{backend.version} ({backend.provider})",
        "TensorRT": ", ".join(releases),
        "GPU": gpu,
    }


def get_own_worker_environment() -> WorkerEnvironment:
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
        raise TypeError("the workspace of a worker cannot leave its process")

    def list_missing_files(self) -> list[int]:
        """Returns the indices of the files that this worker does not find unchanged at the same path."""
        return [index for index, (path, stamp) in enumerate(self._manifest.files) if read_file_stamp(path) != stamp]

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
            for index, (original_path, _) in enumerate(manifest.files):
                path = self._received_file_path(index)
                if not path.exists():
                    make_private_folder(path.parent)
                    path.symlink_to(original_path)
        workspace = Workspace(replace(options, threads=get_worker().state.nthreads))
        if manifest.uses_reference_weights and options.reference is not None:
            workspace.use_reference_weights(options.reference)
        fingerprint = workspace.set_fingerprint(workspace.network.sha256())
        for kind, actual_hash, expected_hash in (
            ("network", fingerprint.sha256, manifest.source.sha256),
            ("samples", fingerprint.data_sha256, manifest.source.data_sha256),
        ):
            if actual_hash != expected_hash:
                raise InputError(f"it reads another {kind}", "the same files give other data there")
        _ = workspace.analysis
        self.workspace = workspace
        _open_workspaces[manifest.key] = self
        sync(get_worker().loop, get_worker().set_resources, **manifest.list_dask_resources(builds_engines))

    def _received_file_path(self, file_index: int) -> Path:
        return Path(f"{self._folder}{self._manifest.files[file_index][0]}")


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
            # A task that Dask no longer executes was cancelled, or the program has ended.
            while (state := get_worker().state.tasks.get(task_key)) is not None and state.state == "executing":
                if not executor.is_ready():
                    time.sleep(TASK_POLL_INTERVAL_S)
                elif (finished := next(steps)) is not None:
                    results.append(finished[1])
        except StopIteration:
            pass
        except Exception as error:
            results.append(error)
    return time.perf_counter() - start_time, pickle.dumps(results)


LOCAL_HOST = "127.0.0.1"
"""The address at which a local cluster listens."""

DEFAULT_WORKER_THREADS = 4
"""The number of threads of a worker if the user has not set the number of workers."""

_PRELOADED_MODULES = ("distributed", "distributed.nanny", "onnxruntime", "trt_tui.cluster.cluster")
"""The modules imported by the process that local workers are forked from. That process has no threads and uses no GPU.
"""

_DASK_CONFIG = {
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.admin.tick.limit": "1h",
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": "5s",
    # After this time, Dask would remove a worker for good whose later process is just being restarted.
    "distributed.deploy.lost-worker-timeout": "10000d",
}


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that the options request.

    Attributes:
        scheduler: The address of a running scheduler; "" for a local cluster.
        gpus: The value of CUDA_VISIBLE_DEVICES for each worker; empty for workers on processor cores.
        workers: The number of workers.
        threads: The number of threads that each worker runs an operator on.
    """

    scheduler: str = ""
    gpus: tuple[str, ...] = ()
    workers: int = 0
    threads: int = 1


def parse_cluster_options(options: Options) -> ClusterSpec | None:
    """Returns the cluster that the options request; None if they request none.

    Raises:
        InputError: A requested GPU does not exist.
    """
    if options.scheduler is not None:
        return ClusterSpec(options.scheduler)
    if options.gpus is not None:
        gpus = _list_visible_gpus(options.gpus)
        return ClusterSpec(gpus=gpus, workers=len(gpus))
    if options.workers is None:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.workers == "auto":
        return ClusterSpec(workers=max(1, cores // DEFAULT_WORKER_THREADS), threads=min(DEFAULT_WORKER_THREADS, cores))
    return ClusterSpec(workers=int(options.workers), threads=max(1, cores // int(options.workers)))


def _list_visible_gpus(requested_gpus: str) -> tuple[str, ...]:
    """Returns for each requested GPU the value of CUDA_VISIBLE_DEVICES that makes only this GPU visible."""
    visible_setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = (
        [entry.strip() for entry in visible_setting.split(",")]
        if visible_setting
        else [str(entry) for entry in range(count_devices())]
    )
    if requested_gpus == "all":
        numbers = list(range(len(visible)))
    else:
        numbers = list(dict.fromkeys(int(entry) for entry in requested_gpus.split(",")))
    if not visible or any(number >= len(visible) for number in numbers):
        raise InputError(
            f"--gpus {requested_gpus}: no such GPU",
            f"{len(visible)} are visible",
            "Name them by their numbers from 0, or use --workers for processor cores.",
        )
    return tuple(visible[number] for number in numbers)


def configure_dask(folder: Path) -> None:
    """Configures Dask in this process, and the process that local workers are forked from.

    Args:
        folder: The folder for files of Dask.
    """
    dask.config.set({**_DASK_CONFIG, "temporary-directory": str(folder)})
    logging.getLogger("distributed").setLevel(logging.ERROR)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_PRELOADED_MODULES))


class _MonitoredNanny(Nanny):
    """A Dask nanny that reports the exit code of its worker's process."""

    def __init__(self, *args: Any, ended: Callable[[str, int], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._report_exit = ended

    def _on_worker_exit_sync(self, exitcode: int) -> None:
        if self.process is not None and self.process.worker_address:
            self._report_exit(self.process.worker_address, exitcode)
        super()._on_worker_exit_sync(exitcode)  # type: ignore[no-untyped-call]


def launch_local_cluster(spec: ClusterSpec, folder: Path, on_worker_exit: Callable[[str, int], None]) -> SpecCluster:
    """Returns a cluster of processes on this host, as a context manager. Waits until they have started.

    Args:
        folder: The folder for files of the workers.
        on_worker_exit: A function that is called with the address and the exit code of each ended worker process. Dask
            restarts the process.
    """
    shared_options = {
        "host": LOCAL_HOST,
        "dashboard_address": f"{LOCAL_HOST}:0",
        "nthreads": spec.threads,
        "memory_limit": 0,
        "local_directory": str(folder),
        "ended": on_worker_exit,
        "silence_logs": "ERROR",
    }
    gpu_settings: list[dict[str, str]] = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in spec.gpus] or [{}] * spec.workers
    workers = {
        number: {"cls": _MonitoredNanny, "options": {**shared_options, "env": {"ORT_DISABLE_TELEMETRY": "1", **pin}}}
        for number, pin in enumerate(gpu_settings)
    }
    options = {"host": LOCAL_HOST, "port": 0, "dashboard_address": f"{LOCAL_HOST}:0"}
    return SpecCluster(workers, {"cls": Scheduler, "options": options}, name="trt-tui")


CONNECT_TIMEOUT_S = 5.0
"""The time in seconds within which a scheduler named by the user must answer."""

LIST_TIMEOUT_S = 2.0
"""The time in seconds within which the scheduler must list its workers. A later list replaces a missing one."""

POLL_INTERVAL_S = 0.3
"""The interval in seconds at which the connection and the list of workers are checked."""

PIECE_BYTES = 32 << 20
"""The size of the pieces in which files are sent to workers."""


@dataclass(eq=False)
class WorkerHandle:
    """The state of a worker of the cluster, as this program knows it.

    Attributes:
        workspace: The future of the opened workspace; None until it is open.
        refusal_reason: The reason why the worker is not used; "" if it can be used.
        engine_refusal_reason: The reason why the worker cannot build engines; "" if it can.
        is_announced: True if the user was warned that the worker cannot build engines.
        is_lost: True if the worker has ended.
    """

    address: str
    manifest: WorkspaceManifest
    workspace: Future[Any] | None = None
    refusal_reason: str = ""
    engine_refusal_reason: str = ""
    is_announced: bool = False
    is_lost: bool = False


class ClusterWorkerPool:
    """The workers of a Dask cluster as a `trt_tui.workspace.WorkerPool`, which opens the workspace on them.

    A thread watches the connection and the list of workers.

    Args:
        spec: The scheduler to connect to, or the local cluster to start.

    Attributes:
        messages: The messages for the user, each with its level ("info", "warning") and text.
        transfer_counts: The bytes of files and items sent to workers, and of results received from them, so far.
        local_cluster: The cluster that this program has started; None before the start, or with a scheduler of the
            user.
        failure_reason: The reason why the cluster was lost; "" while it exists.
        last_lost_address: The address of the worker that was lost last; "" if none was lost.
        outage_counts: How often all workers were lost, and how often all workers that build engines.
        wake: A function that another thread calls after each message, and when the number of workers changes.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._scratch_stack = ExitStack()
        self._folder = self._scratch_stack.enter_context(create_scratch_folder())
        self.spec = spec
        self._open_workspace: Workspace | None = None
        self.messages: deque[tuple[str, str]] = deque()
        self.transfer_counts = Counter[str]()
        self.failure_reason = ""
        self.last_lost_address = ""
        self.outage_counts = [0, 0]
        self.local_cluster: SpecCluster | None = None
        self.wake: Callable[[], None] = lambda: None
        self._connected, self._closing, self._changed = threading.Event(), threading.Event(), threading.Event()
        self._client: Client
        self._workers: dict[str, WorkerHandle] = {}
        self._manifest: WorkspaceManifest | None = None
        self._listed_manifest: WorkspaceManifest | None = None
        self._workers_ready_before_list: list[WorkerHandle] = []
        self._environment: WorkerEnvironment
        self._piece_futures: dict[tuple[str, int], Future[bytes]] = {}
        self._piece_lock = threading.Lock()
        self._exit_codes: dict[str, int] = {}
        self._lost_worker_count = 0
        configure_dask(self._folder)
        self._thread = threading.Thread(target=self._watch_cluster, daemon=True, name="cluster")
        self._thread.start()

    # -- called by jobs -----------------------------------------------------------------------------------------------

    def take_new_messages(self) -> Iterator[tuple[str, str]]:
        while self.messages:
            yield self.messages.popleft()

    def open_workspace_on_workers(self, workspace: Workspace) -> None:
        """Opens the network and data of a workspace on all workers, in place of those that the workers have open.

        The method waits for the connection to the scheduler of the user, but not for the workers.

        Raises:
            TrtTuiError: The scheduler does not answer.
        """
        workspace = workspace.full_workspace
        if self._open_workspace is workspace:
            return
        if (
            self.spec.scheduler
            and self._open_workspace is None
            and (not self._connected.wait(2 * CONNECT_TIMEOUT_S) or self.failure_reason)
        ):
            raise TrtTuiError(
                f"no Dask scheduler answers at {self.spec.scheduler}",
                self.failure_reason,
                "Check the address. With TLS it is tls://HOST:PORT, and Dask's configuration names the "
                "certificates (distributed.comm.tls: ca-file, client.cert, client.key).",
            )
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir()
        manifest = build_manifest(workspace, folder)
        self._environment, self._manifest = get_worker_environment(workspace.backend), manifest
        self._open_workspace = workspace
        self._changed.set()

    def make_executor(
        self, workspace: Workspace, wake_caller: Callable[[], None], for_engines: bool = False
    ) -> ClusterExecutor[Any]:
        self.wake = wake_caller
        self.open_workspace_on_workers(workspace)
        if for_engines:
            self.report_workers_unfit_for_engines()
        return ClusterExecutor(self, workspace, wake_caller, for_engines)

    @property
    def manifest(self) -> WorkspaceManifest:
        """The manifest of the current workspace."""
        assert self._manifest is not None, "a workspace is opened before its tasks run"
        return self._manifest

    def submit(self, function: Callable[..., Any], *arguments: Any, for_engines: bool, priority: int) -> Future[Any]:
        """Starts a function on a worker that has the current workspace open. Returns the future of its result.

        Args:
            for_engines: True to use only the workers with the same builder and GPU as this process.
            priority: Dask starts functions with a higher priority first.
        """
        return self._client.submit(
            function,
            *arguments,
            resources=self.manifest.list_dask_resources(for_engines),
            priority=priority,
            pure=False,
            key=f"trt-tui-{uuid.uuid4().hex}",
        )

    @property
    def can_get_more_workers(self) -> bool:
        """True if further workers may become ready."""
        return not self.failure_reason and (
            len(self._workers) < self.spec.workers  # Dask restarts each local worker that has ended
            or not self._connected.is_set()
            or self._listed_manifest is not self._manifest
            or any(handle.workspace is None and not handle.refusal_reason for handle in self._list_workers())
        )

    def count_workers(self, for_engines: bool = False) -> int:
        """Returns the number of workers that have the current workspace open.

        Args:
            for_engines: True to count only the workers with the same builder and GPU as this process.
        """
        return sum(not (for_engines and handle.engine_refusal_reason) for handle in self._list_ready_workers())

    def _list_ready_workers(self) -> list[WorkerHandle]:
        return [
            handle
            for handle in self._list_workers()
            if handle.workspace is not None and handle.manifest is self._manifest
        ]

    def report_workers_unfit_for_engines(self) -> None:
        """Posts one warning about each worker that has another builder or GPU than this process."""
        for handle in self._list_workers():
            if handle.engine_refusal_reason and not handle.is_announced:
                handle.is_announced = True
                self._post_message(
                    "warning", f"Worker {handle.address} builds no engines: it has {handle.engine_refusal_reason}."
                )

    @property
    def worker_count_text(self) -> str:
        """The number of workers as text behind the phase of a job, such as ", on 4 workers (1 lost)"; "" if 0."""
        if not (worker_count := self.count_workers()):
            return ""
        return f", on {counted_noun_text(worker_count, 'worker')}" + (
            f" ({self._lost_worker_count} lost)" if self._lost_worker_count else ""
        )

    def worker_exit_text(self, address: str) -> str:
        """Returns the exit code or signal of the process of a lost local worker as text; "" if it is unknown."""
        if not self.spec.scheduler and address not in self._exit_codes:
            time.sleep(POLL_INTERVAL_S)
        exit_code = self._exit_codes.get(address)
        if exit_code is None:
            return ""
        return f", ended by signal {-exit_code}" if exit_code < 0 else f", which ended with exit code {exit_code}"

    def close(self) -> None:
        """Closes the connection, ends a cluster that this program has started, and waits for the end. Nothing stays on
        a cluster of the user."""
        self._closing.set()
        self._changed.set()
        self._thread.join()
        self._scratch_stack.close()

    # -- the connection -----------------------------------------------------------------------------------------------

    def _watch_cluster(self) -> None:
        """Connects to the scheduler, and checks the connection and the list of workers until the end."""
        reason = ""
        try:
            with ExitStack() as stack:
                address = self.spec.scheduler
                if not address:
                    self.local_cluster = stack.enter_context(
                        launch_local_cluster(self.spec, self._folder, self._exit_codes.__setitem__)
                    )
                    address = self.local_cluster.scheduler_address
                self._client = stack.enter_context(
                    Client(address, timeout=CONNECT_TIMEOUT_S, name="trt-tui", set_as_default=False)
                )
                self._connected.set()
                while self._client.status == "running" and not self._closing.is_set():
                    with suppress(TimeoutError, OSError):  # the check of the connection detects a lost one
                        self._synchronize_workers()
                    self._changed.wait(POLL_INTERVAL_S)
                    self._changed.clear()
                reason = "the connection ended"
        except Exception as error:  # after any error of Dask, this process executes the tasks
            reason = exception_text(error).partition("\n")[0] or type(error).__name__
        if not self._closing.is_set():
            self.failure_reason = reason
            self._workers.clear()
            if self._connected.is_set():
                self._post_message(
                    "warning", f"The Dask scheduler is lost ({reason}): this process continues the work."
                )
        self._connected.set()
        self.wake()

    def _post_message(self, level: str, text: str) -> None:
        self.messages.append((level, text))
        self.wake()

    @property
    def is_connected(self) -> bool:
        """True if the scheduler is connected."""
        return self._connected.is_set() and not self.failure_reason and self._client.status == "running"

    def _list_workers(self) -> list[WorkerHandle]:
        return list(self._workers.values()) if self.is_connected else []

    def _synchronize_workers(self) -> None:
        """Opens the workspace on the workers that the scheduler lists, and drops the workers that it no longer lists."""
        manifest, client, ready_workers = self._manifest, self._client, self._list_ready_workers()
        assert client.scheduler is not None, "the client is connected"
        listed_addresses = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=LIST_TIMEOUT_S)[
            "workers"
        ]
        # A worker that became ready after the last list may be younger than the loss. Dask gives it no earlier tasks.
        survivors = [handle for handle in self._workers_ready_before_list if handle.address in listed_addresses]
        for address in set(self._workers) - set(listed_addresses):
            handle = self._workers.pop(address)
            handle.is_lost = True
            if handle.workspace is not None:
                self.last_lost_address = address
                for for_engines in (False, True):
                    self.outage_counts[for_engines] += not any(
                        not (for_engines and survivor.engine_refusal_reason) for survivor in survivors
                    )
                self._lost_worker_count += 1
                exit_text = self.worker_exit_text(address)
                self._post_message("warning", f"Worker {address} is lost{exit_text}: other workers continue its work.")
        for address in listed_addresses:
            known = self._workers.get(address)
            if manifest is not None and (known is None or known.manifest is not manifest):
                handle = self._workers[address] = WorkerHandle(address, manifest)
                threading.Thread(target=self._prepare_worker, args=(handle,), daemon=True).start()
        self._listed_manifest, self._workers_ready_before_list = manifest, ready_workers

    # -- the workspace of a worker ------------------------------------------------------------------------------------

    def _prepare_worker(self, handle: WorkerHandle) -> None:
        """Checks a worker, sends the files that it lacks, and opens the workspace there."""
        try:
            try:
                environment = self._call_on_worker(handle, get_own_worker_environment)
            except (AttributeError, TypeError, pickle.UnpicklingError):  # another release may answer in another form
                raise TrtTuiError(f"it has another release of trt-tui, here {self._environment['trt-tui']}") from None
            differences = {
                name: f"{name} {environment[name] or 'none'}, here {version or 'none'}"
                for name, version in self._environment.items()
                if environment[name] != version
            }
            if simulated := [differences[name] for name in SIMULATION_SOFTWARE if name in differences]:
                raise TrtTuiError(f"it has {'; '.join(simulated)}")
            handle.engine_refusal_reason = "; ".join(differences.values())
            workspace = self._submit_to_worker(handle, WorkerWorkspace, handle.manifest)
            for number in self._call_on_worker(handle, WorkerWorkspace.list_missing_files, workspace):
                _, (_, size_bytes, *_) = handle.manifest.files[number]
                for position in range(-(-size_bytes // PIECE_BYTES) or 1):
                    piece = self._send_file_piece(handle, number, position)
                    self._call_on_worker(handle, WorkerWorkspace.receive_file_piece, workspace, number, piece)
            self._call_on_worker(handle, WorkerWorkspace.open_workspace, workspace, not handle.engine_refusal_reason)
        except Exception as error:
            handle.refusal_reason = exception_text(error).partition("\n")[0]
            if not handle.is_lost and not self._closing.is_set():
                self._post_message("warning", f"Worker {handle.address} is not used: {handle.refusal_reason}.")
            return
        handle.workspace = workspace
        if not any(other.workspace is None and not other.refusal_reason for other in self._list_workers()):
            self._piece_futures.clear()
            self._post_message(
                "info",
                f"{counted_noun_text(self.count_workers(), 'worker')} of "
                f"{self.spec.scheduler or 'this host'} ready: {environment['ONNX Runtime']}",
            )
        self.wake()

    def _send_file_piece(self, handle: WorkerHandle, file_index: int, piece_index: int) -> Future[bytes]:
        """Sends a piece of a file to a worker, unless Dask can copy it from another worker."""
        key = handle.manifest.files[file_index][0], piece_index
        with self._piece_lock:
            if key not in self._piece_futures or self._piece_futures[key].status != "finished":
                with open(key[0], "rb") as stream:
                    stream.seek(piece_index * PIECE_BYTES)
                    piece = stream.read(PIECE_BYTES)
                self.transfer_counts["files"] += len(piece)
                self._piece_futures[key] = self._client.scatter(piece, workers=[handle.address], hash=False)
            return self._piece_futures[key]

    def _submit_to_worker(self, handle: WorkerHandle, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Starts a function on one worker. Returns the future of its result, which stays on the worker."""
        return self._client.submit(
            function,
            *arguments,
            workers=[handle.address],
            allow_other_workers=False,
            pure=False,
            key=f"trt-tui-{uuid.uuid4().hex}",
        )

    def _call_on_worker(self, handle: WorkerHandle, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on one worker, waits for its result and returns it.

        Raises:
            TrtTuiError: The worker was lost, or the cluster is closed.
        """
        future, done = self._submit_to_worker(handle, function, *arguments), threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(POLL_INTERVAL_S):
            if handle.is_lost or self._closing.is_set():
                raise TrtTuiError("the worker is lost")
        return future.result()


Item = TypeVar("Item")
T = TypeVar("T")

BATCH_TARGET_S = 0.4
"""The intended duration in seconds of a batch on a worker."""

MAX_PREFETCHED_ITEMS = 4096
"""The maximum number of items that are taken from their source before their execution."""

MAX_LOST_WORKERS = 2
"""The number of workers that may end during an item before the item is given up."""

_task_run_numbers = itertools.count()


@dataclass(eq=False)
class TaskItemBatch(Generic[Item]):
    """The items of a task that are sent to a worker together.

    Attributes:
        lost_workers: The number of workers that have ended during the execution of these items.
    """

    items: list[Item]
    lost_workers: int = 0


class ClusterExecutor(Generic[Item]):
    """The executor that sends the items of a job's tasks to workers. If no worker is ready, this process executes them.

    Args:
        workspace: The workspace that the workers have open too.
        wake: A function that another thread calls when the job can continue.
        for_engines: True to use only the workers with the same builder and GPU as this process.
    """

    def __init__(
        self, pool: ClusterWorkerPool, workspace: Workspace, wake: Callable[[], None], for_engines: bool = False
    ) -> None:
        self._pool, self._local_executor, self._wake = pool, LocalExecutor(workspace), wake
        self._for_engines, self._outage_count = for_engines, pool.outage_counts[for_engines]
        self._waiting: deque[TaskItemBatch[Item]] = deque()
        self._futures: dict[TaskItemBatch[Item], Future[Any]] = {}
        self._arrivals: deque[tuple[TaskItemBatch[Item], Any]] = deque()
        self._seconds_per_item: float | None = None
        self._is_running_locally = False

    def map(self, task: Task[Workspace, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        source, pickled_task, number = iter(items), pickle.dumps(task), next(_task_run_numbers)
        try:
            while True:
                missing_count = MAX_PREFETCHED_ITEMS - len(self._waiting)
                self._waiting.extend(TaskItemBatch([item]) for item in itertools.islice(source, missing_count))
                while self._arrivals:
                    batch, outcome = self._arrivals.popleft()
                    if self._futures.pop(batch, None) is not None:
                        yield from self._yield_batch_results(task, batch, outcome)
                if self._has_lost_all_workers:
                    self._requeue_batches(task)
                worker_count = self._count_workers()
                while self._waiting and len(self._futures) < worker_count:
                    self._submit_batch(pickled_task, self._take_batch(worker_count), number)
                if not self._futures and not self._waiting:
                    return
                if self._can_run_locally:
                    self._is_running_locally = True
                    yield from self._local_executor.map(task, self._waiting.popleft().items)
                    self._is_running_locally = False
                else:
                    yield None
        finally:
            for future in self._futures.values():
                future.release()
            self._futures.clear()
            self._waiting.clear()
            self._is_running_locally = False

    def is_ready(self) -> bool:
        if self._is_running_locally:
            return self._local_executor.is_ready()
        return (
            bool(self._arrivals)
            or self._can_run_locally
            or not (self._waiting or self._futures)
            or (self._has_lost_all_workers)
            or (bool(self._waiting) and len(self._futures) < self._count_workers())
        )

    @property
    def location_text(self) -> str:
        return self._pool.worker_count_text

    @property
    def _has_lost_all_workers(self) -> bool:
        """True if every worker with a batch is lost. Dask does not start such batches on later workers."""
        return bool(self._futures) and (
            not self._pool.is_connected or self._pool.outage_counts[self._for_engines] != self._outage_count
        )

    def _count_workers(self) -> int:
        return self._pool.count_workers(self._for_engines)

    @property
    def _can_run_locally(self) -> bool:
        """True if this process executes the next items because no worker is ready. The items of engine builds, and items
        during which a worker has ended, first wait for workers that may become ready."""
        if not self._waiting or self._count_workers():
            return False
        needs_worker = self._for_engines or self._waiting[0].lost_workers > 0
        return not (needs_worker and self._pool.can_get_more_workers)

    def _take_batch(self, worker_count: int) -> TaskItemBatch[Item]:
        """Takes the next batch out of the queue. The first batch has one item.

        Later batches take about `BATCH_TARGET_S`. They become smaller towards the end, so that all workers end
        together.
        """
        batch = self._waiting.popleft()
        if self._seconds_per_item is not None and not batch.lost_workers:
            batch_size = min(
                int(BATCH_TARGET_S / max(self._seconds_per_item, 1e-6)), len(self._waiting) // (2 * worker_count)
            )
            while len(batch.items) < batch_size and not self._waiting[0].lost_workers:
                batch.items += self._waiting.popleft().items
        return batch

    def _submit_batch(self, pickled_task: bytes, batch: TaskItemBatch[Item], priority: int) -> None:
        if not self._futures:
            self._outage_count = self._pool.outage_counts[self._for_engines]
        items = pickle.dumps(batch.items)
        self._pool.transfer_counts["items"] += len(items)
        future = self._futures[batch] = self._pool.submit(
            run_task, self._pool.manifest.key, pickled_task, items, for_engines=self._for_engines, priority=priority
        )
        # Dask calls all callbacks in one thread. It may wait for a result that was lost with its worker.
        threading.Thread(target=self._receive_results, args=(batch, future), daemon=True).start()

    def _receive_results(self, batch: TaskItemBatch[Item], future: Future[Any]) -> None:
        """Receives the results of a batch, or the exception of Dask, in a thread of its own."""
        try:
            self._arrivals.append((batch, future.result()))
        except BaseException as error:
            self._arrivals.append((batch, error))
        self._wake()

    def _yield_batch_results(
        self, task: Task[Workspace, Item, T], batch: TaskItemBatch[Item], outcome: Any
    ) -> Iterator[tuple[Item, T]]:
        """Yields the items of a batch with their results.

        Raises:
            TrtTuiError: An item failed, or has ended too many workers.
        """
        if isinstance(outcome, KilledWorker):
            self._requeue_items(task, batch, outcome.allowed_failures + 1, outcome.last_worker.address)
        elif isinstance(outcome, (OSError, CancelledError, FutureCancelledError)):  # the connection is lost
            self._waiting.extendleft(TaskItemBatch([item], batch.lost_workers) for item in reversed(batch.items))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            duration_s, packed = outcome
            self._pool.transfer_counts["results"] += len(packed)
            results = pickle.loads(packed)
            self._seconds_per_item = duration_s / max(1, len(results))
            for item, result in zip(batch.items, results, strict=False):
                if isinstance(result, Exception):
                    raise result
                yield item, result

    def _requeue_batches(self, task: Task[Workspace, Item, T]) -> None:
        """Puts the batches in execution back into the queue after the loss of all workers."""
        for batch, future in list(self._futures.items()):
            del self._futures[batch]
            future.release()
            self._outage_count = self._pool.outage_counts[self._for_engines]
            self._requeue_items(task, batch, 1 if self._pool.is_connected else 0, self._pool.last_lost_address)

    def _requeue_items(
        self, task: Task[Workspace, Item, T], batch: TaskItemBatch[Item], lost_workers: int, last_address: str
    ) -> None:
        """Returns the items of a batch to the queue after the loss of workers, each item in a separate batch.

        Raises:
            TrtTuiError: The only item of the batch has ended `MAX_LOST_WORKERS` workers.
        """
        lost_workers += batch.lost_workers
        if len(batch.items) == 1 and lost_workers >= MAX_LOST_WORKERS:
            raise TrtTuiError(
                f"{task.item_text.format(batch.items[0])}: {lost_workers} workers ended while they measured it",
                f"The last was {last_address}{self._pool.worker_exit_text(last_address)}.",
                "The log contains their output. Memory may be short (--batch), or a library of operators at fault.",
            )
        self._waiting.extendleft(TaskItemBatch([item], min(lost_workers, 1)) for item in reversed(batch.items))
