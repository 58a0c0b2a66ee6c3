"""The workers of a Dask cluster, and who gives them what to do: a thread with an event loop, one task for each worker.

Dask starts and restarts processes, moves bytes, and lets go of everything once this program is gone. Which worker does
what is decided here: only workers of the same kind take part, each does one bundle of items at a time, and one that is
gone has what it was doing done by another.
"""

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from distributed import Client, SpecCluster
from distributed.client import FutureCancelledError

from trt_tui.cluster import there
from trt_tui.cluster.asking import Asking, CalledOffError, GoneError, Worker
from trt_tui.cluster.hiring import Hiring, configure, own_cluster
from trt_tui.cluster.parcel import Parcel
from trt_tui.cluster.settling import Settling
from trt_tui.cluster.work import Bundle, Traffic, Work
from trt_tui.errors import TrtTuiError, text_of
from trt_tui.words import plural

CONNECT_S = 5.0
"""How long a scheduler that was named has to answer."""

LOOK_S = 0.3
"""How often the connection to the scheduler is looked at."""


class Cluster:
    """See the module's docstring. Its methods are called by one thread, and return at once unless they say otherwise.

    Args:
        hiring: Who is asked.
        folder: Where Dask keeps files.

    Attributes:
        news: What to tell: level ("info", "warning") and text.
        traffic: What was moved.
        own: The cluster of our own, once it runs.
        lost: Why there is no cluster any more, "" while there is one.
        wake: Called by the loop's thread when there is news.
    """

    def __init__(self, hiring: Hiring, folder: Path) -> None:
        self.hiring = hiring
        self.news: deque[tuple[str, str]] = deque()
        self.traffic = Traffic()
        self.lost = ""
        self.own: SpecCluster | None = None
        self.wake: Callable[[], None] = lambda: None
        self._connected = threading.Event()
        self._workers: dict[str, Worker] = {}
        self._works: list[Work] = []
        self._parcel: Parcel | None = None
        self._here: there.Kind | None = None
        self._exits: dict[str, int] = {}
        self._ended = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        configure(folder)
        self._folder = folder
        self._thread = threading.Thread(target=self._live, daemon=True, name="cluster")
        self._thread.start()

    # -- for jobs -----------------------------------------------------------------------------------------------------

    def require_connected(self) -> None:
        """Waits for a scheduler that was named.

        Raises:
            TrtTuiError: it does not answer.
        """
        if self.hiring.scheduler:
            if not self._connected.wait(2 * CONNECT_S) or self.lost:
                raise TrtTuiError(f"no Dask scheduler answers at {self.hiring.scheduler}", self.lost,
                                  "Check the address. With TLS it is tls://HOST:PORT, and Dask's configuration "
                                   "names the certificates (distributed.comm.tls: ca-file, client.cert, client.key).")

    def open(self, parcel: Parcel, here: there.Kind) -> None:
        """Has workers open something, in place of what they have open.

        Args:
            here: What workers have to be like.
        """
        self._here, self._parcel = here, parcel
        self._call(self._notify)

    def begin(self, work: Work) -> None:
        """Has workers do it, or what has been added to it."""
        self._call(self._begin, work)

    def end(self, work: Work) -> None:
        """Calls off what is not done of it."""
        work.closed = True
        self._call(self._notify)

    @property
    def starting(self) -> bool:
        """Whether workers may yet come to take part."""
        if self.lost:
            return False
        if len(self._workers) < self.hiring.workers:  # of our own: what ends is started anew
            return True
        return not self._connected.is_set() or any(one.place is None and not one.refused
                                                   for one in list(self._workers.values()))

    def able(self, engines: bool = False) -> int:
        """How many workers take part in what depends on the GPU and the builder, or in the rest."""
        return sum(one.place is not None and one.parcel is self._parcel and not (engines and one.engines)
                   for one in list(self._workers.values()))

    def name_unfit(self) -> None:
        """Says, once for each, which workers take no part in what depends on the GPU and the builder."""
        for worker in [one for one in list(self._workers.values()) if one.engines and not one.told]:
            worker.told = True
            self._tell("warning", f"Worker {worker.name} builds no engines: it has {worker.engines}.")

    @property
    def words(self) -> str:
        """How many take part, for a line about a job; "" while nobody does."""
        if not (serving := self.able()):
            return ""
        return f", on {plural(serving, 'worker')}" + (f" ({self._ended} lost)" if self._ended else "")

    def close(self) -> None:
        """Ends the cluster, if it is our own, and waits for that."""
        self._call(self._closing.set)
        self._thread.join()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._connected.set()
            self._loop.close()

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                address = self.hiring.scheduler
                if not address:
                    own = await stack.enter_async_context(own_cluster(self.hiring, self._folder, self._exited))
                    address, self.own = own.scheduler_address, own
                client = await stack.enter_async_context(
                    Client(address, asynchronous=True, timeout=CONNECT_S, name="trt-tui", set_as_default=False))
                self._asking = Asking(client)
                self._settling = Settling(self._asking, self.traffic)
                client.subscribe_topic("all", self._heard)
                for worker in (await client.scheduler.identity(n_workers=-1))["workers"]:
                    self._hire(worker)
                self._connected.set()
                while client.status == "running" and not self._closing.is_set():
                    with suppress(asyncio.TimeoutError):  # time to look again
                        await asyncio.wait_for(self._closing.wait(), LOOK_S)
                if not self._closing.is_set():
                    self._lose("the connection ended")
                    return
                for task in tuple(self._tasks):
                    task.cancel()
                client.unsubscribe_topic("all")
        except Exception as error:  # whatever Dask raises, the work goes on here
            self._lose(text_of(error).partition("\n")[0] or type(error).__name__)

    def _lose(self, why: str) -> None:
        """Leaves what is not done to the program itself."""
        if self.lost:
            return
        connected, self.lost = self._connected.is_set(), why
        for task in tuple(self._tasks):
            task.cancel()
        self._workers.clear()
        if connected:
            self._tell("warning", f"The Dask scheduler is lost ({why}): what workers were doing is done here.")
        for work in self._works:
            work.wake()

    def _tell(self, level: str, text: str) -> None:
        self.news.append((level, text))
        self.wake()

    def _exited(self, address: str, code: int) -> None:
        self._exits[address] = code

    def _heard(self, event: tuple[float, dict[str, Any]]) -> None:
        """Takes what the scheduler says."""
        _, said = event
        if said.get("action") == "add-worker":
            self._hire(said["worker"])
        elif said.get("action") == "remove-worker" and (worker := self._workers.get(said["worker"])) is not None:
            worker.gone.set()

    def _hire(self, address: str) -> None:
        if address not in self._workers:
            worker = self._workers[address] = Worker(address)
            task = self._loop.create_task(self._tend(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _notify(self) -> None:
        self._works = [work for work in self._works if not work.closed]
        if self._connected.is_set():
            self._asking.notify()

    def _begin(self, work: Work) -> None:
        if work not in self._works:
            self._works.append(work)
        if self.lost:
            work.wake()
        self._notify()

    # -- a worker -----------------------------------------------------------------------------------------------------

    async def _tend(self, worker: Worker) -> None:
        """Gives a worker what to do until it is gone."""
        try:
            while True:
                changed = self._asking.changed
                if self._parcel is not None and worker.parcel is not self._parcel:
                    try:
                        assert self._here is not None, "it came with the parcel"
                        await self._settling.settle(worker, self._parcel, self._here)
                        self._settled(worker, self._parcel)
                    except GoneError:
                        raise
                    except Exception as error:
                        worker.refused = text_of(error).partition("\n")[0]
                        self._tell("warning", f"Worker {worker.name} takes no part: {worker.refused}.")
                elif (work := self._work_for(worker)) is not None:
                    if (bundle := work.take(self.able(work.engines))) is not None:
                        await self._give(worker, work, bundle)
                else:
                    await self._asking.first(worker, changed.wait())
        except GoneError:
            if worker.place is not None:
                self._ended += 1
                self._tell("warning", f"Worker {worker.name} is gone{await self._how(worker)}: "
                                      "others do what it was doing.")
        finally:
            self._workers.pop(worker.address, None)
            for work in self._works:
                work.unpacked.pop(worker.address, None)
            self._wake_all()

    def _settled(self, worker: Worker, parcel: Parcel) -> None:
        """Says that the workers are ready, once all of them are, and who cannot do what waits."""
        if any(work.engines for work in self._works):
            self.name_unfit()
        if not any(one.parcel is parcel and one.place is None and not one.refused for one in self._workers.values()):
            self._settling.forget()
            assert worker.greeting is not None, "it was asked for it"
            self._tell("info", f"{plural(self.able(), 'worker')} of "
                               f"{self.hiring.scheduler or 'this host'} ready: {worker.greeting.kind.runtime}")
        self._wake_all()

    def _wake_all(self) -> None:
        for work in self._works:
            work.wake()
        self.wake()

    def _work_for(self, worker: Worker) -> Work | None:
        """The work that was begun last goes first: somebody waits for it, while a sweep goes on for long."""
        able = (work for work in reversed(self._works) if work.waits() and not (work.engines and worker.engines))
        return next(able, None) if worker.place is not None else None

    async def _give(self, worker: Worker, work: Work, bundle: Bundle) -> None:
        """Has a worker do a bundle."""
        errand = work.unpacked.get(worker.address)
        if errand is None:
            errand = work.unpacked[worker.address] = self._asking.submit(worker, there.unpacked, work.packed)
        items = pickle.dumps(bundle.items)
        self.traffic.items += len(items)
        try:
            seconds, packed = await self._asking.ask(worker, there.run, worker.place, errand, items, work=work)
        except GoneError:
            work.lost(bundle, f"The last was {worker.name}{await self._how(worker)}.")
            self._notify()
            raise
        except CalledOffError:
            work.unpacked.clear()
        except (asyncio.CancelledError, FutureCancelledError):  # the connection is lost
            work.back(bundle)
            raise
        except Exception as error:
            work.failed(error)
        else:
            self.traffic.results += len(packed)
            work.done(bundle, seconds, pickle.loads(packed))

    async def _how(self, worker: Worker) -> str:
        """How the process of a worker of our own ended, in words."""
        if not self.hiring.scheduler and worker.address not in self._exits:
            await asyncio.sleep(LOOK_S)
        code = self._exits.get(worker.address)
        if code is None:
            return ""
        return f", ended by signal {-code}" if code < 0 else f", which ended with exit code {code}"
