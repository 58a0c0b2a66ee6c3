"""Keys typed ahead: each is handed on once all that the one before it did is done."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.app import App
from textual.dom import DOMNode

_MAX_KEY_S = 2.0
"""A key that is not done by then no longer holds up the next one."""

_CHECK_INTERVAL_S = 0.005
"""How often it is looked whether a dialog has opened, and whether a widget that is waited for has gone."""


class TypeAheadQueue:
    """Hands keys to what has the focus, one at a time.

    A key goes from the app to the focused widget and back up through all around it, and an action that it is bound to
    is done at the end of that way. Of several keys that arrive at once all would be on their way before the first has
    opened a dialog or moved the focus, and end up where nobody meant them to go.

    Args:
        app: Whose keys they are.
        send_key: Sends a key on its way.
    """

    def __init__(self, app: App[Any], send_key: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app, self._send_key = app, send_key
        self._waiting_keys: deque[events.Key] = deque()
        self._current_task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a key is still being followed, or waits."""
        return bool(self._waiting_keys) or self._current_task is not None

    async def add_key(self, key: events.Key) -> None:
        """Takes a key; it is handed on at once where none is under way."""
        self._waiting_keys.append(key)
        if self._current_task is None:
            await self._send_next_key()

    def drop_waiting_keys(self) -> None:
        self._waiting_keys.clear()

    async def _send_next_key(self) -> None:
        self._current_task = None
        if self._waiting_keys:
            app = self._app
            nodes: list[DOMNode] = (app.focused or app.screen).ancestors_with_self
            await self._send_key(self._waiting_keys.popleft())
            self._current_task = asyncio.create_task(self._wait_until_key_handled(nodes))

    async def _wait_until_key_handled(self, nodes: list[DOMNode]) -> None:
        """Waits until a key, and the messages that it led to, have gone the way up from the widget that got it."""
        app, loop = self._app, asyncio.get_running_loop()
        deadline = loop.time() + _MAX_KEY_S
        for node in (*nodes, *nodes):
            await self._wait_for_messages(node, deadline)
        while not app.screen.is_mounted and loop.time() < deadline:
            await asyncio.sleep(_CHECK_INTERVAL_S)
        for node in (app.screen, app, app.screen, app):  # a dialog that opened has asked for the focus
            await self._wait_for_messages(node, deadline)
        if not app.call_later(self._send_next_key):
            self.drop_waiting_keys()

    @staticmethod
    async def _wait_for_messages(node: DOMNode, deadline: float) -> None:
        """Waits until a node has heeded all messages so far, or is gone."""
        handled = asyncio.Event()
        loop = asyncio.get_running_loop()
        if not node.call_later(handled.set):
            return
        while not handled.is_set() and node.is_running and loop.time() < deadline:
            try:
                await asyncio.wait_for(handled.wait(), _CHECK_INTERVAL_S)
            except asyncio.TimeoutError:  # time to look whether it still runs
                continue
