"""An errand under way: which items wait, which are being done, and what came of them."""

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trt_tui.core.hands import Errand
from trt_tui.errors import TrtTuiError

BUNDLE_S = 0.4
"""A worker is given about so much to do at a time."""

AHEAD = 4096
"""So many items are taken from their source ahead of being done."""

TRIES = 2
"""An item that ends so many workers is not tried again."""


@dataclass
class Bundle:
    """Items that a worker is given together.

    Attributes:
        ended: How many workers have ended while they did them.
    """

    items: list[Any]
    ended: int = 0


@dataclass
class Traffic:
    """Bytes that went to workers and came from them."""

    files: int = 0
    items: int = 0
    results: int = 0


class Work:
    """See the module's docstring. Two threads use it: the job's takes what has arrived, the cluster's gives items out.

    Args:
        items: Taken from as they are needed, by the job's thread alone.
        wake: Called when something has arrived.
        engines: Whether it takes workers with the same builder and GPU.

    Attributes:
        packed: The errand, pickled.
        arrived: Items with what came of them, or an exception.
        closed: Nobody waits for it any more.
        unpacked: Futures of the errand in workers, by address; used by the cluster's thread alone.
        left: How many items taken from their source are not done; used by the job's thread alone.
    """

    def __init__(self, errand: Errand[Any, Any, Any], items: Iterable[Any], wake: Callable[[], None], engines: bool
                 ) -> None:
        self.errand, self.engines, self.wake = errand, engines, wake
        self.packed = pickle.dumps(errand)
        self.arrived: deque[tuple[Any, Any] | Exception] = deque()
        self.closed = False
        self.unpacked: dict[str, Any] = {}
        self._source: Iterator[Any] = iter(items)
        self._waiting: deque[Bundle] = deque()
        self._lock = threading.Lock()
        self._each: float | None = None
        self.left = 0

    def refill(self) -> bool:
        """Takes items from their source; whether there were any."""
        with self._lock:
            before = self.left
            while len(self._waiting) < AHEAD:
                try:
                    self._waiting.append(Bundle([next(self._source)]))
                except StopIteration:
                    break
                self.left += 1
            return self.left > before

    def waits(self, suspects: bool = True) -> bool:
        """Whether there are items that nobody does; without ``suspects`` but for those that have ended a worker."""
        with self._lock:
            return not self.closed and any(suspects or not bundle.ended for bundle in self._waiting)

    def take(self, workers: int, suspects: bool = True) -> Bundle | None:
        """Items for one of some workers: one at first, then as many as take `BUNDLE_S`, and fewer towards the end."""
        with self._lock:
            place = next((place for place, one in enumerate(self._waiting) if suspects or not one.ended), None)
            if place is None or self.closed:
                return None
            first = self._waiting[place]
            del self._waiting[place]
            fair = len(self._waiting) // (2 * max(1, workers))
            wanted = 1 if self._each is None else min(int(BUNDLE_S / max(self._each, 1e-6)), fair)
            while not first.ended and len(first.items) < wanted and not self._waiting[0].ended:
                first.items += self._waiting.popleft().items
            return first

    def done(self, bundle: Bundle, seconds: float, results: list[Any]) -> None:
        """Takes what came of a bundle; an exception in place of the last result fails the job."""
        failed = bool(results) and isinstance(results[-1], Exception)
        count = len(results) - failed
        self._each = seconds / max(1, count)
        self.arrived.extend(zip(bundle.items, results[:count], strict=False))
        if failed:
            self.arrived.append(results[-1])
        self.wake()

    def lost(self, bundle: Bundle, how: str) -> None:
        """Puts a bundle back whose worker has ended, each item apart; fails the job over one that was alone twice."""
        ended = bundle.ended + 1
        if ended >= TRIES:
            words = self.errand.words(bundle.items[0])
            self.failed(TrtTuiError(f"{words}: it ended {ended} workers", how,
                                    "The log has what they printed. Memory may be short (--batch), or a library of "
                                    "operators at fault."))
            return
        with self._lock:
            self._waiting.extendleft(Bundle([item], ended) for item in reversed(bundle.items))

    def back(self, bundle: Bundle) -> None:
        """Puts a bundle back that nobody has begun, or whose worker is not to blame."""
        with self._lock:
            self._waiting.extendleft(Bundle([item], bundle.ended) for item in reversed(bundle.items))
        self.wake()

    def failed(self, error: Exception) -> None:
        """Ends the job with an error."""
        self.arrived.append(error)
        self.wake()

