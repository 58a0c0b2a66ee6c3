"""The application: one session, drawn by one main screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from textual import on
from textual.app import App, SystemCommand
from textual.filter import Monochrome, NoColor
from textual.message import Message
from textual.screen import Screen

from trt_tui.errors import TrtTuiError
from trt_tui.jobs import messages
from trt_tui.session import Session
from trt_tui.tui import themes
from trt_tui.tui.actions import ACTIONS
from trt_tui.tui.screens.dialogs import ErrorDialog
from trt_tui.tui.screens.main import MainScreen


class TrtTuiApp(App[None]):
    """The layer tree of a network, what each layer loses, and the keys to change it.

    Args:
        options: What to open.
        session_factory: Makes the session from options, the function that takes events from any thread, and
            ``session_options``, which are those of `Session`.
    """

    TITLE = "trt-tui"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True

    class SessionEvent(Message):
        """An event of the child process, on its way from the reader's thread."""

        def __init__(self, event: messages.Event) -> None:
            super().__init__()
            self.event = event

    def __init__(self, options: messages.Options, session_factory: Callable[..., Session] = Session,
                 **session_options: Any) -> None:
        super().__init__()
        self.animation_level = "none"
        if self.no_color:
            self._filters = [NoColor() if isinstance(one, Monochrome) else one for one in self._filters]
            self.add_class("-no-color")
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = themes.DARK.name
        self.options = options
        self.session = session_factory(options, self.deliver, **session_options)
        self.main = MainScreen(self.session)
        self._closed = False

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(themes.DARK.variables)

    def deliver(self, event: messages.Event) -> None:
        """Takes an event from any thread."""
        self.post_message(self.SessionEvent(event))

    def get_default_screen(self) -> Screen:
        return self.main

    def on_mount(self) -> None:
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        try:
            self.session.start()
        except TrtTuiError as error:
            self.push_screen(ErrorDialog(error.title, error.cause, error.next_step))

    @on(SessionEvent)
    def _session_event(self, message: SessionEvent) -> None:
        self.session.apply(message.event)
        self.main.take(message.event)

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        for action in ACTIONS:
            if action.group == "Move" and action.id not in ("next_bad", "previous_bad", "first_nan", "filter"):
                continue
            if action.id in ("palette", "close"):
                continue
            reason = action.enabled(self.main)
            yield SystemCommand(f"{action.help}", f"{action.key}   not now: {reason}" if reason else action.key,
                                partial(self.main.perform, action.id))

    def quit(self) -> None:
        """Saves, ends the child process and leaves."""
        self._close()
        failure = self.main.failure
        self.exit(return_code=failure.exit_code if isinstance(failure, messages.Failed) else 0)

    async def action_quit(self) -> None:
        self.quit()

    def on_unmount(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.session.close()
