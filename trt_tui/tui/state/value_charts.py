"""Charts of the values that a fusion group reads: a histogram with its range, and the ranges of channels."""

import math

from trt_tui.core.calibration.calibration import DominantChannels, TensorStats
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.network.layers import FusionGroup
from trt_tui.formatting import number_text, percent_text
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, clip_line, shorten_distinctly, shorten_middle
from trt_tui.tui.state.text_plots import BarLabel, bar_label_lines, bar_lines, channel_range_strip

_BIN_COUNT = 64
_FIRST_BIN_POWER = -40
"""The power of two at which the lowest bin of `TensorStats.log_histogram` starts."""

_MAX_BINS = 32
_MIN_WIDTH = 30
_MAX_CLIPPING_SHARE = 0.999
"""A range below this fraction of amax is displayed as clipping."""


def histogram_lines(tensor: str, tensor_stats: TensorStats, width: int, row_count: int = 3, amax: float | None = None
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
    last = min(_BIN_COUNT - 1,
               max(present[-1],
                   math.ceil(_histogram_bin_position(shown_range)) - 1 if shown_range is not None else 0))
    first = max(present[0], last - min(_MAX_BINS - 1, width - 6))
    shown_counts = counts[first:last + 1]
    cell = max(1, min(4, (width - 4) // len(shown_counts)))
    peak = math.log1p(max(shown_counts))
    clip_position = _histogram_bin_position(amax) if is_clipped and amax is not None else math.inf
    lines: list[Line] = [
        clip_line([(" |x| of ", "dim"), (shorten_middle(tensor, width - 20), ""), ("  log counts", "dim")], width)
    ]
    drawn = bar_lines([math.log1p(count) / peak for count in shown_counts], row_count, cell,
                      ["warn" if first + index >= clip_position else "plot" for index in range(len(shown_counts))])
    lines += [[("  ", ""), *line] for line in drawn]

    def find_histogram_column(value: float) -> int:
        return 2 + min(cell * len(shown_counts) - 1, math.floor(
            (_histogram_bin_position(value) - first) * cell)) if value > 0 else -1

    marks = [BarLabel(find_histogram_column(tensor_stats.p99), f"p99 {number_text(tensor_stats.p99)}"),
             BarLabel(find_histogram_column(tensor_stats.p9999), f"p99.99 {number_text(tensor_stats.p9999)}"),
             BarLabel(find_histogram_column(tensor_stats.amax), f"amax {number_text(tensor_stats.amax)}")]
    if shown_range is not None:
        clipped_text = percent_text(1 - tensor_stats.estimate_value_share_below(shown_range)) if is_clipped else ""
        clip_text = f", clips {'hardly any' if clipped_text == '·' else clipped_text}" if is_clipped else ""
        marks.append(
            BarLabel(find_histogram_column(shown_range), f"range {number_text(shown_range)}{clip_text}",
                     "warn" if is_clipped else "strong"))
    return [*lines, *bar_label_lines(marks, width)]


def _histogram_bin_position(value: float | None) -> float:
    return math.log2(value) - _FIRST_BIN_POWER if value else 0.0


def channel_range_lines(tensor: str, top_channels: DominantChannels, width: int) -> list[Line]:
    """Returns a strip of the ranges of a tensor's channels, with their maximum and median; empty for a single channel.
    """
    count, amaxes = top_channels.channel_count, top_channels.amaxes
    if len(amaxes) < 2:
        return []
    ranked = sorted(amaxes)
    short_summary = f"{count} channels, max {number_text(ranked[-1])} #{top_channels.indices[0]}"
    summary = f"{short_summary}, median {number_text(ranked[len(ranked) // 2])}"
    summary = summary if len(summary) < width else short_summary
    room = width - len(summary) - 3
    head: Line = [(f" {shorten_middle(tensor, room)}  ", ""),
                  (summary, "dim")] if room >= 8 else [(f" {summary}", "dim")]
    return [clip_line(head, width), [(f"  {channel_range_strip(amaxes, width - 4)}", "plot")]]


def group_channel_range_lines(session: Session, group: FusionGroup, width: int) -> list[Line]:
    """Returns the channel strips of a group's inputs and weights that are known."""
    details = session.results.find(GROUP_DETAILS, group.name) or GroupDetails()
    inputs = dict.fromkeys(site.tensor for site in group.activation_qdq_sites() if site.tensor in details.tensors)
    channels_by_tensor = [(tensor, details.tensors[tensor].dominant_channels) for tensor in inputs]
    channels_by_tensor += details.weights.items()
    short_names = shorten_distinctly((tensor for tensor, _ in channels_by_tensor), max(8, width - 40))
    lines = [
        line for tensor, top_channels in channels_by_tensor if top_channels is not None
        for line in channel_range_lines(short_names[tensor], top_channels, width)
    ]
    titles = " ranges by channel: each step down halves the range", " ranges by channel, step ÷2", " ranges"
    return [[(next(title for title in titles if len(title) <= max(width, 7)), "dim")], *lines] if lines else []
