"""Having a worker open what is open here: it is looked at first, then sent what it does not see."""

import asyncio
from typing import Any

from trt_tui.cluster import there
from trt_tui.cluster.asking import Asking, Worker
from trt_tui.cluster.parcel import Parcel
from trt_tui.cluster.work import Traffic
from trt_tui.errors import TrtTuiError

PIECE_BYTES = 32 << 20
"""Files go to workers in pieces of this size."""


class Settling:
    """Settles workers; used by the thread of the loop.

    Args:
        asking: Asks them.
        traffic: Takes what is moved.
    """

    def __init__(self, asking: Asking, traffic: Traffic) -> None:
        self._asking, self._traffic = asking, traffic
        self._pieces: dict[tuple[str, int], asyncio.Future[Any]] = {}

    async def settle(self, worker: Worker, parcel: Parcel, here: there.Kind) -> None:
        """Has a worker open a parcel.

        Args:
            here: What it has to be like.

        Raises:
            TrtTuiError: it is of another kind, or cannot open it.
        """
        worker.parcel, worker.place, worker.refused = parcel, None, ""
        ask, submit = self._asking.ask, self._asking.submit
        greeting = worker.greeting = worker.greeting or await ask(worker, there.greet)
        if different := here.differences(greeting.kind, False):
            raise TrtTuiError(f"it has {'; '.join(different)}")
        worker.engines = "; ".join(here.differences(greeting.kind, True))
        place = submit(worker, there.Place, parcel)
        for number in await ask(worker, there.missing, place):
            for position in range(-(-parcel.files[number].size // PIECE_BYTES) or 1):
                future = await self._piece(worker, parcel, number, position)
                await ask(worker, there.take, place, number, future)
        await ask(worker, there.open_place, place)
        worker.place = place

    def forget(self) -> None:
        """Lets go of the pieces that workers hand on among themselves."""
        self._pieces.clear()

    async def _piece(self, worker: Worker, parcel: Parcel, number: int, position: int) -> Any:
        key = parcel.files[number].path, position
        sending = self._pieces.get(key)
        if sending is None or sending.done() and (sending.exception() or sending.result().status != "finished"):
            piece = parcel.piece(number, position * PIECE_BYTES, PIECE_BYTES)
            self._traffic.files += len(piece)
            sending = self._pieces[key] = asyncio.ensure_future(
                self._asking.client.scatter(piece, workers=[worker.address], hash=False))
        return await asyncio.shield(sending)
