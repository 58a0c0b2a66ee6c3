"""The columns of the tree, as wide as there is room, and the lines and titles drawn in them."""

from __future__ import annotations

from dataclasses import dataclass

from trt_tui.tui.keys import key
from trt_tui.tui.spans import Line, clip, fitted, shorten_path, width_of
from trt_tui.tui.state.figures import FOUND, TRIED, Cells, Figures, Measure
from trt_tui.tui.state.flips import flip_title
from trt_tui.tui.state.listing import Listing
from trt_tui.tui.state.order import Column
from trt_tui.tui.state.tree import View
from trt_tui.words import cells, fit_number, left


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


_MOST = 120
"""Cells that all columns take at most."""

_OUTCOME = 5
"""Cells of an outcome such as ``FAIL?``."""

PARTIAL = "part"
"""In place of an outcome on part of the samples, where their number has no room."""

_NAME = 18
"""Cells that the name has before other columns are given up for it."""


@dataclass(frozen=True)
class Columns:
    """Widths of the list's columns at one total width; a width of 0 leaves the column out."""

    name: int
    operator: int
    asked: int
    made: int
    value: int
    bar: int
    flip: int
    cost: int

    @classmethod
    def fit(cls, width: int, made: bool = False) -> Columns:
        """The columns for a width; ``made`` adds the one for what the builder makes."""
        width = min(width, _MOST)
        fixed = {"operator": 8, "asked": 7, "made": 9 if made else 0, "value": 5, "bar": 5, "flip": 13, "cost": 6}

        def rest() -> int:
            return width - 6 - sum(one + 1 for one in fixed.values() if one)

        for column, least in (("cost", 0), ("bar", 0), ("operator", 6), ("made", 7 * made), ("operator", 0),
                              ("made", 0), ("flip", 0)):
            if rest() < (_NAME if column != "cost" else 30):
                fixed[column] = least
        if fixed["flip"] and rest() > _NAME + 8:
            fixed["flip"] = min(20, fixed["flip"] + rest() - _NAME - 8)
        return cls(max(8, rest()), **fixed)


def tree_header(columns: Columns, found: Figures, by: Column | None = None) -> Line:
    """The titles of the columns; a click on one sorts by it. That of ``by``, which the rows are ordered by, is strong,
    unless it is the share, by which they mostly are."""
    room = columns.value + (columns.bar + 1 if columns.bar else 0)
    titles = (f"share of {found.of}", f"share {found.of}", "share") if found.measure is Measure.OWNS else (
        f"{found.measure.value} dB", "dB")
    made = "preview" if found.preview is not None else f"in {found.made_of}" if found.made_of else "engine"
    parts = [(Column.LAYER, "     layer".ljust(columns.name + 5)), (Column.OPERATOR, "op".ljust(columns.operator)),
             (Column.ASKED, "prec".ljust(columns.asked)), (Column.MADE, fitted(made, columns.made)),
             (Column.SHARE, next((one for one in titles if cells(one) <= room), titles[-1]).ljust(room)),
             (Column.FLIP, flip_title(found.title, columns.flip).rjust(columns.flip)),
             (Column.COST, ("ms" if found.times else "MACs").rjust(columns.cost))]
    widths = (1, columns.operator, 1, columns.made, 1, columns.flip, columns.cost)
    shown = [one for one, width in zip(parts, widths, strict=True) if width]
    strong = by if by is not Column.SHARE else None
    return [(title if column is shown[-1][0] else f"{title} ",
             f"{'strong' if column is strong else 'dim'}@sort('{column.name}')") for column, title in shown]


def operator_text(operator: str, width: int) -> str:
    """An operator's name, its long words shortened."""
    text = operator.replace("Normalization", "Norm").replace("Average", "Avg").replace("Reduce", "Red").replace(
        "Transpose", "T")
    return left("".join(part for part, _ in clip([(text, "")], width)), width)


