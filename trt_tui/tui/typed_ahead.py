"""Keys typed ahead: each is handed on once all that the one before it did is done."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.app import App
from textual.dom import DOMNode

_LONGEST_S = 2.0
"""A key that is not done by then no longer holds up the next one."""

_LOOK_S = 0.005
"""How often it is looked whether a dialog has opened, and whether a widget that is waited for has gone."""


class TypedAhead:
    """Hands keys to what has the focus, one at a time.

    A key goes from the app to the focused widget and back up through all around it, and an action that it is bound to
    is done at the end of that way. Of several keys that arrive at once all would be on their way before the first has
    opened a dialog or moved the focus, and end up where nobody meant them to go.

    Args:
        app: Whose keys they are.
        hand_on: Sends a key on its way.
    """

    def __init__(self, app: App[Any], hand_on: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app, self._hand_on = app, hand_on
        self._typed: deque[events.Key] = deque()
        self._under_way: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a key is still being followed, or waits."""
        return bool(self._typed) or self._under_way is not None

    async def take(self, key: events.Key) -> None:
        """Takes a key; it is handed on at once where none is under way."""
        self._typed.append(key)
        if self._under_way is None:
            await self._next()

    def forget(self) -> None:
        """Drops all that waits."""
        self._typed.clear()

    async def _next(self) -> None:
        self._under_way = None
        if self._typed:
            app = self._app
            where: list[DOMNode] = (app.focused or app.screen).ancestors_with_self
            await self._hand_on(self._typed.popleft())
            self._under_way = asyncio.create_task(self._follow(where))

    async def _follow(self, where: list[DOMNode]) -> None:
        """Waits until a key, and the messages that it led to, have gone the way up from the widget that got it."""
        app, loop = self._app, asyncio.get_running_loop()
        end = loop.time() + _LONGEST_S
        for node in (*where, *where):
            await self._heeded(node, end)
        while not app.screen.is_mounted and loop.time() < end:
            await asyncio.sleep(_LOOK_S)
        for node in (app.screen, app, app.screen, app):  # a dialog that opened has asked for the focus
            await self._heeded(node, end)
        if not app.call_later(self._next):
            self.forget()

    @staticmethod
    async def _heeded(node: DOMNode, end: float) -> None:
        """Waits until a node has heeded all messages so far, or is gone."""
        heeded = asyncio.Event()
        loop = asyncio.get_running_loop()
        if not node.call_later(heeded.set):
            return
        while not heeded.is_set() and node.is_running and loop.time() < end:
            try:
                await asyncio.wait_for(heeded.wait(), _LOOK_S)
            except asyncio.TimeoutError:  # time to look whether it still runs
                continue
