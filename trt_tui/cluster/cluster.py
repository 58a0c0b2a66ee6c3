"""The connection to a Dask cluster, and the distribution of tasks to its workers.

A thread with an event loop runs one asyncio task for each worker. Dask starts and restarts processes, transfers bytes,
and frees all results when this program ends. This module decides which worker executes which items:

- Only workers with the same software as this process are used.
- Each worker executes one batch of items at a time.
- The batch of a lost worker is executed by another worker.
"""

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from distributed import Client, SpecCluster
from distributed.client import FutureCancelledError

from trt_tui.cluster import worker
from trt_tui.cluster.launch import ClusterSpec, configure_dask, launch_local_cluster
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.cluster.provisioning import WorkerProvisioner
from trt_tui.cluster.task_run import ItemBatch, TaskRun, TransferByteCounts
from trt_tui.cluster.worker_calls import TaskCancelledError, WorkerCalls, WorkerHandle, WorkerLostError
from trt_tui.errors import TrtTuiError, exception_text
from trt_tui.formatting import counted_noun_text

CONNECT_TIMEOUT_S = 5.0
"""The time in seconds within which a scheduler named by the user must answer."""

POLL_INTERVAL_S = 0.3
"""The interval in seconds at which the connection to the scheduler is checked."""

WORKER_LIST_INTERVAL_S = 2.0
"""The interval in seconds at which the known workers are compared with the scheduler's list.

The comparison finds workers whose events came before the subscription.
"""


