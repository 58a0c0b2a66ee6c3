"""The executor of jobs on the workers of a cluster."""

from __future__ import annotations

import itertools
import pickle
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from distributed import Future, KilledWorker
from distributed.client import FutureCancelledError

from trt_tui.cluster import worker
from trt_tui.cluster.cluster import Cluster
from trt_tui.cluster.launch import ClusterSpec
from trt_tui.cluster.manifest import build_manifest
from trt_tui.cluster.worker import get_worker_environment
from trt_tui.core.execution import LocalExecutor, Task
from trt_tui.errors import TrtTuiError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.workspace import Workspace

Item = TypeVar("Item")
T = TypeVar("T")

BATCH_TARGET_S = 0.4
"""The intended duration in seconds of a batch on a worker."""

MAX_PREFETCHED_ITEMS = 4096
"""The maximum number of items that are taken from their source before their execution."""

MAX_LOST_WORKERS = 2
"""The number of workers that may end during an item before the item is given up."""

_task_run_numbers = itertools.count()


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
                      for_engines: bool = False) -> ClusterExecutor[Any]:
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


@dataclass(eq=False)
class ItemBatch(Generic[Item]):
    """A batch of items that a worker receives together.

    Attributes:
        lost_workers: The number of workers that have ended during the execution of these items.
    """

    items: list[Item]
    lost_workers: int = 0


class ClusterExecutor(Generic[Item]):
    """The executor of a job on the workers of a cluster. If no worker is ready, this process executes the items.

    Args:
        workspace: The workspace that the workers have open too.
        wake: A function that another thread calls when the job can continue.
        for_engines: True to use only the workers with the same builder and GPU as this process.
    """

    def __init__(self, cluster: Cluster, workspace: Workspace, wake: Callable[[], None],
                 for_engines: bool = False) -> None:
        self._cluster, self._local_executor, self._wake = cluster, LocalExecutor(workspace), wake
        self._for_engines, self._outage_count = for_engines, cluster.outage_counts[for_engines]
        self._waiting: deque[ItemBatch[Item]] = deque()
        self._futures: dict[ItemBatch[Item], Future[Any]] = {}
        self._arrivals: deque[tuple[ItemBatch[Item], Any]] = deque()
        self._seconds_per_item: float | None = None
        self._is_running_locally = False

    def map(self, task: Task[Workspace, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        source, pickled_task, number = iter(items), pickle.dumps(task), next(_task_run_numbers)
        try:
            while True:
                missing_count = MAX_PREFETCHED_ITEMS - len(self._waiting)
                self._waiting.extend(ItemBatch([item]) for item in itertools.islice(source, missing_count))
                while self._arrivals:
                    batch, outcome = self._arrivals.popleft()
                    if self._futures.pop(batch, None) is not None:
                        yield from self._take_results(task, batch, outcome)
                if self._lost_all_workers:
                    self._recall_batches(task)
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
        return bool(self._arrivals) or self._can_run_locally or not (self._waiting or self._futures) or (
            self._lost_all_workers) or (bool(self._waiting) and len(self._futures) < self._count_workers())

    @property
    def location_text(self) -> str:
        return self._cluster.worker_count_text

    @property
    def _lost_all_workers(self) -> bool:
        """True if no worker executes the batches in execution any more. Dask does not start them on later workers."""
        return bool(self._futures) and (not self._cluster.is_connected
                                        or self._cluster.outage_counts[self._for_engines] != self._outage_count)

    def _count_workers(self) -> int:
        return self._cluster.count_workers(self._for_engines)

    @property
    def _can_run_locally(self) -> bool:
        """True if this process executes the next items: no worker is ready, or can become ready for an engine. Items
        during which a worker has ended wait for a further worker too."""
        if not self._waiting or self._count_workers():
            return False
        needs_worker = self._for_engines or self._waiting[0].lost_workers > 0
        return not (needs_worker and self._cluster.can_get_more_workers)

    def _take_batch(self, worker_count: int) -> ItemBatch[Item]:
        """Takes a batch of waiting items. The first batch has one item; later batches take about `BATCH_TARGET_S`, and
        become smaller towards the end, so that all ``worker_count`` workers end together."""
        batch = self._waiting.popleft()
        if self._seconds_per_item is not None and not batch.lost_workers:
            batch_size = min(int(BATCH_TARGET_S / max(self._seconds_per_item, 1e-6)),
                             len(self._waiting) // (2 * worker_count))
            while len(batch.items) < batch_size and not self._waiting[0].lost_workers:
                batch.items += self._waiting.popleft().items
        return batch

    def _submit_batch(self, pickled_task: bytes, batch: ItemBatch[Item], priority: int) -> None:
        if not self._futures:
            self._outage_count = self._cluster.outage_counts[self._for_engines]
        items = pickle.dumps(batch.items)
        self._cluster.transfer_counts.items += len(items)
        future = self._futures[batch] = self._cluster.submit(
            worker.run_task, self._cluster.manifest.key, pickled_task, items, for_engines=self._for_engines,
            priority=priority)
        future.add_done_callback(partial(self._receive_results, batch))

    def _receive_results(self, batch: ItemBatch[Item], future: Future[Any]) -> None:
        """Receives the results of a batch, or the exception of Dask, in a thread of Dask."""
        try:
            self._arrivals.append((batch, future.result()))
        except BaseException as error:
            self._arrivals.append((batch, error))
        self._wake()

    def _take_results(self, task: Task[Workspace, Item, T], batch: ItemBatch[Item],
                      outcome: Any) -> Iterator[tuple[Item, T]]:
        """Yields the items of a batch with their results.

        Raises:
            TrtTuiError: An item failed, or has ended too many workers.
        """
        if isinstance(outcome, KilledWorker):
            self._retry_items(task, batch, outcome.allowed_failures + 1, outcome.last_worker.address)
        elif isinstance(outcome, (OSError, CancelledError, FutureCancelledError)):  # the connection is lost
            self._waiting.extendleft(ItemBatch([item], batch.lost_workers) for item in reversed(batch.items))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            duration_s, packed = outcome
            self._cluster.transfer_counts.results += len(packed)
            results = pickle.loads(packed)
            self._seconds_per_item = duration_s / max(1, len(results))
            for item, result in zip(batch.items, results, strict=False):
                if isinstance(result, Exception):
                    raise result
                yield item, result

    def _recall_batches(self, task: Task[Workspace, Item, T]) -> None:
        """Returns the batches in execution to the queue after the loss of all workers."""
        for batch, future in list(self._futures.items()):
            del self._futures[batch]
            future.release()
            self._outage_count = self._cluster.outage_counts[self._for_engines]
            self._retry_items(task, batch, 1 if self._cluster.is_connected else 0, self._cluster.last_lost_address)

    def _retry_items(self, task: Task[Workspace, Item, T], batch: ItemBatch[Item], lost_workers: int,
                     last_address: str) -> None:
        """Returns the items of a batch to the queue after the loss of workers, each item in a separate batch.

        Raises:
            TrtTuiError: The only item of the batch has ended `MAX_LOST_WORKERS` workers.
        """
        lost_workers += batch.lost_workers
        if len(batch.items) == 1 and lost_workers >= MAX_LOST_WORKERS:
            raise TrtTuiError(
                f"{task.describe_item(batch.items[0])}: {lost_workers} workers ended while they measured it",
                f"The last was {last_address}{self._cluster.worker_exit_text(last_address)}.",
                "The log contains their output. Memory may be short (--batch), or a library of operators at fault.")
        self._waiting.extendleft(ItemBatch([item], min(lost_workers, 1)) for item in reversed(batch.items))
