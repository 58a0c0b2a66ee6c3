"""Output to the terminal: only changed cells are written, and hidden characters are replaced."""

from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, TypeAlias

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region
from textual.strip import Strip

from trt_tui.formatting import is_hidden_character
from trt_tui.tui.textual_internals import CompositorUpdate, find_drawn_region, iterate_update_strips

Pen: TypeAlias = tuple[str, str, str]
"""SGR codes of a cell: attributes, text colour (``39`` for the terminal's default) and background colour (``49`` for
the default)."""

Cell: TypeAlias = tuple[str, Pen]
"""A character and its pen. The right half of a wide character is an empty text."""

_MAX_REWRITTEN_GAP = 4
"""The maximum number of unchanged cells that are written again between two changed cells. A cursor movement needs as
many bytes."""

_MAX_WRITTEN_BLANKS = 8
"""The maximum number of consecutive blanks that are written as spaces. For more blanks, an erase and a cursor movement
need fewer bytes."""

_SPACE_VISIBLE_ATTRIBUTES = frozenset(("4", "7", "9"))
"""Attributes that are visible on a space: underlined, reversed, struck."""

_RESET_CODES = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27", "9": "29"}
"""The code that removes each attribute. A full reset would also remove the colours, which would have to be written
again."""


class ControlCharacterFilter(LineFilter):
    """A line filter that replaces hidden characters by �, one for each cell.

    Names are already escaped by `trt_tui.formatting.escape_hidden_characters`; the filter covers all other texts.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.control or segment.text.isprintable()
            else Segment("".join(map(_replace_hidden_character, segment.text)), segment.style)
            for segment in segments
        ]


def _replace_hidden_character(character: str) -> str:
    return "�" * get_character_cell_size(character) if is_hidden_character(character) else character


@lru_cache(maxsize=4096)
def _build_pen(style: Style | None, color_system: ColorSystem) -> Pen:
    if style is None:
        return "", "39", "49"
    attributes = (style.bold, style.dim, style.italic, style.underline, style.blink, style.reverse, style.strike)
    attribute_codes = ";".join(
        attribute_code
        for attribute_code, is_set in zip(("1", "2", "3", "4", "5", "7", "9"), attributes, strict=True)
        if is_set
    )
    front_codes, back_codes = (
        color.downgrade(color_system).get_ansi_codes(foreground) if color else (default,)
        for color, foreground, default in ((style.color, True, "39"), (style.bgcolor, False, "49"))
    )
    return attribute_codes, ";".join(front_codes), ";".join(back_codes)


@lru_cache(maxsize=4096)
def _keep_style_visible_on_space(pen: Pen) -> Pen:
    """Returns the text attributes and colours (the pen) that a space needs.

    A space needs no text colour, unless an attribute such as underline is visible on a space.
    """
    attributes, _, back_codes = pen
    return pen if _SPACE_VISIBLE_ATTRIBUTES.intersection(attributes.split(";")) else ("", "39", back_codes)


def _split_strip_into_cells(strip: Strip, color_system: ColorSystem) -> tuple[list[Cell], bool]:
    """Returns the cells of a strip, and True if each of its characters occupies exactly one cell."""
    cells: list[Cell] = []
    are_single = True
    for text, style, control in strip:
        if control:
            continue
        pen = _build_pen(style, color_system)
        blank = _keep_style_visible_on_space(pen)
        for character in text:
            width = 1 if character.isascii() else get_character_cell_size(character)
            if width == 1:
                cells.append((character, blank if character == " " else pen))
                continue
            are_single = False
            if width == 2:
                cells += [(character, pen), ("", pen)]
            elif cells:
                cells[-1] = (cells[-1][0] + character, cells[-1][1])
    return cells, are_single


class TerminalCells:
    """A record of the cells on the terminal, and of its current text attributes and colours (the pen).

    With this record, an update is reduced to the changed cells. Textual writes whole widgets, and the whole screen when
    a dialog opens or closes. At 80x24 this is 30 to 60 kB, which takes ten seconds at 5 kB/s. Colours are written where
    they change, not around each word.

    Args:
        can_erase: True if the terminal erases cells in the background colour of the pen (``bce`` of terminfo).
    """

    def __init__(self, can_erase: bool = False) -> None:
        self._can_erase = can_erase
        self._rows: dict[int, list[Cell | None]] = {}
        self._region: Region | None = None
        self._pen: Pen | None = None
        self._cursor: tuple[int, int] | None = None

    def forget_cells(self) -> None:
        """Marks all cells, text attributes and colours as unknown, so that the next update is written in full."""
        self._rows = {}
        self._pen = None

    def render_changed_cells(self, update: Any, color_system: ColorSystem) -> str:
        """Returns the control sequences and characters for the changed cells of an update, and records those cells."""
        if (region := find_drawn_region(update)) is not None and region != self._region:
            self.forget_cells()
            self._region = region
        output: list[str] = []
        self._cursor = None
        for y, x, strip in iterate_update_strips(update):
            new_cells, are_single = _split_strip_into_cells(strip, color_system)
            end = x + len(new_cells)
            row = self._rows.setdefault(y, [])
            row.extend([None] * (end - len(row)))
            old_cells = row[x:end]
            if old_cells == new_cells:
                continue
            if not are_single or any(cell is not None and len(cell[0]) != 1 for cell in row[x : end + 1]):
                old_cells = [None] * len(
                    new_cells
                )  # terminals may disagree on the width of such characters, so all cells are written
                for half_column, neighbour_column in ((x, x - 1), (end, end)):  # a remaining half becomes blank
                    if (
                        0 <= neighbour_column
                        and half_column < len(row)
                        and (right := row[half_column]) is not None
                        and right[0] == ""
                    ):
                        row[neighbour_column] = None
            row[x:end] = new_cells
            self._write_changed_cells(output, y, x, old_cells, new_cells, are_single)
        return "".join(output)

    def _write_changed_cells(
        self, output: list[str], y: int, x: int, old_cells: list[Cell | None], new_cells: list[Cell], are_single: bool
    ) -> None:
        """Appends the output for the changed cells of one piece of a line.

        Blanks are erased first, together with the changed cells between them. Then all cells of a pen are written, before
        those of the next pen: a movement of the cursor needs fewer bytes than a change of colours.

        Args:
            are_single: True if each character occupies exactly one cell. If not, the cells are written from left to right.
        """
        changed = [index for index, cell in enumerate(new_cells) if cell != old_cells[index]]
        blanks = (
            {index for index, (text, (attributes, _, _)) in enumerate(new_cells) if text == " " and not attributes}
            if self._can_erase
            else set[int]()
        )
        free_columns = sorted(blanks.union(changed))
        pen, erasures, erased = self._pen, list[tuple[int, Pen, str]](), set[int]()
        for _, run in groupby(
            (entry for entry in enumerate(free_columns) if entry[1] in blanks),
            key=lambda entry: (entry[1] - entry[0], new_cells[entry[1]]),
        ):
            columns = [index for _, index in run if new_cells[index] != old_cells[index]]
            if sum(second == first + 1 for first, second in pairwise(columns)) >= _MAX_WRITTEN_BLANKS:
                pen = _choose_pen(pen, new_cells[columns[0]])
                erasures.append((columns[0], pen, f"\x1b[{columns[-1] - columns[0] + 1}X"))
                erased.update(columns)
        texts = list[tuple[int, Pen, str]]()
        for index in changed:
            if index not in erased:
                text, own_pen = new_cells[index]
                pen = pen if own_pen == pen else _choose_pen(pen, new_cells[index])
                texts.append((index, pen, text))
        if are_single:
            ranks = {pen: len(_pen_change_sequence(self._pen, pen)) for _, pen, _ in texts}
            texts.sort(key=lambda text: (ranks[text[1]], text[1]))
        for index, pen, text in (*erasures, *texts):
            if self._cursor != (y, x + index):
                output.append(self._move_cursor(y, x, index, new_cells))
            if pen != self._pen:
                output.append(_pen_change_sequence(self._pen, pen))
            output.append(text)
            self._pen, self._cursor = pen, (y, x + index + (index not in erased))
        if not are_single:
            self._cursor = None  # terminals may disagree on its column

    def _move_cursor(self, y: int, x: int, index: int, cells: list[Cell]) -> str:
        """Returns the output that moves the cursor to a cell of a piece of a line, which begins at column ``x``."""
        row, column = self._cursor or (-2, 0)  # from there, each cell is reached by its absolute position
        step = x + index - column
        if row == y and step < 0:
            return f"\x1b[{x + index + 1}G"
        if row == y:
            skipped_cells = cells[index - step : index] if step <= index else []
            if len(skipped_cells) == step <= _MAX_REWRITTEN_GAP and all(
                self._pen == _choose_pen(self._pen, cell) for cell in skipped_cells
            ):
                return "".join(text for text, _ in skipped_cells)
            return f"\x1b[{step}C"
        if (
            row == y - 1
            and -_MAX_REWRITTEN_GAP <= step <= 0
            and self._region is not None
            and column < self._region.right
        ):
            return "\x1b[B" + "\b" * -step
        return f"\x1b[{y + 1};{x + index + 1}H"


@lru_cache(maxsize=4096)
def _choose_pen(pen: Pen | None, cell: Cell) -> Pen:
    """Returns the pen for a cell: that of the cell, but for a blank without attributes the present one on its background.

    The attributes that are visible on a space are then removed.
    """
    if pen is None or cell[0] != " " or cell[1][0]:
        return cell[1]
    attributes = [code for code in pen[0].split(";") if code not in _SPACE_VISIBLE_ATTRIBUTES]
    return ";".join(attributes), pen[1], cell[1][2]


@lru_cache(maxsize=4096)
def _pen_change_sequence(old_pen: Pen | None, new_pen: Pen) -> str:
    """Returns the shortest SGR sequence that changes text attributes and colours from the old to the new pen.

    An ``old_pen`` of None is unknown.
    """
    attributes = [attribute_code for attribute_code in new_pen[0].split(";") if attribute_code]
    full_reset = ["0", *attributes, *(color for color in new_pen[1:] if color not in ("39", "49"))]
    if old_pen is None:
        return f"\x1b[{';'.join(full_reset)}m"
    old_attributes = [attribute_code for attribute_code in old_pen[0].split(";") if attribute_code]
    reset_codes = list(
        dict.fromkeys(
            _RESET_CODES[attribute_code] for attribute_code in old_attributes if attribute_code not in attributes
        )
    )
    set_codes = [
        attribute_code
        for attribute_code in attributes
        if attribute_code not in old_attributes or _RESET_CODES[attribute_code] in reset_codes
    ]
    changes = [
        *reset_codes,
        *set_codes,
        *(new_color for new_color, old_color in zip(new_pen[1:], old_pen[1:], strict=True) if new_color != old_color),
    ]
    return f"\x1b[{min((';'.join(changes), ';'.join(full_reset)), key=len)}m"


class TerminalUpdate(CompositorUpdate):
    """A screen update that writes only the cells that differ from the terminal at the time of writing.

    Args:
        update: A Textual update that `trt_tui.tui.textual_internals.is_screen_update` accepts.
    """

    def __init__(self, update: Any, terminal_cells: TerminalCells) -> None:
        self._update = update
        self._terminal_cells = terminal_cells

    def render_segments(self, console: Console) -> str:
        return self._terminal_cells.render_changed_cells(
            self._update, COLOR_SYSTEMS[console.color_system or "truecolor"]
        )
