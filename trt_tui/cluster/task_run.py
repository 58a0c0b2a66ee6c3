"""The state of one task on a cluster: waiting items, items in execution, and results."""

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trt_tui.core.execution import Task
from trt_tui.errors import TrtTuiError

BATCH_TARGET_S = 0.4
"""The intended duration in seconds of a batch on a worker."""

MAX_PREFETCHED_ITEMS = 4096
"""The maximum number of items that are taken from their source before their execution."""

MAX_LOST_WORKERS = 2
"""The number of workers that may end during an item before the item is given up."""


@dataclass
class ItemBatch:
    """A batch of items that a worker receives together.

    Attributes:
        lost_workers: The number of workers that have ended during the execution of these items.
    """

    items: list[Any]
    lost_workers: int = 0


@dataclass
class TransferByteCounts:
    """The numbers of bytes sent to workers (files and items) and received from them (results)."""

    files: int = 0
    items: int = 0
    results: int = 0


class TaskRun:
    """The execution of one task on a cluster.

    Two threads use this object: the thread of the job takes results, and the thread of the cluster takes batches.

    Args:
        items: The source of items. Only the thread of the job reads it, as items are needed.
        wake: A function that is called after each arrival.
        for_engines: True if the task needs workers with the same builder and GPU as this process.

    Attributes:
        pickled_task: The pickled task.
        arrivals: The items with their results, or an exception that ends the job.
        is_closed: True if no job waits for the results any more.
        task_futures: The futures of the unpickled task on each worker, by address. Only the cluster's thread uses them.
        remaining: The number of items taken from their source without a result yet. Only the job's thread uses it.
    """

    def __init__(self, task: Task[Any, Any, Any], items: Iterable[Any], wake: Callable[[], None], for_engines: bool
                 ) -> None:
        self.task, self.for_engines, self.wake = task, for_engines, wake
        self.pickled_task = pickle.dumps(task)
        self.arrivals: deque[tuple[Any, Any] | Exception] = deque()
        self.is_closed = False
        self.task_futures: dict[str, Any] = {}
        self._source: Iterator[Any] = iter(items)
        self._waiting_batches: deque[ItemBatch] = deque()
        self._lock = threading.Lock()
        self._seconds_per_item: float | None = None
        self.remaining = 0

    def prefetch_items(self) -> bool:
        """Takes items from their source into the queue. Returns True if there were any."""
        with self._lock:
            before = self.remaining
            while len(self._waiting_batches) < MAX_PREFETCHED_ITEMS:
                try:
                    self._waiting_batches.append(ItemBatch([next(self._source)]))
                except StopIteration:
                    break
                self.remaining += 1
            return self.remaining > before

    def has_waiting_items(self, include_crashing_items: bool = True) -> bool:
        """Returns True if items wait for a worker.

        Args:
            include_crashing_items: False to ignore items that have ended a worker.
        """
        with self._lock:
            return not self.is_closed and any(include_crashing_items or not batch.lost_workers
                                              for batch in self._waiting_batches)

    def take_item_batch(self, worker_count: int, include_crashing_items: bool = True) -> ItemBatch | None:
        """Takes a batch of waiting items for one worker; None if no item waits.

        The first batch has one item. Later batches take about `BATCH_TARGET_S`, and become smaller towards the end, so
        that all ``worker_count`` workers end together.

        Args:
            include_crashing_items: False to leave out items that have ended a worker.
        """
        with self._lock:
            index = next((index for index, candidate in enumerate(self._waiting_batches)
                          if include_crashing_items or not candidate.lost_workers), None)
            if index is None or self.is_closed:
                return None
            batch = self._waiting_batches[index]
            del self._waiting_batches[index]
            fair_size = len(self._waiting_batches) // (2 * max(1, worker_count))
            batch_size = 1 if self._seconds_per_item is None else min(
                int(BATCH_TARGET_S / max(self._seconds_per_item, 1e-6)), fair_size)
            while not batch.lost_workers and len(
                    batch.items) < batch_size and not self._waiting_batches[0].lost_workers:
                batch.items += self._waiting_batches.popleft().items
            return batch

    def complete_batch(self, batch: ItemBatch, duration_s: float, results: list[Any]) -> None:
        """Records the results of a batch. An exception as the last result fails the job."""
        failed = bool(results) and isinstance(results[-1], Exception)
        count = len(results) - failed
        self._seconds_per_item = duration_s / max(1, count)
        self.arrivals.extend(zip(batch.items, results[:count], strict=False))
        if failed:
            self.arrivals.append(results[-1])
        self.wake()

    def retry_or_fail_batch(self, batch: ItemBatch, worker_exit_text: str) -> None:
        """Returns the items of a batch to the queue after the loss of its worker, each item in a separate batch.

        If the items have already ended `MAX_LOST_WORKERS` workers, the job fails.
        """
        lost_workers = batch.lost_workers + 1
        if lost_workers >= MAX_LOST_WORKERS:
            item_text = self.task.describe_item(batch.items[0])
            self.end_with_error(
                TrtTuiError(
                    f"{item_text}: {lost_workers} workers ended while they measured it", worker_exit_text,
                    "The log contains their output. Memory may be short (--batch), or a library of "
                    "operators at fault."))
            return
        with self._lock:
            self._waiting_batches.extendleft(ItemBatch([item], lost_workers) for item in reversed(batch.items))

    def requeue_batch(self, batch: ItemBatch) -> None:
        """Returns the items of a batch to the queue if the batch was not started, or its worker is not at fault."""
        with self._lock:
            self._waiting_batches.extendleft(ItemBatch([item], batch.lost_workers) for item in reversed(batch.items))
        self.wake()

    def end_with_error(self, error: Exception) -> None:
        self.arrivals.append(error)
        self.wake()

