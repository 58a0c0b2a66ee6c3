"""What is written cell by cell looks as Textual's own writing does: trt_tui.tui.terminal_output."""

import random
import re

import pytest
from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from trt_tui.tui.terminal_output import TerminalCells

WIDTH, HEIGHT = 40, 6
STYLES = [
    Style.parse(one)
    for one in (
        "on #15171b",
        "#c9ced6 on #15171b",
        "bold #ffc24a on #15171b",
        "dim #ffc24a on #15171b",
        "bold dim on #2a3038",
        "underline on #15171b",
        "reverse #c9ced6 on #15171b",
        "strike",
        "",
        "italic #c9ced6",
        "#c9ced6 on #2a3038",
    )
]
TEXTS = [" ", "  ", "            ", "a", "conv", "█▍", "─" * 9, "漢", "a漢字b", "e\u0301", "0 1 2 3"]


class Terminal:
    """As much of one as is written to, which erases in the colour of its pen."""

    def __init__(self) -> None:
        self.cells = {(y, x): (" ", "") for y in range(HEIGHT) for x in range(WIDTH)}
        self.y = self.x = 0
        self.pen: dict[str, str] = {}

    def look(self, mark: str) -> str:
        """How a character looks with the pen; of a blank one only what is seen of it."""
        seen = self.pen if mark != " " or {"4", "7", "9"} & set(self.pen) else {"b": self.pen.get("b", "")}
        return str(sorted((kind, value) for kind, value in seen.items() if value))

    def put(self, mark: str) -> None:
        width = get_character_cell_size(mark)
        if not width:
            before = max(x for x in range(self.x) if self.cells[self.y, x][0])
            self.cells[self.y, before] = (self.cells[self.y, before][0] + mark, self.cells[self.y, before][1])
            return
        self.clear(width)
        self.cells[self.y, self.x] = (mark, self.look(mark))
        if width == 2:
            self.cells[self.y, self.x + 1] = ("", "")
        self.x += width

    def clear(self, width: int) -> None:
        for x in range(self.x, self.x + width):
            if self.cells[self.y, x][0] == "":  # what is left of a wide character is blank
                self.cells[self.y, x - 1] = (" ", "half")
            if self.cells.get((self.y, x + 1), " ")[0] == "":
                self.cells[self.y, x + 1] = (" ", "half")
            self.cells[self.y, x] = (" ", self.look(" "))

    def feed(self, text: str) -> None:
        for numbers, end, mark in re.findall(r"\x1b\[([\d;]*)([A-Za-z])|(\n|[^\x1b])", text):
            if mark == "\b":
                self.x = min(self.x, WIDTH - 1) - 1  # behind the last column, the cursor is on it
            elif mark:
                self.put(mark) if mark != "\n" else None
            elif end == "H":
                self.y, self.x = (int(one) - 1 for one in numbers.split(";"))
            elif end == "C":
                self.x += int(numbers)
            elif end == "B":
                self.y, self.x = self.y + 1, min(self.x, WIDTH - 1)
            elif end == "G":
                self.x = int(numbers) - 1
            elif end == "X":
                self.clear(int(numbers))
            else:
                assert end == "m"
                self.sgr(numbers.split(";"))

    def sgr(self, codes: list[str]) -> None:
        while codes:
            code = codes.pop(0)
            if code in ("38", "48"):
                self.pen["f" if code == "38" else "b"] = " ".join(codes.pop(0) for _ in range(4))
            elif code in ("39", "49"):
                self.pen.pop("f" if code == "39" else "b", None)
            elif code in ("", "0"):
                self.pen = {}
            elif code == "22":
                self.pen = {key: value for key, value in self.pen.items() if key not in "12"}
            elif len(code) == 2 and code[0] == "2":
                self.pen.pop(code[1], None)
            else:
                self.pen[code] = "on"


def strip(rng: random.Random, width: int) -> Strip:
    segments = [Segment(rng.choice(TEXTS), rng.choice(STYLES)) for _ in range(rng.choice((1, 3, 9)))]
    return Strip(segments).adjust_cell_length(width, rng.choice(STYLES))


def update(rng: random.Random, whole: bool) -> LayoutUpdate | ChopsUpdate:
    if whole:
        return LayoutUpdate([[strip(rng, WIDTH)] for _ in range(HEIGHT)], Region(0, 0, WIDTH, HEIGHT))
    cuts = [sorted({0, *rng.sample(range(1, WIDTH), 3)}) for _ in range(HEIGHT)]
    ends = [[*line[1:], WIDTH] for line in cuts]
    chops = [
        {x: strip(rng, end - x) if rng.random() < 0.4 else None for x, end in zip(line, stops, strict=True)}
        for line, stops in zip(cuts, ends, strict=True)
    ]
    return ChopsUpdate(chops, [(y, 0, WIDTH) for y in range(HEIGHT)], ends)


@pytest.mark.parametrize("erases", [False, True])
def test_it_looks_as_what_textual_writes(erases):
    rng, console = random.Random(1), Console(color_system="truecolor", force_terminal=True)
    painted = TerminalCells(erases)
    ours, theirs = Terminal(), Terminal()
    for step in range(160):
        one = update(rng, whole=step % 40 == 0)
        ours.feed(painted.render_changed_cells(one, ColorSystem.TRUECOLOR))
        theirs.feed(one.render_segments(console))
        halves = {at for at, (_, look) in theirs.cells.items() if look == "half"}
        assert {at: cell for at, cell in ours.cells.items() if at not in halves} == {
            at: cell for at, cell in theirs.cells.items() if at not in halves
        }, step
        assert painted.render_changed_cells(one, ColorSystem.TRUECOLOR) == "", "what stands there is not written again"


def test_a_move_of_the_cursor_writes_few_bytes():
    """The row of a scope whose share is being measured has two dim signs around its name."""
    name, quiet, cursor = (Style.parse(one) for one in ("#c9ced6", "#80868f", "bold #c9ced6"))

    def row(number: int, has_cursor: bool) -> list[Strip]:
        ground = Style.parse("on #2a3038" if has_cursor else "on #15171b")
        spans = (">" if has_cursor else " ", cursor), ("        ▸ ", quiet), (f"{number:<43}", name), ("…", quiet)
        return [Strip([Segment(text, style + ground) for text, style in spans]).adjust_cell_length(78, ground)]

    painted, sizes = TerminalCells(can_erase=True), []
    for place in (0, 1, 2, 1):
        one = LayoutUpdate([row(number, number == place) for number in range(3)], Region(0, 0, 78, 3))
        sizes.append(len(painted.render_changed_cells(one, ColorSystem.TRUECOLOR).encode()))
    assert max(sizes[1:]) <= 166  # Textual then moves the cursor with 6 bytes more
