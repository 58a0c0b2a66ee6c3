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
from trt_tui.formatting import escape_hidden_characters
from trt_tui.jobs import events as ev
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.tui import keys, themes
from trt_tui.tui.main_screen import MainScreen
from trt_tui.tui.terminal import TerminalDriver, call_on_termination_signal
from trt_tui.tui.terminal_output import ControlCharacterFilter, TerminalCells, TerminalUpdate
from trt_tui.tui.textual_internals import DrawingApp, is_screen_update
from trt_tui.tui.timers import ReliableTimers
from trt_tui.tui.tutorial import Tutorial
from trt_tui.tui.type_ahead import TypeAheadQueue
from trt_tui.tui.widgets.lines import SPAN_COMPONENT_CLASSES

_CONTROL_FILTER, _NO_COLOR_FILTER = ControlCharacterFilter(), NoColor()


class TrtTuiApp(ReliableTimers, DrawingApp[None]):
    """The layer tree of a network, what each layer loses, and the keys to change it.

    Args:
        options: What to open.
        session_factory: Makes the session from options, the function that takes events from any thread, and
            ``session_options``, which are those of `Session`.
        tutorial: The walk that a newcomer is taken on, if any.
    """

    TITLE = "trt-tui"
    CSS_PATH = "app.tcss"
    COMPONENT_CLASSES = SPAN_COMPONENT_CLASSES
    BINDINGS = [Binding("ctrl+z", "suspend_process", show=False, priority=True),
                Binding("ctrl+l", "redraw", show=False, priority=True)]
    ENABLE_COMMAND_PALETTE = False  # `trt_tui.tui.screens.help` lists all actions

    class SessionEvent(Message):
        """An event of the child process, on its way from the reader's thread."""

        def __init__(self, event: ev.Event) -> None:
            super().__init__()
            self.event = event

    def __init__(self, options: Options, session_factory: Callable[..., Session] = Session,
                 tutorial: Tutorial | None = None, **session_options: Any) -> None:
        super().__init__()
        self.animation_level = "none"
        self.terminal_cells: TerminalCells | None = None
        if self.no_color:
            self.add_class("-no-color")
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = themes.DARK.name
        self.options = options
        self.session = session_factory(options, self.post_session_event, **session_options)
        table, self._key_file_errors = keys.read_key_file(keys.user_keys_path())
        keys.use_key_table(table)
        self.set_keymap(keys.find_changed_keys())
        self.main_screen = MainScreen.make_class_with_current_keys()(self.session, self.quit, tutorial)
        self._session_ended = False
        self.type_ahead_queue = TypeAheadQueue(self, super().on_event)

    def copy_to_clipboard(self, text: str) -> None:
        """Copies what can be seen of a text, so that pasting it into a shell runs nothing of its own."""
        super().copy_to_clipboard(escape_hidden_characters(text, keep_line_breaks=True))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours that the style sheet names."""
        return dict(themes.DARK.variables)

    def post_session_event(self, event: ev.Event) -> None:
        """Takes an event from any thread."""
        self.post_message(self.SessionEvent(event))

    def get_default_screen(self) -> Screen[None]:
        """The main screen."""
        return self.main_screen

    def get_driver_class(self) -> type[Driver]:
        """What speaks to the terminal."""
        return TerminalDriver

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line passes through before it is drawn."""
        return (*(_NO_COLOR_FILTER if self.no_color and isinstance(line_filter, Monochrome) else line_filter
                  for line_filter in super().get_line_filters()), _CONTROL_FILTER)

    def replace_screen_update(self, renderable: RenderableType | None) -> Any:
        """Writes what differs from what stands on the terminal."""
        if self.terminal_cells is None or renderable is None:
            return renderable
        if is_screen_update(renderable):
            return TerminalUpdate(renderable, self.terminal_cells)
        self.terminal_cells.forget_cells()
        return renderable

    def on_resize(self) -> None:
        """A terminal of another size moved or lost what stood on it."""
        self._invalidate_terminal_cells()

    def action_redraw(self) -> None:
        """Writes everything, as after another program wrote on the terminal."""
        self._invalidate_terminal_cells()
        self.screen.refresh()

    def _invalidate_terminal_cells(self) -> None:
        if self.terminal_cells is not None:
            self.terminal_cells.forget_cells()

    def on_mount(self) -> None:
        """Listens to signals, and opens the session once the first picture stands."""
        if not self.is_headless:
            call_on_termination_signal(self._exit_on_signal)
        self.call_after_refresh(self._start_session)

    def _exit_on_signal(self, signal_number: signal.Signals) -> None:
        """Saves, restores the terminal and leaves, with the exit code of a program that a signal ended."""
        self._end_session()
        self.exit(return_code=128 + signal_number)

    def _start_session(self) -> None:
        if self._key_file_errors:
            self.session.log.extend(self._key_file_errors)
            more_text = f" ({len(self._key_file_errors) - 1} more: {keys.shown_key('log')})" if len(
                self._key_file_errors) > 1 else ""
            self.main_screen.presenter.show_message(f"{self._key_file_errors[0]}{more_text}")
        try:
            self.session.start()
        except TrtTuiError as error:
            self.main_screen.presenter.show_error(error)

    @on(SessionEvent)
    def _handle_session_event(self, message: SessionEvent) -> None:
        if not self._session_ended:
            self.session.apply_event(message.event)
            self.main_screen.handle_session_event(message.event)

    async def on_event(self, event: events.Event) -> None:
        """Takes keys one at a time; what was typed after the key that quits goes nowhere."""
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
        elif self._session_ended:
            self.type_ahead_queue.drop_waiting_keys()
        else:
            await self.type_ahead_queue.add_key(event)

    def quit(self) -> None:
        """Saves, ends the child process and leaves."""
        self._end_session()
        failure = self.main_screen.presenter.status.failure
        self.exit(return_code=failure.exit_code if isinstance(failure, ev.JobFailed) else 0)

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
