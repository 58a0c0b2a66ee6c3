"""The private parts of Textual that the app uses, each with a fallback for releases that lack the part.

The app uses public parts for all else: `App.get_line_filters` for filters, ``BINDINGS`` for keys, `signal` for signals.
The fallbacks are tested with Textual 8.0.0, 8.1.0 and 8.2.8; the other tests of the app run with 8.2.8 alone. No other
module may name a private part (``tests/tui/test_textual_parts.py``).

========================================  ============================================================================
Private part                              Effect of its absence
========================================  ============================================================================
`Timer._skip`                             A timer that is overdue when Textual checks it never fires.
`textual._compositor`, `App._display`     Textual writes whole widgets instead of changed cells.
`LinuxDriver._file`                       Textual draws on standard error, which is redirected to standard output.
`LinuxDriver._get_terminal_size`          A terminal of unknown size gets a new layout after each draw.
`textual._styles_cache`                   Up to 1,024 drawn widgets of closed dialogs stay in memory.
========================================  ============================================================================
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer, TimerCallback

T = TypeVar("T")

if TYPE_CHECKING:
    from textual._compositor import CompositorUpdate as CompositorUpdate
else:
    _compositor: Any = None
    with contextlib.suppress(ImportError):
        _compositor = importlib.import_module("textual._compositor")
    CompositorUpdate = getattr(_compositor, "CompositorUpdate", object)

_styles_cache: Any = None
with contextlib.suppress(ImportError):
    _styles_cache = importlib.import_module("textual._styles_cache")

_UPDATE_FIELDS = {"LayoutUpdate": ("strips", "region"), "ChopsUpdate": ("spans", "chops", "chop_ends")}
"""The types of screen updates that `iterate_update_strips` can read, with the fields that it reads."""


def allow_late_timer(timer: Timer) -> None:
    """Makes a timer fire even if it is overdue when Textual checks it for the first time."""
    if hasattr(timer, "_skip"):
        timer._skip = False  # the timer's task reads it at its start


def clear_style_cache() -> None:
    """Clears the colour cache of Textual, which keeps the drawn lines of all widgets in memory, also of removed
    widgets."""
    cache = getattr(_styles_cache, "StylesCache", None)
    clear = getattr(getattr(cache, "get_inner_outer", None), "cache_clear", None)
    if clear is not None:
        clear()


def is_screen_update(renderable: object) -> bool:
    """Returns True if `iterate_update_strips` can read an update of the screen."""
    fields = _UPDATE_FIELDS.get(type(renderable).__name__)
    return (
        CompositorUpdate is not object
        and isinstance(renderable, CompositorUpdate)
        and fields is not None
        and all(hasattr(renderable, field) for field in fields)
    )


def find_drawn_region(update: Any) -> Region | None:
    """Returns the region that an update draws in full; None if the update draws pieces of lines."""
    region: Region | None = getattr(update, "region", None)
    return region


def iterate_update_strips(update: Any) -> Iterator[tuple[int, int, Strip]]:
    """Yields the strips of a screen update, each with its line and its first column."""
    if (region := find_drawn_region(update)) is not None:
        for y, line in enumerate(update.strips, region.y):
            x = region.x
            for strip in line:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, start, end in update.spans:
        for stop, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if piece is not None and x < end and stop > start:
                yield y, x, piece if stop <= end else piece.crop(0, end - x)


class DrawingApp(App[T]):
    """A Textual app that can replace each screen update before it is drawn."""

    def replace_screen_update(self, renderable: RenderableType | None) -> Any:
        """Returns the object to draw in place of a screen update; by default the update itself."""
        return renderable

    def pop_screen(self) -> AwaitComplete:
        """Implements `App.pop_screen`, and frees the memory that Textual's cache holds for widgets of closed dialogs."""
        clear_style_cache()
        return super().pop_screen()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, self.replace_screen_update(renderable))


class DrawingDriver(LinuxDriver):
    """A terminal driver with a selectable output stream, and with the terminal size of the app's layout."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self.drawn_app = app

    def set_output_stream(self, stream: TextIOWrapper[Any]) -> None:
        """Selects the stream to draw on; the default is standard error."""
        if hasattr(self, "_file"):
            self._file = stream
        elif stream.fileno() != 2:
            os.dup2(stream.fileno(), 2)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Returns the size of the app's layout in cells, as (width, height).

        If the terminal reports no size, Textual and the layout could assume different sizes. Textual would then create
        a new layout after each draw, and do nothing else.
        """
        return self.drawn_app.console.size.width, self.drawn_app.console.size.height


class ReliableTimers(MessagePump):
    """A base class of screens and apps whose `set_timer` always calls back exactly once.

    A timer of Textual skips a turn that is overdue when Textual checks the clock, and a one-shot timer then never
    fires. This happens if the process is stopped, or gets no processor, between two checks. The screen would never be
    drawn again, and a new terminal size would be ignored.
    """

    def set_timer(
        self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None, pause: bool = False
    ) -> Timer:
        """Calls a function once after a delay in seconds."""
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        allow_late_timer(timer)
        return timer
