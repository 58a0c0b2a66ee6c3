"""The connection to a Dask cluster, whose workers open the workspace of this program.

Dask decides which worker executes a task, repeats the tasks of lost workers, restarts processes, transfers bytes, and
frees all results when this program ends. A worker that has opened the workspace offers a resource of Dask with the key
of its manifest, which the tasks of the workspace require. Only workers with the same software as this process open it.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Future, SpecCluster

from trt_tui.cluster import worker
from trt_tui.cluster.launch import ClusterSpec, configure_dask, launch_local_cluster
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.errors import TrtTuiError, exception_text
from trt_tui.formatting import counted_noun_text

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
    """A worker of the cluster that opens the workspace of a manifest, as the program sees it.

    Attributes:
        workspace: The future of the opened workspace; None until it is open.
        refusal_reason: The reason why the worker is not used; "" if it can be used.
        engine_refusal_reason: The reason why the worker cannot build engines; "" if it can.
        is_announced: True if the user was warned that the worker cannot build engines.
        is_lost: True if the worker has ended.
    """

    address: str
    manifest: WorkspaceManifest
    workspace: "Future[Any] | None" = None
    refusal_reason: str = ""
    engine_refusal_reason: str = ""
    is_announced: bool = False
    is_lost: bool = False


@dataclass
class TransferByteCounts:
    """The numbers of bytes sent to workers (files and items) and received from them (results)."""

    files: int = 0
    items: int = 0
    results: int = 0


class Cluster:
    """The client of a Dask cluster, which opens the workspace on the workers and sends tasks to them.

    A thread watches the connection and the list of workers.

    Args:
        spec: The scheduler to connect to, or the local cluster to start.
        folder: The folder for files of Dask.

    Attributes:
        messages: The messages for the user, each with its level ("info", "warning") and text.
        transfer_counts: The bytes transferred so far.
        local_cluster: The cluster that this program has started; None before the start, or with a scheduler of the
            user.
        failure_reason: The reason why the cluster was lost; "" while it exists.
        last_lost_address: The address of the worker that was lost last; "" if none was lost.
        outage_counts: How often all workers were lost, and how often all workers that build engines.
        wake: A function that another thread calls after each message, and when the number of workers changes.
    """

    def __init__(self, spec: ClusterSpec, folder: Path) -> None:
        self.spec = spec
        self.messages: deque[tuple[str, str]] = deque()
        self.transfer_counts = TransferByteCounts()
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
        self._environment: worker.WorkerEnvironment
        self._piece_futures: dict[tuple[str, int], Future[bytes]] = {}
        self._piece_lock = threading.Lock()
        self._exit_codes: dict[str, int] = {}
        self._lost_worker_count = 0
        configure_dask(folder)
        self._folder = folder
        self._thread = threading.Thread(target=self._watch_cluster, daemon=True, name="cluster")
        self._thread.start()

    # -- called by jobs -----------------------------------------------------------------------------------------------

    def require_connection(self) -> None:
        """Waits for the connection to the scheduler that the user has named.

        Raises:
            TrtTuiError: The scheduler does not answer.
        """
        if self.spec.scheduler:
            if not self._connected.wait(2 * CONNECT_TIMEOUT_S) or self.failure_reason:
                raise TrtTuiError(f"no Dask scheduler answers at {self.spec.scheduler}", self.failure_reason,
                                  "Check the address. With TLS it is tls://HOST:PORT, and Dask's configuration "
                                  "names the certificates (distributed.comm.tls: ca-file, client.cert, client.key).")

    def open_manifest_on_workers(self, manifest: WorkspaceManifest,
                                 required_environment: worker.WorkerEnvironment) -> None:
        """Opens the network and data of a manifest on all workers, in place of the workspace that the workers have
        open. Does not wait for it.

        Args:
            required_environment: The versions and the GPU that workers must have.
        """
        self._environment, self._manifest = required_environment, manifest
        self._changed.set()

    @property
    def manifest(self) -> WorkspaceManifest:
        """The manifest of the current workspace."""
        assert self._manifest is not None, "a workspace is opened before its tasks run"
        return self._manifest

    def submit(self, function: Callable[..., Any], *arguments: Any, for_engines: bool, priority: int) -> "Future[Any]":
        """Starts a function on a worker that has the current workspace open. Returns the future of its result.

        Args:
            for_engines: True to use only the workers with the same builder and GPU as this process.
            priority: Dask starts functions with a higher priority first.
        """
        return self._client.submit(function, *arguments, resources=self.manifest.list_resources(for_engines),
                                   priority=priority, pure=False, key=f"trt-tui-{uuid.uuid4().hex}")

    @property
    def can_get_more_workers(self) -> bool:
        """True if further workers may become ready."""
        if self.failure_reason:
            return False
        if len(self._workers) < self.spec.workers:  # Dask restarts each local worker that has ended
            return True
        return (not self._connected.is_set() or self._listed_manifest is not self._manifest
                or any(handle.workspace is None and not handle.refusal_reason for handle in self._list_workers()))

    def count_workers(self, for_engines: bool = False) -> int:
        """Returns the number of workers that have the current workspace open.

        Args:
            for_engines: True to count only the workers with the same builder and GPU as this process.
        """
        return sum(handle.workspace is not None and handle.manifest is self._manifest
                   and not (for_engines and handle.engine_refusal_reason) for handle in self._list_workers())

    def report_workers_unfit_for_engines(self) -> None:
        """Warns once of each worker that cannot build engines, because its builder or its GPU differs from that of this
        process."""
        for handle in self._list_workers():
            if handle.engine_refusal_reason and not handle.is_announced:
                handle.is_announced = True
                self._post_message(
                    "warning", f"Worker {handle.address} builds no engines: it has {handle.engine_refusal_reason}.")

    @property
    def worker_count_text(self) -> str:
        """The number of workers in use, as the end of a line about a job: ", on 4 workers (1 lost)"; "" without
        workers."""
        if not (worker_count := self.count_workers()):
            return ""
        return f", on {counted_noun_text(worker_count, 'worker')}" + (f" ({self._lost_worker_count} lost)"
                                                                      if self._lost_worker_count else "")

    def worker_exit_text(self, address: str) -> str:
        """Returns the exit code or signal of the process of a lost local worker as text; "" if it is unknown."""
        if not self.spec.scheduler and address not in self._exit_codes:
            time.sleep(POLL_INTERVAL_S)
        exit_code = self._exit_codes.get(address)
        if exit_code is None:
            return ""
        return f", ended by signal {-exit_code}" if exit_code < 0 else f", which ended with exit code {exit_code}"

    def close(self) -> None:
        """Closes the connection, ends a cluster that this program has started, and waits for the end."""
        self._closing.set()
        self._changed.set()
        self._thread.join()

    # -- the connection -----------------------------------------------------------------------------------------------

    def _watch_cluster(self) -> None:
        """Connects to the scheduler, and checks the connection and the list of workers until the end."""
        reason = ""
        try:
            with ExitStack() as stack:
                address = self.spec.scheduler
                if not address:
                    self.local_cluster = stack.enter_context(
                        launch_local_cluster(self.spec, self._folder, self._exit_codes.__setitem__))
                    address = self.local_cluster.scheduler_address
                self._client = stack.enter_context(
                    Client(address, timeout=CONNECT_TIMEOUT_S, name="trt-tui", set_as_default=False))
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
                self._post_message("warning",
                                   f"The Dask scheduler is lost ({reason}): this process continues the work.")
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
        """Opens the workspace on the workers that the scheduler lists, and drops the workers that it no longer lists.
        """
        manifest, client = self._manifest, self._client
        assert client.scheduler is not None, "the client is connected"
        listed_addresses = client.sync(client.scheduler.identity, n_workers=-1,
                                       callback_timeout=LIST_TIMEOUT_S)["workers"]
        for address in set(self._workers) - set(listed_addresses):
            handle = self._workers.pop(address)
            handle.is_lost = True
            if handle.workspace is not None:
                self.last_lost_address = address
                for for_engines in (False, True):
                    self.outage_counts[for_engines] += not self.count_workers(for_engines)
                self._lost_worker_count += 1
                exit_text = self.worker_exit_text(address)
                self._post_message("warning", f"Worker {address} is lost{exit_text}: other workers continue its work.")
        for address in listed_addresses:
            known = self._workers.get(address)
            if manifest is not None and (known is None or known.manifest is not manifest):
                handle = self._workers[address] = WorkerHandle(address, manifest)
                threading.Thread(target=self._prepare_worker, args=(handle,), daemon=True).start()
        self._listed_manifest = manifest

    # -- the workspace of a worker ------------------------------------------------------------------------------------

    def _prepare_worker(self, handle: WorkerHandle) -> None:
        """Checks a worker, sends the files that it lacks, and opens the workspace there."""
        try:
            info = self._call_on_worker(handle, worker.describe_worker)
            if differences := self._environment.describe_differences(info.environment, False):
                raise TrtTuiError(f"it has {'; '.join(differences)}")
            handle.engine_refusal_reason = "; ".join(self._environment.describe_differences(info.environment, True))
            workspace = self._submit_to_worker(handle, worker.WorkerWorkspace, handle.manifest)
            for number in self._call_on_worker(handle, worker.list_missing_files, workspace):
                for position in range(-(-handle.manifest.files[number].size_bytes // PIECE_BYTES) or 1):
                    piece = self._send_file_piece(handle, number, position)
                    self._call_on_worker(handle, worker.receive_file_piece, workspace, number, piece)
            self._call_on_worker(handle, worker.open_workspace, workspace, not handle.engine_refusal_reason)
        except Exception as error:
            handle.refusal_reason = exception_text(error).partition("\n")[0]
            if not handle.is_lost and not self._closing.is_set():
                self._post_message("warning", f"Worker {handle.address} is not used: {handle.refusal_reason}.")
            return
        handle.workspace = workspace
        if not any(other.workspace is None and not other.refusal_reason for other in self._list_workers()):
            self._piece_futures.clear()
            self._post_message("info", f"{counted_noun_text(self.count_workers(), 'worker')} of "
                               f"{self.spec.scheduler or 'this host'} ready: {info.environment.runtime}")
        self.wake()

    def _send_file_piece(self, handle: WorkerHandle, file_index: int, piece_index: int) -> "Future[bytes]":
        """Sends a piece of a file to a worker, unless Dask can copy it from another worker."""
        key = handle.manifest.files[file_index].path, piece_index
        with self._piece_lock:
            if key not in self._piece_futures or self._piece_futures[key].status != "finished":
                piece = handle.manifest.read_file_piece(file_index, piece_index * PIECE_BYTES, PIECE_BYTES)
                self.transfer_counts.files += len(piece)
                self._piece_futures[key] = self._client.scatter(piece, workers=[handle.address], hash=False)
            return self._piece_futures[key]

    def _submit_to_worker(self, handle: WorkerHandle, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Starts a function on one worker. Returns the future of its result, which stays on the worker."""
        return self._client.submit(function, *arguments, workers=[handle.address], allow_other_workers=False,
                                   pure=False, key=f"trt-tui-{uuid.uuid4().hex}")

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
