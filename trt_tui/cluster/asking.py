"""Asking a worker for something, and hearing at once that it is gone or that nobody waits for the answer."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from trt_tui.cluster import there
from trt_tui.cluster.parcel import Parcel
from trt_tui.cluster.work import Work


class GoneError(Exception):
    """A worker is gone."""


class CalledOffError(Exception):
    """Nobody waits for what was asked of a worker."""


@dataclass
class Worker:
    """A worker.

    Attributes:
        gone: Set when it is.
        greeting: What it says of itself; None while it was not asked.
        place: What it has open, of ``parcel``.
        refused: Why it takes no part.
        engines: Why it takes no part in what depends on the GPU and the builder.
        told: Whether that was said.
    """

    address: str
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    greeting: there.Greeting | None = None
    place: Any = None
    parcel: Parcel | None = None
    refused: str = ""
    engines: str = ""
    told: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.address} ({self.greeting.host})" if self.greeting is not None else self.address


class Asking:
    """Asks workers; its methods are called by the thread whose loop the client is of.

    Attributes:
        changed: Set, and replaced by another, whenever works come or go.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.changed = asyncio.Event()

    def notify(self) -> None:
        """Works have come or gone."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def submit(self, worker: Worker, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of what a function returns in a worker, which stays there."""
        return self.client.submit(function, *arguments, workers=[worker.address], allow_other_workers=False,
                                  pure=False, key=f"trt-tui-{uuid.uuid4().hex}")

    async def ask(self, worker: Worker, function: Callable[..., Any], *arguments: Any, work: Work | None = None) -> Any:
        """What a function returns in a worker.

        Raises:
            GoneError: the worker is.
            CalledOffError: nobody waits for the work any more.
        """
        future = self.submit(worker, function, *arguments)
        try:
            return await self.first(worker, future.result(), work)
        finally:
            if not future.done():
                with suppress(Exception):  # the scheduler may be lost
                    await self.client.cancel([future])

    async def first(self, worker: Worker, asked: Coroutine[Any, Any, Any], work: Work | None = None) -> Any:
        """What was asked for, unless the worker is gone first or the work is called off; raises as `ask`."""
        doing, gone = asyncio.ensure_future(asked), asyncio.ensure_future(worker.gone.wait())
        watching = {doing, gone}
        try:
            while True:
                changed = {asyncio.ensure_future(self.changed.wait())} if work is not None else set()
                watching |= changed
                await asyncio.wait({doing, gone, *changed}, return_when=asyncio.FIRST_COMPLETED)
                if doing.done():
                    return doing.result()
                if gone.done():
                    raise GoneError
                if work is not None and work.closed:
                    raise CalledOffError
        finally:
            for task in watching:
                task.cancel()
