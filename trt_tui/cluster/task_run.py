"""An errand under way: which items wait, which are being done, and what came of them."""

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trt_tui.core.execution import Task
from trt_tui.errors import TrtTuiError

BATCH_TARGET_S = 0.4
"""A worker is given about so much to do at a time."""

MAX_PREFETCHED_ITEMS = 4096
"""So many items are taken from their source ahead of being done."""

MAX_LOST_WORKERS = 2
"""An item that ends so many workers is not tried again."""


@dataclass
class ItemBatch:
    """Items that a worker is given together.

    Attributes:
        lost_workers: How many workers have ended while they did them.
    """

    items: list[Any]
    lost_workers: int = 0


@dataclass
class TransferByteCounts:
    """Bytes that went to workers and came from them."""

    files: int = 0
    items: int = 0
    results: int = 0


class TaskRun:
    """See the module's docstring. Two threads use it: the job's takes what has arrived, the cluster's gives items out.

    Args:
        items: Taken from as they are needed, by the job's thread alone.
        wake: Called when something has arrived.
        for_engines: Whether it takes workers with the same builder and GPU.

    Attributes:
        pickled_task: The errand, pickled.
        arrivals: Items with what came of them, or an exception.
        is_closed: Nobody waits for it any more.
        task_futures: Futures of the errand in workers, by address; used by the cluster's thread alone.
        remaining: How many items taken from their source are not done; used by the job's thread alone.
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
        """Takes items from their source; whether there were any."""
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
        """Whether there are items that nobody does; without ``include_crashing_items`` but for those that have ended a
        worker."""
        with self._lock:
            return not self.is_closed and any(include_crashing_items or not batch.lost_workers
                                              for batch in self._waiting_batches)

    def take_item_batch(self, worker_count: int, include_crashing_items: bool = True) -> ItemBatch | None:
        """Items for one of some workers: one at first, then as many as take `BATCH_TARGET_S`, and fewer towards the
        end."""
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
        """Takes what came of a bundle; an exception in place of the last result fails the job."""
        failed = bool(results) and isinstance(results[-1], Exception)
        count = len(results) - failed
        self._seconds_per_item = duration_s / max(1, count)
        self.arrivals.extend(zip(batch.items, results[:count], strict=False))
        if failed:
            self.arrivals.append(results[-1])
        self.wake()

    def retry_or_fail_batch(self, batch: ItemBatch, worker_exit_text: str) -> None:
        """Puts a bundle back whose worker has ended, each item apart; fails the job over one that was alone twice."""
        lost_workers = batch.lost_workers + 1
        if lost_workers >= MAX_LOST_WORKERS:
            item_text = self.task.describe_item(batch.items[0])
            self.end_with_error(
                TrtTuiError(
                    f"{item_text}: {lost_workers} workers ended on it", worker_exit_text,
                    "The log contains their output. Memory may be short (--batch), or a library of "
                    "operators at fault."))
            return
        with self._lock:
            self._waiting_batches.extendleft(ItemBatch([item], lost_workers) for item in reversed(batch.items))

    def requeue_batch(self, batch: ItemBatch) -> None:
        """Puts a bundle back that nobody has begun, or whose worker is not to blame."""
        with self._lock:
            self._waiting_batches.extendleft(ItemBatch([item], batch.lost_workers) for item in reversed(batch.items))
        self.wake()

    def end_with_error(self, error: Exception) -> None:
        """Ends the job with an error."""
        self.arrivals.append(error)
        self.wake()

