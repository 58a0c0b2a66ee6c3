"""Charts drawn in text: bars, labels below bars, strips, histograms of values, and ranges of channels.

The functions return styled lines. Only block elements and box drawing characters are used, so that charts are legible
without colours, in 16 colours, and when copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trt_tui.core.calibration.calibration import DominantChannels, TensorStats
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.network.layers import FusionGroup
from trt_tui.formatting import cell_width, counted_noun_text, number_text, percent_text
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, clip_line, line_width, shorten_distinctly, shorten_middle

HEIGHT_BLOCKS = " ▁▂▃▄▅▆▇█"
"""Characters for the height of a bar in a cell, in eighths."""


BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def bar_text(fraction: float, width: int) -> str:
    """Returns a horizontal bar, with a resolution of an eighth of a cell."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full_cells, eighths_left = divmod(eighths, 8)
    return ("█" * full_cells + (BAR_BLOCKS[eighths_left] if eighths_left else "")).ljust(width)


def bar_lines(
    fractions: Sequence[float], row_count: int, cell_width: int = 1, styles: Sequence[str] = ()
) -> list[Line]:
    """Returns vertical bars beside each other, each ``cell_width`` wide, in ``row_count`` lines.

    A positive fraction has at least an eighth of a row, so that it is visible.

    Args:
        fractions: Heights from 0 to 1.
        styles: The style of each bar; by default all are "plot".
    """
    heights = [max(1, round(min(1.0, fraction) * row_count * 8)) if fraction > 0 else 0 for fraction in fractions]
    return [
        [
            (HEIGHT_BLOCKS[max(0, min(8, height - row * 8))] * cell_width, style)
            for height, style in zip(heights, styles or ["plot"] * len(heights), strict=True)
        ]
        for row in reversed(range(row_count))
    ]


