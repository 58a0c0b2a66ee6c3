"""The executor of jobs on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TypeVar

from trt_tui.cluster.cluster import Cluster
from trt_tui.cluster.launch import ClusterSpec
from trt_tui.cluster.manifest import build_manifest
from trt_tui.cluster.task_run import TaskRun
from trt_tui.cluster.worker import get_worker_environment
from trt_tui.core.execution import LocalExecutor, Task
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.workspace import Workspace

Item = TypeVar("Item")
T = TypeVar("T")


class ClusterWorkerPool:
    """The workers of a cluster as a `trt_tui.workspace.WorkerPool`.

    Args:
        spec: The scheduler to connect to, or the local cluster to start.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._scratch_stack = ExitStack()
        self._folder = self._scratch_stack.enter_context(create_scratch_folder())
        self.cluster = Cluster(spec, self._folder)
        self._open_workspace: Workspace | None = None
        self._manifest_count = 0

    @property
    def failure_reason(self) -> str:
        return self.cluster.failure_reason

    def count_workers(self, for_engines: bool = False) -> int:
        return self.cluster.count_workers(for_engines)

    def take_new_messages(self) -> Iterator[tuple[str, str]]:
        while self.cluster.messages:
            yield self.cluster.messages.popleft()

    def open_workspace_on_workers(self, workspace: Workspace) -> None:
        workspace = workspace.full_workspace
        if self._open_workspace is workspace:
            return
        if not self._manifest_count:
            self.cluster.require_connection()
        self._manifest_count += 1
        folder = self._folder / f"parcel-{self._manifest_count}"
        folder.mkdir()
        self.cluster.open_manifest_on_workers(build_manifest(workspace, folder),
                                              get_worker_environment(workspace.backend))
        self._open_workspace = workspace

    def make_executor(self, workspace: Workspace, wake_caller: Callable[[], None],
                      for_engines: bool = False) -> ClusterExecutor:
        self.cluster.wake = wake_caller
        self.open_workspace_on_workers(workspace)
        if for_engines:
            self.cluster.report_workers_unfit_for_engines()
        return ClusterExecutor(self.cluster, workspace, wake_caller, for_engines)

    def close(self) -> None:
        """Ends a cluster that this program has started, and waits for the end. Nothing stays on a cluster of the user.
        """
        self.cluster.close()
        self._scratch_stack.close()


class ClusterExecutor:
    """The executor of a job on the workers of a cluster. If no worker is ready, this process executes the items.

    Args:
        workspace: The workspace that the workers have open too.
        wake: A function that another thread calls when the job can continue.
        for_engines: True to use only the workers with the same builder and GPU as this process.
    """

    def __init__(self, cluster: Cluster, workspace: Workspace, wake: Callable[[], None],
                 for_engines: bool = False) -> None:
        self._cluster, self._local_executor, self._wake, self._for_engines = cluster, LocalExecutor(
            workspace), wake, for_engines
        self._task_run: TaskRun | None = None
        self._is_running_locally = False

    def map(self, task: Task[Workspace, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        task_run = self._task_run = TaskRun(task, items, self._wake, self._for_engines)
        try:
            while True:
                if task_run.prefetch_items():
                    self._cluster.submit(task_run)
                if task_run.arrivals:
                    arrival = task_run.arrivals.popleft()
                    if isinstance(arrival, Exception):
                        raise arrival
                    task_run.remaining -= 1
                    yield arrival
                elif not task_run.remaining:
                    return
                elif self._has_no_workers and (batch := task_run.take_item_batch(
                        1, self._can_run_crashing_items)) is not None:
                    self._is_running_locally = True
                    for result in self._local_executor.map(task, batch.items):
                        task_run.remaining -= result is not None
                        yield result
                    self._is_running_locally = False
                else:
                    yield None
        finally:
            self._cluster.cancel(task_run)
            self._task_run, self._is_running_locally = None, False

    def is_ready(self) -> bool:
        task_run = self._task_run
        if self._is_running_locally:
            return self._local_executor.is_ready()
        return task_run is None or not task_run.remaining or bool(
            task_run.arrivals) or self._has_no_workers and task_run.has_waiting_items(self._can_run_crashing_items)

    @property
    def location_text(self) -> str:
        return self._cluster.worker_count_text

    @property
    def _has_no_workers(self) -> bool:
        return not self._cluster.count_workers(self._for_engines) and not (self._for_engines
                                                                           and self._cluster.can_get_more_workers)

    @property
    def _can_run_crashing_items(self) -> bool:
        """True if this process may execute items during which a worker has ended. No further worker can become ready
        then."""
        return not self._cluster.can_get_more_workers
