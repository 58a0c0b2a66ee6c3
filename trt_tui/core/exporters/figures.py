"""Figures of a report as SVG: pure functions of a comparison's JSON record and of statistics; "" for nothing to draw.

Plain shapes and text, one hue and greys, legible in light and in dark viewers: the ground is drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.measure.metric_parts import part_rows
from trt_tui.core.precision import FP16_MAX
from trt_tui.words import number, percent, visible

MOST_BARS = 15
"""How many layers or parts a figure shows."""

_WIDTH, _ROW, _LEFT, _TOP = 720, 22, 300, 44
_HUE, _GREYS, _INK = "#c2410c", ("#475569", "#94a3b8", "#cbd5e1"), "#1e293b"
_LONGEST = 44
_BINS = 64
_FIRST_POWER = -40
"""Of the lowest bin of `TensorStats.log_histogram`."""


def shares_svg(comparison: Mapping[str, Any], run: str) -> str:
    """What share of a run's error each layer owns, the largest first."""
    groups: Mapping[str, Mapping[str, Any]] = comparison.get("runs", {}).get(run, {}).get("groups", {})
    shares = {name: group["owns"] for name, group in groups.items() if group.get("owns") is not None}
    names = sorted(shares, key=lambda name: -shares[name])[:MOST_BARS]
    largest = max((shares[name] for name in names), default=0.0)
    if largest <= 0:
        return ""
    room = _WIDTH - _LEFT - 90
    shapes = []
    for row, name in enumerate(names):
        top, length = _TOP + row * _ROW, max(shares[name], 0.0) / largest * room
        shapes += [_text(_LEFT - 8, top + 14, _short(name), "end"),
                   _box(_LEFT, top + 3, length, _ROW - 6, _HUE),
                   _text(_LEFT + length + 6, top + 14, percent(shares[name], "~"))]
    return _figure(f"Share of the error of {run} that goes when this layer alone returns to FP32",
                   _TOP + len(names) * _ROW + 10, shapes)


def latency_svg(comparison: Mapping[str, Any]) -> str:
    """Accuracy of the engines against their latency; "" with fewer than two of them."""
    points = []
    for name, run in comparison.get("runs", {}).items():
        figures = [one["sqnr_db"] for one in run.get("outputs", {}).values() if one.get("sqnr_db") is not None]
        if "median" in run.get("latency_ms", {}) and figures and run.get("as_asked", True):
            points.append((name.removesuffix("-engine"), float(run["latency_ms"]["median"]), min(figures)))
    if len(points) < 2:
        return ""
    slowest, best = max(one[1] for one in points) * 1.15, max(one[2] for one in points) * 1.15
    left, bottom, wide, high = 70, 300, _WIDTH - 180, 240
    shapes = [_line(left, bottom, left + wide, bottom), _line(left, bottom, left, bottom - high),
              _text(left + wide, bottom + 32, "latency, ms (median)", "end"),
              _text(left, bottom - high - 8, "SQNR of the worst judged output, dB")]
    for part in (0.0, 0.5, 1.0):
        shapes += [_text(left + part * wide, bottom + 16, number(part * slowest), "middle"),
                   _text(left - 6, bottom - part * high + 4, number(part * best), "end")]
    for name, milliseconds, sqnr in points:
        across, up = left + milliseconds / slowest * wide, bottom - max(sqnr, 0.0) / (best or 1.0) * high
        shapes += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="5" fill="{_HUE}"/>',
                   _text(across + 9, up + 4, f"{name}: {number(milliseconds)} ms, {number(sqnr)} dB")]
    return _figure("Engines: accuracy against latency", bottom + 44, shapes)


def classes_svg(comparison: Mapping[str, Any]) -> str:
    """The parts of the metric in FP32 and in each run, the worst drop first; "" for a metric without parts."""
    reference: Mapping[str, float] = comparison.get("reference", {}).get("metric_parts", {})
    runs = {name: run["metric_parts"] for name, run in comparison.get("runs", {}).items()
            if run.get("metric_parts") and run.get("as_asked", True)}
    rows = part_rows(reference, list(runs.values()))[:MOST_BARS]
    largest = max((abs(row.reference) for row in rows), default=0.0)
    if len(rows) < 2 or not runs or not largest:
        return ""
    names = ["FP32", *runs]
    colours = [_GREYS[0], *(_HUE if name.startswith("config") else _GREYS[1 + at % 2] for at, name in enumerate(runs))]
    bar, room = 9, _WIDTH - _LEFT - 90
    shapes, top = [], _TOP + 4
    for at, (name, colour) in enumerate(zip(names, colours, strict=True)):
        across = 16 + at * 120
        shapes += [_box(across, _TOP - 10, 10, 10, colour), _text(across + 15, _TOP - 1, name)]
    for row in rows:
        top += 6
        shapes.append(_text(_LEFT - 8, top + bar * len(names) / 2 + 4, _short(row.name), "end"))
        for figure, colour in zip((row.reference, *row.figures), colours, strict=True):
            if figure is not None and math.isfinite(figure):
                length = max(figure, 0.0) / largest * room
                shapes += [_box(_LEFT, top, length, bar - 1, colour),
                           _text(_LEFT + length + 5, top + bar - 1, number(figure), size=9)]
            top += bar
    return _figure("Parts of the metric, the worst drop first", top + 14, shapes)