def name_room(depth: int, columns: Columns) -> int:
    """Returns the cells that the name of a row at a depth has."""
    return columns.name - 2 * min(depth, max(0, columns.name // 4))


def row_line(row: Cells, depth: int, columns: Columns, cursor: bool, short: str | None = None) -> Line:
    """One line of the list, as wide as its columns.

    Args:
        short: The name as it is shown; `shorten_path` makes it by default.
    """
    room = name_room(depth, columns)
    indent = " " * (columns.name - room)
    mark_style = "key" if row.mark == FOUND else "dim"
    line: Line = [
        (">" if cursor else " ", "strong"), (row.glyph, row.glyph_style), (f" {indent}{row.mark} ", mark_style),
        (left(short if short is not None else shorten_path(row.name, room), room) + " ", row.name_style),
    ]
    if not row.operator and not row.asked and not row.value:
        return [*line[:-1], (row.name, row.name_style)]
    if columns.operator:
        line.append((operator_text(row.operator, columns.operator) + " ", "dim"))
    asked, _ = clip([(row.asked, "")], columns.asked)[0] if cells(row.asked) > columns.asked else (row.asked, "")
    line.append((left(asked, columns.asked) + " ", row.asked_style))
    if columns.made:
        line.append((fitted(row.made, columns.made) + " ", row.made_style))
    bar = columns.bar + 1 if columns.bar else 0
    if row.reason:
        line.append((fitted(row.reason, columns.value + bar + (columns.flip + 1 if columns.flip else 0)) + " ", "dim"))
    else:
        line += _share_spans(row, columns.value, bar)
        if columns.flip:
            flip = row.flip
            outcome = flip.outcome if len(flip.outcome) <= _OUTCOME else PARTIAL if flip.partial else "…"
            line += [(f"{fit_number(flip.figure, columns.flip - _OUTCOME):>{columns.flip - _OUTCOME}} ",
                      flip.figure_style), (f"{outcome:<{_OUTCOME}}", flip.outcome_style)]
    if columns.cost:
        line.append((fit_number(row.cost, columns.cost).rjust(columns.cost), "dim"))
    return line


def _share_spans(row: Cells, width: int, bar: int) -> Line:
    """The share with its bar; in their place a word, or behind a figure of another config that config's name."""
    if row.instead:
        return [((row.instead if len(row.instead) <= width + bar else "up").ljust(width + bar) + " ", "dim")]
    if row.of:
        if not bar:
            return [(" " * (width + 1), "")]
        return [(f"{fit_share(row.value, width):>{width}} {fitted(row.of, bar - 1)} ", "stale")]
    if cells(row.value) > width:  # a share far below zero, or one with decibels: the bar gives way, then the number
        return [(left(fit_share(row.value, width + bar), width + bar) + " ", row.value_style)]
    line: Line = [(row.value.rjust(width) + " ", row.value_style)]
    return [*line, (bar_text(row.bar, bar - 1) + " ", row.glyph_style)] if bar else line


def fit_share(text: str, width: int) -> str:
    """Returns a share that fits into a width; one far below zero is that if nothing else fits."""
    if cells(text) <= width:
        return text
    return "<0" if "-" in text and text.endswith("%") else fit_number(text, width)


def _taken_on(listing: Listing) -> str:
    """How many samples the shares were measured on; "" where it is all of them, or none is known."""
    session = listing.session
    taken = [share.samples for share in session.measured("config").shares.values()]
    every = session.data.whatif if session.data is not None else 0
    if not taken or min(taken) >= every:
        return ""
    return f"shares on {min(taken)} to {max(taken)} of {every}" if min(taken) < max(taken) else (
        f"shares on {min(taken)} of {every}")


def view_title(listing: Listing) -> str:
    """Returns the title of the view; the rows are called worst first only while they are."""
    if listing.view is not View.WORST:
        return str(listing.view.value).capitalize()
    found = listing.figures
    if listing.by is not Column.SHARE or not listing.order or listing.is_old or found.stale:
        return "All layers"
    return "Worst first" if len(found.values.keys() | found.unknown) >= len(listing.model.rows) else "Worst so far"


def tree_title(listing: Listing, width: int) -> tuple[str, Line]:
    """Left and right words of the list's rule of so many cells; a click on a view shows it. Where not all fits, on how
    many samples shares are is left to the rows' details."""
    model, found, finding = listing.model, listing.figures, listing.session.finding
    old = f", old: {key('sort')} sorts" if listing.is_old else ""
    by = f", {'' if listing.by is Column.LAYER else 'by '}{listing.by.value}" if listing.by is not Column.SHARE else ""
    left = f"{key('pane_tree')} {view_title(listing)} in {found.of}{by}{old}"
    more = ""
    if listing.matches is not None:
        left += f" ─ {len(listing.matches)} of {len(model.group_rows)} match, {key('close')} clears"
    elif listing.session.searching and finding is not None and finding.progress is not None:
        left += f" ─ {FOUND} raised in the best so far, {TRIED} being tried"
    elif found.measure is not Measure.OWNS or found.run != "config":
        left += f" ─ {found.measure.value}{' error' if found.measure is not Measure.OWNS else ''}"
    elif listing.view is View.BLOCKS:
        left += f" ─ {key('toggle')} on a label: the role everywhere"
    else:
        able = f"{found.able} of {len(model.group_rows)} can run {found.lowest.label}"
        more = f" ─ {_taken_on(listing) or able}"
    right: Line = [(f"{key('view')}:", "dim@do('view')")]
    for place, one in enumerate(listing.views):
        right += [(" · " if place else " ", "dim"), (one.value.removesuffix(" first"), f"dim@see('{one.value}')")]
    return left + (more if cells(left + more) + width_of(right) + 8 <= width else ""), right
