"""Asking a worker for something, and hearing at once that it is gone or that nobody waits for the answer."""

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
    """A worker is gone."""


class TaskCancelledError(Exception):
    """Nobody waits for what was asked of a worker."""


@dataclass
class WorkerHandle:
    """A worker.

    Attributes:
        gone_event: Set when it is.
        info: What it says of itself; None while it was not asked.
        workspace: What it has open, of ``parcel``.
        refusal_reason: Why it takes no part.
        engine_refusal_reason: Why it takes no part in what depends on the GPU and the builder.
        is_announced: Whether that was said.
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
        """For people."""
        return f"{self.address} ({self.info.host})" if self.info is not None else self.address


class WorkerCalls:
    """Asks workers; its methods are called by the thread whose loop the client is of.

    Attributes:
        change_event: Set, and replaced by another, whenever works come or go.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.change_event = asyncio.Event()

    def notify_task_changes(self) -> None:
        """Works have come or gone."""
        change_event, self.change_event = self.change_event, asyncio.Event()
        change_event.set()

    def submit_to_worker(self, worker_handle: WorkerHandle, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of what a function returns in a worker, which stays there."""
        return self.client.submit(function, *arguments, workers=[worker_handle.address], allow_other_workers=False,
                                  pure=False, key=f"trt-tui-{uuid.uuid4().hex}")

    async def call_on_worker(self, worker_handle: WorkerHandle, function: Callable[..., Any], *arguments: Any,
                             task_run: TaskRun | None = None) -> Any:
        """What a function returns in a worker.

        Raises:
            GoneError: the worker is.
            CalledOffError: nobody waits for the work any more.
        """
        future = self.submit_to_worker(worker_handle, function, *arguments)
        try:
            return await self.wait_for_result(worker_handle, future.result(), task_run)
        finally:
            if not future.done():
                with suppress(Exception):  # the scheduler may be lost
                    await self.client.cancel([future])

    async def wait_for_result(self, worker_handle: WorkerHandle, operation: Coroutine[Any, Any, Any],
                              task_run: TaskRun | None = None) -> Any:
        """What was asked for, unless the worker is gone first or the work is called off; raises as `call_on_worker`."""
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
