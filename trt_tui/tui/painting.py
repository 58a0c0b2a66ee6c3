"""What stands on the terminal, cell by cell: of a repaint only the cells that differ are written.

Textual writes whole widgets, and the whole screen where a dialog opens or closes: 30 to 60 kB at 80x24, ten
seconds on a line of 5 kB/s. Colours are written where they change, not around each word.
"""

from functools import lru_cache
from typing import Any, TypeAlias

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from textual.strip import Strip

from trt_tui.tui.textual_parts import CompositorUpdate, find_pieces, find_region

Pen: TypeAlias = tuple[str, str, str]
"""SGR codes of a cell: of its attributes, its colour (``39``: the terminal's own) and the colour behind it (``49``)."""

Cell: TypeAlias = tuple[str, Pen]
"""A character and how it is drawn; the right half of a wide character is an empty text."""

_GAP = 4
"""Equal cells between two that differ are written too, up to as many: to move the cursor takes as many bytes."""

_ERASED = 8
"""Blank cells in a row that are written as such; to erase more, and to go on behind them, takes fewer bytes."""

_SEEN = frozenset(("4", "7", "9"))
"""Attributes that show on a space: underlined, reversed, struck."""

_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27", "9": "29"}
"""What takes an attribute back, without a reset, after which colours would have to be told again."""


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
    return pen if _SEEN.intersection(attributes.split(";")) else ("", "39", behind)


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


class Painted:
    """The cells that stand on the terminal, as far as they are known, and the pen that it has.

    Args:
        erases: Whether the terminal erases cells in the colour of the pen (``bce`` of terminfo).
    """

    def __init__(self, erases: bool = False) -> None:
        self._erases = erases
        self._rows: dict[int, list[Cell | None]] = {}
        self._size: object = None
        self._pen: Pen | None = None

    def forget(self) -> None:
        """Nothing is known of what stands there: all that is drawn next is written."""
        self._rows = {}
        self._pen = None

    def render(self, update: Any, system: ColorSystem) -> str:
        """What to write for the cells of an update that differ, which then stand there."""
        if (region := find_region(update)) is not None and region != self._size:
            self.forget()
            self._size = region
        out: list[str] = []
        for y, x, strip in find_pieces(update):
            new, single = _cells(strip, system)
            end = x + len(new)
            row = self._rows.setdefault(y, [])
            row.extend([None] * (end - len(row)))
            old = row[x:end]
            if old == new:
                continue
            if not single or any(cell is not None and len(cell[0]) != 1 for cell in row[x:end + 1]):
                old = [None] * len(new)  # a terminal may take other widths for such characters, so all of it is written
                for half, beside in ((x, x - 1), (end, end)):  # and the half that is left of one is blank
                    if 0 <= beside and half < len(row) and (right := row[half]) is not None and right[0] == "":
                        row[beside] = None
            row[x:end] = new
            self._write(out, y, x, old, new)
        return "".join(out)

    def _write(self, out: list[str], y: int, x: int, old: list[Cell | None], new: list[Cell]) -> None:
        """Writes the cells that differ of a piece of a line."""
        cursor, at, pen = -1, 0, self._pen
        while at < len(new):
            cell = new[at]
            if cell == old[at]:
                at += 1
                continue
            between = new[cursor:at]
            if cursor < 0:
                out.append(f"\x1b[{y + 1};{x + at + 1}H")
            elif len(between) <= _GAP and all(pen is not None and _draws(pen, one) for one in between):
                out.extend(text for text, _ in between)
            else:
                out.append(f"\x1b[{len(between)}C")
            if pen is None or not _draws(pen, cell):
                out.append(_change(pen, cell[1]))
                pen = cell[1]
            cursor, end = at, at
            if self._erases and cell[0] == " " and not cell[1][0]:
                end = next((stop for stop in range(at, len(new)) if new[stop] != cell), len(new))
                end = next(stop for stop in range(end, at, -1) if new[stop - 1] != old[stop - 1])
            if end - at > _ERASED:
                out.append(f"\x1b[{end - at}X")
                at = end
            else:
                out.append(cell[0])
                cursor = at = at + 1
        self._pen = pen


def _draws(pen: Pen, cell: Cell) -> bool:
    """Whether a pen draws a cell as it is to look: a blank one by every pen that has what is behind it and is not seen
    on a space."""
    text, own = cell
    return own == pen or text == " " and own[0] == "" and own[2] == pen[2] and not _SEEN.intersection(pen[0].split(";"))


@lru_cache(maxsize=4096)
def _change(before: Pen | None, now: Pen) -> str:
    """The sequence that changes one pen into another; ``None`` is the terminal's own, unknown."""
    attributes = [code for code in now[0].split(";") if code]
    anew = ["0", *attributes, *(color for color in now[1:] if color not in ("39", "49"))]
    if before is None:
        return f"\x1b[{';'.join(anew)}m"
    had = [code for code in before[0].split(";") if code]
    off = list(dict.fromkeys(_OFF[code] for code in had if code not in attributes))
    on = [code for code in attributes if code not in had or _OFF[code] in off]
    step = [*off, *on, *(own for own, other in zip(now[1:], before[1:], strict=True) if own != other)]
    return f"\x1b[{min((';'.join(step), ';'.join(anew)), key=len)}m"


class Changes(CompositorUpdate):
    """An update of which only what differs from the terminal is written, once it is written at all.

    Args:
        update: One that `trt_tui.tui.textual_parts.is_update` knows.
    """

    def __init__(self, update: Any, painted: Painted) -> None:
        self._update = update
        self._painted = painted

    def render_segments(self, console: Console) -> str:
        """The raw data to write."""
        return self._painted.render(self._update, COLOR_SYSTEMS[console.color_system or "truecolor"])
