"""The application: one session, drawn by one main screen."""

import signal
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType
from textual import events, on
from textual.binding import Binding
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message
from textual.screen import Screen

from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.tui import keys, themes
from trt_tui.tui.hidden import HiddenFilter
from trt_tui.tui.main_screen import MainScreen
from trt_tui.tui.painting import Changes, Painted
from trt_tui.tui.punctual import Punctual
from trt_tui.tui.terminal import TerminalDriver, on_ending
from trt_tui.tui.textual_parts import DrawingApp, is_update
from trt_tui.tui.typed_ahead import TypedAhead
from trt_tui.tui.walk import Walk
from trt_tui.tui.widgets.lines import COMPONENTS
from trt_tui.words import visible

_HIDDEN, _NO_COLOR = HiddenFilter(), NoColor()


class TrtTuiApp(Punctual, DrawingApp[None]):
    """The layer tree of a network, what each layer loses, and the keys to change it.

    Args:
        options: What to open.
        session_factory: Makes the session from options, the function that takes events from any thread, and
            ``session_options``, which are those of `Session`.
        walk: The walk that a newcomer is taken on, if any.
    """

    TITLE = "trt-tui"
    CSS_PATH = "app.tcss"
    COMPONENT_CLASSES = COMPONENTS
    BINDINGS = [Binding("ctrl+z", "suspend_process", show=False, priority=True),
                Binding("ctrl+l", "redraw", show=False, priority=True)]
    ENABLE_COMMAND_PALETTE = False  # `trt_tui.tui.screens.palette` is the one

    class SessionEvent(Message):
        """An event of the child process, on its way from the reader's thread."""

        def __init__(self, event: ev.Event) -> None:
            super().__init__()
            self.event = event

    def __init__(self, options: Options, session_factory: Callable[..., Session] = Session,
                 walk: Walk | None = None, **session_options: Any) -> None:
        super().__init__()
        self.animation_level = "none"
        self.painted: Painted | None = None
        if self.no_color:
            self.add_class("-no-color")
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = themes.DARK.name
        self.options = options
        self.session = session_factory(options, self.deliver, **session_options)
        table, self._untaken = keys.read(keys.user_file())
        keys.use(table)
        self.set_keymap(keys.changed())
        self.main = MainScreen.with_keys_in_use()(self.session, self.quit, walk)
        self._session_ended = False
        self.typed_ahead = TypedAhead(self, super().on_event)

    def copy_to_clipboard(self, text: str) -> None:
        """Copies what can be seen of a text, so that pasting it into a shell runs nothing of its own."""
        super().copy_to_clipboard(visible(text, lines=True))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours that the style sheet names."""
        return dict(themes.DARK.variables)

    def deliver(self, event: ev.Event) -> None:
        """Takes an event from any thread."""
        self.post_message(self.SessionEvent(event))

    def get_default_screen(self) -> Screen[None]:
        """The main screen."""
        return self.main

    def get_driver_class(self) -> type[Driver]:
        """What speaks to the terminal."""
        return TerminalDriver

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line passes through before it is drawn."""
        return (*(_NO_COLOR if self.no_color and isinstance(one, Monochrome) else one
                  for one in super().get_line_filters()), _HIDDEN)

    def to_draw(self, renderable: RenderableType | None) -> Any:
        """Writes what differs from what stands on the terminal."""
        if self.painted is None or renderable is None:
            return renderable
        if is_update(renderable):
            return Changes(renderable, self.painted)
        self.painted.forget()
        return renderable

    def on_resize(self) -> None:
        """A terminal of another size moved or lost what stood on it."""
        self._forget_painted()

    def action_redraw(self) -> None:
        """Writes everything, as after another program wrote on the terminal."""
        self._forget_painted()
        self.screen.refresh()

    def _forget_painted(self) -> None:
        if self.painted is not None:
            self.painted.forget()

    def on_mount(self) -> None:
        """Listens to signals, and opens the session once the first picture stands."""
        if not self.is_headless:
            on_ending(self._end)
        self.call_after_refresh(self._start)

    def _end(self, number: signal.Signals) -> None:
        """Saves, restores the terminal and leaves, with the exit code of a program that a signal ended."""
        self._end_session()
        self.exit(return_code=128 + number)

    def _start(self) -> None:
        if self._untaken:
            self.session.log.extend(self._untaken)
            more = f" ({len(self._untaken) - 1} more: {keys.key('log')})" if len(self._untaken) > 1 else ""
            self.main.desk.say(f"{self._untaken[0]}{more}")
        try:
            self.session.start()
        except TrtTuiError as error:
            self.main.desk.show_error(error)

    @on(SessionEvent)
    def _session_event(self, message: SessionEvent) -> None:
        if not self._session_ended:
            self.session.apply(message.event)
            self.main.take(message.event)

    async def on_event(self, event: events.Event) -> None:
        """Takes keys one at a time; what was typed after the key that quits goes nowhere."""
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
        elif self._session_ended:
            self.typed_ahead.forget()
        else:
            await self.typed_ahead.take(event)

    def quit(self) -> None:
        """Saves, ends the child process and leaves."""
        self._end_session()
        failure = self.main.desk.status.failure
        self.exit(return_code=failure.exit_code if isinstance(failure, ev.Failed) else 0)

    async def action_quit(self) -> None:
        """Textual's own key to quit."""
        self.quit()

    def on_unmount(self) -> None:
        """Ends the session, however the app ends."""
        self._end_session()

    def _end_session(self) -> None:
        if not self._session_ended:
            self._session_ended = True
            self.session.close()
