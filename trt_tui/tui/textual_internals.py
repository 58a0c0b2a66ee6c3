"""The private parts of Textual that the app uses. Each goes on without its part where a release does not have it.

Public parts do the rest: filters by `App.get_line_filters`, keys by ``BINDINGS``, signals by `signal`. Tested with
Textual 8.0.0, 8.1.0 and 8.2.8, other tests of the app with 8.2.8 alone; no other module may name a private part
(``tests/test_textual_parts.py``).

========================================  ============================================================================
Private part                              Without it
========================================  ============================================================================
`Timer._skip`                             A timer that is overdue when Textual looks never fires.
`textual._compositor`, `App._display`     Textual writes whole widgets, more than what differs.
`LinuxDriver._file`                       Standard error is what is drawn on, so it leads to standard output.
`LinuxDriver._get_terminal_size`          A terminal of unknown size is laid out anew after each painting.
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
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer

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
"""The updates of the screen whose pieces are known, with what is read of each."""


def allow_late_timer(timer: Timer) -> None:
    """Has a timer fire although it is overdue when Textual looks at it for the first time."""
    if hasattr(timer, "_skip"):
        timer._skip = False  # read once its task begins to run


def clear_style_cache() -> None:
    """Empties a cache of colours that keeps all drawn lines of the widgets that asked for them, removed ones too."""
    cache = getattr(_styles_cache, "StylesCache", None)
    clear = getattr(getattr(cache, "get_inner_outer", None), "cache_clear", None)
    if clear is not None:
        clear()


def is_screen_update(renderable: object) -> bool:
    """Returns True if `iterate_update_strips` can read an update of the screen."""
    fields = _UPDATE_FIELDS.get(type(renderable).__name__)
    return (CompositorUpdate is not object and isinstance(renderable, CompositorUpdate) and fields is not None
            and all(hasattr(renderable, field) for field in fields))


def find_drawn_region(update: Any) -> Region | None:
    """Returns the region that an update draws anew; None if it draws pieces of lines."""
    region: Region | None = getattr(update, "region", None)
    return region


def iterate_update_strips(update: Any) -> Iterator[tuple[int, int, Strip]]:
    """Yields the strips of an update with the line and the column where each starts."""
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
    """An app that decides what is drawn for an update of the screen."""

    def replace_screen_update(self, renderable: RenderableType | None) -> Any:
        """Returns what is drawn in place of an update."""
        return renderable

    def pop_screen(self) -> AwaitComplete:
        """Implements `App.pop_screen`, and has Textual forget what the widgets of closed dialogs looked like."""
        clear_style_cache()
        return super().pop_screen()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, self.replace_screen_update(renderable))


class DrawingDriver(LinuxDriver):
    """A driver that draws on a stream of its own, on a screen of the size that its app is laid out in."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self.drawn_app = app

    def set_output_stream(self, stream: TextIOWrapper[Any]) -> None:
        """Draws on a stream in place of standard error."""
        if hasattr(self, "_file"):
            self._file = stream
        elif stream.fileno() != 2:
            os.dup2(stream.fileno(), 2)

    def _get_terminal_size(self) -> tuple[int, int]:
        """The size that the app's screens are laid out in: for one that the terminal does not tell, both say the same.

        Where they differ, Textual lays out anew after each painting, and does nothing else.
        """
        return self.drawn_app.console.size.width, self.drawn_app.console.size.height
