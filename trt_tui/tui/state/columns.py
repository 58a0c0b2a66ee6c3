"""The columns of the tree, as wide as there is room, and the lines and titles drawn in them."""

from __future__ import annotations

from dataclasses import dataclass

from trt_tui.tui.spans import (
    Line,
    clip,
    fitted,
)
from trt_tui.tui.state.figures import FOUND, TRIED, Cells, Figures, Measure
from trt_tui.tui.state.listing import Listing
from trt_tui.tui.state.previewed import WIDTH
from trt_tui.tui.state.tree import View
from trt_tui.words import RUN_TITLES
from trt_tui.words import left as flush_left


def legend(measure: Measure) -> str:
    """What the glyphs mean."""
    if measure is Measure.OWNS:
        return "█ ≥20%  ▓ 5–20  ▒ 1–5  ░ .2–1  · less  ! NaN/Inf  ? not measured"
    return "█ <10 dB  ▓ 10–20  ▒ 20–30  ░ 30–40  · more  ! NaN/Inf  ? not measured"


BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def bar_text(fraction: float, width: int) -> str:
    """A bar of eighths of a cell."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BAR_BLOCKS[rest] if rest else "")).ljust(width)


@dataclass(frozen=True)
class Columns:
    """Widths of the tree's columns at one total width; a width of 0 leaves the column out."""

    name: int
    operator: int
    asked: int
    made: int
    value: int
    bar: int
    raised: int
    cost: int

    @classmethod
    def fit(cls, width: int, made: bool = False, previewed: bool = False) -> Columns:
        """The columns for a width; ``made`` adds the one for what the engine made, wider where it was not built."""
        if width >= 76:
            fixed = (9, 6, 6, 6, 6, 9, 5) if made else (9, 6, 0, 6, 9, 9, 5)
        elif width >= 64:
            fixed = (8, 6, 6, 6, 0, 9, 5 if width >= 70 else 0) if made else (9, 6, 0, 6, 6, 9, 0)
        else:
            fixed = (8, 6, 5, 6, 0, 0, 0) if made else (9, 6, 0, 6, 0, 0, 0)
        if previewed:
            fixed = (*fixed[:2], WIDTH, fixed[3], min(fixed[4], 4), *fixed[5:])
        used = 4 + sum(w + 1 for w in fixed if w)
        return cls(max(8, width - used), *fixed)


def tree_header(columns: Columns, found: Figures) -> Line:
    """The titles of the columns."""
    value = "owns" if found.measure is Measure.OWNS else "dB"
    parts = ["   " + "  layer".ljust(columns.name), "op".ljust(columns.operator), "asked".ljust(columns.asked)]
    if columns.made:
        title = "preview" if found.preview is not None else f"in {found.made_of}" if found.made_of else \
            "engine" if columns.made > 5 else "built"
        parts.append(title[:columns.made].ljust(columns.made))
    parts.append(value.rjust(columns.value))
    if columns.bar:
        parts.append(" " * columns.bar)
    if columns.raised:
        parts.append("raised to".rjust(columns.raised))
    if columns.cost:
        parts.append(("ms" if found.times else "MACs").rjust(columns.cost))
    return [(" ".join(parts), "dim")]


def operator_text(operator: str, width: int) -> str:
    """An operator's name, its long words shortened."""
    text = operator.replace("Normalization", "Norm").replace("Average", "Avg").replace("Reduce", "Red")
    return flush_left("".join(part for part, _ in clip([(text, "")], width)), width)


def row_line(cells: Cells, depth: int, columns: Columns, cursor: bool) -> Line:
    """One line of the tree."""
    indent = "  " * min(depth, max(0, columns.name // 4))
    room = columns.name - len(indent) - 2
    mark_style = "key" if cells.mark == FOUND else "dim"
    line: Line = [
        (">" if cursor else " ", "strong"), (cells.glyph, cells.glyph_style), (f" {indent}{cells.mark} ", mark_style),
        (fitted(cells.name, room) + " ", cells.name_style),
    ]
    if not cells.operator and not cells.asked and not cells.value:
        return line
    line.append((operator_text(cells.operator, columns.operator) + " ", "dim"))
    line.append((cells.asked.ljust(columns.asked) + " ", cells.asked_style))
    if columns.made:
        line.append((cells.made.ljust(columns.made) + " ", cells.made_style))
    rest = columns.value + sum(width + 1 for width in (columns.bar, columns.raised) if width) + 1
    if cells.reason:
        line.append((" " + fitted(cells.reason, rest - 1), "dim"))
    else:
        line.append((cells.value.rjust(columns.value) + " ", cells.value_style))
        if columns.bar:
            line.append((bar_text(cells.bar, columns.bar) + " ", cells.glyph_style))
        if columns.raised:
            line.append((cells.raised.rjust(columns.raised), ""))
    if columns.cost:
        line.append((" " + cells.cost.rjust(columns.cost), "dim"))
    return line


def _taken_on(listing: Listing) -> str:
    """How many samples the shares were measured on; "" where it is all of them, or none is known."""
    session = listing.session
    taken = [share.samples for share in session.measured("config").shares.values()]
    every = session.data.whatif if session.data is not None else 0
    if not taken or min(taken) >= every:
        return ""
    return f"shares on {min(taken)} to {max(taken)} of {every} samples" if min(taken) < max(taken) else (
        f"shares on {min(taken)} of {every} samples")


def tree_title(listing: Listing) -> tuple[str, str]:
    """Left and right text of the tree's rule."""
    model, found, finding = listing.model, listing.figures, listing.session.finding
    left = {View.TREE: "1 Tree", View.WORST: "1 Worst first", View.BLOCKS: "1 Blocks"}[listing.view]
    if listing.matches is not None:
        left += f" ─ {len(listing.matches)} of {len(model.group_rows)} match, esc clears"
    elif listing.session.searching and finding is not None and finding.progress is not None:
        left += f" ─ {FOUND} raised in the best so far, {TRIED} being tried"
    elif found.measure is not Measure.OWNS or found.run != "config":
        left += (f" ─ {found.measure.value}{' error' if found.measure is not Measure.OWNS else ''} in "
                 f"{RUN_TITLES[found.run]}")
    else:
        able = f"{found.able} of {len(model.group_rows)} groups can run {found.lowest.label}"
        left += f" ─ {_taken_on(listing) or able}"
    return left, "t: " + " · ".join(one.value for one in listing.views if one is not listing.view)
