"""Charts of a report as SVG, drawn from a comparison's JSON record and tensor statistics. An empty chart is "".

Charts consist of plain shapes and text in one hue and greys. They have a background, so that they are legible in light
and dark viewers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.measure.metric_parts import metric_part_rows
from trt_tui.core.precision import FP16_MAX
from trt_tui.formatting import escape_hidden_characters, number_text, percent_text

MAX_BARS = 15
"""Maximum number of layers or parts in a chart."""

_WIDTH, _ROW_HEIGHT, _LEFT_MARGIN, _TOP_MARGIN = 720, 22, 300, 44
_ACCENT_COLOUR, _GREYS, _TEXT_COLOUR = "#c2410c", ("#475569", "#94a3b8", "#cbd5e1"), "#1e293b"
_MAX_NAME_CHARACTERS = 44
_BINS = 64
_MIN_EXPONENT = -40
"""Exponent of the lowest bin of `TensorStats.log_histogram`."""


def error_shares_svg(comparison: Mapping[str, Any], run_name: str) -> str:
    """Draws the error share of each layer in a run as a bar, the largest first."""
    groups: Mapping[str, Mapping[str, Any]] = comparison.get("runs", {}).get(run_name, {}).get("groups", {})
    shares = {name: group["owns"] for name, group in groups.items() if group.get("owns") is not None}
    names = sorted(shares, key=lambda name: -shares[name])[:MAX_BARS]
    largest = max((shares[name] for name in names), default=0.0)
    if largest <= 0:
        return ""
    bar_room = _WIDTH - _LEFT_MARGIN - 90
    shapes = []
    for row, name in enumerate(names):
        top, length = _TOP_MARGIN + row * _ROW_HEIGHT, max(shares[name], 0.0) / largest * bar_room
        shapes += [_svg_text(_LEFT_MARGIN - 8, top + 14, _shorten_name(name), "end"),
                   _svg_rectangle(_LEFT_MARGIN, top + 3, length, _ROW_HEIGHT - 6, _ACCENT_COLOUR),
                   _svg_text(_LEFT_MARGIN + length + 6, top + 14, percent_text(shares[name], "~"))]
    return _svg_document(f"Share of the error of {run_name} that disappears if this layer alone is raised to FP32",
                         _TOP_MARGIN + len(names) * _ROW_HEIGHT + 10, shapes)


def latency_svg(comparison: Mapping[str, Any]) -> str:
    """Draws the accuracy of the engines against their latency; "" for fewer than two engines."""
    points = []
    for name, run in comparison.get("runs", {}).items():
        sqnr_values = [
            entry["sqnr_db"] for entry in run.get("outputs", {}).values() if entry.get("sqnr_db") is not None
        ]
        if "median" in run.get("latency_ms", {}) and sqnr_values and run.get("as_asked", True):
            points.append((name.removesuffix("-engine"), float(run["latency_ms"]["median"]), min(sqnr_values)))
    if len(points) < 2:
        return ""
    max_latency, max_sqnr = max(entry[1] for entry in points) * 1.15, max(entry[2] for entry in points) * 1.15
    chart_left, bottom, chart_width, chart_height = 70, 300, _WIDTH - 180, 240
    shapes = [
        _svg_line(chart_left, bottom, chart_left + chart_width, bottom),
        _svg_line(chart_left, bottom, chart_left, bottom - chart_height),
        _svg_text(chart_left + chart_width, bottom + 32, "latency, ms (median)", "end"),
        _svg_text(chart_left, bottom - chart_height - 8, "SQNR of the worst judged output, dB")
    ]
    for fraction in (0.0, 0.5, 1.0):
        shapes += [
            _svg_text(chart_left + fraction * chart_width, bottom + 16, number_text(fraction * max_latency), "middle"),
            _svg_text(chart_left - 6, bottom - fraction * chart_height + 4, number_text(fraction * max_sqnr), "end")
        ]
    for name, milliseconds, sqnr in points:
        point_x, point_y = chart_left + milliseconds / max_latency * chart_width, bottom - max(
            sqnr, 0.0) / (max_sqnr or 1.0) * chart_height
        shapes += [
            f'<circle cx="{point_x:.1f}" cy="{point_y:.1f}" r="5" fill="{_ACCENT_COLOUR}"/>',
            _svg_text(point_x + 9, point_y + 4, f"{name}: {number_text(milliseconds)} ms, {number_text(sqnr)} dB")
        ]
    return _svg_document("Engines: accuracy against latency", bottom + 44, shapes)


def metric_parts_svg(comparison: Mapping[str, Any]) -> str:
    """Draws the parts of the metric in FP32 and in each run, the largest drop first; "" for a metric without parts."""
    reference: Mapping[str, float] = comparison.get("reference", {}).get("metric_parts", {})
    runs = {name: run["metric_parts"] for name, run in comparison.get("runs", {}).items()
            if run.get("metric_parts") and run.get("as_asked", True)}
    rows = metric_part_rows(reference, list(runs.values()))[:MAX_BARS]
    largest = max((abs(row.reference_value) for row in rows), default=0.0)
    if len(rows) < 2 or not runs or not largest:
        return ""
    names = ["FP32", *runs]
    colours = [
        _GREYS[0], *(_ACCENT_COLOUR if name.startswith("config") else _GREYS[1 + run_index % 2]
                     for run_index, name in enumerate(runs))
    ]
    bar, bar_room = 9, _WIDTH - _LEFT_MARGIN - 90
    shapes, top = [], _TOP_MARGIN + 4
    for run_index, (name, colour) in enumerate(zip(names, colours, strict=True)):
        legend_x = 16 + run_index * 120
        shapes += [
            _svg_rectangle(legend_x, _TOP_MARGIN - 10, 10, 10, colour),
            _svg_text(legend_x + 15, _TOP_MARGIN - 1, name)
        ]
    for row in rows:
        top += 6
        shapes.append(_svg_text(_LEFT_MARGIN - 8, top + bar * len(names) / 2 + 4, _shorten_name(row.part_name), "end"))
        for value, colour in zip((row.reference_value, *row.run_values), colours, strict=True):
            if value is not None and math.isfinite(value):
                length = max(value, 0.0) / largest * bar_room
                shapes += [_svg_rectangle(_LEFT_MARGIN, top, length, bar - 1, colour),
                           _svg_text(_LEFT_MARGIN + length + 5, top + bar - 1, number_text(value), size=9)]
            top += bar
    return _svg_document("Parts of the metric, the worst drop first", top + 14, shapes)


def histogram_svg(tensor: str, stats: TensorStats, amax: float | None) -> str:
    """Draws the histogram of a tensor's magnitudes, with its range and the smallest normal and largest value of FP16.
    """
    counts = stats.log_histogram
    used_bins = [bin_index for bin_index, count in enumerate(counts) if count]
    if not used_bins:
        return ""
    marks = {"FP16's least": 2.0 ** -14, "FP16's largest": FP16_MAX}
    if amax:
        marks |= {"range": amax, "one INT8 step": amax / 127}
    positions = {word: math.log2(value) - _MIN_EXPONENT for word, value in marks.items()}
    first_bin = max(
        0,
        min(used_bins[0], *(math.floor(positions[word]) for word in positions if word != "FP16's largest")) - 1)
    last_bin = min(
        _BINS,
        max(used_bins[-1] + 1, *(math.ceil(positions[word]) for word in positions if "FP16" not in word), first_bin + 1)
        + 1)
    chart_left, bottom, chart_width, chart_height = 50, 250, _WIDTH - 90, 170
    step, max_count = chart_width / (last_bin - first_bin), max(counts)
    shapes = [_svg_line(chart_left, bottom, chart_left + chart_width, bottom)]
    for bin_index in range(first_bin, last_bin):
        if bin_index < _BINS and counts[bin_index]:
            bar_height = max(1.5, math.log1p(counts[bin_index]) / math.log1p(max_count) * chart_height)
            shapes.append(
                _svg_rectangle(chart_left + (bin_index - first_bin) * step, bottom - bar_height, step - 1, bar_height,
                               _GREYS[1]))
        if (bin_index - first_bin) % 4 == 0:
            shapes.append(
                _svg_text(chart_left + (bin_index - first_bin) * step, bottom + 16, f"2^{bin_index + _MIN_EXPONENT}",
                          "middle", 9))
    lines = [(word, position) for word, position in positions.items() if first_bin <= position <= last_bin]
    for row, (word, position) in enumerate(sorted(lines, key=lambda line: line[1])):
        line_x = chart_left + (position - first_bin) * step
        shapes += [
            _svg_line(line_x, bottom, line_x, 54 + row * 12, _ACCENT_COLOUR if "FP16" not in word else _TEXT_COLOUR),
            _svg_text(line_x + 3, 62 + row * 12, word, size=10)
        ]
    shapes.append(_svg_text(chart_left, bottom + 34, f"magnitude; heights in logarithm; {stats.count} values, "
                            f"{percent_text(stats.zeros / stats.count if stats.count else 0)} zero", size=10))
    return _svg_document(f"Values of {_shorten_name(tensor, 70)}", bottom + 46, shapes)


# -- shapes ---------------------------------------------------------------------------------------------------------


def _svg_document(title: str, height: float, shapes: Iterable[str], width: int = _WIDTH) -> str:
    body = "\n".join(shapes)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
            f'viewBox="0 0 {width} {height:.0f}" font-family="sans-serif" role="img">\n'
            f"<title>{_escape_xml(title)}</title>\n"
            f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>\n'
            f"{_svg_text(16, 24, title, size=14)}\n{body}\n</svg>\n")


def _svg_text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{_TEXT_COLOUR}" '
            f'text-anchor="{anchor}">{_escape_xml(text)}</text>')


def _svg_rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _svg_line(x1: float, y1: float, x2: float, y2: float, colour: str = _TEXT_COLOUR) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _escape_xml(text: str) -> str:
    return escape(escape_hidden_characters(text).encode("utf-8", "replace").decode(), quote=False)


def _shorten_name(name: str, max_characters: int = _MAX_NAME_CHARACTERS) -> str:
    """Shortens a name at its start, because the end of a name is more specific."""
    return name if len(name) <= max_characters else "…" + name[-(max_characters - 1):]


def draw_all_charts(comparison: Mapping[str, Any], run_name: str,
                    histograms: Sequence[tuple[str, TensorStats, float | None]]) -> dict[str, tuple[str, str]]:
    """Draws all charts that are not empty, and returns their titles and SVG texts by file name.

    Args:
        run_name: The run whose error shares are drawn.
        histograms: Tensors with their statistics and amax.
    """
    charts = {"shares.svg": ("Error shares", error_shares_svg(comparison, run_name)),
              "latency.svg": ("Accuracy against latency", latency_svg(comparison)),
              "classes.svg": ("Parts of the metric", metric_parts_svg(comparison))}
    for index, (tensor, stats, amax) in enumerate(histograms):
        charts[f"histogram{index}.svg"] = (f"Values of {tensor}", histogram_svg(tensor, stats, amax))
    return {name: chart for name, chart in charts.items() if chart[1]}
