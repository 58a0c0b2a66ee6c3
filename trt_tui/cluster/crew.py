"""The workers of a cluster as the hands of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TypeVar

from trt_tui.cluster.cluster import Cluster
from trt_tui.cluster.hiring import Hiring
from trt_tui.cluster.parcel import parcel_of
from trt_tui.cluster.there import kind_of
from trt_tui.cluster.work import Work
from trt_tui.core.hands import Errand, Here
from trt_tui.files.scratch import scratch_folder
from trt_tui.workspace import Workspace

Item = TypeVar("Item")
T = TypeVar("T")


class Hired:
    """See `trt_tui.workspace.Others`.

    Args:
        hiring: Who is asked.
    """

    def __init__(self, hiring: Hiring) -> None:
        self._scratch = ExitStack()
        self._folder = self._scratch.enter_context(scratch_folder())
        self.cluster = Cluster(hiring, self._folder)
        self._open: Workspace | None = None
        self._parcels = 0

    @property
    def lost(self) -> str:
        """See `trt_tui.workspace.Others`."""
        return self.cluster.lost

    def able(self, engines: bool = False) -> int:
        """See `trt_tui.workspace.Others`."""
        return self.cluster.able(engines)

    def told(self) -> Iterator[tuple[str, str]]:
        """See `trt_tui.workspace.Others`."""
        while self.cluster.news:
            yield self.cluster.news.popleft()

    def share(self, workspace: Workspace) -> None:
        """See `trt_tui.workspace.Others`."""
        workspace = workspace.whole
        if self._open is workspace:
            return
        if not self._parcels:
            self.cluster.require_connected()
        self._parcels += 1
        folder = self._folder / f"parcel-{self._parcels}"
        folder.mkdir()
        self.cluster.open(parcel_of(workspace, folder), kind_of(workspace.backend))
        self._open = workspace

    def hands(self, workspace: Workspace, wake: Callable[[], None], engines: bool = False) -> Crew:
        """See `trt_tui.workspace.Others`."""
        self.cluster.wake = wake
        self.share(workspace)
        if engines:
            self.cluster.name_unfit()
        return Crew(self.cluster, workspace, wake, engines)

    def close(self) -> None:
        """Ends a cluster of our own, and waits for that; nothing is left in another."""
        self.cluster.close()
        self._scratch.close()


class Crew:
    """See `trt_tui.core.hands.Hands`. While no worker takes part this process does what there is to do.

    Args:
        workspace: What workers have open too.
        wake: Called from another thread when there is something to go on with.
        engines: Only workers with the same builder and GPU take part.
    """

    def __init__(self, cluster: Cluster, workspace: Workspace, wake: Callable[[], None], engines: bool = False) -> None:
        self._cluster, self._here, self._wake, self._engines = cluster, Here(workspace), wake, engines
        self._work: Work | None = None
        self._busy = False

    def work(self, errand: Errand[Workspace, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """See `trt_tui.core.hands.Hands`."""
        work = self._work = Work(errand, items, self._wake, self._engines)
        try:
            while True:
                if work.refill():
                    self._cluster.begin(work)
                if work.arrived:
                    arrival = work.arrived.popleft()
                    if isinstance(arrival, Exception):
                        raise arrival
                    work.left -= 1
                    yield arrival
                elif not work.left:
                    return
                elif self._alone and (bundle := work.take(1, self._dares)) is not None:
                    self._busy = True
                    for done in self._here.work(errand, bundle.items):
                        work.left -= done is not None
                        yield done
                    self._busy = False
                else:
                    yield None
        finally:
            self._cluster.end(work)
            self._work, self._busy = None, False

    def ready(self) -> bool:
        """See `trt_tui.core.hands.Hands`."""
        work = self._work
        if self._busy:
            return self._here.ready()
        return work is None or not work.left or bool(work.arrived) or self._alone and work.waits(self._dares)

    @property
    def words(self) -> str:
        """See `trt_tui.core.hands.Hands`."""
        return self._cluster.words

    @property
    def _alone(self) -> bool:
        return not self._cluster.able(self._engines) and not (self._engines and self._cluster.starting)

    @property
    def _dares(self) -> bool:
        """Whether this process does what has ended a worker: only where no other is going to come."""
        return not self._cluster.starting
