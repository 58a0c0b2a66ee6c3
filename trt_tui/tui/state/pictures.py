"""All pictures and tables that stand beside the list, each by the number that shows it."""

from collections.abc import Callable
from dataclasses import dataclass

from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, wrap
from trt_tui.tui.state import depth, engine_page, parts, samples, tradeoff
from trt_tui.tui.state.detail import values_lines
from trt_tui.tui.state.picture import Drawn, Frame, missing
from trt_tui.tui.state.values import group_channels
from trt_tui.tui.state.verdict import stage_table


def _values(frame: Frame) -> Drawn:
    """What the row under the cursor reads: its histogram with the range, and the ranges of channels."""
    group = frame.group
    if group is None:
        return missing("Several layers are chosen: put the cursor on one of them.", frame.width)
    channels = group_channels(frame.session, group, frame.width)
    rows = max(4, min(12, frame.height - len(channels) - 6))
    lines = values_lines(frame.session, frame.found, group, frame.width, rows)
    if not lines and not channels:
        return missing("Its values are being measured …" if frame.session.data is not None else
                       "There are no samples: reopen with --data.", frame.width)
    return Drawn([[(f" {frame.found.model.titles[group.name]}", "strong")], *lines, [], *channels])


def _parts(frame: Frame) -> Drawn:
    if frame.session.metric is None:
        return missing("There is no --metric, so there are no parts of one.", frame.width)
    return Drawn(parts.page_lines(frame.session, frame.width))


def _stages(frame: Frame) -> Drawn:
    lines = stage_table(frame.session, frame.width)
    return Drawn(lines) if lines else missing("No stages on the way to production are measured: --stage, --engine and "
                                              "--outputs name them.", frame.width)


def _warnings(frame: Frame) -> Drawn:
    lines: list[Line] = []
    for _, text in frame.session.warned:
        lines += [[("! " if index == 0 else "  ", "warn"), (part, "")]
                  for index, part in enumerate(wrap(text, frame.width - 3))]
    return Drawn(lines) if lines else missing("Nothing is to be warned of.", frame.width)


@dataclass(frozen=True)
class Picture:
    """A picture: its word, what draws it, and what is asked of the child process when it is shown."""

    label: str
    draw: Callable[[Frame], Drawn]
    ask: Callable[[Session], None] | None = None


PICTURES = (
    Picture("values", _values),
    Picture("depth", depth.picture),
    Picture("samples", samples.picture, Session.measure_samples),
    Picture("trade", tradeoff.picture),
    Picture("layers", engine_page.picture),
    Picture("classes", _parts),
    Picture("stages", _stages),
    Picture("warnings", _warnings),
)
"""Shown by the numbers from 1 on."""