def split_into_bins(count: int, max_bins: int) -> list[range]:
    """Returns the positions of values in at most ``max_bins`` bins of neighbours."""
    ends = [index * count // min(count, max_bins) for index in range(min(count, max_bins) + 1)] if count else []
    return [range(start, end) for start, end in pairwise(ends)]


def channel_range_strip(amaxes: Sequence[float], width: int) -> str:
    """Returns the ranges of channels as a line of bars on a logarithmic scale.

    The largest range has full height, and each eighth less is half the range. A quantized type with one scale has one
    bit less for a channel of half the range. Channels of zeros have no bar. If there are too many channels, a bar shows
    the largest of several neighbours.
    """
    bins = [max(amaxes[index] for index in indices) for indices in split_into_bins(len(amaxes), width)]
    max_value = max(bins, default=0.0)
    cell_width = max(1, min(3, width // max(1, len(bins))))
    return "".join(
        HEIGHT_BLOCKS[0 if value <= 0 else max(1, 8 + round(math.log2(value / max_value)))] * cell_width
        for value in bins
    )


@dataclass(frozen=True)
class BarLabel:
    """A label below a bar, with the column of the bar."""

    column: int
    text: str
    style: str = "dim"


def bar_label_lines(labels: Sequence[BarLabel], width: int) -> list[Line]:
    """Returns a line of ticks under the labelled columns, then the labels in the same order, as close to their ticks as
    possible.

    The labels use several lines if one line is too short.
    """
    inside = sorted(
        (bar_label for bar_label in labels if 0 <= bar_label.column < width), key=lambda entry: entry.column
    )
    if not inside:
        return []
    ticks: Line = []
    for bar_label in inside:
        gap = bar_label.column - sum(len(text) for text, _ in ticks)
        if gap >= 0:
            ticks += [(" " * gap, ""), ("╵", bar_label.style)]
    rows: list[list[BarLabel]] = [[]]
    for bar_label in inside:
        if rows[-1] and _count_label_cells([*rows[-1], bar_label]) > width:
            rows.append([])
        rows[-1].append(bar_label)
    lines = [ticks]
    for row in rows:
        line: Line = []
        for index, bar_label in enumerate(row):
            centred = bar_label.column - cell_width(bar_label.text) // 2
            start = max(line_width(line) + 2 * bool(line), min(centred, width - _count_label_cells(row[index:])))
            line += [(" " * (start - line_width(line)), ""), (bar_label.text, bar_label.style)]
        lines.append(line)
    return [clip_line(line, width) for line in lines]


def _count_label_cells(labels: Sequence[BarLabel]) -> int:
    """Returns the width of labels beside each other, with two blanks between them."""
    return sum(cell_width(bar_label.text) + 2 for bar_label in labels) - 2


_BIN_COUNT = 64
_FIRST_BIN_POWER = -40
"""The power of two at which the lowest bin of `TensorStats.log_histogram` starts."""

_MAX_BINS = 32
_MIN_WIDTH = 30
_MAX_CLIPPING_SHARE = 0.999
"""A range below this fraction of amax is displayed as clipping."""


def histogram_lines(
    tensor: str, tensor_stats: TensorStats, width: int, row_count: int = 3, amax: float | None = None
) -> list[Line]:
    """Returns a histogram of ``|x|`` over powers of two with logarithmic counts, and labels for percentiles, amax and
    range.

    Args:
        amax: The range in use; larger values are clipped.
    """
    counts = tensor_stats.log_histogram
    present = [index for index, count in enumerate(counts) if count]
    if not present or width < _MIN_WIDTH:
        return []
    is_clipped = amax is not None and 0 < amax < tensor_stats.amax * _MAX_CLIPPING_SHARE
    shown_range = amax if amax is not None and not math.isclose(amax, tensor_stats.amax, rel_tol=0.001) else None
    last = min(
        _BIN_COUNT - 1,
        max(present[-1], math.ceil(_histogram_bin_position(shown_range)) - 1 if shown_range is not None else 0),
    )
    first = max(present[0], last - min(_MAX_BINS - 1, width - 6))
    shown_counts = counts[first : last + 1]
    cell = max(1, min(4, (width - 4) // len(shown_counts)))
    peak = math.log1p(max(shown_counts))
    clip_position = _histogram_bin_position(amax) if is_clipped and amax is not None else math.inf
    lines: list[Line] = [
        clip_line([(" |x| of ", "dim"), (shorten_middle(tensor, width - 20), ""), ("  log counts", "dim")], width)
    ]
    drawn = bar_lines(
        [math.log1p(count) / peak for count in shown_counts],
        row_count,
        cell,
        ["warn" if first + index >= clip_position else "plot" for index in range(len(shown_counts))],
    )
    lines += [[("  ", ""), *line] for line in drawn]

    def find_histogram_column(value: float) -> int:
        return (
            2 + min(cell * len(shown_counts) - 1, math.floor((_histogram_bin_position(value) - first) * cell))
            if value > 0
            else -1
        )

    marks = [
        BarLabel(find_histogram_column(tensor_stats.p99), f"p99 {number_text(tensor_stats.p99)}"),
        BarLabel(find_histogram_column(tensor_stats.p9999), f"p99.99 {number_text(tensor_stats.p9999)}"),
        BarLabel(find_histogram_column(tensor_stats.amax), f"amax {number_text(tensor_stats.amax)}"),
    ]
    if shown_range is not None:
        clipped_text = percent_text(1 - tensor_stats.estimate_value_share_below(shown_range)) if is_clipped else ""
        clip_text = f", clips {'hardly any' if clipped_text == '·' else clipped_text}" if is_clipped else ""
        marks.append(
            BarLabel(
                find_histogram_column(shown_range),
                f"range {number_text(shown_range)}{clip_text}",
                "warn" if is_clipped else "strong",
            )
        )
    return [*lines, *bar_label_lines(marks, width)]


def _histogram_bin_position(value: float | None) -> float:
    return math.log2(value) - _FIRST_BIN_POWER if value else 0.0


def channel_range_lines(tensor: str, top_channels: DominantChannels, width: int) -> list[Line]:
    """Returns a strip of the ranges of a tensor's channels, with their maximum and median; empty for a single channel."""
    count, amaxes = top_channels.channel_count, top_channels.amaxes
    if len(amaxes) < 2:
        return []
    ranked = sorted(amaxes)
    short_summary = f"{counted_noun_text(count, 'channel')}, max {number_text(ranked[-1])} #{top_channels.indices[0]}"
    summary = f"{short_summary}, median {number_text(ranked[len(ranked) // 2])}"
    summary = summary if len(summary) < width else short_summary
    room = width - len(summary) - 3
    head: Line = (
        [(f" {shorten_middle(tensor, room)}  ", ""), (summary, "dim")] if room >= 8 else [(f" {summary}", "dim")]
    )
    return [clip_line(head, width), [(f"  {channel_range_strip(amaxes, width - 4)}", "plot")]]


def group_channel_range_lines(session: Session, group: FusionGroup, width: int) -> list[Line]:
    """Returns the channel strips of a group's inputs and weights that are known."""
    details = session.results.find_value(GROUP_DETAILS, group.name) or GroupDetails()
    inputs = dict.fromkeys(site.tensor for site in group.activation_qdq_sites() if site.tensor in details.tensors)
    channels_by_tensor = [(tensor, details.tensors[tensor].dominant_channels) for tensor in inputs]
    channels_by_tensor += details.weights.items()
    short_names = shorten_distinctly((tensor for tensor, _ in channels_by_tensor), max(8, width - 40))
    lines = [
        line
        for tensor, top_channels in channels_by_tensor
        if top_channels is not None
        for line in channel_range_lines(short_names[tensor], top_channels, width)
    ]
    titles = " ranges by channel: each step down halves the range", " ranges by channel, step ÷2", " ranges"
    return [[(next(title for title in titles if len(title) <= max(width, 7)), "dim")], *lines] if lines else []