class Cluster:
    """The client of a Dask cluster, which opens the workspace on the workers and sends tasks to them.

    One thread calls the methods. They return at once, except those that are documented to wait.

    Args:
        spec: The scheduler to connect to, or the local cluster to start.
        folder: The folder for files of Dask.

    Attributes:
        messages: The messages for the user, each with its level ("info", "warning") and text.
        transfer_counts: The bytes transferred so far.
        local_cluster: The cluster that this program has started; None before the start, or with a scheduler of the
            user.
        failure_reason: The reason why the cluster was lost; "" while it exists.
        wake: A function that the event loop's thread calls after each message or result.
    """

    def __init__(self, spec: ClusterSpec, folder: Path) -> None:
        self.spec = spec
        self.messages: deque[tuple[str, str]] = deque()
        self.transfer_counts = TransferByteCounts()
        self.failure_reason = ""
        self.local_cluster: SpecCluster | None = None
        self.wake: Callable[[], None] = lambda: None
        self._connected = threading.Event()
        self._workers: dict[str, WorkerHandle] = {}
        self._task_runs: list[TaskRun] = []
        self._manifest: WorkspaceManifest | None = None
        self._environment: worker.WorkerEnvironment | None = None
        self._exit_codes: dict[str, int] = {}
        self._lost_worker_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        configure_dask(folder)
        self._folder = folder
        self._thread = threading.Thread(target=self._run_event_loop, daemon=True, name="cluster")
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
        open.

        Args:
            required_environment: The versions and the GPU that workers must have.
        """
        self._environment, self._manifest = required_environment, manifest
        self._call_in_event_loop(self._announce_task_changes)

    def submit(self, task_run: TaskRun) -> None:
        """Submits a task run to the workers, or announces items added to it."""
        self._call_in_event_loop(self._add_task_run, task_run)

    def cancel(self, task_run: TaskRun) -> None:
        """Cancels the remaining items of a task run."""
        task_run.is_closed = True
        self._call_in_event_loop(self._announce_task_changes)

    @property
    def can_get_more_workers(self) -> bool:
        """True if further workers may become ready."""
        if self.failure_reason:
            return False
        if len(self._workers) < self.spec.workers:  # Dask restarts each local worker that has ended
            return True
        return not self._connected.is_set() or any(handle.workspace is None and not handle.refusal_reason
                                                   for handle in list(self._workers.values()))

    def count_workers(self, for_engines: bool = False) -> int:
        """Returns the number of workers that have the current workspace open.

        Args:
            for_engines: True to count only the workers with the same builder and GPU as this process.
        """
        return sum(handle.workspace is not None and handle.parcel is self._manifest
                   and not (for_engines and handle.engine_refusal_reason) for handle in list(self._workers.values()))

    def report_workers_unfit_for_engines(self) -> None:
        """Warns once of each worker that cannot build engines, because its builder or its GPU differs from that of this
        process."""
        for worker_handle in [
                handle for handle in list(self._workers.values())
                if handle.engine_refusal_reason and not handle.is_announced
        ]:
            worker_handle.is_announced = True
            self._post_message(
                "warning",
                f"Worker {worker_handle.display_name} builds no engines: it has {worker_handle.engine_refusal_reason}.")

    @property
    def worker_count_text(self) -> str:
        """The number of workers in use, as the end of a line about a job: ", on 4 workers (1 lost)"; "" without
        workers."""
        if not (worker_count := self.count_workers()):
            return ""
        return f", on {counted_noun_text(worker_count, 'worker')}" + (f" ({self._lost_worker_count} lost)"
                                                                      if self._lost_worker_count else "")

    def close(self) -> None:
        """Closes the connection, ends a cluster that this program has started, and waits for the end."""
        self._call_in_event_loop(self._closing.set)
        self._thread.join()

    # -- event loop ---------------------------------------------------------------------------------------------------

    def _call_in_event_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # raised if the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run_event_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._maintain_scheduler_connection())
        finally:
            self._connected.set()
            self._loop.close()

    async def _maintain_scheduler_connection(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                address = self.spec.scheduler
                if not address:
                    local_cluster = await stack.enter_async_context(
                        launch_local_cluster(self.spec, self._folder, self._record_worker_exit))
                    address, self.local_cluster = local_cluster.scheduler_address, local_cluster
                client = await stack.enter_async_context(
                    Client(address, asynchronous=True, timeout=CONNECT_TIMEOUT_S, name="trt-tui", set_as_default=False))
                self._worker_calls = WorkerCalls(client)
                self._provisioner = WorkerProvisioner(self._worker_calls, self.transfer_counts)
                client.subscribe_topic("all", self._handle_scheduler_event)
                await self._synchronize_workers(client)
                self._connected.set()
                self._start_task(self._keep_workers_synchronized(client))
                while client.status == "running" and not self._closing.is_set():
                    with suppress(asyncio.TimeoutError):  # raised when the connection is to be checked again
                        await asyncio.wait_for(self._closing.wait(), POLL_INTERVAL_S)
                if not self._closing.is_set():
                    self._abandon_cluster("the connection ended")
                    return
                for task in tuple(self._tasks):
                    task.cancel()
                client.unsubscribe_topic("all")
        except Exception as error:  # after any error of Dask, this process executes the tasks
            self._abandon_cluster(exception_text(error).partition("\n")[0] or type(error).__name__)

    def _abandon_cluster(self, reason: str) -> None:
        """Gives the cluster up; this process then executes the remaining items."""
        if self.failure_reason:
            return
        was_connected, self.failure_reason = self._connected.is_set(), reason
        for task in tuple(self._tasks):
            task.cancel()
        self._workers.clear()
        if was_connected:
            self._post_message("warning",
                               f"The Dask scheduler is lost ({reason}): this process continues the work.")
        for task_run in self._task_runs:
            task_run.wake()

    def _post_message(self, level: str, text: str) -> None:
        self.messages.append((level, text))
        self.wake()

    def _record_worker_exit(self, address: str, exit_code: int) -> None:
        self._exit_codes[address] = exit_code

    def _handle_scheduler_event(self, event: tuple[float, dict[str, Any]]) -> None:
        """Handles an event of the scheduler: a new worker, or a removed worker."""
        _, fields = event
        if fields.get("action") == "add-worker":
            self._add_worker(fields["worker"])
        elif fields.get("action") == "remove-worker" and (handle := self._workers.get(fields["worker"])) is not None:
            handle.gone_event.set()

    async def _keep_workers_synchronized(self, client: Client) -> None:
        """Compares the known workers with the scheduler's list at regular intervals.

        The check of the connection runs in parallel and does not wait for the list.
        """
        while True:
            await asyncio.sleep(WORKER_LIST_INTERVAL_S)
            with suppress(asyncio.TimeoutError, OSError):  # the check of the connection detects a lost one
                await asyncio.wait_for(self._synchronize_workers(client), CONNECT_TIMEOUT_S)

    async def _synchronize_workers(self, client: Client) -> None:
        """Adds the workers that the scheduler lists, and removes the workers that the scheduler no longer lists.

        The list is newer than the workers known before the request, and may be older than the workers known after it.
        """
        assert client.scheduler is not None, "the client is connected"
        known_addresses = set(self._workers)
        listed_addresses = set((await client.scheduler.identity(n_workers=-1))["workers"])
        for address in listed_addresses - known_addresses:
            self._add_worker(address)
        for address in known_addresses - listed_addresses:
            if (handle := self._workers.get(address)) is not None:
                handle.gone_event.set()

    def _add_worker(self, address: str) -> None:
        if address not in self._workers:
            handle = self._workers[address] = WorkerHandle(address)
            self._start_task(self._dispatch_batches_to_worker(handle))

    def _start_task(self, steps: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(steps)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _announce_task_changes(self) -> None:
        self._task_runs = [task_run for task_run in self._task_runs if not task_run.is_closed]
        if self._connected.is_set():
            self._worker_calls.notify_task_changes()

    def _add_task_run(self, task_run: TaskRun) -> None:
        if task_run not in self._task_runs:
            self._task_runs.append(task_run)
        if self.failure_reason:
            task_run.wake()
        self._announce_task_changes()

    # -- each worker --------------------------------------------------------------------------------------------------

    async def _dispatch_batches_to_worker(self, worker_handle: WorkerHandle) -> None:
        """Opens the workspace on a worker and sends batches of items to the worker until the worker is lost."""
        try:
            while True:
                change_event = self._worker_calls.change_event
                if self._manifest is not None and worker_handle.parcel is not self._manifest:
                    try:
                        assert self._environment is not None, "it came with the parcel"
                        await self._provisioner.provision_worker(worker_handle, self._manifest, self._environment)
                        self._report_ready_workers(worker_handle, self._manifest)
                    except WorkerLostError:
                        raise
                    except Exception as error:
                        worker_handle.refusal_reason = exception_text(error).partition("\n")[0]
                        self._post_message(
                            "warning",
                            f"Worker {worker_handle.display_name} is not used: {worker_handle.refusal_reason}.")
                elif (task_run := self._choose_task_run_for_worker(worker_handle)) is not None:
                    if (batch := task_run.take_item_batch(self.count_workers(task_run.for_engines))) is not None:
                        await self._run_batch_on_worker(worker_handle, task_run, batch)
                else:
                    await self._worker_calls.wait_for_result(worker_handle, change_event.wait())
        except WorkerLostError:
            if worker_handle.workspace is not None:
                self._lost_worker_count += 1
                self._post_message(
                    "warning",
                    f"Worker {worker_handle.display_name} is lost{await self._worker_exit_text(worker_handle)}: other "
                    "workers continue its work.")
        finally:
            self._workers.pop(worker_handle.address, None)
            for task_run in self._task_runs:
                task_run.task_futures.pop(worker_handle.address, None)
            self._wake_all_jobs()

    def _report_ready_workers(self, worker_handle: WorkerHandle, manifest: WorkspaceManifest) -> None:
        """Reports when all workers are ready, and warns of workers that cannot build engines."""
        if any(task_run.for_engines for task_run in self._task_runs):
            self.report_workers_unfit_for_engines()
        if not any(handle.parcel is manifest and handle.workspace is None and not handle.refusal_reason
                   for handle in self._workers.values()):
            self._provisioner.drop_file_pieces()
            assert worker_handle.info is not None, "it was asked for it"
            self._post_message("info", f"{counted_noun_text(self.count_workers(), 'worker')} of "
                               f"{self.spec.scheduler or 'this host'} ready: {worker_handle.info.environment.runtime}")
        self._wake_all_jobs()

    def _wake_all_jobs(self) -> None:
        for task_run in self._task_runs:
            task_run.wake()
        self.wake()

    def _choose_task_run_for_worker(self, worker_handle: WorkerHandle) -> TaskRun | None:
        """Returns the task run that a worker executes next: the latest task run with waiting items.

        The user waits for the latest request, while an earlier sweep may take long.
        """
        candidates = (
            task_run for task_run in reversed(self._task_runs)
            if task_run.has_waiting_items() and not (task_run.for_engines and worker_handle.engine_refusal_reason))
        return next(candidates, None) if worker_handle.workspace is not None else None

    async def _run_batch_on_worker(self, worker_handle: WorkerHandle, task_run: TaskRun, batch: ItemBatch) -> None:
        """Executes a batch of items on a worker and records the results."""
        task = task_run.task_futures.get(worker_handle.address)
        if task is None:
            task = task_run.task_futures[worker_handle.address] = self._worker_calls.submit_to_worker(
                worker_handle, worker.unpickle_task, task_run.pickled_task)
        items = pickle.dumps(batch.items)
        self.transfer_counts.items += len(items)
        try:
            seconds, packed = await self._worker_calls.call_on_worker(
                worker_handle, worker.run_task, worker_handle.workspace, task, items, task_run=task_run)
        except WorkerLostError:
            task_run.retry_or_fail_batch(
                batch, f"The last was {worker_handle.display_name}{await self._worker_exit_text(worker_handle)}.")
            self._announce_task_changes()
            raise
        except TaskCancelledError:
            task_run.task_futures.clear()
        except (asyncio.CancelledError, FutureCancelledError):  # raised if the connection is lost
            task_run.requeue_batch(batch)
            raise
        except Exception as error:
            task_run.end_with_error(error)
        else:
            self.transfer_counts.results += len(packed)
            task_run.complete_batch(batch, seconds, pickle.loads(packed))

    async def _worker_exit_text(self, worker_handle: WorkerHandle) -> str:
        """Returns the exit code or signal of a local worker's process as text; "" if it is unknown."""
        if not self.spec.scheduler and worker_handle.address not in self._exit_codes:
            await asyncio.sleep(POLL_INTERVAL_S)
        exit_code = self._exit_codes.get(worker_handle.address)
        if exit_code is None:
            return ""
        return f", ended by signal {-exit_code}" if exit_code < 0 else f", which ended with exit code {exit_code}"
