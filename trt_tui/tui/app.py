"""The Textual application of trt-tui, which draws a session on the main screen."""

import signal
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType
from textual import constants, events, on
from textual.binding import Binding
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen

from trt_tui.errors import TrtTuiError
from trt_tui.formatting import escape_hidden_characters
from trt_tui.jobs import events as ev
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.tui import keys, themes
from trt_tui.tui.main_screen import MainScreen
from trt_tui.tui.screens.pages import ExplanationDialog
from trt_tui.tui.state.explanations import explain_term, find_term_at
from trt_tui.tui.terminal import TerminalDriver, call_on_termination_signal
from trt_tui.tui.terminal_output import ControlCharacterFilter, TerminalCells, TerminalUpdate
from trt_tui.tui.textual_internals import DrawingApp, ReliableTimers, is_screen_update
from trt_tui.tui.type_ahead import TypeAheadQueue
from trt_tui.tui.widgets.lines import SPAN_COMPONENT_CLASSES, Lines

_CONTROL_FILTER, _NO_COLOR_FILTER = ControlCharacterFilter(), NoColor()


class TrtTuiApp(ReliableTimers, DrawingApp[None]):
    """The terminal application for one network: it owns the session and the main screen.

    Args:
        options: The command-line options, which name the network and the data.
        session_factory: Makes the session. Its arguments are the options, a callback for events from any thread, and
            ``session_options``.
        session_options: Further keyword arguments of `Session`.
    """

    TITLE = "trt-tui"
    CSS_PATH = "app.tcss"
    COMPONENT_CLASSES = SPAN_COMPONENT_CLASSES
    BINDINGS = [
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("ctrl+l", "redraw", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False  # the help page lists all actions instead

    def __init__(
        self, options: Options, session_factory: Callable[..., Session] = Session, **session_options: Any
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.terminal_cells: TerminalCells | None = None
        if self.no_color:
            self.add_class("-no-color")
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = (themes.LIGHT if constants.DEFAULT_THEME == themes.LIGHT.name else themes.DARK).name
        self.options = options
        self.session = session_factory(options, self.post_session_event, **session_options)
        keymap, self._key_file_warning = keys.read_key_file(keys.user_keys_path())
        keys.use_keymap(keymap)
        self.set_keymap(keymap)
        self.main_screen = MainScreen(self.session, self.quit)
        self._session_ended = False
        self.type_ahead_queue = TypeAheadQueue(self, super().on_event)

    def copy_to_clipboard(self, text: str) -> None:
        """Copies a text to the clipboard after escaping its hidden characters.

        A hidden control character could run a command when the user pastes the text into a shell.
        """
        super().copy_to_clipboard(escape_hidden_characters(text, keep_line_breaks=True))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Returns default values for the colours that the style sheet names."""
        return dict(themes.DARK.variables)

    def post_session_event(self, event: ev.Event) -> None:
        """Passes an event of the background process from the reading thread to the app."""
        self.call_later(self._handle_session_event, event)

    def get_default_screen(self) -> Screen[None]:
        return self.main_screen

    def get_driver_class(self) -> type[Driver]:
        return TerminalDriver

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Returns the filters that Textual applies to every drawn line: its default filters, and a filter for hidden
        characters.

        If the user requests no colour (``NO_COLOR``), `NoColor` replaces the monochrome filter of Textual.
        """
        return (
            *(
                _NO_COLOR_FILTER if self.no_color and isinstance(line_filter, Monochrome) else line_filter
                for line_filter in super().get_line_filters()
            ),
            _CONTROL_FILTER,
        )

    def replace_screen_update(self, renderable: RenderableType | None) -> Any:
        """Returns a smaller update, which writes only the cells that changed on the terminal.

        An update of unknown type is returned as it is, and all cells count as unknown afterwards.
        """
        if self.terminal_cells is None or renderable is None:
            return renderable
        if is_screen_update(renderable):
            return TerminalUpdate(renderable, self.terminal_cells)
        self.terminal_cells.forget_cells()
        return renderable

    def action_show_help(self) -> None:
        """Shows the help page, also over a page or a dialog."""
        self.main_screen.do_help()

    def on_resize(self) -> None:
        """Marks all terminal cells as unknown, because a terminal moves or clears cells when its size changes."""
        self._invalidate_terminal_cells()

    def action_redraw(self) -> None:
        """Redraws the whole screen, for use after another program wrote to the terminal."""
        self._invalidate_terminal_cells()
        self.screen.refresh()

    def _invalidate_terminal_cells(self) -> None:
        if self.terminal_cells is not None:
            self.terminal_cells.forget_cells()

    @on(Lines.ExplanationRequested)
    def _explain_clicked_word(self, message: Lines.ExplanationRequested) -> None:
        """Explains a word that was clicked in a dialog or on a page."""
        if (term := find_term_at(message.text, message.x)) is not None:
            self.push_screen(ExplanationDialog(lambda: explain_term(term)))

    def on_mount(self) -> None:
        """Installs the signal handlers, and opens the session after the first screen is drawn."""
        if not self.is_headless:
            call_on_termination_signal(self._exit_on_signal)
        self.call_after_refresh(self._start_session)

    def _exit_on_signal(self, signal_number: signal.Signals) -> None:
        """Saves the session, restores the terminal and exits with 128 plus the number of the signal."""
        self._end_session()
        self.exit(return_code=128 + signal_number)

    def _start_session(self) -> None:
        if self._key_file_warning:
            self.session.log.append(self._key_file_warning)
            self.main_screen.show_message(self._key_file_warning)
        try:
            self.session.start()
        except TrtTuiError as error:
            self.main_screen.show_error(error)

    def _handle_session_event(self, event: ev.Event) -> None:
        if not self._session_ended:
            self.session.apply_event(event)
            self.main_screen.handle_session_event(event)

    async def on_event(self, event: events.Event) -> None:
        """Passes an event to Textual; keys go through a queue, which handles one key at a time.

        Keys that were typed after the quit key are dropped.
        """
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
        elif self._session_ended:
            self.type_ahead_queue.drop_waiting_keys()
        else:
            await self.type_ahead_queue.add_key(event)

    def quit(self) -> None:
        """Saves the session, ends the background process and exits."""
        self._end_session()
        failure = self.main_screen.status.failure
        self.exit(return_code=int(failure.error.exit_code) if isinstance(failure, ev.JobFailed) else 0)

    async def action_quit(self) -> None:
        """Implements Textual's action of the same name. The session is saved before the app exits."""
        self.quit()

    def on_unmount(self) -> None:
        """Ends the session if the app ends by any path other than `quit`."""
        self._end_session()

    def _end_session(self) -> None:
        if not self._session_ended:
            self._session_ended = True
            self.session.close()
