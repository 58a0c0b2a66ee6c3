"""How the loss is spread over the network: the shares of the groups in network order."""

from collections.abc import Sequence

from trt_tui.tui.keys import key
from trt_tui.tui.known import config_name
from trt_tui.tui.spans import Line, clip
from trt_tui.tui.state.figures import Figures, Measure
from trt_tui.tui.state.picture import Drawn, Frame, missing
from trt_tui.tui.state.plots import Mark, bars, bin_of, binned, mark_lines, sparkline
from trt_tui.words import RUN_TITLES, SIMULATED, percent, plural

_LABEL = " depth  "


def _shares(found: Figures) -> list[float]:
    """What each group owns, in network order; 0 where that is not known or the error grows."""
    if found.measure is not Measure.OWNS:
        return []
    shares = [max(0.0, found.values.get(group.name, 0.0)) for group in found.model.outline.groups]
    return shares if any(shares) else []


def depth_lines(found: Figures, names: Sequence[str], width: int) -> list[Line]:
    """The shares as a line, and below it where some groups lie; nothing where no shares are known."""
    shares, room = _shares(found), width - len(_LABEL) - 1
    if not shares or room < 10:
        return []
    cells = min(room, len(shares))
    order = {group.name: place for place, group in enumerate(found.model.outline.groups)}
    runs = {bin_of(order[name], len(shares), cells) for name in names if name in order}
    ticks = "".join("▲" if run in runs else " " for run in range(cells)).rstrip()
    return [[(_LABEL, "dim"), (sparkline(shares, cells, sum), "plot")], [(" " * len(_LABEL) + ticks, "strong")]]


def picture(frame: Frame) -> Drawn:
    """The shares as bars; the cursor stands on one of them, and enter goes to the worst of its groups."""
    found, width = frame.found, frame.width
    shares = _shares(found)
    if not shares:
        return missing(f"The rows are coloured by errors, which do not add up: {key('colour')} colours them by share."
                       if found.measure is not Measure.OWNS else "No shares are measured yet." if not found.values else
                       "No layer owns any of the error: raising one alone makes it no smaller.", width)
    groups = found.model.outline.groups
    count = min(width - 2, len(shares))
    sums = binned(shares, count, sum)
    runs: list[list[int]] = [[] for _ in range(count)]
    for place in range(len(shares)):
        runs[bin_of(place, len(shares), count)].append(place)
    worst = [max(run, key=lambda place: shares[place]) for run in runs]
    first = max(range(count), key=lambda run: sums[run])
    if frame.group is not None:
        first = bin_of(next(place for place, group in enumerate(groups) if group.name == frame.group.name),
                       len(shares), count)
    at = first if frame.place is None else frame.place % count
    cell = max(1, min(4, (width - 2) // count))
    top = max(sums)
    name = config_name(frame.session) if found.run == "config" else RUN_TITLES[found.run]
    styles = ["strong" if run == at else "plot" for run in range(count)]
    rows = max(3, min(16, frame.height - 8))
    lines: list[Line] = [clip([(f" share of the error of {name} over the depth of the network", "dim"),
                               (f"   full height {percent(top, SIMULATED)}", "dim")], width)]
    lines += [[(" ", ""), *line] for line in bars([value / top for value in sums], rows, cell, styles)]
    lines += mark_lines([Mark(1 + at * cell + cell // 2, "▲", "strong")], width)[1:]
    chosen = groups[worst[at]]
    more = len(runs[at]) - 1
    also = f", the worst of {plural(more + 1, 'layer')}, {percent(sums[at], SIMULATED)} together" if more else ""
    lines += [clip([(f" {found.model.titles[chosen.name]}", "strong"), (f"  {chosen.operator}  ", "dim"),
                    (percent(shares[worst[at]], SIMULATED), ""), (also, "dim")], width)]
    ranked = sorted(range(len(shares)), key=lambda place: -shares[place])[:3]
    titles = found.model.titles
    tops = " · ".join(f"{titles[groups[place].name]} {percent(shares[place], SIMULATED)}" for place in ranked
                      if shares[place] > 0)
    lines += [[], clip([(" worst  ", "dim"), (tops, "")], width)]
    return Drawn(lines, [groups[place].name for place in worst], at, "goes to it")