def histogram_svg(tensor: str, stats: TensorStats, amax: float | None) -> str:
    """How many values of a tensor have which magnitude, with its range and FP16's least and largest."""
    counts = stats.log_histogram
    used = [at for at, count in enumerate(counts) if count]
    if not used:
        return ""
    marks = {"FP16's least": 2.0 ** -14, "FP16's largest": FP16_MAX}
    if amax:
        marks |= {"range": amax, "one INT8 step": amax / 127}
    places = {word: math.log2(value) - _FIRST_POWER for word, value in marks.items()}
    first = max(0, min(used[0], *(math.floor(places[word]) for word in places if word != "FP16's largest")) - 1)
    last = min(_BINS, max(used[-1] + 1, *(math.ceil(places[word]) for word in places if "FP16" not in word), first + 1)
               + 1)
    left, bottom, wide, high = 50, 250, _WIDTH - 90, 170
    step, most = wide / (last - first), max(counts)
    shapes = [_line(left, bottom, left + wide, bottom)]
    for at in range(first, last):
        if at < _BINS and counts[at]:
            tall = max(1.5, math.log1p(counts[at]) / math.log1p(most) * high)
            shapes.append(_box(left + (at - first) * step, bottom - tall, step - 1, tall, _GREYS[1]))
        if (at - first) % 4 == 0:
            shapes.append(_text(left + (at - first) * step, bottom + 16, f"2^{at + _FIRST_POWER}", "middle", 9))
    lines = [(word, place) for word, place in places.items() if first <= place <= last]
    for row, (word, place) in enumerate(sorted(lines, key=lambda one: one[1])):
        across = left + (place - first) * step
        shapes += [_line(across, bottom, across, 54 + row * 12, _HUE if "FP16" not in word else _INK),
                   _text(across + 3, 62 + row * 12, word, size=10)]
    shapes.append(_text(left, bottom + 34, f"magnitude; heights in logarithm; {stats.count} values, "
                        f"{percent(stats.zeros / stats.count if stats.count else 0)} zero", size=10))
    return _figure(f"Values of {_short(tensor, 70)}", bottom + 46, shapes)


# -- shapes ---------------------------------------------------------------------------------------------------------


def _figure(title: str, height: float, shapes: Iterable[str]) -> str:
    body = "\n".join(shapes)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {_WIDTH} {height:.0f}" font-family="sans-serif" role="img">\n'
            f"<title>{_clean(title)}</title>\n"
            f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>\n'
            f"{_text(16, 24, title, size=14)}\n{body}\n</svg>\n")


def _text(across: float, down: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return (f'<text x="{across:.1f}" y="{down:.1f}" font-size="{size}" fill="{_INK}" '
            f'text-anchor="{anchor}">{_clean(text)}</text>')


def _box(across: float, down: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{across:.1f}" y="{down:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _INK) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _clean(text: str) -> str:
    """A text as XML holds it."""
    return escape(visible(text).encode("utf-8", "replace").decode(), quote=False)


def _short(name: str, most: int = _LONGEST) -> str:
    """A name that fits; its end says more than its start."""
    return name if len(name) <= most else "…" + name[-(most - 1):]


def figures(comparison: Mapping[str, Any], run: str,
            histograms: Sequence[tuple[str, TensorStats, float | None]]) -> dict[str, tuple[str, str]]:
    """All figures that there is something to draw for: title and SVG by file name.

    Args:
        run: Whose shares are drawn.
        histograms: Tensor, its statistics and its range.
    """
    found = {"shares.svg": ("Error shares", shares_svg(comparison, run)),
             "latency.svg": ("Accuracy against latency", latency_svg(comparison)),
             "classes.svg": ("Parts of the metric", classes_svg(comparison))}
    for at, (tensor, stats, amax) in enumerate(histograms):
        found[f"histogram{at}.svg"] = (f"Values of {tensor}", histogram_svg(tensor, stats, amax))
    return {name: one for name, one in found.items() if one[1]}
