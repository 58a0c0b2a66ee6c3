"""What stands on the terminal, cell by cell: of a repaint only the cells that differ are written.

Textual writes whole widgets, and the whole screen where a dialog opens or closes: 30 to 60 kB at 80x24, ten
seconds on a line of 5 kB/s. Colours are written where they change, not around each word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

Pen: TypeAlias = tuple[str, str, str]
"""SGR codes of a cell: of its attributes, its colour (``39``: the terminal's own) and the colour behind it (``49``)."""

Cell: TypeAlias = tuple[str, Pen]
"""A character and how it is drawn; the right half of a wide character is an empty text."""

_GAP = 7
"""Equal cells between two that differ are written too, up to as many: to move the cursor takes as many bytes."""


@lru_cache(maxsize=4096)
def _pen(style: Style | None, system: ColorSystem) -> Pen:
    if style is None:
        return "", "39", "49"
    attributes = (style.bold, style.dim, style.italic, style.underline, style.blink, style.reverse, style.strike)
    codes = ";".join(code for code, on in zip(("1", "2", "3", "4", "5", "7", "9"), attributes, strict=True) if on)
    front, behind = (color.downgrade(system).get_ansi_codes(foreground) if color else (default,)
                     for color, foreground, default in ((style.color, True, "39"), (style.bgcolor, False, "49")))
    return codes, ";".join(front), ";".join(behind)


@lru_cache(maxsize=4096)
def _blank(pen: Pen) -> Pen:
    """How a space is drawn: its own colour shows only where it is underlined, struck or reversed."""
    attributes, _, behind = pen
    return pen if {"4", "7", "9"} & set(attributes.split(";")) else ("", "39", behind)


def _cells(strip: Strip, system: ColorSystem) -> tuple[list[Cell], bool]:
    """The cells of a strip, and whether each of its characters takes one of them."""
    cells: list[Cell] = []
    single = True
    for text, style, control in strip:
        if control:
            continue
        pen = _pen(style, system)
        blank = _blank(pen)
        for character in text:
            width = 1 if character.isascii() else get_character_cell_size(character)
            if width == 1:
                cells.append((character, blank if character == " " else pen))
                continue
            single = False
            if width == 2:
                cells += [(character, pen), ("", pen)]
            elif cells:
                cells[-1] = (cells[-1][0] + character, cells[-1][1])
    return cells, single


def _pieces(update: LayoutUpdate | ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    """The strips of an update with the line and the column where each starts."""
    if isinstance(update, LayoutUpdate):
        for y, line in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in line:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, start, end in update.spans:
        for stop, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if piece is not None and x < end and stop > start:
                yield y, x, piece if stop <= end else piece.crop(0, end - x)


class Painted:
    """The cells that stand on the terminal, as far as they are known."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell | None]] = {}
        self._size: object = None

    def forget(self) -> None:
        """Nothing is known of what stands there: all that is drawn next is written."""
        self._rows = {}

    def render(self, update: LayoutUpdate | ChopsUpdate, system: ColorSystem) -> str:
        """What to write for the cells of an update that differ, which then stand there."""
        if isinstance(update, LayoutUpdate) and update.region != self._size:
            self.forget()
            self._size = update.region
        out: list[str] = []
        pen: Pen | None = None
        for y, x, strip in _pieces(update):
            new, single = _cells(strip, system)
            row = self._rows.setdefault(y, [])
            row.extend([None] * (x + len(new) - len(row)))
            old = row[x:x + len(new)]
            if old == new:
                continue
            row[x:x + len(new)] = new
            for start, stop in _runs(old, new) if single else [(0, len(new))]:
                out.append(f"\x1b[{y + 1};{x + start + 1}H")
                for text, own in new[start:stop]:
                    if own != pen:
                        out.append(_change(pen, own))
                        pen = own
                    out.append(text)
        return "".join(out) + ("\x1b[0m" if out else "")


def _runs(old: list[Cell | None], new: list[Cell]) -> Iterable[tuple[int, int]]:
    """From where to where cells differ; a short stretch of equal ones that needs no other pen joins two."""
    runs: list[tuple[int, int]] = []
    for at, (before, now) in enumerate(zip(old, new, strict=True)):
        if before == now:
            continue
        stop = runs[-1][1] if runs else 0
        if runs and at - stop <= _GAP and all(pen == new[stop - 1][1] for _, pen in new[stop:at]):
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def _change(before: Pen | None, now: Pen) -> str:
    """The sequence that changes one pen into another; ``None`` is the terminal's own, unchanged."""
    if before is None or before[0] != now[0]:
        codes = ["0", now[0], now[1] if now[1] != "39" else "", now[2] if now[2] != "49" else ""]
    else:
        codes = [own for own, other in zip(now, before, strict=True) if own != other]
    return f"\x1b[{';'.join(code for code in codes if code)}m"


class Changes(CompositorUpdate):
    """An update of which only what differs from the terminal is written, once it is written at all."""

    def __init__(self, update: LayoutUpdate | ChopsUpdate, painted: Painted) -> None:
        self._update = update
        self._painted = painted

    def render_segments(self, console: Console) -> str:
        """The raw data to write."""
        return self._painted.render(self._update, COLOR_SYSTEMS[console.color_system or "truecolor"])
