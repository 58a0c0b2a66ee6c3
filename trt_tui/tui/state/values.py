"""Pictures of what a row reads: a histogram with its range, and the ranges of channels."""

import math

from trt_tui.core.calibration.statistics import TensorStats, TopChannels
from trt_tui.core.network.layers import Group
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, clip, shorten, shorten_apart
from trt_tui.tui.state.plots import Mark, bars, mark_lines, strip
from trt_tui.words import number, percent

_BINS = 64
_FIRST_POWER = -40
"""Of the lowest bin of `TensorStats.log_histogram`."""

_MOST_BINS = 32
_LEAST_WIDTH = 30
_CLIPS = 0.999
"""A range below this part of the amax clips."""


def histogram_lines(tensor: str, stats: TensorStats, width: int, rows: int = 3, amax: float | None = None
                    ) -> list[Line]:
    """A histogram of ``|x|`` over powers of two with logarithmic counts; below it percentiles, amax and range.

    Args:
        amax: The range in use; what lies beyond it is clipped.
    """
    counts = stats.log_histogram
    present = [place for place, count in enumerate(counts) if count]
    if not present or width < _LEAST_WIDTH:
        return []
    clips = amax is not None and 0 < amax < stats.amax * _CLIPS
    other = amax if amax is not None and not math.isclose(amax, stats.amax, rel_tol=0.001) else None
    last = min(_BINS - 1, max(present[-1], math.ceil(_place(other)) - 1 if other is not None else 0))
    first = max(present[0], last - min(_MOST_BINS - 1, width - 6))
    shown = counts[first:last + 1]
    cell = max(1, min(4, (width - 4) // len(shown)))
    peak = math.log1p(max(shown))
    beyond = _place(amax) if clips and amax is not None else math.inf
    lines: list[Line] = [clip([(" |x| of ", "dim"), (shorten(tensor, width - 20), ""), ("  log counts", "dim")], width)]
    drawn = bars([math.log1p(count) / peak for count in shown], rows, cell,
                 ["warn" if first + place >= beyond else "plot" for place in range(len(shown))])
    lines += [[("  ", ""), *line] for line in drawn]

    def column(value: float) -> int:
        return 2 + min(cell * len(shown) - 1, math.floor((_place(value) - first) * cell)) if value > 0 else -1

    marks = [Mark(column(stats.p99), f"p99 {number(stats.p99)}"),
             Mark(column(stats.p9999), f"p99.99 {number(stats.p9999)}"),
             Mark(column(stats.amax), f"amax {number(stats.amax)}")]
    if other is not None:
        lost = percent(1 - stats.below(other)) if clips else ""
        told = f", clips {'hardly any' if lost == '·' else lost}" if clips else ""
        marks.append(Mark(column(other), f"range {number(other)}{told}", "warn" if clips else "strong"))
    return [*lines, *mark_lines(marks, width)]


def _place(value: float | None) -> float:
    """Where a magnitude lies, in bins of the histogram."""
    return math.log2(value) - _FIRST_POWER if value else 0.0


def channel_lines(tensor: str, top: TopChannels, width: int) -> list[Line]:
    """A strip of the ranges of channels, with the largest and the median; nothing of a single one."""
    count, amaxes = top.channels, top.amaxes
    if len(amaxes) < 2:
        return []
    ranked = sorted(amaxes)
    figures = f"{count} channels, max {number(ranked[-1])} #{top.indices[0]}, median {number(ranked[len(ranked) // 2])}"
    room = width - len(figures) - 3
    head: Line = [(f" {shorten(tensor, room)}  ", ""), (figures, "dim")] if room >= 8 else [(f" {figures}", "dim")]
    return [clip(head, width), [(f"  {strip(amaxes, width - 4)}", "plot")]]


def group_channels(session: Session, group: Group, width: int) -> list[Line]:
    """The strips of a group's inputs and of its weights, as far as they are known."""
    stats, results = session.results.statistics.get(group.name, {}), session.results
    inputs = dict.fromkeys(site.tensor for site in group.activations() if site.tensor in stats)
    tops = [(tensor, stats[tensor].top_channels) for tensor in inputs]
    tops += results.weights.get(group.name, {}).items()
    apart = shorten_apart((tensor for tensor, _ in tops), max(8, width - 40))
    lines = [line for tensor, top in tops if top is not None for line in channel_lines(apart[tensor], top, width)]
    return [[(" ranges by channel: an eighth less in height is half of it", "dim")], *lines] if lines else []
