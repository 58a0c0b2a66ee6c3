"""The errors over the samples, and one of them judged alone."""

import math

from trt_tui.core.measure.single import OneSample, SampleErrors
from trt_tui.tui.known import config_name
from trt_tui.tui.spans import Line, Span, clip, wrap
from trt_tui.tui.state.picture import Drawn, Frame, missing
from trt_tui.tui.state.plots import Mark, bars, bin_of, binned, mark_lines
from trt_tui.words import RUN_TITLES, SIMULATED, decibels, differing, percent, plural, with_unit

_BELOW = 8
"""Lines below the bars: what is chosen, and what is known of it alone."""

_TOP = 6


def figure_text(value: float, differs: bool) -> str:
    """The error of a sample as a person reads it."""
    if differs and not math.isnan(value):
        return f"{differing(value, SIMULATED)} differs"
    return with_unit(decibels(value, exact=value == math.inf, nan=int(math.isnan(value))))


def picture(frame: Frame) -> Drawn:
    """A bar for each sample, taller where it is worse; the cursor begins on the worst, which enter judges alone."""
    session, width = frame.session, frame.width
    if session.data is None:
        return missing("There are no samples: reopen with --data.", width)
    errors = session.results.samples.get(session.config)
    if errors is None:
        return missing("The errors are being measured sample by sample …", width)
    if not errors.figures:
        return missing("No sample was judged.", width)
    count = min(width - 2, len(errors.figures))
    runs: list[list[int]] = [[] for _ in range(count)]
    for place in range(len(errors.figures)):
        runs[bin_of(place, len(errors.figures), count)].append(place)
    worst = [max(run, key=errors.badness) for run in runs]
    at = bin_of(errors.worst, len(errors.figures), count) if frame.place is None else frame.place % count
    cell = max(1, min(3, (width - 2) // count))
    heights, low, high = _heights(errors)
    styles: list[str] = ["bad" if math.isnan(errors.figures[place]) else "plot" for place in worst]
    styles[at] = "strong"
    unit = "batch" if errors.by_feed else "sample"
    name = config_name(session)
    title = f" error of {name} over {plural(len(heights), unit).replace('batchs', 'batches')}, taller is worse"
    lines: list[Line] = [clip([(title, "dim"), (f"   {high} to {low}", "dim")], width)]
    rows = max(3, min(16, frame.height - _BELOW - 3))
    lines += [[(" ", ""), *line] for line in bars(binned(heights, count), rows, cell, styles)]
    lines += mark_lines([Mark(1 + at * cell + cell // 2, f"#{worst[at]}", "strong")], width)
    which = ", the worst" if worst[at] == errors.worst else ""
    also = f", the worst of {len(runs[at])} in this column" if len(runs[at]) > 1 and not which else ""
    chosen = worst[at]
    lines.append(clip([(f" #{chosen}", "strong"), ("  ", ""), (figure_text(errors.figures[chosen], errors.differs), ""),
                       (f"{which}{also}", "dim")], width))
    if errors.by_feed:
        lines.append([(" the outputs do not tell the samples of a batch apart", "dim")])
        return Drawn(lines)
    one = session.results.alone.get((session.config, chosen))
    lines += _alone(frame, one, errors.differs) if one is not None else []
    return Drawn(lines, worst, at, "judges it alone")


def _heights(errors: SampleErrors) -> tuple[list[float], str, str]:
    """Heights of the bars from 0 to 1, and what the least and the greatest stand for."""
    finite = [value for value in errors.figures if math.isfinite(value)]
    if not finite:
        ends = [figure_text(min(errors.figures, default=0.0), errors.differs),
                figure_text(errors.figures[errors.worst], errors.differs)]
        return [1.0 if math.isnan(value) else 0.0 for value in errors.figures], ends[1], ends[0]
    least, most = min(finite), max(finite)
    room = (most - least) * 1.15 or 1.0
    heights = [1.0 if math.isnan(value) else 0.0 if math.isinf(value) else
               value / (most or 1.0) if errors.differs else (least + room - value) / room for value in errors.figures]
    best, worst = (least, most) if errors.differs else (most, least)
    return heights, figure_text(worst, errors.differs), figure_text(best, errors.differs)


def _alone(frame: Frame, one: OneSample, differs: bool) -> list[Line]:
    """What is known of one sample: each run on it, and the groups that own its error."""
    session, model = frame.session, frame.found.model
    line: Line = [(" alone  ", "dim")]
    for run, value in one.figures.items():
        name = config_name(session) if run == "config" else RUN_TITLES[run]
        line += [(f"{name} ", "dim"), (figure_text(value, differs), ""), ("   ", "")]
    lines: list[Line] = [clip(line, frame.width)]
    ranked = sorted(one.shares.items(), key=lambda item: -item[1])[:_TOP]
    owners = [f"{model.titles[name]} {percent(share, SIMULATED)}" for name, share in ranked if share >= 0.002]
    every = session.results.of(session.config).shares
    if not one.complete:
        owners.append("… being measured")
    words: Span = (" owns   ", "dim")
    for text in wrap(" · ".join(owners) or "no layer owns any of it", frame.width - 9)[:3]:
        lines.append([words, (text, "")])
        words = (" " * 8, "")
    shared = [name for name, share in ranked[:3] if (known := every.get(name)) is not None and
              share - known.owns > 0.1]
    if one.complete and shared:
        text = ", ".join(f"{model.titles[name]} {percent(every[name].owns, SIMULATED)}" for name in shared)
        lines.append(clip([(" of all ", "dim"), (f"samples together: {text}", "dim")], frame.width))
    return lines
