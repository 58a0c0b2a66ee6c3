"""Calls of functions on workers. A call ends at once if the worker is lost or the call is cancelled."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from trt_tui.cluster import worker
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.cluster.task_run import TaskRun


class WorkerLostError(Exception):
    """A worker was lost."""


class TaskCancelledError(Exception):
    """A call on a worker was cancelled, because no job waits for its result any more."""


@dataclass
class WorkerHandle:
    """A worker of the cluster, as the program sees it.

    Attributes:
        gone_event: An event that is set when the worker is lost.
        info: The description of the worker; None before the first answer.
        workspace: The future of the workspace that the worker has opened from ``parcel``; None if none is open.
        parcel: The manifest that the worker was requested to open.
        refusal_reason: The reason why the worker is not used; "" if it can be used.
        engine_refusal_reason: The reason why the worker cannot build engines; "" if it can.
        is_announced: True if the user was warned that the worker cannot build engines.
    """

    address: str
    gone_event: asyncio.Event = field(default_factory=asyncio.Event)
    info: worker.WorkerInfo | None = None
    workspace: Any = None
    parcel: WorkspaceManifest | None = None
    refusal_reason: str = ""
    engine_refusal_reason: str = ""
    is_announced: bool = False

    @property
    def display_name(self) -> str:
        return f"{self.address} ({self.info.host})" if self.info is not None else self.address


class WorkerCalls:
    """Calls functions on workers. Only the thread of the client's event loop calls the methods.

    Attributes:
        change_event: An event that is set, and replaced by a new event, whenever task runs are added or removed.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.change_event = asyncio.Event()

    def notify_task_changes(self) -> None:
        """Wakes everything that waits for `change_event`, after task runs were added or removed."""
        change_event, self.change_event = self.change_event, asyncio.Event()
        change_event.set()

    def submit_to_worker(self, worker_handle: WorkerHandle, function: Callable[..., Any], *arguments: Any) -> Any:
        """Starts a function on a worker. Returns the future of its result, which stays on the worker."""
        return self.client.submit(function, *arguments, workers=[worker_handle.address], allow_other_workers=False,
                                  pure=False, key=f"trt-tui-{uuid.uuid4().hex}")

    async def call_on_worker(self, worker_handle: WorkerHandle, function: Callable[..., Any], *arguments: Any,
                             task_run: TaskRun | None = None) -> Any:
        """Calls a function on a worker and returns its result.

        Raises:
            WorkerLostError: The worker was lost.
            TaskCancelledError: No job waits for the result any more.
        """
        future = self.submit_to_worker(worker_handle, function, *arguments)
        try:
            return await self.wait_for_result(worker_handle, future.result(), task_run)
        finally:
            if not future.done():
                with suppress(Exception):  # the connection to the scheduler may be lost
                    await self.client.cancel([future])

    async def wait_for_result(self, worker_handle: WorkerHandle, operation: Coroutine[Any, Any, Any],
                              task_run: TaskRun | None = None) -> Any:
        """Waits for an operation and returns its result. Raises the errors of `call_on_worker`."""
        operation_task, gone_task = asyncio.ensure_future(operation), asyncio.ensure_future(
            worker_handle.gone_event.wait())
        watched_tasks = {operation_task, gone_task}
        try:
            while True:
                change_tasks = {asyncio.ensure_future(self.change_event.wait())} if task_run is not None else set()
                watched_tasks |= change_tasks
                await asyncio.wait({operation_task, gone_task, *change_tasks}, return_when=asyncio.FIRST_COMPLETED)
                if operation_task.done():
                    return operation_task.result()
                if gone_task.done():
                    raise WorkerLostError
                if task_run is not None and task_run.is_closed:
                    raise TaskCancelledError
        finally:
            for task in watched_tasks:
                task.cancel()
