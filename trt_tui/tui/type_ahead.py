"""A queue for keys that are typed ahead: each key is sent after the effects of the previous key are complete."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.app import App
from textual.dom import DOMNode

_MAX_KEY_S = 2.0
"""The maximum time that a key delays the next key."""

_CHECK_INTERVAL_S = 0.005
"""The time between two checks whether a dialog has opened or an awaited widget is gone."""


class TypeAheadQueue:
    """A queue that sends keys to the focused widget, one at a time.

    Textual sends a key from the app to the focused widget and then up through its ancestors, where the bound action is
    performed. If several keys arrive at once, all of them would be on this way before the first opens a dialog or moves
    the focus. They would then reach the wrong widget.

    Args:
        app: The app that receives the keys.
        send_key: Sends a key to the focused widget.
    """

    def __init__(self, app: App[Any], send_key: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app, self._send_key = app, send_key
        self._waiting_keys: deque[events.Key] = deque()
        self._current_task: asyncio.Task[None] | None = None

    async def add_key(self, key: events.Key) -> None:
        """Adds a key to the queue; the key is sent immediately if no other key is being handled."""
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
        """Waits until the ancestors of the receiving widget have handled a key and the messages that it caused."""
        app, loop = self._app, asyncio.get_running_loop()
        deadline = loop.time() + _MAX_KEY_S
        for node in (*nodes, *nodes):
            await self._wait_for_messages(node, deadline)
        while not app.screen.is_mounted and loop.time() < deadline:
            await asyncio.sleep(_CHECK_INTERVAL_S)
        for node in (app.screen, app, app.screen, app):  # a new dialog has requested the focus
            await self._wait_for_messages(node, deadline)
        if not app.call_later(self._send_next_key):
            self.drop_waiting_keys()

    @staticmethod
    async def _wait_for_messages(node: DOMNode, deadline: float) -> None:
        """Waits until a node has handled all messages in its queue, or until the node is gone."""
        handled = asyncio.Event()
        loop = asyncio.get_running_loop()
        if not node.call_later(handled.set):
            return
        while not handled.is_set() and node.is_running and loop.time() < deadline:
            try:
                await asyncio.wait_for(handled.wait(), _CHECK_INTERVAL_S)
            except TimeoutError:  # the loop condition checks whether the node still runs
                continue
